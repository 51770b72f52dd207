//! Attachments by CNI plugins: the real [`Network`].

use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use netclaim_api::IfName;
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::record::{Plan, Sandbox};
use super::turns::Turns;
use super::{Checked, Failure, Network, Undone};
use crate::links::{GivenBack, HostLink, Links, Netns, Which};
use netclaim_cni::error_chain;
use netclaim_cni::{
    self as cni, AddOutcome, Attachment, Cache, Cached, CniResult, ErrorKind, FileLock, NetworkList, Runtime,
    TraceContext, ValidAttachment,
};

/// Runs the chain of each plan's conflist.
///
/// What is attached is noted in a [`Cache`] for tools and people. What is owed is in the journal: that the cache cannot
/// be written or locked is logged, and stops nothing.
#[derive(Debug)]
pub struct CniNetwork {
    pub(super) runtime: Runtime,
    pub(super) cache: Cache,
    links: Links,
    pub(super) timeout: Duration,
    pub(super) turns: Turns,
}

/// How often a DEL without a namespace is tried when a plugin fails: some always do.
const TRIES: u32 = 3;
/// How often, when it could not be run or did not end: what is missing may be installed yet. And how often a link is
/// tried to be given back: the kernel takes a namespace apart in its own time.
const TRIES_TO_RUN: u32 = 8;

impl CniNetwork {
    /// Runs plugins by `runtime`, notes attachments in `cache`, and gives a chain `timeout` for one operation. `links`
    /// are those of the host.
    pub fn new(runtime: Runtime, cache: Cache, links: Links, timeout: Duration) -> Self {
        Self { runtime, cache, links, timeout, turns: Turns::new() }
    }

    /// The plan as it will be carried out: in the one CNI version that every plugin supports, of those that its
    /// configuration offers. A plugin is asked for its versions once.
    ///
    /// # Errors
    /// What of the configuration is wrong, or which plugin is not installed or does not speak its version.
    pub async fn settle(&self, plan: Plan) -> Result<Plan, Failure> {
        let list = list(&plan)?;
        let failed = |error: cni::Error| Failure::new(error_chain(&error));
        self.runtime.find_all(&list).map_err(failed)?;
        let settled = self.runtime.settle(&list).await.map_err(failed)?;
        let conflist =
            serde_json::from_str(settled.raw()).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Plan { conflist, ..plan })
    }

    /// Keeps other programs away from the container and from GC of the network.
    pub(super) async fn lock(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
    ) -> Result<Option<FileLock>, Failure> {
        let until = Instant::now() + self.timeout;
        match self.cache.lock(&attachment.container_id, list.name(), until).await {
            Ok(Some(lock)) => Ok(Some(lock)),
            Ok(None) => Err(Failure::new(format!(
                "another program has worked on network `{}` or container `{}` for {} s: is there a `netclaimctl cni` that hangs?",
                list.name(),
                attachment.container_id,
                self.timeout.as_secs()
            ))),
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "not locked against other programs");
                Ok(None)
            }
        }
    }

    async fn note(&self, list: NetworkList, attachment: Attachment, outcome: AddOutcome) {
        let cache = self.cache.clone();
        let noted = off_thread(move || cache.store(&Cached { list, attachment, outcome })).await;
        if let Some(Err(error)) = noted {
            tracing::warn!(error = error_chain(&error), "tools will not see an attachment");
        }
    }

    pub(super) async fn forget(&self, list: &NetworkList, attachment: &Attachment) {
        let (cache, network) = (self.cache.clone(), list.name().clone());
        let ValidAttachment { container_id, if_name } = attachment.key();
        let forgotten = off_thread(move || cache.remove(&network, &container_id, &if_name)).await;
        if let Some(Err(error)) = forgotten {
            tracing::warn!(error = error_chain(&error), "tools will see an attachment that is gone");
        }
    }

    /// DEL in a namespace that is there. What the pod has made of a link that was lent is undone before: the plugin
    /// trusts names, which are the pod's to choose.
    ///
    /// Some plugins [fail](ONCE_ONLY) when their interface is not in the pod: again after a DEL that succeeded and was
    /// not noted, and after an ADD that did not come so far. Their IPAM plugin has been called by then. With the link that
    /// was lent on the host or removed from the machine, or none that was to be moved, nothing is left to do.
    async fn del_in(
        &self,
        netns: &Path,
        plan: &Plan,
        list: &NetworkList,
        attachment: &Attachment,
        result: Option<&CniResult>,
        lent: Option<&HostLink>,
    ) -> Result<(), Failure> {
        let by_once_only =
            |error: &cni::Error| ONCE_ONLY.contains(&error.plugin().as_str()) && error.reported().is_some();
        let failed = |error: &cni::Error| Failure::new(error_chain(error));
        if let Some(lent) = lent {
            let ready = async { self.links.ready(&Netns::open(netns)?, lent, plan.if_name.as_str()).await };
            ready.await.map_err(|error| Failure::new(error_chain(&error)))?;
        }
        let Err(error) = self.runtime.del(list, attachment, result, self.timeout).await else {
            return Ok(());
        };
        if !by_once_only(&error) || !self.is_out(netns, plan, lent).await.unwrap_or(false) {
            return Err(failed(&error));
        }
        let errors = self.runtime.release(list, attachment, result, self.timeout).await;
        match errors.iter().find(|error| !by_once_only(error)) {
            Some(error) => Err(failed(error)),
            None => Ok(()),
        }
    }

    /// Whether the pod has not got the interface of the plan, and the host has the link that was lent for it, or nobody:
    /// a pod can remove a virtual one.
    async fn is_out(
        &self,
        netns: &Path,
        plan: &Plan,
        lent: Option<&HostLink>,
    ) -> Result<bool, crate::links::Error> {
        let if_name = plan.if_name.as_str();
        if Netns::open(netns)?.link_names().await?.contains(if_name) {
            return Ok(false);
        }
        match lent {
            Some(lent) => Ok(!lent.outlives_namespaces()
                || self.links.is_removed(lent).await?
                || self.links.has(lent, if_name, false).await?),
            None => Ok(true),
        }
    }

    /// Makes a link what it was, if it can be found.
    async fn give_back_to(&self, plan: &Plan, lent: &HostLink, gone: bool) -> Result<Undone, Failure> {
        if self.links.is_removed(lent).await.unwrap_or(false) {
            return Ok(Undone::GivenUp(format!(
                "link {} is gone: its device was removed from the node while a pod had it",
                lent.name
            )));
        }
        match self.links.give_back(lent, plan.if_name.as_str(), gone).await {
            Ok(GivenBack::AsItWas) => Ok(Undone::All),
            Ok(GivenBack::Missing) if !lent.outlives_namespaces() => Ok(Undone::GivenUp(format!(
                "link {} is gone: a virtual one ends with the pod's network namespace, or the pod removed it",
                lent.name
            ))),
            Ok(GivenBack::Missing) => Err(Failure::new(format!(
                "link {} that the pod had is not back on the node: was the device removed?",
                lent.name
            ))),
            Err(error) => Err(Failure::new(error_chain(&error))),
        }
    }

    pub(super) fn attachment(
        plan: &Plan,
        sandbox_id: &str,
        netns: Option<&Path>,
    ) -> Result<Attachment, Failure> {
        let name = |error: &dyn std::error::Error| Failure::new(error_chain(error));
        let container_id = sandbox_id.to_owned().try_into().map_err(|e| name(&e))?;
        let if_name = plan.if_name.to_string().try_into().map_err(|e| name(&e))?;
        let mut attachment = Attachment::new(container_id, netns.map(Path::to_owned), if_name);
        attachment.args = plan.args.clone().into_iter().collect();
        attachment.args.push((OF_A_POD.to_owned(), sandbox_id.to_owned()));
        attachment.capability_args = plan.capability_args.clone().into();
        attachment.trace = Some(TraceContext::of_attachment(&attachment.container_id, &attachment.if_name));
        Ok(attachment)
    }
}

/// The argument that names a pod's sandbox, as other Kubernetes runtimes give it.
pub(super) const OF_A_POD: &str = "K8S_POD_INFRA_CONTAINER_ID";
/// The plugin that moves a link of the host into the pod. `sriov` and others keep what they need themselves.
const LENDER: &str = "host-device";
/// Plugins whose DEL fails where their interface is not, against the specification (section 2, "DEL"): `host-device`
/// (release 1.9.1), and `bond` of k8snetworkplumbingwg.
const ONCE_ONLY: [&str; 2] = [LENDER, "bond"];

/// The link that the plan moves into the pod, as the plugin reads its configuration (release 1.9.1): the first key
/// that is there counts.
fn lent_by(plan: &Plan) -> Option<Which> {
    let plugins = plan.conflist.get("plugins")?.as_array()?;
    let plugin = plugins.iter().find(|plugin| plugin["type"] == LENDER)?;
    let key = |name: &str| plugin[name].as_str().filter(|value| !value.is_empty()).map(str::to_owned);
    key("device")
        .map(Which::Name)
        .or_else(|| key("hwaddr").map(Which::Mac))
        .or_else(|| key("kernelpath").map(|path| Which::KernelPath(path.into())))
        .or_else(|| key("pciBusID").map(Which::PciBusId))
}

/// What an attachment looks like from inside the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// Hardware address of the interface.
    pub mac: Option<String>,
    /// Its addresses.
    pub ips: Vec<IpNet>,
}

/// Reads from a stored CNI result what became of the plan; empty where the plugins did not say.
pub fn made(plan: &Plan, sandbox: &Sandbox, result: &Value) -> Made {
    let read = || {
        let attachment = CniNetwork::attachment(plan, &sandbox.id, Some(&sandbox.netns)).ok()?;
        let result = stored(&list(plan).ok()?, result)?;
        let mac = result.interface_of(&attachment).and_then(|interface| interface.mac.clone());
        Some(Made { mac, ips: result.ips_of(&attachment).map(|ip| ip.address).collect() })
    };
    read().unwrap_or_default()
}

/// Files may be on a disk that hangs: not on the async threads. `None` when the agent ends meanwhile.
pub(super) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

pub(super) fn list(plan: &Plan) -> Result<NetworkList, Failure> {
    let text = Value::Object(plan.conflist.clone()).to_string();
    NetworkList::parse(text.as_bytes()).map_err(|error| Failure::new(error_chain(&error)))
}

pub(super) fn stored(list: &NetworkList, result: &Value) -> Option<CniResult> {
    CniResult::parse(&result.to_string(), list.version()).ok()
}

fn storable(result: &CniResult) -> Result<Value, Failure> {
    serde_json::from_str(result.raw()).map_err(|error| Failure::new(error.to_string()))
}

/// Fields for whatever is logged on the way, a plugin's standard error above all.
fn span(plan: &Plan, sandbox_id: &str, attachment: &Attachment) -> tracing::Span {
    tracing::info_span!(
        "attachment",
        pod = %plan.pod,
        claim = %plan.claim,
        sandbox = sandbox_id,
        trace_id = attachment.trace.as_ref().map(TraceContext::trace_id),
    )
}

impl Network for CniNetwork {
    async fn check(&self, plan: &Plan, sandbox: &Sandbox, result: &Value) -> Checked {
        self.check_plan(plan, sandbox, result).await
    }

    async fn collect(
        &self,
        plan: &Plan,
        valid: impl Fn() -> Vec<(String, IfName)> + Send,
    ) -> Result<usize, Failure> {
        self.collect_plan(plan, valid).await
    }

    async fn lends(&self, plan: &Plan) -> Result<Option<HostLink>, Failure> {
        let Some(which) = lent_by(plan) else { return Ok(None) };
        self.links.note(which).await.map_err(|error| Failure::new(error_chain(&error)))
    }

    async fn index_in_pod(&self, plan: &Plan, sandbox: &Sandbox) -> Option<u32> {
        let links = async { Netns::open(&sandbox.netns)?.links().await };
        let links = links.await.ok()?;
        links.iter().find(|link| link.name == plan.if_name.as_str()).map(|link| link.index)
    }

    async fn give_back(&self, plan: &Plan, lent: &HostLink) -> Result<Undone, Failure> {
        self.give_back_to(plan, lent, false).await
    }

    async fn add(&self, plan: &Plan, sandbox: &Sandbox) -> Result<Value, Failure> {
        let list = list(plan)?;
        let attachment = Self::attachment(plan, &sandbox.id, Some(&sandbox.netns))?;
        let span = span(plan, &sandbox.id, &attachment);
        let add = async {
            let _lock = self.lock(&list, &attachment).await?;
            let add = self.runtime.add(&list, &attachment, self.timeout);
            match self.turns.take(list.name().as_str(), add).await {
                Ok(result) => {
                    let stored = storable(&result);
                    self.note(list, attachment, AddOutcome::Attached(result)).await;
                    stored
                }
                Err(error) => {
                    // How far the chain came is in `last_good`; the user needs the plugin's own error.
                    let message = error_chain(&error.error);
                    let last_good = error.last_good.as_deref().and_then(|result| storable(result).ok());
                    if error.needs_del() {
                        let unfinished = AddOutcome::Unfinished(error.last_good.map(|result| *result));
                        self.note(list, attachment, unfinished).await;
                    }
                    Err(Failure { last_good, ..Failure::new(message) })
                }
            }
        };
        add.instrument(span).await
    }

    async fn del(
        &self,
        plan: &Plan,
        sandbox_id: &str,
        netns: Option<&Path>,
        result: Option<&Value>,
        lent: Option<&HostLink>,
        tries: u32,
    ) -> Result<Undone, Failure> {
        let list = list(plan)?;
        let attachment = Self::attachment(plan, sandbox_id, netns)?;
        let span = span(plan, sandbox_id, &attachment);
        let result = result.and_then(|result| stored(&list, result));
        let undo = async {
            let Some(netns) = netns else {
                // The kernel has taken the links with the namespace; what is left is on the host, above all addresses,
                // and some plugins do not get that far without a namespace.
                let errors = self.runtime.release(&list, &attachment, result.as_ref(), self.timeout).await;
                let not_run = |error: &cni::Error| {
                    matches!(
                        error.kind(),
                        ErrorKind::NotFound { .. } | ErrorKind::Spawn { .. } | ErrorKind::Timeout { .. }
                    )
                };
                let limit = if errors.iter().any(not_run) { TRIES_TO_RUN } else { TRIES };
                return match errors.first() {
                    Some(error) if tries + 1 < limit => Err(Failure::new(error_chain(error))),
                    Some(error) => Ok(Undone::GivenUp(error_chain(error))),
                    None => Ok(Undone::All),
                };
            };
            self.del_in(netns, plan, &list, &attachment, result.as_ref(), lent).await.map(|()| Undone::All)
        };
        let del = async {
            let _lock = self.lock(&list, &attachment).await?;
            let mut undone = self.turns.take(list.name().as_str(), undo).await?;
            if let Some(lent) = lent {
                match self.give_back_to(plan, lent, netns.is_none()).await {
                    Ok(Undone::All) => {}
                    Ok(lost) => undone = lost,
                    // The link needs neither the plugins nor the namespace any more.
                    Err(failure) if tries + 1 >= TRIES_TO_RUN => undone = Undone::Stray(failure.message),
                    Err(failure) => return Err(failure),
                }
            }
            self.forget(&list, &attachment).await;
            Ok(undone)
        };
        del.instrument(span).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::record::tests::plan;
    use super::*;

    fn lends(plugins: Value) -> Option<Which> {
        let mut plan = plan("c", 0);
        plan.conflist.insert("plugins".into(), plugins);
        lent_by(&plan)
    }

    #[test]
    fn a_host_device_lends_the_link_that_its_first_key_names() {
        let conf = |keys: Value| {
            let mut conf = json!({"type": "host-device"});
            conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            json!([{"type": "tuning"}, conf])
        };
        let both = conf(json!({"pciBusID": "0000:3b:00.0", "hwaddr": "02:00:00:00:00:01", "device": ""}));
        assert_eq!(lends(both), Some(Which::Mac("02:00:00:00:00:01".into())));
        assert_eq!(lends(conf(json!({"device": "eth2"}))), Some(Which::Name("eth2".into())));
        let path = "/sys/devices/pci0000:00/0000:00:19.0";
        assert_eq!(lends(conf(json!({"kernelpath": path}))), Some(Which::KernelPath(path.into())));
        assert_eq!(lends(conf(json!({}))), None);
        assert_eq!(lends(json!([{"type": "macvlan", "device": "eth2", "master": "eth2"}])), None);
    }
}
