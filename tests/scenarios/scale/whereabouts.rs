//! A model of the requests by which whereabouts 3a262bd (2026-06) gives a pod an address and takes it back.
//! It is not whereabouts: no process is started for a pod, all share connections, and only the lowest free
//! offset is looked for.
//!
//! * The lock is a Lease of the cluster, by client-go's leader election: get and update; if another holds it,
//!   again after 500 to 1,100 ms. The holder renews it at once, and releases it by get and update.
//! * Then: list the pools; get the pool; get the reservation of the lowest free address; patch the pool, if
//!   its resourceVersion is the same; create the reservation. A release does the same with delete, without
//!   the get.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use netclaim_tests::objects::foreign_definition;
use netclaim_tests::{AuditLog, Cluster};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::report::Report;

/// Pods of each measurement.
const PODS: usize = 300;
/// Nodes, each of which starts its pods one after another.
const NODES: [usize; 3] = [1, 10, 50];
/// `leader_lease_duration`, its default.
const LEASE_DURATION: Duration = Duration::from_millis(1500);
/// `leader_retry_period`, its default.
const RETRY_PERIOD: Duration = Duration::from_millis(500);
/// client-go's `JitterFactor`.
const JITTER: f64 = 1.2;
/// `DatastoreRetries`.
const RETRIES: usize = 100;
const NAMESPACE: &str = "kube-system";
const GROUP: &str = "whereabouts.cni.cncf.io";
const POOL: &str = "10.200.0.0-16";

/// Lets pods get addresses and give them back, with more and more nodes at once.
pub async fn measure(cluster: &Cluster, client: &Client, user: &str, report: &mut Report) -> Result<()> {
    cluster.kubectl_with(&["create", "-f", "-"], &crds().to_string())?;
    cluster.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"])?;
    for nodes in NODES {
        let model = Model::create(client, nodes).await?;
        for (what, is_add) in [("ADD", true), ("DEL", false)] {
            let title = format!("whereabouts' way, {nodes} nodes, {what}");
            let log = AuditLog::from_now(cluster)?;
            let begin = Instant::now();
            let of_node = |node: usize| model.of_node(node, nodes, is_add);
            let times: Vec<Vec<Duration>> =
                stream::iter(0..nodes).map(of_node).buffer_unordered(nodes).try_collect().await?;
            let took = begin.elapsed();
            let times: Vec<Duration> = times.into_iter().flatten().collect();
            let requests: usize = log.requests_of(user)?.values().sum();
            for (request, count) in log.requests_of(user)? {
                report.row(format!("{title}: {request}"), count as f64, "")?;
            }
            report.row(format!("{title}: requests for each pod"), requests as f64 / PODS as f64, "")?;
            report.times(&title, &format!("whereabouts-{nodes}-{what}.csv"), &times)?;
            report.seconds(format!("{title}, {PODS} pods"), took)?;
        }
        ensure!(model.allocations().await?.is_empty(), "addresses are left in the pool");
    }
    Ok(())
}

/// The definitions, as far as the requests need them.
fn crds() -> Value {
    let crd = |kind, plural| foreign_definition(GROUP, "v1alpha1", kind, plural);
    let items =
        [crd("IPPool", "ippools"), crd("OverlappingRangeIPReservation", "overlappingrangeipreservations")];
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

struct Model {
    leases: Api<Lease>,
    pools: Api<DynamicObject>,
    reservations: Api<DynamicObject>,
    reservation: ApiResource,
}

impl Model {
    /// Creates an empty pool.
    async fn create(client: &Client, nodes: usize) -> Result<Self> {
        let resource = |kind: &str, plural: &str| {
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1alpha1", kind), plural)
        };
        let pool = resource("IPPool", "ippools");
        let reservation = resource("OverlappingRangeIPReservation", "overlappingrangeipreservations");
        let model = Self {
            leases: Api::namespaced(client.clone(), NAMESPACE),
            pools: Api::namespaced_with(client.clone(), NAMESPACE, &pool),
            reservations: Api::namespaced_with(client.clone(), NAMESPACE, &reservation),
            reservation,
        };
        if nodes == NODES[0] {
            let spec = json!({"spec": {"range": "10.200.0.0/16", "allocations": {}}});
            let object = DynamicObject::new(POOL, &pool).data(spec);
            model.pools.create(&PostParams::default(), &object).await?;
        }
        Ok(model)
    }

    async fn allocations(&self) -> Result<serde_json::Map<String, Value>> {
        Ok(allocations(&self.pools.get(POOL).await?))
    }

    /// Runs the pods of one node, one after another; returns the time of each.
    async fn of_node(&self, node: usize, nodes: usize, is_add: bool) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        for pod in (node..PODS).step_by(nodes) {
            let begin = Instant::now();
            let pod = format!("default/pod-{pod}");
            let mut lock = Lock::new(&self.leases, &pod);
            lock.acquire().await?;
            let work = async { if is_add { self.add(&pod).await } else { self.delete(&pod).await } };
            let (renewed, done) = tokio::join!(lock.renew(), work);
            done?;
            renewed?;
            lock.release().await?;
            times.push(begin.elapsed());
        }
        Ok(times)
    }

    async fn add(&self, pod: &str) -> Result<()> {
        self.pools.list(&ListParams::default()).await?;
        for _ in 0..RETRIES {
            let pool = self.pools.get(POOL).await?;
            let taken = allocations(&pool);
            let offset = (1..).find(|offset: &u32| !taken.contains_key(&offset.to_string()));
            let offset = offset.context("the pool is full")?;
            let name = format!("10.200.{}.{}", offset / 256, offset % 256);
            ensure!(self.reservations.get_opt(&name).await?.is_none(), "{name} is reserved by another");
            let path = format!("/spec/allocations/{offset}");
            let entry = json!({"id": format!("container-of-{pod}"), "podref": pod, "ifname": "net1"});
            let change = json!([
                {"op": "test", "path": path, "value": null},
                {"op": "add", "path": path, "value": entry},
            ]);
            if !self.patch(&pool, change).await? {
                continue;
            }
            let spec = json!({"spec": {"podref": pod, "ifname": "net1"}});
            let reservation = DynamicObject::new(&name, &self.reservation).data(spec);
            self.reservations.create(&PostParams::default(), &reservation).await?;
            return Ok(());
        }
        bail!("the pool has changed {RETRIES} times")
    }

    async fn delete(&self, pod: &str) -> Result<()> {
        self.pools.list(&ListParams::default()).await?;
        for _ in 0..RETRIES {
            let pool = self.pools.get(POOL).await?;
            let taken = allocations(&pool);
            let entry = taken.iter().find(|(_, entry)| entry["podref"] == pod);
            let (offset, _) = entry.with_context(|| format!("{pod} has no address"))?;
            let number: u32 = offset.parse()?;
            let change = json!([{"op": "remove", "path": format!("/spec/allocations/{offset}")}]);
            if self.patch(&pool, change).await? {
                let name = format!("10.200.{}.{}", number / 256, number % 256);
                self.reservations.delete(&name, &DeleteParams::default()).await?;
                return Ok(());
            }
        }
        bail!("the pool has changed {RETRIES} times")
    }

    /// Changes the pool, unless it is another one than was read. Returns whether it did.
    async fn patch(&self, pool: &DynamicObject, change: Value) -> Result<bool> {
        let version =
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": pool.resource_version()});
        let change = change.as_array().into_iter().flatten().cloned();
        let patch = serde_json::from_value(std::iter::once(version).chain(change).collect())?;
        match self.pools.patch(POOL, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn allocations(pool: &DynamicObject) -> serde_json::Map<String, Value> {
    pool.data["spec"]["allocations"].as_object().cloned().unwrap_or_default()
}

/// The lock, as client-go's leader election takes and releases it.
struct Lock<'a> {
    api: &'a Api<Lease>,
    identity: &'a str,
    /// The lease as read or written last.
    lease: Option<Lease>,
    /// When it was first seen so.
    observed: Instant,
}

impl<'a> Lock<'a> {
    fn new(api: &'a Api<Lease>, identity: &'a str) -> Self {
        Self { api, identity, lease: None, observed: Instant::now() }
    }

    async fn acquire(&mut self) -> Result<()> {
        while !self.try_acquire().await? {
            sleep(RETRY_PERIOD.mul_f64(1.0 + JITTER * fastrand::f64())).await;
        }
        Ok(())
    }

    async fn try_acquire(&mut self) -> Result<bool> {
        let Some(found) = self.api.get_opt("whereabouts").await? else {
            let metadata = ObjectMeta { name: Some("whereabouts".to_owned()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(self.identity)) };
            return self.took(self.api.create(&PostParams::default(), &lease).await);
        };
        if self.lease.as_ref().and_then(|lease| lease.spec.as_ref()) != found.spec.as_ref() {
            self.observed = Instant::now();
        }
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
        self.lease = Some(found);
        let is_held = !holder.is_empty() && holder != self.identity;
        if is_held && self.observed.elapsed() < LEASE_DURATION {
            return Ok(false);
        }
        self.write(self.identity).await
    }

    async fn renew(&mut self) -> Result<()> {
        if !self.write(self.identity).await? {
            self.acquire().await?;
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.lease = Some(self.api.get("whereabouts").await?);
        self.write("").await.map(drop)
    }

    async fn write(&mut self, holder: &str) -> Result<bool> {
        let spec = self.spec(holder);
        let mut lease = self.lease.clone().context("no lease is known")?;
        lease.spec = Some(spec);
        self.took(self.api.replace("whereabouts", &PostParams::default(), &lease).await)
    }

    fn took(&mut self, written: kube::Result<Lease>) -> Result<bool> {
        match written {
            Ok(lease) => {
                (self.lease, self.observed) = (Some(lease), Instant::now());
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn spec(&self, holder: &str) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(1),
            acquire_time: now.clone(),
            renew_time: now,
            lease_transitions: Some(0),
            ..LeaseSpec::default()
        }
    }
}
