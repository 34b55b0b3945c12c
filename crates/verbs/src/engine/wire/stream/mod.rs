//! Streams of iWARP: from the service to a queue pair, bytes in, and the end.
//!
//! A round receives from each stream that has something. Long payloads of a frame whose header has come go
//! from the socket to where they belong, together with the next header; everything else comes into a buffer that
//! the rounds share, and the machine copies from there. What it cannot use yet, a part of a frame, is kept with the
//! queue pair.
//!
//! A stream whose next message waits for a receive is left unread: no round looks at it, and it wakes nobody, until
//! a receive is posted, to the queue pair or to its shared queue, or the time is over. So is one whose end was read, if
//! there is something to send on it.

mod env;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdmux_link::tcp::Received;
use rdmux_link::{LinkCaps, TcpStream, Wire};
use rdmux_transport::Time;
use rdmux_transport::iwarp::{StreamParams, Wish};
use rdmux_wire::Qpn;
use rustix::event::{Timespec, epoll};

use super::{Inbound, Path};
use crate::engine::device::Device;
use crate::engine::drive::Bound;
use crate::engine::wait::Waiter;
use crate::engine::{Engine, Table, with_qp};
use crate::objects::counters::{Counter, Counters};
use crate::objects::srq::SrqCore;

/// Bytes of the buffer that rounds receive into.
const BUFFER: usize = 256 * 1024;
/// Payload that is shorter than this is not worth a system call of its own.
const DIRECT: usize = 8 * 1024;
/// What is received behind a payload that goes where it belongs: the CRC of its frame, and the next
/// header, the longer of the two.
const BEHIND: usize = 24;
/// How often a round receives from one stream before others get their turn.
const TURNS: usize = 16;
/// So many streams are looked at one by one; of more, those that the kernel says have something.
const FEW: usize = 4;
/// How many streams one round takes in.
const READY: usize = 64;

/// A queue pair's stream.
#[derive(Debug)]
pub(crate) struct StreamPath {
    tcp: Arc<TcpStream>,
    /// The service's number of it.
    number: u64,
    /// A part of a frame that came without its rest, or all that came with a message that waits for a receive.
    held: Vec<u8>,
    /// Whether our half was ended, and whether what has come is all that is received.
    shut: bool,
    read_out: bool,
    /// Whether it is left unread.
    paused: bool,
    /// Whether it is on the list of those that are to be read again.
    resuming: bool,
}

/// A stream that is of no more use.
#[derive(Debug)]
pub(crate) struct Ended {
    qpn: Qpn,
    number: u64,
    tcp: Arc<TcpStream>,
}

/// A queue pair whose stream is to be read again, and the shared receive queue where a receive was posted, if that
/// is why.
pub(crate) type Resumed = (Qpn, Weak<SrqCore>);

impl StreamPath {
    /// What the wire can do.
    pub(super) fn caps(&self) -> LinkCaps {
        self.tcp.caps()
    }

    /// It is of no more use to its queue pair.
    pub(crate) fn ended(&self, qpn: Qpn) -> Ended {
        Ended { qpn, number: self.number, tcp: self.tcp.clone() }
    }
}

/// All streams of a device.
#[derive(Debug)]
pub(crate) struct Streams {
    epoll: OwnedFd,
    /// Those that rounds look at, and those that are left unread.
    open: Vec<(Qpn, Arc<TcpStream>)>,
    paused: Vec<Arc<TcpStream>>,
    buffer: Box<[u8]>,
    ready: Vec<(Qpn, Arc<TcpStream>)>,
}

impl Streams {
    pub(crate) fn new(waiter: &Waiter) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        waiter.add(epoll.as_fd())?;
        let (open, paused, ready) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { epoll, open, paused, buffer: Box::default(), ready })
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    fn add(&mut self, qpn: Qpn, tcp: Arc<TcpStream>) -> io::Result<()> {
        self.watch(qpn, &tcp)?;
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER].into_boxed_slice();
        }
        self.open.push((qpn, tcp));
        Ok(())
    }

    fn watch(&self, qpn: Qpn, tcp: &Arc<TcpStream>) -> io::Result<()> {
        let token = epoll::EventData::new_u64(u64::from(qpn.get()));
        Ok(epoll::add(&self.epoll, tcp.as_fd(), token, epoll::EventFlags::IN)?)
    }

    /// Rounds leave a stream alone, and it wakes nobody.
    fn pause(&mut self, tcp: &Arc<TcpStream>) {
        let _ = epoll::delete(&self.epoll, tcp.as_fd());
        self.open.retain(|(_, open)| !Arc::ptr_eq(open, tcp));
        self.paused.push(tcp.clone());
    }

    /// Rounds look at a paused stream again.
    fn resume(&mut self, qpn: Qpn, tcp: Arc<TcpStream>) {
        let before = self.paused.len();
        self.paused.retain(|paused| !Arc::ptr_eq(paused, &tcp));
        if self.paused.len() == before {
            return;
        }
        if let Err(error) = self.watch(qpn, &tcp) {
            tracing::warn!(%qpn, %error, "a stream is looked at by rounds only");
        }
        self.open.push((qpn, tcp));
    }

    /// Returns whether there was one.
    fn remove(&mut self, tcp: &Arc<TcpStream>) -> bool {
        // Fails only if it is not there.
        let _ = epoll::delete(&self.epoll, tcp.as_fd());
        let before = self.open.len() + self.paused.len();
        self.open.retain(|(_, open)| !Arc::ptr_eq(open, tcp));
        self.paused.retain(|paused| !Arc::ptr_eq(paused, tcp));
        self.open.len() + self.paused.len() != before
    }

    /// Finds the streams that may have something.
    fn find_ready(&mut self) {
        self.ready.clear();
        if self.open.len() <= FEW {
            return self.ready.extend(self.open.iter().cloned());
        }
        let mut events = [const { std::mem::MaybeUninit::uninit() }; READY];
        // An interruption is no reason to wait: the next round looks again.
        let Ok((found, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()))
        else {
            return;
        };
        for event in found {
            let qpn = event.data.u64();
            let named = |(open, _): &&(Qpn, Arc<TcpStream>)| u64::from(open.get()) == qpn;
            self.ready.extend(self.open.iter().find(named).cloned());
        }
    }
}

impl Engine {
    /// A stream has come for a queue pair.
    pub(super) fn take_stream(
        &self,
        device: &Arc<Device>,
        (qpn, number): (Qpn, u64),
        stream: OwnedFd,
        params: &StreamParams,
        receive_wait: Duration,
    ) {
        let taken = TcpStream::new(stream).and_then(|tcp| {
            let tcp = Arc::new(tcp);
            let mulpdu = mulpdu(tcp.max_segment());
            self.inbound(|inbound| inbound.streams().add(qpn, tcp.clone()))?;
            let table = device.qps().read();
            let attached = table.get(qpn).is_some_and(|core| {
                let mut bound = Bound::lock(device, core);
                bound.attach((tcp.clone(), number), params, (mulpdu, receive_wait))
            });
            drop(table);
            if !attached {
                self.end_stream(Ended { qpn, number, tcp });
            }
            Ok(())
        });
        if let Err(error) = taken {
            tracing::debug!(%qpn, %error, "no stream can be taken");
            device.control().stream_ended(qpn, number);
        }
    }

    /// The program disconnects.
    pub(super) fn close_stream(&self, device: &Arc<Device>, qpn: Qpn, number: u64) {
        let mut found = false;
        with_qp(device, &device.qps().read(), qpn, |bound| {
            found = bound.driven().path.stream().is_some_and(|stream| stream.number == number);
            if !found {
                return;
            }
            let now = device.now();
            bound.run(|machine, env| {
                if let Some(qp) = machine.stream() {
                    qp.shutdown(now, env);
                }
            });
            bound.transmit();
        });
        if !found {
            // It has ended, or could not be taken. The service may be told twice.
            device.control().stream_ended(qpn, number);
        }
    }

    /// A stream is of no more use. It is closed with the round, and the service told.
    pub(crate) fn end_stream(&self, ended: Ended) {
        self.wires.ended.lock().push(ended);
        self.queued.store(true, std::sync::atomic::Ordering::Release);
        self.wake_sleeper();
    }

    /// Goes on with streams that were left unread, and closes those that have ended.
    pub(in crate::engine) fn tend_streams(&self, device: &Arc<Device>, inbound: &mut Inbound) {
        self.resume_streams(device, inbound.streams());
        self.close_ended(device, inbound.streams());
    }

    /// Whether a stream is to be read again.
    pub(in crate::engine) fn has_resumed(&self) -> bool {
        !self.wires.resumed.lock().is_empty()
    }

    /// Whether a stream is to be closed.
    pub(in crate::engine) fn has_ended(&self) -> bool {
        !self.wires.ended.lock().is_empty()
    }

    /// Closes what has ended.
    fn close_ended(&self, device: &Arc<Device>, streams: &mut Streams) {
        loop {
            let Some(Ended { qpn, number, tcp }) = self.wires.ended.lock().pop() else { return };
            if streams.remove(&tcp) {
                drop(tcp);
                device.control().stream_ended(qpn, number);
            }
        }
    }

    /// The stream of a queue pair is to be read again, by the next round.
    pub(crate) fn resume_stream(&self, qpn: Qpn, srq: Weak<SrqCore>) {
        self.wires.resumed.lock().push((qpn, srq));
        self.queued.store(true, std::sync::atomic::Ordering::Release);
        self.wake_sleeper();
    }

    /// As [`resume_stream`](Self::resume_stream), for the queue pair whose turn it is at a shared receive queue.
    fn resume_next(&self, next: Option<Qpn>, srq: &Arc<SrqCore>) {
        if let Some(qpn) = next {
            self.resume_stream(qpn, Arc::downgrade(srq));
        }
    }

    /// Goes on with streams for whose messages there may be a receive now, or that need none any more.
    fn resume_streams(&self, device: &Arc<Device>, streams: &mut Streams) {
        let resumed = std::mem::take(&mut *self.wires.resumed.lock());
        if resumed.is_empty() {
            return;
        }
        let table = device.qps().read();
        for (qpn, srq) in resumed {
            let mut waits = false;
            if let Some(core) = table.get(qpn) {
                let mut bound = Bound::lock(device, core);
                if let Some(tcp) = bound.go_on_with_stream() {
                    streams.resume(qpn, tcp);
                }
                waits = bound.machine().waits_for_receive();
            }
            if let Some(srq) = srq.upgrade().filter(|_| !waits) {
                self.resume_next(srq.leave_line(qpn), &srq);
            }
        }
    }

    /// Processes the bytes that arrived on streams. Returns how many receives brought something.
    pub(in crate::engine) fn receive_streams(
        &self,
        device: &Arc<Device>,
        table: &Table<'_>,
        inbound: &mut Inbound,
    ) -> usize {
        let streams = inbound.streams();
        if streams.len() == 0 {
            return 0;
        }
        streams.find_ready();
        let mut received = 0;
        let mut ready = std::mem::take(&mut streams.ready);
        for (qpn, tcp) in ready.drain(..) {
            let Some(core) = table.get(qpn) else { continue };
            let (count, paused) =
                Bound::lock(device, core).receive_stream(&tcp, &mut streams.buffer);
            received += count;
            if paused {
                streams.pause(&tcp);
            }
        }
        streams.ready = ready;
        received
    }
}

/// The most bytes of a frame that carries part of a message, so that the frame fills a segment of the
/// stream (RFC 5044 section 4.2).
fn mulpdu(segment: usize) -> u32 {
    /// A frame's length field is 16 bits, and its payload is padded to words.
    const MOST: usize = 65_532;
    let ulpdu = segment.saturating_sub(6 + segment % 4);
    u32::try_from(ulpdu.min(MOST)).unwrap_or(u32::MAX)
}

impl Bound<'_> {
    /// Takes the stream away that a queue pair in RESET may not have.
    pub(in crate::engine) fn forget_stream(&mut self) {
        let qpn = self.qpn();
        if let Some(stream) = self.driven().path.stream() {
            stream.tcp.reset_on_close();
            let ended = stream.ended(qpn);
            self.driven().path = Path::None;
            self.device().engine().end_stream(ended);
        }
    }

    fn attach(
        &mut self,
        (tcp, number): (Arc<TcpStream>, u64),
        params: &StreamParams,
        limits: (u32, Duration),
    ) -> bool {
        let path = StreamPath {
            tcp,
            number,
            held: Vec::new(),
            shut: false,
            read_out: false,
            paused: false,
            resuming: false,
        };
        let path = Path::Stream(path);
        let before = std::mem::replace(&mut self.driven().path, path);
        let now = self.device().now();
        let attached = self.run(|machine, env| machine.attach(now, params, limits, env));
        if let Err(error) = &attached {
            tracing::debug!(qpn = %self.qpn(), %error, "no stream can be taken");
            self.driven().path = before;
        } else {
            self.transmit();
        }
        attached.is_ok()
    }

    /// Receives until there is no more, or other queue pairs or threads must have their turn, or a message waits for a
    /// receive. Returns how
    /// many receives brought something, and whether the stream is to be left unread now.
    fn receive_stream(&mut self, tcp: &Arc<TcpStream>, buffer: &mut [u8]) -> (usize, bool) {
        let (mut received, mut paused) = (0, false);
        for _ in 0..TURNS {
            let Some(StreamPath { tcp: own, held, .. }) = self.driven().path.stream() else {
                break;
            };
            if !Arc::ptr_eq(own, tcp) {
                break;
            }
            let held = std::mem::take(held);
            let (more, held) = self.receive_once(tcp, buffer, held);
            paused = self.machine().waits_for_receive();
            if let Some(path) = self.driven().path.stream() {
                (path.held, path.paused) = (held, paused);
            }
            if paused {
                self.wait_for_receive();
                received += 1;
                break;
            }
            match more {
                More::Nothing => break,
                More::Last => {
                    received += 1;
                    break;
                }
                More::Perhaps => received += 1,
                More::Never => {
                    // It would be readable for as long as there is something to send.
                    (received, paused) = (received + 1, true);
                    break;
                }
            }
            if self.has_waiters() {
                break;
            }
        }
        if received != 0 {
            Counters(self.device().counters()).add(Counter::RxCalls, received as u64);
            self.transmit();
        }
        (received, paused)
    }

    /// Presents again the bytes that arrived with a message that waited for a receive. Returns the stream if it is to be read again.
    fn go_on_with_stream(&mut self) -> Option<Arc<TcpStream>> {
        let path = self.driven().path.stream().filter(|path| path.paused)?;
        path.resuming = false;
        let mut held = std::mem::take(&mut path.held);
        let now = self.device().now();
        let used = self.handle_bytes(now, &held);
        held.drain(..used);
        // What is left is a part of a frame, which needs little room.
        held.shrink_to_fit();
        let paused = self.machine().waits_for_receive();
        let resumed = self.driven().path.stream().and_then(|path| {
            (path.held, path.paused) = (held, paused);
            (!paused).then(|| path.tcp.clone())
        });
        if paused && used != 0 {
            self.wait_for_receive();
        }
        self.transmit();
        resumed
    }

    /// Another message waits for a receive: of a shared queue until it is this queue pair's turn.
    fn wait_for_receive(&mut self) {
        Counters(self.device().counters()).add(Counter::RxWaits, 1);
        if let Some(srq) = self.srq() {
            self.device().engine().resume_next(srq.join_line(self.qpn()), srq);
        }
    }

    /// Whether the stream is left unread.
    pub(crate) fn is_paused(&mut self) -> bool {
        self.driven().path.stream().is_some_and(|path| path.paused)
    }

    /// Reads a paused stream again if there is no reason left to wait.
    fn resume_stream(&mut self) {
        if self.driven().path.stream().is_none_or(|path| !path.paused || path.resuming)
            || self.machine().waits_for_receive()
        {
            return;
        }
        if let Some(path) = self.driven().path.stream() {
            path.resuming = true;
        }
        self.device().engine().resume_stream(self.qpn(), Weak::new());
    }

    /// One receive. Takes what was held back, and returns what is held back now.
    fn receive_once(
        &mut self,
        tcp: &Arc<TcpStream>,
        buffer: &mut [u8],
        mut held: Vec<u8>,
    ) -> (More, Vec<u8>) {
        let now = self.device().now();
        let (got, placed) = self.run(|machine, env| {
            let Some(machine) = machine.stream() else { return (Ok(Received::Nothing), 0) };
            if held.is_empty()
                && let Some(direct) = machine.direct()
                && let Some((got, room)) =
                    env.receive_direct(tcp, &direct, DIRECT, &mut buffer[..BEHIND])
            {
                if let Ok(Received::Bytes(n)) = got {
                    let placed = u32::try_from(n).unwrap_or(u32::MAX).min(room);
                    machine.handle_placed(now, placed, env);
                    let placed = placed as usize;
                    return (Ok(Received::Bytes(n - placed)), placed);
                }
                return (got, 0);
            }
            let start = held.len().min(buffer.len());
            buffer[..start].copy_from_slice(&held[..start]);
            (tcp.receive(&mut buffer[start..]), 0)
        });
        let asked = if placed == 0 { buffer.len() - held.len() } else { BEHIND };
        match got {
            Ok(Received::Nothing) => (More::Nothing, held),
            Ok(Received::Bytes(n)) => {
                let counters = Counters(self.device().counters());
                counters.add(Counter::RxBytes, (n + placed) as u64);
                let end = held.len() + n;
                held.clear();
                let used = self.handle_bytes(now, &buffer[..end]);
                held.extend_from_slice(&buffer[used..end]);
                (if n < asked { More::Last } else { More::Perhaps }, held)
            }
            Ok(Received::End) => {
                self.handle_end(now, true);
                (More::Never, Vec::new())
            }
            Err(error) => {
                tracing::debug!(qpn = %self.qpn(), %error, "a stream is broken");
                self.handle_end(now, false);
                (More::Never, Vec::new())
            }
        }
    }

    fn handle_end(&mut self, now: Time, clean: bool) {
        self.run(|machine, env| {
            if let Some(qp) = machine.stream() {
                qp.handle_end(now, clean, env);
            }
        });
    }

    fn handle_bytes(&mut self, now: Time, bytes: &[u8]) -> usize {
        let used = self.run(|machine, env| {
            machine.stream().map_or(bytes.len(), |qp| qp.handle_bytes(now, bytes, env))
        });
        used.min(bytes.len())
    }

    /// Does with the stream what the machine wants done.
    pub(in crate::engine) fn tend_stream(&mut self) {
        if !matches!(self.driven().path, Path::Stream(_)) {
            return;
        }
        self.resume_stream();
        let wish = self.machine().wish();
        let (device, qpn) = (self.device(), self.qpn());
        if wish == Wish::Keep {
            return;
        }
        let Some(stream) = self.driven().path.stream() else { return };
        match wish {
            Wish::Keep => {}
            Wish::Shutdown => {
                if !std::mem::replace(&mut stream.shut, true) {
                    stream.tcp.shutdown();
                }
            }
            Wish::ReadOut => {
                if !std::mem::replace(&mut stream.read_out, true) {
                    stream.tcp.stop_receiving();
                }
            }
            Wish::Close | Wish::Abort => {
                if wish == Wish::Abort {
                    stream.tcp.reset_on_close();
                }
                let ended = stream.ended(qpn);
                self.driven().path = Path::None;
                device.engine().end_stream(ended);
            }
        }
    }
}

/// Whether it is worth to receive again.
enum More {
    /// Nothing came.
    Nothing,
    /// What came was all.
    Last,
    /// The buffer was filled.
    Perhaps,
    /// The stream has ended.
    Never,
}

#[cfg(test)]
mod tests {
    use super::mulpdu;

    #[test]
    fn frames_fill_segments() {
        // Ethernet with time stamps, without, and loopback: RFC 5044's EMSS - (6 + EMSS mod 4).
        assert_eq!(mulpdu(1448), 1442);
        assert_eq!(mulpdu(1460), 1454);
        assert_eq!(mulpdu(65_483), 65_474);
        assert_eq!(mulpdu(1 << 20), 65_532);
    }
}
