//! Framed protocol data units: length, DDP's segment (the ULPDU), padding to four bytes, and a
//! CRC-32C or four ignored bytes (RFC 5044, section 4).

use core::fmt;
use core::ops::Deref;

use super::markers::{self, Between};
use crate::WireError;
use crate::bytes::{get, get16};
use crate::crc::Crc32c;

/// The length of the length field, in bytes.
pub const LENGTH_LEN: usize = 2;
/// The length of the CRC field, in bytes. The field is present with or without a CRC.
pub const CRC_LEN: usize = 4;
/// The longest ULPDU that the length field can express, in bytes.
pub const MAX_ULPDU: usize = u16::MAX as usize;
/// The length of the longest frame without markers.
pub const MAX_FRAME: usize = frame_len(MAX_ULPDU);

/// Returns the number of bytes of padding after an ULPDU, 0 to 3.
pub const fn pad(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() % 4
}

/// Returns the length of a frame without markers.
pub const fn frame_len(ulpdu_len: usize) -> usize {
    LENGTH_LEN + ulpdu_len + pad(ulpdu_len) + CRC_LEN
}

/// Returns the length of the longest ULPDU whose frame fits into a TCP segment of at most `emss`
/// bytes (RFC 5044, section 4.5 and appendix A).
pub const fn mulpdu(emss: usize, markers: bool) -> usize {
    let markers = if markers { markers::LEN * emss.div_ceil(markers::SPACING) } else { 0 };
    let rest = emss.saturating_sub(LENGTH_LEN + CRC_LEN + markers + emss % 4);
    if rest > MAX_ULPDU { MAX_ULPDU } else { rest }
}

/// The bytes between an ULPDU and the next frame: padding and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    bytes: [u8; 3 + CRC_LEN],
    len: usize,
}

impl Tail {
    /// Creates the tail of a frame without markers. `crc` covers the frame so far, from the length
    /// field on. Without it the field is 0.
    pub fn new(ulpdu_len: usize, crc: Option<Crc32c>) -> Self {
        let pad = pad(ulpdu_len);
        let mut bytes = [0; 3 + CRC_LEN];
        if let Some(mut crc) = crc {
            crc.update(&bytes[..pad]);
            bytes[pad..pad + CRC_LEN].copy_from_slice(&crc.finish().to_le_bytes());
        }
        Self { bytes, len: pad + CRC_LEN }
    }
}

impl Deref for Tail {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The framing that the two ends agreed on for one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Whether CRCs are used.
    pub crc: bool,
    /// Whether there are markers.
    pub markers: bool,
}

/// A frame in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// The length of the ULPDU, in bytes.
    pub ulpdu_len: usize,
    /// The length in the stream, in bytes.
    pub frame_len: usize,
    /// The CRC field.
    pub crc: u32,
    framing: Framing,
    position: u64,
    frame: &'a [u8],
}

impl Framing {
    /// Returns the length in the stream of a frame that begins at `position`.
    pub fn frame_len(self, position: u64, ulpdu_len: usize) -> usize {
        let len = frame_len(ulpdu_len);
        let markers = if self.markers { markers::count(position, len) } else { 0 };
        len + markers * markers::LEN
    }

    /// Returns the offset of the length field.
    fn start(self, position: u64) -> usize {
        if self.markers && markers::is_at(position) { markers::LEN } else { 0 }
    }

    /// Returns how many bytes of the frame that begins with `bytes` at `position` are needed: first
    /// those of its length field, then all. With that many bytes the frame is complete.
    pub fn need(self, position: u64, bytes: &[u8]) -> usize {
        let start = self.start(position);
        let length = bytes.get(start..).and_then(|rest| rest.first_chunk::<LENGTH_LEN>());
        length.map_or(start + LENGTH_LEN, |length| {
            self.frame_len(position, u16::from_be_bytes(*length).into())
        })
    }

    /// Parses the frame that begins with `bytes` at `position`. Returns none if there are fewer
    /// bytes than [`Framing::need`] returns.
    ///
    /// # Errors
    /// [`WireError::Crc`] or [`WireError::Marker`]. The frame's length is trusted nevertheless.
    pub fn parse(self, position: u64, bytes: &[u8]) -> Result<Option<Fpdu<'_>>, WireError> {
        let frame_len = self.need(position, bytes);
        let start = self.start(position);
        let Some(frame) = bytes.get(..frame_len) else { return Ok(None) };
        let Some((covered, crc)) = frame.split_last_chunk::<CRC_LEN>() else { return Ok(None) };
        let found = u32::from_le_bytes(*crc);
        if self.crc {
            let mut right = Crc32c::new();
            right.update(covered);
            let right = right.finish();
            if found != right {
                return Err(WireError::Crc { found, right });
            }
        }
        if self.markers {
            markers::check(position, covered)?;
        }
        let ulpdu_len = get16(covered, start).into();
        Ok(Some(Fpdu { ulpdu_len, frame_len, crc: found, framing: self, position, frame }))
    }

    /// Writes the frame of an ULPDU, given in pieces, at the start of `out`, as it appears in the
    /// stream at `position`, and returns its length.
    ///
    /// # Panics
    /// When `out` is shorter than [`Framing::frame_len`], or the ULPDU longer than [`MAX_ULPDU`].
    pub fn emit(self, position: u64, ulpdu: &[&[u8]], out: &mut [u8]) -> usize {
        let ulpdu_len = ulpdu.iter().map(|piece| piece.len()).sum();
        assert!(ulpdu_len <= MAX_ULPDU, "an ULPDU of {ulpdu_len} bytes");
        let length = u16::try_from(ulpdu_len).unwrap_or(u16::MAX).to_be_bytes();
        let start = self.start(position);
        let mut writer = Writer { framing: self, position, start, out, len: 0 };
        writer.put(&length);
        for piece in ulpdu {
            writer.put(piece);
        }
        writer.put(&[0; 3][..pad(ulpdu_len)]);
        writer.put_crc();
        writer.len
    }
}

/// Writes a frame with its markers.
struct Writer<'a> {
    framing: Framing,
    /// The position of the frame.
    position: u64,
    /// The offset of its length field.
    start: usize,
    out: &'a mut [u8],
    /// The number of bytes written.
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.marker();
            let room = match self.framing.markers {
                true => markers::distance(self.position + self.len as u64).min(bytes.len()),
                false => bytes.len(),
            };
            let (now, rest) = bytes.split_at(room);
            self.put_plain(now);
            bytes = rest;
        }
    }

    fn marker(&mut self) {
        if self.framing.markers && markers::is_at(self.position + self.len as u64) {
            let marker = markers::marker(self.len.saturating_sub(self.start));
            self.put_plain(&marker);
        }
    }

    fn put_crc(&mut self) {
        self.marker();
        let mut crc = Crc32c::new();
        if self.framing.crc {
            crc.update(&self.out[..self.len]);
        }
        self.put_plain(&crc.finish().to_le_bytes());
    }

    fn put_plain(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl<'a> Fpdu<'a> {
    /// Returns the ULPDU, in pieces between its markers; without markers in one piece.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let (mut skip, mut left) = (LENGTH_LEN, self.ulpdu_len);
        let whole = if self.framing.markers { &[] } else { self.frame };
        let marked = if self.framing.markers { self.frame } else { &[] };
        let whole = core::iter::once(whole).filter(|piece| !piece.is_empty());
        whole.chain(Between::new(self.position, marked)).filter_map(move |piece| {
            let piece = piece.get(skip..).unwrap_or_default();
            skip = 0;
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Returns the ULPDU, if no marker divides it.
    pub fn contiguous(&self) -> Option<&'a [u8]> {
        let mut pieces = self.pieces();
        let first = pieces.next().unwrap_or_default();
        pieces.next().is_none().then_some(first)
    }

    /// Copies the ULPDU from its byte `skip` on, as far as it fits into `out`, and returns the number of bytes copied.
    pub fn copy_to(&self, skip: usize, out: &mut [u8]) -> usize {
        let (mut skip, mut len) = (skip, 0);
        for piece in self.pieces() {
            let piece = match piece.get(skip..) {
                None => {
                    skip -= piece.len();
                    continue;
                }
                Some(piece) => piece,
            };
            skip = 0;
            let now = piece.len().min(out.len() - len);
            out[len..len + now].copy_from_slice(&piece[..now]);
            len += now;
        }
        len
    }

    /// Returns the first `N` bytes of the ULPDU, padded with zeros, and how many of them are valid.
    pub fn head<const N: usize>(&self) -> ([u8; N], usize) {
        let mut head = [0; N];
        let len = self.copy_to(0, &mut head);
        (head, len)
    }

    /// Returns the number of bytes of markers in the frame.
    pub fn markers_len(&self) -> usize {
        self.frame_len - frame_len(self.ulpdu_len)
    }

    /// Returns the bytes of the CRC field, unchecked.
    pub fn crc_bytes(&self) -> [u8; CRC_LEN] {
        get(self.frame, self.frame.len() - CRC_LEN)
    }
}

impl fmt::Display for Fpdu<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FPDU ulpdu {} frame {}", self.ulpdu_len, self.frame_len)
    }
}
