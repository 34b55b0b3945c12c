//! Requests to the hub, on their own socket.

use rdmux_verbs::xrc::{XrcReply, XrcRequest};
use serde::{Deserialize, Serialize};

use super::request::Failure;

/// A process's request to the hub. Each has one [`HubReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HubRequest {
    /// Requests the hub's slot, which names its ring.
    Slot,
    /// A request about XRC objects. It carries a descriptor if the request requires one.
    Xrc(XrcRequest),
}

/// The hub's reply.
pub type HubReply = Result<HubResponse, Failure>;

/// The reply to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HubResponse {
    /// The hub's slot.
    Slot(u16),
    /// The reply about XRC objects.
    Xrc(XrcReply),
}
