//! Follows the NetworkAttachments of the node, with one task for each.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http::header::ACCEPT;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, Request};
use kube::runtime::watcher;
use kube::{Api, Resource as _, ResourceExt as _};
use netclaim_api::network_attachment::{NetworkAttachment, attachment_name};
use netclaim_api::reasons::{AttachedReason, PodEvent};
use netclaim_cni::error_chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::report::{Report, Seen};
use super::wanted::{Object, Target, Wanted};
use crate::inventory::watch::events;
use crate::pods::owner::{ObjectRef, Owner, Plan, Record};
use crate::prepare::call::{NodeAgent, Plugins, PrepareError};
use crate::prepare::claim::ReadError;
use crate::reports::METADATA_ONLY;
use crate::runtime::sandboxes::Inspection;

/// Field manager of what the agent writes in the objects.
const MANAGER: &str = "netclaim-agent";
/// Time between two looks at a pod that has no sandbox, and at a DEL that is owed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long an attachment may be planned before the pod's task is told of the sandbox again.
const PLANNED_INTERVAL: Duration = Duration::from_secs(10);
/// Delay before what was refused is planned again, the first one and the longest.
const RETRY: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// Delay after a write that has failed.
const WRITE_RETRY: Duration = Duration::from_secs(2);
/// How long the API server may take for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a DEL is left to the pod's task before the release is asked for again, which hastens it.
const RELEASE_INTERVAL: Duration = Duration::from_secs(60);

/// Carries out the NetworkAttachments of the node.
pub(crate) struct Keeper<N>(pub(crate) Arc<NodeAgent<N>>);

/// What is said of a NetworkAttachment.
struct Saying {
    /// What the object says, as the API server has told it.
    seen: watch::Receiver<Seen>,
    /// What this agent has written since.
    said: Option<Report>,
}

impl Saying {
    /// Waits until the object says something else. What was written may be gone then.
    async fn seen_changed(&mut self) {
        if self.seen.changed().await.is_err() {
            // The object's task is about to end.
            return std::future::pending().await;
        }
        self.said = None;
    }
}

/// The task of one NetworkAttachment.
struct Followed {
    wanted: watch::Sender<Wanted>,
    seen: watch::Sender<Seen>,
    task: AbortOnDropHandle<()>,
}

impl<N: Plugins> Keeper<N> {
    /// Runs until it is dropped. What is attached stays so.
    pub(crate) async fn run(self) {
        let (keeper, mut followed) = (Arc::new(self), HashMap::<String, Followed>::new());
        let resource = ApiResource::erase::<NetworkAttachment>(&());
        let api = Api::<DynamicObject>::all_with(keeper.0.client.clone(), &resource);
        let own = watcher::Config::default().fields(&format!("status.node={}", keeper.0.node_name));
        let mut events = pin!(events(api, own, "NetworkAttachments"));
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                watcher::Event::Init => listed.clear(),
                watcher::Event::InitApply(object) => {
                    listed.extend(object.uid());
                    keeper.update(&mut followed, object);
                }
                watcher::Event::InitDone => {
                    let mut gone: BTreeSet<String> = followed.keys().cloned().collect();
                    gone.extend(keeper.journalled(|_| true).into_iter().map(|(object, _)| object));
                    gone.retain(|uid| !listed.contains(uid));
                    gone.into_iter().for_each(|uid| keeper.follow(&mut followed, uid, Wanted::Gone, None));
                }
                watcher::Event::Apply(object) => keeper.update(&mut followed, object),
                watcher::Event::Delete(object) => {
                    let uid = object.uid().unwrap_or_default();
                    keeper.follow(&mut followed, uid, Wanted::Gone, None);
                }
            }
        }
    }

    fn update(self: &Arc<Self>, followed: &mut HashMap<String, Followed>, object: DynamicObject) {
        let name = object.name_any();
        match object.try_parse::<NetworkAttachment>() {
            Ok(object) => {
                if let (Some(uid), Some(wanted)) = (object.uid(), Wanted::of(&object)) {
                    self.follow(followed, uid, wanted, Some(Seen::of(&object)));
                }
            }
            // What it has stays as it is.
            Err(error) => tracing::error!(name, %error, "cannot read a NetworkAttachment"),
        }
    }

    /// Tells the task of an object what is wanted. Begins one if there is none, or if it has ended.
    fn follow(
        self: &Arc<Self>,
        followed: &mut HashMap<String, Followed>,
        uid: String,
        wanted: Wanted,
        seen: Option<Seen>,
    ) {
        followed.retain(|_, followed| !followed.task.is_finished());
        if let Some(followed) = followed.get(&uid) {
            followed.seen.send_if_modified(|known| {
                let is_new = seen.as_ref().is_some_and(|seen| known != seen);
                *known = seen.unwrap_or_else(|| known.clone());
                is_new
            });
            followed.wanted.send_if_modified(|known| std::mem::replace(known, wanted.clone()) != wanted);
            return;
        }
        let ((wanted, of_wanted), (seen, of_seen)) =
            (watch::channel(wanted), watch::channel(seen.unwrap_or_default()));
        let task = Arc::clone(self).carry_out(uid.clone(), of_wanted, of_seen);
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        followed.insert(uid, Followed { wanted, seen, task });
    }

    /// Does what is wanted of one object until that is gone and nothing is attached.
    async fn carry_out(
        self: Arc<Self>,
        uid: String,
        mut wanted: watch::Receiver<Wanted>,
        seen: watch::Receiver<Seen>,
    ) {
        let mut saying = Saying { seen, said: None };
        loop {
            let now = wanted.borrow_and_update().clone();
            let doing = async {
                match &now {
                    Wanted::Attached(target) => self.attach(&uid, target, &mut saying).await,
                    Wanted::Detached(object) => {
                        self.release(
                            &uid,
                            object.claim_uid.as_deref(),
                            |_| true,
                            Some((object, &mut saying)),
                        )
                        .await;
                        self.say(object, &mut saying, &Report::detached()).await;
                    }
                    Wanted::Gone => self.release(&uid, None, |_| true, None).await,
                }
            };
            tokio::select! {
                () = doing => if *wanted.borrow() == Wanted::Gone { return },
                changed = wanted.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Has the pod attached, and says how far that is. What cannot be done now is tried again.
    async fn attach(&self, uid: &str, target: &Target, saying: &mut Saying) {
        // Of an earlier claim or pod: the controller has gone on while no agent worked.
        let is_other =
            |plan: &Plan| plan.owner.claim.uid != target.claim.uid || plan.owner.pod.uid != target.pod.uid;
        self.release(uid, None, is_other, Some((&target.object, saying))).await;
        let [mut delay, longest] = RETRY;
        loop {
            match self.plan(target).await {
                Ok(true) => {
                    [delay, _] = RETRY;
                    self.follow_pod(target, saying).await;
                }
                Ok(false) => sleep(LOOK_INTERVAL).await,
                Err(message) => {
                    tracing::warn!(attachment = %target.object.name, pod = %target.pod, message, "cannot attach a running pod");
                    self.write(&target.object, saying, &Report::refused(message), Some(&target.pod)).await;
                    sleep(delay).await;
                    delay = longest.min(delay * 2);
                }
            }
        }
    }

    /// Has the attachments journalled. Returns false while the pod has no sandbox here, and if the API server
    /// does not answer.
    ///
    /// # Errors
    /// Why that is not possible.
    async fn plan(&self, target: &Target) -> Result<bool, String> {
        let Target { pod, claim, .. } = target;
        let known = self.0.attacher.plans_of(&claim.uid);
        let inspection = self.0.sandboxes.inspect(&pod.uid, &self.0.boot_id);
        if known.first().is_some_and(|plan| plan.of as usize == known.len()) {
            // The task of a pod that had nothing before has perhaps not heard of its sandbox.
            if let Some(Inspection::Live(live)) = inspection {
                self.0.attacher.sandbox_up(live);
            }
            return Ok(true);
        }
        let sandbox_id = match inspection {
            Some(Inspection::Live(live)) => live.sandbox.id,
            Some(Inspection::Unfit(reason)) => return Err(reason),
            Some(Inspection::Gone | Inspection::Unclear(_)) | None => return Ok(false),
        };
        // The sandbox of the UID may be that of a pod of another namespace, if the status is wrong.
        let found = self.0.pods.metadata(&pod.namespace, &pod.name, &pod.uid).await.flatten();
        if found.is_none_or(|pod| pod.deletion_timestamp.is_some()) {
            return Ok(false);
        }
        match self.0.attach((&target.by(sandbox_id), pod), claim).await {
            Ok(()) => Ok(true),
            Err(error) if passes(&error) => {
                tracing::debug!(%pod, error = error_chain(&error), "cannot attach a running pod yet");
                Ok(false)
            }
            Err(error) => Err(error_chain(&error)),
        }
    }

    /// Says how far the pod's attachments are, as long as it has any of this object.
    async fn follow_pod(&self, target: &Target, saying: &mut Saying) {
        let Some(mut state) = self.0.attacher.watch(&target.pod.uid) else { return };
        loop {
            let report = {
                let state = state.borrow_and_update();
                let its = |record: &&Record| record.plan.owner.claim.uid == target.claim.uid;
                let records: Vec<&Record> = state.records.iter().filter(its).collect();
                if records.is_empty() {
                    return;
                }
                Report::of(&records)
            };
            let is_under_way = report.is_none();
            let is_written = match report {
                // The pod's event of a failed ADD comes with the status of its claim.
                Some(report) => self.write(&target.object, saying, &report, None).await,
                None => true,
            };
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return },
                // The controller has written the condition, for example because no agent worked.
                () = saying.seen_changed() => {}
                () = sleep(WRITE_RETRY), if !is_written => {}
                // The pod's task is told of the sandbox again.
                () = sleep(PLANNED_INTERVAL), if is_under_way => return,
            }
        }
    }

    /// Detaches what the journal has of an object, as far as it is `selected`, and what it has of a claim
    /// that is named. Returns when every owed DEL is done, and says meanwhile in the object what fails.
    ///
    /// The claim is named where nothing may be left of it: its file may be unreadable, which only the release
    /// tells.
    async fn release(
        &self,
        uid: &str,
        claim: Option<&str>,
        selected: impl Fn(&Plan) -> bool,
        mut said_in: Option<(&Object, &mut Saying)>,
    ) {
        self.0.journalled().await;
        let journalled = self.journalled(selected).into_iter();
        let of_object = journalled.filter_map(|(object, claim)| (object == uid).then_some(claim));
        let claims: BTreeSet<String> = of_object.chain(claim.map(str::to_owned)).collect();
        for claim in claims {
            let held = self.0.attacher.plans_of(&claim).into_iter().next().map(|plan| plan.owner);
            while let Err(failure) = self.0.release(&claim).await {
                tracing::warn!(attachment.uid = uid, claim.uid = claim, error = %failure, "cannot detach from a running pod yet");
                if let Some((object, saying)) = &mut said_in {
                    let report = Report::detach_failed(failure.to_string(), &saying.seen.borrow());
                    self.write(object, saying, &report, None).await;
                }
                // The pod's task goes on by itself.
                let asked = Instant::now();
                sleep(LOOK_INTERVAL).await;
                while asked.elapsed() < RELEASE_INTERVAL && !self.0.attacher.plans_of(&claim).is_empty() {
                    sleep(LOOK_INTERVAL).await;
                }
            }
            // Pods may wait for its link or its address.
            held.into_iter().for_each(|owner| self.0.waker.released(&owner.claim, &owner.pod));
        }
    }

    /// Returns what is journalled of NetworkAttachments, each by the UIDs of object and claim.
    fn journalled(&self, selected: impl Fn(&Plan) -> bool) -> BTreeSet<(String, String)> {
        let of = |plan: &Plan| {
            let uid = object_of(&plan.owner).filter(|_| selected(plan))?;
            Some((uid.to_owned(), plan.owner.claim.uid.clone()))
        };
        self.0.attacher.plans(of).into_iter().flatten().collect()
    }

    /// Writes a report that stays true.
    async fn say(&self, object: &Object, saying: &mut Saying, report: &Report) {
        loop {
            let is_written = self.write(object, saying, report, None).await;
            tokio::select! {
                () = saying.seen_changed() => return,
                () = sleep(WRITE_RETRY), if !is_written => {}
            }
        }
    }

    /// Writes a report into the object, if that does not say so, with an event if something fails anew; also
    /// on the pod, if it is given. Returns false if that is to be tried again.
    async fn write(
        &self,
        object: &Object,
        saying: &mut Saying,
        report: &Report,
        pod: Option<&ObjectRef>,
    ) -> bool {
        if saying.seen.has_changed().unwrap_or_default() {
            saying.said = None;
        }
        // What was written may not have come back yet.
        if saying.said.as_ref() == Some(report) {
            return true;
        }
        let known = saying.seen.borrow_and_update().clone();
        let Some(patch) = report.patch(object, &known) else { return true };
        let event = match report.reason {
            AttachedReason::AttachFailed | AttachedReason::Refused => Some(PodEvent::NetworkAttachFailed),
            AttachedReason::DetachFailed => Some(PodEvent::NetworkDetachFailed),
            AttachedReason::Attached | AttachedReason::Detached | AttachedReason::AgentAway => None,
        };
        let is_known = known.is_for(report.reason)
            || saying.said.as_ref().is_some_and(|said| said.reason == report.reason);
        if let Some(reason) = event.filter(|_| !is_known) {
            let events = &self.0.events;
            events.warn_attachment(&object.name, reason, "Attach", report.message.clone());
            pod.into_iter().for_each(|pod| events.warn_pod(pod, reason, "Attach", report.message.clone()));
        }
        match tokio::time::timeout(WRITE_TIMEOUT, self.patch(&object.name, patch)).await {
            Ok(Ok(())) => {
                saying.said = Some(report.clone());
                true
            }
            // It is gone, as the watch is about to say.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => true,
            Ok(Err(error)) => {
                let error = error_chain(&error);
                tracing::warn!(attachment = %object.name, error, "cannot write the NetworkAttachment's status, retrying");
                false
            }
            Err(_) => false,
        }
    }

    async fn patch(&self, object: &ObjectRef, patch: serde_json::Value) -> kube::Result<()> {
        let request = Request::new(NetworkAttachment::url_path(&(), Some(&object.namespace)));
        let params = PatchParams::apply(MANAGER).force();
        let request = request.patch_subresource("status", &object.name, &params, &Patch::Apply(patch));
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        // Only the outcome of the answer counts.
        request.headers_mut().insert(ACCEPT, METADATA_ONLY);
        self.0.client.request_text(request).await.map(drop)
    }
}

/// Returns the UID of the NetworkAttachment that an attachment is for.
fn object_of(owner: &Owner) -> Option<&str> {
    let noted = owner.network_attachment.as_ref().map(|by| by.uid.as_str());
    let of_claim = || owner.claim.name.strip_prefix(attachment_name("").as_str());
    noted.or_else(|| of_claim().filter(|_| owner.has_claim_elsewhere()))
}

/// Whether an error says nothing about the claim.
fn passes(error: &PrepareError) -> bool {
    match error {
        PrepareError::Read(error) => !matches!(error, ReadError::Refused(_)),
        PrepareError::Stopping | PrepareError::Unprepared(_) | PrepareError::Late { .. } => true,
        _ => false,
    }
}
