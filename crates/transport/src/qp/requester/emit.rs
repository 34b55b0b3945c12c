//! Sends the packet at the cursor.

use rdmux_wire::{AtomicEth, Bth, HeaderBuf, Ieth, ImmDt, Pkey, Psn, Reth, Rkey, XrcEth};

use crate::attr::{Access, QpState, QpType};
use crate::env::{Env, TxError, TxPacket, TxPayload};
use crate::fault::local_status;
use crate::optable::{Travel, TxKind, TxRow};
use crate::qp::Qp;
use crate::sq::SendWqe;
use crate::time::Time;
use crate::timer::Timer;
use crate::wr::{SendFlags, WcStatus};

/// The outcome of sending one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A packet was sent.
    Sent,
    /// Nothing was sent, but the cursor moved.
    Again,
    /// Nothing was sent, but data was copied that counts as this many packets.
    Copied(u32),
    /// Nothing may be sent now.
    Nothing,
    /// The link is full.
    Busy,
}

impl Qp {
    /// Sends the packet at the cursor. `more` is set if the budget allows another.
    pub(super) fn transmit_request<E: Env>(&mut self, now: Time, more: bool, env: &mut E) -> Step {
        if self.qp_type == QpType::Ud {
            return self.transmit_datagram(more, env);
        }
        if self.req.cursor == self.req.started {
            let step = self.start_entry(env);
            if step != Step::Sent {
                return step;
            }
        }
        let row = self.sq.get(self.req.cursor).kind.row();
        match row.travel {
            Travel::Message => self.transmit_message(now, row, more, env),
            Travel::Read => self.transmit_read(now, row, more, env),
            Travel::Atomic => self.transmit_atomic(now, row, more, env),
            // Such an entry starts only when it is carried out, so it is never at the cursor here.
            Travel::Local => Step::Nothing,
        }
    }

    /// Assigns PSNs to the entry at the cursor, unless it must wait. Returns `Sent` if it may be sent.
    fn start_entry<E: Env>(&mut self, env: &mut E) -> Step {
        let index = self.req.cursor;
        let wqe = self.sq.get(index);
        let (kind, len) = (wqe.kind, wqe.len);
        let row = kind.row();
        let fenced = wqe.has(SendFlags::FENCE) && self.req.reads_pending != 0;
        // An entry that is copied in part has started.
        let has_started = self.req.copied > 0;
        if fenced || self.state == QpState::Sqd && !has_started {
            return Step::Nothing;
        }
        if let Some(step) = self.carry_out_direct(env) {
            return step;
        }
        match row.travel {
            Travel::Message => {}
            Travel::Local => return self.carry_out_local(env),
            Travel::Read | Travel::Atomic => {
                if self.attr.max_rd_atomic == 0 && !has_started {
                    return self.stall(WcStatus::LocQpOpErr, env);
                }
                if let Err(fault) = env.check_local(self.sq.sges(index), Access::LOCAL_WRITE) {
                    return self.stall(local_status(fault), env);
                }
                self.req.reads_pending += 1;
            }
        }
        let npsn = match row.travel {
            Travel::Atomic => 1,
            _ if len <= self.mtu => 1,
            _ => len.div_ceil(self.mtu),
        };
        let first = self.req.next;
        let wqe = self.sq.get_mut(index);
        (wqe.first, wqe.npsn) = (first, npsn);
        self.req.next = first.add(npsn);
        self.req.started = index.wrapping_add(1);
        self.req.offset = 0;
        self.choose_naming(row.travel, len);
        Step::Sent
    }

    /// Carries out a local operation when everything before it is complete, so that no retransmission can need
    /// the key that a local invalidate or a bind removes, and before anything after it starts (IBTA 10.8.3.3).
    fn carry_out_local<E: Env>(&mut self, env: &mut E) -> Step {
        if self.sq.head != self.req.cursor {
            return Step::Nothing;
        }
        let wqe = self.sq.get(self.req.cursor);
        let done = if wqe.kind == TxKind::BindMw {
            env.bind(&wqe.bind()).map_err(|_| WcStatus::MwBindErr)
        } else {
            env.invalidate(wqe.rkey, false).map_err(local_status)
        };
        if let Err(status) = done {
            return self.stall(status, env);
        }
        self.complete_head(WcStatus::Success, env);
        self.req.go_on_at(self.sq.head);
        Step::Again
    }

    /// Stalls the entry at the cursor because of an error. It fails when all before it are complete.
    pub(crate) fn stall<E: Env>(&mut self, status: WcStatus, env: &mut E) -> Step {
        if self.sq.head == self.req.cursor {
            self.fail_send(status, env);
        } else {
            self.req.stalled = Some(status);
        }
        Step::Nothing
    }

    #[inline]
    fn in_flight(&self, psn: Psn) -> u32 {
        // Never negative: the cursor is never behind `una`.
        psn.diff(self.req.una).unsigned_abs()
    }

    /// Returns the headers that every packet of a request begins with.
    #[inline]
    fn request_header(&self, bth: &Bth, wqe: &SendWqe) -> HeaderBuf {
        let mut header = HeaderBuf::new(bth);
        if self.qp_type == QpType::XrcSend {
            header = header.xrceth(&XrcEth { srqn: wqe.srqn });
        }
        header
    }

    /// Returns the P_Key of the queue pair's packets.
    #[inline]
    pub(crate) fn own_pkey<E: Env>(&self, env: &E) -> Pkey {
        env.pkey(self.attr.pkey_index).unwrap_or(Pkey::DEFAULT)
    }

    fn transmit_message<E: Env>(
        &mut self,
        now: Time,
        row: &TxRow,
        more: bool,
        env: &mut E,
    ) -> Step {
        let index = self.req.cursor;
        let wqe = self.sq.get(index);
        let psn = wqe.first.add(self.req.offset);
        let reliable = self.qp_type.is_reliable();
        let in_flight = self.in_flight(psn);
        let limit = self.req.window.size().min((env.room() / self.mtu).max(1));
        // Packets sent before the limit was reduced may not have requested an ACK yet.
        if reliable && in_flight >= limit && in_flight > self.req.since_ack_req {
            return Step::Nothing;
        }
        let done = self.req.offset * self.mtu;
        let rest = wqe.len - done;
        let (most, named) = (self.most(), self.req.naming.on);
        let len = rest.min(most);
        let (starts, ends) = (self.req.offset == 0, rest <= most);
        let alone = self.goes_in_equal_packets(wqe);
        let opcode = row.opcode(self.qp_type, starts || alone, ends || alone);
        let mut bth = self.bth(opcode, psn, self.own_pkey(env));
        bth.pad = if named { 0 } else { pad(len) };
        bth.solicited = ends && wqe.has(SendFlags::SOLICITED);
        bth.ack_req = reliable
            && (self.req.since_ack_req + 1 >= self.req.window.ack_every(limit)
                || in_flight >= limit
                || ends && !self.is_followed());
        let mut header = self.request_header(&bth, wqe);
        if opcode.has_reth() {
            let dma_len = if alone { len } else { wqe.len };
            let va = wqe.remote_addr.wrapping_add(done.into());
            header = header.reth(&Reth { va, rkey: wqe.rkey, dma_len });
        }
        if opcode.has_imm() {
            header = header.imm(&ImmDt(wqe.extra));
        } else if opcode.has_ieth() {
            header = header.ieth(&Ieth(Rkey(u32::from_be_bytes(wqe.extra))));
        }
        let ack = self.piggybacked_ack();
        let packet = TxPacket {
            av: &self.attr.av,
            header: header.as_slice(),
            payload: self.sq.payload(index, done, len),
            pad: bth.pad,
            more: more && !(ends && self.sq.tail.wrapping_sub(index) == 1),
            ack,
        };
        let left =
            if named { env.transmit_named(&packet) } else { env.transmit(&packet).map(|()| true) };
        match left {
            Ok(true) => {}
            Ok(false) => {
                self.req.naming.on = false;
                return Step::Again;
            }
            Err(TxError::Busy) => return Step::Busy,
            Err(TxError::Memory(fault)) => return self.stall(local_status(fault), env),
        }
        if ack.is_some() {
            self.resp.ack_left();
        }
        let npsn = if named { len.div_ceil(self.mtu) } else { 1 };
        self.advance_cursor(npsn, ends);
        if reliable {
            self.sent(now, psn, npsn, bth.ack_req);
        } else if ends {
            self.complete_head(WcStatus::Success, env);
            self.check_drained(env);
        }
        Step::Sent
    }

    /// Returns whether each packet of a message is a WRITE of its own, with its own address. Packets of
    /// equal size leave in one system call (`UDP_SEGMENT`). A FIRST with an address and MIDDLEs without
    /// differ in size. The peer's program sees no difference, since a WRITE without immediate shows no end.
    /// Only a WRITE that is refused because it leaves the region has written the part before that point.
    #[inline]
    fn goes_in_equal_packets(&self, wqe: &SendWqe) -> bool {
        !self.lossless && wqe.kind == TxKind::Write && self.qp_type.is_reliable()
    }

    /// Returns whether a message follows the entry at the cursor that can request the ACK for both. If that message
    /// is not sent after all, the timer recovers. So this returns false without a timer or with only a long one.
    #[inline]
    fn is_followed(&self) -> bool {
        let next = self.req.cursor.wrapping_add(1);
        let timed = !self.req.srtt.is_zero() && self.attr.timeout.duration().is_some();
        if next == self.sq.tail || !timed || self.lossless || self.state != QpState::Rts {
            return false;
        }
        let wqe = self.sq.get(next);
        wqe.kind.row().travel == Travel::Message && !wqe.has(SendFlags::FENCE)
    }

    fn transmit_read<E: Env>(&mut self, now: Time, row: &TxRow, more: bool, env: &mut E) -> Step {
        let wqe = self.sq.get(self.req.cursor);
        let (offset, chunk) = (self.req.offset, self.req.read_chunk);
        let psn = wqe.first.add(offset);
        let end = wqe.npsn.min((offset / chunk + 1) * chunk);
        let npsn = end - offset;
        let in_flight = self.in_flight(psn);
        if !self.may_query() || in_flight != 0 && in_flight + npsn > self.req.window.size() {
            return Step::Nothing;
        }
        let done = offset * self.mtu;
        let len = if end == wqe.npsn { wqe.len - done } else { npsn * self.mtu };
        let va = wqe.remote_addr.wrapping_add(u64::from(done));
        let mut bth = self.bth(row.opcode(self.qp_type, true, true), psn, self.own_pkey(env));
        bth.ack_req = true;
        let reth = Reth { va, rkey: wqe.rkey, dma_len: len };
        let header = self.request_header(&bth, wqe).reth(&reth);
        let whole = end == wqe.npsn;
        self.transmit_query(now, psn, (npsn, whole), &header, more, env)
    }

    fn transmit_atomic<E: Env>(&mut self, now: Time, row: &TxRow, more: bool, env: &mut E) -> Step {
        let wqe = self.sq.get(self.req.cursor);
        let psn = wqe.first;
        if !self.may_query() || self.in_flight(psn) >= self.req.window.size() {
            return Step::Nothing;
        }
        let mut bth = self.bth(row.opcode(self.qp_type, true, true), psn, self.own_pkey(env));
        bth.ack_req = true;
        let header = self.request_header(&bth, wqe).atomic(&AtomicEth {
            va: wqe.remote_addr,
            rkey: wqe.rkey,
            swap_add: wqe.swap_add,
            compare: if wqe.kind == TxKind::CmpSwap { wqe.compare } else { 0 },
        });
        self.transmit_query(now, psn, (1, true), &header, more, env)
    }

    /// Returns whether another READ or atomic of a started entry may be outstanding. One always may: the limit may
    /// have become 0 in SQD since the entry started, and the entry must still complete.
    #[inline]
    fn may_query(&self) -> bool {
        self.req.rd_in_flight < u32::from(self.attr.max_rd_atomic).max(1)
    }

    /// Sends a request whose response takes `npsn` PSNs. `whole` is set if it ends its entry.
    fn transmit_query<E: Env>(
        &mut self,
        now: Time,
        psn: Psn,
        (npsn, whole): (u32, bool),
        header: &HeaderBuf,
        more: bool,
        env: &mut E,
    ) -> Step {
        let ack = self.piggybacked_ack();
        let packet = TxPacket {
            av: &self.attr.av,
            header: header.as_slice(),
            payload: TxPayload::None,
            pad: 0,
            more: more && self.sq.tail.wrapping_sub(self.req.cursor) > 1,
            ack,
        };
        if env.transmit(&packet).is_err() {
            return Step::Busy;
        }
        if ack.is_some() {
            self.resp.ack_left();
        }
        self.req.rd_in_flight += 1;
        self.advance_cursor(npsn, whole);
        self.sent(now, psn, npsn, true);
        Step::Sent
    }

    #[inline]
    fn advance_cursor(&mut self, npsn: u32, ends: bool) {
        if ends {
            self.req.cursor = self.req.cursor.wrapping_add(1);
            self.req.offset = 0;
        } else {
            self.req.offset += npsn;
        }
    }

    /// Records that PSNs from `psn` were sent, for the timer, the window and the round-trip time.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, psn: Psn, npsn: u32, ack_req: bool) {
        let req = &mut self.req;
        req.since_ack_req = if ack_req { 0 } else { req.since_ack_req + 1 };
        if psn == req.max_sent {
            req.max_sent = psn.add(npsn);
            if ack_req && !self.lossless && req.rtt_at == Time::NEVER {
                (req.rtt_psn, req.rtt_at) = (psn, now);
            }
        } else if psn.add(npsn).diff(req.max_sent) > 0 {
            req.max_sent = psn.add(npsn);
        } else {
            self.sent_again(npsn);
        }
        let req = &mut self.req;
        if !req.timers.is_running(Timer::Retransmit) {
            req.last_progress = now;
            self.arm(now);
        }
    }
}

/// Returns how many bytes pad a payload to a multiple of four.
#[inline]
pub(crate) fn pad(len: u32) -> u8 {
    (len.wrapping_neg() & 3) as u8
}
