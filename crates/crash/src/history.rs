//! What happened in a round, as its clients and the fault injector saw it: the checker's whole input.
//!
//! Every client writes its own log and no one reads it before the client has ended, so recording takes no lock. Times are microseconds
//! on one clock, since the run began.

/// Microseconds since the run began.
pub type Micros = u64;

/// A round.
#[derive(Debug, Default)]
pub struct History {
    /// The queues' names; everywhere else a queue is its index here.
    pub queues: Vec<String>,
    /// The publishers, by their number.
    pub publishers: Vec<PublisherLog>,
    /// The consumers.
    pub consumers: Vec<ConsumerLog>,
    /// The faults, by when they began.
    pub faults: Vec<FaultLog>,
    /// What the test saw beside its clients: a node that ended by itself, one that did not come back.
    pub incidents: Vec<Incident>,
    /// When the round began.
    pub begin: Micros,
    /// When the round was over.
    pub end: Micros,
}

/// A publisher: one connection at a time, to one node.
#[derive(Debug, Default)]
pub struct PublisherLog {
    /// The node that it connects to, from 0.
    pub node: usize,
    /// Its connections in turn.
    pub links: Vec<Link>,
    /// What it published, by sequence number.
    pub messages: Vec<Published>,
}

/// A consumer: one connection at a time, to one node, that consumes from all queues.
#[derive(Debug, Default)]
pub struct ConsumerLog {
    /// The node that it connects to, from 0.
    pub node: usize,
    /// Its connections in turn.
    pub links: Vec<Link>,
    /// What it got, in the order in which it came.
    pub deliveries: Vec<Delivery>,
    /// Deliveries that carry nothing that this round has published.
    pub strangers: Vec<Stranger>,
}

/// A client's connection.
#[derive(Debug, Clone)]
pub struct Link {
    /// When it was open.
    pub opened: Micros,
    /// When and how it ended.
    pub closed: Option<Closed>,
}

/// A connection's end.
#[derive(Debug, Clone)]
pub struct Closed {
    /// When the client noticed.
    pub at: Micros,
    /// How.
    pub end: End,
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The client closed it, at the end of the round.
    Ours,
    /// The broker closed it or the socket broke.
    Lost(String),
    /// The broker sent something that the protocol does not allow.
    Broken(String),
}

/// A message that was published.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// The queue.
    pub queue: u16,
    /// The connection, by its index in the publisher's links.
    pub link: u32,
    /// When.
    pub sent: Micros,
    /// What the broker said.
    pub outcome: Outcome,
}

/// What the broker said about a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: it may have been applied or not.
    Unknown,
    /// `basic.ack`.
    Confirmed(Micros),
    /// `basic.nack`.
    Refused(Micros),
    /// `basic.return`: it reached no queue.
    Returned(Micros),
}

/// A message that a consumer got.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    /// The consumer's connection, by its index in the consumer's links.
    pub link: u32,
    /// The publisher's number.
    pub publisher: u16,
    /// The queue that it was consumed from.
    pub queue: u16,
    /// The publisher's sequence number.
    pub seq: u64,
    /// When.
    pub at: Micros,
    /// The broker's redelivered flag.
    pub redelivered: bool,
    /// What the consumer did with it.
    pub fate: Fate,
}

/// What a consumer did with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing yet.
    Held,
    /// It acknowledged it.
    Acked(Micros),
    /// It returned it to the queue.
    Requeued(Micros),
}

/// A delivery that carries nothing that this round has published.
#[derive(Debug, Clone)]
pub struct Stranger {
    /// When.
    pub at: Micros,
    /// The queue that it was consumed from.
    pub queue: u16,
    /// What is wrong with it.
    pub what: StrangerKind,
}

/// What is wrong with a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StrangerKind {
    /// The content is not what its checksum was made of.
    Spoilt(String),
    /// A message of an earlier round, which had been settled when that round was over.
    Earlier {
        /// That round.
        round: u16,
        /// The broker's redelivered flag.
        redelivered: bool,
    },
}

/// A fault.
#[derive(Debug, Clone)]
pub struct FaultLog {
    /// What was done.
    pub kind: FaultKind,
    /// To which node, from 0.
    pub node: usize,
    /// When.
    pub begin: Micros,
    /// When the cause was taken away: started again, continued, reconnected.
    pub healed: Option<Micros>,
    /// When all nodes said that they route again.
    pub recovered: Option<Micros>,
    /// Whether it began before the fault before it was recovered from.
    pub hasty: bool,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum FaultKind {
    /// SIGKILL, and a start some time later.
    Kill,
    /// SIGSTOP, and SIGCONT some time later.
    Stop,
    /// No packet passes between the node and the others, and at times none between it and its clients.
    Partition,
    /// SIGTERM, and a start some time later.
    Restart,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Kill, Self::Stop, Self::Partition, Self::Restart];

    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Partition => "partition",
            Self::Restart => "restart",
        }
    }
}

/// Something that went wrong with a node.
#[derive(Debug, Clone)]
pub struct Incident {
    /// When.
    pub at: Micros,
    /// Whether it ended by itself, or did not do in time what it should.
    pub kind: IncidentKind,
    /// In words.
    pub text: String,
}

/// Kinds of incidents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncidentKind {
    /// A node's process ended by itself.
    Died,
    /// Something did not happen within the hang limit.
    Hung,
}
