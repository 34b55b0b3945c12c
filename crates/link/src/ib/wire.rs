//! InfiniBand as a packet wire.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::icrc::Icrc;
use rdmux_wire::lrh::Lrh;
use rdmux_wire::{Gid, Grh, Mtu};
use socket2::SockAddr;

use super::batch::{Contents, Numbers, Shape};
use super::receiver::{Admitted, Came, Owner, Receiver};
use super::sender::{Exit, Refused, RouteHeaders};
use super::{IbDrop, Outlet, Routes, Sender};
use crate::udp::control::ControlBuf;
use crate::udp::{SLOT_SHIFT, UdpPort, ZeroCopyBuf, ZeroCopyDest};
use crate::wire::{
    Arrival, Arrivals, Flushed, Frame, Gathering, LinkCaps, LinkError, Payload, TxFail, Wire,
};

/// The wire of one process at an InfiniBand port: a UDP socket, and the table of destinations.
///
/// Packets that a switch or a port on the way would drop are dropped here and counted ([`Routes::counters`]); the queue pair is not
/// informed. Packets to the same process are gathered until the next flush.
#[derive(Debug)]
pub struct IbWire {
    port: UdpPort,
    /// The owner of the socket.
    owner: Owner,
    /// The group that the socket receives by IP multicast, if it receives only a group.
    of_group: Option<Gid>,
    routes: Arc<Routes>,
    numbers: Numbers,
    receiver: Mutex<Receiver>,
}

impl IbWire {
    /// Takes over the socket of `slot` of a [`UdpGroup`](crate::UdpGroup).
    ///
    /// # Errors
    ///
    /// Those of [`UdpPort::new`].
    pub fn new(fd: OwnedFd, slot: u16, routes: Arc<Routes>) -> io::Result<Self> {
        let port = UdpPort::new(fd)?;
        let (numbers, receiver) = (Numbers::new(slot), Mutex::default());
        let owner = Owner { slot, has_targets: false };
        Ok(Self { port, owner, of_group: None, routes, numbers, receiver })
    }

    /// Takes over a socket that receives a group by IP multicast ([`multicast::hear`](super::multicast::hear)). Nothing is sent
    /// through it.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn of_group(fd: OwnedFd, mgid: Gid, routes: Arc<Routes>) -> io::Result<Self> {
        Ok(Self { of_group: Some(mgid), ..Self::new(fd, 0, routes)? })
    }

    /// Makes the socket also accept packets for XRC targets, which belong to no process ([`UdpGroup::steer_targets`]).
    ///
    /// [`UdpGroup::steer_targets`]: crate::UdpGroup::steer_targets
    #[must_use]
    pub fn with_targets(mut self) -> Self {
        self.owner.has_targets = true;
        self
    }

    /// Returns the socket.
    pub fn port(&self) -> &UdpPort {
        &self.port
    }

    /// Returns the packets of the last [`receive`](Wire::receive) that `which` selects by their headers, in order. The ICRC of each
    /// is checked when it is its turn, so that its bytes are read once. A packet with a wrong ICRC is counted and skipped.
    pub fn intact<'a>(
        &'a self,
        rx: &'a Arrivals,
        which: impl Fn(&Arrival<'_>) -> bool + 'a,
    ) -> impl Iterator<Item = Arrival<'a>> {
        rx.iter().filter(move |arrival| which(arrival)).filter_map(|arrival| {
            let intact = arrival.intact();
            if intact.is_none() {
                self.routes.wrong_icrc();
            }
            intact
        })
    }

    /// Returns the destination of packets for the own port.
    fn own_addr(&self) -> SocketAddr {
        own_addr(&self.port)
    }

    /// Returns the state that it shares with other wires of its port.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// Forwards a received packet to another process of this host. Used for a group's packet, which arrives once for all processes.
    /// It is sent at once.
    ///
    /// # Errors
    ///
    /// [`LinkError::Busy`] if the socket is full, [`LinkError::Io`]; `InvalidInput` for a packet that did not arrive over
    /// InfiniBand.
    pub fn pass_on(
        &self,
        tx: &mut Sender,
        arrival: &Arrival<'_>,
        slot: u16,
    ) -> Result<(), LinkError> {
        let invalid = || LinkError::Io(io::ErrorKind::InvalidInput.into());
        let route = arrival.ib.ok_or_else(invalid)?;
        let grh = route.grh.as_ref().map(|grh| Grh::parse(grh)).transpose();
        let grh = grh.map_err(|_| invalid())?;
        let (sl, slid, dlid) = (route.sl, route.slid, route.dlid);
        let lrh = Lrh { sl, slid, dlid, ..Lrh::DEFAULT };
        let rest = arrival.bytes.len() + Icrc::LEN;
        let headers = RouteHeaders::new(lrh, grh, rest).ok_or_else(invalid)?;
        let frame = Frame { header: arrival.bytes, payload: Payload::None, pad: 0, ack: None };
        let contents = Contents { route: headers.as_slice(), frame: &frame };
        let total = u16::try_from(contents.len()).map_err(|_| invalid())?;
        let steer = u32::from(slot) << SLOT_SHIFT | 0xfff;
        let shape = Shape { to: self.own_addr(), steer, total, parts: 1 };
        tx.send_alone(self.exit(), &shape, &contents)
    }

    fn exit(&self) -> Exit<'_, UdpPort> {
        Exit { port: &self.port, routes: &self.routes, numbers: &self.numbers }
    }

    /// Sends a datagram that arrived at the wrong socket, because the kernel merged it with others, to the right one.
    fn recycle(&self, datagram: &[u8]) {
        let name = SockAddr::from(self.own_addr());
        if self.port.send_message(&name, datagram, &ControlBuf::new()).is_err() {
            self.routes.count(IbDrop::TxRefused, 1);
        }
    }
}

/// Returns the destination of packets for the own port. A socket that is bound to all addresses receives these at a loopback
/// address.
pub(super) fn own_addr(port: &impl Outlet) -> SocketAddr {
    let local = port.local_addr();
    match local.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, local.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, local.port()).into(),
        _ => local,
    }
}

impl Wire for IbWire {
    type To = AddressVector;
    type Tx = Sender;
    type Rx = Arrivals;
    type Arrived = io::Result<usize>;

    fn caps(&self) -> LinkCaps {
        LinkCaps {
            max_payload: Mtu::M4096.bytes(),
            lossless: false,
            by_reference: false,
            piggybacks_acks: false,
        }
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.port.as_fd())
    }

    fn send(
        &self,
        tx: &mut Sender,
        to: &AddressVector,
        frame: &Frame<'_>,
    ) -> Result<(), LinkError> {
        match tx.send(self.exit(), to, frame) {
            Ok(()) => Ok(()),
            Err(Refused::Lost(IbDrop::TxInactive)) => {
                self.routes.drop_here(IbDrop::TxInactive);
                Ok(())
            }
            // A packet that leaves the port and is dropped on the way is counted there.
            Err(Refused::Lost(why)) => {
                self.routes.count(why, 1);
                Ok(())
            }
            Err(Refused::Link(error)) => Err(error),
        }
    }

    fn flush(&self, tx: &mut Sender) -> Result<Flushed, TxFail> {
        tx.flush(self.exit(), None).1
    }

    /// Returns how many packets arrived, which [`intact`](IbWire::intact) returns. There may be more.
    fn receive(&self, rx: &mut Arrivals) -> io::Result<usize> {
        let receiver = &mut *self.receiver.lock();
        receiver.refresh(&self.routes);
        let local = self.own_addr();
        rx.receive_ib(&self.port, |arrival, shown| {
            let came = match self.of_group {
                Some(mgid) => receiver.take_of_group(&self.routes, mgid, arrival.bytes),
                None => {
                    let is_passed_on = arrival.src == local;
                    let (routes, src) = (&self.routes, arrival.src);
                    receiver.take(routes, self.owner, src, is_passed_on, arrival.bytes)
                }
            };
            match came {
                Came::Packet(Admitted { packet, below, route }) => {
                    shown.in_place(packet, below, route);
                }
                Came::Joined(Admitted { packet, below, route }) => {
                    shown.copied(packet, below, route);
                }
                Came::Stray => self.recycle(arrival.bytes),
                Came::Nothing => {}
            }
        })
    }
}

impl Gathering for IbWire {
    fn packets(&self, tx: &Sender) -> usize {
        tx.batch.len()
    }

    fn bytes(&self, tx: &Sender) -> usize {
        tx.batch.bytes()
    }

    fn supports_zerocopy(&self, tx: &Sender) -> bool {
        tx.batch.zerocopy_dest().is_some_and(|to| self.port.supports_zerocopy(to.addr))
    }

    fn zerocopy_dest(&self, tx: &Sender) -> Option<ZeroCopyDest> {
        tx.batch.zerocopy_dest()
    }

    fn flush_zerocopy(
        &self,
        tx: &mut Sender,
        buf: &mut ZeroCopyBuf,
    ) -> (bool, Result<Flushed, TxFail>) {
        tx.flush(self.exit(), Some(buf))
    }

    fn forget(&self, tx: &mut Sender) {
        tx.batch.clear();
    }
}
