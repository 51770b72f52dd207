//! The one watch of pods: it shows those that do not run yet to all who ask what pods wait for.

use std::pin::pin;

use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};

use super::awaiting_addresses::AwaitingAddresses;
use super::explaining::Unscheduled;
use super::waiting::{PodObject, resource};
use crate::objects::watches::next;

/// Watches pods. `unscheduled` is `None` if nothing explains why they wait. Does not return.
pub(crate) async fn run(client: Client, awaiting: &AwaitingAddresses, unscheduled: Option<&Unscheduled>) {
    let pods: Api<PodObject> = Api::all_with(client, &resource());
    let pending = watcher::Config::default().fields("status.phase=Pending");
    let mut events = pin!(watcher(pods, pending).default_backoff());
    loop {
        let event = next(&mut events, "pods that do not run yet").await;
        if let Some(unscheduled) = unscheduled {
            unscheduled.apply(&event);
        }
        awaiting.apply(event);
    }
}
