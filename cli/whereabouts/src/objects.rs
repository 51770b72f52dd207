//! whereabouts' objects, decoded as leniently as whereabouts decodes them.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use netclaim_api::ObjectName;
use netclaim_api::{Invalid, NetworkName, shorten};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::arithmetic::{cidr, prefix};
use crate::ipam::Ipam;

/// The longest explanation of a parser in an error, in bytes.
const EXPLANATION: usize = 200;

/// An object of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ObjectRef {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl ObjectRef {
    fn of(kind: &str, object: &DynamicObject) -> Self {
        Self {
            kind: kind.to_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum DecodeError {
    /// A field of the object.
    #[error("{object}: {field}: {problem}")]
    Field { object: ObjectRef, field: String, problem: String },
    /// The text in `spec.config` of a NetworkAttachmentDefinition.
    #[error("{object}: spec.config is not a JSON object ({problem}): write a CNI configuration or conflist")]
    Config { object: ObjectRef, problem: String },
}

/// Everything that a takeover depends on.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// The NetworkAttachmentDefinitions whose IPAM is whereabouts.
    pub nads: Vec<Nad>,
    /// Its pools.
    pub pools: Vec<IpPool>,
    /// Its guards against overlaps.
    pub reservations: Vec<Reservation>,
    /// Which node has which slice.
    pub slices: Vec<NodeSlicePool>,
    /// All pods.
    pub pods: Vec<Pod>,
    /// NetworkAttachmentDefinitions that cannot be read. Anybody who may write in a namespace can make one.
    pub skipped: Vec<DecodeError>,
    /// Objects of whereabouts that cannot be read: they stop everything.
    pub unreadable: Vec<DecodeError>,
}

/// A NetworkAttachmentDefinition whose IPAM is whereabouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nad {
    /// The object.
    pub object: ObjectRef,
    /// `name` of its configuration, or its own name, as Multus puts it in.
    pub conf_name: String,
    /// The ClaimNetwork that it becomes: [`default_network`] unless the caller sets another one.
    pub network: NetworkName,
    /// Its addresses.
    pub ipam: Ipam,
}

/// A pool of whereabouts (`IPPool`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpPool {
    /// The object.
    pub object: ObjectRef,
    /// `spec.range`: an address and a prefix length. Offsets count from the address part as it is written.
    pub range: String,
    /// Who has which address, by decimal offset.
    pub allocations: BTreeMap<String, Allocation>,
}

/// Who has an address (`IPAllocation`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Allocation {
    /// NAMESPACE/POD; empty if the address is held by hand.
    pub podref: String,
    /// The interface in the pod.
    pub ifname: String,
}

/// An address that no other range may hand out (`OverlappingRangeIPReservation`). Its name has the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The object.
    pub object: ObjectRef,
    /// NAMESPACE/POD.
    pub podref: String,
}

/// Which node has which part of a range (`NodeSlicePool`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSlicePool {
    /// The object. Its name is `network_name`, or else the name of the configuration.
    pub object: ObjectRef,
    /// `status.allocations`.
    pub slices: Vec<NodeSlice>,
}

/// A part of a range.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSlice {
    /// The node; empty if the slice is free.
    pub node_name: String,
    /// The subnet.
    pub slice_range: String,
}

/// What matters of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: ObjectName,
    /// Its name.
    pub name: ObjectName,
    /// Its UID.
    pub uid: String,
    /// Whether it has ended, so that its sandbox is gone whatever its annotations say.
    pub has_ended: bool,
    /// The annotation `k8s.v1.cni.cncf.io/network-status`.
    pub network_status: Option<String>,
}

impl IpPool {
    /// Reads an `IPPool`.
    ///
    /// # Errors
    /// The object has another structure.
    pub fn decode(object: &DynamicObject) -> Result<Self, DecodeError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Spec {
            range: String,
            allocations: Option<BTreeMap<String, Allocation>>,
        }
        let (object, Spec { range, allocations }) = part("IPPool", object, "spec")?;
        Ok(Self { object, range, allocations: allocations.unwrap_or_default() })
    }
}

impl Reservation {
    /// Reads an `OverlappingRangeIPReservation`.
    ///
    /// # Errors
    /// The object has another structure.
    pub fn decode(object: &DynamicObject) -> Result<Self, DecodeError> {
        let (object, Allocation { podref, .. }) = part("OverlappingRangeIPReservation", object, "spec")?;
        Ok(Self { object, podref })
    }
}

impl NodeSlicePool {
    /// Reads a `NodeSlicePool`.
    ///
    /// # Errors
    /// The object has another structure.
    pub fn decode(object: &DynamicObject) -> Result<Self, DecodeError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Status {
            allocations: Option<Vec<NodeSlice>>,
        }
        let (object, Status { allocations }) = part("NodeSlicePool", object, "status")?;
        Ok(Self { object, slices: allocations.unwrap_or_default() })
    }
}

/// Reads a part of an object; a part that is not set has its default.
fn part<T: DeserializeOwned + Default>(
    kind: &str,
    object: &DynamicObject,
    key: &str,
) -> Result<(ObjectRef, T), DecodeError> {
    let of = ObjectRef::of(kind, object);
    let Some(value) = object.data.get(key).filter(|value| !value.is_null()) else {
        return Ok((of, T::default()));
    };
    match serde_path_to_error::deserialize::<_, T>(value) {
        Ok(part) => Ok((of, part)),
        Err(error) => {
            let field = shorten(format!("{key}.{}", error.path()), EXPLANATION);
            let problem = shorten(error.inner().to_string(), EXPLANATION);
            Err(DecodeError::Field { object: of, field, problem })
        }
    }
}

impl IpPool {
    /// Whether it is the pool of a range of whereabouts, in the scope of a `network_name`.
    pub fn is_of(&self, network_name: &str, net: IpNet) -> bool {
        let of_net = cidr(&self.range).filter(|range| range.trunc() == net);
        of_net.is_some_and(|range| prefix(&self.object.name, range) == Some(network_name))
    }
}

impl Nad {
    /// Reads a NetworkAttachmentDefinition; `None` if no plugin of it has addresses of whereabouts.
    ///
    /// # Errors
    /// [`DecodeError`]: whereabouts cannot work with it, two plugins have addresses, or the range is in
    /// whereabouts.conf.
    pub fn decode(object: &DynamicObject) -> Result<Option<Self>, DecodeError> {
        let of = ObjectRef::of("NetworkAttachmentDefinition", object);
        let Some(config) = object.data.pointer("/spec/config").and_then(Value::as_str) else {
            return Ok(None);
        };
        if config.trim().is_empty() {
            return Ok(None);
        }
        let config: Value = match serde_json::from_str(config) {
            Ok(config) => config,
            Err(error) if config.contains("whereabouts") => {
                return Err(DecodeError::Config {
                    object: of,
                    problem: shorten(error.to_string(), EXPLANATION),
                });
            }
            Err(_) => return Ok(None),
        };
        let plugins = config.get("plugins").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let of_list = plugins.iter().enumerate().map(|(i, plugin)| (format!("plugins[{i}]."), plugin));
        let ipams = std::iter::once((String::new(), &config)).chain(of_list).filter_map(|(at, plugin)| {
            let ipam = plugin.get("ipam")?;
            (ipam.get("type")?.as_str()? == "whereabouts").then(|| (format!("spec.config.{at}ipam"), ipam))
        });
        let ipams: Vec<(String, &Value)> = ipams.collect();
        let failed = |error: Invalid| DecodeError::Field {
            object: of.clone(),
            field: error.field,
            problem: error.problem,
        };
        let (at, ipam) = match ipams.as_slice() {
            [] => return Ok(None),
            [one] => one,
            [_, (at, _), ..] => {
                let problem =
                    "two plugins have addresses of whereabouts: leave one, a network has one set of them";
                return Err(failed(Invalid::new(at, problem)));
            }
        };
        let ipam = Ipam::parse(ipam).map_err(|error| failed(error.within(at)))?;
        let conf_name = config.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let network = default_network(&of.namespace, &of.name)
            .map_err(|error| failed(error.within("metadata.name")))?;
        let conf_name = conf_name.unwrap_or(&of.name).to_owned();
        Ok(Some(Self { object: of, conf_name, network, ipam }))
    }
}

/// Returns the name of the ClaimNetwork for a NetworkAttachmentDefinition: NAMESPACE-NAME. A longer one is
/// cut and gets a checksum.
///
/// # Errors
/// The name has characters that no Kubernetes object may have.
pub fn default_network(namespace: &str, name: &str) -> Result<NetworkName, Invalid> {
    let full = format!("{namespace}-{name}").replace('.', "-");
    if full.len() <= NetworkName::MAX {
        return full.parse();
    }
    let checksum =
        full.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let kept = full.get(..NetworkName::MAX - 9).unwrap_or_default();
    format!("{kept}-{checksum:08x}").parse()
}
