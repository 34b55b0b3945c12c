//! Counts of an object's users.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::boundary::{Errno, Result};

/// Counts the objects that use another one, which cannot be destroyed meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Users(Arc<AtomicUsize>);

/// A user, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Use(Users);

impl Users {
    pub(crate) fn add(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(self.clone())
    }
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
    /// Fails with EBUSY while there is any user.
    pub(crate) fn check_none(&self) -> Result<()> {
        if self.count() == 0 { Ok(()) } else { Err(Errno(libc::EBUSY)) }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
