//! The summary of a capture: counts of its frames and packets.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::frame::What;
use super::iwarp::{Check, Iwarp, Unit};
use super::roce::IcrcCheck;

/// Counts of frames, and of packets by kind.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    pub(super) frames: u64,
    /// Frames with RDMA, valid or not.
    pub(super) rdma: u64,
    pub(super) icrc_right: u64,
    pub(super) icrc_wrong: u64,
    /// Packets of InfiniBand with a wrong VCRC; captures may lack the VCRC.
    pub(super) vcrc_wrong: u64,
    pub(super) undecodable: u64,
    /// Frames with RDMA that were truncated to the snap length, and not checked.
    pub(super) cut_short: u64,
    /// Frames that contain more than one packet, because the capturing host left segmentation to its adapter.
    pub(super) offloaded: u64,
    /// Frames with a segment of an iWARP stream.
    pub(super) iwarp: u64,
    /// Frames of iWARP streams without an error and without parts too short to check.
    pub(super) iwarp_right: u64,
    /// FPDUs with the right CRC.
    pub(super) crc_right: u64,
    pub(super) crc_wrong: u64,
    /// FPDUs without a CRC, by agreement.
    pub(super) crc_none: u64,
    pub(super) crc_unchecked: u64,
    /// Frames with a segment of a stream that looks like iWARP, but whose start was not captured.
    pub(super) midstream: u64,
    /// Bytes of iWARP that were still waiting for uncaptured bytes at the end.
    pub(super) left_over: u64,
    pub(super) fragments: u64,
    pub(super) other: u64,
    /// Packets by opcode, or by message for those to QP1.
    pub(super) packets: BTreeMap<String, u64>,
}

impl Summary {
    /// Counts a frame by its contents.
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
            What::Iwarp(iwarp) => return self.count_iwarp(iwarp),
            What::Tcp(segment) => {
                self.midstream += u64::from(segment.midstream);
                self.other += 1;
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
        self.vcrc_wrong += u64::from(roce.vcrc.is_some_and(|vcrc| !vcrc.is_right()));
        for packet in roce.packets() {
            *self.packets.entry(packet.kind()).or_default() += 1;
        }
    }

    fn count_iwarp(&mut self, iwarp: &Iwarp<'_>) {
        self.rdma += 1;
        self.iwarp += 1;
        let mut right = !iwarp.lost;
        for unit in &iwarp.units {
            match unit {
                Unit::Startup { .. } => {}
                Unit::Frame(frame) => {
                    *match frame.check {
                        Check::Right => &mut self.crc_right,
                        Check::Wrong { .. } => &mut self.crc_wrong,
                        Check::None => &mut self.crc_none,
                        Check::Unchecked => &mut self.crc_unchecked,
                    } += 1;
                    right &= matches!(frame.check, Check::Right | Check::None);
                }
                Unit::Broken(_) => self.undecodable += 1,
                Unit::Cut(_) => self.cut_short += 1,
                Unit::Lost => {}
            }
            right &= matches!(unit, Unit::Startup { .. } | Unit::Frame(_));
            if let Some(kind) = unit.kind() {
                *self.packets.entry(kind).or_default() += 1;
            }
        }
        self.iwarp_right += u64::from(right);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.rdma += other.rdma;
        self.icrc_right += other.icrc_right;
        self.icrc_wrong += other.icrc_wrong;
        self.vcrc_wrong += other.vcrc_wrong;
        self.undecodable += other.undecodable;
        self.cut_short += other.cut_short;
        self.offloaded += other.offloaded;
        self.iwarp += other.iwarp;
        self.iwarp_right += other.iwarp_right;
        self.crc_right += other.crc_right;
        self.crc_wrong += other.crc_wrong;
        self.crc_none += other.crc_none;
        self.crc_unchecked += other.crc_unchecked;
        self.midstream += other.midstream;
        self.left_over += other.left_over;
        self.fragments += other.fragments;
        self.other += other.other;
        for (kind, count) in &other.packets {
            *self.packets.entry(kind.clone()).or_default() += count;
        }
    }

    /// Returns whether every completely captured RDMA frame is valid.
    pub(super) fn all_right(&self) -> bool {
        self.icrc_wrong + self.vcrc_wrong + self.crc_wrong + self.undecodable == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = self.icrc_right + self.iwarp_right;
        write!(f, "{} frames, {} of RDMA: {right} right", self.frames, self.rdma)?;
        for (count, what) in [
            (self.icrc_wrong, "with a WRONG ICRC"),
            (self.vcrc_wrong, "with a WRONG VCRC"),
            (self.undecodable, "UNDECODABLE"),
            (self.cut_short, "cut short and not checked"),
            (self.offloaded, "of them offloaded"),
            (self.crc_right, "FPDUs with the right CRC"),
            (self.crc_wrong, "FPDUs with a WRONG CRC"),
            (self.crc_none, "FPDUs without CRC"),
            (self.crc_unchecked, "FPDUs not checked"),
            (self.left_over, "bytes of iWARP not decoded, because earlier bytes were not captured"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        for (count, what) in [
            (self.fragments, "IP fragments"),
            (self.other, "others"),
            (
                self.midstream,
                "of them in streams that look like iWARP, but whose start was not captured",
            ),
        ] {
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
