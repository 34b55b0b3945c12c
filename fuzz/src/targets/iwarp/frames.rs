//! Frames of a usually correct peer.

use rdmux_transport::iwarp::{Rtr, StreamParams};
use rdmux_wire::Stag;
use rdmux_wire::iwarp::ddp::{Header, Model, Tagged, Untagged};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::rdmap::{AtomicOp, AtomicRequest, AtomicResponse, Opcode, ReadRequest};
use rdmux_wire::iwarp::rtr;

use super::{Script, ZEROES};

/// The state of the peer's stream.
pub(super) struct Peer {
    framing: Framing,
    position: u64,
    msn: [u32; 4],
    mo: [u32; 4],
    /// The message in progress of each queue.
    inside: [Option<Opcode>; 4],
}

impl Peer {
    pub(super) fn new(params: &StreamParams) -> Self {
        let framing = Framing { crc: params.crc, markers: params.rx_markers };
        let mut msn = [1; 4];
        let position = match (params.rtr, params.initiator) {
            (Some(Rtr::Send), false) => {
                msn[0] = 2;
                rtr::send(framing).len()
            }
            (Some(Rtr::Write), false) => rtr::write(framing).len(),
            (Some(Rtr::Read), false) => {
                msn[1] = 2;
                rtr::read(framing).len()
            }
            _ => 0,
        };
        Self { framing, position: position as u64, msn, mo: [0; 4], inside: [None; 4] }
    }

    fn emit(&mut self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let header = header.to_buf();
        let len = self.framing.frame_len(self.position, header.len() + payload.len());
        let mut bytes = vec![0; len];
        self.framing.emit(self.position, &[&header, payload], &mut bytes);
        self.position += bytes.len() as u64;
        bytes
    }
}

impl Script<'_> {
    /// Returns the next frame of the peer.
    pub(super) fn frame(&mut self) -> Vec<u8> {
        let opcode = Opcode::ALL[usize::from(self.byte()) % Opcode::ALL.len()];
        let opcode = match opcode {
            // A Terminate would end the stream too early, so most are replaced.
            Opcode::Terminate if self.byte() > 16 => Opcode::Write,
            other => other,
        };
        let last = self.byte() > 80;
        match opcode {
            Opcode::Write => {
                let len = (self.length() % 3000) as usize;
                let model = Tagged { last, stag: Stag(self.byte().into()), to: self.address() };
                let header = Header::new(opcode, Model::Tagged(model));
                self.peer.emit(&header, &ZEROES[..len])
            }
            Opcode::ReadResponse => self.response(),
            _ => self.untagged(opcode, last),
        }
    }

    /// Returns a part of the response to the oldest READ.
    fn response(&mut self) -> Vec<u8> {
        let strange = self.byte() < 4;
        let (request, done) = self.sent.reads.first().copied().unwrap_or((rtr::READ_REQUEST, 0));
        let rest = request.len - done;
        let len = if strange { rest + 1 } else { rest.min(self.length() % 3000) }.min(9000);
        let last = len == rest;
        let to = request.sink_to.wrapping_add(done.into());
        if last && !self.sent.reads.is_empty() {
            self.sent.reads.remove(0);
        } else if let Some(read) = self.sent.reads.first_mut() {
            read.1 = done.saturating_add(len).min(request.len);
        }
        let model = Tagged { last, stag: request.sink_stag, to };
        let header = Header::new(Opcode::ReadResponse, Model::Tagged(model));
        self.peer.emit(&header, &ZEROES[..len as usize])
    }

    fn untagged(&mut self, opcode: Opcode, last: bool) -> Vec<u8> {
        let qn = opcode.queue().expect("it is untagged");
        let index = qn as usize;
        let begun = self.peer.inside[index].is_some();
        let opcode = self.peer.inside[index].unwrap_or(opcode);
        let payload: Vec<u8> = match opcode {
            Opcode::ReadRequest => ReadRequest {
                sink_stag: Stag(1),
                sink_to: self.address(),
                len: self.length(),
                source_stag: Stag(self.byte().into()),
                source_to: self.address(),
            }
            .to_bytes()
            .to_vec(),
            Opcode::AtomicRequest => AtomicRequest {
                op: if last { AtomicOp::FetchAdd } else { AtomicOp::CmpSwap },
                id: 9,
                stag: Stag(self.byte().into()),
                to: self.address(),
                data: 1,
                mask: if self.byte() < 64 { 5 } else { 0 },
                compare: 7,
                compare_mask: u64::MAX,
            }
            .to_bytes()
            .to_vec(),
            Opcode::AtomicResponse => {
                let id = self.sent.atomics.pop_front().unwrap_or_default();
                AtomicResponse { id, original: 5 }.to_bytes().to_vec()
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => vec![1; 8],
            Opcode::Terminate => (0..self.byte() % 60).map(|i| i * 3).collect(),
            _ => ZEROES[..(self.length() % 3000) as usize].to_vec(),
        };
        // Usually the whole payload in one segment.
        let whole = !begun && self.byte() > 32;
        let len = if whole { payload.len() } else { payload.len().min(self.byte().into()) };
        let last = whole || last;
        let strange = u32::from(self.byte() == 77);
        let (msn, mo) = (self.peer.msn[index] + strange, self.peer.mo[index]);
        let model = Untagged { last, invalidate: Stag(self.byte().into()), qn, msn, mo };
        if last {
            self.peer.msn[index] += 1;
            (self.peer.mo[index], self.peer.inside[index]) = (0, None);
        } else {
            self.peer.mo[index] += u32::try_from(len).expect("of one frame");
            self.peer.inside[index] = Some(opcode);
        }
        self.peer.emit(&Header::new(opcode, Model::Untagged(model)), &payload[..len])
    }
}
