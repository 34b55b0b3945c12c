//! Counters of administration, by the outcome of each message.

/// Datagrams and messages, counted by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages received.
    pub received: u64,
    /// Requests answered with status 0.
    pub answered: u64,
    /// Requests answered with another status.
    pub refused: u64,
    /// Requests not answered: the manager is not master, or its first sweep has not ended.
    pub not_master: u64,
    /// Requests not answered: malformed, an unknown attribute or method, a wrong key, or a port that the manager does not know.
    pub ignored: u64,
    /// Answered "busy": the requester has exceeded its quota.
    pub busy: u64,
    /// Answers that could not be sent.
    pub unsent: u64,
    /// Reports dropped because too many are unanswered, or because they could not be sent.
    pub dropped_reports: u64,
}
