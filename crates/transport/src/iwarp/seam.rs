//! The seam between a queue pair over a stream and its driver.

use crate::env::{AccessFault, Env, TxPayload};

/// The first frame of peer-to-peer mode, by which the initiator says that it is ready to receive
/// (RFC 6581, section 9). It carries no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Rtr {
    /// An FPDU with a Send.
    Send,
    /// An RDMA Write.
    Write,
    /// An RDMA Read, which the responder answers.
    Read,
}

/// What the two ends of a stream agreed on before it became a queue pair's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StreamParams {
    /// Whether we sent MPA's request.
    pub initiator: bool,
    /// Whether frames carry a CRC, in both directions.
    pub crc: bool,
    /// Whether the peer wants markers in what it receives.
    pub tx_markers: bool,
    /// Whether we asked for markers in what we receive.
    pub rx_markers: bool,
    /// RDMA Reads and atomics that we may have outstanding.
    pub ord: u16,
    /// RDMA Reads and atomics of the peer that we serve at a time.
    pub ird: u16,
    /// The ready-to-receive frame that was exchanged, if one was. Message sequence numbers count it; of
    /// a Read the initiator has yet to receive the response, which the responder has sent.
    pub rtr: Option<Rtr>,
}

/// One frame on its way: header, payload, and padding with CRC.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Length and headers.
    pub head: &'a [u8],
    /// What follows them.
    pub payload: TxPayload<'a>,
    /// What follows that.
    pub tail: &'a [u8],
}

/// Why segments could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFault {
    /// The stream is broken. It is not called again; what has come on it is still taken.
    Broken,
    /// The payload of this segment cannot be read. Nothing was sent.
    Memory {
        /// Its index among those given.
        segment: usize,
        /// Why.
        fault: AccessFault,
    },
}

/// What a queue pair wants done with its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing: it is in use, or there is none.
    Keep,
    /// No more will be sent: shut the sending half down, and go on receiving.
    Shutdown,
    /// The stream takes nothing any more: receive what has come, and behind that its end, whether or not the peer has
    /// ended its half.
    ReadOut,
    /// Close it; what the peer has not taken yet may still reach it.
    Close,
    /// Reset it.
    Abort,
}

/// What a queue pair over a stream asks of its driver besides what every queue pair does. It calls
/// neither [`Env::transmit`] nor [`Env::link`] nor [`Env::select_srq`].
pub trait StreamEnv: Env {
    /// Writes the segments, as if one behind the other, to the stream, but for the first `skip` bytes.
    /// Returns how many bytes the stream took: fewer than there are when it is full, and then the driver calls
    /// `poll_transmit` when it is not.
    ///
    /// # Errors
    /// See [`SendFault`].
    fn send(&mut self, segments: &[Segment<'_>], skip: usize) -> Result<usize, SendFault>;

    /// Copies a payload into `out`, which is as long as it: for frames that are not sent as they lie, for
    /// they carry a CRC or markers.
    ///
    /// # Errors
    /// See [`AccessFault`].
    fn read(&mut self, payload: &TxPayload<'_>, out: &mut [u8]) -> Result<(), AccessFault>;
}
