use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use netclaim_api::NetworkName;
use netclaim_api::taints::Reason;
use netclaim_cni::{Cache, Program, Runtime};
use netclaim_driver::attach::{Cause, Failure, Status};
use netclaim_driver::links::Links;
use netclaim_process::metrics::Registry;
use serde_json::{Value, json};

use super::chain::Chain;
use super::checks::{MESSAGE_LIFETIME, TOLD_LIFETIME, UNREADY_INTERVAL};
use super::*;
use crate::inventory::fixtures::{facts, uplink};

const PERIOD: Duration = Duration::from_secs(30);

fn name(name: &str) -> NetworkName {
    name.parse().unwrap()
}

fn inventory(networks: &[(&str, Value)]) -> Inventory {
    let network = |(n, cni): &(&str, Value)| {
        let spec = json!({"uplink": {"links": ["eth1"]}, "cni": cni});
        (name(n), serde_json::from_value(spec).unwrap())
    };
    Inventory {
        uplinks: vec![uplink("eth1")],
        networks: networks.iter().map(network).collect(),
        ..Inventory::default()
    }
}

/// The chain of ClaimNetwork `a` with this plugin, by CNI 1.1.0.
fn chain(plugin: Value) -> Chain {
    let cni = json!({"cniVersion": "1.1.0", "plugins": [plugin]});
    chains(&inventory(&[("a", cni)]), "node0").remove(&name("a")).unwrap()
}

fn checks(plugin: Value, now: Instant) -> Checks {
    let mut checks = Checks::new(PERIOD);
    checks.replace([(name("a"), chain(plugin))].into(), now);
    checks
}

fn reason(checks: &Checks) -> Option<Reason> {
    checks.unavailable().get(&name("a")).map(|unhealthy| unhealthy.reason)
}

fn not_ready(message: &str) -> Status {
    Status::NotReady(message.to_owned())
}

fn failure(cause: Cause) -> Failure {
    Failure { cause, ..Failure::new("no switch") }
}

#[test]
fn plugins_are_asked_with_the_configuration_of_an_add() {
    let chain = chain(json!({
        "type": "macvlan", "master": "${uplink.name}", "mtu": "${uplink.mtu}", "node": "${node.name}",
        "ipam": {"type": "host-local", "x": "${network.name}"}
    }));
    let plugins: Vec<&str> = chain.plugins.iter().map(PluginType::as_str).collect();
    assert_eq!(plugins, ["macvlan", "host-local"]);
    let conflist = chain.conflist.unwrap();
    let conflist: Value = serde_json::from_str(conflist.raw()).unwrap();
    assert_eq!(conflist["name"], "netclaim-a");
    assert_eq!(
        conflist["plugins"][0],
        json!({"type": "macvlan", "master": "eth1", "mtu": 1500, "node": "node0", "ipam": {"type": "host-local", "x": "a"}})
    );
}

#[test]
fn networks_that_need_a_claim_or_have_no_status_are_not_asked() {
    assert_eq!(chain(json!({"type": "vlan", "vlanId": "${parameters.vlan}"})).conflist, None);
    assert_eq!(chain(json!({"type": "x", "args": ["${pod.name}"]})).conflist, None);
    let old = json!({"cniVersion": "1.0.0", "plugins": [{"type": "macvlan"}]});
    let mut chains = chains(&inventory(&[("a", old)]), "node0");
    let chain = chains.remove(&name("a")).unwrap();
    assert_eq!((chain.conflist, chain.plugins.len()), (None, 1), "its plugin is looked for nevertheless");
}

#[test]
fn a_missing_plugin_takes_precedence_over_an_answer_to_status() {
    let now = Instant::now();
    let mut checks = checks(json!({"type": "macvlan", "ipam": {"type": "host-local"}}), now);
    let find = |plugin: &PluginType| match plugin.as_str() {
        "host-local" => Err("no host-local".to_owned()),
        _ => Ok(Program::default()),
    };
    checks.look_for_plugins(find, now);
    assert_eq!(reason(&checks), Some(Reason::PluginMissing));
    assert_eq!((checks.due(), checks.next(now)), (None, None), "a missing plugin cannot be asked");
    checks.look_for_plugins(|_| Ok(Program::default()), now + PERIOD);
    assert_eq!(reason(&checks), None);
    assert!(checks.next(now + PERIOD).is_some(), "the new plugin may be another one");
}

#[test]
fn plugins_that_say_no_are_asked_again_sooner_than_others() {
    let now = Instant::now();
    let mut checks = checks(json!({"type": "x"}), now);
    let (a, conflist) = checks.next(now).unwrap();
    assert_eq!(checks.next(now), None, "it is being asked");
    checks.answered(&a, &conflist, not_ready("starting"), now, 0.5);
    assert_eq!((reason(&checks), checks.due()), (Some(Reason::NotReady), Some(now + UNREADY_INTERVAL)));
    assert_eq!(checks.next(now), None);
    let (_, conflist) = checks.next(now + UNREADY_INTERVAL).unwrap();
    checks.answered(&a, &conflist, Status::Limited("half".into()), now, 0.5);
    assert_eq!(reason(&checks), Some(Reason::Limited));
    checks.next(now + UNREADY_INTERVAL).unwrap();
    checks.answered(&a, &conflist, Status::Ready, now, 0.0);
    assert_eq!((reason(&checks), checks.due()), (None, Some(now + PERIOD.mul_f64(0.8))));
}

/// Has the plugins of ClaimNetwork `a` asked when they are due, with this answer, and returns how long after
/// `now` they are due again.
fn again(checks: &mut Checks, status: Status, now: Instant) -> Option<Duration> {
    let (a, conflist) = checks.next(now).expect("due");
    checks.answered(&a, &conflist, status, now, 0.5);
    checks.due().map(|due| due - now)
}

#[test]
fn plugins_that_say_yes_are_asked_more_and_more_rarely() {
    let mut now = Instant::now();
    let mut checks = checks(json!({"type": "x", "ipam": {"type": "host-local"}}), now);
    for expected in [30, 60, 120, 240, 480, 600, 600] {
        let next = again(&mut checks, Status::Ready, now).unwrap();
        assert_eq!(next, Duration::from_secs(expected));
        now += next;
    }
    assert_eq!(again(&mut checks, not_ready("starting"), now), Some(UNREADY_INTERVAL));
    now += UNREADY_INTERVAL;
    assert_eq!(again(&mut checks, Status::Ready, now), Some(PERIOD), "it may fail again soon");
}

#[test]
fn reference_plugins_that_say_yes_are_asked_again_when_a_file_or_the_uplink_changes() {
    let now = Instant::now();
    let plugin = json!({"type": "macvlan", "ipam": {"type": "host-local"}});
    let mut checks = checks(plugin.clone(), now);
    assert_eq!(again(&mut checks, not_ready("its configuration is wrong"), now), Some(UNREADY_INTERVAL));
    let now = now + UNREADY_INTERVAL;
    assert_eq!(again(&mut checks, Status::Ready, now), None);

    let replaced = |plugin: &PluginType| {
        Ok(Program { path: format!("/opt/cni/bin/{plugin}").into(), ..Program::default() })
    };
    checks.look_for_plugins(replaced, now);
    assert_eq!(again(&mut checks, Status::Ready, now), None);
    checks.look_for_plugins(replaced, now);
    assert_eq!(checks.due(), None, "they are the same");

    let cni = json!({"cniVersion": "1.1.0", "plugins": [plugin]});
    let mut inventory = inventory(&[("a", cni)]);
    checks.replace(chains(&inventory, "node0"), now);
    assert_eq!(checks.due(), None, "it is the same");
    inventory.uplinks[0].link.admin_up ^= true;
    checks.replace(chains(&inventory, "node0"), now);
    assert_eq!(checks.due(), Some(now));
}

#[test]
fn plugins_that_change_while_they_are_asked_are_asked_again() {
    let now = Instant::now();
    let mut checks = checks(json!({"type": "x"}), now);
    let (a, conflist) = checks.next(now).unwrap();
    checks.look_for_plugins(|_| Ok(Program::default()), now);
    checks.answered(&a, &conflist, Status::Ready, now, 0.5);
    assert_eq!(again(&mut checks, Status::Ready, now), Some(2 * PERIOD));
}

#[test]
fn plugins_are_asked_when_an_add_has_failed_but_not_for_every_failure() {
    let now = Instant::now();
    for plugin in ["macvlan", "x"] {
        let mut checks = checks(json!({"type": plugin}), now);
        again(&mut checks, Status::Ready, now);
        checks.add_failed(&name("other"), &failure(Cause::Other), now);
        checks.add_failed(&name("a"), &failure(Cause::TryAgainLater), now + Duration::from_secs(1));
        assert_eq!(reason(&checks), None, "it says nothing of the plugin");
        assert_eq!(checks.due(), Some(now + UNREADY_INTERVAL), "it was asked a second ago");
        let now = now + UNREADY_INTERVAL;
        again(&mut checks, Status::Ready, now);
        checks.add_failed(&name("a"), &failure(Cause::Other), now + PERIOD / 2);
        assert_eq!(checks.due(), Some(now + PERIOD / 2), "{plugin}");
    }
    let mut checks = checks(json!({"type": "x", "args": ["${pod.name}"]}), now);
    checks.add_failed(&name("a"), &failure(Cause::Other), now);
    assert_eq!(checks.due(), None, "it cannot be asked");
}

#[test]
fn an_add_reports_on_its_plugin_at_once_and_until_status_says_otherwise() {
    let now = Instant::now();
    let later = |seconds| now + Duration::from_secs(seconds);
    let held = |checks: &Checks| checks.held().into_keys().map(|name| name.to_string()).collect::<Vec<_>>();
    for cause in [Cause::PluginNotReady, Cause::PluginLimited] {
        let mut checks = checks(json!({"type": "x"}), now);
        again(&mut checks, Status::Ready, now);
        checks.add_failed(&name("a"), &failure(cause), now);
        assert_eq!((reason(&checks), held(&checks)), (Some(Reason::NotReady), vec!["netclaim-a".to_owned()]));
        assert!(!checks.unavailable()[&name("a")].message.contains("no switch"), "it may name the pod");
        again(&mut checks, Status::Ready, later(5));
        assert_eq!((reason(&checks), held(&checks)), (None, vec![]));
        // STATUS has said otherwise: not again and again.
        checks.add_failed(&name("a"), &failure(cause), later(6));
        assert_eq!(reason(&checks), None);
        checks.add_failed(&name("a"), &failure(cause), later(36));
        assert_eq!(reason(&checks), Some(Reason::NotReady));
        again(&mut checks, Status::Limited("down".to_owned()), later(41));
        assert_eq!((reason(&checks), held(&checks).len()), (Some(Reason::Limited), 1));
        checks.add_failed(&name("a"), &failure(Cause::PluginNotReady), later(42));
        assert_eq!(reason(&checks), Some(Reason::Limited), "what STATUS says stands");
    }
    let mut checks = Checks::new(Duration::ZERO);
    checks.replace([(name("a"), chain(json!({"type": "x"})))].into(), now);
    checks.add_failed(&name("a"), &failure(Cause::PluginNotReady), now);
    assert_eq!(reason(&checks), None, "STATUS is switched off");
}

#[test]
fn an_answer_of_before_an_add_says_nothing_of_what_it_has_met() {
    let now = Instant::now();
    let mut checks = checks(json!({"type": "x"}), now);
    let (a, conflist) = checks.next(now).unwrap();
    checks.add_failed(&a, &failure(Cause::PluginNotReady), now + Duration::from_secs(1));
    checks.answered(&a, &conflist, Status::Ready, now + Duration::from_secs(2), 0.5);
    assert_eq!(reason(&checks), Some(Reason::NotReady));
    again(&mut checks, Status::Ready, now + Duration::from_secs(2));
    assert_eq!(reason(&checks), None);
}

#[test]
fn adds_are_held_only_for_what_all_plugins_of_the_name_have_said_and_can_be_asked_about() {
    let now = Instant::now();
    let held = |networks: &[(&str, Value)], status: Status| {
        let mut checks = Checks::new(PERIOD);
        checks.replace(chains(&inventory(networks), "node0"), now);
        let (a, conflist) = checks.next(now).unwrap();
        checks.answered(&a, &conflist, status, now, 0.5);
        (checks.held().len(), checks)
    };
    let of = |version: &str, plugin: &str| json!({"cniVersion": version, "name": "n", "plugins": [{"type": plugin}]});
    let a = || [("a", of("1.1.0", "x"))];
    assert_eq!(held(&a(), not_ready("no")).0, 1);
    assert_eq!(held(&a(), Status::Unclear("it hangs".to_owned())).0, 0, "an ADD may fare better");
    let [a, b] = [("a", of("1.1.0", "x")), ("b", of("1.0.0", "macvlan"))];
    assert_eq!(held(&[a.clone(), b], not_ready("no")).0, 0, "the other one has said nothing");
    let (_, mut checks) = held(&[a], not_ready("no"));
    checks.look_for_plugins(|_| Err("no x".to_owned()), now);
    assert!(checks.held().is_empty(), "it is not asked without its plugin");
}

#[test]
fn the_report_of_an_add_on_a_plugin_that_cannot_be_asked_is_forgotten_and_holds_nothing() {
    let now = Instant::now();
    let mut checks = checks(json!({"type": "x", "args": ["${pod.name}"]}), now);
    checks.add_failed(&name("a"), &failure(Cause::PluginNotReady), now);
    assert_eq!((reason(&checks), checks.held().len()), (Some(Reason::NotReady), 0), "nothing would let go");
    assert_eq!(checks.forgets(), Some(now + TOLD_LIFETIME));
    checks.forget(now + TOLD_LIFETIME / 2);
    assert!(reason(&checks).is_some());
    checks.forget(now + TOLD_LIFETIME);
    assert_eq!((reason(&checks), checks.forgets()), (None, None));
}

#[test]
fn parameters_have_their_defaults_in_status() {
    let asked = |rule: Value| -> Option<String> {
        let spec = json!({
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "x", "vlan": "${parameters.vlan}"}]},
            "allow": {"parameters": {"vlan": rule}},
        });
        let networks = [(name("a"), serde_json::from_value(spec).unwrap())].into();
        let chain = chains(&Inventory { networks, ..Inventory::default() }, "node0").remove(&name("a"));
        let chain = chain.unwrap();
        assert_eq!(chain.is_by_default, chain.conflist.is_some());
        chain.conflist.map(|list| list.raw().to_owned())
    };
    let list = asked(json!({"type": "integer", "minimum": 1, "maximum": 9, "default": 7})).unwrap();
    assert!(list.contains(r#""vlan":7"#), "{list}");
    assert_eq!(asked(json!({"type": "integer", "minimum": 1, "maximum": 9})), None, "a claim chooses it");
}

#[test]
fn a_message_that_changes_each_time_is_not_an_update_for_a_while() {
    let now = Instant::now();
    let mut checks = checks(json!({"type": "x"}), now);
    let (a, conflist) = checks.next(now).unwrap();
    checks.answered(&a, &conflist, not_ready("at 12:00:01"), now, 0.5);
    let known = checks.unavailable();
    checks.answered(&a, &conflist, not_ready("at 12:00:06"), now + UNREADY_INTERVAL, 0.5);
    assert_eq!(checks.unavailable(), known);
    checks.answered(&a, &conflist, not_ready("disk full\nat 12:01:01"), now + MESSAGE_LIFETIME, 0.5);
    assert_eq!(checks.unavailable()[&a].message, "disk full at 12:01:01");
}

#[test]
fn a_changed_network_is_asked_at_once_and_late_answers_are_ignored() {
    let now = Instant::now();
    let mut checks = checks(json!({"type": "x"}), now);
    let (a, old) = checks.next(now).unwrap();
    checks.answered(&a, &old, not_ready("starting"), now, 0.5);
    checks.replace([(a.clone(), chain(json!({"type": "x", "mtu": 1400})))].into(), now);
    assert_eq!(reason(&checks), Some(Reason::NotReady), "until there is another answer");
    let (_, new) = checks.next(now).unwrap();
    checks.answered(&a, &old, Status::Ready, now, 0.5);
    assert_eq!(reason(&checks), Some(Reason::NotReady));
    checks.answered(&a, &new, Status::Ready, now, 0.5);
    assert_eq!(reason(&checks), None);
    checks.answered(&a, &new, not_ready("again"), now, 0.5);
    checks.replace([(a.clone(), chain(json!({"type": "x", "pod": "${pod.name}"})))].into(), now);
    assert_eq!((reason(&checks), checks.due()), (None, None), "it cannot be asked any more");
    assert_eq!(checks.replace(BTreeMap::new(), now), [a]);
}

#[test]
fn a_period_of_zero_asks_no_plugin() {
    let mut checks = Checks::new(Duration::ZERO);
    let now = Instant::now();
    checks.replace([(name("a"), chain(json!({"type": "x"})))].into(), now);
    assert_eq!((checks.next(now), checks.due()), (None, None));
}

/// Availability checks with plugins in `dirs`.
struct Node {
    unavailable: watch::Receiver<Option<Arc<Unavailable>>>,
    registry: Registry,
    failed_adds: mpsc::UnboundedSender<FailedAdd>,
    inventory: watch::Sender<Option<Arc<Inventory>>>,
    changes: watch::Receiver<u32>,
    _cache: tempfile::TempDir,
}

impl Node {
    fn new(dirs: &[&Path], networks: &[(&str, Value)]) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let runtime = Runtime::new(dirs.iter().map(|dir| (*dir).to_owned()).collect()).unwrap();
        let plugins = CniPlugins::new(runtime, Cache::new(cache.path()), Links::new("/sys"), PERIOD);
        let mut registry = Registry::new("netclaim");
        let (changed, changes) = watch::channel(0);
        let availability = Availability {
            plugins: Arc::new(plugins),
            changed: Box::new(move || changed.send_modify(|changes| *changes += 1)),
            node: "node0".into(),
            not_set_up: watch::channel(Arc::default()).1,
            period: Duration::from_secs(1),
            metrics: NetworkMetrics::new(&mut registry),
            of_plugins: PluginMetrics::new(&mut registry),
        };
        let (inventory, seen) = watch::channel(Some(Arc::new(inventory(networks))));
        let (sender, unavailable) = watch::channel(None);
        let (failed_adds, failed) = mpsc::unbounded_channel();
        tokio::spawn(availability.watch(seen, failed, sender));
        Self { unavailable, registry, failed_adds, inventory, changes, _cache: cache }
    }

    /// Waits until `network` is unavailable for this reason, or available; returns the message.
    async fn becomes(&mut self, network: &str, reason: Option<Reason>) -> String {
        let network = name(network);
        let is_it = |unavailable: &Option<Arc<Unavailable>>| {
            unavailable.as_ref().is_some_and(|unavailable| {
                unavailable.get(&network).map(|unhealthy| unhealthy.reason) == reason
            })
        };
        let unavailable = tokio::time::timeout(Duration::from_secs(30), self.unavailable.wait_for(is_it));
        let unavailable = unavailable.await.expect("in time").unwrap().clone().expect("known");
        let metric =
            format!("netclaim_network_available{{network=\"{network}\"}} {}", u8::from(reason.is_none()));
        assert!(self.registry.render().contains(&metric), "{metric}");
        unavailable.get(&network).map(|unhealthy| unhealthy.message.clone()).unwrap_or_default()
    }
}

/// Installs a plugin that runs `on_status` on STATUS.
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

fn fails_with(code: u32) -> String {
    format!(r#"echo '{{"cniVersion": "1.1.0", "code": {code}, "msg": "the daemon starts"}}'; exit 1"#)
}

fn conf(plugin: &str) -> Value {
    json!({"cniVersion": "1.1.0", "plugins": [{"type": plugin, "master": "${uplink.name}"}]})
}

#[tokio::test]
async fn a_plugin_that_says_no_is_quoted_until_it_says_yes() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "x", &fails_with(50));
    let mut node = Node::new(&[dir.path()], &[("a", conf("x"))]);
    let message = node.becomes("a", Some(Reason::NotReady)).await;
    assert_eq!(message, "CNI plugin `x` failed STATUS of network `netclaim-a`: error 50: the daemon starts");
    install(dir.path(), "x", &fails_with(51));
    node.becomes("a", Some(Reason::Limited)).await;
    install(dir.path(), "x", "exit 0");
    node.becomes("a", None).await;
    install(dir.path(), "x", "echo nonsense; exit 1");
    assert!(node.becomes("a", Some(Reason::NotReady)).await.contains("nonsense"));
    install(dir.path(), "x", &fails_with(4));
    node.becomes("a", None).await;
}

#[tokio::test]
async fn nothing_is_known_until_the_plugins_of_all_networks_have_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (asked, answers) = (dir.path().join("asked"), dir.path().join("answers"));
    let waits = format!(
        "touch {}; until [ -e {} ]; do sleep 0.01; done; {}",
        asked.display(),
        answers.display(),
        fails_with(50)
    );
    install(dir.path(), "x", &waits);
    install(dir.path(), "y", "exit 0");
    let mut node = Node::new(&[dir.path()], &[("a", conf("x")), ("b", conf("y")), ("missing", conf("z"))]);
    tokio::time::timeout(PERIOD, async {
        while !asked.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("in time");
    assert!(node.unavailable.borrow().is_none());
    std::fs::write(answers, "").unwrap();
    node.unavailable.changed().await.unwrap();
    let known = node.unavailable.borrow().clone().expect("known");
    assert_eq!(known.keys().map(ToString::to_string).collect::<Vec<_>>(), ["a", "missing"]);
}

#[tokio::test]
async fn plugins_that_do_not_answer_keep_nobody_waiting_for_long() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "x", "sleep 60");
    let mut node = Node::new(&[dir.path()], &[("a", conf("x")), ("missing", conf("z"))]);
    let begin = std::time::Instant::now();
    node.becomes("missing", Some(Reason::PluginMissing)).await;
    assert!(begin.elapsed() >= FIRST_ANSWERS, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_file_says_no_for_plugins_that_cannot_be_asked() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "x", &fails_with(51));
    let plugin = |parameter: &str| json!({"type": "x", "of": parameter});
    let old = json!({"cniVersion": "1.0.0", "plugins": [plugin("")]});
    let of_claims = json!({"cniVersion": "1.1.0", "plugins": [plugin("${parameters.of}")]});
    let networks = [("old", old), ("of-claims", of_claims), ("limited", conf("x")), ("missing", conf("y"))];
    let mut node = Node::new(&[dir.path()], &networks);
    node.becomes("limited", Some(Reason::Limited)).await;
    let stated = facts(&json!({"status": {"add": false, "message": "no BGP"}}));
    let stated = |network: &str| (name(network), stated.clone());
    let facts = ["old", "of-claims", "limited", "missing", "of-another-node"].map(stated).into();
    node.inventory.send_replace(Some(Arc::new(Inventory { facts, ..inventory(&networks) })));
    for network in ["old", "of-claims"] {
        let message = node.becomes(network, Some(Reason::NotReady)).await;
        assert_eq!(message, "networks.d/lab.json says that no pod can be attached: no BGP");
    }
    node.becomes("missing", Some(Reason::PluginMissing)).await;
    assert_eq!(
        node.unavailable.borrow().as_ref().expect("known").len(),
        4,
        "not those that are not this node's"
    );
    node.inventory.send_replace(Some(Arc::new(inventory(&networks))));
    node.becomes("old", None).await;
    node.becomes("of-claims", None).await;
    node.becomes("limited", Some(Reason::Limited)).await;
}

#[tokio::test]
async fn a_failed_add_shows_that_a_plugin_is_no_longer_ready() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let broken = state.path().join("broken");
    // Its name is one of a plugin that is asked once.
    install(dir.path(), "macvlan", &format!("if [ -e {} ]; then {}; fi", broken.display(), fails_with(50)));
    let mut node = Node::new(&[dir.path()], &[("a", conf("macvlan")), ("b", conf("x"))]);
    node.becomes("b", Some(Reason::PluginMissing)).await;
    node.becomes("a", None).await;
    fs::write(&broken, "").unwrap();
    let failed = FailedAdd { network: name("a"), failure: failure(Cause::Other) };
    node.failed_adds.send(failed).unwrap();
    node.becomes("a", Some(Reason::NotReady)).await;
    fs::remove_file(&broken).unwrap();
    node.becomes("a", None).await;
}

#[tokio::test]
async fn a_plugin_that_is_removed_is_missing_until_it_is_back() {
    let (dir, later) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let later = later.path().join("opt/bin");
    install(dir.path(), "x", "exit 0");
    let mut node = Node::new(&[dir.path(), &later], &[("a", conf("x")), ("b", conf("y"))]);
    let message = node.becomes("b", Some(Reason::PluginMissing)).await;
    let dirs = format!("{}, {}", dir.path().display(), later.display());
    assert_eq!(
        message,
        format!("CNI plugin `y`: not found in {dirs}; install the plugin there or name its directory")
    );
    node.becomes("a", None).await;
    fs::remove_file(dir.path().join("x")).unwrap();
    node.becomes("a", Some(Reason::PluginMissing)).await;
    fs::create_dir_all(&later).unwrap();
    install(&later, "x", "exit 0");
    node.becomes("a", None).await;
    install(&later, "y", "exit 0");
    node.becomes("b", None).await;
    fs::set_permissions(later.join("y"), Permissions::from_mode(0o644)).unwrap();
    assert!(node.becomes("b", Some(Reason::PluginMissing)).await.contains("y is not executable"));
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
    node.becomes("gone", Some(Reason::PluginMissing)).await;
    let message = node.becomes("bad", Some(Reason::NotReady)).await;
    assert!(message.contains("`bridge` failed STATUS of network `netclaim-bad`"), "{message}");
    node.becomes("good", None).await;
}

#[tokio::test]
async fn a_plugin_or_a_network_that_changes_hurries_what_could_not_succeed() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "x", "");
    let mut node = Node::new(&[dir.path()], &[("a", conf("x"))]);
    node.changes.wait_for(|changes| *changes > 0).await.unwrap();
    node.becomes("a", None).await;
    tokio::time::sleep(2 * SETTLE).await;
    node.changes.mark_unchanged();
    install(dir.path(), "another", "");
    tokio::time::timeout(Duration::from_secs(30), node.changes.changed()).await.expect("a file").unwrap();
    node.inventory.send_replace(Some(Arc::new(inventory(&[("a", conf("another"))]))));
    tokio::time::timeout(Duration::from_secs(30), node.changes.changed()).await.expect("a network").unwrap();
}

#[test]
fn links_and_blocks_do_not_configure_plugins_otherwise() {
    let before = inventory(&[("a", conf("x"))]);
    let now = Inventory { uplinks: vec![uplink("eth1"), uplink("eth2")], ..before.clone() };
    assert!(!configures_otherwise(Some(&before), Some(&now)));
    assert!(configures_otherwise(Some(&before), Some(&inventory(&[("a", conf("y"))]))));
    assert!(configures_otherwise(None, Some(&before)));
}
