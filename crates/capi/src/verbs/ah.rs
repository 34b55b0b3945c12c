//! Address handles (`ibv_create_ah(3)`, `ibv_create_ah_from_wc(3)`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};

use rdmux_transport::attr::AddressVector;
use rdmux_verbs::quota::Counted;
use rdmux_wire::Gid;

use super::attr;
use super::objects::{Ah, Context, Object, Pd};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, guarded, pointer, status};

/// `ibv_create_ah(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (domain, attr) = unsafe { (Pd::get(pd)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        let opened = domain.opened.clone();
        opened.check_infiniband()?;
        let av = attr::address_vector(&opened.device, attr)?;
        let permit = opened.device.permit("create an address handle", Counted::Ah)?;
        // SAFETY: the domain is the program's, which reads its public part.
        let context = unsafe { (*pd).context };
        let handle = opened.next_handle();
        let public = UnsafeCell::new(ibv_ah { context, pd, handle });
        Ok(Box::new(Ah { public, opened, av, _permit: permit, pd: domain.core.users.add() })
            .into_ptr())
    })
}

/// `ibv_destroy_ah(3)`. Datagrams that were posted with it still reach their destination.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        if unsafe { Ah::peek(ah)? }.opened().is_ours() {
            // SAFETY: a destroyed handle is no longer used.
            drop(unsafe { Ah::take(ah) });
        }
        Ok(())
    })
}

/// `ibv_init_ah_from_wc(3)`: stores the address of a datagram's sender; returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    status(|| {
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller guarantees it, and `attr` is its variable.
        unsafe { attr.write(way_back(context, port, wc, grh)?) };
        Ok(())
    })
}

/// `ibv_create_ah_from_wc(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let attr = guarded(|| {
        // SAFETY: the caller guarantees it; the domain's public part names its context.
        unsafe {
            Pd::get(pd)?;
            way_back((*pd).context, port, wc, grh)
        }
    });
    match attr {
        // SAFETY: the caller guarantees it.
        Ok(mut attr) => unsafe { ibv_create_ah(pd, &raw mut attr) },
        Err(errno) => pointer(|| Err(errno)),
    }
}

/// Returns the address of a datagram's sender, from its network header.
///
/// # Safety
/// The pointers are NULL or valid; `grh` is the 40 bytes in front of the data.
unsafe fn way_back(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
) -> Result<ibv_ah_attr> {
    // SAFETY: the caller guarantees it.
    let (opened, wc) = unsafe {
        let opened = &Context::get(context)?.opened;
        opened.check_infiniband()?;
        (opened, wc.as_ref().ok_or(Errno::EINVAL)?)
    };
    let has_grh = wc.wc_flags & IBV_WC_GRH != 0;
    if !opened.device.has_port(port) || has_grh && grh.is_null() {
        return Err(Errno::EINVAL);
    }
    // By LID alone, as InfiniBand supports.
    let local = AddressVector {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..AddressVector::default()
    };
    if !has_grh {
        let needed = opened.device.kind().row().grh_required;
        return if needed { Err(Errno::EINVAL) } else { Ok(attr::ah_attr(&local)) };
    }
    // SAFETY: the caller guarantees it; a GRH area may be anywhere in the program's buffer.
    let header = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    let route = Route::of(&header).ok_or(Errno::EINVAL)?;
    let sgid_index = opened.device.gid_index(port, route.to).ok_or(Errno::EINVAL)?;
    Ok(attr::ah_attr(&AddressVector {
        is_global: true,
        dgid: route.from,
        flow_label: route.flow_label,
        sgid_index,
        hop_limit: u8::MAX,
        traffic_class: route.traffic_class,
        ..local
    }))
}

/// The GRH area of a RoCEv2 datagram: an IPv6 header, or an IPv4 header in its last 20 bytes.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    from: Gid,
    to: Gid,
    traffic_class: u8,
    flow_label: u32,
}

impl Route {
    fn of(header: &[u8; 40]) -> Option<Self> {
        let gid = |at: usize| header[at..].first_chunk().copied().map(Gid);
        let v4 = |at: usize| {
            let octets: [u8; 4] = *header[at..].first_chunk()?;
            Some(Gid::from(Ipv4Addr::from(octets)))
        };
        match (header[0] >> 4, header[20] >> 4) {
            (6, _) => {
                let word = u32::from_be_bytes(*header.first_chunk()?);
                let traffic_class = (header[0] << 4) | (header[1] >> 4);
                let flow_label = word & 0xf_ffff;
                Some(Self { from: gid(8)?, to: gid(24)?, traffic_class, flow_label })
            }
            (_, 4) => {
                let traffic_class = header[21];
                Some(Self { from: v4(32)?, to: v4(36)?, traffic_class, flow_label: 0 })
            }
            _ => None,
        }
    }
}

/// `ibv_resolve_eth_l2_from_gid`: returns the Ethernet address for the handles of vendors' drivers. This device has none, because it
/// sends through the operating system. Groups get the address of their standards (RFC 1112,
/// RFC 2464), hosts a locally administered one derived from their IP address. No VLAN.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    /// The VLAN ID for none.
    const NO_VLAN: u16 = 0xffff;
    status(|| {
        // SAFETY: the caller guarantees it.
        let (opened, attr) =
            unsafe { (&Context::get(context)?.opened, attr.as_ref().ok_or(Errno::EINVAL)?) };
        opened.check_infiniband()?;
        let av = attr::address_vector(&opened.device, attr)?;
        // SAFETY: the caller's variables, of which the second may be missing.
        unsafe {
            eth_mac.as_mut().ok_or(Errno::EINVAL)?.copy_from_slice(&ethernet_address(av.dgid));
            if let Some(vid) = vid.as_mut() {
                *vid = NO_VLAN;
            }
        }
        Ok(())
    })
}

fn ethernet_address(gid: Gid) -> [u8; 6] {
    let [.., a, b, c, d] = gid.0;
    match gid.ip() {
        IpAddr::V4(ip) if ip.is_multicast() => [0x01, 0x00, 0x5e, b & 0x7f, c, d],
        IpAddr::V6(ip) if ip.is_multicast() => [0x33, 0x33, a, b, c, d],
        _ => [0x02, 0x00, a, b, c, d],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_is_read_from_grh_with_ipv4_or_ipv6_header() {
        let mut v4 = [0; 40];
        v4[20..22].copy_from_slice(&[0x45, 0x20]);
        v4[32..].copy_from_slice(&[10, 0, 0, 7, 10, 0, 0, 8]);
        let route = Route::of(&v4).unwrap();
        assert_eq!(route.from.ip(), IpAddr::from([10, 0, 0, 7]));
        assert_eq!(route.to.ip(), IpAddr::from([10, 0, 0, 8]));
        assert_eq!(route.traffic_class, 0x20);

        let mut v6 = [0; 40];
        v6[..4].copy_from_slice(&[0x61, 0x2a, 0xbc, 0xde]);
        v6[8..24].copy_from_slice(&[1; 16]);
        v6[24..].copy_from_slice(&[2; 16]);
        let route = Route::of(&v6).unwrap();
        assert_eq!((route.from, route.to), (Gid([1; 16]), Gid([2; 16])));
        assert_eq!((route.traffic_class, route.flow_label), (0x12, 0xabcde));
        assert_eq!(Route::of(&[0; 40]), None);
    }

    #[test]
    fn groups_have_the_ethernet_address_of_their_standard() {
        let of = |ip: &str| ethernet_address(ip.parse::<IpAddr>().unwrap().into());
        assert_eq!(of("239.129.2.3"), [0x01, 0x00, 0x5e, 0x01, 2, 3]);
        assert_eq!(of("ff02::1:ff00:1234"), [0x33, 0x33, 0xff, 0x00, 0x12, 0x34]);
        assert_eq!(of("10.1.2.3")[0] & 3, 2);
    }
}
