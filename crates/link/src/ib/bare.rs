//! A wire without a socket: the packet and datagram handling of [`IbWire`](super::IbWire), for callers that transport the
//! datagrams themselves.

use std::net::SocketAddr;
use std::sync::Arc;

use rdmux_transport::attr::AddressVector;

use super::batch::Numbers;
use super::receiver::{Admitted, Came, Owner, Receiver};
use super::sender::{Exit, Refused};
use super::{IbDrop, Outlet, Routes, Sender};
use crate::wire::{Arrival, Flushed, Frame, LinkError, Trailer, TxFail};

/// A wire without a socket; see the module.
#[derive(Debug)]
pub struct BareWire<O> {
    outlet: O,
    owner: Owner,
    numbers: Numbers,
    routes: Arc<Routes>,
    sender: Sender,
    /// The packets and bytes that were sent before a flush.
    left: Flushed,
    receiver: Receiver,
}

impl<O: Outlet> BareWire<O> {
    /// Creates the wire of the process that has this slot.
    pub fn new(outlet: O, slot: u16, routes: Arc<Routes>) -> Self {
        let (sender, receiver) = (Sender::new(), Receiver::default());
        let (owner, numbers) = (Owner { slot, has_targets: false }, Numbers::new(slot));
        Self { outlet, owner, numbers, routes, sender, left: Flushed::default(), receiver }
    }

    /// Returns the outlet of its datagrams.
    pub fn outlet(&self) -> &O {
        &self.outlet
    }

    /// Returns the state that it shares with other wires of its port.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// Gathers a packet. A packet that would be dropped on the way is counted.
    ///
    /// # Errors
    ///
    /// [`LinkError::Busy`] if the outlet is full.
    pub fn send(&mut self, to: &AddressVector, frame: &Frame<'_>) -> Result<(), LinkError> {
        loop {
            let Self { outlet, numbers, routes, sender, .. } = self;
            let exit = Exit { port: outlet, routes, numbers };
            match sender.send(exit, to, frame) {
                Ok(()) => return Ok(()),
                Err(Refused::Lost(IbDrop::TxInactive)) => {
                    routes.drop_here(IbDrop::TxInactive);
                    return Ok(());
                }
                Err(Refused::Lost(why)) => {
                    routes.count(why, 1);
                    return Ok(());
                }
                Err(Refused::Link(LinkError::Full)) => {
                    let (_, flushed) = sender.flush(exit, None);
                    self.left(flushed)?;
                }
                Err(Refused::Link(error)) => return Err(error),
            }
        }
    }

    /// Sends the gathered packets.
    pub fn flush(&mut self) -> Flushed {
        let Self { outlet, numbers, routes, sender, .. } = self;
        let (_, flushed) = sender.flush(Exit { port: outlet, routes, numbers }, None);
        // Datagrams that a full outlet does not accept now are sent with the next ones.
        let _full = self.left(flushed);
        std::mem::take(&mut self.left)
    }

    /// Adds to the packets and bytes that were sent.
    fn left(&mut self, flushed: Result<Flushed, TxFail>) -> Result<(), LinkError> {
        let (sent, all) = match flushed {
            Ok(sent) => (sent, Ok(())),
            Err(TxFail::Busy { sent, .. }) => (sent, Err(LinkError::Busy)),
            Err(TxFail::TooLarge { sent, .. } | TxFail::Io { sent, .. }) => (sent, Ok(())),
        };
        self.left.packets += sent.packets;
        self.left.bytes += sent.bytes;
        all
    }

    /// Processes a datagram. Passes the packet that it completes to `show`, if it completes one that is admitted. Packets for
    /// other processes of the host are only counted.
    pub fn take(&mut self, from: SocketAddr, datagram: &[u8], show: impl FnOnce(&Arrival<'_>)) {
        self.receiver.refresh(&self.routes);
        let dst = self.outlet.local_addr();
        let came = self.receiver.take(&self.routes, self.owner, from, from == dst, datagram);
        let (Came::Packet(admitted) | Came::Joined(admitted)) = came else { return };
        let Admitted { packet, below, route } = &admitted;
        let (headers, bytes) = packet.split_at(*below);
        let icrc = Trailer::Ib(headers);
        let arrival =
            Arrival { src: from, dst, bytes, icrc, tos: None, ttl: None, ib: Some(route) };
        match arrival.intact() {
            Some(intact) => show(&intact),
            None => self.routes.wrong_icrc(),
        }
    }

    /// Returns how many incomplete packets are kept.
    pub fn under_way(&self) -> usize {
        self.receiver.under_way()
    }
}
