//! The files of a release, as `make release` writes and the workflow publishes them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{AGENT, CONTROLLER, Release, SYSTEM, Test, eventually, output};
use serde_json::Value;

use crate::helm::{and_then_as_before, blocks_are_given_back, timed, uninstall};
use crate::left::nothing_is_left;

/// The images of netclaim, and what runs in each.
const IMAGES: [(&str, &str); 2] = [("netclaim-agent", AGENT), ("netclaim-controller", CONTROLLER)];
/// The pods of the examples.
const PODS: [&str; 2] = ["storage-a", "storage-b"];
/// The image that they name, and the one of the nodes, which reach no registry.
const BUSYBOX: [&str; 2] = ["localhost/busybox:1", "docker.io/library/busybox:1.37"];

/// Runs kubectl on a kustomization of the release's deploy/.
fn kustomization(test: &Test<'_>, verb: &str, deploy: &Path, name: &str) -> Result<()> {
    let folder = deploy.join(name);
    let mut args = vec![verb, "-k", folder.to_str().context("an odd path")?];
    args.extend(["--ignore-not-found", "--timeout=120s"].into_iter().filter(|_| verb == "delete"));
    test.cluster.kubectl(&args).map(drop)
}

/// Runs the release's netclaimctl.
fn netclaimctl(test: &Test<'_>, args: &[&str]) -> Result<String> {
    let kubeconfig = test.cluster.dir().join("kubeconfig");
    output(Command::new(test.cluster.netclaimctl()).args(args).env("KUBECONFIG", kubeconfig))
}

/// The claim that the scheduler has made for a pod of the examples.
fn claim(pod: &str, test: &Test<'_>) -> Result<Value> {
    let pod = test.cluster.get(&["-n", "default", "pod", pod])?;
    let name = text(&pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]);
    test.cluster.get(&["-n", "default", "resourceclaim", &name])
}

/// What the demo shows: two pods on two nodes, their claims, and how they reach each other.
fn attaches_pods(test: &Test<'_>) -> Result<()> {
    let in_pod = |pod: &str, command: &[&str]| {
        test.cluster.kubectl(&[["exec", "-n", "default", pod, "--"].as_slice(), command].concat())
    };
    let pods = PODS.map(|pod| format!("pod/{pod}"));
    let wait = ["wait", "-n", "default", "--for=condition=Ready", &pods[0], &pods[1], "--timeout=90s"];
    test.cluster.kubectl(&wait)?;
    let mut addresses = BTreeSet::new();
    for pod in PODS {
        let device = eventually(15, "the claim's status", || {
            let device = claim(pod, test)?["status"]["devices"][0].clone();
            let ready =
                list(&device["conditions"]).any(|one| one["type"] == "Ready" && one["status"] == "True");
            ensure!(ready && device["networkData"]["interfaceName"] == "net1", "{pod} has {device}");
            Ok(device)
        })?;
        let address = text(&device["networkData"]["ips"][0]);
        let shown = in_pod(pod, &["ip", "addr", "show", "net1"])?;
        ensure!(address.starts_with("10.20.") && shown.contains(&address), "{pod} has {address}: {shown}");
        addresses.insert(address.split('/').next().unwrap_or_default().to_owned());
    }
    ensure!(addresses.len() == 2, "both pods have {addresses:?}");
    for pod in PODS {
        for address in &addresses {
            in_pod(pod, &["ping", "-c", "1", "-W", "2", "-I", "net1", address])?;
        }
    }
    let nodes = PODS.map(|pod| test.cluster.get(&["-n", "default", "pod", pod]));
    let [one, other] = nodes.map(|pod| pod.map(|pod| text(&pod["spec"]["nodeName"])));
    ensure!(one? != other?, "both pods are on one node");
    let shown = netclaimctl(test, &["attachments", "--namespace=default"])?;
    ensure!(PODS.iter().all(|pod| shown.contains(pod)), "netclaimctl attachments: {shown}");
    Ok(())
}

/// Makes sure that the programs are those of the release, and that they do what the demo shows.
fn serves_the_examples(test: &Test<'_>, release: &Release, deploy: &Path) -> Result<()> {
    test.cluster.agent_ready()?;
    test.cluster.controller_ready()?;
    for (image, program) in IMAGES {
        let object = test.cluster.get(&["-n", SYSTEM, program])?;
        let mut images =
            list(&object["spec"]["template"]["spec"]["containers"]).map(|one| text(&one["image"]));
        let released = release.image(image);
        ensure!(images.all(|image| image == released), "{program} has another image than {released}");
    }
    let said = netclaimctl(test, &["--version"])?;
    ensure!(said.trim().ends_with(release.version()), "netclaimctl --version: {said}");
    kustomization(test, "apply", deploy, "examples")?;
    let attached = attaches_pods(test);
    kustomization(test, "delete", deploy, "examples")?;
    attached?;
    blocks_are_given_back(test).map(drop)
}

/// What is downloaded says what the programs are made of, and under which licences.
fn says_what_it_is_made_of(release: &Release) -> Result<()> {
    let notices = fs::read_to_string(release.file("THIRD-PARTY.txt"))?;
    for (image, crates) in
        [("netclaim-agent", ["tokio", "rtnetlink"]), ("netclaim-controller", ["kube", "cel"])]
    {
        let bill: Value = serde_json::from_slice(&fs::read(release.file(&format!("{image}.cdx.json")))?)?;
        let parts = bill["components"].as_array().with_context(|| format!("{image}: no components"))?;
        for name in crates {
            let part = parts.iter().find(|part| part["name"] == name);
            let part = part.with_context(|| format!("{image}.cdx.json has no {name}"))?;
            ensure!(part["licenses"][0]["expression"].is_string(), "{part} has no licence");
            let line = format!("\n{name} {}  ", text(&part["version"]));
            ensure!(notices.contains(&line), "THIRD-PARTY.txt has no{line}");
        }
        // Whatever is linked has its licence there.
        for part in parts.iter().filter(|part| !text(&part["name"]).starts_with("netclaim")) {
            let line = format!("\n{} {}  ", text(&part["name"]), text(&part["version"]));
            ensure!(notices.contains(&line), "THIRD-PARTY.txt has no{line}");
        }
    }
    Ok(())
}

pub fn the_files_of_a_release_install_netclaim(test: &Test<'_>) -> Result<()> {
    let Some(release) = Release::given()? else {
        return test.skip("it takes minutes: make test-release");
    };
    says_what_it_is_made_of(&release)?;
    let deploy = release.deploy(&test.cluster.dir().join("release"))?;
    let [there, named] = BUSYBOX;
    test.cluster.tag_image(there, named)?;
    let serves = |test: &Test<'_>| serves_the_examples(test, &release, &deploy);
    and_then_as_before(test, |helm| {
        blocks_are_given_back(test)?;
        test.cluster.manifests("delete")?;
        nothing_is_left(test.cluster, &[])?;

        let plugins = format!("plugins.image={},crds.keep=false", release.plugins()?);
        timed("the chart was installed", || {
            helm.release("install", &["--create-namespace", "--set", &plugins])
        })?;
        timed("pods of the chart's installation ran", || serves(test))?;
        timed("the chart was uninstalled", || uninstall(helm))?;
        nothing_is_left(test.cluster, &[])?;

        timed("netclaim.yaml was applied", || test.cluster.manifests("apply"))?;
        timed("pods of netclaim.yaml ran", || serves(test))?;
        timed("netclaim.yaml was deleted", || test.cluster.manifests("delete"))?;
        nothing_is_left(test.cluster, &[])?;

        timed("deploy/manifests was applied", || kustomization(test, "apply", &deploy, "manifests"))?;
        timed("pods of deploy/manifests ran", || serves(test))?;
        kustomization(test, "delete", &deploy, "manifests")?;
        nothing_is_left(test.cluster, &[])
    })
}
