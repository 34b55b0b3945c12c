//! One direction of a stream.

use rdmux_testing::env::Stream;

/// One direction of a stream.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// Bytes in flight. Broken when the other end does not read any more.
    pub(super) stream: Stream,
    /// Whether the stream ends after these bytes, and whether in order.
    pub(super) end: Option<bool>,
    /// Whether an arrival is scheduled.
    pub(super) moving: bool,
    /// Whether the data differs from what was sent.
    pub(super) tainted: bool,
    /// Whether nothing arrives any more.
    pub(super) silent: bool,
}
