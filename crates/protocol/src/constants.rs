//! Numbers that the specification fixes: class ids and reply codes, with the names that reply texts open with.

/// Class `connection`.
pub const CLASS_CONNECTION: u16 = 10;
/// Class `channel`.
pub const CLASS_CHANNEL: u16 = 20;
/// Class `access`.
pub const CLASS_ACCESS: u16 = 30;
/// Class `exchange`.
pub const CLASS_EXCHANGE: u16 = 40;
/// Class `queue`.
pub const CLASS_QUEUE: u16 = 50;
/// Class `basic`.
pub const CLASS_BASIC: u16 = 60;
/// Class `confirm`.
pub const CLASS_CONFIRM: u16 = 85;
/// Class `tx`.
pub const CLASS_TX: u16 = 90;

/// The method completed; also the code of an orderly close.
pub const REPLY_SUCCESS: u16 = 200;
/// The content is larger than the peer accepts now.
pub const CONTENT_TOO_LARGE: u16 = 311;
/// A mandatory message reached no queue.
pub const NO_ROUTE: u16 = 312;
/// An immediate message could not be delivered at once.
pub const NO_CONSUMERS: u16 = 313;
/// An operator closed the connection.
pub const CONNECTION_FORCED: u16 = 320;
/// The virtual host is unknown.
pub const INVALID_PATH: u16 = 402;
/// The user may not do this.
pub const ACCESS_REFUSED: u16 = 403;
/// The entity does not exist.
pub const NOT_FOUND: u16 = 404;
/// Another connection holds the entity exclusively.
pub const RESOURCE_LOCKED: u16 = 405;
/// The entity exists with other properties, or the request is invalid in its state.
pub const PRECONDITION_FAILED: u16 = 406;
/// A malformed frame.
pub const FRAME_ERROR: u16 = 501;
/// A frame with illegal field values.
pub const SYNTAX_ERROR: u16 = 502;
/// A method that cannot be, or not now.
pub const COMMAND_INVALID: u16 = 503;
/// A method on a channel that is not open, or an invalid channel number.
pub const CHANNEL_ERROR: u16 = 504;
/// A frame out of sequence.
pub const UNEXPECTED_FRAME: u16 = 505;
/// The server lacks resources.
pub const RESOURCE_ERROR: u16 = 506;
/// The request breaks a limit or a policy.
pub const NOT_ALLOWED: u16 = 530;
/// The server does not have this feature.
pub const NOT_IMPLEMENTED: u16 = 540;
/// The server failed.
pub const INTERNAL_ERROR: u16 = 541;

/// The name of a reply code, as reply texts begin with it (`NOT_FOUND - no queue …`). An unknown code counts as an internal error.
#[must_use]
pub const fn reply_name(code: u16) -> &'static str {
    match code {
        REPLY_SUCCESS => "REPLY_SUCCESS",
        CONTENT_TOO_LARGE => "CONTENT_TOO_LARGE",
        NO_ROUTE => "NO_ROUTE",
        NO_CONSUMERS => "NO_CONSUMERS",
        CONNECTION_FORCED => "CONNECTION_FORCED",
        INVALID_PATH => "INVALID_PATH",
        ACCESS_REFUSED => "ACCESS_REFUSED",
        NOT_FOUND => "NOT_FOUND",
        RESOURCE_LOCKED => "RESOURCE_LOCKED",
        PRECONDITION_FAILED => "PRECONDITION_FAILED",
        FRAME_ERROR => "FRAME_ERROR",
        SYNTAX_ERROR => "SYNTAX_ERROR",
        COMMAND_INVALID => "COMMAND_INVALID",
        CHANNEL_ERROR => "CHANNEL_ERROR",
        UNEXPECTED_FRAME => "UNEXPECTED_FRAME",
        RESOURCE_ERROR => "RESOURCE_ERROR",
        NOT_ALLOWED => "NOT_ALLOWED",
        NOT_IMPLEMENTED => "NOT_IMPLEMENTED",
        _ => "INTERNAL_ERROR",
    }
}

/// Whether a reply code closes the whole connection (the specification's hard errors) rather than one channel.
#[must_use]
pub const fn is_connection_error(code: u16) -> bool {
    !matches!(
        code,
        REPLY_SUCCESS
            | CONTENT_TOO_LARGE
            | NO_ROUTE
            | NO_CONSUMERS
            | ACCESS_REFUSED
            | NOT_FOUND
            | RESOURCE_LOCKED
            | PRECONDITION_FAILED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_codes() {
        assert_eq!(reply_name(404), "NOT_FOUND");
        assert_eq!(reply_name(406), "PRECONDITION_FAILED");
        assert_eq!(reply_name(541), "INTERNAL_ERROR");
        assert_eq!(reply_name(1), "INTERNAL_ERROR");
    }

    #[test]
    fn soft_errors_are_the_specifications() {
        let soft: Vec<u16> = (300..600)
            .filter(|code| !is_connection_error(*code))
            .collect();
        assert_eq!(soft, [311, 312, 313, 403, 404, 405, 406]);
    }
}
