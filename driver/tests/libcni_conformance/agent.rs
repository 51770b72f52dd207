//! The agent's way to attach, [`CniNetwork`], as a side: what the agent's journal would hold between two verbs is in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use netclaim_cni::{Cache, Runtime};
use netclaim_driver::attach::record::{Plan, Sandbox};
use netclaim_driver::attach::{Checked, CniNetwork, Failure, Network as _, Status, Undone};
use netclaim_driver::links::{HostLink, Links, Netns};
use serde_json::{Map, Value, json};

use crate::sides::Order;

pub struct Agent {
    network: CniNetwork,
    tokio: tokio::runtime::Runtime,
    /// By container and interface.
    journal: BTreeMap<(String, String), Known>,
}

/// An attachment whose DEL is owed.
#[derive(Clone)]
struct Known {
    plan: Plan,
    sandbox: Sandbox,
    result: Option<Value>,
    attached: bool,
    lent: Option<HostLink>,
    tries: u32,
}

impl Agent {
    pub fn new(bin_dir: PathBuf, cache: &Path) -> Self {
        let cache = Cache::new(cache).beside_a_journal();
        let runtime = Runtime::new(vec![bin_dir]).unwrap();
        let network = CniNetwork::new(runtime, cache, Links::new("/sys"), Order::LONG);
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { network, tokio, journal: BTreeMap::new() }
    }

    /// What came of a verb. A failure is its text, for the agent tells no more of it.
    pub fn outcome(&mut self, list: &str, order: &Order) -> Value {
        let plan = plan(list, order);
        let key = (order.container.clone(), order.if_name.clone());
        let Self { network, tokio, journal } = self;
        let done = tokio.block_on(async {
            match order.verb {
                "ADD" => add(network, plan, order, journal, key).await,
                "CHECK" => match journal.get(&key).filter(|known| known.attached) {
                    Some(Known { plan, sandbox, result: Some(result), .. }) => {
                        match network.check(plan, sandbox, result).await {
                            Checked::Fine => Ok(Value::Null),
                            Checked::Failed(why) | Checked::Unknown(why) => Err(why),
                        }
                    }
                    _ => panic!("the agent checks what is attached only"),
                },
                "DEL" => del(network, plan, order, journal, key).await,
                "STATUS" => match network.status(&plan.conflist).await {
                    Status::Ready => Ok(Value::Null),
                    Status::NotReady(why) | Status::Limited(why) => Err(why),
                },
                "GC" => {
                    let name = |name: &String| serde_json::from_value(json!(name)).unwrap();
                    let valid =
                        || order.valid.iter().map(|(id, if_name)| (id.clone(), name(if_name))).collect();
                    network
                        .collect(&plan, valid)
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
    network: &CniNetwork,
    plan: Plan,
    order: &Order,
    journal: &mut BTreeMap<(String, String), Known>,
    key: (String, String),
) -> Result<Value, String> {
    let netns = order.netns.clone().expect("a namespace");
    let netns_id = Netns::open(&netns).unwrap().id();
    let sandbox = Sandbox { id: order.container.clone(), netns, netns_id, boot_id: "boot".into() };
    let lent = network.lends(&plan).await.map_err(|failure| failure.message)?;
    let added = network.add(&plan, &sandbox).await;
    let (attached, result, done) = match added {
        Ok(result) => (true, Some(result.clone()), Ok(result)),
        Err(Failure { message, last_good }) => (false, last_good, Err(message)),
    };
    journal.insert(key, Known { plan, sandbox, result, attached, lent, tries: 0 });
    done
}

async fn del(
    network: &CniNetwork,
    plan: Plan,
    order: &Order,
    journal: &mut BTreeMap<(String, String), Known>,
    key: (String, String),
) -> Result<Value, String> {
    let known = journal.get(&key).cloned();
    let (plan, result, lent, tries) = match known {
        Some(known) => (known.plan, known.result, known.lent, known.tries),
        // A crash may come between a DEL and its record: the next agent repeats it.
        None => (plan, None, None, 0),
    };
    let netns = order.netns.as_deref();
    let undone = network.del(&plan, &order.container, netns, result.as_ref(), lent.as_ref(), tries).await;
    match undone {
        Ok(Undone::All) => {
            journal.remove(&key);
            Ok(Value::Null)
        }
        Ok(Undone::GivenUp(why) | Undone::Stray(why)) => Err(why),
        Err(failure) => {
            journal.entry(key).and_modify(|known| known.tries += 1);
            Err(failure.message)
        }
    }
}

/// The plan that a claim for this attachment would have come to.
fn plan(list: &str, order: &Order) -> Plan {
    let object = json!({"namespace": "default", "name": order.container, "uid": order.container});
    let conflist: Value = serde_json::from_str(list).unwrap();
    let args: Map<String, Value> =
        order.args.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    serde_json::from_value(json!({
        "claim": object, "index": 0, "of": 1, "pod": object,
        "device": {"request": "net", "pool": "node0", "device": "net-net"}, "network": "net",
        "ifName": order.if_name, "conflist": conflist, "args": args, "capabilityArgs": order.capability_args,
    }))
    .unwrap()
}
