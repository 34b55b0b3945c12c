//! What came, what went, and what was dropped for which reason.

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Start-up frames sent.
    pub frames_sent: u64,
    /// Start-up frames received that were good.
    pub frames_received: u64,
    /// Connections that came up, both sides.
    pub established: u64,
    /// Tries with revision 1 after revision 2 was reset.
    pub fallbacks: u64,
    /// Ready-to-receive frames sent and received.
    pub rtrs: u64,
    /// Reset: not a request, or of a revision that we do not speak.
    pub bad_request: u64,
    /// Terminated: not a reply, or one that does not suit the request.
    pub bad_reply: u64,
    /// Reset: not the ready-to-receive frame that was agreed on.
    pub bad_rtr: u64,
    /// Refused or reset: nobody listens for iWARP there.
    pub no_listener: u64,
    /// Reset: peers that connected and sent no request, or found no listener with room.
    pub silent: u64,
    /// Reset: peers that had connected and not yet sent their request when others needed the room.
    pub shed: u64,
    /// Connections given up for lack of an answer.
    pub timeouts: u64,
}
