//! Counters of the user MAD device.

/// Counts of all files since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// MADs sent, including segments and retransmissions.
    pub sent: u64,
    /// Retransmissions among these.
    pub resent: u64,
    /// MADs received by ports.
    pub received: u64,
    /// Records delivered to programs: requests, responses, and failed requests.
    pub delivered: u64,
    /// Requests that ended without a response.
    pub timed_out: u64,
    /// Transfers aborted by the peer, or because the peer violated the protocol.
    pub aborted: u64,
    /// Answered with status 0x000c: Get and Set without an owner.
    pub unsupported: u64,
    /// Dropped: base version not 1.
    pub bad_version: u64,
    /// Dropped: the class does not belong to the queue pair.
    pub bad_qp: u64,
    /// Dropped: other requests without an owner.
    pub no_owner: u64,
    /// Dropped: responses without a matching request, such as late or foreign ones.
    pub no_request: u64,
    /// Dropped: RMPP packets that belong to no transfer.
    pub no_transfer: u64,
}
