//! Which Networks of the node cannot serve an ADD now, and why.
//!
//! * Every plugin of the chain must be installed, IPAM plugins included. Their directories are watched, so that one that
//!   comes or goes is noticed at once.
//! * The plugins must say so when they are asked by STATUS (CNI 1.1.0): when a Network comes or changes, on a slow beat,
//!   and on a faster one while they say no. A Network with places that only a claim or pod fills cannot be asked before
//!   there is one.
//!
//! [`Networks`] decides what to look at and what comes of it. It is pure: time and answers are arguments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use netclaim_api::NetworkName;
use netclaim_api::network::{NetworkSpec, conflist_name};
use netclaim_api::taints::{Trouble, TroubleKind};
use netclaim_api::template;
use netclaim_cni::{BinChanges, NetworkList, PluginType};
use netclaim_driver::attach::{CniNetwork, Status};
use netclaim_driver::links::Link;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::devices::health::in_one_line;
use crate::inventory::Inventory;
use crate::prepare::plan::places_of_node;
use crate::process::metrics::Metrics;

/// From a change in a plugin directory to the look: an update that removes a plugin and writes it anew is no outage.
const SETTLE: Duration = Duration::from_millis(100);
/// Between looks that nothing has called for: a watch does not see where links lead.
const LOOK: Duration = Duration::from_secs(60);
/// The same where the directories cannot be watched.
const BLIND_LOOK: Duration = Duration::from_secs(5);
/// How often plugins are asked that have said no, unless all are asked more often.
const AGAIN: Duration = Duration::from_secs(5);
/// Networks that are asked at once: pods that start want the processors.
const AT_ONCE: usize = 2;
/// How long a plugin's words stand for trouble of the same kind: some have the time of day in them.
const WORDS: Duration = Duration::from_secs(60);

/// What looks after the Networks of a node.
pub struct Availability {
    /// What runs plugins.
    pub plugins: Arc<CniNetwork>,
    /// The Node object's name.
    pub node: String,
    /// How often plugins are asked; zero is never.
    pub period: Duration,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Availability {
    /// Keeps `troubles` those of the Networks in `inventory` that cannot serve, until nobody tells of inventories.
    pub async fn watch(
        self,
        mut inventory: watch::Receiver<Option<Arc<Inventory>>>,
        troubles: watch::Sender<Arc<BTreeMap<NetworkName, Trouble>>>,
    ) {
        let mut networks = Networks { period: self.period, ..Networks::default() };
        let mut changes = Changes::default();
        let mut asked = FuturesUnordered::new();
        let mut look = Instant::now();
        inventory.mark_changed();
        loop {
            let now = Instant::now();
            if look <= now {
                // First: what changes after the look is told.
                look = now + changes.subscribe(&self.plugins);
                let missing = |plugin: &PluginType| self.plugins.installed(plugin).err();
                networks.look(|plugin| missing(plugin).map(|failure| failure.message), now);
            }
            while asked.len() < AT_ONCE
                && let Some((name, conflist)) = networks.next(now)
            {
                let plugins = &self.plugins;
                asked.push(async move {
                    let status = plugins.status(&conflist).await;
                    (name, conflist, status)
                });
            }
            self.tell(&networks, &troubles);
            let ask = networks.due().filter(|_| asked.len() < AT_ONCE);
            tokio::select! {
                changed = inventory.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let chains = inventory.borrow_and_update().as_deref().map(|now| chains(now, &self.node));
                    for gone in networks.keep(chains.unwrap_or_default(), Instant::now()) {
                        self.metrics.network_available(gone.as_str(), None);
                    }
                    look = Instant::now();
                }
                () = changes.tick() => look = look.min(Instant::now() + SETTLE),
                Some((name, conflist, status)) = asked.next() => {
                    networks.said(&name, &conflist, status, Instant::now(), fastrand::f64());
                }
                () = tokio::time::sleep_until(ask.map_or(look, |ask| ask.min(look))) => {}
            }
        }
    }

    fn tell(&self, networks: &Networks, troubles: &watch::Sender<Arc<BTreeMap<NetworkName, Trouble>>>) {
        let now = networks.troubles();
        for name in networks.seen.keys() {
            self.metrics.network_available(name.as_str(), Some(!now.contains_key(name)));
        }
        troubles.send_if_modified(|known| {
            if **known == now {
                return false;
            }
            for (name, trouble) in now.iter().filter(|(name, trouble)| known.get(*name) != Some(*trouble)) {
                tracing::warn!(network = %name, reason = trouble.kind.key(), "no pod can be attached: {trouble}");
            }
            let again = known.keys().filter(|name| !now.contains_key(*name) && networks.seen.contains_key(*name));
            for name in again {
                tracing::info!(network = %name, "pods can be attached again");
            }
            *known = Arc::new(now);
            true
        });
    }
}

/// What tells of changes in the plugin directories, if something does.
#[derive(Default)]
struct Changes {
    subscription: Option<BinChanges>,
    warned: bool,
}

impl Changes {
    /// Watches, where nothing does. Returns when to look again without a change.
    fn subscribe(&mut self, plugins: &CniNetwork) -> Duration {
        if self.subscription.is_none() {
            match plugins.bin_changes() {
                Ok(changes) => self.subscription = Some(changes),
                Err(error) => self.warn(&error),
            }
        }
        if self.subscription.is_some() { LOOK } else { BLIND_LOOK }
    }

    /// Ends when the directories may have changed. Cancel safe.
    async fn tick(&mut self) {
        let Some(changes) = &mut self.subscription else { return std::future::pending().await };
        if let Err(error) = changes.tick().await {
            self.subscription = None;
            self.warn(&error);
        }
    }

    fn warn(&mut self, error: &std::io::Error) {
        if !std::mem::replace(&mut self.warned, true) {
            let period = BLIND_LOOK.as_secs();
            tracing::warn!(%error, "the directories of CNI plugins cannot be watched and are looked at every {period} s: see sysctl fs.inotify");
        }
    }
}

/// What a Network needs of the node's plugins.
#[derive(Debug, Clone, PartialEq)]
struct Chain {
    /// Every one of them.
    plugins: Vec<PluginType>,
    /// What they are asked with by STATUS, where that can be.
    conflist: Option<Arc<Map<String, Value>>>,
}

fn chains(inventory: &Inventory, node: &str) -> BTreeMap<NetworkName, Chain> {
    let chain = |(name, spec): (&NetworkName, &NetworkSpec)| {
        (name.clone(), Chain::of(name, spec, node, inventory.uplink_of(spec).map(|uplink| &uplink.link)))
    };
    inventory.networks.iter().map(chain).collect()
}

impl Chain {
    fn of(name: &NetworkName, spec: &NetworkSpec, node: &str, uplink: Option<&Link>) -> Self {
        let plugins = spec.cni.get("plugins").and_then(Value::as_array).into_iter().flatten();
        let types = plugins.flat_map(|plugin| [&plugin["type"], &plugin["ipam"]["type"]]);
        Self {
            // `"type": ""` is no plugin: so some say that they want no addresses.
            plugins: types.filter_map(|name| name.as_str()?.parse().ok()).collect(),
            conflist: conflist(name, spec, node, uplink).map(Arc::new),
        }
    }
}

/// The Network's conflist as an ADD on this node would have it; `None` before CNI 1.1.0, which has no STATUS, and where
/// it has places that are not known before there is a claim.
fn conflist(
    name: &NetworkName,
    spec: &NetworkSpec,
    node: &str,
    uplink: Option<&Link>,
) -> Option<Map<String, Value>> {
    let scope = places_of_node(name.as_str(), node, uplink);
    let mut conflist = Map::new();
    for (key, value) in &spec.cni {
        conflist.insert(key.clone(), template::resolve(value, &scope).ok()?);
    }
    conflist.entry("name").or_insert_with(|| json!(conflist_name(name.as_str())));
    let list = NetworkList::parse(Value::Object(conflist.clone()).to_string().as_bytes()).ok()?;
    list.version().has_gc_and_status().then_some(conflist)
}

/// What is known of the node's Networks.
#[derive(Debug, Default)]
struct Networks {
    period: Duration,
    seen: BTreeMap<NetworkName, Seen>,
}

/// What is known of one.
#[derive(Debug)]
struct Seen {
    chain: Chain,
    /// Which plugin is not installed.
    missing: Option<String>,
    /// What the plugins have said, and since when it stands.
    said: Option<(Trouble, Instant)>,
    /// When they are to be asked; `None` while they are, and where they cannot be.
    due: Option<Instant>,
}

impl Seen {
    /// When the plugins are to be asked, which all must be there for it.
    fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.missing.is_none())
    }
}

impl Networks {
    /// Has exactly these be the node's. Returns which are so no more.
    fn keep(&mut self, mut chains: BTreeMap<NetworkName, Chain>, now: Instant) -> Vec<NetworkName> {
        let gone = self.seen.extract_if(.., |name, _| !chains.contains_key(name));
        let gone = gone.map(|(name, _)| name).collect();
        if self.period.is_zero() {
            chains.values_mut().for_each(|chain| chain.conflist = None);
        }
        for (name, chain) in chains {
            let due = chain.conflist.is_some().then_some(now);
            match self.seen.get_mut(&name) {
                Some(seen) => {
                    if seen.chain.conflist != chain.conflist {
                        seen.due = due;
                        // Until they have answered, they stand by what they said.
                        seen.said = seen.said.take().filter(|_| due.is_some());
                    }
                    seen.chain = chain;
                }
                None => drop(self.seen.insert(name, Seen { chain, missing: None, said: None, due })),
            }
        }
        gone
    }

    /// Looks for every plugin; `missing` says what is wrong with one that is not installed.
    fn look(&mut self, missing: impl Fn(&PluginType) -> Option<String>, now: Instant) {
        for seen in self.seen.values_mut() {
            let was_missing = seen.missing.is_some();
            seen.missing = seen.chain.plugins.iter().find_map(&missing);
            if was_missing && seen.missing.is_none() && seen.chain.conflist.is_some() {
                // It may be another one than before.
                seen.due = Some(now);
            }
        }
    }

    /// When the next one is to be asked.
    fn due(&self) -> Option<Instant> {
        self.seen.values().filter_map(Seen::due).min()
    }

    /// The one that is to be asked now.
    fn next(&mut self, now: Instant) -> Option<(NetworkName, Arc<Map<String, Value>>)> {
        let due = self.due().filter(|due| *due <= now);
        let (name, seen) = self.seen.iter_mut().find(|(_, seen)| due.is_some() && seen.due() == due)?;
        seen.due = None;
        Some((name.clone(), seen.chain.conflist.clone()?))
    }

    /// What the plugins of a Network have said when they were asked with `conflist`. `chance` is from 0 to 1.
    fn said(
        &mut self,
        name: &NetworkName,
        conflist: &Arc<Map<String, Value>>,
        status: Status,
        now: Instant,
        chance: f64,
    ) {
        let Some(seen) = self.seen.get_mut(name) else { return };
        // That of a Network that has changed says nothing.
        if seen.chain.conflist.as_ref() != Some(conflist) {
            return;
        }
        let trouble = match status {
            Status::Ready => None,
            Status::NotReady(words) => Some(Trouble::new(TroubleKind::NotReady, in_one_line(&words))),
            Status::Limited(words) => Some(Trouble::new(TroubleKind::Limited, in_one_line(&words))),
        };
        let beat = if trouble.is_some() { self.period.min(AGAIN) } else { self.period };
        seen.due = Some(now + beat.mul_f64(0.8 + 0.4 * chance));
        let stands = |(known, since): &(Trouble, Instant)| {
            trouble.as_ref().is_some_and(|new| new.kind == known.kind) && now < *since + WORDS
        };
        if !seen.said.as_ref().is_some_and(stands) {
            seen.said = trouble.map(|trouble| (trouble, now));
        }
    }

    /// Those that cannot serve, and why.
    fn troubles(&self) -> BTreeMap<NetworkName, Trouble> {
        let trouble = |seen: &Seen| {
            let missing = seen.missing.as_ref().map(|words| Trouble::new(TroubleKind::PluginMissing, words));
            missing.or_else(|| seen.said.as_ref().map(|(trouble, _)| trouble.clone()))
        };
        self.seen.iter().filter_map(|(name, seen)| Some((name.clone(), trouble(seen)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use netclaim_cni::{Cache, Runtime};
    use netclaim_driver::links::Links;

    use super::*;
    use crate::inventory::tests::uplink;

    const PERIOD: Duration = Duration::from_secs(30);

    fn name(name: &str) -> NetworkName {
        name.parse().unwrap()
    }

    fn inventory(networks: &[(&str, Value)]) -> Inventory {
        let network = |(n, cni): &(&str, Value)| {
            let spec = json!({"uplink": {"interfaces": ["eth1"]}, "cni": cni});
            (name(n), serde_json::from_value(spec).unwrap())
        };
        Inventory {
            uplinks: vec![uplink("eth1")],
            networks: networks.iter().map(network).collect(),
            ..Inventory::default()
        }
    }

    /// What the node knows of Network `a` with this plugin, by CNI 1.1.0.
    fn chain(plugin: Value) -> Chain {
        let cni = json!({"cniVersion": "1.1.0", "plugins": [plugin]});
        chains(&inventory(&[("a", cni)]), "node0").remove(&name("a")).unwrap()
    }

    fn networks(plugin: Value, now: Instant) -> Networks {
        let mut networks = Networks { period: PERIOD, ..Networks::default() };
        networks.keep([(name("a"), chain(plugin))].into(), now);
        networks
    }

    fn kind(networks: &Networks) -> Option<TroubleKind> {
        networks.troubles().get(&name("a")).map(|trouble| trouble.kind)
    }

    fn not_ready(words: &str) -> Status {
        Status::NotReady(words.to_owned())
    }

    #[test]
    fn plugins_are_asked_as_an_add_on_this_node_would_call_them() {
        let chain = chain(json!({
            "type": "macvlan", "master": "${uplink.ifName}", "mtu": "${uplink.mtu}", "node": "${node.name}",
            "ipam": {"type": "host-local", "x": "${network.name}"}
        }));
        let plugins: Vec<&str> = chain.plugins.iter().map(PluginType::as_str).collect();
        assert_eq!(plugins, ["macvlan", "host-local"]);
        let conflist = chain.conflist.unwrap();
        assert_eq!(conflist["name"], "netclaim-a");
        assert_eq!(
            conflist["plugins"][0],
            json!({"type": "macvlan", "master": "eth1", "mtu": 1500, "node": "node0", "ipam": {"type": "host-local", "x": "a"}})
        );
    }

    #[test]
    fn networks_are_not_asked_that_need_a_claim_or_have_no_status() {
        assert_eq!(chain(json!({"type": "vlan", "vlanId": "${parameters.vlan}"})).conflist, None);
        assert_eq!(chain(json!({"type": "x", "args": ["${pod.name}"]})).conflist, None);
        let old = json!({"cniVersion": "1.0.0", "plugins": [{"type": "macvlan"}]});
        let mut chains = chains(&inventory(&[("a", old)]), "node0");
        let chain = chains.remove(&name("a")).unwrap();
        assert_eq!((chain.conflist, chain.plugins.len()), (None, 1), "its plugin is looked for all the same");
    }

    #[test]
    fn a_plugin_that_is_not_installed_comes_before_what_plugins_say() {
        let now = Instant::now();
        let mut networks = networks(json!({"type": "macvlan", "ipam": {"type": "host-local"}}), now);
        let missing =
            |plugin: &PluginType| (plugin.as_str() == "host-local").then(|| "no host-local".to_owned());
        networks.look(missing, now);
        assert_eq!(kind(&networks), Some(TroubleKind::PluginMissing));
        assert_eq!((networks.due(), networks.next(now)), (None, None), "there is nobody to ask");
        networks.look(|_| None, now + PERIOD);
        assert_eq!(kind(&networks), None);
        assert!(networks.next(now + PERIOD).is_some(), "it may be another one");
    }

    #[test]
    fn plugins_that_say_no_are_asked_again_soon_and_others_on_the_slow_beat() {
        let now = Instant::now();
        let mut networks = networks(json!({"type": "x"}), now);
        let (a, conflist) = networks.next(now).unwrap();
        assert_eq!(networks.next(now), None, "it is being asked");
        networks.said(&a, &conflist, not_ready("starting"), now, 0.5);
        assert_eq!((kind(&networks), networks.due()), (Some(TroubleKind::NotReady), Some(now + AGAIN)));
        assert_eq!(networks.next(now), None);
        let (_, conflist) = networks.next(now + AGAIN).unwrap();
        networks.said(&a, &conflist, Status::Limited("half".into()), now, 0.5);
        assert_eq!(kind(&networks), Some(TroubleKind::Limited));
        networks.said(&a, &conflist, Status::Ready, now, 0.0);
        assert_eq!((kind(&networks), networks.due()), (None, Some(now + PERIOD.mul_f64(0.8))));
    }

    #[test]
    fn words_that_are_others_each_time_are_no_news_for_a_while() {
        let now = Instant::now();
        let mut networks = networks(json!({"type": "x"}), now);
        let (a, conflist) = networks.next(now).unwrap();
        networks.said(&a, &conflist, not_ready("at 12:00:01"), now, 0.5);
        let known = networks.troubles();
        networks.said(&a, &conflist, not_ready("at 12:00:06"), now + AGAIN, 0.5);
        assert_eq!(networks.troubles(), known);
        networks.said(&a, &conflist, not_ready("disk full\nat 12:01:01"), now + WORDS, 0.5);
        assert_eq!(networks.troubles()[&a].message, "disk full at 12:01:01");
    }

    #[test]
    fn a_network_that_changes_is_asked_at_once_and_answers_to_the_old_one_count_for_nothing() {
        let now = Instant::now();
        let mut networks = networks(json!({"type": "x"}), now);
        let (a, old) = networks.next(now).unwrap();
        networks.said(&a, &old, not_ready("starting"), now, 0.5);
        networks.keep([(a.clone(), chain(json!({"type": "x", "mtu": 1400})))].into(), now);
        assert_eq!(kind(&networks), Some(TroubleKind::NotReady), "until there is another answer");
        let (_, new) = networks.next(now).unwrap();
        networks.said(&a, &old, Status::Ready, now, 0.5);
        assert_eq!(kind(&networks), Some(TroubleKind::NotReady));
        networks.said(&a, &new, Status::Ready, now, 0.5);
        assert_eq!(kind(&networks), None);
        networks.said(&a, &new, not_ready("again"), now, 0.5);
        networks.keep([(a.clone(), chain(json!({"type": "x", "pod": "${pod.name}"})))].into(), now);
        assert_eq!((kind(&networks), networks.due()), (None, None), "it cannot be asked any more");
        assert_eq!(networks.keep(BTreeMap::new(), now), [a]);
    }

    #[test]
    fn with_a_period_of_zero_nobody_is_asked() {
        let mut networks = Networks::default();
        let now = Instant::now();
        networks.keep([(name("a"), chain(json!({"type": "x"})))].into(), now);
        assert_eq!((networks.next(now), networks.due()), (None, None));
    }

    /// The part of an agent that looks after Networks, with plugins in `dirs`.
    struct Node {
        troubles: watch::Receiver<Arc<BTreeMap<NetworkName, Trouble>>>,
        metrics: Arc<Metrics>,
        _inventory: watch::Sender<Option<Arc<Inventory>>>,
        _cache: tempfile::TempDir,
    }

    impl Node {
        fn new(dirs: &[&Path], networks: &[(&str, Value)]) -> Self {
            let cache = tempfile::tempdir().unwrap();
            let runtime = Runtime::new(dirs.iter().map(|dir| (*dir).to_owned()).collect()).unwrap();
            let plugins = CniNetwork::new(runtime, Cache::new(cache.path()), Links::new("/sys"), PERIOD);
            let metrics = Arc::new(Metrics::default());
            let availability = Availability {
                plugins: Arc::new(plugins),
                node: "node0".into(),
                period: Duration::from_secs(1),
                metrics: Arc::clone(&metrics),
            };
            let (inventory, seen) = watch::channel(Some(Arc::new(inventory(networks))));
            let (sender, troubles) = watch::channel(Arc::default());
            tokio::spawn(availability.watch(seen, sender));
            Self { troubles, metrics, _inventory: inventory, _cache: cache }
        }

        /// Waits until `network` has trouble of this kind, or none; returns the message.
        async fn comes_to(&mut self, network: &str, kind: Option<TroubleKind>) -> String {
            let network = name(network);
            let is_it = |troubles: &Arc<BTreeMap<NetworkName, Trouble>>| {
                troubles.get(&network).map(|trouble| trouble.kind) == kind
            };
            let troubles = tokio::time::timeout(Duration::from_secs(30), self.troubles.wait_for(is_it));
            let troubles = troubles.await.expect("in time").unwrap().clone();
            let metric =
                format!("netclaim_network_available{{network=\"{network}\"}} {}", u8::from(kind.is_none()));
            assert!(self.metrics.render().contains(&metric), "{metric}");
            troubles.get(&network).map(|trouble| trouble.message.clone()).unwrap_or_default()
        }
    }

    /// Installs a plugin that does `on_status` when it is asked.
    fn install(dir: &Path, plugin: &str, on_status: &str) {
        let versions = r#"{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}"#;
        let script = format!(
            "#!/bin/sh\ncase $CNI_COMMAND in\nVERSION) echo '{versions}';;\nSTATUS) {on_status};;\nesac\n"
        );
        let new = dir.join(".new");
        fs::write(&new, script).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, dir.join(plugin)).unwrap();
    }

    fn fail(code: u32) -> String {
        format!(r#"echo '{{"cniVersion": "1.1.0", "code": {code}, "msg": "the daemon starts"}}'; exit 1"#)
    }

    fn conf(plugin: &str) -> Value {
        json!({"cniVersion": "1.1.0", "plugins": [{"type": plugin, "master": "${uplink.ifName}"}]})
    }

    #[tokio::test]
    async fn a_plugin_that_says_no_is_quoted_until_it_says_yes() {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path(), "x", &fail(50));
        let mut node = Node::new(&[dir.path()], &[("a", conf("x"))]);
        let message = node.comes_to("a", Some(TroubleKind::NotReady)).await;
        assert_eq!(
            message,
            "CNI plugin `x` failed STATUS of network `netclaim-a`: error 50: the daemon starts"
        );
        install(dir.path(), "x", &fail(51));
        node.comes_to("a", Some(TroubleKind::Limited)).await;
        install(dir.path(), "x", "exit 0");
        node.comes_to("a", None).await;
        install(dir.path(), "x", "echo nonsense; exit 1");
        assert!(node.comes_to("a", Some(TroubleKind::NotReady)).await.contains("nonsense"));
        install(dir.path(), "x", &fail(4));
        node.comes_to("a", None).await;
    }

    #[tokio::test]
    async fn a_plugin_that_goes_is_missed_until_it_is_back() {
        let (dir, later) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let later = later.path().join("opt/bin");
        install(dir.path(), "x", "exit 0");
        let mut node = Node::new(&[dir.path(), &later], &[("a", conf("x")), ("b", conf("y"))]);
        let message = node.comes_to("b", Some(TroubleKind::PluginMissing)).await;
        let dirs = format!("{}, {}", dir.path().display(), later.display());
        assert_eq!(
            message,
            format!("CNI plugin `y`: not found in {dirs}; install the plugin there or name its directory")
        );
        node.comes_to("a", None).await;
        fs::remove_file(dir.path().join("x")).unwrap();
        node.comes_to("a", Some(TroubleKind::PluginMissing)).await;
        fs::create_dir_all(&later).unwrap();
        install(&later, "x", "exit 0");
        node.comes_to("a", None).await;
        install(&later, "y", "exit 0");
        node.comes_to("b", None).await;
        fs::set_permissions(later.join("y"), Permissions::from_mode(0o644)).unwrap();
        assert!(node.comes_to("b", Some(TroubleKind::PluginMissing)).await.contains("y is not executable"));
    }

    #[tokio::test]
    #[ignore = "needs NETCLAIM_CNI_BIN"]
    async fn the_reference_plugins_are_ready_when_their_configuration_is() {
        let dir =
            std::env::var_os("NETCLAIM_CNI_BIN").expect("NETCLAIM_CNI_BIN must name the plugins' directory");
        let bridge = |mtu: Value| {
            let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]});
            json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge", "bridge": "br9", "mtu": mtu, "ipam": ipam}]})
        };
        let (good, bad) = (bridge(json!(1400)), bridge(json!("much")));
        let mut node = Node::new(&[Path::new(&dir)], &[("good", good), ("bad", bad), ("gone", conf("x"))]);
        node.comes_to("gone", Some(TroubleKind::PluginMissing)).await;
        let message = node.comes_to("bad", Some(TroubleKind::NotReady)).await;
        assert!(message.contains("`bridge` failed STATUS of network `netclaim-bad`"), "{message}");
        node.comes_to("good", None).await;
    }
}
