//! The memory that an environment gives its queue pair, and shared receive queues.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::Range;

use rdmux_transport::attr::Access;
use rdmux_transport::env::{AccessFault, AtomicOp};
use rdmux_transport::wr::Sge;
use rdmux_wire::Lkey;

/// The memory and the shared receive queues of a host's processes.
///
/// A process is identified by the number of its shared receive queue, as named in an XRC packet; 0
/// is the one that created the queue pair.
pub trait Memory: Debug {
    /// Checks an access to `len` bytes.
    ///
    /// # Errors
    /// If the key does not exist, the range exceeds its region, or the region does not allow the access.
    fn check(
        &self,
        process: u32,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), AccessFault>;

    /// Appends `len` bytes to `out`.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    fn read(
        &mut self,
        process: u32,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
        out: &mut Vec<u8>,
    ) -> Result<(), AccessFault>;

    /// Copies `data` to an address.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    fn write(
        &mut self,
        process: u32,
        key: u32,
        addr: u64,
        data: &[u8],
        need: Access,
    ) -> Result<(), AccessFault>;

    /// Invalidates a key.
    ///
    /// # Errors
    /// If the key does not exist.
    fn invalidate(&mut self, process: u32, key: u32) -> Result<(), AccessFault>;

    /// Called before an access that changes memory. Returns the error that the access gets if the
    /// process cannot serve it now.
    ///
    /// # Errors
    /// The error for the queue pair.
    fn meet_owner(&mut self) -> Result<(), AccessFault> {
        Ok(())
    }

    /// Returns whether XRC may name this shared receive queue.
    fn has_queue(&self, srqn: u32) -> bool;

    /// Takes the next receive of a shared receive queue, as its number and its list.
    fn receive(&mut self, srqn: u32) -> Option<(u64, Vec<Sge>)>;
}

/// Memory without contents: it reads as zero, and writes are discarded. Every key gives access to
/// all of it, except for those that are wrong.
#[derive(Clone, Debug)]
pub struct Zeroes {
    /// The size in bytes, from address 0 on.
    pub size: u64,
    /// Returns whether a key is wrong.
    pub is_wrong: fn(u32) -> bool,
    /// How many accesses that need the owner succeed before one fails, and the error of that one.
    pub until_fault: u32,
    /// See `until_fault`.
    pub fault: AccessFault,
    /// Whether reading needs the owner, too.
    pub reads_ask: bool,
    /// Whether queue pairs check before they write, so that a write out of bounds is a bug in a queue pair.
    pub writes_are_checked: bool,
    /// The original values for the next atomics; 0 when there are no more.
    pub originals: VecDeque<u64>,
    /// The number of shared receive queues that XRC may name: 1 to this.
    pub queues: u32,
    /// The number of receives in the shared receive queues, each 4096 bytes long.
    pub receives: u32,
    /// The number of receives taken from them.
    pub taken: u32,
}

impl Default for Zeroes {
    /// Returns memory in which every address exists, no key is wrong and nothing fails.
    fn default() -> Self {
        Self {
            size: u64::MAX,
            is_wrong: |_| false,
            until_fault: u32::MAX,
            fault: AccessFault::Busy,
            reads_ask: false,
            writes_are_checked: false,
            originals: VecDeque::new(),
            queues: 0,
            receives: 0,
            taken: 0,
        }
    }
}

impl Memory for Zeroes {
    fn check(&self, _: u32, key: u32, addr: u64, len: u64, _: Access) -> Result<(), AccessFault> {
        if (self.is_wrong)(key) {
            return Err(AccessFault::Key);
        }
        let inside = addr.checked_add(len).is_some_and(|end| end <= self.size);
        if inside { Ok(()) } else { Err(AccessFault::Bounds) }
    }

    fn read(
        &mut self,
        process: u32,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
        out: &mut Vec<u8>,
    ) -> Result<(), AccessFault> {
        if self.reads_ask {
            self.meet_owner()?;
        }
        self.check(process, key, addr, len.into(), need)?;
        if need == Access::REMOTE_ATOMIC {
            out.extend(self.originals.pop_front().unwrap_or(0).to_ne_bytes());
        } else {
            out.resize(out.len() + len as usize, 0);
        }
        Ok(())
    }

    fn write(
        &mut self,
        process: u32,
        key: u32,
        addr: u64,
        data: &[u8],
        need: Access,
    ) -> Result<(), AccessFault> {
        let checked = self.check(process, key, addr, data.len() as u64, need);
        let is_bug = self.writes_are_checked && need == Access::REMOTE_WRITE;
        assert!(!is_bug || checked.is_ok(), "it was checked, and is outside: {checked:?}");
        checked
    }

    fn invalidate(&mut self, process: u32, key: u32) -> Result<(), AccessFault> {
        self.check(process, key, 0, 0, Access::empty())
    }

    fn meet_owner(&mut self) -> Result<(), AccessFault> {
        let fails = self.until_fault == 0;
        self.until_fault = self.until_fault.wrapping_sub(1);
        if fails { Err(self.fault) } else { Ok(()) }
    }

    fn has_queue(&self, srqn: u32) -> bool {
        (1..=self.queues).contains(&srqn)
    }

    fn receive(&mut self, _: u32) -> Option<(u64, Vec<Sge>)> {
        self.receives = self.receives.checked_sub(1)?;
        self.taken += 1;
        Some((1, vec![Sge { addr: 0, length: 4096, lkey: Lkey(0) }]))
    }
}

/// Calls `f(entry, address, indexes)` for each part of a list that contains some of the `len` bytes
/// from `offset` on, with the indexes of those bytes.
///
/// # Errors
/// Those of `f`.
///
/// # Panics
/// If the list is too short.
pub fn for_parts(
    sges: &[Sge],
    offset: u32,
    len: usize,
    mut f: impl FnMut(&Sge, u64, Range<usize>) -> Result<(), AccessFault>,
) -> Result<(), AccessFault> {
    let (mut skip, mut done) = (offset as usize, 0);
    for sge in sges {
        let entry = sge.length as usize;
        let take = entry.saturating_sub(skip).min(len - done);
        if take != 0 {
            f(sge, sge.addr + skip as u64, done..done + take)?;
            done += take;
        }
        skip = skip.saturating_sub(entry);
    }
    assert_eq!(done, len, "beyond the list");
    Ok(())
}

/// Returns the value that an atomic stores in place of `old`.
pub fn changed(op: AtomicOp, old: u64) -> u64 {
    match op {
        AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        AtomicOp::CmpSwap { compare, swap } if old == compare => swap,
        AtomicOp::CmpSwap { .. } => old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_walked_from_any_offset() {
        let sge = |addr, length| Sge { addr, length, lkey: Lkey(1) };
        let list = [sge(10, 3), sge(50, 0), sge(20, 10)];
        let mut seen = Vec::new();
        for_parts(&list, 2, 3, |_, addr, part| {
            seen.push((addr, part));
            Ok(())
        })
        .expect("nothing fails");
        assert_eq!(seen, [(12, 0..1), (20, 1..3)]);
    }

    #[test]
    fn zeroes_end_where_they_say_and_know_wrong_keys() {
        let mut zeroes = Zeroes { size: 100, is_wrong: |key| key == 7, ..Zeroes::default() };
        let need = Access::REMOTE_WRITE;
        let mut out = vec![1];
        assert_eq!(zeroes.read(0, 1, 90, 10, need, &mut out), Ok(()));
        assert_eq!(out, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(zeroes.write(0, 1, 91, &out[1..], need), Err(AccessFault::Bounds));
        assert_eq!(zeroes.check(0, 1, u64::MAX, 1, need), Err(AccessFault::Bounds));
        assert_eq!(zeroes.invalidate(0, 7), Err(AccessFault::Key));
    }

    #[test]
    fn the_owner_fails_once_after_that_many_accesses() {
        let mut zeroes = Zeroes { until_fault: 1, fault: AccessFault::Gone, ..Zeroes::default() };
        let met: Vec<_> = (0..4).map(|_| zeroes.meet_owner()).collect();
        assert_eq!(met, [Ok(()), Err(AccessFault::Gone), Ok(()), Ok(())]);
    }

    #[test]
    #[should_panic(expected = "it was checked")]
    fn a_write_that_was_not_checked_is_found() {
        let mut zeroes = Zeroes { size: 8, writes_are_checked: true, ..Zeroes::default() };
        let _ = zeroes.write(0, 0, 4, &[0; 8], Access::REMOTE_WRITE);
    }
}
