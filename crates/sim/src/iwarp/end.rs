//! One end: a queue pair with the state of its program.

use std::collections::VecDeque;

use rdmux_testing::env::link;
use rdmux_transport::Time;
use rdmux_transport::iwarp::Qp;

use super::pipe::Pipe;
use crate::endpoint::{Expected, Process, RecvRecord, SendRecord};
use crate::env::{Processes, SimEnv};
use crate::memory::Mr;

/// One end: a queue pair with the state of its program.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qp: Qp,
    /// The process: its memory, and its shared receives, free and taken.
    pub(super) process: Process,
    /// The stream of the bytes that the end sends.
    pub(super) pipe: Pipe,
    /// Received bytes that are not consumed.
    pub(super) inbox: Vec<u8>,
    /// Posted receives, oldest first, unless they are shared.
    pub(super) recvs: VecDeque<RecvRecord>,
    /// Sends outstanding, oldest first.
    pub(super) sends: VecDeque<SendRecord>,
    /// Messages that the peer has posted for this end, oldest first.
    pub(super) expected: VecDeque<Expected>,
    /// Completed WRITEs that the peer may not have yet.
    pub(super) written: Vec<(u64, Mr)>,
    /// The memory for the peer's atomics, and the expected value of the peer's when all that was posted is done.
    pub(super) counter: Mr,
    pub(super) peer_counter: u64,
    pub(super) to_post: u32,
    pub(super) posted: u32,
    /// Whether this end may see errors, and whether a send has failed.
    pub(super) doomed: bool,
    pub(super) failed: bool,
    /// Whether a send has failed for a reason of its own: all others are flushed, before it and after it.
    pub(super) blamed: bool,
    /// Whether the end's program has disconnected. Everything that it had posted must be executed all the same.
    pub(super) left: bool,
    /// Whether the end was notified that the stream ended, and has closed it.
    pub(super) told: bool,
    pub(super) closed: bool,
    /// Whether the end does not read the stream because a message waits for a receive.
    pub(super) waits: bool,
    pub(super) awake: bool,
    pub(super) posting: bool,
    pub(super) timer: Time,
}

impl End {
    /// Calls the queue pair. Returns its output as well.
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
