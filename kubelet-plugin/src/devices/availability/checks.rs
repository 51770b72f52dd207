//! Which ClaimNetwork is checked next, and what the answers mean. Pure: time and answers are arguments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use netclaim_api::NetworkName;
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_cni::NetworkList;
use netclaim_cni::PluginType;
use netclaim_driver::attach::Status;
use tokio::time::Instant;

use super::chain::Chain;

/// Interval of STATUS while plugins say no, unless the period is shorter.
pub(super) const UNREADY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a message stays while the reason is the same: some have the time of day in them.
pub(super) const MESSAGE_LIFETIME: Duration = Duration::from_secs(60);

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
    /// The message about the first plugin that is not installed.
    missing: Option<String>,
    /// The last answer to STATUS other than yes, and its time.
    answer: Option<(Unhealthy, Instant)>,
    /// When STATUS is due; `None` while it runs, and where it cannot.
    due: Option<Instant>,
}

impl Check {
    /// Returns when STATUS is due, which needs all plugins.
    fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.missing.is_none())
    }

    fn unhealthy(&self) -> Option<Unhealthy> {
        let missing = self.missing.as_ref().map(|message| Unhealthy::new(Reason::PluginMissing, message));
        missing.or_else(|| self.answer.as_ref().map(|(unhealthy, _)| unhealthy.clone()))
    }
}

impl Checks {
    /// Asks plugins once in `period`; never where it is zero.
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
                    if check.chain.conflist != chain.conflist {
                        check.due = due;
                        // The last answer stands until the next one.
                        check.answer = check.answer.take().filter(|_| due.is_some());
                    }
                    check.chain = chain;
                }
                None => {
                    self.by_network.insert(name, Check { chain, missing: None, answer: None, due });
                }
            }
        }
        removed
    }

    /// Returns the names of all ClaimNetworks.
    pub(super) fn networks(&self) -> impl Iterator<Item = &NetworkName> {
        self.by_network.keys()
    }

    /// Looks for every plugin; `missing` returns a message about one that is not installed.
    pub(super) fn look_for_plugins(
        &mut self,
        mut missing: impl FnMut(&PluginType) -> Option<String>,
        now: Instant,
    ) {
        for check in self.by_network.values_mut() {
            let was_missing = check.missing.is_some();
            // All are looked for, though one that is missing is enough.
            let all: Vec<String> = check.chain.plugins.iter().filter_map(&mut missing).collect();
            check.missing = all.into_iter().next();
            if was_missing && check.missing.is_none() && check.chain.conflist.is_some() {
                // It may be another one than before.
                check.due = Some(now);
            }
        }
    }

    /// Returns when the next STATUS is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.by_network.values().filter_map(Check::due).min()
    }

    /// Returns the ClaimNetwork whose plugins are to be asked now, and the configuration for it.
    pub(super) fn next(&mut self, now: Instant) -> Option<(NetworkName, Arc<NetworkList>)> {
        let due = self.due().filter(|due| *due <= now)?;
        let (name, check) = self.by_network.iter_mut().find(|(_, check)| check.due() == Some(due))?;
        check.due = None;
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
        let Some(check) = self.by_network.get_mut(name) else { return };
        // The ClaimNetwork may have changed since it was asked.
        if check.chain.conflist.as_ref() != Some(conflist) {
            return;
        }
        let unhealthy = match status {
            Status::Ready => None,
            Status::NotReady(message) => Some(Unhealthy::new(Reason::NotReady, message)),
            Status::Limited(message) => Some(Unhealthy::new(Reason::Limited, message)),
        };
        let interval = if unhealthy.is_some() { self.period.min(UNREADY_INTERVAL) } else { self.period };
        check.due = Some(now + interval.mul_f64(0.8 + 0.4 * chance));
        let stands = |(before, since): &(Unhealthy, Instant)| {
            unhealthy.as_ref().is_some_and(|now| now.reason == before.reason)
                && now < *since + MESSAGE_LIFETIME
        };
        if !check.answer.as_ref().is_some_and(stands) {
            check.answer = unhealthy.map(|unhealthy| (unhealthy, now));
        }
    }

    /// Returns the ClaimNetworks that cannot serve, and why.
    pub(super) fn unavailable(&self) -> Unavailable {
        let unhealthy = |(name, check): (&NetworkName, &Check)| Some((name.clone(), check.unhealthy()?));
        self.by_network.iter().filter_map(unhealthy).collect()
    }
}
