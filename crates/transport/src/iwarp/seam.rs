//! The interface between a queue pair over a stream and its driver.

use crate::env::{AccessFault, Env, TxPayload};

/// The first frame in peer-to-peer mode, with which the initiator signals that it is ready to
/// receive (RFC 6581, section 9). It carries no data.
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

/// The parameters that the two ends of a stream agreed on before it was attached to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StreamParams {
    /// Whether this end sent MPA's request.
    pub initiator: bool,
    /// Whether frames carry a CRC, in both directions.
    pub crc: bool,
    /// Whether the peer requested markers in the stream that it receives.
    pub tx_markers: bool,
    /// Whether this end requested markers in the stream that it receives.
    pub rx_markers: bool,
    /// The maximum number of outstanding local RDMA Reads and atomics.
    pub ord: u16,
    /// The maximum number of the peer's RDMA Reads and atomics that are served at a time.
    pub ird: u16,
    /// The ready-to-receive frame that was exchanged, if any. Message sequence numbers count it. If
    /// it is a Read, the responder has sent the response, and the initiator has not yet received it.
    pub rtr: Option<Rtr>,
}

/// An outgoing frame: header, payload, and padding with CRC.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Length and headers.
    pub head: &'a [u8],
    /// The payload.
    pub payload: TxPayload<'a>,
    /// The padding and CRC.
    pub tail: &'a [u8],
}

/// The reason why segments could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFault {
    /// The stream is broken. The driver is not called again to send. Data already received is still
    /// processed.
    Broken,
    /// The payload of this segment cannot be read. Nothing was sent.
    Memory {
        /// The index of the segment among those given.
        segment: usize,
        /// The reason.
        fault: AccessFault,
    },
}

/// A request of a queue pair to its driver about the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing: the stream is in use, or the queue pair has none.
    Keep,
    /// No more data will be sent: shut the sending half down, and continue to receive.
    Shutdown,
    /// The stream accepts no more data: read the received data and then the end of the stream,
    /// whether or not the peer has ended its half.
    ReadOut,
    /// Close the stream. Data that the peer has not read may still reach it.
    Close,
    /// Reset the stream.
    Abort,
}

/// The interface to the driver of a queue pair over a stream, in addition to [`Env`]. Such a queue
/// pair calls neither [`Env::transmit`] nor [`Env::link`] nor [`Env::select_srq`].
pub trait StreamEnv: Env {
    /// Writes the concatenated segments, except for the first `skip` bytes, to the stream. Returns
    /// how many bytes the stream accepted. These are fewer than given if it is full; the driver
    /// then calls `poll_transmit` when it has room again.
    ///
    /// # Errors
    /// See [`SendFault`].
    fn send(&mut self, segments: &[Segment<'_>], skip: usize) -> Result<usize, SendFault>;

    /// Copies a payload into `out`, which has the payload's length. For frames that carry a CRC or
    /// markers, and so are assembled in a buffer.
    ///
    /// # Errors
    /// See [`AccessFault`].
    fn read(&mut self, payload: &TxPayload<'_>, out: &mut [u8]) -> Result<(), AccessFault>;
}
