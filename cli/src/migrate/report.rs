//! What a migration makes, and what it cannot translate.

use std::fmt;

use netclaim_api::Invalid;
use netclaim_whereabouts::ObjectRef;
use serde::Serialize;
use serde_json::Value;

use crate::printable::{escaped, printable};

/// The result of a migration.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Migration {
    /// What to apply, in this order.
    pub(super) objects: Vec<Value>,
    /// The workloads that can be changed.
    pub(super) workloads: Vec<WorkloadChange>,
    /// What cannot be translated, and what to do.
    pub(super) refused: Vec<Finding>,
    /// What is translated and behaves differently, or needs something.
    pub(super) notes: Vec<Finding>,
}

impl Migration {
    /// Whether there was nothing to translate.
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.refused.is_empty()
    }
}

/// What changes for the pods of a workload.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkloadChange {
    pub(super) object: ObjectRef,
    pub(super) attachments: Vec<AttachmentChange>,
    /// The strategic merge patch.
    pub(super) patch: Value,
    /// The command that applies it.
    pub(super) command: String,
    /// What to do with the command, if the object itself cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// One interface of a workload's pods.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AttachmentChange {
    pub(super) interface: String,
    /// NAMESPACE/NAME of the NetworkAttachmentDefinition.
    pub(super) from: String,
    pub(super) network: String,
}

/// Something about a field of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    pub(super) object: ObjectRef,
    pub(super) field: String,
    /// What is the matter, and what to do.
    pub(super) reason: String,
}

impl Finding {
    pub(super) fn new(object: ObjectRef, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { object, field: printable(&field.into()), reason: printable(&reason.into()) }
    }

    pub(super) fn of(object: &ObjectRef, invalid: Invalid) -> Self {
        Self::new(object.clone(), invalid.field, invalid.problem)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", escaped(&self.object), self.field, self.reason)
    }
}

impl fmt::Display for WorkloadChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", escaped(&self.object))?;
        for AttachmentChange { interface, from, network } in &self.attachments {
            writeln!(f, "  {}: {} becomes ClaimNetwork {network}", escaped(interface), escaped(from))?;
        }
        if let Some(advice) = &self.advice {
            writeln!(f, "  {}", escaped(advice))?;
        }
        writeln!(f, "  {}", escaped(&self.command))
    }
}

impl fmt::Display for Migration {
    /// Writes what people read beside the objects.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects: _, workloads, refused, notes } = self;
        if !workloads.is_empty() {
            writeln!(f, "CHANGES, when the objects are applied")?;
            workloads.iter().try_for_each(|workload| writeln!(f, "{workload}"))?;
        }
        for (heading, findings) in [("NOTES", notes), ("NOT TRANSLATED", refused)] {
            if findings.is_empty() {
                continue;
            }
            writeln!(f, "{heading}")?;
            findings.iter().try_for_each(|finding| writeln!(f, "* {finding}"))?;
        }
        Ok(())
    }
}
