//! The metadata files that a container reads about its networks when it starts (KEP-5304).

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use netclaim_tests::objects::{claim, claim_template, pod, request};
use netclaim_tests::{Test, eventually};

/// The folder of the files in the container.
const DIR: &str = "/var/run/kubernetes.io/dra-device-attributes";

/// A pod whose container logs the metadata files in the folders `files` below [`DIR`], and waits.
fn reader(name: &str, claims: &[&str], files: &[&str]) -> Value {
    let mut reader = pod(name, claims);
    let read: String =
        files.iter().map(|file| format!("cat {DIR}/{file}/netclaim.dev-metadata.json; ")).collect();
    let script = format!("{read}trap 'exit 0' TERM; sleep 1000000 & wait");
    reader["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    reader
}

/// Returns the newest version of the `N` files that a pod's container read.
fn read<const N: usize>(test: &Test<'_>, pod: &str) -> Result<[Value; N]> {
    eventually(15, "the container's log has its files", || read_now(test, pod))
}

fn read_now<const N: usize>(test: &Test<'_>, pod: &str) -> Result<[Value; N]> {
    let log = test.kubectl(&["logs", pod])?;
    let objects = serde_json::Deserializer::from_str(&log).into_iter::<Value>();
    let objects = objects.collect::<Result<Vec<_>, _>>().with_context(|| format!("{pod} read {log}"))?;
    let (newest, older): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object["apiVersion"] == "metadata.resource.k8s.io/v1beta1");
    ensure!(newest.len() == older.len(), "a file lacks one of its two versions: {log}");
    for (newest, mut older) in newest.iter().zip(older) {
        older["apiVersion"] = newest["apiVersion"].clone();
        ensure!(*newest == older, "the versions differ: {log}");
    }
    newest.try_into().ok().with_context(|| format!("{pod} did not read {N} files: {log}"))
}

/// Makes sure that `object` describes the pod's `interface` as the request's first device.
fn describes(test: &Test<'_>, object: &Value, pod: &str, request: &str, interface: &str) -> Result<()> {
    let inside = test.interface(pod, interface)?;
    let described = &object["requests"][0];
    ensure!(described["name"] == request, "{object}");
    let wanted = json!({"interfaceName": interface, "hardwareAddress": inside.mac, "ips": inside.ips});
    ensure!(described["devices"][0]["networkData"] == wanted, "{described}, in the pod: {inside:?}");
    ensure!(described["devices"][0]["attributes"]["uplink"] == json!({"string": "eth1"}), "{described}");
    Ok(())
}

pub fn a_container_reads_its_metadata_when_it_starts(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    let mut both = claim("both", &a);
    both["spec"]["devices"] = json!({"requests": [request("first", &a), request("second", &b)]});
    let one = reader("one", &["both"], &["resourceclaims/both/first", "resourceclaims/both/second"]);
    let mut two = reader("two", &["mine"], &["resourceclaimtemplates/mine/net"]);
    two["spec"]["resourceClaims"] = json!([{"name": "mine", "resourceClaimTemplateName": "lan"}]);
    test.create([both, claim_template("lan", &a), one, two])?;
    test.runs("one")?;
    test.runs("two")?;
    let [first, second] = read(test, "one")?;
    describes(test, &first, "one", "first", "net1")?;
    describes(test, &second, "one", "second", "net2")?;
    ensure!(first["metadata"]["name"] == "both" && first["podClaimName"].is_null(), "{first}");
    let [object] = read(test, "two")?;
    describes(test, &object, "two", "net", "net1")?;
    ensure!(object["podClaimName"] == "mine", "{object}");
    Ok(())
}

pub fn a_container_that_waited_in_the_hook_reads_its_metadata(test: &Test<'_>) -> Result<()> {
    // Longer than the agent delays a sandbox: the container is created, with its file mounted, before the ADD
    // ends.
    let network = test.network_after("/opt/cni/bin/busybox sleep 6")?;
    test.create([claim("c", &network), reader("p", &["c"], &["resourceclaims/c/net"])])?;
    test.runs("p")?;
    let [object] = read(test, "p")?;
    describes(test, &object, "p", "net", "net1")
}

pub fn a_new_sandbox_has_new_metadata(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.create([claim("c", &network), reader("p", &["c"], &["resourceclaims/c/net"])])?;
    test.runs("p")?;
    let [before] = read(test, "p")?;
    let old = test.end_sandbox("p")?;
    let [after] = eventually(60, "a container in a new sandbox has read its file", || {
        let container = test.container("p", "shell")?;
        ensure!(container.sandbox != old.id, "it is in the old one");
        read_now(test, "p")
    })?;
    describes(test, &after, "p", "net", "net1")?;
    let generation = |object: &Value| object["metadata"]["generation"].as_u64();
    ensure!(generation(&after) > generation(&before), "{before}, then {after}");
    Ok(())
}
