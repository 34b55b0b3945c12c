//! Ready-to-receive frames: the first frame in peer-to-peer mode, from the initiator, without data
//! (RFC 6581, section 9.3). They are ordinary frames and count in sequence numbers.

use core::ops::Deref;

use super::ddp::{Header, Model, Tagged, Untagged, queue};
use super::fpdu::Framing;
use super::rdmap::{Opcode, ReadRequest};
use crate::Stag;

/// The STag of the memory, which is not accessed. Some adapters treat 0 specially.
pub const STAG: Stag = Stag(1);

/// The request of a zero-length Read.
pub const READ_REQUEST: ReadRequest =
    ReadRequest { sink_stag: STAG, sink_to: 0, len: 0, source_stag: STAG, source_to: 0 };

/// A complete frame, the first of its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    bytes: [u8; Frame::MAX_LEN],
    len: usize,
}

impl Frame {
    /// The length of the longest frame, in bytes.
    pub const MAX_LEN: usize = 64;

    fn new(framing: Framing, header: Header, payload: &[u8]) -> Self {
        let mut bytes = [0; Self::MAX_LEN];
        let len = framing.emit(0, &[&header.to_buf(), payload], &mut bytes);
        Self { bytes, len }
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns a zero-length Send.
pub fn send(framing: Framing) -> Frame {
    Frame::new(framing, untagged(Opcode::Send, queue::SEND), &[])
}

/// Returns a zero-length RDMA Write.
pub fn write(framing: Framing) -> Frame {
    Frame::new(framing, tagged(Opcode::Write, STAG, 0), &[])
}

/// Returns a zero-length RDMA Read, to which [`read_response`] is the response.
pub fn read(framing: Framing) -> Frame {
    let header = untagged(Opcode::ReadRequest, queue::READ_REQUEST);
    Frame::new(framing, header, &READ_REQUEST.to_bytes())
}

/// Returns the response to a zero-length RDMA Read.
pub fn read_response(framing: Framing, request: &ReadRequest) -> Frame {
    Frame::new(framing, tagged(Opcode::ReadResponse, request.sink_stag, request.sink_to), &[])
}

const fn tagged(opcode: Opcode, stag: Stag, to: u64) -> Header {
    Header::new(opcode, Model::Tagged(Tagged { last: true, stag, to }))
}

const fn untagged(opcode: Opcode, qn: u32) -> Header {
    let untagged = Untagged { last: true, invalidate: Stag(0), qn, msn: 1, mo: 0 };
    Header::new(opcode, Model::Untagged(untagged))
}
