//! Keeps CDI specs, metadata files and markers in step with what is attached, and passes the news on.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netclaim_driver::attach::record::{Plan, Record};
use netclaim_driver::attach::{Gate, Observer, PodState};
use netclaim_driver::failpoint::Failpoint;
use tokio::sync::mpsc;

use super::cdi::{CdiSpecs, Form, Spec};
use super::markers::Markers;
use super::metadata_files::MetadataFiles;
use crate::gate::metadata::RequestKey;
use crate::status::News;

/// What has been put on disk for a pod.
#[derive(Clone, Default, PartialEq)]
struct OnDisk {
    metadata: BTreeSet<RequestKey>,
    specs: BTreeMap<String, Spec>,
    marker: Option<String>,
}

#[derive(Default)]
struct Pods {
    on_disk: HashMap<String, OnDisk>,
    /// Those whose containers may wait in a hook.
    patient: HashSet<String>,
}

/// The observer of the attachments.
pub struct GateKeeper {
    specs: CdiSpecs,
    metadata: MetadataFiles,
    markers: Markers,
    pods: Mutex<Pods>,
    news: mpsc::UnboundedSender<News>,
}

impl GateKeeper {
    /// Takes over what an earlier agent left: `records` is what the journal holds. What is attached in this boot gets
    /// its spec and marker, whatever is on disk; those of anything else are withdrawn until a sandbox is in hand. Metadata
    /// files stay as long as their claims: a container that waits may have one mounted. What cannot be written is tried
    /// again when the pod is next observed.
    ///
    /// # Errors
    /// When the directories cannot be read or something not be removed: a spec too many would hold a container for
    /// minutes, a marker too many would let one through.
    pub fn take_over(
        specs: CdiSpecs,
        metadata: MetadataFiles,
        markers: Markers,
        records: &[Record],
        boot_id: &str,
        news: mpsc::UnboundedSender<News>,
    ) -> io::Result<Self> {
        let mut states: HashMap<&str, PodState> = HashMap::new();
        for record in records {
            let state = states.entry(&record.plan.pod.uid).or_default();
            state.records.push(record.clone());
            state.sandbox = record.phase.sandbox().filter(|sandbox| sandbox.boot_id == boot_id).cloned();
        }
        for state in states.values_mut() {
            state.sandbox = state.sandbox.take().filter(|sandbox| state.gate(&sandbox.id) == Gate::Open);
        }
        let pods: HashMap<String, OnDisk> =
            states.iter().map(|(uid, state)| ((*uid).to_owned(), OnDisk::wanted(state, false))).collect();
        for claim in specs.claims()? {
            if !pods.values().any(|on_disk| on_disk.specs.contains_key(&claim)) {
                specs.remove(&claim)?;
            }
        }
        metadata.retain(&pods.values().flat_map(|on_disk| on_disk.metadata.clone()).collect())?;
        markers.retain(&pods.values().filter_map(|on_disk| on_disk.marker.clone()).collect())?;
        let keeper = Self { specs, metadata, markers, pods: Mutex::default(), news };
        for (uid, wanted) in pods {
            let state = states.get(uid.as_str()).cloned().unwrap_or_default();
            let written = keeper.write(&state, &wanted).map(|()| wanted.clone()).unwrap_or_else(|error| {
                tracing::error!(pod.uid = uid, %error, "cannot write what the pod's containers need: trying again");
                OnDisk::default()
            });
            keeper.lock().on_disk.insert(uid, written);
        }
        Ok(keeper)
    }

    /// Writes everything that a pod in `state` is to have.
    fn write(&self, state: &PodState, wanted: &OnDisk) -> io::Result<()> {
        state.records.iter().try_for_each(|record| self.metadata.provide(&record.plan))?;
        if state.sandbox.is_some() {
            self.metadata.write_all(&state.records)?;
        }
        wanted.marker.iter().try_for_each(|sandbox| self.markers.set(sandbox))?;
        wanted.specs.iter().try_for_each(|(claim, spec)| self.specs.write(claim, spec))
    }

    /// The specs, for those who need their names.
    pub fn specs(&self) -> &CdiSpecs {
        &self.specs
    }

    /// The metadata files, likewise.
    pub fn metadata(&self) -> &MetadataFiles {
        &self.metadata
    }

    /// Whether containers of the pod may wait in a hook.
    pub fn is_patient(&self, pod_uid: &str) -> bool {
        self.lock().patient.contains(pod_uid)
    }

    /// The pod's containers may be started again after a hook that ran out of patience: from now on they wait in one.
    pub fn let_wait(&self, pod_uid: &str) {
        let mut pods = self.lock();
        let pods = &mut *pods;
        // Of one that is known no more there is nothing to note.
        let Some(on_disk) = pods.on_disk.get_mut(pod_uid) else { return };
        pods.patient.insert(pod_uid.to_owned());
        for (claim, spec) in &mut on_disk.specs {
            let waiting = Spec { form: Form::Hook, ..spec.clone() };
            match self.specs.write(claim, &waiting) {
                Ok(()) => *spec = waiting,
                Err(error) => {
                    tracing::error!(pod.uid = pod_uid, %error, "cannot write the CDI spec: the kubelet tries again")
                }
            }
        }
    }

    fn put_on_disk(&self, pod_uid: &str, state: &PodState) -> io::Result<()> {
        let mut pods = self.lock();
        let wanted = OnDisk::wanted(state, pods.patient.contains(pod_uid));
        let on_disk = pods.on_disk.entry(pod_uid.to_owned()).or_default();
        // Closing comes before opening. What fails stays noted as it was, for the next time.
        if let Some(old) = on_disk.marker.clone().filter(|old| wanted.marker.as_ref() != Some(old)) {
            self.markers.clear(&old)?;
            on_disk.marker = None;
        }
        for claim in on_disk.specs.keys().filter(|claim| !wanted.specs.contains_key(*claim)) {
            self.specs.remove(claim)?;
        }
        for key in on_disk.metadata.difference(&wanted.metadata) {
            self.metadata.remove(key)?;
        }
        let plans = state.records.iter().map(|record| &record.plan);
        for plan in plans.filter(|plan| !on_disk.metadata.contains(&RequestKey::of(plan))) {
            self.metadata.provide(plan)?;
        }
        // The marker before the hook that looks for it.
        if let Some(sandbox) = wanted.marker.as_ref().filter(|_| on_disk.marker.is_none()) {
            self.metadata.write_all(&state.records)?;
            self.markers.set(sandbox)?;
            on_disk.marker = Some(sandbox.clone());
            Failpoint::MarkerSet.reach();
        }
        for (claim, spec) in
            wanted.specs.iter().filter(|(claim, spec)| on_disk.specs.get(*claim) != Some(spec))
        {
            self.specs.write(claim, spec)?;
        }
        if wanted == OnDisk::default() {
            pods.on_disk.remove(pod_uid);
            pods.patient.remove(pod_uid);
        } else {
            *on_disk = wanted;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnDisk {
    /// What a pod in `state` is to have. Until it is attached its containers are not created, unless they
    /// `may_wait_in_hook`.
    fn wanted(state: &PodState, may_wait_in_hook: bool) -> Self {
        let metadata = state.records.iter().map(|record| RequestKey::of(&record.plan)).collect();
        let Some(sandbox) = &state.sandbox else { return Self { metadata, ..Self::default() } };
        let open = state.gate(&sandbox.id) == Gate::Open;
        let form = if open || may_wait_in_hook { Form::Hook } else { Form::Shut };
        let spec = |record: &Record| (record.plan.claim.uid.clone(), Spec::new(&record.plan, form));
        let specs = state.records.iter().map(spec).collect();
        Self { metadata, specs, marker: open.then(|| sandbox.id.clone()) }
    }
}

impl Observer for GateKeeper {
    /// A few small files, most of them on a file system in memory.
    async fn observe(&self, pod_uid: &str, state: &PodState) -> Result<(), String> {
        let _ = self.news.send(News::Attachments { pod_uid: pod_uid.to_owned(), state: state.clone() });
        // Without its files the gate stays shut, which is the safe side.
        self.put_on_disk(pod_uid, state).map_err(|error| {
            tracing::error!(pod.uid = pod_uid, %error, "cannot write what the pod's containers need: the pod waits");
            format!("cannot write what the pod's containers need: {error}")
        })
    }

    fn given_up(&self, plan: &Plan, why: &str) {
        let _ = self.news.send(News::GivenUp { plan: Box::new(plan.clone()), why: why.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use netclaim_driver::attach::record::Phase;

    use super::super::cdi::HookCommand;
    use super::*;
    use crate::fixtures::{attached, record, sandbox};

    fn keeper(dir: &Path, records: &[Record]) -> GateKeeper {
        let hook = HookCommand { path: "/h".into(), socket: "/s".into(), markers: "/m".into() };
        let specs = CdiSpecs::new(&dir.join("cdi"), "netclaim.dev", hook).unwrap();
        GateKeeper::take_over(
            specs,
            MetadataFiles::new(&dir.join("metadata"), &dir.join("cdi"), "netclaim.dev").unwrap(),
            Markers::new(&dir.join("ready")).unwrap(),
            records,
            "b",
            mpsc::unbounded_channel().0,
        )
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
            .filter(|name| !name.contains("_metadata_"))
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn specs_come_with_the_sandbox_and_the_marker_when_all_is_attached() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &[]);
        let planned = || record("b", Phase::Planned);
        let steps = [
            (None, vec![record("a", Phase::Planned), planned()], vec![]),
            (
                Some("s1"),
                vec![record("a", Phase::Planned), planned()],
                vec!["netclaim.dev-claim_a.json", "netclaim.dev-claim_b.json"],
            ),
            (
                Some("s1"),
                vec![attached("a", "s1"), planned()],
                vec!["netclaim.dev-claim_a.json", "netclaim.dev-claim_b.json"],
            ),
            (
                Some("s1"),
                vec![attached("a", "s1"), attached("b", "s1")],
                vec!["netclaim.dev-claim_a.json", "netclaim.dev-claim_b.json", "s1"],
            ),
            (
                Some("s2"),
                vec![attached("a", "s1"), attached("b", "s1")],
                vec!["netclaim.dev-claim_a.json", "netclaim.dev-claim_b.json"],
            ),
            (Some("s2"), vec![attached("a", "s2")], vec!["netclaim.dev-claim_a.json", "s2"]),
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
    async fn nothing_waits_in_a_hook_before_it_is_known_to_have_a_second_chance() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &[]);
        let waiting = |id: &str| {
            let records = vec![record("a", Phase::Planned)];
            PodState { sandbox: Some(sandbox(id)), records, ..PodState::default() }
        };
        let has_hook = || {
            let spec = std::fs::read_to_string(dir.path().join("cdi/netclaim.dev-claim_a.json")).unwrap();
            assert_ne!(spec.contains("createRuntime"), spec.contains("not attached yet"), "{spec}");
            spec.contains("createRuntime")
        };
        keeper.let_wait("p");
        assert!(!keeper.is_patient("p"), "nothing is known of it");
        keeper.observe("p", &waiting("s1")).await.unwrap();
        assert!(!has_hook());
        keeper.let_wait("p");
        assert!(has_hook() && keeper.is_patient("p"));
        keeper.observe("p", &waiting("s2")).await.unwrap();
        assert!(has_hook(), "a pod does not change its mind");
        keeper.observe("p", &PodState::default()).await.unwrap();
        assert!(!keeper.is_patient("p"));
        keeper.observe("q", &waiting("s3")).await.unwrap();
        assert!(!has_hook());
        let attached = PodState { records: vec![attached("a", "s3")], ..waiting("s3") };
        keeper.observe("q", &attached).await.unwrap();
        assert!(has_hook(), "it looks for the marker, which is there");
    }

    #[tokio::test]
    async fn containers_wait_until_their_metadata_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &[]);
        let state =
            |record| PodState { sandbox: Some(sandbox("s1")), records: vec![record], ..PodState::default() };
        let file = dir.path().join("metadata/a_net.json");
        keeper.observe("p", &state(record("a", Phase::Planned))).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "", "there to be mounted");
        // Not to be written: a directory in its place.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let error = keeper.observe("p", &state(attached("a", "s1"))).await.unwrap_err();
        assert!(error.contains("a_net.json"), "{error}");
        assert_eq!(files(dir.path()), ["netclaim.dev-claim_a.json"], "no marker");
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, "").unwrap();
        keeper.observe("p", &state(attached("a", "s1"))).await.unwrap();
        assert_eq!(files(dir.path()), ["netclaim.dev-claim_a.json", "s1"]);
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"interfaceName\": \"net1\""));
        keeper.observe("p", &PodState::default()).await.unwrap();
        assert!(!file.exists());
    }

    #[tokio::test]
    async fn a_new_agent_writes_the_metadata_that_the_old_one_did_not_come_to() {
        let dir = tempfile::tempdir().unwrap();
        let file =
            |claim: &str| std::fs::read_to_string(dir.path().join(format!("metadata/{claim}_net.json")));
        let mut adding = record("adding", Phase::Adding { sandbox: sandbox("s2") });
        adding.plan.pod.uid = "q".into();
        let earlier = keeper(dir.path(), &[]);
        for claim in ["attached", "adding", "gone"] {
            earlier.metadata.provide(&record(claim, Phase::Planned).plan).unwrap();
        }
        keeper(dir.path(), &[attached("attached", "s1"), adding]);
        assert!(file("attached").unwrap().contains("\"generation\": 1"));
        assert_eq!(file("adding").unwrap(), "", "a waiting container may have it mounted");
        assert!(file("gone").is_err());
    }

    #[tokio::test]
    async fn what_a_new_agent_cannot_write_it_writes_when_it_can() {
        let dir = tempfile::tempdir().unwrap();
        drop(keeper(dir.path(), &[]));
        // A directory in the way of the temporary file: works for root too, unlike permissions.
        let obstacle = dir.path().join("cdi/netclaim.dev-claim_a.tmp");
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
        assert_eq!(files(dir.path()), ["netclaim.dev-claim_a.json", "s1"]);
        // The same once more needs no space.
        std::fs::create_dir(&obstacle).unwrap();
        self::keeper(dir.path(), &[attached("a", "s1")]).observe("p", &state).await.unwrap();
    }

    #[tokio::test]
    async fn a_new_agent_keeps_what_is_attached_and_withdraws_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let earlier = keeper(dir.path(), &[]);
        for claim in ["adding", "unknown"] {
            earlier.specs.write(claim, &Spec::new(&record(claim, Phase::Planned).plan, Form::Hook)).unwrap();
        }
        earlier.markers.set("s9").unwrap();
        let mut adding = record("adding", Phase::Adding { sandbox: sandbox("s2") });
        adding.plan.pod.uid = "q".into();
        keeper(dir.path(), &[attached("attached", "s1"), adding]);
        assert_eq!(files(dir.path()), ["netclaim.dev-claim_attached.json", "s1"]);
    }
}
