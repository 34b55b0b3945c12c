//! One direction of a stream.

use rdmux_testing::env::Stream;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// What was sent and has not arrived. It is broken when the other end takes nothing any more.
    pub(super) stream: Stream,
    /// Whether it has an end behind these bytes, and an orderly one.
    pub(super) end: Option<bool>,
    /// Whether an arrival is on the agenda.
    pub(super) moving: bool,
    /// Whether what it carries is not what was sent.
    pub(super) tainted: bool,
    /// Whether nothing arrives any more.
    pub(super) silent: bool,
}
