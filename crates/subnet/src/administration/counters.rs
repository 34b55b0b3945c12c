//! What became of what arrived.

/// Datagrams and messages, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// All that arrived.
    pub received: u64,
    /// Answered with status 0.
    pub answered: u64,
    /// Answered with another status.
    pub refused: u64,
    /// Not answered: the manager is not master, or its first sweep is not over.
    pub not_master: u64,
    /// Not answered: malformed, of an unknown attribute or method, with a wrong key, or from a port that the manager does not
    /// know.
    pub ignored: u64,
    /// Told to come again: the requester has had too much.
    pub busy: u64,
    /// Answers that could not be sent.
    pub unsent: u64,
    /// Reports that were dropped because too many were not answered, or could not be sent.
    pub dropped_reports: u64,
}
