//! The checks of every completion: reported once, in order, with the right status and every byte right.

use std::fmt;

use rdmux_transport::attr::QpType;
use rdmux_transport::env::Side;
use rdmux_transport::wr::{Completion, WcFlags, WcOpcode, WcStatus};

use crate::endpoint::{Expected, Kind, SendRecord};
use crate::memory::{CANARY, Mr, pattern};
use crate::scenario::Poison;
use crate::world::World;

/// Fails with a message unless a condition holds.
macro_rules! ensure {
    ($cond:expr, $($message:tt)*) => {
        if !$cond {
            return Err(format!($($message)*));
        }
    };
}
pub(crate) use ensure;

impl World {
    /// Checks a completion against the posted requests.
    pub(crate) fn completed(
        &mut self,
        id: usize,
        side: Side,
        wc: &Completion,
        process: usize,
    ) -> Result<(), String> {
        self.stats.completions += 1;
        self.trace(format_args!(
            "ep {id} completes {side:?} {:x} {:?} in process {process}",
            wc.wr_id, wc.status
        ));
        ensure!(wc.qpn == self.endpoints[id].qp.qpn(), "ep {id}: completion of {}", wc.qpn);
        if wc.status != WcStatus::Success {
            self.stats.errors += 1;
            let doomed = self.endpoints[id].doomed || self.ending;
            ensure!(doomed, "ep {id}: {side:?} {:x} ended {:?} for no reason", wc.wr_id, wc.status);
        }
        match side {
            Side::Send => self.send_completed(id, wc),
            Side::Recv => self.receive_completed(id, wc, process),
        }
    }

    fn send_completed(&mut self, id: usize, wc: &Completion) -> Result<(), String> {
        self.post_soon(id);
        loop {
            let record = self.endpoints[id].sends.pop_front();
            let record = record.ok_or_else(|| format!("ep {id}: {:x} was not posted", wc.wr_id))?;
            if record.wr_id == wc.wr_id {
                return self.send_ended(id, &record, wc);
            }
            // The sends before it completed unsignaled.
            ensure!(!record.signaled, "ep {id}: {:x} was passed over", record.wr_id);
            self.send_succeeded(id, &record)?;
        }
    }

    /// Handles the last completion: the remaining sends are unsignaled and succeeded before the failure.
    pub(crate) fn last_completion_is_out(&mut self, id: usize) -> Result<(), String> {
        while let Some(record) = self.endpoints[id].sends.pop_front() {
            let silent = !record.signaled && !self.endpoints[id].failed;
            ensure!(silent, "ep {id}: {:x} was not completed", record.wr_id);
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
        let failed = self.endpoints[id].failed;
        if wc.status == WcStatus::Success {
            ensure!(!failed, "ep {id}: {:x} succeeded after a failure", wc.wr_id);
            ensure!(!record.poisoned, "ep {id}: the mistake {:x} succeeded", wc.wr_id);
            ensure!(record.signaled, "ep {id}: {:x} did not ask to be told", wc.wr_id);
            let want = opcode(&record.kind);
            let right = want.contains(&wc.opcode);
            ensure!(right, "ep {id}: {:x} is {:?}, not {want:?}", wc.wr_id, wc.opcode);
            return self.send_succeeded(id, record);
        }
        self.endpoints[id].failed = true;
        ensure!(
            !failed || wc.status == WcStatus::WrFlushErr,
            "ep {id}: {:x} ended {:?}, but the first failure was earlier",
            wc.wr_id,
            wc.status
        );
        if failed {
            return Ok(());
        }
        if record.poisoned {
            return self.check_poisoned(id, wc.status);
        }
        // If nothing else goes wrong, everything before the mistake must have succeeded.
        let (plan, end) = self.endpoints[id].plan;
        let ours = self.scenario.plans[plan]
            .poison
            .is_some_and(|(e, at, _)| e == end && at < self.endpoints[id].posted);
        ensure!(!ours || self.is_disturbed(), "ep {id}: {:x} failed before the mistake", wc.wr_id);
        Ok(())
    }

    /// Returns whether the network may prevent the ends from communicating.
    fn is_disturbed(&self) -> bool {
        !self.scenario.lossless || self.scenario.crash.is_some()
    }

    /// Checks that a mistake has its own status, unless the network lost the answer.
    fn check_poisoned(&mut self, id: usize, status: WcStatus) -> Result<(), String> {
        let plan = &self.scenario.plans[self.endpoints[id].plan.0];
        let Some((_, _, poison)) = plan.poison else { return Ok(()) };
        let own = match poison {
            Poison::RemoteKey | Poison::RemoteBounds | Poison::AtomicKey => WcStatus::RemAccessErr,
            Poison::Misaligned | Poison::TooLong | Poison::Queue => WcStatus::RemInvReqErr,
            Poison::LocalKey => WcStatus::LocProtErr,
        };
        let disturbed = !self.scenario.lossless || self.scenario.crash.is_some();
        let excused = disturbed && matches!(status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
        ensure!(status == own || excused, "ep {id}: {poison:?} ended {status:?}, not {own:?}");
        self.stats.mistakes[poison as usize] += u64::from(status == own);
        Ok(())
    }

    /// Checks every byte that a send moved, and deregisters its memory.
    fn send_succeeded(&mut self, id: usize, record: &SendRecord) -> Result<(), String> {
        let (op, len, process) = (record.op, record.len as usize, record.process);
        self.stats.bytes += u64::from(record.len);
        match record.kind {
            Kind::Send => {}
            Kind::SendInv(mr) => {
                let gone = self.peer_memory(id, process).bytes(&mr).is_empty();
                ensure!(gone, "ep {id}: {op} did not invalidate");
            }
            Kind::LocalInv(mr) => {
                let gone = self.memory(id, 0).bytes(&mr).is_empty();
                ensure!(gone, "ep {id}: {op} did not invalidate");
            }
            Kind::Write(mr) | Kind::WriteImm(mr) => {
                if self.endpoints[id].qp.qp_type().is_reliable() {
                    let bytes = self.peer_memory(id, process).deregister(&mr);
                    ensure!(bytes == pattern(op, len), "ep {id}: WRITE {op} wrote other bytes");
                } else {
                    self.endpoints[id].unreliable_writes.push((op, mr));
                }
            }
            Kind::Read(mr) => {
                let got = self.gathered(id, record)?;
                ensure!(got == pattern(op, len), "ep {id}: READ {op} brought other bytes");
                self.peer_memory(id, process).deregister(&mr);
            }
            Kind::Atomic { original } => {
                let got = self.gathered(id, record)?;
                ensure!(
                    got == original.to_ne_bytes(),
                    "ep {id}: atomic {op} found {got:02x?}, not {original:#x}: done twice, or never"
                );
            }
        }
        let Some(mr) = record.local else { return Ok(()) };
        let bytes = self.memory(id, 0).deregister(&mr);
        check_gaps(format_args!("ep {id}"), record, &mr, bytes)
    }

    fn gathered(&mut self, id: usize, record: &SendRecord) -> Result<Vec<u8>, String> {
        let memory = self.memory(id, 0);
        memory.gather(&record.sges, 0, record.len).map_err(|e| format!("ep {id}: {e}"))
    }

    fn receive_completed(
        &mut self,
        id: usize,
        wc: &Completion,
        process: usize,
    ) -> Result<(), String> {
        let node = &mut self.nodes[self.endpoints[id].node];
        let record = if node.has_srq || process != 0 {
            node.processes[process].srq_taken.remove(&wc.wr_id)
        } else {
            self.endpoints[id].recvs.pop_front().filter(|r| r.wr_id == wc.wr_id)
        };
        let record =
            record.ok_or_else(|| format!("ep {id}: receive {:x} out of turn", wc.wr_id))?;
        let bytes = self.memory(id, process).deregister(&record.mr);
        self.refill(id, process);
        if wc.status != WcStatus::Success {
            return Ok(());
        }
        match self.endpoints[id].qp.qp_type() {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                self.check_reliable(id, wc, process, &bytes)?
            }
            QpType::Uc => self.check_unreliable(id, wc, &bytes)?,
            QpType::Ud => {
                let grh = rdmux_transport::GRH_AREA;
                ensure!(bytes[..grh as usize] == self.grh(), "ep {id}: the GRH area is wrong");
                let wc = Completion { byte_len: wc.byte_len - grh, ..*wc };
                self.check_unreliable(id, &wc, &bytes[grh as usize..])?;
            }
        }
        Ok(())
    }

    fn check_reliable(
        &mut self,
        id: usize,
        wc: &Completion,
        process: usize,
        bytes: &[u8],
    ) -> Result<(), String> {
        let expected = self.endpoints[id].expected.pop_front();
        let expected = expected.ok_or_else(|| format!("ep {id}: a message that nobody sent"))?;
        let name = expected.op;
        ensure!(process == expected.process, "ep {id}: {name} is in process {process}");
        check_message(format_args!("ep {id}"), &expected, wc, bytes)
    }

    /// Checks an unreliable message: messages may be lost or duplicated, but each must have been sent.
    fn check_unreliable(&self, id: usize, wc: &Completion, bytes: &[u8]) -> Result<(), String> {
        let len = wc.byte_len as usize;
        let matches = |e: &&Expected| {
            e.len == wc.byte_len
                && e.imm == flagged(wc)
                && (!e.in_receive || bytes[..len] == pattern(e.op, len))
        };
        let found = self.endpoints[id].expected.iter().find(matches);
        ensure!(found.is_some(), "ep {id}: a message of {len} bytes that nobody sent");
        Ok(())
    }
}

/// Checks that a receive has the expected message: its length, its flags, and every byte, including those after it.
pub(crate) fn check_message(
    end: fmt::Arguments<'_>,
    expected: &Expected,
    wc: &Completion,
    bytes: &[u8],
) -> Result<(), String> {
    let name = expected.op;
    ensure!(wc.byte_len == expected.len, "{end}: {name} has {} bytes", wc.byte_len);
    ensure!(flagged(wc) == expected.imm, "{end}: {name} has imm {:?}", flagged(wc));
    let invalidated = wc.flags.contains(WcFlags::WITH_INV).then_some(wc.invalidated);
    ensure!(invalidated == expected.invalidates, "{end}: {name} invalidated {invalidated:?}");
    let want = if expected.in_receive { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
    ensure!(wc.opcode == want, "{end}: {name} is {:?}", wc.opcode);
    let used = if expected.in_receive { expected.len as usize } else { 0 };
    ensure!(bytes[..used] == pattern(name, used), "{end}: SEND {name} brought other bytes");
    let rest = &bytes[used..];
    ensure!(rest.iter().all(|&b| b == CANARY), "{end}: {:x} wrote too much", wc.wr_id);
    Ok(())
}

/// Checks that an operation did not write between the elements of its list. `bytes` are those of the list's region.
pub(crate) fn check_gaps(
    end: fmt::Arguments<'_>,
    record: &SendRecord,
    mr: &Mr,
    mut bytes: Vec<u8>,
) -> Result<(), String> {
    for sge in record.sges.iter().rev() {
        let at = usize::try_from(sge.addr - mr.addr).expect("within the region");
        bytes.drain(at..at + sge.length as usize);
    }
    let untouched = bytes.iter().all(|&b| b == CANARY);
    ensure!(untouched, "{end}: {} wrote between the parts of its list", record.op);
    Ok(())
}

/// Returns the immediate data of a completion, if there are any.
pub(crate) fn flagged(wc: &Completion) -> Option<[u8; 4]> {
    wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm)
}

/// Returns the opcodes that a completion of this kind may have.
pub(crate) fn opcode(kind: &Kind) -> &'static [WcOpcode] {
    match kind {
        Kind::Send | Kind::SendInv(_) => &[WcOpcode::Send],
        Kind::Write(_) | Kind::WriteImm(_) => &[WcOpcode::RdmaWrite],
        Kind::Read(_) => &[WcOpcode::RdmaRead],
        Kind::Atomic { .. } => &[WcOpcode::FetchAdd, WcOpcode::CompSwap],
        Kind::LocalInv(_) => &[WcOpcode::LocalInv],
    }
}
