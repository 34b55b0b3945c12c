//! The checks of every completion.

use rdmux_transport::env::Side;
use rdmux_transport::wr::{Completion, WcStatus};

use super::Mistake;
use super::world::World;
use crate::check::{check_gaps, check_message, ensure, opcode};
use crate::endpoint::{Kind, SendRecord};
use crate::memory::pattern;

impl World {
    /// Checks a completion against the posted requests.
    pub(super) fn completed(
        &mut self,
        id: usize,
        side: Side,
        wc: &Completion,
    ) -> Result<(), String> {
        self.stats.completions += 1;
        self.trace(format_args!("end {id} completes {side:?} {:x} {:?}", wc.wr_id, wc.status));
        if wc.status != WcStatus::Success {
            self.stats.errors += 1;
            let left = self.ends[id].left && side == Side::Recv;
            let due = self.ends[id].doomed || self.ending || left;
            ensure!(due, "end {id}: {side:?} {:x} ended {:?} for no reason", wc.wr_id, wc.status);
        }
        match side {
            Side::Send => self.send_completed(id, wc),
            Side::Recv => self.receive_completed(id, wc),
        }
    }

    fn send_completed(&mut self, id: usize, wc: &Completion) -> Result<(), String> {
        self.post_soon(id);
        loop {
            let record = self.ends[id].sends.pop_front();
            let record =
                record.ok_or_else(|| format!("end {id}: {:x} was not posted", wc.wr_id))?;
            if record.wr_id == wc.wr_id {
                return self.send_ended(id, &record, wc);
            }
            // The sends before it completed unsignaled.
            ensure!(!record.signaled, "end {id}: {:x} was passed over", record.wr_id);
            self.send_succeeded(id, &record)?;
        }
    }

    /// Handles the last completion: the remaining sends are unsignaled and succeeded before the failure.
    pub(super) fn last_completion_is_out(&mut self, id: usize) -> Result<(), String> {
        while let Some(record) = self.ends[id].sends.pop_front() {
            let silent = !record.signaled && !self.ends[id].failed;
            ensure!(silent, "end {id}: {:x} was not completed", record.wr_id);
            self.send_succeeded(id, &record)?;
        }
        Ok(())
    }

    fn send_ended(
        &mut self,
        id: usize,
        record: &SendRecord,
        wc: &Completion,
    ) -> Result<(), String> {
        let failed = self.ends[id].failed;
        if wc.status == WcStatus::Success {
            ensure!(!failed, "end {id}: {:x} succeeded after a failure", wc.wr_id);
            // A SEND or a WRITE succeeds once the stream has it; the others wait for an answer.
            let fails = matches!(
                self.erred,
                Some(Mistake::LocalKey | Mistake::ReadBounds | Mistake::Misaligned)
            );
            let right = !record.poisoned || !fails || self.is_tainted(id);
            ensure!(right, "end {id}: the mistake {:x} succeeded", wc.wr_id);
            ensure!(record.signaled, "end {id}: {:x} did not ask to be told", wc.wr_id);
            let want = opcode(&record.kind);
            let right = record.poisoned || want.contains(&wc.opcode);
            ensure!(right, "end {id}: {:x} is {:?}", wc.wr_id, wc.opcode);
            return self.send_succeeded(id, record);
        }
        self.ends[id].failed = true;
        let flushed = wc.status == WcStatus::WrFlushErr;
        let blamed = self.ends[id].blamed;
        ensure!(!blamed || flushed, "end {id}: {:x} ended {:?} late", wc.wr_id, wc.status);
        self.ends[id].blamed |= !flushed;
        let local = wc.status == WcStatus::LocProtErr;
        ensure!(!local || record.poisoned, "end {id}: {:x} has its memory", wc.wr_id);
        Ok(())
    }

    /// Checks every byte that a send moved, and deregisters its memory. A SEND or a WRITE is complete when the stream has it.
    /// The WRITE's data is checked when a later READ is answered.
    fn send_succeeded(&mut self, id: usize, record: &SendRecord) -> Result<(), String> {
        let (op, len) = (record.op, record.len as usize);
        match record.kind {
            Kind::Send | Kind::SendInv(_) => {}
            Kind::LocalInv(mr) => {
                let gone = self.ends[id].process.memory.bytes(&mr).is_empty();
                ensure!(gone, "end {id}: {op} did not invalidate");
            }
            Kind::Write(mr) | Kind::WriteImm(mr) => self.ends[id].written.push((op, mr)),
            Kind::Read(mr) => {
                let got = self.gathered(id, record)?;
                let right = self.is_tainted(id) || got == pattern(op, len);
                ensure!(right, "end {id}: READ {op} brought other bytes");
                self.ends[1 - id].process.memory.deregister(&mr);
                self.check_written(id)?;
            }
            Kind::Atomic { original } => {
                let got = self.gathered(id, record)?;
                let right = self.is_tainted(id) || got == original.to_ne_bytes();
                ensure!(right, "end {id}: atomic {op} found {got:02x?}, not {original:#x}");
                self.check_written(id)?;
            }
        }
        self.stats.compared += u64::from(record.len);
        let Some(mr) = record.local else { return Ok(()) };
        let bytes = self.ends[id].process.memory.deregister(&mr);
        check_gaps(format_args!("end {id}"), record, &mr, bytes)
    }

    fn gathered(&mut self, id: usize, record: &SendRecord) -> Result<Vec<u8>, String> {
        let memory = &self.ends[id].process.memory;
        memory.gather(&record.sges, 0, record.len).map_err(|e| format!("end {id}: {e}"))
    }

    /// Returns whether the data between the ends may have been changed unnoticed.
    fn is_tainted(&self, _id: usize) -> bool {
        self.ends.iter().any(|end| end.pipe.tainted)
    }

    /// Checks that all completed WRITEs have been placed.
    pub(super) fn check_written(&mut self, id: usize) -> Result<(), String> {
        for (op, mr) in std::mem::take(&mut self.ends[id].written) {
            let bytes = self.ends[1 - id].process.memory.deregister(&mr);
            let right = self.is_tainted(id) || bytes == pattern(op, mr.len);
            ensure!(right, "end {id}: WRITE {op} wrote other bytes");
        }
        Ok(())
    }

    fn receive_completed(&mut self, id: usize, wc: &Completion) -> Result<(), String> {
        let end = &mut self.ends[id];
        // Shared receives also complete oldest first.
        let record = if self.scenario.shared[id] {
            end.process.srq_taken.pop_first().map(|(_, record)| record)
        } else {
            end.recvs.pop_front()
        };
        let record = record.filter(|r| r.wr_id == wc.wr_id);
        let record =
            record.ok_or_else(|| format!("end {id}: receive {:x} out of turn", wc.wr_id))?;
        let bytes = self.ends[id].process.memory.deregister(&record.mr);
        if wc.status != WcStatus::Success {
            return Ok(());
        }
        self.refill(id);
        if self.is_tainted(id) {
            self.ends[id].expected.pop_front();
            return Ok(());
        }
        let expected = self.ends[id].expected.pop_front();
        let expected = expected.ok_or_else(|| format!("end {id}: a message that nobody sent"))?;
        check_message(format_args!("end {id}"), &expected, wc, &bytes)
    }
}
