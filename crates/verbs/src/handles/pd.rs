//! Protection domains: a queue pair can access only regions of its own domain.

use std::sync::Arc;

use crate::engine::device::Device;
use crate::objects::error::VerbsError;
use crate::objects::pd::PdId;
use crate::objects::quota::{Counted, Permit};

/// A protection domain (`ibv_alloc_pd(3)`). Lives as long as any object that was created in it.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: Arc<Device>,
    id: PdId,
    _permit: Permit,
}

impl Pd {
    /// Creates a protection domain. It is counted, but created even if the device's limit is reached.
    pub fn new(device: &Arc<Device>) -> Self {
        Self::with(device, device.quota().take_anyhow(Counted::Pd))
    }
    /// Allocates a domain like [`new`](Self::new), within the device's limit.
    ///
    /// # Errors
    ///
    /// ENOMEM when there are as many domains as the device allows.
    pub fn alloc(device: &Arc<Device>) -> Result<Self, VerbsError> {
        let permit = device.permit("allocate a protection domain", Counted::Pd)?;
        Ok(Self::with(device, permit))
    }
    fn with(device: &Arc<Device>, permit: Permit) -> Self {
        let (device, id) = (device.clone(), PdId(device.next_pd()));
        Self(Arc::new(Inner { device, id, _permit: permit }))
    }
    /// Returns the domain's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.0.device
    }
    /// Returns whether anything besides this handle uses the domain.
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
    pub(crate) fn id(&self) -> PdId {
        self.0.id
    }
}

impl PartialEq for Pd {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Pd {}
