//! What a caller did wrong. What a peer did wrong becomes a completion status.

use crate::attr::{AttrMask, MigState, QpState, QpType};

/// Why a work request was not taken. Nothing of it was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// Receives may be posted from INIT, sends from RTS (IBTA 10.3.1).
    #[error("a queue pair in state {0:?} takes no such work request")]
    State(QpState),
    /// As many work requests as the queue was created for are outstanding.
    #[error("the queue is full: {0} work requests are outstanding")]
    Full(u32),
    /// More entries than the queue was created for.
    #[error("{given} scatter/gather entries, but the queue was created for {max}")]
    TooManySges {
        /// Entries of the work request.
        given: usize,
        /// Entries that the queue takes.
        max: u32,
    },
    /// More inline bytes than the queue was created for.
    #[error("{given} inline bytes, but the queue was created for {max}")]
    InlineTooLong {
        /// Bytes of the work request.
        given: usize,
        /// Bytes that the queue takes.
        max: u32,
    },
    /// An atomic needs eight bytes for its result.
    #[error("an atomic needs eight bytes for its result")]
    TooShort,
    /// Longer than 2^31 bytes.
    #[error("a message of {0} bytes is longer than 2^31")]
    TooLong(u64),
    /// This transport has no such operation (IBTA table 38), or not with inline data.
    #[error("a queue pair of type {0:?} has no such operation")]
    Operation(QpType),
    /// A datagram needs to know where to go.
    #[error("a datagram without destination")]
    NoDestination,
    /// The target of an extended reliable connection sends nothing.
    #[error("a queue pair of type {0:?} has no send queue")]
    NoSendQueue(QpType),
    /// An extended reliable connection receives into the shared receive queues that its peer names.
    #[error("a queue pair of type {0:?} has no receive queue")]
    NoReceiveQueue(QpType),
    /// Receives come from the shared receive queue.
    #[error("this queue pair has a shared receive queue: post there")]
    SharedReceiveQueue,
}

/// Why attributes were not changed. None of them was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// There is no such transition for the type (IBTA figure 124).
    #[error("a {qp_type:?} queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// Its type.
        qp_type: QpType,
        /// Where it is.
        from: QpState,
        /// Where it was told to go.
        to: QpState,
    },
    /// The caller believes it to be in another state.
    #[error("the queue pair is in {actual:?}, not in {claimed:?}")]
    CurState {
        /// Where it is.
        actual: QpState,
        /// `cur_state` of the call.
        claimed: QpState,
    },
    /// Attributes that the transition needs are not in the mask.
    #[error("{from:?} to {to:?} also needs {missing:?}")]
    Missing {
        /// Where it is.
        from: QpState,
        /// Where it was told to go.
        to: QpState,
        /// What is missing.
        missing: AttrMask,
    },
    /// Attributes in the mask may not be set in this transition.
    #[error("{from:?} to {to:?} does not take {excess:?}")]
    NotAllowed {
        /// Where it is.
        from: QpState,
        /// Where it was told to go.
        to: QpState,
        /// What may not be set.
        excess: AttrMask,
    },
    /// An attribute's value is out of range.
    #[error("{attr:?} is out of range: {value}, but at most {max}")]
    OutOfRange {
        /// The attribute, one bit.
        attr: AttrMask,
        /// What was given.
        value: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// The port's P_Key table has no such index.
    #[error("the P_Key table has no index {0}")]
    PkeyIndex(u16),
    /// The migration state is not to be had from the present one, or not in this state of the queue pair (IBTA 17.2.8).
    #[error("the migration state cannot go from {from:?} to {to:?} in {state:?}: {why}")]
    Migration {
        /// What it is.
        from: MigState,
        /// What was asked for.
        to: MigState,
        /// The state that the queue pair would be in.
        state: QpState,
        /// Why not.
        why: &'static str,
    },
    /// A connection over a stream has one path.
    #[error("a connection over TCP has no alternate path and does not migrate")]
    NoMigration,
}
