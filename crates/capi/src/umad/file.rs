//! A MAD file: what the kernel has behind an open `/dev/infiniband/umadN`.

use std::fmt;
use std::os::fd::AsFd;

use rdmux_subnet::umad::Registration;

use super::buffer::HEADER;
use crate::boundary::Result;

/// What [`MadFile::read`] found.
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
    /// Whether a MAD could be sent now: EINVAL for a request whose transaction ID is outstanding.
    fn check(&self, header: &[u8; HEADER], mad: &[u8]) -> Result<()>;
    /// Sends a MAD. Its length is not in the header.
    fn send(&self, header: &[u8; HEADER], mad: &[u8]) -> Result<()>;
    /// Reads the next record. Does not wait for one.
    fn read(&self, buffer: &mut [u8]) -> Result<Received>;
}
