//! The table of differences as documentation.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::differences::{DIFFERENCES, Group};

const GROUPS: [(Group, &str); 9] = [
    (Group::Everywhere, "In every call"),
    (Group::Documents, "What a network configuration means"),
    (Group::Loading, "Networks in a directory"),
    (Group::TestPlugins, "Verbs, arguments and versions"),
    (Group::Reference, "Chains of the reference plugins"),
    (Group::Agent, "The same chains by the agent"),
    (Group::Faulty, "Plugins that do not do what they should"),
    (Group::Cache, "What is remembered of attachments"),
    (Group::Cnitool, "`netclaimctl cni` beside cnitool"),
];

/// The pinned version of libcni.
fn libcni() -> &'static str {
    let requirement = include_str!("../libcni/go.mod").split("github.com/containernetworking/cni v").nth(1);
    requirement.and_then(|rest| rest.split_whitespace().next()).unwrap()
}

fn page() -> String {
    let mut page = format!(
        "# Differences from libcni\n\n\
        CNI plugins get the same calls from netclaim as from libcni {}, in the same order, and the same comes of\n\
        them. What follows is all that differs, and why: the tests run both side by side, show each of these\n\
        differences, and fail for any other.\n\n\
        <!-- Made from driver/tests/libcni_conformance/differences.rs by `make generate`. -->\n",
        libcni()
    );
    for (group, title) in GROUPS {
        let _ = write!(page, "\n## {title}\n\n| given | netclaim | libcni | why |\n|---|---|---|---|\n");
        for row in DIFFERENCES.iter().filter(|row| row.group == group) {
            let _ = writeln!(page, "| {} | {} | {} | {} |", row.provoke, row.ours, row.libcni, row.reason);
        }
    }
    page
}

#[test]
fn the_documentation_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/libcni-differences.md");
    let page = page();
    if std::env::var_os("NETCLAIM_GENERATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &page).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "docs/reference/libcni-differences.md is stale: run `make generate`");
}

#[test]
fn each_row_has_a_name_of_its_own_and_fits_into_a_table() {
    let names: BTreeSet<_> = DIFFERENCES.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), DIFFERENCES.len());
    for row in DIFFERENCES {
        assert!(
            GROUPS.iter().any(|(group, _)| *group == row.group),
            "{} has no place in the documentation",
            row.name
        );
        let texts = [row.provoke, row.ours, row.libcni, row.reason];
        assert!(texts.iter().all(|text| !text.is_empty() && !text.contains(['|', '\n'])), "{}", row.name);
    }
}
