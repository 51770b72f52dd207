//! Records, sandboxes and the gate's files for the tests of this crate.

use std::path::Path;
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use netclaim_cni::{CniResult, NetworkList, SpecVersion};
use netclaim_driver::attach::{Phase, Sandbox, Spec};
use netclaim_driver::links::NetnsId;
use netclaim_process::metrics::Registry;
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

use crate::gate::cdi::{CdiSpecs, HookCommand};
use crate::gate::keeper::GateFiles;
use crate::gate::markers::Markers;
use crate::gate::metadata_files::MetadataFiles;
use crate::pods::owner::{ByAttachment, DeviceRef, ObjectRef, Owner, Plan, Record};
use crate::reports::metrics::NetworkMetrics;

/// An API server whose requests a test answers.
pub(crate) type ApiServer = Handle<Request<Body>, Response<Body>>;

/// A client of such an API server.
pub(crate) fn api_server() -> (Client, ApiServer) {
    let (service, server) = mock::pair();
    (Client::new(service, "default"), server)
}

/// Answers the next request; returns its head and the object in it, `None` without one.
pub(crate) async fn answer(server: &mut ApiServer, code: u16, body: &Value) -> (Parts, Option<Value>) {
    let (request, send) = server.next_request().await.expect("a request");
    let (head, sent) = request.into_parts();
    let sent = sent.collect_bytes().await.expect("a body");
    let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
    send.send_response(response.expect("a response"));
    (head, serde_json::from_slice(&sent).ok())
}

/// Metrics that are not read.
pub(crate) fn network_metrics() -> NetworkMetrics {
    NetworkMetrics::new(&mut Registry::new("netclaim"))
}

/// The gate's files in directories of `dir`.
pub(crate) fn gate_files(dir: &Path) -> GateFiles {
    let hook = HookCommand { path: "/h".into(), socket: "/s".into(), markers: "/m".into() };
    GateFiles {
        specs: CdiSpecs::new(&dir.join("cdi"), "netclaim.dev", hook).expect("a directory"),
        metadata: MetadataFiles::new(&dir.join("metadata"), "netclaim.dev").expect("a directory"),
        markers: Markers::new(&dir.join("ready")).expect("a directory"),
    }
}

/// A sandbox of no particular namespace.
pub(crate) fn sandbox(id: &str) -> Sandbox {
    Sandbox { id: id.into(), netns: "/n".into(), netns_id: NetnsId { dev: 0, ino: 0 }, boot_id: "b".into() }
}

/// A conflist of these plugins.
pub(crate) fn conflist(plugins: Value) -> NetworkList {
    let json = json!({"cniVersion": "1.1.0", "name": "netclaim-storage", "plugins": plugins});
    NetworkList::parse(json.to_string().as_bytes()).expect("a conflist")
}

/// The result of an ADD.
pub(crate) fn result(json: &Value) -> CniResult {
    CniResult::parse(&json.to_string(), SpecVersion::CURRENT).expect("a result")
}

/// The plan of the one attachment of `claim`, in pod `p`.
pub(crate) fn plan(claim: &str) -> Plan {
    let object = |uid: &str| ObjectRef { namespace: "default".into(), name: uid.into(), uid: uid.into() };
    let owner = Owner {
        claim: object(claim),
        pod: object("p"),
        pod_claim_name: None,
        network_attachment: None,
        device: DeviceRef { request: "net".into(), pool: "n".into(), device: "d".into(), share_id: None },
        bandwidth: None,
        segment: None,
        addresses: None,
        takes_no_address: false,
        needs_node_network: false,
        configuration: None,
        link: None,
        attributes: serde_json::Map::new(),
    };
    let spec = Spec {
        tenant: "default".to_owned(),
        if_name: "net1".parse().expect("a name"),
        conflist: conflist(json!([{"type": "noop"}])),
        args: Default::default(),
        capability_args: Default::default(),
        wire: Default::default(),
    };
    Plan { owner, index: 0, of: 1, finalizes: None, network: "storage".into(), spec }
}

/// The one attachment of `claim`, in pod `p`.
pub(crate) fn record(claim: &str, phase: Phase) -> Record {
    Record { phase, ..Record::new(plan(claim)) }
}

/// A record for a NetworkAttachment that came to the pod in this sandbox.
pub(crate) fn hot(mut record: Record, sandbox_id: &str) -> Record {
    let by = ByAttachment {
        name: "backup".into(),
        uid: "au".into(),
        created: "2026-11-29T00:00:00Z".into(),
        interface_name: None,
        sandbox_id: sandbox_id.into(),
    };
    Arc::make_mut(&mut record.plan).owner.network_attachment = Some(by);
    record
}

/// The one attachment of `claim`, in pod `p`, attached to a sandbox.
pub(crate) fn attached(claim: &str, sandbox_id: &str) -> Record {
    let result = result(&json!({"cniVersion": "1.1.0"}));
    record(claim, Phase::Attached { sandbox: sandbox(sandbox_id), result })
}
