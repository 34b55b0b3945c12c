//! The checks of every completion.

use std::time::Duration;

use rdmux_transport::GRH_AREA;
use rdmux_transport::attr::QpType;
use rdmux_transport::wr::{Completion, WcFlags, WcStatus};

use super::end::{SentAs, Target};
use super::world::World;
use crate::check::{check_gaps, check_message, ensure, flagged, opcode};
use crate::endpoint::{Expected, Kind, SendRecord};
use crate::memory::{CANARY, pattern};

/// The number of transmissions until a connection fails.
const TRIES: u32 = 8;

/// The number of transmissions that the network may lose: a request or its answer, twice each.
const BY_CHANCE: usize = 4;

impl World {
    /// Checks a completion of an end's send queue.
    pub(super) fn send_completed(&mut self, id: usize, wc: &Completion) -> Result<(), String> {
        self.stats.completions += 1;
        self.trace(format_args!("ep {id} completes {:x} {:?}", wc.wr_id, wc.status));
        self.post_soon(id);
        loop {
            let record = self.ends[id].sends.pop_front();
            let record = record.ok_or_else(|| format!("ep {id}: {:x} was not posted", wc.wr_id))?;
            if record.wr_id == wc.wr_id {
                return self.send_ended(id, record, wc);
            }
            // The sends before it completed unsignaled.
            ensure!(!record.signaled, "ep {id}: {:x} was passed over", record.wr_id);
            self.send_succeeded(id, &record)?;
        }
    }

    /// Handles the last completion: the remaining sends are unsignaled and succeeded before the failure.
    pub(super) fn last_completion_is_out(&mut self, id: usize) -> Result<(), String> {
        while let Some(record) = self.ends[id].sends.pop_front() {
            let silent = !record.signaled && !self.ends[id].failed;
            ensure!(silent, "ep {id}: {:x} was not completed", record.wr_id);
            self.send_succeeded(id, &record)?;
        }
        Ok(())
    }

    fn send_ended(&mut self, id: usize, record: SendRecord, wc: &Completion) -> Result<(), String> {
        let failed = self.ends[id].failed;
        if wc.status == WcStatus::Success {
            ensure!(!failed, "ep {id}: {:x} succeeded after a failure", wc.wr_id);
            let want = opcode(&record.kind);
            let right = want.contains(&wc.opcode) && record.signaled;
            ensure!(right, "ep {id}: {:x} is {:?}, not {want:?}", wc.wr_id, wc.opcode);
            return self.send_succeeded(id, &record);
        }
        if !failed && !self.ends[id].closing {
            self.check_failure(id, wc)?;
            self.stats.failures += 1;
        }
        let flushed = wc.status == WcStatus::WrFlushErr;
        ensure!(!failed || flushed, "ep {id}: {:x} ended {:?} late", wc.wr_id, wc.status);
        self.ends[id].failed = true;
        self.leaves_debris(id, record);
        Ok(())
    }

    /// Checks that a connection fails only because no answer arrives, and only if the fabric has dropped its packets, or the
    /// peer has failed.
    fn check_failure(&mut self, id: usize, wc: &Completion) -> Result<(), String> {
        let end = &self.ends[id];
        let qp_type = end.qp.qp_type();
        ensure!(qp_type == QpType::Rc, "ep {id}: {qp_type:?} ended {:?}", wc.status);
        let right = wc.status == WcStatus::RetryExcErr;
        ensure!(right, "ep {id}: {:x} ended {:?}", wc.wr_id, wc.status);
        if self.ends[end.peer].failed {
            return Ok(());
        }
        // A timer takes up to four times what its code says (IBTA 9.7.6.1.3).
        let timer = Duration::from_nanos(4096 << self.scenario.plans[end.plan.0].timeout) * 4;
        let since = timer * (TRIES + 1) + Duration::from_millis(100);
        let now = self.agenda.now();
        let losses = end.losses.iter().filter(|at| now.since(**at) <= since).count();
        let excused = losses + BY_CHANCE >= TRIES as usize;
        ensure!(excused, "ep {id} failed, but the fabric has dropped {losses} packets only");
        Ok(())
    }

    /// Keeps the memory of a failed operation: its outcome is unknown, and late packets may still execute it.
    fn leaves_debris(&mut self, id: usize, record: SendRecord) {
        let peer = self.ends[self.ends[id].peer].host;
        let end = &mut self.ends[id];
        match record.kind {
            Kind::Write(mr) | Kind::WriteImm(mr) | Kind::Read(mr) => {
                end.debris.push((record.op, peer, mr));
            }
            Kind::Send | Kind::SendInv(_) | Kind::Atomic { .. } | Kind::LocalInv(_) => {}
        }
        end.litter.extend(record.local);
    }

    /// Checks every byte that a send moved, and deregisters its memory.
    fn send_succeeded(&mut self, id: usize, record: &SendRecord) -> Result<(), String> {
        let (op, len) = (record.op, record.len as usize);
        self.stats.bytes += u64::from(record.len);
        let (host, peer) = (self.ends[id].host, self.ends[self.ends[id].peer].host);
        let is_reliable = self.ends[id].qp.qp_type() == QpType::Rc;
        match record.kind {
            Kind::Send | Kind::SendInv(_) | Kind::LocalInv(_) => {}
            Kind::Write(mr) | Kind::WriteImm(mr) if is_reliable => {
                let bytes = self.hosts[peer].process.memory.deregister(&mr);
                ensure!(bytes == pattern(op, len), "ep {id}: WRITE {op} wrote other bytes");
            }
            // An unreliable WRITE may be written later, or in part, or not at all.
            Kind::Write(mr) | Kind::WriteImm(mr) => self.ends[id].debris.push((op, peer, mr)),
            Kind::Read(mr) => {
                let got = self.gathered(id, record)?;
                ensure!(got == pattern(op, len), "ep {id}: READ {op} brought other bytes");
                self.hosts[peer].process.memory.deregister(&mr);
            }
            Kind::Atomic { original } => {
                let got = self.gathered(id, record)?;
                let right = got == original.to_ne_bytes();
                ensure!(right, "ep {id}: atomic {op} found {got:02x?}, not {original:#x}");
            }
        }
        let Some(mr) = record.local else { return Ok(()) };
        let bytes = self.hosts[host].process.memory.deregister(&mr);
        check_gaps(format_args!("ep {id}"), record, &mr, bytes)
    }

    fn gathered(&mut self, id: usize, record: &SendRecord) -> Result<Vec<u8>, String> {
        let memory = &self.hosts[self.ends[id].host].process.memory;
        memory.gather(&record.sges, 0, record.len).map_err(|error| format!("ep {id}: {error}"))
    }

    /// Checks a completion of an end's receive queue.
    pub(super) fn receive_completed(&mut self, id: usize, wc: &Completion) -> Result<(), String> {
        self.stats.completions += 1;
        let record = self.ends[id].recvs.pop_front().filter(|r| r.wr_id == wc.wr_id);
        let record =
            record.ok_or_else(|| format!("ep {id}: receive {:x} out of turn", wc.wr_id))?;
        let host = self.ends[id].host;
        let bytes = self.hosts[host].process.memory.deregister(&record.mr);
        if wc.status != WcStatus::Success {
            let end = &self.ends[id];
            let due = end.closing || end.failed && wc.status == WcStatus::WrFlushErr;
            ensure!(due, "ep {id}: receive {:x} ended {:?}", wc.wr_id, wc.status);
            return Ok(());
        }
        self.refill(id);
        match self.ends[id].qp.qp_type() {
            QpType::Ud => self.check_datagram(id, wc, &bytes),
            QpType::Uc => self.check_unreliable(id, wc, &bytes),
            _ => {
                let expected = self.ends[id].expected.pop_front();
                let expected =
                    expected.ok_or_else(|| format!("ep {id}: a message that nobody sent"))?;
                check_message(format_args!("ep {id}"), &expected, wc, &bytes)
            }
        }
    }

    /// Checks an unreliable message: messages may be lost or duplicated, but each must have been sent.
    fn check_unreliable(&self, id: usize, wc: &Completion, bytes: &[u8]) -> Result<(), String> {
        let len = wc.byte_len as usize;
        let matches = |e: &&Expected| {
            e.len == wc.byte_len
                && e.imm == flagged(wc)
                && (!e.in_receive || bytes[..len] == pattern(e.op, len))
        };
        let found = self.ends[id].expected.iter().find(matches);
        ensure!(found.is_some(), "ep {id}: a message of {len} bytes that nobody sent");
        Ok(())
    }

    /// Checks that a datagram was sent to this queue pair, and has the right source.
    pub(super) fn check_datagram(
        &mut self,
        id: usize,
        wc: &Completion,
        bytes: &[u8],
    ) -> Result<(), String> {
        self.stats.received += 1;
        let (area, body) = bytes.split_at(GRH_AREA as usize);
        let op = body.first_chunk().map(|op| u64::from_le_bytes(*op)).unwrap_or_default();
        let nobodys = || format!("ep {id}: datagram {op}, which nobody sent");
        let mask = (1 << self.view(self.ends[id].host).lmc()) - 1;
        let duplicates = self.scenario.faults.duplicate > 0.0;
        let datagram = self.datagrams.get_mut(&op).ok_or_else(nobodys)?;
        let sent = datagram.sent.clone().ok_or_else(nobodys)?;
        let end = &self.ends[id];
        let is_ours = match datagram.to {
            Target::End(to) => to == id,
            Target::Group(group) => end.groups.contains(&group),
        };
        ensure!(is_ours, "ep {id}: datagram {op} was for {:?}", datagram.to);
        ensure!(datagram.has_key, "ep {id}: datagram {op} has another Q_Key");
        let copies = sent.hosts.iter().filter(|host| **host == end.host).count();
        ensure!(copies > 0, "ep {id}: datagram {op} was not sent to host {}", end.host);
        let at = datagram.came.iter().position(|(to, _)| *to == id);
        let at = at.unwrap_or_else(|| {
            datagram.came.push((id, 0));
            datagram.came.len() - 1
        });
        datagram.came[at].1 += 1;
        let came = datagram.came[at].1;
        ensure!(duplicates || came <= copies, "ep {id}: datagram {op} has come {came} times");
        let len = datagram.len as usize;
        ensure!(wc.byte_len == datagram.len + GRH_AREA, "ep {id}: {op} has {} bytes", wc.byte_len);
        ensure!(flagged(wc) == datagram.imm, "ep {id}: {op} has imm {:?}", flagged(wc));
        ensure!(body[..len] == pattern(op, len), "ep {id}: datagram {op} has other bytes");
        let untouched = body[len..].iter().all(|b| *b == CANARY);
        ensure!(untouched, "ep {id}: datagram {op} wrote too much");
        let from = self.ends[datagram.from].qp.qpn();
        ensure!(wc.src_qp == from, "ep {id}: datagram {op} is from {}, not {from}", wc.src_qp);
        check_headers(id, op, &sent, (wc, area), mask)
    }
}

/// Checks that a completion has the headers with which a datagram was sent.
fn check_headers(
    id: usize,
    op: u64,
    sent: &SentAs,
    (wc, area): (&Completion, &[u8]),
    mask: u16,
) -> Result<(), String> {
    let SentAs { slid, dlid, sl, pkey, grh, .. } = sent;
    let bits = if dlid.is_multicast() { 0 } else { dlid.0 & mask };
    let right = (wc.slid, wc.sl, wc.pkey) == (slid.0, *sl, *pkey)
        && u16::from(wc.dlid_path_bits) == bits
        && wc.flags.contains(WcFlags::GRH) == grh.is_some();
    ensure!(right, "ep {id}: datagram {op} says {wc:?}, but was sent as {sent:?}");
    let shown = match grh {
        Some(grh) => area == grh,
        None => area.iter().all(|b| *b == 0),
    };
    ensure!(shown, "ep {id}: datagram {op} shows {area:02x?}, but was sent as {sent:?}");
    Ok(())
}
