//! Counters of frames and connections, and of resets by reason.

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Start-up frames sent.
    pub frames_sent: u64,
    /// Valid start-up frames received.
    pub frames_received: u64,
    /// Connections established, on either side.
    pub established: u64,
    /// Retries with revision 1 after revision 2 was reset.
    pub fallbacks: u64,
    /// Ready-to-receive frames sent and received.
    pub rtrs: u64,
    /// Reset: not a request, or of an unsupported revision.
    pub bad_request: u64,
    /// Terminated: not a reply, or one that does not match the request.
    pub bad_reply: u64,
    /// Reset: not the ready-to-receive frame that was negotiated.
    pub bad_rtr: u64,
    /// Refused or reset: no iWARP listener.
    pub no_listener: u64,
    /// Reset: peers that connected and sent no request, or found no listener with room in its backlog.
    pub silent: u64,
    /// Reset to make room for others: peers that had connected and not yet sent their request.
    pub shed: u64,
    /// Connections given up because no answer arrived.
    pub timeouts: u64,
}
