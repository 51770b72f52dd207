//! Upgrades and downgrades: what an earlier agent wrote is read by this one, and the other way round.
//!
//! The files in `tests/journal` are as the agent wrote them before it knew of strays, and one as it wrote them when it noted
//! where an ADD had stopped. Never change them: there are such files on nodes. When the format grows, pin some of the new ones
//! beside them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use netclaim_cni::{Effect, Stopped};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::journal::{decode, encode};
use super::record::tests::Claimant;
use super::record::{Phase, Record};

const PLANNED: &str = include_str!("../../tests/journal/planned.json");
const ADDING: &str = include_str!("../../tests/journal/adding-with-a-lent-link.json");
const ATTACHED: &str = include_str!("../../tests/journal/attached-with-a-lent-link.json");
const DELETING: &str = include_str!("../../tests/journal/deleting-after-a-failure.json");
const STOPPED: &str = include_str!("../../tests/journal/deleting-what-a-plugin-made-in-the-pod.json");

/// What that agent reads: its structures, with the fields that it knew and demanded. It checks version and checksum as
/// today's does, and passes over what it does not know.
mod earlier {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    pub(super) struct ObjectRef {
        pub(super) namespace: String,
        pub(super) name: String,
        pub(super) uid: String,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct DeviceRef {
        request: String,
        pool: String,
        device: String,
        share_id: Option<String>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Segment {
        space: String,
        id: u32,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct Plan {
        pub(super) claim: ObjectRef,
        index: u32,
        of: u32,
        pod: ObjectRef,
        pod_claim_name: Option<String>,
        device: DeviceRef,
        network: String,
        if_name: String,
        conflist: Map<String, Value>,
        #[serde(default)]
        args: BTreeMap<String, String>,
        #[serde(default)]
        capability_args: Map<String, Value>,
        segment: Option<Segment>,
        #[serde(default)]
        attributes: Map<String, Value>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct NetnsId {
        dev: u64,
        ino: u64,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct Sandbox {
        id: String,
        netns: PathBuf,
        netns_id: NetnsId,
        boot_id: String,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", tag = "phase")]
    pub(super) enum Phase {
        Planned,
        Adding { sandbox: Sandbox },
        Attached { sandbox: Sandbox, result: Value },
        Deleting { sandbox: Sandbox, result: Option<Value> },
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Address {
        local: String,
        peer: Option<String>,
        broadcast: Option<String>,
        label: Option<String>,
        scope: u8,
        flags: u32,
        metric: Option<u32>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct HostLink {
        index: u32,
        pub(super) name: String,
        #[serde(default)]
        alt_names: Vec<String>,
        alias: Option<String>,
        kind: Option<String>,
        permanent_mac: Option<String>,
        pci_bus_id: Option<String>,
        pci_function: Option<u64>,
        mac: Option<String>,
        mtu: u32,
        up: bool,
        #[serde(default)]
        addresses: Vec<Address>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct Record {
        pub(super) plan: Plan,
        #[serde(flatten)]
        pub(super) phase: Phase,
        pub(super) lent: Option<HostLink>,
        pub(super) error: Option<String>,
    }

    pub(super) fn decode(file: &[u8]) -> Record {
        #[derive(Deserialize)]
        struct Envelope {
            version: u32,
            record: Value,
        }
        super::decode::<Claimant>(file).expect("today's reader checks the sum");
        let envelope: Envelope = serde_json::from_slice(file).expect("a journal file");
        assert_eq!(envelope.version, 1, "an earlier agent refuses a later version");
        serde_json::from_value(envelope.record).expect("a record")
    }
}

fn read(file: &str) -> Record<Claimant> {
    decode(file.as_bytes()).expect("readable")
}

fn text(record: &Record<Claimant>) -> String {
    String::from_utf8(encode(record).expect("writable")).expect("text")
}

/// What a file says, whatever the order of its keys.
fn content(file: &str) -> Value {
    let file: Value = serde_json::from_str(file).expect("JSON");
    file["record"].clone()
}

#[test]
fn an_upgraded_agent_reads_and_writes_an_earlier_ones_files() {
    for file in [PLANNED, ADDING, ATTACHED, DELETING, STOPPED] {
        assert_eq!(content(&text(&read(file))), content(file));
    }
    assert_eq!(read(DELETING).stopped, None);
    assert_eq!(read(STOPPED).stopped, Some(Stopped { completed: 1, effect: Effect::Container }));
    let attached = read(ATTACHED);
    assert!(matches!(attached.phase, Phase::Attached { .. }));
    let link = attached.moved_link.expect("moved");
    assert_eq!((link.name.as_str(), link.mtu, link.addresses.len()), ("eth2", 9000, 2));
    assert_eq!((link.index_in_pod, link.identity, link.sysctls.len()), (None, None, 0));
    let deleting = read(DELETING);
    assert!(matches!(deleting.phase, Phase::Deleting { result: Some(_), .. }));
    assert_eq!(deleting.stray, None);
    assert!(deleting.error.is_some_and(|error| error.contains("no such device")));
}

#[test]
fn a_downgraded_agent_reads_what_this_one_writes_and_owes_the_same() {
    for file in [PLANNED, ADDING, ATTACHED, DELETING] {
        let mut record = read(file);
        // Everything that this agent has more to say.
        if matches!(record.phase, Phase::Deleting { .. }) {
            record.stray = Some("not back".to_owned());
            record.stopped = Some(Stopped { completed: 1, effect: Effect::Container });
        }
        if let Some(link) = &mut record.moved_link {
            link.index_in_pod = Some(9);
            link.identity = Some(77);
            link.sysctls.insert("ipv6/accept_ra".to_owned(), "0".to_owned());
        }
        assert_eq!(earlier::decode(text(&record).as_bytes()), earlier::decode(file.as_bytes()));
    }
    let deleting = earlier::decode(DELETING.as_bytes());
    assert!(matches!(deleting.phase, earlier::Phase::Deleting { result: Some(_), .. }));
    assert_eq!(
        (deleting.plan.claim.uid, deleting.lent.map(|lent| lent.name)),
        ("c-uid".into(), Some("eth2".into()))
    );
    assert!(deleting.error.is_some());
}

#[test]
fn a_plan_of_the_first_agent_has_no_optional_fields_and_gets_none() {
    let mut least = content(PLANNED)["plan"].clone();
    for optional in ["podClaimName", "args", "capabilityArgs", "segment", "attributes"] {
        least.as_object_mut().expect("an object").remove(optional);
    }
    let plan: super::Plan<Claimant> = serde_json::from_value(least.clone()).expect("the first agent's plan");
    assert_eq!(serde_json::to_value(plan).expect("JSON"), least, "what is not set is not written");
}
