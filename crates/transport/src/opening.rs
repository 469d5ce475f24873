//! How a link opens: greetings, their judgement, and the lanes.
//!
//! Dialler: connects, opens a stream, sends a purpose byte and its Hello, reads the acceptor's Hello, judges it, opens the lanes (each
//! begins with the lane's byte). Acceptor: reads, judges, answers with its Hello, takes the lanes. Whoever says no closes the
//! connection with the reason. A knock stops after the acceptor's judgement: it closes the connection and dials the knocker.

use crate::{
    Hello, Lane,
    close::{CloseCode, Ended},
    frame::LANES,
    hello::ReadError,
    link::LaneStreams,
    peers,
    tls::SERVER_NAME,
    transport::Inner,
};
use quinn::{Connection, Incoming, RecvStream, SendStream};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::time::timeout;

/// What a connection is opened for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Purpose {
    /// To be a link. Only the node with the greater name dials.
    Link,
    /// To be dialled: only by the node with the lesser name.
    Knock,
}

impl Purpose {
    fn byte(self) -> u8 {
        match self {
            Purpose::Link => 1,
            Purpose::Knock => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Purpose> {
        match byte {
            1 => Some(Purpose::Link),
            2 => Some(Purpose::Knock),
            _ => None,
        }
    }
}

/// Dials a peer until the link is up (or the knock was heard).
pub(crate) async fn dial(
    inner: &Arc<Inner>,
    name: &str,
    address: &str,
    purpose: Purpose,
) -> Result<(), Ended> {
    let opening = async {
        let connection = connect(inner, address).await?;
        let result = introduce(inner, &connection, name, purpose).await;
        match result {
            Ok((hello, lanes)) => inner.establish(connection, hello, lanes, true).await,
            Err(problem) => Err(match connection.close_reason() {
                // What the peer said is the cause of what failed here.
                Some(reason @ quinn::ConnectionError::ApplicationClosed(_)) => Ended::of(&reason),
                Some(reason @ quinn::ConnectionError::ConnectionClosed(_)) => Ended::of(&reason),
                _ => problem,
            }),
        }
    };
    match timeout(inner.handshake_time, opening).await {
        Ok(Err(Ended::Heard)) if purpose == Purpose::Knock => Ok(()),
        Ok(result) => result,
        Err(_) => Err(Ended::Lost(format!(
            "no link within {:?}",
            inner.handshake_time
        ))),
    }
}

async fn connect(inner: &Inner, address: &str) -> Result<Connection, Ended> {
    let resolved = inner
        .network
        .resolve(address)
        .await
        .map_err(|e| Ended::Lost(format!("cannot resolve {address:?}: {e}")))?;
    let target: SocketAddr = resolved
        .iter()
        .copied()
        .find(|a| a.is_ipv4() == inner.local.is_ipv4())
        .or(resolved.first().copied())
        .ok_or_else(|| Ended::Lost(format!("{address:?} resolves to nothing")))?;
    let connecting = inner
        .endpoint
        .connect(target, SERVER_NAME)
        .map_err(|e| Ended::Lost(format!("cannot dial {target}: {e}")))?;
    connecting.await.map_err(|e| Ended::of(&e))
}

async fn introduce(
    inner: &Inner,
    connection: &Connection,
    name: &str,
    purpose: Purpose,
) -> Result<(Hello, LaneStreams), Ended> {
    let lost = |e: &dyn std::fmt::Display| Ended::Lost(e.to_string());
    let (mut send, mut recv) = connection.open_bi().await.map_err(|e| Ended::of(&e))?;
    let own = inner.hello();
    let mut greeting = vec![purpose.byte()];
    greeting.extend(own.encode());
    send.write_all(&greeting).await.map_err(|e| lost(&e))?;
    let hello = match Hello::read(&mut recv, own.version).await {
        Ok(hello) => hello,
        Err(ReadError::Lost(problem)) => return Err(Ended::Lost(problem)),
        Err(ReadError::Unacceptable(problem)) => return Err(refuse(connection, problem)),
    };
    if hello.name != name {
        let problem = format!(
            "the node at this address calls itself {:?}, but {name:?} was expected there: correct the peers' names or addresses",
            hello.name
        );
        return Err(refuse(connection, problem));
    }
    judge(inner, &own, &hello).map_err(|problem| refuse(connection, problem))?;
    let open = async |lane: Lane| -> Result<(SendStream, RecvStream), Ended> {
        let (mut send, recv) = connection.open_bi().await.map_err(|e| Ended::of(&e))?;
        send.set_priority(lane.priority()).map_err(|e| lost(&e))?;
        send.write_all(&[lane.byte()]).await.map_err(|e| lost(&e))?;
        Ok((send, recv))
    };
    let mut lanes = Vec::with_capacity(LANES);
    for lane in Lane::ALL {
        lanes.push(open(lane).await?);
    }
    let lanes = lanes
        .try_into()
        .map_err(|_| Ended::Lost("lanes are missing".into()))?;
    Ok((hello, lanes))
}

/// Says no to the peer, and why.
pub(crate) fn refuse(connection: &Connection, problem: String) -> Ended {
    connection.close(CloseCode::Refused.value(), problem.as_bytes());
    Ended::Refused(problem)
}

/// Takes connections until the endpoint is closed.
pub(crate) async fn accept_all(inner: Arc<Inner>) {
    let handshakes = Arc::new(tokio::sync::Semaphore::new(inner.limits.handshakes_max));
    while let Some(incoming) = inner.endpoint.accept().await {
        let Ok(permit) = handshakes.clone().try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let inner = inner.clone();
        tokio::spawn(async move {
            let address = incoming.remote_address();
            let patience = inner.handshake_time;
            let mut who = None;
            let problem = match timeout(patience, accept(&inner, incoming, &mut who)).await {
                Ok(Ok(())) => return,
                Ok(Err(Ended::Lost(problem))) => {
                    tracing::debug!(%address, "a connection of another node did not become a link: {problem}");
                    return;
                }
                Ok(Err(Ended::Heard)) => return,
                Ok(Err(Ended::Refused(problem))) => problem,
                Err(_) => format!("it did not introduce itself within {patience:?}"),
            };
            drop(permit);
            let who = who.unwrap_or_else(|| "a node".to_owned());
            if inner.first_time(&format!("from {who} {}", address.ip()), &problem) {
                tracing::warn!("no link with {who} that connects from {address}: {problem}");
                let address = address.to_string();
                inner.handler.turned_away(&who, &address, &problem);
            } else {
                tracing::debug!("no link with {who} that connects from {address}: {problem}");
            }
        });
    }
}

/// Takes one connection; `who` gets a name for it once there is one.
async fn accept(
    inner: &Arc<Inner>,
    incoming: Incoming,
    who: &mut Option<String>,
) -> Result<(), Ended> {
    let connection = incoming.await.map_err(|e| Ended::of(&e))?;
    let result = answer(inner, &connection, who).await;
    match result {
        Ok(Some((hello, lanes))) => inner.establish(connection, hello, lanes, false).await,
        Ok(None) => Ok(()),
        Err(problem @ Ended::Refused(_)) => Err(problem),
        Err(problem) => Err(connection
            .close_reason()
            .map_or(problem, |reason| Ended::of(&reason))),
    }
}

async fn answer(
    inner: &Arc<Inner>,
    connection: &Connection,
    who: &mut Option<String>,
) -> Result<Option<(Hello, LaneStreams)>, Ended> {
    let lost = |e: &dyn std::fmt::Display| Ended::Lost(e.to_string());
    let (mut send, mut recv) = connection.accept_bi().await.map_err(|e| Ended::of(&e))?;
    let mut purpose = [0];
    recv.read_exact(&mut purpose).await.map_err(|e| lost(&e))?;
    let own = inner.hello();
    let hello = match Hello::read(&mut recv, own.version).await {
        Ok(hello) => hello,
        Err(ReadError::Lost(problem)) => return Err(Ended::Lost(problem)),
        Err(ReadError::Unacceptable(problem)) => return Err(refuse(connection, problem)),
    };
    *who = Some(format!("node {:?}", hello.name));
    judge(inner, &own, &hello).map_err(|problem| refuse(connection, problem))?;
    match (Purpose::from_byte(purpose[0]), hello.name > own.name) {
        (Some(Purpose::Link), true) => {}
        (Some(Purpose::Knock), false) => {
            connection.close(CloseCode::Heard.value(), b"");
            peers::knocked(inner, &hello);
            return Ok(None);
        }
        (Some(Purpose::Link), false) => {
            return Err(refuse(
                connection,
                "of two nodes the one with the greater name dials".into(),
            ));
        }
        (Some(Purpose::Knock), true) => {
            return Err(refuse(
                connection,
                "of two nodes the one with the lesser name knocks".into(),
            ));
        }
        (None, _) => {
            return Err(refuse(
                connection,
                format!("unknown purpose {}", purpose[0]),
            ));
        }
    }
    send.write_all(&own.encode()).await.map_err(|e| lost(&e))?;
    // The peer may have refused us and be gone.
    let _ = send.finish();
    Ok(Some((hello, take_lanes(connection).await?)))
}

async fn take_lanes(connection: &Connection) -> Result<LaneStreams, Ended> {
    let mut lanes = [const { None }; LANES];
    while lanes.iter().any(Option::is_none) {
        let (send, mut recv) = connection.accept_bi().await.map_err(|e| Ended::of(&e))?;
        let mut byte = [0];
        recv.read_exact(&mut byte)
            .await
            .map_err(|e| Ended::Lost(e.to_string()))?;
        let lane = Lane::from_byte(byte[0])
            .ok_or_else(|| refuse(connection, format!("unknown lane {}", byte[0])))?;
        send.set_priority(lane.priority())
            .map_err(|e| Ended::Lost(e.to_string()))?;
        lanes[lane.index()] = Some((send, recv));
    }
    let lanes: Vec<_> = lanes.into_iter().flatten().collect();
    lanes
        .try_into()
        .map_err(|_| Ended::Lost("lanes are missing".into()))
}

/// Whether this node may be linked with that peer at all.
pub(crate) fn judge(inner: &Inner, own: &Hello, peer: &Hello) -> Result<(), String> {
    if peer.name == own.name {
        return Err(format!(
            "two nodes are called {:?} (at {:?} and {:?}): names must be unique in a cluster, rename one",
            own.name, own.address, peer.address
        ));
    }
    if peer.node == own.node {
        return Err(format!(
            "nodes {:?} and {:?} have the same identity {}: one runs on a copy of the other's data folder",
            own.name, peer.name, own.node
        ));
    }
    if let (Some(ours), Some(theirs)) = (own.cluster, peer.cluster)
        && ours != theirs
    {
        return Err(format!(
            "node {:?} belongs to cluster {ours:032x}, node {:?} to cluster {theirs:032x}",
            own.name, peer.name
        ));
    }
    inner.clash(peer)?;
    inner.handler.admit(peer)
}

/// Time for a link to open, from the first packet to the last lane.
pub(crate) fn handshake_time(idle_timeout: Duration) -> Duration {
    idle_timeout * 2
}
