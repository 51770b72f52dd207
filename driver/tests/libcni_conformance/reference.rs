//! The reference plugins, with the recorder in front of each, on hosts that are equal. After each verb: what
//! the plugins got, what the caller got, and everything that is on the host, in the pods and in the plugins'
//! directories.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::compare::{Report, settle, settle_names};
use crate::differences::Group;
use crate::hosts::{Pods, enter_new_host, files, kernel_has, links};
use crate::sides::{Order, Side};

mod cases;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    /// A verb for the pod of that name; CHECK only after an ADD that succeeded.
    Do(&'static str, &'static str),
    /// CHECK of what is not attached.
    CheckAnyway(&'static str),
    /// DEL of a pod without saying where its namespace is.
    DelBlind(&'static str),
    /// A verb with the runtime's own network namespace for the pod's.
    OnHost(&'static str),
    /// A change in a pod, in the words of `links`.
    InPod(&'static str, &'static str),
    /// A change on the host.
    Host(&'static str),
    /// The pod's namespace is gone.
    End(&'static str),
}

#[derive(Clone)]
struct Case {
    name: String,
    /// Kinds of links, and programs, that it needs.
    needs: Vec<&'static str>,
    /// How the host is before; there is always a pair of veths, `up0` and `up1`.
    host: Vec<&'static str>,
    list: Value,
    if_name: &'static str,
    args: Vec<(String, String)>,
    capability_args: Map<String, Value>,
    steps: Vec<Step>,
    explained: Vec<&'static str>,
    /// Which of our sides is compared.
    ours: Ours,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ours {
    Runtime,
    Agent,
}

fn plugins() -> PathBuf {
    std::env::var_os("NETCLAIM_CNI_BIN").expect("NETCLAIM_CNI_BIN must name the plugins' directory").into()
}

/// Why a case cannot run here.
fn obstacle(case: &Case) -> Option<String> {
    let types = case.list["plugins"].as_array().unwrap().iter();
    let types = types.flat_map(|plugin| [&plugin["type"], &plugin["ipam"]["type"]]).filter_map(Value::as_str);
    for plugin in types {
        // A case may want a plugin that is nowhere.
        if !plugin.starts_with("no-") && !plugins().join(plugin).exists() {
            return Some(format!("no plugin {plugin} in NETCLAIM_CNI_BIN"));
        }
    }
    for need in &case.needs {
        match need.strip_prefix('/') {
            Some(program) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                if !std::env::split_paths(&path).any(|dir| dir.join(program).exists()) {
                    return Some(format!("no program {program}"));
                }
            }
            None if !kernel_has(need) => return Some(format!("the kernel has no links of kind {need}")),
            None => {}
        }
    }
    None
}

/// All steps of a case on one side, on a host of its own.
fn observe(case: &Case, ours: bool) -> Value {
    enter_new_host();
    links("add veth up0 up1");
    case.host.iter().for_each(|line| drop(links(line)));
    let mut side = match (ours, case.ours) {
        (true, Ours::Runtime) => Side::ours(),
        (true, Ours::Agent) => Side::agent(),
        (false, _) => Side::libcni(),
    };
    for entry in std::fs::read_dir(plugins()).unwrap() {
        let real = entry.unwrap().path();
        side.record_before(real.file_name().unwrap().to_str().unwrap(), &real);
    }
    let mut pods = Pods::new(side.sub("netns"));
    let mut attached = BTreeSet::new();
    let steps = case.steps.iter().map(|step| {
        let order = |verb, pod: &str, netns| Order {
            container: pod.into(),
            netns,
            if_name: case.if_name.into(),
            args: args(case, pod, ours),
            capability_args: case.capability_args.clone(),
            valid: vec![("c1".into(), case.if_name.into())],
            ..Order::new(verb, &case.list)
        };
        let mut seen = match step {
            Step::Do("CHECK", pod) if !attached.contains(pod) => return Value::Null,
            Step::Do(verb, pod) => {
                let seen = side.run(&order(verb, pod, Some(pods.path(pod))));
                if *verb == "ADD" && seen["class"] == "ok" {
                    attached.insert(*pod);
                }
                seen
            }
            Step::CheckAnyway(pod) => side.run(&order("CHECK", pod, Some(pods.path(pod)))),
            Step::DelBlind(pod) => side.run(&order("DEL", pod, None)),
            Step::OnHost(verb) => side.run(&order(verb, "c1", Some("/proc/thread-self/ns/net".into()))),
            Step::InPod(pod, line) => pods.links(pod, line),
            Step::Host(line) => links(line),
            Step::End(pod) => {
                pods.end(pod);
                Value::Null
            }
        };
        if !matches!(step, Step::InPod(..) | Step::Host(_) | Step::End(_)) {
            seen["step"] = format!("{step:?}").into();
        }
        // To look takes more time than to act: not where nothing is to change.
        if !matches!(step, Step::Do("STATUS" | "CHECK", _) | Step::InPod(..) | Step::Host(_) | Step::End(_)) {
            seen["then"] =
                json!({"host": links("show"), "pods": pods.show(), "files": files(&side.sub("ipam"))});
            if case.needs.iter().any(|need| need.starts_with('/')) {
                seen["then"]["filters"] = filters();
            }
        }
        side.without_root(&seen)
    });
    let mut seen: Value = steps.filter(|seen| !seen.is_null()).collect();
    settle(&mut seen);
    settle_names(&seen)
}

/// What the agent always sends is the caller's to send with libcni.
fn args(case: &Case, pod: &str, ours: bool) -> Vec<(String, String)> {
    let mut args = case.args.clone();
    if case.ours == Ours::Agent && !ours {
        args.sort();
        args.push(("K8S_POD_INFRA_CONTAINER_ID".into(), pod.into()));
    }
    args
}

/// The packet filter's rules, without their counters.
fn filters() -> Value {
    let run = |line: &str| {
        let mut words = line.split(' ');
        // Where one of them is missing it is not used either.
        let output = Command::new(words.next().unwrap()).args(words).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let kept = |line: &&str| !line.starts_with('#') && !line.starts_with(':');
    ["iptables-save", "ip6tables-save", "nft --stateless list ruleset"]
        .into_iter()
        .filter_map(run)
        .map(|text| text.lines().filter(kept).map(Value::from).collect::<Value>())
        .collect()
}

/// Runs cases, several at once: IPv6 waits for its duplicate address detection.
fn compare(group: Group, cases: Vec<Case>) {
    const WORKERS: usize = 6;
    let mut report = Report::new(group);
    let (able, unable): (Vec<_>, Vec<_>) =
        cases.into_iter().map(|case| (obstacle(&case), case)).partition(|(why, _)| why.is_none());
    for (why, case) in unable {
        report.skip(&case.name, &case.explained, &why.unwrap());
    }
    let mut seen: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let mine = able.iter().skip(worker).step_by(WORKERS).map(|(_, case)| case);
                scope.spawn(move || {
                    let pair = |case| {
                        std::thread::scope(|scope| {
                            let sides = [true, false].map(|ours| scope.spawn(move || observe(case, ours)));
                            (case, sides.map(|side| side.join().unwrap()))
                        })
                    };
                    mine.map(pair).collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let mut idle = Vec::new();
    for (case, [ours, libcni]) in &mut seen {
        let possible = if case.ours == Ours::Agent { told_alike(case, ours, libcni) } else { Vec::new() };
        report.compare_allowing(&case.name, &case.explained, &possible, ours, libcni);
        // Where something is to be checked something must have been attached.
        let checks = case.steps.iter().any(|step| matches!(step, Step::Do("CHECK", _)));
        let steps = ours.as_array().unwrap();
        let add = steps.iter().find(|step| step["step"].as_str().is_some_and(|text| text.contains("ADD")));
        if let Some(add) = add.filter(|add| checks && add["class"] != "ok") {
            idle.push(format!("{}: {}", case.name, add["msg"]));
        }
    }
    report.finish();
    assert!(idle.is_empty(), "never attached: {idle:#?}");
}

/// Brings what the agent tells and what libcni does into one form; returns the rows that the case may show.
/// For a failure the agent reports a text, in which the plugin's words must be.
fn told_alike(case: &Case, ours: &mut Value, libcni: &mut Value) -> Vec<&'static str> {
    let text = |step: &Value| step["msg"].as_str().unwrap_or_default().to_owned();
    for (ours, libcni) in ours.as_array_mut().unwrap().iter_mut().zip(libcni.as_array_mut().unwrap()) {
        if ours["step"].is_null() {
            continue;
        }
        let said = text(ours).contains(&text(libcni));
        for step in [&mut *ours, &mut *libcni] {
            let class = if step["class"] == "ok" { "ok" } else { "failed" };
            step["class"] = class.into();
            let members = step.as_object_mut().unwrap();
            members.remove("code");
            members.remove("details");
            if said {
                members.remove("msg");
            }
            valid_once(members);
        }
        let calls = ours["calls"].as_array_mut().unwrap();
        let count = calls.len();
        calls.retain(|call| call["env"]["CNI_COMMAND"] != "VERSION");
        if calls.len() < count {
            ours["asked for versions"] = true.into();
        }
        if ours["step"].as_str().is_some_and(|step| step.starts_with("DelBlind")) {
            for step in [ours, libcni] {
                *step = json!({"blind": step.take()});
            }
        }
    }
    let mut possible = vec!["failed-add-is-noted"];
    if case.steps.iter().any(|step| matches!(step, Step::DelBlind(_))) {
        possible.push("without-a-namespace");
    }
    if case.list["plugins"][0]["type"] == "host-device" {
        possible.extend(["del-again", "link-as-it-was"]);
    }
    possible
}

/// GC names a set of attachments.
fn valid_once(step: &mut Map<String, Value>) {
    for call in step["calls"].as_array_mut().into_iter().flatten() {
        for key in ["cni.dev/attachments", "cni.dev/valid-attachments"] {
            if let Some(valid) = call["stdin"].get_mut(key).and_then(Value::as_array_mut) {
                let mut seen = BTreeSet::new();
                valid.retain(|attachment| seen.insert(attachment.to_string()));
            }
        }
    }
}

/// Kinds of links that not every kernel has.
const RARE: [&str; 6] = ["ipvlan", "vlan", "vlan-bridge", "vrf", "bond", "dummy"];

fn is_rare(case: &Case) -> bool {
    case.needs.iter().any(|need| RARE.contains(need))
}

#[test]
#[ignore = "needs root, Go and NETCLAIM_CNI_BIN"]
fn reference_plugins_behave_as_on_libcni() {
    compare(Group::Reference, cases::all().into_iter().filter(|case| !is_rare(case)).collect());
}

/// Without the cases whose difference is the runtime's, which is shown above, those in which plugins make
/// something else than they are asked, and second ADDs, which the agent's state machine does not know.
#[test]
#[ignore = "needs root, Go and NETCLAIM_CNI_BIN"]
fn the_agent_attaches_and_detaches_as_libcni_does() {
    let is_made_otherwise =
        |case: &Case| ["an address that is asked for and not switched on", "loopback"].contains(&&*case.name);
    let is_the_agents = |case: &Case| {
        !is_rare(case) && case.explained.is_empty() && !is_made_otherwise(case) && !adds_twice(case)
    };
    let cases = cases::all().into_iter().filter(is_the_agents);
    let cases = cases.map(|case| Case { explained: differs(&case), ..case }).chain(cases::of_the_agent());
    compare(Group::Agent, cases.map(|case| Case { ours: Ours::Agent, ..case }).collect());
}

fn adds_twice(case: &Case) -> bool {
    let mut added = BTreeSet::new();
    case.steps.iter().any(|step| match step {
        Step::Do("ADD", pod) => !added.insert(pod),
        Step::Do("DEL", pod) => {
            added.remove(pod);
            false
        }
        _ => false,
    })
}

/// The rows that a case shows with the agent.
fn differs(case: &Case) -> Vec<&'static str> {
    let asks = |step: &Step| matches!(step, Step::Do("STATUS", _));
    let mut rows = Vec::new();
    if case.list["cniVersion"] == "1.1.0" && case.steps.iter().any(asks) {
        rows.push("status-asks-for-versions");
    }
    if case.name.starts_with("GC of ") {
        rows.push("gc-without-del");
    }
    rows
}

/// In a test of its own, for a virtual machine whose kernel has everything and takes its time.
#[test]
#[ignore = "needs root, Go and NETCLAIM_CNI_BIN"]
fn reference_plugins_with_rare_links_behave_as_on_libcni() {
    compare(Group::RareLinks, cases::all().into_iter().filter(is_rare).collect());
}
