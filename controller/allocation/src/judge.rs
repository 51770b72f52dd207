//! The judgement: whether a node can serve claims, and why not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    DeviceClass, DeviceConstraint, DeviceTaintRule, ResourceClaim, ResourceSlice,
};
use netclaim_api::device::DeviceName;
use netclaim_api::{DRIVER_NAME, attributes};
use serde::Serialize;

use crate::capacity;
use crate::cause::{Amount, Cause, Origin, Use};
use crate::combination::{self, Choice, Found};
use crate::holdings::{DeviceId, HeldShare, Holdings, holders, takes, used};
use crate::limits::Limits;
use crate::node_selector::{self, KnownNode};
use crate::pool::{Candidate, Counter, Pools, consumed_counters, is_ours, network_of};
use crate::request::{
    self, Alternatives, Compiler, DeviceCount, MOST_DEVICES, Request, RequestName, TOO_LATE, is_over,
};
use crate::selector::{Evaluation, Selector};
use crate::taint_rules;

/// Claims of one pod that are to be served together on a node.
///
/// It is made once, and asked about one node after another, so that no more than one node's slices have to be
/// in memory.
#[derive(Debug)]
pub struct Question {
    claims: Vec<ClaimQuestion>,
    /// Devices that the searches of the nodes to come may try.
    steps_left: usize,
    /// After this time no selector is evaluated.
    pub(crate) deadline: Option<Instant>,
    /// The cluster's.
    rules: Vec<DeviceTaintRule>,
}

#[derive(Debug)]
struct ClaimQuestion {
    name: String,
    /// Where it has been allocated, if it has.
    allocated: Option<Option<NodeSelector>>,
    requests: Vec<Alternatives>,
    constraints: Vec<DeviceConstraint>,
    /// The fewest devices of the requests that have been left out.
    left_out: usize,
}

/// Whether a node can serve something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It cannot.
    No,
    /// It is not known.
    Unknown,
    /// It can.
    Yes,
}

/// A node's verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVerdict {
    /// The node.
    pub node: String,
    /// Whether the node can serve all claims together.
    pub answer: Answer,
    /// The judgement of each request, of each alternative, and of each claim that is allocated elsewhere.
    pub requests: Vec<RequestVerdict>,
    /// Why the requests cannot be served together, if each of them alone can.
    pub together: Option<Cause>,
}

/// A node's verdict on a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestVerdict {
    /// The request.
    pub request: RequestName,
    /// Whether the node can serve it, if it serves no other request.
    pub answer: Answer,
    /// Why not, or why it is not known; the same cause once.
    pub reasons: Vec<Reason>,
    /// Each device that was looked at.
    pub devices: Vec<DeviceVerdict>,
}

impl RequestVerdict {
    /// Whether some device, whose answer is unknown, could serve the request.
    fn has_unknown(&self) -> bool {
        let of_devices = self.devices.iter().flat_map(|device| &device.causes);
        let mut causes = self.reasons.iter().map(|reason| &reason.cause).chain(of_devices);
        // Claims that could not be read leave less, never more.
        causes.any(|cause| cause.is_unknown() && *cause != Cause::ClaimsUnread)
    }
}

/// A cause, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Reason {
    /// The ClaimNetwork or device in words; `None` if the cause is not about one.
    pub subject: Option<String>,
    /// The cause.
    pub cause: Cause,
}

impl Reason {
    /// The sentence without the claims that hold devices.
    pub fn brief(&self) -> String {
        match &self.subject {
            Some(subject) => format!("{subject}: {}", self.cause.brief()),
            None => self.cause.brief().to_string(),
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.subject {
            Some(subject) => write!(f, "{subject}: {}", self.cause),
            None => self.cause.fmt(f),
        }
    }
}

/// Why a device cannot serve a request; it can if there is no cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceVerdict {
    /// The device.
    pub device: DeviceId,
    /// All causes that are known.
    pub causes: Vec<Cause>,
}

impl Question {
    /// Asks for these claims.
    pub fn new(claims: &[ResourceClaim], classes: &[DeviceClass]) -> Self {
        Self::compiled(claims, classes, Compiler::default())
    }

    /// Asks for these claims. Selectors that are not compiled by then are not known.
    pub fn by(deadline: Instant, claims: &[ResourceClaim], classes: &[DeviceClass]) -> Self {
        Self::compiled(claims, classes, Compiler::until(deadline))
    }

    /// Asks for what limits are for, too. Selectors that are not compiled by the deadline are not known.
    #[must_use]
    pub fn with_limits(
        mut self,
        limits: &Limits,
        classes: &[DeviceClass],
        deadline: Option<Instant>,
    ) -> Self {
        let compiler = deadline.map(Compiler::until).unwrap_or_default();
        let mut asked = Self::compiled(std::slice::from_ref(&limits.claim), classes, compiler);
        let requests = asked.claims.iter_mut().flat_map(|claim| &mut claim.requests);
        for (alternatives, resource) in requests.zip(&limits.resources) {
            alternatives.iter_mut().for_each(|request| request.resource = Some(resource.clone()));
        }
        self.claims.append(&mut asked.claims);
        self
    }

    fn compiled(claims: &[ResourceClaim], classes: &[DeviceClass], mut compiler: Compiler) -> Self {
        let claims = claims.iter().map(|claim| {
            let name = claim.metadata.name.clone().unwrap_or_default();
            let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
            let devices = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
            ClaimQuestion {
                allocated: allocation.map(|allocation| allocation.node_selector.clone()),
                requests: request::of_claim(&name, claim, classes, &mut compiler),
                constraints: devices.and_then(|devices| devices.constraints.clone()).unwrap_or_default(),
                left_out: 0,
                name,
            }
        });
        let steps_left = combination::MOST_STEPS_OF_ALL;
        Self { claims: claims.collect(), steps_left, deadline: None, rules: Vec::new() }
    }

    /// Has devices the taints of these rules, too.
    #[must_use]
    pub fn with_rules(self, rules: &[DeviceTaintRule]) -> Self {
        Self { rules: rules.to_vec(), ..self }
    }

    /// Returns the requests whose class or selectors name the driver. Others may be for devices of other
    /// drivers.
    pub fn of_driver(&self) -> BTreeSet<RequestName> {
        self.naming_driver().map(|request| request.name.clone()).collect()
    }

    /// Returns the ClaimNetworks of the requests that name the driver; `None` if one of them may be for other
    /// devices.
    pub(crate) fn only_networks(&self) -> Option<BTreeSet<&str>> {
        self.naming_driver().map(|request| request.network(DRIVER_NAME)).collect()
    }

    fn naming_driver(&self) -> impl Iterator<Item = &Request> {
        let names = |(_, selector): &(Origin, Arc<Selector>)| selector.names(DRIVER_NAME);
        self.all().filter(move |request| request.selectors.iter().any(names))
    }

    /// Returns the names of all requests and alternatives.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &RequestName> {
        self.all().map(|request| &request.name)
    }

    fn all(&self) -> impl Iterator<Item = &Request> {
        self.claims.iter().flat_map(|claim| claim.requests.iter().flatten())
    }

    /// Returns the ClaimNetworks of the alternatives of each request that is not allocated; `None` where
    /// class and selectors do not name one.
    pub fn networks(&self) -> impl Iterator<Item = Vec<Option<&str>>> {
        let requests = self.unallocated().flat_map(|claim| &claim.requests);
        requests.map(|alternatives| alternatives.iter().map(|request| request.network(DRIVER_NAME)).collect())
    }

    fn unallocated(&self) -> impl Iterator<Item = &ClaimQuestion> {
        self.claims.iter().filter(|claim| claim.allocated.is_none())
    }

    /// Leaves out the requests for which `keep` is false. A request with alternatives stays if one of them
    /// does; whether the others can be served is not known then.
    pub fn retain(&mut self, mut keep: impl FnMut(&RequestName) -> bool) {
        for claim in &mut self.claims {
            let is_left_out =
                |alternatives: &mut Alternatives| !alternatives.iter().any(|request| keep(&request.name));
            let left_out = claim.requests.extract_if(.., is_left_out).map(|alternatives| {
                // How many devices of another driver a node has is not known.
                alternatives.iter().map(|request| request.fewest(0)).min().unwrap_or_default()
            });
            claim.left_out = left_out.fold(claim.left_out, usize::saturating_add);
            for request in claim.requests.iter_mut().flatten().filter(|request| !keep(&request.name)) {
                request.hopeless = Some(Cause::UnknownKind { what: OTHER_DRIVER.to_owned() });
            }
        }
        self.claims.retain(|claim| claim.allocated.is_some() || !claim.requests.is_empty());
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Judges one node. `slices` are those of its pools, all of them; others do no harm. When very many
    /// combinations have been tried for the nodes before, it is not known whether this one can serve all
    /// requests together.
    pub fn judge<'a>(
        &mut self,
        node: impl Into<KnownNode<'a>>,
        slices: impl IntoIterator<Item = &'a ResourceSlice>,
        holdings: &Holdings,
    ) -> NodeVerdict {
        let node = node.into();
        let pools = Pools { rules: &self.rules, ..Pools::gather(node, slices, holdings) };
        let name = node.name().unwrap_or_default().to_owned();
        let mut verdict =
            NodeVerdict { node: name, answer: Answer::Yes, requests: Vec::new(), together: None };
        let mut choices: Vec<combination::Claim<'_>> = Vec::new();
        let (mut alone, mut is_possible) = (Answer::Yes, true);
        for claim in &self.claims {
            if let Some(selector) = &claim.allocated {
                let elsewhere = selector.as_ref().and_then(|selector| claim.elsewhere(selector, node));
                if let Some(elsewhere) = elsewhere {
                    verdict.answer = verdict.answer.min(elsewhere.answer);
                    verdict.requests.push(elsewhere);
                }
                continue;
            }
            let mut asked = combination::Claim { constraints: &claim.constraints, requests: Vec::new() };
            let mut wanted = claim.left_out;
            for alternatives in &claim.requests {
                match alternatives.iter().find_map(|request| plugin(request, node)) {
                    Some(Ok(())) => continue,
                    Some(Err(unknown)) => {
                        (alone, is_possible) = (alone.min(unknown.answer), false);
                        verdict.requests.push(unknown);
                        continue;
                    }
                    None => {}
                }
                let judged = self.alternatives(alternatives, &pools, holdings, &mut verdict.requests);
                alone = alone.min(judged.answer);
                is_possible &= !judged.choices.is_empty();
                wanted = wanted.saturating_add(judged.fewest);
                asked.requests.push(judged.choices);
            }
            if wanted > MOST_DEVICES {
                let cause = Cause::TooManyDevices { wanted, most: MOST_DEVICES };
                verdict.answer = Answer::No;
                verdict.requests.push(claim.whole(Answer::No, cause));
            }
            choices.push(asked);
        }
        if verdict.answer == Answer::No || !is_possible {
            verdict.answer = verdict.answer.min(alone);
            return verdict;
        }
        // Also where a request alone stops the scheduler: another one may have taken the device before.
        let has_unknown = pools.unusable.iter().any(Cause::is_unknown)
            || verdict.requests.iter().any(RequestVerdict::has_unknown);
        verdict.together = match combination::search(&choices, &pools, holdings, &mut self.steps_left) {
            Found::Yes if holdings.is_partial() && !choices.is_empty() => Some(Cause::ClaimsUnread),
            Found::Yes => None,
            // What is not known to be usable is not tried.
            Found::No | Found::Stopped(Cause::NoCombination) if has_unknown => {
                Some(Cause::CombinationUnknown)
            }
            Found::Short(_) if has_unknown => Some(Cause::CombinationUnknown),
            Found::No => Some(Cause::NoCombination),
            Found::Short(lacks) => Some(Cause::Shortage { lacks }),
            Found::Stopped(cause) => Some(cause),
            Found::Unknown => Some(Cause::CombinationUnknown),
        };
        let together = match &verdict.together {
            None => Answer::Yes,
            Some(Cause::NoCombination | Cause::Shortage { .. }) => Answer::No,
            Some(_) if alone == Answer::Unknown => Answer::Unknown,
            Some(cause) if cause.is_unknown() => Answer::Unknown,
            Some(_) => Answer::No,
        };
        verdict.answer = verdict.answer.min(together);
        let of_requests = || verdict.requests.iter().flat_map(|request| &request.reasons);
        if verdict.together.as_ref().is_some_and(|cause| of_requests().any(|reason| reason.cause == *cause)) {
            verdict.together = None;
        }
        verdict
    }

    /// Judges a request with its alternatives; one of them is enough.
    fn alternatives<'r>(
        &self,
        alternatives: &'r Alternatives,
        pools: &Pools<'_>,
        holdings: &Holdings,
        verdicts: &mut Vec<RequestVerdict>,
    ) -> Judged<'r> {
        let mut best = Answer::No;
        let mut fewest: Option<usize> = None;
        let mut choices = Vec::new();
        let mut gives_up = false;
        for request in alternatives {
            let (mut verdict, usable) = self.request(request, pools, holdings);
            let is_wanted = |device: &&DeviceVerdict| !device.causes.iter().any(Cause::is_lasting);
            let devices = request.fewest(verdict.devices.iter().filter(is_wanted).count());
            fewest = Some(fewest.map_or(devices, |fewest| fewest.min(devices)));
            let stops_at: BTreeMap<usize, Cause> =
                verdict.devices.iter().enumerate().filter_map(stop).collect();
            let stops = verdict.reasons.iter().any(|reason| reason.cause.stops_the_scheduler());
            // The scheduler looks up all classes first, and all devices of a request that wants them all.
            let has_unusable = pools.unusable.iter().any(|cause| !cause.is_unknown());
            let is_looked_up_first = request.hopeless.is_some() && stops
                || request.wanted == DeviceCount::All && (has_unusable || !stops_at.is_empty());
            gives_up |= is_looked_up_first;
            let can_serve = match request.wanted {
                DeviceCount::Exactly(count) => usable.len() >= count,
                DeviceCount::All => verdict.answer == Answer::Yes,
            };
            if verdict.answer == Answer::Yes && holdings.is_partial() {
                verdict.answer = Answer::Unknown;
                verdict.reasons.push(Reason { subject: None, cause: Cause::ClaimsUnread });
            }
            best = best.max(verdict.answer);
            // An alternative that cannot be served may still be where the scheduler gives up.
            if request.hopeless.is_none() && (can_serve || !stops_at.is_empty()) {
                choices.push(Choice { request, usable, stops: stops_at });
            }
            verdicts.push(verdict);
        }
        if gives_up {
            (best, choices) = (Answer::No, Vec::new());
        }
        Judged { answer: best, choices, fewest: fewest.unwrap_or_default() }
    }

    fn request(
        &self,
        request: &Request,
        pools: &Pools<'_>,
        holdings: &Holdings,
    ) -> (RequestVerdict, Vec<usize>) {
        let mut verdict = RequestVerdict {
            request: request.name.clone(),
            answer: Answer::No,
            reasons: Vec::new(),
            devices: Vec::new(),
        };
        if let Some(cause) = &request.hopeless {
            verdict.answer = if cause.is_unknown() { Answer::Unknown } else { Answer::No };
            verdict.reasons.push(Reason { subject: None, cause: cause.clone() });
            return (verdict, Vec::new());
        }
        let mut usable = Vec::new();
        let mut reasons = BTreeSet::new();
        let mut selected = 0_usize;
        let enough = |usable: &Vec<usize>| matches!(request.wanted, DeviceCount::Exactly(count) if usable.len() >= count);
        for (index, candidate) in pools.candidates.iter().enumerate() {
            let causes = device_causes(request, candidate, pools, holdings, self.deadline);
            let is_passed_over = |cause: &Cause| match request.wanted {
                DeviceCount::Exactly(_) => matches!(cause, Cause::NotSelected { .. }),
                // All devices that could ever serve the request are wanted.
                DeviceCount::All => cause.is_lasting(),
            };
            let is_selected = !causes.iter().any(is_passed_over);
            if causes.is_empty() {
                usable.push(index);
            } else if is_selected && !enough(&usable) {
                let subject = Some(subject(candidate));
                let reason = |cause: &Cause| Reason { subject: subject.clone(), cause: cause.clone() };
                reasons.extend(causes.iter().map(reason));
            }
            selected += usize::from(is_selected);
            verdict.devices.push(DeviceVerdict { device: candidate.id.clone(), causes });
        }
        // The scheduler stops where it first meets such a device, unless it has what it needs.
        let stops = reasons.iter().any(|reason| reason.cause.stops_the_scheduler());
        let is_unknown =
            reasons.iter().map(|reason| &reason.cause).chain(&pools.unusable).any(Cause::is_unknown);
        let is_served = match request.wanted {
            DeviceCount::Exactly(_) => enough(&usable),
            DeviceCount::All => !usable.is_empty() && usable.len() == selected && pools.unusable.is_empty(),
        };
        verdict.answer = match (is_served, is_unknown) {
            (true, _) if !stops => Answer::Yes,
            (_, true) if !stops => Answer::Unknown,
            _ => Answer::No,
        };
        if verdict.answer != Answer::Yes {
            if stops {
                reasons.retain(|reason| reason.cause.stops_the_scheduler());
            } else if let DeviceCount::Exactly(count) = request.wanted
                && count > 1
                && selected > 0
            {
                let wanted = i64::try_from(count).unwrap_or(i64::MAX);
                reasons.insert(Reason {
                    subject: None,
                    cause: Cause::TooFew { wanted, available: usable.len() },
                });
            }
            if !stops {
                let unusable = pools.unusable.iter().cloned();
                reasons.extend(unusable.map(|cause| Reason { subject: None, cause }));
            }
            if reasons.is_empty() {
                reasons.insert(Reason { subject: None, cause: self.nothing(request, pools) });
            }
            verdict.reasons = reasons.into_iter().collect();
        }
        (verdict, usable)
    }

    /// Why no device of a node is one that the request could have.
    fn nothing(&self, request: &Request, pools: &Pools<'_>) -> Cause {
        let names_driver = request.selectors.iter().any(|(_, selector)| selector.names(DRIVER_NAME));
        match request.network(DRIVER_NAME) {
            _ if names_driver && !pools.drivers.contains(DRIVER_NAME) => {
                Cause::NotPublished { driver: DRIVER_NAME.to_owned() }
            }
            Some(network) if !offers(pools, network) => {
                Cause::NetworkNotOffered { network: network.to_owned() }
            }
            _ => Cause::NothingSelected { class: request.class.clone() },
        }
    }
}

/// Whether a device plugin of the node serves a limit instead of the claim; `None` if not, and a verdict if
/// that is not known.
fn plugin(request: &Request, node: KnownNode<'_>) -> Option<Result<(), RequestVerdict>> {
    let resource = request.resource.as_ref()?;
    match node.has_plugin(resource) {
        Some(true) => Some(Ok(())),
        Some(false) => None,
        None => Some(Err(RequestVerdict {
            request: request.name.clone(),
            answer: Answer::Unknown,
            reasons: vec![Reason {
                subject: None,
                cause: Cause::PluginUnknown { resource: resource.clone() },
            }],
            devices: Vec::new(),
        })),
    }
}

/// A node's verdict on a request with its alternatives.
struct Judged<'r> {
    answer: Answer,
    choices: Vec<Choice<'r>>,
    /// How many devices the alternative wants that wants the fewest.
    fewest: usize,
}

const OTHER_DRIVER: &str = "an alternative for devices of another driver";

/// A device at which the scheduler gives up.
fn stop((index, device): (usize, &DeviceVerdict)) -> Option<(usize, Cause)> {
    let cause = device.causes.iter().find(|cause| cause.stops_the_scheduler())?;
    Some((index, cause.clone()))
}

impl ClaimQuestion {
    /// The verdict of a claim that is allocated for other nodes, or perhaps so.
    fn elsewhere(&self, selector: &NodeSelector, node: KnownNode<'_>) -> Option<RequestVerdict> {
        let nodes = || node_selector::words(selector);
        let (answer, cause) = match node_selector::selects(selector, node) {
            Some(true) => return None,
            Some(false) => (Answer::No, Cause::AllocatedElsewhere { nodes: nodes() }),
            None => (Answer::Unknown, Cause::AllocationUnknown { nodes: nodes() }),
        };
        Some(self.whole(answer, cause))
    }

    /// A verdict about the whole claim.
    fn whole(&self, answer: Answer, cause: Cause) -> RequestVerdict {
        RequestVerdict {
            request: RequestName { claim: self.name.clone(), request: None, alternative: None },
            answer,
            reasons: vec![Reason { subject: None, cause }],
            devices: Vec::new(),
        }
    }
}

fn offers(pools: &Pools<'_>, network: &str) -> bool {
    pools
        .candidates
        .iter()
        .any(|candidate| candidate.id.driver == DRIVER_NAME && network_of(candidate.device) == Some(network))
}

/// Returns every reason for which the request cannot have the device, or for which that is not known.
fn device_causes(
    request: &Request,
    candidate: &Candidate<'_>,
    pools: &Pools<'_>,
    holdings: &Holdings,
    deadline: Option<Instant>,
) -> Vec<Cause> {
    let causes = causes_of_placed(request, candidate, pools, holdings, deadline);
    let is_refused = match request.wanted {
        DeviceCount::Exactly(_) => !causes.is_empty() && !causes.iter().any(Cause::stops_the_scheduler),
        // Where the device is not for the node, the request does not want it.
        DeviceCount::All => causes.iter().any(Cause::is_lasting),
    };
    match &candidate.doubt {
        Some(doubt)
            if !is_refused && !causes.iter().any(|cause| matches!(cause, Cause::NotSelected { .. })) =>
        {
            vec![doubt.clone()]
        }
        _ => causes,
    }
}

/// Returns every reason for which the request cannot have a device of the node. A selector that does not hold
/// is the only one.
fn causes_of_placed(
    request: &Request,
    candidate: &Candidate<'_>,
    pools: &Pools<'_>,
    holdings: &Holdings,
    deadline: Option<Instant>,
) -> Vec<Cause> {
    let held = holdings.of(&candidate.id);
    let whole = held.iter().find(|held| held.share.is_none()).filter(|_| !request.admin_access);
    let mut causes: Vec<Cause> =
        whole.map(|held| Cause::Allocated { holder: held.holder.clone() }).into_iter().collect();
    match selected(request, candidate, deadline) {
        Ok(()) => {}
        Err(cause @ Cause::NotSelected { .. }) => return vec![cause],
        // The scheduler does not look at the selectors for a device that a claim has.
        Err(cause) if causes.is_empty() => return vec![cause],
        Err(_) => return causes,
    }
    let DeviceId { driver, pool, device } = &candidate.id;
    let of_rules = taint_rules::closing(pools.rules, driver, pool, device);
    let of_rules = of_rules.map(|rule| (&rule.spec.taint, rule.metadata.name.clone()));
    let mut taints = candidate.device.taints.iter().flatten().map(|taint| (taint, None)).chain(of_rules);
    if let Some((taint, rule)) = taints.find(|(taint, _)| request.is_kept_off_by(taint)) {
        causes.push(Cause::Tainted {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
            rule,
        });
    }
    match capacity::taken(candidate.device, &request.capacity) {
        Ok(taken) => causes.extend(short_capacities(request, candidate, &taken, held)),
        Err(cause) => causes.push(cause),
    }
    causes.extend(exclusion(candidate, pools, holdings));
    causes
}

fn selected(request: &Request, candidate: &Candidate<'_>, deadline: Option<Instant>) -> Result<(), Cause> {
    for (by, selector) in &request.selectors {
        let (by, expression) = (by.clone(), selector.text().to_owned());
        if is_over(deadline) {
            return Err(Cause::SelectorUnknown { by, expression, why: TOO_LATE.to_owned() });
        }
        match selector.evaluate(&candidate.selectable) {
            Evaluation::Matches => {}
            Evaluation::Differs => return Err(Cause::NotSelected { by, expression }),
            Evaluation::Fails(why) => return Err(Cause::SelectorFails { by, expression, why }),
            Evaluation::Unknown(why) => return Err(Cause::SelectorUnknown { by, expression, why }),
        }
    }
    Ok(())
}

fn short_capacities<'a>(
    request: &'a Request,
    candidate: &'a Candidate<'_>,
    taken: &'a BTreeMap<String, i128>,
    held: &'a [HeldShare],
) -> impl Iterator<Item = Cause> + 'a {
    candidate.device.capacity.iter().flatten().filter_map(move |(name, capacity)| {
        let wanted = taken.get(name).copied().unwrap_or_default();
        let known = capacity::total(capacity).zip(used(held, name));
        let Some((total, used)) = known else { return Some(Cause::AmountUnknown { of: name.clone() }) };
        let free = total.saturating_sub(used);
        if wanted <= free {
            return None;
        }
        if name == attributes::ADDRESSES && request.asks_for_ips && capacity::can_be_none(capacity) {
            return Some(Cause::NeedsNoAddress { total: Amount(total) });
        }
        // The default of the capacity is more than there is.
        if name == attributes::BANDWIDTH && !request.capacity.contains_key(name) && wanted > total {
            return Some(Cause::BandwidthNotAsked);
        }
        Some(Cause::Capacity {
            capacity: name.clone(),
            wanted: Amount(wanted),
            total: Amount(total),
            free: Amount(free.max(0)),
            holders: if wanted > total {
                Vec::new()
            } else {
                holders(held.iter().filter(|held| takes(held, name)))
            },
        })
    })
}

/// Says which devices of the pool are in a use that excludes the device's, if its counters do not suffice.
/// The counters of a shared device that is in use are charged already.
fn exclusion(candidate: &Candidate<'_>, pools: &Pools<'_>, holdings: &Holdings) -> Option<Cause> {
    if !holdings.of(&candidate.id).is_empty() {
        return None;
    }
    let pool = pools.pools.get(candidate.pool)?;
    let wanted: BTreeMap<Counter, i128> = consumed_counters(candidate.device).collect();
    // A counter of the pool that is overdrawn keeps off every device with counters.
    let is_short =
        |(counter, left): &(&Counter, &i128)| **left < wanted.get(*counter).copied().unwrap_or_default();
    let short: BTreeSet<&Counter> = pool.left.iter().filter(is_short).map(|(counter, _)| counter).collect();
    if wanted.is_empty() || short.is_empty() {
        return None;
    }
    let consumers = pool.members.iter().filter(|(_, device)| {
        consumed_counters(device).any(|(counter, amount)| amount > 0 && short.contains(&counter))
    });
    let by = consumers.filter_map(|(id, device)| {
        let holders = holders(holdings.of(id).iter());
        let uplink = device.attributes.iter().flatten().find(|(name, _)| is_ours(name, attributes::UPLINK));
        let uplink = uplink.and_then(|(_, value)| value.string.as_deref());
        let what = use_of(&id.driver, &device.name, uplink);
        (!holders.is_empty()).then_some(Use { what, holders })
    });
    Some(Cause::Excluded { by: by.collect() })
}

/// What claims do with a device, in words.
fn use_of(driver: &str, device: &str, uplink: Option<&str>) -> String {
    let ours = (driver == DRIVER_NAME).then(|| device.parse::<DeviceName>().ok()).flatten();
    match (ours, uplink.filter(|uplink| !uplink.is_empty())) {
        (Some(DeviceName::Link(link_use, label)), uplink) => {
            format!("{} is used as {link_use}", uplink.unwrap_or(&label))
        }
        (Some(DeviceName::Network(network)), Some(uplink)) => {
            format!("{uplink} is used for ClaimNetwork {network}")
        }
        (Some(DeviceName::Network(network)), None) => format!("ClaimNetwork {network} is used"),
        (None, _) => format!("device {device} is used"),
    }
}

/// The ClaimNetwork or device in words.
fn subject(candidate: &Candidate<'_>) -> String {
    match network_of(candidate.device).filter(|_| candidate.id.driver == DRIVER_NAME) {
        Some(network) => format!("ClaimNetwork {network}"),
        None => format!("device {}", candidate.id.device),
    }
}
