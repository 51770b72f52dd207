//! Pods that no node can serve, beside many claims of others: when each gets its event with the cause, and
//! what the controller uses for that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use netclaim_api::reasons::{PodEvent, Reason as _};
use netclaim_tests::{Cluster, objects};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::cluster::{Controller, TIMEOUT, admin, client, on_cluster};
use crate::fleet::{self, LINKS, Uses};
use crate::networks::ClaimNetworks;
use crate::report::{Report, mib, millis};
use crate::scheduling::{Others, Profile, Scheduling};
use crate::users::{NEW, claims, published};

/// Pods that wait. Each has a claim of its own, and is judged alone.
const PODS: usize = 50;
/// How long they wait after the last event. The controller judges them again in this time.
const LATER: Duration = Duration::from_secs(120);

/// Measures it, on its own cluster.
pub fn pods_that_wait_get_their_cause() -> Result<()> {
    on_cluster("explaining", async |cluster, count| measure(cluster, count).await)
}

async fn measure(cluster: &Cluster, count: usize) -> Result<()> {
    let mut report = Report::new("explaining")?;
    let client = client(&admin(cluster)).await?;
    let networks = ClaimNetworks::create(cluster, &client, Uses::ClaimNetworks)?;
    let nodes = published(&client, count, Uses::ClaimNetworks, &mut report).await?;
    let scheduling = Scheduling::new(cluster, &client, Profile::Default)?;
    let others = claims()?.first().copied().unwrap_or_default();
    scheduling
        .allocate(&nodes, &Others::on_all_networks_but(NEW, Uses::ClaimNetworks), 0..others, &mut report)
        .await?;
    let controller = Controller::start(cluster, &admin(cluster))?;
    networks.are_on(count).await?;
    let before = controller.usage()?;
    report.row("controller: most memory before", mib(before.peak), "MiB")?;

    let begin = Instant::now();
    create_pods(cluster)?;
    cluster.service("start", "scheduler")?;
    let events = timeout(TIMEOUT, all_explained(&client, begin)).await.context("a pod has no event")??;
    let (first, last) = (events.values().min(), events.values().max());
    let explained = controller.usage()?;
    let (first, last) = (first.context("no pod")?, last.context("no pod")?);
    report.seconds("from the pods to the first event", *first)?;
    report.seconds(format!("from the pods to the last event, of {PODS}"), *last)?;
    report
        .seconds("controller: CPU until then", Duration::from_secs_f64(millis(explained.cpu - before.cpu)))?;
    report.row("controller: most memory until then", mib(explained.peak), "MiB")?;
    sleep(LATER).await;
    let later = controller.usage()?;
    let title = format!("controller: CPU in the next {} s", LATER.as_secs());
    report.seconds(title, Duration::from_secs_f64(millis(later.cpu - explained.cpu)))?;
    report.row("controller: memory then", mib(later.rss), "MiB")?;
    cluster.service("stop", "scheduler").map(drop)
}

/// Creates pods whose claims ask for more than any device has.
fn create_pods(cluster: &Cluster) -> Result<()> {
    let network = fleet::network(LINKS[0], 0);
    let expression = format!(
        "device.attributes[\"netclaim.dev\"].network == {network:?} && device.attributes[\"netclaim.dev\"].mtu > 9000"
    );
    let mut list = vec![objects::class("jumbo", &expression)];
    for n in 0..PODS {
        let name = format!("waiting-{n}");
        let mut pod = objects::pod(&name, &[&name]);
        fleet::tolerate(&mut pod);
        list.extend([objects::claim(&name, "jumbo"), pod]);
    }
    let list: Value = json!({"apiVersion": "v1", "kind": "List", "items": list});
    cluster.kubectl_with(&["create", "-f", "-"], &list.to_string()).map(drop)
}

/// Waits until each pod has an event; returns when each had its first one.
async fn all_explained(client: &Client, begin: Instant) -> Result<BTreeMap<String, Duration>> {
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let ours = ListParams::default().fields(&format!("reason={}", PodEvent::NetworkNotAllocated.as_str()));
    let mut seen = BTreeMap::new();
    while seen.len() < PODS {
        for event in events.list(&ours).await? {
            seen.entry(event.involved_object.name.unwrap_or_default()).or_insert_with(|| begin.elapsed());
        }
        sleep(Duration::from_millis(250)).await;
    }
    Ok(seen)
}
