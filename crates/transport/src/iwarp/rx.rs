//! Receiving: the frames in arriving bytes, however the stream cut them.
//!
//! With neither CRC nor markers a frame is taken in parts: its header, its payload as it comes, what
//! fills it up. With either it must be there as a whole, for nothing of it may be used before it is
//! found good.

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

/// Where the next bytes of the stream belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct<'a> {
    /// Into the scatter list, `offset` bytes into it; it has room for `len` bytes from there.
    Local {
        /// The whole list of a receive or a READ.
        sges: &'a [Sge],
        /// Bytes to skip.
        offset: u32,
        /// Bytes that are still to come.
        len: u32,
        /// Whose list it is: a READ's, or a receive's, which may have another protection domain
        /// ([`Env::scatter_receive`](crate::env::Env::scatter_receive)).
        side: Side,
    },
    /// Into memory that the peer named, which was checked.
    Remote {
        /// The key.
        rkey: Rkey,
        /// The address.
        va: u64,
        /// Bytes that are still to come.
        len: u32,
    },
}

/// The state of receiving.
#[derive(Debug, Default)]
pub(super) struct Rx {
    framing: Framing,
    /// Where in the stream the next frame begins; counted for markers only.
    position: u64,
    /// A payload that is taken out from between markers.
    scratch: Box<[u8]>,
    /// Whether a segment is begun.
    inside: bool,
    /// Bytes of its payload that are to come, and of what follows them.
    left: u32,
    tail: u32,
    /// Where its payload goes, all of it so long, and whether its message ends with it.
    pub(super) place: Place,
    pub(super) len: u32,
    pub(super) last: bool,
    pub(super) opcode: Option<Opcode>,
    pub(super) invalidate: Rkey,
    /// The segment's length and header, for a Terminate that tells them.
    pub(super) segment_len: u16,
    pub(super) header: [u8; Header::MAX_LEN],
    pub(super) header_len: usize,
    /// Whether it is the stream's first.
    pub(super) is_first: bool,
    /// The untagged queues.
    pub(super) queues: [Inbound; 4],
    /// Bytes of the Write that is coming, and of the last that came.
    pub(super) writing: u32,
    pub(super) written: u32,
    /// Bytes of the oldest READ that came.
    pub(super) read: u32,
    /// Until when the message that is next waits for a receive, if it does.
    waits: Option<Time>,
}

impl Rx {
    /// For a new stream.
    pub(super) fn new(params: &StreamParams) -> Self {
        let framing = Framing { crc: params.crc, markers: params.rx_markers };
        let room = if framing.markers { MAX_ULPDU } else { 0 };
        let mut queues = [Inbound::default(); 4];
        match params.rtr {
            Some(Rtr::Send) if !params.initiator => queues[0].msn = 2,
            Some(Rtr::Read) if !params.initiator => queues[1].msn = 2,
            _ => {}
        }
        // The response to a ready-to-receive Read is yet to come.
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

    /// Nothing more is taken.
    pub(super) fn stop(&mut self) {
        (self.inside, self.left, self.tail, self.waits) = (false, 0, 0, None);
        self.scratch = Box::default();
    }

    /// Bytes allocated.
    pub(super) fn footprint(&self) -> usize {
        self.scratch.len()
    }

    /// Whether frames are taken as a whole only.
    fn whole(&self) -> bool {
        self.framing.crc || self.framing.markers
    }
}

impl Qp {
    /// Whether what arrives is looked at.
    fn takes_frames(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Draining { .. } | Phase::HalfClosed { .. })
    }

    /// Where the coming bytes belong, if they are payload that may be put there as it comes. The driver
    /// may receive up to so many straight into that memory, with the checks of
    /// [`Env::scatter`](crate::env::Env::scatter), [`Env::scatter_receive`](crate::env::Env::scatter_receive) or
    /// [`Env::write_remote`](crate::env::Env::write_remote), and
    /// then calls [`handle_placed`](Self::handle_placed). What it cannot put there it presents to
    /// [`handle_bytes`](Self::handle_bytes).
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

    /// So many bytes of the stream were put where [`direct`](Self::direct) said.
    pub fn handle_placed<E: StreamEnv>(&mut self, now: Time, len: u32, _env: &mut E) {
        self.advance(now, len.min(self.rx.left));
    }

    /// Takes bytes of the stream, from where the last call or [`handle_placed`](Self::handle_placed)
    /// ended, and returns how many it is done with. The driver presents the rest again with more behind it:
    /// of a frame that is taken in parts less than a header, otherwise less than a frame, which is
    /// [`MAX_FRAME`](super::MAX_FRAME) bytes at most. Call [`poll_transmit`](Self::poll_transmit)
    /// afterwards.
    ///
    /// While [`waits_for_receive`](Self::waits_for_receive) it takes nothing, so what is left may be of any length;
    /// the driver then neither reads from the stream nor calls this until it does not.
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
                Err(Fault::NoReceive | Fault::Unasked) if self.is_half_closed() => {
                    self.drop_the_rest(now, env);
                }
                Err(fault) => self.fail(now, fault, fault.has_segment(), env),
            }
        }
        self.check_drained(now, env);
        bytes.len()
    }

    /// Takes a part of a frame: its header, payload, or what fills it up.
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

    /// Takes a frame as a whole, if it is there.
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
        // Not before it is taken: one that waits for a receive is presented again.
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

    /// Whether the message that is next, for which there is no receive, may wait for one.
    fn may_wait(&mut self, now: Time) -> bool {
        let open = matches!(self.phase, Phase::Open | Phase::Draining { .. });
        if !open || self.receive_wait.is_zero() {
            return false;
        }
        now < *self.rx.waits.get_or_insert_with(|| now.after(self.receive_wait))
    }

    /// There is a receive for the message that is next.
    pub(super) fn receive_taken(&mut self) {
        self.rx.waits = None;
    }

    /// The timer of a message that waits for a receive, and when that expires.
    pub(super) fn receive_timer(&self) -> Option<(StreamTimer, Time)> {
        self.rx.waits.map(|until| (StreamTimer::ReceiveWait, until))
    }

    /// Whether a message is next in the stream for which there is no receive. Until one is posted the driver leaves
    /// the stream unread, so that TCP holds the peer back. With a shared receive queue this stays true when one is
    /// posted there: the driver presents what it holds again.
    pub fn waits_for_receive(&self) -> bool {
        self.rx.waits.is_some()
            && !matches!(self.phase, Phase::HalfClosed { .. })
            && (self.rq.is_shared() || self.rq.is_empty())
    }

    /// The time to wait for a receive is over.
    pub(super) fn receive_is_late<E: StreamEnv>(&mut self, now: Time, env: &mut E) {
        if self.rq.take(env) {
            // It was posted just now; the bytes are still to be presented again.
            self.rx.waits = None;
        } else {
            self.fail(now, Fault::NoReceive, Fault::NoReceive.has_segment(), env);
        }
    }

    /// So much of the segment's payload is where it belongs.
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
