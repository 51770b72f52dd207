//! What the pages about tasks show, applied as it is there.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Test, eventually, project};
use serde_json::{Value, json};

/// Every object of a page, with an image that the nodes have.
fn objects_of(page: &str) -> Result<Vec<Value>> {
    let page = project("docs/tasks").join(page);
    let written = fs::read_to_string(&page)?;
    let mut objects = Vec::new();
    for block in written.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let found: Vec<Value> = serde_saphyr::from_multiple(block).context(page.display().to_string())?;
        objects.extend(found);
    }
    for object in &mut objects {
        let spec = if object["kind"] == "Pod" { "/spec" } else { "/spec/template/spec" };
        let Some(pod) = object.pointer_mut(spec) else { continue };
        pod["terminationGracePeriodSeconds"] = json!(1);
        for container in pod["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = json!("localhost/busybox:1");
            container["imagePullPolicy"] = json!("Never");
            // For ping: not every runtime grants it by default.
            container["securityContext"] = json!({"capabilities": {"add": ["NET_RAW"]}});
        }
    }
    Ok(objects)
}

pub fn macvlan_across_nodes_works_as_its_page_shows(test: &Test<'_>) -> Result<()> {
    test.create(objects_of("macvlan.md")?)?;
    test.kubectl(&["wait", "--for=condition=Available", "deployment/talk", "--timeout=120s"])?;
    let pods = test.cluster.get(&["-n", test.namespace(), "pods", "-l", "app=talk"])?;
    let pods: Vec<String> = list(&pods["items"]).map(|pod| text(&pod["metadata"]["name"])).collect();
    let [one, other] = pods.as_slice() else { anyhow::bail!("there are {pods:?}") };
    ensure!(test.node_of(one)? != test.node_of(other)?, "both are on {}", test.node_of(one)?);
    for pod in &pods {
        let address = test.ip(pod, "net1")?;
        let last: Option<u8> = address.strip_prefix("10.20.0.").and_then(|last| last.parse().ok());
        ensure!(last.is_none_or(|last| last > 31) && address.starts_with("10.20."), "{pod} has {address}");
        let routes = test.kubectl(&["exec", pod, "--", "ip", "route"])?;
        ensure!(routes.contains("10.21.0.0/16 via 10.20.0.1 dev net1"), "{routes}");
    }
    test.ping(one, other, "net1")?;
    test.ping(other, one, "net1")?;
    test.kubectl(&["delete", "deployment", "talk", "--cascade=foreground", "--timeout=60s"]).map(drop)
}

pub fn pods_keep_their_addresses_as_the_page_about_them_shows(test: &Test<'_>) -> Result<()> {
    test.create(objects_of("static-addresses.md")?)?;
    let has = |name: &str, address: &str| {
        eventually(120, &format!("{name} has its address"), || {
            test.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=1s"])?;
            let ip = test.ip(name, "net1")?;
            ensure!(ip == address, "it has {ip}");
            Ok(())
        })
    };
    has("db", "10.30.3.77")?;
    for (replica, address) in [(0, "10.30.3.10"), (1, "10.30.3.11"), (2, "10.30.3.12")] {
        has(&format!("web-{replica}"), address)?;
    }
    test.kubectl(&["delete", "pod", "web-1", "--timeout=60s"])?;
    has("web-1", "10.30.3.11")?;
    test.ping("db", "web-1", "net1")?;
    test.kubectl(&["delete", "statefulset", "web", "--cascade=foreground", "--timeout=60s"])?;
    test.delete_pod("db")
}
