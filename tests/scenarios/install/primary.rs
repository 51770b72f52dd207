//! Primary networks in an installation that goes: after its pods, and before them.

use anyhow::{Result, ensure};
use netclaim_tests::helm::Helm;
use netclaim_tests::objects::{claim, pod};
use netclaim_tests::{Test, eventually};
use serde_json::json;

use crate::helm::{and_then_as_before, timed, uninstall};

fn install(test: &Test<'_>, helm: &Helm<'_>) -> Result<()> {
    let on = ["--take-ownership", "--force-conflicts", "--set", "primary.enabled=true"];
    helm.release("install", &on)?;
    test.cluster.agent_ready()
}

/// Starts a pod on node0 whose eth0 is the claimed network, ready when the kubelet reaches it.
fn start(test: &Test<'_>, name: &str, class: &str) -> Result<()> {
    let mut own = pod(name, &[name]);
    own["spec"]["runtimeClassName"] = json!("netclaim");
    own["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "node0"});
    let listen =
        "trap 'exit 0' TERM; while :; do nc -l -p 8080 </dev/null >/dev/null; done & sleep 1000000 & wait";
    own["spec"]["containers"][0]["command"] = json!(["sh", "-c", listen]);
    own["spec"]["containers"][0]["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    test.create([claim(name, class), own])?;
    is_ready(test, name)
}

fn is_ready(test: &Test<'_>, name: &str) -> Result<()> {
    test.kubectl(&["wait", "--for=condition=Ready", "--timeout=90s", &format!("pod/{name}")]).map(drop)
}

pub fn primary_networks_go_with_the_installation_in_either_order(test: &Test<'_>) -> Result<()> {
    let class = test.name("a");
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": test.subnet(0)}]], "routes": [{"dst": "0.0.0.0/0"}]});
    let network = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": class},
        "spec": {"deviceClasses": [{"name": class, "defaults": {"primary": true}}],
            "cni": {"cniVersion": "1.0.0", "plugins": [{"type": "ptp", "ipam": ipam}]}}});
    and_then_as_before(test, |helm| {
        install(test, helm)?;
        test.create([network])?;
        start(test, "first", &class)?;
        test.delete_pod("first")?;
        uninstall(helm)?;
        eventually(20, "no address is taken", || test.node_has_leases(0))?;

        // The pod runs on, and ends when netclaim is there again: the kubelet wants its claim released.
        install(test, helm)?;
        start(test, "second", &class)?;
        let address = test.ip("second", "eth0")?;
        uninstall(helm)?;
        is_ready(test, "second")?;
        ensure!(test.ip("second", "eth0")? == address, "it has another address");
        test.kubectl(&["delete", "pod", "second", "--wait=false"])?;
        timed("its sandbox had ended without an agent", || {
            eventually(60, "its sandbox ends", || {
                ensure!(test.tasks("second")?.is_empty(), "{:?}", test.tasks("second")?);
                Ok(())
            })
        })?;
        install(test, helm)?;
        test.kubectl(&["wait", "--for=delete", "pod/second", "--timeout=120s"])?;
        eventually(60, "no address is taken", || test.node_has_leases(0))?;
        uninstall(helm).map(drop)
    })
}
