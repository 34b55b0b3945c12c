//! Out-of-order packets: buffered while an earlier one is missing, and carried out in order when that arrives.
//!
//! Nothing is done with a packet before its turn, so memory, completions and errors are what they would be had nothing
//! been lost. Requests that are answered with more than an ACK are not buffered: they are few, and are asked for again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rdmux_wire::{Packet, Psn};

use crate::optable::{Kind, RxRow};

/// Bytes of payload that a queue pair keeps at most: as many as a requester of ours ever has in flight.
const MOST_BYTES: u32 = 2 << 20;
/// The most packets.
const MOST: u32 = 2048;

/// A packet that was buffered.
#[derive(Debug)]
pub(super) struct Buffered {
    /// Its headers.
    packet: Packet<'static>,
    pub(super) row: RxRow,
    payload: Box<[u8]>,
}

impl Buffered {
    /// The packet as it came.
    pub(super) fn packet(&self) -> Packet<'_> {
        Packet { payload: &self.payload, ..self.packet }
    }
}

/// Packets that were buffered. Nothing is allocated while there are none.
#[derive(Debug, Default)]
pub(crate) struct ReorderBuffer(Option<Box<Packets>>);

/// Each in the slot that its PSN says.
#[derive(Debug)]
struct Packets {
    slots: Box<[Option<Box<Buffered>>]>,
    /// How many there are, and bytes of their payload.
    count: u32,
    bytes: usize,
    /// The PSN after the last of them.
    end: Psn,
}

impl ReorderBuffer {
    /// Keeps a packet that comes while `expected` is missing. False if it is not of the kind, too far ahead, or
    /// there already.
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
            // It was never expected, since a READ took its PSN.
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

    /// Takes the packet with this PSN, if it was buffered.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Box<Buffered>> {
        let buffered = self.0.as_deref_mut()?;
        let packet =
            slot(&mut buffered.slots, psn).take_if(|buffered| buffered.packet.bth.psn == psn)?;
        buffered.count -= 1;
        buffered.bytes -= packet.payload.len();
        Some(packet)
    }

    /// Whether there is nothing, as without a loss.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Forgets everything if nothing of it is behind `expected`.
    pub(super) fn forget_before(&mut self, expected: Psn) {
        if self.0.as_deref().is_some_and(|k| k.count == 0 || k.end.diff(expected) <= 0) {
            self.clear();
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Bytes allocated.
    pub(crate) fn footprint(&self) -> usize {
        self.0.as_deref().map_or(0, |buffered| {
            let packets = buffered.count as usize * size_of::<Buffered>() + buffered.bytes;
            size_of::<Packets>() + size_of_val(&*buffered.slots) + packets
        })
    }
}

fn slot(slots: &mut [Option<Box<Buffered>>], psn: Psn) -> &mut Option<Box<Buffered>> {
    // As many as a power of two, which the number of PSNs is, too.
    let mask = slots.len() - 1;
    &mut slots[psn.get() as usize & mask]
}
