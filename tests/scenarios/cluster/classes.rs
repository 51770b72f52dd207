//! DeviceClasses of ClaimNetworks, and pods that ask by one line.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{class, container, list, network, pod, text};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// A ClaimNetwork that makes its class.
fn with_class(test: &Test<'_>, name: &str) -> Value {
    let mut network = network(&test.name(name), "macvlan", "eth1", &test.subnet(0));
    network["spec"]["deviceClass"] = json!("Own");
    network
}

fn resource(class: &str) -> String {
    format!("deviceclass.resource.kubernetes.io/{class}")
}

/// A pod whose containers have these limits.
fn asking(name: &str, containers: &[(&str, Value)]) -> Value {
    let mut pod = pod(name, &[]);
    let with_limits = containers.iter().map(|(name, limits)| {
        let mut container = container(name);
        container["resources"] = json!({"limits": limits});
        container
    });
    pod["spec"]["containers"] = with_limits.collect();
    pod
}

fn one_line(name: &str, class: &str) -> Value {
    asking(name, &[("shell", json!({resource(class): 1}))])
}

/// The claim that the scheduler has made for a pod.
fn claim_of(test: &Test<'_>, pod: &str) -> Result<String> {
    let status = test.get("pod", pod)?["status"]["extendedResourceClaimStatus"].clone();
    status["resourceClaimName"].as_str().map(str::to_owned).with_context(|| format!("{pod} has {status}"))
}

fn condition_is(test: &Test<'_>, network: &str, reason: &str, words: &str) -> Result<()> {
    eventually(30, &format!("DeviceClassReady is {reason}"), || {
        let status = test.get("claimnetwork", network)?["status"].clone();
        let found = list(&status["conditions"]).find(|condition| condition["type"] == "DeviceClassReady");
        let found = found.with_context(|| format!("{status}"))?;
        ensure!(found["reason"] == reason && text(&found["message"]).contains(words), "{found}");
        Ok(())
    })
}

pub fn a_pod_asks_for_a_network_with_one_line(test: &Test<'_>) -> Result<()> {
    let name = test.name("a");
    // All at once, as a user applies it: the class comes after the pod.
    let mut gated = one_line("p", &name);
    gated["spec"]["readinessGates"] = json!([{"conditionType": "netclaim.dev/networks"}]);
    test.create([with_class(test, "a"), gated])?;
    test.runs_with("p", &["net1"])?;
    let claim = claim_of(test, "p")?;
    let inside = test.interface("p", "net1")?;
    let devices = test.claim_is_ready(&claim)?;
    ensure!(devices[0]["networkData"]["ips"] == json!(inside.ips), "{inside:?} is not in {devices:?}");
    condition_is(test, &name, "Made", &name)?;
    let explained = test.netclaimctl(&["explain", "pod", "p", "-n", test.namespace(), "--output=json"])?;
    let verdict = text(&explained["verdict"]);
    ensure!(verdict.contains("runs on node") && verdict.contains("1 network"), "{verdict}");
    let shown = test.netclaimctl(&["attachments", "-n", test.namespace(), "--output=json"])?.to_string();
    ensure!(shown.contains(&claim) && shown.contains(&inside.ips[0]), "{shown}");
    // A new sandbox gets it again.
    test.replace_sandbox("p")?;
    test.began_with("p", &["net1"])?;
    test.delete_pod("p")?;
    eventually(30, "the claim goes with its pod", || {
        let gone = test.get("resourceclaim", &claim);
        ensure!(gone.is_err(), "{gone:?}");
        Ok(())
    })?;
    // The node has addresses of other scenarios, too.
    eventually(20, "its address is free", || {
        let leases = test.cluster.node().leases()?;
        let is_its = |(lease, _): &(String, String)| lease.starts_with(&format!("netclaim-{name}/"));
        ensure!(!leases.iter().any(is_its), "{leases:?}");
        Ok(())
    })
}

pub fn each_container_with_the_line_gets_its_pod_one_more_interface(test: &Test<'_>) -> Result<()> {
    let name = test.name("a");
    let line = || json!({resource(&name): "1"});
    let mut many = asking("many", &[("shell", line()), ("plain", json!({}))]);
    let (mut first, mut sidecar) = (container("first"), container("sidecar"));
    first["resources"] = json!({"limits": line()});
    first["command"] = json!(["ls", "/sys/class/net"]);
    sidecar["resources"] = json!({"limits": line()});
    sidecar["restartPolicy"] = json!("Always");
    many["spec"]["initContainers"] = json!([first, sidecar]);
    test.create([with_class(test, "a"), many])?;
    // The one that ends uses what the others ask for.
    test.runs_with("many", &["net1", "net2"])?;
    let interfaces = test.interfaces("many")?;
    ensure!(interfaces.keys().filter(|name| name.starts_with("net")).count() == 2, "{interfaces:?}");
    for container in ["first", "sidecar"] {
        let log = test.kubectl(&["logs", "many", "-c", container])?;
        ensure!(log.contains("net1") && log.contains("net2"), "{container} began with {log}");
    }
    test.delete_pod("many")
}

pub fn a_pod_that_asks_by_limits_for_too_much_is_told_so(test: &Test<'_>) -> Result<()> {
    let name = test.name("a");
    let two = asking("two", &[("shell", json!({resource(&name): 2}))]);
    test.create([with_class(test, "a"), two, one_line("none", "no-such-class")])?;
    let limit = format!("limit {} of container shell", resource(&name));
    test.event("two", &["NetworkNotAllocated", "no node can serve", &limit])?;
    let explained = test.run_netclaimctl(&["explain", "pod", "two", "-n", test.namespace()])?;
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    ensure!(explained.contains(&limit), "{explained}");
    test.event("none", &["FailedScheduling", "Insufficient deviceclass.resource.kubernetes.io/no-such-class"])
        .map(drop)
}

const FAIL: &str = r#"echo '{"cniVersion": "1.1.0", "code": 100, "msg": "the switch says no"}'; exit 1"#;

pub fn a_container_with_the_line_does_not_start_before_its_network(test: &Test<'_>) -> Result<()> {
    let plugin = test.macvlan_after(FAIL)?;
    let mut network = with_class(test, "a");
    network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin);
    test.create([network, one_line("p", &test.name("a"))])?;
    test.event("p", &["NetworkAttachFailed", "the switch says no"])?;
    test.claim_is_not_ready(&claim_of(test, "p")?, &["the switch says no"])?;
    test.does_not_start("p")?;
    test.macvlan_after(":")?;
    test.runs_with("p", &["net1"])?;
    test.delete_pod("p")
}

pub fn a_limit_in_a_namespace_that_the_network_is_not_for_is_refused(test: &Test<'_>) -> Result<()> {
    let name = test.name("a");
    let mut network = with_class(test, "a");
    let labels = json!({"matchLabels": {"netclaim-test": name}});
    network["spec"]["namespaces"] = json!({"from": "Selector", "selector": labels});
    test.create([network, one_line("p", &name)])?;
    let words = format!("ClaimNetwork {name:?} is not for namespace {:?}", test.namespace());
    test.event("p", &["FailedScheduling", &words])?;
    let claims = test.kubectl(&["get", "resourceclaims", "-o", "name"])?;
    ensure!(claims.trim().is_empty(), "there are {claims}");
    test.cluster.kubectl(&["label", "namespace", test.namespace(), &format!("netclaim-test={name}")])?;
    test.runs_with("p", &["net1"])?;
    test.delete_pod("p")
}

pub fn a_class_follows_its_network_and_no_other_class_is_touched(test: &Test<'_>) -> Result<()> {
    let (name, fast) = (test.name("a"), test.name("fast"));
    let own_of = |class: &str| test.cluster.get(&["deviceclass", class]);
    let patch = |kind: &str, name: &str, change: Value| {
        test.cluster.kubectl(&["patch", kind, name, "--type=merge", "-p", &change.to_string()]).map(drop)
    };
    // An admin's class of the name is left alone.
    test.create([class(&name, "true"), with_class(test, "a")])?;
    condition_is(test, &name, "NotOurs", &name)?;
    let before = own_of(&name)?;
    let manager = &before["metadata"]["labels"]["app.kubernetes.io/managed-by"];
    ensure!(before["metadata"]["generation"] == 1 && manager.is_null(), "{before}");
    test.cluster.kubectl(&["delete", "deviceclass", &name])?;
    condition_is(test, &name, "Made", &name)?;

    // One that somebody edits is put back.
    let edit = json!({"metadata": {"annotations": {"team": "a"}}, "spec": {"selectors": null, "extendedResourceName": "example.com/a"}});
    patch("deviceclass", &name, edit)?;
    eventually(15, "the class is put back", || {
        let class = own_of(&name)?;
        let spec = &class["spec"];
        ensure!(spec["selectors"].is_array() && spec["extendedResourceName"].is_null(), "{spec}");
        ensure!(class["metadata"]["annotations"]["team"] == "a", "{class}");
        Ok(())
    })?;
    eventually(15, "an event says so", || {
        let events = test.cluster.get(&["-n", "default", "events"])?;
        let is_it = |event: &Value| {
            event["reason"] == "DeviceClassRestored" && event["involvedObject"]["name"] == name.as_str()
        };
        ensure!(list(&events["items"]).any(is_it), "there is none");
        Ok(())
    })?;

    // Classes with defaults and names of their own.
    let resource = format!("example.com/{fast}");
    let listed =
        json!([{"name": fast, "extendedResourceName": resource, "defaults": {"interfaceName": "data0"}}]);
    patch("claimnetwork", &name, json!({"spec": {"deviceClasses": listed}}))?;
    test.create([asking("p", &[("shell", json!({resource: 1}))])])?;
    test.runs_with("p", &["data0"])?;
    test.delete_pod("p")?;
    patch("claimnetwork", &name, json!({"spec": {"deviceClass": "None"}}))?;
    eventually(15, "only the class of the list is there", || {
        ensure!(own_of(&name).is_err(), "{name} is there");
        own_of(&fast).map(drop)
    })?;

    // Who takes the owner reference away keeps the class.
    patch("deviceclass", &fast, json!({"metadata": {"ownerReferences": null}}))?;
    condition_is(test, &name, "NotOurs", &fast)?;
    patch("claimnetwork", &name, json!({"spec": {"deviceClass": null}}))?;
    eventually(15, "the class is back", || own_of(&name).map(drop))?;
    test.cluster.kubectl(&["delete", "claimnetwork", &name])?;
    eventually(30, "the class goes with the ClaimNetwork", || {
        ensure!(own_of(&name).is_err(), "{name} is there");
        Ok(())
    })?;
    own_of(&fast)?;
    test.cluster.kubectl(&["delete", "deviceclass", &fast]).map(drop)
}
