//! The receiving side of all wires of a device, as a round uses it.

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

/// The maximum number of messages that a round takes from one packet wire.
pub(crate) const MOST: usize = RxBatch::USUAL;

/// The receiving side; see the module.
pub(crate) struct Inbound {
    /// The rings of neighbours.
    pub(super) near: Inbox,
    /// The wires that packets are received from.
    wires: Vec<AnyWire>,
    /// The receive buffers, by the kind of wire.
    rx: RxBatch,
    arrivals: Arrivals,
    /// Whether packets on these wires wake the background thread. Wakeups cost the senders time even while the thread does not sleep,
    /// so they are disabled while the program polls.
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

    /// Returns whether nothing has arrived that can be seen without a system call.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.near.is_empty()
    }

    /// Returns whether there are wires that take a system call to poll.
    #[inline]
    pub(crate) fn has_descriptors(&self) -> bool {
        (self.wires.len() | self.streams.len()) != 0
    }

    /// Returns the number of wires.
    #[cfg(test)]
    pub(crate) fn wires(&self) -> usize {
        self.wires.len()
    }

    /// Returns whether a socket may hold more than the last round took from it. Drivers' wires do not report that.
    #[inline]
    pub(in crate::engine) fn may_have_more(&self) -> bool {
        let says = |wire: &&AnyWire| !matches!(wire, AnyWire::Other(_));
        self.wires.iter().filter(says).any(AnyWire::may_have_more)
    }

    /// Receives from neighbours. Returns how many records arrived.
    #[inline]
    pub(crate) fn receive_near(
        &mut self,
        device: &Arc<Device>,
        now: Time,
        owed: &mut Vec<Qpn>,
    ) -> usize {
        self.near.receive(device, now, owed)
    }

    /// Receives the rest of what a process sent before it ended.
    pub(in crate::engine) fn receive_rest(
        &mut self,
        device: &Arc<Device>,
        slot: u16,
        now: Time,
        owed: &mut Vec<Qpn>,
    ) {
        self.near.receive_rest(device, slot, now, owed);
    }

    /// Returns the queue pairs that received most recently.
    #[inline]
    pub(in crate::engine) fn recent(&mut self) -> &mut RecentQps {
        &mut self.near.qps
    }

    pub(crate) fn streams(&mut self) -> &mut Streams {
        &mut self.streams
    }

    /// Evicts a queue pair that is being destroyed.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        self.near.qps.forget(qpn);
    }

    /// Invalidates the cached memory.
    pub(crate) fn forget_memory(&mut self) {
        self.near.qps.forget_memory();
    }

    /// Updates the counters.
    pub(crate) fn tell(&mut self, device: &Device) {
        self.near.tell(device);
    }

    /// Marks the wires as unattended. Returns false if something has arrived: the caller must not sleep then.
    pub(crate) fn sleep(&self) -> bool {
        let armed = |wire: &AnyWire| match wire {
            AnyWire::Udp(_) | AnyWire::Ib(_) => true,
            AnyWire::Other(wire) => wire.arm(&self.arrivals),
        };
        self.near.sleep() && self.wires.iter().all(armed)
    }

    /// Marks the wires as attended again.
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
    /// Calls `f` with the receiving side of rounds. Waits for a running round to end.
    pub(crate) fn inbound<R>(&self, f: impl FnOnce(&mut Inbound) -> R) -> R {
        f(&mut self.round.lock().inbound)
    }

    /// Starts receiving from a wire.
    pub(crate) fn listen(&self, wire: AnyWire) -> Result<(), VerbsError> {
        self.inbound(|inbound| {
            if inbound.wires.iter().any(|w| w.is(&wire)) {
                // A driver may have one wire for several addresses.
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

    /// Stops receiving from a wire.
    pub(crate) fn unlisten(&self, wire: &AnyWire) {
        self.inbound(|inbound| inbound.wires.retain(|w| !w.is(wire)));
        self.silence(wire);
    }

    /// Stops receiving from all wires.
    pub(super) fn deafen(&self) {
        let wires = self.inbound(|inbound| std::mem::take(&mut inbound.wires));
        wires.iter().for_each(|wire| self.silence(wire));
    }

    /// Disables wakeups of the background thread by a wire.
    fn silence(&self, wire: &AnyWire) {
        if let Ok(fd) = wire.readable() {
            self.waiter.remove(fd);
        }
    }

    /// Enables or disables wakeups of the background thread by packets. Returns whether they are enabled.
    pub(crate) fn hear(&self, heard: bool) -> bool {
        self.inbound(|inbound| {
            if inbound.heard != heard {
                let add = |wire: &AnyWire| self.waiter.add(wire.readable()?);
                let added =
                    inbound.wires.iter().try_for_each(|w| if heard { add(w) } else { Ok(()) });
                if let Err(error) = &added {
                    tracing::warn!(%error, "cannot watch the sockets for packets; the device polls \
                        them periodically");
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

    /// Returns whether packets are received from any wire other than rings.
    pub(crate) fn listens(&self) -> bool {
        self.inbound(|inbound| !inbound.wires.is_empty())
    }

    /// Receives packets; with `only_more`, only from wires that may have more than the last call took. Returns how many messages
    /// arrived.
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

    /// Processes responses before requests: a peer's ACK may arrive behind the answer that it was sent along with, and programs expect
    /// their completion first. Nothing depends on the order of the two.
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
                tracing::debug!(%error, "cannot receive from a socket or ring");
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

/// A selection of the packets that arrived.
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
