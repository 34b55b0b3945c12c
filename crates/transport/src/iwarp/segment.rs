//! Segments: validation, and the place of the payload (RFC 5041, section 5; RFC 5040, section 5).
//! Both are determined before any byte of the payload is placed.

use rdmux_wire::Rkey;
use rdmux_wire::iwarp::ddp::{Header, Model, Tagged, Untagged, queue};
use rdmux_wire::iwarp::rdmap::{AtomicRequest, AtomicResponse, Immediate, Opcode, ReadRequest};
use rdmux_wire::iwarp::terminate::Terminate;

use crate::attr::Access;
use crate::iwarp::StreamEnv;
use crate::iwarp::fault::Fault;
use crate::iwarp::qp::Qp;
use crate::optable::TxKind;
use crate::sq::MAX_MESSAGE;

/// Room for a message that is not placed in application memory, in bytes.
pub(super) const SMALL: usize =
    if Terminate::MAX_LEN > AtomicRequest::LEN { Terminate::MAX_LEN } else { AtomicRequest::LEN };

/// The destination of a segment's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// No destination: the segment is empty, or its payload is discarded.
    #[default]
    Nowhere,
    /// The receive in use.
    Receive { offset: u32 },
    /// The memory of the READ that is the oldest send work request.
    Sink { offset: u32 },
    /// Memory that the peer named.
    Memory { rkey: Rkey, va: u64 },
    /// The small buffer of a queue.
    Small { queue: usize, offset: u32 },
}

/// An untagged queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    /// The number of the message in progress or expected next.
    pub(super) msn: u32,
    /// Bytes of the message received so far.
    pub(super) at: u32,
    /// The opcode of the message, once it has begun.
    pub(super) opcode: Option<Opcode>,
    /// The contents of the message, if it is not placed in application memory.
    pub(super) bytes: [u8; SMALL],
}

impl Default for Inbound {
    fn default() -> Self {
        Self { msn: 1, at: 0, opcode: None, bytes: [0; SMALL] }
    }
}

impl Qp {
    /// Starts a segment. `length` is that of the whole segment, header included.
    pub(super) fn begin_segment<E: StreamEnv>(
        &mut self,
        length: u16,
        bytes: &[u8],
        env: &mut E,
    ) -> Result<(), Fault> {
        let rx = &mut self.rx;
        rx.is_first = rx.header_len == 0;
        rx.segment_len = length;
        rx.header_len = bytes.len().min(rx.header.len());
        rx.header[..rx.header_len].copy_from_slice(&bytes[..rx.header_len]);
        let len = u32::from(length) - u32::try_from(rx.header_len).unwrap_or_default();
        (rx.len, rx.opcode) = (len, None);
        let header = Header::parse(bytes).map_err(|error| Fault::of_header(&error))?;
        let place = match header.model {
            Model::Tagged(tagged) if header.opcode == Opcode::Write => {
                self.begin_write(&tagged, env)?
            }
            Model::Tagged(tagged) => self.begin_read_response(&tagged)?,
            Model::Untagged(untagged) => self.begin_untagged(header.opcode, &untagged, env)?,
        };
        let rx = &mut self.rx;
        (rx.place, rx.opcode, rx.last) = (place, Some(header.opcode), header.last());
        Ok(())
    }

    /// Checks whether this queue pair allows its peer the access.
    pub(super) fn permits(&self, access: Access) -> Result<(), Fault> {
        if self.attr.access.contains(access) { Ok(()) } else { Err(Fault::Forbidden) }
    }

    /// Starts a segment of a Write. An empty one is not checked.
    fn begin_write<E: StreamEnv>(&mut self, tagged: &Tagged, env: &E) -> Result<Place, Fault> {
        self.permits(Access::REMOTE_WRITE)?;
        let len = u64::from(self.rx.len);
        if len == 0 {
            return Ok(Place::Nowhere);
        }
        let (rkey, va) = (tagged.stag.into(), tagged.to);
        va.checked_add(len).ok_or(Fault::TargetWraps)?;
        env.check_remote(rkey, va, len, Access::REMOTE_WRITE).map_err(Fault::Target)?;
        Ok(Place::Memory { rkey, va })
    }

    /// Starts a segment of the response to the oldest READ, which is the oldest send work request.
    fn begin_read_response(&self, tagged: &Tagged) -> Result<Place, Fault> {
        let (len, offset) = (self.rx.len, self.rx.read);
        if self.tx.rtr_read {
            return if len == 0 { Ok(Place::Nowhere) } else { Err(Fault::SinkBounds) };
        }
        let head = self.sq.head;
        if !self.awaits(TxKind::Read) {
            return Err(Fault::Unasked);
        }
        let (stag, to) = self.sink(head);
        if tagged.stag != stag {
            return Err(Fault::SinkStag);
        }
        let asked = self.sq.get(head).len;
        if tagged.to != to.wrapping_add(u64::from(offset)) || len > asked - offset {
            return Err(Fault::SinkBounds);
        }
        if tagged.last && len != asked - offset {
            return Err(Fault::BadResponse);
        }
        Ok(if len == 0 { Place::Nowhere } else { Place::Sink { offset } })
    }

    /// Returns whether the oldest send work request is of this kind and has been sent.
    pub(super) fn awaits(&self, kind: TxKind) -> bool {
        self.sq.head != self.tx.taken && self.sq.get(self.sq.head).kind == kind
    }

    /// Starts a segment of an untagged message, which must be the next of its queue.
    fn begin_untagged<E: StreamEnv>(
        &mut self,
        opcode: Opcode,
        segment: &Untagged,
        env: &mut E,
    ) -> Result<Place, Fault> {
        let index = segment.qn as usize;
        let inbound = self.rx.queues.get(index).ok_or(Fault::Queue)?;
        if opcode.queue() != Some(segment.qn) {
            return Err(Fault::Opcode);
        }
        if segment.msn != inbound.msn {
            return Err(Fault::Sequence);
        }
        if segment.mo != inbound.at {
            return Err(Fault::Offset);
        }
        if inbound.opcode.is_some_and(|begun| begun != opcode) {
            return Err(Fault::Opcode);
        }
        let starts = inbound.opcode.is_none();
        let end = segment.mo.checked_add(self.rx.len).filter(|end| *end <= MAX_MESSAGE);
        let end = end.ok_or(Fault::TooLong)?;
        let place = if segment.qn == queue::SEND {
            self.begin_receive(opcode, end, starts, env)?
        } else {
            self.begin_small(opcode, end, starts)?
        };
        self.rx.queues[index].opcode = Some(opcode);
        self.rx.invalidate = segment.invalidate.into();
        Ok(match place {
            Place::Small { .. } => Place::Small { queue: index, offset: segment.mo },
            other => other,
        })
    }

    /// Starts a segment of a Send, or of immediate data. Both consume a receive.
    fn begin_receive<E: StreamEnv>(
        &mut self,
        opcode: Opcode,
        end: u32,
        starts: bool,
        env: &mut E,
    ) -> Result<Place, Fault> {
        if self.rx.discards {
            return if self.is_half_closed() { Err(Fault::NoReceive) } else { Ok(Place::Nowhere) };
        }
        if starts && !self.rq.take(env) {
            return Err(Fault::NoReceive);
        }
        self.receive_taken();
        let offset = end - self.rx.len;
        if matches!(opcode, Opcode::Immediate | Opcode::ImmediateSolicited) {
            return fixed(end, Immediate::LEN);
        }
        if u64::from(end) > self.rq.room() {
            return Err(Fault::ReceiveTooShort);
        }
        Ok(if self.rx.len == 0 { Place::Nowhere } else { Place::Receive { offset } })
    }

    /// Starts a segment of a message on another queue.
    fn begin_small(&mut self, opcode: Opcode, end: u32, starts: bool) -> Result<Place, Fault> {
        match opcode {
            Opcode::ReadRequest | Opcode::AtomicRequest => {
                if starts && self.serving.is_full() {
                    return Err(Fault::NoRead);
                }
                let read = opcode == Opcode::ReadRequest;
                fixed(end, if read { ReadRequest::LEN } else { AtomicRequest::LEN })
            }
            Opcode::AtomicResponse => {
                if !self.awaits(TxKind::FetchAdd) && !self.awaits(TxKind::CmpSwap) {
                    return Err(Fault::Unasked);
                }
                fixed(end, AtomicResponse::LEN)
            }
            // The part of a Terminate after the headers is ignored.
            _ => Ok(SMALL_PLACE),
        }
    }

    /// Places a part of the segment's payload.
    pub(super) fn put<E: StreamEnv>(&mut self, bytes: &[u8], env: &mut E) -> Result<(), Fault> {
        match self.rx.place {
            Place::Nowhere => Ok(()),
            Place::Receive { offset } => {
                env.scatter_receive(self.rq.sges(), offset, bytes).map_err(Fault::Receive)
            }
            Place::Sink { offset } => {
                let sges = self.sq.sges(self.sq.head);
                env.scatter(sges, offset, bytes).map_err(Fault::Sink)
            }
            Place::Memory { rkey, va } => env.write_remote(rkey, va, bytes).map_err(Fault::Target),
            Place::Small { queue, offset } => {
                let room =
                    self.rx.queues[queue].bytes.get_mut(offset as usize..).unwrap_or_default();
                let len = bytes.len().min(room.len());
                room[..len].copy_from_slice(&bytes[..len]);
                Ok(())
            }
        }
    }
}

/// The small buffer of a queue, which the caller fills in.
const SMALL_PLACE: Place = Place::Small { queue: 0, offset: 0 };

/// Returns the place of a message of at most `most` bytes.
fn fixed(end: u32, most: usize) -> Result<Place, Fault> {
    if end as usize > most { Err(Fault::TooLong) } else { Ok(SMALL_PLACE) }
}
