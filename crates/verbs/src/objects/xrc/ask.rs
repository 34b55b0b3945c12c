//! Asking the hub.

use std::os::fd::BorrowedFd;

use crate::objects::control::{Control, ControlError};
use crate::objects::error::VerbsError;
use crate::objects::xrc::request::{XrcReply, XrcRequest};

/// Asks the hub. `what` is for the error.
pub(crate) fn ask_hub(
    control: &dyn Control,
    request: &XrcRequest,
    fd: Option<BorrowedFd<'_>>,
    what: &'static str,
) -> Result<XrcReply, VerbsError> {
    Ok(control.ask_hub(request, fd, what)?)
}

/// An answer of the hub's that does not belong to the question.
pub(crate) fn unexpected(reply: &XrcReply) -> VerbsError {
    crate::throttled!(error, ?reply, "an answer that does not belong to the question");
    ControlError::Gone.into()
}
