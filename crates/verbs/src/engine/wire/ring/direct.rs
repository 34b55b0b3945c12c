//! WRITEs and READs that the initiator executes alone, directly between its memory and that of a process of the same host; and
//! the publication of queue pairs on this process's board, which enables the peer to do the same.

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

/// Returns the process at the other end of a queue pair, if the two may access each other's memory.
pub(crate) fn reach_of<'p>(core: &QpCore, path: &'p Path) -> Option<&'p Arc<Reach>> {
    match path {
        Path::Near(near, ..) if core.qp_type == QpType::Rc => near.reach(),
        _ => None,
    }
}

/// Publishes a queue pair that is open to its peer.
pub(crate) fn show(device: &Device, core: &QpCore, path: &Path, attr: &QpAttr) {
    if let (Some(board), Some(_), Ends::Own(objects)) =
        (device.reaches().board(), reach_of(core, path), &core.ends)
    {
        // A queue pair that serves no READ refuses it when the packet arrives.
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

/// Withdraws a queue pair. When this returns, the peer no longer executes operations in its place.
pub(crate) fn hide(device: &Device, core: &QpCore, path: &Path) {
    if let (Some(board), Some(reach)) = (device.reaches().board(), reach_of(core, path))
        && board.hide_qp(core.qpn.get())
    {
        reach.wait_for_copies();
    }
}

/// Executes a copy, if the link, the peer's queue pair and both ends' regions permit it. Returns false if they do not, or if the
/// kernel did not copy everything.
pub(crate) fn carry_out(
    device: &Device,
    core: &QpCore,
    path: &mut Path,
    (objects, regions): (&Objects, &Regions),
    copy: &Direct<'_>,
) -> bool {
    // The data of a READ is sent by the peer: between hosts, the ports count it.
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

/// Returns the local memory of a copy. Returns none if access is not permitted: the packets then determine the reason.
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

/// Returns the local memory of `len` bytes from `offset` of a list. An error if not all of it is this process's own memory.
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
