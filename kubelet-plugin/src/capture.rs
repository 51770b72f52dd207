//! Copies what passes through an attachment, for `netclaimctl capture`.
//!
//! ```text
//!   netclaimctl ── exec in the agent's pod ──> netclaim-kubelet-plugin capture ── questions.sock ──> the agent: may it?
//!       <──────────────── pcap ────────────────────────────┘ in the pod's network namespace
//! ```
//!
//! The agent only says whether it may be done, and writes an event on the pod. The frames pass through a
//! process of their own, which ends with the connection of whoever runs the command.

use std::io::{copy, sink, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netclaim_api::question::{Answer, CaptureOf, Question};
use netclaim_api::reasons::PodEvent;
use netclaim_driver::attach::{Attach, Attacher, Observer};
use netclaim_driver::links::{self, Capture, Netns};

use crate::pods::attached::attachment_of;
use crate::pods::owner::{ObjectRef, Owner};
use crate::questions::{AskError, ask};

/// Why nothing is copied.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The agent gives no answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// It refuses.
    #[error("{0}")]
    Refused(String),
    /// It answers what is not understood.
    #[error("the agent answers another question")]
    Answer,
    /// The namespace or the link is gone, or standard output takes no more.
    #[error(transparent)]
    Link(#[from] links::Error),
}

/// Says where an attachment is whose frames may be copied, after `tell` has told its pod. `is_allowed` is
/// what the admin says.
pub(crate) fn permit<A: Attach, O: Observer<Owner = Owner>>(
    attacher: &Attacher<A, O>,
    is_allowed: bool,
    of: &CaptureOf,
    tell: impl FnOnce(&ObjectRef, PodEvent, String),
) -> Answer {
    if !is_allowed {
        let how = "set agent.allowCapture of the chart (--allow-capture of the agent) to true";
        return Answer::Error(format!("this node's agent does not allow captures: {how}"));
    }
    let CaptureOf { namespace, pod, interface } = of;
    let found = attachment_of(attacher, namespace, pod, |plan| plan.spec.if_name == *interface);
    let Some((sandbox, plan)) = found else {
        let why = "the node has no such attachment, or it is not attached now";
        return Answer::Error(format!("{interface} of pod {namespace}/{pod}: {why}"));
    };
    let owner = &plan.owner.pod;
    tracing::info!(pod = %owner, %interface, "what passes through an attachment is copied");
    tell(
        owner,
        PodEvent::NetworkCaptured,
        format!("what passes through {interface} is copied by netclaimctl capture"),
    );
    Answer::NetworkNamespace(sandbox.netns)
}

/// Copies frames of the attachment to standard output, until the limits are reached, or standard input or
/// output has ended. Returns how many.
///
/// # Errors
/// When the agent does not allow it, and when there is nothing to copy from or to.
pub async fn capture(run_dir: &Path, of: CaptureOf, what: Capture) -> Result<u64, CaptureError> {
    let interface = of.interface.to_string();
    let answer = ask(run_dir, &Question::Capture(of)).await?;
    let netns: PathBuf = match serde_json::from_str(&answer) {
        Ok(Answer::NetworkNamespace(path)) => path,
        Ok(Answer::Error(why)) => return Err(CaptureError::Refused(why)),
        _ => return Err(CaptureError::Answer),
    };
    let netns = Netns::open(&netns)?;
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    // Nothing ends the process when the connection ends, but this.
    std::thread::spawn(move || {
        let _ = copy(&mut stdin(), &mut sink());
        ended.store(true, Ordering::Relaxed);
    });
    Ok(netns.capture(interface, what, stdout(), move || !has_ended.load(Ordering::Relaxed)).await?)
}
