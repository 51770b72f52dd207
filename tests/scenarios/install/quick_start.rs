//! The quick start, command by command as its page has them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::text;
use netclaim_tests::{Test, helm, output, project};

use crate::helm::{and_then_as_before, blocks_are_given_back, nodes_have_no_sockets};
use crate::left::nothing_is_left;

/// Where the page's reader pushes the images.
const PUSHED: &str = "--set image.registry=registry.example.com";
/// The nodes of the tests have it already. Their kernel is that of the machine, and there is no registry.
const LOADED: &str = "--set image.registry=localhost --set image.tag=dev";
/// What makes the images and netclaimctl: the lane has built both.
const BUILT: [&str; 4] = ["deploy/image/build.sh ", "skopeo ", "cargo ", "sudo "];

/// The shell's commands below each heading of the page, by the beginning of the heading.
fn commands() -> Result<BTreeMap<String, String>> {
    let page = fs::read_to_string(project("docs/quick-start.md"))?;
    let mut commands: BTreeMap<String, String> = BTreeMap::new();
    for section in page.split("\n## ").skip(1) {
        let heading = section.split_whitespace().next().unwrap_or_default();
        let blocks = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        let lines =
            blocks.flat_map(str::lines).filter(|line| !BUILT.iter().any(|built| line.starts_with(built)));
        commands.insert(heading.to_owned(), lines.collect::<Vec<_>>().join("\n"));
    }
    Ok(commands)
}

/// The project as the reader sees it, with an image in the examples that the nodes have.
fn checkout(test: &Test<'_>) -> Result<PathBuf> {
    let folder = test.cluster.dir().join("quick-start");
    let examples = folder.join("deploy/examples");
    fs::create_dir_all(&examples)?;
    symlink(helm::chart().parent().context("the chart has no folder")?, folder.join("deploy/helm"))?;
    for file in fs::read_dir(project("deploy/examples"))? {
        let file = file?;
        let content = fs::read_to_string(file.path())?;
        let content = content.replace("docker.io/library/busybox:1.37", "localhost/busybox:1");
        fs::write(examples.join(file.file_name()), content)?;
    }
    symlink(helm::program()?, folder.join("helm"))?;
    Ok(folder)
}

/// Runs commands as a reader would who stops at the first one that fails.
fn run(test: &Test<'_>, folder: &Path, commands: &str) -> Result<String> {
    let commands = commands.replace(PUSHED, LOADED);
    let script = format!(". {}/env\nset -eux\nPATH=$PWD:$PATH\n{commands}", test.cluster.dir().display());
    let mut shell = Command::new("bash");
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        shell.env(variable, test.cluster.dir().join("helm"));
    }
    output(shell.arg("-c").arg(script).current_dir(folder)).with_context(|| commands.clone())
}

pub fn the_quick_start_works_as_it_is_written(test: &Test<'_>) -> Result<()> {
    and_then_as_before(test, |_| {
        blocks_are_given_back(test)?;
        test.cluster.manifests("delete")?;
        nothing_is_left(test.cluster, &[])?;
        nodes_have_no_sockets(test)?;
        let folder = checkout(test)?;
        let done = followed(test, &folder);
        fs::remove_dir_all(&folder)?;
        done
    })
}

/// Looks at one node as the reader does.
fn looks_at_a_node(test: &Test<'_>, folder: &Path, check: &str) -> Result<()> {
    let check =
        check.replace("NODE", "node0").replace("docker.io/library/busybox:1.37", "localhost/busybox:1");
    run(test, folder, &check)?;
    let pod = run(test, folder, "kubectl get pods -o name | grep node-debugger-")?;
    let pod = pod.trim();
    let ended = format!("kubectl wait --for=jsonpath={{.status.phase}}=Succeeded {pod} --timeout=60s");
    let shown = run(test, folder, &format!("{ended}\nkubectl logs {pod}"));
    run(test, folder, &format!("kubectl delete {pod} --timeout=60s"))?;
    let shown = shown?;
    for expected in ["nri.sock", "/macvlan", "/host-local", "eth1"] {
        ensure!(shown.contains(expected), "no {expected} in {shown}");
    }
    Ok(())
}

fn followed(test: &Test<'_>, folder: &Path) -> Result<()> {
    let commands = commands()?;
    let of =
        |heading: &str| commands.get(heading).with_context(|| format!("the page has no section {heading}"));
    looks_at_a_node(test, folder, of("1.")?)?;
    let install = of("2.")?;
    ensure!(install.contains("helm install") && install.contains(PUSHED), "{install}");
    run(test, folder, install)?;
    run(test, folder, of("3.")?)?;

    // What the page shows next.
    symlink(test.cluster.netclaimctl(), folder.join("kubectl-netclaim"))?;
    let status = run(test, folder, "kubectl netclaim status")?;
    let network = status.lines().find(|line| line.starts_with("storage ")).with_context(|| status.clone())?;
    let words: Vec<&str> = network.split_whitespace().collect();
    ensure!(words.get(1..5) == Some(&["Node", "True", "3/3", "2"][..]), "{status}");
    let attachments = run(test, folder, "kubectl netclaim attachments")?;
    let of_b = attachments.lines().find(|line| line.starts_with("storage-b ")).unwrap_or_default();
    let address = of_b.split_whitespace().find_map(|word| word.strip_suffix("/22"));
    let address = address.with_context(|| attachments.clone())?;
    let shown = run(test, folder, "kubectl exec storage-a -- ip addr show net1")?;
    ensure!(shown.contains("inet 10.20."), "{shown}");
    let pod = |name: &str| -> Result<String> {
        Ok(text(&test.cluster.get(&["-n", "default", "pod", name])?["spec"]["nodeName"]))
    };
    ensure!(pod("storage-a")? != pod("storage-b")?, "both are on {}", pod("storage-a")?);
    let pinged = run(test, folder, &format!("kubectl exec storage-a -- ping -c 1 -I net1 {address}"))?;
    ensure!(pinged.contains("1 packets received"), "{pinged}");

    run(test, folder, of("5.")?)?;
    nothing_is_left(test.cluster, &[])
}
