//! From an address vector to the socket or ring that reaches it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use parking_lot::Mutex;
use rdmux_link::{Destination, UdpPort, Wire};
use rdmux_transport::attr::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use rdmux_transport::env::LinkCaps;
use rdmux_wire::Qpn;

use super::Engine;
use super::crowd::Share;
use super::lend::Loans;
use super::ring::RingTx;
use super::stream::StreamPath;
use crate::engine::device::{Device, PORT};
use crate::engine::qp::QpCore;
use crate::objects::control::{is_target, slot_of};
use crate::objects::error::VerbsError;

/// How a queue pair's packets leave.
#[derive(Debug)]
pub(crate) enum Path {
    /// Not at all yet.
    None,
    /// To one peer, by UDP.
    Udp(Route, Share),
    /// To one peer, by a ring.
    Ring(Arc<RingTx>),
    /// To whom each work request says, by UDP; the last route is kept.
    Datagram(Option<(AddressVector, Route)>),
    /// To one peer, by a stream.
    Stream(StreamPath),
}

/// A socket and what to tell it.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) port: Arc<Endpoint>,
    pub(crate) to: Destination,
}

/// One of our sockets on port 4791.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) udp: UdpPort,
    /// The interface, for link-local destinations.
    pub(crate) interface: u32,
}

impl Endpoint {
    pub(crate) fn ip(&self) -> IpAddr {
        self.udp.local_addr().ip()
    }

    /// Where a packet along `av` goes.
    fn destination(&self, av: &AddressVector) -> Destination {
        let port = self.udp.local_addr().port();
        let addr = match av.dgid.ip() {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(ip, port, 0, self.interface))
            }
            ip => SocketAddr::new(ip, port),
        };
        Destination { addr, tos: av.traffic_class, ttl: av.hop_limit }
    }
}

/// Our sockets, by GID index and slot.
pub(crate) type Endpoints = Mutex<HashMap<(u8, u16), Arc<Endpoint>>>;

/// What is known of a wire before there is one.
const NO_CAPS: LinkCaps =
    LinkCaps { max_payload: 4096, lossless: false, by_reference: false, acks_along: false };

impl Path {
    /// The stream, if it is one.
    pub(crate) fn stream(&mut self) -> Option<&mut StreamPath> {
        match self {
            Self::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// What is lent of what is sent there, where the peer acknowledges what it has read.
    pub(crate) fn loans(&mut self) -> Option<&mut Loans> {
        if let Self::Udp(_, share) = self { Some(share.loans()) } else { None }
    }

    /// What the link can do for queue pairs of a type.
    pub(crate) fn caps(&self, qp_type: QpType) -> LinkCaps {
        match self {
            Self::Ring(ring) => ring.caps(qp_type),
            Self::Udp(route, _) | Self::Datagram(Some((_, route))) => route.port.udp.caps(),
            Self::Stream(stream) => stream.tcp.caps(),
            Self::None | Self::Datagram(None) => NO_CAPS,
        }
    }
}

impl Engine {
    /// The path that a queue pair has once `attr` is set: none if the call does not change it.
    pub(crate) fn path_for(
        &self,
        device: &Arc<Device>,
        qp: &QpCore,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<Option<Path>, VerbsError> {
        if device.kind().has_streams() {
            // Its stream comes from the connection manager, and is closed when RESET takes it away.
            return Ok(None);
        }
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            return Ok(Some(Path::None));
        }
        let slot = device.slot_for(qp.qpn);
        if qp.qp_type == QpType::Ud {
            let ready = mask.contains(AttrMask::STATE) && attr.state == QpState::Rtr;
            if ready {
                self.listen_everywhere(device, slot)?;
            }
            return Ok(ready.then_some(Path::Datagram(None)));
        }
        if !mask.contains(AttrMask::AV) {
            return Ok(None);
        }
        if attr.av.port_num != PORT && attr.av.port_num != 0 {
            let why = format!("there is no port {}", attr.av.port_num);
            return Err(VerbsError::invalid("find a path", why));
        }
        if mask.contains(AttrMask::DEST_QPN)
            && let Some(ring) = self.ring_to(device, &attr.av, attr.dest_qpn)?
        {
            return Ok(Some(Path::Ring(ring)));
        }
        let route = self.route(device, slot, &attr.av)?;
        let share = self.crowds.share(&route, attr.dest_qpn);
        Ok(Some(Path::Udp(route, share)))
    }

    /// The ring to the process that has `dest`, if it is one of this host and the two may share
    /// memory.
    fn ring_to(
        &self,
        device: &Arc<Device>,
        av: &AddressVector,
        dest: Qpn,
    ) -> Result<Option<Arc<RingTx>>, VerbsError> {
        let peer = slot_of(dest);
        // What belongs to no process is reached by the hub's ring, save QP1.
        let nobody = peer == crate::objects::control::SERVICE_SLOT && !is_target(dest);
        if device.gid_index(av.dgid).is_none() || nobody {
            return Ok(None);
        }
        if is_target(dest) {
            self.goes_by_hub();
        }
        self.rings().to(device, peer)
    }

    /// A socket of every address: a datagram may come to any of them.
    fn listen_everywhere(&self, device: &Arc<Device>, slot: u16) -> Result<(), VerbsError> {
        let n = u8::try_from(device.gids().len()).unwrap_or(u8::MAX);
        (0..n).try_for_each(|index| {
            let endpoint = self.endpoint(device, index, slot)?;
            let shown = endpoint.udp.report_headers(true);
            shown.map_err(VerbsError::os("ask a socket for network headers"))
        })
    }

    /// The socket and destination for `av`.
    pub(crate) fn route(
        &self,
        device: &Arc<Device>,
        slot: u16,
        av: &AddressVector,
    ) -> Result<Route, VerbsError> {
        let port = self.endpoint(device, av.sgid_index, slot)?;
        if port.ip().is_ipv4() != av.dgid.ip().is_ipv4() {
            let why = format!("{} and {} are of different address families", port.ip(), av.dgid);
            return Err(VerbsError::invalid("find a path", why));
        }
        let to = port.destination(av);
        Ok(Route { port, to })
    }

    /// The socket of `slot` on the address of `gid_index`, asked for when first needed.
    fn endpoint(
        &self,
        device: &Arc<Device>,
        gid_index: u8,
        slot: u16,
    ) -> Result<Arc<Endpoint>, VerbsError> {
        if let Some(endpoint) = self.endpoints().lock().get(&(gid_index, slot)) {
            return Ok(endpoint.clone());
        }
        let Some(gid) = device.gid(gid_index) else {
            let why = format!("the GID table has no index {gid_index}");
            return Err(VerbsError::invalid("find a path", why));
        };
        let fd = device.control().attach_address(gid_index, slot)?;
        let udp = UdpPort::new(fd).map_err(VerbsError::os("use the socket of an address"))?;
        let endpoint = Arc::new(Endpoint { udp, interface: gid.interface_index });
        let kept = self
            .endpoints()
            .lock()
            .entry((gid_index, slot))
            .or_insert_with(|| endpoint.clone())
            .clone();
        if Arc::ptr_eq(&kept, &endpoint) {
            self.listen(&endpoint)?;
        }
        Ok(kept)
    }
}
