//! The device: the tables of its objects, the engine that drives them, and its side of XRC.
//!
//! The calls of programs on it are in `handles::device`.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rdmux_link::{SharedMem, guarded};
use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::{Gid, Lid, Mtu, Pkey, Qpn};
use rustix::time::{ClockId, clock_gettime};

use super::Engine;
use super::qp::QpCore;
use super::wire::RingPath;
use super::xrc::side::Side;
use crate::objects::control::{Control, ControlError, DeviceKind, Limits, is_target, slot_of};
use crate::objects::counters::{Counter, Counters};
use crate::objects::cq::{CqCore, Overflow};
use crate::objects::error::VerbsError;
use crate::objects::event::Raised;
use crate::objects::kind::LinkLayer;
use crate::objects::notify::NotifyQueue;
use crate::objects::port::{GidEntry, Port, PortEvent, PortState};
use crate::objects::qp::SlotUse;
use crate::objects::quota::Quota;
use crate::objects::reach::Reaches;
use crate::objects::regions::Regions;

/// Queue pairs by number.
pub(crate) type QpTable = crate::objects::qp::QpTable<QpCore>;

/// The first port, which every device has; the only one of devices over IP.
pub const PORT: u8 = 1;

/// A port's P_Key table; 0 in entries that are empty, or beyond the table.
type PkeyTable = Box<[AtomicU16]>;

/// An open device (`ibv_open_device(3)`). A background thread drives it whenever no program thread polls, so that one-sided operations
/// complete while the program computes.
pub struct Device {
    control: Arc<dyn Control>,
    /// The ports by number, from 1.
    ports: RwLock<Vec<Port>>,
    /// The P_Key table of each port, with which every packet is compared.
    pkeys: Box<[PkeyTable]>,
    regions: RwLock<Regions>,
    qps: RwLock<QpTable>,
    events: NotifyQueue<Raised>,
    engine: Engine,
    next_pd: AtomicU32,
    failed: AtomicBool,
    slots: Mutex<Vec<SlotUse>>,
    xrc: Side,
    reaches: Reaches,
    quota: Arc<Quota>,
}

impl Device {
    /// Opens the device of `control`.
    ///
    /// # Errors
    ///
    /// The operating system's error, when a descriptor or the thread cannot be created.
    pub fn open(control: Arc<dyn Control>) -> Result<Arc<Self>, VerbsError> {
        Self::open_with(control, false)
    }

    /// Opens a device like [`open`](Self::open), but without a thread: the program's event loop waits for
    /// [`drive_fd`](Self::drive_fd) and calls [`drive`](Self::drive). Polling a completion queue only takes completions, and
    /// does not drive the device.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn open_driven(control: Arc<dyn Control>) -> Result<Arc<Self>, VerbsError> {
        Self::open_with(control, true)
    }

    fn open_with(control: Arc<dyn Control>, driven: bool) -> Result<Arc<Self>, VerbsError> {
        guarded::protect();
        super::wire::prepare();
        let info = control.info();
        let slot = info.slot;
        let device = Arc::new(Self {
            ports: RwLock::new(info.ports.clone()),
            pkeys: pkey_tables(&info.ports, info.kind),
            regions: RwLock::new(Regions::new(control.board().cloned())),
            qps: RwLock::new(QpTable::new(slot.slot)),
            events: NotifyQueue::new().map_err(VerbsError::os("open the device"))?,
            engine: Engine::new(control.as_ref(), driven)?,
            next_pd: AtomicU32::new(1),
            failed: AtomicBool::new(false),
            slots: Mutex::new(vec![SlotUse::new(slot)]),
            xrc: Side::default(),
            quota: Quota::new(info.limits),
            reaches: Reaches::new(control.board().cloned()),
            control,
        });
        device.publish_slot(slot.slot);
        device.follow_ports(&device.ports.read());
        Engine::start(&device)?;
        Ok(device)
    }

    /// Processes arrivals, runs timers and continues pending transmissions, in place of the thread that a device usually has. Returns how
    /// long nothing needs to be done unless [`drive_fd`](Self::drive_fd) becomes readable; none if there is no limit. To be called once
    /// after the device was opened.
    pub fn drive(self: &Arc<Self>) -> Option<Duration> {
        self.engine.drive(self)
    }

    /// Returns the descriptor that is readable while [`drive`](Self::drive) has work.
    pub fn drive_fd(&self) -> BorrowedFd<'_> {
        self.engine.drive_fd()
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> DeviceKind {
        self.control.info().kind
    }

    /// Calls `ask` with the port of this number if it exists, and returns the result.
    pub(crate) fn port<T>(&self, number: u8, ask: impl FnOnce(&Port) -> T) -> Option<T> {
        let index = usize::from(number).checked_sub(1)?;
        self.ports.read().get(index).map(ask)
    }

    /// Returns the number of ports.
    pub fn num_ports(&self) -> u8 {
        u8::try_from(self.ports.read().len()).unwrap_or(u8::MAX)
    }
    /// Returns whether the device has a port with this number.
    pub fn has_port(&self, number: u8) -> bool {
        number != 0 && number <= self.num_ports()
    }

    /// Returns the active MTU of a port: no datagram is longer.
    pub(crate) fn active_mtu(&self, port: u8) -> Mtu {
        self.port(port, |port| port.attr.active_mtu).unwrap_or(Mtu::M256)
    }

    /// Returns the GID table of a port: for RoCE the host's addresses, for iWARP one entry that is not an address.
    pub fn gids(&self, port: u8) -> Vec<GidEntry> {
        self.port(port, |port| port.gids().to_vec()).unwrap_or_default()
    }
    /// Returns an entry of the GID table of a port.
    pub fn gid(&self, port: u8, index: u8) -> Option<GidEntry> {
        self.port(port, |port| port.gids().get(usize::from(index)).cloned()).flatten()
    }
    /// Returns the host's addresses, by their index; zero for a removed one.
    pub fn addresses(&self) -> Vec<GidEntry> {
        self.port(PORT, |port| port.addresses.clone()).unwrap_or_default()
    }
    /// Returns the addresses of a port's network interfaces, by their index; none if there is no such port.
    pub fn addresses_of_port(&self, port: u8) -> Vec<GidEntry> {
        self.port(port, |port| port.addresses.clone()).unwrap_or_default()
    }
    /// Returns the index of a port's GID, or of an address.
    pub fn gid_index(&self, port: u8, gid: Gid) -> Option<u8> {
        let at = |port: &Port| {
            let index = |table: &[GidEntry]| table.iter().position(|entry| entry.gid == gid);
            let of_address = || match port.attr.link_layer {
                LinkLayer::Ethernet => index(&port.addresses),
                // All addresses are reached by the port's own GID.
                LinkLayer::InfiniBand => index(&port.addresses).map(|_| 0),
            };
            index(port.gids()).or_else(of_address)
        };
        u8::try_from(self.port(port, at)??).ok()
    }
    /// Returns the form of a path in records.
    pub(crate) fn ring_path(&self, av: &AddressVector) -> RingPath {
        let own = av.port_num.max(PORT);
        let (near, far) = match self.kind().row().link_layer {
            LinkLayer::Ethernet => {
                (av.sgid_index.into(), self.gid_index(own, av.dgid).unwrap_or(0).into())
            }
            LinkLayer::InfiniBand => (self.own_lid(own, av.src_path_bits).0, av.dlid),
        };
        let port = if self.is_own(av) { own } else { RingPath::ELSEWHERE };
        RingPath { port, near, far }
    }
    /// Returns whether a record's packet must be dropped for lack of a link. If the record names a path, every port at which the packet can
    /// have arrived lacks a link; otherwise this port does.
    #[inline]
    pub(crate) fn is_cut(&self, path: RingPath, port: u8) -> bool {
        self.engine.detour().is_any_cut() && self.is_path_cut(path, port)
    }

    #[cold]
    fn is_path_cut(&self, path: RingPath, port: u8) -> bool {
        let detour = self.engine.detour();
        match path.port {
            0 => detour.is_cut(port),
            RingPath::ELSEWHERE => (PORT..=self.num_ports()).all(|number| {
                let has_it = self.port(number, |port| port.attr.owns(Lid(path.far)));
                !has_it.unwrap_or(false) || detour.is_cut(number)
            }),
            port => detour.is_cut(port),
        }
    }
    /// Returns the LID of a port with these path bits; zero if it has no LID.
    pub(crate) fn own_lid(&self, port: u8, path_bits: u8) -> Lid {
        let lid = self.port(port, |port| port.attr.lid).unwrap_or(Lid::NONE);
        Lid(lid.0 | u16::from(path_bits))
    }
    /// Returns whether a path leads back to the port that it starts at: by its LID on InfiniBand, elsewhere by its GID.
    pub(crate) fn is_own(&self, av: &AddressVector) -> bool {
        let owns = |port: &Port| match port.attr.link_layer {
            LinkLayer::Ethernet => port.addresses.iter().any(|entry| entry.gid == av.dgid),
            LinkLayer::InfiniBand => {
                let has_gid = || port.gids().iter().any(|entry| entry.gid == av.dgid);
                port.attr.owns(Lid(av.dlid)) && (!av.is_global || has_gid())
            }
        };
        self.port(av.port_num.max(PORT), owns).unwrap_or(false)
    }
    /// Returns an entry of the P_Key table of a port; 0 if the entry is empty.
    #[inline]
    pub fn pkey(&self, port: u8, index: u16) -> Option<Pkey> {
        let table = self.pkeys.get(usize::from(port).wrapping_sub(1))?;
        table.get(usize::from(index)).map(|key| Pkey(key.load(Ordering::Relaxed)))
    }
    /// Returns the host service's interface.
    pub fn control(&self) -> &Arc<dyn Control> {
        &self.control
    }

    /// Returns whether the host service is gone, so that the device no longer works.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns the object counts and their limits.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }
    pub(crate) fn limits(&self) -> &Limits {
        &self.control.info().limits
    }
    /// Returns the page with this process's counters.
    pub(crate) fn counters(&self) -> &SharedMem {
        self.control.counters()
    }
    /// Returns the table of memory regions and windows.
    pub(crate) fn regions(&self) -> &RwLock<Regions> {
        &self.regions
    }
    /// Returns this process's side of the XRC hub.
    pub(crate) fn xrc(&self) -> &Side {
        &self.xrc
    }
    /// Returns the processes whose memory this one may access.
    pub(crate) fn reaches(&self) -> &Reaches {
        &self.reaches
    }
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
    /// Returns the table of queue pairs.
    pub(crate) fn qps(&self) -> &RwLock<QpTable> {
        &self.qps
    }
    /// Returns the queue of asynchronous events that the program has not taken.
    pub(crate) fn events(&self) -> &NotifyQueue<Raised> {
        &self.events
    }
    /// Returns the slot whose sockets a queue pair uses.
    pub(crate) fn slot_for(&self, qpn: Qpn) -> u16 {
        if is_target(qpn) {
            return self.control.info().slot.slot;
        }
        slot_of(qpn)
    }
    /// Returns an unused identifier for a protection domain.
    pub(crate) fn next_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }
    /// Queues an asynchronous event for the program.
    pub(crate) fn raise(&self, event: Raised) {
        self.events.push(event);
    }
    /// Handles a completion that did not fit.
    #[cold]
    pub(crate) fn cq_overflow(&self, cq: &Arc<CqCore>, overflow: Overflow) {
        if overflow == Overflow::Now {
            Counters(self.counters()).add(Counter::CqOverflows, 1);
            self.raise(Raised::CqError(Arc::downgrade(cq)));
        }
    }
    /// Returns the time on the engine's clock.
    pub(crate) fn now(&self) -> Time {
        let now = clock_gettime(ClockId::Monotonic);
        Time(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
    }
    /// Returns the time like [`now`](Self::now), but up to some milliseconds late and much cheaper.
    pub(crate) fn coarse_now(&self) -> Time {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        Time(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
    }
    /// Updates the ports, then raises the events. An event that is still queued is not raised twice but moved to the end, so that a program
    /// that takes none has at most one of each kind. Returns whether P_Keys have changed.
    pub(crate) fn set_ports(&self, ports: Vec<Port>, events: &[(u8, PortEvent)]) -> bool {
        let changed = self.follow_ports(&ports);
        *self.ports.write() = ports;
        for &(port, event) in events {
            let is_it = |other: &Raised| other.is_about_port(port, event);
            self.events.push_last(Raised::Port(port, event), is_it);
        }
        changed
    }
    /// Updates the P_Keys that packets are compared with, and whether ports have a link. Returns whether P_Keys have changed.
    fn follow_ports(&self, ports: &[Port]) -> bool {
        let mut changed = false;
        for (number, (port, table)) in (1..).zip(ports.iter().zip(&self.pkeys)) {
            let keys = port.pkeys.iter().map(|key| key.0).chain(std::iter::repeat(0));
            for (entry, key) in table.iter().zip(keys) {
                changed |= entry.swap(key, Ordering::Relaxed) != key;
            }
            self.engine.detour().set_cut(number, port.attr.state != PortState::Active);
        }
        changed
    }
    /// Marks the device as failed. Returns whether it was not before.
    pub(crate) fn fail(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }

    /// Allocates a number that no queue pair of this device has, and that none had recently.
    pub(crate) fn alloc_qpn(&self) -> Result<Qpn, VerbsError> {
        if self.has_failed() {
            return Err(ControlError::Gone.into());
        }
        let mut slots = self.slots.lock();
        if let Some(qpn) = slots.iter_mut().find_map(|s| s.take(&self.qps.read())) {
            return Ok(qpn);
        }
        let grant = self.control.new_slot()?;
        self.qps.write().add_slot(grant.slot);
        self.publish_slot(grant.slot);
        let mut slot = SlotUse::new(grant);
        let qpn = slot.take(&self.qps.read());
        slots.push(slot);
        qpn.ok_or_else(|| VerbsError::no_memory("create a queue pair", "the slot is full"))
    }

    /// Enables peers to find the queue pairs of a slot.
    fn publish_slot(&self, slot: u16) {
        if let Some(board) = self.reaches.board() {
            board.add_slot(slot);
        }
    }

    pub(crate) fn insert_qp(&self, qp: &Arc<QpCore>) {
        self.qps.write().set(qp.qpn, Some(qp.clone()));
        Counters(self.counters()).add(Counter::QpsOpen, 1);
    }

    fn with_slot_of(&self, qpn: Qpn, f: impl FnOnce(&mut SlotUse)) {
        if let Some(slot) = self.slots.lock().iter_mut().find(|s| s.slot() == slot_of(qpn)) {
            f(slot);
        }
    }

    pub(crate) fn remove_qp(&self, qp: &Arc<QpCore>) {
        // A new queue pair may have the number only when everything about this one is removed.
        self.with_slot_of(qp.qpn, |slot| slot.leave(qp.qpn));
        self.qps.write().set(qp.qpn, None);
        self.regions.write().unbind_qp(qp.qpn);
        self.engine.forget(self, qp);
        qp.forget_completions();
        self.with_slot_of(qp.qpn, |slot| slot.give_back(qp.qpn));
        Counters(self.counters()).sub(Counter::QpsOpen, 1);
    }
}

/// Creates an empty P_Key table for each port. On a fabric it may grow.
fn pkey_tables(ports: &[Port], kind: DeviceKind) -> Box<[PkeyTable]> {
    const MOST_OF_FABRIC: usize = 1024;
    let most = |now: usize| if kind.is_on_fabric() { now.max(MOST_OF_FABRIC) } else { now };
    let table = |port: &Port| (0..most(port.pkeys.len())).map(|_| AtomicU16::new(0)).collect();
    ports.iter().map(table).collect()
}

impl Drop for Device {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).finish_non_exhaustive()
    }
}
