//! The reference plugins, release 1.9.1, and netclaim's: the keys that each reads (the structs of its Go
//! source), its role and its rule.

use super::form::{Form, Key};
use super::ipam_rules;
use super::rules::{self, BANDWIDTH_PLUGIN, LINK_PLUGIN, ROUTE_PLUGIN, Rule};
use crate::version::SpecVersion;

use Form::{
    Address, Any, Bool, Cidr, Int, Link, List, Mac, Map, Mtu, NewLink, Object, OneOf, Path, Text, Usual,
};
use Ipam::{Optional, Required, Unused};
use Role::{Chained, Interface, IpamOnly, Other};

/// Highest VLAN id; 0 is none.
const VLAN_MAX: i128 = 4094;
const U32: Form = Int(0, u32::MAX as i128);
/// Number of a routing table.
const TABLE: Form = Usual(0, u32::MAX as i128);
const U64: Form = Int(0, u64::MAX as i128);
const INT: Form = Int(i64::MIN as i128, i64::MAX as i128);
const NATURAL: Form = Usual(0, i32::MAX as i128);

/// A plugin whose keys are known.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) keys: &'static [Key],
    pub(super) ipam: Ipam,
    /// Capability arguments it reads.
    pub(super) capabilities: &'static [&'static str],
    /// The oldest version it answers to.
    pub(super) since: SpecVersion,
    /// Checks settings that depend on each other.
    pub(super) rule: Rule,
}

/// The place of a plugin in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Makes the interface: stands first, and alone of its kind.
    Interface,
    /// Works on the result of the plugins before it.
    Chained,
    /// Called by another plugin through `ipam`.
    IpamOnly,
    /// May stand anywhere.
    Other,
}

/// Whether a plugin delegates to an IPAM plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ipam {
    Required,
    Optional,
    Unused,
}

/// The keys every plugin object may have.
pub(super) const COMMON: &[Key] = &[
    // The frame looks at these.
    ("type", Any),
    ("name", Any),
    ("cniVersion", Any),
    ("capabilities", Any),
    ("ipam", Any),
    ("dns", DNS),
];

const DNS: Form = Object(&[
    ("nameservers", List(&Text)),
    ("domain", Text),
    ("search", List(&Text)),
    ("options", List(&Text)),
]);

const ROUTES: Form = List(&Object(ROUTE));
const ROUTE: &[Key] = &[
    ("dst", Cidr),
    ("gw", Address),
    // The runtime reads them in the result.
    ("mtu", U32),
    ("advmss", U32),
    ("priority", U32),
    ("table", U32),
    ("scope", Usual(0, 255)),
];
const RANGE: &[Key] =
    &[("subnet", Cidr), ("rangeStart", Address), ("rangeEnd", Address), ("gateway", Address)];
const RATES: &[Key] =
    &[("ingressRate", U64), ("ingressBurst", U64), ("egressRate", U64), ("egressBurst", U64)];
const MASQ_BACKENDS: Form = OneOf(&["iptables", "nftables"]);

const fn plugin(name: &'static str, role: Role, ipam: Ipam, keys: &'static [Key], rule: Rule) -> Plugin {
    Plugin { name, role, keys, ipam, capabilities: &[], since: SpecVersion::V0_1_0, rule }
}

/// The reference plugins.
pub(super) const ALL: &[Plugin] = &[
    Plugin {
        capabilities: &["mac"],
        ..plugin(
            "bridge",
            Interface,
            Optional,
            &[
                ("bridge", NewLink),
                ("isGateway", Bool),
                ("isDefaultGateway", Bool),
                ("forceAddress", Bool),
                ("ipMasq", Bool),
                ("ipMasqBackend", MASQ_BACKENDS),
                ("mtu", Mtu),
                ("hairpinMode", Bool),
                ("promiscMode", Bool),
                ("vlan", Int(0, VLAN_MAX)),
                (
                    "vlanTrunk",
                    List(&Object(&[
                        ("id", Int(1, VLAN_MAX)),
                        ("minID", Int(1, VLAN_MAX)),
                        ("maxID", Int(1, VLAN_MAX)),
                    ])),
                ),
                ("preserveDefaultVlan", Bool),
                ("macspoofchk", Bool),
                ("enabledad", Bool),
                ("disableContainerInterface", Bool),
                ("portIsolation", Bool),
            ],
            rules::bridge,
        )
    },
    Plugin {
        capabilities: &["mac"],
        ..plugin(
            "macvlan",
            Interface,
            Optional,
            &[
                ("master", Link),
                ("mode", OneOf(&["", "bridge", "private", "vepa", "passthru"])),
                ("mtu", Mtu),
                ("mac", Mac),
                ("linkInContainer", Bool),
                ("bcqueuelen", U32),
            ],
            rules::shared_master,
        )
    },
    plugin(
        "ipvlan",
        Interface,
        Optional,
        &[
            ("master", Link),
            ("mode", OneOf(&["", "l2", "l3", "l3s"])),
            ("mtu", Mtu),
            ("linkInContainer", Bool),
        ],
        rules::shared_master,
    ),
    plugin(
        "vlan",
        Interface,
        Required,
        &[("master", Link), ("vlanId", Int(0, VLAN_MAX)), ("mtu", Mtu), ("linkInContainer", Bool)],
        rules::vlan,
    ),
    Plugin {
        capabilities: &["deviceID"],
        ..plugin(
            "host-device",
            Interface,
            Optional,
            &[("device", Link), ("hwaddr", Mac), ("kernelpath", Text), ("pciBusID", Text)],
            rules::host_device,
        )
    },
    plugin(
        "ptp",
        Interface,
        Required,
        &[("ipMasq", Bool), ("ipMasqBackend", MASQ_BACKENDS), ("mtu", Mtu)],
        rules::masquerade,
    ),
    Plugin {
        capabilities: &["mac"],
        ..plugin(
            "tap",
            Interface,
            Optional,
            &[
                ("multiQueue", Bool),
                ("mtu", Mtu),
                ("mac", Mac),
                ("owner", U32),
                ("group", U32),
                ("selinuxContext", Text),
                ("bridge", Link),
            ],
            rules::none,
        )
    },
    plugin("dummy", Interface, Required, &[], rules::none),
    plugin("loopback", Other, Unused, &[], rules::none),
    Plugin {
        capabilities: &["ips", "ipRanges"],
        ..plugin(
            "host-local",
            IpamOnly,
            Unused,
            &[
                ("subnet", Cidr),
                ("rangeStart", Address),
                ("rangeEnd", Address),
                ("gateway", Address),
                ("ranges", List(&List(&Object(RANGE)))),
                ("routes", ROUTES),
                ("dataDir", Path),
                ("resolvConf", Path),
            ],
            ipam_rules::host_local,
        )
    },
    Plugin {
        capabilities: &["ips"],
        ..plugin(
            "static",
            IpamOnly,
            Unused,
            &[
                ("addresses", List(&Object(&[("address", Cidr), ("gateway", Address)]))),
                ("routes", ROUTES),
                ("dns", DNS),
            ],
            ipam_rules::fixed_addresses,
        )
    },
    plugin(
        "dhcp",
        IpamOnly,
        Unused,
        &[
            ("daemonSocketPath", Path),
            ("provide", List(&Object(&[("option", Text), ("value", Text), ("fromArg", Text)]))),
            ("request", List(&Object(&[("skipDefault", Bool), ("option", Text)]))),
            ("priority", INT),
        ],
        ipam_rules::dhcp,
    ),
    Plugin {
        capabilities: &["mac"],
        ..plugin(
            "tuning",
            Chained,
            Unused,
            &[
                ("dataDir", Path),
                ("sysctl", Map),
                ("mac", Mac),
                ("promisc", Bool),
                ("mtu", Mtu),
                ("txQLen", NATURAL),
                ("allmulti", Bool),
            ],
            rules::tuning,
        )
    },
    plugin("sbr", Chained, Unused, &[("table", TABLE)], rules::none),
    Plugin {
        since: SpecVersion::V0_3_1,
        ..plugin("vrf", Chained, Unused, &[("vrfname", Link), ("table", U32)], rules::vrf)
    },
    Plugin {
        capabilities: &["bandwidth"],
        since: SpecVersion::V0_3_0,
        ..plugin("bandwidth", Chained, Unused, RATES, rules::bandwidth)
    },
    Plugin {
        since: SpecVersion::V0_4_0,
        ..plugin(
            "firewall",
            Chained,
            Unused,
            &[
                ("backend", OneOf(&["", "iptables", "firewalld"])),
                ("iptablesAdminChainName", Text),
                ("firewalldZone", Text),
                ("ingressPolicy", OneOf(&["", "open", "same-bridge", "isolated"])),
            ],
            rules::none,
        )
    },
    Plugin {
        capabilities: &["portMappings"],
        ..plugin(
            "portmap",
            Chained,
            Unused,
            &[
                ("backend", MASQ_BACKENDS),
                ("snat", Bool),
                ("conditionsV4", List(&Text)),
                ("conditionsV6", List(&Text)),
                ("masqAll", Bool),
                ("markMasqBit", Int(0, 31)),
                ("externalSetMarkChain", Text),
            ],
            rules::portmap,
        )
    },
];

const SHAPER_OF_ANY_LINK: Plugin = Plugin {
    capabilities: &["bandwidth"],
    since: SpecVersion::V0_3_0,
    ..plugin(BANDWIDTH_PLUGIN, Chained, Unused, RATES, rules::shaper)
};

const DEFAULT_ROUTE: Plugin = Plugin {
    since: SpecVersion::V0_3_0,
    ..plugin(
        ROUTE_PLUGIN,
        Chained,
        Unused,
        &[("keep", List(&Cidr)), ("interface", Link), ("table", TABLE)],
        rules::route,
    )
};

const LINKS_OF_A_HOST: Plugin = Plugin {
    since: SpecVersion::V0_3_0,
    ..plugin(
        LINK_PLUGIN,
        Other,
        Unused,
        &[
            ("kind", OneOf(&["vlan", "bridge"])),
            ("master", NewLink),
            ("id", Int(1, VLAN_MAX)),
            ("bridge", NewLink),
            ("mtu", Int(68, 65535)),
        ],
        rules::link,
    )
};

pub(super) fn find(name: &str) -> Option<&'static Plugin> {
    ALL.iter()
        .chain([&SHAPER_OF_ANY_LINK, &DEFAULT_ROUTE, &LINKS_OF_A_HOST])
        .find(|plugin| plugin.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde::Deserialize;

    use super::*;
    use crate::keys::is_reserved;

    /// Keys, and those below each.
    #[derive(Default, Deserialize)]
    #[serde(transparent)]
    struct Tree(BTreeMap<String, Tree>);

    impl Tree {
        fn without(mut self, left_out: impl Fn(&str) -> bool) -> Self {
            self.0.retain(|key, _| !left_out(key));
            self
        }

        fn take(&mut self, key: &str) -> Self {
            self.0.remove(key).unwrap_or_default()
        }

        fn paths(&self) -> BTreeSet<String> {
            let below = |(key, tree): (&String, &Self)| {
                let mut paths: BTreeSet<_> =
                    tree.paths().iter().map(|path| format!("{key}.{path}")).collect();
                paths.insert(key.clone());
                paths
            };
            self.0.iter().flat_map(below).collect()
        }
    }

    fn tree(keys: &[Key]) -> Tree {
        fn below(form: &Form) -> Tree {
            match form {
                Form::List(form) => below(form),
                Form::Object(keys) => tree(keys),
                _ => Tree::default(),
            }
        }
        Tree(keys.iter().map(|(key, form)| ((*key).to_owned(), below(form))).collect())
    }

    #[test]
    fn the_keys_of_every_plugin_are_those_of_its_source() {
        let mut source: BTreeMap<String, Tree> =
            serde_json::from_str(include_str!("../../tests/plugin-keys.json")).unwrap();
        for plugin in ALL {
            let mut of_source =
                source.remove(plugin.name).unwrap_or_else(|| panic!("{} is gone", plugin.name));
            let capabilities: BTreeSet<_> = of_source.take("runtimeConfig").0.into_keys().collect();
            assert_eq!(
                capabilities,
                plugin.capabilities.iter().map(|name| (*name).to_owned()).collect(),
                "{}",
                plugin.name
            );
            let of_source = if plugin.role == IpamOnly {
                of_source.take("ipam").without(|key| key == "type")
            } else {
                let dns = of_source.take("dns");
                let (_, known) = COMMON.iter().find(|(key, _)| *key == "dns").unwrap();
                assert_eq!(tree(&[("dns", *known)]).take("dns").paths(), dns.paths());
                of_source.without(|key| is_reserved(key) || COMMON.iter().any(|(common, _)| *common == key))
            };
            assert_eq!(tree(plugin.keys).paths(), of_source.paths(), "{}", plugin.name);
        }
        assert!(source.is_empty(), "not known: {:?}", source.keys());
    }
}
