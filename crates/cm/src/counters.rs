//! What came, what went, and what was dropped for which reason.

/// Counts since the start. All are of events, none are gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// Datagrams sent, retransmissions included.
    pub mads_sent: u64,
    /// Datagrams sent again because no answer came.
    pub mads_retried: u64,
    /// Datagrams received that were CM messages.
    pub mads_received: u64,
    /// Messages received that were seen before.
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
    /// Dropped: no such CM message.
    pub bad_attribute: u64,
    /// Dropped: a field of the message has no meaning.
    pub bad_field: u64,
    /// Dropped or refused: the message names no connection of ours with that peer.
    pub unknown_connection: u64,
    /// Dropped: the connection's state does not expect the message.
    pub unexpected: u64,
    /// Refused: nobody listens.
    pub no_listener: u64,
    /// Dropped: the listener's backlog was full.
    pub backlog_full: u64,
    /// Refused: the peer's queue pair number belongs to another connection.
    pub stale: u64,
    /// Connections that came up, both sides.
    pub established: u64,
    /// Connections or lookups given up for lack of an answer.
    pub timeouts: u64,
    /// Requests and lookups sent elsewhere because the peer said so.
    pub redirected: u64,
    /// Requests for an alternate path (LAP) that were refused, for whatever reason.
    pub laps_refused: u64,
    /// Dropped: a further LAP before the last one was answered, or a peer that asked for more time more often than it may.
    pub floods: u64,
    /// Answers to lookups that were not kept for repetitions, because there are too many.
    pub sidr_forgotten: u64,
    /// Connections that were over and were forgotten before their TIMEWAIT was, because there are too many.
    pub timewait_forgotten: u64,
}
