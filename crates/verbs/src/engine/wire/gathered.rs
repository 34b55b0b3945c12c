//! Packets that a queue pair has gathered to be sent together, on any wire that gathers packets: in one system call, zero-copy if
//! that pays, with the counters updated.

use rdmux_link::ib::Sender;
use rdmux_link::wire::{Flushed, Gathering, TxFail};
use rdmux_link::{Frame, LinkError, TxBatch};

use super::udp::zerocopy::ZeroCopySends;
use super::{AnyWire, other};
use crate::engine::device::Device;
use crate::objects::counters::{Counter, Counters};

/// Gathered packets; see the module. One per thread, used for one queue pair at a time.
#[derive(Default)]
pub(crate) struct Gathered {
    /// Packets for a UDP wire.
    pub(super) batch: TxBatch,
    /// Packets for an InfiniBand wire.
    pub(super) ib: Sender,
    /// The wire of the gathered packets.
    wire: Option<AnyWire>,
}

impl Gathered {
    /// Gathers for this wire from now on, after sending the packets gathered for another.
    pub(super) fn turn_to(
        &mut self,
        device: &Device,
        is_wire: impl FnOnce(&AnyWire) -> bool,
        wire: impl FnOnce() -> AnyWire,
        zerocopy: Option<&mut ZeroCopySends>,
    ) {
        if !self.wire.as_ref().is_some_and(is_wire) {
            self.flush(device, zerocopy);
            self.wire = Some(wire());
        }
    }

    /// Sends the gathered packets. Packets that the wire does not accept are lost, as on any wire: the transport notices.
    pub(super) fn flush(&mut self, device: &Device, zerocopy: Option<&mut ZeroCopySends>) {
        match self.wire.take() {
            Some(AnyWire::Udp(wire)) => flush(device, &wire.port, &mut self.batch, zerocopy),
            Some(AnyWire::Ib(wire)) => flush(device, &*wire, &mut self.ib, zerocopy),
            Some(AnyWire::Other(wire)) => other::flush(device, &wire),
            None => {}
        }
    }
}

/// Gathers a packet with others of the same queue pair. Packets gathered earlier are sent first if they cannot be combined.
/// `zerocopy` has the queue pair's zero-copy sends; none if its packets are not acknowledged.
pub(super) fn send<W: Gathering>(
    device: &Device,
    (wire, to): (&W, &W::To),
    tx: &mut W::Tx,
    mut zerocopy: Option<&mut ZeroCopySends>,
    frame: &Frame<'_>,
) -> Result<(), LinkError> {
    let before = loop {
        let before = wire.packets(tx);
        match wire.send(tx, to, frame) {
            Err(LinkError::Full) => flush(device, wire, tx, zerocopy.as_deref_mut()),
            other => {
                other?;
                break before;
            }
        }
    };
    if let Some(zerocopy) = zerocopy
        && wire.packets(tx) > before
    {
        zerocopy.note(frame.header, before == 0);
    }
    Ok(())
}

/// Sends the gathered packets, zero-copy if the queue pair may. Packets that the wire does not accept are discarded: to the
/// transport they are lost.
fn flush<W: Gathering>(
    device: &Device,
    wire: &W,
    tx: &mut W::Tx,
    zerocopy: Option<&mut ZeroCopySends>,
) {
    if wire.packets(tx) == 0 {
        return;
    }
    let buf = zerocopy.and_then(|zerocopy| {
        let buf = if wire.supports_zerocopy(tx) {
            let to = wire.zerocopy_dest(tx)?;
            zerocopy.take(&device.engine().wires.zerocopy_pool, to, wire.bytes(tx))
        } else {
            None
        };
        Some((buf?, zerocopy))
    });
    let flushed = match buf {
        None => wire.flush(tx),
        Some((mut buf, zerocopy)) => {
            let (taken, flushed) = wire.flush_zerocopy(tx, &mut buf);
            if taken {
                zerocopy.sent(buf);
            } else {
                buf.recycle();
            }
            flushed
        }
    };
    if flushed.is_err() {
        wire.forget(tx);
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

/// Counts the packets that were not sent, and returns those that were.
fn lost(counters: &Counters<'_>, fail: TxFail) -> Flushed {
    tracing::debug!(%fail, "not all packets were sent");
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
