//! Multicast groups as options of ids (<rdmux/multicast.h>): rdma_set_option joins and leaves, rdma_get_option returns a group.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use libc::{in_addr, in6_addr, ip_mreq, ip_mreqn, ipv6_mreq, sockaddr};
use rdmux_cm::{Addr, GroupAddr, GroupWish, JoinFlags};
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask, Rate, Selector};
use rdmux_wire::{Gid, Lid, Pkey, Qkey};

use super::address;
use super::group::Group;
use super::id::Id;
use super::multicast::{join, leave, refused};
use crate::abi::cma::*;
use crate::abi::verbs::ibv_gid;
use crate::boundary::{Errno, Result, status};

/// Joins or leaves a group. An event reports the result of a join.
///
/// # Errors
/// EINVAL for a value of another size, and those of rdma_join_multicast(3) and rdma_leave_multicast(3); ENOSYS for other options.
///
/// # Safety
/// `value` is NULL or `len` bytes.
pub(super) unsafe fn set(
    id: &Id,
    level: u32,
    name: u32,
    value: *const c_void,
    len: usize,
) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        match (level, name) {
            (RDMA_PROTO_IP, IP_ADD_MEMBERSHIP) => {
                let wish = GroupWish::address(ip_group(id, value, len)?, JoinFlags::FullMember);
                join(id, wish, ptr::null_mut())
            }
            (RDMA_PROTO_IP, IP_DROP_MEMBERSHIP) => leave(id, ip_group(id, value, len)?.into()),
            (RDMA_PROTO_IB, IB_ADD_MEMBERSHIP) => {
                let ib_mreq { rec, comp_mask } = read(value, len)?;
                let mask = McMemberRecordMask::from_bits_retain(comp_mask);
                let wish = GroupWish::Record { record: record(&rec)?, mask };
                join(id, wish, ptr::null_mut())
            }
            (RDMA_PROTO_IB, IB_DROP_MEMBERSHIP) => {
                let ib_mreq { rec, .. } = read(value, len)?;
                leave(id, gid(&rec.mgid).into())
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

/// Returns the group in one of the sockets API's structures for this, on the id's address.
///
/// # Safety
/// `value` is NULL or `len` bytes.
unsafe fn ip_group(id: &Id, value: *const c_void, len: usize) -> Result<IpAddr> {
    const V4: usize = size_of::<ip_mreq>();
    const V4_INDEX: usize = size_of::<ip_mreqn>();
    const V6: usize = size_of::<ipv6_mreq>();
    // SAFETY: the caller guarantees it.
    unsafe {
        Ok(match len {
            V4 => {
                let mreq: ip_mreq = read(value, len)?;
                is_own(id, "imr_interface", mreq.imr_interface)?;
                v4(mreq.imr_multiaddr).into()
            }
            V4_INDEX => {
                let mreq: ip_mreqn = read(value, len)?;
                is_own(id, "imr_address", mreq.imr_address)?;
                is_interface(id, "imr_ifindex", i64::from(mreq.imr_ifindex))?;
                v4(mreq.imr_multiaddr).into()
            }
            V6 => {
                let mreq: ipv6_mreq = read(value, len)?;
                is_interface(id, "ipv6mr_interface", i64::from(mreq.ipv6mr_interface))?;
                v6(mreq.ipv6mr_multiaddr).into()
            }
            _ => return Err(refused(Errno::EINVAL, "optlen", "no structure has this size")),
        })
    }
}

fn v4(addr: in_addr) -> Ipv4Addr {
    Ipv4Addr::from(u32::from_be(addr.s_addr))
}

fn v6(addr: in6_addr) -> Ipv6Addr {
    Ipv6Addr::from(addr.s6_addr)
}

/// Checks an interface given by address: groups are joined on the id's address, so it must be that or none.
fn is_own(id: &Id, field: &'static str, addr: in_addr) -> Result<()> {
    let addr = v4(addr);
    let own = address::source(id).map(|own| own.ip());
    if addr.is_unspecified() || own == Some(IpAddr::V4(addr)) {
        return Ok(());
    }
    Err(refused(Errno(libc::ENODEV), field, "not the address to which the id is bound"))
}

/// Checks an interface given by index, likewise.
fn is_interface(id: &Id, field: &'static str, index: i64) -> Result<()> {
    if index == 0 {
        return Ok(());
    }
    let own = address::source(id).map(|own| own.ip());
    let addresses = id.device().map(|device| device.opened.device.addresses()).unwrap_or_default();
    let entry = addresses.iter().find(|entry| Some(entry.gid.ip()) == own);
    if entry.is_some_and(|entry| i64::from(entry.interface_index) == index) {
        return Ok(());
    }
    Err(refused(Errno(libc::ENODEV), field, "not the interface of the id's address"))
}

/// Reads the value, if it has the right size.
///
/// # Safety
/// `value` is NULL or `len` bytes, and any bytes are a valid `T`.
unsafe fn read<T>(value: *const c_void, len: usize) -> Result<T> {
    if value.is_null() {
        return Err(refused(Errno::EINVAL, "optval", "NULL"));
    }
    if len != size_of::<T>() {
        return Err(refused(Errno::EINVAL, "optlen", "not the size of the structure"));
    }
    // SAFETY: the caller guarantees it, and the length was checked.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Returns a group's MCMemberRecord as the network returned it (<rdmux/multicast.h>).
///
/// # Safety
/// `id` is an id of this library that outlives the call; `value` is NULL or that many bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    status(|| {
        let (Ok(level), Ok(name)) = (u32::try_from(level), u32::try_from(name)) else {
            return Err(Errno(libc::ENOSYS));
        };
        // SAFETY: the caller guarantees it.
        unsafe { get(Id::get(id)?, level, name, value, len) }
    })
}

/// Copies the record of a group to `value`, which may name the group.
///
/// # Safety
/// `value` is NULL or `len` bytes.
unsafe fn get(id: &Id, level: u32, name: u32, value: *mut c_void, len: usize) -> Result<()> {
    const RECORD: usize = size_of::<ib_sa_mcmember_rec>();
    const BY_GID: usize = size_of::<ib_mreq>();
    const BY_ADDRESS: usize = size_of::<rdmux_ip_group>();
    if !matches!(
        (level, name),
        (RDMA_PROTO_IP, IP_ADD_MEMBERSHIP) | (RDMA_PROTO_IB, IB_ADD_MEMBERSHIP)
    ) {
        return Err(Errno(libc::ENOSYS));
    }
    // SAFETY: the caller guarantees it.
    unsafe {
        match (level, len) {
            (_, RECORD) => {
                let _: ib_sa_mcmember_rec = read(value, len)?;
                let rec = group(id, GroupAddr::NEW)?;
                value.cast::<ib_sa_mcmember_rec>().write_unaligned(rec);
            }
            (RDMA_PROTO_IB, BY_GID) => {
                let ib_mreq { rec, .. } = read(value, len)?;
                let rec = group(id, gid(&rec.mgid).into())?;
                let comp_mask = McMemberRecordMask::all().bits();
                value.cast::<ib_mreq>().write_unaligned(ib_mreq { rec, comp_mask });
            }
            (RDMA_PROTO_IP, BY_ADDRESS) => {
                let rdmux_ip_group { addr, .. } = read(value, len)?;
                let rec = group(id, named(ptr::from_ref(&addr).cast())?)?;
                let told = rdmux_ip_group { addr, rec };
                value.cast::<rdmux_ip_group>().write_unaligned(told);
            }
            _ => return Err(refused(Errno::EINVAL, "optlen", "no structure has this size")),
        }
    }
    Ok(())
}

/// Returns the name of a group in an address.
///
/// # Safety
/// `addr` is an address.
unsafe fn named(addr: *const sockaddr) -> Result<GroupAddr> {
    // SAFETY: the caller guarantees it.
    match unsafe { address::read(addr) } {
        Ok(Addr::Ip(addr)) => Ok(GroupAddr::from(addr.ip()).canonical()),
        Ok(Addr::Ib(addr)) => Ok(addr.gid.into()),
        Err(_) => Err(refused(Errno::EINVAL, "addr.ss_family", "not a family of multicast groups")),
    }
}

/// Returns the group of this name; without a name the only group.
fn group(id: &Id, name: GroupAddr) -> Result<ib_sa_mcmember_rec> {
    let key = {
        let state = id.lock();
        let is_current = |g: &Group| !g.leaving && !g.replaced;
        let is_meant = |g: &&Group| is_current(g) && (name.is_new() || g.is_called(name));
        let mut meant = state.groups.iter().filter(is_meant);
        match (meant.next(), meant.next()) {
            (Some(_), Some(_)) if name.is_new() => {
                let why = "the id has joined several groups: name one";
                return Err(refused(Errno(libc::ENOTUNIQ), "optval", why));
            }
            (Some(group), _) => match group.way {
                // As the event reported: the service may have no such group.
                Err(why) if group.failed() => return Err(why),
                _ => group.key,
            },
            (None, _) => {
                let why = "the id has not joined this group";
                return Err(refused(Errno(libc::EADDRNOTAVAIL), "optval", why));
            }
        }
    };
    Ok(in_c(&id.process.client()?.group(id.handle, key)?))
}

/// Converts a record to its wire form.
///
/// # Errors
/// EINVAL for a `proxy_join` other than 0 or 1. Other fields are checked where the id is known.
fn record(rec: &ib_sa_mcmember_rec) -> Result<McMemberRecord> {
    let proxy_join = match rec.proxy_join {
        0 => false,
        1 => true,
        _ => return Err(refused(Errno::EINVAL, "proxy_join", "neither 0 nor 1")),
    };
    Ok(McMemberRecord {
        mgid: gid(&rec.mgid),
        port_gid: gid(&rec.port_gid),
        qkey: Qkey(u32::from_be(rec.qkey)),
        mlid: Lid(u16::from_be(rec.mlid)),
        mtu_selector: Selector(rec.mtu_selector),
        mtu: rec.mtu,
        tclass: rec.traffic_class,
        pkey: Pkey(u16::from_be(rec.pkey)),
        rate_selector: Selector(rec.rate_selector),
        rate: Rate(rec.rate),
        packet_life_time_selector: Selector(rec.packet_life_time_selector),
        packet_life_time: rec.packet_life_time,
        sl: rec.sl,
        flow_label: u32::from_be(rec.flow_label),
        hop_limit: rec.hop_limit,
        scope: rec.scope,
        join_state: JoinState::from_bits_retain(rec.join_state),
        proxy_join,
        ..McMemberRecord::default()
    })
}

fn gid(gid: &ibv_gid) -> Gid {
    // SAFETY: any bytes are a GID.
    Gid(unsafe { gid.raw })
}

fn in_c(record: &McMemberRecord) -> ib_sa_mcmember_rec {
    ib_sa_mcmember_rec {
        mgid: ibv_gid { raw: record.mgid.0 },
        port_gid: ibv_gid { raw: record.port_gid.0 },
        qkey: record.qkey.0.to_be(),
        mlid: record.mlid.0.to_be(),
        mtu_selector: record.mtu_selector.0,
        mtu: record.mtu,
        traffic_class: record.tclass,
        pkey: record.pkey.0.to_be(),
        rate_selector: record.rate_selector.0,
        rate: record.rate.0,
        packet_life_time_selector: record.packet_life_time_selector.0,
        packet_life_time: record.packet_life_time,
        sl: record.sl,
        flow_label: record.flow_label.to_be(),
        hop_limit: record.hop_limit,
        scope: record.scope,
        join_state: record.join_state.bits(),
        proxy_join: record.proxy_join.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcmember_record_converts_to_c_and_back_unchanged() {
        let bytes: Vec<u8> = (1..=49).collect();
        let mut all = [0; McMemberRecord::LEN];
        all[..49].copy_from_slice(&bytes);
        // The only bit of a proxy.
        all[49] = 0x80;
        let told = McMemberRecord::from_bytes(&all);
        assert_eq!(record(&in_c(&told)), Ok(told));
        let wrong = ib_sa_mcmember_rec { proxy_join: 2, ..in_c(&told) };
        assert_eq!(record(&wrong), Err(Errno::EINVAL));
    }
}
