//! The structure of the code: no two files import each other in a circle, crates depend on each other in one
//! direction, those for other programs have what a published crate needs, and how many lines the product has
//! (`--nocapture`).
//!
//! A file is read by lines, as rustfmt writes them. Tests, fixtures, examples and generated code are not part
//! of the product.
#![allow(missing_docs, clippy::expect_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

mod crates;

/// Folders and files that are not of the product.
const LEFT_OUT: [&str; 9] =
    ["target", "tests", "benches", "examples", "fuzz", "gen", "fixtures", "testing", "fake"];

/// A file of the product, by its crate and its path of modules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Module {
    /// The folder `src` of the crate.
    root: PathBuf,
    path: Vec<String>,
}

/// What a file has, without its tests.
struct Source {
    file: PathBuf,
    text: String,
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Collects the files of the product below a folder.
fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).expect("readable");
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with('.') || name.ends_with("_tests") || LEFT_OUT.contains(&name) {
            continue;
        }
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns a text without modules of tests: from `#[cfg(test)]` to the end of what follows.
fn without_tests(text: &str) -> String {
    let (mut kept, mut lines) = (Vec::new(), text.lines());
    while let Some(line) = lines.next() {
        if line != "#[cfg(test)]" {
            kept.push(line);
            continue;
        }
        let is_block = lines.next().is_some_and(|next| next.ends_with('{'));
        if is_block {
            let _ = lines.by_ref().find(|line| *line == "}");
        }
    }
    kept.join("\n") + "\n"
}

/// The files of the product, by module.
fn sources() -> BTreeMap<Module, Source> {
    let mut files = Vec::new();
    collect(&project(), &mut files);
    let of_file = |file: PathBuf| {
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        let src = parts.iter().rposition(|part| *part == "src")?;
        let root: PathBuf = parts[..=src].iter().collect();
        let mut path: Vec<String> =
            parts[src + 1..].iter().map(|part| part.trim_end_matches(".rs").to_owned()).collect();
        path.pop_if(|last| ["mod", "lib"].contains(&last.as_str()));
        let text = without_tests(&fs::read_to_string(&file).expect("readable"));
        Some((Module { root, path }, Source { file, text }))
    };
    files.into_iter().filter_map(of_file).collect()
}

/// Returns the paths of a `use`, such as `a::{b, c::d}`, each as its segments.
fn paths(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![
            path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect(),
        ];
    };
    let head: Vec<String> = paths(head).remove(0);
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(paths);
    parts.map(|path| head.iter().cloned().chain(path).collect()).collect()
}

/// Returns what a file names of its crate: the paths of its imports.
fn imports(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("use ") {
        let is_start = rest[..at].rsplit('\n').next().is_some_and(|before| {
            let before = before.trim();
            before.is_empty() || before.starts_with("pub")
        });
        rest = &rest[at + 4..];
        if is_start && let Some(end) = rest.find(';') {
            found.extend(paths(&rest[..end].replace('\n', " ")));
            rest = &rest[end..];
        }
    }
    found
}

/// Whether a file defines a name.
fn defines(text: &str, name: &str) -> bool {
    let kinds = ["struct", "enum", "trait", "fn", "const", "static", "type", "union", "macro_rules!"];
    kinds.iter().any(|kind| {
        text.match_indices(&format!("{kind} {name}")).any(|(at, found)| {
            !text[at + found.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
        })
    })
}

/// Returns the file that a path of `from` leads to: where the name is defined, through those that hand it on.
fn target(from: &Module, path: &[String], all: &BTreeMap<Module, Source>, depth: usize) -> Option<Module> {
    let mut module = from.clone();
    let mut segments = path.iter();
    match segments.next()?.as_str() {
        "crate" => module.path.clear(),
        "self" => {}
        "super" => drop(module.path.pop()),
        child => {
            module.path.push(child.to_owned());
            if !all.contains_key(&module) {
                return None;
            }
        }
    }
    for segment in segments {
        if segment == "super" {
            module.path.pop();
            continue;
        }
        let mut child = module.clone();
        child.path.push(segment.clone());
        if all.contains_key(&child) {
            module = child;
            continue;
        }
        let source = all.get(&module)?;
        if defines(&source.text, segment) || depth == 0 {
            return Some(module);
        }
        let handed_on = imports(&source.text).into_iter().find(|path| path.last() == Some(segment));
        return handed_on.and_then(|path| target(&module, &path, all, depth - 1));
    }
    Some(module)
}

/// Returns the files that can be reached from a file by its imports.
fn reached(from: &Module, edges: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = next.pop() {
        for to in edges.get(&module).into_iter().flatten() {
            if seen.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    seen
}

#[test]
fn no_two_files_import_each_other_in_a_circle() {
    let all = sources();
    let edges: BTreeMap<Module, BTreeSet<Module>> = all
        .iter()
        .map(|(module, source)| {
            let named = imports(&source.text);
            // A folder's `mod.rs` has what its files share, and hands on what they have.
            let is_above = |to: &Module| to.root == module.root && module.path.starts_with(&to.path);
            let to = named.iter().filter_map(|path| target(module, path, &all, 4)).filter(|to| !is_above(to));
            (module.clone(), to.collect())
        })
        .collect();
    let arrows: usize = edges.values().map(BTreeSet::len).sum();
    assert!(all.len() > 400 && arrows > 1_000, "{} files with {arrows} arrows are too few", all.len());
    let circles: Vec<String> = edges
        .keys()
        .filter(|module| reached(module, &edges).contains(*module))
        .map(|module| all[module].file.display().to_string())
        .collect();
    assert!(circles.is_empty(), "these files import each other in circles: {circles:#?}");
}

#[test]
fn the_lines_of_the_product_are_counted() {
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for source in sources().values() {
        let file = source.file.strip_prefix(project()).expect("in the project");
        let of = file.iter().take_while(|part| *part != "src").collect::<PathBuf>().display().to_string();
        *lines.entry(of).or_default() += source.text.lines().count();
    }
    let all: usize = lines.values().sum();
    for (of, lines) in &lines {
        println!("{lines:>7} {of}");
    }
    println!("{all:>7} product lines");
    assert!(lines.len() > 10, "too few crates are found");
}
