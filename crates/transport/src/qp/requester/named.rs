//! Long messages whose packets name their payload, which the peer's driver fetches with one copy.
//!
//! Such a packet consumes the PSNs of the packets it replaces. So those packets can be sent in its place later:
//! every retransmission carries its payload, and the peer requests one when it cannot fetch the payload.

use crate::attr::QpType;
use crate::optable::Travel;
use crate::qp::Qp;

/// The most bytes that one packet names, after which others get their turn.
pub(crate) const MOST_NAMED: u32 = 1 << 20;
/// The length from which a message names its payload: below it, two copies are faster than one through the kernel.
const WORTH: u32 = 32 << 10;
/// The most consecutive messages that carry their payload after a failed fetch, as a power of two.
const MOST_UNNAMED: u8 = 10;

/// Whether the entry at the cursor names its payload.
#[derive(Debug, Default)]
pub(super) struct Naming {
    /// Whether the connection's packets name their payload.
    pub(super) on: bool,
    /// The number of next entries that carry their payload.
    skip: u16,
    /// The number of fetches that failed.
    refused: u8,
}

impl Naming {
    /// Handles a retransmission request on a lossless link, which may mean that the peer could not fetch a payload.
    pub(super) fn on_refusal(&mut self) {
        self.refused = (self.refused + 1).min(MOST_UNNAMED);
        self.skip = 1 << self.refused;
    }
}

impl Qp {
    /// Decides whether the entry at the cursor, about to be sent for the first time, names its payload.
    pub(super) fn choose_naming(&mut self, travel: Travel, len: u32) {
        let possible = self.req.direct
            && travel == Travel::Message
            && len >= WORTH
            && self.qp_type == QpType::Rc
            // The report of a failed fetch counts as a retry.
            && self.attr.retry_cnt != 0;
        let naming = &mut self.req.naming;
        naming.on = possible && naming.skip == 0;
        if possible {
            naming.skip = naming.skip.saturating_sub(1);
        }
    }

    /// Returns the size of the largest packet of the entry at the cursor.
    #[inline]
    pub(super) fn most(&self) -> u32 {
        if self.req.naming.on { MOST_NAMED - MOST_NAMED % self.mtu } else { self.mtu }
    }
}
