//! Addresses that whereabouts hands over.
//!
//! whereabouts and netclaim do not know of each other's addresses. So netclaim gets a part of a range, which every
//! NetworkAttachmentDefinition of that range excludes; and of this part what pods still have is excluded from the Network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;

use netclaim_api::addresses::{AddressPoolSpec, AddressRange, Span};
use netclaim_api::{Invalid, NetworkName};
use netclaim_whereabouts::{self as pools, DecodeError, ObjectRef, Objects, Orphans, PoolTakeover};

use super::input::{Input, NadName};
use super::network::Addresses;
use super::report::Finding;

/// Addresses in use that a note lists.
const LISTED: usize = 5;
/// Entries that `exclude` of a range may have.
const MAX_EXCLUDED: usize = 256;

/// What the Networks get that replace NetworkAttachmentDefinitions with whereabouts.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// Their addresses, or why they get none, with fields relative to the `ipam` object.
    pub(super) addresses: BTreeMap<NadName, Addresses>,
    /// Addresses in their parts that whereabouts did not hand out before, either.
    never: BTreeMap<NadName, Vec<Span>>,
    /// The AddressPools that several of them draw from.
    pub(super) pools: BTreeMap<String, AddressPoolSpec>,
    /// What is different.
    pub(super) notes: Vec<Finding>,
}

/// Decides which addresses Networks get. `handed_over` has those that whereabouts does not hand out any more.
pub(super) fn handover(
    input: &Input,
    names: &BTreeMap<&NadName, Result<NetworkName, Invalid>>,
    handed_over: &[Span],
) -> Handover {
    let mut handover = Handover::default();
    let (mut nads, mut unread) = (Vec::new(), None);
    for (of, nad) in &input.nads {
        match pools::Nad::decode(&nad.object) {
            Ok(None) => {}
            Ok(Some(mut decoded)) => {
                if let Some(Ok(network)) = names.get(of) {
                    decoded.network = network.clone();
                }
                nads.push((of.clone(), decoded));
            }
            Err(DecodeError::Field { field, problem, .. }) => {
                let field = field
                    .rsplit_once("ipam")
                    .map_or("", |(_, field)| field.trim_start_matches('.'))
                    .to_owned();
                handover.addresses.insert(of.clone(), Err(vec![Invalid::new(field, problem)]));
                unread = unread.or(Some(of));
            }
            // The translation finds it, too.
            Err(DecodeError::Config { .. }) => {}
        }
    }
    let given_away = given_away(&nads, handed_over);
    let mut parts = Vec::new();
    for (of, nad) in nads {
        let part = part_of(&nad, handed_over, &given_away);
        match part.and_then(|part| known_pools(input, &nad).map(|()| part)) {
            Ok(part) => {
                let never = part.ipam.ranges.iter().flat_map(|range| range.exclude.iter().copied());
                handover.never.insert(of.clone(), never.collect());
                parts.push((of, part));
            }
            Err(problems) => {
                handover.addresses.insert(of, Err(problems));
            }
        }
    }
    if parts.is_empty() {
        return handover;
    }
    if let Some(problem) = unknown_use(input, unread) {
        let refused = parts.into_iter().map(|(of, _)| (of, Err(vec![problem.clone()])));
        handover.addresses.extend(refused);
        return handover;
    }
    let objects = Objects {
        nads: parts.into_iter().map(|(_, nad)| nad).collect(),
        pools: input.pools.clone(),
        reservations: input.reservations.clone(),
        slices: input.slices.clone(),
        pods: input.pods.clone(),
        ..Objects::default()
    };
    let takeover = pools::plan(&objects, Orphans::Hold);
    handover.notes.extend(takeover.notes.into_iter().map(note));
    takeover.pools.into_iter().for_each(|pool| handover.add(pool));
    handover
}

fn note(note: pools::Note) -> Finding {
    Finding::new(note.object, note.field, note.reason)
}

/// Checks that files have the pools of each range: what pods have of it is written there.
fn known_pools(input: &Input, nad: &pools::Nad) -> Result<(), Vec<Invalid>> {
    let (ipam, scope) = (&nad.ipam, nad.ipam.network_name.as_str());
    let sliced = if scope.is_empty() { nad.conf_name.as_str() } else { scope };
    let has_slices = ipam.has_node_slices
        && !input.pools.is_empty()
        && input.slices.iter().any(|slices| slices.object.name == sliced);
    // One that cannot be read is refused by its name.
    if input.is_cluster || has_slices || !input.unreadable.is_empty() {
        return Ok(());
    }
    let is_missing = |net| !input.pools.iter().any(|pool| pool.is_of(scope, net));
    let missing = ipam.ranges.iter().map(|range| range.net).filter(|net| is_missing(*net));
    let problems: Vec<Invalid> = missing
        .map(|net| {
            let problem = format!(
                "the input has no IPPool of {net}, so the command cannot tell which addresses pods have: add `kubectl get \
                 ippools.whereabouts.cni.cncf.io,nodeslicepools.whereabouts.cni.cncf.io,pods -A -o yaml`, or run this with a \
                 kubeconfig"
            );
            Invalid::new("type", problem)
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Returns why the command cannot tell which addresses pods have or get.
fn unknown_use(input: &Input, unread: Option<&NadName>) -> Option<Invalid> {
    if let Some(nad) = unread {
        let problem = format!(
            "cannot tell which addresses {nad} hands out, as its ipam cannot be read: correct it, or leave it out"
        );
        return Some(Invalid::new("type", problem));
    }
    if let Some(error) = input.unreadable.first() {
        return Some(Invalid::new("", format!("an object of whereabouts cannot be read: {error}")));
    }
    None
}

/// Returns the parts that some NetworkAttachmentDefinition of the same `network_name` does not exclude, with its name.
fn given_away(nads: &[(NadName, pools::Nad)], handed_over: &[Span]) -> Vec<(String, Span, ObjectRef)> {
    let mut found = Vec::new();
    for (_, nad) in nads {
        for range in &nad.ipam.ranges {
            let limits = limits(range);
            for part in handed_over.iter().filter_map(|part| part.intersection(limits?)) {
                // Those that meet are one.
                if !range.exclude.iter().any(|excluded| excluded.covers(part)) {
                    found.push((nad.ipam.network_name.clone(), part, nad.object.clone()));
                }
            }
        }
    }
    found
}

/// Returns from where to where whereabouts hands out addresses of the range.
fn limits(range: &pools::Range) -> Option<Span> {
    let all = Span::of_net(range.net);
    Span::new(range.first.unwrap_or_else(|| all.first()), range.last.unwrap_or_else(|| all.last()))
}

/// Returns the NetworkAttachmentDefinition with the ranges that are handed over.
fn part_of(
    nad: &pools::Nad,
    handed_over: &[Span],
    given_away: &[(String, Span, ObjectRef)],
) -> Result<pools::Nad, Vec<Invalid>> {
    let (mut part, mut problems) = (nad.clone(), Vec::new());
    for range in &mut part.ipam.ranges {
        let all = Span::of_net(range.net);
        let limits = limits(range);
        let parts: Vec<Span> = handed_over.iter().filter_map(|span| span.intersection(limits?)).collect();
        let [span] = parts.as_slice() else {
            problems.push(Invalid::new("type", undecided(range.net, parts.len())));
            continue;
        };
        let still = given_away
            .iter()
            .filter(|(scope, part, _)| *scope == nad.ipam.network_name && part.intersection(*span).is_some());
        problems.extend(still.map(|(_, part, other)| {
            Invalid::new(
                "exclude",
                format!("whereabouts still hands out {part}: write it into ipam.exclude of {other}"),
            )
        }));
        range.first = Some(span.first()).filter(|first| *first != all.first());
        range.last = Some(span.last()).filter(|last| *last != all.last());
        // Routers and hosts that have nothing to do with whereabouts.
        range.exclude =
            range.nested.iter().copied().filter(|inner| inner != span && span.covers(*inner)).collect();
    }
    if problems.is_empty() { Ok(part) } else { Err(problems) }
}

fn undecided(net: impl Display, parts: usize) -> String {
    if parts > 1 {
        return format!("--handed-over has {parts} parts of {net}: hand over one");
    }
    format!(
        "whereabouts would not know which addresses of {net} netclaim hands out: write a part of the range into ipam.exclude of every \
         NetworkAttachmentDefinition that has it, and run this again with --handed-over PART"
    )
}

impl Handover {
    /// Adds what a pool of whereabouts becomes.
    fn add(&mut self, mut pool: PoolTakeover) {
        self.notes.extend(std::mem::take(&mut pool.notes).into_iter().map(note));
        let nads: Vec<NadName> = pool.networks.iter().map(|network| nad_of(&network.nad)).collect();
        let mut problems: Vec<Invalid> =
            pool.problems.iter().map(|problem| Invalid::new("", problem.to_string())).collect();
        let used = used(&pool);
        let never = pool.networks.first().and_then(|network| self.never.get(&nad_of(&network.nad)));
        let never = never.cloned().unwrap_or_default();
        let mut excluded = BTreeSet::new();
        for ranges in ranges_of(&mut pool) {
            let of_ranges = ranges.iter_mut().map(|range| exclude(range, &never, used.keys().copied()));
            excluded.extend(of_ranges.flatten());
        }
        let count = excluded.len() + never.len();
        if count > MAX_EXCLUDED {
            let problem =
                format!("{count} addresses of the part are excluded, or pods have them: choose another part");
            problems.push(Invalid::new("exclude", problem));
        }
        if !problems.is_empty() {
            self.addresses.extend(nads.into_iter().map(|nad| (nad, Err(problems.clone()))));
            return;
        }
        self.pools.extend(pool.pool.map(|shared| (shared.name, shared.spec)));
        self.addresses
            .extend(pool.networks.into_iter().map(|network| (nad_of(&network.nad), Ok(network.addresses))));
        if excluded.is_empty() {
            return;
        }
        let texts = excluded.iter().filter_map(|ip| Some(format!("{ip} ({})", used.get(ip)?)));
        let texts: Vec<String> = texts.take(LISTED).collect();
        let more = if excluded.len() > LISTED { " …" } else { "" };
        let reason = format!(
            "addresses of the part are excluded, as whereabouts says that pods have them: {}{more}; remove them from exclude of the \
             Network or AddressPool when these pods are gone",
            texts.join(", ")
        );
        let finding = |nad: NadName| Finding::new(nad.object(), "spec.config", reason.clone());
        self.notes.extend(nads.into_iter().map(finding));
    }
}

fn nad_of(object: &ObjectRef) -> NadName {
    NadName { namespace: object.namespace.clone(), name: object.name.clone() }
}

/// Returns the addresses in use, with who has them.
fn used(pool: &PoolTakeover) -> BTreeMap<IpAddr, String> {
    let held = pool.held.iter().map(|address| (*address, "held by hand".to_owned()));
    let orphans =
        pool.orphans.iter().map(|orphan| (orphan.address, format!("{}, which is not there", orphan.podref)));
    let leased = pool.leases.values().filter_map(|lease| {
        Some((lease.address?, format!("{}/{}", lease.holder.namespace, lease.holder.name)))
    });
    held.chain(orphans).chain(leased).collect()
}

/// Returns the ranges that Networks and the AddressPool get.
fn ranges_of(pool: &mut PoolTakeover) -> impl Iterator<Item = &mut Vec<AddressRange>> {
    let shared = pool.pool.iter_mut().map(|shared| &mut shared.spec.ranges);
    shared.chain(pool.networks.iter_mut().map(|network| &mut network.addresses.ranges))
}

/// Excludes those of the addresses that the range has, and no others. Returns the used ones.
fn exclude(range: &mut AddressRange, never: &[Span], used: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let all = Span::of_net(range.subnet);
    let first = range.range_start.unwrap_or_else(|| all.first());
    let Some(span) = Span::new(first, range.range_end.unwrap_or_else(|| all.last())) else {
        return Vec::new();
    };
    let excluded: Vec<IpAddr> = used.filter(|ip| span.contains(*ip)).collect();
    let of_range = never.iter().filter_map(|part| part.intersection(span));
    let others = excluded.iter().filter(|ip| !never.iter().any(|part| part.contains(**ip)));
    range.exclude = of_range.chain(others.map(|ip| Span::of_address(*ip))).collect();
    excluded
}
