//! The payload of a request: the bytes themselves, or a reference to them.

use rdmux_wire::Rkey;

use super::Refusal;
use super::checks::INVALID;
use crate::env::{Env, FetchError, Named};
use crate::qp::requester::{MOST_NAMED, pad};
use crate::wr::Sge;

/// The payload of a request.
pub(crate) trait Load: Copy {
    /// Returns the length in bytes, `u32::MAX` if more.
    fn len(self) -> u32;

    /// Returns whether the length fits the packet's place in the message, for packets of `mtu`, and
    /// the padding is right (IBTA 9.7.4.1.6).
    fn has_right_length(self, starts: bool, ends: bool, mtu: u32, padding: u8) -> bool;

    /// Returns the number of PSNs that the payload takes.
    fn npsn(self, mtu: u32) -> u32;

    /// Copies the payload into a receive's memory.
    fn scatter<E: Env>(self, sges: &[Sge], offset: u32, env: &mut E) -> Result<(), Refusal>;

    /// Copies the payload into memory that the peer named.
    fn write_remote<E: Env>(self, rkey: Rkey, va: u64, env: &mut E) -> Result<(), Refusal>;
}

impl Load for &[u8] {
    #[inline]
    fn len(self) -> u32 {
        u32::try_from(<[u8]>::len(self)).unwrap_or(u32::MAX)
    }

    #[inline]
    fn has_right_length(self, starts: bool, ends: bool, mtu: u32, padding: u8) -> bool {
        let len = Load::len(self);
        let fits = match (starts, ends) {
            (_, false) => len == mtu,
            (true, true) => len <= mtu,
            (false, true) => len != 0 && len <= mtu,
        };
        fits && padding == pad(len)
    }

    #[inline]
    fn npsn(self, _mtu: u32) -> u32 {
        1
    }

    #[inline]
    fn scatter<E: Env>(self, sges: &[Sge], offset: u32, env: &mut E) -> Result<(), Refusal> {
        env.scatter_receive(sges, offset, self).map_err(Refusal::local)
    }

    #[inline]
    fn write_remote<E: Env>(self, rkey: Rkey, va: u64, env: &mut E) -> Result<(), Refusal> {
        env.write_remote(rkey, va, self).map_err(Refusal::remote)
    }
}

impl Load for Named<'_> {
    fn len(self) -> u32 {
        self.len
    }

    fn has_right_length(self, _starts: bool, ends: bool, mtu: u32, padding: u8) -> bool {
        let fits = self.len != 0 && self.len <= MOST_NAMED;
        fits && (ends || self.len.is_multiple_of(mtu)) && padding == 0
    }

    fn npsn(self, mtu: u32) -> u32 {
        self.len.div_ceil(mtu).max(1)
    }

    fn scatter<E: Env>(self, sges: &[Sge], offset: u32, env: &mut E) -> Result<(), Refusal> {
        env.fetch(sges, offset, &self).map_err(|error| match error {
            FetchError::Memory(fault) => Refusal::local(fault),
            FetchError::OutOfReach => Refusal::OutOfReach,
        })
    }

    fn write_remote<E: Env>(self, rkey: Rkey, va: u64, env: &mut E) -> Result<(), Refusal> {
        env.fetch_remote(rkey, va, &self).map_err(|error| match error {
            FetchError::Memory(fault) => Refusal::remote(fault),
            FetchError::OutOfReach => Refusal::OutOfReach,
        })
    }
}

/// Returns the length of a message with `offset` bytes so far and this payload, unless it is too long.
#[inline]
pub(crate) fn message_end(offset: u32, load: impl Load) -> Result<u32, Refusal> {
    offset.checked_add(load.len()).filter(|&end| end <= crate::sq::MAX_MESSAGE).ok_or(INVALID)
}
