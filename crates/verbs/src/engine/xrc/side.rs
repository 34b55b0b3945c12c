//! A process's part of XRC: its messages to the hub, and the handling of the hub's records.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rdmux_link::LinkError;
use rdmux_transport::attr::Access;
use rdmux_transport::env::{AccessFault, QpEvent};
use rdmux_transport::wr::{Completion, WcFlags};
use rdmux_wire::{Qpn, Rkey};

use super::members::Members;
use crate::engine::device::{Device, QpTable};
use crate::engine::receive::count;
use crate::engine::wire::Neighbour;
use crate::objects::control::ControlError;
use crate::objects::counters::Counter;
use crate::objects::error::VerbsError;
use crate::objects::event::Raised;
use crate::objects::region::Asker;
use crate::objects::srq::SrqCore;
use crate::objects::xrc::ask;
use crate::objects::xrc::opening::Registration;
use crate::objects::xrc::record::{
    Atomic, Completed, Delivered, Invalidated, Meta, Outcome, Place, kind,
};
use crate::objects::xrc::request::{RegionRow, XrcReply, XrcRequest};
use crate::objects::xrc::target::TargetCore;

/// The maximum number of records that wait for room in a ring. Each atomic or queue pair has at most one.
const MAX_BACKLOG: usize = 1 << 16;

/// The queue of records to the other side that must not be lost.
#[derive(Debug)]
pub(crate) struct Outbox {
    neighbour: Arc<Neighbour>,
    backlog: Mutex<VecDeque<(u8, Meta, Vec<u8>)>>,
    waiting: AtomicBool,
    /// The ring's position after the last record that had to wait.
    waited_until: AtomicU64,
}

impl Outbox {
    pub(crate) fn new(neighbour: Arc<Neighbour>) -> Self {
        Self {
            neighbour,
            backlog: Mutex::default(),
            waiting: AtomicBool::new(false),
            waited_until: AtomicU64::new(0),
        }
    }

    /// Sends a record, or nothing if the ring is full. Returns the ring's position after the record.
    pub(crate) fn offer(
        &self,
        device: &Device,
        kind: u8,
        meta: Meta,
        parts: &[&[u8]],
    ) -> Result<u64, LinkError> {
        if self.is_waiting() && !self.flush(device) {
            return Err(LinkError::Busy);
        }
        self.neighbour.put(device, kind, meta, parts)
    }

    /// Sends a record now, or as soon as there is room. Returns the ring's position after it, or 0 for one that waits:
    /// [`has_done`](Self::has_done) accounts for those.
    pub(crate) fn send(&self, device: &Device, kind: u8, meta: Meta, parts: &[&[u8]]) -> u64 {
        match self.offer(device, kind, meta, parts) {
            Ok(position) => position,
            Err(LinkError::Busy) => {
                let mut backlog = self.backlog.lock();
                if backlog.len() < MAX_BACKLOG {
                    backlog.push_back((kind, meta, parts.concat()));
                    self.waiting.store(true, Ordering::Release);
                    // The ring's doorbell does not suffice: another user of the ring may cancel the request for it.
                    device.engine().wake_sleeper();
                }
                0
            }
            // The other side is gone, or broke its ring: no receiver is left.
            Err(_) => 0,
        }
    }

    /// Returns whether records of `len` bytes could be sent at once. If not, the peer will wake this process.
    pub(crate) fn has_room_for(&self, device: &Device, len: usize) -> bool {
        (!self.is_waiting() || self.flush(device)) && self.neighbour.has_room_or_wait(len)
    }

    /// Returns whether the other side has finished with all records up to a position, and with those that waited.
    pub(crate) fn has_done(&self, position: u64) -> bool {
        let until = || position.max(self.waited_until.load(Ordering::Relaxed));
        !self.is_waiting() && self.neighbour.consumed() >= until()
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Sends waiting records, as far as there is room. Returns whether none waits any more.
    pub(crate) fn flush(&self, device: &Device) -> bool {
        let mut backlog = self.backlog.lock();
        while let Some((kind, meta, bytes)) = backlog.front() {
            match self.neighbour.put(device, *kind, *meta, &[bytes]) {
                Ok(position) => self.waited_until.store(position, Ordering::Relaxed),
                Err(LinkError::Busy) => return false,
                Err(_) => {}
            }
            backlog.pop_front();
        }
        self.waiting.store(false, Ordering::Release);
        true
    }
}

/// The XRC state of a device.
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// Whether the hub mirrors this process's regions. Locked while a region is sent to the hub.
    mirrored: Mutex<bool>,
    /// The hub's slot, and the ring to it.
    hub: OnceLock<(u16, Outbox)>,
    srqs: RwLock<HashMap<u32, Weak<SrqCore>>>,
    targets: Mutex<Vec<Weak<TargetCore>>>,
    registrations: Mutex<HashMap<Qpn, Registration>>,
    /// The processes, in the hub's own device.
    members: OnceLock<Members>,
}

impl Device {
    /// Sends a request to the hub. `what` names the operation in the error.
    pub(crate) fn ask_hub(
        &self,
        request: &XrcRequest,
        fd: Option<BorrowedFd<'_>>,
        what: &'static str,
    ) -> Result<XrcReply, VerbsError> {
        ask::ask_hub(self.control().as_ref(), request, fd, what)
    }

    /// Sets up the ring to the hub, and makes the hub mirror this process's existing and future regions.
    pub(crate) fn join_hub(self: &Arc<Self>) -> Result<(), VerbsError> {
        let mut mirrored = self.xrc().mirrored.lock();
        if *mirrored {
            return Ok(());
        }
        let slot = self.control().hub_slot()?;
        let neighbour = self.engine().neighbours().to(self, slot)?.ok_or(ControlError::Gone)?;
        // Set only here, with the lock held.
        let _ = self.xrc().hub.set((slot, Outbox::new(neighbour)));
        let rows = self.regions().read().rows();
        rows.into_iter().try_for_each(|(key, region)| self.mirror(key, region))?;
        *mirrored = true;
        self.engine().goes_by_hub();
        Ok(())
    }

    fn mirror(&self, key: u32, region: RegionRow) -> Result<(), VerbsError> {
        self.ask_hub(&XrcRequest::AddRegion { key, region }, None, "register memory for XRC")
            .map(drop)
    }
}

/// Locked while the table of regions is changed, so that the hub's mirror changes in the same order.
pub(crate) struct Mirror<'a> {
    device: &'a Device,
    mirrored: MutexGuard<'a, bool>,
}

impl Mirror<'_> {
    /// Mirrors a region that was added or replaced.
    pub(crate) fn add(&self, key: u32) -> Result<(), VerbsError> {
        if !*self.mirrored {
            return Ok(());
        }
        let row = self.device.regions().read().row(key);
        row.map_or(Ok(()), |row| self.device.mirror(key, row))
    }

    /// Removes a region from the mirror. When this returns, the hub no longer uses it.
    pub(crate) fn remove(&self, key: u32) {
        if *self.mirrored {
            let request = XrcRequest::RemoveRegion { key };
            // The mirror ended with the service.
            let _ = self.device.ask_hub(&request, None, "deregister memory");
        }
    }
}

impl Side {
    /// Makes this the hub's device, and returns its processes.
    pub(crate) fn host_members(&self) -> &Members {
        self.members.get_or_init(Members::default)
    }
    /// Returns whether this is the hub's device.
    pub(crate) fn is_hub(&self) -> bool {
        self.members.get().is_some()
    }

    /// Locks the mirror of this process's regions at the hub, for a change of the regions.
    pub(crate) fn mirror<'a>(&'a self, device: &'a Device) -> Mirror<'a> {
        Mirror { device, mirrored: self.mirrored.lock() }
    }

    /// Notifies the hub that a remote key has been invalidated. The hub receives this a moment later, perhaps only after a
    /// later registration of the key. Until then, this process refuses data that the hub sends for that memory.
    pub(crate) fn invalidated(&self, device: &Device, rkey: Rkey, serial: u64) {
        if let Some((_, outbox)) = self.hub.get() {
            outbox.send(device, kind::INVALIDATE, Invalidated::encode(rkey, serial), &[]);
        }
    }

    /// Adds a shared receive queue, which the hub's records name by this number.
    pub(crate) fn add_srq(&self, srqn: u32, srq: &Arc<SrqCore>) {
        self.srqs.write().insert(srqn, Arc::downgrade(srq));
    }
    pub(crate) fn remove_srq(&self, srqn: u32) {
        self.srqs.write().remove(&srqn);
    }
    fn srq(&self, srqn: u32) -> Option<Arc<SrqCore>> {
        self.srqs.read().get(&srqn)?.upgrade()
    }

    /// Records that this process has another handle on a target.
    pub(crate) fn opened(&self, target: &Arc<TargetCore>) {
        self.targets.lock().push(Arc::downgrade(target));
    }
    /// Records that a handle on a target was closed.
    pub(crate) fn closed(&self, target: &Arc<TargetCore>) {
        self.targets.lock().retain(|t| t.as_ptr() != Arc::as_ptr(target));
    }
    /// Records that this process holds a target by registration.
    pub(crate) fn registered(&self, qpn: Qpn, registration: Registration) {
        let before = self.registrations.lock().insert(qpn, registration);
        drop(before);
    }
    /// Removes the registration for a target.
    pub(crate) fn unregistered(&self, qpn: Qpn) {
        let before = self.registrations.lock().remove(&qpn);
        drop(before);
    }

    /// Raises an event of a target for every handle on it, and for its registration.
    pub(crate) fn raise(&self, device: &Device, qpn: Qpn, event: QpEvent) {
        let targets = self.targets.lock();
        for target in targets.iter().filter(|t| t.upgrade().is_some_and(|t| t.qpn == qpn)) {
            device.raise(Raised::Target(target.clone(), event));
        }
        drop(targets);
        // Locked until the event is queued: the thread that removes the registration then withdraws its events.
        let registrations = self.registrations.lock();
        if registrations.contains_key(&qpn) {
            device.raise(Raised::XrcQp(qpn, event));
        }
    }

    /// Sends the records that wait for room.
    #[inline]
    pub(crate) fn flush(&self, device: &Device) {
        if let Some((_, outbox)) = self.hub.get()
            && outbox.is_waiting()
        {
            outbox.flush(device);
        }
        if let Some(members) = self.members.get() {
            members.flush(device);
        }
    }

    /// Returns whether any record waits for room.
    pub(crate) fn is_waiting(&self) -> bool {
        self.hub.get().is_some_and(|(_, outbox)| outbox.is_waiting())
            || self.members.get().is_some_and(Members::is_waiting)
    }

    /// Handles a record of the process whose slot is `from`. Returns whether the record is valid from there.
    pub(crate) fn take(
        &self,
        device: &Arc<Device>,
        table: &QpTable,
        from: u16,
        kind: u8,
        meta: Meta,
        bytes: &[u8],
    ) -> bool {
        if let Some(members) = self.members.get() {
            return members.take(device, table, from, kind, meta);
        }
        let Some((_, outbox)) = self.hub.get().filter(|(slot, _)| *slot == from) else {
            return false;
        };
        match kind {
            kind::PLACE => self.place(device, meta, bytes),
            kind::COMPLETE => self.complete(device, Completed::parse(meta, bytes)),
            kind::DELIVER => self.deliver(device, meta, bytes),
            kind::ATOMIC => self.atomic(device, outbox, meta, bytes),
            _ => None,
        }
        .is_some()
    }

    /// Handles bytes for memory. Only their number is examined. Returns whether the record is valid
    /// from `from`.
    pub(crate) fn take_place(&self, device: &Device, from: u16, meta: Meta, bytes: &[u8]) -> bool {
        let ours = self.hub.get().is_some_and(|(slot, _)| *slot == from);
        ours && self.place(device, meta, bytes).is_some()
    }

    fn place(&self, device: &Device, meta: Meta, bytes: &[u8]) -> Option<()> {
        let place = Place::parse(meta, bytes)?;
        let Some(srq) = self.srq(place.srqn) else { return Some(()) };
        let (pd, at, len) = (srq.pd(), place.at, u64::from(place.at.length));
        let regions = device.regions().read();
        let located = if place.remote {
            let asker = Asker { qpn: Qpn::default(), pd };
            regions.remote(asker, Rkey(at.lkey.0), at.addr, len, Access::REMOTE_WRITE)
        } else {
            regions.local(pd, at.lkey, at.addr, len, Access::LOCAL_WRITE)
        };
        // The hub checked it, too; it has been deregistered or unmapped since.
        if located.and_then(|to| to.space.write(to.addr, place.data)).is_err() {
            count(device, Counter::RxMemory);
        }
        Some(())
    }

    fn deliver(&self, device: &Arc<Device>, meta: Meta, bytes: &[u8]) -> Option<()> {
        let (completed, data) = Delivered::parse(bytes)?;
        self.place(device, meta, data)?;
        self.complete(device, Some(completed))
    }

    fn complete(&self, device: &Arc<Device>, completed: Option<(u32, Completion)>) -> Option<()> {
        let (srqn, mut completion) = completed?;
        let Some(srq) = self.srq(srqn) else { return Some(()) };
        if completion.flags.contains(WcFlags::WITH_INV) {
            let asker = Asker { qpn: completion.qpn, pd: srq.pd() };
            let taken = device.regions().write().invalidate(asker, completion.invalidated);
            // Invalidating a key that is already invalid is not an error.
            if let Ok(serial) = taken {
                device.reaches().wait_for_copies();
                // The hub invalidated the registration that the key had then. The key may belong to a later one by now.
                if let Some(serial) = serial {
                    self.invalidated(device, completion.invalidated, serial);
                }
            }
        }
        let queue = srq.xrc()?;
        let cq = queue.cq();
        if cq.wants_time() {
            completion.timestamp = device.now().0;
        }
        if srq.completed() {
            device.raise(Raised::SrqLimit(Arc::downgrade(&srq)));
        }
        // A queue that overflowed raises its event. The target continues, as it belongs to other processes, too.
        if let Err(overflow) = cq.push(completion) {
            device.cq_overflow(cq, overflow);
        }
        Some(())
    }

    fn atomic(&self, device: &Device, outbox: &Outbox, meta: Meta, bytes: &[u8]) -> Option<()> {
        let atomic = Atomic::parse(meta, bytes)?;
        let result = self.carry_out(device, &atomic);
        let meta = Outcome::encode(atomic.qpn, atomic.psn, result);
        outbox.send(device, kind::RESULT, meta, &[]);
        Some(())
    }

    fn carry_out(&self, device: &Device, atomic: &Atomic) -> Result<u64, AccessFault> {
        let srq = self.srq(atomic.srqn).ok_or(AccessFault::Gone)?;
        let asker = Asker { qpn: atomic.qpn, pd: srq.pd() };
        let regions = device.regions().read();
        let at = regions.remote(asker, atomic.rkey, atomic.va, 8, Access::REMOTE_ATOMIC)?;
        if at.addr % 8 != 0 {
            return Err(AccessFault::Bounds);
        }
        at.space.atomic(at.addr, atomic.op)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;

    use rdmux_link::Board;
    use rdmux_transport::attr::QpType;
    use rdmux_transport::wr::{Sge, WcOpcode, WcStatus};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use rustix::thread::gettid;

    use super::*;
    use crate::engine::background::RETRY;
    use crate::engine::xrc::member::{Identity, Member, MemberId};
    use crate::handles::pd::Pd;
    use crate::lab::{Lab, Node, child_with_memory, rests};
    use crate::objects::control::ReachFds;
    use crate::objects::quota::Counted;
    use crate::objects::srq::SrqAttr;
    use crate::objects::xrc::opening::Opening;
    use crate::objects::xrc::queue::XrcQueue;

    fn receive_with_invalidation(rkey: Rkey) -> Completion {
        Completion {
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            flags: WcFlags::WITH_INV,
            invalidated: rkey,
            ..Completion::EMPTY
        }
    }

    /// Creates a process and a hub that are not driven, so that the ring between them stays full. Also returns the process's
    /// outbox to the hub.
    fn with_full_ring<'a>(
        (device, hub): (&'a Arc<Device>, &Arc<Device>),
        way: impl FnOnce(Outbox) -> &'a Outbox,
    ) -> &'a Outbox {
        let slot = hub.control().info().slot.slot;
        let outbox =
            way(Outbox::new(device.engine().neighbours().to(device, slot).unwrap().unwrap()));
        assert_ne!(device.drive(), Some(RETRY));
        while !outbox.is_waiting() {
            assert!(!is_woken(device), "it was asleep until a record had to wait");
            outbox.send(device, kind::PLACE, Meta::default(), &[&[0; 4096]]);
        }
        outbox
    }

    fn is_woken(device: &Device) -> bool {
        let fds = &mut [PollFd::from_borrowed_fd(device.drive_fd(), PollFlags::IN)];
        poll(fds, Some(&Timespec::default())).unwrap() != 0
    }

    /// The ring's doorbell may not ring: another user of the ring may have found room since.
    #[test]
    fn record_without_ring_space_is_retried_until_the_hub_is_gone() {
        let lab = Lab::new(true);
        let (device, control) = lab.driven_process("127.77.208.3");
        let (hub, _control) = lab.driven_process("127.77.208.3");
        let slot = hub.control().info().slot.slot;
        let way = |outbox| &device.xrc().hub.get_or_init(|| (slot, outbox)).1;
        let outbox = with_full_ring((&device, &hub), way);
        assert!(is_woken(&device));
        assert_eq!(device.drive(), Some(RETRY));
        assert!(outbox.is_waiting());

        hub.drive();
        device.drive();
        assert!(!outbox.is_waiting());
        assert_eq!(device.drive(), None);

        while !outbox.is_waiting() {
            outbox.send(&device, kind::PLACE, Meta::default(), &[&[0; 4096]]);
        }
        control.die();
        device.drive();
        assert!(outbox.is_waiting() && device.has_failed());
        assert_eq!(device.drive(), None, "nobody will ever make room");
    }

    #[test]
    fn hub_record_without_ring_space_is_retried_until_the_process_is_gone() {
        let lab = Lab::new(true);
        let (hub, _control) = lab.driven_process("127.77.208.4");
        let (device, _control) = lab.driven_process("127.77.208.4");
        let (pid, slot) = (std::process::id().cast_signed(), device.control().info().slot.slot);
        let who = Identity { pid, user: 0, comm: String::new(), slot, pidfd: None };
        let member = Arc::new(Member::new(MemberId(1), who));
        hub.xrc().host_members().add(&member);
        let way = |outbox| {
            member.reach_by(outbox);
            member.outbox().unwrap()
        };
        let outbox = with_full_ring((&hub, &device), way);
        assert!(is_woken(&hub));
        assert_eq!(hub.drive(), Some(RETRY));
        assert!(outbox.is_waiting());

        hub.xrc().host_members().remove(&hub, &member);
        assert_eq!(hub.drive(), None);
    }

    /// Otherwise the event could follow the removal of the registration, after which its events are withdrawn.
    #[test]
    fn registration_is_not_removed_while_its_event_is_raised() {
        let (device, _control) = Lab::new(true).driven_process("127.77.208.5");
        let (qpn, opening) = (Qpn::new(0x80_0001), Opening::new(device.control().clone(), 1));
        device.xrc().registered(qpn, opening.registration());
        let raise = || device.xrc().raise(&device, qpn, QpEvent::CommEst);
        raise();
        let is_held = Cell::new(false);
        std::thread::scope(|scope| {
            // The queue of events is locked meanwhile.
            device.events().withdraw(|_| {
                let (tell, hear) = mpsc::channel();
                scope.spawn(move || {
                    tell.send(gettid().as_raw_nonzero().to_string()).unwrap();
                    raise();
                });
                let raising = hear.recv().unwrap();
                while !rests(&raising) {
                    std::thread::yield_now();
                }
                is_held.set(device.xrc().registrations.is_locked());
                false
            });
        });
        assert!(is_held.get());
    }

    /// A key was registered again while the message was in transit from the hub, which invalidated the earlier registration.
    #[test]
    fn send_with_invalidate_also_closes_a_later_registration_at_the_hub() {
        const SRQN: u32 = 0x80_0001;
        let lab = Lab::new(true);
        let (device, control) = lab.process("127.77.208.2");
        let node = Node::on(device.clone(), control, Pd::new(&device), QpType::Rc, 64, None);
        let (queue, _fd) = XrcQueue::new(node.cq.core.clone(), 8, 1).unwrap();
        let attr = SrqAttr { max_wr: 8, max_sge: 1, limit: 0 };
        let permit = device.permit("try", Counted::Srq).unwrap();
        let srq = SrqCore::for_xrc(node.pd.id(), attr, queue, 0, permit);
        device.xrc().add_srq(SRQN, &srq);

        let (hub, _control) = lab.process("127.77.208.2");
        let pid = std::process::id().cast_signed();
        let slot = device.control().info().slot.slot;
        let who = Identity { pid, user: 0, comm: String::new(), slot, pidfd: None };
        let member = Arc::new(Member::new(MemberId(1), who));
        hub.xrc().host_members().add(&member);
        let hub_slot = hub.control().info().slot.slot;
        let neighbour = device.engine().neighbours().to(&device, hub_slot).unwrap().unwrap();
        device.xrc().hub.set((hub_slot, Outbox::new(neighbour))).unwrap();

        let (lkey, rkey) = (node.mr.lkey(), node.mr.rkey());
        let row = device.regions().read().row(lkey.0).unwrap();
        member.add_region(lkey.0, &row, 1, || Ok(Box::new(()))).unwrap();
        let at = Sge { addr: node.base(), length: 8, lkey };
        let is_open =
            || member.regions().find(node.pd.id(), true, &at, Access::REMOTE_WRITE).is_ok();
        assert!(is_open());
        device.xrc().complete(&device, Some((SRQN, receive_with_invalidation(rkey)))).unwrap();
        device.engine().drain(&device);
        while is_open() {
            std::thread::yield_now();
        }
    }

    /// The wait for the peer's copy is the same as after any other invalidation. This peer never ends its copy, so the wait
    /// times out.
    #[test]
    fn send_with_invalidate_completes_after_direct_copies_with_its_rkey_ended() {
        const SRQN: u32 = 0x80_0001;
        const OWN: u16 = 1;
        const PEER: u16 = 2;
        let (device, control) = Lab::new(true).process_with_board("127.77.208.1");
        let node = Node::on(device.clone(), control, Pd::new(&device), QpType::Rc, 64, None);
        let rkey = node.mr.rkey();
        let (queue, _fd) = XrcQueue::new(node.cq.core.clone(), 8, 1).unwrap();
        let attr = SrqAttr { max_wr: 8, max_sge: 1, limit: 0 };
        let permit = device.permit("try", Counted::Srq).unwrap();
        let srq = SrqCore::for_xrc(node.pd.id(), attr, queue, 0, permit);
        device.xrc().add_srq(SRQN, &srq);

        let mut child = child_with_memory();
        let pidfd = pidfd_open(Pid::from_raw(child.pid).unwrap(), PidfdFlags::empty()).unwrap();
        let board = Board::create().unwrap();
        let fds = ReachFds { board: board.fd().try_clone().unwrap(), pidfd };
        let reach = device.reaches().add((PEER, OWN), Some(fds)).unwrap();
        let _copy = board.enter(OWN).unwrap();
        let completion = receive_with_invalidation(rkey);
        device.xrc().complete(&device, Some((SRQN, completion))).unwrap();
        assert!(reach.is_stuck(), "the copy was waited for");
        let mut out = [Completion::EMPTY];
        assert_eq!((node.cq.poll(&mut out), out[0].invalidated), (1, rkey));
        child.end();
    }
}
