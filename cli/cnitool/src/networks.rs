//! Finds network configurations in a directory by the network's name, in libcni's order: `*.conflist` by file
//! name, then `*.conf` and `*.json`. Unlike in libcni, an unusable file hides no other.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netclaim_cni::error_chain;
use netclaim_cni::{ConfError, ListName, NetworkList};
use serde_json::value::RawValue;

/// Why a network cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file is not a network configuration.
    #[error("{} is not a usable network configuration", path.display())]
    Conf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: ConfError,
    },
    /// A file is not JSON of the expected form.
    #[error("{} is not a JSON object", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// No file has a network of that name.
    #[error(
        "no file in {} configures network `{network}`{}; name another directory in NETCONFPATH or another network",
        dir.display(),
        but(unusable)
    )]
    NotFound {
        /// The network.
        network: ListName,
        /// The directory.
        dir: PathBuf,
        /// Unusable files there, which may configure the network.
        unusable: Vec<String>,
    },
}

fn but(unusable: &[String]) -> String {
    unusable.iter().map(|reason| format!(" ({reason})")).collect()
}

/// Returns the first network of that name in `dir`.
///
/// # Errors
/// See [`LoadError`].
pub fn load(dir: &Path, network: &ListName) -> Result<NetworkList, LoadError> {
    let mut unusable = Vec::new();
    for path in files(dir)? {
        match parse(&path) {
            Ok(list) if list.name() == network => return Ok(list),
            Ok(_) => {}
            Err(error) => unusable.push(error_chain(&error)),
        }
    }
    Err(LoadError::NotFound { network: network.clone(), dir: dir.to_owned(), unusable })
}

/// Returns the files of network configurations in `dir` in order of precedence.
///
/// # Errors
/// [`LoadError::Read`]; a directory that does not exist is empty.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let mut lists = with_extensions(dir, &["conflist"])?;
    lists.extend(with_extensions(dir, &["conf", "json"])?);
    Ok(lists)
}

fn with_extensions(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, LoadError> {
    let read = |source| LoadError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(read)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(read)?.path();
        let fits = path.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted));
        if fits && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn parse(path: &Path) -> Result<NetworkList, LoadError> {
    let text = read(path)?;
    let conf = |source| LoadError::Conf { path: path.to_owned(), source };
    if path.extension().is_none_or(|extension| extension != "conflist") {
        return NetworkList::parse(&text).map_err(conf);
    }
    let beside = plugins_beside(path, &text)?;
    NetworkList::parse(beside.as_deref().map_or(&*text, str::as_bytes)).map_err(conf)
}

/// Returns the list with the plugins from the directory of the network's name; `None` if it has inlined
/// plugins only.
fn plugins_beside(path: &Path, text: &[u8]) -> Result<Option<String>, LoadError> {
    type Members = BTreeMap<String, Box<RawValue>>;
    let json = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Json { path, source }
    };
    let mut list: Members = serde_json::from_slice(text).map_err(json(path))?;
    let text_of =
        |key: &str| list.get(key).and_then(|value| serde_json::from_str::<String>(value.get()).ok());
    let inlined_only = list.get("loadOnlyInlinedPlugins").is_some_and(|value| value.get() == "true")
        || text_of("loadOnlyInlinedPlugins").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    // A list without a valid name is refused later.
    let name = text_of("name").and_then(|name| ListName::try_from(name).ok());
    let (Some(dir), Some(name), false) = (path.parent(), name, inlined_only) else { return Ok(None) };
    let files = with_extensions(&dir.join(name.as_str()), &["conf"])?;
    if files.is_empty() {
        return Ok(None);
    }
    let inlined = list.get("plugins").map(|plugins| serde_json::from_str(plugins.get()));
    let mut plugins: Vec<Box<RawValue>> = inlined.transpose().map_err(json(path))?.unwrap_or_default();
    for file in files {
        plugins.push(serde_json::from_slice(&read(&file)?).map_err(json(&file))?);
    }
    let plugins = serde_json::value::to_raw_value(&plugins).map_err(json(path))?;
    list.insert("plugins".to_owned(), plugins);
    serde_json::to_string(&list).map(Some).map_err(json(path))
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn types(dir: &tempfile::TempDir, network: &str) -> Result<Vec<String>, LoadError> {
        let list = load(dir.path(), &network.parse().unwrap())?;
        Ok(list.plugins().map(|plugin| plugin.plugin_type().to_string()).collect())
    }

    #[test]
    fn conflists_come_first_then_the_file_name_decides() {
        let dir = dir(&[
            ("00.conf", r#"{"name":"a","type":"single"}"#),
            ("20.conflist", r#"{"name":"a","plugins":[{"type":"later"}]}"#),
            ("10.conflist", r#"{"name":"a","plugins":[{"type":"first"}]}"#),
            ("30.json", r#"{"name":"b","type":"json"}"#),
            ("40.yaml", r#"{"name":"c","type":"x"}"#),
        ]);
        assert_eq!(types(&dir, "a").unwrap(), ["first"]);
        assert_eq!(types(&dir, "b").unwrap(), ["json"]);
        assert!(matches!(types(&dir, "c"), Err(LoadError::NotFound { .. })));
    }

    #[test]
    fn plugins_in_the_networks_directory_are_appended_unless_the_list_is_complete() {
        let dir = dir(&[
            ("10.conflist", r#"{"name":"a","plugins":[{"type":"x"}]}"#),
            ("a/2.conf", r#"{"type":"z","big":12345678901234567890123}"#),
            ("a/1.conf", r#"{"type":"y"}"#),
            ("20.conflist", r#"{"name":"b","loadOnlyInlinedPlugins":"TRUE","plugins":[{"type":"x"}]}"#),
            ("b/1.conf", r#"{"type":"y"}"#),
            ("30.conflist", r#"{"name":"c"}"#),
            ("c/1.conf", r#"{"type":"y"}"#),
        ]);
        assert_eq!(types(&dir, "a").unwrap(), ["x", "y", "z"]);
        assert!(load(dir.path(), &"a".parse().unwrap()).unwrap().raw().contains("12345678901234567890123"));
        assert_eq!(types(&dir, "b").unwrap(), ["x"]);
        assert_eq!(types(&dir, "c").unwrap(), ["y"]);
    }

    #[test]
    fn a_broken_file_hides_no_network_and_is_named_where_none_is_found() {
        let dir = dir(&[("10.conflist", "{"), ("20.conflist", r#"{"name":"a","plugins":[{"type":"x"}]}"#)]);
        assert_eq!(types(&dir, "a").unwrap(), ["x"]);
        let error = types(&dir, "b").unwrap_err().to_string();
        assert!(error.contains("10.conflist is not a JSON object"), "{error}");
    }

    #[test]
    fn a_directory_that_does_not_exist_has_no_networks() {
        assert!(files(Path::new("/nonexistent/net.d")).unwrap().is_empty());
    }
}
