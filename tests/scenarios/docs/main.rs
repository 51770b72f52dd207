//! The documentation: each link of a page leads to a file or a heading that exists, and links lead from the
//! first page to each. The same holds for the site that is built of it. Commands that pages and programs tell
//! people to run name our kinds with their group.

// Clippy allows `unwrap` and `expect` only in functions with `#[test]`, not in those that tests share.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

mod site;

/// The pages of the site, in order.
const CONTENTS: &str = "docs/SUMMARY.md";

/// The root of the project.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The pages, by their path from the root.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::from("docs")];
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        found.insert(PathBuf::from(name), fs::read_to_string(root().join(name)).unwrap());
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.insert(path, fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    found
}

/// A page's lines without those of its fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The targets of a line's links: `[text](target)`. Code spans have none.
fn targets(line: &str) -> Vec<&str> {
    let outside = line.split('`').step_by(2);
    outside
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .collect()
}

/// A heading's anchor, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The anchors of a page. The second of two equal headings has `-1` at its end.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(page).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let anchor = anchor(line.trim_start_matches('#').trim());
            let number = seen.entry(anchor.clone()).and_modify(|number| *number += 1).or_default();
            if *number == 0 { anchor } else { format!("{anchor}-{number}") }
        })
        .collect()
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
        normal
    })
}

/// Why a link of a page leads nowhere.
fn broken(pages: &BTreeMap<PathBuf, String>, page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, wanted) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let to = match path {
        "" => page.to_owned(),
        path => normal(&page.parent().unwrap().join(path)),
    };
    if !root().join(&to).exists() {
        return Some(format!("{}: no such file: {target}", page.display()));
    }
    let wanted =
        wanted.filter(|wanted| !pages.get(&to).is_some_and(|text| anchors(text).contains(*wanted)))?;
    Some(format!("{}: {} has no heading for #{wanted}", page.display(), to.display()))
}

#[test]
fn the_contents_of_the_site_list_each_page_once() {
    let pages = pages();
    let summary = Path::new(CONTENTS);
    let docs = pages.keys().filter(|page| page.starts_with("docs") && *page != summary);
    let expected: BTreeSet<String> = docs.map(|page| page.display().to_string()).collect();
    let listed: Vec<String> =
        prose(&pages[summary]).flat_map(targets).map(|page| format!("docs/{page}")).collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(listed.len(), expected.len(), "a page is listed twice");
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let links = pages.iter().flat_map(|(path, text)| {
        prose(text).flat_map(targets).map(move |target| (path.as_path(), target)).collect::<Vec<_>>()
    });
    let links: Vec<_> = links.collect();
    assert!(links.len() > 100, "only {} links were found", links.len());
    let broken: Vec<_> = links.iter().filter_map(|(page, target)| broken(&pages, page, target)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_can_be_found_from_the_first_one() {
    let pages = pages();
    let mut found = BTreeSet::new();
    let mut next = vec![PathBuf::from("README.md")];
    while let Some(page) = next.pop() {
        let Some(text) = pages.get(&page) else { continue };
        if found.insert(page.clone()) {
            let folder = page.parent().unwrap().to_owned();
            let targets = prose(text).flat_map(targets);
            next.extend(
                targets.map(|target| normal(&folder.join(target.split('#').next().unwrap_or_default()))),
            );
        }
    }
    // The contents are a page of their own only for the site.
    found.insert(PathBuf::from(CONTENTS));
    let lost: Vec<_> = pages.keys().filter(|page| !found.contains(*page)).collect();
    assert!(lost.is_empty(), "no link leads to {lost:?}");
}

#[test]
fn a_heading_has_the_anchor_that_readers_link_to() {
    assert_eq!(anchor("What is `/opt/cni/bin`?"), "what-is-optcnibin");
    assert_eq!(
        anchors("# A b\n```\n# no heading\n```\n## A b\n").into_iter().collect::<Vec<_>>(),
        ["a-b", "a-b-1"]
    );
    assert_eq!(targets("see [a](b.md#c) and `[x](y)`, [d](e)"), ["b.md#c", "e"]);
}

/// Where pages and programs tell people what to run.
const SPEAKING: [&str; 10] =
    ["api", "cli", "cni", "controller", "deploy", "docs", "driver", "kubelet-plugin", "process", "tests"];

/// Names of our kinds that kubectl also finds without a group, and that other groups may have, too. No one
/// else has ClaimNetworks.
const SHORT: [&str; 12] = [
    "uplinkpolicy",
    "uplinkpolicies",
    "uplinkpol",
    "addresspool",
    "addresspools",
    "addrpool",
    "addressblock",
    "addressblocks",
    "addrblock",
    "addresslease",
    "addressleases",
    "addrlease",
];

/// The texts of the project: sources, scripts, manifests and pages.
fn texts() -> Vec<(PathBuf, String)> {
    let mut folders: Vec<PathBuf> = SPEAKING.iter().map(PathBuf::from).collect();
    let mut found = Vec::new();
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        found.push((PathBuf::from(name), fs::read_to_string(root().join(name)).unwrap()));
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            let is_text =
                path.extension().and_then(|extension| extension.to_str()).is_some_and(|extension| {
                    ["rs", "md", "yaml", "json", "sh", "txt", "tpl"].contains(&extension)
                });
            if entry.file_type().unwrap().is_dir() {
                folders.extend(Some(path).filter(|path| !path.ends_with("target")));
            } else if is_text {
                found.push((path, fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    found
}

/// The commands of kubectl in a text, without `kubectl`. One in backticks may go over several lines.
fn commands(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("kubectl ").map(|(at, kubectl)| {
        let rest = &text[at + kubectl.len()..];
        let ends: &[char] = if text[..at].ends_with('`') { &['`'] } else { &['`', '"', '\n'] };
        rest.split(ends).next().unwrap_or_default()
    })
}

/// The words of a command that name one of our kinds without its group.
fn without_group(command: &str) -> Vec<&str> {
    let mut words = command.split_whitespace().peekable();
    // Our own commands name kinds by one word.
    if words.peek() == Some(&"netclaim") {
        return Vec::new();
    }
    let explains = words.peek() == Some(&"explain");
    let is_short = |word: &&str| {
        let (kind, rest) = word.split_once('.').unwrap_or((word, ""));
        SHORT.contains(&kind) && (rest.is_empty() || (explains && !rest.starts_with("netclaim.dev")))
    };
    words.flat_map(|word| word.split([',', '/'])).filter(is_short).collect()
}

#[test]
fn commands_of_kubectl_name_our_kinds_with_their_group() {
    let texts = texts();
    let count: usize = texts.iter().map(|(_, text)| commands(text).count()).sum();
    assert!(count > 50, "only {count} commands were found");
    let wrong: Vec<_> = texts
        .iter()
        // The examples of the test below.
        .filter(|(path, _)| path != Path::new("tests/scenarios/docs/main.rs"))
        .flat_map(|(path, text)| commands(text).map(move |command| (path, command)))
        .filter(|(_, command)| !without_group(command).is_empty())
        .map(|(path, command)| format!("{}: kubectl {command}", path.display()))
        .collect();
    assert!(
        wrong.is_empty(),
        "other groups have such kinds, too: write addresspools.netclaim.dev\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_kind_without_its_group_is_found_wherever_it_is_in_a_command() {
    let found = |text: &str| commands(text).flat_map(without_group).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(found("see `kubectl -n x get addresspool lab`"), ["addresspool"]);
    assert_eq!(found("see `kubectl get \\\n  addressblocks -o yaml` of network"), ["addressblocks"]);
    assert_eq!(found("kubectl get pods,addresspools/lab\naddresspools"), ["addresspools"]);
    assert_eq!(found("`kubectl explain addresspool.spec`"), ["addresspool.spec"]);
    assert_eq!(
        found("`kubectl explain addresspools.netclaim.dev.spec`, `kubectl get claimnetworks`"),
        [""; 0]
    );
    assert_eq!(found("kubectl label node NODE network.example.com/device-plugin-"), [""; 0]);
    assert_eq!(found("`kubectl netclaim explain network lab`"), [""; 0]);
}
