//! Short SENDs into a ring: directly from the send queue into a record.

use std::sync::atomic::{Ordering, fence};

use rdmux_link::ring::SHORT;
use rdmux_transport::attr::Access;
use rdmux_transport::env::TxPayload;
use rdmux_transport::wr::Sge;
use rdmux_transport::{BriefRequest, Time};
use rdmux_wire::Bth;

use super::Short;
use crate::engine::device::Device;
use crate::engine::env::parts;
use crate::engine::qp::{Driven, Ends, Objects, QpCore};
use crate::engine::wire::Path;
use crate::objects::cached_region::CachedRegion;
use crate::objects::memory::Space;
use crate::objects::pd::PdId;

/// The maximum length of a message that is sent this way, with its pad.
#[expect(clippy::cast_possible_truncation, reason = "less than two cache lines")]
const MOST: u32 = ((SHORT - Bth::LEN) & !3) as u32;

/// Sends requests that may be sent now and in this way. The others are left to the full path.
#[inline]
pub(crate) fn send(device: &Device, core: &QpCore, driven: &mut Driven, now: Time) {
    let Driven { machine, path, sent_from, .. } = driven;
    let (Ends::Own(objects), Some(qp)) = (&core.ends, machine.packets()) else { return };
    if !path.may_cut_short(device, core.port()) {
        return;
    }
    let Path::Near(near, by, guard) = path else { return };
    let mut short = Short { path: *by, ..Short::default() };
    while let Some(request) = qp.brief_request(MOST, |index| device.pkey(core.port(), index)) {
        if gather(device, objects, &request, sent_from, &mut short).is_none() {
            return;
        }
        if !near.send_short(device, &short) {
            return;
        }
        if let Some(guard) = guard {
            guard.sent(Bth::LEN, short.len - Bth::LEN);
        }
        qp.brief_left(now);
    }
}

/// Builds the packet of a record. The bytes after it are undefined.
#[inline]
fn gather(
    device: &Device,
    objects: &Objects,
    request: &BriefRequest<'_>,
    sent_from: &mut SentFrom,
    short: &mut Short,
) -> Option<()> {
    let (len, pad) = (request.len as usize, usize::from(request.pad));
    short.bytes[..Bth::LEN].copy_from_slice(&request.header);
    short.bytes.get_mut(Bth::LEN + len..)?.get_mut(..pad)?.fill(0);
    let payload = &mut short.bytes[Bth::LEN..Bth::LEN + len];
    match request.payload {
        TxPayload::None => {}
        TxPayload::Bytes(from) => payload.copy_from_slice(from),
        TxPayload::Gather { sges: [sge], offset: 0, len } if sge.length >= len => {
            sent_from.read(device, objects.pd, sge, payload)?;
        }
        TxPayload::Gather { sges, offset, len } => {
            let regions = device.regions().read();
            let mut rest = payload;
            for (sge, addr, take) in parts(sges, offset, len) {
                let pd = objects.pd;
                let at = regions.local(pd, sge.lkey, addr, take.into(), Access::empty()).ok()?;
                let (now, later) = rest.split_at_mut_checked(take as usize)?;
                at.space.read(at.addr, now).ok()?;
                rest = later;
            }
        }
        TxPayload::Remote { .. } => return None,
    }
    (short.len, short.pad, short.ack) = (Bth::LEN + len + pad, request.pad, request.ack);
    Some(())
}

/// The region that a queue pair last sent from, cached so that the table of regions need not be locked for each message.
#[derive(Debug, Default)]
pub(crate) struct SentFrom {
    cached: CachedRegion,
    /// The engine's count of changes when the region was found.
    changes: u64,
}

impl SentFrom {
    /// Copies an entry's bytes. Returns none if they may not be read.
    #[inline]
    fn read(&mut self, device: &Device, pd: PdId, sge: &Sge, into: &mut [u8]) -> Option<()> {
        let len = u32::try_from(into.len()).ok()?;
        let changes = device.engine().changes();
        if self.changes != changes || !self.cached.holds(pd, sge, len) {
            let cached = device.regions().read().cached(pd, sge.lkey, Access::empty());
            *self = Self { cached, changes };
        }
        if !self.cached.holds(pd, sge, len) {
            return None;
        }
        Space::Own.read(sge.addr, into).ok()?;
        // Bytes read from memory that is no longer registered are not used.
        fence(Ordering::Acquire);
        (device.engine().changes() == changes).then_some(())
    }
}
