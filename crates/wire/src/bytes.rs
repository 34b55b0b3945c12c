//! Big-endian fields at fixed offsets.
//!
//! A header is first read as an array of its exact length, so that every offset below is a constant
//! inside that array. Only the length check can fail on received bytes, and it returns an error.

use crate::WireError;

/// Returns the first `N` bytes, or the error that `what` is too short.
pub(crate) fn head<'a, const N: usize>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<&'a [u8; N], WireError> {
    bytes.first_chunk().ok_or(WireError::Short { what, need: N, have: bytes.len() })
}

/// Returns `N` bytes from offset `at` of a header.
#[inline]
pub(crate) fn get<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}

#[inline]
pub(crate) fn get16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(get(b, at))
}

#[inline]
pub(crate) fn get24(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

#[inline]
pub(crate) fn get32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(get(b, at))
}

#[inline]
pub(crate) fn get64(b: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(get(b, at))
}

#[inline]
pub(crate) fn put<const N: usize>(b: &mut [u8], at: usize, v: [u8; N]) {
    b[at..at + N].copy_from_slice(&v);
}

#[inline]
pub(crate) fn put16(b: &mut [u8], at: usize, v: u16) {
    put(b, at, v.to_be_bytes());
}

/// Writes the low 24 bits of `v`.
#[inline]
pub(crate) fn put24(b: &mut [u8], at: usize, v: u32) {
    let [_, x, y, z] = v.to_be_bytes();
    put(b, at, [x, y, z]);
}

#[inline]
pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    put(b, at, v.to_be_bytes());
}

#[inline]
pub(crate) fn put64(b: &mut [u8], at: usize, v: u64) {
    put(b, at, v.to_be_bytes());
}

/// Adds the checked `parse` and `emit` to a type with `from_bytes(&[u8; LEN])` and `to_bytes(&self)`.
macro_rules! header {
    ($name:ident, $len:expr, $what:literal) => {
        impl $name {
            /// The length on the wire, in bytes.
            pub const LEN: usize = $len;

            /// Parses the header at the start of `bytes`.
            ///
            /// # Errors
            /// [`WireError`](crate::WireError) when there are too few bytes or a field is invalid.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, crate::WireError> {
                Self::from_bytes(crate::bytes::head::<{ $len }>(bytes, $what)?)
            }

            /// Writes the header at the start of `out`; reserved bits become 0.
            ///
            /// # Panics
            /// When `out` is shorter than [`Self::LEN`].
            #[inline]
            pub fn emit(&self, out: &mut [u8]) {
                out[..$len].copy_from_slice(&self.to_bytes());
            }
        }
    };
}
