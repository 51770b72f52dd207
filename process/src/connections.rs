//! Connections of clients that nobody vouches for, in tasks of their own and within a number.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Time between failures to accept a connection, such as for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves each connection in a task of its own, until dropped. When there are `most`, a new connection ends the oldest, so that
/// idle clients block nobody.
pub async fn accept<C>(listener: TcpListener, most: usize, serve: impl Fn(TcpStream) -> C) -> Infallible
where
    C: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut oldest_first = VecDeque::<AbortHandle>::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        oldest_first.retain(|connection| !connection.is_finished());
        if connections.len() >= most {
            if let Some(oldest) = oldest_first.pop_front() {
                oldest.abort();
            }
            // The descriptor is free when the connection has ended.
            connections.join_next().await;
        }
        oldest_first.push_back(connections.spawn(serve(stream)));
    }
}
