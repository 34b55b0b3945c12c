//! The key by which a service of a subnet is looked up.

use std::fmt;

use rdmux_wire::ServiceId;
use serde::{Deserialize, Serialize};

/// The longest name, in bytes: a record has 64, and the last is zero.
const MAX_NAME: usize = 63;

/// A service ID, or a service's name at subnet administration (IBTA 15.2.5.14).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceKey {
    /// The ID.
    Id(ServiceId),
    /// The name.
    Name(String),
}

impl ServiceKey {
    /// Parses a key: a number, as strtoull(3) reads it, is an ID; any other text is a name, truncated if it is too long.
    pub fn parse(text: &str) -> Self {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let number = match digits {
            Some(digits) => u64::from_str_radix(digits, 16),
            None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
            None => text.parse(),
        };
        match number {
            Ok(sid) => Self::Id(ServiceId(sid)),
            Err(_) => Self::Name(text[..text.floor_char_boundary(MAX_NAME)].to_owned()),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(sid) => write!(f, "{:#x}", sid.0),
            Self::Name(name) => write!(f, "\"{name}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ids_and_the_rest_is_names() {
        let id = |text| match ServiceKey::parse(text) {
            ServiceKey::Id(sid) => Some(sid.0),
            ServiceKey::Name(_) => None,
        };
        assert_eq!(id("0x1000dead"), Some(0x1000_dead));
        assert_eq!((id("17"), id("017"), id("0")), (Some(17), Some(0o17), Some(0)));
        assert_eq!((id("storage"), id("17a"), id(""), id("0x")), (None, None, None, None));
        let long = ServiceKey::parse(&"ö".repeat(50));
        assert_eq!(long, ServiceKey::Name("ö".repeat(31)));
    }
}
