//! The congestion window: how many packets may be in flight.
//!
//! RoCE assumes a lossless network, but a UDP socket drops packets when its buffer overflows. So the
//! window, in packets, grows until a loss and then halves (AIMD with slow start, RFC 5681). A single
//! loss after a whole window without any counts as random: sending less would not have prevented it,
//! so the window shrinks only a little. On a lossless link the window is effectively open.

/// The initial window of a connection.
const INITIAL: u32 = 32;
/// A single loss shrinks the window by one part in this many.
const LONE: u32 = 32;
/// A single loss with selective retransmission shrinks the window by one part in this many.
const SMALL: u32 = 64;
/// The window never halves below this, so that a NAK can still report a loss.
const LEAST: u32 = 4;
/// The most bytes in flight, which no receiver's socket buffer exceeds.
const MOST_BYTES: u32 = 2 << 20;
/// Bytes and packets that one system call can send (`udp(7)`), and bytes of each packet that are not payload.
const CALL: (u32, u32) = (65_507, 64);
const OVERHEAD: u32 = 32;
/// Packets in flight without congestion control; far below half the PSN space.
const OPEN: u32 = 1 << 21;

/// The congestion window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The size in packets.
    size: u32,
    /// Below this size the window doubles per round trip, above it grows by one.
    slow_start: u32,
    /// Packets acknowledged since it last grew by one.
    credit: u32,
    /// Packets acknowledged since the last loss.
    since_loss: u32,
    /// The maximum size in packets.
    most: u32,
    /// The packets that fill one system call, and the largest multiple of this within the packets of [`CALL`].
    call: u32,
    calls: u32,
    /// Size and slow-start limit before the window last shrank, in case that was a mistake.
    before: (u32, u32),
}

impl Window {
    /// Returns the constant window of a lossless link.
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

    /// Returns the initial window for packets of this MTU.
    pub(super) fn lossy(mtu: u32) -> Self {
        let call = (CALL.0 / (mtu + OVERHEAD)).clamp(1, CALL.1);
        let calls = CALL.1 / call * call;
        let most = (MOST_BYTES / mtu / calls * calls).max(INITIAL);
        let (size, slow_start, credit, since_loss) = (INITIAL, most, 0, 0);
        Self { size, slow_start, credit, since_loss, most, call, calls, before: (0, 0) }
    }

    /// Returns how many packets may be in flight.
    #[inline]
    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    /// Returns the interval in packets between requests for an ACK, when `limit` packets may be in
    /// flight: at least one of these requests it. The packets that such an ACK admits fill system
    /// calls. After losses, which shrink the window, ACKs are more frequent than on a shared link.
    #[inline]
    pub(super) fn ack_every(&self, limit: u32) -> u32 {
        let shared = if limit < self.size { self.call.min(limit / 2) } else { 0 };
        (limit / 4).min(self.calls).max(shared).max(1)
    }

    const fn is_open(&self) -> bool {
        self.most == OPEN
    }

    /// Handles the acknowledgement of `packets`.
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

    /// Handles a loss when later packets arrived.
    pub(super) fn on_loss(&mut self, in_flight: u32) {
        if self.is_open() {
            return;
        }
        let alone = self.size >= self.slow_start && self.since_loss >= self.size;
        let used = in_flight.min(self.size);
        self.shrink(if alone { used - used.div_ceil(LONE) } else { used / 2 });
    }

    /// Handles the first loss of a flight with selective retransmission, which indicates little about
    /// congestion.
    pub(super) fn on_gap(&mut self) {
        self.shrink(self.size - self.size / SMALL);
    }

    /// Handles many losses in one flight.
    pub(super) fn on_many_gaps(&mut self) {
        self.shrink(self.size - self.size / 4);
    }

    /// Corrects a reduction for heavy loss that turned out to be a single loss.
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

    /// Handles a timeout without any response: sends one packet as a probe.
    pub(super) fn on_timeout(&mut self, in_flight: u32) {
        if self.is_open() || self.size == 1 {
            return;
        }
        self.shrink(in_flight.min(self.size) / 2);
        self.size = 1;
    }

    /// Handles the acknowledgement of packets that were considered lost before they were
    /// retransmitted: they were only late (as RFC 3522 detects).
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
    fn window_doubles_in_slow_start_halves_on_loss_then_grows_additively() {
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
    fn window_shrinks_little_for_a_single_loss_after_slow_start() {
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

    /// One percent random loss: the window stays at the size that delivers most packets.
    #[test]
    fn window_settles_between_28_and_64_at_one_percent_random_loss() {
        let mut w = Window::lossy(4096);
        w.on_loss(32);
        for round in 0..200 {
            (0..100).for_each(|_| w.on_progress(1));
            w.on_loss(w.size());
            assert!(round < 100 || (28..64).contains(&w.size()), "{w:?}");
        }
    }

    #[test]
    fn window_restarts_from_one_after_a_timeout() {
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
    fn ack_request_interval_fits_gso_batches() {
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
    fn window_is_restored_after_a_spurious_timeout() {
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
    fn window_stays_open_on_a_lossless_link() {
        let mut w = Window::lossless();
        w.on_timeout(1);
        w.on_loss(1);
        assert_eq!(w.size(), OPEN);
    }
}
