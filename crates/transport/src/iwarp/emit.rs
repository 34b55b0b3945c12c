//! Building the next frame to send.

use rdmux_wire::iwarp::ddp::{Header, Model, Untagged, queue};
use rdmux_wire::iwarp::rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Immediate, Opcode, ReadRequest,
};
use rdmux_wire::{Rkey, Stag};

use crate::attr::{Access, QpState};
use crate::fault::local_status;
use crate::iwarp::StreamEnv;
use crate::iwarp::frame::{Frame, Origin, Payload};
use crate::iwarp::qp::Qp;
use crate::iwarp::serve::Answer;
use crate::iwarp::tx::{Job, cut, tagged, untagged};
use crate::optable::{Travel, TxKind};
use crate::sq::SendWqe;
use crate::time::Time;
use crate::wr::{SendFlags, WcStatus};

/// The outcome of starting the entry at the cursor.
enum Start {
    /// The entry is a message, to be cut into frames.
    Message,
    /// The entry is this one frame.
    Frame(Frame),
    /// The entry is complete, or has failed.
    Again,
    /// The entry must wait, or the queue is empty.
    Nothing,
}

impl Qp {
    /// Builds the next frame. Responses and send queue entries start in turn.
    pub(super) fn next_frame<E: StreamEnv>(&mut self, now: Time, env: &mut E) -> Option<Frame> {
        loop {
            match self.tx.job {
                Job::Entry => return Some(self.message_frame()),
                Job::Immediate => return Some(self.immediate_frame()),
                Job::Answer => return self.answer_frame(),
                Job::None => {}
            }
            let answers = !self.serving.is_empty();
            if answers && self.tx.answers_first {
                self.tx.answers_first = false;
                self.tx.job = Job::Answer;
                continue;
            }
            match self.start_entry(now, env) {
                Start::Message => self.tx.job = Job::Entry,
                Start::Frame(frame) => {
                    self.tx.answers_first = true;
                    return Some(frame);
                }
                Start::Again => {}
                Start::Nothing if answers => self.tx.job = Job::Answer,
                Start::Nothing => return None,
            }
            self.tx.answers_first = true;
        }
    }

    fn start_entry<E: StreamEnv>(&mut self, now: Time, env: &mut E) -> Start {
        let index = self.tx.cursor;
        if index == self.sq.tail
            || !matches!(self.state, QpState::Rts | QpState::Sqd)
            || self.is_beyond_shutdown(index)
            || self.tx.stalled.is_some()
        {
            return Start::Nothing;
        }
        let wqe = self.sq.get(index);
        if wqe.has(SendFlags::FENCE) && self.tx.queries != 0 {
            return Start::Nothing;
        }
        match wqe.kind.row().travel {
            Travel::Message => Start::Message,
            Travel::Local => self.carry_out_local(now, env),
            Travel::Read | Travel::Atomic => self.start_query(now, env),
        }
    }

    /// Carries out a local operation when everything before it is complete, and before anything after it starts.
    fn carry_out_local<E: StreamEnv>(&mut self, now: Time, env: &mut E) -> Start {
        if self.sq.head != self.tx.cursor {
            return Start::Nothing;
        }
        let wqe = self.sq.get(self.tx.cursor);
        let done = if wqe.kind == TxKind::BindMw {
            env.bind(&wqe.bind()).map_err(|_| WcStatus::MwBindErr)
        } else {
            env.invalidate(wqe.rkey, false).map_err(local_status)
        };
        match done {
            Ok(()) => {
                self.complete_head(WcStatus::Success, env);
                self.tx.follow(self.sq.head);
                self.progressed(now, env);
            }
            Err(status) => self.stall(now, status, env),
        }
        Start::Again
    }

    /// Starts a READ or an atomic, whose number is limited by what the peer serves at a time.
    fn start_query<E: StreamEnv>(&mut self, now: Time, env: &mut E) -> Start {
        let index = self.tx.cursor;
        if self.tx.ord == 0 {
            self.stall(now, WcStatus::LocQpOpErr, env);
            return Start::Again;
        }
        if self.tx.queries >= self.tx.ord {
            return Start::Nothing;
        }
        if let Err(fault) = env.check_local(self.sq.sges(index), Access::LOCAL_WRITE) {
            self.stall(now, local_status(fault), env);
            return Start::Again;
        }
        let frame = self.query_frame(index);
        self.tx.queries += 1;
        self.tx.query_msn = self.tx.query_msn.wrapping_add(1);
        self.tx.cursor = index.wrapping_add(1);
        Start::Frame(frame)
    }

    fn query_frame(&self, index: u32) -> Frame {
        let wqe = self.sq.get(index);
        let msn = self.tx.query_msn;
        let origin = Origin::Entry { index, ends: true };
        if wqe.kind == TxKind::Read {
            let (sink_stag, sink_to) = self.sink(index);
            let request = ReadRequest {
                sink_stag,
                sink_to,
                len: wqe.len,
                source_stag: wqe.rkey.into(),
                source_to: wqe.remote_addr,
            };
            let header = untagged(Opcode::ReadRequest, queue::READ_REQUEST, msn);
            return Frame::new(&header, &request.to_bytes(), Payload::None, origin);
        }
        let header = untagged(Opcode::AtomicRequest, queue::READ_REQUEST, msn);
        Frame::new(&header, &atomic_request(index, wqe).to_bytes(), Payload::None, origin)
    }

    /// Returns the sink that a READ request names. A scatter list of several parts is named by its
    /// first: the response is checked against the list, not looked up.
    pub(super) fn sink(&self, index: u32) -> (Stag, u64) {
        /// Some adapters treat the STag 0 specially.
        const NOWHERE: (Stag, u64) = (Stag(1), 0);
        self.sq.sges(index).first().map_or(NOWHERE, |sge| (sge.lkey.into(), sge.addr))
    }

    /// Builds the next frame of the SEND or WRITE at the cursor.
    fn message_frame(&mut self) -> Frame {
        let index = self.tx.cursor;
        let wqe = self.sq.get(index);
        let offset = self.tx.offset;
        let rest = wqe.len - offset;
        let is_write = matches!(wqe.kind, TxKind::Write | TxKind::WriteImm);
        let header_len = if is_write { Header::TAGGED_LEN } else { Header::UNTAGGED_LEN };
        let len = cut(self.tx.mulpdu, header_len, rest);
        let last = len == rest;
        let header = if is_write {
            let to = wqe.remote_addr.wrapping_add(u64::from(offset));
            tagged(Opcode::Write, last, wqe.rkey.into(), to)
        } else {
            let (opcode, invalidate) = send_opcode(wqe);
            let msn = self.tx.send_msn;
            let model = Untagged { last, invalidate, qn: queue::SEND, msn, mo: offset };
            Header::new(opcode, Model::Untagged(model))
        };
        let more = wqe.kind == TxKind::WriteImm;
        if !last {
            self.tx.offset += len;
        } else if more {
            self.tx.job = Job::Immediate;
        } else {
            self.next_entry();
            if !is_write {
                self.tx.send_msn = self.tx.send_msn.wrapping_add(1);
            }
        }
        let origin = Origin::Entry { index, ends: last && !more };
        Frame::new(&header, &[], Payload::Entry { index, offset, len }, origin)
    }

    /// Builds the second message of a WRITE with immediate. The four bytes are the first of iWARP's eight.
    fn immediate_frame(&mut self) -> Frame {
        let index = self.tx.cursor;
        let wqe = self.sq.get(index);
        let [a, b, c, d] = wqe.extra;
        let immediate = Immediate([a, b, c, d, 0, 0, 0, 0]);
        let solicited = wqe.has(SendFlags::SOLICITED);
        let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
        let header = untagged(opcode, queue::SEND, self.tx.send_msn);
        self.tx.send_msn = self.tx.send_msn.wrapping_add(1);
        self.next_entry();
        let origin = Origin::Entry { index, ends: true };
        Frame::new(&header, &immediate.to_bytes(), Payload::None, origin)
    }

    fn next_entry(&mut self) {
        self.tx.cursor = self.tx.cursor.wrapping_add(1);
        self.tx.offset = 0;
        self.tx.job = Job::None;
    }

    /// Builds the next frame of a response to the peer.
    fn answer_frame(&mut self) -> Option<Frame> {
        let mulpdu = self.tx.mulpdu;
        let Some(answer) = self.serving.front_mut() else {
            self.tx.job = Job::None;
            return None;
        };
        let (frame, last) = match *answer {
            Answer::Read { sink, to, rkey, va, len, ref mut done } => {
                let at = u64::from(*done);
                let now = cut(mulpdu, Header::TAGGED_LEN, len - *done);
                *done += now;
                let last = *done == len;
                let header = tagged(Opcode::ReadResponse, last, sink, to.wrapping_add(at));
                let payload = Payload::Remote { rkey, va: va.wrapping_add(at), len: now };
                (Frame::new(&header, &[], payload, Origin::Answer), last)
            }
            Answer::Atomic { id, original } => {
                let msn = self.tx.answer_msn;
                self.tx.answer_msn = msn.wrapping_add(1);
                let header = untagged(Opcode::AtomicResponse, queue::ATOMIC_RESPONSE, msn);
                let response = AtomicResponse { id, original }.to_bytes();
                (Frame::new(&header, &response, Payload::None, Origin::Answer), true)
            }
        };
        if last {
            self.serving.pop();
            self.tx.job = Job::None;
        }
        Some(frame)
    }
}

/// Returns the opcode of a SEND, and the key that it invalidates.
fn send_opcode(wqe: &SendWqe) -> (Opcode, Stag) {
    let invalidates = wqe.kind == TxKind::SendInv;
    let stag = if invalidates { Rkey(u32::from_be_bytes(wqe.extra)).into() } else { Stag(0) };
    let opcode = match (wqe.has(SendFlags::SOLICITED), invalidates) {
        (false, false) => Opcode::Send,
        (false, true) => Opcode::SendInvalidate,
        (true, false) => Opcode::SendSolicited,
        (true, true) => Opcode::SendSolicitedInvalidate,
    };
    (opcode, stag)
}

/// Returns the request for an atomic on all 64 bits: additions carry through, and all bits are compared and swapped.
fn atomic_request(id: u32, wqe: &SendWqe) -> AtomicRequest {
    let is_add = wqe.kind == TxKind::FetchAdd;
    let all = if is_add { 0 } else { u64::MAX };
    AtomicRequest {
        op: if is_add { AtomicOp::FetchAdd } else { AtomicOp::CmpSwap },
        id,
        stag: wqe.rkey.into(),
        to: wqe.remote_addr,
        data: wqe.swap_add,
        mask: all,
        compare: wqe.compare,
        compare_mask: all,
    }
}
