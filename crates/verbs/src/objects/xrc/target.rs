//! Handles on targets, as events refer to them.

use rdmux_wire::Qpn;

use crate::objects::unacked::Unacked;

/// A handle of this process on a target.
#[derive(Debug)]
pub(crate) struct TargetCore {
    pub(crate) qpn: Qpn,
    /// The value that the creator of the handle set.
    pub(crate) context: u64,
    /// The count of unacknowledged events about it.
    pub(crate) unacked: Unacked,
}
