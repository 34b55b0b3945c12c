//! An outgoing frame: its header, the location of its payload, and its origin.

use rdmux_wire::Rkey;
use rdmux_wire::iwarp::ddp::Header;
use rdmux_wire::iwarp::fpdu::{self, CRC_LEN, LENGTH_LEN};
use rdmux_wire::iwarp::rdmap::AtomicRequest;

use crate::env::TxPayload;
use crate::iwarp::Segment;
use crate::sq::SendQueue;

/// Room for the length, a header, and the longest fixed part that is not payload.
const HEAD: usize = LENGTH_LEN + Header::UNTAGGED_LEN + AtomicRequest::LEN;

/// The padding and the CRC field of a frame that has no CRC.
static ZEROS: [u8; 3 + CRC_LEN] = [0; 3 + CRC_LEN];

/// The location of a frame's payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload {
    /// The payload is empty, or in the frame's head.
    None,
    /// A part of a send queue entry's payload.
    Entry { index: u32, offset: u32, len: u32 },
    /// The memory that the peer READs.
    Remote { rkey: Rkey, va: u64, len: u32 },
}

impl Payload {
    const fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Entry { len, .. } | Self::Remote { len, .. } => len as usize,
        }
    }

    fn of(self, sq: &SendQueue) -> TxPayload<'_> {
        match self {
            Self::None => TxPayload::None,
            Self::Entry { index, offset, len } => sq.payload(index, offset, len),
            Self::Remote { len: 0, .. } => TxPayload::None,
            Self::Remote { rkey, va, len } => TxPayload::Remote { rkey, va, len, srqn: 0 },
        }
    }
}

/// The origin of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A send queue entry. `ends` is set for its last frame.
    Entry { index: u32, ends: bool },
    /// A request of the peer.
    Answer,
}

/// An outgoing frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    head: [u8; HEAD],
    head_len: u8,
    payload: Payload,
    pub(super) origin: Origin,
    /// The frame's bytes in the stream.
    pub(super) len: usize,
}

impl Frame {
    /// Creates a frame as it is without CRC and markers. `fixed` follows the header, and `payload` follows `fixed`.
    pub(super) fn new(header: &Header, fixed: &[u8], payload: Payload, origin: Origin) -> Self {
        let header = header.to_buf();
        let behind = LENGTH_LEN + header.len();
        let head_len = behind + fixed.len();
        let ulpdu_len = head_len - LENGTH_LEN + payload.len();
        // Both are bounded: the head by its array, the ULPDU by the maximum to which `Tx` cuts it.
        debug_assert!(ulpdu_len <= fpdu::MAX_ULPDU);
        let length = u16::try_from(ulpdu_len).unwrap_or(u16::MAX);
        let mut head = [0; HEAD];
        head[..LENGTH_LEN].copy_from_slice(&length.to_be_bytes());
        head[LENGTH_LEN..behind].copy_from_slice(&header);
        head[behind..head_len].copy_from_slice(fixed);
        let head_len = u8::try_from(head_len).unwrap_or(u8::MAX);
        Self { head, head_len, payload, origin, len: fpdu::frame_len(ulpdu_len) }
    }

    /// Returns the length and headers.
    pub(super) fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }

    /// Returns the headers.
    pub(super) fn headers(&self) -> &[u8] {
        &self.head()[LENGTH_LEN..]
    }

    /// Returns the number of bytes between length and padding.
    pub(super) fn ulpdu_len(&self) -> usize {
        self.headers().len() + self.payload.len()
    }

    /// Returns the payload.
    pub(super) fn payload<'a>(&self, sq: &'a SendQueue) -> TxPayload<'a> {
        self.payload.of(sq)
    }

    /// Returns the length of the payload in bytes.
    pub(super) fn payload_len(&self) -> usize {
        self.payload.len()
    }

    /// Returns the frame as it is sent without CRC and markers.
    #[inline]
    pub(super) fn segment<'a>(&'a self, sq: &'a SendQueue) -> Segment<'a> {
        let tail = &ZEROS[..fpdu::pad(self.ulpdu_len()) + CRC_LEN];
        Segment { head: self.head(), payload: self.payload.of(sq), tail }
    }
}
