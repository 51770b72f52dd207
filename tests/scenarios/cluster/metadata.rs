//! What a container reads about its networks (KEP-5304), at its first instruction.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use netclaim_tests::objects::{claim, pod, request};
use netclaim_tests::{Test, eventually};

/// Where readers look.
const DIR: &str = "/var/run/kubernetes.io/dra-device-attributes";

/// A pod whose container first says what is in its files, each of the folders `files` below [`DIR`], and then waits.
fn reader(name: &str, claims: &[&str], files: &[&str]) -> Value {
    let mut reader = pod(name, claims);
    let read: String =
        files.iter().map(|file| format!("cat {DIR}/{file}/netclaim.dev-metadata.json; ")).collect();
    let script = format!("{read}trap 'exit 0' TERM; sleep 1000000 & wait");
    reader["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    reader
}

/// What a pod's container read in its `N` files, in the newest version.
fn read<const N: usize>(test: &Test<'_>, pod: &str) -> Result<[Value; N]> {
    eventually(15, "the container's log has its files", || read_now(test, pod))
}

fn read_now<const N: usize>(test: &Test<'_>, pod: &str) -> Result<[Value; N]> {
    let log = test.kubectl(&["logs", pod])?;
    let objects = serde_json::Deserializer::from_str(&log).into_iter::<Value>();
    let objects = objects.collect::<Result<Vec<_>, _>>().with_context(|| format!("{pod} read {log}"))?;
    let (newest, older): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object["apiVersion"] == "metadata.resource.k8s.io/v1beta1");
    ensure!(newest.len() == older.len(), "not each in two versions: {log}");
    for (newest, mut older) in newest.iter().zip(older) {
        older["apiVersion"] = newest["apiVersion"].clone();
        ensure!(*newest == older, "the versions differ: {log}");
    }
    newest.try_into().ok().with_context(|| format!("{pod} did not read {N} files: {log}"))
}

/// Makes sure that `object` tells of one device, the pod's `interface` as it is.
fn tells(test: &Test<'_>, object: &Value, pod: &str, request: &str, interface: &str) -> Result<()> {
    let inside = test.interface(pod, interface)?;
    let told = &object["requests"][0];
    ensure!(told["name"] == request, "{object}");
    let wanted = json!({"interfaceName": interface, "hardwareAddress": inside.mac, "ips": inside.ips});
    ensure!(told["devices"][0]["networkData"] == wanted, "it tells {told}, in the pod: {inside:?}");
    ensure!(told["devices"][0]["attributes"]["uplink"] == json!({"string": "eth1"}), "{told}");
    Ok(())
}

pub fn a_container_reads_at_once_what_it_was_given(test: &Test<'_>) -> Result<()> {
    let (a, b) = (test.macvlan("a")?, test.macvlan("b")?);
    let mut both = claim("both", &a);
    both["spec"]["devices"] = json!({"requests": [request("first", &a), request("second", &b)]});
    let spec = json!({"spec": claim("", &a)["spec"]});
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "lan"}, "spec": spec});
    let one = reader("one", &["both"], &["resourceclaims/both/first", "resourceclaims/both/second"]);
    let mut two = reader("two", &["mine"], &["resourceclaimtemplates/mine/net"]);
    two["spec"]["resourceClaims"] = json!([{"name": "mine", "resourceClaimTemplateName": "lan"}]);
    test.create([both, template, one, two])?;
    test.runs("one")?;
    test.runs("two")?;
    let [first, second] = read(test, "one")?;
    tells(test, &first, "one", "first", "net1")?;
    tells(test, &second, "one", "second", "net2")?;
    ensure!(first["metadata"]["name"] == "both" && first["podClaimName"].is_null(), "{first}");
    let [object] = read(test, "two")?;
    tells(test, &object, "two", "net", "net1")?;
    ensure!(object["podClaimName"] == "mine", "{object}");
    Ok(())
}

pub fn a_container_that_waits_in_its_hook_reads_what_came_of_it(test: &Test<'_>) -> Result<()> {
    // Longer than a sandbox is held up for: the container is created, its file mounted, before the ADD is done.
    let network = test.network_after("/opt/cni/bin/busybox sleep 6")?;
    test.create([claim("c", &network), reader("p", &["c"], &["resourceclaims/c/net"])])?;
    test.runs("p")?;
    let [object] = read(test, "p")?;
    tells(test, &object, "p", "net", "net1")
}

pub fn a_new_sandbox_has_new_metadata(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.create([claim("c", &network), reader("p", &["c"], &["resourceclaims/c/net"])])?;
    test.runs("p")?;
    let [before] = read(test, "p")?;
    let old = test.sandbox("p")?;
    test.end_sandbox(&old)?;
    let [after] = eventually(60, "a container of a new sandbox has read", || {
        let container = test.container("p", "shell")?;
        ensure!(container.sandbox != old.id, "it is the old one");
        read_now(test, "p")
    })?;
    tells(test, &after, "p", "net", "net1")?;
    let generation = |object: &Value| object["metadata"]["generation"].as_u64();
    ensure!(generation(&after) > generation(&before), "{before}, then {after}");
    Ok(())
}
