//! Changing attributes: checks against the transition table and value ranges, and the effect of each transition.

use rdmux_wire::Mtu;

use crate::attr::{AttrMask, QpAttr, QpState, QpType};
use crate::env::{Env, LinkCaps};
use crate::error::ModifyError;
use crate::qp::Qp;
use crate::qp::migration::Migration;
use crate::qp::requester::Requester;
use crate::qp::responder::Responder;
use crate::state_table;
use crate::time::Time;
use crate::wr::WcStatus;

/// The longest payload of a datagram on any link.
const MAX_DATAGRAM: u32 = 4096;

impl Qp {
    /// Sets attributes, and with [`AttrMask::STATE`] makes a transition (`ibv_modify_qp(3)`). The transition to
    /// RTR queries the driver for the capabilities of the link, so the driver must know them by then.
    ///
    /// # Errors
    /// See [`ModifyError`]. Nothing is changed then.
    pub fn modify<E: Env>(
        &mut self,
        now: Time,
        attr: &QpAttr,
        mask: AttrMask,
        env: &mut E,
    ) -> Result<(), ModifyError> {
        let from = self.state;
        let mask = mask.difference(unused(self.qp_type));
        let to = attr.goal(from, mask)?;
        self.check_mask(from, to, mask)?;
        let link = env.link();
        check_values(attr, mask, self.qp_type, link)?;
        if mask.contains(AttrMask::PKEY_INDEX) && env.pkey(attr.pkey_index).is_none() {
            return Err(ModifyError::PkeyIndex(attr.pkey_index));
        }
        self.check_migration(attr, mask, to, env)?;
        if matches!(to, QpState::Err | QpState::Reset) {
            // The program may already have seen the message that this ACK is for, and may exit because of it.
            self.flush_ack(now, env);
        }
        if (from, to) == (QpState::Rts, QpState::Sqd) {
            // The request of an earlier transition has been served.
            self.attr.en_sqd_async_notify = false;
        }
        self.copy_attributes(attr, mask);
        self.act(from, to, link, env);
        self.change_migration(now, attr, mask, env);
        Ok(())
    }

    fn check_mask(&self, from: QpState, to: QpState, mask: AttrMask) -> Result<(), ModifyError> {
        let qp_type = self.qp_type;
        let line =
            state_table::find(from, to).ok_or(ModifyError::Transition { qp_type, from, to })?;
        let required = line.required.of(qp_type);
        let missing = required.difference(mask);
        if !missing.is_empty() {
            return Err(ModifyError::Missing { from, to, missing });
        }
        let allowed = required | line.optional.of(qp_type) | AttrMask::STATE;
        let excess = mask.difference(allowed);
        if !excess.is_empty() {
            return Err(ModifyError::NotAllowed { from, to, excess });
        }
        Ok(())
    }

    fn copy_attributes(&mut self, from: &QpAttr, mask: AttrMask) {
        self.attr.take(from, mask);
        if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
            self.resp.resize(self.attr.max_dest_rd_atomic);
        }
    }

    /// Carries out the effects of a transition other than setting attributes.
    fn act<E: Env>(&mut self, from: QpState, to: QpState, link: LinkCaps, env: &mut E) {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        match (from, to) {
            (_, Reset) => self.reset(env),
            (_, Err) => return self.enter_error(env),
            (Init, Rtr) => {
                self.lossless = link.lossless;
                self.piggybacks_acks = link.piggybacks_acks;
                self.mtu = effective_mtu(self.qp_type, self.attr.path_mtu, link);
                self.resp.start(self.attr.rq_psn);
            }
            (Rtr, Rts) => self.req.start(&self.attr, self.mtu, link),
            (Rts, Sqd) => self.req.start_draining(),
            (Sqd | Sqe, Rts) => self.req.resume(&self.attr),
            _ => {}
        }
        self.state = to;
        if to == Sqd {
            self.check_drained(env);
        }
    }

    fn reset<E: Env>(&mut self, env: &mut E) {
        if self.qp_type == QpType::XrcRecv && self.rq.is_active() {
            // Another process posted this receive. That process did not reset anything, so it needs the
            // completion.
            self.fail_oldest_receive(WcStatus::WrFlushErr, env);
        }
        self.sq.clear();
        self.rq.clear();
        self.req = Requester::default();
        self.resp = Responder::default();
        self.mig = Migration::default();
        self.attr = QpAttr { caps: self.init().caps, ..QpAttr::default() };
        self.established = false;
    }
}

/// Returns the attributes that an end of XRC accepts as RC does but does not use. Programs set
/// them, and the kernel (`modify_qp_mask`) removes them, too.
fn unused(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::XrcSend => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        QpType::XrcRecv => AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY,
        QpType::Rc | QpType::Uc | QpType::Ud => AttrMask::empty(),
    }
}

/// Returns the payload of a full packet. Both ends of a lossless link know that it is one.
fn effective_mtu(qp_type: QpType, path_mtu: Mtu, link: LinkCaps) -> u32 {
    match qp_type {
        QpType::Ud => link.max_payload.clamp(256, MAX_DATAGRAM),
        _ if link.lossless => link.max_payload.max(path_mtu.bytes()),
        _ => path_mtu.bytes(),
    }
}

fn check_values(
    attr: &QpAttr,
    mask: AttrMask,
    qp_type: QpType,
    link: LinkCaps,
) -> Result<(), ModifyError> {
    let at_most = |flag: AttrMask, value: u64, max: u64| {
        if mask.contains(flag) && value > max {
            return Err(ModifyError::OutOfRange { attr: flag, value, max });
        }
        Ok(())
    };
    at_most(AttrMask::RETRY_CNT, attr.retry_cnt.into(), 7)?;
    at_most(AttrMask::RNR_RETRY, attr.rnr_retry.into(), 7)?;
    if qp_type != QpType::Ud {
        at_most(AttrMask::PATH_MTU, attr.path_mtu.bytes().into(), link.max_payload.into())?;
    }
    Ok(())
}
