//! NodeDescription: the administrator's name of a node (IBTA 14.2.5.2).

use crate::layout::{Text, layout};

layout! {
    /// A node's name.
    NodeDescription("NodeDescription", 64) {
        /// UTF-8, padded with zeros; a name of 64 bytes has none.
        node_description: Text<64> = 0;
    }
}

/// Truncates a name that is longer than 64 bytes, between two characters.
impl From<&str> for NodeDescription {
    fn from(name: &str) -> Self {
        Self { node_description: name.into() }
    }
}
