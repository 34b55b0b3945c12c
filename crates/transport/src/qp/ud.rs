//! UD: each packet is one message, to the destination in the work request (IBTA 9.8.3).

use rdmux_wire::{Bth, Deth, HeaderBuf, ImmDt, Qkey};

use crate::env::{AccessFault, Drop, Env, Side, TxError, TxPacket};
use crate::fault::{ResponderFault, local_status};
use crate::qp::requester::{Step, pad};
use crate::qp::{Qp, RxPacket};
use crate::wr::{Completion, SendFlags, WcFlags, WcOpcode, WcStatus};

/// The bytes before each datagram in its receive buffer, which hold the GRH.
pub const GRH_AREA: u32 = 40;

/// The bit of a Q_Key in a work request that selects the queue pair's own Q_Key instead (IBTA 10.2.5).
const PRIVILEGED: u32 = 1 << 31;

impl Qp {
    /// Sends the datagram at the cursor, which completes it.
    pub(crate) fn transmit_datagram<E: Env>(&mut self, more: bool, env: &mut E) -> Step {
        if self.state == crate::attr::QpState::Sqd {
            return Step::Nothing;
        }
        let index = self.req.next_entry();
        let wqe = self.sq.get(index);
        let len = wqe.len;
        if len > self.mtu {
            return self.stall(WcStatus::LocLenErr, env);
        }
        let dest = self.sq.dest(index);
        if ![0, self.attr.port_num].contains(&dest.av.port_num) && self.attr.port_num != 0 {
            // The address handle belongs to another port (`IBV_DEVICE_UD_AV_PORT_ENFORCE`; IBTA 10.2.2.2).
            return self.stall(WcStatus::LocQpOpErr, env);
        }
        let opcode = wqe.kind.row().opcode(self.qp_type, true, true);
        let mut bth = Bth::new(opcode, dest.qpn, self.req.next_psn());
        bth.pkey = self.own_pkey(env);
        bth.pad = pad(len);
        bth.solicited = wqe.has(SendFlags::SOLICITED);
        let qkey = if dest.qkey.0 & PRIVILEGED == 0 { dest.qkey } else { self.attr.qkey };
        let mut header = HeaderBuf::new(&bth).deth(&Deth { qkey, src_qpn: self.qpn });
        if opcode.has_imm() {
            header = header.imm(&ImmDt(wqe.extra));
        }
        let packet = TxPacket {
            av: &dest.av,
            header: header.as_slice(),
            payload: self.sq.payload(index, 0, len),
            pad: bth.pad,
            more: more && self.sq.tail.wrapping_sub(index) > 1,
            ack: None,
        };
        match env.transmit(&packet) {
            Ok(()) => {}
            Err(TxError::Busy) => return Step::Busy,
            Err(TxError::Memory(fault)) => return self.stall(local_status(fault), env),
        }
        self.req.use_psn();
        self.complete_head(WcStatus::Success, env);
        self.req.go_on_at(self.sq.head);
        Step::Sent
    }

    /// Handles a datagram.
    pub(crate) fn handle_datagram<E: Env>(&mut self, rx: &RxPacket<'_>, env: &mut E) {
        let packet = rx.packet;
        let Some(deth) = packet.deth else { return env.count(Drop::Length) };
        if deth.qkey != self.attr.qkey {
            env.wrong_key(rx, Drop::Qkey);
            return env.count(Drop::Qkey);
        }
        let len = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        if len > self.mtu || packet.bth.pad != pad(len) {
            return env.count(Drop::Length);
        }
        if !self.rq.take(env) {
            return env.count(Drop::NoReceive);
        }
        if u64::from(GRH_AREA + len) > self.rq.room() {
            return self.drop_too_long(env);
        }
        let sges = self.rq.sges();
        let placed = env
            .scatter_receive(sges, 0, rx.source.grh)
            .and_then(|()| env.scatter_receive(sges, GRH_AREA, packet.payload));
        if placed == Err(AccessFault::Busy) {
            // The receive serves the next datagram.
            return env.count(Drop::NoReceive);
        }
        if let Err(fault) = placed {
            env.count(Drop::Memory);
            self.fail_receive(ResponderFault::local(fault), env);
            return self.enter_error(env);
        }
        let completion = self.received_datagram(rx, deth, len);
        env.complete(Side::Recv, completion);
    }

    fn received_datagram(&mut self, rx: &RxPacket<'_>, deth: Deth, len: u32) -> Completion {
        let (bth, source) = (&rx.packet.bth, rx.source);
        let wr_id = self.rq.finish();
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::GRH, source.has_grh);
        flags.set(WcFlags::WITH_IMM, rx.packet.imm.is_some());
        Completion {
            byte_len: GRH_AREA + len,
            imm: rx.packet.imm.unwrap_or(ImmDt([0; 4])).0,
            src_qp: deth.src_qpn,
            pkey_index: self.attr.pkey_index,
            pkey: bth.pkey,
            slid: source.slid,
            sl: source.sl,
            dlid_path_bits: source.dlid_path_bits,
            flags,
            solicited: bth.solicited,
            ..self.completion(wr_id, WcStatus::Success, WcOpcode::Recv)
        }
    }
}

/// Returns whether only a privileged program may set or name a Q_Key.
pub const fn is_privileged(qkey: Qkey) -> bool {
    qkey.0 & PRIVILEGED != 0
}
