//! Attachments by CNI plugins: the real [`Network`].

use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use super::record::{Plan, Sandbox};
use super::{Failure, Network};
use crate::cni::{
    self, Attachment, AttachmentError, Attachments, Cached, CniResult, ErrorKind, NetworkList, Outcome,
    TraceContext,
};
use crate::error_chain;

/// Runs the chain of each plan's conflist.
#[derive(Debug)]
pub struct CniNetwork {
    attachments: Attachments,
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
    /// Makes `attachments`, and gives a chain `timeout` for one operation. What they remember on disk is for tools and
    /// people: what is owed is in the journal.
    pub fn new(attachments: Attachments, timeout: Duration) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { attachments, timeout, turns: Semaphore::new(cpus * TURNS_PER_CPU) }
    }

    /// Whether the plan can be carried out at all: its configuration is one, and its plugins are installed and speak
    /// its version. A plugin is asked for its versions once.
    ///
    /// # Errors
    /// What is missing or wrong, and where.
    pub async fn check(&self, plan: &Plan) -> Result<(), Failure> {
        let list = list(plan)?;
        let runtime = self.attachments.runtime();
        let failed = |error: &cni::Error| Failure::new(error_chain(error));
        runtime.find_all(&list).map_err(|error| failed(&error))?;
        match runtime.negotiate(&list).await {
            Err(error) if matches!(error.kind(), ErrorKind::NoCommonVersion { .. }) => Err(failed(&error)),
            // Not every plugin can say what it speaks.
            Err(error) => {
                tracing::debug!(error = error_chain(&error), "the versions of a plugin are not known");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    fn attachment(plan: &Plan, sandbox_id: &str, netns: Option<&Path>) -> Result<Attachment, Failure> {
        let name = |error: &dyn std::error::Error| Failure::new(error_chain(error));
        let container_id = sandbox_id.to_owned().try_into().map_err(|e| name(&e))?;
        let if_name = plan.if_name.to_string().try_into().map_err(|e| name(&e))?;
        let mut attachment = Attachment::new(container_id, netns.map(Path::to_owned), if_name);
        attachment.args = plan.args.clone().into_iter().collect();
        attachment.args.push(("K8S_POD_INFRA_CONTAINER_ID".to_owned(), sandbox_id.to_owned()));
        attachment.capability_args = plan.capability_args.clone();
        attachment.trace = Some(TraceContext::of_attachment(&attachment.container_id, &attachment.if_name));
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

/// Fields for whatever is logged on the way, a plugin's standard error above all.
fn span(plan: &Plan, sandbox_id: &str, attachment: &Attachment) -> tracing::Span {
    tracing::info_span!(
        "attachment",
        pod = %plan.pod,
        claim = %plan.claim,
        sandbox = sandbox_id,
        trace_id = attachment.trace.as_ref().map(TraceContext::trace_id),
    )
}

impl Network for CniNetwork {
    async fn add(&self, plan: &Plan, sandbox: &Sandbox) -> Result<Value, Failure> {
        let list = list(plan)?;
        let attachment = Self::attachment(plan, &sandbox.id, Some(&sandbox.netns))?;
        let _turn = self.turns.acquire().await;
        let added = self.attachments.add(&list, &attachment, self.timeout);
        match added.instrument(span(plan, &sandbox.id, &attachment)).await {
            Ok(result) => storable(&result),
            Err(AttachmentError::Add(error)) => Err(Failure {
                last_good: error.last_good.and_then(|result| storable(&result).ok()),
                // How far the chain came is in `last_good`; the user needs the plugin's own error.
                ..Failure::new(error_chain(&error.error))
            }),
            Err(error) => Err(Failure::new(error_chain(&error))),
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
        let span = span(plan, sandbox_id, &attachment);
        let _turn = self.turns.acquire().await;
        let last_good = result.and_then(|result| stored(&list, result));
        let request = Cached { list, attachment, outcome: Outcome::Unfinished(last_good) };
        let Err(error) = self.attachments.del(&request, self.timeout).instrument(span.clone()).await else {
            return Ok(());
        };
        // The kernel has taken the links with the namespace; what is left is on the host, and some plugins never
        // succeed without a namespace.
        let not_run = |error: &cni::Error| {
            matches!(
                error.kind(),
                ErrorKind::NotFound { .. } | ErrorKind::Spawn { .. } | ErrorKind::Timeout { .. }
            )
        };
        let limit = match &error {
            AttachmentError::Left(errors) if errors.iter().any(not_run) => TRIES_TO_RUN,
            AttachmentError::Left(_) => TRIES,
            _ => return Err(Failure::new(error_chain(&error))),
        };
        if tries + 1 < limit {
            return Err(Failure::new(error_chain(&error)));
        }
        let _entered = span.enter();
        tracing::error!(error = error_chain(&error), "given up: something may be left on the node");
        if let Err(error) = self.attachments.forget(request.list.name(), &request.attachment) {
            tracing::warn!(
                error = error_chain(&error),
                "an attachment that is given up stays in the CNI cache"
            );
        }
        Ok(())
    }
}
