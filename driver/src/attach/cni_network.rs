//! Attachments by CNI plugins: the real [`Network`].

use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::record::{Plan, Sandbox};
use super::{Failure, Network};
use crate::cni::{Attachment, CniResult, ErrorKind, NetworkList, Runtime};
use crate::error_chain;

/// Runs the chain of each plan's conflist.
#[derive(Debug)]
pub struct CniNetwork {
    runtime: Runtime,
    timeout: Duration,
    /// After a reboot, or when a node is drained, every pod of the node has something to run at once.
    turns: Semaphore,
}

/// Operations at a time, for each processor: plugins mostly wait for the kernel.
const TURNS_PER_CPU: usize = 4;
/// How often a DEL without a namespace is tried when a plugin fails: some always do.
const TRIES: u32 = 3;
/// How often, when it could not be run or did not end: what is missing may be installed yet.
const TRIES_TO_RUN: u32 = 8;

impl CniNetwork {
    /// Runs plugins by `runtime`, and gives a chain `timeout` for one operation.
    pub fn new(runtime: Runtime, timeout: Duration) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { runtime, timeout, turns: Semaphore::new(cpus * TURNS_PER_CPU) }
    }

    /// Whether the plan can be carried out at all: its configuration is one, and its plugins are installed.
    ///
    /// # Errors
    /// What is missing or wrong, and where.
    pub fn check(&self, plan: &Plan) -> Result<(), Failure> {
        let list = list(plan)?;
        self.runtime.find_all(&list).map_err(|error| Failure::new(error_chain(&error)))
    }

    fn attachment(plan: &Plan, sandbox_id: &str, netns: Option<&Path>) -> Result<Attachment, Failure> {
        let name = |error: &dyn std::error::Error| Failure::new(error_chain(error));
        let container_id = sandbox_id.to_owned().try_into().map_err(|e| name(&e))?;
        let if_name = plan.if_name.to_string().try_into().map_err(|e| name(&e))?;
        let mut attachment = Attachment::new(container_id, netns.map(Path::to_owned), if_name);
        attachment.args = plan.args.clone().into_iter().collect();
        attachment.args.push(("K8S_POD_INFRA_CONTAINER_ID".to_owned(), sandbox_id.to_owned()));
        attachment.capability_args = plan.capability_args.clone();
        Ok(attachment)
    }
}

/// What an attachment looks like from inside the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// Hardware address of the interface.
    pub mac: Option<String>,
    /// Its addresses.
    pub ips: Vec<IpNet>,
}

/// Reads from a stored CNI result what became of the plan; empty where the plugins did not say.
pub fn made(plan: &Plan, sandbox: &Sandbox, result: &Value) -> Made {
    let read = || {
        let attachment = CniNetwork::attachment(plan, &sandbox.id, Some(&sandbox.netns)).ok()?;
        let result = stored(&list(plan).ok()?, result)?;
        let mac = result.interface_of(&attachment).and_then(|interface| interface.mac.clone());
        Some(Made { mac, ips: result.ips_of(&attachment).map(|ip| ip.address).collect() })
    };
    read().unwrap_or_default()
}

fn list(plan: &Plan) -> Result<NetworkList, Failure> {
    let text = Value::Object(plan.conflist.clone()).to_string();
    NetworkList::parse(text.as_bytes()).map_err(|error| Failure::new(error_chain(&error)))
}

fn stored(list: &NetworkList, result: &Value) -> Option<CniResult> {
    CniResult::parse(&result.to_string(), list.version()).ok()
}

fn storable(result: &CniResult) -> Result<Value, Failure> {
    serde_json::from_str(result.raw()).map_err(|error| Failure::new(error.to_string()))
}

impl Network for CniNetwork {
    async fn add(&self, plan: &Plan, sandbox: &Sandbox) -> Result<Value, Failure> {
        let list = list(plan)?;
        let attachment = Self::attachment(plan, &sandbox.id, Some(&sandbox.netns))?;
        let _turn = self.turns.acquire().await;
        match self.runtime.add(&list, &attachment, self.timeout).await {
            Ok(result) => storable(&result),
            Err(error) => Err(Failure {
                last_good: error.last_good.and_then(|result| storable(&result).ok()),
                // How far the chain came is in `last_good`; the user needs the plugin's own error.
                ..Failure::new(error_chain(&error.error))
            }),
        }
    }

    async fn del(
        &self,
        plan: &Plan,
        sandbox_id: &str,
        netns: Option<&Path>,
        result: Option<&Value>,
        tries: u32,
    ) -> Result<(), Failure> {
        let list = list(plan)?;
        let attachment = Self::attachment(plan, sandbox_id, netns)?;
        let _turn = self.turns.acquire().await;
        let result = result.and_then(|result| stored(&list, result));
        if netns.is_some() {
            let done = self.runtime.del(&list, &attachment, result.as_ref(), self.timeout).await;
            return done.map_err(|error| Failure::new(error_chain(&error)));
        }
        // The kernel has taken the links with the namespace; what is left is on the host, above all addresses, and
        // some plugins do not get that far without a namespace.
        let errors = self.runtime.release(&list, &attachment, result.as_ref(), self.timeout).await;
        let not_run = |error: &crate::cni::Error| {
            matches!(
                error.kind(),
                ErrorKind::NotFound { .. } | ErrorKind::Spawn { .. } | ErrorKind::Timeout { .. }
            )
        };
        let limit = if errors.iter().any(not_run) { TRIES_TO_RUN } else { TRIES };
        match errors.first() {
            Some(error) if tries + 1 < limit => return Err(Failure::new(error_chain(error))),
            Some(error) => tracing::error!(
                sandbox = sandbox_id,
                error = error_chain(error),
                "given up: something may be left on the node"
            ),
            None => {}
        }
        Ok(())
    }
}
