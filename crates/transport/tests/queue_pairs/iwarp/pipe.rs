//! Two ends, connected by streams.

use std::collections::VecDeque;

use super::*;
use rdmux_transport::env::Env as _;
use rdmux_transport::iwarp::Direct;

/// The way in which a stream transports bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carriage {
    /// The most bytes delivered at a time. 0: a random number.
    pub(super) chunk: usize,
    /// The bytes that the stream holds.
    pub(super) room: usize,
    /// Whether payload is placed into memory without `handle_bytes`.
    pub(super) direct: bool,
}

pub(super) const AT_ONCE: Carriage =
    Carriage { chunk: usize::MAX, room: usize::MAX, direct: false };

/// Two queue pairs, numbers 1 and 2. The first is the initiator.
pub(super) struct Pair {
    pub(super) a: End,
    pub(super) b: End,
    pub(super) now: Time,
    carriage: Carriage,
    seed: u64,
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(&PLAIN, 1460, AT_ONCE)
    }

    /// Creates a pair. `params` are those of the first end.
    pub(super) fn with(params: &StreamParams, mulpdu: u32, carriage: Carriage) -> Self {
        let mut pair = Self::detached(carriage);
        let other = StreamParams {
            initiator: !params.initiator,
            tx_markers: params.rx_markers,
            rx_markers: params.tx_markers,
            ord: params.ird,
            ird: params.ord,
            ..*params
        };
        pair.a.qp.attach(Time::ZERO, params, mulpdu, &mut pair.a.w).unwrap();
        pair.b.qp.attach(Time::ZERO, &other, mulpdu, &mut pair.b.w).unwrap();
        pair
    }

    fn detached(carriage: Carriage) -> Self {
        let mut pair = Self {
            a: End::new(1, false),
            b: End::new(2, false),
            now: Time(1),
            carriage,
            seed: 0x9e37_79b9_7f4a_7c15,
        };
        (pair.a.w.stream.room, pair.b.w.stream.room) = (carriage.room, carriage.room);
        pair
    }

    fn chunk(&mut self) -> usize {
        if self.carriage.chunk != 0 {
            return self.carriage.chunk;
        }
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % 200) as usize + 1
    }

    /// Delivers bytes and ends of streams until nothing moves.
    pub(super) fn run(&mut self) {
        loop {
            let before = (self.a.qp.wish(), self.b.qp.wish());
            self.a.poll(self.now);
            self.b.poll(self.now);
            let chunk = self.chunk();
            let direct = self.carriage.direct;
            let mut moved = carry(&mut self.a, &mut self.b, chunk, direct, self.now);
            let chunk = self.chunk();
            moved |= carry(&mut self.b, &mut self.a, chunk, direct, self.now);
            if !moved && before == (self.a.qp.wish(), self.b.qp.wish()) {
                return;
            }
        }
    }

    /// Advances to the next expiry of a timer of either end. Returns false if none runs.
    pub(super) fn tick(&mut self) -> bool {
        let next = [&self.a, &self.b].into_iter().filter_map(|end| end.qp.poll_timeout()).min();
        let Some(at) = next else { return false };
        self.now = at;
        for end in [&mut self.a, &mut self.b] {
            end.qp.handle_timeout(at, &mut end.w);
        }
        true
    }
}

/// Delivers up to `chunk` bytes from one end to the other, and the end of the stream after the last
/// byte.
fn carry(from: &mut End, to: &mut End, chunk: usize, direct: bool, now: Time) -> bool {
    if to.qp.waits_for_receive() {
        // The driver leaves the stream unread.
        return false;
    }
    if to.waited {
        // Presents the bytes that were held back meanwhile.
        to.feed(now, &[]);
        return true;
    }
    let len = chunk.min(from.w.stream.bytes.len());
    if len != 0 {
        if direct && to.inbox.is_empty() {
            place(&mut from.w.stream.bytes, len, to, now);
        } else {
            let bytes: Vec<u8> = from.w.stream.bytes.drain(..len).collect();
            to.feed(now, &bytes);
        }
        return true;
    }
    let clean = match from.qp.wish() {
        Wish::Keep | Wish::ReadOut => return false,
        Wish::Shutdown | Wish::Close => true,
        Wish::Abort => false,
    };
    if to.ended {
        return false;
    }
    to.ended = true;
    to.qp.handle_end(now, clean, &mut to.w);
    true
}

/// Delivers bytes like a driver that receives directly into memory where it can.
fn place(stream: &mut VecDeque<u8>, len: usize, to: &mut End, now: Time) {
    let Some(direct) = to.qp.direct() else {
        let bytes: Vec<u8> = stream.drain(..len).collect();
        return to.feed(now, &bytes);
    };
    let placed = match direct {
        Direct::Local { sges, offset, len: left, .. } => {
            let bytes: Vec<u8> = stream.drain(..len.min(left as usize)).collect();
            to.w.scatter(sges, offset, &bytes).unwrap();
            bytes.len()
        }
        Direct::Remote { rkey, va, len: left } => {
            let bytes: Vec<u8> = stream.drain(..len.min(left as usize)).collect();
            to.w.write_remote(rkey, va, &bytes).unwrap();
            bytes.len()
        }
    };
    to.qp.handle_placed(now, placed as u32, &mut to.w);
}
