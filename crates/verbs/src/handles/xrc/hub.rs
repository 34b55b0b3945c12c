//! The hub: XRC objects that belong to no process, on a device of the host service's own. The service notifies the hub of
//! processes that join and leave, and passes it their requests. The hub's engine does the rest.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdmux_link::Consumer;
use rdmux_transport::attr::{AttrMask, QpAttr, QpState};
use rdmux_transport::env::QpEvent;
use rdmux_wire::Qpn;
use rustix::fs::{AtFlags, StatxFlags};

use super::registry::{FileKey, Registry};
use crate::engine::device::Device;
use crate::engine::drive::Bound;
use crate::engine::qp::QpCore;
pub use crate::engine::xrc::member::{Identity, MemberId};
use crate::engine::xrc::member::{Member, RemoteSrq};
use crate::engine::xrc::place::TargetEnds;
use crate::engine::xrc::side::Outbox;
use crate::handles::event::AsyncEventKind;
use crate::objects::control::{Control, ControlError};
use crate::objects::error::VerbsError;
use crate::objects::pd::PdId;
use crate::objects::quota::Counted;
use crate::objects::xrc::record::MAX_SGES;
use crate::objects::xrc::request::{XrcReply, XrcRequest};
pub use crate::objects::xrc::shares::{Share, Shared, Shares};

/// The hub; see the module.
#[derive(Debug)]
pub struct Hub {
    device: Arc<Device>,
    shares: Arc<dyn Shares>,
    state: Mutex<State>,
}

/// The hub's objects and processes.
#[derive(Debug, Default)]
struct State {
    registry: Registry,
    members: HashMap<MemberId, Arc<Member>>,
}

/// An event of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetEvent {
    /// The target's number.
    pub qpn: Qpn,
    /// The event.
    pub event: QpEvent,
    /// The processes that hold the target.
    pub holders: Vec<MemberId>,
}

/// The status of a domain, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainStatus {
    /// The domain's number.
    pub id: u64,
    /// The device and inode of its file; none if the domain is private.
    pub file: Option<(u64, u64)>,
    /// The processes that opened it, once for each opening.
    pub pids: Vec<i32>,
    /// The number of shared receive queues in the domain.
    pub srqs: usize,
}

/// The status of a target, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// The target's number.
    pub qpn: Qpn,
    /// The number of the target's domain.
    pub domain: u64,
    /// The target's present state; none if its lock was held for longer than the status may wait.
    pub now: Option<TargetNow>,
    /// The processes that hold it.
    pub holders: Vec<HolderStatus>,
}

/// The present state of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetNow {
    /// The state of the target.
    pub state: QpState,
    /// The sender's queue pair.
    pub dest_qpn: Qpn,
    /// Bytes of memory that it uses.
    pub bytes: usize,
}

/// The total time for which a status waits for targets whose lock is held. An engine releases the lock after each burst.
const STATUS_TIMEOUT: Duration = Duration::from_millis(20);

/// A process that holds a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderStatus {
    /// The process ID.
    pub pid: i32,
    /// The name of the process.
    pub comm: String,
    /// The number of handles of the process.
    pub handles: u32,
    /// Whether the process is registered.
    pub registered: bool,
}

impl Hub {
    /// Opens a hub on a device of its own. `shares` limits how much of it one user may have.
    ///
    /// # Errors
    ///
    /// As for [`Device::open`].
    pub fn open(control: Arc<dyn Control>, shares: Arc<dyn Shares>) -> Result<Self, VerbsError> {
        let device = Device::open(control)?;
        device.xrc().host_members();
        Ok(Self { device, shares, state: Mutex::default() })
    }

    /// Returns the hub's device. [`Device::async_fd`] is readable when [`next_event`](Self::next_event) has an event.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Adds a process.
    pub fn join(&self, id: MemberId, who: Identity) {
        let member = Arc::new(Member::new(id, who));
        self.device.xrc().host_members().add(&member);
        self.state.lock().members.insert(id, member);
    }

    /// Removes a process that is gone, with everything that it holds.
    pub fn leave(&self, id: MemberId) {
        let mut state = self.state.lock();
        let Some(member) = state.members.remove(&id) else { return };
        let unheld = state.registry.leave(id);
        drop(state);
        self.device.xrc().host_members().remove(&self.device, &member);
        unheld.iter().for_each(|core| self.destroy(core));
    }

    fn destroy(&self, core: &Arc<QpCore>) {
        self.device.qps().write().set_target(core.qpn, None);
        // The process that posted the receive of an incomplete message is notified.
        let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        let _ = Bound::lock(&self.device, core).modify(&reset, AttrMask::STATE, None, None);
        self.device.engine().forget(&self.device, core);
        self.device.events().withdraw(|e| e.is_about_qp(&core.identity));
        self.state.lock().registry.free(core.qpn);
    }

    /// Handles a request of a process. `fd` arrived with the request. The caller closes it, which may block on the process.
    ///
    /// # Errors
    ///
    /// EINVAL for an object that does not exist or is not the caller's; others as the requests say.
    pub fn handle(
        &self,
        id: MemberId,
        request: XrcRequest,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<XrcReply, VerbsError> {
        let gone = || VerbsError::from(ControlError::Gone);
        // Done without the lock, which the service's main thread takes for a status.
        let file = match &request {
            XrcRequest::OpenDomain { .. } => fd.map(file_key).transpose()?,
            _ => None,
        };
        let mut state = self.state.lock();
        let State { registry, members } = &mut *state;
        let member = members.get(&id).cloned().ok_or_else(gone)?;
        match request {
            XrcRequest::OpenDomain { create, exclusive } => {
                registry.open(id, file, create, exclusive).map(XrcReply::Domain)
            }
            XrcRequest::CloseDomain { domain } => {
                registry.close(id, domain).map(|()| XrcReply::Done)
            }
            XrcRequest::CreateSrq { domain, pd, max_sge } => {
                drop(state);
                self.create_srq(&member, domain, PdId(pd), max_sge, fd).map(XrcReply::Srq)
            }
            XrcRequest::DestroySrq { srqn } => {
                registry.remove_srq(id, srqn).map(|()| XrcReply::Done)
            }
            XrcRequest::AddRegion { key, region } => {
                drop(state);
                let share = || self.share(&member, Shared::Region, "register memory for XRC");
                let most = self.device.limits().max_mr;
                member.add_region(key, &region, most, share).map(|()| XrcReply::Done)
            }
            XrcRequest::RemoveRegion { key } => {
                drop(state);
                member.remove_region(key);
                Ok(XrcReply::Done)
            }
            XrcRequest::CreateTarget { domain, hold } => {
                const WHAT: &str = "create an XRC receive queue pair";
                let permit = self.device.permit(WHAT, Counted::Qp)?;
                let share = self.share(&member, Shared::Target, WHAT)?;
                let core = registry.add_target(id, domain, hold, share, |qpn, domain| {
                    QpCore::target(qpn, TargetEnds::new(domain, Some(permit)))
                })?;
                drop(state);
                self.device.qps().write().set_target(core.qpn, Some(core.clone()));
                Ok(XrcReply::Target(core.qpn))
            }
            XrcRequest::HoldTarget { domain, qpn, hold } => {
                registry.hold(id, domain, qpn, hold).map(|()| XrcReply::Done)
            }
            XrcRequest::LetGo { domain, qpn, hold } => {
                let unheld = registry.let_go(id, domain, qpn, hold)?;
                drop(state);
                unheld.iter().for_each(|core| self.destroy(core));
                Ok(XrcReply::Done)
            }
            XrcRequest::ModifyTarget { domain, qpn, attr, mask } => {
                let core = registry.target(id, domain, qpn)?.core.clone();
                drop(state);
                core.modify(&self.device, &attr, mask).map(|()| XrcReply::Done)
            }
            XrcRequest::QueryTarget { domain, qpn } => {
                let core = registry.target(id, domain, qpn)?.core.clone();
                drop(state);
                let attr = core.state.lock().machine.attr();
                Ok(XrcReply::Attr(Box::new(attr)))
            }
        }
    }

    fn create_srq(
        &self,
        member: &Arc<Member>,
        domain: u32,
        pd: PdId,
        max_sge: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<u32, VerbsError> {
        const WHAT: &str = "create an XRC shared receive queue";
        let fd = fd.ok_or_else(|| VerbsError::invalid(WHAT, "its ring is missing"))?;
        if max_sge > MAX_SGES {
            let why = format!("{max_sge} scatter entries exceed the maximum of {MAX_SGES}");
            return Err(VerbsError::invalid(WHAT, why));
        }
        let ring = Consumer::map(fd).map_err(VerbsError::os(WHAT))?;
        if member.outbox().is_none() {
            // The process is of this host, and so is a neighbour, unless it is gone.
            let neighbour = self.device.engine().neighbours().to(&self.device, member.slot)?;
            member.reach_by(Outbox::new(neighbour.ok_or(ControlError::Gone)?));
        }
        let share = self.share(member, Shared::Srq, WHAT)?;
        let make = |srqn| RemoteSrq::new(srqn, member.clone(), pd, ring);
        self.state.lock().registry.add_srq(member.id, domain, share, make)
    }

    /// Counts an object of a process for its user. `what` names the operation in the error.
    fn share(&self, of: &Member, kind: Shared, what: &'static str) -> Result<Share, VerbsError> {
        self.shares.take(of.user, kind).map_err(|why| {
            let why = format!("the user's share of {} is used up: {why}", kind.name());
            VerbsError::no_memory(what, why)
        })
    }

    /// Takes the next event of a target, with the processes that must be notified.
    pub fn next_event(&self) -> Option<TargetEvent> {
        loop {
            let taken = self.device.try_get_async_event()?;
            if let AsyncEventKind::Qp(qp, event) = taken.kind() {
                let (qpn, event) = (qp.qpn(), *event);
                let state = self.state.lock();
                let holders = state.registry.holders(qpn).iter().map(|h| h.member).collect();
                return Some(TargetEvent { qpn, event, holders });
            }
        }
    }

    /// Returns the status of all domains and targets, ordered by number. Waits for locked targets only briefly: it runs on the
    /// service's main thread, on which all processes of the host depend.
    pub fn status(&self) -> (Vec<DomainStatus>, Vec<TargetStatus>) {
        let until = Instant::now() + STATUS_TIMEOUT;
        // Held only for lookups, never while waiting.
        let state = self.state.lock();
        let pid = |id: &MemberId| state.members.get(id).map_or(0, |m| m.pid);
        let mut domains: Vec<_> = state
            .registry
            .domains()
            .map(|(id, entry)| DomainStatus {
                id,
                file: entry.file.map(|file| (file.device, file.inode)),
                pids: entry.openers.iter().map(pid).collect(),
                srqs: entry.domain.len(),
            })
            .collect();
        let mut targets: Vec<_> = state
            .registry
            .targets()
            .map(|(qpn, entry)| {
                let holder = |h: &super::registry::Holder| HolderStatus {
                    pid: pid(&h.member),
                    comm: state.members.get(&h.member).map_or_else(String::new, |m| m.comm.clone()),
                    handles: h.handles,
                    registered: h.registered,
                };
                let holders = entry.holders.iter().map(holder).collect();
                TargetStatus { qpn, domain: entry.domain, now: now(&entry.core, until), holders }
            })
            .collect();
        domains.sort_by_key(|d| d.id);
        targets.sort_by_key(|t| t.qpn);
        (domains, targets)
    }
}

/// Returns the state of a target. Returns none if its lock is held until the deadline.
fn now(core: &QpCore, until: Instant) -> Option<TargetNow> {
    loop {
        if let Some(driven) = core.state.try_lock() {
            let attr = driven.machine.attr();
            let bytes = driven.machine.footprint();
            return Some(TargetNow { state: attr.state, dest_qpn: attr.dest_qpn, bytes });
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::yield_now();
    }
}

/// Returns what identifies a file, as the kernel has it cached (`AT_STATX_DONT_SYNC`, `statx(2)`), without querying a
/// file system in user space, which need not reply.
fn file_key(fd: BorrowedFd<'_>) -> Result<FileKey, VerbsError> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, c"", flags, StatxFlags::INO | StatxFlags::BTIME)
        .map_err(|e| VerbsError::os("open an XRC domain")(std::io::Error::from(e)))?;
    let has_time = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    Ok(FileKey {
        device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        created: has_time.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    use std::time::UNIX_EPOCH;

    use rdmux_transport::attr::Access;
    use rdmux_transport::wr::Sge;
    use rdmux_wire::{Lkey, Rkey};

    use super::*;
    use crate::handles::cq::Cq;
    use crate::lab::Lab;
    use crate::objects::xrc::queue::XrcQueue;
    use crate::objects::xrc::record::{Invalidated, kind};
    use crate::objects::xrc::request::{Hold, RegionRow};

    /// The shares of users that may have everything.
    #[derive(Debug)]
    struct Unlimited;

    impl Shares for Unlimited {
        fn take(&self, _: u32, _: Shared) -> Result<Share, String> {
            Ok(Box::new(()))
        }
    }

    /// Shares of two objects of each kind for each user.
    #[derive(Debug, Default)]
    struct Two(Mutex<HashMap<(u32, Shared), Arc<()>>>);

    impl Shares for Two {
        fn take(&self, user: u32, of: Shared) -> Result<Share, String> {
            let mut users = self.0.lock();
            let had = users.entry((user, of)).or_default();
            if Arc::strong_count(had) > 2 {
                Err("two".to_owned())
            } else {
                Ok(Box::new(had.clone()))
            }
        }
    }

    const WRITABLE: RegionRow = RegionRow {
        addr: 0x1000,
        length: 64,
        iova: 0x1000,
        access: Access::LOCAL_WRITE.union(Access::REMOTE_WRITE),
        null: false,
        pd: 1,
        serial: 1,
    };

    fn process_of(user: u32) -> Identity {
        Identity { pid: 1, user, comm: String::new(), slot: 1, pidfd: None }
    }

    /// Two processes of a user, and one of another.
    #[test]
    fn hub_objects_of_one_user_leave_those_of_others_until_they_are_destroyed() {
        const IP: &str = "127.77.206.3";
        let lab = Lab::new(true);
        let hub = Hub::open(lab.driven_process(IP).1, Arc::new(Two::default())).unwrap();
        let processes = [7, 7, 8].map(|user| (lab.driven_process(IP).0, user));
        let cq = Cq::new(&processes[0].0, 1, None, 0).unwrap();
        let (_queue, ring) = XrcQueue::new(cq.core.clone(), 8, 1).unwrap();
        let ask = |id, request| hub.handle(MemberId(id), request, Some(ring.as_fd()));
        let mut domains = Vec::new();
        for (id, (device, user)) in (0..).zip(&processes) {
            let slot = device.control().info().slot.slot;
            hub.join(MemberId(id), Identity { slot, ..process_of(*user) });
            let open = XrcRequest::OpenDomain { create: true, exclusive: false };
            let Ok(XrcReply::Domain(domain)) = ask(id, open) else { panic!() };
            domains.push(domain);
        }
        let domain = |id: u64| domains[usize::try_from(id).unwrap()];
        let region = |id, key| ask(id, XrcRequest::AddRegion { key, region: WRITABLE });
        let srq = |id, _| ask(id, XrcRequest::CreateSrq { domain: domain(id), pd: 1, max_sge: 1 });
        let target =
            |id, _| ask(id, XrcRequest::CreateTarget { domain: domain(id), hold: Hold::Handle });
        let (first, second, other) = (0, 1, 2);
        let kinds: [&dyn Fn(u64, u32) -> Result<XrcReply, VerbsError>; 3] =
            [&region, &srq, &target];
        for make in kinds {
            make(first, 1).unwrap();
            make(second, 1).unwrap();
            for id in [first, second] {
                assert_eq!(make(id, 2).unwrap_err().errno(), libc::ENOMEM);
            }
            make(other, 1).unwrap();
        }
        region(first, 1).unwrap();
        hub.leave(MemberId(first));
        for make in kinds {
            make(second, 2).unwrap();
            make(second, 3).unwrap_err();
        }
    }

    #[test]
    fn xrc_file_key_has_the_time_of_creation() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let metadata = file.metadata().unwrap();
        let key = file_key(file.as_fd()).unwrap();
        assert_eq!((key.device, key.inode), (metadata.dev(), metadata.ino()));
        let created = metadata.created().ok().map(|at| at.duration_since(UNIX_EPOCH).unwrap());
        let since = key.created.map(|(s, ns)| Duration::new(s.cast_unsigned(), ns));
        assert_eq!(since, created);
    }

    /// Registrations arrive by the socket, invalidations by the ring.
    #[test]
    fn invalidation_applies_to_the_registration_with_its_serial_in_either_order() {
        const KEY: u32 = 0x107;
        let (_, control) = Lab::new(true).process("127.77.206.2");
        let (hub, id) = (Hub::open(control, Arc::new(Unlimited)).unwrap(), MemberId(1));
        hub.join(id, process_of(0));
        let add = |serial| {
            let region = RegionRow { serial, ..WRITABLE };
            hub.handle(id, XrcRequest::AddRegion { key: KEY, region }, None).unwrap();
        };
        let invalidate = |serial| {
            let (device, meta) = (hub.device(), Invalidated::encode(Rkey(KEY), serial));
            let table = device.qps().read();
            assert!(device.xrc().take(device, &table, 1, kind::INVALIDATE, meta, &[]));
        };
        let is_open = || {
            let member = hub.state.lock().members[&id].clone();
            let at = Sge { addr: WRITABLE.addr, length: 8, lkey: Lkey(KEY) };
            member.regions().find(PdId(WRITABLE.pd), true, &at, Access::REMOTE_WRITE).is_ok()
        };
        add(1);
        assert!(is_open());
        invalidate(1);
        assert!(!is_open());
        add(2);
        invalidate(1);
        assert!(is_open(), "the second registration was not invalidated");
        invalidate(3);
        add(3);
        assert!(!is_open(), "the third one was, before the hub knew of it");
        add(4);
        assert!(is_open());
    }

    #[test]
    fn status_query_does_not_wait_for_a_locked_xrc_target() {
        let (_, control) = Lab::new(true).process("127.77.206.1");
        let (hub, member) = (Hub::open(control, Arc::new(Unlimited)).unwrap(), MemberId(1));
        hub.join(member, process_of(0));
        let ask = |request| hub.handle(member, request, None).unwrap();
        let open = XrcRequest::OpenDomain { create: true, exclusive: false };
        let XrcReply::Domain(domain) = ask(open) else { panic!() };
        let create = || XrcRequest::CreateTarget { domain, hold: Hold::Handle };
        let XrcReply::Target(qpn) = ask(create()) else { panic!() };
        let core = hub.device().qps().read().get(qpn).unwrap().clone();
        let held = core.state.lock();
        let (_, targets) = hub.status();
        assert_eq!((targets[0].qpn, &targets[0].now), (qpn, &None));
        drop(held);
        let (_, targets) = hub.status();
        assert_eq!(targets[0].now.as_ref().unwrap().state, QpState::Reset);
        // Neither does it wait for a request that waits for the table or the target.
        let table = hub.device().qps().read();
        std::thread::scope(|scope| {
            scope.spawn(|| ask(create()));
            while hub.status().1.len() < 2 {
                std::thread::yield_now();
            }
            drop(table);
        });
        let held = core.state.lock();
        std::thread::scope(|scope| {
            let queried = scope.spawn(|| ask(XrcRequest::QueryTarget { domain, qpn }));
            (0..3).for_each(|_| assert_eq!(hub.status().1.len(), 2));
            drop(held);
            queried.join().unwrap();
        });
    }
}
