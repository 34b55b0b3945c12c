//! Statistics of a service, by name: an extensible superset of ibacm's counters.

use crate::bytes::{get, get64, put, put64};
use crate::layout::Text;

use super::{Header, MAX_LONG_LEN};

/// The length of a statistic, in bytes.
pub const STATISTIC_LEN: usize = NAME_LEN + 8;

const NAME_LEN: usize = 40;

/// The maximum number of statistics in a reply.
pub(super) const MAX_STATISTICS: usize = (MAX_LONG_LEN - Header::LEN) / STATISTIC_LEN;

/// A named number that a service maintains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// The name, such as `claims_refused`.
    pub name: Text<NAME_LEN>,
    /// The value.
    pub value: u64,
}

impl Statistic {
    /// Creates a statistic. A name of more than 40 bytes is truncated.
    pub fn new(name: &str, value: u64) -> Self {
        Self { name: Text::from(name), value }
    }

    /// Parses a statistic.
    pub fn from_bytes(b: &[u8; STATISTIC_LEN]) -> Self {
        Self { name: Text(get(b, 0)), value: get64(b, NAME_LEN) }
    }

    /// Returns the statistic in wire format.
    pub fn to_bytes(&self) -> [u8; STATISTIC_LEN] {
        let mut b = [0; STATISTIC_LEN];
        put(&mut b, 0, self.name.0);
        put64(&mut b, NAME_LEN, self.value);
        b
    }
}
