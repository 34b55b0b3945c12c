//! Requests to the hub.

use std::os::fd::BorrowedFd;

use crate::objects::control::{Control, ControlError};
use crate::objects::error::VerbsError;
use crate::objects::xrc::request::{XrcReply, XrcRequest};

/// Sends a request to the hub. `what` names the operation in the error.
pub(crate) fn ask_hub(
    control: &dyn Control,
    request: &XrcRequest,
    fd: Option<BorrowedFd<'_>>,
    what: &'static str,
) -> Result<XrcReply, VerbsError> {
    Ok(control.ask_hub(request, fd, what)?)
}

/// Reports a reply of the hub that does not match the request.
pub(crate) fn unexpected(reply: &XrcReply) -> VerbsError {
    crate::throttled!(
        error,
        ?reply,
        "the XRC hub's reply does not match the request; the device fails"
    );
    ControlError::Gone.into()
}
