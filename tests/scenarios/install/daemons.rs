//! CNI plugins that a DaemonSet serves, as docs/tasks/plugins-as-daemons.md has it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{attachment, claim, list, pod};
use netclaim_tests::{Plugged, SYSTEM, Test, eventually, output, project};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::helm::{and_then_as_before, timed};

const IMAGE: &str = "localhost/cni-iptables:1";
const NAME: &str = "cni-iptables";
const PORT: u16 = 18093;

/// Makes the files of the page's image from this machine's instead of a registry's: ROOT PLUGINS NETCLAIMCTL.
const IMAGE_FILES: &str = r#"
mkdir -p "$1"/{bin,sbin,plugins,usr/bin,run}
cp "$(command -v busybox)" "$1/bin/busybox"
for applet in sh mount; do ln -s busybox "$1/bin/$applet"; done
multi=$(command -v xtables-nft-multi)
cp "$multi" "$1/sbin/"
for name in ip{,6}tables{,-save,-restore}; do ln -s xtables-nft-multi "$1/sbin/$name"; done
ldd "$multi" | grep -o '/[^ ]*' | xargs cp -L --parents -t "$1"
find /usr/lib* -name 'libxt_*.so' -o -name 'libip*t_*.so' | xargs cp -L --parents -t "$1"
cp "$2"/{portmap,firewall} "$1/plugins/"
cp "$3" "$1/usr/bin/netclaimctl"
"#;

fn build_image(test: &Test<'_>) -> Result<PathBuf> {
    let root = TempDir::new()?;
    let mut files = Command::new("bash");
    files.args(["-euo", "pipefail", "-c", IMAGE_FILES, "-"]).arg(root.path());
    output(files.arg(test.cluster.node().path("/opt/cni/bin")).arg(test.cluster.netclaimctl()))?;
    let archive = test.cluster.dir().join("cni-iptables.tar");
    let mut pack = Command::new("go");
    pack.current_dir(project("deploy/image/archive")).env("GOWORK", "off");
    pack.args(["run", ".", "-out"]).arg(&archive).arg(format!("{IMAGE}={}", root.path().display()));
    output(&mut pack)?;
    Ok(archive)
}

/// The page's DaemonSet, on the first node and with the image that it has.
fn daemon_set() -> Result<Value> {
    let page = fs::read_to_string(project("docs/tasks/plugins-as-daemons.md"))?;
    let block = page.split("```").find_map(|block| block.strip_prefix("yaml\n")).context("no YAML")?;
    let mut daemon_set: Value = serde_saphyr::from_str(block)?;
    ensure!(daemon_set["kind"] == "DaemonSet" && daemon_set["metadata"]["name"] == NAME, "{daemon_set}");
    let pod = &mut daemon_set["spec"]["template"]["spec"];
    pod["nodeSelector"] = json!({"kubernetes.io/hostname": "node0"});
    pod["containers"][0]["image"] = json!(IMAGE);
    // Debian's image says it by itself.
    pod["containers"][0]["env"] = json!([{"name": "PATH", "value": "/usr/bin:/sbin:/bin"}]);
    Ok(daemon_set)
}

fn run_daemon(test: &Test<'_>) -> Result<()> {
    test.cluster.kubectl_with(&["apply", "-f", "-"], &daemon_set()?.to_string())?;
    eventually(60, "the daemon runs", || {
        let pods = test.cluster.get(&["pods", "-n", SYSTEM, "-l", "app=cni-iptables"])?;
        let status = list(&pods["items"]).next().context("it has no pod")?["status"].clone();
        ensure!(status["containerStatuses"][0]["ready"] == true, "{status}");
        let folder = test.cluster.node().path("/run/netclaim/cni");
        let log = test.cluster.kubectl(&["logs", "-n", SYSTEM, "-l", "app=cni-iptables"])?;
        ensure!(folder.join("portmap.sock").exists(), "no socket in {}: {log}", folder.display());
        Ok(())
    })
}

fn end_daemon(test: &Test<'_>) -> Result<()> {
    let delete = ["delete", "daemonset", NAME, "-n", SYSTEM, "--cascade=foreground", "--timeout=90s"];
    test.cluster.kubectl(&delete).map(drop)
}

fn rules(test: &Test<'_>) -> Result<String> {
    test.cluster.on_node(&["iptables-save", "-t", "nat"])
}

/// A pod on the first node whose web server a port of the node leads to.
fn server(test: &Test<'_>, network: &str) -> Result<()> {
    let mut port = claim("port", network);
    let mapping = json!({"hostPort": PORT, "containerPort": 80, "protocol": "TCP"});
    port["spec"]["devices"]["config"] = json!([attachment(json!({"portMappings": [mapping]}))]);
    let mut server = pod("server", &["port"]);
    server["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "node0"});
    let serve = "echo served > /tmp/index.html; exec httpd -f -p 80 -h /tmp";
    server["spec"]["containers"][0]["command"] = json!(["sh", "-c", serve]);
    test.create([port, server])?;
    eventually(60, "the pod runs", || {
        let phase = test.get("pod", "server")?["status"]["phase"].clone();
        ensure!(phase == "Running", "it is {phase}: {:#?}", test.events("server")?);
        Ok(())
    })
}

pub fn plugins_that_call_iptables_are_served_by_a_daemon_set(test: &Test<'_>) -> Result<()> {
    let image = build_image(test)?;
    test.cluster.load_image(&image)?;
    let _bridge = Plugged::bridge(test, "br93")?;
    and_then_as_before(test, |helm| {
        timed("installed", || {
            let sockets =
                ["--take-ownership", "--force-conflicts", "--set", "agent.cniDaemons={portmap,firewall}"];
            helm.release("install", &sockets)
        })?;
        let network = test.network("a", |network| {
            network["spec"]["uplink"].take();
            network["spec"]["allow"] = json!({"portMappings": {}});
            network["spec"]["nodeSelector"] = json!({"matchLabels": {"kubernetes.io/hostname": "node0"}});
            let plugins = &mut network["spec"]["cni"]["plugins"];
            let ipam = plugins[0]["ipam"].clone();
            *plugins = json!([
                {"type": "bridge", "bridge": "br93", "isGateway": true, "ipam": ipam},
                {"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}},
                {"type": "firewall", "backend": "iptables"},
            ]);
        })?;
        let served = serves(test, &network);
        // A pod that is left could be detached by the daemon alone.
        let ended = run_daemon(test).and_then(|()| {
            test.kubectl(&["delete", "pod", "server", "--ignore-not-found", "--timeout=120s"])?;
            end_daemon(test)
        });
        served.and(ended)
    })
}

fn serves(test: &Test<'_>, network: &str) -> Result<()> {
    timed("the daemon served", || run_daemon(test))?;
    test.is_published_on("node0", &format!("net-{network}"), |device| device["taints"].is_null())?;
    timed("the pod attached", || server(test, network))?;
    let answer = test.cluster.http_get("127.0.0.1", PORT, "/")?;
    ensure!(answer.contains("served"), "the port of the node leads elsewhere: {answer}");
    ensure!(rules(test)?.contains(&format!("--dport {PORT}")), "{}", rules(test)?);

    // A pod that ends beside a daemon that is away waits for it.
    end_daemon(test)?;
    test.kubectl(&["delete", "pod", "server", "--wait=false"])?;
    eventually(60, "somebody says that the DEL waits for the daemon", || {
        let events = test.events("server")?;
        let says_so = |event: &String| event.contains("/run/netclaim/cni/");
        ensure!(events.iter().any(says_so), "{events:#?}");
        Ok(())
    })?;
    ensure!(rules(test)?.contains(&format!("--dport {PORT}")), "the rule is gone without its DEL");
    run_daemon(test)?;
    timed("the pod detached", || test.kubectl(&["wait", "--for=delete", "pod/server", "--timeout=120s"]))?;
    ensure!(!rules(test)?.contains(&format!("--dport {PORT}")), "{}", rules(test)?);
    Ok(())
}
