//! Long messages whose packets name their payload, for the peer's driver to fetch with one copy.
//!
//! Such a packet consumes the PSNs of the packets it replaces, those that would carry the payload. So it can be sent again as
//! those: whatever is sent again carries its payload, and the peer asks for that when it cannot fetch it.

use crate::attr::QpType;
use crate::optable::Travel;
use crate::qp::Qp;

/// The most bytes that one packet names: then others get their turn.
pub(crate) const MOST_NAMED: u32 = 1 << 20;
/// From this length on a message is named: below, two copies are faster than asking the kernel for one.
const WORTH: u32 = 32 << 10;
/// The most messages in a row that are not named after one that could not be fetched, as a power of two.
const MOST_UNNAMED: u8 = 10;

/// How the entry at the cursor goes.
#[derive(Debug, Default)]
pub(super) struct Naming {
    /// Whether its packets name their payload.
    pub(super) on: bool,
    /// How many entries will not.
    skip: u16,
    /// How often one could not be fetched.
    refused: u8,
}

impl Naming {
    /// The peer asks for something again, on a link that loses nothing: perhaps it could not fetch it.
    pub(super) fn on_refusal(&mut self) {
        self.refused = (self.refused + 1).min(MOST_UNNAMED);
        self.skip = 1 << self.refused;
    }
}

impl Qp {
    /// Decides how the entry at the cursor goes, which is about to be sent for the first time.
    pub(super) fn choose_naming(&mut self, travel: Travel, len: u32) {
        let possible = self.req.direct
            && travel == Travel::Message
            && len >= WORTH
            && self.qp_type == QpType::Rc
            // That it could not be fetched is told in a way that counts as a retry.
            && self.attr.retry_cnt != 0;
        let naming = &mut self.req.naming;
        naming.on = possible && naming.skip == 0;
        if possible {
            naming.skip = naming.skip.saturating_sub(1);
        }
    }

    /// Bytes of the largest packet of the entry at the cursor.
    #[inline]
    pub(super) fn most(&self) -> u32 {
        if self.req.naming.on { MOST_NAMED - MOST_NAMED % self.mtu } else { self.mtu }
    }
}
