//! What a service counts, by name: more than the counters of ibacm, and free to grow.

use crate::bytes::{get, get64, put, put64};
use crate::layout::Text;

use super::{Header, MAX_LONG_LEN};

/// The length of a statistic, in bytes.
pub const STATISTIC_LEN: usize = NAME_LEN + 8;

const NAME_LEN: usize = 40;

/// The most statistics that an answer has room for.
pub(super) const MAX_STATISTICS: usize = (MAX_LONG_LEN - Header::LEN) / STATISTIC_LEN;

/// A number that a service keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// Its name, such as `claims_refused`.
    pub name: Text<NAME_LEN>,
    /// Its value.
    pub value: u64,
}

impl Statistic {
    /// A name of more than 40 bytes is cut off.
    pub fn new(name: &str, value: u64) -> Self {
        Self { name: Text::from(name), value }
    }

    /// Reads one.
    pub fn from_bytes(b: &[u8; STATISTIC_LEN]) -> Self {
        Self { name: Text(get(b, 0)), value: get64(b, NAME_LEN) }
    }

    /// As it goes over the socket.
    pub fn to_bytes(&self) -> [u8; STATISTIC_LEN] {
        let mut b = [0; STATISTIC_LEN];
        put(&mut b, 0, self.name.0);
        put64(&mut b, NAME_LEN, self.value);
        b
    }
}
