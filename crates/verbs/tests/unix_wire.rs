//! A wire of packets over Unix sockets: an example for ports to other transports, and a test that the engine needs no knowledge
//! of the wire.
//!
//! A wire implements [`Wire`] with the types that `PacketWire` names. This one has two ends and carries whole packets, from the
//! BTH to the pad, as datagrams of a socket pair. A driver passes its wire to the engine when an address is requested
//! (`Control::attach_wire`); here the lab does.

#[allow(unsafe_code, reason = "memory of the tests' own")]
mod lab;

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

use rdmux_link::wire::{Arrivals, Ends, Flushed, Frame, LinkCaps, LinkError, TxFail, Wire};
use rdmux_verbs::counters::Counter;
use rdmux_verbs::transport::attr::{AddressVector, QpType};
use rdmux_verbs::transport::wr::{SendOp, WcStatus};

use lab::{Lab, Node, pattern};

/// One end of a pair of Unix sockets.
#[derive(Debug)]
struct UnixWire {
    socket: UnixDatagram,
    /// The addresses that captures show: of this end and of the other.
    here: SocketAddr,
    there: SocketAddr,
    /// The test drops one of this many packets on average, and none if this is zero.
    one_of: u64,
    sender: Mutex<Sender>,
}

/// The state that only one sender may use at a time. A packet wire keeps it itself.
#[derive(Debug, Default)]
struct Sender {
    /// The packet as one run of bytes. Reused, so that nothing is allocated for each packet.
    packet: Vec<u8>,
    sent: u64,
    /// The packets and bytes sent since the last flush.
    left: Flushed,
}

impl UnixWire {
    /// The maximum number of packets that one receive returns, so that other wires get their turn.
    const BURST: usize = 16;

    /// Creates two ends.
    fn pair(a: [u8; 4], b: [u8; 4], one_of: u64) -> io::Result<(Arc<Self>, Arc<Self>)> {
        let (near, far) = UnixDatagram::pair()?;
        let (a, b): (SocketAddr, SocketAddr) = ((a, 4791).into(), (b, 4791).into());
        let end = |socket: UnixDatagram, here, there| -> io::Result<_> {
            socket.set_nonblocking(true)?;
            Ok(Arc::new(Self { socket, here, there, one_of, sender: Mutex::default() }))
        };
        Ok((end(near, a, b)?, end(far, b, a)?))
    }

    fn sent(&self) -> u64 {
        self.sender.lock().unwrap().sent
    }
}

impl Wire for UnixWire {
    /// The engine specifies a packet's destination by its address vector. Here every packet is sent to the other end.
    type To = AddressVector;
    /// Packets are sent at once, and received into the engine's buffers.
    type Tx = ();
    type Rx = Arrivals;
    type Arrived = io::Result<usize>;

    fn caps(&self) -> LinkCaps {
        // The kernel drops nothing: the queue pair need not probe for the rate.
        let lossless = self.one_of == 0;
        LinkCaps { max_payload: 4096, lossless, by_reference: false, piggybacks_acks: false }
    }

    fn ends(&self, to: &AddressVector) -> Option<Ends> {
        let (src, dst) = (self.here, self.there);
        Some(Ends { src, dst, tos: to.traffic_class, ttl: to.hop_limit })
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn send(&self, (): &mut (), _: &AddressVector, frame: &Frame<'_>) -> Result<(), LinkError> {
        let Sender { packet, sent, left } = &mut *self.sender.lock().unwrap();
        packet.clear();
        // The payload is the program's memory, which may change meanwhile, or be unmapped.
        frame.append_to(packet)?;
        *sent += 1;
        if self.one_of != 0 && mixed(*sent).is_multiple_of(self.one_of) {
            return Ok(());
        }
        match self.socket.send(packet) {
            Ok(bytes) => {
                left.packets += 1;
                left.bytes += bytes;
                Ok(())
            }
            // The queue pair tries again soon.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(LinkError::Busy),
            Err(e) => Err(e.into()),
        }
    }

    fn flush(&self, (): &mut ()) -> Result<Flushed, TxFail> {
        Ok(std::mem::take(&mut self.sender.lock().unwrap().left))
    }

    fn receive(&self, rx: &mut Arrivals) -> io::Result<usize> {
        rx.clear();
        let ends = Ends { src: self.there, dst: self.here, tos: 0, ttl: 64 };
        while rx.len() < Self::BURST {
            match rx.add(|buffer| Ok((self.socket.recv(buffer)?, ends))) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(rx.len())
    }
}

/// Returns a number without a pattern: if every seventh packet were dropped, it could always be the same one of seven that are
/// retransmitted.
fn mixed(n: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(n);
    hasher.finish()
}

/// A device, a queue pair on it, and its wire.
type Side = (Node, Arc<UnixWire>);

/// Two devices of different hosts, and an RC queue pair on each.
fn pair(one_of: u64, bytes: usize) -> (Side, Side) {
    let (near, far) = UnixWire::pair([127, 77, 210, 1], [127, 77, 210, 2], one_of).unwrap();
    let lab = Lab::new(false);
    let node = |ip, wire: &Arc<UnixWire>| {
        let node = Node::new(&lab, ip, QpType::Rc, bytes);
        node.control.bring(wire.clone());
        node
    };
    let (a, b) = (node("127.77.210.1", &near), node("127.77.210.2", &far));
    a.connect(&b);
    b.connect(&a);
    ((a, near), (b, far))
}

const LEN: usize = 100_000;

/// SEND, WRITE and READ of many packets, both ways.
fn exchange(a: &Node, b: &Node) {
    let data = pattern(LEN, 7);
    let done = |node: &Node| assert_eq!(node.wait().status, WcStatus::Success);
    for (from, to) in [(a, b), (b, a)] {
        from.write(0, &data);
        to.recv(1, LEN, LEN);
        from.send(2, SendOp::Send, 0, LEN);
        done(to);
        done(from);
        assert!(to.read(LEN, LEN) == data, "SEND");
        let (remote_addr, rkey) = (to.base() + 2 * LEN as u64, to.mr.rkey());
        from.send(3, SendOp::Write { remote_addr, rkey }, 0, LEN);
        done(from);
        assert!(to.read(2 * LEN, LEN) == data, "WRITE");
        from.send(4, SendOp::Read { remote_addr, rkey }, LEN, LEN);
        done(from);
        assert!(from.read(LEN, LEN) == data, "READ");
    }
}

#[test]
fn rc_works_over_a_wire_defined_outside_the_engine() {
    let (a, b) = pair(0, 3 * LEN);
    exchange(&a.0, &b.0);
    for (node, wire) in [&a, &b] {
        let (count, counts) = (|c| node.control.count(c), node.control.counts());
        assert!(wire.sent() >= 3 * (LEN / 4096) as u64, "{counts:?}");
        assert!(count(Counter::TxPackets) > 0 && count(Counter::RxPackets) > 0, "{counts:?}");
        assert_eq!(count(Counter::RxDuplicate), 0, "{counts:?}");
    }
}

#[test]
fn rc_retransmits_losses_of_a_wire_defined_outside_the_engine() {
    let (a, b) = pair(7, 3 * LEN);
    exchange(&a.0, &b.0);
    assert!(a.1.sent() > 7 && b.1.sent() > 7);
}
