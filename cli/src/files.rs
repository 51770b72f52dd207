//! Reads the objects of files and directories, with kubectl's conventions.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use crate::documents;

/// The extensions of the files that count in a directory.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The content of a file.
#[derive(Debug)]
pub(crate) struct File {
    /// How it was named.
    pub(crate) path: String,
    /// Its objects, or why they cannot be read.
    pub(crate) objects: Result<Vec<Value>, String>,
}

/// Reads files and directories; `-` is standard input.
pub(crate) fn read(paths: &[PathBuf], recursive: bool) -> Vec<File> {
    let mut found = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            let text = io::stdin().read_to_string(&mut text).map(|_| text);
            found.push(File { path: "-".to_owned(), objects: objects(text) });
        } else if path.is_dir() {
            let before = found.len();
            directory(path, recursive, &mut found);
            if found.len() == before {
                let problem =
                    format!("has no file that ends in {}", EXTENSIONS.map(|e| format!(".{e}")).join(", "));
                found.push(File { path: shown(path), objects: Err(problem) });
            }
        } else {
            found.push(file(path));
        }
    }
    found
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn file(path: &Path) -> File {
    File { path: shown(path), objects: objects(fs::read_to_string(path)) }
}

/// Reads the files of a directory in the order of their names. Links to directories are not followed.
fn directory(path: &Path, recursive: bool, found: &mut Vec<File>) {
    let entries = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = match entries {
        Ok(entries) => entries,
        Err(error) => return found.push(File { path: shown(path), objects: objects(Err(error)) }),
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let is_wanted = path
            .extension()
            .and_then(|e| e.to_str())
            .is_some_and(|extension| EXTENSIONS.contains(&extension));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if recursive {
                directory(&path, recursive, found);
            }
        } else if is_wanted {
            found.push(file(&path));
        }
    }
}

fn objects(text: io::Result<String>) -> Result<Vec<Value>, String> {
    let text = text.map_err(|error| format!("cannot be read: {error}"))?;
    let documents =
        documents::read(&text).map_err(|problem| format!("is not valid YAML or JSON: {problem}"))?;
    let mut objects = Vec::new();
    for (index, document) in documents.into_iter().enumerate() {
        if !document.is_object() {
            return Err(format!("document {} is not an object", index + 1));
        }
        add(document, &mut objects);
    }
    Ok(objects)
}

/// Adds an object, or the items of a list. Items of a list of one kind may leave out what the list says.
fn add(document: Value, objects: &mut Vec<Value>) {
    let kind = document["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).map(str::to_owned);
    let (Some(kind), Some(items)) = (kind, document["items"].as_array()) else {
        return objects.push(document);
    };
    for item in items {
        let mut item = item.clone();
        if let Some(fields) = item.as_object_mut().filter(|_| !kind.is_empty()) {
            fields.entry("kind").or_insert_with(|| Value::from(kind.as_str()));
            fields.entry("apiVersion").or_insert_with(|| document["apiVersion"].clone());
        }
        add(item, objects);
    }
}
