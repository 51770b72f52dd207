//! The migration as a function of what is read.
//!
//! ```text
//!   NetworkAttachmentDefinition ── network ──> draft of a ClaimNetwork ──┐
//!   IPPool … ── whereabouts ──> addresses ──────────────┘                ├─> ClaimNetworks, classes
//!   workload ── annotation ──> attachments ── permit ────────────────────┘        │
//!                                   └───────── translate <───────────────────┘
//!                                                 └──> templates, patches
//! ```

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::network::{ClaimNetworkSpec, class_expression};
use netclaim_api::{API_VERSION, DRIVER_NAME, Invalid, ObjectName};
use serde_json::{Value, json};

use super::choice::Choice;
use super::existing::MIGRATED_FROM;
use super::input::{Input, Workload};
use super::nad_name::{NAD, NadName};
use super::names;
use super::network::{self, Draft};
use super::report::{Finding, Migration};
use super::whereabouts::{self, HandedOver, Handover};
use super::workload::{self, Attachments, Missing};

/// Translates what is chosen of the input. The names of ClaimNetworks, and addresses of whereabouts, depend
/// on the whole input.
pub(super) fn migrate(input: &Input, choice: &Choice, handed_over: &HandedOver) -> Migration {
    let names = names::networks(input.nads.keys(), &input.existing);
    let handover = whereabouts::handover(input, &names, handed_over);
    let mut refused = input.refused.clone();
    let mut drafts: BTreeMap<NadName, Draft> = BTreeMap::new();
    for (of, nad) in input.nads.iter().filter(|(of, nad)| choice.takes(of, nad)) {
        let name = match names.get(of) {
            Some(Ok(name)) => name.clone(),
            Some(Err(error)) => {
                refused.push(Finding::new(of.object(), "metadata.name", error.problem.clone()));
                continue;
            }
            None => continue,
        };
        let before = match input.existing.network(name.as_str(), of) {
            Ok(before) => before,
            Err(problem) => {
                refused.push(Finding::of(&of.object(), problem));
                continue;
            }
        };
        match network::translate(of, nad, name, handover.addresses.get(of)) {
            Ok(mut draft) => {
                if let Some(before) = before {
                    draft.keep(&before);
                }
                drafts.insert(of.clone(), draft);
            }
            Err(problems) => {
                refused.extend(problems.into_iter().map(|problem| Finding::of(&of.object(), problem)))
            }
        }
    }
    drafts.retain(|of, draft| {
        let problems = draft.problems();
        refused.extend(problems.iter().map(|problem| not_accepted(of, problem)));
        problems.is_empty()
    });

    let is_chosen = |of: &str| choice.has_namespace(of);
    let takes = |of: &NadName| input.nads.get(of).is_some_and(|nad| choice.takes(of, nad));
    let is_concerned = |workload: &&Workload| {
        // One that cannot be read may have any network.
        choice.takes_everything() || workload::named(workload).is_none_or(|nads| nads.iter().any(takes))
    };
    let missing = |nad: &NadName| match input.nads.contains_key(nad) {
        true if takes(nad) => Missing::Refused,
        true => Missing::NotChosen,
        false => Missing::Unknown,
    };
    let (mut permitted, mut wanted) = (Vec::new(), BTreeSet::new());
    let mut selection = Selection::default();
    let (translated, others): (Vec<&Workload>, Vec<&Workload>) = input
        .workloads
        .iter()
        .filter(is_concerned)
        .partition(|workload| is_chosen(&workload.object.namespace));
    for workload in translated {
        let attachments = Attachments::of(workload).and_then(|attachments| {
            wanted.extend(attachments.nads().map(NadName::object));
            let opened = attachments.permit(&mut drafts, choice, missing)?;
            selection.migration.notes.extend(opened);
            Ok(attachments)
        });
        match attachments {
            Ok(attachments) => permitted.push(attachments),
            Err(problems) => refused.extend(problems),
        }
    }
    for (of, draft) in &mut drafts {
        let notes = [selector_of_another_owner(of, draft, &permitted), not_offered(of, draft, &others)];
        draft.notes.extend(notes.into_iter().flatten());
    }
    selection.nads.extend(drafts.keys().filter(|of| is_chosen(&of.namespace)).cloned());
    for attachments in &permitted {
        let (template, change, notes) = attachments.translate(&drafts);
        selection.nads.extend(attachments.nads().cloned());
        selection.templates.push(template);
        selection.migration.workloads.push(change);
        selection.migration.notes.extend(notes);
    }
    let concerns =
        |finding: &Finding| is_chosen(&finding.object.namespace) || wanted.contains(&finding.object);
    selection.migration.refused = refused.into_iter().filter(concerns).collect();
    selection.finish(&drafts, &handover)
}

/// A problem of a ClaimNetwork, which the NetworkAttachmentDefinition has to avoid.
fn not_accepted(of: &NadName, problem: &Invalid) -> Finding {
    let reason = format!("{} of the ClaimNetwork would be refused: {}", problem.field, problem.problem);
    Finding::new(of.object(), "spec.config", reason)
}

/// Says what a selector that is not a list of namespaces has to select. It stays as it is.
fn selector_of_another_owner(of: &NadName, draft: &Draft, workloads: &[Attachments<'_>]) -> Option<Invalid> {
    if draft.spec.namespaces.is_all() || draft.namespaces().is_some() {
        return None;
    }
    let users = workloads.iter().filter(|workload| workload.nads().any(|nad| nad == of));
    let namespaces: BTreeSet<&str> =
        users.map(|user| user.workload.object.namespace.as_str()).chain([of.namespace.as_str()]).collect();
    let note = format!(
        "namespaces of ClaimNetwork {} stays, because it was changed: make sure that it selects {}",
        draft.name,
        namespaces.into_iter().collect::<Vec<_>>().join(", ")
    );
    Some(Invalid::new("metadata.namespace", note))
}

/// Names the namespaces that do not get a ClaimNetwork, although their workloads name its definition: they
/// are not translated.
fn not_offered(of: &NadName, draft: &Draft, others: &[&Workload]) -> Option<Invalid> {
    let offered = draft.namespaces()?;
    let names = |other: &&&Workload| workload::named(other).is_some_and(|nads| nads.contains(of));
    let namespaces: BTreeSet<&str> =
        others.iter().filter(names).map(|other| other.object.namespace.as_str()).collect();
    let missing: Vec<&str> =
        namespaces.into_iter().filter(|namespace| !offered.contains(*namespace)).collect();
    let note = format!(
        "ClaimNetwork {} is not offered to {}, whose workloads name the definition: translate them with --widen when it is there",
        draft.name,
        missing.join(", ")
    );
    (!missing.is_empty()).then(|| Invalid::new("metadata.namespace", note))
}

/// What is printed.
#[derive(Default)]
struct Selection {
    migration: Migration,
    /// The NetworkAttachmentDefinitions whose ClaimNetworks are printed.
    nads: BTreeSet<NadName>,
    templates: Vec<Value>,
}

impl Selection {
    /// Adds the chosen ClaimNetworks, in the order in which they can be applied.
    fn finish(self, drafts: &BTreeMap<NadName, Draft>, handover: &Handover) -> Migration {
        let Self { mut migration, nads, templates } = self;
        let chosen: BTreeMap<&NadName, &Draft> = drafts.iter().filter(|(of, _)| nads.contains(*of)).collect();
        let pools: BTreeSet<&str> =
            chosen.values().filter_map(|draft| draft.spec.addresses.as_ref()?.pool.as_deref()).collect();
        let pools = handover.pools.iter().filter(|(name, _)| pools.contains(name.as_str()));
        migration.objects.extend(pools.map(|(name, spec)| {
            json!({"apiVersion": API_VERSION, "kind": "AddressPool", "metadata": {"name": name}, "spec": spec})
        }));
        for (of, draft) in &chosen {
            migration.objects.extend([network_object(of, draft), class(of, draft)]);
            migration.notes.extend(draft.notes.iter().map(|note| Finding::of(&of.object(), note.clone())));
            migration.notes.extend(draft.warnings().into_iter().map(|warning| {
                let reason =
                    format!("{} of the ClaimNetwork gets a warning: {}", warning.field, warning.problem);
                Finding::new(of.object(), "spec.config", reason)
            }));
        }
        let has_addresses = chosen.values().any(|draft| draft.spec.addresses.is_some());
        let concerns = |note: &&Finding| {
            let of_nad = note.object.kind == NAD;
            if of_nad { chosen.keys().any(|of| of.object() == note.object) } else { has_addresses }
        };
        migration.notes.extend(handover.notes.iter().filter(concerns).cloned());
        migration.objects.extend(templates);
        migration.notes.sort_by(|one, other| (&one.object, &one.field).cmp(&(&other.object, &other.field)));
        migration.notes.dedup();
        migration.refused.sort_by(|one, other| (&one.object, &one.field).cmp(&(&other.object, &other.field)));
        migration
    }
}

fn network_object(of: &NadName, draft: &Draft) -> Value {
    // The class is listed, so that claims of other namespaces are refused when they are created.
    let device_class_names = vec![ObjectName::from(draft.name.clone())];
    let mut spec = json!(ClaimNetworkSpec { device_class_names, ..draft.spec.clone() });
    if let Some(fields) = spec.as_object_mut() {
        // The defaults.
        if fields.get("scope").is_some_and(|scope| scope == "Node") {
            fields.remove("scope");
        }
        if fields.get("allow").is_some_and(|allow| *allow == json!({})) {
            fields.remove("allow");
        }
    }
    let name = draft.name.as_str();
    let annotations = json!({MIGRATED_FROM: of.to_string()});
    let metadata = json!({"name": name, "annotations": annotations});
    json!({"apiVersion": API_VERSION, "kind": "ClaimNetwork", "metadata": metadata, "spec": spec})
}

fn class(of: &NadName, draft: &Draft) -> Value {
    let name = draft.name.as_str();
    let expression = class_expression(DRIVER_NAME, &draft.name);
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, "annotations": {MIGRATED_FROM: of.to_string()}},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    })
}
