//! Requests to the hub, on a socket of their own.

use rdmux_verbs::xrc::{XrcReply, XrcRequest};
use serde::{Deserialize, Serialize};

use super::request::Failure;

/// What a process asks the hub. Each has one [`HubReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HubRequest {
    /// Its slot: the name of its ring.
    Slot,
    /// About XRC. A descriptor comes along where the request says so.
    Xrc(XrcRequest),
}

/// The hub's answer.
pub type HubReply = Result<HubResponse, Failure>;

/// The hub's answer to what it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HubResponse {
    /// Its slot.
    Slot(u16),
    /// About XRC.
    Xrc(XrcReply),
}
