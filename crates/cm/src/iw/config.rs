//! What may be set of MPA's start-up.

use core::time::Duration;

/// How connections of iWARP are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether connections that we ask for are peer-to-peer, unless their id or the program says
    /// otherwise. As the responder we do what the peer asks for.
    pub peer_to_peer: bool,
    /// Whether we want CRCs. Frames carry one if either side does (RFC 5044, section 7.1).
    pub crc: bool,
    /// Markers in the stream.
    pub markers: Markers,
    /// What we send as the initiator. As the responder we take both.
    pub revision: Revision,
    /// How long a peer that connected may take until its request is there.
    pub request_timeout: Duration,
    /// How long a peer may take to answer: from the start of the TCP connection until its reply is
    /// there, on each attempt.
    pub reply_timeout: Duration,
    /// How long the initiator may take until its ready-to-receive frame is there.
    pub rtr_timeout: Duration,
    /// How many peers may be connected to a listening address without having sent their request. For a further one the
    /// oldest of the source is reset that has the most. As many requests may wait for a listener's program to take
    /// earlier ones; further peers of that listener wait in the kernel's queue.
    pub max_half_open: usize,
    /// The same for all listeners together, for each takes a descriptor of the driver's.
    pub max_half_open_in_all: usize,
    /// The most READs and atomics that a queue pair serves (IRD); larger values in connection
    /// parameters are an error, larger ones of a peer are cut down.
    pub max_ird: u8,
    /// The most that it has outstanding itself (ORD), likewise.
    pub max_ord: u8,
}

/// Whether frames have markers, by which a receiver finds frames in the middle of a stream
/// (RFC 5044, section 4.3). Each side says whether it wants them in what it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Markers {
    /// We refuse peers that want them.
    Refuse,
    /// We send them to peers that want them, and do not want them ourselves.
    #[default]
    Give,
    /// We also want them ourselves.
    Ask,
}

/// A revision of MPA's start-up frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// RFC 5044. Depths are not negotiated, and the initiator must send first.
    V1,
    /// RFC 6581. To a peer that resets or closes the connection on it we try again with the first
    /// one.
    V2,
}

impl Revision {
    /// Its number.
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
