//! A link's access to the peer's memory: copies without packets, and packets that name their payload.

/// The link's access to the peer's memory, all disabled by default.
#[derive(Clone, Debug)]
pub struct ByReference {
    /// The peer's memory, from address 0 on, while it is accessible.
    pub peer: Option<Vec<u8>>,
    /// The key of that memory.
    pub rkey: u32,
    /// How many bytes may still be copied.
    pub left: u32,
    /// The lengths of the copies.
    pub copies: Vec<u32>,
    /// Whether packets may name their payload.
    pub names: bool,
    /// The packets that named their payload, each with that payload after its headers.
    pub named: Vec<Vec<u8>>,
    /// Whether the payload that a peer's packet names can be fetched.
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
