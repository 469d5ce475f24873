//! The transport itself: the endpoint, the links that are up, and what its user calls.

use crate::{
    Config, Frame, Handler, Hello, Lane, Limits, LinkId, LinkInfo, Network, PeerAddress,
    RequestError, StartError, Unreachable,
    close::{CloseCode, Ended},
    link::{LaneStreams, Link},
    loopback::Loopback,
    opening,
    peers::{self, Peers},
    restart,
};
use parking_lot::{Mutex, RwLock};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, MtuDiscoveryConfig, ServerConfig,
    TransportConfig, VarInt,
};
use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    runtime,
    sync::watch,
    time::{Instant, timeout, timeout_at},
};
use warren_model::NodeId;

/// A node's links to the others. Clones are handles of one transport, which lives until [`Transport::shutdown`].
#[derive(Clone)]
pub struct Transport {
    inner: Arc<Inner>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transport({} at {})", self.inner.name, self.inner.local)
    }
}

/// Remembered problems; more are forgotten all at once, which only repeats a warning.
const PROBLEMS_MAX: usize = 1_024;
const SHUTTING_DOWN: &str = "the node shuts down";
/// Time that goodbyes are given to leave at shutdown.
const GOODBYE_TIME: Duration = Duration::from_millis(300);

/// What all tasks of a transport share.
pub(crate) struct Inner {
    pub own: NodeId,
    pub name: String,
    pub local: SocketAddr,
    pub limits: Limits,
    pub handshake_time: Duration,
    pub handler: Arc<dyn Handler>,
    pub network: Arc<dyn Network>,
    pub endpoint: Endpoint,
    pub runtime: runtime::Handle,
    pub peers: Mutex<Peers>,
    hello: Mutex<Hello>,
    links: RwLock<BTreeMap<NodeId, Arc<Link>>>,
    /// Counts changes of `links`.
    changes: watch::Sender<u64>,
    /// Held while a link is put in place, so that an older one of the same peer is gone before; true once shut down.
    placing: tokio::sync::Mutex<bool>,
    last_link: AtomicU64,
    /// The last problem reported of each peer: what is told again is told quietly.
    problems: Mutex<BTreeMap<String, String>>,
    loopback: Arc<Loopback>,
}

impl Transport {
    /// Binds the socket and begins to dial and accept. All tasks run on the runtime that this is called on.
    pub async fn start(
        config: Config,
        network: Arc<dyn Network>,
        handler: Arc<dyn Handler>,
    ) -> Result<Transport, StartError> {
        config.hello.validate().map_err(StartError::Hello)?;
        config.validate().map_err(StartError::Config)?;
        let bind = |source| StartError::Bind {
            address: config.bind,
            source,
        };
        let socket = network.bind_udp(config.bind).await.map_err(bind)?;
        let quic = quic_config(&config)?;
        let mut server = ServerConfig::with_crypto(config.tls.server.clone());
        server.transport_config(quic.clone()).migration(false);
        let mut client = ClientConfig::new(config.tls.client.clone());
        client.transport_config(quic);
        let mut endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config(&config)?,
            Some(server),
            socket,
            network.runtime(),
        )
        .map_err(bind)?;
        endpoint.set_default_client_config(client);
        let runtime = runtime::Handle::current();
        let inner = Arc::new(Inner {
            own: config.hello.node,
            name: config.hello.name.clone(),
            local: endpoint.local_addr().map_err(bind)?,
            limits: config.limits,
            handshake_time: opening::handshake_time(config.idle_timeout),
            loopback: Loopback::start(config.hello.node, config.limits, &handler, &runtime),
            handler,
            network,
            endpoint,
            runtime,
            peers: Mutex::default(),
            hello: Mutex::new(config.hello),
            links: RwLock::default(),
            changes: watch::Sender::new(0),
            placing: tokio::sync::Mutex::new(false),
            last_link: AtomicU64::new(0),
            problems: Mutex::default(),
        });
        inner.runtime.spawn(opening::accept_all(inner.clone()));
        peers::set(&inner, config.peers);
        Ok(Transport { inner })
    }

    /// The address that the socket is bound to.
    pub fn local_address(&self) -> SocketAddr {
        self.inner.local
    }

    /// The node has become part of this cluster: links that open from now on say so.
    pub fn set_cluster(&self, cluster: u128) {
        self.inner.hello.lock().cluster = Some(cluster);
    }

    /// Makes these the nodes to be linked with; this node itself is skipped. Links that are up stay up: see [`Transport::close_link`].
    pub fn set_peers(&self, peers: Vec<PeerAddress>) {
        peers::set(&self.inner, peers);
    }

    /// Queues a one-way message and returns at once. What is queued for one node and lane arrives in this order, or its link goes
    /// down. A node's messages to itself go to its own handler, in order too.
    pub fn send(&self, to: NodeId, lane: Lane, frame: Frame) -> Result<(), Unreachable> {
        if to == self.inner.own {
            return self.inner.loopback.send(lane, frame);
        }
        match self.inner.link(to) {
            Some(link) => link.send(lane, frame),
            None => Err(Unreachable::NoLink { node: to }),
        }
    }

    /// Sends a request, in order with the lane's messages, and waits for its reply. Giving up the future gives up the request.
    pub async fn request(
        &self,
        to: NodeId,
        lane: Lane,
        frame: Frame,
        deadline: Duration,
    ) -> Result<Frame, RequestError> {
        let until = Instant::now() + deadline;
        if to == self.inner.own {
            let outcome = self.inner.loopback.request(lane, frame)?;
            return match timeout_at(until, outcome).await {
                Ok(outcome) => outcome.unwrap_or(Err(RequestError::LinkLost)),
                Err(_) => Err(RequestError::TimedOut),
            };
        }
        let link = self.inner.link(to).ok_or(RequestError::Unreachable)?;
        let (id, outcome) = link.request(lane, frame)?;
        let _forget = Forget { link: &link, id };
        match timeout_at(until, outcome).await {
            Ok(outcome) => outcome.unwrap_or(Err(RequestError::LinkLost)),
            Err(_) => Err(RequestError::TimedOut),
        }
    }

    /// The links that are up, by node id.
    pub fn links(&self) -> Vec<LinkInfo> {
        self.inner
            .links
            .read()
            .values()
            .filter(|l| !l.is_closing())
            .map(|l| l.info())
            .collect()
    }

    /// How many datagrams came from that node over its link; none without a link. While the node lives, its heartbeats make this grow.
    pub fn heard(&self, from: NodeId) -> Option<u64> {
        let link = self.inner.link(from)?;
        Some(link.connection.stats().udp_rx.datagrams)
    }

    /// Bytes that wait to be written to that node on that lane: grows when the node takes in less than it is sent.
    pub fn queued_bytes(&self, to: NodeId, lane: Lane) -> usize {
        if to == self.inner.own {
            return self.inner.loopback.queued_bytes(lane);
        }
        self.inner
            .link(to)
            .map_or(0, |link| link.queued_bytes(lane))
    }

    /// Takes the link to that node down, if there is one; it comes up again while the node is a peer and both admit each other.
    pub fn close_link(&self, to: NodeId, reason: &str) {
        if let Some(link) = self.inner.link(to) {
            link.close(CloseCode::Unwanted, reason);
        }
    }

    /// Takes all links down with a word to the peers, and frees the socket. The handler has heard `link_down` of all links when this returns.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        *inner.placing.lock().await = true;
        peers::close(inner);
        for link in inner.links.read().values() {
            link.close(CloseCode::Shutdown, SHUTTING_DOWN);
        }
        inner.loopback.close();
        let mut changes = inner.changes.subscribe();
        // The sender lives in `inner`.
        let _ = changes.wait_for(|_| inner.links.read().is_empty()).await;
        inner
            .endpoint
            .close(CloseCode::Shutdown.value(), SHUTTING_DOWN.as_bytes());
        // Peers that do not answer the goodbye are not waited for.
        let _ = timeout(GOODBYE_TIME, inner.endpoint.wait_idle()).await;
    }
}

/// Gives a request up however its waiting ends.
struct Forget<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.link.forget(self.id);
    }
}

impl Inner {
    pub(crate) fn hello(&self) -> Hello {
        self.hello.lock().clone()
    }

    /// The link to a node, if it is up.
    fn link(&self, to: NodeId) -> Option<Arc<Link>> {
        self.links
            .read()
            .get(&to)
            .filter(|l| !l.is_closing())
            .cloned()
    }

    /// Why a peer cannot be linked beside the links that are up.
    pub(crate) fn clash(&self, peer: &Hello) -> Result<(), String> {
        for link in self.links.read().values().filter(|l| !l.is_closing()) {
            let up = &link.hello;
            if up.name == peer.name && up.node != peer.node {
                return Err(format!(
                    "two nodes are called {:?} (at {:?} and {:?}): names must be unique in a cluster, rename one",
                    up.name, up.address, peer.address
                ));
            }
            if up.node == peer.node && up.name == peer.name && up.incarnation > peer.incarnation {
                return Err(format!(
                    "a later start of node {:?} is linked already ({} after {})",
                    up.name, up.incarnation.0, peer.incarnation.0
                ));
            }
            if up.node == peer.node && up.name != peer.name {
                return Err(format!(
                    "nodes {:?} and {:?} have the same identity {}: one runs on a copy of the other's data folder",
                    up.name, peer.name, up.node
                ));
            }
        }
        Ok(())
    }

    /// Puts a link in place, after the older one of the same peer is gone. An error is why not.
    pub(crate) async fn establish(
        self: &Arc<Self>,
        connection: Connection,
        hello: Hello,
        lanes: LaneStreams,
        dialled: bool,
    ) -> Result<(), Ended> {
        let shut_down = self.placing.lock().await;
        if *shut_down {
            connection.close(CloseCode::Shutdown.value(), SHUTTING_DOWN.as_bytes());
            return Err(Ended::Lost(SHUTTING_DOWN.into()));
        }
        self.clash(&hello)
            .map_err(|problem| opening::refuse(&connection, problem))?;
        let older = self.links.read().get(&hello.node).cloned();
        if let Some(older) = older {
            older.close(CloseCode::Replaced, "a newer link has come up");
            let mut changes = self.changes.subscribe();
            // The sender lives in `self`.
            let _ = changes
                .wait_for(|_| !self.links.read().contains_key(&hello.node))
                .await;
        }
        let id = LinkId(self.last_link.fetch_add(1, Ordering::Relaxed) + 1);
        let link = Arc::new(Link::new(id, hello, connection, dialled, self.limits));
        self.links.write().insert(link.hello.node, link.clone());
        self.changes.send_modify(|n| *n += 1);
        self.forget_problems(&link.hello.name);
        let Hello {
            name,
            node,
            incarnation,
            ..
        } = &link.hello;
        tracing::info!(
            "link with node {name:?} is up: {id}, identity {node}, start {}, at {}",
            incarnation.0,
            link.connection.remote_address()
        );
        self.handler.link_up(&link.hello, id);
        self.runtime.spawn(self.clone().serve(link, lanes));
        Ok(())
    }

    /// Serves a link until its end, then takes it off the list.
    async fn serve(self: Arc<Self>, link: Arc<Link>, lanes: LaneStreams) {
        let reason = link.run(lanes, self.handler.clone()).await;
        tracing::info!(
            "link with node {:?} is down: {}, {reason}",
            link.hello.name,
            link.id
        );
        self.handler.link_down(&link.hello, link.id);
        self.links.write().remove(&link.hello.node);
        self.changes.send_modify(|n| *n += 1);
    }

    /// A knock of a later start of a linked peer proves the link dead.
    pub(crate) fn close_if_restarted(&self, peer: &Hello) {
        if let Some(link) = self.link(peer.node)
            && link.hello.incarnation < peer.incarnation
        {
            link.close(CloseCode::Replaced, "the peer was restarted");
        }
    }

    pub(crate) fn is_linked(&self, name: &str) -> bool {
        self.links.read().values().any(|l| l.hello.name == name)
    }

    pub(crate) async fn until_linked(&self, name: &str) {
        // The sender lives in `self`.
        let _ = self
            .changes
            .subscribe()
            .wait_for(|_| self.is_linked(name))
            .await;
    }

    pub(crate) async fn until_unlinked(&self, name: &str) {
        // The sender lives in `self`.
        let _ = self
            .changes
            .subscribe()
            .wait_for(|_| !self.is_linked(name))
            .await;
    }

    /// Whether this problem of this peer is new since the last link with it.
    pub(crate) fn first_time(&self, whose: &str, problem: &str) -> bool {
        let mut problems = self.problems.lock();
        if problems.get(whose).is_some_and(|known| known == problem) {
            return false;
        }
        if problems.len() >= PROBLEMS_MAX {
            problems.clear();
        }
        problems.insert(whose.to_owned(), problem.to_owned());
        true
    }

    fn forget_problems(&self, name: &str) {
        let (to, from) = (format!("to {name}"), format!("from node {name:?} "));
        self.problems
            .lock()
            .retain(|whose, _| *whose != to && !whose.starts_with(&from));
    }
}

/// Largest UDP payload tried; smaller networks are found out by probing. quinn hands up to ten packets to the system as one segmented send,
/// which fails above 65,507 bytes, and quinn takes that failure for a lost probe: with a payload above 6,550 every full batch is lost.
const MTU_MAX: u16 = 6_500;

/// A packet counts as lost when one that was sent so many later has come. The three of RFC 9002 are far exceeded where packets take ways of different length:
/// bonded links, receive queues on several cores, jitter in virtual networks. What is only late would shrink the window again and again then, to the least that there
/// is. A packet that is lost is noticed by time instead, up to a round trip later than at the usual 9/8.
const REORDERED_PACKETS_MAX: u32 = 64;
/// Or so many round trips after it was sent, if a later one has come: jitter of the size of the round trip is not loss.
const REORDERED_ROUND_TRIPS_MAX: f32 = 2.0;
/// Four bursts of losses without a large packet between them that comes count as a network that takes only small ones, which jitter looks like, too. That guess
/// is looked at again after this time: small packets cost several times as much, and a link may carry less than it has to meanwhile. Where the guess was right,
/// looking costs a few packets that nobody waits for.
const BLACK_HOLE_COOLDOWN: Duration = Duration::from_secs(1);

const LANES: u32 = Lane::ALL.len() as u32;

fn quic_config(config: &Config) -> Result<Arc<TransportConfig>, StartError> {
    let window = config.limits.lane_window_bytes;
    // Room for every lane's full window and the greetings, so that no lane waits for another's.
    let all = window * LANES + (64 << 10);
    let mut quic = TransportConfig::default();
    let idle = config
        .idle_timeout
        .try_into()
        .map_err(|_| StartError::Config("the idle timeout is too long".into()))?;
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(MTU_MAX)
        .black_hole_cooldown(BLACK_HOLE_COOLDOWN);
    quic.max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(config.heartbeat))
        // The greeting's stream and the lanes.
        .max_concurrent_bidi_streams(VarInt::from_u32(LANES + 1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(window))
        .receive_window(VarInt::from_u32(all))
        .send_window(u64::from(all))
        // The default of 333 ms is for the Internet, and makes the first lost packet of a dial cost a second.
        .initial_rtt(Duration::from_millis(50))
        .packet_threshold(REORDERED_PACKETS_MAX)
        .time_threshold(REORDERED_ROUND_TRIPS_MAX)
        .mtu_discovery_config(Some(mtu));
    Ok(Arc::new(quic))
}

fn endpoint_config(config: &Config) -> Result<EndpointConfig, StartError> {
    let mut quic = EndpointConfig::new(restart::reset_key(&config.tls));
    let ids = restart::ConnectionIds::new(&config.tls, &config.hello, config.rng_seed);
    quic.cid_generator(move || Box::new(ids.clone()));
    quic.rng_seed(config.rng_seed);
    quic.max_udp_payload_size(MTU_MAX)
        .map_err(|e| StartError::Config(e.to_string()))?;
    Ok(quic)
}
