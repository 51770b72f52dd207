//! Where a plugin connects, and the name and index that it registers.

use std::path::PathBuf;

/// Default path of the runtime's NRI socket.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";

/// A plugin's name, its place among other plugins, and the socket that it connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    pub(super) socket: PathBuf,
    pub(super) name: String,
    pub(super) index: String,
}

/// Why a runtime would refuse a plugin's name or index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPluginConfig {
    /// The name is empty or has characters that NRI does not allow.
    #[error("the NRI plugin name {0:?} is not made of letters, digits and `-_.+`; choose another one")]
    Name(String),
    /// The index has more than two digits.
    #[error("the NRI plugin index {0} is above 99; choose a lower one")]
    Index(u8),
}

impl PluginConfig {
    /// A plugin called `name` that connects to `socket`. Runtimes call plugins in the order of `index`, 0 to 99. If one
    /// answers with an error, they skip those after it, so choose a low index.
    ///
    /// # Errors
    /// If runtimes would refuse the name or the index.
    pub fn new(socket: impl Into<PathBuf>, name: &str, index: u8) -> Result<Self, InvalidPluginConfig> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
        if name.is_empty() || !name.bytes().all(valid) {
            return Err(InvalidPluginConfig::Name(name.to_owned()));
        }
        if index > 99 {
            return Err(InvalidPluginConfig::Index(index));
        }
        Ok(Self { socket: socket.into(), name: name.to_owned(), index: format!("{index:02}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_an_index_that_runtimes_refuse_is_refused_first() {
        for name in ["", "a b", "a/b", "é"] {
            assert_eq!(PluginConfig::new("/s", name, 0), Err(InvalidPluginConfig::Name(name.to_owned())));
        }
        assert_eq!(PluginConfig::new("/s", "netclaim.dev", 100), Err(InvalidPluginConfig::Index(100)));
        assert_eq!(PluginConfig::new("/s", "netclaim.dev", 7).unwrap().index, "07");
    }
}
