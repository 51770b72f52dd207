//! Records, sandboxes and the gate's files for the tests of this crate.

use std::path::Path;

use netclaim_driver::attach::record::{DeviceRef, ObjectRef, Phase, Plan, Record, Sandbox};
use netclaim_driver::links::NetnsId;

use crate::gate::cdi::{CdiSpecs, HookCommand};
use crate::gate::keeper::GateFiles;
use crate::gate::markers::Markers;
use crate::gate::metadata_files::MetadataFiles;

/// The gate's files in directories of `dir`.
pub(crate) fn gate_files(dir: &Path) -> GateFiles {
    let hook = HookCommand { path: "/h".into(), socket: "/s".into(), markers: "/m".into() };
    let cdi = dir.join("cdi");
    GateFiles {
        specs: CdiSpecs::new(&cdi, "netclaim.dev", hook).expect("a directory"),
        metadata: MetadataFiles::new(&dir.join("metadata"), &cdi, "netclaim.dev").expect("a directory"),
        markers: Markers::new(&dir.join("ready")).expect("a directory"),
    }
}

/// A sandbox of no particular namespace.
pub(crate) fn sandbox(id: &str) -> Sandbox {
    Sandbox { id: id.into(), netns: "/n".into(), netns_id: NetnsId { dev: 0, ino: 0 }, boot_id: "b".into() }
}

/// The one attachment of `claim`, in pod `p`.
pub(crate) fn record(claim: &str, phase: Phase) -> Record {
    let object = |uid: &str| ObjectRef { namespace: "default".into(), name: uid.into(), uid: uid.into() };
    let plan = Plan {
        claim: object(claim),
        index: 0,
        of: 1,
        pod: object("p"),
        pod_claim_name: None,
        device: DeviceRef { request: "net".into(), pool: "n".into(), device: "d".into(), share_id: None },
        network: "storage".into(),
        if_name: "net1".parse().expect("a name"),
        conflist: serde_json::Map::new(),
        args: Default::default(),
        capability_args: serde_json::Map::new(),
        bandwidth: None,
        segment: None,
        attributes: serde_json::Map::new(),
    };
    Record { phase, ..Record::new(plan) }
}

/// The same, attached to a sandbox.
pub(crate) fn attached(claim: &str, sandbox_id: &str) -> Record {
    record(claim, Phase::Attached { sandbox: sandbox(sandbox_id), result: serde_json::Value::Null })
}
