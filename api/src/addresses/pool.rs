//! Pools: which addresses there are, how they are cut into blocks, and what `host-local` and `static` get of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use netclaim_cni::IpRequest;
use netclaim_kubernetes::names::is_dns_label;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::span::{Family, Span, overlap, subtract};
use crate::decode::decode;
use crate::written::{ip, net};
use crate::{Invalid, NetworkName, ObjectName};

/// Nodes for which a pool has room by default, if the cluster has fewer.
const MIN_NODES: u128 = 4;
/// Blocks of the default size that a pool has for each node.
const BLOCKS_PER_NODE: u128 = 4;
/// Addresses in a block of the default size, at most: room for all pods of a node (110 by the kubelet's
/// default). So what a node publishes is what a new node would get, as node autoscalers take it to be.
const MAX_DEFAULT_BLOCK: u128 = 128;
/// Addresses in a block of the default size, at least.
const MIN_DEFAULT_BLOCK: u128 = 4;
/// Limits of lists: blocks are computed of all of them.
const MAX_RANGES: usize = 64;
const MAX_ROUTES: usize = 64;
const MAX_SPANS: usize = 256;
/// The longest name of an AddressPool, in bytes. The names of its blocks begin with it.
const MAX_NAME: usize = 200;
/// Host bits of the largest block that may be set: no node has 65,536 pods.
const MAX_HOST_BITS: u8 = 16;

/// The addresses of a ClaimNetwork: ranges of its own, or those of an AddressPool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("x-kubernetes-validations" = union_rules()))]
pub struct NetworkAddresses {
    /// Name of an AddressPool that several ClaimNetworks draw from. Set either this or `ranges`.
    #[serde(skip_serializing_if = "Option::is_none", rename = "poolName")]
    #[schemars(with = "Option<ObjectName>")]
    pub pool: Option<String>,
    /// The ranges of the network. A pod gets one IPv4 address if there is an IPv4 range, and one IPv6 address
    /// if there is an IPv6 range.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = MAX_RANGES))]
    pub ranges: Vec<AddressRange>,
    /// Routes that pods get with their addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ROUTES))]
    pub routes: Vec<Route>,
    /// Size of the blocks that nodes lease. By default, it follows from the size of the ranges and the number
    /// of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    /// Addresses that only claims get that ask for them by `ips`, as in `exclude`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = MAX_SPANS), extend("x-kubernetes-list-type" = "set"))]
    pub reserved: Vec<Span>,
}

fn union_rules() -> Value {
    json!([{"rule": "has(self.poolName) != has(self.ranges)", "message": "set either poolName or ranges"},
        {"rule": "!has(self.poolName) || !(has(self.routes) || has(self.blockSize) || has(self.reserved))",
         "message": "routes, blockSize and reserved are the AddressPool's if poolName is set"}])
}

/// Addresses that several ClaimNetworks draw from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(
    feature = "crd",
    derive(kube::CustomResource),
    kube(
        group = "netclaim.dev",
        version = "v1alpha1",
        kind = "AddressPool",
        plural = "addresspools",
        shortname = "addrpool",
        category = "netclaim",
        status = "AddressPoolStatus",
        doc = "Addresses that several ClaimNetworks draw from.",
        validation = kube::core::Rule::new("size(self.metadata.name) <= 200").message(
            "the name must have at most 200 bytes, because the names of its blocks begin with it"
        ),
        printcolumn = r#"{"name":"Subnet","type":"string","jsonPath":".spec.ranges[0].subnet","description":"subnet of the first range"}"#,
        printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status","description":"whether ClaimNetworks can use the pool"}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].reason","description":"why it is accepted or not"}"#,
        printcolumn = r#"{"name":"Size","type":"integer","jsonPath":".status.addresses.size","description":"attachments that the ranges allow"}"#,
        printcolumn = r#"{"name":"Leased","type":"integer","jsonPath":".status.addresses.leased","description":"addresses in blocks that nodes have leased"}"#,
        printcolumn = r#"{"name":"Free","type":"integer","jsonPath":".status.addresses.free","description":"addresses in blocks that no node has leased"}"#,
        printcolumn = r#"{"name":"Used","type":"integer","jsonPath":".status.addresses.used","description":"addresses that pods have, as the nodes reported last"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddressPoolSpec {
    /// The ranges of the pool. A pod gets one IPv4 address if there is an IPv4 range, and one IPv6 address if
    /// there is an IPv6 range.
    #[schemars(length(min = 1, max = MAX_RANGES))]
    pub ranges: Vec<AddressRange>,
    /// Routes that pods get with their addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ROUTES))]
    pub routes: Vec<Route>,
    /// Size of the blocks that nodes lease. By default, it follows from the size of the ranges and the number
    /// of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    /// Addresses that only claims get that ask for them by `ips`, as in `exclude`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = MAX_SPANS), extend("x-kubernetes-list-type" = "set"))]
    pub reserved: Vec<Span>,
}

/// A range of addresses of one subnet, with the keys of `host-local`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddressRange {
    /// The subnet, such as `10.20.0.0/22`. Pods get its prefix length.
    #[serde(deserialize_with = "net")]
    #[schemars(with = "String", extend("format" = "cidr"))]
    pub subnet: IpNet,
    /// The first address for pods. By default, it is the first one of the subnet.
    #[serde(default, deserialize_with = "ip", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub range_start: Option<IpAddr>,
    /// The last address for pods. By default, it is the last one of the subnet.
    #[serde(default, deserialize_with = "ip", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub range_end: Option<IpAddr>,
    /// The gateway of the subnet, which no pod gets. By default, it is the first address of the subnet.
    #[serde(default, deserialize_with = "ip", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub gateway: Option<IpAddr>,
    /// Addresses that no pod gets: `10.20.0.7`, `10.20.0.0/28` or `10.20.0.7-10.20.0.9`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = MAX_SPANS), extend("x-kubernetes-list-type" = "set"))]
    pub exclude: Vec<Span>,
}

/// A route of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// The destination, such as `10.0.0.0/8`.
    #[serde(deserialize_with = "net")]
    #[schemars(with = "String", extend("format" = "cidr"))]
    pub dst: IpNet,
    /// The next hop. By default, it is the gateway of the range.
    #[serde(default, deserialize_with = "ip", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub gw: Option<IpAddr>,
    /// The metric: of two routes to one destination the lower one is used. By default, it is 0 for IPv4 and
    /// 1024 for IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1, max = 4_294_967_295_u32))]
    pub priority: Option<u32>,
    /// The routing table, which a rule in the pod must name. By default, it is the main one. CHECK of the
    /// reference plugins does not find such a route, so write `disableCheck: true` in `cni`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1, max = 4_294_967_295_u32))]
    pub table: Option<u32>,
}

/// The tables `default`, `main` and `local` of the kernel.
const KERNEL_TABLES: RangeInclusive<u32> = 253..=255;

impl Route {
    /// Whether the route is none beside that of `eth0` to the same destination.
    pub(crate) fn is_apart(&self) -> bool {
        self.priority.is_some() || self.table.is_some()
    }

    /// Returns what the kernel does not take or reads in another way; paths are relative to the route.
    fn number_problems(&self) -> impl Iterator<Item = Invalid> {
        let zero = |field, number| {
            (number == Some(0)).then(|| Invalid::new(field, "is 0, which is the default: remove it"))
        };
        let own = self.table.filter(|table| KERNEL_TABLES.contains(table)).map(|table| {
            Invalid::new("table", format!("{table} is the kernel's own: write another number, or remove it"))
        });
        [zero("priority", self.priority), zero("table", self.table), own].into_iter().flatten()
    }

    /// Whether the next hop is in one of the subnets. A link-local one is on every link.
    fn is_in_reach(&self, subnets: &[IpNet]) -> bool {
        let is_link_local = |gw: &IpAddr| matches!(gw, IpAddr::V6(gw) if gw.is_unicast_link_local());
        self.gw.is_none_or(|gw| is_link_local(&gw) || subnets.iter().any(|subnet| subnet.contains(&gw)))
    }
}

/// Prefix lengths of the blocks that nodes lease. A change takes effect when no block of the pool is leased.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BlockSize {
    /// Prefix length of IPv4 blocks, such as 28 for 16 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 16, max = 32))]
    pub ipv4: Option<u8>,
    /// Prefix length of IPv6 blocks, such as 122 for 64 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 112, max = 128))]
    pub ipv6: Option<u8>,
}

impl BlockSize {
    /// Returns the prefix length for a family.
    pub fn of(self, family: Family) -> Option<u8> {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }
}

/// The state of an AddressPool, as the controller sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressPoolStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many addresses there are and who has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressTotals>,
    /// `Accepted` is True if ClaimNetworks can use the pool, and False, with every problem, if the spec is
    /// invalid.
    #[cfg(feature = "crd")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

/// How many attachments the addresses of a ClaimNetwork or pool allow. With two families, the one with fewer
/// addresses counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressTotals {
    /// Prefix lengths of the blocks.
    #[serde(default)]
    pub block_size: BlockSize,
    /// Addresses of the ranges that nodes can lease.
    pub size: i64,
    /// Addresses in blocks that nodes have leased.
    pub leased: i64,
    /// Addresses that pods have, as the nodes reported last.
    pub used: i64,
    /// Addresses in blocks that no node has leased.
    pub free: i64,
    /// Digest of the ranges, and of the ClaimNetworks that draw from them, for which the controller has
    /// looked whether pods have addresses of them from before. Until it is that of the present ones, nodes
    /// lease no more blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surveyed: Option<i64>,
}

/// The name of a pool in the names of its blocks and leases.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKey {
    /// The ranges of a ClaimNetwork.
    Network(NetworkName),
    /// An AddressPool.
    Pool(String),
}

impl PoolKey {
    /// Name of the AddressPool, as blocks and leases have it; `None` for the ranges of a ClaimNetwork.
    pub fn address_pool(&self) -> Option<String> {
        match self {
            Self::Network(_) => None,
            Self::Pool(name) => Some(name.clone()),
        }
    }
}

impl fmt::Display for PoolKey {
    /// Writes the first part of the names of blocks and leases. No ClaimNetwork's is an AddressPool's: the
    /// number of labels before an address differs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(name) => name.fmt(f),
            Self::Pool(name) => write!(f, "pool.{name}"),
        }
    }
}

impl NetworkAddresses {
    /// Returns the pool that the ClaimNetwork `name` draws from.
    pub fn key(&self, name: &NetworkName) -> PoolKey {
        self.pool.clone().map_or_else(|| PoolKey::Network(name.clone()), PoolKey::Pool)
    }

    /// Returns the ranges of the ClaimNetwork's own; `None` if an AddressPool has them.
    pub fn inline(&self) -> Option<AddressPoolSpec> {
        let Self { pool, ranges, routes, block_size, reserved } = self.clone();
        pool.is_none().then_some(AddressPoolSpec { ranges, routes, block_size, reserved })
    }

    /// Returns every problem; none means that it is accepted.
    pub fn problems(&self) -> Vec<Invalid> {
        let is_plain = self.routes.is_empty() && self.block_size.is_none() && self.reserved.is_empty();
        match (&self.pool, self.ranges.is_empty()) {
            (None, true) => {
                vec![Invalid::new("ranges", "is empty: list the subnets, or name an AddressPool in poolName")]
            }
            (Some(_), false) => {
                vec![Invalid::new("ranges", "the AddressPool has the ranges: set either poolName or ranges")]
            }
            (Some(_), true) if !is_plain => {
                let problem = "routes, blockSize and reserved are the AddressPool's: set them there";
                vec![Invalid::new("poolName", problem)]
            }
            (Some(pool), true) if !is_object_name(pool) => {
                vec![Invalid::new("poolName", format!("{pool:?} cannot be the name of an AddressPool"))]
            }
            (Some(_), true) => Vec::new(),
            (None, false) => self.inline().map(|pool| pool.problems()).unwrap_or_default(),
        }
    }
}

/// Whether the text can name a Kubernetes object (a DNS subdomain).
fn is_object_name(text: &str) -> bool {
    text.len() <= MAX_NAME && text.split('.').all(is_dns_label)
}

impl AddressRange {
    /// Returns the addresses of the range, those of the gateway and excluded ones too. The network's own
    /// address and the broadcast address of an IPv4 subnet are never handed out, as with `host-local`.
    fn span(&self) -> Option<Span> {
        let hosts = self.hosts()?;
        let first = self.range_start.unwrap_or_else(|| hosts.first()).to_canonical();
        let last = self.range_end.unwrap_or_else(|| hosts.last()).to_canonical();
        Span::new(first, last)?.intersection(hosts)
    }

    /// Returns the addresses of the subnet that an interface can have.
    fn hosts(&self) -> Option<Span> {
        match self.subnet {
            IpNet::V4(net) => {
                let hosts = net.hosts().next().zip(net.hosts().next_back())?;
                Span::new(hosts.0.into(), hosts.1.into())
            }
            IpNet::V6(_) => {
                let subnet = Span::of_net(self.subnet);
                subtract(vec![subnet], [Span::of_address(subnet.first())]).first().copied()
            }
        }
    }

    /// Returns the gateway that `host-local` would take.
    pub fn gateway(&self) -> IpAddr {
        let first = || Span::of_net(self.subnet).blocks(self.family().bits()).nth(1).map(|net| net.addr());
        self.gateway.or_else(first).unwrap_or_else(|| self.subnet.network())
    }

    /// The family of its addresses.
    pub fn family(&self) -> Family {
        Family::of(self.subnet.addr())
    }

    fn problems(&self) -> Vec<Invalid> {
        let subnet = self.subnet;
        if subnet != subnet.trunc() {
            return vec![Invalid::new(
                "subnet",
                format!("{subnet} has host bits set: write {}", subnet.trunc()),
            )];
        }
        if subnet.addr().is_ipv6() && subnet.addr().to_canonical().is_ipv4() {
            let problem = format!("{subnet} is IPv4 written as IPv6: write it as 10.0.0.0/24 is written");
            return vec![Invalid::new("subnet", problem)];
        }
        if subnet.prefix_len() + 2 > subnet.max_prefix_len() {
            let problem = format!("{subnet} is too small: at most /30, or /126 for IPv6, is possible");
            return vec![Invalid::new("subnet", problem)];
        }
        let all = Span::of_net(subnet);
        let limits =
            [("rangeStart", self.range_start), ("rangeEnd", self.range_end), ("gateway", self.gateway)];
        let mut problems: Vec<Invalid> = limits
            .into_iter()
            .filter_map(|(key, ip)| Some((key, ip.filter(|ip| !all.contains(*ip))?)))
            .map(|(key, ip)| Invalid::new(key, format!("{ip} is not in subnet {subnet}")))
            .collect();
        if problems.is_empty() && self.span().is_none() {
            problems.push(Invalid::new(
                "rangeEnd",
                "the range ends before it starts, or has no address for pods",
            ));
        }
        problems.extend(Invalid::too_many("exclude", self.exclude.len(), MAX_SPANS));
        let outside = self.exclude.iter().enumerate().filter(|(_, span)| all.intersection(**span).is_none());
        problems.extend(outside.map(|(i, span)| {
            Invalid::new(format!("exclude[{i}]"), format!("{span} is not in subnet {subnet}"))
        }));
        problems
    }
}

impl AddressPoolSpec {
    /// Reads the AddressPool `name` from its spec.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(name: &str, spec: &Value) -> Result<Self, Vec<Invalid>> {
        let of_name = (!is_object_name(name)).then(|| {
            let problem =
                format!("{name:?} cannot name an AddressPool: use a DNS name of at most {MAX_NAME} bytes");
            Invalid::new("metadata.name", problem)
        });
        let read = decode(spec).and_then(|spec: Self| {
            let problems = spec.problems();
            if problems.is_empty() { Ok(spec) } else { Err(problems) }
        });
        match (of_name, read) {
            (None, Ok(spec)) => Ok(spec),
            (of_name, read) => {
                let of_spec = read.err().into_iter().flatten().map(|problem| problem.within("spec"));
                Err(of_name.into_iter().chain(of_spec).collect())
            }
        }
    }

    /// Returns the families of the pool's addresses.
    pub fn families(&self) -> BTreeSet<Family> {
        self.ranges.iter().map(AddressRange::family).collect()
    }

    /// Returns the addresses that nodes hand out: those of the ranges, without gateways, excluded and
    /// reserved ones.
    pub fn usable(&self) -> Vec<Span> {
        self.ranges.iter().flat_map(|range| self.usable_of(range)).collect()
    }

    fn usable_of(&self, range: &AddressRange) -> Vec<Span> {
        let taken = range.exclude.iter().chain(&self.reserved).copied();
        subtract(range.span().into_iter().collect(), taken.chain([Span::of_address(range.gateway())]))
    }

    /// Returns the number of usable addresses of a family.
    pub fn size(&self, family: Family) -> u128 {
        let of_family = self.usable().into_iter().filter(|span| span.family() == family);
        of_family.fold(0, |sum, span| sum.saturating_add(span.size()))
    }

    /// Returns the usable addresses of a block.
    pub fn usable_in(&self, block: IpNet) -> Vec<Span> {
        self.usable().into_iter().filter_map(|span| span.intersection(Span::of_net(block))).collect()
    }

    /// Returns the prefix length of blocks for a cluster with so many nodes, as set or by default.
    pub fn block_prefix(&self, family: Family, nodes: usize) -> u8 {
        if let Some(prefix) = self.block_size.and_then(|size| size.of(family)) {
            return prefix;
        }
        // A power of two, so that one node more seldom changes it.
        let nodes = (nodes as u128).max(MIN_NODES).next_power_of_two();
        let addresses = self.size(family) / (nodes * BLOCKS_PER_NODE);
        let bits = addresses.clamp(MIN_DEFAULT_BLOCK, MAX_DEFAULT_BLOCK).ilog2();
        family.bits().saturating_sub(u8::try_from(bits).unwrap_or_default())
    }

    /// Returns the blocks of a family that have usable addresses, in order. `prefix` is their prefix length;
    /// a subnet that is smaller is one block. Lazy: an IPv6 pool has more than can be counted.
    pub fn blocks(&self, family: Family, prefix: u8) -> impl Iterator<Item = IpNet> {
        let of_family = self.ranges.iter().filter(move |range| range.family() == family);
        let mut last = None;
        of_family
            .flat_map(move |range| {
                let prefix = prefix.max(range.subnet.prefix_len());
                self.usable_of(range).into_iter().flat_map(move |span| span.blocks(prefix))
            })
            // Spans that meet in a block would give it twice.
            .filter(move |block| last.replace(*block) != Some(*block))
    }

    /// Returns the `ipam` object by which `host-local` hands out these addresses, which are usable ones of
    /// the pool. With some of each family, an attachment gets an address of each.
    pub fn host_local(&self, spans: &[Span]) -> Value {
        let of_range = |range: &AddressRange| {
            let (subnet, gateway) = (range.subnet, range.gateway());
            let own = spans.iter().filter_map(move |span| span.intersection(Span::of_net(subnet)));
            own.map(move |span| {
                json!({"subnet": subnet, "rangeStart": span.first(), "rangeEnd": span.last(), "gateway": gateway})
            })
            .collect::<Vec<_>>()
        };
        // Two ranges of one subnet would give its spans twice.
        let mut subnets: BTreeMap<IpNet, &AddressRange> = BTreeMap::new();
        for range in &self.ranges {
            subnets.entry(range.subnet).or_insert(range);
        }
        let sets = self.families().into_iter().map(|family| {
            let of_family = subnets.values().filter(|range| range.family() == family);
            of_family.flat_map(|range| of_range(range)).collect::<Vec<_>>()
        });
        let sets: Vec<Vec<Value>> = sets.collect();
        let addresses: Vec<IpAddr> = spans.iter().map(|span| span.first()).collect();
        self.with_routes(json!({"type": "host-local", "ranges": sets}), &addresses)
    }

    /// Adds the routes whose next hop is in reach of these addresses to an `ipam` object: the kernel refuses
    /// others.
    fn with_routes(&self, mut ipam: Value, addresses: &[IpAddr]) -> Value {
        let subnets: Vec<IpNet> =
            addresses.iter().filter_map(|ip| self.range_of(*ip)).map(|range| range.subnet).collect();
        let routes: Vec<&Route> = self.routes.iter().filter(|route| route.is_in_reach(&subnets)).collect();
        if !routes.is_empty() {
            ipam["routes"] = json!(routes);
        }
        ipam
    }

    /// Returns an `ipam` object of the form that attachments get, to check a configuration with: it has all
    /// usable addresses, or some for which a claim can ask if pods get no others.
    pub fn sample(&self) -> Value {
        let can_ask = self.can_ask();
        let first = |family| can_ask.iter().find(|span| span.family() == family).map(|span| span.first());
        let asked: Vec<IpAddr> = self.families().into_iter().filter_map(first).collect();
        let fixed = (!self.has_usable()).then(|| self.fixed(&asked).ok()).flatten();
        fixed.unwrap_or_else(|| self.host_local(&self.usable()))
    }

    /// Whether pods get addresses that do not ask for any: one of each family.
    pub fn has_usable(&self) -> bool {
        self.families().into_iter().all(|family| self.size(family) > 0)
    }

    /// Whether claims can ask for addresses: for one of each family.
    pub fn can_be_asked(&self) -> bool {
        let can_ask = self.can_ask();
        self.families().into_iter().all(|family| can_ask.iter().any(|span| span.family() == family))
    }

    /// Returns the `ipam` object by which `static` gives an attachment the addresses that
    /// [`asked`](Self::asked) has returned.
    ///
    /// # Errors
    /// An address is in no range.
    pub fn fixed(&self, asked: &[IpAddr]) -> Result<Value, Invalid> {
        let mut addresses = Vec::new();
        for (i, &ip) in asked.iter().enumerate() {
            let range = self.range_of(ip).ok_or_else(|| self.not_reserved(i, ip))?;
            let net = format!("{ip}/{}", range.subnet.prefix_len());
            addresses.push(json!({"address": net, "gateway": range.gateway()}));
        }
        Ok(self.with_routes(json!({"type": "static", "addresses": addresses}), asked))
    }

    /// Returns the addresses that a claim asks for, if it may have them: one of each family, all of them
    /// reserved and usable.
    ///
    /// # Errors
    /// An address is not reserved or has a prefix length, or a family has none or two.
    pub fn asked(&self, asked: &[IpRequest]) -> Result<Vec<IpAddr>, Invalid> {
        let can_ask = self.can_ask();
        let mut found = Vec::new();
        for (i, request) in asked.iter().enumerate() {
            let ip = match request {
                IpRequest::Address(ip) => *ip,
                // One way to write an address, so that a claim means the same when a subnet grows.
                IpRequest::Cidr(net) => {
                    let problem =
                        format!("{request} has a prefix length, which its subnet has: write {}", net.addr());
                    return Err(Invalid::new(format!("ips[{i}]"), problem));
                }
            };
            let is_range = self.range_of(ip).is_some() && can_ask.iter().any(|span| span.contains(ip));
            if !is_range {
                return Err(self.not_reserved(i, ip));
            }
            found.push(ip);
        }
        for family in self.families() {
            let count = found.iter().filter(|ip| Family::of(**ip) == family).count();
            if count != 1 {
                let problem =
                    format!("asks for {count} {family} addresses: ask for one of each family of the network");
                return Err(Invalid::new("ips", problem));
            }
        }
        Ok(found)
    }

    /// The reserved addresses that a pod can have: not those of a network, its broadcast or its gateway, nor
    /// excluded ones.
    fn can_ask(&self) -> Vec<Span> {
        let of_range = |range: &AddressRange| {
            let hosts = range.hosts();
            let reserved = self.reserved.iter().filter_map(|span| span.intersection(hosts?)).collect();
            let taken = range.exclude.iter().copied().chain([Span::of_address(range.gateway())]);
            subtract(reserved, taken)
        };
        self.ranges.iter().flat_map(of_range).collect()
    }

    /// Whether a pod may have the address: one that nodes hand out, or one that claims can ask for.
    pub fn permits(&self, ip: IpAddr) -> bool {
        self.usable().into_iter().chain(self.can_ask()).any(|span| span.contains(ip))
    }

    fn not_reserved(&self, index: usize, ip: IpAddr) -> Invalid {
        let reserved: Vec<String> = self.reserved.iter().map(ToString::to_string).collect();
        let reserved = if reserved.is_empty() { "none".to_owned() } else { reserved.join(", ") };
        let problem =
            format!("{ip} is none of the addresses that claims can ask for: the network reserves {reserved}");
        Invalid::new(format!("ips[{index}]"), problem)
    }

    /// Returns the range whose subnet has the address.
    fn range_of(&self, ip: IpAddr) -> Option<&AddressRange> {
        self.ranges.iter().find(|range| Span::of_net(range.subnet).contains(ip))
    }

    /// Returns every problem; none means that it is accepted.
    pub fn problems(&self) -> Vec<Invalid> {
        let mut problems = Vec::new();
        if self.ranges.is_empty() {
            problems.push(Invalid::new("ranges", "is empty: list the subnets"));
        }
        // What follows compares ranges with each other.
        let lists = [
            ("ranges", self.ranges.len(), MAX_RANGES),
            ("routes", self.routes.len(), MAX_ROUTES),
            ("reserved", self.reserved.len(), MAX_SPANS),
        ];
        let many = lists.into_iter().filter_map(|(field, count, max)| Invalid::too_many(field, count, max));
        problems.extend(many);
        if !problems.is_empty() {
            return problems;
        }
        for (i, range) in self.ranges.iter().enumerate() {
            let at = format!("ranges[{i}]");
            problems.extend(range.problems().into_iter().map(|problem| problem.within(&at)));
            for (j, other) in self.ranges.iter().enumerate().take(i) {
                let same = range.subnet == other.subnet;
                if !same && Span::of_net(range.subnet).intersection(Span::of_net(other.subnet)).is_some() {
                    let problem = format!("{} overlaps with {} of ranges[{j}]", range.subnet, other.subnet);
                    problems.push(Invalid::new(format!("{at}.subnet"), problem));
                }
                if same && range.gateway() != other.gateway() {
                    let problem = format!(
                        "is {}, but ranges[{j}] of the same subnet has {}",
                        range.gateway(),
                        other.gateway()
                    );
                    problems.push(Invalid::new(format!("{at}.gateway"), problem));
                }
                let spans = [range.span(), other.span()];
                if let [Some(span), Some(other)] = spans
                    && let Some(common) = span.intersection(other).filter(|_| same)
                {
                    problems
                        .push(Invalid::new(at.clone(), format!("has {common}, which ranges[{j}] has, too")));
                }
            }
        }
        for (i, span) in self.reserved.iter().enumerate() {
            if !self.ranges.iter().any(|range| Span::of_net(range.subnet).covers(*span)) {
                let problem = format!("{span} is in no subnet of the ranges");
                problems.push(Invalid::new(format!("reserved[{i}]"), problem));
            }
        }
        let subnets: Vec<IpNet> = self.ranges.iter().map(|range| range.subnet).collect();
        for (i, route) in self.routes.iter().enumerate() {
            problems.extend(route.number_problems().map(|problem| problem.within(&format!("routes[{i}]"))));
            let family = Family::of(route.dst.addr());
            if !self.families().contains(&family) {
                let problem =
                    format!("pods get no {family} address: add an {family} range, or remove the route");
                problems.push(Invalid::new(format!("routes[{i}].dst"), problem));
                continue;
            }
            if route.dst != route.dst.trunc() {
                let problem = format!("{} has host bits set: write {}", route.dst, route.dst.trunc());
                problems.push(Invalid::new(format!("routes[{i}].dst"), problem));
            }
            if route.gw.is_some_and(|gw| Family::of(gw) != family) {
                problems.push(Invalid::new(format!("routes[{i}].gw"), "is not of the family of dst"));
            } else if let Some(gw) = route.gw.filter(|_| !route.is_in_reach(&subnets)) {
                let problem = format!("{gw} is in no subnet of the ranges, so that pods cannot reach it");
                problems.push(Invalid::new(format!("routes[{i}].gw"), problem));
            }
        }
        // A pod gets an address of each family: it needs all of them or none.
        if problems.is_empty()
            && let Some(family) = self.families().into_iter().find(|family| self.size(*family) == 0)
            && !self.can_be_asked()
        {
            let field = if self.reserved.is_empty() { "ranges" } else { "reserved" };
            let advice = match self.reserved.as_slice() {
                [] => "",
                _ => ", and claims cannot ask for one of each family: reserve fewer, or some of each family",
            };
            problems.push(Invalid::new(field, format!("no {family} address is left for pods{advice}")));
        }
        for family in Family::ALL {
            let Some(prefix) = self.block_size.and_then(|size| size.of(family)) else { continue };
            let max = family.bits();
            if prefix > max || prefix < max - MAX_HOST_BITS {
                let key = if family == Family::V4 { "ipv4" } else { "ipv6" };
                let problem = format!(
                    "{prefix} is not a prefix length of a block: write {} to {max}",
                    max - MAX_HOST_BITS
                );
                problems.push(Invalid::new(format!("blockSize.{key}"), problem));
            }
        }
        problems
    }

    /// Returns an address that both pools hand out.
    pub fn overlap(&self, other: &Self) -> Option<Span> {
        overlap(&self.handed_out(), &other.handed_out())
    }

    /// The addresses that pods may get, reserved ones included.
    fn handed_out(&self) -> Vec<Span> {
        self.usable().into_iter().chain(self.reserved.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(spec: Value) -> AddressPoolSpec {
        serde_json::from_value(spec).expect("a pool")
    }

    fn problems(spec: Value) -> Vec<String> {
        pool(spec).problems().iter().map(Invalid::to_string).collect()
    }

    fn texts(spans: &[Span]) -> Vec<String> {
        spans.iter().map(Span::to_string).collect()
    }

    #[test]
    fn pods_get_neither_gateways_nor_excluded_nor_reserved_addresses() {
        let pool = pool(json!({
            "ranges": [{"subnet": "10.20.0.0/28", "exclude": ["10.20.0.4", "10.20.0.9-10.20.0.10"]}],
            "reserved": ["10.20.0.12/30"],
        }));
        assert_eq!(pool.problems(), []);
        assert_eq!(texts(&pool.usable()), ["10.20.0.2/31", "10.20.0.5-10.20.0.8", "10.20.0.11"]);
        assert_eq!(pool.size(Family::V4), 7);
        assert_eq!(pool.size(Family::V6), 0);
    }

    #[test]
    fn blocks_without_a_usable_address_are_left_out() {
        let pool = pool(json!({
            "ranges": [{"subnet": "10.20.0.0/26", "exclude": ["10.20.0.16/28"]}], "reserved": ["10.20.0.56/29"]}));
        let blocks: Vec<String> = pool.blocks(Family::V4, 28).map(|block| block.to_string()).collect();
        assert_eq!(blocks, ["10.20.0.0/28", "10.20.0.32/28", "10.20.0.48/28"]);
        assert_eq!(texts(&pool.usable_in("10.20.0.48/28".parse().expect("a block"))), ["10.20.0.48/29"]);
    }

    #[test]
    fn a_block_with_two_spans_is_listed_once() {
        let pool = pool(json!({"ranges": [{"subnet": "10.20.0.0/28", "exclude": ["10.20.0.7"]}]}));
        assert_eq!(pool.blocks(Family::V4, 28).count(), 1);
    }

    #[test]
    fn the_default_size_of_blocks_follows_the_range_and_the_nodes() {
        let size = |subnet: &str, family, nodes| {
            pool(json!({"ranges": [{"subnet": subnet}]})).block_prefix(family, nodes)
        };
        assert_eq!(size("10.20.0.0/24", Family::V4, 3), 29, "253 usable / 16, rounded down");
        assert_eq!(size("10.20.0.0/22", Family::V4, 3), 27);
        assert_eq!(size("10.20.0.0/16", Family::V4, 3), 25, "128 at most");
        assert_eq!(size("10.20.0.0/16", Family::V4, 5000), 30);
        assert_eq!(size("10.0.0.0/8", Family::V4, 5000), 25);
        assert_eq!(size("fd00::/64", Family::V6, 5000), 121);
        assert_eq!(size("fd00::/64", Family::V6, 4097), size("fd00::/64", Family::V6, 8000));
        let set = pool(json!({"ranges": [{"subnet": "10.20.0.0/24"}], "blockSize": {"ipv4": 27}}));
        assert_eq!(set.block_prefix(Family::V4, 3), 27);
    }

    #[test]
    fn host_local_gets_the_blocks_with_the_mask_and_gateway_of_the_subnet() {
        let pool = pool(json!({
            "ranges": [{"subnet": "10.20.0.0/24", "gateway": "10.20.0.254"}, {"subnet": "fd00::/64"}],
            "routes": [{"dst": "10.0.0.0/8", "priority": 50, "table": 100}],
        }));
        let spans = ["10.20.0.16-10.20.0.17", "10.20.0.19-10.20.0.23", "fd00::40/126"];
        let ipam = pool.host_local(&spans.map(|span| span.parse().expect("a span")));
        assert_eq!(
            ipam,
            json!({"type": "host-local", "routes": [{"dst": "10.0.0.0/8", "priority": 50, "table": 100}], "ranges": [
                [{"subnet": "10.20.0.0/24", "gateway": "10.20.0.254", "rangeStart": "10.20.0.16", "rangeEnd": "10.20.0.17"},
                 {"subnet": "10.20.0.0/24", "gateway": "10.20.0.254", "rangeStart": "10.20.0.19", "rangeEnd": "10.20.0.23"}],
                [{"subnet": "fd00::/64", "gateway": "fd00::1", "rangeStart": "fd00::40", "rangeEnd": "fd00::43"}]]})
        );
        for ipam in [ipam, pool.sample()] {
            let plugin = json!({"type": "macvlan", "master": "eth1", "ipam": ipam});
            let list = json!({"cniVersion": "1.1.0", "name": "n", "plugins": [plugin]});
            assert_eq!(
                netclaim_cni::validate::validate(list.to_string().as_bytes()),
                [],
                "the plugin takes it"
            );
        }
    }

    #[test]
    fn a_route_that_no_pod_can_have_is_refused_by_its_field() {
        let of = |ranges: Value, route: Value| problems(json!({"ranges": ranges, "routes": [route]}));
        let (v4, v6) = (json!([{"subnet": "10.75.0.0/25"}]), json!([{"subnet": "fd75:4::/64"}]));
        assert_eq!(
            of(v4.clone(), json!({"dst": "10.80.0.0/16", "gw": "10.99.0.1"})),
            ["routes[0].gw: 10.99.0.1 is in no subnet of the ranges, so that pods cannot reach it"]
        );
        let route = json!({"dst": "10.0.0.0/8", "priority": 0, "table": 254});
        assert_eq!(
            of(json!([{"subnet": "10.0.0.0/24"}]), route),
            [
                "routes[0].priority: is 0, which is the default: remove it",
                "routes[0].table: 254 is the kernel's own: write another number, or remove it"
            ]
        );
        let problem = "routes[0].dst: pods get no IPv6 address: add an IPv6 range, or remove the route";
        for route in [json!({"dst": "fd80::/64"}), json!({"dst": "fd80::/64", "gw": "fe80::1"})] {
            assert_eq!(of(v4.clone(), route), [problem]);
        }
        assert_eq!(of(v4.clone(), json!({"dst": "10.80.0.0/16", "gw": "169.254.1.1"})).len(), 1);
        assert_eq!(of(v6.clone(), json!({"dst": "fd80::/64", "gw": "fd75:5::1"})).len(), 1);
        for (ranges, route) in [
            (&v4, json!({"dst": "10.80.0.0/16"})),
            (&v4, json!({"dst": "0.0.0.0/0", "gw": "10.75.0.126"})),
            (&v6, json!({"dst": "fd80::/64", "gw": "fe80::1"})),
            (&v6, json!({"dst": "fd80::/64", "gw": "fd75:4::9"})),
        ] {
            assert_eq!(of(ranges.clone(), route.clone()), [""; 0], "{route}");
        }
    }

    #[test]
    fn with_several_subnets_a_route_goes_to_the_addresses_that_reach_its_next_hop() {
        let pool = pool(json!({
            "ranges": [{"subnet": "10.75.2.0/25"}, {"subnet": "10.75.3.0/25"}, {"subnet": "fd75::/64"}],
            "routes": [{"dst": "10.80.0.0/16", "gw": "10.75.3.1"}, {"dst": "10.81.0.0/16"},
                {"dst": "fd80::/64", "gw": "fe80::1"}],
            "reserved": ["10.75.2.64/26", "10.75.3.64/26", "fd75::f00/120"],
        }));
        assert_eq!(pool.problems(), []);
        let dsts = |ipam: &Value| {
            let routes = ipam["routes"].as_array().expect("routes").iter();
            routes.map(|route| route["dst"].as_str().expect("a text").to_owned()).collect::<Vec<_>>()
        };
        let by_range =
            |ip: &str| dsts(&pool.host_local(&[ip, "fd75::5"].map(|ip| ip.parse().expect("a span"))));
        let asked = |ip: &str| {
            let asked = [ip, "fd75::f01"].map(|ip| ip.parse().expect("an address"));
            dsts(&pool.fixed(&asked).expect("reserved"))
        };
        let (all, some) = (["10.80.0.0/16", "10.81.0.0/16", "fd80::/64"], ["10.81.0.0/16", "fd80::/64"]);
        assert_eq!(
            (by_range("10.75.2.5"), by_range("10.75.3.5")),
            (some.map(String::from).into(), all.map(String::from).into())
        );
        assert_eq!(
            (asked("10.75.2.70"), asked("10.75.3.70")),
            (some.map(String::from).into(), all.map(String::from).into())
        );
    }

    #[test]
    fn asked_addresses_are_reserved_ones_of_each_family() {
        let pool = pool(json!({"ranges": [{"subnet": "10.20.0.0/24"}, {"subnet": "fd00::/64"}],
            "reserved": ["10.20.0.192/26", "fd00::f00/120"]}));
        let fixed = |ips: &[&str]| {
            let ips: Vec<IpRequest> =
                ips.iter().map(|ip| IpRequest::try_from((*ip).to_owned()).expect("an address")).collect();
            pool.asked(&ips).and_then(|asked| pool.fixed(&asked)).map_err(|error| error.to_string())
        };
        let ipam = fixed(&["10.20.0.200", "fd00::f01"]).expect("reserved");
        assert_eq!(ipam["addresses"][0], json!({"address": "10.20.0.200/24", "gateway": "10.20.0.1"}));
        assert_eq!(ipam["addresses"][1]["address"], "fd00::f01/64");
        assert_eq!(
            fixed(&["10.20.0.200"]).expect_err("no IPv6"),
            "ips: asks for 0 IPv6 addresses: ask for one of each family of the network"
        );
        for ip in ["10.20.0.255", "10.20.0.200/24"] {
            let error = fixed(&[ip, "fd00::f01"]).expect_err("the broadcast address; a prefix length");
            assert!(error.starts_with("ips[0]: 10.20.0."), "{error}");
        }
        let error = fixed(&["10.20.0.7", "fd00::f01"]).expect_err("not reserved");
        assert_eq!(
            error,
            "ips[0]: 10.20.0.7 is none of the addresses that claims can ask for: the network reserves 10.20.0.192/26, fd00::f00/120"
        );
    }

    #[test]
    fn every_problem_names_its_field() {
        let found = problems(json!({
            "ranges": [{"subnet": "10.20.0.1/24"}, {"subnet": "10.30.0.0/31"}, {"subnet": "10.40.0.0/24", "gateway": "10.41.0.1"},
                {"subnet": "10.40.0.0/25"}],
            "reserved": ["10.99.0.1"], "routes": [{"dst": "10.0.0.0/8", "gw": "fd00::1"}], "blockSize": {"ipv4": 12},
        }));
        let fields: Vec<&str> =
            found.iter().map(|problem| problem.split(": ").next().unwrap_or_default()).collect();
        assert_eq!(
            fields,
            [
                "ranges[0].subnet",
                "ranges[1].subnet",
                "ranges[2].gateway",
                "ranges[3].subnet",
                "reserved[0]",
                "routes[0].gw",
                "blockSize.ipv4"
            ]
        );
        assert_eq!(problems(json!({"ranges": []})), ["ranges: is empty: list the subnets"]);
        assert_eq!(
            problems(json!({"ranges": [{"subnet": "10.0.0.0/30", "exclude": ["10.0.0.0/24"]}]})),
            ["ranges: no IPv4 address is left for pods"]
        );
        let twice = json!({"ranges": [{"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.99"}, {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.90"}]});
        assert_eq!(problems(twice), ["ranges[1]: has 10.0.0.90-10.0.0.99, which ranges[0] has, too"]);
    }

    #[test]
    fn a_pool_that_is_all_reserved_serves_claims_that_ask() {
        let all = json!({"ranges": [{"subnet": "10.30.0.0/28"}, {"subnet": "fd00::/124"}],
            "reserved": ["10.30.0.0/28", "fd00::/124"]});
        assert_eq!(problems(all.clone()), [""; 0]);
        let all = pool(all);
        assert!(!all.has_usable() && all.can_be_asked());
        let sample = all.sample();
        assert_eq!(sample["type"], "static");
        assert_eq!(sample["addresses"][0], json!({"address": "10.30.0.2/28", "gateway": "10.30.0.1"}));
        let some = pool(json!({"ranges": [{"subnet": "10.30.0.0/28"}], "reserved": ["10.30.0.8/29"]}));
        assert!(some.has_usable() && some.can_be_asked());
        assert_eq!(some.sample()["type"], "host-local");
    }

    #[test]
    fn a_pool_that_serves_no_pod_is_refused_by_its_own_field() {
        let of_gateway = json!({"ranges": [{"subnet": "10.30.0.0/30", "exclude": ["10.30.0.2"]}], "reserved": ["10.30.0.1"]});
        let advice = "claims cannot ask for one of each family: reserve fewer, or some of each family";
        assert_eq!(
            problems(of_gateway),
            [format!("reserved: no IPv4 address is left for pods, and {advice}")]
        );
        let of_one_family = json!({"ranges": [{"subnet": "10.30.0.0/28"}, {"subnet": "fd00::/124"}], "reserved": ["fd00::/124"]});
        assert_eq!(
            problems(of_one_family),
            [format!("reserved: no IPv6 address is left for pods, and {advice}")]
        );
    }

    #[test]
    fn a_network_has_ranges_or_a_pool() {
        let problems = |addresses: Value| {
            let addresses: NetworkAddresses = serde_json::from_value(addresses).expect("decodes");
            addresses.problems().iter().map(Invalid::to_string).collect::<Vec<_>>()
        };
        assert_eq!(problems(json!({"poolName": "lan"})), [""; 0]);
        assert_eq!(problems(json!({"ranges": [{"subnet": "10.0.0.0/24"}]})), [""; 0]);
        assert_eq!(problems(json!({})).len(), 1);
        assert_eq!(problems(json!({"poolName": "lan", "ranges": [{"subnet": "10.0.0.0/24"}]})).len(), 1);
        assert_eq!(problems(json!({"poolName": "lan", "reserved": ["10.0.0.1"]})).len(), 1);
        assert_eq!(problems(json!({"poolName": "a/b"})).len(), 1);
    }
}
