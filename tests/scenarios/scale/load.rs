//! Addresses under load, in the form of a comparison of address managers that others have published: 100
//! Deployments of ten pods on ten nodes, with exactly as many addresses as pods, are created, restarted and
//! deleted. Beside them, the same pods without claims, and with addresses to spare; all of it with
//! Kubernetes' default rates of requests, which limit it, and with higher ones.
//!
//! API server, scheduler, controller manager and netclaim's controller are real; kubelets and agents are
//! [requests](crate::kubelets), and what [agents](crate::live_agents) decide about blocks is real. So this is
//! what a control plane needs: no container is started.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use netclaim_api::addresses::{AddressBlock, AddressPoolSpec};
use netclaim_tests::{Cluster, objects};
use serde_json::json;
use tokio::time::sleep;

use crate::addresses::UPLINK;
use crate::cluster::{self, Controller, admin, client, create_account, on_cluster};
use crate::control_plane::{ControlPlane, Rates};
use crate::fleet::{self, AT_ONCE};
use crate::kubelets::{KIND, Kubelets, Life};
use crate::live_agents::LiveAgents;
use crate::networks::{self, class, with_addresses};
use crate::report::{Report, mib};

const NODES: usize = 10;
const DEPLOYMENTS: usize = 100;
const REPLICAS: usize = 10;
const PODS: usize = DEPLOYMENTS * REPLICAS;
/// The ClaimNetwork.
const NETWORK: &str = "load";
/// How long each step may take.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Measures pods without and with claims, with the default rates of requests and with higher ones.
pub fn as_many_pods_as_addresses_are_created_restarted_and_deleted() -> Result<()> {
    on_cluster("load", async |cluster, _| {
        let client = client(&admin(cluster)).await?;
        cluster::create_crds(cluster)?;
        create_account(cluster)?;
        let nodes = fleet::nodes(&client, NODES).await?;
        let mut report = Report::new("load")?;
        report.row("nodes", NODES as f64, "")?;
        let control_plane = ControlPlane::new(cluster)?;
        let load = Load { cluster, client: &client, nodes: &nodes, control_plane: &control_plane };
        for (rates, title) in [(Rates::Default, "default rates"), (Rates::Raised, "higher rates")] {
            control_plane.start(rates)?;
            load.without_claims(title, &mut report).await?;
            for (what, ask, room) in [
                ("as many addresses", Ask::Template, Room::Exact),
                ("addresses to spare", Ask::Template, Room::Plenty),
                ("addresses to spare, by a line", Ask::Line, Room::Plenty),
            ] {
                load.with_addresses(&format!("{title}, {what}"), ask, room, &mut report).await?;
            }
            control_plane.stop()?;
        }
        Ok(())
    })
}

/// How pods ask for an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// They do not.
    No,
    /// By a template of claims.
    Template,
    /// By a line in the limits of a container, for which the scheduler makes the claim.
    Line,
}

/// How many addresses there are.
#[derive(Clone, Copy)]
enum Room {
    /// As many as pods, in blocks of 16.
    Exact,
    /// 254 on each node, in one block.
    Plenty,
}

struct Load<'a> {
    cluster: &'a Cluster,
    client: &'a Client,
    nodes: &'a [Node],
    control_plane: &'a ControlPlane<'a>,
}

impl Load<'_> {
    async fn without_claims(&self, title: &str, report: &mut Report) -> Result<()> {
        let kubelets = Kubelets::start(self.client, None);
        self.run(&format!("{title}, no claims"), ("plain", Ask::No), &kubelets, None, report).await
    }

    async fn with_addresses(&self, title: &str, ask: Ask, room: Room, report: &mut Report) -> Result<()> {
        let addresses = match room {
            Room::Exact => {
                let last =
                    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 1, 0).to_bits() + u32::try_from(PODS)? - 1);
                let range = json!({"subnet": "10.0.0.0/16", "rangeStart": "10.0.1.0", "rangeEnd": last});
                json!({"blockSize": {"ipv4": 28}, "ranges": [range]})
            }
            Room::Plenty => {
                let range = json!({"subnet": "10.0.0.0/16"});
                json!({"blockSize": {"ipv4": 24}, "ranges": [range]})
            }
        };
        let pool: AddressPoolSpec = serde_json::from_value(addresses.clone())?;
        let network = with_addresses(NETWORK, UPLINK, "10.0.0.0/16", addresses);
        let class = class(NETWORK);
        let mut template = objects::claim_template(NETWORK, &class);
        template["spec"]["metadata"] = json!({"labels": {KIND: NETWORK}});
        let list = json!({"apiVersion": "v1", "kind": "List",
            "items": [network, objects::class_of_network(&class, NETWORK), template]});
        self.cluster.kubectl_with(&["apply", "-f", "-"], &list.to_string())?;

        let mut controller = Controller::start(self.cluster, &admin(self.cluster))?;
        let agents = Arc::new(LiveAgents::start(self.client, self.nodes, NETWORK, pool)?);
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        until("each node has addresses", async || {
            let slices = slices.list(&ListParams::default()).await?;
            let devices = slices.iter().filter_map(|slice| slice.spec.devices.as_ref()?.first());
            Ok((devices.filter(|device| device.taints.is_none()).count() == NODES).then_some(()))
        })
        .await?;
        let kubelets = Kubelets::start(self.client, Some(Arc::clone(&agents)));
        self.run(title, (NETWORK, ask), &kubelets, Some(&controller), report).await?;
        let counts = agents.counts();
        ensure!(counts.pods == 2 * PODS, "{} pods got an address", counts.pods);
        ensure!(agents.held() == 0, "{} addresses are in use", agents.held());
        report.row(format!("{title}: agents ask for more"), counts.more as f64, "")?;
        report.row(format!("{title}: agents ask for less"), counts.less as f64, "")?;
        report.row(format!("{title}: blocks given back"), counts.given_back as f64, "")?;
        report.times(&format!("{title}: answer to more"), &file(title, "answers"), &counts.answers)?;
        report.row(format!("{title}: controller: most memory"), mib(controller.usage()?.peak), "MiB")?;

        networks::api(self.client).delete(NETWORK, &DeleteParams::default()).await?;
        let blocks: Api<AddressBlock> = Api::all(self.client.clone());
        until("no block is left", async || {
            let left = blocks.list_metadata(&ListParams::default()).await?.items.len();
            Ok((left == 0).then_some(()))
        })
        .await?;
        controller.stop()
    }

    /// Creates the Deployments, deletes all of their pods, and deletes the Deployments.
    async fn run(
        &self,
        title: &str,
        (kind, ask): (&str, Ask),
        kubelets: &Kubelets,
        controller: Option<&Controller>,
        report: &mut Report,
    ) -> Result<()> {
        let deployments: Api<Deployment> = Api::default_namespaced(self.client.clone());
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let of_kind = ListParams::default().labels(&format!("{KIND}={kind}"));
        let before = self.control_plane.costs(controller)?;

        let begin = Instant::now();
        let create = |n: usize| {
            let deployments = deployments.clone();
            async move {
                let deployment = deployment(kind, n, ask)?;
                deployments.create(&PostParams::default(), &deployment).await.map(drop).map_err(Error::from)
            }
        };
        stream::iter(0..DEPLOYMENTS).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        let created = all(kubelets, kind, PODS, "run", |life| life.running.is_some()).await?;
        report.seconds(format!("{title}: created"), begin.elapsed())?;
        report.times(&format!("{title}: created to Running"), &file(title, "running"), &times(&created))?;

        let begin = Instant::now();
        pods.delete_collection(&DeleteParams::default(), &of_kind).await?;
        all(kubelets, kind, 2 * PODS, "run", |life| life.running.is_some()).await?;
        report.seconds(format!("{title}: restarted"), begin.elapsed())?;

        let begin = Instant::now();
        deployments.delete_collection(&DeleteParams::default(), &of_kind).await?;
        all(kubelets, kind, 2 * PODS, "are gone", |life| life.gone.is_some()).await?;
        report.seconds(format!("{title}: deleted"), begin.elapsed())?;
        let claims: Api<ResourceClaim> = Api::default_namespaced(self.client.clone());
        until("no claim is left", async || {
            let left = claims.list_metadata(&ListParams::default()).await?.items.len();
            Ok((left == 0).then_some(()))
        })
        .await?;
        report.seconds(format!("{title}: deleted, and no claim left"), begin.elapsed())?;
        for ((name, before), (_, after)) in before.iter().zip(self.control_plane.costs(controller)?) {
            let each = (after - before) as f64 / (2 * PODS) as f64;
            report.row(format!("{title}: CPU of {name} for a pod"), each, "ms")?;
        }
        Ok(())
    }
}

/// The name of a file of raw numbers.
fn file(title: &str, what: &str) -> String {
    format!("{what}-{}.csv", title.replace(", ", "-").replace(' ', "-"))
}

/// From the creation of pods until they run.
fn times(pods: &[Life]) -> Vec<Duration> {
    pods.iter().filter_map(|life| Some(life.running? - life.created)).collect()
}

/// Waits until so many pods are so, and returns all.
async fn all(
    kubelets: &Kubelets,
    kind: &str,
    count: usize,
    what: &str,
    is_so: fn(&Life) -> bool,
) -> Result<Vec<Life>> {
    until(&format!("{count} pods {kind} {what}"), async || {
        let pods = kubelets.pods(kind)?;
        Ok((pods.iter().filter(|life| is_so(life)).count() >= count).then_some(pods))
    })
    .await
}

/// Waits until there is a result.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let begin = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(begin.elapsed() < TIMEOUT, "too late: {what}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// The Deployment with this number.
fn deployment(kind: &str, n: usize, ask: Ask) -> Result<Deployment> {
    let name = format!("{kind}-{n}");
    let labels = json!({"app": name, KIND: kind});
    let mut pod = match ask {
        Ask::Template => objects::pod_of_template("", kind),
        Ask::No | Ask::Line => objects::pod("", &[]),
    };
    if ask == Ask::Line {
        let resource = format!("deviceclass.resource.kubernetes.io/{}", class(kind));
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {resource: "1"}});
    }
    fleet::tolerate(&mut pod);
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]}},
    });
    serde_json::from_value(deployment).context("not a Deployment")
}
