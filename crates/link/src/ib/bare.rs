//! A wire without a socket: what [`IbWire`](super::IbWire) does with packets and datagrams, for those who carry datagrams by
//! themselves.

use std::net::SocketAddr;
use std::sync::Arc;

use rdmux_transport::attr::AddressVector;

use super::receiver::{Came, Receiver};
use super::sender::{Refused, Sender};
use super::{Outlet, Routes};
use crate::wire::{Arrival, Flushed, Frame, IbRoute, LinkError};

/// See the module.
#[derive(Debug)]
pub struct BareWire<O> {
    outlet: O,
    slot: u16,
    routes: Arc<Routes>,
    sender: Sender,
    receiver: Receiver,
}

impl<O: Outlet> BareWire<O> {
    /// The wire of the process that has this slot.
    pub fn new(outlet: O, slot: u16, routes: Arc<Routes>) -> Self {
        Self { outlet, slot, routes, sender: Sender::new(slot), receiver: Receiver::default() }
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
        match self.sender.send(&self.outlet, &self.routes, to, frame) {
            Ok(()) => Ok(()),
            Err(Refused::Lost(why)) => {
                self.routes.count(why, 1);
                Ok(())
            }
            Err(Refused::Link(error)) => Err(error),
        }
    }

    /// Sends what was gathered.
    pub fn flush(&mut self) -> Flushed {
        self.sender.flush(&self.outlet, &self.routes)
    }

    /// Takes a datagram, and shows the packet that it makes whole, if it makes one and that is let in. Packets for other processes
    /// of the host are counted only.
    pub fn take(&mut self, from: SocketAddr, datagram: &[u8], show: impl FnOnce(&Arrival<'_>)) {
        self.receiver.refresh(&self.routes);
        let dst = self.outlet.local_addr();
        let came = self.receiver.take(&self.routes, self.slot, from, from == dst, datagram);
        let (Came::Packet(bytes, route) | Came::Joined(bytes, route)) = came else { return };
        show(&arrival(from, dst, bytes, &route));
    }

    /// How many packets of which parts are missing are kept.
    pub fn under_way(&self) -> usize {
        self.receiver.under_way()
    }
}

fn arrival<'a>(
    src: SocketAddr,
    dst: SocketAddr,
    bytes: &'a [u8],
    route: &'a IbRoute,
) -> Arrival<'a> {
    Arrival { src, dst, bytes, icrc: None, tos: None, ttl: None, ib: Some(route) }
}
