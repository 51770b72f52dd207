//! Addresses that whereabouts hands over.
//!
//! whereabouts and netclaim do not know each other's addresses. So netclaim gets a part of a range, which
//! every NetworkAttachmentDefinition of that range excludes; and of this part what pods still have is
//! excluded from the ClaimNetwork. Or whereabouts is stopped, what pods have is [leased](super::takeover),
//! and netclaim gets everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;

use netclaim_api::addresses::{AddressPoolSpec, AddressRange, Span};
use netclaim_api::{Invalid, NetworkName};
use netclaim_whereabouts::{
    self as pools, DecodeError, NetworkAddressing, ObjectRef, Objects, Orphans, PoolTakeover, Takeover,
};

use super::input::Input;
use super::nad_name::NadName;
use super::network::Addresses;
use super::report::Finding;

/// Addresses that a note lists.
const LISTED: usize = 5;
/// Entries that `exclude` of a range may have.
const MAX_EXCLUDED: usize = 256;

/// Which addresses of whereabouts ClaimNetworks hand out.
#[derive(Debug, Clone)]
pub(super) enum HandedOver {
    /// These, which whereabouts does not hand out any more.
    Parts(Vec<Span>),
    /// All: whereabouts is stopped, and those that pods have are leased.
    All,
}

/// The addresses of ClaimNetworks that replace NetworkAttachmentDefinitions with whereabouts.
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

/// Decides which addresses ClaimNetworks get.
pub(super) fn handover(
    input: &Input,
    names: &BTreeMap<&NadName, Result<NetworkName, Invalid>>,
    handed_over: &HandedOver,
) -> Handover {
    let mut handover = Handover::default();
    let Decoded { nads, unread } = decode(input, names);
    let unread: BTreeMap<NadName, Invalid> =
        unread.into_iter().filter_map(|(of, error)| Some((of, in_ipam(error)?))).collect();
    let first_unread = unread.keys().next().cloned();
    handover.addresses.extend(unread.into_iter().map(|(of, problem)| (of, Err(vec![problem]))));
    let HandedOver::Parts(handed_over) = handed_over else {
        let mut known = Vec::new();
        for (of, nad) in nads {
            match known_pools(input, &nad) {
                Ok(()) => known.push(nad),
                Err(problems) => drop(handover.addresses.insert(of, Err(problems))),
            }
        }
        let takeover = takeover_of(input, known);
        let problem = takeover.unreadable.first().map(unreadable);
        handover.notes.extend(takeover.notes.into_iter().map(note));
        takeover.pools.into_iter().for_each(|pool| handover.add_taken_over(input, pool, problem.as_ref()));
        return handover;
    };
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
    if let Some(problem) = unknown_use(input, first_unread.as_ref()) {
        let refused = parts.into_iter().map(|(of, _)| (of, Err(vec![problem.clone()])));
        handover.addresses.extend(refused);
        return handover;
    }
    let objects = objects(input, parts.into_iter().map(|(_, nad)| nad).collect());
    let takeover = pools::plan(&objects, Orphans::Hold);
    handover.notes.extend(takeover.notes.into_iter().map(note));
    takeover.pools.into_iter().for_each(|pool| handover.add(pool));
    handover
}

/// Plans the takeover of everything that whereabouts has, by the ClaimNetworks of these names.
pub(super) fn takeover(input: &Input, names: &BTreeMap<&NadName, Result<NetworkName, Invalid>>) -> Takeover {
    let Decoded { nads, unread } = decode(input, names);
    let mut takeover = takeover_of(input, nads.into_values().collect());
    takeover.skipped.extend(unread.into_values());
    takeover
}

fn takeover_of(input: &Input, nads: Vec<pools::Nad>) -> Takeover {
    // Those whose pods are gone leaked, and whereabouts does not hand them out again.
    pools::plan(&objects(input, nads), Orphans::Free)
}

fn objects(input: &Input, nads: Vec<pools::Nad>) -> Objects {
    Objects {
        nads,
        pools: input.pools.clone(),
        reservations: input.reservations.clone(),
        slices: input.slices.clone(),
        pods: input.pods.clone(),
        unreadable: input.unreadable.clone(),
        ..Objects::default()
    }
}

/// The NetworkAttachmentDefinitions with whereabouts, and those that cannot be read.
#[derive(Default)]
struct Decoded {
    nads: BTreeMap<NadName, pools::Nad>,
    unread: BTreeMap<NadName, DecodeError>,
}

/// Reads the NetworkAttachmentDefinitions with whereabouts. Their ClaimNetworks have these names.
fn decode(input: &Input, names: &BTreeMap<&NadName, Result<NetworkName, Invalid>>) -> Decoded {
    let mut decoded = Decoded::default();
    for (of, nad) in &input.nads {
        match pools::Nad::decode(&nad.object) {
            Ok(None) => {}
            Ok(Some(mut nad)) => {
                if let Some(Ok(network)) = names.get(of) {
                    nad.network = network.clone();
                }
                decoded.nads.insert(of.clone(), nad);
            }
            Err(error) => drop(decoded.unread.insert(of.clone(), error)),
        }
    }
    decoded
}

/// Returns a problem with its field relative to the `ipam` object. `None`: the translation finds it, too.
fn in_ipam(error: DecodeError) -> Option<Invalid> {
    let DecodeError::Field { field, problem, .. } = error else { return None };
    let field = field.rsplit_once("ipam").map_or("", |(_, field)| field.trim_start_matches('.'));
    Some(Invalid::new(field, problem))
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
    input.unreadable.first().map(unreadable)
}

fn unreadable(error: &DecodeError) -> Invalid {
    Invalid::new("", format!("an object of whereabouts cannot be read: {error}"))
}

/// Returns the parts that some NetworkAttachmentDefinition of the same `network_name` does not exclude, with
/// its name.
fn given_away(nads: &BTreeMap<NadName, pools::Nad>, handed_over: &[Span]) -> Vec<(String, Span, ObjectRef)> {
    let mut found = Vec::new();
    for nad in nads.values() {
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
         NetworkAttachmentDefinition that has it, and run this again with --handed-over PART; or stop whereabouts, and take all over \
         (netclaimctl migrate whereabouts)"
    )
}

impl Handover {
    /// Adds what a pool of whereabouts becomes that netclaim takes over as a whole.
    fn add_taken_over(&mut self, input: &Input, pool: PoolTakeover, problem: Option<&Invalid>) {
        let orphans = pool.orphans.iter().map(|orphan| format!("{} ({})", orphan.address, orphan.podref));
        let orphans: Vec<String> = orphans.collect();
        let free = (!orphans.is_empty()).then(|| {
            format!(
                "addresses are free again, as the pods to which whereabouts gave them are not there: {}",
                listed(&orphans)
            )
        });
        let mut problems: Vec<Invalid> = problem.cloned().into_iter().collect();
        problems.extend(pool.problems.iter().map(|problem| Invalid::new("", problem.to_string())));
        // Pods of the same names may have come back with claims since a ClaimNetwork was made.
        let is_made = |network: &NetworkAddressing| {
            input.existing.is_made(network.network.as_str(), &nad_of(&network.nad))
        };
        let unleased = pool.leases.iter().filter(|(name, _)| !input.leases.contains(*name));
        let unleased = unleased.filter_map(|(_, lease)| {
            Some(format!("{} ({}/{})", lease.address?, lease.holder.namespace, lease.holder.name))
        });
        let unleased: Vec<String> = unleased.collect();
        if !unleased.is_empty() && !pool.networks.iter().all(is_made) {
            let problem = format!(
                "pods have addresses of whereabouts that are not leased: {}; run `netclaimctl migrate whereabouts --apply`",
                listed(&unleased)
            );
            problems.push(Invalid::new("type", problem));
        }
        self.notes.extend(pool.notes.into_iter().map(note));
        for network in pool.networks {
            let nad = nad_of(&network.nad);
            let note =
                free.iter().map(|reason| Finding::new(network.nad.clone(), "spec.config", reason.clone()));
            self.notes.extend(note);
            let addresses = if problems.is_empty() { Ok(network.addresses) } else { Err(problems.clone()) };
            self.addresses.insert(nad, addresses);
        }
        self.pools.extend(pool.pool.map(|shared| (shared.name, shared.spec)));
    }

    /// Adds what a pool of whereabouts becomes, a part of which is handed over.
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
        let texts: Vec<String> = texts.collect();
        let reason = format!(
            "addresses of the part are excluded, as whereabouts says that pods have them: {}; remove them from exclude of the \
             ClaimNetwork or AddressPool when these pods are gone",
            listed(&texts)
        );
        let finding = |nad: NadName| Finding::new(nad.object(), "spec.config", reason.clone());
        self.notes.extend(nads.into_iter().map(finding));
    }
}

/// Lists the first ones.
fn listed(texts: &[String]) -> String {
    let more = if texts.len() > LISTED { " …" } else { "" };
    texts.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ") + more
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

/// Returns the ranges that ClaimNetworks and the AddressPool get.
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
