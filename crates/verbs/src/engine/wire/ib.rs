//! InfiniBand ports: packets are gathered like those of sockets.

use std::sync::Arc;

use rdmux_link::{Frame, IbWire, LinkError, Wire};
use rdmux_transport::attr::AddressVector;

use super::AnyWire;
use super::gathered::{self, Gathered};
use super::udp::zerocopy::ZeroCopySends;
use crate::engine::device::Device;

/// Gathers a packet, or sends it.
pub(super) fn send(
    device: &Device,
    wire: &Arc<IbWire>,
    av: &AddressVector,
    gathered: &mut Gathered,
    mut zerocopy: Option<&mut ZeroCopySends>,
    frame: &Frame<'_>,
) -> Result<(), LinkError> {
    let is_wire = |w: &AnyWire| matches!(w, AnyWire::Ib(other) if Arc::ptr_eq(other, wire));
    gathered.turn_to(device, is_wire, || AnyWire::Ib(wire.clone()), zerocopy.as_deref_mut());
    gathered::send(device, (&**wire, av), &mut gathered.ib, zerocopy, frame)?;
    device.engine().capture().sent_along(device, av, || wire.ends(av), frame);
    Ok(())
}
