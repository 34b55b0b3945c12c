//! NodeDescription: the name that people give a node (IBTA 14.2.5.2).

use crate::layout::{Text, layout};

layout! {
    /// A node's name.
    NodeDescription("NodeDescription", 64) {
        /// UTF-8, filled up with zeros; 64 bytes have none.
        node_description: Text<64> = 0;
    }
}

/// What is longer than 64 bytes is cut off, between two characters.
impl From<&str> for NodeDescription {
    fn from(name: &str) -> Self {
        Self { node_description: name.into() }
    }
}
