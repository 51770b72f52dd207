//! The documentation's pages, and the YAML in them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The root of the project, which has the folder `docs`.
pub fn root() -> PathBuf {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(1);
    folders.find(|folder| folder.join("docs").is_dir()).expect("a root").to_owned()
}

/// A file as text.
pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The first page, and every page in `docs`, sorted.
pub fn pages() -> Vec<PathBuf> {
    let (mut pages, mut folders) = (vec![root().join("README.md")], vec![root().join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Every YAML document in the fenced blocks of a page.
pub fn documents(page: &Path) -> Vec<Value> {
    let text = read(page);
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let documents = blocks.map(|block| {
        serde_saphyr::from_multiple::<Value>(block)
            .unwrap_or_else(|error| panic!("{}: {error}\n{block}", page.display()))
    });
    documents.flatten().collect()
}
