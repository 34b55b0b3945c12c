//! Selective retransmission: sends only the missing packets again.
//!
//! A peer may buffer out-of-order packets (as `responder::reorder` does) or drop them. The acknowledgement of the
//! missing packet shows which: one that reaches beyond it shows that the peer had buffered later packets. So at first
//! only the packet that the peer requests is retransmitted, while new ones continue to leave. If the next gap begins
//! right after it, the peer drops, or much was lost: then everything is retransmitted, and after a few such results
//! always. A peer known to buffer is sent more packets with each further gap of one flight, so that a long gap does not
//! take one round trip per packet.
//!
//! The cursor moves to the missing packet, and returns to its place when that has been sent.

use rdmux_wire::Psn;

use crate::optable::Travel;
use crate::qp::Qp;

/// The trust in a peer that has shown that it buffers.
const PROVEN: u8 = u8::MAX;
/// Number of times that a peer is assumed to buffer without having shown it.
const TRIALS: u8 = 4;
/// The number of losses after which a peer that seems to drop is tried again.
const AGAIN: u8 = 64;
/// The number of gaps in one flight that indicates congestion and not random loss.
const MANY: u8 = 5;
/// Value in place of the number of gaps: the peer has just turned out to drop, or had turned out so before.
const FAILED: u8 = 2;
const BLAMED: u8 = 3;
/// The value of the packet count since the last ACK request that makes every retransmitted packet request an ACK.
const ASK: u32 = u32::MAX / 2;

/// The state of selective retransmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mend {
    /// Packets still to be retransmitted before the cursor returns.
    left: u32,
    /// The entry, and the offset in it, to which the cursor returns.
    back: (u32, u32),
    /// Whether only missing packets were last retransmitted and their acknowledgement is awaited, and the PSN after them.
    awaited: bool,
    end: Psn,
    /// Whether the peer had requested these packets, so that the acknowledgement shows what it had buffered.
    asked: bool,
    /// The end of what had been sent when the first gap of this flight was found, and the number of gaps found.
    until: Psn,
    gaps: u8,
    /// Number of times that the peer is still assumed to buffer, or [`PROVEN`].
    trust: u8,
    /// Losses since this assumption ended.
    since: u8,
}

impl Mend {
    /// Creates the state for a requester that starts at this PSN.
    pub(super) const fn new(psn: Psn) -> Self {
        Self {
            left: 0,
            back: (0, 0),
            awaited: false,
            end: psn,
            asked: false,
            until: psn,
            gaps: 0,
            trust: TRIALS,
            since: 0,
        }
    }

    /// Ends selective retransmission: everything is sent again.
    pub(super) fn stop(&mut self) {
        (self.left, self.awaited) = (0, false);
    }

    /// Returns whether the cursor is still to return.
    #[inline]
    pub(super) fn is_under_way(&self) -> bool {
        self.left != 0
    }

    /// Returns whether the acknowledgement of a selective retransmission is awaited.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Returns whether the packets that the peer requested were sent and their acknowledgement, which the peer sends
    /// without delay, is awaited. A second loss of them is not reported, and one unneeded packet does no harm.
    #[inline]
    pub(super) fn is_asked_for(&self) -> bool {
        self.awaited && self.asked && self.trust == PROVEN
    }

    /// Returns whether to retransmit only what is missing. `all` is the end of what was sent.
    fn may(&mut self, una: Psn, all: Psn) -> bool {
        if una.diff(self.until) >= 0 || self.until.diff(all) > 0 {
            (self.until, self.gaps) = (all, 0);
        }
        if self.trust == PROVEN {
            return true;
        }
        if self.trust == 0 {
            self.since += 1;
            if self.since < AGAIN {
                self.gaps = BLAMED;
                return false;
            }
            (self.since, self.trust, self.gaps) = (0, 1, 0);
        }
        match self.gaps {
            0 => return true,
            1 => {
                // The next gap begins right after the packets that were retransmitted.
                self.trust -= 1;
                self.gaps = FAILED;
            }
            _ => self.gaps = BLAMED,
        }
        false
    }

    /// Returns whether selective retransmission has just turned out not to be enough.
    pub(super) fn has_failed(&self) -> bool {
        self.trust != PROVEN && self.gaps == FAILED
    }

    /// Handles the acknowledgement of everything before `una`. `timed` is set for the first one since the timer fired.
    /// Returns whether the packet that is now the oldest is missing.
    pub(super) fn answered(&mut self, una: Psn, timed: bool) -> Missing {
        let beyond = una.diff(self.end);
        if beyond < 0 {
            return Missing::Unknown;
        }
        self.awaited = false;
        let all = una.diff(self.until) >= 0;
        if beyond == 0 {
            // If packets had been sent after it earlier, the next of them was lost or dropped, too.
            return if all { Missing::Unknown } else { Missing::Lost };
        }
        if self.asked {
            let known = core::mem::replace(&mut self.trust, PROVEN) == PROVEN;
            return match (all, known) {
                // The peer would acknowledge more if it did not wait for this packet.
                (false, _) => Missing::Lost,
                (true, false) => Missing::Alone,
                (true, true) => Missing::Unknown,
            };
        }
        // The retransmitted packet was not missing. Either none is, or the next one.
        self.gaps = 0;
        if all || !timed { Missing::Unknown } else { Missing::Perhaps }
    }
}

/// The information that an acknowledgement gives about the packet that is now the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// Nothing is known about it.
    Unknown,
    /// Nothing is known about it, but the packet before it was the only one missing, from a peer not known to buffer.
    Alone,
    /// The packet may be lost.
    Perhaps,
    /// The packet is lost.
    Lost,
}

impl Qp {
    /// Moves the cursor to the missing packets and arranges its return. Returns false if everything must be sent again.
    /// `lost` is set if they are known to be missing, and not only overdue.
    pub(super) fn mend(&mut self, lost: bool) -> bool {
        let at_cursor = self.at_cursor();
        let req = &mut self.req;
        if self.lossless || !req.mend.may(req.una, req.max_sent) {
            return false;
        }
        let (goal, back) = if req.mend.is_under_way() {
            (self.psn_at(self.req.mend.back), self.req.mend.back)
        } else {
            (at_cursor, (req.cursor, req.offset))
        };
        let sent = goal.diff(self.req.una);
        let size = self.messages_from_head(1 << (2 * self.req.mend.gaps.min(8)));
        let size = size.min(u32::try_from(sent).unwrap_or(0));
        if size == 0 {
            return false;
        }
        let in_flight = self.packets_in_flight();
        let req = &mut self.req;
        let proven = req.mend.trust == PROVEN;
        if lost && proven && req.mend.gaps == 0 {
            req.window.on_gap();
        } else if lost && proven && req.mend.gaps == MANY - 1 {
            req.window.on_many_gaps();
        } else if lost && !proven {
            req.window.on_loss(in_flight);
        }
        let end = req.una.add(size);
        let gaps = req.mend.gaps.saturating_add(1);
        req.mend = Mend { left: size, back, awaited: true, end, asked: lost, gaps, ..req.mend };
        self.move_cursor_to_una();
        let req = &mut self.req;
        req.stalled = None;
        req.rtt_at = crate::Time::NEVER;
        req.since_ack_req = ASK;
        true
    }

    /// Returns how many packets the messages from the oldest entry on have, at most `most`.
    fn messages_from_head(&self, most: u32) -> u32 {
        let (mut index, mut count) = (self.sq.head, 0);
        while count < most && index != self.req.started {
            let wqe = self.sq.get(index);
            if wqe.kind.row().travel != Travel::Message {
                break;
            }
            count += wqe.end().diff(self.req.una).unsigned_abs() - count;
            index = index.wrapping_add(1);
        }
        count.min(most)
    }

    /// Records that a packet was retransmitted.
    #[cold]
    pub(super) fn sent_again(&mut self, npsn: u32) {
        let mend = &mut self.req.mend;
        if mend.left == 0 {
            return;
        }
        mend.left = mend.left.saturating_sub(npsn);
        if mend.left == 0 {
            self.return_cursor();
        } else {
            self.req.since_ack_req = ASK;
        }
    }

    /// Returns the cursor to its place before the selective retransmission.
    pub(super) fn return_cursor(&mut self) {
        let req = &mut self.req;
        req.mend.left = 0;
        (req.cursor, req.offset) = req.mend.back;
        req.since_ack_req = 0;
    }

    /// Returns the PSN of the packet at the cursor.
    #[inline]
    pub(super) fn at_cursor(&self) -> Psn {
        self.psn_at((self.req.cursor, self.req.offset))
    }

    #[inline]
    fn psn_at(&self, (entry, offset): (u32, u32)) -> Psn {
        if entry == self.req.started { self.req.next } else { self.sq.get(entry).first.add(offset) }
    }
}
