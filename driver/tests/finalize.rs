//! Finalizers by the real plugins `tuning` and `sbr`, in network namespaces of this test's own.
//!
//! Needs root, and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use netclaim_cni::NetworkList;
use netclaim_driver::attach::testing::{Claimant, Object};
use netclaim_driver::attach::{Attacher, Checked, CniPlugins, Gate, LiveSandbox, Phase, Sandbox, Spec};
use netclaim_driver::links;
use serde_json::{Value, json};

use plugin_host::{Host, LONG, Netns, Plan, PodState, Silent, on_a_host, run};

const POD: &str = "p-uid";

type Agent = Arc<Attacher<CniPlugins, Silent>>;

fn agent(host: &Host) -> Agent {
    let bin = PathBuf::from(std::env::var_os("NETCLAIM_CNI_BIN").unwrap());
    host.agent(vec![bin], LONG, &Arc::new(Silent))
}

fn plan(claim: &str, index: u32, if_name: &str, list: &Value) -> Plan {
    let object =
        |name: &str| Object { namespace: "default".into(), name: name.into(), uid: format!("{name}-uid") };
    let spec = Spec {
        tenant: "default".to_owned(),
        if_name: if_name.parse().unwrap(),
        conflist: NetworkList::parse(list.to_string().as_bytes()).unwrap(),
        args: Default::default(),
        capability_args: Default::default(),
        wire: Default::default(),
    };
    let owner = Claimant { claim: object(claim), pod: object("p"), rest: Default::default() };
    let network = list["name"].as_str().unwrap().to_owned();
    Plan { owner, index, of: 2, finalizes: (index == 1).then_some(0), network, spec }
}

/// The claims `a` and `b`, each with an attachment and what finalizes it.
async fn prepare(host: &Host, agent: &Agent, finalizers: [Value; 2]) {
    let claims = [("a", "net1", "10.9.0.0/24"), ("b", "net2", "10.8.0.0/24")];
    for ((claim, if_name, subnet), plugins) in claims.into_iter().zip(finalizers) {
        let list =
            |name: String, plugins: Value| json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins});
        let ptp = list(format!("netclaim-{claim}"), json!([{"type": "ptp", "ipam": host.subnet(subnet)}]));
        let finalize = list(format!("netclaim-{claim}.finalize"), plugins);
        let plans = [plan(claim, 0, if_name, &ptp), plan(claim, 1, if_name, &finalize)];
        agent.prepare(plans.to_vec()).await.unwrap();
    }
}

fn tuning(host: &Host, sysctl: &str) -> Value {
    let key = format!("net.ipv4.conf.IFNAME.{sysctl}");
    json!({"type": "tuning", "sysctl": {key: "1"}, "dataDir": host.data.path().join("tuning")})
}

fn live(netns: &Netns) -> LiveSandbox {
    let path = netns.path();
    let netns = links::Netns::open(&path).unwrap();
    let sandbox = Sandbox { id: "s1".into(), netns: path, netns_id: netns.id(), boot_id: "b".into() };
    LiveSandbox { pod_uid: POD.into(), sandbox, netns }
}

async fn until(agent: &Agent, what: &str, reached: impl FnMut(&PodState) -> bool) {
    let mut state = agent.watch(POD).unwrap();
    let reached = tokio::time::timeout(LONG, state.wait_for(reached)).await;
    assert!(reached.is_ok_and(|state| state.is_ok()), "never {what}: {:?}", agent.pods());
}

fn is_open(state: &PodState) -> bool {
    state.gate("s1") == Gate::Open
}

fn is_detached(state: &PodState) -> bool {
    state.records.iter().all(|record| record.phase == Phase::Planned)
}

fn file(if_name: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{if_name}/arp_filter")
}

fn arp_filter(netns: &Netns, if_name: &str) -> String {
    netns.inside(|| fs::read_to_string(file(if_name)).unwrap()).trim().to_owned()
}

fn rules(netns: &Netns) -> String {
    netns.inside(|| run("ip rule"))
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn tuning_and_sbr_finalize_what_two_claims_have_made() {
    on_a_host(&[], async |host| {
        let (first, netns) = (agent(&host), Netns::new());
        let both =
            [json!([tuning(&host, "arp_filter"), {"type": "sbr"}]), json!([tuning(&host, "arp_filter")])];
        prepare(&host, &first, both).await;
        first.sandbox_up(live(&netns));
        until(&first, "open", is_open).await;
        assert_eq!(["net1", "net2"].map(|name| arp_filter(&netns, name)), ["1", "1"]);
        assert!(rules(&netns).contains("from 10.9.0.2"), "{}", rules(&netns));
        let state = first.watch(POD).unwrap().borrow().clone();
        for finalizer in &state.records[2..] {
            let result = finalizer.phase.result().unwrap();
            let in_pod = result.interfaces().iter().filter(|interface| interface.sandbox.is_some());
            assert_eq!(in_pod.map(|interface| &interface.name).collect::<Vec<_>>(), ["net1", "net2"]);
        }
        assert_eq!(first.check(POD, "b-uid.1", true).await, Some(Checked::Fine));
        netns.inside(|| fs::write(file("net2"), "0").unwrap());
        assert!(matches!(first.check(POD, "b-uid.1", true).await, Some(Checked::Failed(_))));
        // GC of their networks takes no address.
        for spec in first.networks().into_values() {
            first.collect(&spec).await.unwrap();
        }
        assert_eq!(host.reserved("netclaim-a"), ["10.9.0.2 s1 net1"]);
        // The next agent goes on.
        first.drain().await;
        let next = agent(&host);
        next.synchronize(vec![live(&netns)], &HashSet::new());
        until(&next, "open again", is_open).await;
        next.sandbox_gone(POD, "s1");
        until(&next, "detached", is_detached).await;
        assert!(!rules(&netns).contains("from 10.9.0.2"), "{}", rules(&netns));
        assert_eq!(["net1", "net2"].map(|name| netns.has_link(name)), [false, false]);
        assert_eq!(["netclaim-a", "netclaim-b"].map(|name| host.reserved(name).len()), [0, 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_finalizer_that_fails_leaves_the_attachments_and_is_undone_with_them() {
    on_a_host(&[], async |host| {
        let (agent, netns) = (agent(&host), Netns::new());
        let wrong =
            [json!([tuning(&host, "arp_filter"), tuning(&host, "no_such")]), json!([{"type": "sbr"}])];
        prepare(&host, &agent, wrong).await;
        agent.sandbox_up(live(&netns));
        let failed =
            |state: &PodState| matches!(state.gate("s1"), Gate::Failed(error) if error.contains("no_such"));
        until(&agent, "failed", failed).await;
        assert_eq!(["net1", "net2"].map(|name| netns.has_link(name)), [true, true]);
        assert!(!rules(&netns).contains("from 10.8"), "it comes after the one that fails");
        for claim in ["a-uid", "b-uid"] {
            agent.release(claim).await.unwrap();
        }
        assert_eq!(["net1", "net2"].map(|name| netns.has_link(name)), [false, false]);
        assert_eq!(["netclaim-a", "netclaim-b"].map(|name| host.reserved(name).len()), [0, 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_finalizer_is_undone_when_its_namespace_has_ended() {
    on_a_host(&[], async |host| {
        let (first, netns) = (agent(&host), Netns::new());
        let both = [json!([tuning(&host, "arp_filter"), {"type": "sbr"}]), json!([{"type": "sbr"}])];
        prepare(&host, &first, both).await;
        first.sandbox_up(live(&netns));
        until(&first, "open", is_open).await;
        first.drain().await;
        drop((first, netns));
        let next = agent(&host);
        next.synchronize(Vec::new(), &HashSet::new());
        until(&next, "detached", is_detached).await;
        assert_eq!(["netclaim-a", "netclaim-b"].map(|name| host.reserved(name).len()), [0, 0]);
    });
}
