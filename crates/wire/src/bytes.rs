//! Big-endian fields at fixed offsets.
//!
//! A header is first taken as an array of its exact length, so that every offset below is a constant
//! inside that array: only the length check can fail on a stranger's bytes, and it returns an error.

use crate::WireError;

/// The first `N` bytes, or the error that names `what` is too short.
pub(crate) fn head<'a, const N: usize>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<&'a [u8; N], WireError> {
    bytes.first_chunk().ok_or(WireError::Short { what, need: N, have: bytes.len() })
}

/// `N` bytes from offset `at` of a header.
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

/// The low 24 bits of `v`.
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

/// Gives a type with `from_bytes(&[u8; LEN])` and `to_bytes(&self)` the checked `parse` and `emit`.
macro_rules! header {
    ($name:ident, $len:expr, $what:literal) => {
        impl $name {
            /// The length on the wire, in bytes.
            pub const LEN: usize = $len;

            /// Reads the header that `bytes` start with.
            ///
            /// # Errors
            /// [`WireError`](crate::WireError) when the bytes are too few or mean nothing.
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
