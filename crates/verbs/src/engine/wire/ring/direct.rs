//! WRITEs and READs by the initiator alone, straight between its memory and the memory of a process of the same
//! host, and what lets the peer do so: queue pairs that it finds on our board.

use std::sync::Arc;

use arrayvec::ArrayVec;
use rdmux_link::Piece;
use rdmux_link::board::QpRow;
use rdmux_link::procmem::MAX_PIECES;
use rdmux_transport::attr::{Access, QpAttr, QpType};
use rdmux_transport::env::{Direct, FetchError, TxPayload};
use rdmux_transport::wr::Sge;
use rdmux_wire::{Bth, Pkey, Reth};

use crate::engine::device::Device;
use crate::engine::env::parts;
use crate::engine::qp::{Ends, Objects, QpCore};
use crate::engine::wire::Path;
use crate::objects::counters::{Counter, Counters};
use crate::objects::memory;
use crate::objects::pd::PdId;
use crate::objects::reach::Reach;
use crate::objects::regions::Regions;

/// The local end of a copy.
pub(crate) type Near = ArrayVec<Piece, MAX_PIECES>;

/// The process at the other end of a queue pair, if the two may reach each other's memory.
pub(crate) fn reach_of<'p>(core: &QpCore, path: &'p Path) -> Option<&'p Arc<Reach>> {
    match path {
        Path::Near(near, ..) if core.qp_type == QpType::Rc => near.reach(),
        _ => None,
    }
}

/// Publishes a queue pair, which is open to its peer.
pub(crate) fn show(device: &Device, core: &QpCore, path: &Path, attr: &QpAttr) {
    if let (Some(board), Some(_), Ends::Own(objects)) =
        (device.reaches().board(), reach_of(core, path), &core.ends)
    {
        // A queue pair that answers no READ says so to the packet of one.
        let refused =
            if attr.max_dest_rd_atomic == 0 { Access::REMOTE_READ } else { Access::empty() };
        board.show_qp(&QpRow {
            qpn: core.qpn.get(),
            dest_qpn: attr.dest_qpn.get(),
            pd: objects.pd.0,
            access: attr.access.difference(refused).bits(),
            pkey: device.pkey(core.port(), attr.pkey_index).unwrap_or(Pkey::DEFAULT).0,
        });
    }
}

/// Takes it back. When this returns, the peer carries nothing out in its place any more.
pub(crate) fn hide(device: &Device, core: &QpCore, path: &Path) {
    if let (Some(board), Some(reach)) = (device.reaches().board(), reach_of(core, path))
        && board.hide_qp(core.qpn.get())
    {
        reach.wait_for_copies();
    }
}

/// Carries a copy out, if the link, the peer's queue pair and both ends' regions permit it. False if not, or if the
/// system did not do all of it.
pub(crate) fn carry_out(
    device: &Device,
    core: &QpCore,
    path: &mut Path,
    (objects, regions): (&Objects, &Regions),
    copy: &Direct<'_>,
) -> bool {
    // What a READ brings the peer sends: between hosts the ports count it.
    if !path.may_cut_short(device, core.port()) || !copy.write && path.is_counted() {
        return false;
    }
    let Some(reach) = reach_of(core, path).filter(|reach| reach.is_open()) else { return false };
    let Some(near) = near_end(objects, regions, copy) else { return false };
    let Some(hazard) = device.reaches().enter(reach) else { return false };
    let Some(va) = reach.find(core.qpn, copy) else { return false };
    let copied = if copy.write {
        reach.memory().write_pieces(va, &near)
    } else {
        memory::fetch(reach.memory(), va, &near)
    };
    drop(hazard);
    let counters = Counters(device.counters());
    if let Err(error) = copied {
        reach.failed(&counters, &error);
        return false;
    }
    let (which, bytes) = if copy.write {
        (Counter::DirectWrites, Counter::DirectWriteBytes)
    } else {
        (Counter::DirectReads, Counter::DirectReadBytes)
    };
    counters.add(which, 1);
    counters.add(bytes, copy.len.into());
    let reth = if copy.is_first { Reth::LEN } else { 0 };
    path.sent(Bth::LEN + reth, copy.len as usize);
    true
}

/// Where a copy's bytes are, or belong, here. None if they may not, and for the packets to find out why.
fn near_end(objects: &Objects, regions: &Regions, copy: &Direct<'_>) -> Option<Near> {
    let mut near = Near::new();
    match copy.near {
        TxPayload::Bytes(bytes) => near.try_push(Piece::new(bytes.as_ptr(), bytes.len())).ok()?,
        TxPayload::Gather { sges, offset, len } => {
            let access = if copy.write { Access::empty() } else { Access::LOCAL_WRITE };
            return near_list((objects.pd, regions), sges, (offset, len), access).ok();
        }
        TxPayload::None | TxPayload::Remote { .. } => return None,
    }
    Some(near)
}

/// Where a part of a list is here: `len` bytes from `offset` on. Out of reach if not all of it is this process's own
/// memory.
#[inline]
pub(crate) fn near_list(
    (pd, regions): (PdId, &Regions),
    sges: &[Sge],
    (offset, len): (u32, u32),
    access: Access,
) -> Result<Near, FetchError> {
    let mut near = Near::new();
    for (sge, addr, take) in parts(sges, offset, len) {
        let at = regions.local(pd, sge.lkey, addr, take.into(), access);
        let at = at.map_err(FetchError::Memory)?;
        let piece = at.space.piece(at.addr, take as usize).ok_or(FetchError::OutOfReach)?;
        near.try_push(piece).map_err(|_| FetchError::OutOfReach)?;
    }
    Ok(near)
}
