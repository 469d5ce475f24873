//! Bounds on what requests that carry messages or definitions may take up together: sessions, memory, imports.
//!
//! Who comes beyond a bound is told so at once (503) rather than kept waiting: the memory that waiting takes is what is bounded.

use crate::error::Error;
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Sessions of the API at a time.
const SESSIONS_MAX: usize = 64;
/// Bodies of requests and of got messages that may be in memory at a time, in KiB.
const KIBIBYTES_MAX: u32 = 128 * 1024;
/// A message must fit together with others.
const BODY_BYTES_MAX: usize = 32 << 20;

/// What is left of everything that is bounded.
#[derive(Clone)]
pub(crate) struct Bounds {
    sessions: Arc<Semaphore>,
    kibibytes: Arc<Semaphore>,
    imports: Arc<Semaphore>,
}

impl Bounds {
    pub(crate) fn new() -> Self {
        Self {
            sessions: Arc::new(Semaphore::new(SESSIONS_MAX)),
            kibibytes: Arc::new(Semaphore::new(KIBIBYTES_MAX as usize)),
            imports: Arc::new(Semaphore::new(1)),
        }
    }

    /// Memory for so many bytes, kept until the permit is dropped.
    pub(crate) fn memory(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        // Every message costs something besides its body.
        let kibibytes = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX);
        self.kibibytes
            .clone()
            .try_acquire_many_owned(kibibytes)
            .map_err(|_| {
                Error::unavailable("the HTTP API carries too many messages at a time; try again")
            })
    }

    /// The right to import definitions.
    pub(crate) fn import(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.imports.clone().try_acquire_owned().map_err(|_| {
            Error::unavailable("definitions are being imported on this node; try again afterwards")
        })
    }
}

/// The largest body of a publish: the largest message in base64, and what goes around it.
pub(crate) fn publish_body_max(message_max: u64, around: usize) -> usize {
    let message = usize::try_from(message_max / 3 + 1).unwrap_or(usize::MAX);
    message
        .saturating_mul(4)
        .saturating_add(around)
        .min(BODY_BYTES_MAX)
}

/// The largest body of an import.
pub(crate) const fn import_body_max() -> usize {
    BODY_BYTES_MAX
}

/// Stands before requests that open a session.
pub(crate) async fn session(
    State((bounds, body_max)): State<(Bounds, usize)>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let _session = bounds.sessions.clone().try_acquire_owned().map_err(|_| {
        Error::unavailable(format!(
            "the HTTP API has {SESSIONS_MAX} sessions already; try again, or use AMQP"
        ))
    })?;
    body(State((bounds, body_max)), request, next).await
}

/// Stands before requests with large bodies.
pub(crate) async fn body(
    State((bounds, body_max)): State<(Bounds, usize)>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let _memory = bounds.memory(announced(&request, body_max))?;
    Ok(next.run(request).await)
}

/// The length of a request's body as it says, or the largest one if it does not.
fn announced(request: &Request, body_max: usize) -> usize {
    let length = request.body().size_hint().upper();
    length
        .and_then(|length| usize::try_from(length).ok())
        .map_or(body_max, |length| length.min(body_max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, Bytes};

    #[test]
    fn memory_is_given_back() {
        let bounds = Bounds::new();
        let most = (KIBIBYTES_MAX as usize - 1) * 1024;
        let all = bounds.memory(most).unwrap();
        assert!(bounds.memory(0).is_err());
        drop(all);
        assert!(bounds.memory(most).is_ok());
        assert!(bounds.memory(most + 1024).is_err());
    }

    #[test]
    fn a_publish_fits_the_largest_message_in_base64() {
        for message in [1_u64, 2, 3, 16 << 20] {
            let encoded = usize::try_from(message).unwrap().div_ceil(3) * 4;
            assert!(
                publish_body_max(message, 1000) >= encoded + 1000,
                "{message}"
            );
        }
        assert_eq!(publish_body_max(u64::MAX, 1), BODY_BYTES_MAX);
    }

    #[test]
    fn what_is_not_announced_counts_as_the_most() {
        let of = |body| announced(&Request::new(body), 100);
        assert_eq!(of(Body::empty()), 0);
        assert_eq!(of(Body::from("1234567")), 7);
        assert_eq!(of(Body::from(vec![0; 700])), 100);
        let chunked = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"x"))]);
        assert_eq!(of(Body::from_stream(chunked)), 100);
    }
}
