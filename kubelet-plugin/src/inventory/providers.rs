//! What providers on the node declare about links: a watched directory with one small file for each link,
//! `<link>.json`.
//!
//! ```json
//! {"attributes": {"switch": {"string": "tor-7"}, "lldpPort": {"int": 12}}, "capacity": {"bandwidth": "10G"}}
//! ```
//!
//! A provider writes a whole file and renames it into place. Only root on the node may write there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use netclaim_api::attribute::{self, DeclaredAttributes};
use netclaim_api::uplink_policy::UplinkCapacity;
use netclaim_api::{IfName, Invalid};
use netclaim_cni::dir_changes::DirChanges;
use netclaim_cni::error_chain;
use serde::Deserialize;

use super::uplink::Provided;

/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 16 << 10;
/// Interval of looks at a directory that cannot be watched.
const UNWATCHED_LOOK_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Document {
    attributes: DeclaredAttributes,
    capacity: UplinkCapacity,
}

/// The directory, and its files at the last look.
#[derive(Debug)]
pub(crate) struct Providers {
    dir: PathBuf,
    changes: Option<DirChanges>,
    provided: BTreeMap<IfName, Provided>,
    refused: BTreeMap<PathBuf, String>,
}

impl Providers {
    /// Watches and reads `dir`, which is created if it is missing.
    pub(crate) fn new(dir: &Path) -> Self {
        let changes = std::fs::create_dir_all(dir).and_then(|()| DirChanges::subscribe(vec![dir.to_owned()]));
        if let Err(error) = &changes {
            tracing::warn!(dir = %dir.display(), %error, "cannot watch the providers of links' attributes, looking every 30 s");
        }
        let mut providers = Self {
            dir: dir.to_owned(),
            changes: changes.ok(),
            provided: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        providers.look();
        providers
    }

    /// Returns the declarations of the last look, by link.
    pub(crate) fn provided(&self) -> &BTreeMap<IfName, Provided> {
        &self.provided
    }

    /// Waits for a change and reads again. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        match &mut self.changes {
            Some(changes) => {
                if let Err(error) = changes.tick().await {
                    tracing::warn!(dir = %self.dir.display(), %error, "cannot watch the providers of links' attributes any more, looking every 30 s");
                    self.changes = None;
                }
            }
            None => tokio::time::sleep(UNWATCHED_LOOK_INTERVAL).await,
        }
        self.look();
    }

    fn look(&mut self) {
        let (mut provided, mut refused) = (BTreeMap::new(), BTreeMap::new());
        for path in std::fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            // Other names are temporary files of providers.
            let Some(stem) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else {
                continue;
            };
            match read(stem, &path) {
                Ok((name, found)) => {
                    provided.insert(name, found);
                }
                Err(error) => {
                    let error = error_chain(&error);
                    if self.refused.get(&path) != Some(&error) {
                        tracing::warn!(file = %path.display(), error, "ignoring a provider's file");
                    }
                    refused.insert(path, error);
                }
            }
        }
        (self.provided, self.refused) = (provided, refused);
    }
}

/// Why a provider's file is ignored.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("the file's name is not that of a link")]
    Name(#[source] <IfName as FromStr>::Err),
    #[error("cannot read the file")]
    Io(#[from] io::Error),
    #[error("it is not a regular file")]
    NotAFile,
    #[error("the file is longer than {MAX_FILE} bytes")]
    TooLong,
    #[error("the file is not as documented")]
    Json(#[from] serde_json::Error),
    #[error("attributes: {}", Invalid::list(.0))]
    Attributes(Vec<Invalid>),
}

/// Reads what the file at `path` declares about `link`.
fn read(link: &str, path: &Path) -> Result<(IfName, Provided), ReadError> {
    let name = link.parse().map_err(ReadError::Name)?;
    let file = File::open(path)?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(ReadError::NotAFile);
    }
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(ReadError::TooLong);
    }
    let Document { attributes, capacity } = serde_json::from_str(&text)?;
    let problems = attribute::problems(&attributes);
    if !problems.is_empty() {
        return Err(ReadError::Attributes(problems));
    }
    Ok((name, Provided { attributes, capacity }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn valid_files_are_followed_and_invalid_ones_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let file = dir.path().join(name);
            std::fs::write(file.with_extension("new"), text).expect("written");
            std::fs::rename(file.with_extension("new"), file).expect("renamed");
        };
        write(
            "eth1.json",
            r#"{"attributes": {"switch": {"string": "tor-7"}}, "capacity": {"bandwidth": "10G"}}"#,
        );
        write("eth2.json", r#"{"attributes": {"mtu": {"int": 1}}}"#);
        write("eth3.json", r#"{"attribute": {}}"#);
        write("README", "no provider's file");
        let mut providers = Providers::new(dir.path());
        let names =
            |providers: &Providers| providers.provided().keys().map(IfName::to_string).collect::<Vec<_>>();
        assert_eq!(names(&providers), ["eth1"]);
        assert_eq!(providers.refused.len(), 2);
        write("eth3.json", "{}");
        while names(&providers) != ["eth1", "eth3"] {
            tokio::time::timeout(Duration::from_secs(5), providers.changed()).await.expect("noticed");
        }
    }
}
