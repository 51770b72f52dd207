//! The webhook of a controller that is a process, on a cluster without pods.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use netclaim_tests::helm::{Helm, chart};
use netclaim_tests::objects::{self, attachment, list};
use netclaim_tests::{Cluster, SYSTEM, eventually};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::admission::Switch;
use crate::cluster::{Controller, admin};

/// The kind and name of the configuration.
const CONFIGURATION: [&str; 2] = ["validatingwebhookconfiguration", "netclaim-webhook"];
const PORT: u16 = 9443;
/// A candidate takes a lease that has not changed for 20 s.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// Starts a controller that serves the chart's webhook and never leads. The webhook is in force afterwards.
pub async fn start(cluster: &Cluster, client: &Client) -> Result<(Controller, Switch)> {
    let enabled = ["--set", "webhook.enabled=true", "--show-only", "templates/webhook.yaml"];
    cluster.kubectl_with(&["create", "-f", "-"], &Helm::new(cluster)?.template(&chart(), &enabled)?)?;
    let config = netclaim_process::kubernetes::config("netclaim-tests", Some(&admin(cluster))).await?;
    let address = config.cluster_url.host().context("the kubeconfig names no host")?.to_owned();
    // An API server accepts no loopback address here: it is its own.
    let endpoints = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "webhook", "namespace": SYSTEM, "labels": {"kubernetes.io/service-name": "netclaim-webhook"}},
        "ports": [{"name": "webhook", "port": PORT}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
    });
    cluster.kubectl_with(&["create", "-f", "-"], &endpoints.to_string())?;

    let leases: Api<Lease> = Api::namespaced(client.clone(), SYSTEM);
    renew(&leases).await?;
    tokio::spawn(async move {
        loop {
            sleep(RENEW_INTERVAL).await;
            // The next renewal is early enough, too.
            let _ = renew(&leases).await;
        }
    });
    let listen = format!("{address}:{PORT}");
    let args = ["--namespace", SYSTEM, "--webhook-address", &listen];
    let controller = Controller::start_with(cluster, &admin(cluster), &args)?;
    let configuration = eventually(60, "the controller has written path and CA", || {
        let found = cluster.get(&CONFIGURATION)?;
        let is_written = |webhook: &Value| {
            let client = &webhook["clientConfig"];
            client["caBundle"].is_string() && client["service"]["path"].is_string()
        };
        ensure!(list(&found["webhooks"]).all(is_written), "{}", found["webhooks"]);
        Ok(found)
    })?;
    // It is created again as the controller has it, so that the API server also keeps its connections.
    let manifest = json!({
        "apiVersion": configuration["apiVersion"], "kind": configuration["kind"],
        "metadata": {"name": configuration["metadata"]["name"]}, "webhooks": configuration["webhooks"],
    });
    let mut probe = objects::claim("probe", "net");
    probe["spec"]["devices"]["config"] = json!([attachment(json!({"mac": "02:00:5e:10:00"}))]);
    let switch = Switch { manifest: manifest.to_string(), probe, words: "is not a MAC address" };
    switch.set(cluster, true)?;
    Ok((controller, switch))
}

/// Holds the controllers' lease as a replica that does not exist.
async fn renew(leases: &Api<Lease>) -> Result<()> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "netclaim-controller"},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 20, "renewTime": format!("{:.6}", Timestamp::now())},
    });
    let params = PatchParams::apply("netclaim-tests").force();
    leases.patch("netclaim-controller", &params, &Patch::Apply(&lease)).await?;
    Ok(())
}

/// Returns how many reviews the API server has requested from the webhook, by its own count.
pub fn requests(cluster: &Cluster) -> Result<usize> {
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"])?;
    let is_count = |line: &&str| {
        line.starts_with("apiserver_admission_webhook_request_total{") && line.contains(".netclaim.dev\"")
    };
    let counts = metrics.lines().filter(is_count).filter_map(|line| line.rsplit(' ').next());
    counts.map(|count| Ok(count.parse::<f64>()? as usize)).sum()
}
