//! Sockets of port 4791, and the common parts of packet wires that use sockets: zero-copy sends, and shares of a socket's buffer.

pub(super) mod shared_buffer;
pub(super) mod zerocopy;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use rdmux_link::{Destination, Frame, LinkError, UdpPort, Wire};
use rdmux_transport::attr::AddressVector;

use self::zerocopy::ZeroCopySends;
use super::AnyWire;
use super::gathered::{self, Gathered};
use crate::engine::device::Device;
use crate::objects::error::VerbsError;

/// A socket of this process on port 4791.
#[derive(Debug)]
pub(crate) struct UdpWire {
    pub(super) port: UdpPort,
    /// The interface, for link-local destinations.
    pub(super) interface: u32,
}

impl UdpWire {
    /// Returns the destination of packets along `av`.
    pub(super) fn destination(&self, av: &AddressVector) -> Result<Destination, VerbsError> {
        let own = self.port.local_addr();
        if own.is_ipv4() != av.dgid.ip().is_ipv4() {
            let why = format!("{} and {} are of different address families", own.ip(), av.dgid);
            return Err(VerbsError::invalid("find a path", why));
        }
        let addr = match av.dgid.ip() {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(ip, own.port(), 0, self.interface))
            }
            ip => SocketAddr::new(ip, own.port()),
        };
        Ok(Destination { addr, tos: av.traffic_class, ttl: av.hop_limit })
    }
}

/// Gathers a packet with others of the same queue pair. `zerocopy` has the queue pair's zero-copy sends; none if its packets are not
/// acknowledged.
pub(super) fn send(
    device: &Device,
    (wire, to): (&Arc<UdpWire>, &Destination),
    gathered: &mut Gathered,
    mut zerocopy: Option<&mut ZeroCopySends>,
    frame: &Frame<'_>,
) -> Result<(), LinkError> {
    let is_wire = |w: &AnyWire| matches!(w, AnyWire::Udp(other) if Arc::ptr_eq(other, wire));
    gathered.turn_to(device, is_wire, || AnyWire::Udp(wire.clone()), zerocopy.as_deref_mut());
    gathered::send(device, (&wire.port, to), &mut gathered.batch, zerocopy, frame)?;
    device.engine().capture().sent(|| wire.port.ends(to), frame);
    Ok(())
}
