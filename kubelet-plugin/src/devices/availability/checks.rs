//! Which ClaimNetwork is checked next, and what the answers mean. Pure: time and answers are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use netclaim_api::NetworkName;
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_cni::{ListName, NetworkList, PluginType, Program};
use netclaim_driver::attach::{Cause, Failure, Status};
use tokio::time::Instant;

use super::chain::Chain;

/// Interval of STATUS while plugins say no, unless the period is shorter.
pub(super) const UNREADY_INTERVAL: Duration = Duration::from_secs(5);
/// How many periods the interval of STATUS may be while plugins say yes: 10 minutes of 30 seconds.
pub(super) const MAX_PERIODS: u32 = 20;
/// How long a message stays while the reason is the same: some have the time of day in them.
pub(super) const MESSAGE_LIFETIME: Duration = Duration::from_secs(60);

/// How long it counts what a failed ADD has said of plugins that cannot be asked by STATUS.
pub(super) const TOLD_LIFETIME: Duration = Duration::from_secs(30);
/// What is said of it: the plugin's message may name the pod, and others with the device read this.
const SAID_BY_ADD: &str = "an ADD has failed because a plugin cannot serve (CNI error 50 or 51): the condition Ready of its claim has the plugin's message";

/// ClaimNetworks whose plugins cannot serve an ADD now.
pub(crate) type Unavailable = BTreeMap<NetworkName, Unhealthy>;

/// The checks of all ClaimNetworks of the node.
#[derive(Debug)]
pub(super) struct Checks {
    period: Duration,
    by_network: BTreeMap<NetworkName, Check>,
}

/// The checks of one ClaimNetwork.
#[derive(Debug)]
struct Check {
    chain: Chain,
    /// The installed plugins of the chain.
    programs: Vec<Program>,
    /// The message about the first plugin that is not installed.
    missing: Option<String>,
    /// The last answer to STATUS other than yes, and its time.
    answer: Option<(Unhealthy, Instant)>,
    /// Whether a plugin has said so itself, by a code for it.
    is_said: bool,
    /// When an ADD has failed with a plugin that says so; until STATUS that was asked later has answered.
    told: Option<Instant>,
    /// Until when it is not heeded what ADDs say, and for how long next time: STATUS has said otherwise.
    deaf: Option<(Instant, Duration)>,
    /// When STATUS was asked last.
    asked: Option<Instant>,
    /// The time of the last answer.
    answered: Option<Instant>,
    /// When STATUS is due; `None` while it runs, where it cannot, and where a yes stays one.
    due: Option<Instant>,
    /// The interval after the next yes.
    interval: Duration,
}

impl Check {
    /// Has the plugins asked, and often again: something is not as it was.
    fn ask(&mut self, at: Instant, period: Duration) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
        self.interval = period;
    }

    /// Returns when STATUS is due, which needs all plugins.
    fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.missing.is_none())
    }

    fn unhealthy(&self) -> Option<Unhealthy> {
        let missing = self.missing.as_ref().map(|message| Unhealthy::new(Reason::PluginMissing, message));
        let answer = || self.answer.as_ref().map(|(unhealthy, _)| unhealthy.clone());
        missing.or_else(answer).or_else(|| self.told.map(|_| Unhealthy::new(Reason::NotReady, SAID_BY_ADD)))
    }

    /// Returns why no ADD may begin: plugins have said so, and STATUS will be asked again.
    fn holds(&self) -> Option<String> {
        let says_so = self.told.is_some() || (self.answer.is_some() && self.is_said);
        let is_asked = self.chain.conflist.is_some() && !self.chain.is_by_default && self.missing.is_none();
        self.unhealthy().filter(|_| says_so && is_asked).map(|unhealthy| unhealthy.message)
    }
}

impl Checks {
    /// Asks plugins after `period`, and after up to [`MAX_PERIODS`] of them while they say yes; never where
    /// it is zero.
    pub(super) fn new(period: Duration) -> Self {
        Self { period, by_network: BTreeMap::new() }
    }

    /// Replaces the node's ClaimNetworks and returns the removed ones.
    pub(super) fn replace(
        &mut self,
        mut chains: BTreeMap<NetworkName, Chain>,
        now: Instant,
    ) -> Vec<NetworkName> {
        let removed = self.by_network.extract_if(.., |name, _| !chains.contains_key(name));
        let removed = removed.map(|(name, _)| name).collect();
        if self.period.is_zero() {
            chains.values_mut().for_each(|chain| chain.conflist = None);
        }
        for (name, chain) in chains {
            let due = chain.conflist.is_some().then_some(now);
            match self.by_network.get_mut(&name) {
                Some(check) => {
                    if check.chain != chain {
                        (check.due, check.interval) = (due, self.period);
                        (check.told, check.deaf) = (None, None);
                        // The last answer stands until the next one.
                        check.answer = check.answer.take().filter(|_| due.is_some());
                    }
                    check.chain = chain;
                }
                None => {
                    let check = Check {
                        chain,
                        programs: Vec::new(),
                        missing: None,
                        answer: None,
                        is_said: false,
                        told: None,
                        deaf: None,
                        asked: None,
                        answered: None,
                        due,
                        interval: self.period,
                    };
                    self.by_network.insert(name, check);
                }
            }
        }
        removed
    }

    /// Returns the names of all ClaimNetworks.
    pub(super) fn networks(&self) -> impl Iterator<Item = &NetworkName> {
        self.by_network.keys()
    }

    /// Looks for every plugin by `find`, which returns a message about one that is not installed. Plugins
    /// that are other files than before are asked at once.
    pub(super) fn look_for_plugins(
        &mut self,
        mut find: impl FnMut(&PluginType) -> Result<Program, String>,
        now: Instant,
    ) {
        for check in self.by_network.values_mut() {
            let (mut programs, mut missing) = (Vec::new(), None);
            // All are looked for, though one that is missing is enough.
            for plugin in &check.chain.plugins {
                match find(plugin) {
                    Ok(program) => programs.push(program),
                    Err(message) => missing = missing.or(Some(message)),
                }
            }
            if check.programs != programs && check.chain.conflist.is_some() {
                check.ask(now, self.period);
            }
            (check.programs, check.missing) = (programs, missing);
        }
    }

    /// Notes that an ADD has failed. That its plugin cannot serve counts at once, unless STATUS has just said
    /// otherwise. The plugins are asked at once, but no more often than those that say no.
    pub(super) fn add_failed(&mut self, name: &NetworkName, failure: &Failure, now: Instant) {
        let (period, interval) = (self.period, self.unready_interval());
        let Some(check) = self.by_network.get_mut(name).filter(|_| !period.is_zero()) else { return };
        let says_no = matches!(failure.cause, Cause::PluginNotReady | Cause::PluginLimited);
        let is_heeded = check.answer.is_none() && check.deaf.is_none_or(|(until, _)| until <= now);
        if says_no && is_heeded {
            check.told = Some(now);
        }
        if check.chain.conflist.is_some() {
            check.ask(check.answered.map_or(now, |answered| now.max(answered + interval)), period);
        }
    }

    /// Forgets what failed ADDs have said long ago, where STATUS cannot be asked.
    pub(super) fn forget(&mut self, now: Instant) {
        for check in self.by_network.values_mut().filter(|check| check.chain.conflist.is_none()) {
            check.told = check.told.filter(|told| *told + TOLD_LIFETIME > now);
        }
    }

    /// Returns when something is to be [forgotten](Self::forget).
    pub(super) fn forgets(&self) -> Option<Instant> {
        let unasked = self.by_network.values().filter(|check| check.chain.conflist.is_none());
        unasked.filter_map(|check| check.told).min().map(|told| told + TOLD_LIFETIME)
    }

    /// Returns the CNI networks for which no ADD may begin, and why. Among those that several ClaimNetworks
    /// have, the plugins of all must have said so.
    pub(super) fn held(&self) -> BTreeMap<ListName, String> {
        let (mut held, mut fine) = (BTreeMap::new(), BTreeSet::new());
        for check in self.by_network.values() {
            let Ok(list) = ListName::try_from(check.chain.list.clone()) else { continue };
            match check.holds() {
                Some(why) => drop(held.insert(list, why)),
                None => drop(fine.insert(list)),
            }
        }
        held.retain(|name, _| !fine.contains(name));
        held
    }

    fn unready_interval(&self) -> Duration {
        self.period.min(UNREADY_INTERVAL)
    }

    /// Returns when the next STATUS is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.by_network.values().filter_map(Check::due).min()
    }

    /// Returns the ClaimNetwork whose plugins are to be asked now, and the configuration for it.
    pub(super) fn next(&mut self, now: Instant) -> Option<(NetworkName, Arc<NetworkList>)> {
        let due = self.due().filter(|due| *due <= now)?;
        let (name, check) = self.by_network.iter_mut().find(|(_, check)| check.due() == Some(due))?;
        (check.due, check.asked) = (None, Some(now));
        Some((name.clone(), check.chain.conflist.clone()?))
    }

    /// Takes the answer of a ClaimNetwork's plugins to STATUS with `conflist`. `chance`, from 0 to 1, spreads
    /// the next one.
    pub(super) fn answered(
        &mut self,
        name: &NetworkName,
        conflist: &Arc<NetworkList>,
        status: Status,
        now: Instant,
        chance: f64,
    ) {
        let (period, unready_interval) = (self.period, self.unready_interval());
        let Some(check) = self.by_network.get_mut(name) else { return };
        // The ClaimNetwork may have changed since it was asked.
        if check.chain.conflist.as_ref() != Some(conflist) {
            return;
        }
        check.is_said = matches!(status, Status::NotReady(_) | Status::Limited(_));
        let unhealthy = match status {
            Status::Ready => None,
            Status::NotReady(message) | Status::Unclear(message) => {
                Some(Unhealthy::new(Reason::NotReady, message))
            }
            Status::Limited(message) => Some(Unhealthy::new(Reason::Limited, message)),
        };
        // An answer of before the ADD says nothing of what it has met.
        let is_later = |told: &Instant| check.asked.is_some_and(|asked| asked >= *told);
        if check.told.filter(|told| unhealthy.is_some() || is_later(told)).is_some() {
            check.told = None;
            let longest = period.saturating_mul(MAX_PERIODS);
            check.deaf = unhealthy.is_none().then(|| {
                let long = check.deaf.map_or(period, |(_, long)| long.saturating_mul(2).min(longest));
                (now + long, long)
            });
        }
        let interval = if unhealthy.is_some() {
            check.interval = period;
            Some(unready_interval)
        } else {
            let interval = check.interval;
            check.interval = interval.saturating_mul(2).min(period.saturating_mul(MAX_PERIODS));
            Some(interval).filter(|_| !check.chain.looks_at_nothing())
        };
        check.answered = Some(now);
        // What has become due meanwhile stays: the answer may be of before.
        let next = interval.map(|interval| now + interval.mul_f64(0.8 + 0.4 * chance));
        check.due = check.due.or(next);
        let stands = |(before, since): &(Unhealthy, Instant)| {
            unhealthy.as_ref().is_some_and(|now| now.reason == before.reason)
                && now < *since + MESSAGE_LIFETIME
        };
        if !check.answer.as_ref().is_some_and(stands) {
            check.answer = unhealthy.map(|unhealthy| (unhealthy, now));
        }
    }

    /// Returns whether all plugins that can be asked have answered once.
    pub(super) fn has_heard_all(&self) -> bool {
        let has_heard = |check: &Check| {
            check.chain.conflist.is_none() || check.missing.is_some() || check.answered.is_some()
        };
        self.by_network.values().all(has_heard)
    }

    /// Returns the ClaimNetworks that cannot serve, and why.
    pub(super) fn unavailable(&self) -> Unavailable {
        let unhealthy = |(name, check): (&NetworkName, &Check)| Some((name.clone(), check.unhealthy()?));
        self.by_network.iter().filter_map(unhealthy).collect()
    }
}
