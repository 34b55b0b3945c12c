//! Loss on purpose: what a bad network would not have delivered is dropped as it comes out of a socket, packet by packet,
//! however the kernel merged them. For tests and measurements.

use std::io;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// How many of a hundred packets that come over UDP are lost, when a device is opened; none if it is not set.
const VARIABLE: &str = "RDMUX_LOSS";

/// Which packets are lost.
pub(crate) struct Loss {
    /// Of one; zero loses none.
    share: f64,
    /// With always the same seed.
    random: Mutex<SmallRng>,
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
                Ok(Self { share: percent / 100.0, random: Mutex::new(SmallRng::seed_from_u64(1)) })
            }
            _ => {
                let why = format!("{VARIABLE}={text:?} is not a percentage, as 1 or 0.5");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }

    /// Whether the packet at hand is lost.
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
