//! The environment of a queue pair: the memory and the receives of the processes on its node.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rdmux_testing::env::TestEnv;
use rdmux_testing::memory::Memory;
use rdmux_transport::attr::Access;
use rdmux_transport::env::AccessFault;
use rdmux_transport::wr::Sge;

use crate::endpoint::{Process, index_of, process_of};
use crate::memory::Mr;

/// The environment of a queue pair.
pub(crate) type SimEnv<'a> = TestEnv<Processes<'a>>;

/// How other processes react to an XRC target.
#[derive(Debug)]
pub(crate) struct Owners<'a> {
    /// The probability that they are busy.
    pub(crate) busy: f64,
    /// The random number generator.
    pub(crate) rng: &'a mut ChaCha8Rng,
}

/// The processes of a node, the queue pair's own first.
#[derive(Debug)]
pub(crate) struct Processes<'a> {
    /// All processes.
    pub(crate) processes: &'a mut [Process],
    /// The reactions of other processes, for an XRC target.
    pub(crate) owners: Option<Owners<'a>>,
    /// How often the owner of memory was busy.
    pub(crate) met_busy: u64,
}

impl<'a> Processes<'a> {
    pub(crate) fn new(processes: &'a mut [Process], owners: Option<Owners<'a>>) -> Self {
        Self { processes, owners, met_busy: 0 }
    }
}

impl Memory for Processes<'_> {
    fn check(
        &self,
        process: u32,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), AccessFault> {
        self.processes[index_of(process)].memory.check(key, addr, len, need).map(|_| ())
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
        let memory = &self.processes[index_of(process)].memory;
        out.extend_from_slice(memory.read(key, addr, len.into(), need)?);
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
        self.processes[index_of(process)].memory.write(key, addr, data, need)
    }

    fn invalidate(&mut self, process: u32, key: u32) -> Result<(), AccessFault> {
        let mr = Mr { key, addr: 0, len: 0 };
        let bytes = self.processes[index_of(process)].memory.deregister(&mr);
        if bytes.is_empty() { Err(AccessFault::Key) } else { Ok(()) }
    }

    fn meet_owner(&mut self) -> Result<(), AccessFault> {
        if let Some(owners) = &mut self.owners
            && owners.rng.random_bool(owners.busy)
        {
            self.met_busy += 1;
            return Err(AccessFault::Busy);
        }
        Ok(())
    }

    fn has_queue(&self, srqn: u32) -> bool {
        self.owners.is_some() && process_of(srqn).is_some()
    }

    fn receive(&mut self, srqn: u32) -> Option<(u64, Vec<Sge>)> {
        let process = &mut self.processes[index_of(srqn)];
        let record = process.srq.pop_front()?;
        let (wr_id, sges) = (record.wr_id, record.sges.clone());
        process.srq_taken.insert(wr_id, record);
        Some((wr_id, sges))
    }
}
