//! A host's network as the system keeps it: sockets of a process that is gone are closed, whatever still refers to them.
//!
//! A simulated process that is killed leaves its memory behind where parts of it refer to each other. A real one's goes with it, and so do its sockets.

use futures::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, UdpPoller};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use warren_transport::{Network, SimNetwork};

/// The network of one host, over all its processes.
#[derive(Clone, Default)]
pub(crate) struct HostNetwork {
    open: Arc<Mutex<Vec<Arc<Socket>>>>,
    garble: Garble,
}

/// What happens to packets that are sent, if anything does.
type Garble = Arc<Mutex<Option<StdRng>>>;

/// How often a packet is sent twice.
const DOUBLED: f64 = 0.1;
/// How often it is held back, and comes behind later ones.
const LATE: f64 = 0.1;
/// For how long at most.
const LATE_MS: u64 = 60;

impl HostNetwork {
    /// From now on packets are doubled and delayed, or not any more.
    pub(crate) fn garble(&self, seed: Option<u64>) {
        *self.garble.lock() = seed.map(StdRng::seed_from_u64);
    }

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
                garble: self.garble.clone(),
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
    garble: Garble,
}

/// A packet that is held back.
struct Late {
    destination: SocketAddr,
    contents: Vec<u8>,
    segment_size: Option<usize>,
    src_ip: Option<IpAddr>,
}

impl Socket {
    fn get(&self) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        self.inner
            .lock()
            .clone()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// How often a packet goes out now, and in how many milliseconds once more.
    fn fate(&self) -> (u32, Option<u64>) {
        let mut garble = self.garble.lock();
        let Some(rng) = garble.as_mut() else {
            return (1, None);
        };
        let late = rng.random_bool(LATE).then(|| rng.random_range(1..LATE_MS));
        let now = if late.is_some() {
            0
        } else {
            1 + u32::from(rng.random_bool(DOUBLED))
        };
        (now, late)
    }

    fn send_late(&self, transmit: &Transmit<'_>, after_ms: u64) -> io::Result<()> {
        let socket = self.get()?;
        let late = Late {
            destination: transmit.destination,
            contents: transmit.contents.to_vec(),
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            // A packet that cannot be sent is lost.
            let _ = socket.try_send(&Transmit {
                destination: late.destination,
                ecn: None,
                contents: &late.contents,
                segment_size: late.segment_size,
                src_ip: late.src_ip,
            });
        });
        Ok(())
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let (now, late) = self.fate();
        if let Some(after_ms) = late {
            self.send_late(transmit, after_ms)?;
        }
        for _ in 0..now {
            self.get()?.try_send(transmit)?;
        }
        Ok(())
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
