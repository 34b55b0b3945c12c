//! A MAD file: what the kernel has behind an open `/dev/infiniband/umadN`.

use std::fmt;
use std::os::fd::AsFd;

use super::buffer::HEADER;
use crate::boundary::Result;

/// An agent, as a program asks for it (`umad_register2(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) class: u8,
    pub(super) version: u8,
    /// The methods of requests that come to it, bit n for method n.
    pub(super) methods: [u64; 2],
    /// The vendor, for classes 0x30 to 0x4f.
    pub(super) oui: Option<[u8; 3]>,
    /// Whether long MADs are taken apart and put together for it.
    pub(super) rmpp: bool,
}

/// What [`MadFile::read`] found.
#[cfg_attr(not(test), expect(dead_code, reason = "no port has a MAD file yet"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A record of as many bytes, header included.
    Whole(usize),
    /// A record of as many bytes, more than there is room. It stays; the room has its beginning.
    TooLong(usize),
    /// Nothing now.
    Nothing,
}

/// An open MAD file. Records are a header, as `ib_user_mad` has it, and a MAD. It is readable when there is one to read, or
/// the port is gone.
pub(super) trait MadFile: AsFd + fmt::Debug + Send + Sync {
    /// Registers an agent; its number.
    fn register(&self, registration: &Registration) -> Result<u32>;
    /// Ends an agent.
    fn unregister(&self, agent: u32) -> Result<()>;
    /// Whether an answer to a request with this transaction ID and class is awaited.
    fn is_outstanding(&self, agent: u32, tid: u64, class: u8) -> Result<bool>;
    /// Sends a MAD. Its length is not in the header.
    fn send(&self, header: &[u8; HEADER], mad: &[u8]) -> Result<()>;
    /// Reads the next record. Does not wait for one.
    fn read(&self, buffer: &mut [u8]) -> Result<Received>;
}
