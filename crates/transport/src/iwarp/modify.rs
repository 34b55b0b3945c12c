//! Changing attributes, and attaching the stream that brings a queue pair to RTS.
//!
//! On InfiniBand a program brings a queue pair up step by step. On iWARP the connection manager does so by attaching
//! the stream. Programs written for both make the same calls, so those calls are accepted and have little effect.

use crate::attr::{AttrMask, MigState, QpAttr, QpState};
use crate::env::Env;
use crate::error::ModifyError;
use crate::iwarp::StreamParams;
use crate::iwarp::close::Phase;
use crate::iwarp::qp::{NO_STREAM, Qp};
use crate::iwarp::rx::Rx;
use crate::iwarp::serve::Serving;
use crate::iwarp::tx::Tx;
use crate::state_table;
use crate::time::Time;

/// The attributes that take effect. All others concern InfiniBand's paths and packets.
const TAKEN: AttrMask = AttrMask::ACCESS_FLAGS
    .union(AttrMask::PORT)
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::EN_SQD_ASYNC_NOTIFY)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::AV);

impl Qp {
    /// Sets attributes, and with [`AttrMask::STATE`] makes a transition:
    ///
    /// - to INIT from RESET; to RTR from INIT, which has no effect, since only a stream connects the queue pair;
    /// - to RTR and RTS in RTS, which has no effect;
    /// - to SQD from RTS, with the effect of [`shutdown`](Self::shutdown);
    /// - to ERR and to RESET from any state.
    ///
    /// Attributes that concern InfiniBand's paths and packets are accepted and ignored, as by the kernel's iWARP
    /// drivers. `access` takes effect: it contains the rights of the peer.
    ///
    /// # Errors
    /// [`ModifyError::Transition`] for any other transition, [`ModifyError::CurState`], and [`ModifyError::NoMigration`]
    /// for an alternate path, since a program that has loaded one relies on it. Nothing is changed then.
    pub fn modify<E: Env>(
        &mut self,
        now: Time,
        attr: &QpAttr,
        mask: AttrMask,
        env: &mut E,
    ) -> Result<(), ModifyError> {
        let from = self.state;
        let to = attr.goal(from, mask)?;
        if !state_table::is_step_over_stream(from, to) {
            return Err(self.no_transition(to));
        }
        let migrates = attr.path_mig_state != MigState::Migrated as u8;
        if mask.contains(AttrMask::ALT_PATH) || mask.contains(AttrMask::PATH_MIG_STATE) && migrates
        {
            return Err(ModifyError::NoMigration);
        }
        self.attr.take(attr, mask & TAKEN);
        match (from, to) {
            (_, QpState::Reset) if from != QpState::Reset => self.reset(),
            (_, QpState::Err) => self.close_at_once(now, env),
            (QpState::Reset, QpState::Init) => self.state = QpState::Init,
            (QpState::Rts, QpState::Sqd) => self.shutdown(now, env),
            _ => {}
        }
        Ok(())
    }

    fn no_transition(&self, to: QpState) -> ModifyError {
        ModifyError::Transition { qp_type: self.qp_type(), from: self.state, to }
    }

    /// Attaches a stream, and brings the queue pair to RTS. All memory for sending and receiving on it is allocated here.
    /// `mulpdu` is the maximum number of bytes of a frame between its length and its padding, headers included (RFC 5044,
    /// section 4.1). A value below 128, or one that a frame's length cannot express, is replaced with the nearest valid one.
    ///
    /// # Errors
    /// [`ModifyError::Transition`] in RTS, SQD and ERR.
    pub fn attach<E: Env>(
        &mut self,
        _now: Time,
        params: &StreamParams,
        mulpdu: u32,
        _env: &mut E,
    ) -> Result<(), ModifyError> {
        if self.state >= QpState::Rts {
            return Err(self.no_transition(QpState::Rts));
        }
        self.params = *params;
        self.tx = Tx::new(params, mulpdu, self.sq.head);
        self.rx = Rx::new(params);
        self.serving = Serving::new(params.ird);
        self.attr.max_rd_atomic = u8::try_from(params.ord).unwrap_or(u8::MAX);
        self.attr.max_dest_rd_atomic = u8::try_from(params.ird).unwrap_or(u8::MAX);
        self.state = QpState::Rts;
        self.phase = Phase::Open;
        Ok(())
    }

    /// Resets everything to the state after creation. An attached stream is reset.
    fn reset(&mut self) {
        self.phase = match self.phase {
            Phase::Detached => Phase::Detached,
            Phase::Closed => Phase::Closed,
            _ => Phase::Aborted,
        };
        self.state = QpState::Reset;
        self.sq.clear();
        self.rq.clear();
        self.tx = Tx::default();
        self.rx = Rx::default();
        self.serving = Serving::default();
        self.params = NO_STREAM;
        self.attr = QpAttr { caps: self.init.caps, ..QpAttr::default() };
    }
}
