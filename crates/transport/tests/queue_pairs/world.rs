//! The memory of a queue pair under test.

use std::collections::{BTreeMap, VecDeque};

use rdmux_testing::env::TestEnv;
use rdmux_testing::memory::Memory;
use rdmux_testing::qp::ALL_ACCESS;
use rdmux_transport::attr::Access;
use rdmux_transport::env::AccessFault;
use rdmux_transport::wr::Sge;

use super::{KEY, LOSSY, MEMORY};

/// The environment of a queue pair, with memory of one region.
pub(crate) type World = TestEnv<OneRegion>;

pub(crate) fn world() -> World {
    let mut world = TestEnv::new(LOSSY, OneRegion::default());
    world.by_reference.rkey = KEY;
    world
}

/// One region that starts at address 0 and that all processes see, each with a key of [`KEY`] plus the process number.
#[derive(Debug)]
pub(crate) struct OneRegion {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rights: Access,
    /// Whether every address exists, as an alias of the same bytes.
    pub(crate) endless: bool,
    /// The error of every access to memory, if any.
    pub(crate) refuses: Option<AccessFault>,
    /// Number of accesses for a peer that succeed before one meets a busy owner.
    pub(crate) until_busy: usize,
    /// The queue pair's own shared receive queue.
    pub(crate) srq: VecDeque<(u64, Vec<Sge>)>,
    /// The shared receive queues that XRC may name.
    pub(crate) srqs: BTreeMap<u32, VecDeque<(u64, Vec<Sge>)>>,
}

impl Default for OneRegion {
    fn default() -> Self {
        Self {
            bytes: vec![0; MEMORY],
            rights: ALL_ACCESS,
            endless: false,
            refuses: None,
            until_busy: usize::MAX,
            srq: VecDeque::new(),
            srqs: BTreeMap::new(),
        }
    }
}

impl OneRegion {
    /// Fills the memory with bytes that depend on the position and the seed.
    pub(crate) fn fill(&mut self, at: usize, len: usize, seed: u8) {
        for (i, b) in self.bytes[at..at + len].iter_mut().enumerate() {
            *b = (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed);
        }
    }

    /// Returns the index in `bytes` of an address.
    fn at(&self, addr: u64) -> usize {
        if self.endless { 0 } else { addr as usize }
    }
}

impl Memory for OneRegion {
    fn check(
        &self,
        process: u32,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), AccessFault> {
        if let Some(fault) = self.refuses {
            return Err(fault);
        }
        if key != KEY + process {
            return Err(AccessFault::Key);
        }
        if !self.rights.contains(need) {
            return Err(AccessFault::Rights);
        }
        let end = addr.checked_add(len).ok_or(AccessFault::Bounds)?;
        let inside = self.endless || end <= self.bytes.len() as u64;
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
        self.check(process, key, addr, len.into(), need)?;
        let at = self.at(addr);
        out.extend_from_slice(&self.bytes[at..at + len as usize]);
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
        self.check(process, key, addr, data.len() as u64, need)?;
        let at = self.at(addr);
        self.bytes[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    /// Any key except that of the region can be invalidated.
    fn invalidate(&mut self, _: u32, key: u32) -> Result<(), AccessFault> {
        if key == KEY { Err(AccessFault::Key) } else { Ok(()) }
    }

    fn meet_owner(&mut self) -> Result<(), AccessFault> {
        let busy = self.until_busy == 0;
        self.until_busy = self.until_busy.wrapping_sub(1);
        if busy { Err(AccessFault::Busy) } else { Ok(()) }
    }

    fn has_queue(&self, srqn: u32) -> bool {
        self.srqs.contains_key(&srqn)
    }

    fn receive(&mut self, srqn: u32) -> Option<(u64, Vec<Sge>)> {
        self.srqs.get_mut(&srqn).unwrap_or(&mut self.srq).pop_front()
    }
}
