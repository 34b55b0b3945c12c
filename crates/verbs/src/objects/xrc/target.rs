//! Handles on targets, as events know them.

use rdmux_wire::Qpn;

use crate::objects::unacked::Unacked;

/// A handle of this process's on a target.
#[derive(Debug)]
pub(crate) struct TargetCore {
    pub(crate) qpn: Qpn,
    /// The value that it was made with.
    pub(crate) context: u64,
    /// Events about it.
    pub(crate) unacked: Unacked,
}
