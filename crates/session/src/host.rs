//! What a session needs from the node that hosts it.

use warren_model::command::{Binding, DeclareExchange, DeclareQueue};
use warren_model::{Command, Outcome, QueueRef, Refusal, SessionId, Settlement, Subscription};

/// A publish, borrowed from the read buffer.
#[derive(Clone, Copy, Debug)]
pub struct Publish<'a> {
    /// Channel number.
    pub channel: u16,
    /// The publish's number, when the channel confirms: outcomes come back through [`crate::Session::confirm`] with it. Grows by one with each publish of a
    /// channel, and is never used twice for a channel number in a session, so that outcomes of a closed channel mean nothing to the next one of its number.
    pub sequence: Option<u64>,
    /// Exchange.
    pub exchange: &'a [u8],
    /// Routing key.
    pub routing_key: &'a [u8],
    /// Properties from the flags word on; checked for form.
    pub properties: &'a [u8],
    /// Body.
    pub body: &'a [u8],
}

/// What became of a publish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Published {
    /// On its way to queues; so many outcomes will come back if it has a sequence.
    Routed(u32),
    /// No queue.
    Unroutable,
    /// Not allowed.
    Refused(Refusal),
    /// Not now: offer it again.
    Hold,
    /// This node may not route and has waited for as long as it may.
    Unavailable(String),
}

/// What the local routing table says of a declaration beforehand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Check {
    /// It changes nothing: this is its outcome. Safe to answer, since the table is current.
    Equivalent(Outcome),
    /// It will change the table.
    New,
    /// It will be refused.
    Refused(Refusal),
}

/// Something whose answer comes later through [`crate::Session::reply`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// A metadata command. Answer: [`Reply::Outcome`].
    Propose(Command),
    /// Numbers of a queue. Answer: [`Reply::Counts`].
    Count(QueueRef),
    /// A new consumer. Answer: [`Reply::Done`] or refused.
    Consume {
        /// Its number in this session.
        consumer: u32,
        /// The queue.
        queue: QueueRef,
        /// How it is served.
        subscription: Subscription,
        /// Its tag, to show to people.
        tag: Vec<u8>,
    },
    /// A consumer goes. Answer: [`Reply::Done`], when the queue, if it is deleted with its last consumer, is gone everywhere.
    Cancel {
        /// Its number.
        consumer: u32,
    },
    /// basic.get. Answer: [`Reply::Got`], by [`crate::Session::got`].
    Get {
        /// The number under which messages got from this queue are held.
        consumer: u32,
        /// The queue.
        queue: QueueRef,
        /// Needs no acknowledgement.
        no_ack: bool,
    },
    /// queue.purge. Answer: [`Reply::Counted`].
    Purge(QueueRef),
    /// Whoever must know that consumers were released knows it, and what their going has led to is done. Answer: [`Reply::Done`]. On channel 0: the
    /// client has closed the connection, and all that belongs to the session alone is to go first.
    Fence,
    /// queue.delete. Answer: [`Reply::Counted`] with the messages deleted, or refused.
    Delete {
        /// The queue.
        queue: QueueRef,
        /// Its name.
        name: String,
        /// Refuse while it has consumers.
        if_unused: bool,
        /// Refuse while it has messages.
        if_empty: bool,
    },
}

/// The answer to a [`Request`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Of a command.
    Outcome(Outcome),
    /// Ready messages and consumers.
    Counts {
        /// Ready messages.
        messages: u64,
        /// Consumers.
        consumers: u32,
    },
    /// Done.
    Done,
    /// So many messages.
    Counted(u64),
    /// basic.get found nothing. (What it found comes through [`crate::Session::got`].)
    Empty,
    /// Refused.
    Refused(Refusal),
}

/// A message that basic.get found.
#[derive(Clone, Copy, Debug)]
pub struct Got<'a> {
    /// Position, to settle it by.
    pub position: u64,
    /// It was delivered before.
    pub redelivered: bool,
    /// Ready messages that remain.
    pub remaining: u64,
    /// The message.
    pub message: warren_model::message::Message<'a>,
}

/// The node, as a session sees it. Calls return at once.
pub trait Host {
    /// Who this session is.
    fn session(&self) -> SessionId;
    /// 22 characters that no other call has returned, for server-made names.
    fn unique(&mut self) -> String;
    /// Checks a login. `None`: it takes time, and the verdict comes through [`crate::Session::login_checked`]. The error is for the log: a client learns only
    /// that it is refused.
    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Option<Result<(), String>>;
    /// Checks a login without a password: the client has shown a certificate that stands for the user. The error is for the log.
    fn admit(&mut self, user: &str) -> Result<(), String>;
    /// Whether the user may open the virtual host; the refusal is 530's text.
    fn open_vhost(&mut self, user: &str, vhost: &str) -> Result<(), Refusal>;
    /// Whether one more channel may be opened beside those that are; the refusal is 530's text.
    fn open_channel(&mut self, open: usize) -> Result<(), Refusal>;

    /// Whether there is memory for publishes that arrive in pieces; else those wait where they are.
    fn has_room(&self) -> bool {
        true
    }
    /// Whether look-ups can be trusted now: not while the node's table may lack what others were told. Then the method waits, and is refused when it has
    /// waited for long.
    fn may_look_up(&mut self) -> Result<bool, Refusal>;
    /// exchange.declare beforehand.
    fn check_exchange(&self, command: &DeclareExchange) -> Check;
    /// exchange.declare with passive: whether there is such an exchange.
    fn find_exchange(&self, name: &str) -> Result<(), Refusal>;
    /// queue.declare beforehand.
    fn check_queue(&self, command: &DeclareQueue) -> Check;
    /// A queue was declared that is there as it was asked for, so that nothing is proposed.
    fn queue_declared(&mut self) {}
    /// Whether the user may read from a queue, be it there or not: 403.
    fn may_read(&self, queue: &str) -> Result<(), Refusal>;
    /// Whether the user may delete a queue, be it there or not: 403.
    fn may_configure(&self, queue: &str) -> Result<(), Refusal>;
    /// Whether a queue takes a consumer with these arguments (raw field table entries): 406.
    fn check_consumer(&self, queue: &str, arguments: &[u8]) -> Result<(), Refusal>;
    /// A queue of the session's virtual host: 404 if there is none, 405 if it belongs to another connection.
    fn find_queue(&self, name: &str) -> Result<QueueRef, Refusal>;
    /// queue.bind or exchange.bind beforehand.
    fn check_bind(&self, command: &Binding) -> Check;
    /// queue.unbind or exchange.unbind beforehand.
    fn check_unbind(&self, command: &Binding) -> Check;
    /// A place for the contents of a queue that is about to be declared.
    fn choose_place(
        &mut self,
        name: &str,
        durable: bool,
        exclusive: bool,
    ) -> warren_model::command::Place;

    /// Takes a publish.
    fn publish(&mut self, publish: &Publish<'_>) -> Published;
    /// Starts a request of a channel. `id` comes back with the answer.
    fn request(&mut self, channel: u16, id: u64, request: Request);
    /// A message is settled.
    fn settle(&mut self, consumer: u32, position: u64, settlement: Settlement);
    /// Room for so many more bytes of a consumer's messages.
    fn credit(&mut self, consumer: u32, bytes: u32);
    /// Leave for so many messages.
    fn grant(&mut self, consumer: u32, count: u32);
    /// The consumer needs leave from now on, or does not.
    fn set_by_leave(&mut self, consumer: u32, by_leave: bool);
    /// The consumer's channel is closed: it goes, and what it holds goes back to the queue.
    fn release(&mut self, consumer: u32);
}
