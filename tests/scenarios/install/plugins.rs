//! CNI plugins from an image, which the cluster mounts or an init container copies.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::helm::chart;
use netclaim_tests::objects::{list, text};
use netclaim_tests::{AGENT_PODS, Cluster, SYSTEM, Test, eventually, output, project, signal};
use serde_json::Value;

use crate::helm::{and_then_as_before, timed};

/// The nodes keep their plugins elsewhere: with this folder alone there would be none.
const IMAGE: &str = "plugins.image=localhost/cni-plugins:test,agent.cniBinDir=/opt/none";
/// Where the agent has them, either way.
const MACVLAN: &str = "/usr/libexec/netclaim/plugins/macvlan";

/// The agents' pods.
fn agents(test: &Test<'_>) -> Result<Vec<Value>> {
    let pods = test.cluster.get(&["pods", "-n", SYSTEM, "-l", AGENT_PODS])?;
    Ok(list(&pods["items"]).cloned().collect())
}

/// Attaches a pod of the first node, with a plugin of the image.
fn attaches(test: &Test<'_>, network: &str, pod: &str) -> Result<()> {
    eventually(10, "the log and a metric say which plugin is whose", || {
        let mut pods = agents(test)?.into_iter();
        let works = |pod: &Value| {
            pod["spec"]["nodeName"] == "node0" && pod["status"]["containerStatuses"][0]["ready"] == true
        };
        let agent = text(&pods.find(works).context("no agent is ready")?["metadata"]["name"]);
        let log = test.cluster.kubectl(&["logs", "-n", SYSTEM, &agent])?;
        ensure!(log.contains(&format!("path={MACVLAN}")), "the log does not name it");
        let metrics = test.cluster.ask_agent("/metrics")?;
        let plugins: Vec<&str> =
            metrics.lines().filter(|line| line.starts_with("netclaim_cni_plugin_info{")).collect();
        let expected = format!("path=\"{MACVLAN}\"");
        ensure!(plugins.iter().any(|plugin| plugin.contains(&expected)), "{plugins:?}");
        Ok(())
    })?;
    test.pod_on("node0", pod, network)?;
    test.runs_with(pod, &["net1"])?;
    test.delete_pod(pod)
}

/// Loads the image `localhost/cni-plugins:test` into the nodes.
pub(crate) fn load_image_of_plugins(cluster: &Cluster) -> Result<()> {
    let archive = cluster.dir().join("cni-plugins.tar");
    let build = project("deploy/plugins/build.sh");
    output(Command::new(build).arg(&archive).arg("localhost/cni-plugins:test"))?;
    cluster.load_image(&archive)
}

pub fn plugins_come_from_an_image(test: &Test<'_>) -> Result<()> {
    load_image_of_plugins(test.cluster)?;
    and_then_as_before(test, |helm| {
        timed("mounted", || {
            helm.release("install", &["--take-ownership", "--force-conflicts", "--set", IMAGE])
        })?;
        let mut pods = agents(test)?.into_iter();
        ensure!(pods.all(|pod| pod["spec"].get("initContainers").is_none()), "it is not mounted");
        let network = test.macvlan("a")?;
        attaches(test, &network, "mounted")?;

        let copied = format!("{IMAGE},plugins.mount=initContainer");
        let wrong = format!("{copied},plugins.path=opt/none");
        helm.release_of(&chart(), "dev", "upgrade", &["--force-conflicts", "--set", &wrong])?;
        eventually(60, "the pod says why its plugins are not copied", || {
            let pods = agents(test)?;
            let copies = pods.iter().flat_map(|pod| list(&pod["status"]["initContainerStatuses"]));
            let said: Vec<String> = copies
                .map(|copy| format!("{} {}", copy["state"]["terminated"], copy["lastState"]["terminated"]))
                .collect();
            let expected = "copy-plugins: this image has no folder /opt/none";
            ensure!(said.iter().any(|said| said.contains(expected)), "{said:?}");
            Ok(())
        })?;
        // The new agent does not start, and so no old one has ended.
        attaches(test, &network, "meanwhile")?;

        timed("copied", || helm.release("upgrade", &["--force-conflicts", "--set", &copied]))?;
        // The last of the old agents may still end.
        eventually(40, "every agent's plugins were copied", || {
            for pod in agents(test)? {
                let copy = &pod["status"]["initContainerStatuses"][0];
                ensure!(copy["state"]["terminated"]["exitCode"] == 0, "{}: {copy}", pod["metadata"]["name"]);
            }
            Ok(())
        })?;
        attaches(test, &network, "copied")?;

        // The next container of the same pod.
        signal(test.cluster.parent_pid()?, "KILL")?;
        eventually(60, "the kubelet has started the agent's container again", || {
            let pods = agents(test)?;
            let mut containers = pods.iter().map(|pod| &pod["status"]["containerStatuses"][0]);
            let restarted = containers.find(|agent| agent["restartCount"] == 1);
            let agent = restarted.context("no container was started again")?;
            ensure!(agent["ready"] == true, "it is not ready: {agent}");
            Ok(())
        })?;
        attaches(test, &network, "restarted")
    })
}
