//! Socket addresses, and the route that programs read in `id->route`.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rdmux_cm::{Addr, IbAddr, LocalAddress, Route};
use rdmux_wire::{Gid, Pkey, ServiceId};

use super::id::Id;
use crate::abi::cma::*;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, zeroed};

/// "Exactly", of a selector in a path record (IBTA 15.2.5.16).
const EXACTLY: u8 = 2;
/// 100 Gbit/s, as RoCE's port says (`IBV_RATE_100_GBPS`).
const RATE: u8 = 16;

/// Reads a socket address.
///
/// # Errors
/// EINVAL for NULL and families that nobody knows.
///
/// # Safety
/// `addr` is NULL or an address as long as its family says.
pub(super) unsafe fn read(addr: *const sockaddr) -> Result<Addr> {
    if addr.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as promised; nothing is said of its alignment.
    unsafe {
        match c_int::from(addr.read_unaligned().sa_family) {
            libc::AF_INET => {
                let v4 = addr.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddr::from(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))).into())
            }
            libc::AF_INET6 => {
                let v6 = addr.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                let flow = u32::from_be(v6.sin6_flowinfo);
                Ok(SocketAddr::from(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id)).into())
            }
            AF_IB => Ok(read_ib(&addr.cast::<sockaddr_ib>().read_unaligned()).into()),
            family => {
                tracing::debug!(family, "an address of a family that is not known");
                Err(Errno::EINVAL)
            }
        }
    }
}

fn read_ib(ib: &sockaddr_ib) -> IbAddr {
    IbAddr {
        gid: Gid(ib.sib_addr),
        pkey: Pkey(u16::from_be(ib.sib_pkey)),
        flowinfo: u32::from_be(ib.sib_flowinfo),
        sid: ServiceId(u64::from_be(ib.sib_sid)),
        sid_mask: u64::from_be(ib.sib_sid_mask),
        scope_id: ib.sib_scope_id,
    }
}

fn write_ib(ib: &IbAddr) -> sockaddr_ib {
    sockaddr_ib {
        sib_family: family(AF_IB),
        sib_pkey: ib.pkey.0.to_be(),
        sib_flowinfo: ib.flowinfo.to_be(),
        sib_addr: ib.gid.0,
        sib_sid: ib.sid.0.to_be(),
        sib_sid_mask: ib.sid_mask.to_be(),
        sib_scope_id: ib.scope_id,
    }
}

/// A socket address of so many bytes; none for a family that nobody knows, and if there are too few.
pub(super) fn of_bytes(bytes: &[u8]) -> Option<Addr> {
    let family = sa_family_t::from_ne_bytes(*bytes.first_chunk()?);
    let needed = match c_int::from(family) {
        libc::AF_INET => size_of::<sockaddr_in>(),
        libc::AF_INET6 => size_of::<sockaddr_in6>(),
        AF_IB => size_of::<sockaddr_ib>(),
        _ => return None,
    };
    if bytes.len() < needed {
        return None;
    }
    // SAFETY: it is as long as its family says.
    unsafe { read(bytes.as_ptr().cast()) }.ok()
}

/// The family of an address.
pub(super) fn family_of(addr: Addr) -> c_int {
    match addr {
        Addr::Ip(SocketAddr::V4(_)) => libc::AF_INET,
        Addr::Ip(SocketAddr::V6(_)) => libc::AF_INET6,
        Addr::Ib(_) => AF_IB,
    }
}

/// How many bytes an address takes.
pub(super) fn len_of(addr: Addr) -> usize {
    match addr {
        Addr::Ip(SocketAddr::V4(_)) => size_of::<sockaddr_in>(),
        Addr::Ip(SocketAddr::V6(_)) => size_of::<sockaddr_in6>(),
        Addr::Ib(_) => size_of::<sockaddr_ib>(),
    }
}

/// A socket address as C has it.
pub(super) fn storage(addr: Addr) -> sockaddr_storage {
    // SAFETY: zero is a value of every field, and each family's structure fits.
    unsafe {
        let mut storage: sockaddr_storage = zeroed();
        let to = &raw mut storage;
        match addr {
            Addr::Ip(SocketAddr::V4(v4)) => {
                let mut c: sockaddr_in = zeroed();
                c.sin_family = family(libc::AF_INET);
                c.sin_port = v4.port().to_be();
                c.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                to.cast::<sockaddr_in>().write(c);
            }
            Addr::Ib(ib) => to.cast::<sockaddr_ib>().write(write_ib(&ib)),
            Addr::Ip(SocketAddr::V6(v6)) => {
                let mut c: sockaddr_in6 = zeroed();
                c.sin6_family = family(libc::AF_INET6);
                c.sin6_port = v6.port().to_be();
                c.sin6_flowinfo = v6.flowinfo().to_be();
                c.sin6_addr.s6_addr = v6.ip().octets();
                c.sin6_scope_id = v6.scope_id();
                to.cast::<sockaddr_in6>().write(c);
            }
        }
        storage
    }
}

fn family(family: c_int) -> sa_family_t {
    sa_family_t::try_from(family).unwrap_or_default()
}

/// Shows the id's own address.
pub(super) fn show_source(id: &Id, addr: Addr) {
    // SAFETY: the id lives; programs read addresses only when a call or an event has told them.
    unsafe { (*id.public()).route.addr.src.src_storage = storage(addr) };
}

/// Shows the address that the program asked for.
pub(super) fn show_destination(id: &Id, addr: Addr) {
    // SAFETY: as above.
    unsafe { (*id.public()).route.addr.dst.dst_storage = storage(addr) };
}

/// Shows both addresses, as socket addresses and as GIDs.
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

/// Shows what a bound id knows: its own address, and its device and port unless that is a wildcard.
///
/// # Errors
/// When no protection domain can be had.
pub(super) fn show_bound(id: &Id, addr: Addr, at: Option<&LocalAddress>) -> Result<()> {
    show_source(id, addr);
    let Some(at) = at else { return Ok(()) };
    show_gids(id, at.gid, Gid::ZERO, at.pkey);
    bind_device(id, at.device, at.port_num)
}

/// Gives the id its device, which the service calls by this number, with the default protection domain.
///
/// # Errors
/// When no protection domain can be had; ENODEV for a device that this process does not see.
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

/// Shows the path, as the subnet administration of an InfiniBand fabric would tell it.
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

/// The id's own address, once it has one.
pub(super) fn source(id: &Id) -> Option<Addr> {
    // SAFETY: the id lives, and what it shows is as large as any address.
    unsafe { read(&raw const (*id.public()).route.addr.src.src_addr) }.ok()
}

/// Its family; 0 for none.
pub(super) fn source_family(id: &Id) -> c_int {
    // SAFETY: as above.
    c_int::from(unsafe { (*id.public()).route.addr.src.src_addr.sa_family })
}

/// The port of an address, in network order; 0 for what has none.
fn port(addr: &sockaddr_storage) -> u16 {
    // SAFETY: it is as large as any address.
    unsafe { read(ptr::from_ref(addr).cast()) }.map_or(0, |addr| addr.port().to_be())
}

/// The id's own port, in network order (rdma_get_src_port(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as promised.
    unsafe { port(&(*id).route.addr.src.src_storage) }
}

/// The peer's port, in network order (rdma_get_dst_port(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as promised.
    unsafe { port(&(*id).route.addr.dst.dst_storage) }
}
