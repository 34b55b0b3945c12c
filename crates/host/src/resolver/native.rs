//! Resolves the GID behind an IP address, and the path to it.

use rdmux_cm::{Addr, IbAddr, PathData, PortSpace, Route};
use rdmux_transport::attr::QpType;
use rdmux_verbs::kind;
use rdmux_wire::cm::{IpHeader, IpPair};
use rdmux_wire::sa::{PathRecord, Rate, Selector};
use rdmux_wire::{Gid, Lid};

use super::probe::Probe;
use super::{Answer, Hints, ResolveError, Resolver, gid};

impl Resolver {
    /// Puts the native address of the first IP address that has one before the IP addresses.
    pub(super) fn with_native(
        &self,
        service: Option<&str>,
        hints: &Hints,
        found: Vec<Answer>,
    ) -> Vec<Answer> {
        let best = found.iter().find_map(|by_ip| match self.native(service, hints, by_ip) {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::debug!(%error, "no native address: returning the IP address");
                None
            }
        });
        best.flatten().into_iter().chain(behind(service, hints, found)).collect()
    }

    /// Returns the native address for an IP address. None if its device has none.
    fn native(
        &self,
        service: Option<&str>,
        hints: &Hints,
        by_ip: &Answer,
    ) -> Result<Option<Answer>, ResolveError> {
        let Some(dst) = by_ip.dst else { return Ok(None) };
        let datagrams = by_ip.qp_type == Some(QpType::Ud);
        let (space, qp_type) = match datagrams {
            true => (PortSpace::Udp, QpType::Ud),
            false => (PortSpace::Tcp, QpType::Rc),
        };
        let probe = Probe::new(&self.client, space, qp_type, self.only)?;
        let known = self.known_path(by_ip.src, dst, hints);
        let along = known.and_then(|path| Some((probe.along(by_ip.src, dst, path).ok()?, path)));
        let near = match &along {
            Some((route, _)) => *route,
            None => probe.address(by_ip.src, dst)?,
        };
        if kind::numbered(near.device).is_none_or(|kind| kind.has_streams()) {
            return Ok(None);
        }
        let route = match along {
            None if !hints.no_route => probe.path()?,
            _ => near,
        };
        let path = along.map_or_else(|| record_of(&route), |(_, path)| path);
        let space = by_ip.port_space.unwrap_or(space);
        let service = match space {
            PortSpace::Ib if service.is_some() => {
                gid::service_at(route.av.dgid, space, service, hints)?
            }
            _ => gid::port_at(route.av.dgid, space, dst.port()),
        };
        let src = gid::port_at(route.sgid, space, 0);
        let is_straight = space == PortSpace::Ib && hints.native;
        Ok(Some(Answer {
            passive: false,
            port_space: Some(space),
            qp_type: by_ip.qp_type,
            src: Some(IbAddr { pkey: route.pkey, ..src }.into()),
            dst: Some(IbAddr { pkey: route.pkey, flowinfo: route.av.flow_label, ..service }.into()),
            paths: if hints.no_route { Vec::new() } else { vec![path] },
            by_acm: along.is_some(),
            connect: if is_straight { Vec::new() } else { header(&near) },
        }))
    }
}

/// Returns a listener's addresses in InfiniBand's port space: every GID, and every IP address behind it.
pub(super) fn passive(
    service: Option<&str>,
    hints: &Hints,
    found: Vec<Answer>,
) -> Result<Vec<Answer>, ResolveError> {
    let any = gid::service_at(Gid::ZERO, PortSpace::Ib, service, hints)?;
    let qp_type = hints.qp_type.or(Some(QpType::Rc));
    let src = Some(any.into());
    let port_space = Some(PortSpace::Ib);
    let first = Answer { passive: true, port_space, qp_type, src, ..Answer::default() };
    Ok([first].into_iter().chain(behind(service, hints, found)).collect())
}

/// Returns the IP addresses behind a native one, for devices without native addresses, which are in none of InfiniBand's port
/// spaces. Empty for a service that has no port.
fn behind(
    service: Option<&str>,
    hints: &Hints,
    found: Vec<Answer>,
) -> impl Iterator<Item = Answer> {
    let native = hints.native;
    let has_port = service.is_none_or(|service| gid::sid_of(hints.port_space, service).is_none());
    found.into_iter().filter(move |_| has_port).map(move |answer| {
        match (answer.port_space, answer.qp_type) {
            (Some(PortSpace::Ib), Some(QpType::Ud)) if native => {
                Answer { port_space: Some(PortSpace::Udp), ..answer }
            }
            (Some(PortSpace::Ib), _) if native => {
                Answer { port_space: Some(PortSpace::Tcp), ..answer }
            }
            _ => answer,
        }
    })
}

/// Returns the private data header that identifies the connecting peer to a listener with an IP address (IBTA annex
/// A11). It leaves the source port open.
fn header(near: &Route) -> Vec<u8> {
    let (Addr::Ip(src), Addr::Ip(dst)) = (near.src, near.dst) else { return Vec::new() };
    let pair = IpPair::new(src.ip().to_canonical(), dst.ip().to_canonical());
    pair.map_or(Vec::new(), |addrs| IpHeader { src_port: 0, addrs }.to_bytes().to_vec())
}

/// Returns the path as a path record of subnet administration.
fn record_of(route: &Route) -> PathData {
    let av = &route.av;
    let record = PathRecord {
        dgid: av.dgid,
        sgid: route.sgid,
        dlid: Lid(av.dlid),
        slid: route.slid,
        flow_label: av.flow_label,
        hop_limit: av.hop_limit,
        tclass: av.traffic_class,
        reversible: true,
        numb_path: 1,
        pkey: route.pkey,
        sl: av.sl,
        mtu_selector: Selector::EXACTLY,
        mtu: route.mtu.code(),
        rate_selector: Selector::EXACTLY,
        rate: Rate(av.static_rate),
        packet_life_time_selector: Selector::EXACTLY,
        packet_life_time: route.packet_lifetime,
        ..PathRecord::default()
    };
    PathData { flags: PathData::WHOLE, record }
}
