//! The device in a process: opening it, asking it about itself, and the tables of its objects.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use rdmux_link::{SharedMem, guarded, ring};
use rdmux_transport::Time;
use rdmux_wire::{Gid, Mtu, Pkey, Qpn};
use rustix::time::{ClockId, clock_gettime};

use crate::engine::Engine;
use crate::engine::qp::QpCore;
use crate::engine::xrc::side::Side;
use crate::handles::event::{AsyncEvent, Raised};
use crate::objects::control::{
    Control, DeviceKind, GidEntry, Limits, SLOT_QPS, SLOT_SHIFT, SlotGrant, is_target,
};
use crate::objects::counters::{Counter, Counters};
use crate::objects::error::VerbsError;
use crate::objects::notify::NotifyQueue;
use crate::objects::query::{DeviceAttr, MAX_MESSAGE, PortAttr, PortState, VENDOR_ID, iwarp_gid};
use crate::objects::quota::{Counted, Permit, Quota};
use crate::objects::reach::Reaches;
use crate::objects::regions::Regions;
use crate::objects::xrc::numbers;

/// The only port.
pub const PORT: u8 = 1;

/// An open device (`ibv_open_device(3)`). A thread of its own moves it forward whenever nobody
/// polls, so that one-sided operations complete while the program computes.
pub struct Device {
    control: Arc<dyn Control>,
    gids: RwLock<Vec<GidEntry>>,
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

/// How far the numbers of a slot are used.
#[derive(Debug)]
struct SlotUse {
    slot: u16,
    next: u32,
    used: u32,
}

/// Queue pairs by number. Slots are few, and a slot's queue pairs lie in a row.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    slots: Vec<(u16, Vec<Option<Arc<QpCore>>>)>,
    /// XRC targets by index; only the hub has any.
    targets: Vec<Option<Arc<QpCore>>>,
}

impl QpTable {
    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Arc<QpCore>> {
        if is_target(qpn) {
            let target = self.targets.get(numbers::index_of(qpn.get()))?.as_ref();
            return target.filter(|core| core.qpn == qpn);
        }
        let slot = crate::objects::control::slot_of(qpn);
        let (_, row) = self.slots.iter().find(|(s, _)| *s == slot)?;
        row.get(index_of(qpn))?.as_ref()
    }

    /// Whether `slot` is ours.
    pub(crate) fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|(s, _)| *s == slot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<QpCore>> {
        let own = self.slots.iter().flat_map(|(_, row)| row.iter().flatten());
        own.chain(self.targets.iter().flatten())
    }

    /// Puts a target in, or takes it out.
    pub(crate) fn set_target(&mut self, qpn: Qpn, target: Option<Arc<QpCore>>) {
        let index = numbers::index_of(qpn.get());
        if self.targets.len() <= index {
            self.targets.resize(index + 1, None);
        }
        self.targets[index] = target;
    }

    fn set(&mut self, qpn: Qpn, qp: Option<Arc<QpCore>>) {
        let slot = crate::objects::control::slot_of(qpn);
        if let Some((_, row)) = self.slots.iter_mut().find(|(s, _)| *s == slot) {
            let index = index_of(qpn);
            if row.len() <= index {
                row.resize(index + 1, None);
            }
            row[index] = qp;
        }
    }
}

fn index_of(qpn: Qpn) -> usize {
    (qpn.get() & (SLOT_QPS - 1)) as usize
}

impl Device {
    /// Opens the device that `control` stands for.
    ///
    /// # Errors
    ///
    /// The operating system's, when a descriptor or the thread cannot be had.
    pub fn open(control: Arc<dyn Control>) -> Result<Arc<Self>, VerbsError> {
        guarded::protect();
        ring::prepare();
        let info = control.info();
        let slot = info.slot;
        let device = Arc::new(Self {
            gids: RwLock::new(info.gids.clone()),
            regions: RwLock::new(Regions::new(control.board().cloned())),
            qps: RwLock::new(QpTable { slots: vec![(slot.slot, Vec::new())], targets: Vec::new() }),
            events: NotifyQueue::new().map_err(VerbsError::os("open the device"))?,
            engine: Engine::new(control.as_ref())?,
            next_pd: AtomicU32::new(1),
            failed: AtomicBool::new(false),
            slots: Mutex::new(vec![SlotUse::new(slot)]),
            xrc: Side::default(),
            quota: Quota::new(info.limits),
            reaches: Reaches::new(control.board().cloned(), slot.slot),
            control,
        });
        device.publish_slot(slot.slot);
        Engine::start(&device)?;
        Ok(device)
    }

    /// Attributes of the device.
    pub fn query(&self) -> DeviceAttr {
        let info = self.control.info();
        let iwarp = info.kind == DeviceKind::Iwarp;
        DeviceAttr {
            kind: info.kind,
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: info.node_guid,
            sys_image_guid: info.node_guid,
            // With on-demand paging the whole address space can be registered.
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: VENDOR_ID,
            vendor_part_id: 1,
            hw_ver: 1,
            limits: info.limits,
            phys_port_cnt: PORT,
            max_pkeys: u16::try_from(info.pkeys.len()).unwrap_or(u16::MAX),
            local_ca_ack_delay: if iwarp { 0 } else { 15 },
        }
    }

    /// Attributes of a port.
    ///
    /// # Errors
    ///
    /// EINVAL for any port but 1.
    pub fn query_port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        if port != PORT {
            return Err(VerbsError::invalid("query a port", format!("there is no port {port}")));
        }
        let gids = self.gids().len();
        let down = self.failed.load(Ordering::Acquire);
        Ok(PortAttr {
            kind: self.control.info().kind,
            state: if down { PortState::Down } else { PortState::Active },
            max_mtu: Mtu::M4096,
            active_mtu: self.active_mtu(),
            gid_tbl_len: u16::try_from(gids).unwrap_or(u16::MAX),
            pkey_tbl_len: u16::try_from(self.control.info().pkeys.len()).unwrap_or(u16::MAX),
            max_msg_sz: MAX_MESSAGE,
            active_width: 2,
            active_speed: 32,
        })
    }

    /// The MTU of the port: no datagram is longer.
    pub(crate) fn active_mtu(&self) -> Mtu {
        active_mtu(&self.gids.read())
    }

    /// The GID table: of RoCE the host's addresses, of iWARP one entry that is no address.
    pub fn gids(&self) -> Vec<GidEntry> {
        match self.control.info().kind {
            DeviceKind::Roce => self.addresses(),
            DeviceKind::Iwarp => self.gid(0).into_iter().collect(),
        }
    }
    /// An entry of the GID table.
    pub fn gid(&self, index: u8) -> Option<GidEntry> {
        let info = self.control.info();
        let address = self.gids.read().get(usize::from(index)).cloned();
        match info.kind {
            DeviceKind::Roce => address,
            DeviceKind::Iwarp if index == 0 => {
                address.map(|entry| GidEntry { gid: iwarp_gid(info.node_guid), ..entry })
            }
            DeviceKind::Iwarp => None,
        }
    }
    /// The host's addresses, by their index; zero where one was.
    pub fn addresses(&self) -> Vec<GidEntry> {
        self.gids.read().clone()
    }
    /// The index of a GID of ours.
    pub fn gid_index(&self, gid: Gid) -> Option<u8> {
        let at = self.gids.read().iter().position(|g| g.gid == gid)?;
        u8::try_from(at).ok()
    }
    /// An entry of the P_Key table.
    pub fn pkey(&self, index: u16) -> Option<Pkey> {
        self.control.info().pkeys.get(usize::from(index)).copied()
    }
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.control.info().device
    }
    /// The host's name.
    pub fn host(&self) -> &str {
        &self.control.info().host
    }
    /// The host service.
    pub fn control(&self) -> &Arc<dyn Control> {
        &self.control
    }

    /// The next asynchronous event: waits for it, unless `O_NONBLOCK` is set on the descriptor.
    ///
    /// # Errors
    ///
    /// EAGAIN on a non-blocking descriptor without an event.
    pub fn get_async_event(&self) -> Result<AsyncEvent, VerbsError> {
        self.events.get(Raised::take).map_err(VerbsError::os("wait for an event"))
    }
    /// The next one if there is any; never blocks.
    pub fn try_get_async_event(&self) -> Option<AsyncEvent> {
        self.events.try_get(Raised::take)
    }
    /// The event that stands for a count of eight bytes which the caller read off the descriptor
    /// itself. None if it was withdrawn meanwhile.
    pub fn take_counted_event(&self) -> Option<AsyncEvent> {
        self.events.take_counted(Raised::take)
    }
    /// Readable while an asynchronous event waits.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// What kind of device it is.
    pub fn kind(&self) -> DeviceKind {
        self.control.info().kind
    }

    /// Takes in what the service has said so far: after it a queue pair has the stream that was
    /// made for it before the program learned of the connection.
    pub fn sync_control(self: &Arc<Self>) {
        self.engine.control_events(self);
    }

    /// Moves the device forward once: takes in what arrived, runs timers, sends what waits. Polling
    /// an empty completion queue does it too.
    pub fn progress(self: &Arc<Self>) {
        self.engine.poll(self);
    }

    /// Sends the acknowledgements that wait for the program's next message or poll, to go along with it.
    /// Whoever turns to something else calls this: the sender would have its completion up to a millisecond
    /// later.
    pub fn acknowledge(self: &Arc<Self>) {
        self.engine.acknowledge(self);
    }

    /// Takes in everything that has arrived, and acknowledges it: for who will not look any more, because
    /// its program ends or disconnects. A peer would repeat in vain what it gets no answer to.
    pub fn settle(self: &Arc<Self>) {
        self.engine.drain(self);
    }
    /// Whether the host service is gone and the device of no more use.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Counts another object of a kind until the permit is dropped, for who creates one that the device knows nothing
    /// of. `what` is for the error.
    ///
    /// # Errors
    ///
    /// ENOMEM when there are as many as [`Limits`] says.
    pub fn permit(&self, what: &'static str, kind: Counted) -> Result<Permit, VerbsError> {
        self.quota.take(what, kind)
    }

    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }
    pub(crate) fn limits(&self) -> &Limits {
        &self.control.info().limits
    }
    pub(crate) fn counters(&self) -> &SharedMem {
        self.control.counters()
    }
    pub(crate) fn regions(&self) -> &RwLock<Regions> {
        &self.regions
    }
    pub(crate) fn xrc(&self) -> &Side {
        &self.xrc
    }
    pub(crate) fn reaches(&self) -> &Reaches {
        &self.reaches
    }
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
    pub(crate) fn qps(&self) -> &RwLock<QpTable> {
        &self.qps
    }
    pub(crate) fn events(&self) -> &NotifyQueue<Raised> {
        &self.events
    }
    /// The slot whose sockets a queue pair uses.
    pub(crate) fn slot_for(&self, qpn: Qpn) -> u16 {
        if is_target(qpn) {
            return self.control.info().slot.slot;
        }
        crate::objects::control::slot_of(qpn)
    }
    pub(crate) fn next_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }
    pub(crate) fn raise(&self, event: Raised) {
        self.events.push(event);
    }
    /// The time on the engine's clock.
    pub(crate) fn now(&self) -> Time {
        let now = clock_gettime(ClockId::Monotonic);
        Time(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
    }
    /// As [`now`](Self::now), some milliseconds late at most, and much cheaper.
    pub(crate) fn coarse_now(&self) -> Time {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        Time(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
    }
    pub(crate) fn set_gids(&self, gids: Vec<GidEntry>) {
        *self.gids.write() = gids;
        self.raise(Raised::GidChange);
    }
    /// Marks the device as failed; returns whether it was not before.
    pub(crate) fn fail(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }

    /// A number that no queue pair of ours has, and that none had lately.
    pub(crate) fn alloc_qpn(&self) -> Result<Qpn, VerbsError> {
        if self.has_failed() {
            return Err(crate::objects::control::ControlError::Gone.into());
        }
        let mut slots = self.slots.lock();
        if let Some(qpn) = slots.iter_mut().find_map(|s| s.take(&self.qps.read())) {
            return Ok(qpn);
        }
        let grant = self.control.new_slot()?;
        self.qps.write().slots.push((grant.slot, Vec::new()));
        self.publish_slot(grant.slot);
        let mut slot = SlotUse::new(grant);
        let qpn = slot.take(&self.qps.read());
        slots.push(slot);
        qpn.ok_or_else(|| VerbsError::no_memory("create a queue pair", "the slot is full"))
    }

    /// Lets peers find the queue pairs of a slot.
    fn publish_slot(&self, slot: u16) {
        if let Some(board) = self.reaches.board() {
            board.add_slot(slot);
        }
    }

    pub(crate) fn insert_qp(&self, qp: &Arc<QpCore>) {
        self.qps.write().set(qp.qpn, Some(qp.clone()));
        Counters(self.counters()).add(Counter::QpsOpen, 1);
    }

    pub(crate) fn remove_qp(&self, qp: &Arc<QpCore>) {
        self.qps.write().set(qp.qpn, None);
        self.regions.write().unbind_qp(qp.qpn);
        let slot = crate::objects::control::slot_of(qp.qpn);
        if let Some(slot) = self.slots.lock().iter_mut().find(|s| s.slot == slot) {
            slot.used -= 1;
        }
        self.engine.forget(self, qp);
        Counters(self.counters()).sub(Counter::QpsOpen, 1);
    }
}

/// The MTU that fits whichever GID a program takes: that of the narrowest interface. The loopback's, which is wide,
/// counts only where there is no other.
fn active_mtu(gids: &[GidEntry]) -> Mtu {
    let used = || gids.iter().filter(|g| !g.gid.is_zero());
    let outside = used().filter(|g| !g.gid.ip().is_loopback()).map(|g| g.mtu).min();
    outside.or_else(|| used().map(|g| g.mtu).max()).unwrap_or(Mtu::M1024)
}

impl SlotUse {
    fn new(grant: SlotGrant) -> Self {
        Self { slot: grant.slot, next: u32::from(grant.first_index), used: 0 }
    }

    /// The next free number after the one given last.
    fn take(&mut self, table: &QpTable) -> Option<Qpn> {
        if self.used >= SLOT_QPS {
            return None;
        }
        let base = u32::from(self.slot) << SLOT_SHIFT;
        let qpn = (0..SLOT_QPS)
            .map(|i| Qpn::new(base | ((self.next + i) & (SLOT_QPS - 1))))
            .find(|qpn| table.get(*qpn).is_none())?;
        self.next = (qpn.get() & (SLOT_QPS - 1)) + 1;
        self.used += 1;
        Some(qpn)
    }
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_port_carries_what_its_narrowest_way_out_carries() {
        let gid = |ip: &str, mtu| GidEntry {
            gid: ip.parse::<IpAddr>().unwrap().into(),
            interface: String::new(),
            interface_index: 1,
            mtu,
        };
        let lo = [gid("127.0.0.1", Mtu::M4096), gid("::1", Mtu::M4096)];
        assert_eq!(active_mtu(&lo), Mtu::M4096);
        let [v4, v6] = lo;
        let all = [v4, gid("10.0.0.1", Mtu::M4096), gid("fd00::1", Mtu::M1024), v6];
        assert_eq!(active_mtu(&all), Mtu::M1024);
        assert_eq!(active_mtu(&[]), Mtu::M1024);
    }
}
