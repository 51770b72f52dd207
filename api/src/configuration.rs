//! Which configuration of a ClaimNetwork an attachment was made by, and the pods whose configuration is an
//! older one than today's.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_cni::hex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::NetworkName;
use crate::network::ClaimNetworkSpec;

/// What the fingerprints of this version begin with. Another selection of fields needs another one, or all
/// pods would seem to have an older configuration after an upgrade.
const VERSION: &str = "1-";
/// How many bytes of the SHA-256 a fingerprint has.
const BYTES: usize = 8;

/// Stands for all fields of a ClaimNetwork by which plugins run for its pods. Fields that decide who gets an
/// attachment and where (`capacity`, `nodeSelector`, `uplink`, `namespaces`) are not in it, nor are the
/// ranges of its addresses, nor what a node fills in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Returns the fingerprint of a ClaimNetwork as it is now.
    pub fn of(spec: &ClaimNetworkSpec) -> Self {
        let labels: Option<BTreeSet<&String>> =
            spec.pod_labels.as_ref().map(|labels| labels.keys.iter().collect());
        let rules = spec.allow.parameters.iter();
        let defaults: BTreeMap<&String, &Value> =
            rules.filter_map(|(name, rule)| Some((name, rule.default.as_ref()?))).collect();
        let fields = json!({
            "cni": spec.cni,
            "finalize": spec.finalize,
            "routes": spec.addresses.as_ref().map(|addresses| &addresses.routes),
            "podLabels": labels,
            "acceptRA": spec.accept_ra,
            "defaults": defaults,
        });
        // The keys of objects are sorted.
        let hash = Sha256::digest(fields.to_string());
        Self(format!("{VERSION}{}", hex(&hash[..BYTES])))
    }

    /// Whether this is the fingerprint of another configuration than `today`'s. It is not, as far as is
    /// known, if another version of netclaim has written it.
    pub fn is_older_than(&self, today: &Self) -> bool {
        self.0.starts_with(VERSION) && self != today
    }
}

/// Annotation of the slices of a node: the [`OlderPods`] of each ClaimNetwork that has any there, as a JSON
/// object by its name.
pub const OLDER_CONFIGURATION: &str = "netclaim.dev/older-configuration";

/// The pods of one node that run an older configuration of one ClaimNetwork.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderPods {
    /// How many there are.
    pub pods: u32,
    /// The beginnings of their UIDs, see [`short_uid`]. Who may read slices does not learn the names of pods.
    #[serde(default)]
    pub uids: BTreeSet<String>,
}

/// The most UIDs that [`OlderPods`] have: all annotations of an object together have at most 256 KiB.
const MAX_UIDS: usize = 128;

impl OlderPods {
    /// Returns the pods with these UIDs.
    pub fn of<'a>(uids: impl IntoIterator<Item = &'a str>) -> Self {
        let all: BTreeSet<&str> = uids.into_iter().collect();
        let pods = u32::try_from(all.len()).unwrap_or(u32::MAX);
        Self { pods, uids: all.into_iter().take(MAX_UIDS).map(|uid| short_uid(uid).to_owned()).collect() }
    }
}

/// Returns the [`OLDER_CONFIGURATION`] of a slice with these annotations. An agent writes it, and one of them
/// may be broken: what cannot be read is left out.
pub fn older_pods(annotations: &BTreeMap<String, String>) -> BTreeMap<NetworkName, OlderPods> {
    let text = annotations.get(OLDER_CONFIGURATION);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Returns the first 8 bytes of a UID, which are random. They are enough to tell the pods of a node apart.
pub fn short_uid(uid: &str) -> &str {
    uid.get(..8).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(change: impl FnOnce(&mut Value)) -> Fingerprint {
        let mut spec = json!({
            "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}", "mtu": 1500}]},
            "addresses": {"ranges": [{"subnet": "10.20.0.0/24"}], "routes": [{"dst": "10.0.0.0/8"}]},
            "podLabels": {"keys": ["app", "tier"]},
            "allow": {"parameters": {"vlan": {"type": "integer", "minimum": 1, "maximum": 9, "default": 4}}},
        });
        change(&mut spec);
        Fingerprint::of(&serde_json::from_value(spec).expect("a spec"))
    }

    #[test]
    fn a_fingerprint_stays_the_same_in_all_versions() {
        assert_eq!(of(|_| {}), Fingerprint("1-21c078354ca6cc11".to_owned()), "begin with another VERSION");
    }

    #[test]
    fn what_plugins_run_by_changes_the_fingerprint() {
        let today = of(|_| {});
        for (path, value) in [
            ("/cni/plugins/0/mtu", json!(9000)),
            ("/cni/plugins", json!([])),
            ("/addresses/routes/0/dst", json!("10.0.0.0/9")),
            ("/podLabels/keys/0", json!("name")),
            ("/allow/parameters/vlan/default", json!(5)),
        ] {
            let changed = of(|spec| *spec.pointer_mut(path).expect(path) = value);
            assert!(changed.is_older_than(&today), "{path}");
        }
        for (field, value) in [
            ("finalize", json!({"cniVersion": "1.1.0", "plugins": [{"type": "tuning"}]})),
            ("acceptRA", json!(true)),
        ] {
            assert!(of(|spec| spec[field] = value).is_older_than(&today), "{field}");
        }
    }

    #[test]
    fn what_decides_who_gets_an_attachment_does_not() {
        let today = of(|_| {});
        for (field, value) in [
            ("capacity", json!({"bandwidth": "10G"})),
            ("bandwidth", json!({"unrequested": "Share"})),
            ("nodeSelector", json!({"matchLabels": {"rack": "7"}})),
            ("uplink", json!({"links": ["eth1", "ens5"]})),
            ("deviceClassNames", json!(["storage"])),
            ("deviceClass", json!("None")),
            ("deviceClasses", json!([{"name": "fast", "defaults": {"interfaceName": "data0"}}])),
            ("repair", json!("Reattach")),
            ("attributes", json!({"zone": {"string": "a"}})),
        ] {
            assert_eq!(of(|spec| spec[field] = value), today, "{field}");
        }
        assert_eq!(of(|spec| spec["allow"]["mac"] = json!({})), today);
        assert_eq!(of(|spec| spec["allow"]["parameters"]["vlan"]["maximum"] = json!(99)), today);
        assert_eq!(of(|spec| spec["podLabels"]["keys"] = json!(["tier", "app"])), today);
        let two = json!([{"subnet": "10.20.0.0/24"}, {"subnet": "10.21.0.0/24"}]);
        assert_eq!(of(|spec| spec["addresses"]["ranges"] = two), today);
    }

    #[test]
    fn a_fingerprint_of_another_version_says_nothing() {
        assert!(!Fingerprint("2-0011223344556677".to_owned()).is_older_than(&of(|_| {})));
        assert!(!Fingerprint(String::new()).is_older_than(&of(|_| {})));
    }

    #[test]
    fn pods_are_counted_once_and_some_of_them_are_named() {
        let uids: Vec<String> = (0..200).map(|n| format!("{n:08x}-0000-4000-8000-000000000000")).collect();
        let older = OlderPods::of(uids.iter().chain(&uids).map(String::as_str));
        assert_eq!((older.pods, older.uids.len()), (200, MAX_UIDS));
        assert!(older.uids.contains("00000007"));
        let text = json!({"storage": older}).to_string();
        let read = older_pods(&[(OLDER_CONFIGURATION.to_owned(), text)].into());
        assert_eq!(read.values().next(), Some(&older));
        for broken in ["", "[]", "{\"A B\": {}}", "{\"a\": {\"pods\": -1}}"] {
            assert_eq!(
                older_pods(&[(OLDER_CONFIGURATION.to_owned(), broken.to_owned())].into()),
                BTreeMap::new()
            );
        }
        assert_eq!((short_uid("é"), short_uid("1234567é")), ("é", "1234567é"));
    }
}
