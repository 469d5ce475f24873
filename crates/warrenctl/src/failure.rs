//! What can go wrong, and the exit code of `sysexits.h` that a script sees for it.

/// The exit code for a command line that cannot be understood.
pub const EX_USAGE: u8 = 64;

/// A command that did not do what was asked. The text says what, where, and what to do.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Failure {
    /// The node understood the request and says that it is wrong: no such queue, a bad argument.
    #[error("{0}")]
    Data(String),
    /// The node or its API cannot be reached, or does not serve now.
    #[error("{0}")]
    Unavailable(String),
    /// The cluster is in a state that it should never be in.
    #[error("{0}")]
    Software(String),
    /// Something answers at the address, but not Warren's HTTP API.
    #[error("{0}")]
    Protocol(String),
    /// The user or password is wrong, or the user may not do this.
    #[error("{0}")]
    NoPermission(String),
    /// The address of the node is unusable as it was given.
    #[error("{0}")]
    Config(String),
    /// The command line asks for something that does not fit together, or was not confirmed.
    #[error("{0}")]
    Usage(String),
    /// Something that the command needs from this machine cannot be read.
    #[error("{0}")]
    Input(String),
    /// A health check has failed.
    #[error("{0}")]
    Unhealthy(String),
    /// The answer could not be written to standard output.
    #[error("cannot write the answer: {0}")]
    Output(String),
}

impl Failure {
    /// The process exit code for this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => EX_USAGE,
            Self::Data(_) => 65,
            Self::Input(_) => 66,
            Self::Unavailable(_) | Self::Unhealthy(_) => 69,
            Self::Software(_) => 70,
            Self::Output(_) => 74,
            Self::Protocol(_) => 76,
            Self::NoPermission(_) => 77,
            Self::Config(_) => 78,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_sysexits() {
        let text = String::new;
        let codes = [
            Failure::Usage(text()),
            Failure::Data(text()),
            Failure::Input(text()),
            Failure::Unavailable(text()),
            Failure::Unhealthy(text()),
            Failure::Software(text()),
            Failure::Output(text()),
            Failure::Protocol(text()),
            Failure::NoPermission(text()),
            Failure::Config(text()),
        ]
        .map(|failure| failure.exit_code());
        assert_eq!(codes, [64, 65, 66, 69, 69, 70, 74, 76, 77, 78]);
    }
}
