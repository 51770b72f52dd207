use proptest::prelude::*;

use super::*;
use crate::links::uplinks::{classify, leads_out};

/// What a test does to the kernel: what, and to which of its few objects.
type Step = (u8, u32, u32);

/// The kernel, as far as it matters here: what it has, and the messages that it has sent.
#[derive(Debug, Clone, Default)]
struct Kernel {
    links: BTreeMap<u32, Link>,
    /// Links in another namespace, and the links here that are stacked on them.
    elsewhere: BTreeMap<u32, (Link, Vec<u32>)>,
    addresses: BTreeSet<(u32, IpNet)>,
    routes: BTreeSet<Route>,
    sent: Vec<Event>,
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn address(local: IpNet) -> Address {
    let (peer, broadcast, label, metric) = (None, None, None, None);
    Address { local, peer, broadcast, label, scope: 0, flags: 0, metric }
}

fn route(to: IpNet, links: Vec<u32>, source: Option<IpAddr>) -> Route {
    let id = format!("{to} {links:?} {source:?}").into_bytes();
    Route { to, is_through_one_link: links.len() == 1, links, source, id }
}

/// Up, with a carrier.
fn link(index: u32, name: &str, kind: Option<&str>) -> Link {
    let (name, kind) = (name.to_owned(), kind.map(str::to_owned));
    Link { index, name, kind, admin_up: true, carrier: true, ..Link::default() }
}

impl Kernel {
    fn step(&mut self, (what, a, b): Step) {
        let (index, other) = (a % 7 + 1, b % 7 + 1);
        let ip = net(["10.0.0.1/24", "10.0.0.2/24", "2001:db8::1/64"][b as usize % 3]);
        let to = net(["0.0.0.0/0", "10.9.0.0/16", "::/0"][b as usize % 3]);
        match what % 16 {
            0..=2 => self.add(index, other),
            3 => self.delete(index),
            4 => self.move_away(index),
            5 => self.move_back(index),
            6 => self.change(index, |link| link.mtu = b),
            7 => self.change(index, |link| link.carrier = !link.carrier),
            8 => self.change(index, |link| link.admin_up = true),
            9 => self.take_down(index),
            10 => {
                let is_bridge = |link: &Link| link.kind.as_deref() == Some("bridge");
                let master = Some(other).filter(|other| self.links.get(other).is_some_and(is_bridge));
                self.change(index, |link| link.master = master.filter(|master| *master != index));
            }
            11 => self.change(index, |link| link.name = format!("{}{b}", ["eth", "veth"][b as usize % 2])),
            12 => {
                if self.links.contains_key(&index) && self.addresses.insert((index, ip)) {
                    self.sent.push(Event::Address(index, address(ip)));
                }
            }
            13 => self.remove_address(index, ip),
            14 => self.add_route(to, index, other, b),
            _ => {
                let gone = self.routes.iter().find(|route| route.to == to).cloned();
                if let Some(gone) = gone {
                    self.routes.remove(&gone);
                    self.sent.push(Event::RouteGone(gone));
                }
            }
        }
    }

    fn say(&mut self, index: u32) {
        self.sent.push(Event::Link(Box::new(self.links[&index].clone())));
    }

    fn change(&mut self, index: u32, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(&index) {
            change(link);
            self.say(index);
        }
    }

    fn add(&mut self, index: u32, other: u32) {
        let below = self.links.contains_key(&other).then_some(other);
        let new = match (index + other) % 6 {
            0 => link(index, &format!("eth{index}"), None),
            1 => link(index, &format!("eth{index}"), Some("veth")),
            2 | 3 => link(index, &format!("veth{index}"), Some("veth")),
            4 => link(index, &format!("br{index}"), Some("bridge")),
            _ => Link { parent: below, ..link(index, &format!("m{index}"), Some("macvlan")) },
        };
        if !self.links.contains_key(&index) && !self.elsewhere.contains_key(&index) {
            self.links.insert(index, new);
            self.say(index);
        }
    }

    fn take_down(&mut self, index: u32) {
        if self.links.contains_key(&index) {
            self.flush_routes(index);
            self.change(index, |link| link.admin_up = false);
        }
    }

    /// Without a message.
    fn flush_routes(&mut self, index: u32) {
        self.routes.retain(|route| !route.links.contains(&index));
    }

    fn remove_address(&mut self, index: u32, ip: IpNet) {
        if !self.addresses.remove(&(index, ip)) {
            return;
        }
        self.sent.push(Event::AddressGone(index, address(ip)));
        self.routes.retain(|route| route.source != Some(ip.addr()));
        if !self.addresses.iter().any(|(of, _)| *of == index) {
            self.flush_routes(index);
        }
    }

    fn add_route(&mut self, to: IpNet, index: u32, other: u32, how: u32) {
        let is_up = |index: &u32| self.links.get(index).is_some_and(|link| link.admin_up);
        let links: Vec<u32> = match how % 4 {
            0 => vec![index, other],
            _ => vec![index],
        };
        let source = self.addresses.iter().map(|(_, ip)| ip.addr()).next().filter(|_| how.is_multiple_of(2));
        if !links.iter().all(is_up) {
            return;
        }
        let new = route(to, links, source);
        let replaced: Vec<Route> = self.routes.iter().filter(|route| route.to == to).cloned().collect();
        if how.is_multiple_of(3) || !new.is_through_one_link {
            replaced.iter().for_each(|route| _ = self.routes.remove(route));
            self.sent.push(Event::RoutesTo(to));
        } else {
            self.sent.push(Event::Route(new.clone()));
        }
        self.routes.insert(new);
    }

    /// All that ends with a link in this namespace.
    fn leave(&mut self, index: u32) -> Link {
        self.take_down(index);
        let addresses: Vec<_> = self.addresses.iter().filter(|(of, _)| *of == index).copied().collect();
        addresses.into_iter().for_each(|(index, ip)| self.remove_address(index, ip));
        let ports: Vec<u32> =
            self.links.values().filter(|link| link.master == Some(index)).map(|link| link.index).collect();
        ports.into_iter().for_each(|port| self.change(port, |port| port.master = None));
        let mut gone = self.links.remove(&index).unwrap();
        gone.master = None;
        gone
    }

    fn delete(&mut self, index: u32) {
        if self.links.contains_key(&index) {
            let above = self.links.values().filter(|link| link.parent == Some(index));
            let above: Vec<u32> = above.map(|link| link.index).collect();
            above.into_iter().for_each(|above| self.delete(above));
            self.leave(index);
            self.sent.push(Event::LinkGone { index, moved: false });
        }
    }

    /// Only the link itself is reported.
    fn move_away(&mut self, index: u32) {
        if self.links.get(&index).is_some_and(|link| link.parent.is_none() && !link.parent_elsewhere) {
            let gone = self.leave(index);
            let mut left = Vec::new();
            for above in self.links.values_mut().filter(|link| link.parent == Some(index)) {
                (above.parent, above.parent_elsewhere) = (None, true);
                left.push(above.index);
            }
            self.elsewhere.insert(index, (gone, left));
            self.sent.push(Event::LinkGone { index, moved: true });
        }
    }

    fn move_back(&mut self, index: u32) {
        if let Some((link, above)) = self.elsewhere.remove(&index) {
            self.links.insert(index, link);
            for above in above {
                let above = self.links.get_mut(&above).filter(|link| link.parent_elsewhere);
                above.into_iter().for_each(|above| {
                    (above.parent, above.parent_elsewhere) = (Some(index), false);
                });
            }
            self.say(index);
        }
    }

    /// The speed of a bridge is that of its ports.
    fn sysfs(&self, mut link: Link) -> Link {
        link.set_sysfs(Link::default());
        if !is_pod_end(&link) {
            let ports = || self.links.values().filter(|port| port.master == Some(link.index));
            let made_of = ports().filter(|port| !is_pod_end(port)).chain([&link]);
            link.speed = Some(made_of.filter(|link| link.carrier).map(|link| u64::from(link.index)).sum());
        }
        link
    }

    fn dump(&self) -> Dump {
        Dump {
            links: self.links.values().map(|link| self.sysfs(link.clone())).collect(),
            addresses: self.addresses.iter().map(|(link, ip)| (*link, address(*ip))).collect(),
            routes: self.routes.iter().cloned().collect(),
        }
    }

    /// Reads what a table lacks.
    fn settle(&self, table: &mut Table) {
        while let Some(unread) = table.unread() {
            match unread {
                Unread::All => table.replace(self.dump()),
                Unread::Parts { routes, sysfs } => {
                    let routes = routes.then(|| self.dump().routes);
                    let now = |link: Link| self.links.get(&link.index).cloned().unwrap_or(link);
                    let sysfs = sysfs
                        .into_iter()
                        .map(|link| Link { speed: self.sysfs(now(link.clone())).speed, ..link });
                    table.fill(routes, sysfs.collect());
                }
            }
        }
    }
}

/// What readers of `eth…` and of a link named `br3` see.
fn seen(snapshot: &Snapshot) -> Vec<String> {
    let of_link = |(link, class): (&Link, Result<(), _>)| {
        let is_seen = leads_out(link).is_ok()
            || snapshot.default_route_links.contains(&link.index)
            || is_read(link, &[]);
        let above: Vec<(&String, &Option<String>)> =
            snapshot.stacked_on(link.index).map(|link| (&link.name, &link.kind)).collect();
        let addresses = snapshot.addresses.get(&link.index);
        is_seen.then(|| format!("{link:?} {class:?} {above:?} {addresses:?}"))
    };
    classify(snapshot, &BTreeSet::new()).filter_map(of_link).collect()
}

fn is_read(link: &Link, _: &[LinkAddress]) -> bool {
    link.name == "br3"
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((any::<u8>(), 0_u32..7, 0_u32..42), 0..most)
}

proptest! {
    #[test]
    fn the_messages_lead_to_what_a_dump_shows_whenever_the_first_dump_was_taken(
        before in steps(30),
        unapplied in steps(12),
        // Each batch is applied at once. What is read then may be of a later moment.
        batches in proptest::collection::vec((steps(12), steps(3)), 0..5),
    ) {
        let mut kernel = Kernel::default();
        before.into_iter().for_each(|step| kernel.step(step));
        // From here on messages are received.
        kernel.sent.clear();
        unapplied.into_iter().for_each(|step| kernel.step(step));
        let mut table = Table::new(kernel.dump());
        let mut known = Vec::new();
        for (n, (steps, during)) in batches.into_iter().chain([Default::default()]).enumerate() {
            steps.into_iter().for_each(|step| kernel.step(step));
            kernel.sent.drain(..).for_each(|event| table.apply(event));
            during.into_iter().for_each(|step| kernel.step(step));
            kernel.settle(&mut table);
            let (is_reported, now) = (table.take_change(is_read), seen(table.snapshot()));
            prop_assert!(n == 0 || is_reported || now == known, "not reported:\n{known:#?}\n{now:#?}");
            known = now;
        }
        let expected = Table::new(kernel.dump()).into_snapshot();
        prop_assert_eq!(table.into_snapshot(), expected);
    }
}

/// A table of these links that has reported them.
fn table(links: impl IntoIterator<Item = Link>) -> Table {
    Table::new(Dump { links: links.into_iter().collect(), ..Dump::default() })
}

fn new(link: Link) -> Event {
    Event::Link(Box::new(link))
}

#[test]
fn changes_of_links_of_pods_are_not_seen() {
    let bridge = || link(3, "cni0", Some("bridge"));
    let port = |index| Link { master: Some(3), ..link(index, &format!("veth{index}"), Some("veth")) };
    let mut table = table([link(2, "eth0", None), bridge(), port(4)]);
    let to = net("10.1.0.7/32");
    for event in [
        new(port(5)),
        new(Link { mtu: 9000, ..port(5) }),
        new(link(6, "cali6", Some("veth"))),
        new(link(7, "lxc7", Some("netkit"))),
        new(Link { mtu: 1400, ..bridge() }),
        Event::Address(3, address(net("10.1.0.1/24"))),
        Event::Route(route(to, vec![6], None)),
        Event::LinkGone { index: 4, moved: false },
        Event::RouteGone(route(to, vec![6], None)),
        Event::LinkGone { index: 6, moved: true },
        new(Link { parent: Some(7), ..link(8, "mac8", Some("macvlan")) }),
    ] {
        table.apply(event.clone());
        assert!(!table.take_change(|_, _| false), "{event:?}");
        assert!(
            !matches!(table.unread(), Some(Unread::All | Unread::Parts { routes: true, .. })),
            "{event:?}"
        );
    }
    assert_eq!(table.snapshot().links.iter().map(|link| link.index).collect::<Vec<_>>(), [2, 3, 5, 7, 8]);
}

#[test]
fn a_change_is_seen_of_links_that_lead_out_are_read_or_are_connected_to_one() {
    let change = |before: &[Link], event: Event| {
        let mut table = table(before.iter().cloned());
        table.apply(event);
        table.take_change(|link, _| link.is_named("veth9"))
    };
    let eth0 = || link(2, "eth0", None);
    assert!(change(&[], new(eth0())));
    assert!(change(&[eth0()], new(Link { mtu: 9000, ..eth0() })));
    assert!(change(&[eth0()], Event::LinkGone { index: 2, moved: true }));
    assert!(!change(&[eth0()], new(eth0())), "statistics, for example");
    assert!(!change(&[], Event::LinkGone { index: 2, moved: false }));
    assert!(change(&[eth0()], Event::Address(2, address(net("10.0.0.1/24")))));
    assert!(change(&[eth0()], new(Link { parent: Some(2), ..link(5, "mac5", Some("macvlan")) })));
    assert!(change(&[], new(link(9, "veth9", Some("veth")))));
    assert!(!change(&[], new(link(8, "veth8", Some("veth")))));
    assert!(change(&[link(9, "veth9", Some("veth"))], new(link(9, "veth8", Some("veth")))), "renamed");
    let br0 = link(3, "br0", Some("bridge"));
    let port = Link { master: Some(3), ..eth0() };
    let pod_port = Link { master: Some(3), ..link(4, "veth4", Some("veth")) };
    assert!(change(&[port, br0.clone()], new(pod_port)), "an address of it would be the bridge's");
    assert!(change(&[br0], Event::Route(route(net("::/0"), vec![3], None))), "the node's link to the world");
}

#[test]
fn a_link_that_comes_and_goes_between_two_looks_is_not_seen() {
    let mut table = table([link(2, "eth0", None)]);
    table.apply(new(Link { parent: Some(2), ..link(5, "mac5", Some("macvlan")) }));
    table.apply(Event::LinkGone { index: 5, moved: true });
    assert!(!table.take_change(|_, _| true));
    assert_eq!(table.unread(), None);
}

#[test]
fn sysfs_is_read_of_new_and_renamed_links_and_when_their_state_has_changed() {
    let read = |before: &[Link], event: Event| {
        let mut table = table(before.iter().cloned());
        table.apply(event);
        match table.unread() {
            None => Vec::new(),
            Some(Unread::Parts { routes: false, sysfs }) => {
                sysfs.into_iter().map(|link| link.index).collect()
            }
            Some(other) => panic!("{other:?}"),
        }
    };
    let eth0 = || link(2, "eth0", None);
    assert_eq!(read(&[], new(eth0())), [2]);
    assert_eq!(read(&[eth0()], new(Link { mtu: 9000, mac: Some("m".into()), ..eth0() })), [0; 0]);
    assert_eq!(read(&[eth0()], new(Link { name: "eth1".into(), ..eth0() })), [2]);
    assert_eq!(read(&[eth0()], new(Link { carrier: false, ..eth0() })), [2]);
    assert_eq!(read(&[eth0()], new(Link { admin_up: false, ..eth0() })), [2]);
    assert_eq!(read(&[], new(link(4, "veth4", Some("veth")))), [0; 0], "a pod's");
    let bond0 = link(3, "bond0", Some("bond"));
    let vlan = Link { parent: Some(3), ..link(4, "bond0.7", Some("vlan")) };
    let port = Link { master: Some(3), ..eth0() };
    let above = [port.clone(), bond0, vlan];
    assert_eq!(
        read(&above, new(Link { carrier: false, ..port })),
        [2, 3, 4],
        "a bond is as fast as its ports"
    );
    assert_eq!(read(&above, Event::LinkGone { index: 2, moved: false }), [3, 4]);
}

#[test]
fn physical_functions_count_their_virtual_ones_again_when_one_comes_or_goes() {
    let physical = || link(2, "ens1", None);
    let virtual_function = |index, of: &str| Link {
        physical_function: Some(of.into()),
        ..link(index, &format!("vf{index}"), None)
    };
    let unread = |table: &mut Table| match table.unread() {
        Some(Unread::Parts { sysfs, .. }) => sysfs.into_iter().map(|link| link.index).collect(),
        _ => Vec::new(),
    };
    let mut table = table([physical(), link(3, "ens2", None), virtual_function(4, "ens1")]);
    table.apply(new(link(5, "vf5", None)));
    assert_eq!(unread(&mut table), [5]);
    table.fill(None, vec![virtual_function(5, "ens1")]);
    assert_eq!(unread(&mut table), [2]);
    table.fill(None, vec![Link { virtual_functions: 2, ..physical() }]);
    assert_eq!(unread(&mut table), [0; 0]);
    assert_eq!(table.snapshot().links[0].virtual_functions, 2);
    table.apply(Event::LinkGone { index: 4, moved: false });
    assert_eq!(unread(&mut table), [2]);
    table.fill(None, vec![physical()]);
    table.apply(Event::LinkGone { index: 2, moved: true });
    assert_eq!(unread(&mut table), [5], "it has the address instead of the name now");
}

#[test]
fn routes_are_read_again_where_the_kernel_may_have_deleted_some_or_does_not_say_which() {
    let (to, source) = (net("10.9.0.0/16"), "10.0.0.1".parse().ok());
    let of_eth0 = || route(to, vec![2], source);
    let read = |event: Event| {
        let links = vec![link(2, "eth0", None), link(3, "eth1", None)];
        let mut table = Table::new(Dump { links, routes: vec![of_eth0()], ..Dump::default() });
        table.apply(event);
        matches!(table.unread(), Some(Unread::Parts { routes: true, .. }))
    };
    assert!(read(new(Link { admin_up: false, ..link(2, "eth0", None) })));
    assert!(!read(new(Link { admin_up: false, ..link(3, "eth1", None) })));
    assert!(!read(Event::LinkGone { index: 2, moved: false }), "gone with it");
    assert!(read(Event::AddressGone(3, address(net("10.0.0.1/24")))), "the route's source");
    assert!(read(Event::AddressGone(2, address(net("10.0.0.9/24")))), "the last one, perhaps");
    assert!(!read(Event::AddressGone(3, address(net("10.0.0.9/24")))));
    assert!(!read(Event::RouteGone(of_eth0())));
    assert!(read(Event::RouteGone(route(to, vec![3], None))), "of several links, perhaps");
    assert!(!read(Event::RouteGone(route(net("10.8.0.0/16"), vec![3], None))), "older than the dump");
    assert!(!read(Event::Route(route(to, vec![3], None))));
    assert!(read(Event::RoutesTo(to)) && read(Event::Nexthops));
}

#[test]
fn everything_is_read_again_when_a_link_arrives_that_may_be_below_another() {
    let orphan = Link { parent_elsewhere: true, ..link(5, "mac5", Some("macvlan")) };
    let mut table = table([orphan]);
    table.apply(new(link(2, "eth0", None)));
    assert_eq!(table.unread(), Some(Unread::All));
}

#[test]
fn an_address_with_another_prefix_is_another_one_only_of_ipv4() {
    let count = |texts: [&str; 2]| {
        let mut table = table([link(2, "eth0", None)]);
        for text in texts {
            table.apply(Event::Address(2, address(net(text))));
        }
        table.apply(Event::AddressGone(2, address(net(texts[0]))));
        table.snapshot().addresses.get(&2).map_or(0, Vec::len)
    };
    assert_eq!(count(["10.0.0.1/24", "10.0.0.1/16"]), 1);
    assert_eq!(count(["2001:db8::1/64", "2001:db8::1/48"]), 0);
}
