//! What came, what went, and what was dropped for which reason.

/// Counts since the start, of all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// MADs sent, segments and retransmissions included.
    pub sent: u64,
    /// Of these: sent again because nothing came back.
    pub resent: u64,
    /// MADs that came to a port.
    pub received: u64,
    /// Records given to programs: requests, responses, and requests that failed.
    pub delivered: u64,
    /// Requests that ended without a response.
    pub timed_out: u64,
    /// Transfers that the peer ended, or that were ended because the peer broke the protocol.
    pub aborted: u64,
    /// Answered with status 0x000c: Get and Set that no agent wants.
    pub unsupported: u64,
    /// Dropped: base version not 1.
    pub bad_version: u64,
    /// Dropped: the class does not belong to the queue pair.
    pub bad_qp: u64,
    /// Dropped: other requests that no agent wants.
    pub no_owner: u64,
    /// Dropped: responses without a request that they answer: late ones, foreign ones.
    pub no_request: u64,
    /// Dropped: packets of RMPP that belong to no transfer.
    pub no_transfer: u64,
}
