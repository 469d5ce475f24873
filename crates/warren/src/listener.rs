//! The AMQP listeners.

use crate::tls::ClientTls;
use anyhow::Context;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use warren_node::{Node, Origin};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Binds a TCP socket, with an error that says which.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listen = || -> std::io::Result<TcpListener> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    listen()
        .with_context(|| format!("cannot listen on {address}: is another process using that port?"))
}

/// What clients connect to.
#[derive(Clone)]
pub enum Kind {
    /// AMQP.
    Plain,
    /// AMQPS.
    Tls(Arc<ClientTls>),
}

/// Accepts clients until it is dropped: from when the node routes for the first time. Before, it knows no users, or old ones; clients that
/// connect meanwhile wait.
pub async fn serve(node: Arc<Node>, listener: TcpListener, kind: Kind) {
    while !node.metadata().wait_routable(Duration::from_secs(10)).await {
        tracing::info!(
            "clients are not accepted yet: the node has not found a majority of its cluster"
        );
    }
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Batching comes from what is there already, never from waiting.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "TCP_NODELAY could not be set");
                }
                tokio::spawn(serve_one(node.clone(), stream, peer, kind.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Out of file descriptors, most likely: accepting at once would only fail again.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_one(node: Arc<Node>, stream: TcpStream, peer: SocketAddr, kind: Kind) {
    let origin = Origin {
        peer,
        local: stream.local_addr().ok(),
        tls: None,
    };
    match kind {
        Kind::Plain => node.serve_from(stream, origin).await,
        Kind::Tls(tls) => match tls.accept(stream).await {
            Ok(stream) => {
                let tls = Some(tls.peer(&stream));
                node.serve_from(stream, Origin { tls, ..origin }).await;
            }
            Err(error) => tracing::info!(%peer, %error, "a TLS handshake failed"),
        },
    }
}
