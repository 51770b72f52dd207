//! Pods whose containers crun runs, by a RuntimeClass.

use anyhow::{Result, ensure};
use netclaim_tests::objects::text;
use netclaim_tests::{Runtime, Test, eventually};
use serde_json::json;

const FAIL: &str = r#"echo '{"cniVersion": "1.0.0", "code": 101, "msg": "the switch says no"}'; exit 1"#;
/// The runtime's handler (`tests/node/runtime.sh`).
const HANDLER: &str = "crun";

pub fn a_container_that_crun_runs_waits_for_its_network_and_is_refused_without(
    test: &Test<'_>,
) -> Result<()> {
    if test.cluster.node().runtime() != Runtime::Containerd {
        return test.skip("CRI-O has no handler for crun here");
    }
    let class = test.name(HANDLER);
    test.create([json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": class}, "handler": HANDLER})])?;
    let shown = shown(test, &class);
    test.kubectl(&["delete", "runtimeclass", &class])?;
    shown
}

fn shown(test: &Test<'_>, class: &str) -> Result<()> {
    let network = test.network_after(FAIL)?;
    test.pod_with("p", &network, |_, pod| pod["spec"]["runtimeClassName"] = json!(class))?;
    test.event("p", &["NetworkAttachFailed", "the switch says no"])?;
    eventually(120, "the container is refused", || {
        let pod = test.get("pod", "p")?;
        let status = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        ensure!(text(&status["message"]).contains("the switch says no"), "it is {status}");
        Ok(())
    })?;
    test.macvlan_after("sleep 3")?;
    test.runs("p")?;
    test.began_with("p", &["net1"])?;
    // runc's file of a container has another name.
    let status = format!("/run/containerd/runc/k8s.io/{}/status", test.container("p", "shell")?.id);
    ensure!(test.cluster.node().path(&status).exists(), "crun does not run the container");
    test.replace_sandbox("p")?;
    test.began_with("p", &["net1"])?;
    test.delete_pod("p")?;
    test.nodes_are_clean()
}
