//! NodePrepareResources and NodeUnprepareResources: from the kubelet's claim to journalled plans, and back.
//!
//! An error costs the user 60 to 90 s until the kubelet asks again, so what may pass is waited for inside the call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use netclaim_driver::attach::record::{DeviceRef, Plan};
use netclaim_driver::attach::{Attacher, CniNetwork};
use netclaim_driver::error_chain;
use netclaim_driver::failpoint::Failpoint;
use tokio::sync::{Mutex, mpsc, watch};

use crate::claim::{Claim, ClaimError, Refusal};
use crate::devices::{self, Held};
use crate::dra::{ClaimRef, NodeResources, PreparedDevice};
use crate::exclusion;
use crate::gate::keeper::GateKeeper;
use crate::inventory::Inventory;
use crate::metrics::{Call, Metrics};
use crate::plan::{Node, Taken, asks_for_namespace, plans, takes_segments};
use crate::status::News;

/// The kubelet waits 45 s for the whole call, with all claims of a pod.
const PATIENCE: Duration = Duration::from_secs(35);
/// How long the API server may take for one answer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long is waited for a link that another pod uses: as long as one that is going mostly takes.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// Prepares and unprepares claims of this node.
pub struct NodeAgent {
    /// Where claims are read.
    pub client: kube::Client,
    /// The driver's name.
    pub driver: String,
    /// The Node object's name.
    pub node_name: String,
    /// Who attaches.
    pub attacher: Arc<Attacher<CniNetwork, GateKeeper>>,
    /// Who knows the names of CDI devices.
    pub gate: Arc<GateKeeper>,
    /// What the node has; `None` until it is known.
    pub inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// Looks whether a plan can be carried out.
    pub plugins: Arc<CniNetwork>,
    /// Where refusals are reported.
    pub news: mpsc::UnboundedSender<News>,
    /// Held while segmentation ids are handed out.
    pub segments: Mutex<()>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// Between two questions to the API server, as long as the kubelet waits.
fn pauses() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(3))
        .without_max_times()
        .with_total_delay(Some(PATIENCE.saturating_sub(READ_TIMEOUT)))
}

impl NodeResources for NodeAgent {
    async fn prepare(&self, claims: Vec<ClaimRef>) -> Vec<Result<Vec<PreparedDevice>, String>> {
        Failpoint::PrepareAsked.reach();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        // Interface names are given in this order: it must not depend on the kubelet's maps.
        let mut order: Vec<usize> = (0..claims.len()).collect();
        order.sort_by(|a, b| claims.get(*a).map(|c| &c.name).cmp(&claims.get(*b).map(|c| &c.name)));
        let mut results: Vec<Result<Vec<PreparedDevice>, String>> =
            claims.iter().map(|_| Err(String::new())).collect();
        for index in order {
            let (Some(claim), Some(result)) = (claims.get(index), results.get_mut(index)) else {
                continue;
            };
            *result = match tokio::time::timeout_at(deadline, self.prepare_one(claim)).await {
                Ok(result) => result,
                Err(_) => Err(format!(
                    "node {}: not ready within {} s, trying again",
                    self.node_name,
                    PATIENCE.as_secs()
                )),
            };
            self.metrics.call(Call::Prepare, result.is_ok());
            if let Err(error) = result {
                tracing::warn!(claim.uid, claim.namespace, claim.name, error, "cannot prepare");
            }
        }
        results
    }

    async fn unprepare(&self, claim: ClaimRef) -> Result<(), String> {
        Failpoint::UnprepareAsked.reach();
        let result = self.attacher.release(&claim.uid).await.map_err(|failure| failure.message);
        self.metrics.call(Call::Unprepare, result.is_ok());
        if let Err(error) = &result {
            tracing::warn!(claim.uid, claim.namespace, claim.name, error, "cannot unprepare yet");
        }
        result
    }
}

impl NodeAgent {
    async fn prepare_one(&self, claim: &ClaimRef) -> Result<Vec<PreparedDevice>, String> {
        let known = self.attacher.plans_of_claim(&claim.uid);
        // Half a claim may be left of a write that failed: it is completed.
        if known.first().is_some_and(|plan| known.len() == plan.of as usize) {
            return Ok(self.prepared(&known, &[]));
        }
        let claim = self.read(claim).await.map_err(|error| self.report(error))?;
        let held = self.attacher.plans(|plan| Held::of(plan, &self.node_name));
        let inventory = devices::settled(&self.inventory().await?, &held);
        let labels = self.namespace_labels(&claim, &inventory).await.map_err(|error| self.report(error))?;
        // Ids are free until they are journalled.
        let _turn = match takes_segments(&claim, &inventory) {
            true => Some(self.segments.lock().await),
            false => None,
        };
        let made = match self.plan(&claim, &inventory, &labels).await {
            Ok(made) => self.links_are_free(&made).await.map(|()| made),
            refused => refused,
        };
        let made = made.map_err(|message| self.report(ClaimError::Final(Box::new(claim.refuse(message)))))?;
        let journalled = self.attacher.prepare(made.clone()).await;
        journalled
            .map_err(|failure| self.report(ClaimError::Final(Box::new(claim.refuse(failure.message)))))?;
        Failpoint::Planned.reach();
        Ok(self.prepared(&made, &claim.observed))
    }

    /// Reads the claim until it is what the kubelet has seen.
    async fn read(&self, claim: &ClaimRef) -> Result<Claim, ClaimError> {
        let read = || async {
            let url = Api::<ResourceClaim>::namespaced(self.client.clone(), &claim.namespace)
                .resource_url()
                .to_owned();
            let request = kube::core::Request::new(url).get(&claim.name, &kube::api::GetParams::default());
            let request = request.map_err(|error| ClaimError::NotYet(error.to_string()))?;
            let name = format!("{}/{}", claim.namespace, claim.name);
            let text = tokio::time::timeout(READ_TIMEOUT, self.client.request_text(request)).await;
            let text = text.map_err(|_| format!("no answer in {} s", READ_TIMEOUT.as_secs()));
            let text = text.and_then(|text| text.map_err(|error| error_chain(&error)));
            let text = text.map_err(|error| {
                ClaimError::NotYet(format!("cannot read ResourceClaim {name} from the API server: {error}"))
            })?;
            Claim::read(&text, &claim.uid, &self.driver)
        };
        read.retry(pauses()).when(|error| matches!(error, ClaimError::NotYet(_))).await
    }

    async fn inventory(&self) -> Result<Arc<Inventory>, String> {
        let mut inventory = self.inventory.clone();
        let known = inventory.wait_for(Option::is_some).await.ok().and_then(|known| known.clone());
        known.ok_or_else(|| "the agent is stopping: try again".to_owned())
    }

    /// The labels of the claim's namespace, where they are needed.
    async fn namespace_labels(
        &self,
        claim: &Claim,
        inventory: &Inventory,
    ) -> Result<BTreeMap<String, String>, ClaimError> {
        if !asks_for_namespace(claim, inventory) {
            return Ok(BTreeMap::new());
        }
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let name = &claim.object.namespace;
        let read = || async {
            let found = tokio::time::timeout(READ_TIMEOUT, namespaces.get_metadata(name)).await;
            let found = found.map_err(|_| format!("no answer in {} s", READ_TIMEOUT.as_secs()));
            found.and_then(|found| found.map_err(|error| error_chain(&error)))
        };
        let found = read.retry(pauses()).await;
        let found = found.map_err(|error| {
            ClaimError::NotYet(format!("cannot read Namespace {name} from the API server: {error}"))
        })?;
        Ok(found.metadata.labels.unwrap_or_default())
    }

    async fn plan(
        &self,
        claim: &Claim,
        inventory: &Inventory,
        namespace_labels: &BTreeMap<String, String>,
    ) -> Result<Vec<Plan>, String> {
        let state =
            self.attacher.watch(&claim.pod.uid).map(|state| state.borrow().clone()).unwrap_or_default();
        let others = state.records.into_iter().filter(|record| record.plan.claim.uid != claim.object.uid);
        let of_others = |plan: &Plan| devices::id_of(plan).filter(|_| plan.claim.uid != claim.object.uid);
        let taken = Taken {
            names: others.map(|record| record.plan.if_name).collect(),
            segments: self.attacher.plans(of_others).into_iter().flatten().collect(),
        };
        let node = Node { name: &self.node_name, inventory, namespace_labels };
        let mut settled = Vec::new();
        for plan in plans(claim, node, &taken)? {
            let whose = format!(
                "request {:?} of ResourceClaim {}, network {}, node {}",
                plan.device.request, plan.claim, plan.network, self.node_name
            );
            let plan = self.plugins.settle(plan).await;
            settled.push(plan.map_err(|failure| format!("{whose}: {}", failure.message))?);
        }
        Ok(settled)
    }

    /// Waits until no pod has a link of `plans` in a use that excludes theirs.
    async fn links_are_free(&self, plans: &[Plan]) -> Result<(), String> {
        let deadline = tokio::time::Instant::now() + LINK_PATIENCE;
        loop {
            let others = self.attacher.plans(Plan::clone);
            // Of the claim itself only what comes before: the other way round it would be said twice.
            let obstacle = (0..).zip(plans).find_map(|(index, plan)| {
                let others = others.iter().filter(|other| other.claim.uid != plan.claim.uid);
                Some((plan, exclusion::obstacle(plan, others.chain(plans.iter().take(index)))?))
            });
            let Some((plan, other)) = obstacle else { return Ok(()) };
            let refusal = exclusion::refusal(plan, other);
            if other.claim.uid == plan.claim.uid {
                return Err(refusal);
            }
            // One that is gone by now is not among the next look's.
            let Some(mut state) = self.attacher.watch(&other.pod.uid) else { continue };
            let released = state.wait_for(|state| state.records.iter().all(|record| record.plan != *other));
            if tokio::time::timeout_at(deadline, released).await.is_err() {
                return Err(refusal);
            }
        }
    }

    fn prepared(&self, plans: &[Plan], observed: &[DeviceRef]) -> Vec<PreparedDevice> {
        let device = |device: &DeviceRef, cdi_devices| PreparedDevice {
            request: device.main_request().to_owned(),
            pool: device.pool.clone(),
            device: device.device.clone(),
            cdi_devices,
            share_id: device.share_id.clone(),
        };
        let attached = plans.iter().map(|plan| {
            // The kubelet shows one health for each first one, so it is the request's and not the claim's.
            let cdi = vec![self.gate.metadata().device(plan), self.gate.specs().device(&plan.claim.uid)];
            device(&plan.device, cdi)
        });
        attached.chain(observed.iter().map(|observed| device(observed, Vec::new()))).collect()
    }

    /// Notes a refusal in the claim's status; returns what the kubelet is told.
    fn report(&self, error: ClaimError) -> String {
        let message = error.to_string();
        if let ClaimError::Final(refusal) = error {
            let refusal: Box<Refusal> = refusal;
            let _ = self.news.send(News::Refused(refusal));
        }
        message
    }
}
