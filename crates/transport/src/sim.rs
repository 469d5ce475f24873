//! The simulator's network: QUIC over turmoil's UDP, with simulated time.
//!
//! turmoil pauses tokio's clock, so tokio's timers and tasks serve as they are; the socket and `now` are replaced. Datagrams that
//! turmoil cannot deliver (partition, crashed host) are lost like on a wire.

use crate::Network;
use futures::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use quinn::{
    AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use std::{
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};
use turmoil::net::UdpSocket;

/// The network inside a turmoil simulation. Hosts are found by their names in the simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimNetwork;

impl Network for SimNetwork {
    fn bind_udp(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn AsyncUdpSocket>>> {
        async move {
            let socket = UdpSocket::bind(address).await?;
            let local = socket.local_addr()?;
            Ok(Arc::new(SimUdp {
                socket: Arc::new(socket),
                local,
                readable: Mutex::new(None),
            }) as Arc<dyn AsyncUdpSocket>)
        }
        .boxed()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(SimRuntime)
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let resolved = match host_port.parse::<SocketAddr>() {
            Ok(address) => Ok(vec![address]),
            Err(_) => match host_port
                .rsplit_once(':')
                .map(|(host, port)| (host, port.parse::<u16>()))
            {
                Some((host, Ok(port))) => Ok(vec![SocketAddr::new(turmoil::lookup(host), port)]),
                Some((_, Err(_))) | None => Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("{host_port:?} is not host:port"),
                )),
            },
        };
        std::future::ready(resolved).boxed()
    }
}

/// tokio, whose clock turmoil has paused.
#[derive(Debug)]
struct SimRuntime;

impl Runtime for SimRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(future);
    }

    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a simulation has no system sockets",
        ))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

type Readable = Pin<Box<dyn Future<Output = ()> + Send>>;

struct SimUdp {
    socket: Arc<UdpSocket>,
    local: SocketAddr,
    /// turmoil's `readable` holds the socket's receiving half until it is done, so it is finished before anything is received.
    readable: Mutex<Option<Readable>>,
}

impl fmt::Debug for SimUdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimUdp({})", self.local)
    }
}

impl SimUdp {
    fn receive_all(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> io::Result<usize> {
        let mut received = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            match self.socket.try_recv_from(buffer) {
                Ok((len, address)) => {
                    *meta = RecvMeta::default();
                    meta.addr = address;
                    meta.len = len;
                    meta.stride = len;
                    received += 1;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(received)
    }
}

impl AsyncUdpSocket for SimUdp {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment = transmit
            .segment_size
            .unwrap_or(transmit.contents.len())
            .max(1);
        for datagram in transmit.contents.chunks(segment) {
            if let Err(error) = self.socket.try_send_to(datagram, transmit.destination) {
                tracing::trace!(%error, "a datagram to {} is lost", transmit.destination);
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut readable = self.readable.lock();
        loop {
            if let Some(pending) = readable.as_mut() {
                ready!(pending.as_mut().poll(cx));
                *readable = None;
            }
            match self.receive_all(buffers, meta)? {
                0 => {}
                received => return Poll::Ready(Ok(received)),
            }
            let socket = self.socket.clone();
            *readable = Some(Box::pin(async move {
                // An error shows again when something is received.
                let _ = socket.readable().await;
            }));
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
