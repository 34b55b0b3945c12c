//! The engine: receives packets from wires, drives the state machines, and sends packets.
//!
//! The calling thread drives it: a thread that posts sends what it posted, and a thread that polls an empty completion queue runs
//! a round of [`Engine::poll`]. The device's own thread ([`background`]) runs rounds when no other thread does. Rounds exclude
//! each other; posting needs only the queue pair's lock.
//!
//! Locks are acquired in this order: events of the service, the opening of wires, a round, the table of queue pairs, a queue
//! pair, the table of regions, a completion queue. From the round on, none is held during a request to the service. The first two
//! may be, and so may the lock for changes of multicast groups, which is acquired before a round: the service waits for no
//! process.

pub(crate) mod background;
pub(crate) mod capture;
pub(crate) mod detour;
pub(crate) mod device;
pub(crate) mod drive;
pub(crate) mod env;
mod loss;
pub(crate) mod machine;
mod multicast;
pub(crate) mod qp;
pub(crate) mod receive;
pub(crate) mod recent;
mod spin_time;
mod throughput;
mod timers;
mod wait;
pub(crate) mod wire;
pub(crate) mod xrc;

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rdmux_link::guarded;
use rdmux_link::spin_wait::yield_or_sleep;
use rdmux_link::wire::{Arrival, Trailer};
use rdmux_transport::attr::{AttrMask, QpAttr, QpState};
use rdmux_transport::{Time, TxState};
use rdmux_wire::Qpn;

use self::capture::Capture;
use self::detour::Detour;
use self::drive::Bound;
use self::multicast::Groups;
use self::spin_time::SpinTime;
use self::throughput::Throughput;
use self::timers::{Backlog, Timers};
use self::wait::Waiter;
use self::wire::{Inbound, Neighbours, Wires};
use crate::engine::device::{Device, QpTable};
use crate::engine::qp::QpCore;
use crate::objects::brief;
use crate::objects::control::{Control, ControlError, ControlEvent, slot_of};
use crate::objects::cq::Promises;
use crate::objects::error::VerbsError;
use crate::objects::event::Raised;

/// The state of rounds.
struct Round {
    inbound: Inbound,
    /// Queue pairs that owed an ACK when the round began.
    owed: Vec<Qpn>,
    /// Time when the sockets were last polled.
    looked: Time,
    /// Time when a polling thread last found work.
    found: Time,
    /// Whether a polling thread has found work since, without reading the clock.
    busy: bool,
    /// Polls since the clock was last read.
    polls: u32,
    /// Rounds since the last full round.
    shorts: u32,
    backlog: Backlog,
}

/// A round that received no more packets than this may leave its ACKs to the next: a reply that the program posts meanwhile is
/// sent in the same system call.
const FEW: usize = 4;
/// Number of polls of a process without sockets between two reads of the clock: one or two microseconds. No timer is that short.
const CLOCK_POLLS: u32 = 128;
/// Number of polls of such a process for which an ACK is delayed so that it can be piggybacked: a hundred nanoseconds.
const ACK_POLLS: u32 = 8;
/// Number of rounds that poll only neighbours before one runs timers, too: some ten microseconds.
const FULL_ROUND: u32 = 64;
/// The shortest time between polls of the sockets, which are system calls: a thread that polls several queues in turn need not
/// pay for each.
const SOCKET_GAP: Duration = Duration::from_nanos(250);
/// Number of additional polls that a poll with work counts for, and each message that it received from a neighbour: handling it
/// takes time in which a program that has nothing else to do would have polled.
const FRUITFUL: u64 = 16;
/// Number of times that a round handles the same kind of work before other kinds get their turn.
const TURNS: usize = 64;

/// The table of queue pairs in a round, locked when a queue pair is first looked up: a round that finds no work acquires no lock
/// that other threads use.
struct Table<'a> {
    table: &'a RwLock<QpTable>,
    locked: OnceCell<RwLockReadGuard<'a, QpTable>>,
}

impl<'a> Table<'a> {
    fn of(device: &'a Device) -> Self {
        Self { table: device.qps(), locked: OnceCell::new() }
    }
}

impl std::ops::Deref for Table<'_> {
    type Target = QpTable;

    #[inline]
    fn deref(&self) -> &QpTable {
        self.locked.get_or_init(|| self.table.read())
    }
}

/// The engine; see the module.
pub(crate) struct Engine {
    round: brief::Mutex<Round>,
    wires: Wires,
    groups: Groups,
    timers: Timers,
    capture: Capture,
    detour: Detour,
    loss: loss::Loss,
    /// Queue pairs that have more to send than they could so far.
    pending: Mutex<VecDeque<Qpn>>,
    /// Queue pairs that owe an ACK.
    owed: Mutex<Vec<Qpn>>,
    /// Held while events of the service are processed.
    told: Mutex<()>,
    /// Whether `pending`, `owed` or the lists of streams may have entries: lets a poll check without their locks.
    queued: AtomicBool,
    polls: AtomicU64,
    spin_time: SpinTime,
    throughput: Throughput,
    /// See [`changes`](Self::changes).
    changes: AtomicU64,
    /// The count of armed completion queues.
    promises: Arc<Promises>,
    waiter: Arc<Waiter>,
    stopped: AtomicBool,
    /// Whether the program drives the device ([`drive`](Self::drive)), so that no thread does.
    driven: bool,
    /// Whether messages go through the hub.
    by_hub: AtomicBool,
}

impl Engine {
    pub(crate) fn new(control: &dyn Control, driven: bool) -> Result<Self, VerbsError> {
        let waiter = Waiter::new(control).map_err(VerbsError::os("open the device"))?;
        let inbound = Inbound::new(&waiter).map_err(VerbsError::os("open the device"))?;
        Ok(Self {
            round: brief::Mutex::new(Round {
                inbound,
                owed: Vec::new(),
                looked: Time(0),
                found: Time(0),
                busy: false,
                polls: 0,
                shorts: 0,
                backlog: Backlog::default(),
            }),
            wires: Wires::default(),
            groups: Groups::default(),
            timers: Timers::new(),
            capture: Capture::default(),
            detour: Detour::default(),
            loss: loss::Loss::of_environment().map_err(VerbsError::os("open the device"))?,
            pending: Mutex::default(),
            owed: Mutex::default(),
            told: Mutex::new(()),
            queued: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            spin_time: SpinTime::new(),
            throughput: Throughput::default(),
            changes: AtomicU64::new(0),
            promises: Arc::default(),
            waiter: Arc::new(waiter),
            stopped: AtomicBool::new(false),
            driven,
            by_hub: AtomicBool::new(false),
        })
    }

    /// Returns the multicast groups that the device is attached to.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }
    /// Returns the processes that are connected by rings.
    pub(crate) fn neighbours(&self) -> &Neighbours {
        &self.wires.neighbours
    }
    pub(crate) fn capture(&self) -> &Capture {
        &self.capture
    }
    /// Returns the reasons for which packets between processes of this host may not take shortcuts.
    #[inline]
    pub(crate) fn detour(&self) -> &Detour {
        &self.detour
    }
    /// Returns the count of armed completion queues.
    pub(crate) fn promises(&self) -> &Arc<Promises> {
        &self.promises
    }
    /// Returns the descriptor that is readable when [`drive`](Self::drive) has work.
    pub(crate) fn drive_fd(&self) -> BorrowedFd<'_> {
        self.waiter.readable()
    }
    fn waiter(&self) -> Arc<Waiter> {
        self.waiter.clone()
    }

    /// Invalidates the memory that rounds have cached, and waits until no thread uses it. Called when a region has been changed
    /// or removed.
    pub(crate) fn forget_memory(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.inbound(Inbound::forget_memory);
    }

    /// Returns how often a region was changed or removed. A thread that sees the same number before and after a read has read
    /// memory that was registered throughout.
    #[inline]
    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns whether no work is visible without the clock or a system call.
    fn is_quiet(&self, round: &Round) -> bool {
        !self.queued.load(Ordering::Acquire) && round.inbound.is_quiet()
    }

    /// Runs a round, if no other thread does. Called by threads that poll: often, and mostly without finding work, so the first
    /// check is cheap.
    pub(crate) fn poll(&self, device: &Arc<Device>) {
        if self.driven {
            return;
        }
        self.count_polls(1);
        // Checked first: trying to acquire a lock that is held takes its cache line from the holder.
        if self.round.is_locked() {
            return leave_to_other();
        }
        let Some(mut round) = self.round.try_lock() else { return leave_to_other() };
        let quiet = self.is_quiet(&round);
        round.polls += 1;
        let owes = !round.owed.is_empty();
        if !round.inbound.has_descriptors() {
            let soon = if owes { ACK_POLLS } else { CLOCK_POLLS };
            if quiet & (round.polls < soon) {
                return;
            }
            if !quiet || owes {
                round.busy |= !quiet;
                return self.run_short_round(device, &mut round);
            }
        }
        let quiet = quiet && !owes;
        let now = device.now();
        if std::mem::take(&mut round.busy) {
            round.found = now;
        }
        if quiet && now.since(round.looked) < SOCKET_GAP {
            return;
        }
        if self.run_round(device, &mut round, now) != 0 {
            self.count_polls(FRUITFUL);
            round.found = now;
        } else if self.by_hub.load(Ordering::Relaxed) {
            drop(round);
            yield_or_sleep();
        } else if self.spin_time.is_over(now, round.found) {
            drop(round);
            self.give_way(device, now);
            self.spin_time.yielded(now, device.now());
        }
    }

    /// Yields the processor to other threads, or sleeps briefly.
    fn give_way(&self, device: &Device, now: Time) {
        if self.throughput.is_high(device.counters(), now) {
            std::thread::yield_now();
        } else {
            yield_or_sleep();
        }
    }

    /// Counts polls. No thread relies on the exact count, only on seeing it change.
    fn count_polls(&self, n: u64) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Records that messages of this device are sent through the hub: a third thread must get its turn for each.
    pub(crate) fn goes_by_hub(&self) {
        self.by_hub.store(true, Ordering::Relaxed);
    }

    /// Runs rounds until nothing more arrives and no ACK is owed. Called by the background thread, and when no thread will poll
    /// again.
    pub(crate) fn drain(&self, device: &Arc<Device>) {
        for turn in 0..TURNS {
            let mut round = self.round.lock();
            // Later arrivals wake the program that drives the device, whereas the background thread usually checks once more.
            let only_more = self.driven && turn > 0;
            // The received InfiniBand packets may be parts of larger ones.
            if self.run_round_of(device, &mut round, device.now(), only_more) == 0
                && !round.inbound.may_have_more()
            {
                break;
            }
        }
        // Arrivals are processed before a timer concludes that nothing has arrived.
        let mut round = self.round.lock();
        let now = device.now();
        self.run_timers(device, &Table::of(device), now);
        self.flush_acks(device, &mut round, now);
        round.inbound.tell(device);
        self.wires.neighbours.tell(device);
    }

    /// Runs a round. Returns how many packets arrived.
    fn round(&self, device: &Arc<Device>) -> usize {
        let mut round = self.round.lock();
        self.run_round(device, &mut round, device.now())
    }

    /// Runs a round that polls neighbours only, for a process without sockets. A full round is run when other work may be
    /// pending.
    fn run_short_round(&self, device: &Arc<Device>, round: &mut Round) {
        let now = device.coarse_now();
        round.shorts += 1;
        if round.shorts >= FULL_ROUND || self.queued.load(Ordering::Acquire) {
            round.shorts = 0;
            self.run_round(device, round, now);
            return;
        }
        guarded::keep(now.0);
        round.polls = 0;
        let owed = round.owed.len();
        let received = round.inbound.receive_near(device, now, &mut round.owed);
        self.count_polls(FRUITFUL * received as u64);
        device.xrc().flush(device);
        if received > FEW {
            self.flush_acks(device, round, now);
        } else if owed != 0 {
            flush_acks(device, round, owed, now);
        }
    }

    /// Processes arrivals, runs timers and transmits what is pending. Returns how many packets arrived.
    fn run_round(&self, device: &Arc<Device>, round: &mut Round, now: Time) -> usize {
        self.run_round_of(device, round, now, false)
    }

    /// Runs a round like [`run_round`](Self::run_round). With `only_more`, receives only from wires that may have more packets
    /// than the last round took.
    fn run_round_of(
        &self,
        device: &Arc<Device>,
        round: &mut Round,
        now: Time,
        only_more: bool,
    ) -> usize {
        guarded::keep(now.0);
        let hub = device.xrc().is_hub();
        if hub {
            self.wires.late_wakes.hold();
        }
        round.polls = 0;
        // Queue pairs that are queued from here on are left to the next round.
        let queued = self.queued.load(Ordering::Acquire);
        if queued {
            self.queued.store(false, Ordering::Release);
            round.owed.append(&mut self.owed.lock());
        }
        let owed = round.owed.len();
        // Sockets first: an ACK arrives by a socket, while the answer that was sent after it may come from the hub.
        let mut received =
            self.receive_packets(device, &Table::of(device), &mut round.inbound, only_more);
        received += round.inbound.receive_near(device, now, &mut round.owed);
        let table = Table::of(device);
        received += self.receive_streams(device, &table, &mut round.inbound);
        round.looked = now;
        let more = received >= wire::inbound::MOST || round.inbound.may_have_more();
        if round.backlog.is_taken_in(more) {
            self.run_timers(device, &table, now);
        }
        device.xrc().flush(device);
        let queued = queued || self.queued.load(Ordering::Acquire);
        if queued {
            self.run_pending(device, &table);
        }
        let flushed = if received > FEW { round.owed.len() } else { owed };
        drop(table);
        flush_acks(device, round, flushed, now);
        let late = if hub { self.wires.late_wakes.take() } else { Vec::new() };
        if received > FEW || !late.is_empty() {
            self.flush_acks(device, round, now);
        }
        // The bell fails only for a process that closed its end, which is then not woken.
        late.iter().for_each(|bell| drop(bell.ring()));
        if queued {
            self.tend_streams(device, &mut round.inbound);
        }
        received
    }

    fn run_timers(&self, device: &Arc<Device>, table: &Table<'_>, now: Time) {
        while let Some((at, qpn)) = self.timers.take_due(now) {
            with_qp(device, table, qpn, |bound| {
                if !bound.driven().armed.came_up(at) {
                    return;
                }
                if bound.machine().poll_timeout().is_some_and(|at| at <= now) {
                    bound.run(|machine, env| machine.handle_timeout(now, env));
                    bound.transmit();
                } else {
                    bound.schedule();
                }
            });
        }
    }

    fn run_pending(&self, device: &Arc<Device>, table: &Table<'_>) {
        let waiting = self.pending.lock().len();
        for _ in 0..waiting.min(TURNS) {
            let Some(qpn) = self.pending.lock().pop_front() else { break };
            with_qp(device, table, qpn, |bound| {
                bound.driven().queued = false;
                bound.transmit();
            });
        }
        if waiting > TURNS {
            self.queued.store(true, Ordering::Release);
        }
    }

    /// Sends all ACKs that are owed.
    fn flush_acks(&self, device: &Arc<Device>, round: &mut Round, now: Time) {
        round.owed.append(&mut self.owed.lock());
        flush_acks(device, round, round.owed.len(), now);
    }

    /// Sends the ACKs that are owed, unless another thread runs a round.
    pub(crate) fn acknowledge(&self, device: &Arc<Device>) {
        if let Some(mut round) = self.round.try_lock()
            && (!round.owed.is_empty() || self.queued.load(Ordering::Acquire))
        {
            self.flush_acks(device, &mut round, device.now());
        }
    }

    /// Queues a queue pair that has more to send, when it is its turn or when there is room.
    pub(crate) fn queue(&self, qpn: Qpn) {
        self.pending.lock().push_back(qpn);
        self.queued.store(true, Ordering::Release);
        self.wake_sleeper();
    }

    /// Records that a queue pair owes an ACK. The program thread that took the packet may never poll again.
    pub(crate) fn owe_ack(&self, qpn: Qpn) {
        self.owed.lock().push(qpn);
        self.queued.store(true, Ordering::Release);
        self.wake_sleeper();
    }

    /// Arms a timer for a queue pair.
    pub(crate) fn arm(&self, at: Time, qpn: Qpn) {
        if self.timers.arm(at, qpn) {
            self.wake_sleeper();
        }
    }

    /// Wakes the background thread if it sleeps without knowing of the work just queued.
    pub(crate) fn wake_sleeper(&self) {
        fence(Ordering::SeqCst);
        self.waiter.wake_if_asleep();
    }

    /// Prepares for the program's sleep: from now on the background thread must receive packets.
    pub(crate) fn expect_sleep(&self) {
        fence(Ordering::SeqCst);
        self.waiter.wake_if_ticking();
    }
    fn somebody_waits(&self) -> bool {
        self.promises.any()
    }
    fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }
    /// Returns whether a thread runs a round.
    fn is_in_round(&self) -> bool {
        self.round.is_locked()
    }

    /// Returns how long the background thread may sleep. `has_room_wakeup` is whether it is woken when the queue pairs that have more
    /// to send have room.
    fn deadline(&self, device: &Device, has_room_wakeup: bool) -> Option<Duration> {
        if self.has_resumed() || self.has_ended() {
            return Some(Duration::ZERO);
        }
        // The remaining entries may have found no room, for example because a peer is stopped.
        let waits = !has_room_wakeup && !self.pending.lock().is_empty()
            || !self.owed.lock().is_empty()
            || !device.has_failed() && device.xrc().is_waiting();
        let retry = waits.then_some(background::RETRY);
        let timer = self.timers.earliest().map(|at| at.since(device.now()));
        retry.into_iter().chain(timer).min()
    }

    /// Removes a queue pair that is being destroyed. List entries with its number are ignored when their turn comes.
    pub(crate) fn forget(&self, device: &Device, qp: &QpCore) {
        let mut driven = qp.state.lock();
        wire::direct::hide(device, qp, &driven.path);
        self.close_path(qp.qpn, &mut driven.path);
        drop(driven);
        self.inbound(|inbound| inbound.forget_qp(qp.qpn));
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.waiter.wake();
    }
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Processes the events of the service.
    pub(crate) fn control_events(&self, device: &Arc<Device>) {
        // A thread that waits here finds earlier events processed.
        let _turn = self.told.lock();
        loop {
            match device.control().poll_event() {
                Ok(Some(event)) => self.control_event(device, event),
                Ok(None) => return,
                Err(error) => {
                    if device.fail() {
                        self.device_fatal(device, &error);
                    }
                    return;
                }
            }
        }
    }

    fn control_event(&self, device: &Arc<Device>, event: ControlEvent) {
        match event {
            ControlEvent::PeerGone { slot } => self.peer_gone(device, slot),
            ControlEvent::Ports { ports, events } => {
                let opening = self.follow_addresses(device, &ports);
                let changed = device.set_ports(ports, &events);
                drop(opening);
                if changed {
                    self.show_pkeys(device);
                }
            }
            ControlEvent::Capture(fd) => {
                self.detour.set_captured(fd.is_some());
                self.capture.set(fd);
            }
            ControlEvent::Target { qpn, event } => device.xrc().raise(device, qpn, event),
            ControlEvent::Stray { src, dst, bytes } => {
                let (icrc, tos, ttl) = (Trailer::Ip(0), None, None);
                let arrival = Arrival { src, dst, bytes: &bytes, icrc, tos, ttl, ib: None };
                self.deliver(device, &device.qps().read(), std::iter::once(arrival));
            }
            event => self.wire_event(device, event),
        }
    }

    /// Publishes P_Keys that have changed: peers that access this process's memory read those of open queue pairs.
    fn show_pkeys(&self, device: &Arc<Device>) {
        let table = device.qps().read();
        for core in table.iter() {
            Bound::lock(device, core).show_again();
        }
    }

    /// Handles the end of a process of this host, or of one of another host with rings to this process: reliable queue pairs
    /// connected to it will be flushed. Messages and acknowledgements that it sent before count.
    fn peer_gone(&self, device: &Arc<Device>, slot: u16) {
        self.drain(device);
        self.take_rest(device, slot);
        let gone = self.wires.neighbours.find(slot);
        let table = device.qps().read();
        for core in table.iter() {
            let mut bound = Bound::lock(device, core);
            let attr = bound.machine().attr();
            let connected = attr.state >= QpState::Rtr && core.is_connected();
            let by_ring = bound.driven().path.neighbour().zip(gone.as_ref());
            let is_its = by_ring.is_some_and(|(own, gone)| Arc::ptr_eq(own, gone));
            let here = slot_of(attr.dest_qpn) == slot && device.is_own(&attr.av);
            if connected && (is_its || here) {
                let now = device.now();
                bound.machine().peer_gone(now);
                bound.schedule();
            }
        }
        drop(table);
        self.wires.neighbours.remove(device, slot);
    }

    /// Processes all messages that a process sent before it ended, however many.
    fn take_rest(&self, device: &Arc<Device>, slot: u16) {
        let mut round = self.round.lock();
        let now = device.now();
        let Round { inbound, owed, .. } = &mut *round;
        inbound.receive_rest(device, slot, now, owed);
        device.xrc().flush(device);
        self.flush_acks(device, &mut round, now);
    }

    /// Flushes all queue pairs and informs the program, because the service is gone.
    fn device_fatal(&self, device: &Arc<Device>, error: &ControlError) {
        tracing::info!(%error, "the device failed");
        for core in device.qps().read().iter() {
            let mut bound = Bound::lock(device, core);
            if bound.machine().state() != QpState::Reset {
                let attr = QpAttr { state: QpState::Err, ..bound.machine().attr() };
                // Every other state permits the transition to ERR.
                let _ = bound.modify(&attr, AttrMask::STATE, None, None);
                bound.schedule();
            }
        }
        device.raise(Raised::DeviceFatal);
    }

    /// Releases resources after the service is gone: the next service needs the port that the sockets are bound to, and the
    /// closed notification descriptor would keep the thread awake.
    fn let_go(&self, device: &Arc<Device>) {
        self.waiter.service_gone();
        let cores: Vec<_> = device.qps().read().iter().cloned().collect();
        cores.iter().for_each(|core| self.forget(device, core));
        self.close_wires();
    }
}

/// Yields to the other thread of the process that runs a round, and that may be waiting for this processor. A long yield only
/// means that the other thread works, so it is no reason to sleep: a thread that sleeps between its polls may wake on any
/// processor, even on that where the other copies a long message. Out of line: a poll that finds no work is some hundred
/// instructions.
#[cold]
#[inline(never)]
fn leave_to_other() {
    std::thread::yield_now();
}

fn with_qp(device: &Arc<Device>, table: &QpTable, qpn: Qpn, f: impl FnOnce(&mut Bound<'_>)) {
    if let Some(core) = table.get(qpn) {
        f(&mut Bound::lock(device, core));
    }
}

/// Sends the ACKs of the first queue pairs that owe one, unless they have been piggybacked meanwhile, as most are. ACKs that find
/// no room stay on the list.
fn flush_acks(device: &Arc<Device>, round: &mut Round, count: usize, now: Time) {
    let Round { inbound, owed, .. } = round;
    for at in 0..count {
        let qpn = owed[at];
        if let Some((core, _)) = inbound.recent().get(device, qpn)
            && core.owed.is_still()
        {
            let mut bound = Bound::lock(device, core);
            core.owed.note(false);
            bound.run(|machine, env| machine.flush_ack(now, env));
            if bound.schedule_round(TxState::Idle) && core.owed.list() {
                owed.push(qpn);
            }
        }
    }
    owed.drain(..count);
}

/// Checks the environment variables that a device reads: `$RDMUX_LOSS` and `$RDMUX_PATIENCE`.
///
/// # Errors
/// The variable that is invalid, and its permitted values.
pub fn check_environment() -> Result<(), String> {
    loss::Loss::of_environment().map_err(|e| e.to_string())?;
    SpinTime::of_environment().map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::background::RETRY;
    use super::drive::Bound;
    use crate::Cq;
    use crate::lab::{Lab, PLAIN, pair, stream_pair};
    use crate::objects::control::SLOT_QPS;
    use rdmux_transport::attr::QpType;
    use rdmux_transport::wr::{Completion, RecvWr};

    #[test]
    fn idle_round_takes_no_qp_or_region_table_lock() {
        for same_host in [false, true] {
            let (node, _peer) = pair(QpType::Rc, same_host, 8);
            let _held = (node.device.qps().write(), node.device.regions().write());
            for _ in 0..100 {
                assert_eq!(node.device.engine().round(&node.device), 0);
                assert_eq!(node.cq.poll(&mut [Completion::EMPTY]), 0);
            }
        }
    }

    #[test]
    fn round_hands_the_qp_lock_over_to_a_waiting_thread() {
        let (node, _peer) = pair(QpType::Rc, true, 8);
        let (qp, state) = (&node.qp, &node.qp.core.state);
        // The waiter may try in the moment between the release and the hand-over, but not always.
        while state.handovers() == 0 {
            std::thread::scope(|scope| {
                // As in a round; no other thread of this test holds it for long.
                let bound = Bound::lock(&node.device, &qp.core);
                // The receive queue may be full by then.
                scope.spawn(|| drop(qp.post_recv(&RecvWr { wr_id: 1, sges: &[] })));
                while !bound.has_waiters() {
                    std::thread::yield_now();
                }
                assert_eq!(state.handovers(), 0);
                drop(bound);
            });
        }
    }

    /// A program thread that took the packet may never poll again.
    #[test]
    fn owed_ack_wakes_the_background_thread_and_limits_its_sleep() {
        let (node, _peer) = pair(QpType::Rc, false, 8);
        let engine = node.device.engine();
        for _ in 0..100 {
            // No other thread sends it meanwhile.
            let round = engine.round.lock();
            engine.owe_ack(node.qp.core.qpn);
            assert_eq!(engine.deadline(&node.device, false), Some(RETRY));
            drop(round);
            while !engine.owed.lock().is_empty() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn qpn_is_reused_only_after_its_qp_is_forgotten() {
        let (node, _peer) = pair(QpType::Rc, false, 8);
        let (device, core, qpn) = (&node.device, &node.qp.core, node.qp.qpn());
        let round = device.engine().round.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| device.remove_qp(core));
            while device.qps().read().get(qpn).is_some() {
                std::thread::yield_now();
            }
            // More than a slot has.
            assert!((0..SLOT_QPS).all(|_| device.alloc_qpn().unwrap() != qpn));
            drop(round);
        });
        // It is removed already.
        std::mem::forget(node.qp);
    }

    /// The program thread that ended the stream may never poll again.
    #[test]
    fn ended_stream_wakes_the_background_thread() {
        for _ in 0..10 {
            let (node, _peer) = stream_pair(&PLAIN, 8);
            let engine = node.device.engine();
            // No other thread closes it meanwhile.
            let round = engine.round.lock();
            Bound::lock(&node.device, &node.qp.core).forget_stream();
            assert_eq!(engine.deadline(&node.device, false), Some(Duration::ZERO));
            drop(round);
            while node.control.ended() != [node.qp.qpn()] {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_poll_does_not_wait_for_the_round_of_another_thread() {
        let (device, _control) = Lab::new(true).process("127.77.208.1");
        let cq = Cq::new(&device, 1, None, 0).unwrap();
        device.engine().inbound(|_| assert_eq!(cq.poll(&mut [Completion::EMPTY]), 0));
    }
}
