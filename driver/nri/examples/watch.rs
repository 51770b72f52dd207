//! Prints the sandboxes and containers of a node's pods as they come and go:
//!
//! ```text
//! cargo run --package netclaim-nri --example watch -- /var/run/nri/nri.sock
//! ```
//!
//! Needs root, and a container runtime with NRI.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use netclaim_nri::{
    Adjustment, Container, DEFAULT_SOCKET, Denial, Handler, Identity, RuntimeInfo, Sandbox, run,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

struct Printer;

fn print(what: &str, sandbox: &Sandbox) {
    println!("{what} {}/{} {} {:?}", sandbox.namespace, sandbox.name, sandbox.id, sandbox.network);
}

impl Handler for Printer {
    fn configured(&self, runtime: &RuntimeInfo) {
        println!("connected to {} {}", runtime.name, runtime.version);
    }

    async fn synchronize(&self, sandboxes: Vec<Sandbox>) {
        sandboxes.iter().for_each(|sandbox| print("exists", sandbox));
    }

    async fn run_pod_sandbox(&self, sandbox: Sandbox, _: Duration) -> Result<(), Denial> {
        print("runs", &sandbox);
        Ok(())
    }

    async fn create_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        _: Duration,
    ) -> Result<Adjustment, Denial> {
        print(&format!("creates container {} in", container.name), &sandbox);
        Ok(Adjustment::default())
    }

    async fn stop_pod_sandbox(&self, sandbox: Sandbox, _: Duration) {
        print("stops", &sandbox);
    }

    async fn remove_pod_sandbox(&self, sandbox: Sandbox, _: Duration) {
        print("is removed:", &sandbox);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let socket = env::args().nth(1).map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from);
    let identity = Identity { name: "watch", index: 90 };
    let (connected, _) = watch::channel(false);
    let cancel = CancellationToken::new();
    let plugin = tokio::spawn(run(socket, identity, Arc::new(Printer), connected, cancel.clone()));
    tokio::signal::ctrl_c().await?;
    cancel.cancel();
    plugin.await?;
    Ok(())
}
