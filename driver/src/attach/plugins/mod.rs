//! Attachments by CNI plugins: the real [`Attach`].

mod as_made;
pub(super) mod asked;
mod check_and_gc;
mod on_the_wire;
mod status;
mod turns;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use netclaim_cni::{
    self as cni, AddOutcome, Attachment, Cache, Cached, CniResult, ContainerId, ErrorKind, FileLock, IfName,
    ListName, NetworkList, OfAdd, PluginConf, Retry, Runtime, TraceContext, ValidAttachment, error_chain,
};
use serde_json::value::RawValue;
use tokio::time::Instant;

pub use self::status::Status;
use self::turns::Turns;
use super::plan::Spec;
use super::record::Sandbox;
use super::retry::{Attempt, DelFault};
use super::{AddFailure, Attach, Cause, Checked, Del, DelOutcome, Failure};
use crate::links::{GivenBack, HostLink, Links, Netns, Which};

/// Runs the chain of each conflist.
///
/// What is attached is noted in a [`Cache`] for tools and people. What is owed is in the journal: that the
/// cache cannot be written or locked is logged, and stops nothing.
#[derive(Debug)]
pub struct CniPlugins {
    runtime: Runtime,
    cache: Cache,
    links: Links,
    timeout: Duration,
    turns: Turns,
    stale: Mutex<StaleLeases>,
    held: Mutex<Withheld>,
    place: Place,
}

/// In whose network namespace attachments are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Pod,
    Host,
}

/// The variable without which plugins refuse the host's namespace, after they have done their work there
/// (`pkg/skel` of the reference implementation).
const HOST_NAMESPACE: (&str, &str) = ("CNI_NETNS_OVERRIDE", "1");

/// Networks whose ADDs do not begin, and why.
type Withheld = BTreeMap<ListName, String>;

/// How often the DEL of leases of unknown sandboxes has failed.
type StaleLeases = HashMap<(ListName, ValidAttachment), Attempt>;

impl CniPlugins {
    /// Runs plugins by `runtime`, notes attachments in `cache`, and gives a chain `timeout` for one
    /// operation. `links` are those of the host.
    pub fn new(runtime: Runtime, cache: Cache, links: Links, timeout: Duration) -> Self {
        let (turns, stale, held) = (Turns::new(), Mutex::default(), Mutex::default());
        Self { runtime, cache, links, timeout, turns, stale, held, place: Place::Pod }
    }

    /// Makes attachments in the host's own network namespace. Its path is of this process, so that plugins
    /// are called as programs.
    #[must_use]
    pub fn on_host(self) -> Self {
        let (name, value) = HOST_NAMESPACE;
        let runtime = self.runtime.by_programs().with_env(name, value);
        Self { runtime, place: Place::Host, ..self }
    }

    /// The configuration as it will be carried out: in the one CNI version that every plugin supports, of
    /// those that it offers. A plugin is asked for its versions once.
    ///
    /// # Errors
    /// Which plugin is not installed or does not speak its version.
    pub async fn settle(&self, list: &NetworkList) -> Result<NetworkList, Failure> {
        self.runtime.find_all(list).map_err(|error| Failure::of_plugin(&error))?;
        self.runtime.settle(list).await.map_err(|error| Failure::of_plugin(&error))
    }

    /// Has no ADD begin in these networks, whose plugins have said why they cannot serve, and lets it begin
    /// in all others. Returns whether one may begin that could not before.
    pub fn hold(&self, held: Withheld) -> bool {
        let mut before = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *before, held.clone());
        before.into_keys().any(|name| !held.contains_key(&name))
    }

    /// Keeps other programs away from the container and from GC of the network.
    async fn lock(&self, list: &NetworkList, attachment: &Attachment) -> Result<Option<FileLock>, Failure> {
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

    async fn forget(&self, list: &NetworkList, attachment: &Attachment) {
        let (cache, network) = (self.cache.clone(), list.name().clone());
        let ValidAttachment { container_id, if_name } = attachment.key();
        let forgotten = off_thread(move || cache.remove(&network, &container_id, &if_name)).await;
        if let Some(Err(error)) = forgotten {
            tracing::warn!(error = error_chain(&error), "tools will see an attachment that is gone");
        }
    }

    /// Says what an ADD has made otherwise than it was asked.
    async fn other_than_asked(
        spec: &Spec,
        sandbox: &Sandbox,
        attachment: &Attachment,
        result: &CniResult,
    ) -> Option<Failure> {
        let mac = async {
            let links = Netns::open(&sandbox.netns).ok()?.links().await.ok()?;
            links.into_iter().find(|link| link.name == spec.if_name.as_str())?.mac
        };
        let mac = if spec.capability_args.mac.is_some() { mac.await } else { None };
        let differences = asked::differences(spec, attachment, result, mac.as_deref());
        (!differences.is_empty()).then(|| {
            Failure::new(format!(
                "the plugins of network {} have made {}: ask for what they can make, or use plugins that do as they are asked",
                spec.conflist.name(),
                differences.join(", ")
            ))
        })
    }

    /// DEL in an existing namespace, which the agent may let go after the failure that makes the DEL
    /// hopeless. A moved link that would end with the namespace is out of it by then.
    async fn del_in(
        &self,
        netns: &Path,
        spec: &Spec,
        attachment: &Attachment,
        del: Del<'_>,
    ) -> Result<(), Failure> {
        let result = self.try_del_in(netns, spec, attachment, del).await;
        if let (Err(_), Some(link)) = (&result, del.moved_link)
            && del.attempt.next().is_hopeless()
            && !link.outlives_namespaces()
        {
            let moved =
                async { self.links.move_out(&Netns::open(netns)?, link, spec.if_name.as_str()).await };
            if let Err(error) = moved.await {
                tracing::error!(link = link.name, error = error_chain(&error), "the link stays in the pod");
            }
        }
        result
    }

    /// Before the DEL, what the pod has changed of a moved link is reverted: the plugin finds the
    /// link by a name, which the pod can change.
    ///
    /// Some plugins [fail](ONCE_ONLY) when their interface is not in the pod: again after a DEL that
    /// succeeded and was not noted, and after an ADD that did not come so far. Their IPAM plugin has been
    /// called by then. With the link that was lent on the host or removed from the machine, or none that was
    /// to be moved, nothing is left to do.
    async fn try_del_in(
        &self,
        netns: &Path,
        spec: &Spec,
        attachment: &Attachment,
        del: Del<'_>,
    ) -> Result<(), Failure> {
        let moved_link = del.moved_link;
        let by_once_only =
            |error: &cni::Error| ONCE_ONLY.contains(&error.plugin().as_str()) && error.reported().is_some();
        let list = &spec.conflist;
        if let Some(link) = moved_link {
            let ready = async { self.links.ready(&Netns::open(netns)?, link, spec.if_name.as_str()).await };
            ready.await.map_err(|error| Failure::of(&error))?;
        }
        let Err(error) = self.runtime.del(list, attachment, del.of_add(), self.timeout).await else {
            return Ok(());
        };
        if !by_once_only(&error) || !self.is_out(netns, spec, moved_link).await.unwrap_or(false) {
            return Err(Failure::of(&error));
        }
        let errors = self.runtime.release(list, attachment, del.of_add(), self.timeout, by_once_only).await;
        match errors.iter().find(|error| !by_once_only(error)) {
            Some(error) => Err(Failure::of(error)),
            None => Ok(()),
        }
    }

    /// DEL without a namespace. The kernel has taken the links with it; what is left is on the host, above
    /// all addresses, and some plugins do not get that far without a namespace.
    ///
    /// A plugin that fails keeps the address taken, because the next pod would get it beside what the plugin
    /// has left, until the plugin is given up. After a reboot only files are left.
    async fn del_outside(
        &self,
        spec: &Spec,
        attachment: &Attachment,
        del: Del<'_>,
    ) -> Result<DelOutcome, Failure> {
        let is_given_up = |error: &cni::Error| del.attempt.is_last(fault(error));
        let goes_on = |error: &cni::Error| del.after_reboot || is_given_up(error);
        let release = self.runtime.release(&spec.conflist, attachment, del.of_add(), self.timeout, goes_on);
        let errors = release.await;
        match (errors.iter().find(|error| !is_given_up(error)), errors.first()) {
            (Some(error), _) => Err(Failure::of(error)),
            (None, Some(error)) => Ok(DelOutcome::GivenUp(error_chain(error))),
            (None, None) => Ok(DelOutcome::Clean),
        }
    }

    /// Runs ADD, with `prev` as the result before the first plugin.
    async fn run_add(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        prev: Option<&CniResult>,
    ) -> Result<CniResult, AddFailure> {
        let attachment = Self::attachment(spec, &sandbox.id, Some(&sandbox.netns));
        let attachment = attachment.map_err(AddFailure::not_begun)?;
        let list = &spec.conflist;
        let _lock = self.lock(list, &attachment).await.map_err(AddFailure::not_begun)?;
        let add = async {
            match prev {
                Some(prev) => self.runtime.add_after(list, &attachment, prev, self.timeout).await,
                None => self.runtime.add(list, &attachment, self.timeout).await,
            }
        };
        match self.turns.take(list.name().as_str(), &spec.tenant, add).await {
            Ok(result) => {
                self.note(list.clone(), attachment.clone(), AddOutcome::Attached(result.clone())).await;
                let other = match prev {
                    // It was asked of the attachments.
                    Some(_) => None,
                    None => Self::other_than_asked(spec, sandbox, &attachment, &result).await,
                };
                match other {
                    None => Ok(result),
                    Some(failure) => Err(AddFailure { last_good: Some(result), ..failure.into() }),
                }
            }
            Err(error) => {
                // How far the chain came is in `last_good`; the user needs the plugin's own error.
                let (failure, stopped) = (Failure::of_plugin(&error.error), error.stopped());
                let last_good = error.last_good.map(|result| *result);
                if stopped.needs_del() {
                    let outcome = AddOutcome::Failed(stopped, last_good.clone());
                    self.note(list.clone(), attachment, outcome).await;
                }
                Err(AddFailure { failure, last_good, stopped: Some(stopped) })
            }
        }
    }

    /// Checks that no link in the sandbox has the interface's name. With such a link ADD fails, and the DEL
    /// that is owed then would delete it by its name, although another program has made it.
    ///
    /// # Errors
    /// What to do, and when the namespace cannot be read.
    pub async fn is_name_free(&self, spec: &Spec, sandbox: &Sandbox) -> Result<(), Failure> {
        let names = async { Netns::open(&sandbox.netns)?.link_names().await };
        let names = names.await.map_err(|error| Failure::of(&error))?;
        if !names.contains(spec.if_name.as_str()) || spec.if_name.as_str() == LOOPBACK {
            return Ok(());
        }
        let name = &spec.if_name;
        Err(Failure::new(match self.place {
            Place::Pod => format!(
                "the pod has a link {name} already, which another program has made, for example Multus: ask for another interfaceName, or \
                 have the other program use another name"
            ),
            Place::Host => format!(
                "the node has a link {name} already, and it is not this network's: choose another name, or remove the link if it is \
                 not needed (ip link delete {name})"
            ),
        }))
    }

    /// Whether the pod has not got the interface, and the host has the link that was moved for it, or it is
    /// gone: a pod can remove a virtual one.
    async fn is_out(
        &self,
        netns: &Path,
        spec: &Spec,
        moved_link: Option<&HostLink>,
    ) -> Result<bool, crate::links::Error> {
        let if_name = spec.if_name.as_str();
        if Netns::open(netns)?.link_names().await?.contains(if_name) {
            return Ok(false);
        }
        match moved_link {
            Some(link) => Ok(!link.outlives_namespaces()
                || self.links.is_removed(link).await?
                || self.links.has(link, if_name, false).await?),
            None => Ok(true),
        }
    }

    /// Makes a link what it was, if it can be found.
    async fn give_back_to(&self, spec: &Spec, link: &HostLink, gone: bool) -> Result<DelOutcome, Failure> {
        let name = &link.name;
        if self.links.is_removed(link).await.unwrap_or(false) {
            return Ok(DelOutcome::GivenUp(format!(
                "link {name} is gone: its device was removed from the node while a pod had it"
            )));
        }
        match self.links.give_back(link, spec.if_name.as_str(), gone).await {
            Ok(GivenBack::AsItWas) => Ok(DelOutcome::Clean),
            Ok(GivenBack::Missing) if !link.outlives_namespaces() => Ok(DelOutcome::GivenUp(format!(
                "link {name} is gone: a virtual one ends with the pod's network namespace, or the pod removed it"
            ))),
            Ok(GivenBack::Missing) => Err(Failure::new(format!(
                "link {name} that the pod had is not back on the node: was the device removed?"
            ))),
            Err(error) => Err(Failure::of(&error)),
        }
    }

    fn attachment(spec: &Spec, sandbox_id: &str, netns: Option<&Path>) -> Result<Attachment, Failure> {
        let container_id: ContainerId = sandbox_id.parse().map_err(|error| Failure::of(&error))?;
        let trace = TraceContext::of_attachment(&container_id, &spec.if_name);
        tracing::Span::current().record("trace_id", tracing::field::display(trace.trace_id()));
        let mut attachment = Attachment::new(container_id, netns.map(Path::to_owned), spec.if_name.clone());
        attachment.args = spec.args.clone().into_iter().collect();
        attachment.args.push((OF_A_POD.to_owned(), sandbox_id.to_owned()));
        attachment.capability_args = spec.capability_args.clone();
        attachment.trace = Some(trace);
        Ok(attachment)
    }
}

impl<'a> Del<'a> {
    fn of_add(&self) -> OfAdd<'a> {
        OfAdd { result: self.result, stopped: self.stopped }
    }
}

/// Why a DEL without a namespace has failed.
fn fault(error: &cni::Error) -> DelFault {
    match error.kind() {
        _ if error.is_of_daemon() => DelFault::Daemon,
        ErrorKind::NotFound { .. } | ErrorKind::Spawn { .. } => DelFault::NotRun,
        _ if error.retry() == Retry::Later => DelFault::NotRun,
        _ => DelFault::Plugin,
    }
}

/// The argument that names a pod's sandbox, as other Kubernetes runtimes give it.
const OF_A_POD: &str = "K8S_POD_INFRA_CONTAINER_ID";
/// The link that every network namespace has, and that cannot be deleted.
const LOOPBACK: &str = "lo";
/// The plugin that moves a link of the host into the pod. `sriov` and others keep what they need themselves.
const LINK_MOVER: &str = "host-device";
/// Plugins whose DEL fails where their interface is not, against the specification (section 2, "DEL"):
/// `host-device` (release 1.9.1), and `bond` of k8snetworkplumbingwg.
const ONCE_ONLY: [&str; 2] = [LINK_MOVER, "bond"];

/// The link that the configuration moves into the pod, as the plugin reads it (release 1.9.1): the first key
/// that is there counts.
fn named_link(list: &NetworkList) -> Option<Which> {
    let plugin = list.plugins().find(|plugin| plugin.plugin_type().as_str() == LINK_MOVER)?;
    let key = |name: &str| text(plugin, name).filter(|value| !value.is_empty());
    key("device")
        .map(Which::Name)
        .or_else(|| key("hwaddr").map(Which::Mac))
        .or_else(|| key("kernelpath").map(|path| Which::KernelPath(path.into())))
        .or_else(|| key("pciBusID").map(Which::PciBusId))
}

/// The link of the host that the configuration makes an interface on: it goes with the link, or stays without
/// one.
fn host_link(list: &NetworkList) -> Option<IfName> {
    let named = |plugin: &PluginConf| {
        if plugin.get("linkInContainer").is_some_and(|value| value.get() == "true") {
            return None;
        }
        let named = match plugin.plugin_type().as_str() {
            "bridge" => Some(text(plugin, "bridge").unwrap_or_else(|| "cni0".to_owned())),
            _ => text(plugin, "master"),
        };
        named?.parse().ok()
    };
    list.plugins().find_map(named)
}

fn text(plugin: &PluginConf, key: &str) -> Option<String> {
    serde_json::from_str(plugin.get(key).map(RawValue::get)?).ok()
}

/// An attachment as it is seen inside the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Hardware address of the interface.
    pub mac: Option<String>,
    /// Its addresses.
    pub ips: Vec<IpNet>,
}

impl Interface {
    /// Reads from the result of an ADD what became of `spec`; empty where the plugins did not say.
    pub fn made(spec: &Spec, sandbox: &Sandbox, result: &CniResult) -> Self {
        let Ok(attachment) = CniPlugins::attachment(spec, &sandbox.id, Some(&sandbox.netns)) else {
            return Self::default();
        };
        let mac = result.interface_of(&attachment).and_then(|interface| interface.mac.clone());
        Self { mac, ips: result.ips_of(&attachment).map(|ip| ip.address).collect() }
    }
}

/// Files may be on a disk that hangs: not on the async threads. `None` when the agent ends meanwhile.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

impl Attach for CniPlugins {
    async fn check(&self, spec: &Spec, sandbox: &Sandbox, result: &CniResult) -> Checked {
        self.check_attachment(spec, sandbox, result).await
    }

    async fn is_as_made(&self, spec: &Spec, sandbox: &Sandbox, result: &CniResult) -> bool {
        as_made::is_as_made(spec, sandbox, result).await
    }

    async fn lacks_link(&self, sandbox: &Netns, name: &str) -> bool {
        sandbox.link_names().await.is_ok_and(|names| !names.contains(name))
    }

    async fn networks_on_disk(&self) -> BTreeMap<ListName, Spec> {
        self.networks_on_disk().await
    }

    async fn collect(
        &self,
        spec: &Spec,
        valid: impl Fn() -> Vec<(ContainerId, IfName)> + Send,
    ) -> Result<usize, Failure> {
        self.collect_network(spec, valid).await
    }

    /// The plugins must be there, support the version, and not have said that they cannot serve. Otherwise
    /// the DEL that is owed would fail, too.
    async fn can_begin(&self, spec: &Spec, sandbox: &Sandbox) -> Result<(), Failure> {
        self.settle(&spec.conflist).await?;
        self.may_begin(spec)?;
        self.is_name_free(spec, sandbox).await
    }

    fn may_begin(&self, spec: &Spec) -> Result<(), Failure> {
        let (held, name) = (self.held.lock().unwrap_or_else(PoisonError::into_inner), spec.conflist.name());
        let Some(why) = held.get(name) else { return Ok(()) };
        let message = format!("ADD waits until the plugins of network {name} can serve: {why}");
        // It is tried again when the hold ends.
        Err(Failure { cause: Cause::PluginNotReady, is_permanent: true, ..Failure::new(message) })
    }

    async fn make_ready(&self, spec: &Spec, sandbox: &Sandbox) -> Result<(), Failure> {
        // What links of the host do is the admin's choice.
        if self.place == Place::Host {
            return Ok(());
        }
        let netns = sandbox.open_netns()?;
        netns.set_defaults(spec.wire.accept_ra, !spec.wire.probes).await.map_err(|error| Failure::of(&error))
    }

    async fn link_to_move(&self, spec: &Spec) -> Result<Option<HostLink>, Failure> {
        let Some(which) = named_link(&spec.conflist) else { return Ok(None) };
        self.links.note(which).await.map_err(|error| Failure::of(&error))
    }

    fn host_link(&self, spec: &Spec) -> Option<u32> {
        self.links.index_of(&host_link(&spec.conflist)?)
    }

    async fn index_in_pod(&self, spec: &Spec, sandbox: &Sandbox) -> Option<u32> {
        let links = async { Netns::open(&sandbox.netns)?.links().await };
        let links = links.await.ok()?;
        links.iter().find(|link| link.name == spec.if_name.as_str()).map(|link| link.index)
    }

    async fn give_back(&self, spec: &Spec, link: &HostLink) -> Result<DelOutcome, Failure> {
        self.give_back_to(spec, link, false).await
    }

    async fn can_finalize(&self, spec: &Spec) -> Result<(), Failure> {
        self.settle(&spec.conflist).await.map(drop)
    }

    async fn finalize(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        prev: &CniResult,
    ) -> Result<CniResult, AddFailure> {
        self.run_add(spec, sandbox, Some(prev)).await
    }

    async fn add(&self, spec: &Spec, sandbox: &Sandbox) -> Result<CniResult, AddFailure> {
        match self.run_add(spec, sandbox, None).await {
            Ok(result) if spec.wire.needs_proof() => Ok(result),
            Ok(result) => {
                self.announce(spec, sandbox, &result).await;
                Ok(result)
            }
            Err(failed) => Err(self.explained(spec, sandbox, failed).await),
        }
    }

    async fn prove(&self, spec: &Spec, sandbox: &Sandbox, made: &CniResult) -> Result<(), Failure> {
        self.prove_on_the_wire(spec, sandbox, made).await
    }

    async fn del(&self, spec: &Spec, del: Del<'_>) -> Result<DelOutcome, Failure> {
        let (list, Del { netns, moved_link, attempt, .. }) = (&spec.conflist, del);
        let attachment = Self::attachment(spec, del.sandbox_id, netns)?;
        let run = async {
            match netns {
                Some(netns) => self.del_in(netns, spec, &attachment, del).await.map(|()| DelOutcome::Clean),
                None => self.del_outside(spec, &attachment, del).await,
            }
        };
        let _lock = self.lock(list, &attachment).await?;
        let mut outcome = self.turns.take(list.name().as_str(), &spec.tenant, run).await?;
        if let Some(link) = moved_link {
            match self.give_back_to(spec, link, netns.is_none()).await {
                Ok(DelOutcome::Clean) => {}
                Ok(lost) => outcome = lost.beside(outcome),
                // The link needs neither the plugins nor the namespace any more.
                Err(failure) if attempt.is_last(DelFault::Link) => {
                    outcome = DelOutcome::Stray(failure.message).beside(outcome)
                }
                Err(failure) => return Err(failure),
            }
        }
        self.forget(list, &attachment).await;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::record::tests::list;
    use super::*;

    fn moved(plugins: Value) -> Option<Which> {
        named_link(&list(json!({"cniVersion": "1.1.0", "name": "n", "plugins": plugins})))
    }

    #[test]
    fn an_interface_is_on_the_link_that_its_plugin_names() {
        let name = |plugins: Value| {
            let list = list(json!({"cniVersion": "1.1.0", "name": "n", "plugins": plugins}));
            host_link(&list).map(|name| name.to_string())
        };
        for plugin in ["macvlan", "ipvlan", "vlan", "another"] {
            assert_eq!(name(json!([{"type": plugin, "master": "eth1"}])).as_deref(), Some("eth1"));
        }
        assert_eq!(
            name(json!([{"type": "bridge", "bridge": "br0"}, {"type": "tuning"}])).as_deref(),
            Some("br0")
        );
        assert_eq!(name(json!([{"type": "bridge"}])).as_deref(), Some("cni0"));
        assert_eq!(name(json!([{"type": "vlan", "master": "bond0", "linkInContainer": true}])), None);
        assert_eq!(name(json!([{"type": "host-device", "device": "eth1"}])), None, "it moves the link");
        let links = Links::new("/sys");
        assert_eq!(links.index_of(&"lo".parse().unwrap()), Some(1));
        assert_eq!(links.index_of(&"no-such-link".parse().unwrap()), None);
    }

    #[test]
    fn a_host_device_moves_the_link_that_its_first_key_names() {
        let conf = |keys: Value| {
            let mut conf = json!({"type": "host-device"});
            conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            json!([{"type": "tuning"}, conf])
        };
        let both = conf(json!({"pciBusID": "0000:3b:00.0", "hwaddr": "02:00:00:00:00:01", "device": ""}));
        assert_eq!(moved(both), Some(Which::Mac("02:00:00:00:00:01".into())));
        assert_eq!(moved(conf(json!({"device": "eth2"}))), Some(Which::Name("eth2".into())));
        let path = "/sys/devices/pci0000:00/0000:00:19.0";
        assert_eq!(moved(conf(json!({"kernelpath": path}))), Some(Which::KernelPath(path.into())));
        assert_eq!(moved(conf(json!({}))), None);
        assert_eq!(moved(json!([{"type": "macvlan", "device": "eth2", "master": "eth2"}])), None);
    }
}
