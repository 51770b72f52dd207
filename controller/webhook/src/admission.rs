//! The answer to an AdmissionReview, from JSON to JSON. Pure.
//!
//! * Only CREATE and UPDATE are judged, and an UPDATE only if it changes `spec`. A user who removes a
//!   finalizer or writes a label is never stopped, whatever the object says.
//! * An answer has all errors at once, and is bounded however many there are.
//! * Nothing of a request is trusted but its UID, which the API server wants back.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use netclaim_api::{Invalid, shorten};
use netclaim_process::label_values;
use netclaim_validation::{Late, Review};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;

use crate::weight::{Unread, weigh};

/// The only version of AdmissionReview, which the ValidatingWebhookConfiguration names too.
const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Most errors that `status.details.causes` lists.
const CAUSES: usize = 64;
/// The longest text of a cause, in bytes.
const CAUSE: usize = 1024;
/// Most warnings. The API server shortens what is longer than 4096 characters together.
const WARNINGS: usize = 16;
/// The longest warning, in bytes: the API server may cut it after 256 characters.
const WARNING: usize = 256;

label_values! {
    /// The kind of a reviewed object.
    #[allow(missing_docs, reason = "they are Kubernetes' names")]
    pub enum Kind {
        ResourceClaim = "ResourceClaim",
        ResourceClaimTemplate = "ResourceClaimTemplate",
        DeviceClass = "DeviceClass",
        ClaimNetwork = "ClaimNetwork",
        UplinkPolicy = "UplinkPolicy",
        AddressPool = "AddressPool",
        Other = "Other",
    }
}

label_values! {
    /// How a request ended.
    pub enum Outcome {
        /// The object may be stored.
        Allowed = "Allowed",
        /// It may not.
        Refused = "Refused",
        /// The request could not be answered.
        Error = "Error",
    }
}

/// An answer to an AdmissionReview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    pub(crate) outcome: Outcome,
    /// The AdmissionReview with the response.
    pub(crate) json: String,
}

/// Why a request cannot be answered.
#[derive(Debug, Error)]
pub(crate) enum Unanswerable {
    #[error("the body is not an AdmissionReview")]
    Review(#[source] serde_json::Error),
    #[error("{0:?} is not a {KIND} of {API_VERSION}")]
    Version(String),
    #[error("request.{0} is not a JSON object")]
    Object(&'static str, #[source] Option<serde_json::Error>),
    #[error(transparent)]
    Late(#[from] Late),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionReview<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Request<'a>,
}

/// What is read of a request. A newer API server may add fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: String,
    kind: GroupKind,
    #[serde(default)]
    name: String,
    #[serde(default)]
    sub_resource: String,
    operation: String,
    #[serde(default, borrow)]
    object: Option<&'a RawValue>,
    #[serde(default, borrow)]
    old_object: Option<&'a RawValue>,
}

/// What is read of an object: all that a review goes by.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
    #[serde(default, borrow)]
    spec: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    name: Option<String>,
}

impl Object<'_> {
    /// Returns the specification, which has been weighed.
    fn spec(&self, field: &'static str) -> Result<Option<Value>, Unanswerable> {
        let spec = self.spec.map(|spec| serde_json::from_str(spec.get())).transpose();
        spec.map_err(|error| Unanswerable::Object(field, Some(error)))
    }
}

#[derive(Deserialize)]
struct GroupKind {
    #[serde(default)]
    group: String,
    kind: String,
}

impl GroupKind {
    fn known(&self) -> Kind {
        match (self.group.as_str(), self.kind.as_str()) {
            ("resource.k8s.io", "ResourceClaim") => Kind::ResourceClaim,
            ("resource.k8s.io", "ResourceClaimTemplate") => Kind::ResourceClaimTemplate,
            ("resource.k8s.io", "DeviceClass") => Kind::DeviceClass,
            (netclaim_api::GROUP, "ClaimNetwork") => Kind::ClaimNetwork,
            (netclaim_api::GROUP, "UplinkPolicy") => Kind::UplinkPolicy,
            (netclaim_api::GROUP, "AddressPool") => Kind::AddressPool,
            _ => Kind::Other,
        }
    }
}

/// Answers the AdmissionReview in `body`. `review` judges an object, or returns `None` if it is not for
/// netclaim.
///
/// # Errors
/// The body is not what an API server sends, or the review takes too long.
pub(crate) fn answer(
    body: &[u8],
    review: impl Fn(&Value) -> Result<Option<Review>, Late>,
) -> Result<Answer, Unanswerable> {
    let AdmissionReview { api_version, kind, request } =
        serde_json::from_slice(body).map_err(Unanswerable::Review)?;
    if (api_version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
        return Err(Unanswerable::Version(shorten(format!("{api_version}, {kind}"), CAUSE)));
    }
    let Review { errors, warnings } = judge(&request, review)?;
    let outcome = if errors.is_empty() { Outcome::Allowed } else { Outcome::Refused };
    let response = json!({
        "uid": request.uid,
        "allowed": errors.is_empty(),
        "status": (!errors.is_empty()).then(|| refusal(&request, &errors)),
        "warnings": shown(&warnings),
    });
    let json = json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}).to_string();
    Ok(Answer { kind: request.kind.known(), outcome, json })
}

fn judge(
    request: &Request<'_>,
    review: impl Fn(&Value) -> Result<Option<Review>, Late>,
) -> Result<Review, Unanswerable> {
    let creates = request.operation == "CREATE";
    if !request.sub_resource.is_empty() || !(creates || request.operation == "UPDATE") {
        return Ok(Review::default());
    }
    let object = read("object", request.object)?;
    let old = if creates { None } else { Some(read("oldObject", request.old_object)?) };
    let is_same = |old: &Object<'_>| old.spec.map(RawValue::get) == object.spec.map(RawValue::get);
    if old.as_ref().is_some_and(is_same) {
        return Ok(Review::default());
    }
    // Before a tree is made of it.
    for (field, spec) in [("object", Some(&object)), ("oldObject", old.as_ref())] {
        match spec.and_then(|object| object.spec).map_or(Ok(()), |spec| weigh(spec.get())) {
            Ok(()) => {}
            Err(Unread::Json(error)) => return Err(Unanswerable::Object(field, Some(error))),
            Err(heavy) => return Ok(Review::refused(Invalid::new("spec", heavy.to_string()))),
        }
    }
    let spec = object.spec("object")?;
    if let Some(old) = old
        && old.spec("oldObject")? == spec
    {
        return Ok(Review::default());
    }
    let name = object.metadata.and_then(|metadata| metadata.name);
    let mut reviewed =
        json!({"apiVersion": object.api_version, "kind": object.kind, "metadata": {"name": name}});
    if let Some(spec) = spec {
        reviewed["spec"] = spec;
    }
    Ok(review(&reviewed)?.unwrap_or_default())
}

fn read<'a>(field: &'static str, object: Option<&'a RawValue>) -> Result<Object<'a>, Unanswerable> {
    let text = object.ok_or(Unanswerable::Object(field, None))?.get();
    serde_json::from_str(text).map_err(|error| Unanswerable::Object(field, Some(error)))
}

/// The status by which the API server refuses the object. kubectl shows the causes, others the message.
fn refusal(request: &Request<'_>, errors: &[Invalid]) -> Status {
    let cause = |error: &Invalid| StatusCause {
        field: Some(shorten(error.field.clone(), CAUSE)),
        message: Some(shorten(error.problem.clone(), CAUSE)),
        reason: Some("FieldValueInvalid".to_owned()),
    };
    let mut causes: Vec<StatusCause> = errors.iter().take(CAUSES).map(cause).collect();
    let more = errors.len().saturating_sub(CAUSES);
    if more > 0 {
        let message = Some(format!("and {more} more errors"));
        causes.push(StatusCause { field: None, message, reason: None });
    }
    let named = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let details = StatusDetails {
        group: named(&request.kind.group),
        kind: named(&request.kind.kind),
        name: named(&request.name),
        causes: Some(causes),
        ..StatusDetails::default()
    };
    Status {
        status: Some("Failure".to_owned()),
        code: Some(422),
        reason: Some("Invalid".to_owned()),
        message: Some(Invalid::list(errors)),
        details: Some(details),
        ..Status::default()
    }
}

/// The warnings that fit.
fn shown(warnings: &[Invalid]) -> Vec<String> {
    let all = warnings.len();
    let fitting = if all > WARNINGS { WARNINGS - 1 } else { all };
    let mut texts: Vec<String> =
        warnings.iter().take(fitting).map(|warning| shorten(warning.to_string(), WARNING)).collect();
    if all > fitting {
        texts.push(format!("and {} more warnings", all - fitting));
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request of the API server for an object of this kind.
    fn request(operation: &str, kind: &str, object: &Value, old: &Value) -> Value {
        json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "request": {
                "uid": "705ab4f5",
                "kind": {"group": "resource.k8s.io", "version": "v1", "kind": kind},
                "resource": {"group": "resource.k8s.io", "version": "v1", "resource": "any"},
                "name": "storage",
                "namespace": "default",
                "operation": operation,
                "userInfo": {"username": "jane"},
                "object": object,
                "oldObject": old,
                "dryRun": false,
                "options": {"kind": "CreateOptions"},
            },
        })
    }

    /// Refuses what its spec lists, with as many warnings as it says.
    fn strict(object: &Value) -> Result<Option<Review>, Late> {
        let Some(bad) = object["spec"]["bad"].as_array() else { return Ok(None) };
        let errors =
            bad.iter().map(|field| Invalid::new(field.as_str().unwrap_or_default(), "is bad")).collect();
        let warnings = object["spec"]["warnings"].as_u64().unwrap_or_default();
        let warnings = (0..warnings).map(|n| Invalid::new(format!("w{n}"), "is unwise".repeat(40))).collect();
        Ok(Some(Review { errors, warnings }))
    }

    fn ask(request: &Value) -> Result<(Answer, Value), Unanswerable> {
        let answer = answer(request.to_string().as_bytes(), strict)?;
        let json: Value = serde_json::from_str(&answer.json).unwrap();
        assert_eq!((&json["apiVersion"], &json["kind"]), (&json!(API_VERSION), &json!(KIND)));
        assert_eq!(json["response"]["uid"], "705ab4f5");
        assert_eq!(json["response"]["allowed"], answer.outcome == Outcome::Allowed);
        Ok((answer, json["response"].clone()))
    }

    fn spec(bad: &[&str]) -> Value {
        json!({"metadata": {"name": "storage"}, "spec": {"bad": bad}})
    }

    #[test]
    fn only_changes_that_can_be_wrong_are_refused() {
        let (good, bad, worse) = (spec(&[]), spec(&["a"]), spec(&["a", "b"]));
        let mut released = bad.clone();
        released["metadata"]["finalizers"] = json!([]);
        let foreign = json!({"spec": {"driver": "gpu.example.com"}});
        for (case, operation, object, old, allowed) in [
            ("a new good object", "CREATE", &good, &Value::Null, true),
            ("a new bad object", "CREATE", &bad, &Value::Null, false),
            ("an object of another driver", "CREATE", &foreign, &Value::Null, true),
            ("a finalizer of a bad object", "UPDATE", &released, &bad, true),
            ("a bad object that becomes worse", "UPDATE", &worse, &bad, false),
            ("a good object that becomes bad", "UPDATE", &bad, &good, false),
            ("a bad object that becomes good", "UPDATE", &good, &bad, true),
            ("a delete", "DELETE", &Value::Null, &bad, true),
            ("a connect", "CONNECT", &bad, &Value::Null, true),
        ] {
            let (answer, _) = ask(&request(operation, "ResourceClaim", object, old)).unwrap();
            assert_eq!(answer.outcome == Outcome::Allowed, allowed, "{case}");
        }
        let mut status = request("UPDATE", "ResourceClaim", &worse, &bad);
        status["request"]["subResource"] = json!("status");
        assert_eq!(ask(&status).unwrap().0.outcome, Outcome::Allowed, "a status");
    }

    #[test]
    fn an_object_that_is_too_large_is_refused_unless_its_spec_stays() {
        let large = |first: u32| json!({"metadata": {"name": "a"}, "spec": {"list": vec![first; 40_000]}});
        let outcome = |operation: &str, object: &Value, old: &Value| {
            ask(&request(operation, "ClaimNetwork", object, old)).unwrap().0.outcome
        };
        assert_eq!(outcome("CREATE", &large(1), &Value::Null), Outcome::Refused);
        assert_eq!(outcome("UPDATE", &large(1), &large(2)), Outcome::Refused);
        let mut released = large(1);
        released["metadata"]["finalizers"] = json!([]);
        assert_eq!(outcome("UPDATE", &released, &large(1)), Outcome::Allowed);
        let (_, response) = ask(&request("CREATE", "ClaimNetwork", &large(1), &Value::Null)).unwrap();
        let message = response["status"]["message"].as_str().unwrap();
        assert_eq!(message, "spec: has more than 32768 values: make several objects of it");
    }

    #[test]
    fn a_review_that_takes_too_long_is_not_an_answer() {
        let body = request("CREATE", "ClaimNetwork", &spec(&[]), &Value::Null).to_string();
        assert!(matches!(answer(body.as_bytes(), |_| Err(Late)), Err(Unanswerable::Late(Late))));
    }

    #[test]
    fn a_refusal_has_every_error_with_its_field() {
        let (_, response) =
            ask(&request("CREATE", "ResourceClaim", &spec(&["spec.a", "spec.b[0].c"]), &Value::Null))
                .unwrap();
        let status = &response["status"];
        assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));
        assert_eq!(status["message"], "spec.a: is bad; spec.b[0].c: is bad");
        let cause = |field| json!({"field": field, "message": "is bad", "reason": "FieldValueInvalid"});
        let expected = json!({"group": "resource.k8s.io", "kind": "ResourceClaim", "name": "storage",
            "causes": [cause("spec.a"), cause("spec.b[0].c")]});
        assert_eq!(status["details"], expected);
        assert_eq!(response["warnings"], json!([]));
    }

    #[test]
    fn an_answer_is_bounded_however_much_is_wrong() {
        let many: Vec<String> = (0..5000).map(|n| format!("{n}{}", "x".repeat(2000))).collect();
        let fields: Vec<&str> = many.iter().map(String::as_str).collect();
        let mut object = spec(&fields);
        object["spec"]["warnings"] = json!(100);
        let (answer, response) = ask(&request("CREATE", "DeviceClass", &object, &Value::Null)).unwrap();
        assert!(answer.json.len() < 200_000, "{}", answer.json.len());
        let causes = response["status"]["details"]["causes"].as_array().unwrap();
        assert_eq!(causes.len(), CAUSES + 1);
        assert_eq!(causes[CAUSES]["message"], "and 4936 more errors");
        let warnings = response["warnings"].as_array().unwrap();
        assert_eq!((warnings.len(), &warnings[15]), (16, &json!("and 85 more warnings")));
        assert!(warnings.iter().all(|text| text.as_str().unwrap().len() <= WARNING));
    }

    #[test]
    fn warnings_come_with_objects_that_are_allowed_too() {
        let mut object = spec(&[]);
        object["spec"]["warnings"] = json!(1);
        let (_, response) = ask(&request("CREATE", "DeviceClass", &object, &Value::Null)).unwrap();
        assert!(response["warnings"][0].as_str().unwrap().starts_with("w0: is unwise"));
        assert!(response["status"].is_null());
    }

    #[test]
    fn a_request_that_no_api_server_sends_is_an_error() {
        let good = request("CREATE", "ResourceClaim", &spec(&[]), &Value::Null);
        let without = |pointer: &str| {
            let mut request = good.clone();
            *request.pointer_mut(pointer).unwrap() = Value::Null;
            request.to_string()
        };
        let mut update = good.clone();
        update["request"]["operation"] = json!("UPDATE");
        for (case, body) in [
            ("nothing", String::new()),
            ("no JSON", "AdmissionReview".to_owned()),
            ("a list", "[]".to_owned()),
            ("no request", without("/request")),
            ("no UID", without("/request/uid")),
            ("no kind", without("/request/kind")),
            ("no object", without("/request/object")),
            ("no old object", update.to_string()),
            ("an old version", good.to_string().replace(API_VERSION, "admission.k8s.io/v1beta1")),
            ("a text as the object", good.to_string().replace(&spec(&[]).to_string(), "\"text\"")),
            ("too deep", good.to_string().replace(&spec(&[]).to_string(), &"[".repeat(1_000_000))),
        ] {
            assert!(answer(body.as_bytes(), strict).is_err(), "{case}");
        }
    }

    #[test]
    fn kinds_are_counted_by_group_and_name() {
        let mut object = request("CREATE", "DeviceClass", &spec(&[]), &Value::Null);
        assert_eq!(ask(&object).unwrap().0.kind, Kind::DeviceClass);
        object["request"]["kind"] = json!({"group": "netclaim.dev", "kind": "ClaimNetwork"});
        assert_eq!(ask(&object).unwrap().0.kind, Kind::ClaimNetwork);
        object["request"]["kind"] = json!({"group": "example.com", "kind": "ClaimNetwork"});
        assert_eq!(ask(&object).unwrap().0.kind, Kind::Other);
    }
}
