//! A MAD file: the kernel's side of an open `/dev/infiniband/umadN`.

use std::fmt;
use std::os::fd::AsFd;

use rdmux_subnet::umad::Registration;

use super::buffer::HEADER;
use crate::boundary::Result;

/// The result of [`MadFile::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A record of that many bytes, header included.
    Whole(usize),
    /// A record of that many bytes, more than fit. It stays in the queue; the buffer has its beginning.
    TooLong(usize),
    /// There is no record now.
    Nothing,
}

/// An open MAD file. Records are a header, as in `ib_user_mad`, and a MAD. It is readable when there is a record, or
/// when the port is gone.
pub(super) trait MadFile: AsFd + fmt::Debug + Send + Sync {
    /// Registers an agent. Returns its number.
    fn register(&self, registration: &Registration) -> Result<u32>;
    /// Unregisters an agent.
    fn unregister(&self, agent: u32) -> Result<()>;
    /// Checks whether a MAD could be sent now: EINVAL for a request whose transaction ID is outstanding.
    fn check(&self, header: &[u8; HEADER], mad: &[u8]) -> Result<()>;
    /// Sends a MAD. The header's length field is not used.
    fn send(&self, header: &[u8; HEADER], mad: &[u8]) -> Result<()>;
    /// Reads the next record without waiting.
    fn read(&self, buffer: &mut [u8]) -> Result<Received>;
}
