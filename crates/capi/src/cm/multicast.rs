//! Multicast groups of ids.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::sockaddr;
use rdmux_cm::JoinFlags;

use super::event::set_event;
use super::group::Group;
use super::id::{Id, State};
use super::take::complete;
use super::{address, verbs};
use crate::abi::cma::*;
use crate::abi::verbs::ibv_gid;
use crate::boundary::{Errno, Result, status};

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
    complete(id)
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
        let held =
            |state: &State| state.groups.iter().any(|g| g.key == key && g.unacknowledged > 0);
        // In synchronous mode this library itself holds one.
        if id.lock().synchronous {
            set_event(id, None);
        }
        id.wait_acknowledged(held);
        id.lock().groups.retain(|g| g.key != key);
        left?;
        Ok(())
    })
}
