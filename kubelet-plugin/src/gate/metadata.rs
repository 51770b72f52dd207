//! The text that a container reads about its devices: the device metadata of KEP-5304. Pure.
//!
//! There is one file for each request of a claim. It has the same object in every version, the newest first,
//! so that readers of any version find theirs. Source: `k8s.io/dynamic-resource-allocation/api/metadata`
//! 0.37.

use std::collections::BTreeMap;
use std::fmt;

use crate::pods::owner::{Owner, Plan, Record};
use netclaim_driver::attach::Phase;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::reports::network_data;

/// The directory in a container (`metadata.ContainerDir`).
const CONTAINER_DIR: &str = "/var/run/kubernetes.io/dra-device-attributes";
/// Versions of the format, the newest first. They differ only in name.
const VERSIONS: [&str; 2] = ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"];

/// A request of a claim, as containers name it; displayed as `CLAIM-UID_REQUEST`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestKey(String);

impl RequestKey {
    /// Returns the request that `plan` is for.
    pub(crate) fn of(plan: &Plan) -> Self {
        Self(format!("{}_{}", plan.owner.claim.uid, plan.owner.device.main_request()))
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The records of a pod that its containers can name: those of its own claims.
pub(crate) fn named(records: &[Record]) -> impl Iterator<Item = &Record> {
    records.iter().filter(|record| !record.plan.is_hot())
}

/// Groups the attachments of a pod by request.
pub(crate) fn by_request(records: &[Record]) -> BTreeMap<RequestKey, Vec<&Record>> {
    let mut requests: BTreeMap<RequestKey, Vec<&Record>> = BTreeMap::new();
    for record in named(records).filter(|record| !record.plan.is_finalizer()) {
        requests.entry(RequestKey::of(&record.plan)).or_default().push(record);
    }
    requests
}

/// Returns the path at which containers that name the plan's request find their file. A claim from a template
/// has another name for each pod, so the path has the pod's own name for the claim.
pub(crate) fn path_in_container(driver: &str, plan: &Plan) -> String {
    let claim = match &plan.owner.pod_claim_name {
        Some(name) => format!("resourceclaimtemplates/{name}"),
        None => format!("resourceclaims/{}", plan.owner.claim.name),
    };
    format!("{CONTAINER_DIR}/{claim}/{}/{driver}-metadata.json", plan.owner.device.main_request())
}

/// Returns the file for `records`, all of one request. `generation` has to grow with each change.
pub(crate) fn file(driver: &str, records: &[&Record], generation: u64) -> String {
    let Some(plan) = records.first().map(|record| &record.plan) else { return String::new() };
    let devices: Vec<Value> = records.iter().map(|record| device(driver, record)).collect();
    let mut object = json!({
        "kind": "DeviceMetadata",
        "metadata": {
            "name": plan.owner.claim.name,
            "namespace": plan.owner.claim.namespace,
            "uid": plan.owner.claim.uid,
            "generation": generation,
        },
        "requests": [{"name": plan.owner.device.request, "devices": devices}],
    });
    if let Some(name) = &plan.owner.pod_claim_name {
        object["podClaimName"] = json!(name);
    }
    let version = |version| {
        object["apiVersion"] = json!(version);
        format!("{object:#}\n")
    };
    VERSIONS.map(version).concat()
}

fn device(driver: &str, record: &Record) -> Value {
    let Owner { device, attributes, .. } = &record.plan.owner;
    let mut entry = json!({"driver": driver, "pool": device.pool, "name": device.device});
    if !attributes.is_empty() {
        entry["attributes"] = json!(attributes);
    }
    if let Phase::Attached { sandbox, result } = &record.phase {
        entry["networkData"] = json!(network_data(&record.plan, sandbox, result));
    }
    entry
}

/// Returns the generation of a file; `None` when the file has never been written completely.
pub(crate) fn generation(file: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        generation: u64,
    }
    let first = serde_json::Deserializer::from_str(file).into_iter::<Object>().next()?;
    first.ok().map(|object| object.metadata.generation)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fixtures::{record, result, sandbox};

    /// Two devices of one request, attached.
    fn attached() -> [Record; 2] {
        [("net1", "02:00:00:00:00:01", "10.20.0.2/24"), ("net2", "02:00:00:00:00:02", "10.20.0.3/24")].map(
            |(name, mac, ip)| {
                let result = result(&json!({
                    "cniVersion": "1.0.0",
                    "interfaces": [{"name": name, "mac": mac, "sandbox": "/n"}],
                    "ips": [{"address": ip, "interface": 0}],
                }));
                let mut record = record("c", Phase::Attached { sandbox: sandbox("s1"), result });
                let plan = Arc::make_mut(&mut record.plan);
                plan.spec.if_name = name.parse().unwrap();
                plan.owner.device.request = "net/fast".into();
                plan.owner.attributes = serde_json::from_value(json!({"mtu": {"int": 1500}})).unwrap();
                record
            },
        )
    }

    #[test]
    fn a_file_has_every_device_of_the_request_in_each_version() {
        let records = attached();
        let text = file("netclaim.dev", &records.each_ref(), 3);
        assert_eq!(text, include_str!("../../tests/metadata.json"));
        assert_eq!(generation(&text), Some(3));
    }

    #[test]
    #[ignore = "needs Go and its module cache or proxy"]
    fn upstreams_reader_finds_the_file_and_understands_it_in_each_version() {
        let root = env!("CARGO_MANIFEST_DIR");
        let output = std::process::Command::new("go")
            .args(["run", "-mod=readonly", "."])
            .current_dir(format!("{root}/tests/metadata-reader"))
            .stdin(std::fs::File::open(format!("{root}/tests/metadata.json")).unwrap())
            .output()
            .expect("this test needs Go on the PATH");
        let (output_text, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{error}");
        let mut lines = output_text.lines();
        let object: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!(object["generation"], 3);
        let devices = &object["Requests"][0]["Devices"];
        assert_eq!(devices[0]["Attributes"]["mtu"], json!({"int": 1500}));
        assert_eq!(
            devices[1]["NetworkData"],
            json!({"interfaceName": "net2", "hardwareAddress": "02:00:00:00:00:02", "ips": ["10.20.0.3/24"]})
        );
        let [mut record, _] = attached();
        assert_eq!(lines.next(), Some(path_in_container("netclaim.dev", &record.plan).as_str()));
        Arc::make_mut(&mut record.plan).owner.pod_claim_name = Some("lan".into());
        assert_eq!(lines.next(), Some(path_in_container("netclaim.dev", &record.plan).as_str()));
    }

    #[test]
    fn the_path_of_a_claim_from_a_template_has_the_pods_name_for_it() {
        let [mut record, _] = attached();
        assert_eq!(
            path_in_container("netclaim.dev", &record.plan),
            "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/net/netclaim.dev-metadata.json"
        );
        Arc::make_mut(&mut record.plan).owner.pod_claim_name = Some("lan".into());
        assert_eq!(
            path_in_container("netclaim.dev", &record.plan),
            "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/lan/net/netclaim.dev-metadata.json"
        );
        assert!(file("netclaim.dev", &[&record], 1).contains("\"podClaimName\": \"lan\""));
    }

    #[test]
    fn a_file_that_is_empty_or_cut_short_has_no_generation() {
        let records = attached();
        let text = file("netclaim.dev", &records.each_ref(), 3);
        assert_eq!(generation(""), None);
        assert_eq!(generation(&text[..100]), None);
    }
}
