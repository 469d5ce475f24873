//! Requests of a channel that wait for an answer, and the answers.
//!
//! Answers are written in the order of the requests, whatever the order in which they come.

use crate::basic::short;
use crate::channel::{Channel, State};
use crate::connection::Core;
use crate::{Fault, Flow, Host, Reply, Request};
use warren_model::command::DeclareQueue;
use warren_model::{Command, Outcome, QueueRef, Refusal};
use warren_protocol::{
    BasicCancelOk, BasicConsumeOk, Method, QueueDeclareOk, QueueDeleteOk, QueuePurgeOk, ShortStr,
};

/// Beyond so many requests of a connection under way, none follows another before it is answered.
const PIPELINE_MAX: usize = 2048;
/// Nor does one with more bytes of arguments: together with the above it bounds what requests under way may take.
const PIPELINED_ARGUMENTS_MAX: usize = 4096;

/// What the client is waiting for.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// This reply, if the command is done.
    Declared(Method<'static>),
    /// queue.declare-ok.
    Queue(Box<DeclareQueue>),
    /// queue.declare-ok of a queue that exists.
    Counts(String),
    Deleted,
    Purged,
    Consumer(u32),
    Cancelled(Vec<u8>, u32),
    Got(u32, bool),
}

/// Requests of one class may follow each other before the first is answered: they cannot change each other's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// queue.bind, unbind, exchange.bind, unbind.
    Binding,
    /// queue.declare of different names.
    Queue,
    /// All else waits its turn.
    Alone,
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) id: u64,
    pub(crate) class: Class,
    /// To name in a close.
    pub(crate) method: (u16, u16),
    pub(crate) no_wait: bool,
    pub(crate) waiting: Waiting,
    pub(crate) reply: Option<Reply>,
}

impl Channel {
    /// Whether a method may be looked at although earlier requests are unanswered. Its handler still checks that it does not collide with them.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "whatever else there is waits its turn"
    )]
    pub(crate) fn may_overtake(&self, core: &Core, method: &Method<'_>) -> bool {
        let (class, arguments) = match method {
            Method::QueueBind(m) => (Class::Binding, &m.arguments),
            Method::QueueUnbind(m) => (Class::Binding, &m.arguments),
            Method::ExchangeBind(m) => (Class::Binding, &m.arguments),
            Method::ExchangeUnbind(m) => (Class::Binding, &m.arguments),
            Method::QueueDeclare(m) if !m.passive && !m.queue.as_bytes().is_empty() => {
                (Class::Queue, &m.arguments)
            }
            _ => return false,
        };
        let fits =
            core.under_way < PIPELINE_MAX && arguments.as_bytes().len() <= PIPELINED_ARGUMENTS_MAX;
        // All that is pending is of one class.
        fits && self.pending.front().is_some_and(|p| p.class == class)
    }

    /// Sends a request off and remembers what is to be answered.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one request, named at each of its callers"
    )]
    pub(crate) fn ask(
        &mut self,
        core: &mut Core,
        class: Class,
        method: (u16, u16),
        no_wait: bool,
        waiting: Waiting,
        request: Request,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let id = core.next_request();
        self.pending.push_back(Pending {
            id,
            class,
            method,
            no_wait,
            waiting,
            reply: None,
        });
        core.under_way += 1;
        host.request(self.number, id, request);
        Ok(Flow::Done)
    }

    /// An answer has come: writes it, and those that waited for it. A fault names its method.
    pub(crate) fn answered(
        &mut self,
        core: &mut Core,
        id: u64,
        reply: Reply,
        host: &mut impl Host,
    ) -> Result<(), (Fault, (u16, u16))> {
        if self.state == State::Closing {
            self.fenced(core, id);
            return Ok(());
        }
        let Some(entry) = self.pending.iter_mut().find(|p| p.id == id) else {
            return Ok(());
        };
        entry.reply = Some(reply);
        while self.pending.front().is_some_and(|p| p.reply.is_some()) {
            let Some(Pending {
                method,
                no_wait,
                waiting,
                reply: Some(reply),
                ..
            }) = self.pending.pop_front()
            else {
                break;
            };
            core.under_way -= 1;
            if let Some(request) = self
                .finish(core, waiting, no_wait, reply, host)
                .map_err(|fault| (fault, method))?
            {
                let (waiting, request) = *request;
                let id = core.next_request();
                core.under_way += 1;
                let class = if self.pending.is_empty() {
                    Class::Alone
                } else {
                    Class::Queue
                };
                if let (Waiting::Queue(command), true) =
                    (&waiting, matches!(request, Request::Propose(_)))
                {
                    // The node that was to hold the queue went down meanwhile: choose anew.
                    let place =
                        host.choose_place(&command.name, command.durable, command.exclusive);
                    let command = DeclareQueue {
                        place,
                        ..(**command).clone()
                    };
                    self.pending.push_front(Pending {
                        id,
                        class: Class::Queue,
                        method,
                        no_wait,
                        waiting: Waiting::Queue(Box::new(command.clone())),
                        reply: None,
                    });
                    host.request(
                        self.number,
                        id,
                        Request::Propose(Command::DeclareQueue(command)),
                    );
                } else {
                    self.pending.push_front(Pending {
                        id,
                        class,
                        method,
                        no_wait,
                        waiting,
                        reply: None,
                    });
                    host.request(self.number, id, request);
                }
            }
        }
        Ok(())
    }

    /// Writes one answer; or says what must be asked first.
    fn finish(
        &mut self,
        core: &mut Core,
        waiting: Waiting,
        no_wait: bool,
        reply: Reply,
        host: &mut impl Host,
    ) -> Result<Option<Box<(Waiting, Request)>>, Fault> {
        if let Reply::Refused(refusal) | Reply::Outcome(Outcome::Refused(refusal)) = reply {
            if let Waiting::Consumer(number) = waiting {
                core.consumers.remove(&number);
                self.tags.retain(|_, n| *n != number);
            }
            return Err(refusal.into());
        }
        match (waiting, reply) {
            (Waiting::Declared(method), Reply::Outcome(Outcome::Done | Outcome::Queue { .. })) => {
                self.answer(core, no_wait, method)?
            }
            (Waiting::Queue(command), Reply::Outcome(Outcome::Retry)) => {
                let request = Request::Propose(Command::DeclareQueue((*command).clone()));
                return Ok(Some(Box::new((Waiting::Queue(command), request))));
            }
            (
                Waiting::Queue(command),
                Reply::Outcome(Outcome::Queue {
                    created: false,
                    id,
                    place,
                }),
            ) => {
                self.last_queue = Some(command.name.clone());
                if no_wait {
                    return Ok(None);
                }
                return Ok(Some(Box::new((
                    Waiting::Counts(command.name),
                    Request::Count(QueueRef { id, place }),
                ))));
            }
            (Waiting::Queue(command), Reply::Outcome(Outcome::Queue { .. } | Outcome::Done)) => {
                let ok = QueueDeclareOk {
                    queue: ShortStr::truncated(&command.name),
                    message_count: 0,
                    consumer_count: 0,
                };
                let flow = self.answer(core, no_wait, Method::QueueDeclareOk(ok))?;
                self.last_queue = Some(command.name);
                flow
            }
            (
                Waiting::Counts(name),
                Reply::Counts {
                    messages,
                    consumers,
                },
            ) => {
                let ok = QueueDeclareOk {
                    queue: ShortStr::truncated(&name),
                    message_count: clamp(messages),
                    consumer_count: consumers,
                };
                self.answer(core, no_wait, Method::QueueDeclareOk(ok))?
            }
            (Waiting::Deleted, Reply::Counted(n)) => self.answer(
                core,
                no_wait,
                Method::QueueDeleteOk(QueueDeleteOk {
                    message_count: clamp(n),
                }),
            )?,
            (Waiting::Purged, Reply::Counted(n)) => self.answer(
                core,
                no_wait,
                Method::QueuePurgeOk(QueuePurgeOk {
                    message_count: clamp(n),
                }),
            )?,
            (Waiting::Consumer(number), Reply::Done) => {
                let Some(entry) = core.consumers.get_mut(&number) else {
                    return Ok(None);
                };
                entry.confirmed = true;
                let (tag, lost) = (entry.tag.clone(), entry.lost);
                let flow = self.answer(
                    core,
                    no_wait,
                    Method::BasicConsumeOk(BasicConsumeOk {
                        consumer_tag: short(&tag),
                    }),
                )?;
                if lost {
                    self.cancel_by_server(core, number, host);
                }
                flow
            }
            (Waiting::Cancelled(tag, number), Reply::Done) => {
                core.consumer_gone(number, &mut self.shared, host);
                self.answer(
                    core,
                    no_wait,
                    Method::BasicCancelOk(BasicCancelOk {
                        consumer_tag: short(&tag),
                    }),
                )?
            }
            (Waiting::Got(..), Reply::Empty) => {
                self.count(core, |counts| counts.get_empty += 1);
                self.answer(core, false, Method::BasicGetEmpty)?
            }
            // `Session::got` has written get-ok.
            (Waiting::Got(..), Reply::Done) => Flow::Done,
            (waiting, reply) => {
                return Err(Refusal::new(
                    warren_protocol::INTERNAL_ERROR,
                    format!("answer {reply:?} does not fit request {waiting:?}"),
                )
                .into());
            }
        };
        Ok(None)
    }
}

/// Counts are 32 bits on the wire.
pub(crate) fn clamp(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
