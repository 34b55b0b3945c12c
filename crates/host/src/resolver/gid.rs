//! Parses InfiniBand's native addresses: a GID, and a service by its port.

use std::net::IpAddr;

use rdmux_cm::{Addr, IbAddr, PortSpace};
use rdmux_transport::attr::QpType;
use rdmux_wire::{Gid, Pkey, ServiceId};

use super::{Answer, Hints, ResolveError, ip};

/// The bits of a service ID with the port space, and those with the port (`RDMA_IB_IP_PS_MASK`,
/// `RDMA_IB_IP_PORT_MASK`).
const SPACE_MASK: u64 = !PORT_MASK;
const PORT_MASK: u64 = 0xffff;

/// Parses a GID: in the form of an IPv6 address or, for RoCE, an IPv4 address. A listener may leave it out.
pub(super) fn answer(
    node: Option<&str>,
    service: Option<&str>,
    hints: &Hints,
) -> Result<Answer, ResolveError> {
    let gid = match node {
        None if hints.passive => Gid::ZERO,
        text => {
            let text = text.unwrap_or_default();
            let address = text.parse::<IpAddr>();
            address.map_err(|_| ResolveError::NoGid { text: text.to_owned() })?.into()
        }
    };
    let space = space_of(hints);
    let addr = IbAddr { pkey: Pkey::DEFAULT, ..service_at(gid, space, service, hints)? };
    let (src, dst) = match hints.passive {
        true => (Some(Addr::from(addr)), None),
        false => (hints.src, Some(addr.into())),
    };
    Ok(Answer {
        passive: hints.passive,
        port_space: Some(space),
        qp_type: Some(hints.qp_type.unwrap_or(default_type(space))),
        src,
        dst,
        ..Answer::default()
    })
}

/// Returns the address of a service at a GID, in the partition of the port's first P_Key. In [`PortSpace::Ib`] a service may
/// be a whole service ID, as `0x` and hexadecimal digits.
pub(super) fn service_at(
    gid: Gid,
    space: PortSpace,
    service: Option<&str>,
    hints: &Hints,
) -> Result<IbAddr, ResolveError> {
    if let Some(sid) = service.and_then(|service| sid_of(Some(space), service)) {
        return Ok(IbAddr::new(gid, sid));
    }
    Ok(port_at(gid, space, ip::port(service, hints)?))
}

/// Returns the address of a port at a GID; with port 0, that of the whole port space.
pub(super) fn port_at(gid: Gid, space: PortSpace, port: u16) -> IbAddr {
    let sid_mask = if port == 0 { SPACE_MASK } else { u64::MAX };
    IbAddr { sid_mask, ..IbAddr::new(gid, ServiceId::from_port(space.code(), port)) }
}

/// Parses a service that is given as a whole service ID.
pub(super) fn sid_of(space: Option<PortSpace>, service: &str) -> Option<ServiceId> {
    if space != Some(PortSpace::Ib) {
        return None;
    }
    let digits = service.strip_prefix("0x").or_else(|| service.strip_prefix("0X"))?;
    u64::from_str_radix(digits, 16).ok().map(ServiceId)
}

/// Returns the port space of the hints, or else that of their queue pair type.
pub(super) fn space_of(hints: &Hints) -> PortSpace {
    let of_type = match hints.qp_type {
        Some(QpType::Ud) => PortSpace::Udp,
        _ => PortSpace::Tcp,
    };
    hints.port_space.unwrap_or(of_type)
}

/// Returns the queue pair type of connections in a port space.
pub(super) fn default_type(space: PortSpace) -> QpType {
    match space {
        PortSpace::Udp | PortSpace::IpoIb => QpType::Ud,
        PortSpace::Tcp | PortSpace::Ib => QpType::Rc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolver::Family;

    const NUMERIC: Hints = Hints {
        numeric_host: true,
        family: Some(Family::Ib),
        passive: false,
        no_route: false,
        native: false,
        port_space: None,
        qp_type: None,
        src: None,
    };

    #[track_caller]
    fn ib(addr: Option<Addr>) -> IbAddr {
        *addr.as_ref().and_then(Addr::ib).expect("an address of InfiniBand's own")
    }

    #[test]
    fn gid_text_becomes_an_address_with_the_service_id_of_its_port() {
        let found = answer(Some("fe80::1:2"), Some("7174"), &NUMERIC).unwrap();
        let dst = ib(found.dst);
        assert_eq!(dst.gid.to_string(), "fe80::1:2");
        assert_eq!((dst.sid.0, dst.sid_mask, dst.pkey.0), (0x0106_1c06, u64::MAX, 0xffff));
        assert_eq!((found.port_space, found.qp_type), (Some(PortSpace::Tcp), Some(QpType::Rc)));
        let udp = Hints { port_space: Some(PortSpace::Udp), ..NUMERIC };
        let found = answer(Some("fe80::1:2"), None, &udp).unwrap();
        let dst = ib(found.dst);
        assert_eq!((dst.sid.0, dst.sid_mask), (0x0111_0000, !0xffff));
        assert_eq!(found.qp_type, Some(QpType::Ud));
    }

    #[test]
    fn listener_without_a_gid_has_any_and_ipv4_is_a_gid_of_roce() {
        let passive = Hints { passive: true, ..NUMERIC };
        assert!(ib(answer(None, Some("7"), &passive).unwrap().src).is_any());
        let roce = answer(Some("10.0.0.1"), Some("7"), &NUMERIC).unwrap();
        assert_eq!(ib(roce.dst).gid.to_string(), "::ffff:10.0.0.1");
    }

    #[test]
    fn service_id_may_be_whole_in_the_space_of_infiniband_only() {
        let native = Hints { port_space: Some(PortSpace::Ib), ..NUMERIC };
        let found = answer(Some("fe80::1"), Some("0x10000000dead0001"), &native).unwrap();
        assert_eq!(ib(found.dst).sid.0, 0x1000_0000_dead_0001);
        let found = answer(Some("fe80::1"), Some("7"), &native).unwrap();
        assert_eq!(ib(found.dst).sid.0, 0x013f_0007);
        let refused = answer(Some("fe80::1"), Some("0x10000000dead0001"), &NUMERIC).unwrap_err();
        assert_eq!(refused.eai(), Some(libc::EAI_SERVICE));
    }

    #[test]
    fn text_that_is_not_a_gid_is_eai_noname() {
        for text in ["node17", "fe80::1::2", ""] {
            let refused = answer(Some(text), None, &NUMERIC).unwrap_err();
            assert!(refused.to_string().contains(text) && refused.eai() == Some(libc::EAI_NONAME));
        }
        assert!(answer(None, Some("7"), &NUMERIC).is_err());
    }
}
