//! The kernel's messages about routes, rules and addresses, encoded and decoded.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_plugin::rtnl::{Body, attribute, u32_at};
use nix::libc::{self, RT_SCOPE_LINK, RT_SCOPE_UNIVERSE, RT_TABLE_MAIN, RT_TABLE_UNSPEC};
use nix::libc::{
    RTA_DST, RTA_GATEWAY, RTA_METRICS, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE,
};
use nix::libc::{RTA_VIA, RTN_UNICAST};

/// The routing protocol of all routes and rules of the plugin: none of those that linux/rtnetlink.h or
/// iproute2 know.
const OURS: u8 = 110;
/// The rule with the lower number is first: before the one of the main table, 32766.
const RULE_PRIORITY: u32 = 4711;

/// sizeof(struct rtmsg), sizeof(struct rtnexthop), sizeof(struct ifaddrmsg), sizeof(struct fib_rule_hdr).
const RTMSG: usize = 12;
const RTNEXTHOP: usize = 8;
const IFADDRMSG: usize = 8;
const RULE_HEADER: usize = 12;
/// linux/rtnetlink.h: the next hop counts as reachable by the device.
const RTNH_F_ONLINK: u32 = 4;
const RTPROT_RA: u8 = 9;
// linux/fib_rules.h, as far as the libc crate lacks it.
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
const FR_ACT_TO_TBL: u8 = 1;

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) const fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    const fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::V4 { "IPv4" } else { "IPv6" })
    }
}

/// A unicast route with one next hop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    family: Family,
    prefix_len: u8,
    tos: u8,
    pub(crate) table: u32,
    protocol: u8,
    scope: u8,
    is_onlink: bool,
    /// Destination, metric, link, gateway, preferred source, and metrics as the kernel encodes them.
    attributes: BTreeMap<u16, Vec<u8>>,
}

/// The parts of a route's copy.
const COPIED: [u16; 7] = [RTA_DST, RTA_PRIORITY, RTA_OIF, RTA_GATEWAY, RTA_VIA, RTA_PREFSRC, RTA_METRICS];

impl Route {
    /// A default route of the plugin's.
    pub(crate) fn default_by(link: u32, gateway: IpAddr, metric: u32) -> Self {
        let attributes = [
            (RTA_OIF, link.to_ne_bytes().to_vec()),
            (RTA_GATEWAY, bytes(gateway)),
            (RTA_PRIORITY, metric.to_ne_bytes().to_vec()),
        ];
        Self {
            family: Family::of(gateway),
            prefix_len: 0,
            tos: 0,
            table: RT_TABLE_MAIN.into(),
            protocol: OURS,
            scope: RT_SCOPE_UNIVERSE,
            is_onlink: true,
            attributes: attributes.into(),
        }
    }

    /// Decodes the kernel's description of a route, one for each next hop; none unless it is a unicast route
    /// of the family.
    pub(crate) fn decode(message: &[u8], family: Family) -> Vec<Self> {
        let (Some(&[of, prefix_len, _, tos, table, protocol, scope, kind]), Some(flags), Some(rest)) =
            (message.first_chunk(), u32_at(message, 8), message.get(RTMSG..))
        else {
            return Vec::new();
        };
        if of != family.number() || kind != RTN_UNICAST {
            return Vec::new();
        }
        let copied = |within| {
            let value = move |kind: u16| Some((kind, attribute(within, kind)?.to_vec()));
            COPIED.into_iter().filter_map(value)
        };
        let route = Self {
            family,
            prefix_len,
            tos,
            table: attribute(rest, RTA_TABLE)
                .and_then(|table| u32_at(table, 0))
                .unwrap_or_else(|| table.into()),
            protocol,
            scope,
            is_onlink: flags & RTNH_F_ONLINK != 0,
            attributes: copied(rest).collect(),
        };
        let Some(mut hops) = attribute(rest, RTA_MULTIPATH) else { return vec![route] };
        let mut routes = Vec::new();
        while let (Some(&[low, high, flags, _]), Some(link)) = (hops.first_chunk(), hops.get(4..RTNEXTHOP)) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some(attributes) = hops.get(RTNEXTHOP..length) else { break };
            let mut hop = route.clone();
            hop.is_onlink = u32::from(flags) & RTNH_F_ONLINK != 0;
            hop.attributes.extend(copied(attributes).chain([(RTA_OIF, link.to_vec())]));
            routes.push(hop);
            hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        routes
    }

    pub(crate) fn encode(&self) -> Body {
        let Self { family, prefix_len, tos, table, protocol, scope, is_onlink, attributes } = self;
        let short = u8::try_from(*table).unwrap_or(RT_TABLE_UNSPEC);
        let mut header = [0; RTMSG];
        header[..8].copy_from_slice(&[
            family.number(),
            *prefix_len,
            0,
            *tos,
            short,
            *protocol,
            *scope,
            RTN_UNICAST,
        ]);
        let flags = if *is_onlink { RTNH_F_ONLINK } else { 0 };
        header[8..].copy_from_slice(&flags.to_ne_bytes());
        let body = Body::new(&header).with(RTA_TABLE, &table.to_ne_bytes());
        attributes.iter().fold(body, |body, (kind, value)| body.with(*kind, value))
    }

    /// A copy of the plugin's, in this table.
    pub(crate) fn copy_to(&self, table: u32) -> Self {
        // A gateway may be reachable by the link only.
        let has_gateway = [RTA_GATEWAY, RTA_VIA].iter().any(|kind| self.attributes.contains_key(kind));
        Self { table, protocol: OURS, is_onlink: has_gateway, ..self.clone() }.with_metric(None)
    }

    /// The same way to `prefix`.
    pub(crate) fn copy_for(&self, prefix: IpNet) -> Self {
        let mut copy = self.copy_to(self.table);
        copy.prefix_len = prefix.prefix_len();
        copy.attributes.insert(RTA_DST, bytes(prefix.network()));
        copy
    }

    /// The same route with another metric, or with the kernel's default.
    pub(crate) fn with_metric(&self, metric: Option<u32>) -> Self {
        let mut route = self.clone();
        route.attributes.remove(&RTA_PRIORITY);
        route.attributes.extend(metric.map(|metric| (RTA_PRIORITY, metric.to_ne_bytes().to_vec())));
        route
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.protocol == OURS
    }

    pub(crate) fn is_advertised(&self) -> bool {
        self.protocol == RTPROT_RA
    }

    pub(crate) fn is_main(&self) -> bool {
        self.table == u32::from(RT_TABLE_MAIN)
    }

    pub(crate) fn is_default(&self) -> bool {
        self.prefix_len == 0 && self.tos == 0 && self.is_main()
    }

    pub(crate) fn is_to(&self, prefix: IpNet) -> bool {
        let dst = self.attributes.get(&RTA_DST);
        self.prefix_len == prefix.prefix_len() && dst == Some(&bytes(prefix.network()))
    }

    pub(crate) fn link(&self) -> Option<u32> {
        self.attributes.get(&RTA_OIF).and_then(|link| u32_at(link, 0))
    }

    pub(crate) fn has_gateway(&self, gateway: IpAddr) -> bool {
        self.attributes.get(&RTA_GATEWAY) == Some(&bytes(gateway))
    }

    pub(crate) fn metric(&self) -> u32 {
        self.attributes.get(&RTA_PRIORITY).and_then(|metric| u32_at(metric, 0)).unwrap_or_default()
    }
}

fn bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// Asks for all routes, rules or addresses of a family.
pub(crate) fn all(family: Family) -> Body {
    let mut header = [0; RTMSG];
    header[0] = family.number();
    Body::new(&header)
}

/// Returns the address in the kernel's description if it is one of the link that others can reach.
pub(crate) fn address(message: &[u8], family: Family, link: u32) -> Option<IpAddr> {
    let (of, scope) = (*message.first()?, *message.get(3)?);
    let attributes = message.get(IFADDRMSG..)?;
    let found =
        attribute(attributes, libc::IFA_LOCAL).or_else(|| attribute(attributes, libc::IFA_ADDRESS))?;
    let is_it = of == family.number() && scope < RT_SCOPE_LINK && u32_at(message, 4)? == link;
    ip(found).filter(|_| is_it)
}

/// A rule of the plugin's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The source address.
    pub(crate) from: IpAddr,
    /// Where routes of packets with this source address are looked up.
    pub(crate) table: u32,
}

impl Rule {
    /// Decodes the kernel's description of a rule of the family, if it is the plugin's.
    pub(crate) fn decode(message: &[u8], family: Family) -> Option<Self> {
        let attributes = message.get(RULE_HEADER..)?;
        let is_ours = attribute(attributes, FRA_PROTOCOL)? == [OURS] && *message.first()? == family.number();
        let (from, table) = (attribute(attributes, FRA_SRC)?, attribute(attributes, FRA_TABLE)?);
        Some(Self { from: ip(from)?, table: u32_at(table, 0)? }).filter(|_| is_ours)
    }

    pub(crate) fn encode(self) -> Body {
        let from = bytes(self.from);
        // struct fib_rule_hdr: family, dst_len, src_len, tos, table, two reserved, action, flags.
        let mut header = [0; RULE_HEADER];
        header[0] = Family::of(self.from).number();
        header[2] = from.len() as u8 * 8;
        header[7] = FR_ACT_TO_TBL;
        Body::new(&header)
            .with(FRA_SRC, &from)
            .with(FRA_TABLE, &self.table.to_ne_bytes())
            .with(FRA_PRIORITY, &RULE_PRIORITY.to_ne_bytes())
            .with(FRA_PROTOCOL, &[OURS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_route_and_rule_are_decoded_to_the_same() {
        for (gateway, family) in [("10.9.0.1", Family::V4), ("fd00:9::1", Family::V6)] {
            let gateway: IpAddr = gateway.parse().expect("an address");
            let route = Route::default_by(7, gateway, 512);
            assert_eq!(Route::decode(route.encode().as_bytes(), family), std::slice::from_ref(&route));
            assert!(route.is_default() && route.is_ours() && route.has_gateway(gateway));
            let copy = route.copy_to(4711);
            assert_eq!(Route::decode(copy.encode().as_bytes(), family), [copy]);
            let rule = Rule { from: gateway, table: 4711 };
            assert_eq!(Rule::decode(rule.encode().as_bytes(), family), Some(rule));
        }
    }

    #[test]
    fn a_message_that_is_cut_off_is_not_a_route() {
        let route = Route::default_by(7, "10.9.0.1".parse().expect("an address"), 0).encode();
        for length in 0..RTMSG {
            assert_eq!(Route::decode(&route.as_bytes()[..length], Family::V4), []);
        }
        for length in RTMSG..route.as_bytes().len() {
            Route::decode(&route.as_bytes()[..length], Family::V4);
        }
    }
}
