//! The hub: what belongs to no process, on a device of the host service's own. The service tells it who comes
//! and goes and hands it their requests; all else its engine does.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rdmux_link::Consumer;
use rdmux_transport::attr::QpState;
use rdmux_transport::env::QpEvent;
use rdmux_wire::Qpn;

pub use super::member::{Identity, MemberId};
use super::member::{Member, RemoteSrq};
use super::place::TargetEnds;
use super::record::MAX_SGES;
use super::registry::{FileKey, Registry};
use super::request::{XrcReply, XrcRequest};
use super::side::Outbox;
use crate::control::{Control, ControlError};
use crate::device::Device;
use crate::error::VerbsError;
use crate::event::AsyncEventKind;
use crate::pd::PdId;
use crate::qp::QpCore;

/// See the module.
#[derive(Debug)]
pub struct Hub {
    device: Arc<Device>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    registry: Registry,
    members: HashMap<MemberId, Arc<Member>>,
}

/// Something that happened to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetEvent {
    /// Its number.
    pub qpn: Qpn,
    /// What.
    pub event: QpEvent,
    /// Which processes hold it.
    pub holders: Vec<MemberId>,
}

/// A domain, for who looks on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainStatus {
    /// Its number.
    pub id: u64,
    /// The device and inode of its file; none if it is private.
    pub file: Option<(u64, u64)>,
    /// The processes that opened it, once for each opening.
    pub pids: Vec<i32>,
    /// Its shared receive queues.
    pub srqs: usize,
}

/// A target, for who looks on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// Its number.
    pub qpn: Qpn,
    /// The number of its domain.
    pub domain: u64,
    /// Its state.
    pub state: QpState,
    /// The sender's queue pair.
    pub dest_qpn: Qpn,
    /// Bytes that it takes.
    pub bytes: usize,
    /// Who holds it.
    pub holders: Vec<HolderStatus>,
}

/// A process that holds a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderStatus {
    /// Its number.
    pub pid: i32,
    /// Its name.
    pub comm: String,
    /// How many handles it has.
    pub handles: u32,
    /// Whether it is registered.
    pub registered: bool,
}

impl Hub {
    /// A hub on a device of its own.
    ///
    /// # Errors
    ///
    /// As for [`Device::open`].
    pub fn open(control: Arc<dyn Control>) -> Result<Self, VerbsError> {
        let device = Device::open(control)?;
        device.xrc().host_members();
        Ok(Self { device, state: Mutex::default() })
    }

    /// Its device: readable is [`Device::async_fd`] when [`next_event`](Self::next_event) has one.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A process comes.
    pub fn join(&self, id: MemberId, who: Identity) {
        let member = Arc::new(Member::new(id, who));
        self.device.xrc().host_members().add(&member);
        self.state.lock().members.insert(id, member);
    }

    /// A process is gone, however it went: it holds nothing any more.
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
        self.device.engine().forget(&self.device, core);
        self.device.events().withdraw(|e| e.is_about_qp(core));
    }

    /// Does what a process asks for. `fd` came with it.
    ///
    /// # Errors
    ///
    /// EINVAL for what does not exist, or is not the caller's; what else the requests say.
    pub fn handle(
        &self,
        id: MemberId,
        request: XrcRequest,
        fd: Option<OwnedFd>,
    ) -> Result<XrcReply, VerbsError> {
        let gone = || VerbsError::from(ControlError::Gone);
        let mut state = self.state.lock();
        let State { registry, members } = &mut *state;
        let member = members.get(&id).cloned().ok_or_else(gone)?;
        match request {
            XrcRequest::OpenDomain { create, exclusive } => {
                let file =
                    fd.as_ref().map(|fd| file_key(std::os::fd::AsFd::as_fd(fd))).transpose()?;
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
                if member.add_region(key, &region, self.device.limits().max_mr) {
                    return Ok(XrcReply::Done);
                }
                Err(VerbsError::invalid("register memory for XRC", "its range, or one too many"))
            }
            XrcRequest::RemoveRegion { key } => {
                drop(state);
                member.remove_region(key);
                Ok(XrcReply::Done)
            }
            XrcRequest::CreateTarget { domain, hold } => {
                let core = registry.add_target(id, domain, hold, |qpn, domain| {
                    QpCore::target(qpn, TargetEnds::new(domain))
                })?;
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
        fd: Option<OwnedFd>,
    ) -> Result<u32, VerbsError> {
        const WHAT: &str = "create an XRC shared receive queue";
        let fd = fd.ok_or_else(|| VerbsError::invalid(WHAT, "its ring is missing"))?;
        if max_sge > MAX_SGES {
            let why = format!("{max_sge} scatter entries; {MAX_SGES} are possible");
            return Err(VerbsError::invalid(WHAT, why));
        }
        let ring = Consumer::map(&fd).map_err(VerbsError::os(WHAT))?;
        if member.outbox().is_none() {
            // The process is of this host, so that there is a ring to it, unless it is gone.
            let ring = self.device.engine().rings().to(&self.device, member.slot)?;
            member.reach_by(Outbox::new(ring.ok_or(ControlError::Gone)?));
        }
        let make = |srqn| RemoteSrq::new(srqn, member.clone(), pd, ring);
        self.state.lock().registry.add_srq(member.id, domain, make)
    }

    /// The next event of a target, with those who are to hear of it.
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

    /// All domains and targets, in the order of their numbers.
    pub fn status(&self) -> (Vec<DomainStatus>, Vec<TargetStatus>) {
        let state = self.state.lock();
        let pid = |id: &MemberId| state.members.get(id).map_or(0, |m| m.pid);
        let mut domains: Vec<_> = state
            .registry
            .domains()
            .map(|(id, entry)| DomainStatus {
                id,
                file: entry.file,
                pids: entry.openers.iter().map(pid).collect(),
                srqs: entry.domain.len(),
            })
            .collect();
        let mut targets: Vec<_> = state
            .registry
            .targets()
            .map(|(qpn, entry)| {
                let driven = entry.core.state.lock();
                let (attr, bytes) = (driven.machine.attr(), driven.machine.footprint());
                let holder = |h: &super::registry::Holder| HolderStatus {
                    pid: pid(&h.member),
                    comm: state.members.get(&h.member).map_or_else(String::new, |m| m.comm.clone()),
                    handles: h.handles,
                    registered: h.registered,
                };
                let holders = entry.holders.iter().map(holder).collect();
                let (state, dest_qpn) = (attr.state, attr.dest_qpn);
                TargetStatus { qpn, domain: entry.domain, state, dest_qpn, bytes, holders }
            })
            .collect();
        domains.sort_by_key(|d| d.id);
        targets.sort_by_key(|t| t.qpn);
        (domains, targets)
    }
}

/// A file's device and inode.
fn file_key(fd: BorrowedFd<'_>) -> Result<FileKey, VerbsError> {
    let stat = rustix::fs::fstat(fd)
        .map_err(|e| VerbsError::os("open an XRC domain")(std::io::Error::from(e)))?;
    Ok((stat.st_dev, stat.st_ino))
}
