//! Markers: four bytes at every 512th position of a stream, from which a receiver finds the start
//! of a frame in mid-stream (RFC 5044, section 4.3).
//!
//! A position counts the bytes of one direction after its start-up frame, markers included. There
//! is a marker at 0. A marker between two frames belongs to the second. The CRC covers all markers.

use crate::WireError;
use crate::bytes::{get16, put16};

/// The length of a marker, in bytes.
pub const LEN: usize = 4;
/// The distance between the starts of two markers, in bytes.
pub const SPACING: usize = 512;
/// The data bytes between two markers.
pub const BETWEEN: usize = SPACING - LEN;

/// Returns whether a marker begins at this position.
pub const fn is_at(position: u64) -> bool {
    position.is_multiple_of(SPACING as u64)
}

/// Returns the number of bytes from this position to the next marker; 0 where one begins.
pub fn distance(position: u64) -> usize {
    let into = usize::try_from(position % SPACING as u64).unwrap_or_default();
    (SPACING - into) % SPACING
}

/// Returns how many markers are inserted into `len` bytes of data from this position on. A marker
/// after the last byte does not count.
pub fn count(position: u64, len: usize) -> usize {
    let before = distance(position);
    if len > before { 1 + (len - before - 1) / BETWEEN } else { 0 }
}

/// Returns the marker of a frame whose length field is `back` bytes before it, or 0 if it is after it.
pub fn marker(back: usize) -> [u8; LEN] {
    let mut marker = [0; LEN];
    put16(&mut marker, 2, u16::try_from(back).unwrap_or(u16::MAX));
    marker
}

/// Checks that the markers of a frame that begins at `position` point to its length field.
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

/// An iterator over the pieces of a stream between its markers.
#[derive(Clone, Debug)]
pub struct Between<'a> {
    position: u64,
    bytes: &'a [u8],
}

impl<'a> Between<'a> {
    /// Creates the iterator for bytes that begin at `position`.
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
