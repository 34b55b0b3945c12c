//! Sending again only what is missing.
//!
//! A peer may buffer out-of-order packets (ours does, `responder::reorder`) or drop them. The wire says neither, but the answer
//! to the missing packet does: what reaches beyond it shows that the peer had more. So at first nothing is sent again but
//! the packet that the peer asks for, while new ones go on leaving. Where the next gap begins right behind it, the peer
//! drops, or much was lost: then everything is sent again, as ever, and after a few such answers always. A peer that is
//! known to keep gets more with each further gap of one flight, so that a long gap does not take as many round trips
//! as it has packets.
//!
//! The cursor goes to the missing packet, and when that has left back to where it was.

use rdmux_wire::Psn;

use crate::optable::Travel;
use crate::qp::Qp;

/// What is known of a peer that has shown that it keeps.
const PROVEN: u8 = u8::MAX;
/// How often a peer is believed to keep without having shown it.
const TRIALS: u8 = 4;
/// After so many losses a peer that seems to drop is tried again.
const AGAIN: u8 = 64;
/// So many gaps of one flight are no losses of the line.
const MANY: u8 = 5;
/// In place of the number of gaps: the peer seems to drop, as it turns out now, or turned out before.
const FAILED: u8 = 2;
const BLAMED: u8 = 3;
/// Of every packet that is sent again an ACK is asked for: the count since the last one is then this.
const ASK: u32 = u32::MAX / 2;

/// How it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mend {
    /// Packets that are still to be sent again before the cursor returns.
    left: u32,
    /// The entry, and the place in it, that it returns to.
    back: (u32, u32),
    /// Whether only what is missing was sent again last and the answer is awaited, and the PSN after it.
    awaited: bool,
    end: Psn,
    /// Whether the peer had asked for it, so that the answer tells what it had.
    asked: bool,
    /// What had been sent when the first gap of this flight was found, and how many were found.
    until: Psn,
    gaps: u8,
    /// How often the peer is still believed, or [`PROVEN`].
    trust: u8,
    /// Losses since it is not.
    since: u8,
}

impl Mend {
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

    /// Everything is sent again.
    pub(super) fn stop(&mut self) {
        (self.left, self.awaited) = (0, false);
    }

    /// Whether the cursor is to return.
    #[inline]
    pub(super) fn is_under_way(&self) -> bool {
        self.left != 0
    }

    /// Whether an answer to it is awaited.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Whether what the peer asked for was sent, and the answer, which costs it no time, is awaited. Nobody tells if it
    /// is lost again, and one packet too many does no harm.
    #[inline]
    pub(super) fn is_asked_for(&self) -> bool {
        self.awaited && self.asked && self.trust == PROVEN
    }

    /// Whether what is missing now is to be sent alone. `all` is what was sent.
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
                // The next gap begins right behind what was sent alone.
                self.trust -= 1;
                self.gaps = FAILED;
            }
            _ => self.gaps = BLAMED,
        }
        false
    }

    /// Whether it has just turned out that to send alone what was missing was not enough.
    pub(super) fn has_failed(&self) -> bool {
        self.trust != PROVEN && self.gaps == FAILED
    }

    /// Everything before `una` arrived. `timed` says that it is the first answer since the timer fired. Whether more is
    /// missing, although nobody said so.
    pub(super) fn answered(&mut self, una: Psn, timed: bool) -> Missing {
        let beyond = una.diff(self.end);
        if beyond < 0 {
            return Missing::Unknown;
        }
        self.awaited = false;
        let all = una.diff(self.until) >= 0;
        if beyond == 0 {
            // What was sent behind it before is where it is.
            return if all { Missing::Unknown } else { Missing::Lost };
        }
        if self.asked {
            let known = core::mem::replace(&mut self.trust, PROVEN) == PROVEN;
            return match (all, known) {
                // The peer would have more, had it not to wait for this.
                (false, _) => Missing::Lost,
                (true, false) => Missing::Alone,
                (true, true) => Missing::Unknown,
            };
        }
        // It was not what is missing. Either nothing is, or what comes next.
        self.gaps = 0;
        if all || !timed { Missing::Unknown } else { Missing::Perhaps }
    }
}

/// What an answer says about the packet that is now the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// Nothing.
    Unknown,
    /// The same, but the one before it was the only one that was missing, as was not known of this peer.
    Alone,
    /// It may be lost.
    Perhaps,
    /// It is lost.
    Lost,
}

impl Qp {
    /// Moves the cursor to what is missing, a packet or more, and sees to it that it returns. False if
    /// everything is to be sent again. `lost` says that it is known to be missing, and not only awaited for long.
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

    /// How many packets of messages there are from the oldest entry on, `most` if more.
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

    /// A packet that had been sent was sent again.
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

    /// The cursor returns to where it was before it went to what is missing.
    pub(super) fn return_cursor(&mut self) {
        let req = &mut self.req;
        req.mend.left = 0;
        (req.cursor, req.offset) = req.mend.back;
        req.since_ack_req = 0;
    }

    /// The PSN of the packet at the cursor.
    #[inline]
    pub(super) fn at_cursor(&self) -> Psn {
        self.psn_at((self.req.cursor, self.req.offset))
    }

    #[inline]
    fn psn_at(&self, (entry, offset): (u32, u32)) -> Psn {
        if entry == self.req.started { self.req.next } else { self.sq.get(entry).first.add(offset) }
    }
}
