//! Detects a high throughput of a device: then the load on this machine is most likely the copying of its own bytes.
//!
//! A polling thread that finds the processor busy for long sleeps instead of yielding, and the background thread has short time
//! slices, so that both run soon beside programs that compute (`rdmux_link::spin_wait`). While messages of a MiB are copied, by a
//! thread of this process or of the peer, neither is useful: each interrupts the copying.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rdmux_link::SharedMem;
use rdmux_transport::Time;

use crate::objects::counters::{Counter, Counters};

/// The interval over which bytes are counted.
const WINDOW: Duration = Duration::from_millis(2);
/// The throughput in bytes per nanosecond from which on a device is not starved, whatever other threads compute.
const BYTES_PER_NS: u64 = 1;

/// The counters of message bytes; each byte is counted on at least one side.
const BYTES: [Counter; 8] = [
    Counter::TxBytes,
    Counter::RxBytes,
    Counter::RingTxBytes,
    Counter::RingRxBytes,
    Counter::DirectWriteBytes,
    Counter::DirectReadBytes,
    Counter::FetchBytes,
    Counter::OfferBytes,
];

/// The throughput of a device; see the module. Unsynchronized threads may be wrong by a window.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    /// The start of the window in nanoseconds, and the bytes counted before it.
    since: AtomicU64,
    bytes: AtomicU64,
    high: AtomicBool,
}

impl Throughput {
    /// Returns whether the device with these counters had a high throughput in the window before the present one.
    pub(crate) fn is_high(&self, counters: &SharedMem, now: Time) -> bool {
        self.judge(now, || BYTES.iter().map(|&counter| Counters(counters).get(counter)).sum())
    }

    fn judge(&self, now: Time, bytes: impl FnOnce() -> u64) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        let elapsed = now.since(Time(since));
        if elapsed >= WINDOW {
            let bytes = bytes();
            let ours =
                self.since.compare_exchange(since, now.0, Ordering::Relaxed, Ordering::Relaxed);
            if ours.is_ok() {
                let moved = bytes.wrapping_sub(self.bytes.swap(bytes, Ordering::Relaxed));
                let much = elapsed.as_nanos() * u128::from(BYTES_PER_NS);
                self.high.store(u128::from(moved) >= much, Ordering::Relaxed);
            }
        }
        self.high.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn throughput_is_high_from_one_byte_per_nanosecond_in_the_last_window() {
        let throughput = Throughput::default();
        assert!(!throughput.judge(Time(2 * MS), || 2 * MS - 1));
        assert!(!throughput.judge(Time(3 * MS), || 9 * MS), "the window is not over");
        assert!(throughput.judge(Time(4 * MS), || 4 * MS));
        assert!(throughput.judge(Time(5 * MS), || 4 * MS), "the window before was a good one");
        assert!(!throughput.judge(Time(400 * MS), || 6 * MS), "a pause ends it");
    }
}
