//! What files on the node state: about links, in `links.d`, and about ClaimNetworks, in `networks.d`.
//!
//! ```json
//! {"attributes": {"switch": {"string": "tor-7"}, "lldpPort": {"int": 12}}, "capacity": {"bandwidth": "10G"}}
//! ```
//! ```json
//! {"capacity": {"addresses": 254, "interfaces": 60}, "check": ["SANDBOX-ID/net1"],
//!  "status": {"add": true, "traffic": false, "message": "BGP session down"}}
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use netclaim_api::attribute::{self, DeclaredAttributes};
use netclaim_api::network::NetworkCapacity;
use netclaim_api::published::Amounts;
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_api::uplink_policy::UplinkCapacity;
use netclaim_api::{IfName, Invalid, NetworkName, Quantity};
use netclaim_cni::ContainerId;
use serde::Deserialize;

use super::facts_dir::{Changes, Facts, FactsDir, Origin, Refused, Version};
use super::uplink::Provided;

/// Most attachments that one file can have checked.
const MAX_CHECKS: usize = 256;

/// The directories of the node.
pub(crate) struct NodeFacts {
    changes: Changes,
    pub(super) links: FactsDir<Provided>,
    pub(super) networks: FactsDir<NetworkFacts>,
}

impl NodeFacts {
    /// Watches the directories, which are created if they are missing.
    pub(crate) fn new(links: &Path, networks: &Path) -> Self {
        let changes = Changes::new(&[links, networks]);
        Self { changes, links: FactsDir::new(links), networks: FactsDir::new(networks) }
    }

    /// Reads what is there.
    pub(super) async fn look(&mut self) {
        tokio::join!(self.links.look(), self.networks.look());
    }

    /// Waits until files state something else. Cancel safe.
    pub(super) async fn changed(&mut self) {
        loop {
            if !self.links.is_behind() && !self.networks.is_behind() {
                self.changes.tick().await;
                self.links.touch();
                self.networks.touch();
            }
            tokio::join!(self.links.catch_up(), self.networks.catch_up());
            let news = [self.links.take_news(), self.networks.take_news()];
            if news.contains(&true) {
                return;
            }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LinkDocument {
    attributes: DeclaredAttributes,
    capacity: UplinkCapacity,
}

impl Facts for Provided {
    type Subject = IfName;

    fn read(text: &str, _: &Origin) -> Result<Self, Refused> {
        let LinkDocument { attributes, capacity } = serde_json::from_str(text)?;
        let problems = attribute::problems(&attributes);
        if !problems.is_empty() {
            let within = |problem: Invalid| problem.within("attributes");
            return Err(Refused::Invalid(problems.into_iter().map(within).collect()));
        }
        Ok(Self { attributes, capacity })
    }
}

/// The facts that a program on the node states about a ClaimNetwork.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NetworkFacts {
    /// How much the node can hand out at most.
    pub(crate) capacity: NetworkCapacity,
    /// Why new pods should not get it.
    pub(crate) unhealthy: Option<Unhealthy>,
    /// Attachments to check at once, as `SANDBOX-ID/INTERFACE`.
    pub(crate) check: BTreeSet<String>,
    /// The file; without its version where that makes no difference.
    pub(crate) origin: Origin,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NetworkDocument {
    capacity: NetworkCapacity,
    status: StatusDocument,
    check: Vec<String>,
}

/// The two answers of the CNI verb STATUS other than yes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StatusDocument {
    /// Whether an ADD would succeed: code 50.
    add: bool,
    /// Whether pods have their full connectivity: code 51.
    traffic: bool,
    message: String,
}

impl Default for StatusDocument {
    fn default() -> Self {
        Self { add: true, traffic: true, message: String::new() }
    }
}

impl StatusDocument {
    /// Returns why new pods should not get the ClaimNetwork. What the file says goes to logs and status.
    fn unhealthy(&self, file: &Path) -> Option<Unhealthy> {
        let (reason, what) = match self {
            Self { traffic: false, .. } => (Reason::Limited, "pods would have limited connectivity"),
            Self { add: false, .. } => (Reason::NotReady, "no pod can be attached"),
            _ => return None,
        };
        let colon = if self.message.trim().is_empty() { "" } else { ": " };
        Some(Unhealthy::new(reason, format!("{} says that {what}{colon}{}", file.display(), self.message)))
    }
}

impl Facts for NetworkFacts {
    type Subject = NetworkName;

    fn read(text: &str, file: &Origin) -> Result<Self, Refused> {
        let NetworkDocument { capacity, status, check } = serde_json::from_str(text)?;
        if check.len() > MAX_CHECKS {
            let problem = format!("has {} items: write at most {MAX_CHECKS}", check.len());
            return Err(Refused::Invalid(vec![Invalid::new("check", problem)]));
        }
        let problems: Vec<Invalid> = check.iter().enumerate().filter_map(not_an_attachment).collect();
        if !problems.is_empty() {
            return Err(Refused::Invalid(problems));
        }
        let mut origin = file.clone();
        if check.is_empty() {
            // A file that is written again and states the same is not an update.
            origin.version = Version::default();
        }
        let unhealthy = status.unhealthy(&file.path);
        Ok(Self { capacity, unhealthy, check: check.into_iter().collect(), origin })
    }
}

fn not_an_attachment((index, text): (usize, &String)) -> Option<Invalid> {
    let is_one = |(sandbox, interface): (&str, &str)| {
        sandbox.parse::<ContainerId>().is_ok() && interface.parse::<IfName>().is_ok()
    };
    let problem = "is not an attachment: write SANDBOX-ID/INTERFACE";
    (!text.split_once('/').is_some_and(is_one)).then(|| Invalid::new(format!("check[{index}]"), problem))
}

impl NetworkFacts {
    /// Lowers `amounts` to the stated capacity, but not below what claims hold, which the scheduler has
    /// charged. Amounts that are not published stay so. Returns why no new pod can get the device, if the
    /// facts leave nothing of an amount that each takes.
    pub(crate) fn lower(
        &self,
        name: &NetworkName,
        amounts: &mut Amounts,
        held: &NetworkCapacity,
    ) -> Option<Unhealthy> {
        let was_exhausted = amounts.exhausted().is_some();
        let NetworkCapacity { bandwidth, addresses, interfaces } = &self.capacity;
        for (amount, stated, held) in [
            (&mut amounts.bandwidth, bandwidth, held.bandwidth),
            (&mut amounts.addresses, addresses, held.addresses),
            (&mut amounts.interfaces, interfaces, held.interfaces),
        ] {
            if let (Some(amount), Some(stated)) = (amount, stated) {
                *amount = (*amount).min((*stated).max(held.unwrap_or(Quantity::new(0))));
            }
        }
        let what = amounts.exhausted().filter(|_| !was_exhausted)?;
        let file = self.origin.path.display();
        let message = format!("{file} says that the node has no {what} of ClaimNetwork {name}");
        Some(Unhealthy::new(Reason::Exhausted, message))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(text: &str) -> Result<NetworkFacts, Refused> {
        let path = "/run/netclaim/networks.d/lab.json".into();
        NetworkFacts::read(text, &Origin { path, version: Version::default() })
    }

    fn facts(document: &Value) -> NetworkFacts {
        read(&document.to_string()).expect("facts")
    }

    #[test]
    fn documents_state_what_they_say_and_nothing_else() {
        let quantity = |amount| Some(Quantity::new(amount));
        let all = facts(&json!({
            "capacity": {"addresses": 254, "interfaces": "60", "bandwidth": "5G"},
            "status": {"add": true, "traffic": false, "message": "BGP session down"},
            "check": ["0a1b/net1", "0a1b/net1", "0a1b/net2"],
        }));
        assert_eq!((all.capacity.addresses, all.capacity.interfaces), (quantity(254), quantity(60)));
        assert_eq!(all.capacity.bandwidth, quantity(5_000_000_000));
        assert_eq!(all.check, ["0a1b/net1", "0a1b/net2"].map(str::to_owned).into());
        let nothing = facts(&json!({}));
        assert_eq!((nothing.capacity, nothing.unhealthy, nothing.check.len()), Default::default());
    }

    #[test]
    fn the_answers_of_status_are_named_with_the_file_and_the_message() {
        let status = |status: Value| {
            let unhealthy = facts(&json!({"status": status})).unhealthy?;
            Some((unhealthy.reason, unhealthy.message.replace("/run/netclaim/networks.d/", "")))
        };
        let said = |reason, text: &str| Some((reason, text.to_owned()));
        for fine in [json!({}), json!({"add": true}), json!({"message": "all is well"})] {
            assert_eq!(status(fine.clone()), None, "{fine}");
        }
        let no_pod = "lab.json says that no pod can be attached";
        assert_eq!(status(json!({"add": false})), said(Reason::NotReady, no_pod));
        let limited = "lab.json says that pods would have limited connectivity";
        assert_eq!(status(json!({"add": false, "traffic": false})), said(Reason::Limited, limited));
        let limited = "lab.json says that pods would have limited connectivity: BGP  down";
        assert_eq!(
            status(json!({"traffic": false, "message": "BGP\u{1b}\ndown\n"})),
            said(Reason::Limited, limited)
        );
        let long = status(json!({"add": false, "message": "x".repeat(20_000)})).expect("unhealthy").1;
        assert!(long.len() <= 1024 && long.starts_with(no_pod), "{long}");
    }

    #[test]
    fn hostile_documents_are_refused_with_their_place() {
        let many: Vec<String> = (0..=MAX_CHECKS).map(|number| format!("a{number}/net1")).collect();
        for (text, place) in [
            (String::new(), "line 1 column 0"),
            ("null".into(), "line 1 column"),
            (json!({"capacities": {}}).to_string(), "unknown field `capacities`"),
            (json!({"capacity": {"segments": 1}}).to_string(), "unknown field `segments`"),
            (json!({"capacity": {"addresses": -1}}).to_string(), "it is negative"),
            (json!({"capacity": {"addresses": "-1"}}).to_string(), "it is negative"),
            (json!({"capacity": {"addresses": 1.5}}).to_string(), "fractions"),
            (json!({"capacity": {"addresses": u64::MAX}}).to_string(), "it is too large"),
            (r#"{"capacity": {"addresses": 1e400}}"#.into(), "number out of range"),
            (r#"{"capacity": {"addresses": 1, "addresses": 2}}"#.into(), "duplicate field `addresses`"),
            (json!({"status": {"add": "no"}}).to_string(), "line 1 column"),
            (json!({"status": {"ready": false}}).to_string(), "unknown field `ready`"),
            (json!({"status": false}).to_string(), "line 1 column"),
            (json!({"check": "a/net1"}).to_string(), "line 1 column"),
            (json!({"check": many}).to_string(), "check: has 257 items"),
            (json!({"check": ["a/net1", "net1"]}).to_string(), "check[1]: is not an attachment"),
            (json!({"check": ["../../x/net1"]}).to_string(), "check[0]: is not an attachment"),
            (json!({"check": ["a/b/c"]}).to_string(), "check[0]: is not an attachment"),
            (json!({"check": ["a/"]}).to_string(), "check[0]: is not an attachment"),
        ] {
            let error = netclaim_cni::error_chain(&read(&text).expect_err(&text));
            assert!(error.contains(place), "{text}: {error}");
        }
    }

    #[test]
    fn capacity_only_lowers_and_not_below_what_is_held() {
        // All combinations: what is published, stated and held; `None` is not published or stated.
        let some = [None, Some(0), Some(1), Some(2), Some(7), Some(u64::MAX)];
        let quantity = |amount: Option<u64>| amount.map(Quantity::new);
        let name = "lab".parse().expect("a name");
        let cases = some.iter().flat_map(|one| some.iter().map(move |other| (*one, *other)));
        let cases: Vec<_> = cases.flat_map(|(one, other)| some.map(|third| (one, other, third))).collect();
        for (published, stated, held) in cases {
            let all = |amount| NetworkCapacity {
                bandwidth: quantity(amount),
                addresses: quantity(amount),
                interfaces: quantity(amount),
            };
            let facts = NetworkFacts { capacity: all(stated), ..facts(&json!({})) };
            let before = Amounts {
                bandwidth: quantity(published),
                addresses: quantity(published),
                interfaces: quantity(published),
                ..Amounts::default()
            };
            let mut now = before.clone();
            let exhausted = facts.lower(&name, &mut now, &all(held));
            let case = format!("{published:?} {stated:?} {held:?}: {now:?}");
            for amount in [now.bandwidth, now.addresses, now.interfaces] {
                assert_eq!(amount.is_some(), published.is_some(), "{case}");
                assert!(amount <= quantity(published), "{case}");
                assert!(amount >= quantity(published).min(quantity(held)), "{case}");
                let is_needed = stated.is_none() || held >= stated;
                assert!(is_needed || amount <= quantity(stated), "{case}");
            }
            assert!(stated.is_some() || now == before, "{case}");
            let is_exhausted = now.exhausted().is_some() && before.exhausted().is_none();
            assert_eq!(exhausted.map(|why| why.reason), is_exhausted.then_some(Reason::Exhausted), "{case}");
        }
    }

    #[test]
    fn only_a_file_with_checks_is_another_when_it_is_written_again() {
        let read = |text: &str, length| {
            let version = Version::of_length(length);
            NetworkFacts::read(text, &Origin { path: "lab.json".into(), version }).expect("facts")
        };
        assert_eq!(read("{}", 1), read("{}", 2));
        let asks = r#"{"check": ["a/net1"]}"#;
        assert_eq!(read(asks, 1), read(asks, 1));
        assert_ne!(read(asks, 1), read(asks, 2));
    }
}
