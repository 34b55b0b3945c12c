//! Sending: frames of the send queue's entries and of responses to the peer, in turn, up to 64 at a time.
//!
//! ```text
//!    head             taken            cursor          tail      of the send queue
//!     | waits for the   | frames wait for |  not yet made  |
//!     | peer's response | the stream      |  into frames   |
//! ```
//!
//! A message starts only when the previous one is fully in frames, so messages do not interleave:
//! some peers do not support that.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use rdmux_wire::Stag;
use rdmux_wire::iwarp::ddp::{Header, Model, Tagged, Untagged, queue};
use rdmux_wire::iwarp::fpdu::{self, Framing};
use rdmux_wire::iwarp::rdmap::Opcode;

use crate::attr::QpState;
use crate::env::{AccessFault, TxPayload};
use crate::fault::local_status;
use crate::iwarp::close::Phase;
use crate::iwarp::fault::Fault;
use crate::iwarp::frame::{Frame, Origin};
use crate::iwarp::pack::Pack;
use crate::iwarp::qp::Qp;
use crate::iwarp::{Rtr, Segment, SendFault, StreamEnv, StreamParams};
use crate::qp::TxState;
use crate::time::Time;
use crate::wr::WcStatus;

/// The most frames passed to one call of [`StreamEnv::send`].
const BATCH: usize = 64;
/// The size of the segment array when few frames are waiting.
const FEW: usize = 4;
/// The smallest maximum ULPDU of any stream (RFC 5044, section 4.5).
const LEAST_MULPDU: u32 = 128;

/// The longest frame, rounded down to a multiple of four, that a marker's pointer can span.
const MOST_BACK: usize = 65_532;

/// The message that is being cut into frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Job {
    /// No data.
    #[default]
    None,
    /// The entry at the cursor.
    Entry,
    /// The immediate data after it.
    Immediate,
    /// The response to the oldest of the peer's READs and atomics.
    Answer,
}

/// The state of the sending side.
#[derive(Debug, Default)]
pub(super) struct Tx {
    framing: Framing,
    /// Frames that the stream has not accepted in full, oldest first.
    frames: VecDeque<Frame>,
    /// Bytes of the oldest frame that the stream has accepted.
    skip: usize,
    /// Whether the stream accepts no more data.
    pub(super) broken: bool,
    /// The position of the next byte in the stream.
    position: u64,
    /// The buffer for frames with CRC or markers. None if the payload of frames is sent from its place in memory.
    pack: Option<Box<Pack>>,
    /// The end of the stream: the rest of a frame and a Terminate.
    last_words: Vec<u8>,
    /// The maximum length of a segment (MULPDU, RFC 5044).
    pub(super) mulpdu: u32,
    /// The maximum number of READs and atomics without a response.
    pub(super) ord: u32,
    /// The entry from which frames are built next, and how many of its bytes are in frames.
    pub(super) cursor: u32,
    pub(super) offset: u32,
    /// The message that frames are built from.
    pub(super) job: Job,
    /// The first entry that the stream has not accepted in full.
    pub(super) taken: u32,
    /// The numbers of the next messages of each queue.
    pub(super) send_msn: u32,
    pub(super) query_msn: u32,
    pub(super) answer_msn: u32,
    /// READs and atomics without a response yet.
    pub(super) queries: u32,
    /// Whether the queued responses include that to the ready-to-receive frame.
    pub(super) rtr_read: bool,
    /// Whether responses have the next turn.
    pub(super) answers_first: bool,
    /// The status of the entry at the cursor if it failed. It is reported when the entry is the oldest.
    pub(super) stalled: Option<WcStatus>,
}

/// The outcome of a call of [`StreamEnv::send`].
enum Sent {
    /// Everything was accepted. There may be more to send.
    All,
    /// The stream is full.
    Full,
}

impl Tx {
    /// Creates the state for a new stream. `cursor` is the send queue's next entry.
    pub(super) fn new(params: &StreamParams, mulpdu: u32, cursor: u32) -> Self {
        let framing = Framing { crc: params.crc, markers: params.tx_markers };
        let most = if framing.markers { fpdu::mulpdu(MOST_BACK, true) } else { fpdu::MAX_ULPDU };
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let mulpdu = mulpdu.clamp(LEAST_MULPDU, most);
        let packed = framing.crc || framing.markers;
        let rtr = if params.initiator { params.rtr } else { None };
        let rtr_read = rtr == Some(Rtr::Read);
        Self {
            framing,
            frames: VecDeque::with_capacity(BATCH),
            position: sent_before(params, params.initiator, framing),
            pack: packed.then(|| Box::new(Pack::new(framing, mulpdu as usize))),
            mulpdu,
            ord: u32::from(params.ord),
            cursor,
            taken: cursor,
            send_msn: if rtr == Some(Rtr::Send) { 2 } else { 1 },
            query_msn: if rtr_read { 2 } else { 1 },
            answer_msn: 1,
            queries: u32::from(rtr_read),
            rtr_read,
            ..Self::default()
        }
    }

    /// Moves the cursor to `head`, up to which the send queue was flushed.
    pub(super) fn follow(&mut self, head: u32) {
        (self.cursor, self.taken, self.offset) = (head, head, 0);
    }

    /// Stops sending anything but `last_words`.
    pub(super) fn stop(&mut self) {
        self.frames.clear();
        (self.skip, self.pack) = (0, None);
        (self.job, self.stalled) = (Job::None, None);
        (self.queries, self.rtr_read) = (0, false);
    }

    /// Returns whether the data sent so far ends in the middle of a frame.
    fn is_inside_frame(&self) -> bool {
        self.skip != 0
    }

    /// Returns whether the local half of the stream can end here in order.
    pub(super) fn can_end(&self) -> bool {
        !self.broken && !self.is_inside_frame()
    }

    /// Returns whether everything that was started has been sent and answered.
    pub(super) fn is_quiet(&self) -> bool {
        self.frames.is_empty() && self.job == Job::None && self.queries == 0
    }

    /// Returns the number of allocated bytes.
    pub(super) fn footprint(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
            + self.pack.as_ref().map_or(0, |pack| pack.footprint())
            + self.last_words.capacity()
    }

    fn has_room(&self) -> bool {
        self.frames.len() < BATCH && self.pack.as_ref().is_none_or(|pack| pack.has_room())
    }
}

/// Returns how many bytes one end sent between its start-up frame and the attachment of the stream
/// to a queue pair: the initiator's ready-to-receive frame, or the response to it.
pub(super) fn sent_before(params: &StreamParams, by_initiator: bool, framing: Framing) -> u64 {
    use rdmux_wire::iwarp::rtr;
    let len = match (params.rtr, by_initiator) {
        (Some(Rtr::Send), true) => rtr::send(framing).len(),
        (Some(Rtr::Write), true) => rtr::write(framing).len(),
        (Some(Rtr::Read), true) => rtr::read(framing).len(),
        (Some(Rtr::Read), false) => rtr::read_response(framing, &rtr::READ_REQUEST).len(),
        _ => 0,
    };
    len as u64
}

impl Qp {
    /// Sends at most `budget` frames, as far as the stream accepts them. A work request is complete
    /// when the stream has accepted all of it; a READ or an atomic when its response has arrived.
    pub fn poll_transmit<E: StreamEnv>(&mut self, now: Time, budget: u32, env: &mut E) -> TxState {
        if self.state == QpState::Err {
            self.flush(env);
        }
        let mut left = budget;
        let mut state = TxState::Idle;
        loop {
            if matches!(self.phase, Phase::Terminating { .. }) {
                return self.send_last_words(now, env);
            }
            if self.tx.broken && self.has_peer_ended() {
                // Nothing is left to read.
                self.abort(env);
            }
            if self.tx.broken || !matches!(self.phase, Phase::Open | Phase::Draining { .. }) {
                return TxState::Idle;
            }
            while left != 0 && self.tx.has_room() {
                let Some(frame) = self.next_frame(now, env) else { break };
                left -= 1;
                self.push_frame(now, frame, env);
            }
            if self.tx.frames.is_empty() {
                if left == 0 && budget != 0 {
                    state = TxState::More;
                }
                if matches!(self.phase, Phase::Terminating { .. }) {
                    continue;
                }
                break;
            }
            if let Sent::Full = self.send_frames(now, env) {
                state = TxState::Blocked;
                break;
            }
        }
        self.check_drained(now, env);
        state
    }

    /// Appends a frame to the queue.
    fn push_frame<E: StreamEnv>(&mut self, now: Time, mut frame: Frame, env: &mut E) {
        if let Some(pack) = &mut self.tx.pack {
            let position = self.tx.position + pack.pending().len() as u64;
            match pack.push(position, &frame, &self.sq, env) {
                Ok(len) => frame.len = len,
                Err(fault) => return self.fail_frame(now, frame.origin, fault, env),
            }
        }
        self.tx.frames.push_back(frame);
    }

    fn send_frames<E: StreamEnv>(&mut self, now: Time, env: &mut E) -> Sent {
        let offered = self.tx.frames.iter().map(|frame| frame.len).sum::<usize>() - self.tx.skip;
        let sent = match &mut self.tx.pack {
            Some(pack) => {
                let sent = env.send(&[bytes_segment(pack.pending())], 0);
                if let Ok(len) = sent {
                    pack.consume(len.min(offered));
                }
                sent
            }
            None if self.tx.frames.len() <= FEW => self.send_up_to::<FEW, E>(FEW, env),
            None => self.send_up_to::<BATCH, E>(BATCH, env),
        };
        match sent {
            Ok(len) => {
                self.stream_took(now, len.min(offered), env);
                if len < offered { Sent::Full } else { Sent::All }
            }
            Err(SendFault::Broken) => self.stop_sending(),
            Err(SendFault::Memory { segment, fault }) => {
                self.meet_bad_memory(now, segment, fault, env)
            }
        }
    }

    /// Stops sending on a broken stream. Data received before still counts, so the queue pair fails
    /// only at the end of it.
    fn stop_sending(&mut self) -> Sent {
        self.tx.broken = true;
        self.tx.frames.clear();
        (self.tx.skip, self.tx.pack) = (0, None);
        Sent::All
    }

    /// Sends the first `limit` frames, with the payload from its place in memory.
    fn send_up_to<const N: usize, E: StreamEnv>(
        &self,
        limit: usize,
        env: &mut E,
    ) -> Result<usize, SendFault> {
        let mut segments = [bytes_segment(&[]); N];
        let mut count = 0;
        for (to, frame) in segments.iter_mut().zip(self.tx.frames.iter().take(limit)) {
            *to = frame.segment(&self.sq);
            count += 1;
        }
        env.send(&segments[..count], self.tx.skip)
    }

    /// Handles a frame whose payload cannot be read, after nothing was sent. The frames before it are sent first.
    fn meet_bad_memory<E: StreamEnv>(
        &mut self,
        now: Time,
        segment: usize,
        fault: AccessFault,
        env: &mut E,
    ) -> Sent {
        let Some(frame) = self.tx.frames.get(segment) else {
            self.abort(env);
            return Sent::All;
        };
        let origin = frame.origin;
        if segment != 0 {
            let offered = self.tx.frames.iter().take(segment).map(|f| f.len).sum::<usize>();
            let offered = offered - self.tx.skip;
            let len = match self.send_up_to::<BATCH, E>(segment, env) {
                Ok(len) => len,
                Err(SendFault::Broken) => return self.stop_sending(),
                Err(SendFault::Memory { .. }) => {
                    self.abort(env);
                    return Sent::All;
                }
            };
            self.stream_took(now, len.min(offered), env);
            if len < offered {
                return Sent::Full;
            }
        } else if self.tx.is_inside_frame() {
            // The peer waits for the rest of the frame, which cannot be sent.
            if let Origin::Entry { index, .. } = origin {
                self.fail_in_order(index, local_status(fault), env);
            }
            self.abort(env);
            return Sent::All;
        }
        self.fail_frame(now, origin, fault, env);
        Sent::All
    }

    /// Fails a frame that cannot be sent.
    fn fail_frame<E: StreamEnv>(
        &mut self,
        now: Time,
        origin: Origin,
        fault: AccessFault,
        env: &mut E,
    ) {
        match origin {
            Origin::Answer => self.fail(now, Fault::Source(fault), false, env),
            Origin::Entry { index, .. } => {
                if self.tx.pack.is_none() {
                    self.tx.frames.retain(|frame| frame.origin == Origin::Answer);
                }
                (self.tx.cursor, self.tx.offset) = (index, 0);
                if self.tx.job != Job::Answer {
                    self.tx.job = Job::None;
                }
                self.stall(now, local_status(fault), env);
            }
        }
    }

    /// Completes the oldest entries up to `index`: those before it as flushed, and it with `status`.
    pub(super) fn fail_in_order<E: StreamEnv>(
        &mut self,
        index: u32,
        status: WcStatus,
        env: &mut E,
    ) {
        while self.sq.head != index {
            self.complete_head(WcStatus::WrFlushErr, env);
        }
        self.complete_head(status, env);
    }

    /// Stalls the entry at the cursor because of an error. It fails when all before it are complete.
    pub(super) fn stall<E: StreamEnv>(&mut self, now: Time, status: WcStatus, env: &mut E) {
        if self.sq.head == self.tx.cursor {
            self.complete_head(status, env);
            self.fail(now, Fault::Local, false, env);
        } else {
            self.tx.stalled = Some(status);
        }
    }

    /// Records that the stream accepted `len` more bytes.
    fn stream_took<E: StreamEnv>(&mut self, now: Time, len: usize, env: &mut E) {
        self.tx.position += len as u64;
        self.tx.skip += len;
        let before = self.tx.taken;
        while let Some(frame) = self.tx.frames.front()
            && self.tx.skip >= frame.len
        {
            self.tx.skip -= frame.len;
            if let Origin::Entry { index, ends: true } = frame.origin {
                self.tx.taken = index.wrapping_add(1);
            }
            self.tx.frames.pop_front();
        }
        if self.tx.taken != before {
            self.complete_taken(now, env);
        } else if len != 0 {
            self.progressed(now, env);
        }
    }

    /// Completes entries that the stream has accepted and that need no response.
    pub(super) fn complete_taken<E: StreamEnv>(&mut self, now: Time, env: &mut E) {
        while self.sq.head != self.tx.taken
            && !self.sq.get(self.sq.head).kind.row().wants_response()
        {
            self.complete_head(WcStatus::Success, env);
        }
        if let Some(status) = self.tx.stalled
            && self.sq.head == self.tx.cursor
        {
            self.tx.stalled = None;
            return self.stall(now, status, env);
        }
        self.progressed(now, env);
    }

    /// Prepares the end of the stream: the rest of a partially sent frame, and a Terminate.
    ///
    /// # Errors
    /// An error if the rest of that frame cannot be read.
    pub(super) fn prepare_last_words<E: StreamEnv>(
        &mut self,
        message: &[u8],
        env: &mut E,
    ) -> Result<(), AccessFault> {
        let mut words = Vec::new();
        if let Some(frame) = self.tx.frames.front()
            && self.tx.skip != 0
        {
            let skip = self.tx.skip;
            if let Some(pack) = &self.tx.pack {
                words.extend_from_slice(&pack.pending()[..frame.len - skip]);
            } else {
                let segment = frame.segment(&self.sq);
                let mut whole = segment.head.to_vec();
                whole.resize(segment.head.len() + frame.payload_len(), 0);
                if frame.payload_len() != 0 {
                    env.read(&segment.payload, &mut whole[segment.head.len()..])?;
                }
                whole.extend_from_slice(segment.tail);
                words.extend_from_slice(&whole[skip..]);
            }
        }
        let position = self.tx.position + words.len() as u64;
        let untagged =
            Untagged { last: true, invalidate: Stag(0), qn: queue::TERMINATE, msn: 1, mo: 0 };
        let header = Header::new(Opcode::Terminate, Model::Untagged(untagged)).to_buf();
        let start = words.len();
        let len = self.tx.framing.frame_len(position, header.len() + message.len());
        words.resize(start + len, 0);
        self.tx.framing.emit(position, &[&header, message], &mut words[start..]);
        self.tx.last_words = words;
        Ok(())
    }

    fn send_last_words<E: StreamEnv>(&mut self, now: Time, env: &mut E) -> TxState {
        match env.send(&[bytes_segment(&self.tx.last_words)], 0) {
            Ok(len) => {
                let len = len.min(self.tx.last_words.len());
                self.tx.last_words.drain(..len);
                if !self.tx.last_words.is_empty() {
                    return TxState::Blocked;
                }
                self.terminate_sent(now);
            }
            Err(_) => self.abort(env),
        }
        TxState::Idle
    }
}

/// Returns the payload length of the next frame of a message with `rest` bytes left.
///
/// A long message is cut at aligned addresses. Large frames are made equal: a receiver reads a large payload
/// directly into place, and a small one through a buffer, into which it then also reads the frames that follow.
pub(super) fn cut(mulpdu: u32, header_len: usize, rest: u32) -> u32 {
    const ALIGNED: u32 = 64;
    /// The size from which a frame is large.
    const LARGE: u32 = 16 * 1024;
    let most = mulpdu - u32::try_from(header_len).unwrap_or_default();
    let most = if most >= 16 * ALIGNED { most / ALIGNED * ALIGNED } else { most / 4 * 4 };
    if rest <= most || most < LARGE {
        return rest.min(most);
    }
    rest.div_ceil(rest.div_ceil(most)).next_multiple_of(ALIGNED).min(most)
}

/// Returns a segment of bytes that are not in registered memory.
fn bytes_segment(bytes: &[u8]) -> Segment<'_> {
    Segment { head: bytes, payload: TxPayload::None, tail: &[] }
}

/// Returns the header of a segment for named memory.
pub(super) fn tagged(opcode: Opcode, last: bool, stag: Stag, to: u64) -> Header {
    Header::new(opcode, Model::Tagged(Tagged { last, stag, to }))
}

/// Returns the header of a message of one untagged segment.
pub(super) fn untagged(opcode: Opcode, qn: u32, msn: u32) -> Header {
    let untagged = Untagged { last: true, invalidate: Stag(0), qn, msn, mo: 0 };
    Header::new(opcode, Model::Untagged(untagged))
}

#[cfg(test)]
mod tests {
    use super::cut;

    /// Returns the payload lengths of a message's frames.
    fn frames(mulpdu: u32, mut rest: u32) -> alloc::vec::Vec<u32> {
        let mut lens = alloc::vec![];
        while rest != 0 {
            lens.push(cut(mulpdu, 14, rest));
            rest -= lens[lens.len() - 1];
        }
        lens
    }

    #[test]
    fn large_fpdus_are_of_equal_size_and_small_ones_fill_tcp_segments() {
        assert_eq!(frames(65_474, 65_536), [32_768, 32_768]);
        assert_eq!(frames(65_474, 65_408), [65_408]);
        assert_eq!(frames(65_474, 1 << 20).iter().max(), Some(&61_696));
        assert!(frames(65_474, 1 << 20).iter().min() >= Some(&61_000));
        assert_eq!(frames(1442, 3000), [1408, 1408, 184]);
        assert_eq!(frames(128, 300), [112, 112, 76]);
    }
}
