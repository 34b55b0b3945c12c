//! The receiving side of one message.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;

use rdmux_wire::mad::{MAD_LEN, MgmtClass};
use rdmux_wire::rmpp::{OFFSET, SEGMENT_LEN};
use rdmux_wire::{Rmpp, RmppFlags, RmppStatus};

use super::{Mad, WINDOW, data_offset};

/// Reassembles one message.
#[derive(Debug)]
pub struct Receiver {
    /// The header of the first segment, and the data received in order.
    message: Vec<u8>,
    offset: usize,
    /// Out-of-order segments by number, all of them within the window.
    early: BTreeMap<u32, Segment>,
    /// The last segment received in order.
    received: u32,
    /// The last segment that was acknowledged.
    acked: u32,
    /// The last segment that the sender may send.
    window: u32,
    complete: bool,
}

/// The relevant part of a segment.
#[derive(Debug)]
struct Segment {
    data: Box<[u8]>,
    last: bool,
}

/// The outcome of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The segment was discarded: a duplicate, or beyond the window.
    Dropped,
    /// The segment was stored.
    Stored,
    /// The segment was stored, and a window is complete: send [`Receiver::ack`].
    Window,
    /// The segment had been acknowledged: send [`Receiver::ack`] again.
    Again,
    /// The segment completed the message: send [`Receiver::ack`] and take the message.
    Complete,
}

impl Receiver {
    /// Creates a receiver for the first segment, which the caller passes to [`Receiver::handle_data`] next.
    pub fn new(first: &Mad) -> Self {
        let offset = data_offset(MgmtClass(first[1]));
        Self {
            message: first[..offset].to_vec(),
            offset,
            early: BTreeMap::new(),
            received: 0,
            acked: 0,
            window: 1,
            complete: false,
        }
    }

    /// Handles a segment, including the first one.
    ///
    /// # Errors
    /// The status of the ABORT, if segment number, flags and length are inconsistent.
    pub fn handle_data(&mut self, mad: &Mad, rmpp: &Rmpp) -> Result<Taken, RmppStatus> {
        let number = rmpp.segment;
        let segment = self.read(mad, rmpp)?;
        if number > self.window {
            return Ok(Taken::Dropped);
        }
        if self.complete || number <= self.acked {
            return Ok(Taken::Again);
        }
        if number <= self.received || self.early.contains_key(&number) {
            return Ok(Taken::Dropped);
        }
        self.early.insert(number, segment);
        self.advance();
        Ok(self.progress())
    }

    /// Returns the contents of the next ACK: the last segment received in order and the last that may be sent.
    pub fn ack(&mut self) -> (u32, u32) {
        self.acked = self.received;
        (self.acked, self.window)
    }

    /// Returns the number of bytes held.
    pub fn len(&self) -> usize {
        self.message.len() + self.early.len() * MAD_LEN
    }

    /// Returns whether nothing is held any more.
    pub fn is_empty(&self) -> bool {
        self.message.is_empty()
    }

    /// Returns whether the message is complete.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the message so far, header first.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Takes the message, when it is complete.
    pub fn take(&mut self) -> Vec<u8> {
        mem::take(&mut self.message)
    }

    fn read(&self, mad: &Mad, rmpp: &Rmpp) -> Result<Segment, RmppStatus> {
        let (first, last) =
            (rmpp.flags.contains(RmppFlags::FIRST), rmpp.flags.contains(RmppFlags::LAST));
        if rmpp.segment == 0 || first != (rmpp.segment == 1) {
            return Err(RmppStatus::FIRST_SEGMENT);
        }
        let length = if last { rmpp.length as usize } else { SEGMENT_LEN };
        let header = self.offset - OFFSET - Rmpp::LEN;
        if length < header || length > SEGMENT_LEN {
            return Err(RmppStatus::LAST_LENGTH);
        }
        let data = &mad[self.offset..self.offset + length - header];
        Ok(Segment { data: data.into(), last })
    }

    /// Moves buffered segments that are now in order to the message.
    fn advance(&mut self) {
        while let Some(segment) = self.early.remove(&(self.received + 1)) {
            self.received += 1;
            self.message.extend_from_slice(&segment.data);
            if segment.last {
                self.complete = true;
                self.early.clear();
                return;
            }
        }
    }

    fn progress(&mut self) -> Taken {
        if self.complete {
            return Taken::Complete;
        }
        if self.received < self.window {
            return Taken::Stored;
        }
        let Some(window) = self.window.checked_add(WINDOW) else { return Taken::Stored };
        self.window = window;
        Taken::Window
    }
}
