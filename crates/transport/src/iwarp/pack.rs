//! Frames that cannot be sent as they lie, for they carry a CRC or markers: they are put together in a
//! buffer of their own.

use alloc::boxed::Box;
use alloc::vec;

use rdmux_wire::crc::Crc32c;
use rdmux_wire::iwarp::fpdu::{self, Framing, Tail};
use rdmux_wire::iwarp::markers;

use crate::env::AccessFault;
use crate::iwarp::StreamEnv;
use crate::iwarp::frame::Frame;
use crate::sq::SendQueue;

/// The longest frame there is, in bytes of the stream. With CRC or markers a frame must be presented to
/// [`Qp::handle_bytes`](super::Qp::handle_bytes) as a whole.
pub const MAX_FRAME: usize =
    fpdu::MAX_FRAME + markers::LEN * (fpdu::MAX_FRAME / markers::BETWEEN + 1);

/// As many bytes are put together at a time, or two frames if they are longer.
const BATCH: usize = 128 << 10;
/// No more frames than these are put together at a time.
const BATCH_FRAMES: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Pack {
    framing: Framing,
    bytes: Box<[u8]>,
    /// What is to be sent is between these two.
    start: usize,
    end: usize,
    /// The longest frame that will come.
    longest: usize,
    /// A payload on its way between markers.
    payload: Box<[u8]>,
}

impl Pack {
    /// For frames of ULPDUs of at most `mulpdu` bytes.
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

    /// Whether any frame fits.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.len() - self.end >= self.longest
    }

    /// What is to be sent.
    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// So many bytes were sent.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Appends a frame, which begins at `position` of the stream, and returns its length.
    ///
    /// # Errors
    /// When its payload cannot be read; then nothing was appended.
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

    /// Bytes allocated.
    pub(super) fn footprint(&self) -> usize {
        self.bytes.len() + self.payload.len()
    }
}
