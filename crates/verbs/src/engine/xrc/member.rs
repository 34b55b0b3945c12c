//! A process as the hub sees it: its memory, its ring, and its shared receive queues.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rdmux_link::{Consumer, ProcMemError, ProcessMemory};
use rdmux_transport::attr::Access;
use rdmux_transport::env::{AccessFault, SrqEntry};
use rdmux_transport::wr::Sge;
use rdmux_wire::Rkey;

use super::side::Outbox;
use crate::objects::error::VerbsError;
use crate::objects::memory::Space;
use crate::objects::mr::MrInit;
use crate::objects::pd::PdId;
use crate::objects::region::{Located, REMOTE, Region};
use crate::objects::xrc::record::{Receive, kind};
use crate::objects::xrc::request::RegionRow;
use crate::objects::xrc::shares::Share;

/// The ID of a process that joined the hub; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// The identity of a process.
#[derive(Debug)]
pub struct Identity {
    /// The process ID.
    pub pid: i32,
    /// The user of the process.
    pub user: u32,
    /// The name of the process.
    pub comm: String,
    /// The first slot of the process, by which its ring is known.
    pub slot: u16,
    /// A pidfd, so that a later process with the same ID is not mistaken for it.
    pub pidfd: Option<OwnedFd>,
}

/// A process that joined the hub; see the module.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) pid: i32,
    pub(crate) user: u32,
    pub(crate) comm: String,
    pub(crate) slot: u16,
    space: Space,
    /// Whether the operating system permits access to the member's memory, as far as is known.
    direct: AtomicBool,
    /// The mirrored regions, each with the user's share for it.
    regions: RwLock<HashMap<u32, (Region, Share)>>,
    outbox: OnceLock<Outbox>,
}

impl Member {
    pub(crate) fn new(id: MemberId, who: Identity) -> Self {
        let Identity { pid, user, comm, slot, pidfd } = who;
        let space = match ProcessMemory::new(pid, pidfd) {
            Ok(memory) => Space::Process(Arc::new(memory)),
            // The service is a thread of this very process.
            Err(ProcMemError::OwnProcess { .. }) => Space::Own,
            Err(_) => Space::Null,
        };
        let direct = AtomicBool::new(!matches!(space, Space::Null));
        let (regions, outbox) = (RwLock::default(), OnceLock::new());
        Self { id, pid, user, comm, slot, space, direct, regions, outbox }
    }

    /// Stores the ring to it, unless there is one.
    pub(crate) fn reach_by(&self, outbox: Outbox) {
        let _ = self.outbox.set(outbox);
    }
    /// Returns the queue of records to the process, if it has a ring.
    pub(crate) fn outbox(&self) -> Option<&Outbox> {
        self.outbox.get()
    }

    /// Mirrors a region. `share` takes the user's share, if the key is new.
    ///
    /// # Errors
    ///
    /// EINVAL when the region is invalid, or there are `most` already; that of `share`.
    pub(crate) fn add_region(
        &self,
        key: u32,
        row: &RegionRow,
        most: u32,
        share: impl FnOnce() -> Result<Share, VerbsError>,
    ) -> Result<(), VerbsError> {
        let fits = |start: u64| start.checked_add(row.length).is_some();
        let mut regions = self.regions.write();
        let room = regions.len() < most as usize || regions.contains_key(&key);
        if !fits(row.iova) || !(row.null || fits(row.addr)) || !room {
            return Err(VerbsError::invalid(
                "register memory for XRC",
                "its range is invalid, or the limit of memory regions is reached",
            ));
        }
        let space = if row.null { Space::Null } else { self.space.clone() };
        let RegionRow { addr, length, iova, access, serial, .. } = *row;
        let init = MrInit { addr, length, iova, access, space };
        let mut region = Region::new(init, PdId(row.pd));
        region.serial = serial;
        match regions.entry(key) {
            Entry::Occupied(mut entry) => {
                let (before, _) = entry.get_mut();
                if before.serial == serial && !before.is_open_to_peers() {
                    region.close_to_peers();
                }
                *before = region;
            }
            Entry::Vacant(entry) => _ = entry.insert((region, share()?)),
        }
        Ok(())
    }

    /// Removes the mirrored region with a key.
    pub(crate) fn remove_region(&self, key: u32) {
        self.regions.write().remove(&key);
    }

    /// Closes a registration of a key to peers. This arrives by the ring, whereas [`add_region`](Self::add_region) arrives by the
    /// socket: a registration that is not mirrored yet will be closed, and a later one stays open.
    pub(crate) fn close_region(&self, rkey: Rkey, serial: u64) {
        let mut regions = self.regions.write();
        let region = regions.get_mut(&rkey.0).map(|(region, _)| region);
        if let Some(region) = region.filter(|region| region.serial <= serial) {
            region.close_to_peers();
            region.serial = serial;
        }
    }

    /// Invalidates a key, as requested by a SEND with invalidate.
    pub(crate) fn invalidate(&self, pd: PdId, rkey: Rkey) -> Result<(), AccessFault> {
        let mut regions = self.regions.write();
        let (region, _) = regions.get_mut(&rkey.0).ok_or(AccessFault::Key)?;
        if region.pd != pd {
            return Err(AccessFault::Domain);
        }
        if !region.access().intersects(REMOTE) {
            return Err(AccessFault::Rights);
        }
        region.close_to_peers();
        Ok(())
    }

    /// Returns the process's regions, locked: none is removed while the guard lives.
    pub(crate) fn regions(&self) -> Mirrored<'_> {
        Mirrored(self.regions.read())
    }

    /// Returns whether the process's memory can be accessed directly.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }
    /// Records that the operating system refused access to its memory.
    pub(crate) fn not_direct(&self) {
        if self.direct.swap(false, Ordering::Relaxed) {
            crate::throttled!(
                warn,
                pid = self.pid,
                "the kernel refuses access to the memory of process {}: RDMA READs of its memory \
                 over XRC fail (see ptrace(2), access mode checking)",
                self.pid
            );
        }
    }
}

/// The regions of a member, locked.
pub(crate) struct Mirrored<'a>(RwLockReadGuard<'a, HashMap<u32, (Region, Share)>>);

impl Mirrored<'_> {
    /// Finds memory: for the process itself by a local key, or for a peer by a remote one.
    pub(crate) fn find(
        &self,
        pd: PdId,
        remote: bool,
        at: &Sge,
        access: Access,
    ) -> Result<Located<'_>, AccessFault> {
        let (region, _) = self.0.get(&at.lkey.0).ok_or(AccessFault::Key)?;
        if remote && !region.is_open_to_peers() {
            return Err(AccessFault::Key);
        }
        if region.pd != pd {
            return Err(AccessFault::Domain);
        }
        region.locate(at.addr, at.length.into(), access)
    }
}

/// A shared receive queue of a member.
#[derive(Debug)]
pub(crate) struct RemoteSrq {
    /// The number of the queue.
    pub(crate) srqn: u32,
    /// The process that the queue belongs to.
    pub(crate) member: Arc<Member>,
    pub(crate) pd: PdId,
    ring: Mutex<Receives>,
}

/// The reader of the ring of receives.
#[derive(Debug)]
struct Receives {
    ring: Consumer,
    bytes: Vec<u8>,
    broken: bool,
}

impl RemoteSrq {
    pub(crate) fn new(srqn: u32, member: Arc<Member>, pd: PdId, ring: Consumer) -> Self {
        let ring = Mutex::new(Receives { ring, bytes: Vec::new(), broken: false });
        Self { srqn, member, pd, ring }
    }

    /// Takes the oldest receive.
    pub(crate) fn pop(&self, sges: &mut [Sge]) -> Option<SrqEntry> {
        let mut receives = self.ring.lock();
        let Receives { ring, bytes, broken } = &mut *receives;
        if *broken {
            return None;
        }
        let parsed = match ring.pop() {
            Ok(None) => return None,
            Ok(Some(record)) if record.kind() == kind::RECEIVE => {
                bytes.resize(record.len(), 0);
                record.copy(0, bytes);
                Receive::parse(record.meta(), bytes, sges)
            }
            Ok(Some(_)) | Err(_) => None,
        };
        if parsed.is_none() {
            crate::throttled!(
                warn,
                pid = self.member.pid,
                srqn = self.srqn,
                "the receive ring of an XRC shared receive queue violated the protocol and is no longer used"
            );
            *broken = true;
        }
        parsed.map(|(wr_id, num_sge)| SrqEntry { wr_id, num_sge })
    }
}
