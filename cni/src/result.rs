//! Results of ADD in every version of the specification (section 5, and its earlier editions).
//!
//! A [`CniResult`] keeps the JSON that the plugin printed, unknown keys included, and passes exactly that on.
//! Its accessors show every version in the form of 1.1.0. Conversions follow libcni's rules.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::attachment::Attachment;
use crate::json::{self, Object};
use crate::version::{SpecVersion, VersionError};

/// The result of a successful ADD.
///
/// Serialises as its JSON, through [`RawValue`]: use `serde_json`, and no flattened or internally tagged
/// container around it.
///
/// Clones share their content: an agent keeps the results of all its attachments in several places.
#[derive(Clone, Debug)]
pub struct CniResult(Arc<Content>);

#[derive(Debug)]
struct Content {
    version: SpecVersion,
    raw: Box<RawValue>,
    interfaces: Vec<Interface>,
    ips: Vec<IpConfig>,
    routes: Vec<Route>,
    dns: Dns,
}

/// An interface that an attachment created, in the container or on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// The interface's name where it is.
    pub name: String,
    /// Hardware address.
    #[serde(default, deserialize_with = "some_text", skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// MTU in bytes, since 1.1.0.
    #[serde(default, deserialize_with = "nonzero", skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The namespace it is in, as in `CNI_NETNS`; `None` on the host.
    #[serde(default, deserialize_with = "some_text", skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// A socket that stands for the interface, since 1.1.0.
    #[serde(default, deserialize_with = "some_text", skip_serializing_if = "Option::is_none")]
    pub socket_path: Option<String>,
    /// The PCI device behind the interface, since 1.1.0.
    #[serde(
        default,
        rename = "pciID",
        deserialize_with = "some_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub pci_id: Option<String>,
}

/// An address that an attachment got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// Address and prefix length.
    pub address: IpNet,
    /// The subnet's default gateway.
    #[serde(default, deserialize_with = "some_address", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Index into the result's interfaces, as the plugin gave it: it may be out of range.
    #[serde(default, deserialize_with = "some_index", skip_serializing_if = "Option::is_none")]
    pub interface: Option<u32>,
}

/// A route that an attachment created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; without it the address's gateway may be meant.
    #[serde(default, deserialize_with = "some_address", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Path MTU in bytes.
    #[serde(default, deserialize_with = "nonzero", skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Segment size to advertise, in bytes.
    #[serde(default, deserialize_with = "nonzero", skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Metric; the lower wins.
    #[serde(default, deserialize_with = "nonzero", skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Routing table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope: 0 global, 253 link, 254 host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u32>,
}

/// Name resolution that an attachment brings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Name servers, the preferred one first.
    #[serde(default, deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// Local domain.
    #[serde(default, deserialize_with = "some_text", skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Search list.
    #[serde(default, deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(default, deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether it has no setting.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A result that cannot be read or converted.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// Not one JSON object, or one that does not have a result's form.
    #[error("is not a CNI result of version {version}")]
    Form {
        /// The version by whose rules it was read.
        version: SpecVersion,
        /// The fault and its position.
        #[source]
        source: serde_json::Error,
    },
    /// Its version is not a released one.
    #[error("has an unsupported version")]
    Version(#[from] VersionError),
    /// Versions before 0.3.0 cannot say "no address".
    #[error("has no address, which version {0} cannot express")]
    NoAddress(SpecVersion),
}

/// Three shapes cover the seven versions; within a shape versions differ in their number only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// 0.1.0 and 0.2.0: at most one address of each family.
    Ip4Ip6,
    /// 0.3.0 to 0.4.0: lists, addresses marked with their family.
    Marked,
    /// Since 1.0.0.
    Lists,
}

fn shape(version: SpecVersion) -> Shape {
    use SpecVersion::{V0_1_0, V0_2_0, V0_3_0, V0_3_1, V0_4_0, V1_0_0, V1_1_0};
    match version {
        V0_1_0 | V0_2_0 => Shape::Ip4Ip6,
        V0_3_0 | V0_3_1 | V0_4_0 => Shape::Marked,
        V1_0_0 | V1_1_0 => Shape::Lists,
    }
}

#[derive(Deserialize)]
struct ListsResult {
    #[serde(default, deserialize_with = "or_empty")]
    interfaces: Vec<Interface>,
    #[serde(default, deserialize_with = "or_empty")]
    ips: Vec<IpConfig>,
    #[serde(default, deserialize_with = "or_empty")]
    routes: Vec<Route>,
    #[serde(default)]
    dns: Option<Dns>,
}

#[derive(Deserialize)]
struct Ip4Ip6Result {
    #[serde(default)]
    ip4: Option<OneIp>,
    #[serde(default)]
    ip6: Option<OneIp>,
    #[serde(default)]
    dns: Option<Dns>,
}

#[derive(Serialize, Deserialize)]
struct OneIp {
    ip: IpNet,
    #[serde(default, deserialize_with = "some_address", skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(default, deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

#[derive(Serialize)]
struct MarkedIp<'a> {
    version: &'static str,
    #[serde(flatten)]
    ip: &'a IpConfig,
}

impl Content {
    fn empty(version: SpecVersion, raw: Box<RawValue>, dns: Option<Dns>) -> Self {
        let dns = dns.unwrap_or_default();
        Self { version, raw, interfaces: Vec::new(), ips: Vec::new(), routes: Vec::new(), dns }
    }
}

impl CniResult {
    /// Parses a plugin's output. `config` is the version of the call; it counts if the result names none, as
    /// in libcni. `null` is the empty result.
    ///
    /// # Errors
    /// See [`ResultError`].
    pub fn parse(text: &str, config: SpecVersion) -> Result<Self, ResultError> {
        let form = |source| ResultError::Form { version: config, source };
        let object: Option<Object> = serde_json::from_str(text).map_err(form)?;
        let mut object = object.unwrap_or_default();
        let stated = match object.get("cniVersion") {
            Some(value) => serde_json::from_str::<Option<String>>(value.get()).map_err(form)?,
            None => None,
        };
        match stated.filter(|version| !version.is_empty()) {
            Some(version) => {
                let raw = RawValue::from_string(text.trim().to_owned()).map_err(form)?;
                Self::from_raw(SpecVersion::parse(&version)?, raw)
            }
            None => {
                object.set("cniVersion", json::raw(&config).map_err(form)?);
                Self::from_raw(config, json::raw(&object).map_err(form)?)
            }
        }
    }

    fn from_raw(version: SpecVersion, raw: Box<RawValue>) -> Result<Self, ResultError> {
        let form = |source| ResultError::Form { version, source };
        match shape(version) {
            Shape::Ip4Ip6 => {
                let old: Ip4Ip6Result = serde_json::from_str(raw.get()).map_err(form)?;
                let mut result = Content::empty(version, raw, old.dns);
                for ip in [old.ip4, old.ip6].into_iter().flatten() {
                    result.ips.push(IpConfig { address: ip.ip, gateway: ip.gateway, interface: None });
                    result.routes.extend(ip.routes);
                }
                Ok(Self(Arc::new(result)))
            }
            shape => {
                let new: ListsResult = serde_json::from_str(raw.get()).map_err(form)?;
                let mut result = Content::empty(version, raw, new.dns);
                result.interfaces = new.interfaces;
                if shape == Shape::Marked {
                    result.interfaces.iter_mut().for_each(only_marked_fields);
                }
                result.ips = new.ips;
                result.routes = new.routes;
                Ok(Self(Arc::new(result)))
            }
        }
    }

    /// The result as it was printed, or was stored.
    pub fn to_raw(&self) -> Box<RawValue> {
        self.0.raw.clone()
    }

    /// The version the result is in.
    pub fn version(&self) -> SpecVersion {
        self.0.version
    }

    /// The result's JSON.
    pub fn raw(&self) -> &str {
        self.0.raw.get()
    }

    /// Interfaces, on the host too. Empty before 0.3.0.
    pub fn interfaces(&self) -> &[Interface] {
        &self.0.interfaces
    }

    /// Addresses.
    pub fn ips(&self) -> &[IpConfig] {
        &self.0.ips
    }

    /// Routes.
    pub fn routes(&self) -> &[Route] {
        &self.0.routes
    }

    /// Name resolution.
    pub fn dns(&self) -> &Dns {
        &self.0.dns
    }

    /// The interface of `attachment`: it has the requested name and is in a namespace. `None` before 0.3.0,
    /// and if no plugin created an interface.
    pub fn interface_of(&self, attachment: &Attachment) -> Option<&Interface> {
        self.index_of(attachment).and_then(|index| self.0.interfaces.get(index))
    }

    /// The addresses of that interface, and those that name no interface at all.
    pub fn ips_of(&self, attachment: &Attachment) -> impl Iterator<Item = &IpConfig> {
        let own = self.index_of(attachment).and_then(|index| u32::try_from(index).ok());
        self.0.ips.iter().filter(move |ip| ip.interface.is_none() || ip.interface == own)
    }

    fn index_of(&self, attachment: &Attachment) -> Option<usize> {
        let name = attachment.if_name.as_str();
        self.0.interfaces.iter().position(|interface| interface.name == name && interface.sandbox.is_some())
    }

    /// Converts the result to another version by libcni's rules, and drops what that version cannot express.
    ///
    /// # Errors
    /// [`ResultError::NoAddress`] if a version before 0.3.0 is asked for and there is no address.
    pub fn to_version(&self, version: SpecVersion) -> Result<Self, ResultError> {
        if version == self.0.version {
            return Ok(self.clone());
        }
        let form = |source| ResultError::Form { version, source };
        let raw = if shape(version) == shape(self.0.version) {
            let mut object: Object = serde_json::from_str(self.0.raw.get()).map_err(form)?;
            object.set("cniVersion", json::raw(&version).map_err(form)?);
            json::raw(&object).map_err(form)?
        } else {
            let mut object = self.reshaped(version)?;
            if !self.0.dns.is_empty() {
                object.set("dns", json::raw(&self.0.dns).map_err(form)?);
            }
            json::raw(&object).map_err(form)?
        };
        Self::from_raw(version, raw)
    }

    /// Returns one result of all these, in their order: interfaces, addresses and routes one after the other,
    /// and the first name resolution that there is. An address keeps its interface; members that the
    /// specification does not know are left out.
    ///
    /// # Errors
    /// As of [`to_version`](Self::to_version).
    pub fn merged<'a>(
        results: impl IntoIterator<Item = &'a Self>,
        version: SpecVersion,
    ) -> Result<Self, ResultError> {
        let form = |source| ResultError::Form { version, source };
        let newest = SpecVersion::CURRENT;
        let mut all = Content::empty(newest, RawValue::NULL.to_owned(), None);
        for result in results {
            let (before, own) = (all.interfaces.len(), result.interfaces().len());
            all.interfaces.extend_from_slice(result.interfaces());
            let shifted =
                |index: u32| u32::try_from(before + usize::try_from(index).ok().filter(|at| *at < own)?).ok();
            let shift = |ip: &IpConfig| IpConfig { interface: ip.interface.and_then(shifted), ..ip.clone() };
            all.ips.extend(result.ips().iter().map(shift));
            all.routes.extend_from_slice(result.routes());
            if all.dns.is_empty() {
                all.dns = result.dns().clone();
            }
        }
        let all = Self(Arc::new(all));
        let mut object = all.reshaped(newest)?;
        if !all.0.dns.is_empty() {
            object.set("dns", json::raw(&all.0.dns).map_err(form)?);
        }
        Self::from_raw(newest, json::raw(&object).map_err(form)?)?.to_version(version)
    }

    fn reshaped(&self, version: SpecVersion) -> Result<Object, ResultError> {
        let form = |source| ResultError::Form { version, source };
        let mut object = Object::default();
        object.set("cniVersion", json::raw(&version).map_err(form)?);
        if shape(version) == Shape::Ip4Ip6 {
            let (ip4, ip6) = (self.one_ip(true), self.one_ip(false));
            if ip4.is_none() && ip6.is_none() {
                return Err(ResultError::NoAddress(version));
            }
            for (key, ip) in [("ip4", ip4), ("ip6", ip6)] {
                if let Some(ip) = ip {
                    object.set(key, json::raw(&ip).map_err(form)?);
                }
            }
            return Ok(object);
        }
        let marked = shape(version) == Shape::Marked;
        if !self.0.interfaces.is_empty() {
            let mut interfaces = self.0.interfaces.clone();
            if marked {
                interfaces.iter_mut().for_each(only_marked_fields);
            }
            object.set("interfaces", json::raw(&interfaces).map_err(form)?);
        }
        if !self.0.ips.is_empty() {
            let ips = if marked {
                let mark = |ip| MarkedIp { version: if is_v4(ip) { "4" } else { "6" }, ip };
                json::raw(&self.0.ips.iter().map(mark).collect::<Vec<_>>())
            } else {
                json::raw(&self.0.ips)
            };
            object.set("ips", ips.map_err(form)?);
        }
        if !self.0.routes.is_empty() {
            object.set("routes", json::raw(&self.0.routes).map_err(form)?);
        }
        Ok(object)
    }

    /// The first address of a family with the routes of that family, in which only destination and next hop
    /// exist in the old shape.
    fn one_ip(&self, v4: bool) -> Option<OneIp> {
        let ip = self.0.ips.iter().find(|ip| is_v4(ip) == v4)?;
        let bare = |r: &Route| Route {
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
            ..r.clone()
        };
        let routes =
            self.0.routes.iter().filter(|r| r.dst.addr().to_canonical().is_ipv4() == v4).map(bare).collect();
        Some(OneIp { ip: ip.address, gateway: ip.gateway, routes })
    }
}

fn is_v4(ip: &IpConfig) -> bool {
    ip.address.addr().to_canonical().is_ipv4()
}

/// Takes away what an interface cannot have before 1.0.0.
fn only_marked_fields(interface: &mut Interface) {
    interface.mtu = None;
    interface.socket_path = None;
    interface.pci_id = None;
}

impl PartialEq for CniResult {
    fn eq(&self, other: &Self) -> bool {
        self.raw() == other.raw()
    }
}

impl Serialize for CniResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CniResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw: Box<RawValue> = Box::deserialize(deserializer)?;
        Self::parse(raw.get(), SpecVersion::V0_1_0).map_err(|error| match std::error::Error::source(&error) {
            // serde errors have no source, so both halves go into the one message.
            Some(source) => D::Error::custom(format_args!("stored CNI result {error}: {source}")),
            None => D::Error::custom(format_args!("stored CNI result {error}")),
        })
    }
}

// Plugins are written in Go for the most part, where null, the empty text and zero all stand for "not set".

fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn some_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty()))
}

fn nonzero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::<u32>::deserialize(deserializer)?.filter(|number| *number != 0))
}

/// A negative index stands for none, as it may for libcni, where it is a signed number.
fn some_index<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::<i64>::deserialize(deserializer)?.and_then(|index| u32::try_from(index).ok()))
}

fn some_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    match some_text(deserializer)? {
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| D::Error::custom(format_args!("{text:?} is not an IP address"))),
        None => Ok(None),
    }
}
