//! Looking for a moment before going to sleep.
//!
//! Waking a processor that sleeps takes tens of microseconds, longer than most answers of another
//! process take to come. So whoever expects one looks for a moment, and gives way between looks: on
//! a machine with few processors the one who is to answer may be waiting for this one.

use std::time::{Duration, Instant};

/// How long. Longer than an answer of the host service takes, and too short to be seen in the
/// accounts of a process that waits.
const MOMENT: Duration = Duration::from_micros(100);

/// Asks `ready` again and again for a moment, until it says so. Returns whether it did.
pub fn look(ready: impl FnMut() -> bool) -> bool {
    look_for(MOMENT, ready)
}

fn look_for(moment: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if ready() {
            return true;
        }
        if start.elapsed() > moment {
            return false;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_until_it_is_there_or_gives_up() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            looks == 3
        };
        assert!(look_for(Duration::MAX, third));
        assert_eq!(looks, 3);
        assert!(!look_for(Duration::ZERO, || false));
    }
}
