//! The environment of a queue pair with a stream.

use std::io;

use arrayvec::ArrayVec;
use rdmux_link::tcp::{MAX_PIECES, Received};
use rdmux_link::{Frame, LinkError, Payload, Piece, TcpStream, Wire};
use rdmux_transport::attr::Access;
use rdmux_transport::env::{AccessFault, Side, TxPayload};
use rdmux_transport::iwarp::{Direct, Segment, SendFault, StreamEnv};

use crate::engine::env::{Here, QpEnv, asker, parts};
use crate::engine::wire::Path;
use crate::objects::counters::{Counter, Counters};
use crate::objects::region::Located;

/// A single frame with a payload of at most this many bytes is sent as one run of bytes: copying them takes less time than
/// passing them to the kernel as pieces.
const SHORT: usize = 512;
/// The size of a buffer for such a frame.
const SHORT_FRAME: usize = SHORT + 128;

/// Pieces of memory that are sent or received together.
type Gathered = ArrayVec<Piece, MAX_PIECES>;

/// The reason why a payload is not gathered as pieces.
enum Trouble {
    /// There is no room for more pieces.
    Full,
    /// The memory belongs to another process, and must be copied.
    Foreign,
    /// Access is not permitted.
    Fault(AccessFault),
}

impl From<AccessFault> for Trouble {
    fn from(fault: AccessFault) -> Self {
        Self::Fault(fault)
    }
}

fn bytes(bytes: &[u8]) -> Piece {
    Piece::new(bytes.as_ptr(), bytes.len())
}

fn add(to: &mut Gathered, at: &Located<'_>, len: u32) -> Result<(), Trouble> {
    let piece = at.space.piece(at.addr, len as usize).ok_or(Trouble::Foreign)?;
    to.try_push(piece).map_err(|_| Trouble::Full)
}

impl QpEnv<'_> {
    /// Adds the memory of a payload as pieces.
    fn name(&self, payload: &TxPayload<'_>, to: &mut Gathered) -> Result<(), Trouble> {
        let Here::Own(objects, regions) = &self.here else { return Err(AccessFault::Key.into()) };
        match *payload {
            TxPayload::None => Ok(()),
            TxPayload::Bytes(data) => to.try_push(bytes(data)).map_err(|_| Trouble::Full),
            TxPayload::Gather { sges, offset, len } => {
                let pd = objects.pd;
                parts(sges, offset, len).try_for_each(|(sge, addr, take)| {
                    let at = regions.local(pd, sge.lkey, addr, take.into(), Access::empty())?;
                    add(to, &at, take)
                })
            }
            TxPayload::Remote { rkey, va, len, .. } => {
                let who = asker(self.core, objects);
                let at = regions.remote(who, rkey, va, len.into(), Access::REMOTE_READ)?;
                add(to, &at, len)
            }
        }
    }

    /// Adds a whole segment as pieces. Leaves `to` unchanged if that is not possible.
    fn name_segment(&self, segment: &Segment<'_>, to: &mut Gathered) -> Result<(), Trouble> {
        let before = to.len();
        let named = to
            .try_push(bytes(segment.head))
            .map_err(|_| Trouble::Full)
            .and_then(|()| self.name(&segment.payload, to))
            .and_then(|()| to.try_push(bytes(segment.tail)).map_err(|_| Trouble::Full));
        if named.is_err() {
            to.truncate(before);
        }
        named
    }

    /// Writes pieces to the stream.
    fn write(&self, pieces: &[Piece], skip: usize) -> io::Result<usize> {
        let payload = Payload::Pieces(pieces);
        self.write_frame(&Frame { header: &[], payload, pad: 0, ack: None }, skip)
    }

    /// Writes as much as the stream has room for, except the first `skip` bytes. Returns how much was written.
    fn write_frame(&self, frame: &Frame<'_>, skip: usize) -> io::Result<usize> {
        let Path::Stream(stream) = &*self.path else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut sent = skip;
        match stream.tcp.send(&mut sent, &(), frame) {
            Ok(()) | Err(LinkError::Busy) => {}
            Err(LinkError::Io(error)) => return Err(error),
            Err(other) => return Err(io::Error::other(other)),
        }
        let taken = sent - skip;
        let counters = Counters(self.device.counters());
        counters.add(Counter::TxCalls, 1);
        counters.add(Counter::TxBytes, taken as u64);
        Ok(taken)
    }

    /// Writes one short segment as one run of bytes.
    fn write_short(&mut self, segment: &Segment<'_>, len: usize) -> Result<usize, SendFault> {
        let mut frame = [0; SHORT_FRAME];
        let Segment { head, payload, tail } = segment;
        let (body, end) = (head.len(), head.len() + len);
        frame[..body].copy_from_slice(head);
        self.read(payload, &mut frame[body..end])
            .map_err(|fault| SendFault::Memory { segment: 0, fault })?;
        frame[end..end + tail.len()].copy_from_slice(tail);
        let header = &frame[..end + tail.len()];
        let run = Frame { header, payload: Payload::None, pad: 0, ack: None };
        self.write_frame(&run, 0).map_err(|_| SendFault::Broken)
    }

    /// Writes one segment through a copy: its memory is another process's, or was found not to be mapped.
    fn write_copy(&mut self, segment: &Segment<'_>, skip: usize) -> Result<usize, SendFault> {
        let len = payload_len(&segment.payload);
        let mut copy = std::mem::take(self.bounce);
        copy.clear();
        copy.resize(len, 0);
        let sent = self
            .read(&segment.payload, &mut copy)
            .map_err(|fault| SendFault::Memory { segment: 0, fault })
            .and_then(|()| {
                let pieces = [bytes(segment.head), bytes(&copy), bytes(segment.tail)];
                self.write(&pieces, skip).map_err(|_| SendFault::Broken)
            });
        *self.bounce = copy;
        sent
    }

    /// Receives incoming bytes directly to their destination, if they are at least `min` and all may be written. Bytes that
    /// follow them go to `rest`. Also returns how many bytes belong to the destination.
    pub(crate) fn receive_direct(
        &mut self,
        tcp: &TcpStream,
        direct: &Direct<'_>,
        min: usize,
        rest: &mut [u8],
    ) -> Option<(io::Result<Received>, u32)> {
        let Here::Own(objects, regions) = &self.here else { return None };
        let mut pieces = Gathered::new();
        let len = match *direct {
            Direct::Local { sges, offset, len, side } if len as usize >= min => {
                let pd = match side {
                    Side::Send => objects.pd,
                    Side::Recv => objects.recv_pd,
                };
                for (sge, addr, take) in parts(sges, offset, len) {
                    let rights = Access::LOCAL_WRITE;
                    let at = regions.local(pd, sge.lkey, addr, take.into(), rights).ok()?;
                    add(&mut pieces, &at, take).ok()?;
                }
                len
            }
            Direct::Remote { rkey, va, len } if len as usize >= min => {
                let who = asker(self.core, objects);
                let at = regions.remote(who, rkey, va, len.into(), Access::REMOTE_WRITE).ok()?;
                add(&mut pieces, &at, len).ok()?;
                len
            }
            _ => return None,
        };
        let room = pieces.iter().map(|p| p.len()).sum::<usize>();
        if room != len as usize || pieces.len() == MAX_PIECES {
            return None;
        }
        match crate::objects::memory::receive(tcp, &pieces, rest) {
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => None,
            received => Some((received, len)),
        }
    }
}

/// Returns the length of a payload in bytes.
fn payload_len(payload: &TxPayload<'_>) -> usize {
    match payload {
        TxPayload::None => 0,
        TxPayload::Bytes(data) => data.len(),
        TxPayload::Gather { len, .. } | TxPayload::Remote { len, .. } => *len as usize,
    }
}

impl StreamEnv for QpEnv<'_> {
    fn send(&mut self, segments: &[Segment<'_>], skip: usize) -> Result<usize, SendFault> {
        if let ([segment], 0) = (segments, skip) {
            let len = payload_len(&segment.payload);
            if len <= SHORT && segment.head.len() + len + segment.tail.len() <= SHORT_FRAME {
                return self.write_short(segment, len);
            }
        }
        let mut pieces = Gathered::new();
        let mut fault = None;
        for (index, segment) in segments.iter().enumerate() {
            match self.name_segment(segment, &mut pieces) {
                Ok(()) => {}
                // The segments before it are sent first.
                Err(_) if index != 0 => break,
                Err(Trouble::Foreign | Trouble::Full) => return self.write_copy(segment, skip),
                Err(Trouble::Fault(why)) => {
                    fault = Some(why);
                    break;
                }
            }
        }
        if let Some(fault) = fault {
            return Err(SendFault::Memory { segment: 0, fault });
        }
        match self.write(&pieces, skip) {
            Ok(taken) => Ok(taken),
            // Some page is not mapped. The copy determines the segment, and segments before it are sent.
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => match segments.first() {
                Some(first) => self.write_copy(first, skip),
                None => Ok(0),
            },
            Err(error) => {
                tracing::debug!(qpn = %self.core.qpn, %error, "cannot send on a stream");
                Err(SendFault::Broken)
            }
        }
    }

    fn read(&mut self, payload: &TxPayload<'_>, out: &mut [u8]) -> Result<(), AccessFault> {
        let Here::Own(objects, regions) = &self.here else { return Err(AccessFault::Key) };
        match *payload {
            TxPayload::None => Ok(()),
            TxPayload::Bytes(data) => {
                out.copy_from_slice(data);
                Ok(())
            }
            TxPayload::Gather { sges, offset, len } => {
                let mut rest = out;
                for (sge, addr, take) in parts(sges, offset, len) {
                    let (now, later) = rest.split_at_mut((take as usize).min(rest.len()));
                    let (pd, rights) = (objects.pd, Access::empty());
                    let at = regions.local(pd, sge.lkey, addr, take.into(), rights)?;
                    at.space.read(at.addr, now)?;
                    rest = later;
                }
                if rest.is_empty() { Ok(()) } else { Err(AccessFault::Bounds) }
            }
            TxPayload::Remote { rkey, va, len, .. } => {
                let who = asker(self.core, objects);
                let at = regions.remote(who, rkey, va, len.into(), Access::REMOTE_READ)?;
                at.space.read(at.addr, out)
            }
        }
    }
}
