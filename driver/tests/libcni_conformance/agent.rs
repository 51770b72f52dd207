//! The agent's way to attach, [`CniPlugins`], as a side: what the agent's journal would hold between two
//! verbs is in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use netclaim_cni::{Cache, CniResult, NetworkList, Runtime, Stopped};
use netclaim_driver::attach::retry::Attempt;
use netclaim_driver::attach::{
    AddFailure, Attach as _, Checked, CniPlugins, Del, DelOutcome, Sandbox, Spec, Status,
};
use netclaim_driver::links::{HostLink, Links, Netns};
use serde_json::{Value, json};

use crate::sides::Order;

pub struct Agent {
    plugins: CniPlugins,
    tokio: tokio::runtime::Runtime,
    /// By container and interface.
    journal: BTreeMap<(String, String), Known>,
    /// Attachments whose ADD has made nothing: no DEL is owed.
    made_nothing: BTreeSet<(String, String)>,
}

/// An attachment whose DEL is owed.
#[derive(Clone)]
struct Known {
    spec: Spec,
    sandbox: Sandbox,
    result: Option<CniResult>,
    stopped: Option<Stopped>,
    attached: bool,
    moved_link: Option<HostLink>,
    attempt: Attempt,
}

impl Agent {
    pub fn new(bin_dir: PathBuf, cache: &Path) -> Self {
        let cache = Cache::new(cache).beside_a_journal();
        let runtime = Runtime::new(vec![bin_dir]).unwrap();
        let plugins = CniPlugins::new(runtime, cache, Links::new("/sys"), Order::LONG);
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { plugins, tokio, journal: BTreeMap::new(), made_nothing: BTreeSet::new() }
    }

    /// What came of a verb. A failure is its text, for the agent tells no more of it.
    pub fn outcome(&mut self, list: &str, order: &Order) -> Value {
        let spec = spec(list, order);
        let key = (order.container.clone(), order.if_name.clone());
        let Self { plugins, tokio, journal, made_nothing } = self;
        let done = tokio.block_on(async {
            match order.verb {
                "ADD" => {
                    let added = add(plugins, spec, order, journal, key.clone()).await;
                    if !journal.contains_key(&key) {
                        made_nothing.insert(key);
                    }
                    added
                }
                "CHECK" => match journal.get(&key).filter(|known| known.attached) {
                    Some(Known { spec, sandbox, result: Some(result), .. }) => {
                        match plugins.check(spec, sandbox, result).await {
                            Checked::Fine => Ok(Value::Null),
                            Checked::Failed(found) => Err(found.message),
                            Checked::Unknown(why) => Err(why),
                        }
                    }
                    _ => panic!("the agent checks what is attached only"),
                },
                "DEL" if made_nothing.remove(&key) => Ok(Value::Null),
                "DEL" => del(plugins, spec, order, journal, key).await,
                "STATUS" => match plugins.status(&spec.conflist).await {
                    Status::Ready => Ok(Value::Null),
                    Status::NotReady(why) | Status::Unclear(why) | Status::Limited(why) => Err(why),
                },
                "GC" => {
                    let parsed =
                        |(id, if_name): &(String, String)| (id.parse().unwrap(), if_name.parse().unwrap());
                    let valid = || order.valid.iter().map(parsed).collect();
                    plugins
                        .collect(&spec, valid)
                        .await
                        .map(|_| Value::Null)
                        .map_err(|failure| failure.message)
                }
                other => panic!("unknown verb {other}"),
            }
        });
        match done {
            Ok(result) => json!({"class": "ok", "result": result}),
            Err(why) => json!({"class": "failed", "msg": why}),
        }
    }
}

async fn add(
    plugins: &CniPlugins,
    spec: Spec,
    order: &Order,
    journal: &mut BTreeMap<(String, String), Known>,
    key: (String, String),
) -> Result<Value, String> {
    let netns = order.netns.clone().expect("a namespace");
    let netns_id = Netns::open(&netns).unwrap().id();
    let sandbox = Sandbox { id: order.container.clone(), netns, netns_id, boot_id: "boot".into() };
    plugins.is_name_free(&spec, &sandbox).await.map_err(|failure| failure.message)?;
    let moved_link = plugins.link_to_move(&spec).await.map_err(|failure| failure.message)?;
    let added = plugins.add(&spec, &sandbox).await;
    let mut stopped = None;
    let (attached, result, done) = match added {
        Ok(result) => {
            let json = serde_json::from_str(result.raw()).unwrap();
            (true, Some(result), Ok(json))
        }
        Err(failed) if !failed.owes_del() => return Err(failed.failure.message),
        Err(AddFailure { failure, last_good, stopped: at }) => {
            stopped = at;
            (false, last_good, Err(failure.message))
        }
    };
    let attempt = Attempt::default();
    journal.insert(key, Known { spec, sandbox, result, stopped, attached, moved_link, attempt });
    done
}

async fn del(
    plugins: &CniPlugins,
    spec: Spec,
    order: &Order,
    journal: &mut BTreeMap<(String, String), Known>,
    key: (String, String),
) -> Result<Value, String> {
    let known = journal.get(&key).cloned();
    let (spec, result, stopped, moved_link, attempt) = match known {
        Some(known) => (known.spec, known.result, known.stopped, known.moved_link, known.attempt),
        // A crash may come between a DEL and its record: the next agent repeats it.
        None => (spec, None, None, None, Attempt::default()),
    };
    let del = Del {
        sandbox_id: &order.container,
        netns: order.netns.as_deref(),
        result: result.as_ref(),
        stopped,
        after_reboot: false,
        moved_link: moved_link.as_ref(),
        attempt,
    };
    match plugins.del(&spec, del).await {
        Ok(DelOutcome::Clean) => {
            journal.remove(&key);
            Ok(Value::Null)
        }
        Ok(DelOutcome::GivenUp(why) | DelOutcome::Stray(why)) => Err(why),
        Err(failure) => {
            journal.entry(key).and_modify(|known| known.attempt.0 += 1);
            Err(failure.message)
        }
    }
}

/// What a claim for this attachment would have come to.
fn spec(list: &str, order: &Order) -> Spec {
    Spec {
        tenant: "default".to_owned(),
        if_name: order.if_name.parse().unwrap(),
        conflist: NetworkList::parse(list.as_bytes()).unwrap(),
        args: order.args.iter().cloned().collect(),
        capability_args: order.capability_args.clone().into(),
        wire: Default::default(),
    }
}
