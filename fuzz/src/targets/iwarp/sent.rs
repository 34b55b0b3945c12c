//! The frames that the queue pair has sent: they are parsed, and requests are kept so that the peer can answer.

use std::collections::VecDeque;

use rdmux_testing::env::Stream;
use rdmux_transport::iwarp::{Rtr, StreamParams};
use rdmux_wire::iwarp::ddp::{Header, Model};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::rdmap::{AtomicRequest, Opcode, ReadRequest};
use rdmux_wire::iwarp::rtr;

/// The frames that the queue pair has sent.
pub(super) struct Sent {
    framing: Framing,
    /// Bytes of an incomplete frame, and their position in the stream.
    bytes: Vec<u8>,
    position: u64,
    ended: bool,
    /// READs that were sent, with how much was answered, and atomics.
    pub(super) reads: Vec<(ReadRequest, u32)>,
    pub(super) atomics: VecDeque<u32>,
}

impl Sent {
    /// Creates the state of a new stream.
    pub(super) fn new(params: &StreamParams) -> Self {
        let framing = Framing { crc: params.crc, markers: params.tx_markers };
        let before = match (params.rtr, params.initiator) {
            (Some(Rtr::Send), true) => rtr::send(framing).len(),
            (Some(Rtr::Write), true) => rtr::write(framing).len(),
            (Some(Rtr::Read), true) => rtr::read(framing).len(),
            (Some(Rtr::Read), false) => rtr::read_response(framing, &rtr::READ_REQUEST).len(),
            _ => 0,
        };
        Self {
            framing,
            bytes: Vec::new(),
            position: before as u64,
            ended: false,
            reads: Vec::new(),
            atomics: VecDeque::new(),
        }
    }

    /// Parses what was written to the stream: valid frames, one after the other, and none after a Terminate.
    pub(super) fn enter(&mut self, stream: &mut Stream) {
        self.bytes.extend(stream.bytes.drain(..));
        let mut used = 0;
        while let Some(frame) = self
            .framing
            .parse(self.position, &self.bytes[used..])
            .expect("it sends what can be read")
        {
            assert!(!self.ended, "a frame behind a Terminate");
            let (head, len) = frame.head::<{ Header::MAX_LEN + AtomicRequest::LEN }>();
            let header = Header::parse(&head[..len]).expect("it sends what can be read");
            let rest = &head[header.len()..len];
            match (header.opcode, header.model) {
                (Opcode::ReadRequest, _) => {
                    self.reads.push((ReadRequest::parse(rest).expect("whole"), 0));
                }
                (Opcode::AtomicRequest, _) => {
                    self.atomics.push_back(AtomicRequest::parse(rest).expect("whole").id);
                }
                (Opcode::Terminate, Model::Untagged(_)) => self.ended = true,
                _ => {}
            }
            used += frame.frame_len;
            self.position += frame.frame_len as u64;
        }
        self.bytes.drain(..used);
    }
}
