//! Openings of XRC domains, and their users.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::objects::control::Control;
use crate::objects::xrc::ask::ask_hub;
use crate::objects::xrc::request::XrcRequest;

/// An opening of a domain, which is closed when this is dropped.
pub(crate) struct Opening {
    control: Arc<dyn Control>,
    id: u32,
    /// The number of shared receive queues, handles and registrations that were made with it.
    users: AtomicUsize,
}

/// A registration. It counts as a use, but does not keep the opening alive: otherwise the device that contains it would never be
/// dropped.
#[derive(Debug)]
pub(crate) struct Registration(Weak<Opening>);

impl Opening {
    /// Creates the opening with the number that the hub assigned.
    pub(crate) fn new(control: Arc<dyn Control>, id: u32) -> Arc<Self> {
        Arc::new(Self { control, id, users: AtomicUsize::new(0) })
    }

    /// Returns the opening's number.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns how many shared receive queues, handles and registrations were made with it.
    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::Acquire)
    }
    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }
    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds a use for the registration of this process for a target of the domain.
    pub(crate) fn registration(self: &Arc<Self>) -> Registration {
        self.add_user();
        Registration(Arc::downgrade(self))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let request = XrcRequest::CloseDomain { domain: self.id };
        // The domain ended with the service.
        let _ = ask_hub(self.control.as_ref(), &request, None, "close an XRC domain");
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(opening) = self.0.upgrade() {
            opening.remove_user();
        }
    }
}

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opening").field("id", &self.id).finish_non_exhaustive()
    }
}
