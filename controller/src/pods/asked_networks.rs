//! Which ClaimNetworks the claims of a pod ask for, as the API server says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::resource::v1::{CapacityRequirements, DeviceClass, DeviceSelector, ResourceClaim};
use kube::Client;
use netclaim_allocation::{class_named_by, serves};
use netclaim_api::{NetworkName, attributes};
use netclaim_kubernetes::quantity::billionths;
use tokio::time::Instant;

use super::read::{self, Classes};
use super::waiting::ClaimsToRead;

/// How long DeviceClasses are remembered.
const CLASS_AGE: Duration = Duration::from_secs(60);

/// Reads claims and their DeviceClasses, one after the other.
pub(super) struct Reader {
    reader: read::Reader,
    classes: Classes,
    /// Whether these are all that there are.
    has_all: bool,
    /// When the first of them was read.
    since: Instant,
}

impl Reader {
    pub(super) fn new(client: Client) -> Self {
        let reader = read::Reader::new(client);
        Self { reader, classes: Classes::new(), has_all: false, since: Instant::now() }
    }

    /// Returns the ClaimNetworks that the pod's claims and limits ask for; `None` if a claim or class does
    /// not exist yet, or if there are more than are read. Limits that are not called by a class, and that
    /// none serves, are a device plugin's.
    pub(super) async fn networks(
        &mut self,
        question: &ClaimsToRead,
    ) -> kube::Result<Option<BTreeSet<NetworkName>>> {
        let Self { reader, classes, has_all, since } = self;
        if since.elapsed() >= CLASS_AGE {
            classes.clear();
            *has_all = false;
            *since = Instant::now();
        }
        if !question.resources.is_empty() && !*has_all {
            reader.all_classes(classes).await?;
            *has_all = true;
        }
        let names = question.claims.iter().map(|name| (name.clone(), name.clone()));
        let names: BTreeMap<String, String> = names.collect();
        let Some(claims) = reader.claims(&question.namespace, &names, classes).await? else {
            return Ok(None);
        };
        let mut networks = BTreeSet::new();
        let resources: BTreeSet<&str> = question.resources.iter().map(String::as_str).collect();
        let mut called = resources.iter().copied().filter_map(class_named_by);
        if called.any(|class| !matches!(classes.get(class), Some(Some(_)))) {
            return Ok(None);
        }
        let serving = classes.values().flatten().filter(|class| serves(class, &resources));
        networks.extend(serving.flat_map(|class| named(selectors_of(class))));
        for (class, selectors) in claims.iter().flat_map(requests) {
            let Some(Some(class)) = classes.get(class) else { return Ok(None) };
            networks.extend(named(selectors));
            networks.extend(named(selectors_of(class)));
        }
        Ok(Some(networks))
    }
}

fn selectors_of(class: &DeviceClass) -> Option<&[DeviceSelector]> {
    class.spec.as_ref().and_then(|spec| spec.selectors.as_deref())
}

/// Returns the DeviceClass and the selectors of each request, and of each alternative, that takes addresses
/// of nodes' blocks.
fn requests(claim: &ResourceClaim) -> impl Iterator<Item = (&str, Option<&[DeviceSelector]>)> {
    let devices = claim.spec.iter().filter_map(|spec| spec.devices.as_ref());
    let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    requests.flat_map(|request| {
        let exactly = request.exactly.iter().filter(|one| takes_addresses(one.capacity.as_ref()));
        let exactly =
            exactly.map(|exactly| (exactly.device_class_name.as_str(), exactly.selectors.as_deref()));
        let alternatives = request.first_available.iter().flatten();
        let alternatives = alternatives.filter(|one| takes_addresses(one.capacity.as_ref()));
        exactly.chain(alternatives.map(|one| (one.device_class_name.as_str(), one.selectors.as_deref())))
    })
}

/// Whether a request needs addresses of a node's block. One for reserved addresses requests 0.
fn takes_addresses(capacity: Option<&CapacityRequirements>) -> bool {
    let requests = capacity.and_then(|capacity| capacity.requests.as_ref());
    let amount = requests.and_then(|requests| requests.get(attributes::ADDRESSES));
    amount.is_none_or(|amount| billionths(&amount.0) != Ok(0))
}

/// Returns the ClaimNetworks that the selectors may name: what stands between two quotes and can be a name.
fn named(selectors: Option<&[DeviceSelector]>) -> impl Iterator<Item = NetworkName> {
    let expressions = selectors.into_iter().flatten().filter_map(|selector| selector.cel.as_ref());
    expressions.flat_map(|cel| {
        ['"', '\''].into_iter().flat_map(|quote| {
            let mut parts = cel.expression.split(quote);
            // What is before the first quote and after the last one.
            parts.next();
            parts.next_back();
            parts.filter_map(|part| part.parse().ok())
        })
    })
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower_test::mock;

    use super::*;

    fn selectors(expression: &str) -> Value {
        json!([{"cel": {"expression": expression}}])
    }

    fn text(networks: impl IntoIterator<Item = NetworkName>) -> Vec<String> {
        networks.into_iter().map(String::from).collect()
    }

    #[test]
    fn a_selector_asks_for_the_networks_whose_names_it_quotes() {
        let of = |expression: &str| {
            let selectors: Vec<DeviceSelector> = serde_json::from_value(selectors(expression)).unwrap();
            text(named(Some(&selectors)))
        };
        let documented =
            r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "storage""#;
        assert_eq!(of(documented), ["storage"]);
        assert_eq!(of("network in ['lab-1', \"lab-2\"]"), ["lab-2", "lab-1"]);
        assert_eq!(of("device.attributes['netclaim.dev'].speed >= 25000"), [""; 0]);
        assert_eq!(of("storage"), [""; 0], "without quotes");
        assert_eq!(of("'storage"), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_requests_of_a_claim_and_their_classes_ask_for_networks() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [
                {"name": "one", "exactly": {"deviceClassName": "storage"}},
                {"name": "two", "firstAvailable": [
                    {"name": "a", "deviceClassName": "storage", "selectors": selectors("network == 'red'")},
                    {"name": "b", "deviceClassName": "any", "selectors": selectors("network == 'blue'")}]},
                {"name": "three", "exactly": {"deviceClassName": "static", "capacity": {"requests": {"addresses": "0"}}}}]}}});
        let class = |name: &str, expression: &str| {
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
                "spec": {"selectors": selectors(expression)}})
        };
        let (of_static, of_storage) = ("network == 'plc'", "network == 'store'");
        let classes = [class("any", "true"), class("static", of_static), class("storage", of_storage)];
        let answers = [vec![claim.clone()], classes.into(), vec![claim]].concat();
        let server = tokio::spawn(async move {
            let mut seen = Vec::new();
            for answer in answers {
                let (request, reply) = requests.next_request().await.unwrap();
                seen.push((request.uri().path().to_owned(), Instant::now()));
                reply.send_response(Response::new(Body::from(answer.to_string().into_bytes())));
            }
            seen
        });
        let mut reader = Reader::new(Client::new(service, "default"));
        let question = ClaimsToRead::new("u1", "shop", ["c"]);
        for _ in 0..2 {
            let networks = reader.networks(&question).await.unwrap().unwrap();
            assert_eq!(text(networks), ["blue", "red", "store"], "without that of the reserved address");
        }
        let seen = server.await.unwrap();
        let paths = seen.iter().map(|(path, _)| path.trim_start_matches("/apis/resource.k8s.io/v1/"));
        let claim = "namespaces/shop/resourceclaims/c";
        assert_eq!(
            paths.collect::<Vec<_>>(),
            [claim, "deviceclasses/any", "deviceclasses/static", "deviceclasses/storage", claim],
            "classes are read once"
        );
        assert!(seen[4].1 - seen[0].1 >= Duration::from_millis(200), "requests have a pace");
    }

    #[tokio::test]
    async fn the_classes_that_serve_limits_ask_for_networks() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let class = |name: &str, resource: Option<&str>| {
            json!({"metadata": {"name": name}, "spec": {"selectors": selectors(&format!("network == '{name}'")),
                "extendedResourceName": resource}})
        };
        let items =
            json!([class("red", None), class("blue", Some("example.com/blue")), class("green", None)]);
        let list = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClassList", "metadata": {}, "items": items});
        let server = tokio::spawn(async move {
            while let Some((request, reply)) = requests.next_request().await {
                assert_eq!(request.uri().path(), "/apis/resource.k8s.io/v1/deviceclasses");
                reply.send_response(Response::new(Body::from(list.to_string().into_bytes())));
            }
        });
        let mut reader = Reader::new(Client::new(service, "default"));
        let mut question = ClaimsToRead::new("u1", "shop", []);
        question.resources =
            ["example.com/blue", "deviceclass.resource.kubernetes.io/red"].map(str::to_owned).into();
        assert_eq!(text(reader.networks(&question).await.unwrap().unwrap()), ["blue", "red"]);
        question.resources = ["deviceclass.resource.kubernetes.io/later".to_owned()].into();
        assert_eq!(reader.networks(&question).await.unwrap(), None, "it may be made");
        drop(reader);
        server.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn limits_of_device_plugins_keep_no_claim_from_being_read() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "red"}}]}}});
        let class =
            json!({"metadata": {"name": "red"}, "spec": {"selectors": selectors("network == 'red'")}});
        let list = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClassList", "metadata": {},
            "items": [class]});
        let server = tokio::spawn(async move {
            let mut lists = 0;
            while let Some((request, reply)) = requests.next_request().await {
                let is_list = request.uri().path().ends_with("/deviceclasses");
                lists += u32::from(is_list);
                let body = if is_list { &list } else { &claim };
                reply.send_response(Response::new(Body::from(body.to_string().into_bytes())));
            }
            lists
        });
        let mut reader = Reader::new(Client::new(service, "default"));
        let mut question = ClaimsToRead::new("u1", "shop", ["c"]);
        question.resources = ["nvidia.com/gpu".to_owned()].into();
        for _ in 0..2 {
            assert_eq!(text(reader.networks(&question).await.unwrap().unwrap()), ["red"]);
        }
        question.claims.clear();
        assert_eq!(text(reader.networks(&question).await.unwrap().unwrap()), [""; 0]);
        drop(reader);
        assert_eq!(server.await.unwrap(), 1, "classes are listed once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_with_many_claims_has_only_some_of_them_read() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "none"}}]}}});
        let server = tokio::spawn(async move {
            let mut seen = 0;
            while let Some((request, reply)) = requests.next_request().await {
                seen += 1;
                let is_class = request.uri().path().contains("deviceclasses");
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "NotFound", "code": 404});
                let (code, body) = if is_class { (404, &status) } else { (200, &claim) };
                let body = Body::from(body.to_string().into_bytes());
                reply.send_response(Response::builder().status(code).body(body).unwrap());
            }
            seen
        });
        let mut reader = Reader::new(Client::new(service, "default"));
        let mut question = ClaimsToRead::new("u1", "shop", []);
        question.claims = (0..500).map(|n| format!("c{n}")).collect();
        assert_eq!(reader.networks(&question).await.unwrap(), None);
        drop(reader);
        assert_eq!(server.await.unwrap(), 64);
    }

    #[tokio::test]
    async fn the_networks_of_a_claim_that_does_not_exist_yet_are_unknown() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let mut reader = Reader::new(Client::new(service, "default"));
        let question = ClaimsToRead::new("u1", "shop", ["c"]);
        let answer = async {
            let (_, reply) = requests.next_request().await.unwrap();
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": "NotFound", "code": 404});
            let body = Body::from(status.to_string().into_bytes());
            reply.send_response(Response::builder().status(404).body(body).unwrap());
        };
        let (networks, ()) = tokio::join!(reader.networks(&question), answer);
        assert_eq!(networks.unwrap(), None);
    }
}
