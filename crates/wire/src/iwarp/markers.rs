//! Markers: four bytes at every 512th of a stream, by which a receiver finds the start of a frame in
//! the middle of it (RFC 5044, section 4.3).
//!
//! A position counts the bytes of one direction behind its start-up frame, markers included. There is
//! a marker at 0. A marker between two frames belongs to the second; all are covered by the CRC.

use crate::WireError;
use crate::bytes::{get16, put16};

/// The length of a marker, in bytes.
pub const LEN: usize = 4;
/// From the start of one to the start of the next, in bytes.
pub const SPACING: usize = 512;
/// What lies between two, in bytes.
pub const BETWEEN: usize = SPACING - LEN;

/// Whether a marker begins at this position.
pub const fn is_at(position: u64) -> bool {
    position.is_multiple_of(SPACING as u64)
}

/// How many bytes are between this position and the next marker; 0 where one begins.
pub fn distance(position: u64) -> usize {
    let into = usize::try_from(position % SPACING as u64).unwrap_or_default();
    (SPACING - into) % SPACING
}

/// How many markers there are among `len` bytes that come from this position on, not counting them in.
/// One behind the last byte is not among them.
pub fn count(position: u64, len: usize) -> usize {
    let before = distance(position);
    if len > before { 1 + (len - before - 1) / BETWEEN } else { 0 }
}

/// The marker of a frame whose length field is `back` bytes in front of it, 0 if it is behind.
pub fn marker(back: usize) -> [u8; LEN] {
    let mut marker = [0; LEN];
    put16(&mut marker, 2, u16::try_from(back).unwrap_or(u16::MAX));
    marker
}

/// Whether the markers of a frame, which begins at `position`, point to its length field.
///
/// # Errors
/// [`WireError::Marker`]
pub fn check(position: u64, frame: &[u8]) -> Result<(), WireError> {
    let first = distance(position);
    let start = if first == 0 { LEN } else { 0 };
    for (index, from_marker) in frame.get(first..).unwrap_or_default().chunks(SPACING).enumerate() {
        let Some(marker) = from_marker.first_chunk::<LEN>() else { break };
        let found = get16(marker, 2);
        let right = (first + index * SPACING).saturating_sub(start);
        if usize::from(found) != right {
            let right = u16::try_from(right).unwrap_or(u16::MAX);
            return Err(WireError::Marker { found, right });
        }
    }
    Ok(())
}

/// What is left of bytes of a stream when its markers are taken out, piece by piece.
#[derive(Clone, Debug)]
pub struct Between<'a> {
    position: u64,
    bytes: &'a [u8],
}

impl<'a> Between<'a> {
    /// Bytes that begin at `position`.
    pub const fn new(position: u64, bytes: &'a [u8]) -> Self {
        Self { position, bytes }
    }
}

impl<'a> Iterator for Between<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let skip = if is_at(self.position) { LEN } else { 0 };
        let rest = self.bytes.get(skip..).filter(|rest| !rest.is_empty())?;
        self.position += skip as u64;
        let (piece, rest) = rest.split_at(distance(self.position).min(rest.len()));
        self.bytes = rest;
        self.position += piece.len() as u64;
        Some(piece)
    }
}
