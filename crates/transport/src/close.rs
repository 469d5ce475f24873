//! Why connections end: the codes both sides understand, and words for what QUIC and TLS report.

use quinn::{ConnectionError, VarInt};

/// The code in a connection's close; its reason travels beside it as text.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum CloseCode {
    /// The node shuts down.
    Shutdown,
    /// The node does not want this peer, for the reason given.
    Refused,
    /// A newer link of the same peer has come up.
    Replaced,
    /// The peer's bytes make no sense.
    Protocol,
    /// The peer takes nothing in.
    Stuck,
    /// The node's user wants the link down.
    Unwanted,
    /// Not an error: a knock was heard.
    Heard,
}

impl CloseCode {
    pub(crate) fn value(self) -> VarInt {
        VarInt::from_u32(match self {
            CloseCode::Shutdown => 0,
            CloseCode::Refused => 1,
            CloseCode::Replaced => 2,
            CloseCode::Protocol => 3,
            CloseCode::Stuck => 4,
            CloseCode::Unwanted => 5,
            CloseCode::Heard => 6,
        })
    }
}

/// How a connection ended, as far as what follows depends on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// The peer refused us, or TLS did on either side: trying again helps only when something is changed.
    Refused(String),
    /// The peer heard our knock.
    Heard,
    /// Anything else.
    Lost(String),
}

impl Ended {
    pub(crate) fn of(error: &ConnectionError) -> Ended {
        match error {
            ConnectionError::ApplicationClosed(close)
                if close.error_code == CloseCode::Heard.value() =>
            {
                Ended::Heard
            }
            ConnectionError::ApplicationClosed(close)
                if close.error_code == CloseCode::Refused.value() =>
            {
                Ended::Refused(String::from_utf8_lossy(&close.reason).into_owned())
            }
            ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => {
                Ended::Lost("the peer closed it".into())
            }
            ConnectionError::ApplicationClosed(close) => Ended::Lost(format!(
                "the peer closed it: {}",
                String::from_utf8_lossy(&close.reason)
            )),
            ConnectionError::TransportError(error) => match tls_alert(error.code) {
                Some(alert) => Ended::Refused(format!(
                    "the peer's certificate was refused: {} ({alert})",
                    error.reason
                )),
                None => Ended::Lost(error.to_string()),
            },
            ConnectionError::ConnectionClosed(close) => match tls_alert(close.error_code) {
                Some(alert) => {
                    Ended::Refused(format!("the peer refused this node's certificate: {alert}"))
                }
                None => Ended::Lost(close.to_string()),
            },
            ConnectionError::Reset => Ended::Lost(
                "the peer does not know the link any more: it was restarted, or gave it up".into(),
            ),
            ConnectionError::TimedOut => {
                Ended::Lost("nothing was heard of the peer for the idle timeout".into())
            }
            ConnectionError::LocallyClosed => Ended::Lost("closed by this node".into()),
            ConnectionError::VersionMismatch => {
                Ended::Refused("the peer speaks another version of QUIC".into())
            }
            ConnectionError::CidsExhausted => Ended::Lost("QUIC ran out of connection ids".into()),
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            Ended::Refused(text) | Ended::Lost(text) => text,
            Ended::Heard => "the peer heard the knock".into(),
        }
    }
}

/// The TLS alert in a QUIC error code (RFC 9001, section 4.8), in words that lead to the cause.
fn tls_alert(code: quinn::TransportErrorCode) -> Option<String> {
    let alert = u8::try_from(u64::from(code).checked_sub(0x100)?).ok()?;
    Some(match alert {
        42 => "bad certificate".into(),
        45 => "expired certificate".into(),
        46 => "certificate that cannot be used for this".into(),
        48 => "certificate of an unknown CA".into(),
        51 => {
            "certificate of an unknown CA: a CA of the same name, with another key, has signed it"
                .into()
        }
        116 => "no certificate was shown, and one is required".into(),
        120 => "the other side is not a Warren node's cluster port".into(),
        other => format!("TLS alert {other}"),
    })
}
