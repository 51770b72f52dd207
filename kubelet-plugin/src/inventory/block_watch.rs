//! Watches the AddressBlocks of the node, and how long the API server has been silent about them.
//!
//! kube's watcher hides bookmarks. They are what tells a quiet API server from one that cannot be reached,
//! without a request: it sends one about every minute.
//!
//! Each watch begins with a list, a consistent read. A watch that went on from the version of the last one
//! would hear nothing of a cluster whose etcd was restored: there, that version is yet to come, and the API
//! server neither says so nor sends anything.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use netclaim_api::addresses::AddressBlock;
use netclaim_cni::error_chain;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::addresses::{OwnBlock, OwnBlocks};

/// Seconds after which the API server ends a watch, at random so that thousands of nodes do not ask at once;
/// the most is the limit of its clients.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 240..=290;
/// The longest time between a failure and the next try, and the shortest, on average.
const RETRY: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(1)];
/// How long the API server may take to answer. Without a limit, a lost connection would be waited for long
/// after the network is back.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at the clock.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The watch of one node's blocks.
pub(crate) struct BlockWatch {
    /// The client for AddressBlocks.
    pub(crate) client: kube::Client,
    /// The Node object's name.
    pub(crate) node: String,
    /// Silence after which the blocks may soon be those of other nodes.
    pub(crate) stale_after: Duration,
}

impl BlockWatch {
    /// Keeps `blocks` up to date until `cancel`.
    pub(crate) async fn run(self, blocks: watch::Sender<OwnBlocks>, cancel: CancellationToken) {
        let (heard_sender, mut heard) = watch::channel(now());
        let following = async {
            let [longest, shortest] = RETRY;
            let mut pause = shortest;
            loop {
                let begin = now();
                if let Err(error) = self.follow(&blocks, &heard_sender).await {
                    tracing::warn!(
                        error = error_chain(&error),
                        "cannot watch the node's AddressBlocks, retrying"
                    );
                    if is_refused(&error) {
                        // Without the CRD or the right, the node has no blocks, and its other devices are
                        // offered all the same.
                        blocks.send_if_modified(|blocks| {
                            blocks.known.is_none() && blocks.known.insert(BTreeMap::new()).is_empty()
                        });
                    }
                }
                pause = if now().saturating_sub(begin) > longest { shortest } else { longest.min(pause * 2) };
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            }
        };
        let aging = async {
            loop {
                let is_stale = now().saturating_sub(*heard.borrow_and_update()) > self.stale_after;
                blocks.send_if_modified(|blocks| {
                    let has_any = blocks.known.as_ref().is_some_and(|known| !known.is_empty());
                    if blocks.is_stale != is_stale && is_stale && has_any {
                        let seconds = self.stale_after.as_secs();
                        tracing::error!(
                            "the API server has not reported this node's AddressBlocks for {seconds} s: no new pod gets an \
                             address of them until there is"
                        );
                    }
                    std::mem::replace(&mut blocks.is_stale, is_stale) != is_stale
                });
                tokio::select! {
                    () = tokio::time::sleep(LOOK_INTERVAL.min(self.stale_after / 4)) => {}
                    _ = heard.changed(), if is_stale => {}
                }
            }
        };
        tokio::select! {
            () = following => {}
            () = aging => {}
            () = cancel.cancelled() => {}
        }
    }

    /// Lists the blocks and follows their changes, again and again, until a request fails or is not answered.
    async fn follow(
        &self,
        blocks: &watch::Sender<OwnBlocks>,
        heard: &watch::Sender<Duration>,
    ) -> kube::Result<()> {
        let api =
            Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<AddressBlock>(&()));
        let fields = format!("spec.nodeName={}", self.node);
        let mut version = String::new();
        loop {
            let asked = now();
            let list = ListParams::default().fields(&fields);
            let Ok(list) = timeout(ANSWER_TIMEOUT, api.list(&list)).await else { return Ok(()) };
            let list = list?;
            // As of the question: the answer may have been on its way for long.
            heard.send_replace(asked);
            let known: BTreeMap<String, OwnBlock> = list.items.into_iter().filter_map(decoded).collect();
            blocks.send_if_modified(|blocks| {
                let before = blocks.known.take();
                let of_before = |name: &String| before.as_ref()?.get(name);
                let known = known.into_iter().map(|(name, block)| {
                    let block = block.after(of_before(&name));
                    (name, block)
                });
                blocks.known = Some(known.collect());
                blocks.known != before
            });
            let listed = list.metadata.resource_version.unwrap_or_default();
            if is_older(&listed, &version) {
                tracing::error!(
                    version = listed,
                    before = version,
                    "the API server has an older state than before, such as after a restore of etcd: pods may have addresses of \
                     blocks that this node has no more"
                );
            }
            version = listed;
            let params = WatchParams::default().fields(&fields).timeout(fastrand::u32(WATCH_SECONDS));
            let Ok(events) = timeout(ANSWER_TIMEOUT, api.watch(&params, &version)).await else {
                return Ok(());
            };
            let mut events = pin!(events?);
            // Silence of half the allowed time: ask, because the connection may be dead.
            while let Ok(event) = timeout(self.stale_after / 2, events.try_next()).await {
                let Some(event) = event? else { break };
                match event {
                    WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        version = object.metadata.resource_version.clone().unwrap_or_default();
                        let name = object.name_any();
                        let block = decoded(object).map(|(_, block)| block);
                        blocks.send_if_modified(|blocks| {
                            let known = blocks.known.get_or_insert_default();
                            let block = block.map(|block| block.after(known.get(&name)));
                            let before = match block.clone() {
                                Some(block) => known.insert(name, block),
                                None => known.remove(&name),
                            };
                            before != block
                        });
                    }
                    WatchEvent::Deleted(object) => {
                        version = object.metadata.resource_version.unwrap_or_default();
                        let name = object.metadata.name.unwrap_or_default();
                        blocks.send_if_modified(|blocks| {
                            blocks.known.get_or_insert_default().remove(&name).is_some()
                        });
                    }
                }
                heard.send_replace(now());
            }
        }
    }
}

/// Decodes a block. One that cannot be read, because it was edited, is logged and left out: the
/// others still count.
fn decoded(object: DynamicObject) -> Option<(String, OwnBlock)> {
    let name = object.name_any();
    match object.try_parse::<AddressBlock>() {
        Ok(block) => OwnBlock::of(block),
        Err(error) => {
            tracing::warn!(
                block = name,
                error = error_chain(&error),
                "cannot read an AddressBlock, leaving it out"
            );
            None
        }
    }
}

/// Whether the version of a list is lower than one before it.
fn is_older(version: &str, before: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    number(version).zip(number(before)).is_some_and(|(now, before)| now < before)
}

/// Whether the API server does not know AddressBlocks, or does not let the agent read them.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [403, 404].contains(&status.code))
}

/// Time since the machine's boot. It passes while the machine sleeps or is paused, unlike that of
/// [`std::time::Instant`].
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, cidr: &str) -> Value {
        json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": name, "uid": name, "resourceVersion": "2"},
            "spec": {"networkName": "storage", "nodeName": "n", "cidr": cidr},
        })
    }

    /// Runs a watch against an API server that answers the first `lists` lists, and no other request.
    fn watched(lists: usize) -> (watch::Receiver<OwnBlocks>, CancellationToken) {
        let (service, mut requests) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let asked = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Some((request, answer)) = requests.next_request().await {
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                if is_watch || asked.fetch_add(1, Ordering::Relaxed) >= lists {
                    unanswered.push(answer);
                    continue;
                }
                let items = [object("storage.10.20.0.0-28", "10.20.0.0/28"), object("edited", "nonsense")];
                let list = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlockList",
                    "metadata": {"resourceVersion": "2"}, "items": items});
                answer.send_response(Response::new(Body::from(list.to_string().into_bytes())));
            }
        });
        let (sender, blocks) = watch::channel(OwnBlocks::default());
        let watch = BlockWatch {
            client: kube::Client::new(service, "default"),
            node: "n".to_owned(),
            stale_after: Duration::from_millis(300),
        };
        let cancel = CancellationToken::new();
        tokio::spawn(watch.run(sender, cancel.clone()));
        (blocks, cancel)
    }

    #[tokio::test]
    async fn a_watch_that_has_ended_is_followed_by_a_list_of_what_there_is_now() {
        let (service, mut requests) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            // After a restore of etcd, versions are lower than before.
            let mut lists = [("9", "10.20.0.0/28"), ("2", "10.20.0.16/28")].into_iter();
            let mut unanswered = Vec::new();
            while let Some((request, answer)) = requests.next_request().await {
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                if is_watch && unanswered.is_empty() && lists.len() > 0 {
                    answer.send_response(Response::new(Body::from(Vec::new())));
                } else if let Some((version, cidr)) = lists.next().filter(|_| !is_watch) {
                    let name = format!("storage.{}", cidr.replace('/', "-"));
                    let list = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlockList",
                        "metadata": {"resourceVersion": version}, "items": [object(&name, cidr)]});
                    answer.send_response(Response::new(Body::from(list.to_string().into_bytes())));
                } else {
                    unanswered.push(answer);
                }
            }
        });
        let (sender, mut blocks) = watch::channel(OwnBlocks::default());
        let watch = BlockWatch {
            client: kube::Client::new(service, "default"),
            node: "n".to_owned(),
            stale_after: Duration::from_secs(60),
        };
        let cancel = CancellationToken::new();
        tokio::spawn(watch.run(sender, cancel.clone()));
        let restored = |blocks: &OwnBlocks| {
            blocks.known.as_ref().is_some_and(|known| known.keys().eq(["storage.10.20.0.16-28"]))
        };
        is(&mut blocks, restored).await;
        cancel.cancel();
    }

    #[test]
    fn a_restored_state_has_a_lower_version() {
        assert!(is_older("99", "100") && !is_older("100", "100") && !is_older("101", "100"));
        assert!(!is_older("5", ""), "of the first list");
    }

    async fn is(blocks: &mut watch::Receiver<OwnBlocks>, fits: impl FnMut(&OwnBlocks) -> bool) -> OwnBlocks {
        let wait = blocks.wait_for(fits);
        timeout(Duration::from_secs(5), wait).await.expect("in time").expect("a watch").clone()
    }

    #[tokio::test]
    async fn a_block_that_cannot_be_read_hides_no_other() {
        let (mut blocks, cancel) = watched(usize::MAX);
        let known = is(&mut blocks, |blocks| blocks.known.is_some()).await.known.expect("listed");
        assert_eq!(known.keys().collect::<Vec<_>>(), ["storage.10.20.0.0-28"]);
        cancel.cancel();
    }

    #[tokio::test]
    async fn silence_makes_the_blocks_stale() {
        let (mut blocks, cancel) = watched(1);
        is(&mut blocks, |blocks| blocks.known.is_some() && !blocks.is_stale).await;
        let stale = is(&mut blocks, |blocks| blocks.is_stale).await;
        assert_eq!(stale.known.map(|known| known.len()), Some(1), "they are still the node's");
        cancel.cancel();
    }
}
