//! Changing attributes, and the stream that brings a queue pair to RTS.
//!
//! On InfiniBand a program brings a queue pair up step by step. Here the connection manager does, by the
//! stream; programs that are written for both make the same calls, so those are taken and mean little.

use crate::attr::{AttrMask, QpAttr, QpState};
use crate::env::Env;
use crate::error::ModifyError;
use crate::iwarp::StreamParams;
use crate::iwarp::close::Phase;
use crate::iwarp::qp::{NO_STREAM, Qp};
use crate::iwarp::rx::Rx;
use crate::iwarp::serve::Serving;
use crate::iwarp::tx::Tx;
use crate::time::Time;

impl Qp {
    /// Sets attributes, and with [`AttrMask::STATE`] makes a transition:
    ///
    /// - to INIT from RESET; to RTR from INIT, which changes nothing, for only a stream does;
    /// - to RTR and RTS in RTS, which changes nothing;
    /// - to SQD from RTS: as [`shutdown`](Self::shutdown);
    /// - to ERR and to RESET from any state.
    ///
    /// Attributes that belong to InfiniBand's paths and packets are taken and not looked at, as the
    /// kernel's iWARP drivers do. `access` counts: it says what the peer may do.
    ///
    /// # Errors
    /// [`ModifyError::Transition`] for any other, and [`ModifyError::CurState`]; then nothing was changed.
    pub fn modify<E: Env>(
        &mut self,
        now: Time,
        attr: &QpAttr,
        mask: AttrMask,
        env: &mut E,
    ) -> Result<(), ModifyError> {
        use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd};
        let from = self.state;
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != from {
            return Err(ModifyError::CurState { actual: from, claimed: attr.cur_state });
        }
        let known = match (from, to) {
            (_, Reset | Error) | (Reset, Init) | (Init, Rtr) | (Rts, Rtr | Sqd) => true,
            _ => from == to,
        };
        if !known {
            return Err(self.no_transition(to));
        }
        self.copy_attributes(attr, mask);
        match (from, to) {
            (_, Reset) if from != Reset => self.reset(),
            (_, Error) => self.close_at_once(now, env),
            (Reset, Init) => self.state = Init,
            (Rts, Sqd) => self.shutdown(now, env),
            _ => {}
        }
        Ok(())
    }

    fn no_transition(&self, to: QpState) -> ModifyError {
        ModifyError::Transition { qp_type: self.qp_type(), from: self.state, to }
    }

    fn copy_attributes(&mut self, from: &QpAttr, mask: AttrMask) {
        let own = &mut self.attr;
        if mask.contains(AttrMask::ACCESS_FLAGS) {
            own.access = from.access;
        }
        if mask.contains(AttrMask::PORT) {
            own.port_num = from.port_num;
        }
        if mask.contains(AttrMask::PKEY_INDEX) {
            own.pkey_index = from.pkey_index;
        }
        if mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) {
            own.en_sqd_async_notify = from.en_sqd_async_notify;
        }
        if mask.contains(AttrMask::PATH_MTU) {
            own.path_mtu = from.path_mtu;
        }
        if mask.contains(AttrMask::AV) {
            own.av = from.av;
        }
    }

    /// A stream arrives, and the queue pair goes to RTS. All memory for sending and receiving on it is
    /// allocated here. `mulpdu` is the most bytes of a frame between its length and its padding
    /// (RFC 5044, section 4.1), headers included; what is below 128 or does not fit a frame's length is taken
    /// for the nearest that is not.
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

    /// Everything is as after creation. A stream that is still there is reset.
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
