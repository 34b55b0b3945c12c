//! Errors of the caller. Errors of the peer become completion statuses.

use crate::attr::{AttrMask, MigState, QpState, QpType};

/// The reason why a work request was rejected. Nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The state does not allow it: receives may be posted from INIT, sends from RTS (IBTA 10.3.1).
    #[error("a queue pair in state {0:?} does not accept this work request")]
    State(QpState),
    /// The queue is full: the maximum number of work requests is outstanding.
    #[error("the queue is full: {0} work requests are outstanding")]
    Full(u32),
    /// The work request has more entries than the queue was created for.
    #[error("{given} scatter/gather entries, but the queue was created for {max}")]
    TooManySges {
        /// The number of entries in the work request.
        given: usize,
        /// The maximum number of entries.
        max: u32,
    },
    /// The work request has more inline bytes than the queue was created for.
    #[error("{given} inline bytes, but the queue was created for {max}")]
    InlineTooLong {
        /// The number of inline bytes in the work request.
        given: usize,
        /// The maximum number of inline bytes.
        max: u32,
    },
    /// The list is too short: an atomic needs eight bytes for its result.
    #[error("an atomic needs a buffer of 8 bytes for its result")]
    TooShort,
    /// The message is longer than 2^31 bytes.
    #[error("a message of {0} bytes exceeds the maximum of 2^31")]
    TooLong(u64),
    /// The transport does not have the operation (IBTA table 38), or does not allow it with inline data.
    #[error("a queue pair of type {0:?} does not support this operation")]
    Operation(QpType),
    /// A datagram has no destination.
    #[error("a datagram needs a destination")]
    NoDestination,
    /// The queue pair has no send queue: the target of an extended reliable connection sends nothing.
    #[error("a queue pair of type {0:?} has no send queue")]
    NoSendQueue(QpType),
    /// The queue pair has no receive queue: an extended reliable connection receives into the shared receive
    /// queues that its peer names.
    #[error("a queue pair of type {0:?} has no receive queue")]
    NoReceiveQueue(QpType),
    /// Receives must be posted to the shared receive queue.
    #[error("the queue pair uses a shared receive queue: post receives to that queue")]
    SharedReceiveQueue,
}

/// The reason why attributes were not changed. All keep their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The state machine of the type has no such transition (IBTA figure 124).
    #[error("a {qp_type:?} queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// The type of the queue pair.
        qp_type: QpType,
        /// The present state.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// The caller believes the queue pair to be in another state.
    #[error("the queue pair is in state {actual:?}, but the request assumes {claimed:?}")]
    CurState {
        /// The present state.
        actual: QpState,
        /// `cur_state` of the call.
        claimed: QpState,
    },
    /// Attributes that the transition needs are not in the mask.
    #[error("the transition from {from:?} to {to:?} also needs {missing:?}")]
    Missing {
        /// The present state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The missing attributes.
        missing: AttrMask,
    },
    /// The transition does not allow attributes in the mask.
    #[error("the transition from {from:?} to {to:?} does not allow {excess:?}")]
    NotAllowed {
        /// The present state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The attributes that are not allowed.
        excess: AttrMask,
    },
    /// An attribute's value is out of range.
    #[error("{attr:?} is out of range: {value}, the maximum is {max}")]
    OutOfRange {
        /// The attribute, as a mask of one bit.
        attr: AttrMask,
        /// The given value.
        value: u64,
        /// The maximum value.
        max: u64,
    },
    /// The port's P_Key table has no such index.
    #[error("the P_Key table has no index {0}")]
    PkeyIndex(u16),
    /// The migration state cannot follow the present one, or not in this state of the queue pair (IBTA 17.2.8).
    #[error("the migration state cannot go from {from:?} to {to:?} in {state:?}: {why}")]
    Migration {
        /// The present migration state.
        from: MigState,
        /// The requested migration state.
        to: MigState,
        /// The state that the queue pair would be in.
        state: QpState,
        /// The reason.
        why: &'static str,
    },
    /// A connection over a stream has only one path.
    #[error("a connection over TCP has no alternate path and does not migrate")]
    NoMigration,
}
