//! What a link does that reaches the peer's memory: copies without packets, and packets that name their payload.

/// Nothing of it, until a test says so.
#[derive(Clone, Debug)]
pub struct ByReference {
    /// The peer's memory, from address 0 on, while it is in reach.
    pub peer: Option<Vec<u8>>,
    /// The key of that memory.
    pub rkey: u32,
    /// How many bytes may still be copied.
    pub left: u32,
    /// The lengths of the copies.
    pub copies: Vec<u32>,
    /// Whether payload may be named.
    pub names: bool,
    /// The packets that named theirs, with what they named behind their headers.
    pub named: Vec<Vec<u8>>,
    /// Whether what a peer names can be fetched.
    pub fetches: bool,
}

impl Default for ByReference {
    fn default() -> Self {
        Self {
            peer: None,
            rkey: 0,
            left: u32::MAX,
            copies: Vec::new(),
            names: false,
            named: Vec::new(),
            fetches: true,
        }
    }
}
