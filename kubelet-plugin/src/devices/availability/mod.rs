//! Finds out which ClaimNetworks of the node cannot serve an ADD now, and why.
//!
//! * Every plugin of the chain must be installed, IPAM plugins included. Their directories are watched.
//! * CNI 1.1.0 plugins are asked by STATUS: when a ClaimNetwork, its uplink or a plugin's file comes or
//!   changes, when an ADD has failed, after `--status-period`, then more and more rarely while they say yes,
//!   and more often while they say no. Where STATUS of all plugins looks at nothing on the node, a yes stands
//!   until one of these changes. STATUS needs a configuration that does not depend on a claim or a pod;
//!   parameters have their defaults.
//! * What an ADD fails with counts at once, if its plugin says that it cannot serve (CNI errors 50 and 51).
//! * While plugins say no, and can be asked again, no ADD of theirs begins.
//! * A program on the node can say the same of any ClaimNetwork, in a file of facts.
//!
//! | module | what it does |
//! |---|---|
//! | `chain` | reads a ClaimNetwork's plugins and its configuration for STATUS; pure |
//! | `checks` | decides which ClaimNetwork to check next and what its answers mean; pure |
//! | `found` | notes which program each plugin is; pure |

mod chain;
mod checks;
mod found;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use netclaim_api::NetworkName;
use netclaim_api::taints::Unhealthy;
use netclaim_cni::{BinChanges, PluginType};
use netclaim_driver::attach::CniPlugins;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

pub(crate) use self::chain::Chain;
use self::chain::{chains, configures_otherwise};
use self::checks::Checks;
pub(crate) use self::checks::Unavailable;
use super::metrics::PluginMetrics;
use super::subscription::Subscription;
use crate::inventory::Inventory;
use crate::reports::FailedAdd;
use crate::reports::metrics::NetworkMetrics;

/// Delay from a change in a plugin directory to the look: an update that replaces a plugin is not an outage.
const SETTLE: Duration = Duration::from_millis(100);
/// Interval of looks without a change: a watch does not see changes behind symbolic links.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of looks while the directories cannot be watched.
const UNWATCHED_LOOK_INTERVAL: Duration = Duration::from_secs(5);
const UNWATCHED: &str =
    "cannot watch the directories of CNI plugins, looking at them every 5 s: see sysctl fs.inotify";
/// How long an agent that has started waits for the first answers: what an earlier agent has published stays.
const FIRST_ANSWERS: Duration = Duration::from_secs(5);
/// ClaimNetworks that are asked at once: pods that start need the processors.
const MAX_ASKED: usize = 2;

/// The checks of a node's ClaimNetworks.
pub(crate) struct Availability {
    pub(crate) plugins: Arc<CniPlugins>,
    /// Called when plugins or ClaimNetworks have changed: what could not succeed before may succeed now.
    pub(crate) changed: Box<dyn Fn() + Send + Sync>,
    /// The Node object's name.
    pub(crate) node: String,
    /// ClaimNetworks that are not set up on the node.
    pub(crate) not_set_up: watch::Receiver<Arc<Unavailable>>,
    /// After what time plugins are asked again; zero is never.
    pub(crate) period: Duration,
    /// The gauge of each ClaimNetwork.
    pub(crate) metrics: NetworkMetrics,
    pub(crate) of_plugins: PluginMetrics,
}

impl Availability {
    /// Keeps `unavailable` up to date with the ClaimNetworks of `inventory`, until the sender of inventories
    /// is dropped. `failed_adds` are those that have failed. Nothing is known until the plugins of all have
    /// answered once, or have not for [`FIRST_ANSWERS`].
    pub(crate) async fn watch(
        mut self,
        mut inventory: watch::Receiver<Option<Arc<Inventory>>>,
        mut failed_adds: mpsc::UnboundedReceiver<FailedAdd>,
        unavailable: watch::Sender<Option<Arc<Unavailable>>>,
    ) {
        let mut checks = Checks::new(self.period);
        let mut bin_dirs = Subscription::<BinChanges>::new(UNWATCHED);
        let mut asked = FuturesUnordered::new();
        let mut look = Instant::now();
        let mut found = found::Plugins::new();
        let (mut files_changed, mut known) = (false, None);
        let mut patience = None;
        inventory.mark_changed();
        loop {
            let now = Instant::now();
            if look <= now {
                // Subscribed before the look, so that no later change is missed.
                if bin_dirs.changes.is_none() {
                    bin_dirs.renew(self.plugins.bin_changes());
                }
                look = now + if bin_dirs.changes.is_some() { LOOK_INTERVAL } else { UNWATCHED_LOOK_INTERVAL };
                let mut seen = found::Plugins::new();
                let find = |plugin: &PluginType| match self.plugins.installed(plugin) {
                    Ok(program) => {
                        seen.insert(plugin.to_string(), program.path.clone());
                        Ok(program)
                    }
                    Err(failure) => Err(failure.message),
                };
                checks.look_for_plugins(find, now);
                self.report_plugins(&found, &seen);
                if std::mem::take(&mut files_changed) || found != seen {
                    (self.changed)();
                }
                found = seen;
            }
            while asked.len() < MAX_ASKED
                && let Some((name, conflist)) = checks.next(now)
            {
                let plugins = &self.plugins;
                asked.push(async move {
                    let status = plugins.status(&conflist).await;
                    (name, conflist, status)
                });
            }
            checks.forget(now);
            if self.plugins.hold(checks.held()) {
                (self.changed)();
            }
            let first_answers =
                patience.filter(|_| unavailable.borrow().is_none() && !checks.has_heard_all());
            if known.is_some() && first_answers.is_none_or(|until| until <= now) {
                self.report(&checks, known.as_deref(), &unavailable);
            }
            let next_due = checks.due().filter(|_| asked.len() < MAX_ASKED);
            let next = next_due.into_iter().chain(checks.forgets()).chain(first_answers);
            let next = next.fold(look, Instant::min);
            tokio::select! {
                changed = inventory.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = inventory.borrow_and_update().clone();
                    let chains = now.as_deref().map(|now| chains(now, &self.node));
                    for removed in checks.replace(chains.unwrap_or_default(), Instant::now()) {
                        self.metrics.forget(removed.as_str());
                    }
                    if configures_otherwise(known.as_deref(), now.as_deref()) {
                        (self.changed)();
                    }
                    (known, look) = (now, Instant::now());
                    patience = patience.or_else(|| known.as_ref().map(|_| Instant::now() + FIRST_ANSWERS));
                }
                // Its sender ends with this agent.
                Ok(()) = self.not_set_up.changed() => {}
                Some(FailedAdd { network, failure }) = failed_adds.recv() => {
                    checks.add_failed(&network, &failure, Instant::now());
                }
                () = bin_dirs.changed() => {
                    (files_changed, look) = (true, look.min(Instant::now() + SETTLE));
                }
                Some((name, conflist, status)) = asked.next() => {
                    checks.answered(&name, &conflist, status, Instant::now(), fastrand::f64());
                }
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    fn report_plugins(&self, before: &found::Plugins, now: &found::Plugins) {
        for found::Change { plugin, before, now } in found::changes(before, now) {
            if let Some(path) = before {
                self.of_plugins.set(plugin, path, false);
            }
            if let Some(path) = now {
                tracing::info!(plugin, path = %path.display(), "found a CNI plugin");
                self.of_plugins.set(plugin, path, true);
            }
        }
    }

    fn report(
        &self,
        checks: &Checks,
        inventory: Option<&Inventory>,
        unavailable: &watch::Sender<Option<Arc<Unavailable>>>,
    ) {
        let mut now = checks.unavailable();
        add(&mut now, self.not_set_up.borrow().iter());
        if let Some(inventory) = inventory {
            let stated = inventory.facts_of_networks();
            add(&mut now, stated.filter_map(|(name, facts)| Some((name, facts.unhealthy.as_ref()?))));
        }
        for name in checks.networks() {
            self.metrics.set_available(name.as_str(), !now.contains_key(name));
        }
        unavailable.send_if_modified(|known| {
            if known.as_deref() == Some(&now) {
                return false;
            }
            let before = known.take().unwrap_or_default();
            for (name, unhealthy) in now.iter().filter(|(name, now)| before.get(*name) != Some(*now)) {
                let reason = unhealthy.reason.key();
                tracing::warn!(network = %name, reason, "no pod can be attached: {unhealthy}");
            }
            for name in
                checks.networks().filter(|name| before.contains_key(*name) && !now.contains_key(*name))
            {
                tracing::info!(network = %name, "pods can be attached again");
            }
            *known = Some(Arc::new(now));
            true
        });
    }
}

/// Adds other known reasons. The worse of two reasons stays.
fn add<'a>(unavailable: &mut Unavailable, known: impl Iterator<Item = (&'a NetworkName, &'a Unhealthy)>) {
    for (name, unhealthy) in known {
        if unavailable.get(name).is_none_or(|before| unhealthy.reason < before.reason) {
            unavailable.insert(name.clone(), unhealthy.clone());
        }
    }
}
