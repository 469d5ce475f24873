//! A host's network as the system keeps it: sockets of a process that is gone are closed, whatever still refers to them.
//!
//! A simulated process that is killed leaves its memory behind where parts of it refer to each other. A real one's goes with it, and so do its sockets.

use futures::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use warren_transport::{Network, SimNetwork};

/// The network of one host, over all its processes.
#[derive(Clone, Default)]
pub(crate) struct HostNetwork {
    open: Arc<Mutex<Vec<Arc<Socket>>>>,
}

impl HostNetwork {
    /// Closes all sockets. To be called on the host.
    pub(crate) fn close_all(&self) {
        let open = std::mem::take(&mut *self.open.lock());
        for socket in open {
            socket.inner.lock().take();
        }
    }
}

impl Network for HostNetwork {
    fn bind_udp(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn AsyncUdpSocket>>> {
        async move {
            let inner = SimNetwork.bind_udp(address).await?;
            let socket = Arc::new(Socket {
                local: inner.local_addr()?,
                inner: Mutex::new(Some(inner)),
            });
            self.open.lock().push(socket.clone());
            Ok(socket as Arc<dyn AsyncUdpSocket>)
        }
        .boxed()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        SimNetwork.runtime()
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        SimNetwork.resolve(host_port)
    }
}

/// A socket that can be closed from outside.
#[derive(Debug)]
struct Socket {
    local: SocketAddr,
    inner: Mutex<Option<Arc<dyn AsyncUdpSocket>>>,
}

impl Socket {
    fn get(&self) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        self.inner
            .lock()
            .clone()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.get()?.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.get()?.poll_recv(cx, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// Datagrams are taken at any time.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
