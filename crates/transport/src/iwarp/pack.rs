//! Assembles frames that carry a CRC or markers in a buffer, because their payload cannot be sent in place.

use alloc::boxed::Box;
use alloc::vec;

use rdmux_wire::crc::Crc32c;
use rdmux_wire::iwarp::fpdu::{self, Framing, Tail};
use rdmux_wire::iwarp::markers;

use crate::env::AccessFault;
use crate::iwarp::StreamEnv;
use crate::iwarp::frame::Frame;
use crate::sq::SendQueue;

/// The longest possible frame, in bytes of the stream. With CRC or markers a frame must be
/// presented to [`Qp::handle_bytes`](super::Qp::handle_bytes) as a whole.
pub const MAX_FRAME: usize =
    fpdu::MAX_FRAME + markers::LEN * (fpdu::MAX_FRAME / markers::BETWEEN + 1);

/// The bytes assembled at a time. The buffer holds two frames if they are longer.
const BATCH: usize = 128 << 10;
/// The most frames assembled at a time.
const BATCH_FRAMES: usize = 64;

/// The buffer for assembled frames.
#[derive(Debug)]
pub(super) struct Pack {
    framing: Framing,
    bytes: Box<[u8]>,
    /// The range of the bytes still to be sent.
    start: usize,
    end: usize,
    /// The length of the longest frame that will be sent.
    longest: usize,
    /// Room for a payload before it is split by markers.
    payload: Box<[u8]>,
}

impl Pack {
    /// Creates a buffer for frames of ULPDUs of at most `mulpdu` bytes.
    pub(super) fn new(framing: Framing, mulpdu: usize) -> Self {
        let longest = framing.frame_len(0, mulpdu);
        let room = (longest * BATCH_FRAMES).min(BATCH).max(longest * 2);
        let payload = if framing.markers { mulpdu } else { 0 };
        Self {
            framing,
            bytes: vec![0; room].into_boxed_slice(),
            start: 0,
            end: 0,
            longest,
            payload: vec![0; payload].into_boxed_slice(),
        }
    }

    /// Returns whether there is room for any frame.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.len() - self.end >= self.longest
    }

    /// Returns the bytes still to be sent.
    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Records that `len` bytes were sent.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Appends a frame, which begins at `position` of the stream, and returns its length.
    ///
    /// # Errors
    /// An error if its payload cannot be read. Nothing is appended then.
    pub(super) fn push<E: StreamEnv>(
        &mut self,
        position: u64,
        frame: &Frame,
        sq: &SendQueue,
        env: &mut E,
    ) -> Result<usize, AccessFault> {
        let (head, payload, len) = (frame.head(), frame.payload(sq), frame.payload_len());
        let out = &mut self.bytes[self.end..];
        let len = if self.framing.markers {
            let room = &mut self.payload[..len];
            if !room.is_empty() {
                env.read(&payload, room)?;
            }
            self.framing.emit(position, &[frame.headers(), room], out)
        } else {
            let filled = head.len() + len;
            out[..head.len()].copy_from_slice(head);
            if len != 0 {
                env.read(&payload, &mut out[head.len()..filled])?;
            }
            let crc = self.framing.crc.then(|| {
                let mut crc = Crc32c::new();
                crc.update(&out[..filled]);
                crc
            });
            let tail = Tail::new(frame.ulpdu_len(), crc);
            out[filled..filled + tail.len()].copy_from_slice(&tail);
            filled + tail.len()
        };
        self.end += len;
        Ok(len)
    }

    /// Returns the number of allocated bytes.
    pub(super) fn footprint(&self) -> usize {
        self.bytes.len() + self.payload.len()
    }
}
