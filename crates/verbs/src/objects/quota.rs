//! The number of objects of each kind that a device has, and its limits: the maxima of `ibv_query_device(3)` are enforced here.
//! (Memory regions and windows are counted by their table, multicast groups by the engine.)
//!
//! The limits are those of an open device, as if each were a virtual function of an adapter: the objects of one process never
//! make another fail, and creating one takes no request to the host service. XRC objects are an exception: all processes use the
//! hub, and each user has a share of what it can have (`objects::xrc::shares`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::objects::control::Limits;
use crate::objects::error::VerbsError;

/// A kind of object that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counted {
    /// Protection domains.
    Pd,
    /// Completion queues.
    Cq,
    /// Shared receive queues, including those of XRC domains.
    Srq,
    /// Queue pairs. XRC targets are counted by the hub.
    Qp,
    /// Address handles.
    Ah,
}

impl Counted {
    const KINDS: usize = Self::Ah as usize + 1;

    /// Returns the objects' name, and the name and value of their limit.
    const fn row(self, limits: &Limits) -> (&'static str, &'static str, u32) {
        match self {
            Self::Pd => ("protection domains", "max_pd", limits.max_pd),
            Self::Cq => ("completion queues", "max_cq", limits.max_cq),
            Self::Srq => ("shared receive queues", "max_srq", limits.max_srq),
            Self::Qp => ("queue pairs", "max_qp", limits.max_qp),
            Self::Ah => ("address handles", "max_ah", limits.max_ah),
        }
    }
}

/// The counters of a device.
#[derive(Debug)]
pub(crate) struct Quota {
    limits: Limits,
    used: [AtomicU32; Counted::KINDS],
}

/// A permit for one object, which is counted until the permit is dropped.
#[derive(Debug)]
pub struct Permit {
    quota: Arc<Quota>,
    kind: Counted,
}

impl Quota {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, used: Default::default() })
    }

    /// Counts another object, which the operation `what` is about to create.
    ///
    /// # Errors
    /// ENOMEM when the limit is reached.
    pub(crate) fn take(
        self: &Arc<Self>,
        what: &'static str,
        kind: Counted,
    ) -> Result<Permit, VerbsError> {
        let (name, limit, most) = kind.row(&self.limits);
        let more = |used: u32| (used < most).then_some(used + 1);
        let taken =
            self.used[kind as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        match taken {
            Ok(_) => Ok(Permit { quota: self.clone(), kind }),
            Err(_) => Err(full(what, name, limit, most)),
        }
    }

    /// Counts another object, even beyond the limit.
    pub(crate) fn take_anyhow(self: &Arc<Self>, kind: Counted) -> Permit {
        self.used[kind as usize].fetch_add(1, Ordering::Relaxed);
        Permit { quota: self.clone(), kind }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.used[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the error for an object beyond the limit.
pub(crate) fn full(what: &'static str, name: &str, limit: &str, most: u32) -> VerbsError {
    let why = format!("there are {most} {name} already, the device's limit ({limit})");
    VerbsError::no_memory(what, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_above_the_limit_is_enomem_until_a_permit_is_dropped() {
        let quota = Quota::new(Limits { max_pd: 2, ..Limits::default() });
        let take = || quota.take("try", Counted::Pd);
        let (first, _second) = (take().unwrap(), take().unwrap());
        let error = take().unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM);
        assert!(error.to_string().contains("2 protection domains"), "{error}");
        drop(first);
        let third = take().unwrap();
        assert!(take().is_err());
        let anyhow = quota.take_anyhow(Counted::Pd);
        drop(third);
        assert!(take().is_err(), "one too many counts, too");
        drop(anyhow);
        assert!(take().is_ok());
    }
}
