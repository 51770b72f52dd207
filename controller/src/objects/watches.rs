//! Watches: errors are logged, and what the API server refuses stops only those who need it.

use std::error::Error;

use futures::{Stream, StreamExt as _, stream};
use kube::runtime::watcher;

/// The API server has no such objects, or does not let the controller list them. The watch tries again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

/// Returns the next event of the watch of `what`, and logs errors, after which the watch goes on.
pub(crate) async fn next<K>(
    events: &mut (impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin),
    what: &str,
) -> watcher::Event<K> {
    loop {
        if let Ok(event) = next_unless_refused(events, what).await {
            return event;
        }
    }
}

/// Returns the next event of the watch of `what`, and logs errors, after which the watch goes on.
///
/// # Errors
/// [`Refused`]: the objects cannot be listed.
pub(crate) async fn next_unless_refused<K>(
    events: &mut (impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin),
    what: &str,
) -> Result<watcher::Event<K>, Refused> {
    loop {
        let error = match events.next().await {
            Some(Ok(event)) => return Ok(event),
            Some(Err(error)) => error,
            // A watcher never ends.
            None => std::future::pending().await,
        };
        let advice = match &error {
            watcher::Error::InitialListFailed(kube::Error::Api(status)) => match status.code {
                404 => Some("apply the custom resource definitions of this version"),
                403 => Some("apply the ClusterRole netclaim-controller of this version"),
                _ => None,
            },
            _ => None,
        };
        let error = &error as &dyn Error;
        match advice {
            Some(advice) => {
                tracing::warn!(error, "cannot list {what}, continuing as if there were none: {advice}");
                return Err(Refused);
            }
            None => tracing::warn!(error, "cannot watch {what}"),
        }
    }
}

/// Has there be no objects of a kind that the API server refuses to list, such as one of a later Kubernetes
/// version.
pub(crate) fn none_if_refused<K>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    what: &str,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> {
    let mut is_known = false;
    events.flat_map(move |event| {
        let refusal = match &event {
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) => match status.code {
                404 => Some("the API server has none"),
                403 => Some("apply the ClusterRole netclaim-controller of this version"),
                _ => None,
            },
            _ => None,
        };
        match refusal {
            Some(why) if !std::mem::replace(&mut is_known, true) => {
                tracing::info!("cannot list {what}, continuing as if there were none: {why}");
            }
            _ => is_known = refusal.is_some(),
        }
        let none = || vec![Ok(watcher::Event::Init), Ok(watcher::Event::InitDone)];
        stream::iter(if refusal.is_some() { none() } else { vec![event] })
    })
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[tokio::test]
    async fn a_kind_that_is_refused_is_a_list_of_nothing() {
        let failed = |code: u16| {
            let status = Status::failure("no", "X").with_code(code);
            Err(watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status))))
        };
        let answers = [failed(404), failed(500), failed(403), Ok(watcher::Event::InitApply(1))];
        let seen: Vec<_> = none_if_refused(stream::iter(answers), "things").collect().await;
        let shown: Vec<String> =
            seen.iter().map(|event| format!("{event:?}").chars().take(8).collect()).collect();
        assert_eq!(shown, ["Ok(Init)", "Ok(InitD", "Err(Init", "Ok(Init)", "Ok(InitD", "Ok(InitA"]);
    }

    #[tokio::test]
    async fn only_a_list_that_the_api_server_refuses_is_reported() {
        let failed = |code: u16| {
            let status = Status::failure("no", "X").with_code(code);
            Err(watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status))))
        };
        let answers = [failed(500), failed(404), failed(403), Ok(watcher::Event::<()>::InitDone)];
        let mut events = stream::iter(answers);
        for _ in 0..2 {
            assert_eq!(next_unless_refused(&mut events, "things").await.err(), Some(Refused));
        }
        assert!(matches!(next_unless_refused(&mut events, "things").await, Ok(watcher::Event::InitDone)));
    }
}
