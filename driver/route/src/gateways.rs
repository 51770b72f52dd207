//! The gateways of an interface, as the plugins before this one report them.

use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_plugin::{Config, Failure};
use serde::Deserialize;

/// The main table's number, which a result may name.
const MAIN: u32 = 254;

#[derive(Deserialize)]
struct Reported {
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    ips: Vec<Ip>,
    #[serde(default)]
    routes: Vec<Route>,
}

#[derive(Deserialize)]
struct Interface {
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Deserialize)]
struct Ip {
    address: IpNet,
    gateway: Option<IpAddr>,
    interface: Option<usize>,
}

#[derive(Deserialize)]
struct Route {
    dst: IpNet,
    gw: Option<IpAddr>,
    table: Option<u32>,
}

/// Returns a gateway for each family in which the interface has an address, at least one.
pub(crate) fn gateways(config: &Config, interface: &str) -> Result<Vec<IpAddr>, Failure> {
    let result = serde_json::from_str(config.require_result()?);
    let result = result.map_err(|error| Failure::config("prevResult", error.to_string()))?;
    let found = of(&result, interface);
    if found.is_empty() {
        let problem = format!(
            "{interface} has no gateway: have the network's IPAM give one with the address, as `gateway` of its subnet or of spec.addresses, \
             or do without defaultRoute"
        );
        return Err(Failure::config("prevResult", problem));
    }
    Ok(found)
}

fn of(result: &Reported, interface: &str) -> Vec<IpAddr> {
    let is_its = |ip: &&Ip| {
        let of = ip.interface.and_then(|index| result.interfaces.get(index));
        of.is_none_or(|of| of.name == interface && !of.sandbox.is_empty())
    };
    let ips: Vec<&Ip> = result.ips.iter().filter(is_its).collect();
    let is_main = |route: &&Route| route.table.is_none_or(|table| table == MAIN);
    let defaults = || result.routes.iter().filter(is_main).filter(|route| route.dst.prefix_len() == 0);
    let one = |is_v4: bool| {
        let is_family = |ip: &IpAddr| ip.is_ipv4() == is_v4 && !ip.is_unspecified();
        let mut ips = ips.iter().filter(|ip| ip.address.addr().is_ipv4() == is_v4).peekable();
        ips.peek()?;
        let of_routes = defaults().filter_map(|route| route.gw);
        of_routes.chain(ips.filter_map(|ip| ip.gateway)).find(is_family)
    };
    [true, false].into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(result: Value) -> Vec<String> {
        let result: Reported = serde_json::from_value(result).expect("decodes");
        of(&result, "net1").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_gateway_of_a_default_route_goes_before_that_of_an_address() {
        let ip = json!({"address": "10.9.0.2/24", "gateway": "10.9.0.1"});
        assert_eq!(found(json!({"ips": [ip]})), ["10.9.0.1"]);
        let route = |dst: &str| json!({"dst": dst, "gw": "10.9.0.254"});
        assert_eq!(found(json!({"ips": [ip], "routes": [route("0.0.0.0/0")]})), ["10.9.0.254"]);
        assert_eq!(
            found(json!({"ips": [ip], "routes": [route("10.8.0.0/16"), {"dst": "0.0.0.0/0"}]})),
            ["10.9.0.1"]
        );
        let elsewhere = json!({"dst": "0.0.0.0/0", "gw": "10.9.0.254", "table": 100});
        assert_eq!(found(json!({"ips": [ip], "routes": [elsewhere]})), ["10.9.0.1"]);
    }

    #[test]
    fn each_family_with_address_and_gateway_counts() {
        let v6 = json!({"address": "fd00:9::2/64", "gateway": "fd00:9::1"});
        let both = json!({"ips": [v6, {"version": "4", "address": "10.9.0.2/24", "gateway": "10.9.0.1"}]});
        assert_eq!(found(both), ["10.9.0.1", "fd00:9::1"]);
        let one = json!({"ips": [v6, {"address": "10.9.0.2/24"}], "routes": [{"dst": "10.0.0.0/8", "gw": "10.9.0.1"}]});
        assert_eq!(found(one), ["fd00:9::1"]);
        assert_eq!(found(json!({"ips": [{"address": "10.9.0.2/24"}]})), [""; 0]);
        assert_eq!(
            found(json!({"routes": [{"dst": "::/0", "gw": "fd00:9::1"}]})),
            [""; 0],
            "without an address"
        );
    }

    #[test]
    fn addresses_of_other_interfaces_and_of_the_host_do_not_count() {
        let interfaces =
            json!([{"name": "net1"}, {"name": "net1", "sandbox": "/x"}, {"name": "net2", "sandbox": "/x"}]);
        let ip = |index: usize| json!({"address": "10.9.0.2/24", "gateway": format!("10.9.0.{}", index + 1), "interface": index});
        assert_eq!(found(json!({"interfaces": interfaces, "ips": [ip(0), ip(2), ip(1)]})), ["10.9.0.2"]);
    }
}
