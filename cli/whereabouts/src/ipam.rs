//! The `ipam` object of a plugin whose addresses whereabouts hands out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::addresses::{Span, spans};
use netclaim_api::{Invalid, shorten};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::arithmetic::{cidr, ip, usable};

/// What whereabouts reads and what has no meaning for addresses: its lock, its log, its access to the API
/// server.
const OPERATIONAL: [&str; 12] = [
    "type",
    "name",
    "datastore",
    "kubernetes",
    "configuration_path",
    "log_file",
    "log_level",
    "leader_lease_duration",
    "leader_renew_deadline",
    "leader_retry_period",
    "sleep_for_race",
    "reconciler_cron_expression",
];
/// The longest piece of a configuration in a message, in bytes.
const QUOTED: usize = 120;

/// An `ipam` object of type `whereabouts` (`IPAMConfig` in whereabouts' `pkg/types/types.go`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipam {
    /// `network_name`: equal ranges of different names are kept apart. Empty by default.
    pub network_name: String,
    /// `range`, and after it the `ipRanges`: a pod gets one address of each.
    pub ranges: Vec<Range>,
    /// `gateway`, the same for every range.
    pub gateway: Option<IpAddr>,
    /// `routes`.
    pub routes: Vec<IpamRoute>,
    /// `addresses`: fixed ones that every pod gets, too.
    pub fixed: Vec<Fixed>,
    /// Whether `node_slice_size` is set, so that nodes have pools of their own.
    pub has_node_slices: bool,
    /// `enable_overlapping_ranges`: no address is handed out twice by different ranges of one network name.
    pub guards_overlaps: bool,
    /// Parts of the object that netclaim drops.
    pub dropped: Vec<Invalid>,
}

/// A range from which a pod gets one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The subnet, without host bits.
    pub net: IpNet,
    /// The first address, if it is not the subnet's first usable one.
    pub first: Option<IpAddr>,
    /// The last address, if it is not the subnet's last usable one.
    pub last: Option<IpAddr>,
    /// Addresses that no pod gets; sorted and in the subnet.
    pub exclude: Vec<Span>,
    /// The entries of `exclude` that lie in larger ones; sorted and in the subnet.
    pub nested: Vec<Span>,
}

/// A route of every pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpamRoute {
    /// The destination.
    pub dst: IpNet,
    /// The next hop.
    pub gw: Option<IpAddr>,
    /// `priority`, the metric.
    pub priority: Option<u32>,
    /// `table`.
    pub table: Option<u32>,
}

/// An address that every pod gets, whatever the pool says; it is not reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    /// The address.
    pub address: IpAddr,
}

impl Ipam {
    /// Reads an `ipam` object as whereabouts does: keys in any case, `null` as not set, limits outside of the
    /// subnet ignored.
    ///
    /// # Errors
    /// A value with which whereabouts hands out no address.
    pub fn parse(ipam: &Value) -> Result<Self, Invalid> {
        let mut fields = Fields::new(ipam)?;
        let network_name = fields.take::<String>("network_name")?.unwrap_or_default();
        let mut ranges = Vec::new();
        if let Some(range) = Range::parse(&mut fields)? {
            ranges.push(range);
        }
        for (i, value) in fields.take::<Vec<Value>>("ipRanges")?.unwrap_or_default().iter().enumerate() {
            let at = format!("ipRanges[{i}]");
            let range = Fields::new(value).and_then(|mut of_range| {
                let range = Range::parse(&mut of_range)?;
                fields.dropped.extend(of_range.unknown().into_iter().map(|drop| drop.within(&at)));
                range.ok_or_else(|| Invalid::new("range", "is not set: write a CIDR"))
            });
            ranges.push(range.map_err(|error| error.within(&at))?);
        }
        if ranges.is_empty() {
            let problem = "is not set: write it here; defaults of whereabouts.conf on the nodes are not read";
            return Err(Invalid::new("range", problem));
        }
        let gateway = match fields.take::<String>("gateway")?.filter(|text| !text.is_empty()) {
            Some(text) => Some(ip(&text).ok_or_else(|| quoted("gateway", &text, "is not an address"))?),
            None => None,
        };
        let routes = fields.take::<Vec<Value>>("routes")?.unwrap_or_default();
        let routes = routes.iter().enumerate().map(|(i, value)| {
            let at = format!("routes[{i}]");
            route(value, &mut fields.dropped, &at).map_err(|error| error.within(&at))
        });
        let routes = routes.collect::<Result<_, _>>()?;
        let fixed = fields.take::<Vec<Value>>("addresses")?.unwrap_or_default();
        let fixed = fixed.iter().enumerate().map(|(i, value)| {
            let at = format!("addresses[{i}]");
            fixed_address(value, &mut fields.dropped, &at).map_err(|error| error.within(&at))
        });
        let fixed: Vec<Fixed> = fixed.collect::<Result<_, _>>()?;
        if !fixed.is_empty() {
            let problem = "every pod got them beside its address of the pool; now a pod gets them instead of it, and only \
                           if its claim asks for them by ips";
            fields.drop("addresses", problem);
        }
        let has_node_slices = fields.take::<String>("node_slice_size")?.is_some_and(|size| !size.is_empty());
        if has_node_slices {
            fields.drop(
                "node_slice_size",
                "nodes lease blocks instead; spec.addresses.blockSize sets their size",
            );
            if ranges.len() > 1 {
                ranges.truncate(1);
                fields.drop("ipRanges", "whereabouts itself uses only the first range with node_slice_size");
            }
        }
        let guards_overlaps = fields.take::<bool>("enable_overlapping_ranges")?.unwrap_or(true);
        if let Some(Value::Object(dns)) = fields.take::<Value>("dns")?
            && !dns.is_empty()
        {
            fields.drop("dns", "addresses carry no DNS: write dns into the plugin's configuration");
        }
        let mut dropped = fields.unknown();
        dropped.extend(fields.dropped);
        Ok(Self { network_name, ranges, gateway, routes, fixed, has_node_slices, guards_overlaps, dropped })
    }
}

impl Range {
    /// Reads `range`, `range_start`, `range_end` and `exclude` (`LoadIPAMConfig`, `GetIPRange`,
    /// `parseExcludedRange`).
    fn parse(fields: &mut Fields<'_>) -> Result<Option<Self>, Invalid> {
        let range = fields.take::<String>("range")?.filter(|text| !text.is_empty());
        let mut limit = |key| {
            let text: Option<String> = fields.take(key)?;
            // A value that is not an address counts as not set, as for whereabouts.
            Ok::<_, Invalid>(text.as_deref().and_then(ip))
        };
        let (mut start, mut end) = (limit("range_start")?, limit("range_end")?);
        let exclude = fields.take::<Vec<String>>("exclude")?.unwrap_or_default();
        let Some(text) = range else { return Ok(None) };

        let wrong = |problem| quoted("range", &text, problem);
        let net = if let Some((first, rest)) = text.split_once('-') {
            let first = ip(first).ok_or_else(|| wrong("begins with no address: write FIRST-LAST/LENGTH"))?;
            let last = cidr(rest).ok_or_else(|| wrong("ends with no CIDR: write FIRST-LAST/LENGTH"))?;
            if !last.contains(&first) {
                return Err(wrong("begins outside of its subnet"));
            }
            (start, end) = (Some(first), Some(last.addr()));
            last.trunc()
        } else {
            cidr(&text).ok_or_else(|| wrong("is not a CIDR, such as 10.20.0.0/24"))?.trunc()
        };
        let usable =
            usable(net).ok_or_else(|| wrong("has no usable address: at most /30, or /126 for IPv6"))?;
        let first = start.filter(|first| usable.contains(*first));
        let from = first.unwrap_or_else(|| usable.first());
        let last = end.filter(|last| usable.contains(*last) && *last >= from);

        let all = Span::of_net(net);
        let mut spans = Vec::new();
        for (i, text) in exclude.iter().enumerate() {
            let span = cidr(text).map(Span::of_net).or_else(|| ip(text).map(Span::of_address));
            let problem = "is not a CIDR or address, and whereabouts hands out nothing with it";
            let span = span.ok_or_else(|| quoted(&format!("exclude[{i}]"), text, problem))?;
            spans.extend(span.intersection(all));
        }
        let nested = nested(&mut spans);
        let exclude = spans::merge(spans);
        let first = first.filter(|first| *first != usable.first());
        let last = last.filter(|last| *last != usable.last());
        Ok(Some(Self { net, first, last, exclude, nested }))
    }
}

/// Sorts the spans, and returns those that lie in others.
fn nested(spans: &mut Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| (span.first(), Reverse(span.last())));
    spans.dedup();
    let mut end = None;
    let is_nested = |span: &Span| {
        let before = end;
        end = end.max(Some(span.last()));
        before.is_some_and(|before| span.last() <= before)
    };
    spans.iter().copied().filter(is_nested).collect()
}

/// Reads a route as CNI's `types.Route` has it.
fn route(value: &Value, dropped: &mut Vec<Invalid>, at: &str) -> Result<IpamRoute, Invalid> {
    let mut fields = Fields::new(value)?;
    let dst = fields.take::<String>("dst")?.unwrap_or_default();
    let dst = cidr(&dst).ok_or_else(|| quoted("dst", &dst, "is not a CIDR"))?.trunc();
    let gw = match fields.take::<String>("gw")?.filter(|text| !text.is_empty()) {
        Some(text) => Some(ip(&text).ok_or_else(|| quoted("gw", &text, "is not an address"))?),
        None => None,
    };
    let mut number = |key| Ok::<_, Invalid>(fields.take::<u32>(key)?.filter(|number| *number > 0));
    let (priority, table) = (number("priority")?, number("table")?);
    dropped.extend(fields.unknown().into_iter().map(|drop| {
        let field = drop.within(at).field;
        Invalid::new(field, "netclaim's routes have dst, gw, priority and table only: the reference plugins set no mtu and advmss")
    }));
    Ok(IpamRoute { dst, gw, priority, table })
}

fn fixed_address(value: &Value, dropped: &mut Vec<Invalid>, at: &str) -> Result<Fixed, Invalid> {
    let mut fields = Fields::new(value)?;
    let text = fields.take::<String>("address")?.unwrap_or_default();
    let net =
        cidr(&text).ok_or_else(|| quoted("address", &text, "is not an address with a prefix length"))?;
    if fields.take::<String>("gateway")?.is_some() {
        dropped.push(Invalid::new(format!("{at}.gateway"), "the gateway of the range is used"));
    }
    dropped.extend(fields.unknown().into_iter().map(|drop| drop.within(at)));
    Ok(Fixed { address: net.addr() })
}

fn quoted(field: &str, text: &str, problem: &str) -> Invalid {
    Invalid::new(field, format!("{:?} {problem}", shorten(text.to_owned(), QUOTED)))
}

/// The keys of an object, which Go decodes in any case.
struct Fields<'a> {
    values: BTreeMap<String, (&'a str, &'a Value)>,
    dropped: Vec<Invalid>,
}

impl<'a> Fields<'a> {
    fn new(value: &'a Value) -> Result<Self, Invalid> {
        let object = value.as_object().ok_or_else(|| Invalid::new("", "is not an object"))?;
        let values = object.iter().map(|(key, value)| (key.to_ascii_lowercase(), (key.as_str(), value)));
        Ok(Self { values: values.collect(), dropped: Vec::new() })
    }

    fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>, Invalid> {
        let value = self.values.remove(&key.to_ascii_lowercase()).map(|(_, value)| value);
        let decode = |value: &Value| {
            T::deserialize(value).map_err(|error| Invalid::new(key, shorten(error.to_string(), QUOTED)))
        };
        value.filter(|value| !value.is_null()).map(decode).transpose()
    }

    fn drop(&mut self, field: &str, reason: &str) {
        self.dropped.push(Invalid::new(field, reason));
    }

    /// Returns the keys that were not taken.
    fn unknown(&mut self) -> Vec<Invalid> {
        let left = std::mem::take(&mut self.values).into_iter();
        let unknown = left.filter(|(key, (_, value))| {
            !key.starts_with("etcd_") && !OPERATIONAL.contains(&key.as_str()) && !value.is_null()
        });
        let reason = "whereabouts does not know this key: nothing is made of it";
        unknown.map(|(_, (key, _))| Invalid::new(shorten(key.to_owned(), QUOTED), reason)).collect()
    }
}
