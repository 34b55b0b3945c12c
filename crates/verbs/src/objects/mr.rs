//! The parameters with which a memory region is registered.

use rdmux_transport::attr::Access;

use crate::objects::error::VerbsError;
use crate::objects::memory::{self, Space};

/// A range that can be registered as a region.
#[derive(Clone, Debug)]
pub struct MrInit {
    /// The address of the bytes in `space`.
    pub addr: u64,
    /// The length in bytes.
    pub length: u64,
    /// The address of the first byte in work requests, mostly `addr`. With [`Access::ZERO_BASED`] it is taken as 0.
    pub iova: u64,
    /// The access rights.
    pub access: Access,
    /// The owner of the memory.
    pub space: Space,
}

impl MrInit {
    /// A range of this process's memory, under its own addresses.
    pub fn own(addr: *const u8, length: usize, access: Access) -> Self {
        let addr = addr.expose_provenance() as u64;
        Self { addr, length: length as u64, iova: addr, access, space: Space::Own }
    }

    /// Returns the range, if it is valid.
    ///
    /// # Errors
    ///
    /// As for [`Mr::register`](crate::Mr::register).
    pub(crate) fn check(mut self) -> Result<Self, VerbsError> {
        if self.access.contains(Access::ZERO_BASED) {
            self.iova = 0;
        }
        let needs_write = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if self.access.intersects(needs_write) && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::invalid(
                "register memory",
                "remote write and remote atomic access also need local write access",
            ));
        }
        let fits = |start: u64| start.checked_add(self.length).is_some();
        if !fits(self.addr) || !fits(self.iova) {
            return Err(VerbsError::invalid("register memory", "the address range wraps around"));
        }
        // Only on-demand paging permits memory that is not mapped yet (ibv_reg_mr(3)), up to the whole address space.
        let now = matches!(self.space, Space::Own) && !self.access.contains(Access::ON_DEMAND);
        if now && !memory::is_mapped(self.addr, self.length) {
            return Err(VerbsError::memory("register memory", "it is not mapped", libc::EFAULT));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_needs_local_write() {
        let init = MrInit {
            addr: 0,
            length: 1,
            iova: 0,
            access: Access::REMOTE_WRITE,
            space: Space::Null,
        };
        assert!(init.clone().check().is_err());
        let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        assert!(MrInit { access, ..init }.check().is_ok());
    }

    #[test]
    fn registering_unmapped_memory_needs_on_demand_access() {
        let whole = |access| MrInit::own(std::ptr::null(), usize::MAX, access);
        let error = whole(Access::LOCAL_WRITE).check().unwrap_err();
        assert_eq!(error.errno(), libc::EFAULT);
        assert!(whole(Access::LOCAL_WRITE | Access::ON_DEMAND).check().is_ok());
    }
}
