//! The socket by which the container runtime asks for pods' primary networks.
//!
//! The runtime has a CNI configuration of its own for pods of one RuntimeClass, whose only plugin is
//! `netclaim-primary`. That passes each ADD and DEL on, as one line each way:
//!
//! ```text
//!   kubelet ─> runtime ─> netclaim-primary ── {"command":"ADD","sandbox":…,"netns":…,"pod":…} ──> here
//!                              eth0 is made <── {"result":…} or {"error":…} ── Attacher, as for any network
//! ```
//!
//! * The pod's networks begin with the ADD, not with the sandbox's NRI event, which comes after it. The
//!   answer waits for the primary one alone; the gate holds the containers until all are there.
//! * A DEL says that the sandbox goes. Its answer waits until nothing is owed to it.
//! * A plugin whose connection ends without an answer asks the next agent.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use netclaim_cni::{ContainerId, SpecVersion, error_chain};
use netclaim_driver::attach::{Attach, Attacher, Interface, Phase};
use netclaim_nri::SandboxNetwork;
use netclaim_process::sockets;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::sandboxes::{self, Inspection, Sandboxes};
use crate::gate::keeper::GateKeeper;
use crate::json_lines::{read_line, write_line};
use crate::pods::owner::{PodState, Record};
use crate::prepare::default_route::clusters_own;

/// The longest question, in bytes: a path and two ids.
const MAX_QUESTION: u64 = 16 << 10;
/// How long the plugin may take to ask.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an ADD that has failed may be tried again before the runtime learns of it: the kubelet makes the
/// next sandbox some 15 s later.
const RETRY_FOR: Duration = Duration::from_secs(3);
/// How long a DEL may take until its caller goes on. What it owes stays in the journal.
const DEL_TIMEOUT: Duration = Duration::from_secs(8);

/// CNI's code of failures that may be gone at the next try (specification, "Error").
const TRY_AGAIN_LATER: u32 = 11;

/// Returns the runtime's CNI configuration, for the socket at this path.
pub(crate) fn conflist(socket: &Path) -> String {
    // A hostPort of the pod comes to the plugin, which refuses it: nothing would lead the port to the pod.
    let plugin =
        json!({"type": "netclaim-primary", "socket": socket, "capabilities": {"portMappings": true}});
    format!("{:#}\n", json!({"cniVersion": "1.1.0", "name": "netclaim-primary", "plugins": [plugin]}))
}

#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "UPPERCASE")]
enum Question {
    Add { sandbox: ContainerId, netns: PathBuf, pod: String },
    Del { sandbox: ContainerId, pod: String },
}

/// Why a pod's sandbox is not made.
#[derive(Debug, PartialEq, thiserror::Error)]
enum Refusal {
    #[error(
        "the pod has the RuntimeClass of primary networks, but no ResourceClaim with primary: true is prepared for it on this node. A \
         claim that another pod uses is this pod's when that one has ended; without any, delete the pod, and create it with a claim of a \
         DeviceClass that sets primary, or without runtimeClassName"
    )]
    NoPrimary,
    #[error("the pod's ResourceClaims are being released: the pod is ending")]
    Closing,
    #[error("it is not known what is attached to the pod: {0}")]
    Damaged(String),
    #[error("cannot attach to the sandbox, and the kubelet makes another one: {0}")]
    Sandbox(String),
    #[error("ClaimNetwork {network}: {error}")]
    Failed { network: String, error: String },
    #[error(
        "ClaimNetwork {network}: the plugins have given eth0 no address, which a pod needs of its primary network: have the admin add \
         spec.addresses or an IPAM to the ClaimNetwork"
    )]
    NoAddress { network: String },
    #[error(
        "ClaimNetwork {network}: {ip} is in {prefix}, which is the cluster's own (agent.clusterCIDRs): have the admin give the ClaimNetwork \
         other addresses"
    )]
    ClustersOwn { network: String, ip: std::net::IpAddr, prefix: IpNet },
}

/// What answers need.
pub(crate) trait Source: Send + Sync + 'static {
    /// Returns the state of a pod's attachments; `None` when it has none.
    fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>>;

    /// Notes that the runtime makes this sandbox and waits for the pod's primary network.
    ///
    /// # Errors
    /// Why nothing can be attached to the sandbox.
    fn asks(&self, pod_uid: &str, sandbox: &ContainerId, netns: &Path) -> Result<(), String>;

    /// Notes that a pod has no primary network here. Perhaps it gets one, which another pod has.
    fn refused(&self, pod_uid: &str);

    /// Notes that the runtime removes the sandbox.
    fn gone(&self, pod_uid: &str, sandbox: &ContainerId);

    /// The prefixes of the cluster's own pods.
    fn cluster(&self) -> &[IpNet];
}

/// The agent's attachments.
pub(crate) struct PrimarySource<N> {
    pub(crate) attacher: Arc<Attacher<N, GateKeeper>>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) boot_id: String,
    pub(crate) cluster: Vec<IpNet>,
}

impl<N: Attach> Source for PrimarySource<N> {
    fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>> {
        self.attacher.watch(pod_uid)
    }

    fn asks(&self, pod_uid: &str, sandbox: &ContainerId, netns: &Path) -> Result<(), String> {
        let network = SandboxNetwork::Namespace(netns.to_owned());
        match sandboxes::inspect(pod_uid, sandbox.as_str(), &network, &self.boot_id) {
            Inspection::Live(live) => {
                self.attacher.sandbox_asks(live);
                Ok(())
            }
            Inspection::Gone => Err(format!("its network namespace {} is gone", netns.display())),
            Inspection::Unfit(reason) | Inspection::Unclear(reason) => Err(reason),
        }
    }

    fn refused(&self, pod_uid: &str) {
        self.sandboxes.refused(pod_uid);
    }

    fn gone(&self, pod_uid: &str, sandbox: &ContainerId) {
        self.attacher.sandbox_gone(pod_uid, sandbox.as_str());
    }

    fn cluster(&self) -> &[IpNet] {
        &self.cluster
    }
}

/// Answers the runtime until dropped.
pub(crate) async fn serve<S: Source>(listener: UnixListener, source: Arc<S>) {
    sockets::serve(listener, |stream| answer(stream, Arc::clone(&source))).await;
}

async fn answer<S: Source>(mut stream: UnixStream, source: Arc<S>) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let question = tokio::time::timeout(ASK_TIMEOUT, read_line(&mut reader, MAX_QUESTION)).await??;
    let answer = tokio::select! {
        answer = outcome(&question, &*source) => answer,
        // The plugin sends nothing more, so the end of its stream is the end of its process.
        _ = reader.read_u8() => return Err(io::ErrorKind::ConnectionAborted.into()),
    };
    match answer {
        Some(answer) => write_line(&mut writer, &answer).await,
        None => Ok(()),
    }
}

/// Returns the answer; `None` when the next agent has to give it.
async fn outcome<S: Source>(question: &Question, source: &S) -> Option<Value> {
    match question {
        Question::Del { sandbox, pod } => del(source, pod, sandbox).await.map(|()| json!({"result": null})),
        Question::Add { sandbox, netns, pod } => Some(match add(source, pod, sandbox, netns).await? {
            Ok(result) => json!({"result": result}),
            Err(refusal) => {
                tracing::warn!(pod.uid = pod, sandbox = sandbox.as_str(), error = %refusal, "no primary network");
                json!({"error": {"code": TRY_AGAIN_LATER, "msg": refusal.to_string()}})
            }
        }),
    }
}

/// Detaches the pod from the sandbox; `None` when the next agent has to.
async fn del<S: Source>(source: &S, pod: &str, sandbox: &ContainerId) -> Option<()> {
    let Some(mut state) = source.watch(pod) else { return Some(()) };
    source.gone(pod, sandbox);
    let clear = state.wait_for(|state| state.is_clear_of(sandbox.as_str()));
    match tokio::time::timeout(DEL_TIMEOUT, clear).await {
        Ok(Ok(_)) => Some(()),
        // The task ends when nothing is left, or with this agent.
        Ok(Err(_)) => source.watch(pod).is_none().then_some(()),
        Err(_) => {
            tracing::info!(
                pod.uid = pod,
                sandbox = sandbox.as_str(),
                "detaching goes on after the sandbox's end"
            );
            Some(())
        }
    }
}

/// Has the pod's primary network made in the sandbox; `None` when the next agent has to.
async fn add<S: Source>(
    source: &S,
    pod: &str,
    sandbox: &ContainerId,
    netns: &Path,
) -> Option<Result<Box<RawValue>, Refusal>> {
    let state = source.watch(pod);
    let known = state.as_ref().map_or(Err(Refusal::NoPrimary), |state| primary(&state.borrow()).map(drop));
    let Some(mut state) = state.filter(|_| known.is_ok()) else {
        if known == Err(Refusal::NoPrimary) {
            source.refused(pod);
        }
        return known.err().map(Err);
    };
    if let Err(reason) = source.asks(pod, sandbox, netns) {
        return Some(Err(Refusal::Sandbox(reason)));
    }
    // Until the pod's task knows this sandbox, an error may be that of an earlier one.
    let is_over = |state: &PodState| primary(state).is_err();
    let is_known =
        |state: &PodState| state.sandbox.as_ref().is_some_and(|known| known.id == sandbox.as_str());
    let is_made = |state: &PodState| primary(state).is_ok_and(|record| result_in(record, sandbox).is_some());
    let failed = |state: &PodState| primary(state).is_ok_and(|record| record.error.is_some());
    let settled = async {
        state.wait_for(|state| is_known(state) || is_over(state)).await.ok()?;
        state.wait_for(|state| is_made(state) || failed(state) || is_over(state)).await.ok()?;
        let again = state.wait_for(|state| is_made(state) || is_over(state));
        // The task's end is this agent's.
        tokio::time::timeout(RETRY_FOR, again).await.map_or(Some(()), |ended| ended.ok().map(drop))
    };
    settled.await?;
    let state = state.borrow();
    Some(primary(&state).and_then(|record| made(record, sandbox, source.cluster())))
}

/// Returns the pod's primary network.
fn primary(state: &PodState) -> Result<&Record, Refusal> {
    if let Some(reason) = &state.damaged {
        return Err(Refusal::Damaged(reason.clone()));
    }
    if state.closing {
        return Err(Refusal::Closing);
    }
    state.records.iter().find(|record| record.plan.is_primary()).ok_or(Refusal::NoPrimary)
}

/// Returns the result of an attachment in this sandbox.
fn result_in<'a>(record: &'a Record, sandbox: &ContainerId) -> Option<&'a netclaim_cni::CniResult> {
    match &record.phase {
        Phase::Attached { sandbox: of, result } if of.id == sandbox.as_str() => Some(result),
        _ => None,
    }
}

/// Returns the result for the runtime. A pod without an address does not run, and one with an address of the
/// cluster's own pods takes the traffic of another.
fn made(record: &Record, sandbox: &ContainerId, cluster: &[IpNet]) -> Result<Box<RawValue>, Refusal> {
    let network = record.plan.network.clone();
    let failed = |error: String| Refusal::Failed { network: network.clone(), error };
    let (Phase::Attached { sandbox: of, .. }, Some(result)) = (&record.phase, result_in(record, sandbox))
    else {
        return Err(failed(record.error.clone().unwrap_or_else(|| "not attached yet".to_owned())));
    };
    let ips = Interface::made(&record.plan.spec, of, result).ips;
    if ips.is_empty() {
        return Err(Refusal::NoAddress { network });
    }
    if let Some((ip, prefix)) = clusters_own(ips.iter().map(IpNet::addr), cluster) {
        return Err(Refusal::ClustersOwn { network, ip, prefix });
    }
    let result = result.to_version(SpecVersion::CURRENT).map_err(|error| failed(error_chain(&error)))?;
    Ok(result.to_raw())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use netclaim_process::sockets::listen;
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::fixtures::{record, result, sandbox};

    /// A fake with one pod, whose state the test sends.
    struct Pod {
        state: watch::Receiver<PodState>,
        asked: Mutex<Vec<String>>,
        cluster: Vec<IpNet>,
    }

    impl Pod {
        fn with(state: PodState) -> (watch::Sender<PodState>, Self) {
            let (sender, state) = watch::channel(state);
            (sender, Self { state, asked: Mutex::default(), cluster: Vec::new() })
        }

        fn noted(&self) -> Vec<String> {
            self.asked.lock().unwrap().clone()
        }
    }

    impl Source for Pod {
        fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>> {
            (pod_uid == "p").then(|| self.state.clone())
        }

        fn asks(&self, _: &str, sandbox: &ContainerId, netns: &Path) -> Result<(), String> {
            self.asked.lock().unwrap().push(format!("up {sandbox}"));
            if netns == Path::new("/gone") { Err("it is gone".to_owned()) } else { Ok(()) }
        }

        fn refused(&self, pod_uid: &str) {
            self.asked.lock().unwrap().push(format!("refused {pod_uid}"));
        }

        fn gone(&self, _: &str, sandbox: &ContainerId) {
            self.asked.lock().unwrap().push(format!("gone {sandbox}"));
        }

        fn cluster(&self) -> &[IpNet] {
            &self.cluster
        }
    }

    fn of(phase: Phase, error: Option<&str>) -> PodState {
        let mut record = record("c", phase);
        Arc::make_mut(&mut record.plan).spec.if_name = "eth0".parse().expect("a name");
        record.error = error.map(str::to_owned);
        PodState { sandbox: Some(sandbox("s1")), records: vec![record], ..PodState::default() }
    }

    fn attached(id: &str, ips: Value) -> PodState {
        let interfaces = json!([{"name": "eth0", "sandbox": "/n"}]);
        let made = json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips});
        of(Phase::Attached { sandbox: sandbox(id), result: result(&made) }, None)
    }

    fn one_ip() -> Value {
        json!([{"address": "10.20.0.5/24", "interface": 0}])
    }

    fn question(command: &str, pod: &str, netns: &str) -> Question {
        let json = json!({"command": command, "sandbox": "s1", "netns": netns, "pod": pod});
        serde_json::from_value(json).expect("a question")
    }

    async fn error(question: Question, pod: &Pod) -> String {
        let answer = outcome(&question, pod).await.expect("an answer");
        answer["error"]["msg"].as_str().expect("an error").to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn an_add_is_answered_with_the_result_of_its_own_sandbox() {
        let (sender, pod) = Pod::with(of(Phase::Planned, None));
        let question = question("ADD", "p", "/n");
        let waiting = outcome(&question, &pod);
        tokio::pin!(waiting);
        let moment = Duration::from_secs(30);
        assert!(tokio::time::timeout(moment, &mut waiting).await.is_err());
        sender.send_replace(attached("s0", one_ip()));
        assert!(tokio::time::timeout(moment, &mut waiting).await.is_err(), "an earlier sandbox of the pod");
        sender.send_replace(attached("s1", one_ip()));
        let answer = waiting.await.expect("an answer");
        assert_eq!(answer["result"]["ips"], one_ip());
        assert_eq!(answer["result"]["cniVersion"], "1.1.0", "as the runtime's configuration says");
        assert_eq!(pod.noted(), ["up s1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_answered_unless_the_next_try_succeeds_soon() {
        let failing = || of(Phase::Planned, Some("no address is free"));
        let (_sender, pod) = Pod::with(failing());
        assert_eq!(error(question("ADD", "p", "/n"), &pod).await, "ClaimNetwork storage: no address is free");
        let (sender, pod) = Pod::with(failing());
        let question = question("ADD", "p", "/n");
        let waiting = outcome(&question, &pod);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(RETRY_FOR / 2, &mut waiting).await.is_err());
        sender.send_replace(attached("s1", one_ip()));
        assert!(waiting.await.expect("an answer")["result"].is_object());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_in_an_earlier_sandbox_says_nothing() {
        let earlier =
            PodState { sandbox: Some(sandbox("s0")), ..of(Phase::Planned, Some("the switch says no")) };
        let (sender, pod) = Pod::with(earlier);
        let question = question("ADD", "p", "/n");
        let waiting = outcome(&question, &pod);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(RETRY_FOR * 2, &mut waiting).await.is_err(), "the pod's task is slow");
        sender.send_replace(of(Phase::Planned, None));
        assert!(tokio::time::timeout(RETRY_FOR * 2, &mut waiting).await.is_err(), "the ADD is slow");
        sender.send_replace(attached("s1", one_ip()));
        assert!(waiting.await.expect("an answer")["result"].is_object());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_without_a_primary_network_gets_no_sandbox() {
        let (_sender, pod) =
            Pod::with(PodState { records: vec![record("c", Phase::Planned)], ..PodState::default() });
        let none = error(question("ADD", "p", "/n"), &pod).await;
        assert!(none.contains("no ResourceClaim with primary: true is prepared"), "{none}");
        assert_eq!(error(question("ADD", "q", "/n"), &pod).await, none, "a pod without claims");
        let (_sender, pod) = Pod::with(PodState { closing: true, ..of(Phase::Planned, None) });
        assert_eq!(
            error(question("ADD", "p", "/n"), &pod).await,
            "the pod\'s ResourceClaims are being released: the pod is ending"
        );
        assert_eq!(pod.noted(), [""; 0]);
        let (_sender, pod) = Pod::with(of(Phase::Planned, None));
        assert_eq!(
            error(question("ADD", "p", "/gone"), &pod).await,
            "cannot attach to the sandbox, and the kubelet makes another one: it is gone"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_the_pod_cannot_have_is_refused() {
        let (_sender, pod) = Pod::with(attached("s1", json!([])));
        let bare = error(question("ADD", "p", "/n"), &pod).await;
        assert!(bare.starts_with("ClaimNetwork storage: the plugins have given eth0 no address"), "{bare}");
        let (_sender, pod) = Pod::with(attached("s1", one_ip()));
        let pod = Pod { cluster: vec!["10.0.0.0/8".parse().expect("a prefix")], ..pod };
        let clash = error(question("ADD", "p", "/n"), &pod).await;
        assert!(clash.starts_with("ClaimNetwork storage: 10.20.0.5 is in 10.0.0.0/8"), "{clash}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_ends_leaves_the_answer_to_the_next_one() {
        let (sender, pod) = Pod::with(of(Phase::Planned, None));
        drop(sender);
        assert_eq!(outcome(&question("ADD", "p", "/n"), &pod).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_del_waits_until_nothing_is_owed_but_not_for_ever() {
        let (sender, pod) = Pod::with(attached("s1", one_ip()));
        let question = question("DEL", "p", "/n");
        let waiting = outcome(&question, &pod);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(DEL_TIMEOUT / 2, &mut waiting).await.is_err());
        sender.send_replace(of(Phase::Planned, None));
        assert_eq!(waiting.await, Some(json!({"result": null})));
        assert_eq!(pod.noted(), ["gone s1"]);
        let (_sender, pod) = Pod::with(attached("s1", one_ip()));
        assert_eq!(
            outcome(&question, &pod).await,
            Some(json!({"result": null})),
            "the journal owes the rest"
        );
        let unknown = Question::Del { sandbox: "s1".parse().expect("an id"), pod: "q".to_owned() };
        assert_eq!(outcome(&unknown, &pod).await, Some(json!({"result": null})));
    }

    #[tokio::test]
    async fn a_question_over_the_socket_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/primary.sock");
        let (_sender, pod) = Pod::with(attached("s1", one_ip()));
        let server = tokio::spawn(serve(listen(&path).unwrap(), Arc::new(pod)));
        let mut plugin = UnixStream::connect(&path).await.unwrap();
        let line = json!({"command": "ADD", "sandbox": "s1", "netns": "/n", "pod": "p"});
        plugin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        plugin.read_to_string(&mut answer).await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["result"]["ips"], one_ip());
        server.abort();
    }
}
