//! A memory region, and the requester of access to it.

use rdmux_transport::attr::Access;
use rdmux_transport::env::AccessFault;
use rdmux_wire::Qpn;

use crate::objects::memory::Space;
use crate::objects::mr::MrInit;
use crate::objects::pd::PdId;
use crate::objects::xrc::request::RegionRow;

/// The access rights that peers can have.
pub(crate) const REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A region as an entry of the table.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdId,
    init: MrInit,
    /// The serial number of the registration: another registration of the same key has a higher one.
    pub(crate) serial: u64,
    /// Cleared when the key is invalidated: peers are then refused, the owner is not.
    remote: bool,
    /// The number of windows bound to the region.
    pub(crate) windows: u32,
}

impl Region {
    pub(crate) fn new(init: MrInit, pd: PdId) -> Self {
        Self { pd, init, serial: 0, remote: true, windows: 0 }
    }

    /// Locates `len` bytes at `iova`, if the region contains them all and grants `access`.
    #[inline]
    pub(crate) fn locate(
        &self,
        iova: u64,
        len: u64,
        access: Access,
    ) -> Result<Located<'_>, AccessFault> {
        let offset = iova.checked_sub(self.init.iova).ok_or(AccessFault::Bounds)?;
        let end = offset.checked_add(len).ok_or(AccessFault::Bounds)?;
        if end > self.init.length {
            return Err(AccessFault::Bounds);
        }
        if !self.init.access.contains(access) {
            return Err(AccessFault::Rights);
        }
        Ok(Located { space: &self.init.space, addr: self.init.addr + offset })
    }

    /// Returns the parameters of its registration.
    pub(crate) fn init(&self) -> &MrInit {
        &self.init
    }
    pub(crate) fn access(&self) -> Access {
        self.init.access
    }
    #[inline]
    pub(crate) fn is_open_to_peers(&self) -> bool {
        self.remote
    }
    /// Makes its key invalid for peers.
    pub(crate) fn close_to_peers(&mut self) {
        self.remote = false;
    }

    /// Returns the row for the XRC hub's mirror; none if it is another process's memory.
    pub(crate) fn row(&self) -> Option<RegionRow> {
        let MrInit { addr, length, iova, access, ref space } = self.init;
        let null = match space {
            Space::Own => false,
            Space::Null => true,
            Space::Process(_) => return None,
        };
        let access = if self.remote { access } else { access.difference(REMOTE) };
        let (pd, serial) = (self.pd.0, self.serial);
        Some(RegionRow { addr, length, iova, access, null, pd, serial })
    }
}

/// A checked range of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located<'a> {
    /// The memory that the range belongs to.
    pub(crate) space: &'a Space,
    /// The address of the range in that memory.
    pub(crate) addr: u64,
}

/// The queue pair that requests access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    /// The number of the queue pair.
    pub(crate) qpn: Qpn,
    /// The protection domain of the queue pair.
    pub(crate) pd: PdId,
}
