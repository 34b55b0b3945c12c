//! Which attributes a transition of the queue pair state machine requires and allows, as data
//! (IBTA 10.3.1 and table 91 "QP state transition properties"; `ibv_modify_qp(3)`).
//!
//! ```text
//!             +--------------- any state, by modify ---------------+
//!             v                                                    |
//!   create: RESET --> INIT --> RTR --> RTS <--> SQD                |
//!                                      ^ |                         |
//!                 by modify, UC and UD | | error in the send queue |
//!                                      | v                         |
//!                                      SQE          ERR <----------+-- fatal error
//! ```

use crate::attr::{AttrMask, QpState, QpType};

/// Attributes by type of queue pair.
#[derive(Clone, Copy, Debug)]
pub struct ByType {
    /// Of RC.
    pub rc: AttrMask,
    /// Of UC.
    pub uc: AttrMask,
    /// Of UD.
    pub ud: AttrMask,
    /// Of the initiator of XRC.
    pub xrc_send: AttrMask,
    /// Of the target of XRC.
    pub xrc_recv: AttrMask,
}

impl ByType {
    const NONE: Self = Self::all(AttrMask::empty());

    const fn all(mask: AttrMask) -> Self {
        Self { ud: mask, ..Self::connected(mask) }
    }

    /// The same for all types but UD, which has none.
    const fn connected(mask: AttrMask) -> Self {
        Self { rc: mask, uc: mask, ud: AttrMask::empty(), xrc_send: mask, xrc_recv: mask }
    }

    /// Those of one type.
    pub const fn of(&self, qp_type: QpType) -> AttrMask {
        match qp_type {
            QpType::Rc => self.rc,
            QpType::Uc => self.uc,
            QpType::Ud => self.ud,
            QpType::XrcSend => self.xrc_send,
            QpType::XrcRecv => self.xrc_recv,
        }
    }
}

/// One line of the table. [`AttrMask::STATE`] is allowed in every line.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// From this state.
    pub from: QpState,
    /// To this one.
    pub to: QpState,
    /// What the mask must have.
    pub required: ByType,
    /// What it may have besides.
    pub optional: ByType,
}

/// Unites masks where `|` is not const.
const fn mask(parts: &[AttrMask]) -> AttrMask {
    let mut all = AttrMask::empty();
    let mut i = 0;
    while i < parts.len() {
        all = all.union(parts[i]);
        i += 1;
    }
    all
}

use AttrMask as A;
use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

const INIT_CONNECTED: A = mask(&[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]);
const INIT_DATAGRAM: A = mask(&[A::PKEY_INDEX, A::PORT, A::QKEY]);
const INIT: ByType = ByType { ud: INIT_DATAGRAM, ..ByType::connected(INIT_CONNECTED) };

const PATH: A = mask(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]);
/// What only a responder needs, and only a requester. Of the two ends of XRC each is one of them.
const RESPONDER: A = mask(&[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]);
const REQUESTER: A = mask(&[A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]);

const RTR: ByType = ByType {
    rc: PATH.union(RESPONDER),
    uc: PATH,
    ud: A::empty(),
    xrc_send: PATH,
    xrc_recv: PATH.union(RESPONDER),
};
const RTR_OPTIONAL: ByType = ByType {
    ud: mask(&[A::PKEY_INDEX, A::QKEY]),
    ..ByType::connected(mask(&[A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX]))
};

const RTS: ByType = ByType {
    rc: mask(&[A::SQ_PSN, A::TIMEOUT, REQUESTER]),
    uc: A::SQ_PSN,
    ud: A::SQ_PSN,
    xrc_send: mask(&[A::SQ_PSN, A::TIMEOUT, REQUESTER]),
    xrc_recv: mask(&[A::SQ_PSN, A::TIMEOUT]),
};

/// What may change on the way to RTS and within it.
const RUNNING_UC: A = mask(&[A::CUR_STATE, A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]);
const RUNNING: ByType = ByType {
    rc: mask(&[RUNNING_UC, A::MIN_RNR_TIMER]),
    uc: RUNNING_UC,
    ud: mask(&[A::CUR_STATE, A::QKEY]),
    xrc_send: RUNNING_UC,
    xrc_recv: mask(&[RUNNING_UC, A::MIN_RNR_TIMER]),
};

const SQD_UC: A = mask(&[A::AV, A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX, A::PATH_MIG_STATE]);
const SQD_RELIABLE: A = mask(&[SQD_UC, A::PORT, A::TIMEOUT]);
const SQD: ByType = ByType {
    rc: mask(&[SQD_RELIABLE, REQUESTER, RESPONDER]),
    uc: SQD_UC,
    ud: mask(&[A::PKEY_INDEX, A::QKEY]),
    xrc_send: SQD_RELIABLE.union(REQUESTER),
    xrc_recv: SQD_RELIABLE.union(RESPONDER),
};

const fn line(from: QpState, to: QpState, required: ByType, optional: ByType) -> Transition {
    Transition { from, to, required, optional }
}

/// Every transition by modify, except that any state may go to RESET and to ERR with nothing but
/// [`AttrMask::STATE`]. SQE exists for UC and UD only; the others never enter it.
pub static TRANSITIONS: &[Transition] = &[
    line(Reset, Init, INIT, ByType::NONE),
    line(Init, Init, ByType::NONE, INIT),
    line(Init, Rtr, RTR, RTR_OPTIONAL),
    line(Rtr, Rts, RTS, RUNNING),
    line(Rts, Rts, ByType::NONE, RUNNING),
    line(Rts, Sqd, ByType::NONE, ByType::all(A::EN_SQD_ASYNC_NOTIFY)),
    line(Sqd, Rts, ByType::NONE, RUNNING),
    line(Sqd, Sqd, ByType::NONE, SQD),
    line(
        Sqe,
        Rts,
        ByType::NONE,
        ByType { uc: RUNNING_UC, ud: mask(&[A::CUR_STATE, A::QKEY]), ..ByType::NONE },
    ),
];

static TO_RESET_OR_ERR: Transition = line(Reset, Err, ByType::NONE, ByType::NONE);

/// The line for a transition, or none if there is no such transition.
pub fn find(from: QpState, to: QpState) -> Option<&'static Transition> {
    if matches!(to, Reset | Err) {
        return Some(&TO_RESET_OR_ERR);
    }
    TRANSITIONS.iter().find(|t| t.from == from && t.to == to)
}

/// The steps that `modify` makes with a queue pair over a stream, besides those from any state to RESET, to ERR and to
/// itself. The stream makes all others.
static STREAM_STEPS: &[(QpState, QpState)] = &[(Reset, Init), (Init, Rtr), (Rts, Rtr), (Rts, Sqd)];

/// Whether `modify` makes this step with a queue pair over a stream.
pub(crate) fn is_step_over_stream(from: QpState, to: QpState) -> bool {
    from == to || matches!(to, Reset | Err) || STREAM_STEPS.contains(&(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

    /// The diagram of IBTA figure 124, as pairs.
    #[test]
    fn exactly_the_transitions_of_the_diagram() {
        let mut found = alloc::vec::Vec::new();
        for from in STATES {
            for to in STATES {
                if !matches!(to, Reset | Err) && find(from, to).is_some() {
                    found.push((from, to));
                }
                assert!(find(from, Reset).is_some() && find(from, Err).is_some());
            }
        }
        let expected = [
            (Reset, Init),
            (Init, Init),
            (Init, Rtr),
            (Rtr, Rts),
            (Rts, Rts),
            (Rts, Sqd),
            (Sqd, Rts),
            (Sqd, Sqd),
            (Sqe, Rts),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_required_is_not_optional_too() {
        for t in TRANSITIONS {
            for ty in QpType::ALL {
                assert!(!t.required.of(ty).intersects(t.optional.of(ty)), "{t:?}");
            }
        }
    }

    /// The lists of `ibv_modify_qp(3)`, section NOTES.
    #[test]
    fn required_attributes_of_the_manual_page() {
        let rtr = find(Init, Rtr).unwrap().required;
        assert_eq!(rtr.ud, A::empty());
        assert_eq!(rtr.uc, A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN);
        assert_eq!(rtr.rc, rtr.uc | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER);
        let rts = find(Rtr, Rts).unwrap().required;
        assert_eq!(rts.ud, A::SQ_PSN);
        let more = A::MAX_QP_RD_ATOMIC | A::RETRY_CNT | A::RNR_RETRY | A::TIMEOUT;
        assert_eq!(rts.rc, A::SQ_PSN | more);
    }

    /// The manual page is silent about XRC; this is what the kernel's drivers ask for. With RC's masks
    /// less what the other end needs, programs that know drivers get along.
    #[test]
    fn the_two_ends_of_xrc_together_need_what_rc_needs() {
        for t in TRANSITIONS.iter().filter(|t| t.from != Sqe) {
            let both = |by: ByType| by.xrc_send | by.xrc_recv;
            assert_eq!(both(t.required), t.required.rc, "{t:?}");
            assert_eq!(both(t.optional), t.optional.rc, "{t:?}");
        }
        let rtr = find(Init, Rtr).unwrap().required;
        assert_eq!(rtr.xrc_recv - rtr.xrc_send, A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER);
        let rts = find(Rtr, Rts).unwrap().required;
        let requester = A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC;
        assert_eq!(rts.xrc_send - rts.xrc_recv, requester);
        assert_eq!(rts.xrc_recv, A::SQ_PSN | A::TIMEOUT);
    }
}
