//! `netclaimctl migrate --apply`: creates and updates what a translation makes, by server-side apply.
//!
//! Invariants:
//! * It deletes nothing, and writes no other kinds than those of [`WRITTEN`].
//! * What others have written stays: a field that another field manager has set to another value is a
//!   conflict, which is reported and not forced.
//! * What cannot be applied is reported with its name, and the others are applied.

use std::fmt;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Client, ResourceExt as _};
use netclaim_cni::error_chain;
use serde_json::Value;

use super::read;
use crate::cluster::Refusal;
use crate::kinds::Kind;

/// The manager of the fields that a migration sets.
pub(super) const MANAGER: &str = "netclaimctl-migrate";
/// The annotation that `kubectl apply` writes.
const KUBECTL: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// How long an admission policy may take to see a ClaimNetwork that has just been changed.
const POLICY: Duration = Duration::from_secs(2);

const TEMPLATES: Kind = Kind::new("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates");

/// The objects of a translation, in the order in which they can be applied.
pub(super) const WRITTEN: [Kind; 4] = [
    Kind::new("netclaim.dev/v1alpha1", "AddressPool", "addresspools"),
    read::NETWORKS,
    read::CLASSES,
    TEMPLATES,
];

/// An object that is applied, as kubectl names it: `claimnetwork.netclaim.dev/shop-lan`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    kind: &'static str,
    group: &'static str,
    namespace: Option<String>,
    name: String,
}

impl Target {
    fn of(kind: &Kind, object: &Value) -> Self {
        let text = |field: &str| object.pointer(field).and_then(Value::as_str).map(str::to_owned);
        let group = kind.api_version.split_once('/').map_or("", |(group, _)| group);
        let name = text("/metadata/name").unwrap_or_default();
        Self { kind: kind.kind, group, namespace: text("/metadata/namespace"), name }
    }

    /// Writes the object's name, `said`, and its namespace.
    fn write(&self, f: &mut fmt::Formatter<'_>, said: &str) -> fmt::Result {
        let Self { kind, group, namespace, name } = self;
        write!(f, "{}.{group}/{name}{said}", kind.to_lowercase())?;
        namespace.as_ref().map_or(Ok(()), |namespace| write!(f, " in namespace {namespace}"))
    }
}

impl fmt::Display for Applied<'_> {
    /// Writes what kubectl writes of an object that it applies, or why this one is not applied.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(change) => self.target.write(f, &format!(" {change}")),
            Err(error) => write!(f, "{}", error_chain(error)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

/// What has become of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Created,
    Configured,
    Unchanged,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        })
    }
}

/// Why an object is not applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error("{0}: cannot be read")]
    Read(Target, #[source] Refusal),
    #[error(
        "{0}: was applied by kubectl, which would keep fields that the translation drops: hand what kubectl has applied over, once \
         (netclaimctl migrate … | kubectl apply --server-side --force-conflicts --field-manager={MANAGER} -f -)"
    )]
    OfKubectl(Target),
    #[error(
        "{0}: another field manager has set a field to another value, which stays: set it to the translated value, or choose its \
         NetworkAttachmentDefinition no more (--selector)"
    )]
    Conflict(Target, #[source] Refusal),
    #[error(
        "{0}: the networks of its workload have changed, and a template cannot be changed: delete it, and the next run makes it \
         again (kubectl --namespace {namespace} delete resourceclaimtemplate {name}); pods that exist keep their claims",
        namespace = .0.namespace.as_deref().unwrap_or_default(),
        name = .0.name
    )]
    Template(Target),
    #[error("{0}: cannot be applied")]
    Refused(Target, #[source] Refusal),
}

/// An object that was to be applied, and what has become of it.
pub(super) struct Applied<'a> {
    pub(super) object: &'a Value,
    pub(super) target: Target,
    pub(super) result: Result<Change, ApplyError>,
}

/// Applies objects of a translation one by one, those first that others need.
pub(super) async fn apply<'a>(client: &Client, objects: &[&'a Value]) -> Vec<Applied<'a>> {
    let mut applied = Vec::new();
    for kind in &WRITTEN {
        let is_kind = |object: &&&Value| object.get("kind").and_then(Value::as_str) == Some(kind.kind);
        for object in objects.iter().filter(is_kind) {
            let target = Target::of(kind, object);
            let result = apply_one(client, kind, &target, object).await;
            applied.push(Applied { object, target, result });
        }
    }
    // A ClaimNetwork of this run may be for the template's namespace, and the policy on namespaces does not
    // know it yet.
    let may_be_late = applied.iter().any(Applied::is_changed_network);
    if may_be_late && applied.iter().any(Applied::is_forbidden_template) {
        tokio::time::sleep(POLICY).await;
        for applied in &mut applied {
            if applied.is_forbidden_template() {
                applied.result = apply_one(client, &TEMPLATES, &applied.target, applied.object).await;
            }
        }
    }
    applied
}

impl Applied<'_> {
    fn is_changed_network(&self) -> bool {
        self.target.kind == read::NETWORKS.kind
            && matches!(self.result, Ok(Change::Created | Change::Configured))
    }

    fn is_forbidden_template(&self) -> bool {
        self.target.kind == TEMPLATES.kind && self.result.as_ref().is_err_and(ApplyError::is_forbidden)
    }
}

impl ApplyError {
    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(_, refusal) if refusal.code() == 403)
    }
}

async fn apply_one(
    client: &Client,
    kind: &Kind,
    target: &Target,
    object: &Value,
) -> Result<Change, ApplyError> {
    let api = kind.api(client.clone(), target.namespace.as_deref());
    let before =
        api.get_opt(&target.name).await.map_err(|error| ApplyError::Read(target.clone(), error.into()))?;
    if before.as_ref().is_some_and(|before| before.annotations().contains_key(KUBECTL)) {
        return Err(ApplyError::OfKubectl(target.clone()));
    }
    let params = PatchParams::apply(MANAGER);
    match api.patch(&target.name, &params, &Patch::Apply(object)).await {
        Ok(after) => Ok(change(before.as_ref(), &after)),
        Err(error) => Err(refusal(kind, target.clone(), before.is_some(), error)),
    }
}

fn change(before: Option<&DynamicObject>, after: &DynamicObject) -> Change {
    match before {
        None => Change::Created,
        Some(before) if before.resource_version() == after.resource_version() => Change::Unchanged,
        Some(_) => Change::Configured,
    }
}

fn refusal(kind: &Kind, target: Target, exists: bool, error: kube::Error) -> ApplyError {
    let refusal = Refusal::from(error);
    match refusal.code() {
        409 => ApplyError::Conflict(target, refusal),
        422 if exists && kind.kind == TEMPLATES.kind => ApplyError::Template(target),
        _ => ApplyError::Refused(target, refusal),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use crate::migrate::fake::Fake;

    fn network(name: &str, link: &str) -> Value {
        json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": name},
            "spec": {"uplink": {"links": [link]}}})
    }

    fn template(class: &str) -> Value {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "deployment-web", "namespace": "shop"}, "spec": {"class": class}})
    }

    async fn lines(fake: &Fake, objects: &[&Value]) -> Vec<String> {
        apply(&fake.client(), objects).await.iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn an_object_is_created_configured_or_unchanged_as_kubectl_says_it() {
        let fake = Fake::new();
        let (lan, wan, web) = (network("lan", "eth1"), network("wan", "eth2"), template("lan"));
        let expected = [
            "claimnetwork.netclaim.dev/lan created",
            "claimnetwork.netclaim.dev/wan created",
            "resourceclaimtemplate.resource.k8s.io/deployment-web created in namespace shop",
        ];
        assert_eq!(lines(&fake, &[&web, &lan, &wan]).await, expected, "templates come last");
        let lan = network("lan", "eth3");
        let expected =
            ["claimnetwork.netclaim.dev/lan configured", "claimnetwork.netclaim.dev/wan unchanged"];
        assert_eq!(lines(&fake, &[&lan, &wan]).await, expected);
        let patches = fake.requests();
        assert_eq!(
            patches[2],
            "PATCH /apis/resource.k8s.io/v1/namespaces/shop/resourceclaimtemplates/deployment-web"
        );
    }

    #[tokio::test]
    async fn a_refused_object_is_named_and_the_others_are_applied() {
        let fake = Fake::new();
        fake.refuse("PATCH", "/apis/netclaim.dev/v1alpha1/claimnetworks/lan", Some((403, "Forbidden")));
        let lines = lines(&fake, &[&network("lan", "eth1"), &network("wan", "eth2")]).await;
        assert!(lines[0].starts_with("claimnetwork.netclaim.dev/lan: cannot be applied: "), "{}", lines[0]);
        assert!(lines[0].contains("Forbidden is why"), "{}", lines[0]);
        assert_eq!(lines[1], "claimnetwork.netclaim.dev/wan created");
    }

    #[tokio::test]
    async fn fields_of_others_stay() {
        let fake = Fake::new();
        fake.refuse("PATCH", "/apis/netclaim.dev/v1alpha1/claimnetworks/lan", Some((409, "Conflict")));
        let of_kubectl = json!({"metadata": {"name": "wan", "annotations": {KUBECTL: "{}"}}});
        fake.put("claimnetworks", &of_kubectl);
        let lines = lines(&fake, &[&network("lan", "eth1"), &network("wan", "eth2")]).await;
        assert!(
            lines[0].starts_with("claimnetwork.netclaim.dev/lan: another field manager has set"),
            "{}",
            lines[0]
        );
        assert!(lines[1].contains("--server-side --force-conflicts --field-manager=netclaimctl-migrate"));
        assert_eq!(fake.get("claimnetworks", "", "wan").unwrap().get("spec"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_template_that_would_change_is_left_to_the_user() {
        const PATH: &str = "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaimtemplates/deployment-web";
        let fake = Fake::new();
        fake.put("resourceclaimtemplates", &template("lan"));
        fake.refuse("PATCH", PATH, Some((422, "Invalid")));
        let refused = lines(&fake, &[&template("wan")]).await;
        let command = "kubectl --namespace shop delete resourceclaimtemplate deployment-web";
        assert!(refused[0].contains(command), "{}", refused[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_templates_are_tried_again_together_after_a_changed_network() {
        const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaimtemplates/";
        let fake = Fake::new();
        let templates = ["a", "b", "c", "d"].map(|name| {
            let mut template = template("lan");
            template["metadata"]["name"] = json!(name);
            template
        });
        let lan = network("lan", "eth1");
        let all: Vec<&Value> = templates.iter().chain([&lan]).collect();
        for name in ["a", "b", "c"] {
            fake.refuse("PATCH", &format!("{TEMPLATES}{name}"), Some((403, "Forbidden")));
        }
        // The policy knows the ClaimNetwork in time for all but one.
        let known = async {
            tokio::time::sleep(POLICY / 2).await;
            for name in ["a", "b"] {
                fake.refuse("PATCH", &format!("{TEMPLATES}{name}"), None);
            }
        };
        let begin = tokio::time::Instant::now();
        let (first, _) = tokio::join!(lines(&fake, &all), known);
        assert_eq!(begin.elapsed(), POLICY, "one pause for all of them");
        assert!(first[1..3].iter().all(|line| line.ends_with(" created in namespace shop")), "{first:?}");
        assert!(first[3].contains("/c in namespace shop: cannot be applied"), "{first:?}");
        assert_eq!(fake.requests().len(), 1 + 4 + 3);

        // The ClaimNetwork is as it was: the policy knows it, and forbids the template for another reason.
        let begin = tokio::time::Instant::now();
        let second = lines(&fake, &all).await;
        assert_eq!((begin.elapsed(), fake.requests().len()), (Duration::ZERO, 1 + 4));
        assert!(second[3].contains("cannot be applied"), "{second:?}");
    }
}
