//! The addresses and the route that programs read in `id->route`.

use std::ffi::c_int;
use std::ptr;

use libc::sockaddr_storage;
use rdmux_cm::{Addr, LocalAddress, Route};
use rdmux_wire::{Gid, Pkey};

use super::id::Id;
pub(super) use super::socket_address::{of_bytes, read, storage};
use crate::abi::cma::*;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result};

/// The selector "exactly" of a path record (IBTA 15.2.5.16).
const EXACTLY: u8 = 2;
/// 100 Gbit/s, as RoCE ports report (`IBV_RATE_100_GBPS`).
const RATE: u8 = 16;

/// Stores the id's own address for the program.
pub(super) fn show_source(id: &Id, addr: Addr) {
    // SAFETY: the id lives; programs read addresses only after a call or an event has reported them.
    unsafe { (*id.public()).route.addr.src.src_storage = storage(addr) };
}

/// Stores the address that the program requested.
pub(super) fn show_destination(id: &Id, addr: Addr) {
    // SAFETY: as above.
    unsafe { (*id.public()).route.addr.dst.dst_storage = storage(addr) };
}

/// Stores both addresses, as socket addresses and as GIDs.
pub(super) fn show_route(id: &Id, route: &Route) {
    show_source(id, route.src);
    show_destination(id, route.dst);
    show_gids(id, route.sgid, route.av.dgid, route.pkey);
}

fn show_gids(id: &Id, sgid: Gid, dgid: Gid, pkey: Pkey) {
    let ibaddr = rdma_ib_addr {
        sgid: ibv_gid { raw: sgid.0 },
        dgid: ibv_gid { raw: dgid.0 },
        pkey: pkey.0.to_be(),
    };
    // SAFETY: as above.
    unsafe { (*id.public()).route.addr.addr.ibaddr = ibaddr };
}

/// Stores the address of a bound id, and its device and port unless the address is a wildcard.
///
/// # Errors
/// When no protection domain can be allocated.
pub(super) fn show_bound(id: &Id, addr: Addr, at: Option<&LocalAddress>) -> Result<()> {
    show_source(id, addr);
    let Some(at) = at else { return Ok(()) };
    show_gids(id, at.gid, Gid::ZERO, at.pkey);
    bind_device(id, at.device, at.port_num)
}

/// Gives the id its device, which has this number in the service, with the default protection domain.
///
/// # Errors
/// When no protection domain can be allocated; ENODEV for a device that this process does not see.
pub(super) fn bind_device(id: &Id, device: u32, port_num: u8) -> Result<()> {
    if id.verbs().is_null() {
        let device = id.process.device(device).ok_or(Errno(libc::ENODEV))?;
        let pd = device.default_pd()?;
        if id.pd().is_null() {
            id.set_pd(pd);
        }
        id.set_port_num(port_num);
        id.set_verbs(device.context());
    }
    Ok(())
}

/// Stores the path, in the form of a record from an InfiniBand subnet administration.
pub(super) fn show_path(id: &Id, route: &Route) {
    let record = ibv_sa_path_rec {
        dgid: ibv_gid { raw: route.av.dgid.0 },
        sgid: ibv_gid { raw: route.sgid.0 },
        dlid: route.av.dlid.to_be(),
        slid: route.slid.0.to_be(),
        raw_traffic: 0,
        flow_label: route.av.flow_label.to_be(),
        hop_limit: route.av.hop_limit,
        traffic_class: route.av.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: route.pkey.0.to_be(),
        sl: route.av.sl,
        mtu_selector: EXACTLY,
        mtu: route.mtu.code(),
        rate_selector: EXACTLY,
        rate: if route.av.static_rate == 0 { RATE } else { route.av.static_rate },
        packet_life_time_selector: EXACTLY,
        packet_life_time: route.packet_lifetime,
        preference: 0,
    };
    let address: *mut ibv_sa_path_rec = {
        let mut state = id.lock();
        let path = state.path.get_or_insert_with(|| Box::new(record));
        **path = record;
        &raw mut **path
    };
    // SAFETY: as above; the record lives as long as the id.
    unsafe {
        (*id.public()).route.path_rec = address;
        (*id.public()).route.num_paths = 1;
    }
}

/// Returns the id's own address, once it has one.
pub(super) fn source(id: &Id) -> Option<Addr> {
    // SAFETY: the id lives, and its address field is large enough for any address.
    unsafe { read(&raw const (*id.public()).route.addr.src.src_addr) }.ok()
}

/// Returns the family of the id's own address; 0 for none.
pub(super) fn source_family(id: &Id) -> c_int {
    // SAFETY: as above.
    c_int::from(unsafe { (*id.public()).route.addr.src.src_addr.sa_family })
}

/// Returns the port of an address, in network order; 0 for an address without one.
fn port(addr: &sockaddr_storage) -> u16 {
    // SAFETY: the storage is large enough for any address.
    unsafe { read(ptr::from_ref(addr).cast()) }.map_or(0, |addr| addr.port().to_be())
}

/// Returns the id's own port, in network order (rdma_get_src_port(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller guarantees it.
    unsafe { port(&(*id).route.addr.src.src_storage) }
}

/// Returns the peer's port, in network order (rdma_get_dst_port(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller guarantees it.
    unsafe { port(&(*id).route.addr.dst.dst_storage) }
}
