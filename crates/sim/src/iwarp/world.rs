//! The world: two ends and a stream on one clock, from the first post to the last completion.

use std::fmt;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_testing::env::Stream;
use rdmux_transport::attr::{Access, AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::env::Env;
use rdmux_transport::iwarp::{Direct, Qp, Rtr, StreamParams, Wish};
use rdmux_transport::{QpInit, Time, TxState};
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::rtr;

use super::end::End;
use super::pipe::Pipe;
use super::{IwFailure, IwScenario, IwStats, Mistake, Trouble};
use crate::agenda::Agenda;
use crate::check::ensure;
use crate::endpoint::Process;
use crate::env::SimEnv;
use crate::memory::mix;

/// The most bytes posted inline.
pub(super) const MAX_INLINE: u32 = 64;
/// The limits on virtual time and on events, beyond which a run counts as stuck.
const MOST_TIME: Duration = Duration::from_secs(1000);
const MOST_EVENTS: u64 = 20_000_000;

/// An event of the simulation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Bytes of an end arrive, or the end of its stream.
    Arrive(usize),
    /// An end may send.
    Wake(usize),
    /// A timer of an end may have expired.
    Timer(usize),
    /// A program posts sends.
    Post(usize),
    /// A program posts a receive.
    Refill(usize),
    /// An end processes data that waited for a receive.
    Again(usize),
    /// The trouble of the scenario.
    Trouble,
}

/// The state of the simulation.
pub(super) struct World {
    pub(super) scenario: IwScenario,
    pub(super) rng: ChaCha8Rng,
    pub(super) agenda: Agenda<Event>,
    pub(super) ends: [End; 2],
    pub(super) last_op: u64,
    pub(super) stats: IwStats,
    /// Whether the work is done and the connection is being closed.
    pub(super) ending: bool,
    /// Whether programs have gone to ERR because no events were pending.
    given_up: bool,
    /// The mistake that an end has made.
    pub(super) erred: Option<Mistake>,
    tracing: bool,
}

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = IwScenario::draw(&mut rng);
        let ends = [0, 1].map(|id| new_end(&scenario, id));
        let agenda = Agenda::default();
        let stats = IwStats::default();
        let (ending, given_up, erred) = (false, false, None);
        Self { scenario, rng, agenda, ends, last_op: 0, stats, ending, given_up, erred, tracing }
    }

    /// Runs the simulation to its end.
    pub(super) fn run(mut self, seed: u64) -> Result<IwStats, Box<IwFailure>> {
        let result = self.run_to_end();
        self.stats.seeds = 1;
        self.stats.virtual_time = self.agenda.now().since(Time::ZERO);
        match result {
            Ok(()) => Ok(self.stats),
            Err(what) => {
                let (at, scenario) = (self.agenda.now(), self.scenario);
                Err(Box::new(IwFailure { seed, at, what, scenario }))
            }
        }
    }

    fn run_to_end(&mut self) -> Result<(), String> {
        self.connect()?;
        let mut events = 0_u64;
        loop {
            while let Some(event) = self.agenda.next_event() {
                self.happen(event)?;
                events += 1;
                let late = self.agenda.now().since(Time::ZERO) > MOST_TIME || events > MOST_EVENTS;
                ensure!(!late, "no end after {events} events: {}", self.unfinished());
            }
            if self.ends.iter().all(|end| end.closed) {
                return self.check_end();
            }
            self.go_on()?;
        }
    }

    /// Handles an empty agenda: the work is done, or no end can continue.
    fn go_on(&mut self) -> Result<(), String> {
        let doomed = self.ends.iter().any(|end| end.doomed);
        let done = self.ends.iter().all(|end| {
            end.to_post == 0 && end.sends.is_empty() && (end.expected.is_empty() || end.doomed)
        });
        ensure!(done || doomed, "nothing happens any more: {}", self.unfinished());
        if !self.ending && done {
            if let (Some(mistake), None) = (self.erred, self.scenario.trouble) {
                return Err(format!("{mistake:?} did not end the stream: {}", self.unfinished()));
            }
            self.ending = true;
            let id = self.rng.random_range(0..2);
            return self.act(id, |qp, now, env| qp.shutdown(now, env));
        }
        let excused = !self.given_up && self.may_wait_forever();
        ensure!(excused, "nobody ends the stream: {}", self.unfinished());
        (self.given_up, self.ending) = (true, true);
        self.go_to_err(0)?;
        self.go_to_err(1)
    }

    /// Returns whether an end may wait for bytes that never come: the rest of a frame, or anything from a silent peer.
    fn may_wait_forever(&self) -> bool {
        match self.scenario.trouble {
            Some((_, Trouble::Silence(_))) => true,
            Some((_, Trouble::Flip(from) | Trouble::Noise(from))) => {
                !self.scenario.params.crc || !self.ends[1 - from].inbox.is_empty()
            }
            _ => false,
        }
    }

    fn connect(&mut self) -> Result<(), String> {
        let first = self.scenario.params;
        let second = StreamParams {
            initiator: false,
            tx_markers: first.rx_markers,
            rx_markers: first.tx_markers,
            ord: first.ird,
            ird: first.ord,
            ..first
        };
        for id in [0, 1] {
            let late = !self.scenario.receive_wait[id].is_zero();
            for _ in 0..self.scenario.depth {
                if late {
                    self.refill(id);
                } else {
                    self.post_receive(id)?;
                }
            }
        }
        for (id, params) in [(0, first), (1, second)] {
            self.ends[id].qp.set_receive_wait(self.scenario.receive_wait[id]);
            let mulpdu = self.scenario.mulpdu[id];
            self.act(id, |qp, now, env| qp.attach(now, &params, mulpdu, env))?
                .map_err(|e| format!("attach: {e}"))?;
            self.post_soon(id);
        }
        if first.rtr == Some(Rtr::Read) {
            let framing = Framing { crc: first.crc, markers: first.rx_markers };
            let answer = rtr::read_response(framing, &rtr::READ_REQUEST);
            self.ends[1].pipe.stream.bytes.extend(answer.iter());
            self.move_soon(1);
        }
        if let Some((at, _)) = self.scenario.trouble {
            self.agenda.after(at, Event::Trouble);
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive(from) => self.arrive(from),
            Event::Wake(id) => self.wake(id),
            Event::Timer(id) => self.timer(id),
            Event::Post(id) => self.post_some(id),
            Event::Refill(id) => self.post_receive(id),
            Event::Again(id) => self.look_again(id),
            Event::Trouble => self.trouble(),
        }
    }

    /// Calls a queue pair and executes its output.
    fn act<R>(
        &mut self,
        id: usize,
        call: impl FnOnce(&mut Qp, Time, &mut SimEnv<'_>) -> R,
    ) -> Result<R, String> {
        let now = self.agenda.now();
        let before = self.ends[id].pipe.stream.bytes.len();
        let (result, env) = self.ends[id].call(|qp, env| call(qp, now, env));
        let SimEnv { completions, events, .. } = env;
        let sent = self.ends[id].pipe.stream.bytes.len() - before;
        self.stats.carried += sent as u64;
        self.stats.fingerprint ^= mix(now.0 ^ (sent as u64) << 40 ^ id as u64);
        self.stats.events += events.len() as u64;
        for (side, completion) in &completions {
            self.completed(id, *side, completion)?;
        }
        self.follow_wish(id);
        if !self.ends[id].pipe.stream.bytes.is_empty() || self.ends[id].pipe.end.is_some() {
            self.move_soon(id);
        }
        let at = self.ends[id].qp.poll_timeout().filter(|_| !self.ends[id].closed);
        if let Some(at) = at
            && at < self.ends[id].timer
        {
            self.ends[id].timer = at;
            self.agenda.at(at, Event::Timer(id));
        }
        Ok(result)
    }

    fn follow_wish(&mut self, id: usize) {
        let wish = self.ends[id].qp.wish();
        let end = &mut self.ends[id];
        match wish {
            Wish::Shutdown | Wish::Close if end.pipe.end.is_none() => end.pipe.end = Some(true),
            Wish::Abort if !end.closed => {
                end.pipe.stream.bytes.clear();
                end.pipe.end = Some(false);
            }
            Wish::ReadOut => {
                // Bytes in flight do not count as received any more, and the stream ends even if the peer is silent.
                let peer = &mut self.ends[1 - id].pipe;
                if std::mem::take(&mut peer.silent) {
                    peer.stream.bytes.clear();
                }
                peer.end.get_or_insert(false);
                self.move_soon(1 - id);
            }
            _ => {}
        }
        let end = &mut self.ends[id];
        if !end.closed && matches!(wish, Wish::Close | Wish::Abort) {
            end.closed = true;
            match wish {
                Wish::Close => self.stats.ended += 1,
                _ => self.stats.reset += 1,
            }
            let peer = &mut self.ends[1 - id].pipe;
            peer.stream.broken = true;
            peer.stream.bytes.clear();
            self.trace(format_args!("end {id} is done with the stream: {wish:?}"));
            self.wake_soon(1 - id);
        }
    }

    fn arrive(&mut self, from: usize) -> Result<(), String> {
        let to = 1 - from;
        let waits = self.ends[to].waits;
        let pipe = &mut self.ends[from].pipe;
        pipe.moving = false;
        if pipe.silent || waits {
            return Ok(());
        }
        let most = self.rng.random_range(1..=self.scenario.chunk);
        let len = most.min(pipe.stream.bytes.len());
        if len == 0 {
            let Some(clean) = pipe.end else { return Ok(()) };
            if self.ends[to].told || self.ends[to].closed {
                return Ok(());
            }
            self.ends[to].told = true;
            self.trace(format_args!("end {to} hears of the end, clean: {clean}"));
            self.act(to, |qp, now, env| qp.handle_end(now, clean, env))?;
            self.wake_soon(to);
            return Ok(());
        }
        self.stats.arrivals += 1;
        let bytes: Vec<u8> = pipe.stream.bytes.drain(..len).collect();
        if std::mem::take(&mut pipe.stream.is_full) {
            self.wake_soon(from);
        }
        self.feed(to, &bytes)?;
        self.move_soon(from);
        self.wake_soon(to);
        Ok(())
    }

    /// Delivers bytes. Payload may be placed into memory directly.
    fn feed(&mut self, to: usize, bytes: &[u8]) -> Result<(), String> {
        let direct = self.ends[to].inbox.is_empty() && self.rng.random_bool(self.scenario.direct);
        let placed = if direct { self.place(to, bytes)? } else { 0 };
        self.ends[to].inbox.extend_from_slice(&bytes[placed..]);
        let inbox = std::mem::take(&mut self.ends[to].inbox);
        let used = self.act(to, |qp, now, env| qp.handle_bytes(now, &inbox, env))?;
        self.ends[to].inbox = inbox[used..].to_vec();
        if self.ends[to].qp.waits_for_receive() {
            // The rest of the stream is not read.
            self.ends[to].waits = true;
            self.stats.waits += 1;
            self.trace(format_args!("end {to} waits for a receive"));
        }
        Ok(())
    }

    /// Schedules processing of a message that may have waited for the receive that was posted.
    pub(super) fn look_again_soon(&mut self, id: usize) {
        if self.ends[id].waits {
            let delay = Duration::from_nanos(self.rng.random_range(0..2000));
            self.agenda.after(delay, Event::Again(id));
        }
    }

    fn look_again(&mut self, id: usize) -> Result<(), String> {
        if std::mem::take(&mut self.ends[id].waits) {
            self.feed(id, &[])?;
            self.move_soon(1 - id);
            self.wake_soon(id);
        }
        Ok(())
    }

    fn place(&mut self, to: usize, bytes: &[u8]) -> Result<usize, String> {
        let placed = self.act(to, |qp, now, env| {
            let Some(direct) = qp.direct() else { return 0 };
            let (done, len) = match direct {
                Direct::Local { sges, offset, len, .. } => {
                    let len = bytes.len().min(len as usize);
                    (env.scatter(sges, offset, &bytes[..len]), len)
                }
                Direct::Remote { rkey, va, len } => {
                    let len = bytes.len().min(len as usize);
                    (env.write_remote(rkey, va, &bytes[..len]), len)
                }
            };
            // The queue pair reports what cannot be placed.
            if done.is_err() {
                return 0;
            }
            qp.handle_placed(now, u32::try_from(len).expect("of one frame"), env);
            len
        })?;
        self.stats.placed += placed as u64;
        Ok(placed)
    }

    fn wake(&mut self, id: usize) -> Result<(), String> {
        self.ends[id].awake = false;
        if self.ends[id].closed {
            // For a queue pair without a stream the driver flushes what is posted.
            return self.act(id, |qp, now, env| qp.poll_transmit(now, 64, env)).map(|_| ());
        }
        let budget = self.rng.random_range(1..=64);
        let state = self.act(id, |qp, now, env| qp.poll_transmit(now, budget, env))?;
        if state == TxState::More {
            self.wake_soon(id);
        }
        Ok(())
    }

    fn timer(&mut self, id: usize) -> Result<(), String> {
        let now = self.agenda.now();
        if self.ends[id].timer > now || self.ends[id].closed {
            return Ok(());
        }
        self.ends[id].timer = Time::NEVER;
        if self.ends[id].qp.poll_timeout().is_some_and(|at| at <= now) {
            self.stats.timeouts += 1;
            self.trace(format_args!("end {id} times out"));
        }
        self.act(id, |qp, now, env| qp.handle_timeout(now, env))?;
        if !self.ends[id].qp.waits_for_receive() {
            self.look_again_soon(id);
        }
        self.wake_soon(id);
        Ok(())
    }

    fn trouble(&mut self) -> Result<(), String> {
        let Some((_, trouble)) = self.scenario.trouble else { return Ok(()) };
        self.trace(format_args!("trouble: {trouble:?}"));
        if let Trouble::Disconnect(id) = trouble {
            // Everything that it has posted is executed; the peer's operations may not be.
            self.ends[1 - id].doomed = true;
            (self.ends[id].to_post, self.ends[id].left) = (0, true);
            return self.act(id, |qp, now, env| qp.shutdown(now, env));
        }
        self.doom();
        let crc = self.scenario.params.crc;
        match trouble {
            Trouble::Reset => {
                for id in [0, 1] {
                    let pipe = &mut self.ends[id].pipe;
                    pipe.stream.bytes.clear();
                    (pipe.stream.broken, pipe.end) = (true, Some(false));
                    self.move_soon(id);
                }
            }
            Trouble::Flip(id) => {
                let bytes = &mut self.ends[id].pipe.stream.bytes;
                if !bytes.is_empty() {
                    let at = self.rng.random_range(0..bytes.len());
                    bytes[at] ^= 1 << self.rng.random_range(0..8);
                    self.ends[id].pipe.tainted = !crc;
                }
            }
            Trouble::Noise(id) => {
                let noise: Vec<u8> =
                    (0..self.rng.random_range(1..100)).map(|_| self.rng.random()).collect();
                let pipe = &mut self.ends[id].pipe;
                if pipe.end.is_none() && !pipe.stream.broken {
                    let at = self.rng.random_range(0..=pipe.stream.bytes.len());
                    let behind = pipe.stream.bytes.split_off(at);
                    pipe.stream.bytes.extend(noise);
                    pipe.stream.bytes.extend(behind);
                    pipe.tainted = !crc;
                    self.move_soon(id);
                }
            }
            Trouble::Silence(id) => self.ends[id].pipe.silent = true,
            Trouble::Err(id) => self.go_to_err(id)?,
            Trouble::Disconnect(_) => {}
        }
        Ok(())
    }

    fn go_to_err(&mut self, id: usize) -> Result<(), String> {
        self.ends[id].to_post = 0;
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        self.act(id, |qp, now, env| qp.modify(now, &attr, AttrMask::STATE, env))?
            .map_err(|e| format!("modify: {e}"))?;
        self.look_again_soon(id);
        self.wake_soon(id);
        Ok(())
    }

    /// Allows both ends to see errors from now on.
    pub(super) fn doom(&mut self) {
        self.ends.iter_mut().for_each(|end| end.doomed = true);
    }

    fn move_soon(&mut self, from: usize) {
        if !std::mem::replace(&mut self.ends[from].pipe.moving, true) {
            let stalls = self.rng.random_bool(self.scenario.stall);
            let delay = if stalls {
                Duration::from_millis(100)
            } else {
                self.scenario.delay.mul_f64(self.rng.random())
            };
            self.agenda.after(delay, Event::Arrive(from));
        }
    }

    fn wake_soon(&mut self, id: usize) {
        if !std::mem::replace(&mut self.ends[id].awake, true) {
            let delay = Duration::from_nanos(self.rng.random_range(0..2000));
            self.agenda.after(delay, Event::Wake(id));
        }
    }

    /// Schedules the program's next post, if it has operations left.
    pub(super) fn post_soon(&mut self, id: usize) {
        if self.ends[id].to_post > 0 && !std::mem::replace(&mut self.ends[id].posting, true) {
            let delay = Duration::from_nanos(self.rng.random_range(0..50_000));
            self.agenda.after(delay, Event::Post(id));
        }
    }

    fn post_some(&mut self, id: usize) -> Result<(), String> {
        self.ends[id].posting = false;
        let mut room = true;
        for _ in 0..self.rng.random_range(1..=8) {
            room = self.post_next(id)?;
        }
        self.wake_soon(id);
        if room {
            self.post_soon(id);
        }
        Ok(())
    }

    /// Schedules the next receive of an end.
    pub(super) fn refill(&mut self, id: usize) {
        // If messages wait, the program may be late.
        let late = !self.scenario.receive_wait[id].is_zero();
        let most = if late { 5_000_000 } else { 100_000 };
        let delay = Duration::from_nanos(self.rng.random_range(0..most));
        self.agenda.after(delay, Event::Refill(id));
    }

    /// Checks the state after the stream has ended.
    fn check_end(&mut self) -> Result<(), String> {
        for id in [0, 1] {
            self.act(id, |qp, now, env| qp.poll_transmit(now, 64, env))?;
            self.last_completion_is_out(id)?;
            let end = &self.ends[id];
            ensure!(end.qp.state() == QpState::Err, "end {id} is in {:?}", end.qp.state());
            ensure!(end.qp.poll_timeout().is_none(), "end {id}: a timer runs");
            let left = end.recvs.len() + end.process.srq_taken.len();
            ensure!(left == 0, "end {id}: {left} receives are left");
        }
        if let (Some(mistake), None) = (self.erred, self.scenario.trouble) {
            self.stats.mistakes[mistake as usize] += 1;
        }
        if self.ends.iter().any(|end| end.doomed) {
            return Ok(());
        }
        for id in [0, 1] {
            self.check_written(id)?;
            let counter = self.ends[1 - id].counter;
            let there = self.ends[1 - id].process.memory.bytes(&counter).to_vec();
            let want = self.ends[id].peer_counter.to_ne_bytes();
            ensure!(there == want, "end {id}: the counter is {there:02x?}, not {want:02x?}");
        }
        Ok(())
    }

    fn unfinished(&self) -> String {
        let tell = |end: &End| {
            format!(
                "{:?} with {} sends, {} to post, {} to come, wish {:?}, {} bytes on their way",
                end.qp.state(),
                end.sends.len(),
                end.to_post,
                end.expected.len(),
                end.qp.wish(),
                end.pipe.stream.bytes.len()
            )
        };
        format!("{}; {}", tell(&self.ends[0]), tell(&self.ends[1]))
    }

    pub(super) fn trace(&self, what: fmt::Arguments<'_>) {
        if self.tracing {
            eprintln!("{:>12} {what}", self.agenda.now().0);
        }
    }
}

fn new_end(scenario: &IwScenario, id: usize) -> End {
    let caps = QpCaps {
        max_send_wr: scenario.depth,
        max_recv_wr: scenario.depth + 1,
        max_send_sge: 4,
        max_recv_sge: 2,
        max_inline_data: MAX_INLINE,
    };
    let init = QpInit {
        qpn: Qpn::new(if id == 0 { 1 } else { 2 }),
        qp_type: QpType::Rc,
        caps,
        sq_sig_all: scenario.signal_all,
        has_srq: scenario.shared[id],
    };
    let mut process = Process::default();
    let counter = process.memory.register(vec![0; 8], Access::REMOTE_ATOMIC);
    let mut end = End {
        qp: Qp::new(&init),
        process,
        pipe: Pipe {
            stream: Stream { room: scenario.room[id], ..Stream::default() },
            ..Pipe::default()
        },
        inbox: Vec::new(),
        recvs: Default::default(),
        sends: Default::default(),
        expected: Default::default(),
        written: Vec::new(),
        counter,
        peer_counter: 0,
        to_post: scenario.ops[id],
        posted: 0,
        doomed: false,
        failed: false,
        blamed: false,
        left: false,
        told: false,
        closed: false,
        waits: false,
        awake: false,
        posting: false,
        timer: Time::NEVER,
    };
    let attr = QpAttr {
        state: QpState::Init,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
    let (modified, _) = end.call(|qp, env| qp.modify(Time::ZERO, &attr, mask, env));
    modified.expect("from RESET to INIT");
    end
}
