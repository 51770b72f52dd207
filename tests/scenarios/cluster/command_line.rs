//! `netclaimctl attachments` and `bugreport` on a real cluster, and netclaimctl as a plugin of kubectl.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::list;
use netclaim_tests::{SYSTEM, Test, eventually};
use serde_json::{Value, json};

/// Runs netclaimctl as the cluster's admin.
fn netclaimctl(test: &Test<'_>, args: &[&str]) -> Result<Output> {
    netclaimctl_as(test, &test.cluster.dir().join("kubeconfig"), args)
}

fn netclaimctl_as(test: &Test<'_>, kubeconfig: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(test.cluster.netclaimctl());
    Ok(command.args(args).arg("--kubeconfig").arg(kubeconfig).output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn netclaimctl_lists_what_pods_have(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("p", &network)?;
    let inside = test.interface("p", "net1")?;
    let attachments = |args: &[&str]| {
        netclaimctl(test, &[&["attachments", "--namespace", test.namespace()], args].concat())
    };
    eventually(15, "the attachment is ready", || {
        let shown = attachments(&["p", "--output=json"])?;
        let shown: Value = serde_json::from_slice(&shown.stdout).with_context(|| text(&shown.stderr))?;
        let one = &shown["attachments"][0];
        ensure!(one["ready"] == true && one["addresses"] == json!(inside.ips), "{one} is not {inside:?}");
        ensure!(one["network"] == network && one["interface"] == "net1" && one["node"] == "node0", "{one}");
        ensure!(one["uplink"] == "eth1" && one["mode"] == "macvlan" && one["mac"].is_string(), "{one}");
        Ok(())
    })?;
    let table = text(&attachments(&["--node=node0", "--network", &network])?.stdout);
    ensure!(table.starts_with("POD   INTERFACE   NETWORK"), "{table}");
    ensure!(table.lines().nth(1).is_some_and(|row| row.starts_with("p     net1 ")), "{table}");
    let everywhere = text(&netclaimctl(test, &["attachments", "-A", "-o", "wide"])?.stdout);
    let is_of_pod = |line: &str| line.starts_with(test.namespace()) && line.contains(&network);
    ensure!(everywhere.starts_with("NAMESPACE ") && everywhere.lines().any(is_of_pod), "{everywhere}");

    test.delete_pod("p")?;
    let none = attachments(&[])?;
    ensure!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    let said = format!("No resources found in {} namespace.\n", test.namespace());
    ensure!(text(&none.stderr) == said, "{none:?}");
    let gone = attachments(&["p"])?;
    ensure!(gone.status.code() == Some(1) && text(&gone.stderr).contains("there is no pod"), "{gone:?}");
    Ok(())
}

pub fn netclaimctl_is_a_plugin_of_kubectl_that_completes_its_commands(test: &Test<'_>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for name in ["kubectl-netclaim", "kubectl_complete-netclaim"] {
        symlink(test.cluster.netclaimctl(), folder.path().join(name))?;
    }
    let kubectl = |args: &[&str]| {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(test.cluster.kubernetes_program("kubectl"));
        command.env("PATH", format!("{}:{path}", folder.path().display())).args(args);
        Ok::<_, anyhow::Error>(text(&command.output()?.stdout))
    };
    let version = kubectl(&["netclaim", "--version"])?;
    ensure!(version.starts_with("netclaimctl ") || version.starts_with("kubectl netclaim "), "{version}");
    let commands = kubectl(&["__complete", "netclaim", "a"])?;
    ensure!(commands.starts_with("attachments\tLists ") && commands.contains("\n:4\n"), "{commands}");
    let values = kubectl(&["__complete", "netclaim", "attachments", "--output", "w"])?;
    ensure!(values.starts_with("wide"), "{values}");
    Ok(())
}

/// Makes a report, and returns its files.
fn report(test: &Test<'_>, kubeconfig: &Path) -> Result<(Output, BTreeMap<String, String>)> {
    let folder = tempfile::tempdir()?;
    let archive = folder.path().join("report.tar.gz");
    let output =
        netclaimctl_as(test, kubeconfig, &["bugreport", "--output", &archive.display().to_string()])?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    ensure!(text(&output.stdout).trim() == archive.display().to_string(), "{}", text(&output.stdout));
    let again = netclaimctl_as(test, kubeconfig, &["bugreport", "--output", &archive.display().to_string()])?;
    ensure!(again.status.code() == Some(1), "it replaces a file: {}", text(&again.stderr));
    let tar = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder.path()).status()?;
    ensure!(tar.success(), "tar cannot read the archive");
    let root = folder.path().join("netclaim-bugreport");
    let mut files = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path: PathBuf = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root)?.display().to_string();
                files.insert(name, fs::read_to_string(path)?);
            }
        }
    }
    Ok((output, files))
}

pub fn a_bug_report_has_what_is_netclaims_and_no_secret(test: &Test<'_>) -> Result<()> {
    let (in_network, in_environment, in_secret) =
        ("planted-in-network", "planted-in-environment", "planted-in-secret");
    let network = test.network("a", |network| {
        network["metadata"]["annotations"]["example.com/api-token"] = json!(in_network);
        network["spec"]["cni"]["plugins"][0]["password"] = json!(in_network);
    })?;
    test.create([json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": in_secret}})])?;
    test.pod_with("p", &network, |_, pod| {
        let from_secret = json!({"secretKeyRef": {"name": "s", "key": "a"}});
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "TOKEN", "value": in_environment}, {"name": "OTHER", "valueFrom": from_secret}]);
    })?;
    test.runs_with("p", &["net1"])?;

    let (_, files) = report(test, &test.cluster.dir().join("kubeconfig"))?;
    for (name, text) in &files {
        for planted in [in_network, in_environment, in_secret] {
            ensure!(!text.contains(planted), "{planted} is in {name}");
        }
        ensure!(!text.contains("managedFields") && !text.contains("last-applied-configuration: "), "{name}");
    }
    let file = |name: &str| files.get(name).with_context(|| format!("no {name} among {:?}", files.keys()));
    ensure!(file("objects/claimnetworks.yaml")?.contains(&format!("name: {network}")), "no ClaimNetwork");
    ensure!(file("objects/resourceclaims.yaml")?.contains("net1"), "no claim with its status");
    ensure!(file("objects/pods-with-claims.yaml")?.contains("name: p"), "no pod");
    ensure!(file("objects/deviceclasses.yaml")?.contains(&format!("name: {network}")), "no class");
    ensure!(file("objects/resourceslices.yaml")?.contains("name: nic-"), "no slice");
    ensure!(file("objects/nodes.yaml")?.contains("containerRuntimeVersion: "), "no node");
    ensure!(
        file("objects/customresourcedefinitions.yaml")?.contains("claimnetworks.netclaim.dev"),
        "no definitions"
    );
    ensure!(file("objects/clusterroles.yaml")?.contains("name: netclaim-agent"), "no roles");
    ensure!(file("status.txt")?.starts_with("NETWORK "), "no status");
    ensure!(file("versions.txt")?.contains("Kubernetes v1."), "no versions");
    let logs: Vec<_> =
        files.keys().filter(|name| name.starts_with("logs/") && name.ends_with(".log")).collect();
    for component in ["netclaim-agent-", "netclaim-controller-"] {
        ensure!(logs.iter().any(|log| log.contains(component)), "no log of {component} among {logs:?}");
    }
    let readme = file("README.md")?;
    ensure!(readme.contains("\n## What could not be read\n\nNothing.\n"), "{readme}");
    Ok(())
}

pub fn a_bug_report_says_what_its_user_may_not_read(test: &Test<'_>) -> Result<()> {
    let account = format!("system:serviceaccount:{}:viewer", test.namespace());
    test.kubectl(&["create", "serviceaccount", "viewer"])?;
    let token = test.kubectl(&["create", "token", "viewer"])?;
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    let admin = test.cluster.kubectl(&["config", "view", "--raw", "-o", "json"])?;
    let mut config: Value = serde_json::from_str(&admin)?;
    let user = list(&config["users"]).next().context("the kubeconfig has no user")?["name"].clone();
    config["users"] = json!([{"name": user, "user": {"token": token.trim()}}]);
    fs::write(&kubeconfig, config.to_string())?;

    let nothing = netclaimctl_as(test, &kubeconfig, &["bugreport", "--output=-"])?;
    ensure!(nothing.status.code() == Some(1) && nothing.stdout.is_empty(), "{}", text(&nothing.stderr));
    ensure!(text(&nothing.stderr).contains("nothing can be read"), "{}", text(&nothing.stderr));

    let role = ["--clusterrole=view", "--user", &account];
    let binding = ["rolebinding", test.namespace(), "--namespace", SYSTEM];
    test.cluster.kubectl(&[&["create"], binding.as_slice(), &role].concat())?;
    let made = report(test, &kubeconfig);
    test.cluster.kubectl(&[&["delete"], binding.as_slice()].concat())?;
    let (output, files) = made?;
    let said = text(&output.stderr);
    ensure!(said.contains("not in the report: nodes: cannot list nodes: "), "{said}");
    let readme = files.get("README.md").context("no README")?;
    ensure!(readme.contains("\n* nodes: cannot list nodes: "), "{readme}");
    ensure!(files.keys().any(|name| name.starts_with("logs/netclaim-agent-")), "{:?}", files.keys());
    Ok(())
}
