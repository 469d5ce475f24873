//! What sessions ask of replicated queues: gets, consumers, counts, purges, deletions.
//!
//! Invariants: what changes a queue is answered when it is applied, since another leader may come before that. What depends on who consumes and holds what waits until
//! the leader delivers: until all sessions have come back to it, it knows only some of that, and while no majority confirms it, another one may know better.

use super::{Answered, Worker, answer};
use crate::hosted::Due;
use crate::outbox::GetSink;
use crate::wire::{Answer, Ask, Question};
use tokio::time::Instant;
use warren_model::planted;
use warren_model::{ConsumerId, QueueId, SessionId};
use warren_queue::entry::Settle;
use warren_queue::index::{GOT_FROM, IN_USE, Index};
use warren_queue::{Attached, Counts};

impl Worker {
    /// Answers a question about a replicated queue that is led here.
    pub(super) fn replicated_question(
        &mut self,
        queue: QueueId,
        session: SessionId,
        ask: Ask,
        id: u64,
    ) -> Answered {
        let Some(local) = self.queues.get_mut(&queue) else {
            return Answered::Now(Answer::NotHere);
        };
        let Some(replicated) = &mut local.replicated else {
            return Answered::Now(Answer::NotHere);
        };
        let shard = replicated.shard;
        let Some(hosted) = self.shards.get_mut(&shard) else {
            return Answered::Now(Answer::NotHere);
        };
        let index = hosted.state.queue(queue);
        let Some(leading) = &mut hosted.leading else {
            return Answered::Now(Answer::NotHere);
        };
        let touched = index.map_or(0, Index::touched);
        let use_of_it = match &ask {
            Ask::Consume { .. }
            | Ask::Reattach {
                subscription: Some(_),
                ..
            } => IN_USE,
            Ask::Get { .. } | Ask::Reattach { .. } => GOT_FROM,
            Ask::Count
            | Ask::Cancel { .. }
            | Ask::Purge
            | Ask::Seal { .. }
            | Ask::Unseal
            | Ask::Fence => 0,
        };
        if touched < use_of_it {
            leading.pending.touched(queue, use_of_it);
            leading.urgent = true;
        }
        let must_wait = ask.depends_on_consumers(local.auto_delete) && !leading.delivers();
        if must_wait || matches!(ask, Ask::Get { .. }) && touched < GOT_FROM {
            let question = Question {
                session,
                id,
                queue,
                ask,
            };
            // A session that is not sure whether it was heard asks again.
            let is_other = |q: &Question| (q.session, q.id) != (session, id);
            replicated.parked.retain(|(_, parked)| is_other(parked));
            replicated.parked.push((Instant::now(), question));
            return Answered::Already;
        }
        match ask {
            Ask::Get { consumer, .. } => Answered::Now(self.get(queue, session, consumer)),
            Ask::Consume { .. } | Ask::Reattach { .. } => self.attach(queue, session, ask, id),
            Ask::Count => {
                let counts = self
                    .queues
                    .get(&queue)
                    .map_or_else(Counts::default, |local| self.counts_of(queue, local));
                Answered::Now(Answer::Counts {
                    messages: counts.ready,
                    consumers: counts.consumers,
                })
            }
            Ask::Purge => self.purge(queue, session, id),
            Ask::Seal {
                if_unused,
                if_empty,
            } => {
                // What is on its way through the log counts, too.
                local.sealed = true;
                let due = Due::Sealed {
                    queue,
                    session,
                    id,
                    if_unused,
                    if_empty,
                };
                if let Some(due) = leading.due_when_applied(due) {
                    self.fulfil(due);
                }
                Answered::Already
            }
            Ask::Cancel { .. } | Ask::Unseal | Ask::Fence => {
                answer(local, session, ask, id, &mut self.outbox)
            }
        }
    }

    /// A consumer comes, or comes back.
    pub(super) fn attach(
        &mut self,
        queue: QueueId,
        session: SessionId,
        ask: Ask,
        id: u64,
    ) -> Answered {
        let Some(local) = self.queues.get_mut(&queue) else {
            return Answered::Now(Answer::NotHere);
        };
        let Ask::Reattach {
            consumer,
            subscription,
            mut holds,
        } = ask
        else {
            return answer(local, session, ask, id, &mut self.outbox);
        };
        if planted!(HoldsIgnored) {
            holds.clear();
        }
        let consumer = ConsumerId {
            session,
            number: consumer,
        };
        let Some(replicated) = &mut local.replicated else {
            return Answered::Now(Answer::NotHere);
        };
        replicated.holds.retain(|_, holder| *holder != consumer);
        replicated.unsure.remove(&consumer);
        match local
            .queue
            .reattach(consumer, subscription, &holds, &mut self.outbox)
        {
            Ok(Attached { ahead, mut lost }) => {
                let index = self
                    .shards
                    .get(&replicated.shard)
                    .and_then(|h| h.state.queue(queue));
                for position in ahead {
                    let waits = !replicated.settling.contains(&position)
                        && index.is_some_and(|i| i.find(position).is_some());
                    if !waits || *replicated.holds.entry(position).or_insert(consumer) != consumer {
                        lost.push(position);
                    }
                }
                Answered::Now(Answer::Attached { lost })
            }
            Err(_) => Answered::Now(super::in_exclusive_use(local)),
        }
    }

    /// The getter's session holds the message until it settles it, for its client if that does not: what was taken for good here would be lost with this leader.
    pub(super) fn get(&mut self, queue: QueueId, session: SessionId, consumer: u32) -> Answer {
        self.feed(queue, true);
        let term = self
            .queues
            .get(&queue)
            .and_then(|l| self.leading(l.replicated.as_ref()?.shard))
            .unwrap_or(0);
        let Some(local) = self.queues.get_mut(&queue) else {
            return Answer::NotHere;
        };
        let mut sink = GetSink::default();
        let id = ConsumerId {
            session,
            number: consumer,
        };
        if !local.queue.get(id, false, &mut sink) {
            return Answer::Empty;
        }
        let GetSink(mut deliveries) = sink;
        deliveries.term = term;
        local.count_got(&deliveries);
        let remaining = self
            .queues
            .get(&queue)
            .map_or(0, |local| self.counts_of(queue, local).ready);
        Answer::Got {
            remaining,
            deliveries,
        }
    }

    /// Settles everything that nobody holds. Answered when that is committed.
    pub(super) fn purge(&mut self, queue: QueueId, session: SessionId, id: u64) -> Answered {
        let Some(local) = self.queues.get_mut(&queue) else {
            return Answered::Now(Answer::NotHere);
        };
        let Some(replicated) = &mut local.replicated else {
            return Answered::Now(Answer::NotHere);
        };
        let Some(hosted) = self.shards.get_mut(&replicated.shard) else {
            return Answered::Now(Answer::NotHere);
        };
        let (Some(index), Some(leading)) = (hosted.state.queue(queue), &mut hosted.leading) else {
            return Answered::Now(Answer::Counted(0));
        };
        local.queue.purge();
        let runs = index.runs_without(|position| {
            replicated.holds.contains_key(&position)
                || replicated.settling.contains(&position)
                || local.queue.holds(position)
        });
        // What is held and not fed yet still has to be.
        if replicated.holds.is_empty() {
            replicated.fed_to = index.next();
        } else {
            for (first, count) in &runs {
                replicated
                    .settling
                    .extend(*first..*first + u64::from(*count));
            }
        }
        let mut purged = 0;
        for (position, count) in runs {
            purged += u64::from(count);
            leading.pending.settled(&Settle {
                queue,
                position,
                count,
            });
        }
        let due = Due::Answer(session, id, Answer::Counted(purged));
        if let Some(due) = leading.due_when_applied(due) {
            self.fulfil(due);
        }
        Answered::Already
    }

    pub(super) fn fulfil(&mut self, due: Due) {
        match due {
            Due::Answer(session, id, answer) => self.outbox.answer(session, id, answer),
            // Whoever waited may have given up.
            Due::HandingOver(done) => drop(done.send(())),
            Due::Sealed {
                queue,
                session,
                id,
                if_unused,
                if_empty,
            } => {
                let counts = self
                    .queues
                    .get(&queue)
                    .map(|local| self.counts_of(queue, local));
                let answer = match (self.queues.get_mut(&queue), counts) {
                    (Some(local), Some(counts)) => {
                        local.sealed = false;
                        super::seal(local, &counts, if_unused, if_empty)
                    }
                    // Deleted meanwhile: there is nothing to count.
                    (None, _) | (_, None) => Answer::Counted(0),
                };
                self.outbox.answer(session, id, answer);
            }
        }
    }
}
