//! Rules for the settings of one IPAM plugin that depend on each other.

use std::net::IpAddr;

use ipnet::IpNet;

use super::finding::{Report, Severity};
use super::node::{Members, Node};
use super::rules::Subject;
use crate::keys::member;
use crate::version::SpecVersion;

pub(super) fn dhcp(subject: &Subject<'_>, report: &mut Report) {
    const NAMES: [&str; 6] = [
        "dhcp-client-identifier",
        "subnet-mask",
        "routers",
        "host-name",
        "user-class",
        "vendor-class-identifier",
    ];
    for key in ["provide", "request"] {
        let list = subject.pointer(key);
        for (index, item) in subject.conf.list(key).iter().enumerate() {
            let Some(members) = item.object() else { continue };
            let at = member(&list, &index.to_string());
            let Some(option) = members.text("option") else {
                let advice = "name the DHCP option, or write its number";
                match key {
                    _ if members.has("option") => {}
                    "provide" => report.error(&at, "`option` is missing", advice),
                    _ if members.on("skipDefault") => {}
                    _ => report.warning(&at, "names no option to ask for", advice),
                }
                continue;
            };
            if !NAMES.contains(&option) && option.parse::<u8>().is_err() {
                let advice = format!("write its number, or one of {}", NAMES.join(", "));
                report.error(&at, format!("DHCP option {option:?} is not known to the plugin"), advice);
            }
            if members.text("value").is_some_and(|value| value.len() > 255) {
                report.error(&member(&at, "value"), "is longer than 255 bytes", "shorten it");
            }
        }
    }
}

pub(super) fn fixed_addresses(subject: &Subject<'_>, report: &mut Report) {
    routes(subject, report);
    let addresses = subject.conf.list("addresses");
    if !subject.conf.has("addresses") && !subject.declares("ips") {
        let advice = "write `addresses`, or declare the capability `ips`";
        report.warning(subject.at, "no address is configured", advice);
    }
    let list = subject.pointer("addresses");
    let mut families = Vec::new();
    for (index, item) in addresses.iter().enumerate() {
        let Some(members) = item.object() else { continue };
        let at = member(&list, &index.to_string());
        if !members.has("address") {
            report.value_error(
                &at,
                "`address` is missing",
                "write address and prefix length, such as 10.0.0.5/24",
            );
        }
        let Some(address) = cidr(members, "address") else { continue };
        families.push(address.addr().is_ipv4());
        if let Some(gateway) = address_of(members, "gateway").filter(|gateway| !address.contains(gateway)) {
            let problem = format!("gateway {gateway} is not in {}", address.trunc());
            report.warning(&at, problem, "write a gateway that the interface can reach directly");
        }
    }
    one_of_a_family(subject, "addresses", &families, report);
}

/// A range as the plugin completes it.
struct Range {
    at: String,
    subnet: IpNet,
    first: u128,
    last: u128,
}

pub(super) fn host_local(subject: &Subject<'_>, report: &mut Report) {
    routes(subject, report);
    let conf = subject.conf;
    let mut sets: Vec<Vec<Range>> = Vec::new();
    if conf.has("subnet") {
        sets.push(range(conf, subject.at, report).into_iter().collect());
    } else {
        for key in ["rangeStart", "rangeEnd", "gateway"].into_iter().filter(|key| conf.has(key)) {
            let advice = "add `subnet`, or move it into an element of `ranges`";
            report.warning(&subject.pointer(key), format!("`{key}` has no effect without `subnet`"), advice);
        }
    }
    let ranges = subject.pointer("ranges");
    for (set, item) in conf.list("ranges").iter().enumerate() {
        let Node::List(items) = item else { continue };
        let at = member(&ranges, &set.to_string());
        if items.is_empty() {
            report.error(&at, "the range set is empty", "remove it, or write {\"subnet\": …} in it");
        }
        let parse =
            |(index, item): (usize, &Node)| range(item.object()?, &member(&at, &index.to_string()), report);
        let parsed: Vec<Range> = items.iter().enumerate().filter_map(parse).collect();
        let v4 = parsed.first().map(|range| range.subnet.addr().is_ipv4());
        if parsed.iter().any(|range| Some(range.subnet.addr().is_ipv4()) != v4) {
            report.error(&at, "the range set mixes IPv4 and IPv6", "give each family a set of its own");
        }
        sets.push(parsed);
    }
    if !conf.has("subnet") && !conf.has("ranges") && !subject.declares("ipRanges") {
        let advice = "write `ranges`: [[{\"subnet\": …}]], or declare the capability `ipRanges`";
        report.error(subject.at, "there is no range to take addresses from", advice);
    }
    if conf.get("ranges") == Some(&Node::List(Vec::new()))
        && !conf.has("subnet")
        && !subject.declares("ipRanges")
    {
        report.error(&ranges, "there is no range to take addresses from", "write [{\"subnet\": …}] in it");
    }
    let families: Vec<bool> =
        sets.iter().filter_map(|set| Some(set.first()?.subnet.addr().is_ipv4())).collect();
    one_of_a_family(subject, "ranges", &families, report);

    overlaps(sets.iter().flatten().collect(), report);
}

/// Reports each range that has addresses of another one.
fn overlaps(ranges: Vec<&Range>, report: &mut Report) {
    let mut sorted: Vec<(usize, &Range)> = ranges.into_iter().enumerate().collect();
    sorted.sort_by_key(|(_, range)| (range.subnet.addr().is_ipv4(), range.first));
    // The range before the present one that reaches furthest.
    let mut furthest: Option<(usize, &Range)> = None;
    let mut found = Vec::new();
    for (index, range) in sorted {
        let is_family = |other: &Range| other.subnet.addr().is_ipv4() == range.subnet.addr().is_ipv4();
        match furthest.filter(|(_, other)| is_family(other) && range.first <= other.last) {
            Some((other, of_other)) => {
                let [earlier, later] = if other < index { [of_other, range] } else { [range, of_other] };
                found.push((index.max(other), earlier, later));
                if range.last > of_other.last {
                    furthest = Some((index, range));
                }
            }
            None => furthest = Some((index, range)),
        }
    }
    found.sort_by_key(|(later, ..)| *later);
    for (_, earlier, later) in found {
        let problem = format!("its addresses overlap with those of the range at `{}`", earlier.at);
        report.error(&later.at, problem, "make the ranges disjoint");
    }
}

/// One range by the plugin's rules. `None` if it cannot be compared with others.
fn range(members: &Members, at: &str, report: &mut Report) -> Option<Range> {
    if !members.has("subnet") {
        report.error(at, "`subnet` is missing", "write the network in CIDR notation");
    }
    let subnet = cidr(members, "subnet")?;
    let here = |key: &str| members.pointer(at, key);
    if subnet != subnet.trunc() {
        let problem = format!("{subnet} has host bits set");
        report.error(&here("subnet"), problem, format!("write {}", subnet.trunc()));
    }
    if subnet.prefix_len() + 2 > subnet.max_prefix_len() {
        let advice = "use at most /30, or /126 for IPv6; for one address use the plugin `static`";
        report.error(&here("subnet"), format!("{subnet} is too small to allocate from"), advice);
        return None;
    }
    let inside = |key: &str| address_of(members, key).map(|address| (address, subnet.contains(&address)));
    for key in ["rangeStart", "rangeEnd"] {
        if let Some((address, false)) = inside(key) {
            let problem = format!("{address} is not in {subnet}");
            report.error(
                &here(key),
                problem,
                format!("write an address from {} to {}", subnet.network(), subnet.broadcast()),
            );
        }
    }
    if let Some((gateway, false)) = inside("gateway") {
        let problem = format!("gateway {gateway} is not in {subnet}: routes through it fail");
        report.warning(&here("gateway"), problem, "write a gateway within the subnet");
    }
    // The plugin leaves out the broadcast address of IPv4, and nothing of IPv6.
    let last = number(subnet.broadcast()) - u128::from(subnet.addr().is_ipv4());
    let limit = |key, default| match inside(key) {
        Some((address, true)) => number(address),
        _ => default,
    };
    let (first, last) = (limit("rangeStart", number(subnet.network()) + 1), limit("rangeEnd", last));
    if first > last && matches!(inside("rangeEnd"), Some((_, true))) {
        report.error(at, "the range ends before it starts", "swap `rangeStart` and `rangeEnd`");
        return None;
    }
    if first > last {
        // Taken by the plugin, which compares the start with an end that is written only.
        report.warning(
            &here("rangeStart"),
            "the range starts at the broadcast address",
            "start earlier, or give a `rangeEnd`",
        );
    }
    let last = last.max(first);
    Some(Range { at: at.to_owned(), subnet, first, last })
}

fn routes(subject: &Subject<'_>, report: &mut Report) {
    // An IPAM plugin does not mind: the one that sets the routes does.
    let severity = if subject.is_known { Severity::Error } else { Severity::Warning };
    let list = subject.pointer("routes");
    for (index, item) in subject.conf.list("routes").iter().enumerate() {
        let Some(route) = item.object() else { continue };
        let at = member(&list, &index.to_string());
        if !route.has("dst") {
            let advice = "write the destination in CIDR notation, 0.0.0.0/0 for all";
            report.push(severity, &at, "`dst` is missing".to_owned(), advice.to_owned());
        }
        let (Some(dst), Some(gw)) = (cidr(route, "dst"), address_of(route, "gw")) else { continue };
        if dst.addr().is_ipv4() != gw.is_ipv4() {
            let problem = format!("destination {dst} and gateway {gw} are of different families");
            report.push(severity, &at, problem, "write both as IPv4, or both as IPv6".to_owned());
        }
    }
}

/// Results before 0.3.0 have room for one address of each family.
fn one_of_a_family(subject: &Subject<'_>, key: &str, v4: &[bool], report: &mut Report) {
    let several = [true, false].into_iter().any(|family| v4.iter().filter(|v4| **v4 == family).count() > 1);
    if several && subject.version.is_some_and(|version| version < SpecVersion::V0_3_0) {
        let problem = "CNI versions before 0.3.0 allow one address of each family";
        let at = subject.pointer(key);
        report.value_error(&at, problem, "raise `cniVersion`, or leave one for each family");
    }
}

fn cidr(members: &Members, key: &str) -> Option<IpNet> {
    members.text(key)?.parse().ok()
}

fn address_of(members: &Members, key: &str) -> Option<IpAddr> {
    members.text(key)?.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}
