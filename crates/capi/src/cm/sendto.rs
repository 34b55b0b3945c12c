//! Datagrams to a group by its address (<rdmux/multicast.h>).
//!
//! Looking up the address handle takes no lock and no system call: see [`Destinations`](super::group::Destinations).

use std::ffi::c_int;

use libc::sockaddr;
use rdmux_cm::{Addr, GroupAddr};

use super::address;
use super::group::Way;
use super::id::Id;
use super::multicast::refused;
use super::verbs;
use crate::abi::cma::rdma_cm_id;
use crate::abi::verbs::{IBV_QPT_UD, ibv_qp, ibv_send_wr, ibv_send_wr_ud};
use crate::boundary::{Errno, Result, caught};

/// Posts a request on the id's queue pair to a group that the id has joined. Address handle, queue pair and Q_Key of the request
/// are filled in.
///
/// # Safety
/// `id` is an id of this library that outlives the call. `wr` is NULL or a request valid for `ibv_post_send(3)`, except the fields that
/// are filled in; `to` is NULL or an address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_sendto(
    id: *mut rdma_cm_id,
    wr: *mut ibv_send_wr,
    to: *mut sockaddr,
) -> c_int {
    // SAFETY: the caller guarantees it.
    match caught(|| unsafe { send(Id::peek(id)?, wr, to) }) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

/// Sends one datagram to a group.
///
/// # Safety
/// As [`rdma_sendto`].
unsafe fn send(id: &Id, wr: *mut ibv_send_wr, to: *const sockaddr) -> Result<()> {
    let qp = id.qp();
    // SAFETY: NULL, or a request.
    let wr = unsafe { wr.as_mut() };
    let wr = wr.ok_or_else(|| refused(Errno::EINVAL, "send_wr", "NULL"))?;
    if !wr.next.is_null() {
        return Err(refused(
            Errno::EINVAL,
            "send_wr->next",
            "only one work request can be posted to a group",
        ));
    }
    // SAFETY: NULL, or the id's, which lives.
    if unsafe { qp.as_ref() }.is_none_or(|qp| qp.qp_type != IBV_QPT_UD) {
        return Err(refused(Errno::EINVAL, "id->qp", "not a queue pair of UD"));
    }
    // SAFETY: the caller guarantees it.
    let name = unsafe { name(to)? };
    id.destinations.with(name, |way| match way {
        // SAFETY: the caller guarantees it, and the queue pair is one.
        Some(Ok(way)) => unsafe { post(id, qp, wr, way) },
        Some(Err(errno)) => Err(refused(errno, "to", "the group is not joined yet, or was lost")),
        None => Err(unknown(id, name)),
    })
}

/// Posts a request with the group's address handle, which is created if it does not exist yet.
///
/// # Safety
/// `qp` is the id's queue pair, and `wr` a request.
unsafe fn post(id: &Id, qp: *mut ibv_qp, wr: &mut ibv_send_wr, way: &Way) -> Result<()> {
    let ah = match way.handle() {
        Some(ah) => ah,
        None => {
            let _one_at_a_time = id.lock();
            // SAFETY: a queue pair has a domain, which lives as long.
            unsafe { way.make_handle((*qp).pd)? }
        }
    };
    let (remote_qpn, remote_qkey) = way.key();
    wr.wr.ud = ibv_send_wr_ud { ah, remote_qpn, remote_qkey };
    // SAFETY: the caller guarantees it, and the request is complete now.
    unsafe { verbs::post_one(qp, wr) }
}

/// Returns the group that an address names.
///
/// # Safety
/// `to` is NULL or an address.
unsafe fn name(to: *const sockaddr) -> Result<GroupAddr> {
    if to.is_null() {
        return Err(refused(Errno::EINVAL, "to", "NULL"));
    }
    // SAFETY: the caller guarantees it; NULL and other families are errors.
    match unsafe { address::read(to) } {
        Ok(Addr::Ip(addr)) => Ok(GroupAddr::Ip(addr.ip().to_canonical())),
        Ok(Addr::Ib(addr)) => Ok(addr.gid.into()),
        Err(_) => Err(refused(WRONG_FAMILY, "to->sa_family", "not a family of multicast groups")),
    }
}

const WRONG_FAMILY: Errno = Errno(libc::EAFNOSUPPORT);

/// Returns the error of an id for a name that is none of its groups.
fn unknown(id: &Id, name: GroupAddr) -> Errno {
    let own = address::source_family(id);
    let other = match name {
        GroupAddr::Gid(_) => false,
        GroupAddr::Ip(ip) if ip.is_ipv4() => own == libc::AF_INET6,
        GroupAddr::Ip(_) => own == libc::AF_INET,
    };
    if other {
        return refused(WRONG_FAMILY, "to->sa_family", "not the family of the id's address");
    }
    refused(Errno(libc::EADDRNOTAVAIL), "to", "the id has not joined this group")
}
