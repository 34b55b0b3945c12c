//! The registry: domains, their openings, shared receive queues and targets, and the processes that hold them. No I/O.

use std::collections::HashMap;
use std::sync::Arc;

use rdmux_wire::Qpn;

use crate::engine::qp::QpCore;
use crate::engine::xrc::member::{MemberId, RemoteSrq};
use crate::engine::xrc::place::Domain;
use crate::objects::control::{ControlError, is_target};
use crate::objects::error::VerbsError;
use crate::objects::xrc::numbers::Numbers;
use crate::objects::xrc::request::Hold;
use crate::objects::xrc::shares::Share;

/// The maximum number of openings of domains of one process.
const MAX_OPENINGS: usize = 4096;

/// A file, by device, inode and time of creation. The time tells it from a deleted file whose inode it got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileKey {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Seconds and nanoseconds; none if the file system does not record the time, or has not read it yet.
    pub(crate) created: Option<(i64, u32)>,
}

impl FileKey {
    fn is_same_file(self, other: Self) -> bool {
        let times = self.created.zip(other.created);
        (self.device, self.inode) == (other.device, other.inode)
            && times.is_none_or(|(one, other)| one == other)
    }
}

/// A domain.
#[derive(Debug)]
pub(crate) struct DomainEntry {
    pub(crate) domain: Arc<Domain>,
    /// The file; none if the domain is private.
    pub(crate) file: Option<FileKey>,
    /// The processes that opened it, once for each opening.
    pub(crate) openers: Vec<MemberId>,
}

/// A process that holds a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) member: MemberId,
    /// The number of handles that the process has.
    pub(crate) handles: u32,
    /// Whether the process holds the target by registration.
    pub(crate) registered: bool,
}

/// A target.
#[derive(Debug)]
pub(crate) struct TargetEntry {
    pub(crate) core: Arc<QpCore>,
    /// The number of the target's domain.
    pub(crate) domain: u64,
    /// The processes that hold the target.
    pub(crate) holders: Vec<Holder>,
    _share: Share,
}

/// A shared receive queue.
#[derive(Debug)]
struct SrqEntry {
    queue: Arc<RemoteSrq>,
    /// The number of its domain.
    domain: u64,
    _share: Share,
}

/// An opening of a domain.
#[derive(Clone, Copy, Debug)]
struct Opening {
    member: MemberId,
    domain: u64,
}

/// The registry; see the module.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    domains: HashMap<u64, DomainEntry>,
    openings: HashMap<u32, Opening>,
    srqs: HashMap<u32, SrqEntry>,
    targets: HashMap<Qpn, TargetEntry>,
    srq_numbers: Numbers,
    qp_numbers: Numbers,
    last_domain: u64,
    last_opening: u32,
}

fn invalid(why: impl Into<String>) -> VerbsError {
    refused(libc::EINVAL, why)
}

fn refused(errno: i32, why: impl Into<String>) -> VerbsError {
    ControlError::Refused { what: "use XRC".to_owned(), why: why.into(), errno }.into()
}

impl Registry {
    /// Opens the domain of a file, or a private one of the caller.
    pub(crate) fn open(
        &mut self,
        member: MemberId,
        file: Option<FileKey>,
        create: bool,
        exclusive: bool,
    ) -> Result<u32, VerbsError> {
        if self.openings.values().filter(|o| o.member == member).count() >= MAX_OPENINGS {
            return Err(refused(
                libc::ENOMEM,
                format!("this process has opened {MAX_OPENINGS} domains already, the maximum"),
            ));
        }
        let is_its = |d: &DomainEntry| d.file.zip(file).is_some_and(|(a, b)| a.is_same_file(b));
        let found = self.domains.iter().find(|(_, d)| is_its(d));
        let domain = match found.map(|(&id, _)| id) {
            Some(_) if create && exclusive => {
                return Err(invalid("the file's domain exists already, and O_EXCL is set"));
            }
            Some(id) => id,
            None if !create => {
                return Err(refused(
                    libc::EAGAIN,
                    "the domain does not exist, and O_CREAT is not set",
                ));
            }
            None => {
                self.last_domain += 1;
                let entry = DomainEntry { domain: Arc::default(), file, openers: Vec::new() };
                self.domains.insert(self.last_domain, entry);
                self.last_domain
            }
        };
        if let Some(entry) = self.domains.get_mut(&domain) {
            entry.openers.push(member);
        }
        self.last_opening = self.last_opening.wrapping_add(1);
        while self.openings.contains_key(&self.last_opening) {
            self.last_opening = self.last_opening.wrapping_add(1);
        }
        self.openings.insert(self.last_opening, Opening { member, domain });
        Ok(self.last_opening)
    }

    /// Closes an opening. The domain is removed with its last opening.
    pub(crate) fn close(&mut self, member: MemberId, opening: u32) -> Result<(), VerbsError> {
        let domain = self.domain_of(member, opening)?;
        self.openings.remove(&opening);
        self.close_domain(member, domain);
        Ok(())
    }

    fn close_domain(&mut self, member: MemberId, domain: u64) {
        let Some(entry) = self.domains.get_mut(&domain) else { return };
        if let Some(at) = entry.openers.iter().position(|&m| m == member) {
            entry.openers.swap_remove(at);
        }
        if entry.openers.is_empty() {
            self.domains.remove(&domain);
        }
    }

    fn domain_of(&self, member: MemberId, opening: u32) -> Result<u64, VerbsError> {
        let found = self.openings.get(&opening).filter(|o| o.member == member);
        found.map(|o| o.domain).ok_or_else(|| invalid("the domain is not open"))
    }

    /// Adds a shared receive queue, which `make` creates once its number is known.
    pub(crate) fn add_srq(
        &mut self,
        member: MemberId,
        opening: u32,
        share: Share,
        make: impl FnOnce(u32) -> RemoteSrq,
    ) -> Result<u32, VerbsError> {
        let domain = self.domain_of(member, opening)?;
        let full = || refused(libc::ENOMEM, "all numbers of shared receive queues are in use");
        let srqn = self.srq_numbers.take().ok_or_else(full)?;
        let queue = Arc::new(make(srqn));
        if let Some(entry) = self.domains.get(&domain) {
            entry.domain.add(&queue);
        }
        self.srqs.insert(srqn, SrqEntry { queue, domain, _share: share });
        Ok(srqn)
    }

    /// Removes a shared receive queue.
    pub(crate) fn remove_srq(&mut self, member: MemberId, srqn: u32) -> Result<(), VerbsError> {
        let own = self.srqs.get(&srqn).is_some_and(|srq| srq.is_of(member));
        if !own {
            return Err(invalid(format!(
                "{srqn:#08x} is not a shared receive queue of this process"
            )));
        }
        self.drop_srq(srqn);
        Ok(())
    }

    fn drop_srq(&mut self, srqn: u32) {
        let Some(srq) = self.srqs.remove(&srqn) else { return };
        if let Some(entry) = self.domains.get(&srq.domain) {
            entry.domain.remove(srqn);
        }
        self.srq_numbers.give_back(srqn);
    }

    /// Adds a target, which `make` creates once its number is known.
    pub(crate) fn add_target(
        &mut self,
        member: MemberId,
        opening: u32,
        hold: Hold,
        share: Share,
        make: impl FnOnce(Qpn, Arc<Domain>) -> Arc<QpCore>,
    ) -> Result<Arc<QpCore>, VerbsError> {
        let id = self.domain_of(member, opening)?;
        let entry = self.domains.get(&id).ok_or_else(|| invalid("the domain is not open"))?;
        let full = || refused(libc::ENOMEM, "all numbers of XRC receive queue pairs are in use");
        let qpn = Qpn::new(self.qp_numbers.take().ok_or_else(full)?);
        let core = make(qpn, entry.domain.clone());
        let holders = vec![Holder::new(member, hold)];
        let entry = TargetEntry { core: core.clone(), domain: id, holders, _share: share };
        self.targets.insert(qpn, entry);
        Ok(core)
    }

    /// Returns a target of the domain that was opened.
    pub(crate) fn target(
        &self,
        member: MemberId,
        opening: u32,
        qpn: Qpn,
    ) -> Result<&TargetEntry, VerbsError> {
        let domain = self.domain_of(member, opening)?;
        if !is_target(qpn) {
            return Err(invalid(format!("{qpn} is not an XRC receive queue pair")));
        }
        let unknown = || invalid(format!("XRC receive queue pair {qpn} does not exist"));
        let target = self.targets.get(&qpn).ok_or_else(unknown)?;
        if target.domain != domain {
            return Err(invalid(format!("XRC receive queue pair {qpn} belongs to another domain")));
        }
        Ok(target)
    }

    /// Adds a hold of a process on a target.
    pub(crate) fn hold(
        &mut self,
        member: MemberId,
        opening: u32,
        qpn: Qpn,
        hold: Hold,
    ) -> Result<(), VerbsError> {
        self.target(member, opening, qpn)?;
        let Some(target) = self.targets.get_mut(&qpn) else { return Ok(()) };
        match target.holders.iter_mut().find(|h| h.member == member) {
            Some(holder) => holder.add(hold),
            None => target.holders.push(Holder::new(member, hold)),
        }
        Ok(())
    }

    /// Removes a hold of a process on a target. Returns the target if no process holds it any more.
    pub(crate) fn let_go(
        &mut self,
        member: MemberId,
        opening: u32,
        qpn: Qpn,
        hold: Hold,
    ) -> Result<Option<Arc<QpCore>>, VerbsError> {
        self.target(member, opening, qpn)?;
        let Some(target) = self.targets.get_mut(&qpn) else { return Ok(None) };
        let holder = target.holders.iter_mut().find(|h| h.member == member);
        if !holder.is_some_and(|h| h.remove(hold)) {
            let how = if hold == Hold::Handle { "opened" } else { "registered for" };
            return Err(invalid(format!("this process has not {how} queue pair {qpn}")));
        }
        Ok(self.forget_unheld(qpn))
    }

    fn forget_unheld(&mut self, qpn: Qpn) -> Option<Arc<QpCore>> {
        let target = self.targets.get_mut(&qpn)?;
        target.holders.retain(Holder::holds);
        if !target.holders.is_empty() {
            return None;
        }
        self.targets.remove(&qpn).map(|target| target.core)
    }

    /// Frees the number of a target that no process holds, after it has been destroyed: until then, packets find it by the number.
    pub(crate) fn free(&mut self, qpn: Qpn) {
        self.qp_numbers.give_back(qpn.get());
    }

    /// Removes a process and everything that belonged to it. Returns the targets that no process holds any more.
    pub(crate) fn leave(&mut self, member: MemberId) -> Vec<Arc<QpCore>> {
        let srqs = self.srqs.iter().filter(|(_, srq)| srq.is_of(member));
        let srqs: Vec<u32> = srqs.map(|(&srqn, _)| srqn).collect();
        srqs.into_iter().for_each(|srqn| self.drop_srq(srqn));
        let held = |t: &TargetEntry| t.holders.iter().any(|h| h.member == member);
        let qpns: Vec<Qpn> =
            self.targets.iter().filter(|(_, t)| held(t)).map(|(&qpn, _)| qpn).collect();
        let unheld = qpns.into_iter().filter_map(|qpn| {
            self.targets.get_mut(&qpn)?.holders.retain(|h| h.member != member);
            self.forget_unheld(qpn)
        });
        let unheld = unheld.collect();
        let openings = self.openings.iter().filter(|(_, o)| o.member == member);
        let openings: Vec<(u32, u64)> = openings.map(|(&id, o)| (id, o.domain)).collect();
        for (opening, domain) in openings {
            self.openings.remove(&opening);
            self.close_domain(member, domain);
        }
        unheld
    }

    /// Returns the processes that hold a target.
    pub(crate) fn holders(&self, qpn: Qpn) -> &[Holder] {
        self.targets.get(&qpn).map_or(&[], |target| &target.holders)
    }

    /// Returns the domains with their numbers.
    pub(crate) fn domains(&self) -> impl Iterator<Item = (u64, &DomainEntry)> {
        self.domains.iter().map(|(&id, entry)| (id, entry))
    }
    /// Returns the targets with their numbers.
    pub(crate) fn targets(&self) -> impl Iterator<Item = (Qpn, &TargetEntry)> {
        self.targets.iter().map(|(&qpn, entry)| (qpn, entry))
    }
}

impl SrqEntry {
    fn is_of(&self, member: MemberId) -> bool {
        self.queue.member.id == member
    }
}

impl Holder {
    fn new(member: MemberId, hold: Hold) -> Self {
        let mut holder = Self { member, handles: 0, registered: false };
        holder.add(hold);
        holder
    }

    fn add(&mut self, hold: Hold) {
        match hold {
            Hold::Handle => self.handles += 1,
            Hold::Registration => self.registered = true,
        }
    }

    /// Removes a hold. Returns whether the target was held this way.
    fn remove(&mut self, hold: Hold) -> bool {
        match hold {
            Hold::Handle if self.handles > 0 => self.handles -= 1,
            Hold::Registration if self.registered => self.registered = false,
            _ => return false,
        }
        true
    }

    fn holds(&self) -> bool {
        self.handles > 0 || self.registered
    }
}

#[cfg(test)]
mod tests;
