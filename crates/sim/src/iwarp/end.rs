//! One end: a queue pair, and what its program knows.

use std::collections::VecDeque;

use rdmux_testing::env::link;
use rdmux_transport::Time;
use rdmux_transport::iwarp::Qp;

use super::pipe::Pipe;
use crate::endpoint::{Expected, Process, RecvRecord, SendRecord};
use crate::env::{Processes, SimEnv};
use crate::memory::Mr;

/// See the module.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qp: Qp,
    /// Its memory, and what is shared: receives that were not taken, and receives that were.
    pub(super) process: Process,
    /// What it sends.
    pub(super) pipe: Pipe,
    /// What arrived and was not taken.
    pub(super) inbox: Vec<u8>,
    /// Receives that were posted, oldest first, unless they are shared.
    pub(super) recvs: VecDeque<RecvRecord>,
    /// Sends outstanding, oldest first.
    pub(super) sends: VecDeque<SendRecord>,
    /// Messages that the peer has posted for this end, oldest first.
    pub(super) expected: VecDeque<Expected>,
    /// WRITEs that are complete here, and that the peer may not have yet.
    pub(super) written: Vec<(u64, Mr)>,
    /// What the peer may do atomics on, and what the peer's is when all that was posted is done.
    pub(super) counter: Mr,
    pub(super) peer_counter: u64,
    pub(super) to_post: u32,
    pub(super) posted: u32,
    /// Whether something allows this end to see errors, and whether a send has failed.
    pub(super) doomed: bool,
    pub(super) failed: bool,
    /// Whether one has failed for a reason of its own: the rest is flushed, before it and behind it.
    pub(super) blamed: bool,
    /// Whether its program has disconnected, and what it had posted must be carried out all the same.
    pub(super) left: bool,
    /// Whether it was told that the stream ended, and has closed it.
    pub(super) told: bool,
    pub(super) closed: bool,
    /// Whether it leaves the stream unread, for a message waits for a receive.
    pub(super) waits: bool,
    pub(super) awake: bool,
    pub(super) posting: bool,
    pub(super) timer: Time,
}

impl End {
    /// Gives the queue pair the floor. Returns what it did besides.
    pub(super) fn call<R>(
        &mut self,
        call: impl FnOnce(&mut Qp, &mut SimEnv<'_>) -> R,
    ) -> (R, SimEnv<'_>) {
        let processes = Processes::new(std::slice::from_mut(&mut self.process), None);
        let mut env = SimEnv::new(link(0, true), processes);
        env.stream = std::mem::take(&mut self.pipe.stream);
        let before = env.stream.bytes.len();
        let result = call(&mut self.qp, &mut env);
        assert!(
            self.pipe.end.is_none() || env.stream.bytes.len() == before,
            "bytes behind the end"
        );
        self.pipe.stream = std::mem::take(&mut env.stream);
        (result, env)
    }
}
