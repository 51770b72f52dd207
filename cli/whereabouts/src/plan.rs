//! The takeover as a function of what the cluster has.
//!
//! ```text
//!   IPPool, by its name ───> scope (network_name) and range ──> used addresses ──┐
//!   Nad ──> group: the Nads of one scope with equal ranges ──────────────────────┴─> leases, held, orphans
//!   network-status, reservations, the other groups ── cross-checks ───────────────> problems of the group
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::addresses::spans::{self, contains};
use netclaim_api::addresses::{
    AddressLeaseSpec, AddressPoolSpec, AddressRange, Family, Holder, HolderKind, Leased, NetworkAddresses,
    PoolKey, Route, Span, lease_name, nth_after,
};
use netclaim_api::{NetworkName, shorten};
use serde::{Deserialize, Serialize};

use crate::arithmetic::{cidr, ip, name_part, prefix};
use crate::objects::{IpPool, Nad, NodeSlicePool, ObjectRef, Objects, Pod};
use crate::report::{
    NetworkAddressing, Note, Orphan, PoolTakeover, Problem, SharedPool, Takeover, Unclaimed, UnclaimedReason,
};

/// Entries that `exclude` and `reserved` of a ClaimNetwork may have.
const MAX_SPANS: usize = 256;
/// Entries that `ranges` and `routes` of a ClaimNetwork may have.
const MAX_ENTRIES: usize = 64;
/// The longest quoted value, in bytes.
const QUOTED: usize = 120;

/// What happens to addresses whose pods are gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Orphans {
    /// They are reported, and pods may get them.
    #[default]
    Free,
    /// They are reported and excluded. A lease would not last: the controller deletes those of pods that are
    /// gone.
    Hold,
}

/// Decides what is taken over from whereabouts, and what stops it.
///
/// A pool of whereabouts is known by `network_name` and range. The Nads of one name with equal ranges,
/// gateway and routes become ClaimNetworks of one pool. An address in use is leased in each pool that would
/// hand it out.
pub fn plan(objects: &Objects, orphans: Orphans) -> Takeover {
    let mut plan = Plan::new(objects);
    plan.place_pools();
    plan.distribute();
    let pods = plan.objects.pods.iter().map(|pod| (format!("{}/{}", pod.namespace, pod.name), pod)).collect();
    plan.check_pods(&pods);
    plan.check_reservations(&pods);
    plan.check_overlaps();
    plan.check_networks();
    plan.finish(&pods, orphans)
}

/// A pool of whereabouts: the range as Nads give it, in the scope of a `network_name`.
type Key = (String, IpNet);
/// Addresses that the group of this index hands out.
type SpanOf = (Span, usize);
type Pods<'a> = BTreeMap<String, &'a Pod>;

struct Plan<'a> {
    objects: &'a Objects,
    groups: Vec<Group<'a>>,
    /// Keys for which no range may hand out an address that another range has in use.
    guarded: BTreeSet<Key>,
    /// Keys that some Nad has.
    keys: BTreeSet<Key>,
    used: Vec<Used<'a>>,
    by_address: BTreeMap<(String, IpAddr), Vec<usize>>,
    takeover: Takeover,
}

/// Nads that draw from one pool of netclaim.
struct Group<'a> {
    scope: &'a str,
    nads: Vec<&'a Nad>,
    spec: AddressPoolSpec,
    /// What nodes or claims may get; sorted and disjoint.
    handed_out: Vec<Span>,
    guards_overlaps: bool,
    ip_pools: BTreeSet<&'a ObjectRef>,
    /// Index of the entry of `used` for each address.
    used: BTreeMap<IpAddr, usize>,
    /// Pods that have a fixed address.
    fixed: BTreeMap<IpAddr, String>,
    problems: Vec<Problem>,
    notes: Vec<Note>,
}

/// An address that an IPPool says is in use.
struct Used<'a> {
    key: Key,
    address: IpAddr,
    podref: &'a str,
    ifname: &'a str,
    pool: &'a ObjectRef,
}

impl<'a> Plan<'a> {
    fn new(objects: &'a Objects) -> Self {
        let mut groups: BTreeMap<String, Group<'a>> = BTreeMap::new();
        let (mut keys, mut guarded) = (BTreeSet::new(), BTreeSet::new());
        for nad in &objects.nads {
            for range in &nad.ipam.ranges {
                let key = (nad.ipam.network_name.clone(), range.net);
                if nad.ipam.guards_overlaps {
                    guarded.insert(key.clone());
                }
                keys.insert(key);
            }
            let mut group = Group::of(nad);
            let same = format!("{:?}", (group.scope, &group.spec));
            // What claims may ask for is the union: it changes nothing for other pods.
            let reserved = group.reserve(nad);
            match groups.get_mut(&same) {
                Some(known) => {
                    known.nads.push(nad);
                    known.spec.reserved.extend(reserved);
                    known.guards_overlaps |= group.guards_overlaps;
                    known.problems.append(&mut group.problems);
                    known.notes.append(&mut group.notes);
                }
                None => {
                    group.spec.reserved = reserved;
                    groups.insert(same, group);
                }
            }
        }
        let mut groups: Vec<Group<'_>> = groups.into_values().collect();
        groups.sort_by(|one, other| one.order().cmp(&other.order()));
        for group in &mut groups {
            let reserved: BTreeSet<Span> = std::mem::take(&mut group.spec.reserved).into_iter().collect();
            group.spec.reserved = group.limited("addresses", reserved.into_iter().collect(), MAX_SPANS);
            let spans = group.spec.usable().into_iter().chain(group.spec.reserved.iter().copied());
            group.handed_out = spans::merge(spans.collect());
        }
        let takeover = Takeover {
            skipped: objects.skipped.clone(),
            unreadable: objects.unreadable.clone(),
            ..Takeover::default()
        };
        Self { objects, groups, guarded, keys, used: Vec::new(), by_address: BTreeMap::new(), takeover }
    }

    /// Finds out which scope and range each IPPool is of, and lists its addresses.
    fn place_pools(&mut self) {
        let slices = self.slices();
        for pool in &self.objects.pools {
            let object = &pool.object;
            let Some(range) = cidr(&pool.range) else {
                self.unreadable_pool(pool, slices.get(&object.name));
                continue;
            };
            let by_name = || prefix(&object.name, range).map(|prefix| self.key(prefix, range.trunc()));
            let Some(key) = slices.get(&object.name).cloned().or_else(by_name) else {
                let addresses = pool.allocations.len();
                let reason = UnclaimedReason::OtherName;
                self.takeover.unclaimed.push(Unclaimed { pool: object.clone(), addresses, reason });
                continue;
            };
            let (mut unread, mut first) = (0_usize, None);
            for (offset, allocation) in &pool.allocations {
                let address =
                    offset.parse::<u64>().ok().and_then(|offset| nth_after(range.addr(), offset.into()));
                let Some(address) = address.filter(|address| range.contains(address)) else {
                    unread += 1;
                    first.get_or_insert(offset);
                    continue;
                };
                let index = self.used.len();
                self.by_address.entry((key.0.clone(), address)).or_default().push(index);
                self.used.push(Used {
                    key: key.clone(),
                    address,
                    podref: &allocation.podref,
                    ifname: &allocation.ifname,
                    pool: object,
                });
            }
            if let Some(offset) = first {
                let offset = shorten(offset.clone(), QUOTED);
                let reason = format!(
                    "{unread} offsets, such as {offset:?}, are not numbers of addresses in {}: whereabouts ignores them",
                    pool.range
                );
                let field = "spec.allocations".to_owned();
                self.takeover.notes.push(Note { object: object.clone(), field, reason });
            }
        }
    }

    /// Returns the pools of nodes' slices by name (`IPPoolName`, `GetNodeSlicePoolRange`), and reports slices
    /// that cannot be read.
    fn slices(&mut self) -> BTreeMap<String, Key> {
        let by_name: BTreeMap<&str, &NodeSlicePool> =
            self.objects.slices.iter().map(|slices| (slices.object.name.as_str(), slices)).collect();
        let mut pools = BTreeMap::new();
        for group in &mut self.groups {
            for nad in group.nads.clone().into_iter().filter(|nad| nad.ipam.has_node_slices) {
                let scope = nad.ipam.network_name.as_str();
                let name = if scope.is_empty() { nad.conf_name.as_str() } else { scope };
                let Some(range) = nad.ipam.ranges.first() else { continue };
                let Some(slices) = by_name.get(name) else {
                    let name = shorten(name.to_owned(), QUOTED);
                    let reason =
                        format!("there is no NodeSlicePool {name:?}, so whereabouts hands out nothing");
                    group.note(nad, "node_slice_size", reason);
                    continue;
                };
                for (i, slice) in
                    slices.slices.iter().enumerate().filter(|(_, slice)| !slice.node_name.is_empty())
                {
                    let Some(net) = cidr(&slice.slice_range) else {
                        group.problems.push(Problem::NoRange {
                            object: slices.object.clone(),
                            field: format!("status.allocations[{i}].sliceRange"),
                            value: shorten(slice.slice_range.clone(), QUOTED),
                        });
                        continue;
                    };
                    let scoped = if scope.is_empty() { String::new() } else { format!("{scope}-") };
                    for net in [net, net.trunc()] {
                        let name = format!("{scoped}{}-{}", slice.node_name, name_part(&net.to_string()));
                        pools.insert(name, (scope.to_owned(), range.net));
                    }
                }
            }
        }
        pools
    }

    /// Returns the key of a pool that no slice has. The prefix of its name is a `network_name`, or a node
    /// that has lost its slice.
    fn key(&self, prefix: &str, net: IpNet) -> Key {
        let key = (prefix.to_owned(), net);
        if self.keys.contains(&key) {
            return key;
        }
        let is_scope = self.groups.iter().any(|group| group.scope == prefix);
        let sliced = self.groups.iter().flat_map(|group| group.nads.iter()).find(|nad| {
            let scope = nad.ipam.network_name.as_str();
            let is_of_scope =
                scope.is_empty() || prefix.strip_prefix(scope).is_some_and(|rest| rest.starts_with('-'));
            let is_part = nad.ipam.ranges.first().is_some_and(|range| range.net.contains(&net));
            nad.ipam.has_node_slices && is_of_scope && is_part
        });
        match sliced.filter(|_| !is_scope).and_then(|nad| Some((nad, nad.ipam.ranges.first()?))) {
            Some((nad, range)) => (nad.ipam.network_name.clone(), range.net),
            None => key,
        }
    }

    /// Reports a pool without a range to those whose pool it is by name.
    fn unreadable_pool(&mut self, pool: &IpPool, slice: Option<&Key>) {
        let mut is_used = false;
        for group in &mut self.groups {
            let own = |net: IpNet| prefix(&pool.object.name, net) == Some(group.scope);
            let is_slice = slice.is_some_and(|(scope, net)| scope == group.scope && group.has_net(*net));
            if is_slice || group.nads.iter().flat_map(|nad| &nad.ipam.ranges).any(|range| own(range.net)) {
                is_used = true;
                group.problems.push(Problem::NoRange {
                    object: pool.object.clone(),
                    field: "spec.range".to_owned(),
                    value: shorten(pool.range.clone(), QUOTED),
                });
            }
        }
        if !is_used {
            let (addresses, reason) = (pool.allocations.len(), UnclaimedReason::NoRange);
            self.takeover.unclaimed.push(Unclaimed { pool: pool.object.clone(), addresses, reason });
        }
    }

    /// Whether an address in use counts for a group.
    fn concerns(&self, group: &Group<'_>, used: &Used<'_>) -> bool {
        let is_guarded = !self.keys.contains(&used.key) || self.guarded.contains(&used.key);
        group.scope == used.key.0 && (group.has_net(used.key.1) || (group.guards_overlaps && is_guarded))
    }

    /// Gives each address in use to every group that would hand it out, or else to one that draws from its
    /// IPPool.
    fn distribute(&mut self) {
        let mut left: BTreeMap<&ObjectRef, usize> = BTreeMap::new();
        for (index, used) in self.used.iter().enumerate() {
            let concerned =
                |group: &Group<'_>| self.concerns(group, used) && contains(&group.handed_out, used.address);
            let mut takers: Vec<usize> = positions(&self.groups, concerned);
            if takers.is_empty() {
                let own = |group: &Group<'_>| group.scope == used.key.0 && group.has_net(used.key.1);
                takers = positions(&self.groups, own);
                takers.truncate(1);
            }
            if takers.is_empty() {
                *left.entry(used.pool).or_default() += 1;
            }
            for taker in takers {
                let Some(group) = self.groups.get_mut(taker) else { continue };
                group.ip_pools.insert(used.pool);
                let before = group.used.insert(used.address, index).and_then(|index| self.used.get(index));
                let Some(before) =
                    before.filter(|before| (before.pool, before.podref) != (used.pool, used.podref))
                else {
                    continue;
                };
                group.problems.push(Problem::TwoPools {
                    address: used.address,
                    pool: before.pool.clone(),
                    podref: shorten(before.podref.to_owned(), QUOTED),
                    other: used.pool.clone(),
                    other_podref: shorten(used.podref.to_owned(), QUOTED),
                });
            }
        }
        let unclaimed = left.into_iter().map(|(pool, addresses)| {
            let reason = UnclaimedReason::Unused;
            Unclaimed { pool: pool.clone(), addresses, reason }
        });
        self.takeover.unclaimed.extend(unclaimed);
    }

    /// Compares what pods say in `network-status` with the pools: an address of no pool would be handed out
    /// again.
    fn check_pods(&mut self, pods: &Pods<'_>) {
        let of_nads = self.groups.iter().enumerate().flat_map(|(i, group)| {
            let nads = group.nads.iter();
            nads.map(move |nad| (format!("{}/{}", nad.object.namespace, nad.object.name), (i, *nad)))
        });
        let of_nads: BTreeMap<String, (usize, &Nad)> = of_nads.collect();
        for (pod, object) in pods.iter().filter(|(_, pod)| !pod.has_ended) {
            let Some(text) = &object.network_status else { continue };
            let entries: Vec<Status> = match serde_json::from_str(text) {
                Ok(entries) => entries,
                Err(error) => {
                    let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
                    self.takeover.notes.push(Note {
                        object: ObjectRef { kind: "Pod".to_owned(), namespace, name },
                        field: "metadata.annotations[k8s.v1.cni.cncf.io/network-status]".to_owned(),
                        reason: shorten(format!("cannot be compared with the pools: {error}"), 2 * QUOTED),
                    });
                    continue;
                }
            };
            for entry in entries {
                let Some((of, nad)) = of_nads.get(&entry.name).copied() else { continue };
                for address in entry.ips.unwrap_or_default().iter().filter_map(|text| ip(text)) {
                    self.check_address(pod, of, nad, address);
                }
            }
        }
    }

    fn check_address(&mut self, pod: &str, of: usize, nad: &Nad, address: IpAddr) {
        let Some(group) = self.groups.get(of) else { return };
        let known =
            self.by_address.get(&(group.scope.to_owned(), address)).map(Vec::as_slice).unwrap_or_default();
        let known: Vec<&Used<'_>> = known
            .iter()
            .filter_map(|index| self.used.get(*index))
            .filter(|used| self.concerns(group, used))
            .collect();
        if known.iter().any(|used| used.podref == pod || used.podref.is_empty()) {
            return;
        }
        let other = known.first().map(|used| (used.pool.clone(), shorten(used.podref.to_owned(), QUOTED)));
        let is_fixed = nad.ipam.fixed.iter().any(|fixed| fixed.address == address);
        let (scope, guards, nets) = (group.scope, group.guards_overlaps, group.nets());
        let hands_out = |group: &Group<'_>| {
            let is_near = nets.iter().any(|net| group.has_net(*net)) || (guards && group.guards_overlaps);
            group.scope == scope && is_near && contains(&group.handed_out, address)
        };
        let mut concerned = positions(&self.groups, hands_out);
        if other.is_some() && !concerned.contains(&of) {
            concerned.push(of);
        }
        for index in concerned {
            let Some(group) = self.groups.get_mut(index) else { continue };
            let pod = pod.to_owned();
            match (&other, is_fixed) {
                (Some((pool, podref)), _) => {
                    let (pool, podref) = (pool.clone(), podref.clone());
                    group.problems.push(Problem::TwoPods { address, pod, pool, podref });
                }
                (None, true) => {
                    let before = group.fixed.insert(address, pod.clone());
                    if let Some(other) = before.filter(|other| *other != pod) {
                        group.problems.push(Problem::FixedTwice { address, pod, other });
                    }
                }
                (None, false) => {
                    group.problems.push(Problem::InNoPool { address, pod, nad: nad.object.clone() });
                }
            }
        }
    }

    /// Looks for reserved addresses that no pool has, or has for another pod.
    fn check_reservations(&mut self, pods: &Pods<'_>) {
        let scopes: BTreeSet<&str> = self.groups.iter().map(|group| group.scope).collect();
        for reservation in &self.objects.reservations {
            let mut is_read = false;
            for scope in &scopes {
                let Some(address) = reserved_address(&reservation.object.name, scope) else { continue };
                is_read = true;
                let known = self.by_address.get(&((*scope).to_owned(), address)).map(Vec::as_slice);
                let known: Vec<&Used<'_>> =
                    known.unwrap_or_default().iter().filter_map(|index| self.used.get(*index)).collect();
                if known.iter().any(|used| used.podref == reservation.podref) {
                    continue;
                }
                let podref = shorten(reservation.podref.clone(), QUOTED);
                let problem = match known.first() {
                    None => {
                        Problem::NotAllocated { reservation: reservation.object.clone(), address, podref }
                    }
                    // A pod that is gone left it behind; the address is leased to the pod that the pool
                    // names.
                    Some(_) if !pods.contains_key(&reservation.podref) => continue,
                    Some(used) => Problem::ReservedForOther {
                        reservation: reservation.object.clone(),
                        address,
                        podref,
                        pool: used.pool.clone(),
                        other: shorten(used.podref.to_owned(), QUOTED),
                    },
                };
                let concerned = |group: &&mut Group<'_>| {
                    group.scope == *scope && group.guards_overlaps && contains(&group.handed_out, address)
                };
                for group in self.groups.iter_mut().filter(concerned) {
                    group.problems.push(problem.clone());
                }
            }
            if !is_read {
                self.takeover.notes.push(Note {
                    object: reservation.object.clone(),
                    field: "metadata.name".to_owned(),
                    reason: "is not an address of a network_name that is taken over".to_owned(),
                });
            }
        }
    }

    /// Looks for addresses that two groups hand out: netclaim's pools know nothing of each other.
    fn check_overlaps(&mut self) {
        let mut classes: BTreeMap<(&str, Option<IpNet>), Vec<SpanOf>> = BTreeMap::new();
        for (i, group) in self.groups.iter().enumerate() {
            let spans = || group.handed_out.iter().map(|span| (*span, i));
            if group.guards_overlaps {
                classes.entry((group.scope, None)).or_default().extend(spans());
            }
            for net in group.nets() {
                classes.entry((group.scope, Some(net))).or_default().extend(spans());
            }
        }
        let mut found: BTreeMap<(usize, usize), Span> = BTreeMap::new();
        for mut spans in classes.into_values() {
            spans.sort_unstable();
            let mut widest: Option<SpanOf> = None;
            for (span, group) in spans {
                if let Some((before, other)) = widest
                    && other != group
                    && let Some(common) = before.intersection(span)
                {
                    found.entry((other.min(group), other.max(group))).or_insert(common);
                }
                let is_wider =
                    |(before, _): SpanOf| before.family() != span.family() || before.last() < span.last();
                if widest.is_none_or(is_wider) {
                    widest = Some((span, group));
                }
            }
        }
        for ((one, other), span) in found {
            for (group, other) in [(one, other), (other, one)] {
                let Some((nad, other_nad, differing)) =
                    self.groups.get(group).zip(self.groups.get(other)).and_then(|(group, other)| {
                        Some((group.nads.first()?, other.nads.first()?, group.differing(other)))
                    })
                else {
                    continue;
                };
                let (nad, other) = (nad.object.clone(), other_nad.object.clone());
                if let Some(group) = self.groups.get_mut(group) {
                    group.problems.push(Problem::Overlap { nad, other, span, differing });
                }
            }
        }
    }

    /// Looks for Nads that would become one ClaimNetwork.
    fn check_networks(&mut self) {
        let mut names: BTreeMap<&NetworkName, ObjectRef> = BTreeMap::new();
        let mut twice = BTreeMap::new();
        for nad in &self.objects.nads {
            if let Some(other) = names.insert(&nad.network, nad.object.clone()) {
                twice.insert(&nad.network, (nad.object.clone(), other));
            }
        }
        for group in &mut self.groups {
            let of_group = group.nads.iter().filter_map(|nad| Some((&nad.network, twice.get(&nad.network)?)));
            let problems = of_group.map(|(network, (nad, other))| {
                let network = network.clone();
                Problem::SameNetwork { nad: nad.clone(), other: other.clone(), network }
            });
            let problems: Vec<Problem> = problems.collect();
            group.problems.extend(problems);
        }
    }

    fn finish(self, pods: &Pods<'_>, orphans: Orphans) -> Takeover {
        let Self { groups, used, mut takeover, .. } = self;
        let mut names = BTreeSet::new();
        takeover.pools =
            groups.into_iter().map(|group| group.finish(&used, pods, orphans, &mut names)).collect();
        takeover
    }
}

impl<'a> Group<'a> {
    fn of(nad: &'a Nad) -> Self {
        let mut group = Self {
            scope: &nad.ipam.network_name,
            nads: vec![nad],
            spec: AddressPoolSpec::default(),
            handed_out: Vec::new(),
            guards_overlaps: nad.ipam.guards_overlaps,
            ip_pools: BTreeSet::new(),
            used: BTreeMap::new(),
            fixed: BTreeMap::new(),
            problems: Vec::new(),
            notes: Vec::new(),
        };
        let ipam = &nad.ipam;
        for dropped in ipam.dropped.clone() {
            group.note(nad, &dropped.field, dropped.problem);
        }
        for family in Family::ALL {
            let nets =
                ipam.ranges.iter().map(|range| range.net).filter(|net| Family::of(net.addr()) == family);
            let ranges: Vec<IpNet> = nets.take(MAX_ENTRIES).collect();
            if ranges.len() > 1 {
                let nad = nad.object.clone();
                group.problems.push(Problem::SeveralRanges { nad, family: family.into(), ranges });
            }
        }
        if let Some(gateway) =
            ipam.gateway.filter(|gw| !ipam.ranges.iter().any(|range| range.net.contains(gw)))
        {
            group.note(nad, "gateway", format!("{gateway} is in no range: write it as gw of the routes"));
        }
        let ranges: Vec<AddressRange> = ipam
            .ranges
            .iter()
            .map(|range| AddressRange {
                subnet: range.net,
                range_start: range.first,
                range_end: range.last,
                gateway: ipam.gateway.filter(|gateway| range.net.contains(gateway)),
                exclude: group.limited("exclude", range.exclude.clone(), MAX_SPANS),
            })
            .collect();
        for range in ranges.iter().filter(|range| range.gateway.is_none()) {
            let reason = format!(
                "is not set for {}: netclaim calls {} the gateway, and no new pod gets it",
                range.subnet,
                range.gateway()
            );
            group.note(nad, "gateway", reason);
        }
        group.spec.ranges = group.limited("ranges", ranges, MAX_ENTRIES);
        let mut routes = Vec::new();
        for (i, route) in ipam.routes.iter().enumerate() {
            let family = Family::of(route.dst.addr());
            let has_gateway =
                group.spec.ranges.iter().any(|range| range.family() == family && range.gateway.is_some());
            if route.gw.is_none() && !has_gateway {
                let problem = format!(
                    "{} has no gw and its family no gateway: netclaim has no routes without",
                    route.dst
                );
                group.note(nad, &format!("routes[{i}]"), problem);
            } else {
                routes.push(Route {
                    dst: route.dst,
                    gw: route.gw,
                    priority: route.priority,
                    table: route.table,
                });
            }
        }
        group.spec.routes = group.limited("routes", routes, MAX_ENTRIES);
        group
    }

    /// Returns the fixed addresses of a Nad, which become those that claims may ask for.
    fn reserve(&mut self, nad: &'a Nad) -> Vec<Span> {
        let mut reserved = Vec::new();
        for (i, fixed) in nad.ipam.fixed.iter().enumerate() {
            if nad.ipam.ranges.iter().any(|range| range.net.contains(&fixed.address)) {
                reserved.push(Span::of_address(fixed.address));
            } else {
                let reason = format!("{} is in no range: make a network of its own for it", fixed.address);
                self.note(nad, &format!("addresses[{i}]"), reason);
            }
        }
        reserved
    }

    fn order(&self) -> impl Ord + use<'a> {
        (self.scope, self.nets(), self.nads.first().map(|nad| &nad.object))
    }

    fn nets(&self) -> Vec<IpNet> {
        self.spec.ranges.iter().map(|range| range.subnet).collect()
    }

    fn has_net(&self, net: IpNet) -> bool {
        self.spec.ranges.iter().any(|range| range.subnet == net)
    }

    fn note(&mut self, nad: &Nad, field: &str, reason: String) {
        let field = format!("ipam.{field}");
        self.notes.push(Note { object: nad.object.clone(), field, reason });
    }

    /// Cuts a list to what a ClaimNetwork may have, with a problem.
    fn limited<T>(&mut self, field: &str, mut list: Vec<T>, max: usize) -> Vec<T> {
        let count = list.len();
        if count > max
            && let Some(nad) = self.nads.first()
        {
            let (nad, field) = (nad.object.clone(), field.to_owned());
            self.problems.push(Problem::TooMany { nad, field, count, max });
            list.truncate(max);
        }
        list
    }

    /// Names the settings in which two groups differ.
    fn differing(&self, other: &Self) -> String {
        let of = |group: &Self, part: fn(&AddressRange) -> String| {
            group.spec.ranges.iter().map(part).collect::<Vec<String>>()
        };
        let differs = |part: fn(&AddressRange) -> String| of(self, part) != of(other, part);
        let parts = [
            ("range", self.nets() != other.nets()),
            ("range_start", differs(|range| format!("{:?}", range.range_start))),
            ("range_end", differs(|range| format!("{:?}", range.range_end))),
            ("gateway", differs(|range| format!("{:?}", range.gateway))),
            ("exclude", differs(|range| format!("{:?}", range.exclude))),
            ("routes", self.spec.routes != other.spec.routes),
        ];
        let names: Vec<&str> =
            parts.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
        names.join(", ")
    }

    fn finish(
        mut self,
        used: &[Used<'_>],
        pods: &Pods<'_>,
        orphans: Orphans,
        names: &mut BTreeSet<String>,
    ) -> PoolTakeover {
        let pool = (self.nads.len() > 1).then(|| self.pool_name(names));
        let (mut leases, mut found, mut held) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut lease = |address: IpAddr, pod: &Pod, network: &NetworkName| {
            let key = pool.clone().map_or_else(|| PoolKey::Network(network.clone()), PoolKey::Pool);
            let (namespace, name, uid) = (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
            let spec = AddressLeaseSpec {
                pool: pool.clone(),
                network: network.clone(),
                address: Some(address),
                mac: None,
                holder: Holder { kind: HolderKind::Pod, namespace, name, uid },
            };
            leases.insert(lease_name(&key, Leased::Address(address)), spec);
        };
        for (address, index) in std::mem::take(&mut self.used) {
            let Some(entry) = used.get(index) else { continue };
            if let Some(pod) = pods.get(entry.podref) {
                let Some(nad) = self.nad_of(pod, address) else { continue };
                lease(address, pod, &nad.network);
                continue;
            }
            let is_podref = entry
                .podref
                .split_once('/')
                .is_some_and(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
            if is_podref {
                found.push(Orphan {
                    address,
                    podref: shorten(entry.podref.to_owned(), QUOTED),
                    ifname: shorten(entry.ifname.to_owned(), QUOTED),
                    pool: entry.pool.clone(),
                });
            } else if !entry.podref.is_empty() {
                let podref = shorten(entry.podref.to_owned(), QUOTED);
                self.notes.push(Note {
                    object: entry.pool.clone(),
                    field: "spec.allocations".to_owned(),
                    reason: format!("{address} is excluded: its podref {podref:?} is not NAMESPACE/NAME"),
                });
            }
            if !is_podref || orphans == Orphans::Hold {
                held.push(address);
            }
        }
        for (address, pod) in std::mem::take(&mut self.fixed) {
            let Some((pod, nad)) = pods.get(&pod).and_then(|pod| Some((pod, self.nad_of(pod, address)?)))
            else {
                continue;
            };
            lease(address, pod, &nad.network);
        }
        self.hold(&held);
        if self.problems.is_empty()
            && let Some(nad) = self.nads.first()
        {
            let problems = self.spec.problems().into_iter().map(|problem| Problem::Invalid {
                nad: nad.object.clone(),
                field: problem.field,
                reason: problem.problem,
            });
            self.problems.extend(problems);
        }
        let spec = self.spec.clone();
        let networks = self.nads.iter().map(|nad| NetworkAddressing {
            nad: nad.object.clone(),
            network: nad.network.clone(),
            addresses: match &pool {
                Some(name) => NetworkAddresses { pool: Some(name.clone()), ..NetworkAddresses::default() },
                None => {
                    let AddressPoolSpec { ranges, routes, block_size, reserved } = spec.clone();
                    NetworkAddresses { pool: None, ranges, routes, block_size, reserved }
                }
            },
        });
        PoolTakeover {
            network_name: self.scope.to_owned(),
            ranges: self.nets(),
            ip_pools: self.ip_pools.iter().map(|pool| (*pool).clone()).collect(),
            networks: networks.collect(),
            pool: pool.map(|name| SharedPool { name, spec }),
            leases,
            orphans: found,
            held,
            problems: self.problems,
            notes: self.notes,
        }
    }

    /// Returns the Nad by which a pod has the address, as its `network-status` says; or else the first.
    fn nad_of(&self, pod: &Pod, address: IpAddr) -> Option<&'a Nad> {
        let text = pod.network_status.as_deref().filter(|_| self.nads.len() > 1).unwrap_or_default();
        let entries: Vec<Status> = serde_json::from_str(text).unwrap_or_default();
        let has = |status: &&Status| {
            status.ips.iter().flatten().filter_map(|text| ip(text)).any(|ip| ip == address)
        };
        let named = |entry: &Status| {
            let is_named =
                |nad: &&&Nad| format!("{}/{}", nad.object.namespace, nad.object.name) == entry.name;
            self.nads.iter().find(is_named)
        };
        entries.iter().filter(has).find_map(named).or_else(|| self.nads.first()).copied()
    }

    /// Excludes addresses, and lets no claim ask for them.
    fn hold(&mut self, held: &[IpAddr]) {
        self.spec.reserved.retain(|span| !held.iter().any(|ip| span.contains(*ip)));
        let mut ranges = std::mem::take(&mut self.spec.ranges);
        for range in &mut ranges {
            let of_range =
                held.iter().filter(|ip| range.subnet.contains(*ip)).map(|ip| Span::of_address(*ip));
            let exclude = spans::merge(range.exclude.iter().copied().chain(of_range).collect());
            range.exclude = self.limited("exclude with the held addresses", exclude, MAX_SPANS);
        }
        self.spec.ranges = ranges;
    }

    /// Returns a name for the AddressPool, the one that whereabouts gives its own pool (`IPPoolName`) where
    /// it can be one.
    fn pool_name(&self, names: &mut BTreeSet<String>) -> String {
        let range = self.nets().first().map(IpNet::to_string).unwrap_or_default();
        let scope = if self.scope.is_empty() { String::new() } else { format!("{}-", self.scope) };
        let full = format!("{scope}{}", name_part(&range)).to_lowercase();
        let labels = full.split('.').map(|label| {
            let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
            let label: String = label.chars().map(allowed).take(63).collect();
            let label = label.trim_matches('-');
            if label.is_empty() { "0".to_owned() } else { label.to_owned() }
        });
        let name = labels.collect::<Vec<_>>().join(".");
        let name = name.get(..190).unwrap_or(&name).trim_end_matches(['-', '.']).to_owned();
        let numbered = (2_u32..).map(|n| format!("{name}-{n}"));
        let name = std::iter::once(name.clone())
            .chain(numbered)
            .find(|name| !names.contains(name))
            .unwrap_or_default();
        names.insert(name.clone());
        name
    }
}

/// An entry of `network-status` (Network Plumbing Working Group, de-facto standard 1.3, section 4.1.2).
#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    name: String,
    #[serde(default)]
    ips: Option<Vec<String>>,
}

/// Returns the address in the name of an OverlappingRangeIPReservation (`NormalizeIP`).
fn reserved_address(name: &str, scope: &str) -> Option<IpAddr> {
    let text = match scope {
        "" => name,
        scope => name.strip_prefix(scope)?.strip_prefix('-')?,
    };
    ip(&text.replace('-', ":"))
}

fn positions<'a>(groups: &[Group<'a>], is: impl Fn(&Group<'a>) -> bool) -> Vec<usize> {
    groups.iter().enumerate().filter(|(_, group)| is(group)).map(|(i, _)| i).collect()
}
