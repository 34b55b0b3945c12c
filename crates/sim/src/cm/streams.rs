//! TCP between the nodes, for iWARP connections: nothing is lost or reordered, but data is split into pieces, delayed, and
//! may end in a reset. Some peers send nothing, incomplete data or garbage.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rdmux_cm::Time;
use rdmux_cm::iw::{StreamId, StreamWish};
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::mpa::Kind;

use super::world::{Happening, World};
use crate::net::NodeId;

/// One side of a connection.
#[derive(Clone, Copy, Debug)]
struct End {
    node: NodeId,
    /// The life of the node that it belongs to.
    life: u32,
    of: Of,
    /// The time at which the last event sent to this end arrives: nothing overtakes.
    last: Time,
}

/// The owner of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The connection manager.
    Manager(StreamId),
    /// A queue pair.
    Qp(Qpn, StreamId),
    /// No owner any more.
    Nobody,
}

/// All connections, by number; each has two ends.
#[derive(Debug, Default)]
pub(super) struct Tcp {
    ends: BTreeMap<(u64, bool), End>,
    last: u64,
}

/// An event at an end of a connection.
#[derive(Clone, Debug)]
pub(super) enum StreamEvent {
    /// TCP has connected.
    Connected,
    /// Some bytes.
    Bytes(Vec<u8>),
    /// The other end is gone.
    Ended,
}

const REFUSED: i32 = 111;
const RESET: i32 = 104;

impl Tcp {
    fn find(&self, node: NodeId, life: u32, of: Of) -> Option<(u64, bool)> {
        let is = |end: &End| (end.node, end.life, end.of) == (node, life, of);
        self.ends.iter().find(|(_, end)| is(end)).map(|(&key, _)| key)
    }

    /// Returns the number of ends that a manager or a queue pair owns.
    pub(super) fn len(&self) -> usize {
        self.ends.values().filter(|end| end.of != Of::Nobody).count()
    }
}

impl World {
    /// Executes a manager's request to TCP.
    pub(super) fn does_stream(&mut self, at: NodeId, wish: StreamWish) {
        let life = self.nodes[at].life;
        self.trace(format_args!("node {at}: {wish:?}"));
        match wish {
            StreamWish::Connect { stream, local, remote, .. } => {
                let Some(to) = self.nodes.iter().position(|n| n.ip == remote.ip()) else {
                    let now = self.agenda.now();
                    let node = &mut self.nodes[at];
                    return node.cm.handle_stream_ended(now, stream, REFUSED, &mut node.out);
                };
                let now = self.agenda.now();
                let other = self.nodes[to].cm.handle_stream_accepted(now, remote, local);
                self.tcp.last += 1;
                let number = self.tcp.last;
                for (side, node, of) in [(false, at, stream), (true, to, other)] {
                    let (life, of) = (self.nodes[node].life, Of::Manager(of));
                    self.tcp.ends.insert((number, side), End { node, life, of, last: now });
                }
                self.bring((number, false), StreamEvent::Connected);
                self.wake(to);
            }
            StreamWish::Send { stream, bytes } => {
                let Some(key) = self.tcp.find(at, life, Of::Manager(stream)) else { return };
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let most = if self.rng.random_bool(0.5) { 1 } else { rest.len() };
                    let (piece, others) = rest.split_at(self.rng.random_range(1..=most));
                    self.bring(other(key), StreamEvent::Bytes(piece.to_vec()));
                    rest = others;
                }
            }
            StreamWish::Close { stream } | StreamWish::Reset { stream } => {
                self.close(at, life, Of::Manager(stream));
            }
            StreamWish::HandOver { stream, qpn, .. } => {
                if let Some(key) = self.tcp.find(at, life, Of::Manager(stream))
                    && let Some(end) = self.tcp.ends.get_mut(&key)
                {
                    end.of = Of::Qp(qpn, stream);
                    self.stats.streams += 1;
                }
            }
            StreamWish::CloseQp { stream, qpn } => {
                self.close(at, life, Of::Qp(qpn, stream));
                let now = self.agenda.now();
                let node = &mut self.nodes[at];
                node.cm.handle_qp_stream_ended(now, qpn, stream, &mut node.out);
            }
            StreamWish::Unlisten(_) => {}
        }
    }

    /// Closes one end. The other end is notified after all data sent before.
    fn close(&mut self, node: NodeId, life: u32, of: Of) {
        let Some(key) = self.tcp.find(node, life, of) else { return };
        if let Some(end) = self.tcp.ends.get_mut(&key) {
            end.of = Of::Nobody;
        }
        self.bring(other(key), StreamEvent::Ended);
    }

    /// Closes all connections of a restarted node.
    pub(super) fn close_all(&mut self, node: NodeId) {
        let of = |(key, end): (&(u64, bool), &End)| (end.node == node).then_some((*key, *end));
        for (_, end) in self.tcp.ends.iter().filter_map(of).collect::<Vec<_>>() {
            self.close(end.node, end.life, end.of);
        }
    }

    /// Schedules the arrival of an event at an end.
    fn bring(&mut self, to: (u64, bool), event: StreamEvent) {
        let now = self.agenda.now();
        let delay = Duration::from_micros(self.rng.random_range(0..3000));
        let Some(end) = self.tcp.ends.get_mut(&to) else { return };
        end.last = end.last.max(now.after(delay));
        let at = end.last;
        self.agenda.at(at, Happening::Stream(to, event));
    }

    /// Delivers an event to an end.
    pub(super) fn comes(&mut self, to: (u64, bool), event: StreamEvent) -> Result<(), String> {
        let now = self.agenda.now();
        let Some(&End { node: at, life, of, .. }) = self.tcp.ends.get(&to) else { return Ok(()) };
        if self.nodes[at].life != life {
            return Ok(());
        }
        let node = &mut self.nodes[at];
        match (of, event) {
            (Of::Nobody, _) => return Ok(()),
            (Of::Manager(stream), StreamEvent::Connected) => {
                let from = (node.ip, 40_000).into();
                node.cm.handle_stream_connected(now, stream, from, &mut node.out);
            }
            (Of::Manager(stream), StreamEvent::Bytes(bytes)) => {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let wants = node.cm.stream_wants(stream).min(rest.len());
                    if wants == 0 {
                        let left = rest.len();
                        return Err(format!("node {at}: nobody wants {left} bytes of {stream:?}"));
                    }
                    node.cm.handle_stream_data(now, stream, &rest[..wants], &mut node.out);
                    rest = &rest[wants..];
                }
            }
            (Of::Qp(qpn, _), StreamEvent::Bytes(_) | StreamEvent::Connected) => {
                return Err(format!("node {at}: {qpn} got bytes of the connection manager's"));
            }
            (of, StreamEvent::Ended) => {
                if let Some(end) = self.tcp.ends.get_mut(&to) {
                    end.of = Of::Nobody;
                }
                match of {
                    Of::Manager(stream) => {
                        node.cm.handle_stream_ended(now, stream, RESET, &mut node.out);
                    }
                    Of::Qp(qpn, stream) => {
                        node.cm.handle_qp_stream_ended(now, qpn, stream, &mut node.out);
                    }
                    Of::Nobody => {}
                }
            }
        }
        self.flush(at)
    }

    /// Resets a connection that no queue pair owns yet, at both ends.
    pub(super) fn resets_one(&mut self) -> Result<(), String> {
        let pending =
            |(key, end): (&(u64, bool), &End)| matches!(end.of, Of::Manager(_)).then_some(*key);
        let all: Vec<(u64, bool)> = self.tcp.ends.iter().filter_map(pending).collect();
        if all.is_empty() {
            return Ok(());
        }
        let key = all[self.rng.random_range(0..all.len())];
        self.trace(format_args!("connection {} is reset", key.0));
        self.stats.resets += 1;
        for key in [key, other(key)] {
            self.comes(key, StreamEvent::Ended)?;
        }
        Ok(())
    }

    /// Connects an unknown peer that sends invalid data, or none.
    pub(super) fn stranger(&mut self, at: NodeId) -> Result<(), String> {
        let now = self.agenda.now();
        let local = (self.nodes[at].ip, super::world::PORT).into();
        let remote = ([192, 0, 2, 1], self.rng.random_range(1..u16::MAX)).into();
        let mut says = Vec::from(&Kind::Request.key()[..]);
        says.truncate(self.rng.random_range(0..=16));
        if self.rng.random_bool(0.5) {
            let more = self.rng.random_range(0..600);
            says.extend((0..more).map(|_| self.rng.random::<u8>()));
        }
        let node = &mut self.nodes[at];
        let stream = node.cm.handle_stream_accepted(now, local, remote);
        self.stats.strangers += 1;
        for byte in says {
            if node.cm.stream_wants(stream) == 0 {
                break;
            }
            node.cm.handle_stream_data(now, stream, &[byte], &mut node.out);
        }
        self.flush(at)
    }
}

const fn other((number, side): (u64, bool)) -> (u64, bool) {
    (number, !side)
}
