//! MultiPathRecord: paths between several ports at once (IBTA 15.2.5.20).

use rdmux_wire::RmppFlags;
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::status;
use rdmux_wire::sa::{MultiPathRecord, MultiPathRecordMask};

use super::find::{End, Finder};
use super::wants::Wants;
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{Status, View};

/// The most GIDs of a request.
const MAX_GIDS: usize = 11;

pub(in super::super) fn read(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    if !request.sa.rmpp.flags.contains(RmppFlags::ACTIVE) {
        return Err(status::SA_REQUEST_INVALID);
    }
    let mask = MultiPathRecordMask::from_bits_retain(request.mask());
    if !mask.contains(MultiPathRecordMask::SGID_COUNT | MultiPathRecordMask::DGID_COUNT) {
        return Err(status::SA_INSUFFICIENT_COMPONENTS);
    }
    let record = question(request)?;
    let counts = [record.sgid_count, record.dgid_count].map(usize::from);
    let [from, to] = counts;
    if from == 0 || to == 0 || from + to > MAX_GIDS {
        return Err(status::SA_REQUEST_INVALID);
    }
    let wants = Wants::multi_path(request.mask(), &record)?;
    let finder = Finder { view, request, wants: &wants };
    let (from, rest) = record.gids.split_at(from);
    let find = |gid| match finder.ends(Some(gid), None) {
        Ok(Some(Some(end))) => Ok(end),
        _ => Err(status::SA_INVALID_GID),
    };
    let ends = |gids: &[rdmux_wire::Gid]| {
        gids.iter().map(|&gid| find(gid)).collect::<Result<alloc::vec::Vec<End<'_>>, Status>>()
    };
    let (from, to) = (ends(from)?, ends(&rest[..to])?);
    if let ([a, b], [c, d], 2) = (&from[..], &to[..], wants.count) {
        return migration(&finder, [a, b], [c, d], table);
    }
    // The requested number counts all paths together.
    for a in &from {
        for b in &to {
            let left = wants.count.saturating_sub(table.len());
            let some = wants.at_most(left);
            Finder { wants: &some, ..finder }.paths(a, b, table)?;
        }
    }
    Ok(())
}

/// Reads the record of the request, whose trailing unused GIDs may be missing.
fn question(request: &Request<'_>) -> Result<MultiPathRecord, Status> {
    let mut bytes = [0; MultiPathRecord::LEN];
    let data = &request.sa.data[..request.sa.data.len().min(bytes.len())];
    bytes[..data.len()].copy_from_slice(data);
    MultiPathRecord::read(&bytes).map_err(|_| status::SA_REQUEST_INVALID)
}

/// Adds a path and its alternate for automatic path migration. The two have different ends, so that no port failure breaks both.
fn migration(
    finder: &Finder<'_>,
    [a, b]: [&End<'_>; 2],
    [c, d]: [&End<'_>; 2],
    table: &mut Table,
) -> Result<(), Status> {
    let wants = finder.wants.at_most(1);
    let one = Finder { wants: &wants, ..*finder };
    for pairs in [[(a, c), (b, d)], [(a, d), (b, c)]] {
        let before = table.len();
        for (from, to) in pairs {
            one.paths(from, to, table)?;
        }
        if table.len() == before + 2 {
            return Ok(());
        }
        table.truncate(before);
    }
    // No pairing has both paths: add those that exist.
    [(a, c), (a, d), (b, c), (b, d)].into_iter().try_for_each(|(from, to)| {
        if table.len() < 2 { one.paths(from, to, table) } else { Ok(()) }
    })
}
