//! Multicast groups of ids.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::sockaddr;
use rdmux_cm::{JoinFlags, UdParam};
use rdmux_wire::Gid;

use super::address;
use super::id::Id;
use super::verbs;
use crate::abi::cma::*;
use crate::abi::verbs::ibv_gid;
use crate::boundary::{Errno, Result, status};

/// A group that an id has joined, or is about to.
pub(super) struct Group {
    /// The service tells it in the group's events.
    pub(super) key: u64,
    addr: IpAddr,
    /// Whether the id only sends: then its queue pair is not attached.
    send_only: bool,
    /// The program's, for its events.
    context: *mut c_void,
    /// Once joined.
    mgid: Option<Gid>,
    /// Whether it is being left: no further event is delivered.
    pub(super) leaving: bool,
    /// Events that the program holds.
    pub(super) unacknowledged: usize,
}

/// Joins a multicast group; from the event MULTICAST_JOIN on the id's queue pair hears it
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
    // SAFETY: as promised.
    status(|| unsafe { join(Id::get(id)?, addr, JoinFlags::FullMember, context) })
}

/// As [`rdma_join_multicast`], or only to send (rdma_join_multicast_ex(3)).
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
        // SAFETY: as promised.
        let (id, attr) = unsafe { (Id::get(id)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask != RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS {
            return Err(Errno::EINVAL);
        }
        let flags = match attr.join_flags {
            RDMA_MC_JOIN_FLAG_FULLMEMBER => JoinFlags::FullMember,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => JoinFlags::SendOnlyFullMember,
            _ => return Err(Errno::EINVAL),
        };
        // SAFETY: as promised.
        unsafe { join(id, attr.addr, flags, context) }
    })
}

/// # Safety
/// `addr` is NULL or an address.
unsafe fn join(
    id: &Id,
    addr: *const sockaddr,
    flags: JoinFlags,
    context: *mut c_void,
) -> Result<()> {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    // SAFETY: as promised.
    let addr = unsafe { address::read_group(addr)? };
    let key = KEYS.fetch_add(1, Ordering::Relaxed);
    id.lock().groups.push(Group {
        key,
        addr,
        send_only: flags == JoinFlags::SendOnlyFullMember,
        context,
        mgid: None,
        leaving: false,
        unacknowledged: 0,
    });
    let asked = id.process.client().map(|c| c.join_multicast(id.handle, addr, flags, key));
    if let Err(error) = asked.and_then(|asked| asked.map_err(Errno::from)) {
        id.lock().groups.retain(|g| g.key != key);
        return Err(error);
    }
    id.complete()
}

/// The group is joined: attaches the id's queue pair, if it is to hear it.
pub(super) fn joined(id: &Id, key: u64, how: &UdParam) -> Result<()> {
    let send_only = {
        let mut state = id.lock();
        let Some(group) = state.groups.iter_mut().find(|g| g.key == key) else { return Ok(()) };
        group.mgid = Some(how.av.dgid);
        group.send_only
    };
    if send_only || id.qp().is_null() {
        return Ok(());
    }
    verbs::attach_mcast(id.qp(), &ibv_gid { raw: how.av.dgid.0 })
}

/// What the program gave when it joined.
pub(super) fn context(id: &Id, key: u64) -> *mut c_void {
    let state = id.lock();
    state.groups.iter().find(|g| g.key == key).map_or(ptr::null_mut(), |g| g.context)
}

/// Leaves a group, once the events of it that the program holds are acknowledged: waits for that
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
        // SAFETY: as promised.
        let (id, addr) = unsafe { (Id::get(id)?, address::read_group(addr)?) };
        let client = id.process.client()?;
        let (key, attached) = {
            let mut state = id.lock();
            let found = state.groups.iter_mut().find(|g| g.addr == addr && !g.leaving);
            let group = found.ok_or(Errno(libc::EADDRNOTAVAIL))?;
            group.leaving = true;
            (group.key, group.mgid.filter(|_| !group.send_only))
        };
        if let Some(mgid) = attached
            && !id.qp().is_null()
        {
            // A queue pair that came later was never attached.
            let _ = verbs::detach_mcast(id.qp(), &ibv_gid { raw: mgid.0 });
        }
        let left = client.leave_multicast(id.handle, addr);
        let held = |state: &super::id::State| {
            state.groups.iter().any(|g| g.key == key && g.unacknowledged > 0)
        };
        // In synchronous mode this library itself holds one.
        if id.lock().synchronous {
            id.set_event(None);
        }
        id.wait_acknowledged(held);
        id.lock().groups.retain(|g| g.key != key);
        left?;
        Ok(())
    })
}
