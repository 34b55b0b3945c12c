//! The sending side of one message.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use rdmux_wire::mad::{MAD_LEN, MgmtClass};
use rdmux_wire::rmpp::{OFFSET, SEGMENT_LEN};
use rdmux_wire::{Rmpp, RmppFlags, RmppStatus, RmppType};

use super::{ACK_WAIT, BURST, Mad, data_offset};
use crate::Time;

/// Sends one message. After each call of [`Sender::handle_ack`] and [`Sender::handle_timeout`] the driver sends the segments
/// that [`Sender::poll_segment`] returns, and calls again at [`Sender::deadline`].
#[derive(Debug)]
pub struct Sender {
    /// The whole long MAD.
    message: Vec<u8>,
    /// The offset of its data.
    offset: usize,
    segments: u32,
    /// The last segment that was acknowledged.
    acked: u32,
    /// The highest segment ever sent.
    sent: u32,
    /// The next segment to send.
    next: u32,
    /// The last segment that may be sent.
    window: u32,
    /// How many segments may be sent in this turn.
    burst: u32,
    wait: Duration,
    retries: u32,
    retries_left: u32,
    deadline: Time,
}

/// The meaning of an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// The ACK is outdated.
    Old,
    /// There is more to send, now or after the next ACK.
    More,
    /// The message is completely acknowledged.
    Complete,
}

/// The outcome of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// The timeout is not due.
    Early,
    /// Nothing was late: the next turn of a wide window starts.
    Turn,
    /// Unacknowledged segments are retransmitted.
    Resend,
    /// No retries remain.
    GiveUp,
}

impl Sender {
    /// Creates a sender of `message`, a whole long MAD, whose RMPP header need not be filled in.
    ///
    /// It may send up to segment `window` before the first ACK: 1, or the peer's window when the peer turned to receiving. It
    /// waits `wait` for each ACK, at most [`ACK_WAIT`], which zero selects as well, and retransmits `retries` times without
    /// progress. A message shorter than the header of its class is padded with zeros.
    pub fn new(mut message: Vec<u8>, window: u32, wait: Duration, retries: u32) -> Self {
        let class = message.get(1).copied().unwrap_or_default();
        let offset = data_offset(MgmtClass(class));
        if message.len() < offset {
            message.resize(offset, 0);
        }
        let segments = (message.len() - offset).div_ceil(MAD_LEN - offset).max(1);
        Self {
            message,
            offset,
            segments: u32::try_from(segments).unwrap_or(u32::MAX),
            acked: 0,
            sent: 0,
            next: 1,
            window: window.max(1),
            burst: BURST,
            wait: if wait.is_zero() { ACK_WAIT } else { wait.min(ACK_WAIT) },
            retries,
            retries_left: retries,
            deadline: Time::ZERO,
        }
    }

    /// Returns the number of segments of the message, at least 1.
    pub const fn segments(&self) -> u32 {
        self.segments
    }

    /// Returns whether all of it was acknowledged.
    pub const fn is_complete(&self) -> bool {
        self.acked == self.segments
    }

    /// Returns when [`Sender::handle_timeout`] is due, if the message is not complete.
    pub const fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns the number of bytes held.
    pub const fn len(&self) -> usize {
        self.message.len()
    }

    /// Returns false: a message has at least a header.
    pub const fn is_empty(&self) -> bool {
        self.message.is_empty()
    }

    /// Returns the message, with the header of its class as it was given.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Returns the next segment to send now, if there is one.
    pub fn poll_segment(&mut self, now: Time) -> Option<Box<Mad>> {
        if self.is_complete() || self.next > self.window.min(self.segments) {
            return None;
        }
        if self.burst == 0 {
            self.deadline = now;
            return None;
        }
        let mad = self.segment(self.next);
        self.burst -= 1;
        self.sent = self.sent.max(self.next);
        self.next += 1;
        self.deadline = now.after(self.wait);
        Some(mad)
    }

    /// Handles an ACK: the receiver has all segments up to `segment` and allows segments up to `window`.
    ///
    /// # Errors
    /// The status of the ABORT that answers an impossible ACK.
    pub fn handle_ack(&mut self, now: Time, segment: u32, window: u32) -> Result<Ack, RmppStatus> {
        if window < segment {
            return Err(RmppStatus::WINDOW_TOO_SMALL);
        }
        if self.is_complete() {
            return Ok(Ack::Old);
        }
        if segment > self.sent {
            return Err(RmppStatus::SEGMENT_TOO_BIG);
        }
        if window < self.window || segment < self.acked {
            return Ok(Ack::Old);
        }
        if segment > self.acked {
            self.acked = segment;
            self.next = self.next.max(segment + 1);
            self.retries_left = self.retries;
            self.deadline = now.after(self.wait);
        }
        self.window = window;
        self.burst = BURST;
        Ok(if self.is_complete() { Ack::Complete } else { Ack::More })
    }

    /// Handles a timeout.
    pub fn handle_timeout(&mut self, now: Time) -> Timeout {
        if now < self.deadline || self.is_complete() {
            return Timeout::Early;
        }
        if self.next <= self.window.min(self.segments) {
            self.burst = BURST;
            return Timeout::Turn;
        }
        if self.retries_left == 0 {
            return Timeout::GiveUp;
        }
        self.retries_left -= 1;
        self.next = self.acked + 1;
        self.burst = BURST;
        // A receiver that allows no segment for now is waited for as well.
        self.deadline = now.after(self.wait);
        Timeout::Resend
    }

    /// Builds segment `number`, from 1 to [`Sender::segments`].
    fn segment(&self, number: u32) -> Box<Mad> {
        let room = MAD_LEN - self.offset;
        let mut mad = Box::new([0; MAD_LEN]);
        mad[..self.offset].copy_from_slice(&self.message[..self.offset]);
        let data = &self.message[self.offset..];
        let start = (number - 1) as usize * room;
        let data = &data[start.min(data.len())..];
        let data = &data[..data.len().min(room)];
        mad[self.offset..self.offset + data.len()].copy_from_slice(data);
        let (first, last) = (number == 1, number == self.segments);
        let rmpp = Rmpp {
            version: Rmpp::VERSION,
            kind: RmppType::DATA,
            resp_time: 0,
            flags: flags(first, last),
            status: RmppStatus::NORMAL,
            segment: number,
            length: self.payload_length(first, last),
        };
        rmpp.put(&mut mad);
        mad
    }

    /// Returns PayloadLength: that of the whole transfer in the first segment, its own in the last.
    fn payload_length(&self, first: bool, last: bool) -> u32 {
        let extra = self.offset - OFFSET - Rmpp::LEN;
        let data = self.message.len() - self.offset;
        let before = (self.segments as usize - 1) * (MAD_LEN - self.offset);
        let length = match (first, last) {
            (_, true) => extra + data - before,
            (true, false) => self.segments as usize * extra + data,
            (false, false) => 0,
        };
        debug_assert!(!last || length <= SEGMENT_LEN);
        u32::try_from(length).unwrap_or(0)
    }
}

fn flags(first: bool, last: bool) -> RmppFlags {
    let mut flags = RmppFlags::ACTIVE;
    if first {
        flags = flags.with(RmppFlags::FIRST);
    }
    if last {
        flags = flags.with(RmppFlags::LAST);
    }
    flags
}
