//! Sockets: packets into a batch, and out of it into a socket, with the books kept.

pub(super) mod lend;
pub(super) mod shared_buffer;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use rdmux_link::wire::{Flushed, TxFail};
use rdmux_link::{Destination, Frame, LinkError, TxBatch, UdpPort, Wire};
use rdmux_transport::attr::AddressVector;

use self::lend::Loans;
use super::{AnyWire, Gathered};
use crate::engine::device::Device;
use crate::objects::counters::{Counter, Counters};
use crate::objects::error::VerbsError;

/// One of our sockets on port 4791.
#[derive(Debug)]
pub(crate) struct UdpWire {
    pub(super) port: UdpPort,
    /// The interface, for link-local destinations.
    pub(super) interface: u32,
}

impl UdpWire {
    /// Where a packet along `av` goes.
    pub(super) fn destination(&self, av: &AddressVector) -> Result<Destination, VerbsError> {
        let own = self.port.local_addr();
        if own.is_ipv4() != av.dgid.ip().is_ipv4() {
            let why = format!("{} and {} are of different address families", own.ip(), av.dgid);
            return Err(VerbsError::invalid("find a path", why));
        }
        let addr = match av.dgid.ip() {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(ip, own.port(), 0, self.interface))
            }
            ip => SocketAddr::new(ip, own.port()),
        };
        Ok(Destination { addr, tos: av.traffic_class, ttl: av.hop_limit })
    }
}

/// Gathers a packet with others of the same queue pair, and sends those that were gathered before where they do not go
/// together. `loans` is what the queue pair has lent; none of one whose packets nobody acknowledges.
pub(super) fn send(
    device: &Device,
    (wire, to): (&Arc<UdpWire>, &Destination),
    gathered: &mut Gathered,
    mut loans: Option<&mut Loans>,
    frame: &Frame<'_>,
) -> Result<(), LinkError> {
    let is_wire = |w: &AnyWire| matches!(w, AnyWire::Udp(other) if Arc::ptr_eq(other, wire));
    gathered.turn_to(device, is_wire, || AnyWire::Udp(wire.clone()), loans.as_deref_mut());
    let batch = &mut gathered.batch;
    loop {
        match wire.port.send(batch, to, frame) {
            Err(LinkError::Full) => flush(device, wire, batch, loans.as_deref_mut()),
            other => break other?,
        }
    }
    if let Some(loans) = loans {
        loans.note(frame.header, batch.len() == 1);
    }
    device.engine().capture().sent(|| wire.port.ends(to), frame);
    Ok(())
}

/// Sends a batch, by lending its memory if the queue pair may. What the socket does not take is forgotten: to the transport
/// it is lost.
pub(super) fn flush(
    device: &Device,
    wire: &UdpWire,
    batch: &mut TxBatch,
    loans: Option<&mut Loans>,
) {
    if batch.is_empty() {
        return;
    }
    let lent = loans.and_then(|loans| {
        Some((loans.borrow(&device.engine().wires.lender, &wire.port, batch)?, loans))
    });
    let flushed = match lent {
        None => wire.port.flush(batch),
        Some((mut loan, loans)) => {
            let (lent, flushed) = batch.flush_lent(&wire.port, &mut loan);
            if lent {
                loans.lent(loan);
            } else {
                loan.give_back();
            }
            flushed
        }
    };
    if flushed.is_err() {
        batch.clear();
    }
    account(device, flushed);
}

/// Counts a flush.
pub(super) fn account(device: &Device, flushed: Result<Flushed, TxFail>) {
    let counters = Counters(device.counters());
    counters.add(Counter::TxCalls, 1);
    let sent = flushed.unwrap_or_else(|fail| lost(&counters, fail));
    let Flushed { packets, bytes } = sent;
    counters.add(Counter::TxPackets, packets as u64);
    counters.add(Counter::TxBytes, bytes as u64);
}

/// Counts what did not leave and returns what did.
fn lost(counters: &Counters<'_>, fail: TxFail) -> Flushed {
    tracing::debug!(%fail, "packets lost");
    match fail {
        TxFail::Busy { sent, kept } => {
            counters.add(Counter::TxBusy, kept as u64);
            sent
        }
        TxFail::TooLarge { sent, lost, .. } | TxFail::Io { sent, lost, .. } => {
            counters.add(Counter::TxErrors, lost as u64);
            sent
        }
    }
}
