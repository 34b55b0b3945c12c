//! Injected loss: packets are dropped as they are received from a socket, one by one, even if the kernel merged them. For tests
//! and measurements.

use std::io;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The percentage of packets received over UDP that is lost, read when a device is opened; none is lost if it is not set.
const VARIABLE: &str = "RDMUX_LOSS";

/// Selects the packets that are lost.
pub(crate) struct Loss {
    /// The fraction that is lost, 0 to 1.
    share: f64,
    /// Always seeded the same.
    random: Mutex<SmallRng>,
}

impl Loss {
    /// Reads `$RDMUX_LOSS`.
    ///
    /// # Errors
    /// An error when it is not a percentage.
    pub(crate) fn of_environment() -> io::Result<Self> {
        Self::parse(std::env::var_os(VARIABLE).unwrap_or_default().to_str().unwrap_or("?"))
    }

    fn parse(text: &str) -> io::Result<Self> {
        let percent = if text.is_empty() { Ok(0.0) } else { text.parse::<f64>() };
        match percent {
            Ok(percent) if (0.0..=100.0).contains(&percent) => {
                Ok(Self { share: percent / 100.0, random: Mutex::new(SmallRng::seed_from_u64(1)) })
            }
            _ => {
                let why = format!(
                    "{VARIABLE}={text:?} is not a percentage from 0 to 100, as in 1 or 0.5"
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }

    /// Returns whether the current packet is lost.
    pub(crate) fn strikes(&self) -> bool {
        self.share != 0.0 && self.random.lock().random_bool(self.share)
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
    fn loss_percentage_drops_that_share_of_packets() {
        assert_eq!([lost(""), lost("0"), lost("100")], [0, 0, 100_000]);
        assert!((900..1100).contains(&lost("1")), "{}", lost("1"));
        assert!((400..600).contains(&lost("0.5")), "{}", lost("0.5"));
    }

    #[test]
    fn invalid_loss_percentage_is_refused() {
        for text in ["-1", "101", "much", "NaN"] {
            assert!(Loss::parse(text).is_err(), "{text}");
        }
    }
}
