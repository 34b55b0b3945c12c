//! Shared paths: everything but the peer's GUID and LID is stored once for all entries.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_wire::Lid;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Guid};

/// The number of a path in [`Paths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathId(pub(super) u16);

/// The paths of a cache without their peers, with the number of entries that use each.
#[derive(Debug, Default)]
pub(super) struct Paths {
    rows: Vec<(PathRecord, u32)>,
    by_bytes: BTreeMap<[u8; 64], u16>,
    free: Vec<u16>,
}

/// Returns a path without its peer.
fn common(path: &PathRecord) -> PathRecord {
    PathRecord { dgid: Gid::new(path.dgid.prefix(), Guid(0)), dlid: Lid::NONE, ..*path }
}

impl Paths {
    /// Adds a use of this path; none when there are too many different paths.
    pub(super) fn add(&mut self, path: &PathRecord) -> Option<PathId> {
        let path = common(path);
        let bytes = path.to_bytes();
        if let Some(id) = self.by_bytes.get(&bytes) {
            self.rows[usize::from(*id)].1 += 1;
            return Some(PathId(*id));
        }
        let id = match self.free.pop() {
            Some(id) => {
                self.rows[usize::from(id)] = (path, 1);
                id
            }
            None => {
                // The last number means "none" in entries.
                let id = u16::try_from(self.rows.len()).ok().filter(|id| *id != u16::MAX)?;
                self.rows.push((path, 1));
                id
            }
        };
        self.by_bytes.insert(bytes, id);
        Some(PathId(id))
    }

    /// Removes a use of a path.
    pub(super) fn remove(&mut self, id: PathId) {
        let (path, entries) = &mut self.rows[usize::from(id.0)];
        *entries -= 1;
        if *entries == 0 {
            self.by_bytes.remove(&path.to_bytes());
            self.free.push(id.0);
        }
    }

    /// Returns the path to a peer.
    pub(super) fn get(&self, id: PathId, guid: Guid, dlid: Lid) -> PathRecord {
        let (path, _) = &self.rows[usize::from(id.0)];
        PathRecord { dgid: Gid::new(path.dgid.prefix(), guid), dlid, ..*path }
    }

    /// Returns the number of different paths.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_bytes.len()
    }

    /// Returns approximately how many bytes are used on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<(PathRecord, u32)>() + self.by_bytes.len() * 90
    }
}
