//! Keeps the templates, and counts the pods that lack a default.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, PostParams, Preconditions, ResourceExt as _};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use netclaim_api::network::{DEFAULT_LABEL, MADE_BY, default_template};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::plan::{Kept, Made, Place, Plan, Reports, Wanted, Write};
use super::pods::{NamespacePods, PodObject, resource};
use crate::objects::listing::each;
use crate::objects::watches::next;

/// Changes are gathered for this long: a namespace and its labels often come in two steps.
const GATHER_DELAY: Duration = Duration::from_millis(200);

/// Time between a failed request and the next try.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Time between two counts of pods, and between two tries of what the API server has refused.
const PERIOD: Duration = Duration::from_secs(60);

/// The pause after a count is at least this many times as long as the count.
const REST_FACTOR: u32 = 9;

/// The longest pause after a count.
const LONGEST_REST: Duration = Duration::from_secs(600);

/// Pods in one answer of the API server.
const PODS: u32 = 500;

/// Keeps templates in all namespaces but `except`. Does not return. With `None`, default networks are off.
pub(crate) async fn run(
    client: Client,
    except: Option<BTreeSet<String>>,
    mut wanted: watch::Receiver<Option<Wanted>>,
    reports: watch::Sender<Option<Reports>>,
) {
    let Some(except) = except else {
        reports.send_replace(Some(Reports::Off));
        return std::future::pending().await;
    };
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    let mut namespace_events = pin!(watcher(namespaces, watcher::Config::default()).default_backoff());
    let templates: Api<PartialObjectMeta<ResourceClaimTemplate>> = Api::all(client.clone());
    let ours = watcher::Config::default().labels(DEFAULT_LABEL);
    let mut template_events = pin!(watcher(templates, ours).default_backoff());
    let mut keeper = Keeper::new(client, except);
    let mut due: Option<Instant> = None;
    loop {
        let ready = keeper.synced == Synced::ALL;
        let changed = tokio::select! {
            Ok(()) = wanted.changed() => keeper.want(wanted.borrow_and_update().clone()),
            event = next(&mut namespace_events, "namespaces") => keeper.see_namespace(event),
            event = next(&mut template_events, "templates of default networks") => keeper.see_template(event),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if ready && due.is_some() => {
                due = Some(keeper.round().await);
                let report = Some(Reports::On(keeper.plan.report()));
                reports.send_if_modified(|before| std::mem::replace(before, report.clone()) != report);
                false
            }
        };
        if changed {
            let soon = Instant::now() + GATHER_DELAY;
            due = Some(due.map_or(soon, |due| due.min(soon)));
        }
    }
}

/// Returns the labels of a namespace in which objects can be created.
fn labels_of(namespace: &PartialObjectMeta<Namespace>) -> Option<BTreeMap<String, String>> {
    namespace.metadata.deletion_timestamp.is_none().then(|| namespace.labels().clone())
}

/// Returns a template that the controller has made; `None` for another one with its label.
fn read(template: &PartialObjectMeta<ResourceClaimTemplate>) -> Option<(Place, Made)> {
    let network = template.labels().get(DEFAULT_LABEL)?.clone();
    if template.name_any() != default_template(&network) {
        return None;
    }
    let fingerprint = template.annotations().get(MADE_BY).cloned();
    Some((Place { namespace: template.namespace()?, network }, Made { uid: template.uid()?, fingerprint }))
}

/// What is known whole: before, templates would seem not to be needed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Synced {
    wanted: bool,
    namespaces: bool,
    templates: bool,
}

impl Synced {
    const ALL: Self = Self { wanted: true, namespaces: true, templates: true };
}

struct Keeper {
    client: Client,
    plan: Plan,
    synced: Synced,
    /// When pods are counted next.
    count: Instant,
    /// When they may be counted at the earliest: namespaces come and go.
    rested: Instant,
    /// The lists in progress.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    templates: BTreeMap<Place, Made>,
}

impl Keeper {
    fn new(client: Client, except: BTreeSet<String>) -> Self {
        Self {
            client,
            plan: Plan::new(except),
            synced: Synced::default(),
            count: Instant::now(),
            rested: Instant::now(),
            namespaces: BTreeMap::new(),
            templates: BTreeMap::new(),
        }
    }

    /// Takes in the defaults. Returns whether there may be something to do.
    fn want(&mut self, wanted: Option<Wanted>) -> bool {
        let Some(wanted) = wanted else { return false };
        let is_first = !std::mem::replace(&mut self.synced.wanted, true);
        (self.plan.want(wanted) || is_first) && self.count_soon()
    }

    fn count_soon(&mut self) -> bool {
        self.count = self.rested.max(Instant::now());
        true
    }

    /// As [`Self::want`], for the watch of namespaces.
    fn see_namespace(&mut self, event: watcher::Event<PartialObjectMeta<Namespace>>) -> bool {
        let is_new = match event {
            watcher::Event::Init => {
                self.namespaces.clear();
                false
            }
            watcher::Event::InitApply(namespace) => {
                let labels = labels_of(&namespace);
                self.namespaces.extend(labels.map(|labels| (namespace.name_any(), labels)));
                false
            }
            watcher::Event::InitDone => {
                self.synced.namespaces = true;
                self.plan.namespaces(std::mem::take(&mut self.namespaces));
                true
            }
            watcher::Event::Apply(namespace) => {
                self.plan.namespace(&namespace.name_any(), labels_of(&namespace))
            }
            watcher::Event::Delete(namespace) => self.plan.namespace(&namespace.name_any(), None),
        };
        is_new && self.count_soon()
    }

    /// As [`Self::want`], for the watch of templates.
    fn see_template(&mut self, event: watcher::Event<PartialObjectMeta<ResourceClaimTemplate>>) -> bool {
        match event {
            watcher::Event::Init => self.templates.clear(),
            watcher::Event::InitApply(template) => self.templates.extend(read(&template)),
            watcher::Event::InitDone => {
                self.synced.templates = true;
                self.plan.templates(std::mem::take(&mut self.templates));
            }
            watcher::Event::Apply(template) => {
                read(&template).into_iter().for_each(|(place, made)| self.plan.made(place, made));
            }
            watcher::Event::Delete(template) => {
                read(&template).iter().for_each(|(place, made)| self.plan.gone(place, &made.uid));
            }
        }
        true
    }

    /// Writes what is to be written, and counts pods if that is due. Returns when to do so again.
    async fn round(&mut self) -> Instant {
        let begin = Instant::now();
        let is_due = self.count <= begin;
        if is_due {
            self.plan.forget_refusals();
        }
        let mut done = self.write().await;
        if is_due {
            done &= self.count().await;
            // What no pod names can go.
            done &= self.write().await;
            let (end, rest) = (Instant::now(), LONGEST_REST.min(begin.elapsed() * REST_FACTOR));
            (self.rested, self.count) = (end + rest, end + rest.max(PERIOD));
        }
        if done { self.count } else { self.count.min(Instant::now() + RETRY_DELAY) }
    }

    /// Returns whether everything was written, or refused for good.
    async fn write(&mut self) -> bool {
        let mut done = true;
        // A template that is replaced needs two writes.
        for _ in 0..2 {
            for write in self.plan.writes() {
                let Err(error) = self.send(write).await else { continue };
                let is_away = !matches!(error, kube::Error::Api(_));
                let error = &error as &dyn Error;
                tracing::warn!(error, "cannot keep a template of a default network, will retry");
                done = false;
                if is_away {
                    return false;
                }
            }
        }
        done
    }

    async fn send(&mut self, write: Write) -> kube::Result<()> {
        match write {
            Write::Create(place, kept) => self.create(place, &kept).await,
            Write::Delete(place, made) => {
                let uid = Some(made.uid.clone());
                let params =
                    DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
                match self.api(&place.namespace).delete(&default_template(&place.network), &params).await {
                    Ok(_) => tracing::info!(?place, "deleted the template of a default network"),
                    // Somebody else has deleted or replaced it; the watch is about to report it.
                    Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                    Err(error) => return Err(error),
                }
                self.plan.gone(&place, &made.uid);
                Ok(())
            }
        }
    }

    async fn create(&mut self, place: Place, kept: &Kept) -> kube::Result<()> {
        let Place { namespace, network } = &place;
        let template = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": default_template(network), "namespace": namespace,
                "labels": {DEFAULT_LABEL: network}, "annotations": {MADE_BY: kept.claim.fingerprint},
            },
            "spec": {"spec": kept.claim.spec},
        });
        let template = serde_json::from_value(template).map_err(kube::Error::SerdeError)?;
        match self.api(namespace).create(&PostParams::default(), &template).await {
            Ok(created) => {
                tracing::info!(?place, "created the template of a default network");
                let made = Made {
                    uid: created.uid().unwrap_or_default(),
                    fingerprint: Some(kept.claim.fingerprint.clone()),
                };
                self.plan.made(place, made);
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let why =
                    format!("somebody else has made a ResourceClaimTemplate {}", default_template(network));
                self.plan.refused(place, why);
            }
            // The namespace is gone; the watch is about to report it.
            Err(kube::Error::Api(status)) if status.code == 404 => self.plan.refused(place, status.message),
            Err(kube::Error::Api(status)) if (400..429).contains(&status.code) => {
                tracing::warn!(?place, status.message, "the template of a default network is refused");
                self.plan.refused(place, status.message);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn api(&self, namespace: &str) -> Api<ResourceClaimTemplate> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Lists the pods of all namespaces that matter. Returns whether that succeeded.
    async fn count(&mut self) -> bool {
        for (namespace, defaults) in self.plan.to_count() {
            match self.pods_of(&namespace, &defaults).await {
                Ok(pods) => self.plan.counted(namespace, pods),
                Err(error) => {
                    let error = &error as &dyn Error;
                    tracing::warn!(
                        error,
                        namespace,
                        "cannot count pods that lack a default network, will retry"
                    );
                    return false;
                }
            }
        }
        true
    }

    async fn pods_of(&self, namespace: &str, defaults: &[String]) -> kube::Result<NamespacePods> {
        let api: Api<PodObject> = Api::namespaced_with(self.client.clone(), namespace, &resource());
        let running = ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
        let mut pods = NamespacePods::default();
        each(api, running.limit(PODS), |pod| pods.add(&pod, defaults)).await?;
        Ok(pods)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::Value;
    use tower_test::mock;

    use super::*;

    /// A keeper of the default `storage`, which selects the namespace `shop`.
    fn keeper() -> (Keeper, mock::Handle<Request<Body>, Response<Body>>) {
        let (service, requests) = mock::pair();
        let mut keeper = Keeper::new(Client::new(service, "default"), BTreeSet::new());
        let default = json!({"namespaceSelector": {"matchLabels": {"storage": "yes"}}});
        let default = serde_json::from_value(default).unwrap();
        let kept = Kept::of(&"storage".parse().unwrap(), &default);
        assert!(keeper.want(Some([("storage".to_owned(), Some(Arc::new(kept)))].into())));
        let shop = json!({"metadata": {"name": "shop", "labels": {"storage": "yes"}}});
        assert!(keeper.see_namespace(watcher::Event::Apply(serde_json::from_value(shop).unwrap())));
        (keeper, requests)
    }

    /// Runs a round with these answers of the API server, and returns the requests with their bodies.
    async fn round(
        keeper: &mut Keeper,
        requests: &mut mock::Handle<Request<Body>, Response<Body>>,
        answers: &[(u16, Value)],
    ) -> Vec<(String, Value)> {
        let server = async {
            let mut seen = Vec::new();
            for (status, answer) in answers {
                let (request, reply) = requests.next_request().await.unwrap();
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                seen.push((
                    format!("{} {}", head.method, head.uri.path()),
                    serde_json::from_slice(&body).unwrap_or_default(),
                ));
                let answer = Body::from(serde_json::to_vec(answer).unwrap());
                reply.send_response(Response::builder().status(*status).body(answer).unwrap());
            }
            seen
        };
        let (_, seen) = tokio::join!(keeper.round(), server);
        seen
    }

    fn refusal(code: u16, message: &str) -> (u16, Value) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "X", "code": code});
        (code, status)
    }

    fn created() -> (u16, Value) {
        (201, json!({"metadata": {"name": "x", "uid": "u1"}, "spec": {"spec": {}}}))
    }

    fn pods(templates: &[&str]) -> (u16, Value) {
        let pod = |template: &&str| {
            json!({"metadata": {"name": "p"}, "spec": {"resourceClaims": [
                {"name": "default-storage", "resourceClaimTemplateName": template}]}})
        };
        let items: Vec<Value> = templates.iter().map(pod).collect();
        (200, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}))
    }

    const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaimtemplates";

    #[tokio::test]
    async fn a_template_is_made_and_deleted_when_no_pod_names_it() {
        let (mut keeper, mut requests) = keeper();
        let seen = round(&mut keeper, &mut requests, &[created(), pods(&["netclaim-default-storage"])]).await;
        let [(create, template), (list, _)] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!(create, &format!("POST {TEMPLATES}"));
        assert_eq!(list, "GET /api/v1/namespaces/shop/pods");
        assert_eq!(template["metadata"]["name"], "netclaim-default-storage");
        assert_eq!(template["metadata"]["labels"], json!({"netclaim.dev/default-network": "storage"}));
        assert_eq!(
            template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"],
            "storage"
        );

        keeper.want(Some(Wanted::new()));
        keeper.count = Instant::now();
        let seen = round(&mut keeper, &mut requests, &[pods(&["netclaim-default-storage"])]).await;
        assert_eq!(seen.len(), 1, "a pod names it: {seen:?}");
        keeper.count = Instant::now();
        let seen = round(&mut keeper, &mut requests, &[pods(&[]), (200, json!({"metadata": {}}))]).await;
        assert_eq!(seen[1].0, format!("DELETE {TEMPLATES}/netclaim-default-storage"));
        assert_eq!(seen[1].1["preconditions"], json!({"uid": "u1"}));
    }

    #[tokio::test]
    async fn a_template_that_is_refused_is_reported_and_tried_again_later() {
        let (mut keeper, mut requests) = keeper();
        let answers = [refusal(403, "exceeded quota"), pods(&[])];
        round(&mut keeper, &mut requests, &answers).await;
        let why = |keeper: &Keeper| keeper.plan.report()["storage"].refused["shop"].clone();
        assert_eq!(why(&keeper), "exceeded quota");
        round(&mut keeper, &mut requests, &[]).await;
        keeper.count = Instant::now();
        round(&mut keeper, &mut requests, &[refusal(409, "exists"), pods(&[])]).await;
        assert_eq!(why(&keeper), "somebody else has made a ResourceClaimTemplate netclaim-default-storage");
    }

    #[tokio::test]
    async fn what_fails_is_tried_again_soon() {
        let (mut keeper, mut requests) = keeper();
        let answers =
            [refusal(500, "no"), refusal(500, "no"), pods(&[]), refusal(500, "no"), refusal(500, "no")];
        round(&mut keeper, &mut requests, &answers).await;
        let seen = round(&mut keeper, &mut requests, &[created()]).await;
        assert_eq!(seen[0].0, format!("POST {TEMPLATES}"));
    }

    #[test]
    fn a_template_of_another_name_with_the_label_is_not_ours() {
        let template = |name: &str| {
            let labels = json!({"netclaim.dev/default-network": "storage"});
            let template =
                json!({"metadata": {"name": name, "namespace": "shop", "uid": "u", "labels": labels}});
            read(&serde_json::from_value(template).unwrap())
        };
        assert!(template("netclaim-default-storage").is_some());
        assert_eq!(template("netclaim-default-other"), None);
    }
}
