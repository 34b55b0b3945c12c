//! Paths between two ports.

use rdmux_wire::mad::status;
use rdmux_wire::sa::{PathRecord, Selector};
use rdmux_wire::{Gid, Lid, Pkey};

use super::route;
use super::wants::Wants;
use crate::administration::access::{is_key, share_partition};
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{Status, View};
use crate::manager::model::Port;
use crate::topology::PortRef;

/// The cost of examining a pair of ports, whether or not there is a path, in bytes.
const LOOK: usize = 16;

/// An end port of paths.
#[derive(Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) place: PortRef,
    pub(super) port: &'a Port,
    /// The requested GID, or the port's first.
    pub(super) gid: Gid,
    /// The first LID for paths and the number of LIDs.
    pub(super) lids: (Lid, u16),
}

/// A request and the data from which it is answered.
#[derive(Clone, Copy)]
pub(super) struct Finder<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) request: &'a Request<'a>,
    pub(super) wants: &'a Wants,
}

/// The common properties of all paths between two ports.
struct Pair<'a> {
    from: &'a End<'a>,
    to: &'a End<'a>,
    /// The P_Key of the answer: zero for raw traffic.
    pkey: Pkey,
    sl: u8,
}

impl<'a> End<'a> {
    /// Creates an end with all LIDs of a port; none if the port has none.
    pub(super) fn new(prefix: u64, place: PortRef, port: &'a Port) -> Option<Self> {
        let gid = Gid::new(prefix, port.guid);
        Some(Self { place, port, gid, lids: (port.lid()?, 1 << port.lmc().min(7)) })
    }
}

impl<'a> Finder<'a> {
    /// Returns the port named by GID or LID: any port if neither is given, none if there is no such port.
    pub(super) fn ends(
        &self,
        gid: Option<Gid>,
        lid: Option<Lid>,
    ) -> Result<Option<Option<End<'a>>>, Status> {
        let (model, prefix) = (self.view.model, self.view.cx.config.gid_prefix);
        let by_gid = match gid {
            None => None,
            Some(gid) if gid.prefix() != prefix => return Ok(None),
            Some(gid) => match self.view.links.by_port_guid(model, gid.guid()) {
                None => return Ok(None),
                found => found,
            },
        };
        let by_lid = match lid.map(|lid| model.by_lid(lid)) {
            Some(None) => return Ok(None),
            found => found.flatten(),
        };
        if by_gid.is_some() && by_lid.is_some() && by_gid != by_lid {
            return Err(status::SA_REQUEST_INVALID);
        }
        let Some(place) = by_gid.or(by_lid) else { return Ok(Some(None)) };
        let end = model.port(place).and_then(|port| End::new(prefix, place, port));
        let Some(mut end) = end else { return Ok(None) };
        end.gid = gid.unwrap_or(end.gid);
        end.lids = lid.map_or(end.lids, |lid| (lid, 1));
        Ok(Some(Some(end)))
    }

    /// Adds the paths from one port to another.
    pub(super) fn paths(
        &self,
        from: &End<'_>,
        to: &End<'_>,
        table: &mut Table,
    ) -> Result<(), Status> {
        table.charge(LOOK);
        table.check_work()?;
        let visible = self.request.may_see(from.port)
            && self.request.may_see(to.port)
            && share_partition(from.port, to.port);
        let Some(pkey) = self.pkey(from.port, to.port).filter(|_| visible) else { return Ok(()) };
        let partition = self.view.cx.partitions.get(pkey);
        let sl = self.wants.sl.or(partition.and_then(|p| p.sl)).unwrap_or(0);
        let pkey = if self.wants.raw { Pkey(0) } else { pkey };
        let pair = Pair { from, to, pkey, sl };
        let mut left = self.wants.count;
        for (i, j, preference) in offsets(from.lids.1, to.lids.1) {
            if left == 0 {
                break;
            }
            let lids = [Lid(from.lids.0.0 + i), Lid(to.lids.0.0 + j)];
            table.charge(PathRecord::LEN);
            if let Some(path) = self.path(&pair, lids, preference) {
                table.push(&path)?;
                left -= 1;
            }
        }
        Ok(())
    }

    /// Returns the path from one LID to another.
    fn path(&self, pair: &Pair<'_>, [slid, dlid]: [Lid; 2], preference: u8) -> Option<PathRecord> {
        let (model, wants) = (self.view.model, self.wants);
        let (from, to) = (pair.from.place, pair.to.place);
        let links = self.view.links;
        let there = route::follow(model, links, from, to, dlid)?;
        let reversible = route::follow(model, links, to, from, slid).is_some();
        if wants.reversible && !reversible {
            return None;
        }
        let life = if from == to { 0 } else { self.view.cx.config.subnet_timeout };
        Some(PathRecord {
            dgid: pair.to.gid,
            sgid: pair.from.gid,
            dlid,
            slid,
            reversible,
            pkey: pair.pkey,
            sl: pair.sl,
            mtu_selector: Selector::EXACTLY,
            mtu: wants.mtu(there.mtu)?,
            rate_selector: Selector::EXACTLY,
            rate: wants.rate(there.rate())?,
            packet_life_time_selector: Selector::EXACTLY,
            packet_life_time: wants.life(life)?,
            preference,
            ..PathRecord::default()
        })
    }

    /// Returns the P_Key of paths between two ports, if they have a suitable one in common. Raw traffic has no P_Key, but its
    /// service level is that of the first partition that the ports have in common.
    fn pkey(&self, from: &Port, to: &Port) -> Option<Pkey> {
        let has =
            |port: &Port, key: Pkey| port.pkeys.iter().any(|own| is_key(*own) && own.admits(key));
        if let Some(asked) = self.wants.pkey.filter(|_| !self.wants.raw) {
            let full = Pkey(asked.0 | 0x8000);
            let both = is_key(asked) && has(from, full) && has(to, full);
            let talks = |port: &Port| port.pkeys.contains(&full);
            return (both && (talks(from) || talks(to))).then_some(asked);
        }
        let common = from.pkeys.iter().filter(|key| is_key(**key) && has(to, **key));
        common.copied().min_by_key(|key| (key.0 & 0x7fff, key.0 & 0x8000 == 0))
    }
}

/// Returns pairs of LID offsets: first the pairs of equal offsets, whose paths share the fewest links, then all others.
fn offsets(from: u16, to: u16) -> impl Iterator<Item = (u16, u16, u8)> {
    let same = (0..from.min(to)).map(|i| (i, i, 0));
    let others = (0..from).flat_map(move |i| (0..to).map(move |j| (i, j, 2)));
    same.chain(others.filter(|(i, j, _)| i != j))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn lids_with_the_same_offset_come_first() {
        let all: Vec<_> = offsets(2, 2).collect();
        assert_eq!(all, [(0, 0, 0), (1, 1, 0), (0, 1, 2), (1, 0, 2)]);
        assert_eq!(offsets(1, 4).count(), 4);
        assert_eq!(offsets(4, 2).take(3).collect::<Vec<_>>(), [(0, 0, 0), (1, 1, 0), (0, 1, 2)]);
    }
}
