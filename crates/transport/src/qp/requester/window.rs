//! How many packets may be in flight: the congestion window.
//!
//! RoCE assumes a network that loses nothing, but a UDP socket drops what overflows its buffer. So
//! the window grows until something is lost and then halves (AIMD with slow start, RFC 5681), in
//! packets. A loss by itself, after which a whole window had gone through, is taken for the line's own: to send less
//! would not have prevented it, and the window gives up a small part only. On a lossless link it is as good as open.

/// The window of a new connection.
const INITIAL: u32 = 32;
/// What part of it the window gives up for a loss by itself.
const LONE: u32 = 32;
/// What part of it it gives up where nothing but what was lost is sent again, and there is no loss beside it.
const SMALL: u32 = 64;
/// Never halved below this, so that a loss can still show by a NAK.
const LEAST: u32 = 4;
/// Bytes in flight that no receiver's socket buffer exceeds.
const MOST_BYTES: u32 = 2 << 20;
/// Bytes and packets that leave in one system call (`udp(7)`), and what of them is not payload.
const CALL: (u32, u32) = (65_507, 64);
const OVERHEAD: u32 = 32;
/// Packets in flight without congestion control; far below half the PSN space.
const OPEN: u32 = 1 << 21;

/// The window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Packets.
    size: u32,
    /// Up to here it doubles per round trip, beyond it grows by one.
    slow_start: u32,
    /// Packets acknowledged since it last grew by one.
    credit: u32,
    /// Packets acknowledged since something was last lost.
    since_loss: u32,
    most: u32,
    /// The packets that fill a system call, and as many calls together as have no more packets than [`CALL`] says.
    call: u32,
    calls: u32,
    /// Size and limit before it was last made smaller, in case that was a mistake.
    before: (u32, u32),
}

impl Window {
    pub(super) const fn lossless() -> Self {
        Self {
            size: OPEN,
            slow_start: OPEN,
            credit: 0,
            since_loss: 0,
            most: OPEN,
            call: CALL.1,
            calls: CALL.1,
            before: (0, 0),
        }
    }

    pub(super) fn lossy(mtu: u32) -> Self {
        let call = (CALL.0 / (mtu + OVERHEAD)).clamp(1, CALL.1);
        let calls = CALL.1 / call * call;
        let most = (MOST_BYTES / mtu / calls * calls).max(INITIAL);
        let (size, slow_start, credit, since_loss) = (INITIAL, most, 0, 0);
        Self { size, slow_start, credit, since_loss, most, call, calls, before: (0, 0) }
    }

    /// Packets that may be in flight.
    #[inline]
    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    /// Of how many packets one asks for an ACK, at least, when so many may be in flight: of those always one does. What
    /// such an ACK allows to be sent fills system calls. After losses, which made the window small, they are to come
    /// more often than where others share the way.
    #[inline]
    pub(super) fn ack_every(&self, limit: u32) -> u32 {
        let shared = if limit < self.size { self.call.min(limit / 2) } else { 0 };
        (limit / 4).min(self.calls).max(shared).max(1)
    }

    const fn is_open(&self) -> bool {
        self.most == OPEN
    }

    /// `packets` were acknowledged.
    #[inline]
    pub(super) fn on_progress(&mut self, packets: u32) {
        self.since_loss = self.since_loss.saturating_add(packets);
        if self.size >= self.most {
            return;
        }
        if self.size < self.slow_start {
            self.size = (self.size + packets).min(self.most);
            return;
        }
        self.credit += packets;
        if self.credit >= self.size {
            self.credit = 0;
            self.size += 1;
        }
    }

    /// Something was lost, but later packets arrived.
    pub(super) fn on_loss(&mut self, in_flight: u32) {
        if self.is_open() {
            return;
        }
        let alone = self.size >= self.slow_start && self.since_loss >= self.size;
        let used = in_flight.min(self.size);
        self.shrink(if alone { used - used.div_ceil(LONE) } else { used / 2 });
    }

    /// Something was lost that is sent again by itself, the first of a flight: that says little about the way.
    pub(super) fn on_gap(&mut self) {
        self.shrink(self.size - self.size / SMALL);
    }

    /// Much was lost of one flight.
    pub(super) fn on_many_gaps(&mut self) {
        self.shrink(self.size - self.size / 4);
    }

    /// What had been taken for much was lost by itself.
    pub(super) fn on_mistake(&mut self) {
        self.size = self.size.max(self.before.0);
        self.on_gap();
    }

    fn shrink(&mut self, to: u32) {
        self.before = (self.size, self.slow_start);
        self.slow_start = to.max(LEAST);
        self.size = self.slow_start;
        (self.credit, self.since_loss) = (0, 0);
    }

    /// Nothing came back: send one packet and see.
    pub(super) fn on_timeout(&mut self, in_flight: u32) {
        if self.is_open() || self.size == 1 {
            return;
        }
        self.shrink(in_flight.min(self.size) / 2);
        self.size = 1;
    }

    /// What had been taken for lost was acknowledged before it was sent again: it was only late
    /// (as RFC 3522 finds out).
    pub(super) fn on_spurious(&mut self) {
        self.size = self.size.max(self.before.0);
        self.slow_start = self.slow_start.max(self.before.1);
        self.before = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_then_creeps_then_halves() {
        let mut w = Window::lossy(1024);
        assert_eq!(w.size(), 32);
        w.on_progress(32);
        assert_eq!(w.size(), 64);
        w.on_loss(64);
        assert_eq!(w.size(), 32);
        w.on_progress(31);
        assert_eq!(w.size(), 32);
        w.on_progress(1);
        assert_eq!(w.size(), 33);
        w.on_progress(1 << 20);
        assert_eq!(w.size(), 34, "one step at a time beyond slow start");
    }

    #[test]
    fn a_loss_by_itself_costs_little() {
        let mut w = Window::lossy(1024);
        w.on_loss(32);
        assert_eq!(w.size(), 16, "in slow start it has grown too far");
        w.on_loss(16);
        assert_eq!(w.size(), 8, "one loss after the other");
        w.on_progress(8);
        assert_eq!(w.size(), 9);
        w.on_progress(1);
        w.on_loss(9);
        assert_eq!(w.size(), 8);
        w.on_progress(7);
        w.on_loss(8);
        assert_eq!(w.size(), LEAST);
    }

    /// One packet in a hundred lost by the line: the window stays at what lets most packets through once.
    #[test]
    fn settles_where_lines_lose_little() {
        let mut w = Window::lossy(4096);
        w.on_loss(32);
        for round in 0..200 {
            (0..100).for_each(|_| w.on_progress(1));
            w.on_loss(w.size());
            assert!(round < 100 || (28..64).contains(&w.size()), "{w:?}");
        }
    }

    #[test]
    fn starts_again_from_one_after_silence() {
        let mut w = Window::lossy(4096);
        w.on_timeout(32);
        assert_eq!((w.size(), w.ack_every(1)), (1, 1));
        w.on_progress(1);
        w.on_progress(2);
        assert_eq!(w.size(), 4);
        for _ in 0..10_000 {
            w.on_progress(600);
        }
        assert_eq!(
            (w.size(), w.ack_every(480)),
            (480, 60),
            "eight times four system calls of 15 packets"
        );
    }

    #[test]
    fn acks_allow_as_much_as_fills_system_calls() {
        let open = |mtu| {
            let mut w = Window::lossy(mtu);
            (0..20).for_each(|_| w.on_progress(w.size()));
            w
        };
        assert_eq!(
            [1, 2, 8, 40, 100, 300, 480].map(|n| open(4096).ack_every(n)),
            [1, 1, 4, 15, 25, 60, 60]
        );
        assert_eq!([1, 8, 200, 2000].map(|n| open(1024).ack_every(n)), [1, 4, 62, 62]);
        assert!((1..500).all(|n| open(4096).ack_every(n) <= n), "one of them is in flight");
        assert_eq!(Window::lossy(4096).ack_every(INITIAL), INITIAL / 4);
    }

    #[test]
    fn comes_back_when_nothing_was_lost() {
        let mut w = Window::lossy(1024);
        w.on_progress(200);
        let before = w.size();
        w.on_timeout(before);
        w.on_timeout(before);
        assert_eq!(w.size(), 1);
        w.on_spurious();
        assert_eq!(w.size(), before);
        w.on_spurious();
        assert_eq!(w.size(), before);
    }

    #[test]
    fn stays_open_without_loss_to_fear() {
        let mut w = Window::lossless();
        w.on_timeout(1);
        w.on_loss(1);
        assert_eq!(w.size(), OPEN);
    }
}
