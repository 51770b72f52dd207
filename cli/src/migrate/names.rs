//! Names of what a migration makes.

use std::collections::BTreeMap;

use netclaim_api::{Invalid, NetworkName};
use netclaim_cni::hex;
use netclaim_whereabouts::default_network;
use sha2::{Digest as _, Sha256};

use super::existing::Existing;
use super::nad_name::NadName;

/// The longest name of a DNS label, such as a request.
const LABEL: usize = 63;
/// The longest name of an object.
const SUBDOMAIN: usize = 253;

/// Returns the name of the ClaimNetwork for each NetworkAttachmentDefinition: NAMESPACE-NAME, as the takeover
/// of whereabouts names it. Where several would have one name, each gets a checksum of its own, so that none
/// depends on the order; and so does one whose name an object of another owner has. What an earlier run has
/// named keeps its name.
pub(super) fn networks<'a>(
    nads: impl Iterator<Item = &'a NadName>,
    existing: &Existing,
) -> BTreeMap<&'a NadName, Result<NetworkName, Invalid>> {
    let plain: BTreeMap<&NadName, Result<NetworkName, Invalid>> =
        nads.map(|nad| (nad, default_network(&nad.namespace, &nad.name))).collect();
    let mut uses: BTreeMap<&NetworkName, usize> = BTreeMap::new();
    for name in plain.values().flatten() {
        *uses.entry(name).or_default() += 1;
    }
    let is_shared = |name: &NetworkName| uses.get(name).is_some_and(|uses| *uses > 1);
    let name = |(nad, plain): (&&'a NadName, &Result<NetworkName, Invalid>)| {
        let name = plain.clone().and_then(|plain| {
            let own: NetworkName = cut(plain.as_str(), &nad.to_string(), NetworkName::MAX).parse()?;
            let is_taken = |name: &NetworkName| existing.other(name.as_str(), nad).is_some();
            let is_made = |name: &&NetworkName| existing.is_made(name.as_str(), nad) && !is_taken(name);
            let made = [&plain, &own].into_iter().find(is_made).cloned();
            match made {
                Some(made) => Ok(made),
                None if !is_shared(&plain) && !is_taken(&plain) => Ok(plain),
                None => free(own, nad, existing),
            }
        });
        (*nad, name)
    };
    plain.iter().map(name).collect()
}

/// Returns the name, if no object of another owner has it.
fn free(name: NetworkName, nad: &NadName, existing: &Existing) -> Result<NetworkName, Invalid> {
    match existing.other(name.as_str(), nad) {
        None => Ok(name),
        Some(kind) => {
            let problem = format!(
                "{kind} {name} exists and is not made from it: rename one of them, and run this again"
            );
            Err(Invalid::new("metadata.name", problem))
        }
    }
}

/// Returns the name of the ResourceClaimTemplate for a workload.
pub(super) fn template(kind: &str, name: &str) -> String {
    let full = format!("{}-{name}", kind.to_lowercase());
    if full.len() <= SUBDOMAIN { full } else { cut(&full, &full, SUBDOMAIN) }
}

/// Returns names for the requests of a claim, made from the names of their NetworkAttachmentDefinitions.
pub(super) fn requests<'a>(nads: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for nad in nads {
        let label = nad.replace('.', "-");
        let label = if label.len() <= LABEL { label } else { cut(&label, nad, LABEL) };
        let numbered = (2_u32..).map(|n| format!("{}-{n}", label.get(..LABEL - 4).unwrap_or(&label)));
        let free = std::iter::once(label.clone()).chain(numbered).find(|name| !names.contains(name));
        names.push(free.unwrap_or(label));
    }
    names
}

/// Returns `name`, cut and with a checksum of `of`, so that it has at most `max` bytes.
fn cut(name: &str, of: &str, max: usize) -> String {
    let checksum = hex(Sha256::digest(of).get(..4).unwrap_or_default());
    let kept = name.get(..(max - checksum.len() - 1).min(name.len())).unwrap_or_default();
    format!("{}-{checksum}", kept.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(nads: &[(&str, &str)]) -> Vec<String> {
        let nads: Vec<NadName> = nads
            .iter()
            .map(|(namespace, name)| NadName { namespace: (*namespace).into(), name: (*name).into() })
            .collect();
        let names = networks(nads.iter(), &Existing::default());
        nads.iter().map(|nad| names[nad].as_ref().expect("a name").to_string()).collect()
    }

    #[test]
    fn a_network_is_named_by_namespace_and_name() {
        assert_eq!(named(&[("shop", "lan"), ("bank", "lan")]), ["shop-lan", "bank-lan"]);
        assert_eq!(named(&[("shop", "lan.v2")]), ["shop-lan-v2"]);
    }

    #[test]
    fn networks_of_one_name_get_checksums_that_do_not_depend_on_the_order() {
        let names = named(&[("a-b", "c"), ("a", "b-c")]);
        let reversed = named(&[("a", "b-c"), ("a-b", "c")]);
        assert_eq!(names, [reversed[1].as_str(), reversed[0].as_str()]);
        assert!(names[0] != names[1] && names.iter().all(|name| name.starts_with("a-b-c-")), "{names:?}");
    }

    #[test]
    fn long_names_keep_the_limit_and_stay_apart() {
        let (one, other) = ("x".repeat(60) + "1", "x".repeat(60) + "2");
        let names = named(&[("namespace", &one), ("namespace", &other)]);
        assert!(names[0] != names[1] && names.iter().all(|name| name.len() <= NetworkName::MAX), "{names:?}");
        assert!(template("Deployment", &"y".repeat(253)).len() <= SUBDOMAIN);
    }

    #[test]
    fn requests_for_one_network_are_numbered() {
        assert_eq!(requests(["lan", "lan", "lan-2", "a.b"].into_iter()), ["lan", "lan-2", "lan-2-2", "a-b"]);
    }
}
