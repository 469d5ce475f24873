//! The seam between QUIC and the world: sockets, name look-up, timers and tasks. Everything above it is the same in simulation.

use futures::future::{BoxFuture, FutureExt};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime};
use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::SocketAddr, sync::Arc};

/// Where a transport gets its socket, names and timers from.
pub trait Network: Send + Sync + 'static {
    /// Binds a UDP socket for QUIC.
    fn bind_udp(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn AsyncUdpSocket>>>;

    /// What QUIC spawns its tasks and makes its timers with.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// The addresses of a `host:port`, the preferred first.
    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The network that ships: the system's UDP with segmentation offload, on tokio.
#[derive(Clone, Debug)]
pub struct TokioNetwork {
    /// Bytes of the socket's send and receive buffers asked for. The system may grant less (`net.core.rmem_max`, `wmem_max`).
    pub socket_buffer_bytes: usize,
}

impl Default for TokioNetwork {
    fn default() -> Self {
        Self {
            socket_buffer_bytes: 8 << 20,
        }
    }
}

impl TokioNetwork {
    fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // Small buffers cost packets under load but still work.
        for (what, set) in [
            (
                "receive",
                socket.set_recv_buffer_size(self.socket_buffer_bytes),
            ),
            (
                "send",
                socket.set_send_buffer_size(self.socket_buffer_bytes),
            ),
        ] {
            if let Err(error) = set {
                tracing::debug!(%error, "the {what} buffer of UDP {address} stays as it is");
            }
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        TokioRuntime.wrap_udp_socket(socket.into())
    }
}

impl Network for TokioNetwork {
    fn bind_udp(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn AsyncUdpSocket>>> {
        async move { self.bind(address) }.boxed()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(TokioRuntime)
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        async move { Ok(tokio::net::lookup_host(host_port).await?.collect()) }.boxed()
    }
}
