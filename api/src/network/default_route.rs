//! Routes to everywhere, which compete with the default route of the pod's own network.
//!
//! The reference plugins add a route beside one to the same destination. The newer of two IPv4 default routes
//! wins. The kernel joins two IPv6 default routes into one with two next hops. (Tried with plugins 1.9.1.)

use std::collections::BTreeSet;

use serde_json::Value;

use super::ClaimNetworkSpec;
use crate::Invalid;
use crate::addresses::{AddressPoolSpec, Family, NetworkAddresses};

/// Plugins that move the routes of the interface into a table of their own, away from those of `eth0`.
const OTHER_TABLE: [&str; 2] = ["sbr", "vrf"];

const TAKES_ALL: &str = "is the pod's default route from then on: DNS, Services and all other traffic leave by this network; write \
                         the destinations that are meant for it, if it is not meant for all";

const TAKES_HALF: &str = "is one route with two next hops together with the IPv6 default route of the pod's own network, so that \
                          half of the traffic leaves by the wrong interface: write the destinations that are meant for the \
                          network; for all of them, have the class or the claims set defaultRoute: true, or a class of \
                          spec.deviceClasses primary: true";

const NOT_CHECKED: &str = "CHECK of the reference plugins looks for the route in the main table only, and fails: write \
                           \"disableCheck\": true in spec.cni";

impl ClaimNetworkSpec {
    /// IPv6 default routes, unless pods may have it as their primary network, which has to have them.
    pub(super) fn default_route_problems(&self) -> impl Iterator<Item = Invalid> {
        let routes = if self.is_for_primary() { Vec::new() } else { self.default_routes() };
        routes.into_iter().filter(|(_, family)| *family == Family::V6).map(problem)
    }

    /// IPv4 default routes, and those of pods that have it as a second network although others have it as
    /// their primary one. `name` is the ClaimNetwork's name.
    pub(super) fn default_route_warnings(&self, name: &str) -> impl Iterator<Item = Invalid> {
        let is_for_primary = self.is_for_primary();
        let routes = if self.is_only_for_primary(name) { Vec::new() } else { self.default_routes() };
        let routes = routes.into_iter().filter(move |(_, family)| is_for_primary || *family == Family::V4);
        routes.map(move |(field, family)| {
            let second =
                if is_for_primary { "in pods whose primary network is another one, it " } else { "" };
            Invalid::new(field, format!("{second}{}", why(family)))
        })
    }

    /// Returns the warning for a network that gives no address, and so no gateway for `defaultRoute`.
    pub(super) fn no_gateway(&self) -> Option<Invalid> {
        (self.allow.default_route.is_some() && !self.gives_addresses()).then(|| {
            let problem = "the network gives no addresses, so that pods with defaultRoute have no gateway and do not start: add \
                           spec.addresses or an IPAM, or remove it";
            Invalid::new("spec.allow.defaultRoute", problem)
        })
    }

    /// Whether its attachments get addresses.
    pub(super) fn gives_addresses(&self) -> bool {
        self.addresses.is_some() || self.plugins().any(|conf| conf.contains_key("ipam"))
    }

    /// Routes in tables where the reference plugins do not find them.
    pub(super) fn table_warnings(&self) -> Vec<Invalid> {
        let inline = self.addresses.as_ref().and_then(NetworkAddresses::inline);
        let of_pool = inline.iter().flat_map(|pool| self.unchecked(pool));
        of_pool
            .map(|route| Invalid::new(format!("spec.addresses.routes[{route}].table"), NOT_CHECKED))
            .collect()
    }

    /// Returns the places of routes that CHECK would not find.
    fn unchecked(&self, pool: &AddressPoolSpec) -> Vec<usize> {
        let is_off = self.cni.get("disableCheck") == Some(&Value::Bool(true));
        let routes = pool.routes.iter().enumerate().filter(|(_, route)| route.table.is_some() && !is_off);
        routes.map(|(place, _)| place).collect()
    }

    /// Returns likely mistakes in the routes of the AddressPool that the ClaimNetwork draws from.
    pub fn route_warnings_of(&self, pool: &AddressPoolSpec) -> Vec<Invalid> {
        let routes = if self.has_table() || self.is_for_primary() { Vec::new() } else { routes_of(pool) };
        let said = |(route, family)| {
            let problem = format!("routes[{route}].dst of the pool {}", why(family));
            Invalid::new("spec.addresses.poolName", problem)
        };
        let of_table = self.unchecked(pool).into_iter().map(|route| {
            Invalid::new(
                "spec.addresses.poolName",
                format!("routes[{route}].table of the pool: {NOT_CHECKED}"),
            )
        });
        routes.into_iter().map(said).chain(of_table).collect()
    }

    /// Returns the default routes that plugins add, with their fields.
    pub(super) fn default_routes(&self) -> Vec<(String, Family)> {
        if self.has_table() {
            return Vec::new();
        }
        let inline = self.addresses.as_ref().and_then(NetworkAddresses::inline);
        let of_pool = inline.iter().flat_map(routes_of);
        let mut found: Vec<(String, Family)> =
            of_pool.map(|(route, family)| (format!("spec.addresses.routes[{route}].dst"), family)).collect();
        for (plugin, conf) in self.plugins().enumerate() {
            let at = format!("spec.cni.plugins[{plugin}]");
            let routes = conf.get("ipam").and_then(|ipam| ipam.get("routes")).and_then(Value::as_array);
            for (route, conf) in routes.into_iter().flatten().enumerate() {
                // A route of another table or metric does not compete with that of `eth0`.
                let is_apart = ["table", "priority"].iter().any(|key| conf.get(key).is_some());
                let dst = conf.get("dst").and_then(Value::as_str).filter(|_| !is_apart);
                let family = dst.and_then(to_everywhere);
                found.extend(family.map(|family| (format!("{at}.ipam.routes[{route}].dst"), family)));
            }
            if conf.get("isDefaultGateway") == Some(&Value::Bool(true)) {
                let of_pool = inline.iter().flat_map(|pool| pool.families());
                let families: BTreeSet<Family> = of_pool.chain(conf.get("ipam").and_then(ipv6_of)).collect();
                let families = if families.is_empty() { BTreeSet::from([Family::V4]) } else { families };
                found.extend(families.into_iter().map(|family| (format!("{at}.isDefaultGateway"), family)));
            }
        }
        found
    }

    fn has_table(&self) -> bool {
        self.plugin_types().iter().any(|plugin| OTHER_TABLE.contains(plugin))
    }
}

fn problem((field, family): (String, Family)) -> Invalid {
    Invalid::new(field, why(family))
}

fn why(family: Family) -> &'static str {
    match family {
        Family::V4 => TAKES_ALL,
        Family::V6 => TAKES_HALF,
    }
}

/// Returns the default routes of a pool by their places.
fn routes_of(pool: &AddressPoolSpec) -> Vec<(usize, Family)> {
    let routes =
        pool.routes.iter().enumerate().filter(|(_, route)| route.dst.prefix_len() == 0 && !route.is_apart());
    routes.map(|(place, route)| (place, Family::of(route.dst.addr()))).collect()
}

/// Returns IPv6 if an `ipam` names an IPv6 address or subnet.
fn ipv6_of(ipam: &Value) -> Option<Family> {
    let is_ipv6 =
        |text: &str| text.parse::<ipnet::Ipv6Net>().is_ok() || text.parse::<std::net::Ipv6Addr>().is_ok();
    let has_ipv6 = match ipam {
        Value::String(text) => is_ipv6(text),
        Value::Array(items) => items.iter().any(|item| ipv6_of(item).is_some()),
        Value::Object(items) => items.values().any(|item| ipv6_of(item).is_some()),
        _ => false,
    };
    has_ipv6.then_some(Family::V6)
}

/// Returns the family of a destination that is everywhere. What claims may choose is not known here.
pub(super) fn to_everywhere(dst: &str) -> Option<Family> {
    let dst: ipnet::IpNet = dst.parse().ok()?;
    (dst.prefix_len() == 0).then(|| Family::of(dst.addr()))
}
