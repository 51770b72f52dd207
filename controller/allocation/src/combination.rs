//! Whether requests that a node can serve one by one can be served together: the scheduler's search, with an
//! end.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceConstraint};

use crate::capacity;
use crate::cause::{Amount, Cause, Lack};
use crate::holdings::{Holdings, holders, takes, used};
use crate::pool::{Candidate, Counter, Pools, consumed_counters, network_of};
use crate::request::{DeviceCount, MOST_DEVICES, Request};

/// The most devices that the search tries. Nearly all searches need a handful; the rest would take the
/// scheduler's 10 s.
const MOST_STEPS: usize = 20_000;

/// The most devices that the searches of all nodes try: a handful on each of 5,000 nodes, and some hard ones.
pub(crate) const MOST_STEPS_OF_ALL: usize = 500_000;

/// A claim whose requests are to be served together.
pub(crate) struct Claim<'a> {
    pub(crate) constraints: &'a [DeviceConstraint],
    /// For each request the alternatives that can be served alone.
    pub(crate) requests: Vec<Vec<Choice<'a>>>,
}

/// One alternative, and the candidates that can serve it.
pub(crate) struct Choice<'a> {
    pub(crate) request: &'a Request,
    pub(crate) usable: Vec<usize>,
    /// Candidates at which the scheduler gives up, if it gets to them and nothing has taken them before.
    pub(crate) stops: BTreeMap<usize, Cause>,
}

/// The result of the search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Yes,
    No,
    /// With more of these capacities, it would be `Yes`.
    Short(Vec<Lack>),
    /// The scheduler gives up at a device.
    Stopped(Cause),
    /// It ended before, or met what it does not know.
    Unknown,
}

/// Looks for devices for all requests. It takes its steps from those that are left for all nodes.
pub(crate) fn search(
    claims: &[Claim<'_>],
    pools: &Pools<'_>,
    holdings: &Holdings,
    steps_left: &mut usize,
) -> Found {
    let requests: Vec<(&Claim<'_>, &[Choice<'_>])> = claims
        .iter()
        .flat_map(|claim| claim.requests.iter().map(move |choices| (claim, choices.as_slice())))
        .collect();
    let most = MOST_STEPS.min(*steps_left);
    let mut search = Search {
        requests,
        pools,
        holdings,
        steps: 0,
        most,
        is_unsure: false,
        stopped: None,
        is_overdrawn: false,
        is_generous: false,
        served: None,
    };
    let is_served = search.serve(0, &Taken::default());
    let is_refused = !is_served && search.stopped.is_none() && !search.is_unsure && search.steps < most;
    search.is_generous = is_refused && search.is_overdrawn;
    let would_be_served = search.is_generous && search.serve(0, &Taken::default());
    *steps_left = steps_left.saturating_sub(search.steps);
    if would_be_served {
        Found::Short(search.lacks())
    } else if is_refused {
        Found::No
    } else if is_served {
        Found::Yes
    } else if let Some(cause) = search.stopped {
        Found::Stopped(cause)
    } else {
        Found::Unknown
    }
}

struct Search<'s, 'a> {
    requests: Vec<(&'s Claim<'a>, &'s [Choice<'a>])>,
    pools: &'s Pools<'a>,
    holdings: &'s Holdings,
    steps: usize,
    most: usize,
    is_unsure: bool,
    stopped: Option<Cause>,
    /// Whether a device had too little of a capacity.
    is_overdrawn: bool,
    /// Whether devices have as much of each capacity as is wanted.
    is_generous: bool,
    /// What served all requests.
    served: Option<Taken>,
}

/// The devices that the search has taken so far.
#[derive(Clone, Default)]
struct Taken {
    /// Devices that are not shared, with the claims that have them.
    whole: BTreeMap<usize, BTreeSet<usize>>,
    /// How many devices each claim has.
    devices: BTreeMap<usize, usize>,
    capacities: BTreeMap<(usize, String), i128>,
    shared: BTreeSet<usize>,
    counters: BTreeMap<(usize, Counter), i128>,
    /// Values of attributes that constraints look at, by claim and constraint.
    attributes: BTreeMap<(usize, usize), Vec<DeviceAttribute>>,
}

impl<'s> Search<'s, '_> {
    /// Serves this request and all after it.
    fn serve(&mut self, index: usize, taken: &Taken) -> bool {
        let Some((_, choices)) = self.requests.get(index).copied() else {
            self.served = Some(taken.clone());
            return true;
        };
        choices.iter().any(|choice| {
            let count = match choice.request.wanted {
                DeviceCount::Exactly(count) => count,
                DeviceCount::All => choice.usable.len(),
            };
            let mut next = taken.clone();
            let devices = next.devices.entry(self.claim_of(index)).or_default();
            *devices = devices.saturating_add(count);
            *devices <= MOST_DEVICES && self.pick(index, choice, count, 0, &next)
        })
    }

    /// Takes `count` more candidates of the choice, from candidate `from` on.
    fn pick(
        &mut self,
        index: usize,
        choice: &'s Choice<'_>,
        count: usize,
        from: usize,
        taken: &Taken,
    ) -> bool {
        if count == 0 {
            return self.serve(index + 1, taken);
        }
        let mut tried: Vec<usize> = choice.usable.iter().chain(choice.stops.keys()).copied().collect();
        tried.sort_unstable();
        for candidate in tried.into_iter().filter(|candidate| *candidate >= from) {
            self.steps += 1;
            if self.steps >= self.most || self.stopped.is_some() {
                return false;
            }
            if let Some(cause) = choice.stops.get(&candidate) {
                if taken.whole.contains_key(&candidate) && !choice.request.admin_access {
                    continue;
                }
                self.stopped = Some(cause.clone());
                return false;
            }
            let mut next = taken.clone();
            if self.take(index, choice.request, candidate, &mut next)
                && self.pick(index, choice, count - 1, candidate + 1, &next)
            {
                return true;
            }
        }
        false
    }

    fn take(&mut self, index: usize, request: &Request, candidate: usize, taken: &mut Taken) -> bool {
        let Some(found) = self.pools.candidates.get(candidate) else { return false };
        let is_shared = found.device.allow_multiple_allocations == Some(true);
        let claim = self.claim_of(index);
        if !is_shared {
            let holders = taken.whole.entry(candidate).or_default();
            let is_free = if request.admin_access { !holders.contains(&claim) } else { holders.is_empty() };
            if !is_free {
                return false;
            }
            holders.insert(claim);
        }
        self.take_capacities(request, candidate, found, taken)
            && self.take_counters(candidate, found, is_shared, taken)
            && (self.meets_constraints(index, request, found, taken) || self.miss(request))
    }

    /// Notes that a constraint is not met. If a request wants all devices, the scheduler gives up there.
    fn miss(&mut self, request: &Request) -> bool {
        if request.wanted == DeviceCount::All {
            self.stopped = Some(Cause::NoCombination);
        }
        false
    }

    /// A number of the request's claim.
    fn claim_of(&self, index: usize) -> usize {
        let claim = self.requests.get(index).map(|(claim, _)| *claim);
        let is_same = |other: &Claim<'_>| claim.is_some_and(|claim| std::ptr::addr_eq(claim, other));
        self.requests.iter().position(|(other, _)| is_same(other)).unwrap_or_default()
    }

    fn take_capacities(
        &mut self,
        request: &Request,
        index: usize,
        candidate: &Candidate<'_>,
        taken: &mut Taken,
    ) -> bool {
        let Ok(wanted) = capacity::taken(candidate.device, &request.capacity) else { return false };
        let held = self.holdings.of(&candidate.id);
        wanted.into_iter().all(|(name, amount)| {
            let capacity = candidate.device.capacity.as_ref().and_then(|capacities| capacities.get(&name));
            // A candidate whose amounts cannot be read is not usable.
            let Some(total) = capacity.and_then(capacity::total) else { return false };
            let Some(before) = used(held, &name) else { return false };
            let sum = taken.capacities.entry((index, name)).or_default();
            *sum = sum.saturating_add(amount);
            let is_free = before.saturating_add(*sum) <= total;
            self.is_overdrawn |= !is_free;
            is_free || self.is_generous
        })
    }

    /// Returns the capacities that the requests exceed.
    fn lacks(&self) -> Vec<Lack> {
        let taken = self.served.iter().flat_map(|taken| &taken.capacities);
        let lacks = taken.filter_map(|((index, name), wanted)| {
            let found = self.pools.candidates.get(*index)?;
            let held = self.holdings.of(&found.id);
            let total = capacity::total(found.device.capacity.as_ref()?.get(name)?)?;
            let free = total.saturating_sub(used(held, name)?).max(0);
            (*wanted > free).then(|| Lack {
                device: found.id.clone(),
                network: network_of(found.device).map(str::to_owned),
                capacity: name.clone(),
                wanted: Amount(*wanted),
                total: Amount(total),
                free: Amount(free),
                holders: holders(held.iter().filter(|held| takes(held, name))),
            })
        });
        lacks.collect()
    }

    fn take_counters(
        &self,
        index: usize,
        candidate: &Candidate<'_>,
        is_shared: bool,
        taken: &mut Taken,
    ) -> bool {
        let is_charged =
            is_shared && (!self.holdings.of(&candidate.id).is_empty() || !taken.shared.insert(index));
        let Some(pool) = self.pools.pools.get(candidate.pool) else { return false };
        is_charged
            || consumed_counters(candidate.device).all(|(counter, amount)| {
                let left = pool.left.get(&counter).copied().unwrap_or_default();
                let sum = taken.counters.entry((candidate.pool, counter)).or_default();
                *sum = sum.saturating_add(amount);
                *sum <= left
            })
    }

    fn meets_constraints(
        &mut self,
        index: usize,
        request: &Request,
        candidate: &Candidate<'_>,
        taken: &mut Taken,
    ) -> bool {
        let Some((claim, _)) = self.requests.get(index).copied() else { return false };
        let claim_index = self.claim_of(index);
        for (number, constraint) in claim.constraints.iter().enumerate() {
            if !applies(constraint, request) {
                continue;
            }
            let name = constraint.match_attribute.as_ref().or(constraint.distinct_attribute.as_ref());
            let Some(name) = name else {
                self.is_unsure = true;
                return false;
            };
            let Some(value) = attribute(candidate.device, &candidate.id.driver, name) else { return false };
            if is_list(value) {
                // Schedulers differ in what they make of lists.
                self.is_unsure = true;
                return false;
            }
            let others = taken.attributes.entry((claim_index, number)).or_default();
            let is_met = match &constraint.match_attribute {
                Some(_) => others.iter().all(|other| other == value),
                None => others.iter().all(|other| other != value),
            };
            if !is_met {
                return false;
            }
            others.push(value.clone());
        }
        true
    }
}

/// Whether the constraint is about the request: it lists the request, or its alternative, or nothing.
fn applies(constraint: &DeviceConstraint, request: &Request) -> bool {
    let listed = constraint.requests.as_deref().unwrap_or_default();
    let name = request.name.request.as_deref().unwrap_or_default();
    let full = request.name.alternative.as_ref().map(|alternative| format!("{name}/{alternative}"));
    listed.is_empty() || listed.iter().any(|listed| listed == name || Some(listed) == full.as_ref())
}

/// An attribute by its full name; the driver's own may be published without their domain.
fn attribute<'a>(device: &'a Device, driver: &str, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.as_ref()?;
    let own = || name.strip_prefix(driver)?.strip_prefix('/').and_then(|name| attributes.get(name));
    attributes.get(name).or_else(own)
}

fn is_list(value: &DeviceAttribute) -> bool {
    value.bools.is_some() || value.ints.is_some() || value.strings.is_some() || value.versions.is_some()
}
