//! What claims have of netclaim's devices. Pure.

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};
use kube::ResourceExt as _;
use netclaim_api::GROUP;
use netclaim_api::device::{DeviceName, node_of_pool};
use netclaim_api::network_attachment::{AttachedInterface, NetworkAttachment};
use netclaim_api::reasons::AttachedReason;
use netclaim_api::traffic::Traffic;
use serde::Serialize;

use super::rate::rate;
use crate::claimed;
use crate::colour::Mark;
use crate::printable::printable;
use crate::table::{Cell, NONE};

/// One device of netclaim that a claim has, for one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attachment {
    pub(crate) namespace: String,
    /// The pod that the claim is reserved for; `None` if it is reserved for no pod.
    pub(crate) pod: Option<String>,
    /// The interface in the pod; `None` until the agent has attached it.
    pub(crate) interface: Option<String>,
    pub(crate) claim: String,
    /// The NetworkAttachment that the claim is for; `None` for what the pod has from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network_attachment: Option<String>,
    pub(crate) request: String,
    /// `None` if the device is a link.
    pub(crate) network: Option<String>,
    pub(crate) addresses: Vec<String>,
    pub(crate) mac: Option<String>,
    /// `None` if only the pod says it, and the pod cannot be read.
    pub(crate) node: Option<String>,
    pub(crate) uplink: Option<String>,
    pub(crate) mode: Option<String>,
    /// The CNI version that the plugins were called with; `None` until then, and where their result is too
    /// long for the claim.
    pub(crate) cni_version: Option<String>,
    pub(crate) pool: String,
    pub(crate) device: String,
    /// The `Ready` condition; `None` if the agent has not reported yet.
    pub(crate) ready: Option<bool>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    /// `None` if the agents were not asked, and where one does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traffic: Option<Traffic>,
}

/// The columns of a table, beside those that it always has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    pub(super) namespaces: bool,
    pub(super) traffic: bool,
    pub(super) wide: bool,
}

impl Attachment {
    /// Returns what the claim has, for each pod that it is reserved for. An attachment belongs to the first
    /// of these: Kubernetes adds the others at the end.
    pub(super) fn of_claim(claim: &ResourceClaim) -> Vec<Self> {
        let Some(status) = &claim.status else { return Vec::new() };
        // It is netclaim's, for the pod that a NetworkAttachment names. Labels are a tenant's to write.
        let mut consumers = status.reserved_for.iter().flatten();
        if consumers.any(|consumer| consumer.api_group.as_deref() == Some(GROUP)) {
            return Vec::new();
        }
        let pods: Vec<&str> = status
            .reserved_for
            .iter()
            .flatten()
            .filter(|consumer| consumer.resource == "pods")
            .map(|consumer| consumer.name.as_str())
            .collect();
        let mut attachments = Vec::new();
        for (result, reported) in claimed::devices(claim) {
            let attachment = Self::new(claim, result, reported);
            let Some((first, waiting)) = pods.split_first() else {
                attachments.push(attachment);
                continue;
            };
            attachments.extend(waiting.iter().map(|pod| attachment.waiting(pod, first)));
            attachments.push(Self { pod: Some((*first).to_owned()), ..attachment });
        }
        attachments
    }

    /// Returns what the pod of a NetworkAttachment has by it, from its claim or, if that cannot be read, from
    /// its status.
    pub(super) fn of_object(object: &NetworkAttachment, claim: Option<&ResourceClaim>) -> Vec<Self> {
        let status = object.status.clone().unwrap_or_default();
        let Some(of_claim) = status.claim else { return Vec::new() };
        let of_pod = |attachment: Self| Self {
            namespace: object.namespace().unwrap_or_default(),
            pod: Some(object.spec.pod_name.to_string()),
            network_attachment: Some(object.name_any()),
            node: attachment.node.or_else(|| status.node.as_ref().map(ToString::to_string)),
            ..attachment
        };
        if let Some(claim) = claim {
            let devices = claimed::devices(claim);
            return devices.map(|(result, reported)| of_pod(Self::new(claim, result, reported))).collect();
        }
        let attached = object.condition::<AttachedReason>();
        let without = Self {
            claim: of_claim.name.to_string(),
            ready: attached.map(|condition| condition.status == "True"),
            reason: attached.map(|condition| condition.reason.clone()),
            message: attached.map(|condition| condition.message.clone()),
            ..Self::default()
        };
        if status.interfaces.is_empty() {
            return vec![of_pod(without)];
        }
        let with = |interface: &AttachedInterface| Self {
            interface: Some(interface.name.to_string()),
            addresses: interface.ips.iter().map(ToString::to_string).collect(),
            mac: interface.mac.map(|mac| mac.to_string()),
            ..without.clone()
        };
        status.interfaces.iter().map(|interface| of_pod(with(interface))).collect()
    }

    fn new(
        claim: &ResourceClaim,
        result: &DeviceRequestAllocationResult,
        reported: Option<&AllocatedDeviceStatus>,
    ) -> Self {
        let ready = reported.and_then(claimed::ready);
        let data = reported.and_then(|device| device.network_data.as_ref());
        let network = match result.device.parse() {
            Ok(DeviceName::Network(network)) => Some(network.to_string()),
            _ => None,
        };
        Self {
            namespace: claim.namespace().unwrap_or_default(),
            pod: None,
            interface: data.and_then(|data| data.interface_name.clone()),
            claim: claim.name_any(),
            network_attachment: None,
            request: result.request.clone(),
            network,
            addresses: data.and_then(|data| data.ips.clone()).unwrap_or_default(),
            mac: data.and_then(|data| data.hardware_address.clone()),
            node: node_of_pool(&result.pool).map(str::to_owned),
            uplink: None,
            mode: None,
            cni_version: reported.and_then(cni_version),
            pool: result.pool.clone(),
            device: result.device.clone(),
            ready: ready.map(|condition| condition.status == "True"),
            reason: ready.map(|condition| condition.reason.clone()),
            message: ready.map(|condition| condition.message.clone()),
            traffic: None,
        }
    }

    /// Returns the line of a pod that waits until `first` has ended, for which the claim was reserved before.
    fn waiting(&self, pod: &str, first: &str) -> Self {
        Self {
            pod: Some(pod.to_owned()),
            interface: None,
            addresses: Vec::new(),
            mac: None,
            cni_version: None,
            ready: Some(false),
            reason: Some("WaitsForPod".to_owned()),
            message: Some(format!("waits for pod {first}, which has the claim, to end")),
            ..self.clone()
        }
    }

    /// Returns the titles of [`Self::cells`].
    pub(super) fn head(columns: Columns) -> Vec<&'static str> {
        let mut head = if columns.namespaces { vec!["NAMESPACE"] } else { Vec::new() };
        head.extend(["POD", "INTERFACE", "NETWORK", "ADDRESSES", "NODE", "READY", "REASON"]);
        if columns.traffic {
            head.extend(["RX-BIT/S", "TX-BIT/S", "GRANTED", "RX-DROPPED", "TX-DROPPED"]);
        }
        if columns.wide {
            head.extend(["MAC", "UPLINK", "MODE", "CNI", "DEVICE", "CLAIM", "REQUEST", "MESSAGE"]);
        }
        head
    }

    /// Returns a row of a table.
    pub(super) fn cells(&self, columns: Columns) -> Vec<Cell> {
        let text = |text: &str| Cell::from(printable(text));
        let optional = |value: &Option<String>| value.as_deref().map_or_else(|| NONE.into(), text);
        let mut cells = if columns.namespaces { vec![text(&self.namespace)] } else { Vec::new() };
        let addresses = self.addresses.join(",");
        cells.extend([
            optional(&self.pod),
            optional(&self.interface),
            optional(&self.network),
            if addresses.is_empty() { Cell::from(NONE) } else { text(&addresses) },
            optional(&self.node),
            match self.ready {
                Some(true) => Cell::from("True"),
                Some(false) => Cell::marked("False", Mark::Bad),
                None => Cell::marked("Unknown", Mark::Warning),
            },
            optional(&self.reason),
        ]);
        if columns.traffic {
            let of = |value: fn(&Traffic) -> Option<String>| {
                self.traffic.as_ref().and_then(value).map_or_else(|| NONE.into(), Cell::from)
            };
            cells.extend([
                of(|traffic| Some(rate(traffic.received.rate))),
                of(|traffic| Some(rate(traffic.sent.rate))),
                of(|traffic| {
                    let share = || traffic.share.map(|share| format!("share {}", rate(share)));
                    traffic.granted.map(rate).or_else(share)
                }),
                of(|traffic| Some(traffic.received.dropped.to_string())),
                of(|traffic| Some(traffic.sent.dropped.to_string())),
            ]);
        }
        if columns.wide {
            cells.extend([
                optional(&self.mac),
                optional(&self.uplink),
                optional(&self.mode),
                optional(&self.cni_version),
                text(&self.device),
                match &self.network_attachment {
                    Some(name) => text(&format!("networkattachments/{name}")),
                    None => text(&self.claim),
                },
                text(&self.request),
                optional(&self.message),
            ]);
        }
        cells
    }
}

/// A plugin answers in the version that it was called with.
fn cni_version(device: &AllocatedDeviceStatus) -> Option<String> {
    device.data.as_ref()?.0.get("cniVersion")?.as_str().map(str::to_owned)
}
