//! Publishes a pool of devices for a node, and withdraws it when the program is interrupted:
//!
//! ```text
//! cargo run --package netclaim-slices --example publish -- example.com node-1 gpu-0 gpu-1
//! kubectl get resourceslices
//! ```
//!
//! Needs a cluster with Kubernetes 1.36 or newer, which `KUBECONFIG` leads to, and its rights for
//! `resourceslices`.

use std::env;
use std::error::Error;

use k8s_openapi::api::resource::v1::Device;
use kube::Client;
use netclaim_slices::{Placement, Pool, PublishStatus, Publisher, PublisherConfig, Revision, Scope};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Waits until the revision is published, and prints why it is not yet.
async fn published(
    status: &mut watch::Receiver<PublishStatus>,
    revision: Revision,
) -> Result<(), Box<dyn Error>> {
    loop {
        let current = status.borrow_and_update().clone();
        for pool in current.pools.values() {
            pool.left_out.iter().for_each(|fault| eprintln!("left out: {fault}"));
            if let Some(error) = &pool.error {
                eprintln!("{error}");
            }
        }
        if current.is_published(revision) {
            return Ok(());
        }
        status.changed().await?;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let (Some(driver), Some(node)) = (args.next(), args.next()) else {
        return Err("usage: publish DRIVER NODE [DEVICE ...]".into());
    };
    let devices = args.map(|name| Device { name, ..Device::default() }).collect();
    let placement = Placement::Node(node.clone());
    let pool = Pool::new(node.clone(), placement, devices);

    let client = Client::try_default().await?;
    let config = PublisherConfig::new(driver, "example", Scope::Node(node))?;
    let (handle, _task) = Publisher::spawn(client, config, CancellationToken::new());
    let mut status = handle.status();
    let revision = handle.publish(vec![pool]);
    published(&mut status, revision).await?;
    println!("published; interrupt to withdraw");

    tokio::signal::ctrl_c().await?;
    let revision = handle.publish(Vec::new());
    published(&mut status, revision).await?;
    println!("withdrawn");
    Ok(())
}
