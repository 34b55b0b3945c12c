//! Multicast groups of an id, and the destinations of datagrams that are sent to groups by address.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdmux_cm::{GroupAddr, UdParam};
use rdmux_wire::Gid;

use super::verbs;
use crate::abi::verbs::{ibv_ah, ibv_pd};
use crate::boundary::{Errno, Result};
use crate::verbs::attr::ah_attr;

/// A group that an id has joined, or is about to.
pub(super) struct Group {
    /// The key by which the service identifies it in events.
    pub(super) key: u64,
    /// The program's name of it; for a new group, once it is joined, the GID that it was assigned.
    pub(super) name: GroupAddr,
    /// Whether the id receives from the group, so that the queue pair must be attached.
    pub(super) hears: bool,
    /// Whether the queue pair is attached for this membership. It is attached once, even if several memberships of the id receive the
    /// group.
    pub(super) attached: bool,
    /// The program's context, for its events.
    pub(super) context: *mut c_void,
    /// The group's GID, once joined.
    pub(super) mgid: Option<Gid>,
    /// Whether it was joined as a new group, which has a GID now.
    pub(super) assigned: bool,
    /// The destination of datagrams to it; or an error: ENOTCONN until it is joined, and then the one that an event reported.
    pub(super) way: Result<Arc<Way>>,
    /// Whether the group is being left: no further event is delivered.
    pub(super) leaving: bool,
    /// Whether it was lost and then joined again. It stays until the event of the loss is read.
    pub(super) replaced: bool,
    /// The number of events that the program holds.
    pub(super) unacknowledged: usize,
}

/// The error of sending to a group that is not joined yet.
pub(super) const NOT_YET: Errno = Errno(libc::ENOTCONN);

impl Group {
    /// Returns whether the join failed, or the group was lost.
    pub(super) fn failed(&self) -> bool {
        self.way.as_ref().is_err_and(|why| *why != NOT_YET)
    }

    /// Returns whether a name means this group: that by which it was joined, or its GID.
    pub(super) fn is_called(&self, name: GroupAddr) -> bool {
        self.name == name || self.mgid.is_some_and(|mgid| name == mgid.into())
    }
}

/// Records how a group was joined. Returns whether the queue pair, if there is one, must be attached to it now: it receives the group,
/// and no other membership does so yet. It is not attached to a group that is being left, from which it was detached already.
pub(super) fn joined(groups: &mut [Group], key: u64, how: &UdParam, has_qp: bool) -> bool {
    let mgid = how.av.dgid;
    let is_heard = groups.iter().any(|g| g.attached && g.mgid == Some(mgid));
    let Some(group) = groups.iter_mut().find(|g| g.key == key) else { return false };
    if group.name.is_new() {
        group.name = mgid.into();
        group.assigned = true;
    }
    group.mgid = Some(mgid);
    group.way = Ok(Way::new(how.clone()));
    group.attached = group.hears && has_qp && !group.leaving;
    group.attached && !is_heard
}

/// Records that the queue pair no longer receives a group. Returns the GID from which it must be detached now, unless another
/// membership still receives that.
pub(super) fn left(groups: &mut [Group], key: u64) -> Option<Gid> {
    let group = groups.iter_mut().find(|g| g.key == key)?;
    let was_attached = std::mem::replace(&mut group.attached, false);
    let mgid = group.mgid.filter(|_| was_attached)?;
    let is_heard = groups.iter().any(|g| g.attached && g.mgid == Some(mgid));
    (!is_heard).then_some(mgid)
}

/// Records that the group with this key is joined, or about to be. It replaces groups of its name: those that have failed are removed,
/// and others were lost, which is reported by events that the program has not read yet.
pub(super) fn replace(groups: &mut Vec<Group>, key: u64) {
    let Some(name) = groups.iter().find(|g| g.key == key).map(|g| g.name) else { return };
    let is_old = |g: &Group| g.key < key && g.name == name && !g.leaving;
    groups.retain(|g| !(is_old(g) && g.failed()));
    if !name.is_new() {
        groups.iter_mut().filter(|g| is_old(g)).for_each(|g| g.replaced = true);
    }
}

/// Records that a join failed, or that a group was lost. Removes the group if another has replaced it.
pub(super) fn failed(groups: &mut Vec<Group>, key: u64, why: Errno) {
    if let Some(group) = groups.iter_mut().find(|g| g.key == key) {
        group.way = Err(why);
    }
    groups.retain(|g| g.key != key || !g.replaced);
}

/// The destination of datagrams to a group.
pub(super) struct Way {
    param: UdParam,
    /// Created when it is first needed, and destroyed with the destination.
    handle: AtomicPtr<ibv_ah>,
}

impl Way {
    pub(super) fn new(param: UdParam) -> Arc<Self> {
        Arc::new(Self { param, handle: AtomicPtr::new(ptr::null_mut()) })
    }

    /// Returns the same destination without an address handle.
    pub(super) fn again(&self) -> Arc<Self> {
        Self::new(self.param.clone())
    }

    /// Returns queue pair and Q_Key of the group.
    pub(super) fn key(&self) -> (u32, u32) {
        (self.param.qp_num.get(), self.param.qkey.0)
    }

    /// Returns the address handle, if it was created.
    pub(super) fn handle(&self) -> Option<*mut ibv_ah> {
        let handle = self.handle.load(Ordering::Acquire);
        (!handle.is_null()).then_some(handle)
    }

    /// Creates the address handle. One thread at a time.
    ///
    /// # Safety
    /// `pd` is a domain.
    pub(super) unsafe fn make_handle(&self, pd: *mut ibv_pd) -> Result<*mut ibv_ah> {
        if let Some(made) = self.handle() {
            return Ok(made);
        }
        // SAFETY: the caller guarantees it.
        let made = unsafe { verbs::create_ah(pd, &mut ah_attr(&self.param.av))? };
        self.handle.store(made, Ordering::Release);
        Ok(made)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        if let Some(handle) = self.handle() {
            verbs::destroy_ah(handle);
        }
    }
}

/// The names of an id's groups, in order, and their destinations.
type Table = Vec<(GroupAddr, Result<Arc<Way>>)>;

/// The destinations of an id's datagrams. A sender reads an immutable table, without a lock and without waiting. A change
/// publishes a new table; older ones are freed when no thread is sending.
pub(super) struct Destinations {
    /// The current table, from a box. Never NULL.
    table: AtomicPtr<Table>,
    /// Threads that may be reading a table.
    senders: AtomicUsize,
    /// Replaced tables from boxes that senders may have seen.
    retired: Mutex<Vec<Retired>>,
}

/// A replaced table, which is freed when dropped.
struct Retired(*mut Table);

// SAFETY: it is the only owner of a table, which is `Send`.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and is dropped when no thread reads the table.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl Default for Destinations {
    fn default() -> Self {
        let table = AtomicPtr::new(Box::into_raw(Box::default()));
        Self { table, senders: AtomicUsize::new(0), retired: Mutex::default() }
    }
}

impl Destinations {
    /// Calls `send` with the destination of a group, the error of one that has none, or nothing for a name that is no group.
    pub(super) fn with<R>(
        &self,
        name: GroupAddr,
        send: impl FnOnce(Option<Result<&Way>>) -> R,
    ) -> R {
        let _sending = Sending::begin(&self.senders);
        // SAFETY: never NULL. A table that is read here is freed only after a moment at which no thread was sending and the table was
        // already replaced: a thread that begins to send after that sees a later one. All of these accesses are SeqCst, so that they have
        // one order.
        let table = unsafe { &*self.table.load(Ordering::SeqCst) };
        let at = table.binary_search_by(|(known, _)| known.cmp(&name));
        let found = at.ok().and_then(|at| table.get(at));
        send(found.map(|(_, way)| way.as_ref().map(Arc::as_ref).map_err(|why| *why)))
    }

    /// Publishes these groups: senders find them from now on.
    pub(super) fn publish(&self, groups: &[Group]) {
        let mut table = Table::new();
        for group in groups.iter().filter(|group| !group.leaving) {
            let names = [Some(group.name), group.mgid.map(GroupAddr::from)];
            let names = names.into_iter().flatten().filter(|name| !name.is_new());
            table.extend(names.map(|name| (name, group.way.clone())));
        }
        table.sort_by_key(|(name, way)| (*name, way.is_err()));
        table.dedup_by_key(|(name, _)| *name);
        let mut retired = self.retired.lock();
        let before = self.table.swap(Box::into_raw(Box::new(table)), Ordering::SeqCst);
        retired.push(Retired(before));
        if self.senders.load(Ordering::SeqCst) == 0 {
            retired.clear();
        }
    }
}

impl Drop for Destinations {
    fn drop(&mut self) {
        // No thread sends any more.
        drop(Retired(*self.table.get_mut()));
    }
}

/// Prevents that tables which existed when it was created are freed while it lives.
struct Sending<'a>(&'a AtomicUsize);

impl<'a> Sending<'a> {
    fn begin(senders: &'a AtomicUsize) -> Self {
        senders.fetch_add(1, Ordering::SeqCst);
        Self(senders)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Returns the errno for the status of a failed join or a lost group.
pub(super) fn lost(status: c_int) -> Errno {
    Errno(status.saturating_abs())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::AtomicBool;

    use rdmux_wire::Qkey;

    use super::*;

    fn group(n: u8, way: Result<Arc<Way>>) -> Group {
        let mgid = way.is_ok().then_some(Gid([n; 16]));
        let name = Ipv4Addr::new(239, 0, 0, n).into();
        Group {
            key: n.into(),
            name,
            hears: true,
            attached: false,
            context: ptr::null_mut(),
            mgid,
            assigned: false,
            way,
            leaving: false,
            replaced: false,
            unacknowledged: 0,
        }
    }

    fn way(key: u32) -> Arc<Way> {
        Way::new(UdParam { qkey: Qkey(key), ..UdParam::default() })
    }

    fn qkey(to: &Destinations, name: impl Into<GroupAddr>) -> Option<Result<u32>> {
        to.with(name.into(), |found| found.map(|way| way.map(|way| way.key().1)))
    }

    #[test]
    fn a_group_is_found_by_its_name_and_its_gid() {
        let to = Destinations::default();
        let ip = |n| Ipv4Addr::new(239, 0, 0, n);
        assert_eq!(qkey(&to, ip(1)), None);
        let mut groups = vec![group(2, Ok(way(20))), group(1, Ok(way(10))), group(3, Err(NOT_YET))];
        to.publish(&groups);
        assert_eq!(qkey(&to, ip(1)), Some(Ok(10)));
        assert_eq!(qkey(&to, Gid([2; 16])), Some(Ok(20)));
        assert_eq!(qkey(&to, ip(3)), Some(Err(NOT_YET)));
        groups[0].leaving = true;
        to.publish(&groups);
        assert_eq!((qkey(&to, ip(2)), qkey(&to, Gid([2; 16]))), (None, None));
        assert_eq!(qkey(&to, GroupAddr::NEW), None);
    }

    #[test]
    fn joined_group_is_preferred_over_lost_group_with_same_mgid() {
        let to = Destinations::default();
        let (mut lost, joined) = (group(1, Err(Errno(libc::ENETRESET))), group(1, Ok(way(10))));
        lost.mgid = joined.mgid;
        to.publish(&[lost, joined]);
        assert_eq!(qkey(&to, Gid([1; 16])), Some(Ok(10)));
    }

    fn how(n: u8) -> UdParam {
        let mut how = UdParam::default();
        how.av.dgid = Gid([n; 16]);
        how
    }

    #[test]
    fn a_queue_pair_is_attached_to_a_group_once() {
        let mut groups = [group(1, Err(NOT_YET)), group(2, Err(NOT_YET))];
        groups.iter_mut().for_each(|group| group.attached = false);
        assert!(joined(&mut groups, 1, &how(7), true));
        assert!(!joined(&mut groups, 2, &how(7), true));
        assert_eq!(left(&mut groups, 1), None);
        assert_eq!(left(&mut groups, 2), Some(Gid([7; 16])));
        assert_eq!(left(&mut groups, 2), None);
        assert!(!joined(&mut groups, 1, &how(7), false));
        assert_eq!(left(&mut groups, 1), None);
    }

    #[test]
    fn group_joined_again_before_its_loss_is_read_replaces_the_old_one() {
        let lost = Errno(libc::ENETRESET);
        let named_like_the_first = |n| {
            let other = group(n, Err(NOT_YET));
            Group { name: group(1, Err(NOT_YET)).name, ..other }
        };
        let mut groups = vec![group(1, Ok(way(10))), named_like_the_first(2)];
        replace(&mut groups, 2);
        assert_eq!(groups.iter().map(|g| g.replaced).collect::<Vec<_>>(), [true, false]);
        failed(&mut groups, 1, lost);
        assert_eq!(groups.iter().map(|g| g.key).collect::<Vec<_>>(), [2]);

        // A group that was not replaced stays until it is joined again or left.
        failed(&mut groups, 2, lost);
        assert_eq!(groups.len(), 1);
        groups.push(named_like_the_first(3));
        replace(&mut groups, 3);
        assert_eq!(groups.iter().map(|g| g.key).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_queue_pair_is_not_attached_to_a_group_that_is_being_left() {
        let mut groups = [group(1, Err(NOT_YET))];
        (groups[0].attached, groups[0].leaving) = (false, true);
        assert_eq!(left(&mut groups, 1), None);
        assert!(!joined(&mut groups, 1, &how(7), true));
        assert!(!groups[0].attached);
    }

    #[test]
    fn retired_group_table_is_freed_only_after_its_senders() {
        let to = Destinations::default();
        let way = way(10);
        to.publish(&[group(1, Ok(Arc::clone(&way)))]);
        to.with(Ipv4Addr::new(239, 0, 0, 1).into(), |found| {
            let found = found.unwrap().unwrap();
            to.publish(&[]);
            assert_eq!(to.retired.lock().len(), 1);
            assert_eq!(found.key().1, 10);
        });
        to.publish(&[]);
        assert_eq!((to.retired.lock().len(), Arc::strong_count(&way)), (0, 1));
    }

    #[test]
    fn senders_find_old_or_new_group_address_during_updates() {
        let to = Destinations::default();
        let done = AtomicBool::new(false);
        to.publish(&[group(1, Ok(way(1)))]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let found = qkey(&to, Ipv4Addr::new(239, 0, 0, 1)).unwrap().unwrap();
                    assert!((1..=1000).contains(&found));
                }
            });
            for n in 1..=1000 {
                to.publish(&[group(1, Ok(way(n)))]);
            }
            done.store(true, Ordering::Relaxed);
        });
        to.publish(&[]);
        assert!(to.retired.lock().is_empty());
    }
}
