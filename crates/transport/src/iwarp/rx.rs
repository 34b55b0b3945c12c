//! Receiving: finds the frames in arriving bytes, however the stream split them.
//!
//! With neither CRC nor markers a frame is processed in parts: its header, its payload as it arrives, its padding and
//! CRC field. With either, the whole frame must be present, since no part of it may be used before it is verified.

use alloc::boxed::Box;
use alloc::vec;

use rdmux_wire::Rkey;
use rdmux_wire::iwarp::ddp::Header;
use rdmux_wire::iwarp::fpdu::{self, CRC_LEN, Framing, LENGTH_LEN, MAX_ULPDU};
use rdmux_wire::iwarp::rdmap::Opcode;

use crate::env::Side;
use crate::iwarp::close::Phase;
use crate::iwarp::fault::Fault;
use crate::iwarp::qp::Qp;
use crate::iwarp::segment::{Inbound, Place};
use crate::iwarp::tx::sent_before;
use crate::iwarp::{Rtr, StreamEnv, StreamParams};
use crate::time::Time;
use crate::timer::StreamTimer;
use crate::wr::Sge;

/// The memory for the next bytes of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct<'a> {
    /// The scatter list, `offset` bytes into it, with room for `len` bytes from there.
    Local {
        /// The whole list of a receive or a READ.
        sges: &'a [Sge],
        /// Bytes to skip.
        offset: u32,
        /// Bytes still to arrive.
        len: u32,
        /// Whether the list belongs to a READ, or to a receive, which may have another protection domain
        /// ([`Env::scatter_receive`](crate::env::Env::scatter_receive)).
        side: Side,
    },
    /// Memory that the peer named, which has been checked.
    Remote {
        /// The key.
        rkey: Rkey,
        /// The address.
        va: u64,
        /// Bytes still to arrive.
        len: u32,
    },
}

/// The state of the receiving side.
#[derive(Debug, Default)]
pub(super) struct Rx {
    framing: Framing,
    /// The position of the next frame in the stream; maintained for markers only.
    position: u64,
    /// Room for a payload extracted from between markers.
    scratch: Box<[u8]>,
    /// Whether a segment has been started.
    inside: bool,
    /// Bytes of its payload still to arrive, and of its padding and CRC field.
    left: u32,
    tail: u32,
    /// The place of the segment's payload, the payload's total length, and whether the segment ends its message.
    pub(super) place: Place,
    pub(super) len: u32,
    pub(super) last: bool,
    pub(super) opcode: Option<Opcode>,
    pub(super) invalidate: Rkey,
    /// The segment's length and header, for a Terminate that includes them.
    pub(super) segment_len: u16,
    pub(super) header: [u8; Header::MAX_LEN],
    pub(super) header_len: usize,
    /// Whether this is the first segment of the stream.
    pub(super) is_first: bool,
    /// The untagged queues.
    pub(super) queues: [Inbound; 4],
    /// Bytes of the Write in progress, and of the last complete one.
    pub(super) writing: u32,
    pub(super) written: u32,
    /// Bytes received of the oldest READ's response.
    pub(super) read: u32,
    /// The deadline of the next message's wait for a receive, if it waits.
    waits: Option<Time>,
    /// Whether messages that need a receive are discarded. One found none in time after the program disconnected.
    pub(super) discards: bool,
}

impl Rx {
    /// Creates the state for a new stream.
    pub(super) fn new(params: &StreamParams) -> Self {
        let framing = Framing { crc: params.crc, markers: params.rx_markers };
        let room = if framing.markers { MAX_ULPDU } else { 0 };
        let mut queues = [Inbound::default(); 4];
        match params.rtr {
            Some(Rtr::Send) if !params.initiator => queues[0].msn = 2,
            Some(Rtr::Read) if !params.initiator => queues[1].msn = 2,
            _ => {}
        }
        // The response to a ready-to-receive Read has not arrived yet.
        let before = if params.initiator && params.rtr == Some(Rtr::Read) {
            0
        } else {
            sent_before(params, !params.initiator, framing)
        };
        Self {
            framing,
            position: before,
            scratch: vec![0; room].into_boxed_slice(),
            queues,
            ..Self::default()
        }
    }

    /// Stops processing frames.
    pub(super) fn stop(&mut self) {
        (self.inside, self.left, self.tail, self.waits) = (false, 0, 0, None);
        self.scratch = Box::default();
    }

    /// Returns the number of allocated bytes.
    pub(super) fn footprint(&self) -> usize {
        self.scratch.len()
    }

    /// Returns whether frames are processed only as a whole.
    fn whole(&self) -> bool {
        self.framing.crc || self.framing.markers
    }
}

impl Qp {
    /// Returns whether arriving frames are processed.
    fn takes_frames(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Draining { .. } | Phase::HalfClosed { .. })
    }

    /// Returns the memory for the next bytes, if they are payload that may be placed as it arrives. The driver may
    /// receive up to that many bytes directly into it, with the checks of
    /// [`Env::scatter`](crate::env::Env::scatter), [`Env::scatter_receive`](crate::env::Env::scatter_receive) or
    /// [`Env::write_remote`](crate::env::Env::write_remote), and then calls [`handle_placed`](Self::handle_placed).
    /// Bytes that it cannot place it presents to [`handle_bytes`](Self::handle_bytes).
    pub fn direct(&self) -> Option<Direct<'_>> {
        let len = self.rx.left;
        if len == 0 || !self.takes_frames() {
            return None;
        }
        match self.rx.place {
            Place::Receive { offset } => {
                Some(Direct::Local { sges: self.rq.sges(), offset, len, side: Side::Recv })
            }
            Place::Sink { offset } => {
                let sges = self.sq.sges(self.sq.head);
                Some(Direct::Local { sges, offset, len, side: Side::Send })
            }
            Place::Memory { rkey, va } => Some(Direct::Remote { rkey, va, len }),
            Place::Small { .. } | Place::Nowhere => None,
        }
    }

    /// Records that `len` bytes of the stream were placed in the memory that [`direct`](Self::direct) returned.
    pub fn handle_placed<E: StreamEnv>(&mut self, now: Time, len: u32, _env: &mut E) {
        self.advance(now, len.min(self.rx.left));
    }

    /// Processes bytes of the stream, from where the last call or [`handle_placed`](Self::handle_placed) ended,
    /// and returns how many it has consumed. The driver presents the rest again, followed by more. The rest is
    /// less than a header of a frame that is processed in parts, and otherwise less than a frame, which is at
    /// most [`MAX_FRAME`](super::MAX_FRAME) bytes. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    ///
    /// While [`waits_for_receive`](Self::waits_for_receive) is true it consumes nothing, so the rest
    /// may be of any length. The driver then neither reads from the stream nor calls this function.
    pub fn handle_bytes<E: StreamEnv>(&mut self, now: Time, bytes: &[u8], env: &mut E) -> usize {
        let mut used = 0;
        while self.takes_frames() && used < bytes.len() {
            let rest = &bytes[used..];
            let step = if self.rx.whole() {
                self.take_frame(now, rest, env)
            } else {
                self.take_part(now, rest, env)
            };
            match step {
                Ok(0) => {
                    self.check_drained(now, env);
                    return used;
                }
                Ok(len) => used += len,
                Err(Fault::NoReceive) if self.may_wait(now) => {
                    self.check_drained(now, env);
                    return used;
                }
                Err(Fault::NoReceive) if self.is_draining() => self.discard_messages(),
                Err(Fault::NoReceive | Fault::Unasked) if self.is_half_closed() => {
                    self.drop_the_rest(now, env);
                }
                Err(fault) => self.fail(now, fault, fault.has_segment(), env),
            }
        }
        self.check_drained(now, env);
        bytes.len()
    }

    /// Processes a part of a frame: header, payload, or padding and CRC field.
    fn take_part<E: StreamEnv>(
        &mut self,
        now: Time,
        bytes: &[u8],
        env: &mut E,
    ) -> Result<usize, Fault> {
        if !self.rx.inside {
            return self.take_header(bytes, env);
        }
        let rx = &mut self.rx;
        if rx.left != 0 {
            let len = bytes.len().min(rx.left as usize);
            self.put(&bytes[..len], env)?;
            self.advance(now, u32::try_from(len).unwrap_or(u32::MAX));
            return Ok(len);
        }
        let len = bytes.len().min(rx.tail as usize);
        rx.tail -= u32::try_from(len).unwrap_or(rx.tail);
        if rx.tail == 0 {
            rx.inside = false;
            self.finish_segment(now, env)?;
        }
        Ok(len)
    }

    fn take_header<E: StreamEnv>(&mut self, bytes: &[u8], env: &mut E) -> Result<usize, Fault> {
        let Some((length, ulpdu)) = bytes.split_first_chunk::<LENGTH_LEN>() else { return Ok(0) };
        let length = u16::from_be_bytes(*length);
        let ulpdu_len = usize::from(length);
        if ulpdu_len < Header::TAGGED_LEN {
            return Err(Fault::Framing);
        }
        let Some(&first) = ulpdu.first() else { return Ok(0) };
        let header_len = Header::len_of(first);
        if ulpdu_len < header_len {
            return Err(Fault::Framing);
        }
        let Some(header) = ulpdu.get(..header_len) else { return Ok(0) };
        self.begin_segment(length, header, env)?;
        let rx = &mut self.rx;
        rx.inside = true;
        rx.left = rx.len;
        rx.tail = u32::try_from(fpdu::pad(ulpdu_len) + CRC_LEN).unwrap_or_default();
        Ok(LENGTH_LEN + header_len)
    }

    /// Processes a whole frame, if it is present.
    fn take_frame<E: StreamEnv>(
        &mut self,
        now: Time,
        bytes: &[u8],
        env: &mut E,
    ) -> Result<usize, Fault> {
        let parsed = self.rx.framing.parse(self.rx.position, bytes);
        let Some(frame) = parsed.map_err(|error| Fault::of_header(&error))? else { return Ok(0) };
        if let Some(ulpdu) = frame.contiguous() {
            self.take_ulpdu(now, ulpdu, env)?;
        } else {
            let mut scratch = core::mem::take(&mut self.rx.scratch);
            let len = frame.copy_to(0, &mut scratch);
            let taken = self.take_ulpdu(now, &scratch[..len], env);
            self.rx.scratch = scratch;
            taken?;
        }
        // The position advances only now: a frame that waits for a receive is presented again.
        self.rx.position += frame.frame_len as u64;
        Ok(frame.frame_len)
    }

    fn take_ulpdu<E: StreamEnv>(
        &mut self,
        now: Time,
        ulpdu: &[u8],
        env: &mut E,
    ) -> Result<(), Fault> {
        let header_len = ulpdu.first().map_or(Header::MAX_LEN, |first| Header::len_of(*first));
        let Some((header, payload)) = ulpdu.split_at_checked(header_len) else {
            return Err(Fault::Framing);
        };
        let length = u16::try_from(ulpdu.len()).unwrap_or(u16::MAX);
        self.begin_segment(length, header, env)?;
        if !payload.is_empty() {
            self.put(payload, env)?;
        }
        self.finish_segment(now, env)
    }

    /// Returns whether the next message, which finds no receive, may wait for one.
    fn may_wait(&mut self, now: Time) -> bool {
        let open = matches!(self.phase, Phase::Open | Phase::Draining { .. });
        if !open || self.receive_wait.is_zero() {
            return false;
        }
        now < *self.rx.waits.get_or_insert_with(|| now.after(self.receive_wait))
    }

    /// Discards this message and all later ones that need a receive. The rest of what arrives is still processed: it may be
    /// a response to a request that was posted before the disconnect.
    fn discard_messages(&mut self) {
        (self.rx.discards, self.rx.waits) = (true, None);
    }

    /// Records that the next message has a receive.
    pub(super) fn receive_taken(&mut self) {
        self.rx.waits = None;
    }

    /// Returns the timer of a message that waits for a receive, and when it expires.
    pub(super) fn receive_timer(&self) -> Option<(StreamTimer, Time)> {
        self.rx.waits.map(|until| (StreamTimer::ReceiveWait, until))
    }

    /// Returns whether the next message in the stream has no receive. Until one is posted the driver
    /// leaves the stream unread, so that TCP flow control stops the peer. With a shared receive queue
    /// this stays true when a receive is posted there: the driver presents the pending bytes again.
    pub fn waits_for_receive(&self) -> bool {
        self.rx.waits.is_some()
            && !matches!(self.phase, Phase::HalfClosed { .. })
            && (self.rq.is_shared() || self.rq.is_empty())
    }

    /// Ends the connection when the time to wait for a receive has expired, or only discards the message if the program has
    /// disconnected.
    pub(super) fn receive_is_late<E: StreamEnv>(&mut self, now: Time, env: &mut E) {
        if self.rq.take(env) {
            // The receive has just been posted. The bytes will be presented again.
            self.rx.waits = None;
        } else if self.is_draining() {
            self.discard_messages();
        } else {
            self.fail(now, Fault::NoReceive, Fault::NoReceive.has_segment(), env);
        }
    }

    /// Records that `len` bytes of the segment's payload were placed.
    fn advance(&mut self, now: Time, len: u32) {
        self.rx.left -= len;
        if matches!(self.rx.place, Place::Sink { .. }) {
            self.stalls_no_more(now);
        }
        match &mut self.rx.place {
            Place::Receive { offset } | Place::Sink { offset } | Place::Small { offset, .. } => {
                *offset = offset.wrapping_add(len);
            }
            Place::Memory { va, .. } => *va = va.wrapping_add(u64::from(len)),
            Place::Nowhere => {}
        }
    }
}
