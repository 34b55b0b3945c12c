//! Socket addresses of the C API.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rdmux_cm::{Addr, IbAddr};
use rdmux_wire::{Gid, Pkey, ServiceId};

use crate::abi::cma::{AF_IB, sockaddr_ib};
use crate::boundary::{Errno, Result, zeroed};

/// Reads a socket address.
///
/// # Errors
/// EINVAL for NULL and unknown families.
///
/// # Safety
/// `addr` is NULL or an address of the length that its family has.
pub(super) unsafe fn read(addr: *const sockaddr) -> Result<Addr> {
    if addr.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller guarantees it, except the alignment.
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
                tracing::debug!(family, "ignored an address of an unknown family");
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

/// Reads a socket address from bytes; none for an unknown family, and if there are too few.
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
    // SAFETY: it has the length of its family.
    unsafe { read(bytes.as_ptr().cast()) }.ok()
}

/// Returns the family of an address.
pub(super) fn family_of(addr: Addr) -> c_int {
    match addr {
        Addr::Ip(SocketAddr::V4(_)) => libc::AF_INET,
        Addr::Ip(SocketAddr::V6(_)) => libc::AF_INET6,
        Addr::Ib(_) => AF_IB,
    }
}

/// Returns how many bytes an address takes.
pub(super) fn len_of(addr: Addr) -> usize {
    match addr {
        Addr::Ip(SocketAddr::V4(_)) => size_of::<sockaddr_in>(),
        Addr::Ip(SocketAddr::V6(_)) => size_of::<sockaddr_in6>(),
        Addr::Ib(_) => size_of::<sockaddr_ib>(),
    }
}

/// Converts an address to its C form.
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
