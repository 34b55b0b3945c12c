//! One direction of a stream.

use std::collections::VecDeque;

use rdmux_transport::iwarp::SendFault;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// What was sent and has not arrived.
    pub(super) bytes: VecDeque<u8>,
    /// How much of that there may be.
    pub(super) room: usize,
    /// Whether it has an end behind these bytes, and an orderly one.
    pub(super) end: Option<bool>,
    /// Whether the other end of the stream takes nothing any more.
    pub(super) broken: bool,
    /// Whether somebody waits for room.
    pub(super) wanted: bool,
    /// Whether an arrival is on the agenda.
    pub(super) moving: bool,
    /// Whether what it carries is not what was sent.
    pub(super) tainted: bool,
    /// Whether nothing arrives any more.
    pub(super) silent: bool,
}

impl Pipe {
    /// Takes as much as it has room for.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<usize, SendFault> {
        if self.broken {
            return Err(SendFault::Broken);
        }
        assert!(self.end.is_none(), "bytes behind the end");
        let len = bytes.len().min(self.room.saturating_sub(self.bytes.len()));
        self.bytes.extend(&bytes[..len]);
        self.wanted = len < bytes.len();
        Ok(len)
    }
}
