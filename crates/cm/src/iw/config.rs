//! Configuration of MPA's start-up.

use core::time::Duration;

/// Parameters for establishing iWARP connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether connections that this end requests are peer-to-peer, unless their id or the program says
    /// otherwise. As the responder this end accepts the peer's choice.
    pub peer_to_peer: bool,
    /// Whether this end wants CRCs. Frames carry one if either side wants them (RFC 5044, section 7.1).
    pub crc: bool,
    /// Markers in the stream.
    pub markers: Markers,
    /// The revision that the initiator sends. The responder accepts both.
    pub revision: Revision,
    /// How long a connected peer may take to send its request.
    pub request_timeout: Duration,
    /// How long a peer may take to answer: from the start of the TCP connection until its reply has
    /// arrived, on each attempt.
    pub reply_timeout: Duration,
    /// How long the initiator may take to send its ready-to-receive frame.
    pub rtr_timeout: Duration,
    /// The most peers connected to a listening address that have not sent their request. For a further one, the
    /// oldest of the source with the most connections is reset. As many requests may wait for a listener's program to take
    /// earlier ones; further peers of that listener wait in the kernel's queue.
    pub max_half_open: usize,
    /// The most half-open connections of all listeners together, because each connection takes a descriptor of the driver.
    pub max_half_open_in_all: usize,
    /// The most READs and atomics that a queue pair serves (IRD). Larger values in connection
    /// parameters are an error; a peer's larger values are clamped.
    pub max_ird: u8,
    /// The most READs and atomics that it has outstanding (ORD), likewise.
    pub max_ord: u8,
}

/// Whether the stream has markers, by which a receiver finds frames in the middle of a stream
/// (RFC 5044, section 4.3). Each side says whether it wants them in the stream that it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Markers {
    /// Refuse peers that want them.
    Refuse,
    /// Send markers to peers that want them, and do not request any.
    #[default]
    Give,
    /// Send markers to peers that want them, and request them too.
    Ask,
}

/// A revision of MPA's start-up frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// RFC 5044. Depths are not negotiated, and the initiator must send first.
    V1,
    /// RFC 6581. If a peer resets or closes the connection on it, the initiator retries with revision
    /// 1.
    V2,
}

impl Revision {
    /// Returns the revision's number.
    pub const fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            peer_to_peer: true,
            crc: false,
            markers: Markers::Give,
            revision: Revision::V2,
            request_timeout: Duration::from_secs(5),
            reply_timeout: Duration::from_secs(10),
            rtr_timeout: Duration::from_secs(5),
            max_half_open: 256,
            max_half_open_in_all: 1024,
            max_ird: 128,
            max_ord: 128,
        }
    }
}
