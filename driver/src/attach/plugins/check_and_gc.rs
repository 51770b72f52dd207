//! GC and CHECK by CNI plugins.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use netclaim_cni::ipam::host_local::{
    DEFAULT_DATA_DIR, HostLocal, Reservation, TYPE as HOST_LOCAL, reservations,
};
use netclaim_cni::{
    self as cni, Attachment, CacheError, Cached, CniResult, ContainerId, IfName, ListName, NetworkList,
    PluginConf, Retry, ValidAttachment, error_chain,
};
use serde_json::json;
use tokio::time::Instant;

use super::{CniPlugins, OF_A_POD, fault, off_thread};
use crate::attach::plan::Spec;
use crate::attach::record::Sandbox;
use crate::attach::{Checked, Failure, Finding};
use crate::links::Netns;

/// The prefix of the names of our networks, unless an admin chose another name. No other program keeps
/// anything under these names.
const OURS: &str = "netclaim-";

/// How old a reservation without a container must be: the plugin writes a file as soon as it has created it.
const TORN: Duration = Duration::from_secs(60);

/// Invalid necessary environment variables (specification, section 5, "Error").
pub(super) const INVALID_ENVIRONMENT: u64 = 4;

impl CniPlugins {
    /// CHECK of an attachment. Only what a plugin reports is a finding; that it could not be asked says
    /// nothing.
    pub(super) async fn check_attachment(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        result: &CniResult,
    ) -> Checked {
        // Plugins compare the path with the one in the result.
        if sandbox.open_netns().is_err() {
            return Checked::Unknown("the sandbox is not where it was".to_owned());
        }
        let list = &spec.conflist;
        let locked = async {
            let attachment = Self::attachment(spec, &sandbox.id, Some(&sandbox.netns))?;
            let lock = self.lock(list, &attachment).await?;
            Ok::<_, Failure>((attachment, lock))
        };
        let (attachment, _lock) = match locked.await {
            Ok(locked) => locked,
            Err(failure) => return Checked::Unknown(failure.message),
        };
        let check = self.runtime.check(list, &attachment, result, self.timeout);
        match self.turns.take(list.name().as_str(), &spec.tenant, check).await {
            Ok(()) if list.disable_check() => Checked::Unknown("the network has disableCheck".to_owned()),
            Ok(()) => Checked::Fine,
            Err(error) if error.reported().is_some() => {
                // One that is in the chain twice may be the later one.
                let of_type = list.plugins().map(PluginConf::plugin_type);
                let found_by = of_type.enumerate().filter(|(_, plugin)| *plugin == error.plugin());
                let is_of_first = found_by.map(|(index, _)| index).eq([0]);
                // What passes by itself is not damage.
                let is_of_interface = is_of_first && error.retry() != Retry::Later;
                Checked::Failed(Finding { message: error_chain(&error), is_of_interface })
            }
            Err(error) => Checked::Unknown(error_chain(&error)),
        }
    }

    /// GC of the network of `spec`: its plugins remove what belongs to none of the `valid` attachments and to
    /// none that other programs made. No other operation runs on the network meanwhile; `valid` is called
    /// then.
    ///
    /// The cache has other programs' attachments, and ours, whose truth is the journal. One of ours that is
    /// in the cache alone counts as long as its namespace is there (an admin may have removed the journal's
    /// file), and is forgotten then.
    ///
    /// `host-local` knows no GC (release 1.9.1). In a network of ours we find its leases of sandboxes that
    /// are none of those, and undo what was made for them by DEL. Returns how many. As for any DEL without a
    /// namespace, an address stays taken until every plugin has succeeded or is given up; a run of GC is an
    /// attempt.
    pub(super) async fn collect_network(
        &self,
        spec: &Spec,
        valid: impl Fn() -> Vec<(ContainerId, IfName)> + Send,
    ) -> Result<usize, Failure> {
        let list = &spec.conflist;
        if list.disable_gc() {
            return Ok(0);
        }
        let until = Instant::now() + self.timeout;
        let lock = self.cache.lock_network(list.name(), until).await.map_err(|error| Failure::of(&error))?;
        let _lock = lock.ok_or_else(|| Failure::new("the network was busy all the time"))?;
        let mut valid: Vec<ValidAttachment> = valid()
            .into_iter()
            .map(|(container_id, if_name)| ValidAttachment { container_id, if_name })
            .collect();
        let cache = self.cache.clone();
        let (journalled, network) = (valid.clone(), list.name().clone());
        let read = off_thread(move || {
            let (mut known, unusable) = cache.attachments()?;
            known.retain(|known| *known.list.name() == network);
            let left = |known: &Cached| is_left_over(known, &journalled, is_gone);
            let (left_over, others): (Vec<_>, Vec<_>) = known.into_iter().partition(left);
            Ok::<_, CacheError>((left_over, others, unusable))
        });
        let read = read.await.ok_or_else(|| Failure::new("the agent ends"))?;
        let (left_over, others, unusable) = read.map_err(|error| Failure::of(&error))?;
        if let Some(error) = unusable.iter().find(|error| error.may_be_of(list.name())) {
            return Err(Failure::of(error));
        }
        valid.extend(others.iter().map(|known| known.attachment.key()));
        // It is for all tenants, and so has turns of its own.
        let gc = self.runtime.gc(list, &valid, self.timeout);
        let gc = self.turns.take(list.name().as_str(), "", gc).await;
        let (mut released, mut failed) = (0, None);
        let (of, known) = (list.clone(), valid);
        for stale in off_thread(move || stale_leases(&of, &known)).await.unwrap_or_default() {
            match self.release_lease(spec, &stale).await {
                Ok(done) => released += usize::from(done),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        let of = list.clone();
        released += off_thread(move || remove_torn(&of)).await.unwrap_or_default();
        for known in &left_over {
            self.forget(list, &known.attachment).await;
        }
        // Plugins that do not know the verb say that CNI_COMMAND is invalid.
        let knows_gc = |error: &&netclaim_cni::Error| {
            error.reported().is_none_or(|said| said.code != INVALID_ENVIRONMENT)
        };
        let of_gc = gc.err().unwrap_or_default();
        match failed.or_else(|| of_gc.iter().find(knows_gc).map(|error| Failure::of(error))) {
            Some(failure) => Err(failure),
            None => Ok(released),
        }
    }

    /// Returns our networks that still have something on the node: an attachment in the cache, or an
    /// address.
    pub(super) async fn networks_on_disk(&self) -> BTreeMap<ListName, Spec> {
        let cache = self.cache.clone();
        let read = off_thread(move || {
            // What cannot be read is reported by the GC of its network.
            let known = cache.attachments().map(|(known, _)| known).unwrap_or_default();
            kept(known, Path::new(DEFAULT_DATA_DIR))
        });
        read.await.unwrap_or_default()
    }

    async fn release_lease(&self, spec: &Spec, stale: &Reservation) -> Result<bool, Failure> {
        let list = &spec.conflist;
        let Ok(container_id) = stale.container_id.parse() else { return Ok(false) };
        let if_name = stale.if_name.as_deref().unwrap_or(spec.if_name.as_str()).parse();
        let Ok(if_name) = if_name else { return Ok(false) };
        tracing::warn!(network = %list.name(), ip = %stale.ip, container = stale.container_id, "releasing the address of an unknown sandbox");
        let attachment = Attachment::new(container_id, None::<PathBuf>, if_name);
        let key = (list.name().clone(), attachment.key());
        let attempt = self.stale().get(&key).copied().unwrap_or_default();
        let is_given_up = |error: &cni::Error| attempt.is_last(fault(error));
        let errors = self.runtime.release(list, &attachment, None, self.timeout, is_given_up).await;
        if let Some(error) = errors.iter().find(|error| !is_given_up(error)) {
            self.stale().insert(key, attempt.next());
            return Err(Failure::of(error));
        }
        self.stale().remove(&key);
        if let Some(error) = errors.first() {
            tracing::error!(network = %list.name(), ip = %stale.ip, error = error_chain(error), "given up: something may be left on the node");
        }
        Ok(true)
    }

    fn stale(&self) -> std::sync::MutexGuard<'_, super::StaleLeases> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the networks of ours that the `cached` attachments are of, and those with reservations of
/// `host-local` in `data_dir`.
fn kept(cached: Vec<Cached>, data_dir: &Path) -> BTreeMap<ListName, Spec> {
    let is_ours = |known: &Cached| known.attachment.args.iter().any(|(key, _)| key == OF_A_POD);
    let of_cache = cached.into_iter().filter(is_ours).map(|Cached { list, attachment, .. }| {
        let Attachment { if_name, args, capability_args, .. } = attachment;
        let args = args.into_iter().filter(|(key, _)| key != OF_A_POD).collect();
        let spec = Spec {
            tenant: String::new(),
            if_name,
            conflist: list,
            args,
            capability_args,
            wire: Default::default(),
        };
        (spec.conflist.name().clone(), spec)
    });
    let mut kept: BTreeMap<ListName, Spec> = of_cache.collect();
    for entry in fs::read_dir(data_dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_str().filter(|name| name.starts_with(OURS)).map(str::parse);
        let Some(Ok(name)) = name else { continue };
        if kept.contains_key(&name) {
            continue;
        }
        let found = reservations(&entry.path()).unwrap_or_default();
        if let Some(spec) = found.first().and_then(|first| of_reservation(&name, data_dir, first)) {
            kept.insert(name, spec);
        }
    }
    kept
}

/// Returns a network that is known only by an address: its IPAM plugin alone. The plugin finds what
/// belongs to a container whatever the range.
fn of_reservation(network: &ListName, data_dir: &Path, reservation: &Reservation) -> Option<Spec> {
    let length = if matches!(reservation.ip, IpAddr::V4(_)) { 24 } else { 64 };
    let subnet = ipnet::IpNet::new(reservation.ip, length).ok()?.trunc();
    let ipam = json!({"type": HOST_LOCAL, "dataDir": data_dir, "ranges": [[{"subnet": subnet}]]});
    let list =
        json!({"cniVersion": "1.0.0", "name": network, "plugins": [{"type": HOST_LOCAL, "ipam": ipam}]});
    Some(Spec {
        tenant: String::new(),
        if_name: reservation.if_name.as_deref().unwrap_or("net1").parse().ok()?,
        conflist: NetworkList::parse(list.to_string().as_bytes()).ok()?,
        args: BTreeMap::new(),
        capability_args: Default::default(),
        wire: Default::default(),
    })
}

/// Whether `known` is the cache's alone: an agent's that the journal does not know and whose namespace
/// is gone.
fn is_left_over(known: &Cached, journalled: &[ValidAttachment], is_gone: impl Fn(&Path) -> bool) -> bool {
    let Attachment { container_id, netns, args, .. } = &known.attachment;
    let is_ours = args.iter().any(|(key, value)| key == OF_A_POD && value == container_id.as_str());
    is_ours && !journalled.contains(&known.attachment.key()) && netns.as_deref().is_none_or(is_gone)
}

fn is_gone(netns: &Path) -> bool {
    Netns::open(netns).is_err_and(|error| error.is_gone())
}

/// Removes the reservations of a network of ours that name no container, because the power failed while the
/// plugin wrote them. No DEL finds them, and until here they count as taken. Returns how many there were.
fn remove_torn(list: &NetworkList) -> usize {
    let dirs = reservation_dirs(list);
    let torn = dirs.flat_map(|dir| {
        let found = reservations(&dir).unwrap_or_default().into_iter();
        let torn = found.filter(|reservation| reservation.container_id.is_empty());
        torn.map(move |reservation| dir.join(reservation.ip.to_string()))
    });
    let is_old = |path: &PathBuf| {
        let age =
            fs::metadata(path).and_then(|file| file.modified()).ok().and_then(|time| time.elapsed().ok());
        age.is_some_and(|age| age >= TORN)
    };
    torn.filter(is_old).filter(|path| {
        tracing::warn!(path = %path.display(), "removing the reservation of an address that names no container");
        fs::remove_file(path).is_ok()
    })
    .count()
}

/// Where `host-local` keeps the reservations of a network of ours.
fn reservation_dirs(list: &NetworkList) -> impl Iterator<Item = PathBuf> {
    let is_ours = list.name().as_str().starts_with(OURS);
    let plugins = list.plugins().filter(move |_| is_ours);
    let ipams = plugins.filter(|plugin| plugin.ipam().is_some_and(|ipam| ipam.as_str() == HOST_LOCAL));
    let ipams = ipams.filter_map(|plugin| HostLocal::parse(plugin.ipam_conf()?.get()).ok());
    ipams.map(|ipam| ipam.reservations_dir(list.name()))
}

/// Leases in a network of ours of containers that have no attachment in it, one for each attachment that had
/// them.
fn stale_leases(list: &NetworkList, valid: &[ValidAttachment]) -> Vec<Reservation> {
    let mut stale: Vec<Reservation> = reservation_dirs(list)
        .filter_map(|dir| reservations(&dir).ok())
        .flatten()
        .filter(|lease| !lease.container_id.is_empty())
        .filter(|lease| valid.iter().all(|valid| valid.container_id.as_str() != lease.container_id))
        .collect();
    stale.sort_by(|a, b| (&a.container_id, &a.if_name).cmp(&(&b.container_id, &b.if_name)));
    stale.dedup_by(|a, b| (&a.container_id, &a.if_name) == (&b.container_id, &b.if_name));
    stale
}

#[cfg(test)]
mod tests {
    use netclaim_cni::AddOutcome;

    use super::*;
    use crate::attach::record::tests::spec;

    #[test]
    fn networks_of_ours_are_found_by_their_cached_attachments_and_their_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = |network: &str, file: &str| {
            fs::create_dir_all(dir.path().join(network)).unwrap();
            fs::write(dir.path().join(network).join(file), "dead\r\nnet7").unwrap();
        };
        reserve("netclaim-x", "10.20.0.5");
        reserve("netclaim-six", "fd00::5");
        reserve("netclaim-empty", "lock");
        reserve("somebodys", "10.20.0.5");
        let spec = spec("net1");
        let attachment = CniPlugins::attachment(&spec, "s1", None).unwrap();
        let ours = Cached { list: spec.conflist, attachment, outcome: AddOutcome::Unfinished(None) };
        let mut others = ours.clone();
        others.attachment.args.clear();
        let found = kept(vec![ours], dir.path());
        assert_eq!(
            found.keys().map(ListName::as_str).collect::<Vec<_>>(),
            ["n", "netclaim-six", "netclaim-x"]
        );
        let of_address = &found[&"netclaim-x".parse().unwrap()];
        assert_eq!(of_address.if_name.as_str(), "net7");
        assert_eq!(stale_leases(&of_address.conflist, &[]).len(), 1);
        assert!(!kept(vec![others], dir.path()).contains_key(&"n".parse().unwrap()));
    }

    #[test]
    fn an_attachment_in_the_cache_alone_counts_until_its_namespace_is_gone() {
        let spec = spec("net1");
        let attachment = CniPlugins::attachment(&spec, "s1", Some(Path::new("/run/netns/s1"))).unwrap();
        let ours = Cached { list: spec.conflist, attachment, outcome: AddOutcome::Unfinished(None) };
        let journalled = [ours.attachment.key()];
        assert!(is_left_over(&ours, &[], |_| true));
        assert!(!is_left_over(&ours, &[], |_| false), "it may be a running pod's");
        assert!(!is_left_over(&ours, &journalled, |_| true), "its DEL is owed");
        // As `netclaimctl cni add` makes it.
        let mut others = ours;
        others.attachment.args.clear();
        assert!(!is_left_over(&others, &[], |_| true));
    }
}
