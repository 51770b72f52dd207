//! Rules for the settings of one plugin that depend on each other.

use super::finding::Report;
use super::node::{Members, Node};
use crate::keys::member;
use crate::version::SpecVersion;

/// The bandwidth plugin that works with any interface; it comes with netclaim.
pub const BANDWIDTH_PLUGIN: &str = "netclaim-bandwidth";

/// The plugin that gives pods their default route; it comes with netclaim.
pub const ROUTE_PLUGIN: &str = "netclaim-route";

/// The plugin that makes VLAN links and bridges of a host; it comes with netclaim.
pub const LINK_PLUGIN: &str = "netclaim-link";

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
    pub(super) fn pointer(&self, key: &str) -> String {
        self.conf.pointer(self.at, key)
    }

    pub(super) fn declares(&self, capability: &str) -> bool {
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
    let list = subject.pointer("vlanTrunk");
    for (index, item) in conf.list("vlanTrunk").iter().enumerate() {
        let Some(trunk) = item.object() else { continue };
        let at = member(&list, &index.to_string());
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
    let list = subject.pointer("sysctl");
    for (key, _) in sysctl.iter() {
        // Empty parts do not count.
        let mut parts = key.split(['.', '/']).filter(|part| !part.is_empty());
        if parts.next() != Some("net") || parts.next().is_none() {
            let problem = format!("sysctl `{key}` is not of a network namespace");
            let at = member(&list, key);
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

/// Checks netclaim's plugin for the default route.
pub(super) fn route(subject: &Subject<'_>, report: &mut Report) {
    if !subject.conf.has("keep") {
        let advice =
            "list the prefixes that stay with `eth0`; or remove the plugin, and have claims set defaultRoute";
        report.error(subject.at, "`keep` is missing", advice);
    }
}

fn limits_nothing(subject: &Subject<'_>, report: &mut Report) {
    if !subject.declares("bandwidth") && !always_limits(subject.conf) {
        let advice = "declare the capability `bandwidth`, or write rates";
        report.warning(subject.at, "nothing is limited", advice);
    }
}

/// Checks netclaim's plugin that makes links of a host.
pub(super) fn link(subject: &Subject<'_>, report: &mut Report) {
    let conf = subject.conf;
    let (needed, other): (&[(&str, &str)], _) = match conf.text("kind") {
        Some("vlan") => {
            (&[("master", "name the link to make the VLAN on"), ("id", "write 1 to 4094")], "bridge")
        }
        Some("bridge") => (&[("bridge", "name the bridge")], "id"),
        _ if conf.has("kind") => return,
        _ => (&[("kind", "write `vlan` or `bridge`")], ""),
    };
    for (key, advice) in needed.iter().filter(|(key, _)| !conf.has(key)) {
        report.error(subject.at, format!("`{key}` is missing"), *advice);
    }
    if conf.get(other).is_some() {
        let problem = format!("the plugin refuses `{other}` with this `kind`");
        report.error(&subject.pointer(other), problem, "remove it");
    }
    let is_first = matches!(subject.at, "" | "/plugins/0");
    match (other, conf.has("master")) {
        ("id", false) if is_first => {
            let advice =
                "name a link of the host in `master`, or put the plugin that makes it before this one";
            report.error(subject.at, "the bridge has no port", advice);
        }
        ("id", true) if !is_first => {
            let problem = "the plugin refuses `master` after another plugin, whose interface is the port";
            report.error(&subject.pointer("master"), problem, "remove it");
        }
        _ => {}
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
