//! What a round receives from: all wires of a device.

use std::io;
use std::sync::Arc;

use rdmux_link::RxBatch;
use rdmux_link::wire::{Arrival, Arrivals, Wire};
use rdmux_transport::Time;
use rdmux_wire::Qpn;

use super::AnyWire;
use super::ring::Inbox;
use super::stream::Streams;
use crate::engine::device::Device;
use crate::engine::receive::count;
use crate::engine::recent::RecentQps;
use crate::engine::wait::Waiter;
use crate::engine::{Engine, Table};
use crate::objects::counters::{Counter, Counters};
use crate::objects::error::VerbsError;

/// The most messages that a round takes from one wire of packets.
pub(crate) const MOST: usize = RxBatch::USUAL;

/// See the module.
pub(crate) struct Inbound {
    /// What neighbours have sent.
    pub(super) near: Inbox,
    /// Where packets come from.
    wires: Vec<AnyWire>,
    /// What they are received into, by the kind of wire.
    rx: RxBatch,
    arrivals: Arrivals,
    /// Whether packets at these wires wake the background thread. They cost their senders time even while it does not
    /// sleep, so where the program polls they do not.
    heard: bool,
    streams: Streams,
}

impl Inbound {
    pub(crate) fn new(waiter: &Waiter) -> io::Result<Self> {
        Ok(Self {
            near: Inbox::default(),
            wires: Vec::new(),
            rx: RxBatch::new(MOST),
            arrivals: Arrivals::default(),
            heard: true,
            streams: Streams::new(waiter)?,
        })
    }

    /// Whether nothing has come that can be seen without a system call.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.near.is_empty()
    }

    /// Whether there is anything that takes a system call to look at.
    #[inline]
    pub(crate) fn has_descriptors(&self) -> bool {
        (self.wires.len() | self.streams.len()) != 0
    }

    /// How many wires are listened to.
    #[cfg(test)]
    pub(crate) fn wires(&self) -> usize {
        self.wires.len()
    }

    /// Whether a socket may hold more than the last round took from it. Drivers' wires do not say.
    #[inline]
    pub(in crate::engine) fn may_have_more(&self) -> bool {
        let says = |wire: &&AnyWire| !matches!(wire, AnyWire::Other(_));
        self.wires.iter().filter(says).any(AnyWire::may_have_more)
    }

    /// Takes what neighbours have sent. Returns how many records that were.
    #[inline]
    pub(crate) fn receive_near(
        &mut self,
        device: &Arc<Device>,
        now: Time,
        owed: &mut Vec<Qpn>,
    ) -> usize {
        self.near.receive(device, now, owed)
    }

    /// Takes what is left of what a process has sent that is gone.
    pub(in crate::engine) fn receive_rest(
        &mut self,
        device: &Arc<Device>,
        slot: u16,
        now: Time,
        owed: &mut Vec<Qpn>,
    ) {
        self.near.receive_rest(device, slot, now, owed);
    }

    /// The queue pairs that received last.
    #[inline]
    pub(in crate::engine) fn recent(&mut self) -> &mut RecentQps {
        &mut self.near.qps
    }

    pub(crate) fn streams(&mut self) -> &mut Streams {
        &mut self.streams
    }

    /// Forgets a queue pair that is being destroyed.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        self.near.qps.forget(qpn);
    }

    /// Forgets where something was put.
    pub(crate) fn forget_memory(&mut self) {
        self.near.qps.forget_memory();
    }

    /// Brings the counters up to date.
    pub(crate) fn tell(&mut self, device: &Device) {
        self.near.tell(device);
    }

    /// Nobody looks at the wires from now on. False if something has come: do not sleep then.
    pub(crate) fn sleep(&self) -> bool {
        let armed = |wire: &AnyWire| match wire {
            AnyWire::Udp(_) | AnyWire::Ib(_) => true,
            AnyWire::Other(wire) => wire.arm(&self.arrivals),
        };
        self.near.sleep() && self.wires.iter().all(armed)
    }

    /// Takes that back.
    pub(crate) fn wake(&self) {
        self.near.wake();
        for wire in &self.wires {
            if let AnyWire::Other(wire) = wire {
                wire.disarm(&self.arrivals);
            }
        }
    }
}

impl Engine {
    /// What rounds receive from. Waits for a round to end.
    pub(crate) fn inbound<R>(&self, f: impl FnOnce(&mut Inbound) -> R) -> R {
        f(&mut self.round.lock().inbound)
    }

    /// Takes packets from a wire from now on.
    pub(crate) fn listen(&self, wire: AnyWire) -> Result<(), VerbsError> {
        self.inbound(|inbound| {
            if inbound.wires.iter().any(|w| w.is(&wire)) {
                // A driver may have one for several addresses.
                return Ok(());
            }
            if inbound.heard {
                let added = wire.readable().and_then(|fd| self.waiter.add(fd));
                added.map_err(VerbsError::os("listen on a socket"))?;
            }
            inbound.wires.push(wire);
            Ok(())
        })
    }

    /// Does so no longer.
    pub(crate) fn unlisten(&self, wire: &AnyWire) {
        self.inbound(|inbound| inbound.wires.retain(|w| !w.is(wire)));
        self.silence(wire);
    }

    /// Takes packets from no wire any more.
    pub(super) fn deafen(&self) {
        let wires = self.inbound(|inbound| std::mem::take(&mut inbound.wires));
        wires.iter().for_each(|wire| self.silence(wire));
    }

    /// Packets at a wire do not wake the background thread.
    fn silence(&self, wire: &AnyWire) {
        if let Ok(fd) = wire.readable() {
            self.waiter.remove(fd);
        }
    }

    /// Lets packets wake the background thread, or not. Returns whether they do.
    pub(crate) fn hear(&self, heard: bool) -> bool {
        self.inbound(|inbound| {
            if inbound.heard != heard {
                let add = |wire: &AnyWire| self.waiter.add(wire.readable()?);
                let added =
                    inbound.wires.iter().try_for_each(|w| if heard { add(w) } else { Ok(()) });
                if let Err(error) = &added {
                    tracing::warn!(%error, "the sockets are looked at now and then");
                }
                let heard = heard && added.is_ok();
                if !heard {
                    inbound.wires.iter().for_each(|wire| self.silence(wire));
                }
                inbound.heard = heard;
            }
            inbound.heard
        })
    }

    /// Whether packets come from anywhere but neighbours.
    pub(crate) fn listens(&self) -> bool {
        self.inbound(|inbound| !inbound.wires.is_empty())
    }

    /// Takes in packets, or only those of wires of which there may be more than the last time brought. Returns how many messages came.
    pub(in crate::engine) fn receive_packets(
        &self,
        device: &Arc<Device>,
        table: &Table<'_>,
        inbound: &mut Inbound,
        only_more: bool,
    ) -> usize {
        let mut received = 0;
        let Inbound { wires, rx, arrivals, .. } = inbound;
        let truncated = rx.truncated();
        for wire in wires.iter().filter(|wire| !only_more || wire.may_have_more()) {
            received += match wire {
                AnyWire::Udp(wire) => {
                    let came = wire.port.receive(rx);
                    let packets = |which: Which| rx.arrivals().filter(move |a| which.has(a));
                    self.deliver_batch(device, table, came, || rx.arrivals().nth(1), packets)
                }
                AnyWire::Ib(wire) => {
                    let came = wire.receive(arrivals);
                    let packets = |which: Which| wire.intact(arrivals, move |a| which.has(a));
                    self.deliver_batch(device, table, came, || arrivals.iter().nth(1), packets)
                }
                AnyWire::Other(wire) => {
                    let came = wire.receive(arrivals);
                    let packets = |which: Which| arrivals.iter().filter(move |a| which.has(a));
                    self.deliver_batch(device, table, came, || arrivals.iter().nth(1), packets)
                }
            };
        }
        let lost = rx.truncated() - truncated;
        if lost != 0 {
            Counters(device.counters()).add(Counter::RxTruncated, lost);
        }
        received
    }

    /// Takes in responses before requests: a peer's ACK may come behind the answer that it was sent along with, and
    /// programs expect their completion first. Nothing depends on the order of the two.
    fn deliver_batch<'a, I: Iterator<Item = Arrival<'a>>>(
        &self,
        device: &Arc<Device>,
        table: &Table<'_>,
        came: io::Result<usize>,
        second: impl FnOnce() -> Option<Arrival<'a>>,
        packets: impl Fn(Which) -> I,
    ) -> usize {
        match came {
            Ok(0) => return 0,
            Ok(_) => count(device, Counter::RxCalls),
            Err(error) => {
                tracing::debug!(%error, "receive failed");
                count(device, Counter::RxMalformed);
                return 0;
            }
        }
        if second().is_none() {
            self.deliver(device, table, packets(Which::All));
        } else {
            self.deliver(device, table, packets(Which::Responses));
            self.deliver(device, table, packets(Which::Requests));
        }
        came.unwrap_or(0)
    }
}

/// Which packets of those that came.
#[derive(Clone, Copy, Debug)]
enum Which {
    All,
    Responses,
    Requests,
}

impl Which {
    fn has(self, arrival: &Arrival<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Responses => arrival.is_response(),
            Self::Requests => !arrival.is_response(),
        }
    }
}
