//! Keeps CDI specs, metadata files and markers in step with the attachments, and passes changes on to the
//! status writer.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::pods::owner::{Owner, Plan, PodState, Record};
use futures::future::BoxFuture;
use netclaim_driver::attach::{End, Failure, Gate, Observer, Operation, Revised, Traced};
use netclaim_driver::failpoint::Failpoint;
use tokio::sync::mpsc;

use super::cdi::{CdiSpecs, Form, HookCommand, Spec, spec_of};
use super::markers::Markers;
use super::metadata_files::MetadataFiles;
use crate::args::Args;
use crate::gate::metadata::{RequestKey, named};
use crate::history::History;
use crate::reports::metrics::{NetworkMetrics, network_of};
use crate::reports::spans::Spans;
use crate::reports::{FailedAdd, Update};

/// Why an agent cannot take over the gate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GateError {
    #[error("cannot use the directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot take over the CDI specs and markers of an earlier agent")]
    TakeOver(#[source] io::Error),
}

/// The files that hold and inform containers.
pub(crate) struct GateFiles {
    /// CDI specs of pods.
    pub(crate) specs: CdiSpecs,
    pub(crate) metadata: MetadataFiles,
    pub(crate) markers: Markers,
}

impl GateFiles {
    /// Creates the directories where they are missing.
    ///
    /// # Errors
    /// Which directory cannot be created.
    pub(crate) fn open(args: &Args) -> Result<Self, GateError> {
        fn of<T>(path: &Path, made: io::Result<T>) -> Result<T, GateError> {
            made.map_err(|source| GateError::Directory { path: path.to_owned(), source })
        }
        let (markers, metadata) = (args.marker_dir(), args.metadata_dir());
        let hook =
            HookCommand { path: args.installed_hook(), socket: args.gate_socket(), markers: markers.clone() };
        Ok(Self {
            specs: of(&args.cdi_dir, CdiSpecs::new(&args.cdi_dir, &args.driver_name, hook))?,
            metadata: of(&metadata, MetadataFiles::new(&metadata, &args.driver_name))?,
            markers: of(&markers, Markers::new(&markers))?,
        })
    }

    /// Removes the files that none of `pods` has.
    fn remove_others(&self, pods: &HashMap<String, OnDisk>) -> io::Result<()> {
        for pod in self.specs.pods()? {
            if pods.get(&pod).is_none_or(|on_disk| on_disk.spec.is_none()) {
                self.specs.remove(&pod)?;
            }
        }
        self.specs.remove_unfinished()?;
        self.metadata.retain(&pods.values().flat_map(|on_disk| on_disk.metadata.clone()).collect())?;
        self.markers.retain(&pods.values().filter_map(|on_disk| on_disk.marker.clone()).collect())
    }

    /// Returns a pod's spec, but for its form; none without a sandbox.
    fn spec(&self, state: &PodState) -> Option<Spec> {
        let records = if state.sandbox.is_some() { state.records.as_slice() } else { &[] };
        spec_of(records, Form::Shut, |plan| self.metadata.mount(plan))
    }

    /// Returns the files for a pod in `state` with this `spec` whose containers wait like this. While that is
    /// undecided there is no spec, and the runtime refuses them: most pods are attached before it asks for
    /// one.
    fn desired(state: &PodState, spec: Option<&Spec>, waits: Option<Form>) -> OnDisk {
        let metadata = named(&state.records).map(|record| RequestKey::of(&record.plan)).collect();
        let open = state.sandbox.as_ref().filter(|sandbox| state.gate(&sandbox.id) == Gate::Open);
        let form = if open.is_some() { Some(Form::Hook) } else { waits };
        let spec = spec.zip(form).map(|(spec, form)| Spec { form, ..spec.clone() });
        OnDisk { metadata, spec, marker: open.map(|sandbox| sandbox.id.clone()) }
    }

    /// Writes all `desired` files of a pod in `state`.
    fn write(&self, pod_uid: &str, state: &PodState, desired: &OnDisk) -> io::Result<()> {
        named(&state.records).try_for_each(|record| self.metadata.provide(&record.plan))?;
        if state.sandbox.is_some() {
            self.metadata.write_all(&state.records)?;
        }
        desired.marker.iter().try_for_each(|sandbox| self.markers.set(sandbox))?;
        desired.spec.iter().try_for_each(|spec| self.specs.write(pod_uid, spec))
    }
}

/// The files that are on disk for a pod.
#[derive(Clone, Default, PartialEq)]
struct OnDisk {
    metadata: BTreeSet<RequestKey>,
    spec: Option<Spec>,
    marker: Option<String>,
}

#[derive(Default)]
struct Pod {
    on_disk: OnDisk,
    /// `on_disk` may not be there yet, or with other content.
    is_unwritten: bool,
    /// Its spec, but for its form; none without a sandbox.
    spec: Option<Spec>,
    /// How its containers wait until it is attached; `None` while that is undecided.
    waits: Option<Form>,
}

/// Plans attachments again before their ADD, see [`Observer::revise`].
pub(crate) trait Revise: Send + Sync {
    /// Returns the plan by which to attach, if it is another one.
    fn revise<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<Option<Revised<Owner>>, Failure>>;

    /// Whether what breaks of the plan's network is made again.
    fn is_repaired(&self, plan: &Plan) -> bool;
}

/// Limits the bandwidth of attachments.
pub(crate) trait Limit: Send + Sync {
    /// Limits the pod's attachments before its containers start.
    fn limit<'a>(&'a self, state: &'a PodState) -> BoxFuture<'a, Result<(), Failure>>;
}

/// The observer of the attachments.
pub(crate) struct GateKeeper {
    files: GateFiles,
    pods: Mutex<HashMap<String, Pod>>,
    reports: mpsc::UnboundedSender<Update>,
    metrics: NetworkMetrics,
    spans: Arc<Spans>,
    history: Option<Arc<History>>,
    reviser: OnceLock<Arc<dyn Revise>>,
    limiter: OnceLock<Arc<dyn Limit>>,
    failed_adds: OnceLock<mpsc::UnboundedSender<FailedAdd>>,
}

impl GateKeeper {
    /// Takes over the files of an earlier agent. `records` is the content of the journal.
    ///
    /// Pods that are attached in this boot get their specs and markers. The specs and markers of other pods
    /// are removed until their sandbox is up. Metadata files stay as long as their claims: a container that
    /// waits may have one mounted. A file that cannot be written is written when the pod is next observed.
    ///
    /// # Errors
    /// When the directories cannot be read or a file cannot be removed. A spec too many would hold a
    /// container for minutes, and a marker too many would let one start.
    pub(crate) fn take_over(
        files: GateFiles,
        records: &[Record],
        boot_id: &str,
        reports: mpsc::UnboundedSender<Update>,
        metrics: NetworkMetrics,
    ) -> Result<Self, GateError> {
        let mut states: HashMap<&str, PodState> = HashMap::new();
        for record in records {
            let state = states.entry(&record.plan.owner.pod.uid).or_default();
            state.records.push(record.clone());
            // What came to the pod may not be made yet.
            let sandbox = record.phase.sandbox().filter(|sandbox| sandbox.boot_id == boot_id);
            state.sandbox = sandbox.cloned().or_else(|| state.sandbox.take());
        }
        for state in states.values_mut() {
            state.sandbox = state.sandbox.take().filter(|sandbox| state.gate(&sandbox.id) == Gate::Open);
        }
        let desired = |state| GateFiles::desired(state, files.spec(state).as_ref(), None);
        let pods: HashMap<String, OnDisk> =
            states.iter().map(|(uid, state)| ((*uid).to_owned(), desired(state))).collect();
        files.remove_others(&pods).map_err(GateError::TakeOver)?;
        let keeper = Self {
            files,
            pods: Mutex::default(),
            reports,
            metrics,
            spans: Arc::default(),
            history: None,
            reviser: OnceLock::new(),
            limiter: OnceLock::new(),
            failed_adds: OnceLock::new(),
        };
        for (uid, desired) in pods {
            let state = states.get(uid.as_str()).cloned().unwrap_or_default();
            let written = keeper.files.write(&uid, &state, &desired);
            if let Err(error) = &written {
                tracing::error!(pod.uid = uid, %error, "cannot write the files of the pod's containers, trying again");
            }
            let spec = keeper.files.spec(&state);
            let pod = Pod { on_disk: desired, is_unwritten: written.is_err(), spec, waits: None };
            keeper.lock().insert(uid, pod);
        }
        Ok(keeper)
    }

    /// Has the waits and operations of claims be part of their traces.
    #[must_use]
    pub(crate) fn traced(self, spans: Arc<Spans>) -> Self {
        Self { spans, ..self }
    }

    /// Has it noted who is attached when.
    #[must_use]
    pub(crate) fn noting(self, history: Arc<History>) -> Self {
        Self { history: Some(history), ..self }
    }

    /// Has plans revised before their ADD, from now on. Before the runtime's sandboxes are known there is no
    /// ADD.
    pub(crate) fn revise_by(&self, reviser: Arc<dyn Revise>) {
        let _ = self.reviser.set(reviser);
    }

    /// Has attachments limited before containers start, from now on. Those of an earlier agent are.
    pub(crate) fn limit_by(&self, limiter: Arc<dyn Limit>) {
        let _ = self.limiter.set(limiter);
    }

    /// Limits a pod whose containers may start by now.
    async fn limit(&self, state: &PodState) -> Result<(), Failure> {
        let Some(limiter) = self.limiter.get() else { return Ok(()) };
        match &state.sandbox {
            Some(sandbox) if state.gate(&sandbox.id) == Gate::Open => limiter.limit(state).await,
            _ => Ok(()),
        }
    }

    /// Names the ClaimNetwork of each ADD that fails, from now on.
    pub(crate) fn report_failed_adds(&self, failed_adds: mpsc::UnboundedSender<FailedAdd>) {
        let _ = self.failed_adds.set(failed_adds);
    }

    /// The CDI specs of pods.
    pub(crate) fn specs(&self) -> &CdiSpecs {
        &self.files.specs
    }

    /// Whether containers of the pod wait in a hook.
    pub(crate) fn wait_in_hook(&self, pod_uid: &str) -> bool {
        self.lock().get(pod_uid).is_some_and(|pod| pod.waits == Some(Form::Hook))
    }

    /// Decides how containers of the pod wait from now on: in a hook if the kubelet starts them again after
    /// one that timed out.
    pub(crate) fn decide(&self, pod_uid: &str, waits: Form) {
        let mut pods = self.lock();
        // The pod may be gone by now.
        let Some(pod) = pods.get_mut(pod_uid) else { return };
        pod.waits = Some(waits);
        if pod.on_disk.marker.is_some() {
            return;
        }
        let Some(spec) = pod.spec.clone().map(|spec| Spec { form: waits, ..spec }) else { return };
        match self.files.specs.write(pod_uid, &spec) {
            Ok(()) => pod.on_disk.spec = Some(spec),
            Err(error) => {
                tracing::error!(pod.uid = pod_uid, %error, "cannot write the CDI spec: the kubelet retries");
            }
        }
    }

    fn update_files(&self, pod_uid: &str, state: &PodState) -> io::Result<()> {
        let mut pods = self.lock();
        let pod = pods.entry(pod_uid.to_owned()).or_default();
        let spec = self.files.spec(state);
        // What is on disk shares its content, as long as it is the same.
        if pod.spec != spec {
            pod.spec = spec;
        }
        self.update(pod_uid, pod, state)?;
        // A pod whose containers name no claim of ours has no files, and may wait all the same.
        if pod.on_disk == OnDisk::default() && state.records.is_empty() {
            pods.remove(pod_uid);
        }
        Ok(())
    }

    fn update(&self, pod_uid: &str, pod: &mut Pod, state: &PodState) -> io::Result<()> {
        let GateFiles { specs, metadata, markers } = &self.files;
        let desired = GateFiles::desired(state, pod.spec.as_ref(), pod.waits);
        let on_disk = &mut pod.on_disk;
        // Close before opening. After an error `on_disk` still says what has to be done.
        if let Some(old) = on_disk.marker.clone().filter(|old| desired.marker.as_ref() != Some(old)) {
            markers.clear(&old)?;
            on_disk.marker = None;
        }
        // A spec before the files that it mounts.
        if on_disk.spec.is_some() && desired.spec.is_none() {
            specs.remove(pod_uid)?;
            on_disk.spec = None;
        }
        let gone: Vec<RequestKey> = on_disk.metadata.difference(&desired.metadata).cloned().collect();
        for key in gone {
            metadata.remove(&key)?;
            on_disk.metadata.remove(&key);
        }
        for plan in named(&state.records).map(|record| &record.plan) {
            let key = RequestKey::of(plan);
            if pod.is_unwritten || !on_disk.metadata.contains(&key) {
                metadata.provide(plan)?;
                on_disk.metadata.insert(key);
            }
        }
        // The marker before the hook that looks for it.
        if let Some(sandbox) = &desired.marker
            && (pod.is_unwritten || on_disk.marker.is_none())
        {
            metadata.write_all(&state.records)?;
            markers.set(sandbox)?;
            on_disk.marker = Some(sandbox.clone());
            Failpoint::MarkerSet.reach();
        }
        if let Some(spec) = desired.spec
            && (pod.is_unwritten || on_disk.spec.as_ref() != Some(&spec))
        {
            specs.write(pod_uid, &spec)?;
            on_disk.spec = Some(spec);
        }
        pod.is_unwritten = false;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for GateKeeper {
    type Owner = Owner;

    /// Writes a few small files, most of them in memory.
    async fn observe(&self, pod_uid: &str, state: &PodState) -> Result<(), Failure> {
        let _ = self.reports.send(Update::Attachments { pod_uid: pod_uid.to_owned(), state: state.clone() });
        let limited = self.limit(state).await.inspect_err(|failure| {
            tracing::error!(pod.uid = pod_uid, error = %failure, "the pod waits");
        });
        limited?;
        // Without its files a container does not start, which is safe.
        let updated = self.update_files(pod_uid, state);
        self.spans.observe(pod_uid, state, updated.is_ok());
        if let Some(history) = &self.history {
            history.observe(pod_uid, state);
        }
        updated.map_err(|error| {
            tracing::error!(pod.uid = pod_uid, %error, "cannot write the files of the pod's containers: the pod waits");
            Failure::new(format!("cannot write the files of the pod's containers: {error}"))
        })
    }

    async fn revise(&self, record: &Record) -> Result<Option<Revised<Owner>>, Failure> {
        match self.reviser.get() {
            Some(reviser) => reviser.revise(record).await,
            None => Ok(None),
        }
    }

    fn is_repaired(&self, plan: &Plan) -> bool {
        self.reviser.get().is_some_and(|reviser| reviser.is_repaired(plan))
    }

    fn given_up(&self, plan: &Plan, why: &str) {
        let _ = self.reports.send(Update::GivenUp { plan: Box::new(plan.clone()), why: why.to_owned() });
    }

    fn trace(&self, plan: &Plan, operation: Operation, sandbox_id: &str) -> Traced {
        self.spans.attachment(plan, operation, sandbox_id)
    }

    fn ended(&self, plan: &Plan, operation: Operation, end: End, failure: Option<&Failure>, took: Duration) {
        self.metrics.operation(plan, operation, end, failure.map(|failure| failure.cause), took);
        if let (Operation::Add, Some(failure), Some(failed_adds), Some(network)) =
            (operation, failure, self.failed_adds.get(), network_of(plan))
            // What makes the network is another chain.
            && !plan.is_finalizer()
        {
            let _ = failed_adds.send(FailedAdd { network, failure: failure.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use netclaim_driver::attach::Phase;

    use super::*;
    use crate::fixtures::{attached, gate_files, hot, network_metrics, record, sandbox};

    fn keeper(dir: &Path, records: &[Record]) -> GateKeeper {
        GateKeeper::take_over(gate_files(dir), records, "b", mpsc::unbounded_channel().0, network_metrics())
            .unwrap()
    }

    fn files(dir: &Path) -> Vec<String> {
        let list = |sub: &str| {
            std::fs::read_dir(dir.join(sub)).unwrap().map(|e| e.unwrap().path()).collect::<Vec<PathBuf>>()
        };
        let mut names: Vec<String> = list("cdi")
            .into_iter()
            .chain(list("ready"))
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_network_of_an_add_that_failed_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &[]);
        let (sender, mut failed) = mpsc::unbounded_channel();
        keeper.report_failed_adds(sender);
        let mut plan = crate::fixtures::plan("a");
        plan.owner.device.device = "net-lab".to_owned();
        let failure = Failure::new("not yet");
        for (operation, end, failure) in [
            (Operation::Add, End::Succeeded, None),
            (Operation::Add, End::CutShort, None),
            (Operation::Del, End::Failed, Some(&failure)),
        ] {
            keeper.ended(&plan, operation, end, failure, Duration::ZERO);
        }
        assert!(failed.try_recv().is_err());
        keeper.ended(&plan, Operation::Add, End::Failed, Some(&failure), Duration::ZERO);
        let FailedAdd { network, failure: of } = failed.try_recv().unwrap();
        assert_eq!((network.as_str(), of), ("lab", failure));
    }

    #[tokio::test]
    async fn a_pod_gets_its_spec_and_the_marker_when_all_is_attached() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &[]);
        let planned = || record("b", Phase::Planned);
        let steps = [
            (None, vec![record("a", Phase::Planned), planned()], vec![]),
            (Some("s1"), vec![record("a", Phase::Planned), planned()], vec![]),
            (Some("s1"), vec![attached("a", "s1"), planned()], vec![]),
            (
                Some("s1"),
                vec![attached("a", "s1"), attached("b", "s1")],
                vec!["netclaim.dev-pod_p.json", "s1"],
            ),
            (Some("s2"), vec![attached("a", "s1"), attached("b", "s1")], vec![]),
            (Some("s2"), vec![attached("a", "s2")], vec!["netclaim.dev-pod_p.json", "s2"]),
            (None, vec![attached("a", "s2")], vec![]),
            (None, vec![], vec![]),
        ];
        for (i, (id, records, expected)) in steps.into_iter().enumerate() {
            let state = PodState { sandbox: id.map(sandbox), records, ..PodState::default() };
            keeper.observe("p", &state).await.unwrap();
            assert_eq!(files(dir.path()), expected, "step {i}");
        }
    }

    #[tokio::test]
    async fn what_comes_to_a_running_pod_closes_nothing_and_has_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &[]);
        let open = ["netclaim.dev-pod_p.json", "s1"];
        let came = |record| hot(record, "s1");
        let failed = Record { error: Some("no link".into()), ..record("h", Phase::Planned) };
        let steps = [
            ("s1", vec![attached("a", "s1"), came(failed)], &open[..]),
            ("s1", vec![attached("a", "s1"), came(attached("h", "s1"))], &open),
            // A pod that names no claim waits in its next sandbox, too.
            ("s1", vec![came(record("h", Phase::Planned))], &["s1"]),
            ("s2", vec![came(record("h", Phase::Planned))], &[]),
            ("s2", vec![came(attached("h", "s2"))], &["s2"]),
        ];
        for (i, (id, records, expected)) in steps.into_iter().enumerate() {
            let state = PodState { sandbox: Some(sandbox(id)), records, ..PodState::default() };
            keeper.observe("p", &state).await.unwrap();
            assert_eq!(files(dir.path()), expected, "step {i}");
            assert!(!dir.path().join("metadata/h_net.json").exists());
        }
        keeper.decide("p", Form::Hook);
        assert!(keeper.wait_in_hook("p"), "its containers may wait");
        // The next agent goes on with the same files, whatever the journal says last.
        let records = [attached("a", "s1"), came(record("h", Phase::Planned))];
        self::keeper(dir.path(), &records);
        assert_eq!(files(dir.path()), open);
    }

    #[tokio::test]
    async fn a_container_waits_in_a_hook_only_when_it_may_be_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &[]);
        let waiting = |id: &str| {
            let records = vec![record("a", Phase::Planned)];
            PodState { sandbox: Some(sandbox(id)), records, ..PodState::default() }
        };
        let path = |pod: &str| dir.path().join(format!("cdi/netclaim.dev-pod_{pod}.json"));
        let has_hook = |pod| {
            let spec = std::fs::read_to_string(path(pod)).unwrap();
            assert_ne!(spec.contains("createRuntime"), spec.contains("not attached yet"), "{spec}");
            spec.contains("createRuntime")
        };
        let has_spec = || path("p").exists();
        keeper.decide("p", Form::Hook);
        assert!(!keeper.wait_in_hook("p"), "the pod is unknown");
        keeper.observe("p", &waiting("s1")).await.unwrap();
        assert!(!has_spec(), "it is undecided");
        keeper.decide("p", Form::Shut);
        assert!(!has_hook("p"));
        keeper.decide("p", Form::Hook);
        assert!(has_hook("p") && keeper.wait_in_hook("p"));
        keeper.observe("p", &waiting("s2")).await.unwrap();
        assert!(has_hook("p"), "it still may in its next sandbox");
        keeper.observe("p", &PodState::default()).await.unwrap();
        assert!(!keeper.wait_in_hook("p") && !has_spec());
        keeper.observe("q", &waiting("s3")).await.unwrap();
        keeper.decide("q", Form::Shut);
        assert!(!has_hook("q"));
        let attached = PodState { records: vec![attached("a", "s3")], ..waiting("s3") };
        keeper.observe("q", &attached).await.unwrap();
        assert!(has_hook("q"), "it looks for the marker, which is there");
    }

    #[tokio::test]
    async fn a_container_waits_until_its_metadata_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &[]);
        let state =
            |record| PodState { sandbox: Some(sandbox("s1")), records: vec![record], ..PodState::default() };
        let file = dir.path().join("metadata/a_net.json");
        keeper.observe("p", &state(record("a", Phase::Planned))).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "", "it can be mounted");
        // A directory in its place cannot be written.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let error = keeper.observe("p", &state(attached("a", "s1"))).await.unwrap_err();
        assert!(error.message.contains("a_net.json"), "{error}");
        assert_eq!(files(dir.path()), [""; 0], "neither spec nor marker");
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, "").unwrap();
        keeper.observe("p", &state(attached("a", "s1"))).await.unwrap();
        assert_eq!(files(dir.path()), ["netclaim.dev-pod_p.json", "s1"]);
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"interfaceName\": \"net1\""));
        keeper.observe("p", &PodState::default()).await.unwrap();
        assert!(!file.exists());
    }

    #[tokio::test]
    async fn a_new_agent_writes_the_metadata_that_the_earlier_one_did_not_write() {
        let dir = tempfile::tempdir().unwrap();
        let file =
            |claim: &str| std::fs::read_to_string(dir.path().join(format!("metadata/{claim}_net.json")));
        let mut adding = record("adding", Phase::Adding { sandbox: sandbox("s2") });
        Arc::make_mut(&mut adding.plan).owner.pod.uid = "q".into();
        let earlier = keeper(dir.path(), &[]);
        for claim in ["attached", "adding", "gone"] {
            earlier.files.metadata.provide(&record(claim, Phase::Planned).plan).unwrap();
        }
        keeper(dir.path(), &[attached("attached", "s1"), adding]);
        assert!(file("attached").unwrap().contains("\"generation\": 1"));
        assert_eq!(file("adding").unwrap(), "", "a waiting container may have it mounted");
        assert!(file("gone").is_err());
    }

    #[tokio::test]
    async fn a_new_agent_retries_files_that_it_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        drop(keeper(dir.path(), &[]));
        // A directory in the way of the temporary file: works for root too, unlike permissions.
        let obstacle = dir.path().join("cdi/netclaim.dev-pod_p.tmp");
        std::fs::create_dir(&obstacle).unwrap();
        let keeper = keeper(dir.path(), &[attached("a", "s1")]);
        let state = PodState {
            sandbox: Some(sandbox("s1")),
            records: vec![attached("a", "s1")],
            ..PodState::default()
        };
        keeper.observe("p", &state).await.unwrap_err();
        std::fs::remove_dir(&obstacle).unwrap();
        keeper.observe("p", &state).await.unwrap();
        assert_eq!(files(dir.path()), ["netclaim.dev-pod_p.json", "s1"]);
        // Writing the same text again needs no space.
        std::fs::create_dir(&obstacle).unwrap();
        self::keeper(dir.path(), &[attached("a", "s1")]).observe("p", &state).await.unwrap();
    }

    #[tokio::test]
    async fn a_new_agent_keeps_the_files_of_attached_pods_and_removes_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let earlier = keeper(dir.path(), &[]);
        for pod in ["q", "unknown"] {
            let records = [record("adding", Phase::Planned)];
            let spec = spec_of(&records, Form::Hook, |plan| earlier.files.metadata.mount(plan));
            earlier.specs().write(pod, &spec.unwrap()).unwrap();
        }
        earlier.files.markers.set("s9").unwrap();
        let mut adding = record("adding", Phase::Adding { sandbox: sandbox("s2") });
        Arc::make_mut(&mut adding.plan).owner.pod.uid = "q".into();
        keeper(dir.path(), &[attached("attached", "s1"), adding]);
        assert_eq!(files(dir.path()), ["netclaim.dev-pod_p.json", "s1"]);
    }
}
