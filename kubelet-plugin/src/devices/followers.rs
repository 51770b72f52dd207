//! How many links follow each UplinkPolicy, for the policy's status. Pure.
//!
//! A link that is in a pod still follows. Otherwise each pod that starts or ends with a whole link would
//! change the status of a policy, which goes to every node.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::published::POLICY_LINKS;

/// The names of the links that followed each policy at the last look.
#[derive(Debug, Default)]
pub(super) struct Followers(BTreeMap<String, BTreeSet<String>>);

impl Followers {
    /// Takes in the links that follow each policy `now`, without those that are in pods. Returns the
    /// annotation of the slices; none without policies.
    pub(super) fn see(
        &mut self,
        now: &BTreeMap<String, BTreeSet<String>>,
        in_pods: &BTreeSet<String>,
    ) -> BTreeMap<String, String> {
        let with_pods = |(policy, links): (&String, &BTreeSet<String>)| {
            let before = self.0.get(policy).into_iter().flatten();
            let left = before.filter(|link| in_pods.contains(*link));
            (policy.clone(), links.iter().chain(left).cloned().collect())
        };
        self.0 = now.iter().map(with_pods).collect();
        // A policy that matches nothing here needs no write on every node.
        let counts = self.0.iter().map(|(policy, links)| (policy, links.len()));
        let counts: BTreeMap<&String, usize> = counts.filter(|(_, count)| *count > 0).collect();
        let text = (!counts.is_empty()).then(|| serde_json::to_string(&counts).ok()).flatten();
        text.map(|text| (POLICY_LINKS.to_owned(), text)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_follows_while_it_is_in_a_pod() {
        let mut followers = Followers::default();
        let mut see = |links: &[&str], in_pods: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let now = BTreeMap::from([("fabric".to_owned(), names(links))]);
            followers.see(&now, &names(in_pods)).into_values().collect::<String>()
        };
        assert_eq!(see(&["eth1", "eth2"], &[]), r#"{"fabric":2}"#);
        assert_eq!(see(&["eth1"], &["eth2", "eth9"]), r#"{"fabric":2}"#, "eth9 never followed");
        assert_eq!(see(&["eth1"], &["eth2"]), r#"{"fabric":2}"#);
        assert_eq!(see(&["eth1"], &[]), r#"{"fabric":1}"#, "it did not come back");
        assert_eq!(see(&[], &[]), "");
        assert_eq!(followers.see(&BTreeMap::new(), &BTreeSet::new()), BTreeMap::new());
    }
}
