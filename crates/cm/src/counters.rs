//! Counters of messages sent, received and dropped, by reason.

/// Counts of events since the start. None are gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// Datagrams sent, retransmissions included.
    pub mads_sent: u64,
    /// Datagrams retransmitted because no answer arrived.
    pub mads_retried: u64,
    /// Datagrams received that are CM messages.
    pub mads_received: u64,
    /// Duplicate messages received.
    pub duplicates: u64,
    /// Dropped: not 256 bytes.
    pub bad_length: u64,
    /// Dropped: base version not 1.
    pub bad_version: u64,
    /// Dropped: management class not 7 (communication management).
    pub bad_class: u64,
    /// Dropped: class version not 2.
    pub bad_class_version: u64,
    /// Dropped: method not Send.
    pub bad_method: u64,
    /// Dropped: unknown attribute, no CM message.
    pub bad_attribute: u64,
    /// Dropped: a field of the message has an undefined value.
    pub bad_field: u64,
    /// Dropped or refused: the message names no connection of this end with that peer.
    pub unknown_connection: u64,
    /// Dropped: the connection's state does not expect the message.
    pub unexpected: u64,
    /// Refused: no listener.
    pub no_listener: u64,
    /// Dropped: the listener's backlog was full.
    pub backlog_full: u64,
    /// Refused: the peer's queue pair number belongs to another connection.
    pub stale: u64,
    /// Connections established, on either side.
    pub established: u64,
    /// Connections or lookups given up because no answer arrived.
    pub timeouts: u64,
    /// Requests and lookups redirected by the peer.
    pub redirected: u64,
    /// Requests for an alternate path (LAP) that were refused, for any reason.
    pub laps_refused: u64,
    /// Dropped: a further LAP before the last one was answered, or an MRA beyond the number that a peer may send.
    pub floods: u64,
    /// Replies to lookups that were not kept for retransmitted requests, because the limit was reached.
    pub sidr_forgotten: u64,
    /// Closed connections evicted before their TIMEWAIT expired, because there were too many.
    pub timewait_forgotten: u64,
}
