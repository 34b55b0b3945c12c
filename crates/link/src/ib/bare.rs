//! A wire without a socket: what [`IbWire`](super::IbWire) does with packets and datagrams, for those who carry datagrams by
//! themselves.

use std::net::SocketAddr;
use std::sync::Arc;

use rdmux_transport::attr::AddressVector;

use super::batch::Numbers;
use super::receiver::{Admitted, Came, Owner, Receiver};
use super::sender::{Exit, Refused};
use super::{IbDrop, Outlet, Routes, Sender};
use crate::wire::{Arrival, Flushed, Frame, LinkError, Trailer, TxFail};

/// See the module.
#[derive(Debug)]
pub struct BareWire<O> {
    outlet: O,
    owner: Owner,
    numbers: Numbers,
    routes: Arc<Routes>,
    sender: Sender,
    /// What has left before a flush.
    left: Flushed,
    receiver: Receiver,
}

impl<O: Outlet> BareWire<O> {
    /// The wire of the process that has this slot.
    pub fn new(outlet: O, slot: u16, routes: Arc<Routes>) -> Self {
        let (sender, receiver) = (Sender::new(), Receiver::default());
        let (owner, numbers) = (Owner { slot, has_targets: false }, Numbers::new(slot));
        Self { outlet, owner, numbers, routes, sender, left: Flushed::default(), receiver }
    }

    /// What takes its datagrams.
    pub fn outlet(&self) -> &O {
        &self.outlet
    }

    /// What it shares with other wires of its port.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// Takes a packet. One that would be lost on the way is counted.
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

    /// Sends what was gathered.
    pub fn flush(&mut self) -> Flushed {
        let Self { outlet, numbers, routes, sender, .. } = self;
        let (_, flushed) = sender.flush(Exit { port: outlet, routes, numbers }, None);
        // What a full outlet does not take now leaves with the next.
        let _full = self.left(flushed);
        std::mem::take(&mut self.left)
    }

    /// Notes what has left.
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

    /// Takes a datagram, and shows the packet that it makes whole, if it makes one and that is let in. Packets for other processes
    /// of the host are counted only.
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

    /// How many packets of which parts are missing are kept.
    pub fn under_way(&self) -> usize {
        self.receiver.under_way()
    }
}
