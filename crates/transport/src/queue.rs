//! What waits to be written on one lane of one link: filled from anywhere, emptied by the lane's writer.

use crate::frame::Envelope;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Notify;

/// Why nothing was queued.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum PushError {
    /// The link is down.
    Closed,
    /// So many bytes wait that the peer must be stuck.
    Full(usize),
}

#[derive(Default)]
pub(crate) struct LaneQueue {
    waiting: Mutex<Waiting>,
    /// Bytes queued and not yet taken over by QUIC, those that the writer holds included.
    bytes: AtomicUsize,
    filled: Notify,
}

#[derive(Default)]
struct Waiting {
    envelopes: VecDeque<Envelope>,
    closed: bool,
}

impl LaneQueue {
    /// Queues at the end. A single frame may exceed `bytes_max`; a second one behind it may not.
    pub(crate) fn push(&self, envelope: Envelope, bytes_max: usize) -> Result<(), PushError> {
        let len = envelope.frame.wire_len();
        {
            let mut waiting = self.waiting.lock();
            if waiting.closed {
                return Err(PushError::Closed);
            }
            let queued = self.bytes.load(Ordering::Relaxed);
            if queued > 0 && queued + len > bytes_max {
                return Err(PushError::Full(queued));
            }
            self.bytes.fetch_add(len, Ordering::Relaxed);
            waiting.envelopes.push_back(envelope);
        }
        self.filled.notify_one();
        Ok(())
    }

    /// All that waits, as soon as something does; none when the queue is closed.
    pub(crate) async fn take(&self) -> Option<VecDeque<Envelope>> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if waiting.closed {
                    return None;
                }
                if !waiting.envelopes.is_empty() {
                    return Some(std::mem::take(&mut waiting.envelopes));
                }
            }
            self.filled.notified().await;
        }
    }

    /// QUIC has taken so many bytes over.
    pub(crate) fn written(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Drops what waits and takes nothing more.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut waiting = self.waiting.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.envelopes)
        };
        drop(dropped);
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, frame::Kind};

    fn envelope(len: usize) -> Envelope {
        Envelope {
            kind: Kind::Message,
            id: 0,
            frame: Frame::of_head(vec![0; len]),
        }
    }

    #[tokio::test]
    async fn a_full_queue_takes_nothing_until_bytes_are_written() {
        let queue = LaneQueue::default();
        queue.push(envelope(1_000), 100).unwrap();
        let queued = queue.bytes();
        assert_eq!(queue.push(envelope(1), 100), Err(PushError::Full(queued)));
        assert_eq!(queue.take().await.unwrap().len(), 1);
        assert_eq!(
            queue.push(envelope(1), 100),
            Err(PushError::Full(queued)),
            "what the writer holds counts"
        );
        queue.written(queued);
        queue.push(envelope(1), 100).unwrap();
        queue.close();
        assert_eq!(queue.push(envelope(1), 100), Err(PushError::Closed));
        assert!(queue.take().await.is_none());
    }
}
