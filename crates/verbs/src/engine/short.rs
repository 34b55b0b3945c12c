//! Short SENDs into a ring: from the send queue straight into a record.

use rdmux_link::ring::SHORT;
use rdmux_transport::attr::Access;
use rdmux_transport::env::TxPayload;
use rdmux_transport::{BriefRequest, Time};
use rdmux_wire::Bth;

use super::env::parts;
use super::path::Path;
use super::ring::Short;
use crate::device::Device;
use crate::qp::{Driven, Ends, Objects, QpCore};

/// The most bytes of a message that goes this way, and its pad.
#[expect(clippy::cast_possible_truncation, reason = "less than two cache lines")]
const MOST: u32 = ((SHORT - Bth::LEN) & !3) as u32;

/// Sends what may leave now in this way. What may not is left to the long way.
#[inline]
pub(super) fn send(device: &Device, core: &QpCore, driven: &mut Driven, now: Time) {
    let Driven { machine, path, .. } = driven;
    let (Path::Ring(ring), Ends::Own(objects), Some(qp)) = (&*path, &core.ends, machine.packets())
    else {
        return;
    };
    if device.engine().capture().is_on() {
        return;
    }
    while let Some(request) = qp.brief_request(MOST, |index| device.pkey(index)) {
        let Some(short) = gather(device, objects, &request) else { return };
        if !ring.send_short(device, &short) {
            return;
        }
        qp.brief_left(now);
    }
}

/// The packet as it goes into a record.
#[inline]
fn gather(device: &Device, objects: &Objects, request: &BriefRequest<'_>) -> Option<Short> {
    let mut bytes = [0; SHORT];
    let len = request.len as usize;
    bytes[..Bth::LEN].copy_from_slice(&request.header);
    let payload = bytes.get_mut(Bth::LEN..)?.get_mut(..len)?;
    match request.payload {
        TxPayload::None => {}
        TxPayload::Bytes(from) => payload.copy_from_slice(from),
        TxPayload::Gather { sges, offset, len } => {
            let regions = device.regions().read();
            let mut rest = payload;
            for (sge, addr, take) in parts(sges, offset, len) {
                let pd = objects.pd.id();
                let at = regions.local(pd, sge.lkey, addr, take.into(), Access::empty()).ok()?;
                let (now, later) = rest.split_at_mut_checked(take as usize)?;
                at.space.read(at.addr, now).ok()?;
                rest = later;
            }
        }
        TxPayload::Remote { .. } => return None,
    }
    let len = Bth::LEN + len + usize::from(request.pad);
    Some(Short { bytes, len, pad: request.pad, ack: request.ack })
}
