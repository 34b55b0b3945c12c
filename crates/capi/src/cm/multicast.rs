//! Joining and leaving multicast groups.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::sockaddr;
use rdmux_cm::{Addr, GroupAddr, GroupWish, JoinFlags};
use rdmux_wire::Pkey;

use super::address;
use super::event::set_event;
use super::group::{self, Group, NOT_YET};
use super::id::{Id, State};
use super::stale::forget_events;
use super::take::complete_join;
use crate::abi::cma::*;
use crate::boundary::{Errno, Result, status};

/// Joins a multicast group. After the event MULTICAST_JOIN the id's queue pair receives its datagrams
/// (rdma_join_multicast(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call; `addr` is NULL or an address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { join_address(Id::get(id)?, addr, JoinFlags::FullMember, context) })
}

/// Joins as [`rdma_join_multicast`] does, or only to send (rdma_join_multicast_ex(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call; `attr` may be read, and its address is NULL or one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, attr) = unsafe { (Id::get(id)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(refused(Errno::EOPNOTSUPP, "comp_mask", "unknown bits"));
        }
        if attr.comp_mask != RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS {
            return Err(refused(Errno::EINVAL, "comp_mask", "address and join flags are needed"));
        }
        let flags = match attr.join_flags {
            RDMA_MC_JOIN_FLAG_FULLMEMBER => JoinFlags::FullMember,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => JoinFlags::SendOnlyFullMember,
            _ => return Err(refused(Errno::EINVAL, "join_flags", "unknown")),
        };
        // SAFETY: the caller guarantees it.
        unsafe { join_address(id, attr.addr, flags, context) }
    })
}

/// Logs the name of an invalid argument and the reason, and returns `errno`.
pub(super) fn refused(errno: Errno, field: &'static str, why: &'static str) -> Errno {
    tracing::warn!(errno = errno.0, "{field}: {why}");
    errno
}

/// Returns the group that an address names, and its partition if that is given. The unspecified address names a new group.
fn group_at(addr: Addr) -> (GroupAddr, Pkey) {
    match addr {
        Addr::Ip(addr) if addr.ip().is_unspecified() => (GroupAddr::NEW, Pkey(0)),
        Addr::Ip(addr) => (GroupAddr::from(addr.ip()).canonical(), Pkey(0)),
        Addr::Ib(addr) => (addr.gid.into(), addr.pkey),
    }
}

/// Joins the group at an address.
///
/// # Safety
/// `addr` is NULL or an address.
unsafe fn join_address(
    id: &Id,
    addr: *const sockaddr,
    flags: JoinFlags,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let addr = unsafe { address::read(addr) };
    let addr =
        addr.map_err(|errno| refused(errno, "addr", "NULL, or not a family of multicast groups"))?;
    let (group, pkey) = group_at(addr);
    join(id, GroupWish::Address { group, pkey, flags }, context)
}

/// Joins a group. Its events have `context`.
pub(super) fn join(id: &Id, wish: GroupWish, context: *mut c_void) -> Result<()> {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    let key = KEYS.fetch_add(1, Ordering::Relaxed);
    let name = wish.group();
    let group = Group {
        key,
        name,
        hears: wish.hears(),
        attached: false,
        context,
        mgid: None,
        assigned: false,
        way: Err(NOT_YET),
        leaving: false,
        replaced: false,
        unacknowledged: 0,
    };
    id.change_groups(|groups| groups.push(group));
    let asked = id.process.client().and_then(|client| {
        client.join_multicast(id.handle, wish, key).map_err(|error| {
            // The error names the invalid field of the request.
            tracing::warn!("{error}");
            Errno(error.errno())
        })
    });
    if let Err(error) = asked {
        id.change_groups(|groups| groups.retain(|g| g.key != key));
        return Err(error);
    }
    id.change_groups(|groups| group::replace(groups, key));
    complete_join(id, key)
}

/// Leaves a group, after the program has acknowledged the events of it that it holds: waits for that
/// (rdma_leave_multicast(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call; `addr` is NULL or an address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, addr) = unsafe { (Id::get(id)?, address::read(addr)?) };
        leave(id, group_at(addr).0)
    })
}

/// Leaves a group: the first that was joined by this name, otherwise one that has this GID. A new group that has a GID by now is
/// also the first one that was joined as new.
pub(super) fn leave(id: &Id, name: GroupAddr) -> Result<()> {
    let client = id.process.client()?;
    let left = id.change_groups(|groups| {
        let find = |is_meant: &dyn Fn(&Group) -> bool| {
            groups.iter().position(|g| !g.leaving && !g.replaced && is_meant(g))
        };
        let at = find(&|group| group.name == name && !group.failed())
            .or_else(|| find(&|group| group.name == name))
            .or_else(|| find(&|group| group.is_called(name)))
            .or_else(|| find(&|group| name.is_new() && group.assigned && !group.failed()))
            .or_else(|| find(&|group| name.is_new() && group.assigned))?;
        let group = groups.get_mut(at)?;
        group.leaving = true;
        Some(group.key)
    });
    let Some(key) = left else {
        return Err(refused(Errno(libc::EADDRNOTAVAIL), "group", "the id has not joined it"));
    };
    id.detach(key);
    let left = client.leave_multicast(id.handle, key);
    let held = |state: &State| state.groups.iter().any(|g| g.key == key && g.unacknowledged > 0);
    // In synchronous mode this library itself holds an event.
    if id.lock().synchronous {
        set_event(id, None);
    }
    id.wait_acknowledged(held);
    let failed = id.change_groups(|groups| {
        let failed = groups.iter().any(|g| g.key == key && g.failed());
        groups.retain(|g| g.key != key);
        failed
    });
    forget_events(id);
    match left {
        // It was left already if the queue pair could not be attached.
        Err(error) if failed && error.errno() == libc::EADDRNOTAVAIL => Ok(()),
        left => Ok(left.map(drop)?),
    }
}
