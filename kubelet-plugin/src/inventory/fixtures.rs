//! Links and uplinks for the tests of this crate.

use netclaim_api::LinkUse;
use netclaim_api::attribute::DeclaredAttributes;
use netclaim_driver::links::{Link, OperState};

use super::Uplink;

/// A NIC that is up.
pub(crate) fn link(name: &str) -> Link {
    Link {
        index: 2,
        name: name.into(),
        mac: Some("02:00:00:00:00:01".into()),
        mtu: 1500,
        admin_up: true,
        oper: OperState::Up,
        carrier: true,
        speed: Some(10_000_000_000),
        driver: Some("ixgbe".into()),
        ..Link::default()
    }
}

/// The same as an uplink in all modes.
pub(crate) fn uplink(name: &str) -> Uplink {
    let link = link(name);
    Uplink {
        name: name.parse().expect("a name"),
        modes: [LinkUse::Nic, LinkUse::Macvlan, LinkUse::Ipvlan].into(),
        when_named: None,
        carries: None,
        stacked: Vec::new(),
        bridge: None,
        declared: DeclaredAttributes::new(),
        bandwidth: link.speed.map(netclaim_api::Quantity::new),
        link,
    }
}
