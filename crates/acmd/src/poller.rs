//! The sources of the event loop.

pub(crate) use rdmux_runtime::poller::Interest;

/// The poller of all sources.
pub(crate) type Poller = rdmux_runtime::poller::Poller<Token>;
/// A source that is ready.
pub(crate) type Ready = rdmux_runtime::poller::Ready<Token>;

/// A source of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A listening socket, by its number.
    Listener(u64),
    /// A client.
    Client(u64),
    /// Signals.
    Signal,
    /// The files of the configuration.
    Files,
    /// The machine's interfaces and addresses.
    Addresses,
    /// Asynchronous events of a device.
    Device(u64),
    /// The descriptor of a device that must be driven.
    Drive(u64),
    /// Management datagrams of a port.
    Mads(u64),
    /// Results of name lookups.
    Names,
    /// Files that were loaded.
    Loaded,
    /// The mounts on the paths to the files of the configuration.
    Mounts,
}

impl rdmux_runtime::poller::Token for Token {
    fn to_parts(self) -> (u8, u64) {
        match self {
            Self::Listener(id) => (0, id),
            Self::Client(id) => (1, id),
            Self::Signal => (2, 0),
            Self::Files => (3, 0),
            Self::Addresses => (4, 0),
            Self::Device(id) => (5, id),
            Self::Drive(id) => (6, id),
            Self::Mads(id) => (7, id),
            Self::Names => (8, 0),
            Self::Loaded => (9, 0),
            Self::Mounts => (10, 0),
        }
    }

    fn from_parts(kind: u8, id: u64) -> Option<Self> {
        Some(match kind {
            0 => Self::Listener(id),
            1 => Self::Client(id),
            2 => Self::Signal,
            3 => Self::Files,
            4 => Self::Addresses,
            5 => Self::Device(id),
            6 => Self::Drive(id),
            7 => Self::Mads(id),
            8 => Self::Names,
            9 => Self::Loaded,
            10 => Self::Mounts,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::poller::Token as _;

    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Listener(1),
            Token::Client(1 << 40),
            Token::Signal,
            Token::Files,
            Token::Addresses,
            Token::Device(2),
            Token::Drive(3),
            Token::Mads(4),
            Token::Names,
            Token::Loaded,
            Token::Mounts,
        ] {
            let (kind, id) = token.to_parts();
            assert_eq!(Token::from_parts(kind, id), Some(token));
        }
        assert_eq!(Token::from_parts(u8::MAX, 0), None);
    }
}
