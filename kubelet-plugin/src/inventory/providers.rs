//! What providers on the node say of links: a directory with one small file for each link, `<link>.json`, watched.
//!
//! ```json
//! {"attributes": {"switch": {"string": "tor-7"}, "lldpPort": {"int": 12}}, "capacity": {"bandwidth": "10G"}}
//! ```
//!
//! A provider writes a file in full and renames it into place. Who may write there is root on the node already.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netclaim_api::IfName;
use netclaim_api::attribute::{self, DeclaredAttributes};
use netclaim_api::uplink_policy::UplinkCapacity;
use netclaim_cni::dir_changes::DirChanges;
use serde::Deserialize;

use crate::inventory::uplinks::Provided;

/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 16 << 10;
/// How often a directory that cannot be watched is looked at.
const PERIOD: Duration = Duration::from_secs(30);

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Document {
    attributes: DeclaredAttributes,
    capacity: UplinkCapacity,
}

/// The directory, and what was found in it last.
#[derive(Debug)]
pub struct Providers {
    dir: PathBuf,
    changes: Option<DirChanges>,
    provided: BTreeMap<IfName, Provided>,
    refused: BTreeMap<PathBuf, String>,
}

impl Providers {
    /// Looks at `dir`, which is made where it is missing.
    pub fn new(dir: &Path) -> Self {
        let changes = std::fs::create_dir_all(dir).and_then(|()| DirChanges::subscribe(vec![dir.to_owned()]));
        if let Err(error) = &changes {
            tracing::warn!(dir = %dir.display(), %error, "cannot watch what providers say of links, looking every 30 s");
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

    /// What was found last, by link.
    pub fn provided(&self) -> &BTreeMap<IfName, Provided> {
        &self.provided
    }

    /// Waits for a change and looks again. Cancel safe.
    pub async fn changed(&mut self) {
        match &mut self.changes {
            Some(changes) => {
                if let Err(error) = changes.tick().await {
                    tracing::warn!(dir = %self.dir.display(), %error, "cannot watch any more, looking every 30 s");
                    self.changes = None;
                }
            }
            None => tokio::time::sleep(PERIOD).await,
        }
        self.look();
    }

    fn look(&mut self) {
        let (mut provided, mut refused) = (BTreeMap::new(), BTreeMap::new());
        for path in std::fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            // A provider's temporary files are none of our business.
            let Some(stem) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else {
                continue;
            };
            let found =
                stem.parse::<IfName>().map_err(|e| e.to_string()).and_then(|name| Ok((name, read(&path)?)));
            match found {
                Ok((name, found)) => {
                    provided.insert(name, found);
                }
                Err(why) => {
                    if self.refused.get(&path) != Some(&why) {
                        tracing::warn!(file = %path.display(), why, "what a provider says of a link is left out");
                    }
                    refused.insert(path, why);
                }
            }
        }
        (self.provided, self.refused) = (provided, refused);
    }
}

fn read(path: &Path) -> Result<Provided, String> {
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("is no file".to_owned());
    }
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("is longer than {MAX_FILE} bytes"));
    }
    let Document { attributes, capacity } = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let problems = attribute::problems(&attributes);
    if !problems.is_empty() {
        return Err(format!("attributes: {}", netclaim_api::Invalid::list(&problems)));
    }
    Ok(Provided { attributes, capacity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_said_of_a_link_is_followed_and_nonsense_left_out() {
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
        write("README", "not one of ours");
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
