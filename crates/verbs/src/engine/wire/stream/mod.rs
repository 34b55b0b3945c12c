//! Streams of iWARP: their way from the service to a queue pair, receiving, and closing.
//!
//! A round receives from each stream that has data. The long payload of a frame whose header has arrived is received directly to its
//! destination, together with the next header. Everything else is received into a buffer that the rounds share, and the machine
//! copies from there. An incomplete frame is kept with the queue pair.
//!
//! A stream whose next message waits for a receive is paused: no round reads it, and it wakes no thread, until a receive is posted,
//! to the queue pair or to its shared queue, or the time limit expires. So is one whose end was read, if data must be sent on it.
//!
//! A stream without room to send is retried by every round. A thread that sleeps is woken when there is room. While the kernel is short of
//! TCP memory it reports room, but takes nothing: the thread then sleeps for a growing pause.

mod env;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdmux_link::cancel::Uncancelled;
use rdmux_link::tcp::Received;
use rdmux_link::{LinkCaps, TcpStream, Wire};
use rdmux_transport::Time;
use rdmux_transport::iwarp::{StreamParams, Wish};
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::fpdu;
use rustix::event::{Timespec, epoll};

use super::{Inbound, Path};
use crate::engine::background::RETRY;
use crate::engine::device::Device;
use crate::engine::drive::Bound;
use crate::engine::wait::Waiter;
use crate::engine::{Engine, Table, with_qp};
use crate::objects::counters::{Counter, Counters};
use crate::objects::srq::SrqCore;

/// Size of the buffer that rounds receive into, in bytes.
const BUFFER: usize = 256 * 1024;
/// A payload shorter than this is not worth a system call of its own.
const DIRECT: usize = 8 * 1024;
/// Bytes to receive behind a payload that is received directly: the CRC of its frame, and the next header, the longer of the two.
const BEHIND: usize = 24;
/// Number of times that a round receives from one stream before others get their turn.
const TURNS: usize = 16;
/// Up to this many streams are polled one by one. With more, only those that the kernel reports as ready.
const FEW: usize = 4;
/// The maximum number of streams that one round receives from.
const READY: usize = 64;

/// The longest pause before a stream is tried again that takes nothing although the kernel reports room.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// A queue pair's stream.
#[derive(Debug)]
pub(crate) struct StreamPath {
    tcp: Arc<TcpStream>,
    /// The service's number of the stream.
    number: u64,
    /// An incomplete frame, or all bytes that arrived with a message that waits for a receive.
    held: Vec<u8>,
    /// Whether the local half was shut down, and whether the peer's end has been read.
    shut: bool,
    read_out: bool,
    /// Whether reading is paused.
    paused: bool,
    /// Whether the stream is on the list of those that must be read again.
    resuming: bool,
}

/// A stream that is no longer needed.
#[derive(Debug)]
pub(crate) struct Ended {
    qpn: Qpn,
    number: u64,
    tcp: Arc<TcpStream>,
}

/// A queue pair whose stream must be read again, and the shared receive queue at which a receive was posted, if that is the reason.
pub(crate) type Resumed = (Qpn, Weak<SrqCore>);

impl StreamPath {
    /// Returns the capabilities of the wire.
    pub(super) fn caps(&self) -> LinkCaps {
        self.tcp.caps()
    }

    /// Returns the stream for closing, as the queue pair no longer needs it.
    pub(crate) fn ended(&self, qpn: Qpn) -> Ended {
        Ended { qpn, number: self.number, tcp: self.tcp.clone() }
    }
}

/// All streams of a device.
#[derive(Debug)]
pub(crate) struct Streams {
    epoll: OwnedFd,
    /// The streams that rounds read, and those that are paused.
    open: Vec<(Qpn, Arc<TcpStream>)>,
    paused: Vec<(Qpn, Arc<TcpStream>)>,
    /// The streams without room to send, by their descriptors.
    full: BTreeMap<RawFd, Full>,
    buffer: Box<[u8]>,
    ready: Vec<(Qpn, Arc<TcpStream>)>,
}

/// A stream without room to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full {
    /// The last pause, or zero.
    pause: Duration,
    /// The end of the pause. None if the set reports the stream when there is room.
    until: Option<Time>,
}

impl Full {
    /// A stream that the set reports when there is room.
    const WATCHED: Self = Self { pause: Duration::ZERO, until: None };

    /// Returns the state after the stream was tried again and still has more to send. It pauses if the kernel took nothing although it
    /// reports room: it is short of memory, and would report room again at once.
    fn tried(self, tcp: &TcpStream, now: Time) -> Self {
        if self.until.is_some_and(|until| now < until) {
            return self;
        }
        if tcp.took_bytes() || !tcp.has_room() {
            return Self::WATCHED;
        }
        let pause = (2 * self.pause).clamp(RETRY, LONGEST_PAUSE);
        Self { pause, until: Some(now.after(pause)) }
    }
}

impl Streams {
    pub(crate) fn new(waiter: &Waiter) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        waiter.add(epoll.as_fd())?;
        Ok(Self::of(epoll))
    }

    fn of(epoll: OwnedFd) -> Self {
        let (open, paused, ready) = (Vec::new(), Vec::new(), Vec::new());
        Self { epoll, open, paused, full: BTreeMap::new(), buffer: Box::default(), ready }
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
        Ok(epoll::add(&self.epoll, tcp.as_fd(), token(qpn), epoll::EventFlags::IN)?)
    }

    /// Makes the set report the streams of these queue pairs when there is room to send, and no others. Returns whether each of
    /// them has a stream, and how long until one must be tried that takes nothing although the kernel reports room. All have been tried
    /// since the last call.
    pub(in crate::engine) fn wait_for_room(
        &mut self,
        waiting: &VecDeque<Qpn>,
        now: Time,
    ) -> (bool, Option<Duration>) {
        let has_none = self.open.is_empty() && self.paused.is_empty();
        if has_none || waiting.is_empty() && self.full.is_empty() {
            return (waiting.is_empty(), None);
        }
        let mut waiting: Vec<Qpn> = waiting.iter().copied().collect();
        waiting.sort_unstable();
        waiting.dedup();
        let mut found = 0;
        let Self { epoll, open, paused, full, .. } = self;
        let open = open.iter().map(|stream| (stream, true));
        for ((qpn, tcp), reads) in open.chain(paused.iter().map(|stream| (stream, false))) {
            let waits = waiting.binary_search(qpn).is_ok();
            found += usize::from(waits);
            let fd = tcp.as_fd().as_raw_fd();
            let before = full.get(&fd).copied();
            let after = waits.then(|| match before {
                Some(full) => full.tried(tcp, now),
                None => {
                    tcp.took_bytes();
                    Full::WATCHED
                }
            });
            let [was_watched, watched] =
                [before, after].map(|full| full.is_some_and(|full| full.until.is_none()));
            if was_watched != watched {
                watch_for(epoll, *qpn, tcp, events(reads, watched));
            }
            match after {
                Some(after) => full.insert(fd, after),
                None => full.remove(&fd),
            };
        }
        let retry = full.values().filter_map(|full| full.until).min();
        (found >= waiting.len(), retry.map(|at| at.since(now)))
    }

    /// Returns whether a stream is watched for room.
    fn is_watched(&self, tcp: &TcpStream) -> bool {
        self.full.get(&tcp.as_fd().as_raw_fd()).is_some_and(|full| full.until.is_none())
    }

    /// Pauses a stream: rounds do not read it, and it wakes no thread. It stays in the set, because adding it again could fail.
    fn pause(&mut self, qpn: Qpn, tcp: &Arc<TcpStream>) {
        watch_for(&self.epoll, qpn, tcp, events(false, self.is_watched(tcp)));
        self.open.retain(|(_, open)| !Arc::ptr_eq(open, tcp));
        self.paused.push((qpn, tcp.clone()));
    }

    /// Resumes a paused stream.
    fn resume(&mut self, qpn: Qpn, tcp: Arc<TcpStream>) {
        let before = self.paused.len();
        self.paused.retain(|(_, paused)| !Arc::ptr_eq(paused, &tcp));
        if self.paused.len() == before {
            return;
        }
        watch_for(&self.epoll, qpn, &tcp, events(true, self.is_watched(&tcp)));
        self.open.push((qpn, tcp));
    }

    /// Removes a stream. Returns whether it existed.
    fn remove(&mut self, tcp: &Arc<TcpStream>) -> bool {
        // Fails only if it is not in the set.
        let _ = epoll::delete(&self.epoll, tcp.as_fd());
        let before = self.open.len() + self.paused.len();
        self.open.retain(|(_, open)| !Arc::ptr_eq(open, tcp));
        self.paused.retain(|(_, paused)| !Arc::ptr_eq(paused, tcp));
        self.full.remove(&tcp.as_fd().as_raw_fd());
        self.open.len() + self.paused.len() != before
    }

    /// Finds the streams that may have data.
    fn find_ready(&mut self) {
        self.ready.clear();
        // A paused stream that was reset is reported once, and the report must be taken.
        if self.open.len() <= FEW && self.paused.is_empty() {
            return self.ready.extend(self.open.iter().cloned());
        }
        let mut events = [const { std::mem::MaybeUninit::uninit() }; READY];
        // An interruption needs no retry: the next round checks again.
        let Ok((found, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()))
        else {
            return;
        };
        for event in found {
            if { event.flags } == epoll::EventFlags::OUT {
                continue;
            }
            let qpn = event.data.u64();
            let named = |(open, _): &&(Qpn, Arc<TcpStream>)| u64::from(open.get()) == qpn;
            self.ready.extend(self.open.iter().find(named).cloned());
        }
    }
}

/// Returns the data with which the set reports a queue pair's stream.
fn token(qpn: Qpn) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(qpn.get()))
}

/// Returns the events for a stream that is read, or for one that waits for room. One with neither must not wake a thread: the
/// kernel reports a reset in any case, but then only once.
fn events(reads: bool, waits_for_room: bool) -> epoll::EventFlags {
    match (reads, waits_for_room) {
        (false, false) => epoll::EventFlags::ET,
        (true, false) => epoll::EventFlags::IN,
        (false, true) => epoll::EventFlags::OUT,
        (true, true) => epoll::EventFlags::IN | epoll::EventFlags::OUT,
    }
}

/// Changes what a stream in the set is watched for. Fails only for one that is not.
fn watch_for(epoll: &OwnedFd, qpn: Qpn, tcp: &TcpStream, events: epoll::EventFlags) {
    if let Err(error) = epoll::modify(epoll, tcp.as_fd(), token(qpn), events) {
        tracing::warn!(%qpn, %error, "cannot change what a stream is watched for");
    }
}

impl Engine {
    /// Gives a queue pair its stream.
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
            let mulpdu = mulpdu(tcp.max_segment(), params.tx_markers);
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
            tracing::debug!(%qpn, %error, "cannot attach a stream to the queue pair");
            device.control().stream_ended(qpn, number);
        }
    }

    /// Closes a stream in order, as the program disconnects.
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
            // The stream has ended, or was never accepted. The service may be notified twice.
            device.control().stream_ended(qpn, number);
        }
    }

    /// Queues a stream for closing. A round closes it, and notifies the service.
    pub(crate) fn end_stream(&self, ended: Ended) {
        self.wires.ended.lock().push(ended);
        self.queued.store(true, std::sync::atomic::Ordering::Release);
        self.wake_sleeper();
    }

    /// Continues paused streams, and closes those that have ended.
    pub(in crate::engine) fn tend_streams(&self, device: &Arc<Device>, inbound: &mut Inbound) {
        self.resume_streams(device, inbound.streams());
        self.close_ended(device, inbound.streams());
    }

    /// Returns whether a stream must be read again.
    pub(in crate::engine) fn has_resumed(&self) -> bool {
        !self.wires.resumed.lock().is_empty()
    }

    /// Returns whether a stream must be closed.
    pub(in crate::engine) fn has_ended(&self) -> bool {
        !self.wires.ended.lock().is_empty()
    }

    /// Closes the streams that have ended.
    fn close_ended(&self, device: &Arc<Device>, streams: &mut Streams) {
        loop {
            let Some(Ended { qpn, number, tcp }) = self.wires.ended.lock().pop() else { return };
            // Closing is a cancellation point, which no program expects in ibv_poll_cq.
            let _uncancelled = Uncancelled::new();
            let was_there = streams.remove(&tcp);
            drop(tcp);
            if was_there {
                device.control().stream_ended(qpn, number);
            }
        }
    }

    /// Queues a stream to be read again by the next round.
    pub(crate) fn resume_stream(&self, qpn: Qpn, srq: Weak<SrqCore>) {
        self.wires.resumed.lock().push((qpn, srq));
        self.queued.store(true, std::sync::atomic::Ordering::Release);
        self.wake_sleeper();
    }

    /// Resumes a stream like [`resume_stream`](Self::resume_stream), for the queue pair whose turn it is at a shared receive queue.
    fn resume_next(&self, next: Option<Qpn>, srq: &Arc<SrqCore>) {
        if let Some(qpn) = next {
            self.resume_stream(qpn, Arc::downgrade(srq));
        }
    }

    /// Continues streams whose messages may have a receive now, or no longer need one.
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

    /// Processes the bytes that arrived on streams. Returns how many receive calls returned data.
    pub(in crate::engine) fn receive_streams(
        &self,
        device: &Arc<Device>,
        table: &Table<'_>,
        inbound: &mut Inbound,
    ) -> usize {
        let streams = inbound.streams();
        if streams.len() == 0 && streams.paused.is_empty() {
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
                streams.pause(qpn, &tcp);
            }
        }
        streams.ready = ready;
        received
    }
}

/// Returns the maximum length of the part of a message that a frame carries, so that the frame, with its markers, fills a segment
/// of the stream (RFC 5044 section 4.2).
fn mulpdu(segment: usize, markers: bool) -> u32 {
    /// A frame's length field is 16 bits, and its payload is padded to words.
    const MOST: usize = 65_532;
    u32::try_from(fpdu::mulpdu(segment, markers).min(MOST)).unwrap_or(u32::MAX)
}

impl Bound<'_> {
    /// Removes the stream of a queue pair that has moved to RESET.
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
            tracing::debug!(qpn = %self.qpn(), %error, "cannot attach a stream to the queue pair");
            self.driven().path = before;
        } else {
            self.transmit();
        }
        attached.is_ok()
    }

    /// Receives until no more data is available, other queue pairs or threads must get their turn, or a message waits for a
    /// receive. Returns how many receive calls returned data, and whether the stream must be paused now.
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
                    // It would be readable for as long as there is data to send.
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

    /// Processes again the bytes that arrived with a message that waited for a receive. Returns the stream if it must be read again.
    fn go_on_with_stream(&mut self) -> Option<Arc<TcpStream>> {
        let path = self.driven().path.stream().filter(|path| path.paused)?;
        path.resuming = false;
        let mut held = std::mem::take(&mut path.held);
        let now = self.device().now();
        let used = self.handle_bytes(now, &held);
        held.drain(..used);
        // The rest is an incomplete frame, which needs little room.
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

    /// Registers another message that waits for a receive: of a shared queue until it is this queue pair's turn.
    fn wait_for_receive(&mut self) {
        Counters(self.device().counters()).add(Counter::RxWaits, 1);
        if let Some(srq) = self.srq() {
            self.device().engine().resume_next(srq.join_line(self.qpn()), srq);
        }
    }

    /// Returns whether the stream is paused.
    pub(crate) fn is_paused(&mut self) -> bool {
        self.driven().path.stream().is_some_and(|path| path.paused)
    }

    /// Queues a paused stream for reading if no reason is left to wait.
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

    /// Receives once. Takes the bytes that were kept back before, and returns those kept back now.
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
                tracing::debug!(qpn = %self.qpn(), %error, "cannot receive from a stream");
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

    /// Executes the machine's wish for the stream.
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

/// Tells the caller whether to receive again.
enum More {
    /// Nothing arrived.
    Nothing,
    /// All available data was received.
    Last,
    /// The buffer was filled.
    Perhaps,
    /// The stream has ended.
    Never,
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use rdmux_link::{Frame, Payload};

    use super::*;

    fn connected() -> (Arc<TcpStream>, std::net::TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        (Arc::new(TcpStream::new(near.into()).unwrap()), far)
    }

    fn streams() -> Streams {
        Streams::of(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap())
    }

    /// Waits for a stream that is reported. Returns none if there is none within the time.
    fn reported(streams: &Streams, time: Duration) -> Option<u64> {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
        let time = Timespec::try_from(time).unwrap();
        let (found, _) = epoll::wait(&streams.epoll, &mut events[..], Some(&time)).unwrap();
        found.first().map(|event| event.data.u64())
    }

    /// Adding it could fail: a user's processes together may watch only so many descriptors.
    #[test]
    fn paused_stream_stays_in_the_epoll_set_and_is_silent_until_it_is_resumed() {
        const LONG: Duration = Duration::from_secs(20);
        let mut streams = streams();
        let ((tcp, mut far), qpn) = (connected(), Qpn::new(5));
        streams.add(qpn, tcp.clone()).unwrap();
        io::Write::write_all(&mut far, &[1]).unwrap();
        assert_eq!(reported(&streams, LONG), Some(5));
        streams.pause(qpn, &tcp);
        let again = streams.watch(qpn, &tcp).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(reported(&streams, Duration::ZERO), None);
        streams.resume(qpn, tcp.clone());
        assert_eq!(reported(&streams, LONG), Some(5));
        assert!(streams.remove(&tcp));
        assert_eq!(reported(&streams, Duration::ZERO), None);
    }

    /// The kernel is short of memory: nothing was sent.
    #[test]
    fn stream_that_takes_nothing_although_it_has_room_is_tried_after_growing_pauses() {
        let mut streams = streams();
        let ((tcp, _far), qpn) = (connected(), Qpn::new(5));
        streams.add(qpn, tcp.clone()).unwrap();
        let (waiting, mut now) = (VecDeque::from([qpn]), Time::ZERO);
        assert_eq!(streams.wait_for_room(&waiting, now), (true, None));
        assert_eq!(reported(&streams, Duration::ZERO), Some(5));
        let mut pause = RETRY;
        for _ in 0..10 {
            assert_eq!(streams.wait_for_room(&waiting, now), (true, Some(pause)));
            assert_eq!(reported(&streams, Duration::ZERO), None);
            // Something else wakes the thread.
            now = now.after(pause / 2);
            assert_eq!(streams.wait_for_room(&waiting, now), (true, Some(pause - pause / 2)));
            now = now.after(pause - pause / 2);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        assert_eq!(pause, LONGEST_PAUSE);
        // It takes something, and then nothing until there is room.
        let frame = Frame { header: &[0; 8], payload: Payload::None, pad: 0, ack: None };
        tcp.send(&mut 0, &(), &frame).unwrap();
        assert_eq!(streams.wait_for_room(&waiting, now), (true, None));
        assert_eq!(reported(&streams, Duration::ZERO), Some(5));
        assert_eq!(streams.wait_for_room(&waiting, now), (true, Some(RETRY)));
        assert_eq!(streams.wait_for_room(&VecDeque::new(), now), (true, None));
        let frame = Frame { header: &[0; 1 << 16], payload: Payload::None, pad: 0, ack: None };
        while tcp.send(&mut 0, &(), &frame).is_ok() {}
        for _ in 0..3 {
            assert_eq!(streams.wait_for_room(&waiting, now), (true, None));
            assert_eq!(reported(&streams, Duration::ZERO), None);
        }
    }

    #[test]
    fn mulpdu_is_the_one_of_rfc_5044_for_each_mss() {
        // Ethernet with time stamps, without, and loopback: RFC 5044's EMSS - (6 + EMSS mod 4).
        assert_eq!(mulpdu(1448, false), 1442);
        assert_eq!(mulpdu(1460, false), 1454);
        assert_eq!(mulpdu(65_483, false), 65_474);
        assert_eq!(mulpdu(1 << 20, false), 65_532);
    }

    #[test]
    fn frame_with_markers_fits_into_a_segment() {
        let framing = fpdu::Framing { crc: true, markers: true };
        for segment in [536, 1448, 1460, 8948, 65_483] {
            let ulpdu = mulpdu(segment, true) as usize;
            for position in (0..512).step_by(4) {
                assert!(framing.frame_len(position, ulpdu) <= segment, "{segment} at {position}");
            }
        }
    }
}
