//! The attributes that each transition of the queue pair state machine requires and allows, as a
//! table (IBTA 10.3.1 and table 91 "QP state transition properties"; `ibv_modify_qp(3)`).
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

/// Attribute masks by type of queue pair.
#[derive(Clone, Copy, Debug)]
pub struct ByType {
    /// The mask for RC.
    pub rc: AttrMask,
    /// The mask for UC.
    pub uc: AttrMask,
    /// The mask for UD.
    pub ud: AttrMask,
    /// The mask for the initiator of XRC.
    pub xrc_send: AttrMask,
    /// The mask for the target of XRC.
    pub xrc_recv: AttrMask,
}

impl ByType {
    const NONE: Self = Self::all(AttrMask::empty());

    const fn all(mask: AttrMask) -> Self {
        Self { ud: mask, ..Self::connected(mask) }
    }

    /// Returns the same mask for all types but UD, which has none.
    const fn connected(mask: AttrMask) -> Self {
        Self { rc: mask, uc: mask, ud: AttrMask::empty(), xrc_send: mask, xrc_recv: mask }
    }

    /// Returns the mask for a type.
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

/// One row of the table. [`AttrMask::STATE`] is allowed in every row.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// The old state.
    pub from: QpState,
    /// The new state.
    pub to: QpState,
    /// The attributes that the mask must have.
    pub required: ByType,
    /// The attributes that the transition may have in addition.
    pub optional: ByType,
}

/// Returns the union of masks, where `|` is not const.
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
/// The attributes that only a responder needs, and those that only a requester needs. Each end of XRC is one of the two.
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

/// The attributes that may change in the transition to RTS and within RTS.
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

/// Every transition by modify, except those to RESET and ERR, which any state allows with only [`AttrMask::STATE`]. SQE
/// exists for UC and UD only; the other types never enter it.
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

/// Returns the table row of a transition, or none if the table lacks it.
pub fn find(from: QpState, to: QpState) -> Option<&'static Transition> {
    if matches!(to, Reset | Err) {
        return Some(&TO_RESET_OR_ERR);
    }
    TRANSITIONS.iter().find(|t| t.from == from && t.to == to)
}

/// The transitions that `modify` makes with a queue pair over a stream, besides those from any
/// state to RESET, to ERR and to itself. The stream makes all others.
static STREAM_STEPS: &[(QpState, QpState)] = &[(Reset, Init), (Init, Rtr), (Rts, Rtr), (Rts, Sqd)];

/// Returns whether `modify` makes this transition with a queue pair over a stream.
pub(crate) fn is_step_over_stream(from: QpState, to: QpState) -> bool {
    from == to || matches!(to, Reset | Err) || STREAM_STEPS.contains(&(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

    /// The transitions of IBTA figure 124, as pairs.
    #[test]
    fn state_transitions_are_exactly_those_of_ibta_figure_124() {
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
    fn no_transition_has_an_attribute_both_required_and_optional() {
        for t in TRANSITIONS {
            for ty in QpType::ALL {
                assert!(!t.required.of(ty).intersects(t.optional.of(ty)), "{t:?}");
            }
        }
    }

    /// The lists of `ibv_modify_qp(3)`, section NOTES.
    #[test]
    fn required_attributes_are_those_of_the_ibv_modify_qp_manual_page() {
        let rtr = find(Init, Rtr).unwrap().required;
        assert_eq!(rtr.ud, A::empty());
        assert_eq!(rtr.uc, A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN);
        assert_eq!(rtr.rc, rtr.uc | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER);
        let rts = find(Rtr, Rts).unwrap().required;
        assert_eq!(rts.ud, A::SQ_PSN);
        let more = A::MAX_QP_RD_ATOMIC | A::RETRY_CNT | A::RNR_RETRY | A::TIMEOUT;
        assert_eq!(rts.rc, A::SQ_PSN | more);
    }

    /// The manual page does not describe XRC. These are the attributes that the kernel's drivers require. Programs
    /// written for those drivers also work if they use RC's masks without the attributes of the other end.
    #[test]
    fn xrc_ini_and_tgt_together_require_the_attributes_of_rc() {
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
