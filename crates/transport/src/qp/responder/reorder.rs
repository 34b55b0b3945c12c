//! Buffering of out-of-order packets, which are carried out in order when the missing packet arrives.
//!
//! A packet has no effect before its turn, so memory, completions and errors are the same as without loss.
//! Requests that need more than an ACK as response are not buffered: they are few, and the peer sends them again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rdmux_wire::{Packet, Psn};

use crate::optable::{Kind, RxRow};

/// The most payload bytes that a queue pair buffers: as many as a requester of this stack ever has in flight.
const MOST_BYTES: u32 = 2 << 20;
/// The most packets that a queue pair buffers.
const MOST: u32 = 2048;

/// A buffered packet.
#[derive(Debug)]
pub(super) struct Buffered {
    /// The headers of the packet.
    packet: Packet<'static>,
    pub(super) row: RxRow,
    payload: Box<[u8]>,
}

impl Buffered {
    /// Returns the packet as it arrived.
    pub(super) fn packet(&self) -> Packet<'_> {
        Packet { payload: &self.payload, ..self.packet }
    }
}

/// The buffered packets. Nothing is allocated while none are buffered.
#[derive(Debug, Default)]
pub(crate) struct ReorderBuffer(Option<Box<Packets>>);

/// The packets, each in the slot given by its PSN.
#[derive(Debug)]
struct Packets {
    slots: Box<[Option<Box<Buffered>>]>,
    /// The number of packets, and the bytes of their payload.
    count: u32,
    bytes: usize,
    /// The PSN after the last of them.
    end: Psn,
}

impl ReorderBuffer {
    /// Buffers a packet that arrived while `expected` is missing. Returns false if it is of another
    /// kind, too far ahead, or already buffered.
    #[cold]
    pub(super) fn keep(
        &mut self,
        expected: Psn,
        packet: &Packet<'_>,
        row: RxRow,
        mtu: u32,
    ) -> bool {
        let room = (MOST_BYTES / mtu).next_power_of_two().min(MOST);
        let (psn, len) = (packet.bth.psn, packet.payload.len());
        let far = psn.diff(expected).unsigned_abs() >= room || len > mtu as usize;
        if far || !matches!(row.kind, Kind::Send | Kind::Write) {
            return false;
        }
        let buffered = self.0.get_or_insert_with(|| {
            let slots = (0..room).map(|_| None).collect();
            Box::new(Packets { slots, count: 0, bytes: 0, end: psn })
        });
        let slot = slot(&mut buffered.slots, psn);
        match slot {
            Some(old) if old.packet.bth.psn == psn => return false,
            // The old packet was never expected, since a READ took its PSN.
            Some(old) => buffered.bytes -= old.payload.len(),
            None => buffered.count += 1,
        }
        if psn.diff(buffered.end) >= 0 {
            buffered.end = psn.add(1);
        }
        buffered.bytes += len;
        let headers = Packet {
            reth: packet.reth,
            imm: packet.imm,
            ieth: packet.ieth,
            xrceth: packet.xrceth,
            ..Packet::new(packet.bth, &[])
        };
        let payload = Vec::from(packet.payload).into_boxed_slice();
        *slot = Some(Box::new(Buffered { packet: headers, row, payload }));
        true
    }

    /// Removes and returns the packet with this PSN, if it was buffered.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Box<Buffered>> {
        let buffered = self.0.as_deref_mut()?;
        let packet =
            slot(&mut buffered.slots, psn).take_if(|buffered| buffered.packet.bth.psn == psn)?;
        buffered.count -= 1;
        buffered.bytes -= packet.payload.len();
        Some(packet)
    }

    /// Returns whether no packets are buffered.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Discards everything if no packet at or after `expected` is buffered.
    pub(super) fn forget_before(&mut self, expected: Psn) {
        if self.0.as_deref().is_some_and(|k| k.count == 0 || k.end.diff(expected) <= 0) {
            self.clear();
        }
    }

    /// Discards everything.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Returns the number of allocated bytes.
    pub(crate) fn footprint(&self) -> usize {
        self.0.as_deref().map_or(0, |buffered| {
            let packets = buffered.count as usize * size_of::<Buffered>() + buffered.bytes;
            size_of::<Packets>() + size_of_val(&*buffered.slots) + packets
        })
    }
}

fn slot(slots: &mut [Option<Box<Buffered>>], psn: Psn) -> &mut Option<Box<Buffered>> {
    // The number of slots is a power of two, as is the number of PSNs.
    let mask = slots.len() - 1;
    &mut slots[psn.get() as usize & mask]
}
