//! Loss on purpose: what a bad network would not have delivered is dropped as it comes out of a socket, packet by packet,
//! however the kernel merged them. For tests and measurements.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many of a hundred packets that come over UDP are lost, when a device is opened; none if it is not set.
const VARIABLE: &str = "RDMUX_LOSS";

/// Which packets are lost.
pub(crate) struct Loss {
    /// Of 2^64; zero loses none.
    share: u64,
    /// Of a generator, xorshift, with always the same seed.
    state: AtomicU64,
}

impl Loss {
    /// As `$RDMUX_LOSS` says.
    ///
    /// # Errors
    /// When it is not a percentage.
    pub(crate) fn of_environment() -> io::Result<Self> {
        Self::parse(std::env::var_os(VARIABLE).unwrap_or_default().to_str().unwrap_or("?"))
    }

    fn parse(text: &str) -> io::Result<Self> {
        let percent = if text.is_empty() { Ok(0.0) } else { text.parse::<f64>() };
        match percent {
            Ok(percent) if (0.0..=100.0).contains(&percent) => {
                #[expect(clippy::cast_possible_truncation, reason = "it saturates")]
                let share = (percent / 100.0 * u64::MAX as f64) as u64;
                Ok(Self { share, state: AtomicU64::new(0x9e37_79b9_7f4a_7c15) })
            }
            _ => {
                let why = format!("{VARIABLE}={text:?} is not a percentage, as 1 or 0.5");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }

    /// Whether the packet at hand is lost.
    pub(crate) fn strikes(&self) -> bool {
        if self.share == 0 {
            return false;
        }
        // Rounds exclude each other; a race would but repeat a number.
        let mut x = self.state.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.state.store(x, Ordering::Relaxed);
        x < self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(text: &str) -> usize {
        let loss = Loss::parse(text).unwrap();
        (0..100_000).filter(|_| loss.strikes()).count()
    }

    #[test]
    fn so_many_of_a_hundred_are_lost() {
        assert_eq!([lost(""), lost("0"), lost("100")], [0, 0, 100_000]);
        assert!((900..1100).contains(&lost("1")), "{}", lost("1"));
        assert!((400..600).contains(&lost("0.5")), "{}", lost("0.5"));
    }

    #[test]
    fn what_is_no_percentage_is_refused() {
        for text in ["-1", "101", "much", "NaN"] {
            assert!(Loss::parse(text).is_err(), "{text}");
        }
    }
}
