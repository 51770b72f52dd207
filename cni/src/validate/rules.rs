//! Rules for the settings of one plugin that depend on each other.

use std::net::IpAddr;

use ipnet::IpNet;

use super::finding::{Report, Severity};
use super::node::{Members, Node};
use crate::keys::member;
use crate::version::SpecVersion;

/// The bandwidth plugin that works with any interface; it comes with netclaim.
pub const BANDWIDTH_PLUGIN: &str = "netclaim-bandwidth";

/// Checks a configuration whose keys and forms have been looked at already.
pub(super) type Rule = fn(&Subject<'_>, &mut Report);

/// A plugin's configuration, as its rule sees it.
pub(super) struct Subject<'a> {
    /// The plugin's object; of an IPAM plugin the `ipam` object.
    pub(super) conf: &'a Members,
    /// Pointer to it.
    pub(super) at: &'a str,
    /// The object with `capabilities` and `ipam`.
    pub(super) plugin: &'a Members,
    /// The version of the list, if it has one that is known.
    pub(super) version: Option<SpecVersion>,
    /// Whether the plugin that has the object with `capabilities` and `ipam` is a known one.
    pub(super) is_known: bool,
}

impl Subject<'_> {
    /// Where the value of `key` is, and where it is missing, the object.
    fn pointer(&self, key: &str) -> String {
        self.conf.pointer(self.at, key)
    }

    fn declares(&self, capability: &str) -> bool {
        let capabilities = self.plugin.get("capabilities").and_then(Node::object);
        capabilities.is_some_and(|on| on.on(capability) || on.get(capability).is_some_and(Node::is_open))
    }

    fn has_ipam(&self) -> bool {
        let ipam = self.plugin.get("ipam");
        ipam.is_some_and(|ipam| ipam.is_open() || ipam.object().is_some_and(|ipam| ipam.has("type")))
    }
}

/// Returns pointers to values that the plugin does not always read: a fault in them may have no effect.
pub(super) fn unread(plugin: &str, subject: &Subject<'_>) -> Vec<String> {
    let conf = subject.conf;
    let keys: &[&str] = match plugin {
        "bridge" | "ptp" if !(conf.on("ipMasq") && subject.has_ipam()) => &["ipMasqBackend"],
        "macvlan" | "tap" | "tuning" if subject.declares("mac") => &["mac"],
        "host-device" if conf.has("device") => &["hwaddr", "kernelpath"],
        "host-device" if conf.has("hwaddr") => &["kernelpath"],
        "static" if subject.declares("ips") => &["addresses"],
        // The runtime's come first.
        BANDWIDTH_PLUGIN if subject.declares("bandwidth") => {
            &["ingressRate", "ingressBurst", "egressRate", "egressBurst"]
        }
        // It takes an unknown backend for none.
        "firewall" => &["backend"],
        _ => &[],
    };
    keys.iter().filter(|key| conf.get(key).is_some()).map(|key| subject.pointer(key)).collect()
}

pub(super) fn none(_: &Subject<'_>, _: &mut Report) {}

pub(super) fn bridge(subject: &Subject<'_>, report: &mut Report) {
    let conf = subject.conf;
    if conf.on("hairpinMode") && conf.on("promiscMode") {
        let at = subject.pointer("promiscMode");
        report.error(&at, "the plugin refuses `hairpinMode` together with `promiscMode`", "keep one of them");
    }
    if subject.has_ipam() && conf.on("disableContainerInterface") {
        let at = subject.pointer("disableContainerInterface");
        report.error(&at, "an interface that is left down gets no address", "remove it, or `ipam`");
    }
    if !subject.has_ipam() {
        for key in ["isGateway", "isDefaultGateway", "ipMasq"].into_iter().filter(|key| conf.on(key)) {
            let problem = format!("`{key}` has no effect without `ipam`");
            report.warning(&subject.pointer(key), problem, "add `ipam`, or remove it");
        }
    }
    for (index, item) in conf.list("vlanTrunk").iter().enumerate() {
        let Some(trunk) = item.object() else { continue };
        let at = member(&subject.pointer("vlanTrunk"), &index.to_string());
        match (trunk.int("minID"), trunk.int("maxID")) {
            (Some(min), Some(max)) if min > max => {
                report.error(&at, format!("minID {min} is greater than maxID {max}"), "swap them");
            }
            _ if trunk.has("minID") != trunk.has("maxID") => {
                report.error(&at, "`minID` and `maxID` go together", "write both, or `id` alone");
            }
            _ if !["id", "minID"].into_iter().any(|key| trunk.has(key)) => {
                report.warning(&at, "names no VLAN", "write `id`, or `minID` and `maxID`");
            }
            _ => {}
        }
    }
    masquerade(subject, report);
}

pub(super) fn masquerade(subject: &Subject<'_>, report: &mut Report) {
    if subject.conf.has("ipMasqBackend") && !subject.conf.has("ipMasq") {
        let problem = "`ipMasqBackend` has no effect without `ipMasq`";
        report.warning(&subject.pointer("ipMasqBackend"), problem, "set `ipMasq` to true, or remove it");
    }
}

pub(super) fn shared_master(subject: &Subject<'_>, report: &mut Report) {
    if !subject.conf.has("master") {
        let problem =
            "`master` is missing: the interface of the default route is taken, the node's own traffic's";
        report.warning(subject.at, problem, "name the uplink in `master`");
    }
}

pub(super) fn vlan(subject: &Subject<'_>, report: &mut Report) {
    if !subject.conf.has("master") {
        report.error(subject.at, "`master` is missing", "name the interface to make the VLAN on");
    }
    if !subject.conf.has("vlanId") {
        report.warning(
            subject.at,
            "`vlanId` is missing: VLAN 0 is made",
            "write the VLAN's number, 1 to 4094",
        );
    }
}

pub(super) fn host_device(subject: &Subject<'_>, report: &mut Report) {
    const KEYS: [&str; 4] = ["device", "hwaddr", "kernelpath", "pciBusID"];
    let mut named = KEYS.into_iter().filter(|key| subject.conf.has(key));
    match named.next() {
        None if !subject.declares("deviceID") => {
            let advice = "write one of `device`, `hwaddr`, `kernelpath`, `pciBusID`, or declare the capability `deviceID`";
            report.error(subject.at, "no device is named", advice);
        }
        None => {}
        Some(first) => {
            for other in named {
                let problem = format!("`{other}` has no effect beside `{first}`");
                report.warning(&subject.pointer(other), problem, "keep one of them");
            }
        }
    }
    if let Some(path) = subject.conf.text("kernelpath").filter(|path| !path.starts_with("/sys/devices/")) {
        let problem = format!("{path:?} is not below /sys/devices");
        report.value_error(
            &subject.pointer("kernelpath"),
            problem,
            "write the device's path below /sys/devices/",
        );
    }
}

pub(super) fn tuning(subject: &Subject<'_>, report: &mut Report) {
    let Some(sysctl) = subject.conf.get("sysctl").and_then(Node::object) else { return };
    for (key, _) in sysctl.iter() {
        // Empty parts do not count.
        let mut parts = key.split(['.', '/']).filter(|part| !part.is_empty());
        if parts.next() != Some("net") || parts.next().is_none() {
            let problem = format!("sysctl `{key}` is not of a network namespace");
            let at = member(&subject.pointer("sysctl"), key);
            report.error(&at, problem, "the plugin sets those below `net.` only: remove it");
        }
    }
}

pub(super) fn vrf(subject: &Subject<'_>, report: &mut Report) {
    if !subject.conf.has("vrfname") {
        report.error(subject.at, "`vrfname` is missing", "name the VRF to put the interface into");
    }
}

/// The directions that can be limited, with the keys of each.
const DIRECTIONS: [(&str, &str); 2] = [("ingressRate", "ingressBurst"), ("egressRate", "egressBurst")];
/// In bits; the kernel counts bytes in 32 bits.
const MAX_BURST: i128 = u32::MAX as i128 * 8;

/// Whether a rate or burst is written, and is not 0, which is none.
fn sets(conf: &Members, key: &str) -> bool {
    conf.has(key) && conf.int(key) != Some(0)
}

/// Whether the configuration sets limits itself.
pub(super) fn always_limits(conf: &Members) -> bool {
    DIRECTIONS.iter().any(|(rate, _)| sets(conf, rate))
}

pub(super) fn bandwidth(subject: &Subject<'_>, report: &mut Report) {
    let written = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
    let declared = subject.declares("bandwidth");
    if let Some(key) = written.into_iter().find(|key| declared && subject.conf.get(key).is_some()) {
        let problem =
            "the capability `bandwidth` has no effect beside rates and bursts that are written here";
        report.warning(&subject.pointer(key), problem, "keep one of them");
    }
    for (rate, burst) in DIRECTIONS {
        for (one, other) in [(rate, burst), (burst, rate)] {
            if sets(subject.conf, one) && !sets(subject.conf, other) {
                let advice = format!("write `{other}` too (rates in bit/s, bursts in bits)");
                report.error(&subject.pointer(one), format!("`{one}` is refused without `{other}`"), advice);
            }
        }
        if let Some(bits) = subject.conf.int(burst).filter(|bits| *bits >= MAX_BURST) {
            let advice = format!("write less than {MAX_BURST} bits (4 GiB)");
            report.error(&subject.pointer(burst), format!("a burst of {bits} bits is too much"), advice);
        }
    }
    limits_nothing(subject, report);
}

/// Checks netclaim's bandwidth plugin.
pub(super) fn shaper(subject: &Subject<'_>, report: &mut Report) {
    for (rate, burst) in DIRECTIONS {
        if sets(subject.conf, burst) && !sets(subject.conf, rate) {
            let problem = format!("`{burst}` is refused without `{rate}`");
            report.value_error(&subject.pointer(burst), problem, format!("write `{rate}` too, or remove it"));
        }
        if let Some(bits) = subject.conf.int(rate).filter(|bits| (1..8).contains(bits)) {
            let problem = format!("{bits} bit/s are less than a byte per second");
            report.value_error(&subject.pointer(rate), problem, "write at least 8; rates are in bit/s");
        }
        if let Some(bits) = subject.conf.int(burst).filter(|bits| *bits > MAX_BURST) {
            let advice = format!("write at most {MAX_BURST} bits (4 GiB)");
            report.value_error(
                &subject.pointer(burst),
                format!("a burst of {bits} bits is too much"),
                advice,
            );
        }
    }
    limits_nothing(subject, report);
}

fn limits_nothing(subject: &Subject<'_>, report: &mut Report) {
    if !subject.declares("bandwidth") && !always_limits(subject.conf) {
        let advice = "declare the capability `bandwidth`, or write rates";
        report.warning(subject.at, "nothing is limited", advice);
    }
}

pub(super) fn portmap(subject: &Subject<'_>, report: &mut Report) {
    let conf = subject.conf;
    if !subject.declares("portMappings") {
        let advice = "write \"capabilities\": {\"portMappings\": true}";
        report.warning(subject.at, "without the capability `portMappings` no port is mapped", advice);
    }
    if conf.has("markMasqBit") && conf.has("externalSetMarkChain") {
        let at = subject.pointer("externalSetMarkChain");
        report.error(&at, "the plugin refuses it together with `markMasqBit`", "keep one of them");
    }
    let backend = conf.text("backend");
    if backend == Some("nftables") && conf.has("externalSetMarkChain") {
        let at = subject.pointer("externalSetMarkChain");
        report.error(&at, "is for the backend iptables only", "remove it, or change `backend`");
    }
    for key in ["conditionsV4", "conditionsV6"] {
        // The plugin tells the syntax by the first character, too.
        let Some(Node::Text(first)) = conf.list(key).first() else {
            continue;
        };
        let written_for = match first.chars().next() {
            None => continue,
            Some('-' | '!') => "iptables",
            Some(_) => "nftables",
        };
        if backend.is_some_and(|backend| backend != written_for) {
            let problem = format!("its conditions are written for {written_for}, and `backend` is another");
            report.error(
                &subject.pointer(key),
                problem,
                format!("rewrite them, or set `backend` to `{written_for}`"),
            );
        }
    }
}

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
        for (index, item) in subject.conf.list(key).iter().enumerate() {
            let Some(members) = item.object() else { continue };
            let at = member(&subject.pointer(key), &index.to_string());
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
    let mut families = Vec::new();
    for (index, item) in addresses.iter().enumerate() {
        let Some(members) = item.object() else { continue };
        let at = member(&subject.pointer("addresses"), &index.to_string());
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

    let all: Vec<&Range> = sets.iter().flatten().collect();
    for (index, a) in all.iter().enumerate() {
        for b in all.iter().skip(index + 1) {
            let same_family = a.subnet.addr().is_ipv4() == b.subnet.addr().is_ipv4();
            if same_family && a.first <= b.last && b.first <= a.last {
                let problem = format!("its addresses overlap with those of the range at `{}`", a.at);
                report.error(&b.at, problem, "make the ranges disjoint");
            }
        }
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
    for (index, item) in subject.conf.list("routes").iter().enumerate() {
        let Some(route) = item.object() else { continue };
        let at = member(&subject.pointer("routes"), &index.to_string());
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
