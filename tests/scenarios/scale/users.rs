//! The scheduler on a fleet as users have it: two uplinks, six ClaimNetworks and one of scope `Cluster`, and
//! many claims of others; beside it, nodes with plain exclusive devices.
//!
//! | variable | meaning |
//! |---|---|
//! | `NETCLAIM_SCALE_CLAIMS` | claims of others, one measurement each: `20000,100000`; by default 20,000 |
//! | `NETCLAIM_SCHEDULER` | another scheduler, such as one with the patches of `tests/bench/scheduler` |

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use netclaim_tests::Cluster;
use tokio::time::timeout;

use crate::cluster::{PUBLISHING, admin, client, on_cluster};
use crate::fleet::{self, EXCLUSIVE, Fleet, LINKS, Uses};
use crate::networks::{ClaimNetworks, class};
use crate::report::Report;
use crate::scheduling::{Others, Profile, Scheduling};

/// Claims of others, unless `$NETCLAIM_SCALE_CLAIMS` says otherwise.
const CLAIMS: &str = "20000";

/// How the scheduler is set up, by the end of the titles.
const PROFILES: [(&str, Profile); 3] =
    [("", Profile::Default), (", 2 % of nodes", Profile::Percent(2)), (", no scores", Profile::Unscored)];

/// The first link's ClaimNetwork, which is not used.
pub const NEW: usize = 1;

/// Measures ClaimNetworks in the first and in the last place, an unused one, and one of scope
/// `Cluster`, beside claims of others.
pub fn networks_are_scheduled_beside_many_claims() -> Result<()> {
    on_cluster("users", async |cluster, count| {
        let mut report = Report::new("users")?;
        let client = client(&admin(cluster)).await?;
        ClaimNetworks::create(cluster, &client, Uses::ClaimNetworks)?;
        let nodes = published(&client, count, Uses::ClaimNetworks, &mut report).await?;
        ClaimNetworks::create_everywhere(cluster, &client).await?;
        of_networks(cluster, &client, &nodes, &mut report).await
    })
}

/// How many claims of others there are in each measurement.
pub fn claims() -> Result<Vec<usize>> {
    let claims = std::env::var("NETCLAIM_SCALE_CLAIMS").unwrap_or_else(|_| CLAIMS.to_owned());
    let parse =
        |claims: &str| claims.parse().with_context(|| format!("NETCLAIM_SCALE_CLAIMS has {claims:?}"));
    claims.split(',').map(parse).collect()
}

async fn of_networks(cluster: &Cluster, client: &Client, nodes: &[Node], report: &mut Report) -> Result<()> {
    let last = Uses::ClaimNetworks.networks() - 1;
    let first = ("first", fleet::network(LINKS[0], 0));
    let last = ("last", fleet::network(LINKS[1], last));
    let new = ("new", fleet::network(LINKS[0], NEW));
    let cluster_wide = ("cluster-wide", fleet::EVERYWHERE.to_owned());
    let default = Scheduling::new(cluster, client, Profile::Default)?;
    default.measure("pods without claims", "plain", None, report).await?;
    let (others, mut before) = (Others::on_all_networks_but(NEW, Uses::ClaimNetworks), 0);
    for claims in claims()? {
        default.allocate(nodes, &others, before..claims, report).await?;
        before = claims;
        for (number, (title, profile)) in PROFILES.into_iter().enumerate() {
            let scheduling = Scheduling::new(cluster, client, profile)?;
            let places = match profile {
                Profile::Default => vec![&first, &last, &new, &cluster_wide],
                Profile::Percent(_) | Profile::Unscored => vec![&first, &cluster_wide],
            };
            for (place, network) in places {
                let title = format!("{place} ClaimNetwork beside {claims}{title}");
                let kind = format!("{place}-{claims}-{number}");
                scheduling.measure(&title, &kind, Some(&class(network)), report).await?;
            }
        }
    }
    Ok(())
}

/// Measures a ClaimNetwork of scope `Cluster` beside claims of others that share it.
pub fn a_cluster_wide_network_is_scheduled_beside_its_claims() -> Result<()> {
    on_cluster("cluster-wide", async |cluster, count| {
        let mut report = Report::new("cluster-wide")?;
        let client = client(&admin(cluster)).await?;
        ClaimNetworks::create(cluster, &client, Uses::ClaimNetworks)?;
        let nodes = published(&client, count, Uses::ClaimNetworks, &mut report).await?;
        ClaimNetworks::create_everywhere(cluster, &client).await?;
        let scheduling = Scheduling::new(cluster, &client, Profile::Default)?;
        let claims = claims()?.first().copied().unwrap_or_default();
        let others = Others::on_cluster_wide_network()?;
        scheduling.allocate(&nodes, &others, 0..claims, &mut report).await?;
        let class = class(fleet::EVERYWHERE);
        for (number, (title, profile)) in PROFILES.into_iter().enumerate() {
            let title = format!("cluster-wide ClaimNetwork beside {claims} claims of it{title}");
            let scheduling = Scheduling::new(cluster, &client, profile)?;
            scheduling.measure(&title, &format!("own-{number}"), Some(&class), &mut report).await?;
        }
        Ok(())
    })
}

/// Measures nodes with plain exclusive devices, half of them in use.
pub fn exclusive_devices_are_scheduled() -> Result<()> {
    on_cluster("exclusive", async |cluster, count| {
        let mut report = Report::new("exclusive")?;
        let client = client(&admin(cluster)).await?;
        let class = fleet::create_class_of_nics(cluster)?;
        let nodes = published(&client, count, Uses::Exclusive, &mut report).await?;
        let scheduling = Scheduling::new(cluster, &client, Profile::Default)?;
        let others = Others::of_devices(class);
        scheduling.allocate(&nodes, &others, 0..nodes.len() * EXCLUSIVE / 2, &mut report).await?;
        let title = format!("one of {EXCLUSIVE} exclusive devices, half in use");
        scheduling.measure(&title, "exclusive", Some(class), &mut report).await
    })
}

/// Creates nodes, and publishes their devices. Nothing changes after that, so that the publishers may end.
pub async fn published(client: &Client, count: usize, uses: Uses, report: &mut Report) -> Result<Vec<Node>> {
    let nodes = fleet::nodes(client, count).await?;
    report.row("nodes", count as f64, "")?;
    report.row("devices of each", uses.devices() as f64, "")?;
    let deadline: Duration = PUBLISHING;
    timeout(deadline, Fleet::publish(client, &nodes, uses)).await.context("not published in time")??;
    Ok(nodes)
}
