//! What is known about one attachment: the plan, and how far it has come. This is what the journal keeps.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use netclaim_cni::{CapabilityArgs, CniResult, IpRequest, ResultError, Stopped};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Failure;
use super::cause::Cause;
use super::plan::{Owner, Plan, Spec, Wire};
use super::plugins::asked::keeps_addresses;
use super::retry::Operation;
use crate::links::{HostLink, InUse, Netns, NetnsId};

/// The pod's sandbox that an attachment was, or is being, made in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The runtime's id; the CNI container id.
    pub id: String,
    /// Where the runtime mounted the network namespace.
    pub netns: PathBuf,
    /// Which namespace it was: a path may be given to another one.
    pub netns_id: NetnsId,
    /// The boot in which the sandbox lived (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
}

impl Sandbox {
    /// Opens its network namespace. Blocks as [`Netns::open`] does.
    ///
    /// # Errors
    /// When it cannot be opened, and when another one is at its path.
    pub fn open_netns(&self) -> Result<Netns, Failure> {
        let netns = Netns::open(&self.netns).map_err(|error| Failure::of(&error))?;
        if netns.id() == self.netns_id {
            Ok(netns)
        } else {
            Err(Failure::new("another network namespace is at the path of the pod's"))
        }
    }
}

/// How far an attachment has come. See [`machine`](super::machine) for the moves.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Nothing has been done to any sandbox; nothing is owed.
    Planned,
    /// An ADD may have started: a DEL is owed, whatever came of it.
    Adding {
        /// Where.
        sandbox: Sandbox,
    },
    /// The ADD succeeded.
    Attached {
        /// Where.
        sandbox: Sandbox,
        /// The CNI result of the whole chain.
        result: CniResult,
    },
    /// A DEL may have started and is owed until it has succeeded.
    Deleting {
        /// Where.
        sandbox: Sandbox,
        /// The CNI result, where the ADD had succeeded or a part of its chain had.
        result: Option<CniResult>,
    },
}

impl Phase {
    /// The result of an ADD, as far as there is one.
    pub fn result(&self) -> Option<&CniResult> {
        match self {
            Self::Attached { result, .. } | Self::Deleting { result: Some(result), .. } => Some(result),
            Self::Planned | Self::Adding { .. } | Self::Deleting { result: None, .. } => None,
        }
    }

    /// The sandbox to which something is owed or done.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        match self {
            Self::Planned => None,
            Self::Adding { sandbox } | Self::Attached { sandbox, .. } | Self::Deleting { sandbox, .. } => {
                Some(sandbox)
            }
        }
    }
}

/// The fault that a CHECK has found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Finding {
    /// For people: what the plugin has said.
    pub message: String,
    /// Whether the first plugin of the chain has found it, which makes the interface.
    pub is_of_interface: bool,
}

/// What an attachment asks for in the sandbox in which it was repaired.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repaired {
    pub(super) sandbox_id: String,
    /// The arguments that make what the pod had.
    pub(super) capability_args: CapabilityArgs,
}

impl Repaired {
    /// The addresses that the pod has had since before the repair, as far as the plugins are asked for them.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.capability_args.ips.iter().flatten().map(IpRequest::ip)
    }
}

/// One attachment: its plan, its phase, and the last thing that went wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "O: Owner", try_from = "RecordFile<O>", into = "RecordFile<O>")]
pub struct Record<O> {
    /// What to attach. It changes only while nothing is owed, and many keep it: the pod's task, those who
    /// watch it, the reports.
    pub plan: Arc<Plan<O>>,
    /// How far it is.
    pub phase: Phase,
    /// The link of the host that is in the pod, or on the way, as it was before the first ADD. Known from
    /// before that ADD until after the last DEL, which gives the link back.
    pub moved_link: Option<HostLink>,
    /// Index of the host link that the interface was made on. A link that is removed and made again has
    /// another one.
    pub host_link: Option<u32>,
    /// Where the ADD failed whose DEL is owed, if that is known.
    pub stopped: Option<Stopped>,
    /// Nothing is owed but the link, which is not back on the host or not as it was, and why.
    pub stray: Option<String>,
    /// The last failure, cleared by the next success.
    pub error: Option<String>,
    /// The operation that `error` is of, if it is of one. Not journalled: a DEL that is owed is soon tried
    /// again.
    pub failed: Option<Operation>,
    /// What kind of failure `error` is. Not journalled, as `failed`.
    pub cause: Cause,
    /// What the ADD has made that is to be proven. Not journalled: without it, a DEL is owed.
    pub made: Option<CniResult>,
    /// The addresses that the last ADD has left to other hosts. Not journalled: the next agent's ADD finds
    /// them again.
    pub in_use: Vec<InUse>,
    /// What the last CHECK of what is attached has found wrong. Not journalled: the next agent's CHECK finds
    /// it again.
    pub check: Option<Finding>,
    /// Whether a CHECK by plugins has succeeded since the ADD. Noted only of what is
    /// [repaired](super::Observer::is_repaired).
    pub checked: bool,
    /// Whether it is to be made again where it is, until its DEL begins.
    pub is_redone: bool,
    /// What it asks for since it was repaired.
    pub repaired: Option<Repaired>,
}

impl<O: Owner> Record<O> {
    /// A record for a plan that has not begun.
    pub fn new(plan: Plan<O>) -> Self {
        Self {
            plan: Arc::new(plan),
            phase: Phase::Planned,
            moved_link: None,
            host_link: None,
            stopped: None,
            stray: None,
            error: None,
            failed: None,
            cause: Cause::Other,
            made: None,
            in_use: Vec::new(),
            check: None,
            checked: false,
            is_redone: false,
            repaired: None,
        }
    }

    /// Whether it has broken so that it can be made again.
    pub fn can_be_repaired(&self) -> bool {
        self.checked && self.is_broken() && self.can_be_redone()
    }

    /// Whether the last CHECK of what is attached has found its interface broken.
    pub fn is_broken(&self) -> bool {
        let is_attached = matches!(self.phase, Phase::Attached { .. });
        is_attached && self.check.as_ref().is_some_and(|found| found.is_of_interface)
    }

    /// Whether `other` is made again with this one: it is the same, or one that is made after it in its group
    /// and may be made of it.
    pub fn is_redone_with(&self, other: &Self) -> bool {
        let (plan, other) = (&self.plan, &other.plan);
        !other.is_finalizer() && other.owner.group() == plan.owner.group() && other.index >= plan.index
    }

    /// Whether it can be made again with its addresses. A link of the host that was moved is in the pod or
    /// gone, and comes back with neither. The runtime asks for a primary network once in a sandbox.
    pub fn can_be_redone(&self) -> bool {
        matches!(self.phase, Phase::Attached { .. })
            && !self.is_redone
            && self.moved_link.is_none()
            && !self.plan.is_finalizer()
            && !self.plan.is_primary()
            && keeps_addresses(&self.plan.spec.conflist)
    }

    /// Whether it is being repaired in its sandbox, or was and no CHECK has found it whole since.
    pub fn is_on_trial(&self) -> bool {
        self.is_redone || self.repaired.is_some() && !self.checked
    }

    /// Returns what it asks for in this sandbox, if that is not what the plan says.
    pub(super) fn asks_in(&self, sandbox_id: &str) -> Option<Spec> {
        let repaired = self.repaired.as_ref().filter(|repaired| repaired.sandbox_id == sandbox_id)?;
        // The pod runs: to look at the network first would keep it off for as long as a router is away.
        let wire = Wire { accept_ra: self.plan.spec.wire.accept_ra, ..Wire::default() };
        Some(Spec { capability_args: repaired.capability_args.clone(), wire, ..self.plan.spec.clone() })
    }

    /// Forgets a repair in another sandbox.
    pub(super) fn begin_in(&mut self, sandbox_id: &str) {
        self.repaired = self.repaired.take().filter(|repaired| repaired.sandbox_id == sandbox_id);
    }

    /// Whether containers of this sandbox wait for it. They do not for a [hot](Owner::hot) one that came when
    /// they ran.
    pub fn holds(&self, sandbox_id: &str) -> bool {
        self.plan.owner.hot().is_none_or(|hot| hot.sandbox_id != sandbox_id)
    }

    /// The [plan's key](Plan::key).
    pub fn key(&self) -> String {
        self.plan.key()
    }

    /// What [`phase_name`](Self::phase_name) can return.
    pub const PHASE_NAMES: [&'static str; 5] = ["Planned", "Adding", "Attached", "Deleting", "Stray"];

    /// Returns the name of its phase in metrics; `Stray` if nothing is owed but a link of the host.
    pub fn phase_name(&self) -> &'static str {
        match self.phase {
            _ if self.stray.is_some() => "Stray",
            Phase::Planned => "Planned",
            Phase::Adding { .. } => "Adding",
            Phase::Attached { .. } => "Attached",
            Phase::Deleting { .. } => "Deleting",
        }
    }
}

/// A record as the journal stores it. The result is raw JSON: a tagged enum would take it apart.
#[derive(Serialize, Deserialize)]
#[serde(bound = "O: Owner", rename_all = "camelCase")]
struct RecordFile<O> {
    plan: Plan<O>,
    phase: PhaseName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sandbox: Option<Sandbox>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moved_link: Option<HostLink>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_link: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopped: Option<Stopped>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stray: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    checked: bool,
    #[serde(default, rename = "redone", skip_serializing_if = "std::ops::Not::not")]
    is_redone: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repaired: Option<Repaired>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PhaseName {
    Planned,
    Adding,
    Attached,
    Deleting,
}

/// Why a journalled record makes no sense.
#[derive(Debug, thiserror::Error)]
enum Senseless {
    #[error("an attachment in phase {0:?} has no sandbox")]
    NoSandbox(PhaseName),
    #[error("its CNI result: {0}")]
    Result(#[from] ResultError),
}

impl<O: Owner> TryFrom<RecordFile<O>> for Record<O> {
    type Error = Senseless;

    fn try_from(file: RecordFile<O>) -> Result<Self, Senseless> {
        let RecordFile {
            plan,
            phase: name,
            sandbox,
            result,
            moved_link,
            host_link,
            stopped,
            stray,
            error,
            checked,
            is_redone,
            repaired,
        } = file;
        let version = plan.spec.conflist.version();
        let read = |raw: &RawValue| CniResult::parse(raw.get(), version);
        let sandbox = || sandbox.ok_or(Senseless::NoSandbox(name));
        let phase = match name {
            PhaseName::Planned => Phase::Planned,
            PhaseName::Adding => Phase::Adding { sandbox: sandbox()? },
            // Plugins may print nothing: `null` is the empty result.
            PhaseName::Attached => {
                let result = read(result.as_deref().unwrap_or(RawValue::NULL))?;
                Phase::Attached { sandbox: sandbox()?, result }
            }
            PhaseName::Deleting => {
                Phase::Deleting { sandbox: sandbox()?, result: result.as_deref().map(read).transpose()? }
            }
        };
        Ok(Self {
            phase,
            moved_link,
            host_link,
            stopped,
            stray,
            error,
            checked,
            is_redone,
            repaired,
            ..Self::new(plan)
        })
    }
}

impl<O: Clone> From<Record<O>> for RecordFile<O> {
    fn from(record: Record<O>) -> Self {
        let Record {
            plan,
            phase,
            moved_link,
            host_link,
            stopped,
            stray,
            error,
            failed: _,
            cause: _,
            made: _,
            in_use: _,
            check: _,
            checked,
            is_redone,
            repaired,
        } = record;
        let (phase, sandbox, result) = match phase {
            Phase::Planned => (PhaseName::Planned, None, None),
            Phase::Adding { sandbox } => (PhaseName::Adding, Some(sandbox), None),
            Phase::Attached { sandbox, result } => (PhaseName::Attached, Some(sandbox), Some(result)),
            Phase::Deleting { sandbox, result } => (PhaseName::Deleting, Some(sandbox), result),
        };
        let result = result.as_ref().map(CniResult::to_raw);
        let plan = Arc::unwrap_or_clone(plan);
        Self {
            plan,
            phase,
            sandbox,
            result,
            moved_link,
            host_link,
            stopped,
            stray,
            error,
            checked,
            is_redone,
            repaired,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use netclaim_cni::{Effect, NetworkList, SpecVersion};
    use serde_json::Map;

    use super::super::plan::Spec;
    pub(crate) use super::super::testing::{Claimant, Object};
    use super::*;

    pub(crate) fn list(json: serde_json::Value) -> NetworkList {
        NetworkList::parse(json.to_string().as_bytes()).expect("a conflist")
    }

    pub(crate) fn result(json: &str) -> CniResult {
        CniResult::parse(json, SpecVersion::CURRENT).expect("a result")
    }

    pub(crate) fn spec(if_name: &str) -> Spec {
        let conflist = serde_json::json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "noop"}]});
        Spec {
            tenant: "default".to_owned(),
            if_name: if_name.parse().expect("a name"),
            conflist: list(conflist),
            args: BTreeMap::new(),
            capability_args: Default::default(),
            wire: Default::default(),
        }
    }

    pub(crate) fn plan(claim: &str, index: u32) -> Plan<Claimant> {
        let object = |name: &str| Object {
            namespace: "default".into(),
            name: name.into(),
            uid: format!("{name}-uid"),
        };
        let device = serde_json::json!({"request": "net", "pool": "node0", "device": "net-storage"});
        let owner = Claimant {
            claim: object(claim),
            pod: object("pod"),
            rest: Map::from_iter([("device".to_owned(), device)]),
        };
        Plan {
            owner,
            index,
            of: 1,
            finalizes: None,
            network: "storage".into(),
            spec: spec(&format!("net{}", index + 1)),
        }
    }

    pub(crate) fn sandbox(id: &str) -> Sandbox {
        Sandbox {
            id: id.into(),
            netns: format!("/run/netns/{id}").into(),
            netns_id: NetnsId { dev: 4, ino: 1 },
            boot_id: "boot".into(),
        }
    }

    #[test]
    fn a_configuration_is_the_same_to_the_byte_after_many_restarts() {
        let mut record = Record::new(plan("c", 0));
        let text =
            r#"{"cniVersion":"1.1.0","name":"n","x":123.40000013104793e-30,"plugins":[{"type":"noop"}]}"#;
        Arc::make_mut(&mut record.plan).spec.conflist =
            NetworkList::parse(text.as_bytes()).expect("a conflist");
        let mut read = record.clone();
        for _ in 0..3 {
            read = serde_json::from_str(&serde_json::to_string(&read).expect("JSON")).expect("reads back");
        }
        assert_eq!(read, record);
        assert_eq!(read.plan.spec.conflist.raw(), text);
    }

    #[test]
    fn records_read_back_in_every_phase() {
        let phases = [
            Phase::Planned,
            Phase::Adding { sandbox: sandbox("a") },
            Phase::Attached { sandbox: sandbox("a"), result: result(r#"{"cniVersion":"1.1.0","ips":[]}"#) },
            Phase::Deleting { sandbox: sandbox("a"), result: Some(result(r#"{"cniVersion":"1.1.0"}"#)) },
            Phase::Deleting { sandbox: sandbox("a"), result: None },
        ];
        for phase in phases {
            let stopped = Some(Stopped { completed: 1, effect: Effect::Container });
            let repaired =
                Repaired { sandbox_id: "a".to_owned(), capability_args: CapabilityArgs::default() };
            let record = Record {
                phase,
                stopped,
                host_link: Some(7),
                error: Some("why".into()),
                checked: true,
                is_redone: true,
                repaired: Some(repaired),
                ..Record::new(plan("c", 0))
            };
            let text = serde_json::to_string(&record).expect("JSON");
            let read: Record<Claimant> = serde_json::from_str(&text).expect("reads back");
            assert_eq!(read, record, "{text}");
        }
    }

    #[test]
    fn a_repaired_attachment_asks_for_what_it_had_in_that_sandbox_alone() {
        let capability_args = CapabilityArgs {
            ips: Some(vec![IpRequest::Address([10, 20, 0, 5].into())]),
            ..CapabilityArgs::default()
        };
        let repaired = Repaired { sandbox_id: "s".to_owned(), capability_args: capability_args.clone() };
        let mut record = Record { repaired: Some(repaired), ..Record::new(plan("c", 0)) };
        assert_eq!(record.asks_in("s").map(|spec| spec.capability_args), Some(capability_args));
        assert_eq!(record.asks_in("t"), None);
        record.begin_in("s");
        assert!(record.is_on_trial());
        record.begin_in("t");
        assert_eq!(record.repaired, None);
    }

    #[test]
    fn a_record_without_what_its_phase_needs_is_refused() {
        let mut file = serde_json::to_value(Record::new(plan("c", 0))).expect("JSON");
        for phase in ["adding", "attached", "deleting"] {
            file["phase"] = phase.into();
            serde_json::from_value::<Record<Claimant>>(file.clone()).expect_err("no sandbox");
        }
    }
}
