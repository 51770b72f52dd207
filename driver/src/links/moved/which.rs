//! How a configuration names a link of the host.

use std::fs;
use std::path::PathBuf;

use crate::links::link::Link;

/// How a configuration names a link of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Its name, or an alternative name.
    Name(String),
    /// Its current hardware address, in any notation.
    Mac(String),
    /// Its device's directory below `/sys/devices`.
    KernelPath(PathBuf),
    /// Its device's PCI address.
    PciBusId(String),
}

impl Which {
    /// Returns the named link. If a device has several links, returns the first by name, as the plugin does.
    pub(super) fn pick<'a>(&self, links: &'a [Link]) -> Option<&'a Link> {
        match self {
            Self::Name(name) => links.iter().find(|link| link.is_named(name)),
            Self::Mac(mac) => {
                links.iter().find(|link| link.mac.as_deref().is_some_and(|own| digits(own) == digits(mac)))
            }
            Self::KernelPath(path) => {
                let entries = fs::read_dir(path.join("net")).ok()?.filter_map(Result::ok);
                let name = entries.map(|entry| entry.file_name()).min()?;
                links.iter().find(|link| name.to_str() == Some(&link.name))
            }
            Self::PciBusId(id) => links
                .iter()
                .filter(|link| link.pci_bus_id.as_deref() == Some(id))
                .min_by(|a, b| a.name.cmp(&b.name)),
        }
    }
}

/// Normalizes a hardware address: `02:00:5E:…`, `02-00-5e-…` and `0200.5e…` are the same.
fn digits(mac: &str) -> String {
    mac.chars().filter(char::is_ascii_hexdigit).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_by_name_address_or_pci_function() {
        let eth2 = Link {
            name: "eth2".into(),
            mac: Some("02:00:00:00:00:01".into()),
            pci_bus_id: Some("0000:3b:00.0".into()),
            ..Link::default()
        };
        let links = [eth2, Link { name: "eth3".into(), ..Link::default() }];
        let picked = |which: Which| which.pick(&links).map(|link| link.name.as_str());
        assert_eq!(picked(Which::Name("eth3".into())), Some("eth3"));
        assert_eq!(picked(Which::Mac("02-00-00-00-00-01".into())), Some("eth2"));
        assert_eq!(picked(Which::PciBusId("0000:3b:00.0".into())), Some("eth2"));
        assert_eq!(picked(Which::KernelPath("/sys/devices/none".into())), None);
    }
}
