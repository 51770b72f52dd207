//! Sets, checks and removes the container's default routes.

use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_plugin::rtnl::u32_at;
use netclaim_plugin::{Failure, Requests, link};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use nix::errno::Errno;
use nix::libc::{
    RTM_DELROUTE, RTM_DELRULE, RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE, RTM_GETRULE, RTM_NEWROUTE, RTM_NEWRULE,
};

use crate::messages::{self, Family, Route, Rule};

/// The metric of the first interface's default routes, worse than any that a kernel or CNI chooses.
const WORSE: u32 = 4096;
/// The codes of an ADD that the container's routes forbid, and of a CHECK that finds something else than ADD
/// made.
const REFUSED: u32 = 102;
const DIFFERS: u32 = 101;
const LOOK: &str = "read the container's routes";
const REMOVE: &str = "remove its default route";
const RULES: Option<&str> = Some("CONFIG_IP_MULTIPLE_TABLES, and CONFIG_IPV6_MULTIPLE_TABLES for IPv6");

/// The metric of the plugin's default routes: better than that of others, which is 1024 in IPv6.
const fn our_metric(family: Family) -> u32 {
    match family {
        Family::V4 => 0,
        Family::V6 => 512,
    }
}

/// The container whose network namespace is the calling thread's.
#[derive(Debug)]
pub(crate) struct Container {
    kernel: Requests,
    /// Index of the interface that gets the default routes.
    link: u32,
    /// Name and index of the container's first interface.
    first: (String, Option<u32>),
}

impl Container {
    pub(crate) fn open(interface: &str, first: &str) -> Result<Self, Failure> {
        let mut kernel = Requests::open(interface, LOOK)?;
        let link = index(&mut kernel, LOOK, interface)?.ok_or_else(|| Failure::no_interface(interface))?;
        let first = (first.to_owned(), index(&mut kernel, LOOK, first)?);
        Ok(Self { kernel, link, first })
    }

    /// Has the default route of the gateway's family go by the interface, and what is to be kept by the
    /// container's first one.
    pub(crate) fn lead(&mut self, gateway: IpAddr, keep: &[IpNet], table: u32) -> Result<(), Failure> {
        let family = Family::of(gateway);
        let routes = routes(&mut self.kernel, family)?;
        self.refuse(&routes, family)?;
        let (of_first, others) = self.defaults(&routes);
        if let (Some(way), Some(first)) = (of_first.first(), self.first.1) {
            for prefix in missing(keep, &routes, family) {
                self.add("keep a route of the first interface", &way.copy_for(prefix))?;
            }
            // Routes of the first interface that the plugin has not added.
            let own = routes.iter().filter(|route| route.link() == Some(first) && route.is_main());
            for route in own.filter(|route| !route.is_ours()) {
                self.add("copy a route of the first interface", &route.copy_to(table))?;
            }
            for from in self.first_addresses(family)? {
                let (request, rule) =
                    ((RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL), Rule { from, table }.encode());
                self.kernel.ask(
                    "add a rule for the first interface",
                    RULES,
                    request,
                    &rule,
                    &[Errno::EEXIST],
                )?;
            }
        }
        // No container runs yet: no process sees the routes between here and the end.
        let ours = Route::default_by(self.link, gateway, our_metric(family));
        let is_it = |route: &Route| is_our_default(route, self.link, gateway);
        let of_interface = others.iter().filter(|route| route.link() == Some(self.link));
        // An advertised one is that of a router, which sends it again.
        for route in of_interface.filter(|route| !is_it(route) && !route.is_advertised()) {
            delete(&mut self.kernel, "replace its default route", route)?;
        }
        if !best(&routes).is_some_and(is_it) {
            // It would stay behind the others of its metric.
            delete(&mut self.kernel, "replace its default route", &ours)?;
            self.add("add a default route", &ours)?;
        }
        for route in of_first.iter().filter(|route| route.metric() <= our_metric(family)) {
            const ACTION: &str = "give the first interface's default route a worse metric";
            self.add(ACTION, &route.with_metric(Some(WORSE)))?;
            delete(&mut self.kernel, ACTION, route)?;
        }
        Ok(())
    }

    /// Returns the default routes of the first interface, and those of others.
    fn defaults(&self, routes: &[Route]) -> (Vec<Route>, Vec<Route>) {
        let defaults = routes.iter().filter(|route| route.is_default()).cloned();
        defaults.partition(|route| self.first.1.is_some_and(|first| route.link() == Some(first)))
    }

    /// Refuses to take the default route of another interface than is known.
    fn refuse(&self, routes: &[Route], family: Family) -> Result<(), Failure> {
        let mut others = routes.iter().filter(|route| route.is_default() && route.link() != Some(self.link));
        if others.clone().any(Route::is_ours) {
            return Err(refused(
                &self.kernel,
                format!(
                    "another interface of the pod has the {family} default route by defaultRoute already: one of a family can have it"
                ),
            ));
        }
        let first = &self.first.0;
        match (self.first.1, others.next().and_then(Route::link)) {
            (None, Some(link)) => Err(refused(
                &self.kernel,
                format!(
                    "the container has no interface {first}, and the {family} default route leaves by the interface of index {link}: write the name \
                 of the container's first interface into `interface`"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Compares the container's routes with those that [`lead`](Self::lead) makes.
    pub(crate) fn check(&mut self, gateway: IpAddr, keep: &[IpNet]) -> Result<(), Failure> {
        let family = Family::of(gateway);
        let routes = routes(&mut self.kernel, family)?;
        if !best(&routes).is_some_and(|route| is_our_default(route, self.link, gateway)) {
            return Err(differs(
                &self.kernel,
                format!(
                    "the {family} default route does not leave by it via {gateway}; another network or a process in the pod has changed it"
                ),
            ));
        }
        if self.defaults(&routes).0.is_empty() {
            return Ok(());
        }
        let first = self.first.0.clone();
        if let Some(prefix) = missing(keep, &routes, family).first() {
            return Err(differs(&self.kernel, format!("{prefix} is kept by no route of {first}")));
        }
        let rules = rules(&mut self.kernel, family)?;
        let mut addresses = self.first_addresses(family)?.into_iter();
        match addresses.find(|address| !rules.iter().any(|rule| rule.from == *address)) {
            Some(address) => Err(differs(&self.kernel, format!("there is no rule for {address} of {first}"))),
            None => Ok(()),
        }
    }

    /// Addresses of the first interface that others can reach.
    fn first_addresses(&mut self, family: Family) -> Result<Vec<IpAddr>, Failure> {
        let Some(first) = self.first.1 else { return Ok(Vec::new()) };
        let request = (RTM_GETADDR, NLM_F_DUMP);
        let found =
            self.kernel.ask("read the container's addresses", None, request, &messages::all(family), &[])?;
        Ok(found.iter().filter_map(|message| messages::address(message, family, first)).collect())
    }

    fn add(&mut self, action: &'static str, route: &Route) -> Result<(), Failure> {
        let request = (RTM_NEWROUTE, NLM_F_CREATE);
        self.kernel.ask(action, None, request, &route.encode(), &[Errno::EEXIST]).map(drop)
    }
}

/// Removes the default routes of an interface, and with the last one of a family all else that the plugin
/// has made for the family. The interface may be gone.
pub(crate) fn remove(interface: &str) -> Result<(), Failure> {
    let mut kernel = Requests::open(interface, REMOVE)?;
    let link = index(&mut kernel, REMOVE, interface)?;
    for family in Family::ALL {
        let ours: Vec<Route> = routes(&mut kernel, family)?.into_iter().filter(Route::is_ours).collect();
        let is_its =
            |route: &Route| route.is_default() && link.is_some_and(|link| route.link() == Some(link));
        if ours.iter().any(|route| route.is_default() && !is_its(route)) {
            // Another interface has it.
            continue;
        }
        // The rules first: without them nothing is looked up in the table.
        for rule in rules(&mut kernel, family)? {
            kernel.ask(REMOVE, RULES, (RTM_DELRULE, 0), &rule.encode(), &[Errno::ENOENT])?;
        }
        ours.iter().try_for_each(|route| delete(&mut kernel, REMOVE, route))?;
    }
    Ok(())
}

/// Returns the index of the link of this name.
fn index(kernel: &mut Requests, action: &'static str, name: &str) -> Result<Option<u32>, Failure> {
    let found = kernel.ask(action, None, (RTM_GETLINK, 0), &link::by_name(name), &[Errno::ENODEV])?;
    Ok(found.first().and_then(|message| u32_at(message, 4)))
}

fn refused(kernel: &Requests, problem: String) -> Failure {
    Failure::State { code: REFUSED, problem: format!("{}: {problem}", kernel.interface()) }
}

fn differs(kernel: &Requests, found: String) -> Failure {
    Failure::State { code: DIFFERS, problem: format!("{}: {found}", kernel.interface()) }
}

fn routes(kernel: &mut Requests, family: Family) -> Result<Vec<Route>, Failure> {
    let found = kernel.ask(LOOK, None, (RTM_GETROUTE, NLM_F_DUMP), &messages::all(family), &[])?;
    Ok(found.iter().flat_map(|message| Route::decode(message, family)).collect())
}

fn rules(kernel: &mut Requests, family: Family) -> Result<Vec<Rule>, Failure> {
    let accepted = &[Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP];
    let request = (RTM_GETRULE, NLM_F_DUMP);
    let found = kernel.ask("read the container's rules", None, request, &messages::all(family), accepted)?;
    Ok(found.iter().filter_map(|message| Rule::decode(message, family)).collect())
}

fn delete(kernel: &mut Requests, action: &'static str, route: &Route) -> Result<(), Failure> {
    kernel.ask(action, None, (RTM_DELROUTE, 0), &route.encode(), &[Errno::ESRCH]).map(drop)
}

/// The default route that is in force: of several with one metric, the kernel lists it first.
fn best(routes: &[Route]) -> Option<&Route> {
    routes.iter().filter(|route| route.is_default()).min_by_key(|route| route.metric())
}

fn is_our_default(route: &Route, link: u32, gateway: IpAddr) -> bool {
    let metric = our_metric(Family::of(gateway));
    route.is_ours() && route.link() == Some(link) && route.has_gateway(gateway) && route.metric() == metric
}

/// Returns the prefixes of the family without a route of their own.
fn missing(keep: &[IpNet], routes: &[Route], family: Family) -> Vec<IpNet> {
    let has_route = |prefix: &IpNet| routes.iter().any(|route| route.is_main() && route.is_to(*prefix));
    let of_family = keep.iter().filter(|prefix| Family::of(prefix.addr()) == family);
    // Everything is what the default route is for.
    of_family.filter(|prefix| prefix.prefix_len() > 0 && !has_route(prefix)).copied().collect()
}
