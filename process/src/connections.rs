//! Connections of untrusted clients, in tasks of their own and within a number.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Time between failures to accept a connection, such as for lack of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves each connection in a task of its own, until dropped. When there are `most`, a new connection ends
/// the oldest one of the address that has the most, so that idle clients do not block others and one client
/// does not end the connections of others.
pub async fn accept<C>(listener: TcpListener, most: usize, serve: impl Fn(TcpStream) -> C) -> Infallible
where
    C: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut oldest_first = VecDeque::<(IpAddr, AbortHandle)>::new();
    loop {
        let (stream, client) = match listener.accept().await {
            Ok((stream, client)) => (stream, client.ip().to_canonical()),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        oldest_first.retain(|(_, connection)| !connection.is_finished());
        if connections.len() >= most {
            let surplus = surplus(oldest_first.iter().map(|(address, _)| *address), client);
            if let Some((_, connection)) = oldest_first.remove(surplus) {
                connection.abort();
            }
            // The descriptor is free when the connection has ended.
            connections.join_next().await;
        }
        oldest_first.push_back((client, connections.spawn(serve(stream))));
    }
}

/// Returns the index of the connection to close for a new one: the oldest of the address that has the most
/// connections, counting the new one. If several addresses have as many, it is the oldest of all of these.
fn surplus(oldest_first: impl Iterator<Item = IpAddr> + Clone, new: IpAddr) -> usize {
    let mut counts = HashMap::from([(new, 1_usize)]);
    for address in oldest_first.clone() {
        *counts.entry(address).or_default() += 1;
    }
    let counts = oldest_first.enumerate().map(|(index, address)| (counts.get(&address), index));
    counts.max_by_key(|(count, index)| (*count, std::cmp::Reverse(*index))).map_or(0, |(_, index)| index)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;
    use tokio::time::sleep;

    use super::*;

    const MOST: usize = 8;

    #[test]
    fn the_oldest_connection_of_the_busiest_address_makes_room() {
        let ended = |open: &[u8], new: u8| {
            let address = |last: &u8| IpAddr::from([10, 0, 0, *last]);
            surplus(open.iter().map(address), address(&new))
        };
        assert_eq!(ended(&[1, 2, 2, 3], 4), 1);
        assert_eq!(ended(&[1, 1, 2, 2], 2), 2, "the new one counts");
        assert_eq!(ended(&[1, 2, 3, 4], 5), 0, "of equals the oldest");
        assert_eq!(ended(&[1, 2, 2, 1], 3), 0, "of equals the oldest");
    }

    #[tokio::test]
    async fn a_client_with_many_connections_ends_only_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let hold = |stream: TcpStream| async move {
            let _stream = stream;
            std::future::pending::<()>().await;
        };
        tokio::spawn(accept(listener, MOST, hold));
        let connect = async |from: &str| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
            socket.connect(address).await.unwrap()
        };
        let quiet = [connect("127.0.0.2").await, connect("127.0.0.2").await];
        let mut many = Vec::new();
        for _ in 0..3 * MOST {
            many.push(connect("127.0.0.3").await);
        }
        sleep(Duration::from_millis(200)).await;
        let is_open = |stream: &&TcpStream| stream.try_read(&mut [0]).is_err();
        assert_eq!(quiet.iter().filter(is_open).count(), 2);
        assert_eq!(many.iter().filter(is_open).count(), MOST - 2);
    }
}
