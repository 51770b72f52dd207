//! An earlier version becomes this one, and this one that again.

use anyhow::{Result, ensure};
use netclaim_tests::helm::Helm;
use netclaim_tests::{Earlier, Test};
use serde_json::json;

use crate::helm::{and_then_as_before, blocks_are_given_back, timed, uninstall};
use crate::left::nothing_is_left;

/// Uninstalling removes the definitions, too.
const DEFINITIONS: &str = "crds.keep=false";

fn install(earlier: &Earlier, helm: &Helm<'_>) -> Result<String> {
    let chart = earlier.folder().join("deploy/helm/netclaim");
    let args = ["--create-namespace", "--wait", "--timeout=120s", "--set", DEFINITIONS];
    helm.release_of(&chart, earlier.tag(), "install", &args)
}

pub fn an_earlier_version_is_upgraded_and_rolled_back_under_running_pods(test: &Test<'_>) -> Result<()> {
    let Some(revision) = std::env::var("NETCLAIM_UPGRADE_FROM").ok().filter(|set| !set.is_empty()) else {
        return test.skip("it is built from an earlier revision: make test-upgrade FROM=REVISION");
    };
    let earlier = timed("built", || Earlier::build(test.cluster, &revision))?;
    and_then_as_before(test, |helm| {
        blocks_are_given_back(test)?;
        test.cluster.manifests("delete")?;
        timed("installed as it was", || install(&earlier, helm))?;
        // No address is on two nodes.
        let network = test.network("a", |network| {
            network["spec"]["addresses"] = json!({"ranges": [{"subnet": test.subnet(0)}]});
            network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
        })?;
        test.pod_on("node0", "p", &network)?;
        test.pod_on("node1", "q", &network)?;
        test.runs("p")?;
        test.runs("q")?;
        test.ping("p", "q", "net1")?;
        let containers =
            || Ok::<_, anyhow::Error>((test.container("p", "shell")?.id, test.container("q", "shell")?.id));
        let before = containers()?;

        timed("upgraded", || helm.release("upgrade", &["--set", DEFINITIONS]))?;
        ensure!(containers()? == before, "a pod was started again");
        test.ping("p", "q", "net1")?;
        test.pod_on("node0", "r", &network)?;
        test.runs_with("r", &["net1"])?;
        test.ping("r", "q", "net1")?;
        // The earlier version has attached it.
        test.delete_pod("p")?;

        timed("rolled back", || helm.run(&["rollback", "netclaim", "1", "--wait", "--timeout=120s"]))?;
        test.ping("r", "q", "net1")?;
        test.start_pod("s", &network)?;
        for pod in ["q", "r", "s"] {
            test.delete_pod(pod)?;
        }
        test.nodes_are_clean()?;
        test.kubectl(&["delete", "claimnetwork,deviceclass", &network])?;
        timed("all blocks were given back", || blocks_are_given_back(test))?;
        timed("uninstalled", || uninstall(helm))?;
        nothing_is_left(test.cluster, &[])
    })
}
