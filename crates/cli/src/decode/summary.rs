//! What a capture held, counted.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::frame::What;
use super::roce::IcrcCheck;

/// Counts of frames, and of packets by kind.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    pub(super) frames: u64,
    /// Frames of RDMA, whether right or wrong.
    pub(super) rdma: u64,
    pub(super) icrc_right: u64,
    pub(super) icrc_wrong: u64,
    pub(super) undecodable: u64,
    /// Frames of RDMA that were cut to the snap length, so that nothing was checked.
    pub(super) cut_short: u64,
    /// Frames that hold more than a packet, because the capturing host left segmentation to its
    /// adapter.
    pub(super) offloaded: u64,
    pub(super) fragments: u64,
    pub(super) other: u64,
    /// Packets by opcode, or by message where they are for QP1.
    pub(super) packets: BTreeMap<String, u64>,
}

impl Summary {
    pub(super) fn count(&mut self, what: &What<'_>) {
        self.frames += 1;
        let roce = match what {
            What::Roce(roce) => roce,
            What::Undecodable(_) => {
                self.rdma += 1;
                self.undecodable += 1;
                return;
            }
            What::CutShort { .. } => {
                self.rdma += 1;
                self.cut_short += 1;
                return;
            }
            What::Fragment { .. } => {
                self.fragments += 1;
                return;
            }
            What::Other(_) => {
                self.other += 1;
                return;
            }
        };
        self.rdma += 1;
        self.offloaded += u64::from(!roce.offloaded.is_empty());
        match roce.icrc {
            IcrcCheck::Right => self.icrc_right += 1,
            IcrcCheck::Wrong { .. } => self.icrc_wrong += 1,
            IcrcCheck::Unchecked => self.cut_short += 1,
        }
        for packet in roce.packets() {
            *self.packets.entry(packet.kind()).or_default() += 1;
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.rdma += other.rdma;
        self.icrc_right += other.icrc_right;
        self.icrc_wrong += other.icrc_wrong;
        self.undecodable += other.undecodable;
        self.cut_short += other.cut_short;
        self.offloaded += other.offloaded;
        self.fragments += other.fragments;
        self.other += other.other;
        for (kind, count) in &other.packets {
            *self.packets.entry(kind.clone()).or_default() += count;
        }
    }

    /// Whether every frame of RDMA that was captured whole is right.
    pub(super) fn all_right(&self) -> bool {
        self.icrc_wrong == 0 && self.undecodable == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frames, {} of RDMA: {} right", self.frames, self.rdma, self.icrc_right)?;
        for (count, what) in [
            (self.icrc_wrong, "with a WRONG ICRC"),
            (self.undecodable, "UNDECODABLE"),
            (self.cut_short, "cut short and not checked"),
            (self.offloaded, "of them offloaded"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        for (count, what) in [(self.fragments, "IP fragments"), (self.other, "others")] {
            if count > 0 {
                write!(f, "; {count} {what}")?;
            }
        }
        let mut packets: Vec<_> = self.packets.iter().collect();
        packets.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (kind, count) in packets {
            write!(f, "\n  {count:8} {kind}")?;
        }
        Ok(())
    }
}
