//! From a pod's annotation to a claim.

use std::collections::BTreeMap;

use netclaim_api::merge::{Author, Base, Layer, merge};
use netclaim_api::opaque::Opaque;
use netclaim_api::{API_VERSION, DRIVER_NAME, IfName, Invalid, Setting};
use serde_json::{Map, Value, json};

use super::annotation::{self, Element};
use super::choice::Choice;
use super::input::{DEFAULT_NETWORK, Kind, NETWORKS, Workload};
use super::nad_name::NadName;
use super::names;
use super::network::Draft;
use super::report::{AttachmentChange, Finding, WorkloadChange};

/// Requests that a claim may have.
const MAX_REQUESTS: usize = 32;

/// The pods' networks, as their annotation asks for them.
#[derive(Debug)]
pub(super) struct Attachments<'a> {
    pub(super) workload: &'a Workload,
    attachments: Vec<Attachment>,
}

/// One network of the pods.
#[derive(Debug)]
struct Attachment {
    nad: NadName,
    interface: IfName,
    element: Element,
}

/// Why a NetworkAttachmentDefinition has no ClaimNetwork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It cannot be translated.
    Refused,
    /// The user has not chosen it.
    NotChosen,
    /// There is none of this name.
    Unknown,
}

/// Returns the NetworkAttachmentDefinitions that a workload names; `None` if its annotation cannot be read.
pub(super) fn named(workload: &Workload) -> Option<Vec<NadName>> {
    if workload.networks.is_empty() {
        return Some(Vec::new());
    }
    let elements = annotation::parse(&workload.networks).ok()?;
    Some(elements.iter().map(|element| nad_of(workload, element)).collect())
}

/// Returns the NetworkAttachmentDefinition of an element of the annotation.
fn nad_of(workload: &Workload, element: &Element) -> NadName {
    let namespace = element.namespace.clone().unwrap_or_else(|| workload.object.namespace.clone());
    NadName { namespace, name: element.name.clone() }
}

/// Returns the field of a workload that has the annotation.
fn annotation_field(kind: Kind, name: &str) -> String {
    let path: String = kind.template().iter().flat_map(|key| [*key, "."]).collect();
    format!("{path}metadata.annotations[{name}]")
}

/// Returns the path of an element of the annotation.
fn element_field(workload: &Workload, field: &str) -> String {
    Invalid::new(field, "").within(&annotation_field(workload.kind, NETWORKS)).field
}

impl<'a> Attachments<'a> {
    /// Reads what a workload's pods ask for.
    ///
    /// # Errors
    /// Everything that netclaim cannot give them.
    pub(super) fn of(workload: &'a Workload) -> Result<Self, Vec<Finding>> {
        let refuse = |field: &str, problem: String| Finding::new(workload.object.clone(), field, problem);
        if let Some(maker) = &workload.maker {
            let problem = format!(
                "{maker} makes this object and would undo a change: change what {maker} says, or leave its pods on Multus"
            );
            return Err(vec![refuse("metadata.ownerReferences", problem)]);
        }
        if workload.host_network {
            let path: String = workload.kind.template().iter().flat_map(|key| [*key, "."]).collect();
            let problem =
                "pods on the host's network get no other networks: remove the annotation, it has no effect";
            return Err(vec![refuse(&format!("{path}spec.hostNetwork"), problem.to_owned())]);
        }
        let mut problems = Vec::new();
        if workload.replaces_default {
            let problem = "it replaces the pod's own network: write a claim with primary: true and the RuntimeClass of primary networks by hand, or \
                           leave such pods on Multus";
            problems.push(refuse(&annotation_field(workload.kind, DEFAULT_NETWORK), problem.to_owned()));
        }
        let elements =
            if workload.networks.is_empty() { Ok(Vec::new()) } else { annotation::parse(&workload.networks) };
        let elements = elements.unwrap_or_else(|errors| {
            problems.extend(
                errors.into_iter().map(|error| refuse(&element_field(workload, &error.field), error.problem)),
            );
            Vec::new()
        });
        if elements.len() > MAX_REQUESTS {
            let problem =
                format!("asks for {} networks, and a claim can have {MAX_REQUESTS}", elements.len());
            problems.push(refuse(&annotation_field(workload.kind, NETWORKS), problem));
        }
        let mut attachments: Vec<Attachment> = Vec::new();
        for (i, element) in elements.into_iter().enumerate() {
            let field = element_field(workload, &element.at);
            // Multus counts named ones, too.
            let interface = element.interface.clone().unwrap_or_else(|| format!("net{}", i + 1));
            let interface = match interface.parse::<IfName>() {
                Ok(interface) => interface,
                Err(error) => {
                    problems.push(refuse(&format!("{field}.interface"), error.to_string()));
                    continue;
                }
            };
            if attachments.iter().any(|other| other.interface == interface) {
                let problem = format!(
                    "{interface} is the name of two interfaces, and Multus refuses it, too: name them all"
                );
                problems.push(refuse(&format!("{field}.interface"), problem));
            }
            attachments.push(Attachment { nad: nad_of(workload, &element), interface, element });
        }
        if problems.is_empty() { Ok(Self { workload, attachments }) } else { Err(problems) }
    }

    /// Returns the NetworkAttachmentDefinitions.
    pub(super) fn nads(&self) -> impl Iterator<Item = &NadName> {
        self.attachments.iter().map(|attachment| &attachment.nad)
    }

    /// Opens the ClaimNetworks for these pods, as far as the choice lets them: for their namespace, and for
    /// what they set. Returns what is opened of ClaimNetworks that exist or belong to another namespace.
    ///
    /// # Errors
    /// A network is not translated (`missing` says why), cannot give what is asked for, or would have to be
    /// opened. Then no ClaimNetwork is changed.
    pub(super) fn permit(
        &self,
        drafts: &mut BTreeMap<NadName, Draft>,
        choice: &Choice,
        missing: impl Fn(&NadName) -> Missing,
    ) -> Result<Vec<Finding>, Vec<Finding>> {
        let namespace = &self.workload.object.namespace;
        let (mut problems, mut notes) = (Vec::new(), Vec::new());
        let mut changed: BTreeMap<NadName, Draft> = BTreeMap::new();
        for Attachment { nad, interface, element } in &self.attachments {
            let field = element_field(self.workload, &element.at);
            let refuse =
                |field: &str, problem: String| Finding::new(self.workload.object.clone(), field, problem);
            let Some(draft) = changed.get(nad).or_else(|| drafts.get(nad)) else {
                let problem = match missing(nad) {
                    Missing::Refused => format!("NetworkAttachmentDefinition {nad} cannot be translated"),
                    Missing::NotChosen => format!(
                        "NetworkAttachmentDefinition {nad} is not chosen by --selector and --from, and a claim has all networks of \
                         its pod: choose it, too, or leave these pods on Multus"
                    ),
                    Missing::Unknown => format!(
                        "there is no NetworkAttachmentDefinition {nad}: correct the name, or add it to what this command reads"
                    ),
                };
                problems.push(refuse(&field, problem));
                continue;
            };
            let mut draft = draft.clone();
            let may_open = choice.may_open(namespace, draft.exists);
            let is_told = draft.exists || nad.namespace != *namespace;
            if draft.offer(namespace) {
                let name = &draft.name;
                if !may_open {
                    let problem = format!(
                        "ClaimNetwork {name} is not offered to namespace {namespace}: add it to its namespaces.selector, or run this with \
                         --widen"
                    );
                    problems.push(refuse(&field, problem));
                } else if is_told {
                    let note = format!("opens ClaimNetwork {name} for namespace {namespace}");
                    notes.push(Finding::new(self.workload.object.clone(), field.clone(), note));
                }
            }
            for setting in
                Setting::ALL.into_iter().filter(|setting| element.config.contains_key(setting.as_str()))
            {
                let (field, key) = (format!("{field}.{}", setting.as_str()), setting.as_str());
                match draft.permit(setting) {
                    Ok(true) if !may_open => {
                        let problem = format!(
                            "claims for ClaimNetwork {} may not set {key}: set allow.{key} and the plugin's capability, or run this with \
                             --widen; then claims of all its namespaces may set it",
                            draft.name
                        );
                        problems.push(refuse(&field, problem));
                    }
                    Ok(true) if is_told => {
                        let note =
                            format!("lets claims of all namespaces of ClaimNetwork {} set {key}", draft.name);
                        notes.push(Finding::new(self.workload.object.clone(), field, note));
                    }
                    Ok(_) => {}
                    Err(problem) => problems.push(refuse(&field, problem)),
                }
            }
            if element.config.contains_key("mac") && self.workload.copies.is_none_or(|copies| copies > 1) {
                let problem = "all pods would have one MAC address, and netclaim gives it to the first only: run one pod";
                problems.push(refuse(&format!("{field}.mac"), problem.to_owned()));
            }
            if problems.is_empty()
                && let Err(problem) = check(&draft, &parameters(interface, &element.config))
            {
                let of_claim = problem.field.rsplit_once("config[0].").map_or("", |(_, field)| field);
                let of_claim = Invalid::new(of_claim, problem.problem).within(&field);
                problems.push(Finding::of(&self.workload.object, of_claim));
            }
            changed.insert(nad.clone(), draft);
        }
        if problems.is_empty() {
            drafts.extend(changed);
            Ok(notes)
        } else {
            Err(problems)
        }
    }

    /// Returns the template for the pods' claims and the change of the workload, with notes.
    pub(super) fn translate(
        &self,
        drafts: &BTreeMap<NadName, Draft>,
    ) -> (Value, WorkloadChange, Vec<Finding>) {
        let object = self.workload.object.clone();
        let names = names::requests(self.attachments.iter().map(|attachment| attachment.nad.name.as_str()));
        let (mut requests, mut configs, mut attachments) = (Vec::new(), Vec::new(), Vec::new());
        for (name, Attachment { nad, interface, element }) in names.iter().zip(&self.attachments) {
            let Some(draft) = drafts.get(nad) else { continue };
            let opaque = json!({"driver": DRIVER_NAME, "parameters": parameters(interface, &element.config)});
            requests.push(json!({"name": name, "exactly": {"deviceClassName": draft.name.as_str()}}));
            configs.push(json!({"requests": [name], "opaque": opaque}));
            let (interface, from, network) = (interface.to_string(), nad.to_string(), draft.name.to_string());
            attachments.push(AttachmentChange { interface, from, network });
        }
        let name = names::template(&object.kind, &object.name);
        let template = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": object.namespace},
            "spec": {"spec": {"devices": {"requests": requests, "config": configs}}},
        });
        let patch = self.patch(&name);
        let (command, advice) = self.command(&patch);
        (template, WorkloadChange { object, attachments, patch, command, advice }, self.notes())
    }

    /// What is different for these pods.
    fn notes(&self) -> Vec<Finding> {
        const SAME_IPS: &str = "all pods ask for the same addresses, as with Multus: for addresses of their own use spec.addresses \
                                of the ClaimNetwork, and replicaIPs";
        const WAITS: &str = "a new pod waits until the MAC address of the old one is free: set spec.strategy.type to Recreate";
        const NOT_COUNTED: &str = "the rate is a limit and not counted: to count it, set spec.capacity.bandwidth of the ClaimNetwork, and \
                                   ask for a part of it in the claim";
        let is_many = self.workload.copies.is_none_or(|copies| copies > 1);
        let mut notes = Vec::new();
        for Attachment { element, .. } in &self.attachments {
            let told = [
                ("ips", is_many, SAME_IPS),
                ("mac", self.workload.overlaps, WAITS),
                ("bandwidth", true, NOT_COUNTED),
            ];
            let told =
                told.into_iter().filter(|(key, applies, _)| *applies && element.config.contains_key(*key));
            let told = told.map(|(key, _, note)| Invalid::new(key, note).within(&element.at));
            notes.extend(element.notes.iter().cloned().chain(told));
        }
        let finding = |note: Invalid| {
            Finding::new(
                self.workload.object.clone(),
                element_field(self.workload, &note.field),
                note.problem,
            )
        };
        notes.into_iter().map(finding).collect()
    }

    /// Returns the strategic merge patch of the workload.
    fn patch(&self, template: &str) -> Value {
        let taken = &self.workload.claims;
        let numbered = (2_u32..).map(|n| format!("networks-{n}"));
        let claim = std::iter::once("networks".to_owned())
            .chain(numbered)
            .find(|name| !taken.contains(name))
            .unwrap_or_default();
        let mut spec = Map::new();
        spec.insert(
            "resourceClaims".to_owned(),
            json!([{"name": claim, "resourceClaimTemplateName": template}]),
        );
        for (field, containers) in &self.workload.containers {
            let containers = containers.iter().map(|container| {
                // A patch replaces the list.
                let mut claims = container.claims.clone();
                claims.push(json!({"name": claim}));
                json!({"name": container.name, "resources": {"claims": claims}})
            });
            spec.insert((*field).to_owned(), containers.collect());
        }
        let template = json!({"metadata": {"annotations": {NETWORKS: null}}, "spec": spec});
        self.workload.kind.template().iter().rev().fold(template, |patch, key| json!({*key: patch}))
    }

    /// Returns the command that applies the patch, and what to do with it.
    fn command(&self, patch: &Value) -> (String, Option<String>) {
        let Workload { kind, object, .. } = self.workload;
        let patch = quoted(&patch.to_string());
        if kind.can_change() {
            let (namespace, name) = (quoted(&object.namespace), quoted(&object.name));
            let advice = (*kind == Kind::ReplicaSet)
                .then(|| "its pods keep their networks: delete them after the patch".to_owned());
            let kind = object.kind.to_lowercase();
            return (
                format!(
                    "kubectl --namespace {namespace} patch {kind} {name} --type strategic --patch {patch}"
                ),
                advice,
            );
        }
        let advice = format!(
            "a {} cannot be changed: patch the file that it was made from, delete it, and create it again",
            object.kind
        );
        (
            format!("kubectl patch --local --filename FILE --output yaml --type strategic --patch {patch}"),
            Some(advice),
        )
    }
}

fn parameters(interface: &IfName, config: &Map<String, Value>) -> Value {
    let mut parameters = config.clone();
    parameters.insert("apiVersion".to_owned(), json!(API_VERSION));
    parameters.insert("kind".to_owned(), json!("AttachmentConfig"));
    parameters.insert("interfaceName".to_owned(), json!(interface.as_str()));
    Value::Object(parameters)
}

/// Checks a claim as the agent will, when it prepares it.
fn check(draft: &Draft, parameters: &Value) -> Result<(), Invalid> {
    let config = Opaque::decode(&parameters.to_string()).map_err(|error| error.within("config[0]"))?;
    let layer = Layer { author: Author::Claim, index: 0, config };
    merge(Base::Network(&draft.name, &draft.spec), &[layer], None).map(|_| ())
}

/// Returns the text as a shell reads it.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_quoted_text_as_it_is() {
        assert_eq!(quoted("web-0"), "web-0");
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
    }
}
