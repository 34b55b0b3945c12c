//! Packet wires of kinds that the engine does not know, used only through the methods of their
//! trait.

use std::sync::Arc;

use rdmux_link::wire::PacketWire;
use rdmux_link::{Frame, LinkError};
use rdmux_transport::attr::AddressVector;

use super::AnyWire;
use super::gathered::{Gathered, account};
use crate::engine::device::Device;

/// Sends a packet, or has the wire gather it.
pub(super) fn send(
    device: &Device,
    wire: &Arc<PacketWire>,
    av: &AddressVector,
    gathered: &mut Gathered,
    frame: &Frame<'_>,
) -> Result<(), LinkError> {
    let is_wire = |w: &AnyWire| matches!(w, AnyWire::Other(other) if Arc::ptr_eq(other, wire));
    gathered.turn_to(device, is_wire, || AnyWire::Other(wire.clone()), None);
    loop {
        match wire.send(&mut (), av, frame) {
            Err(LinkError::Full) => flush(device, wire),
            other => break other?,
        }
    }
    device.engine().capture().sent_along(device, av, || wire.ends(av), frame);
    Ok(())
}

/// Sends the packets that the wire has gathered.
pub(super) fn flush(device: &Device, wire: &Arc<PacketWire>) {
    account(device, wire.flush(&mut ()));
}
