//! The maximum number of objects of a device, and their maximum sizes.

use serde::{Deserialize, Serialize};

/// Limits of a device, separate for each process that opens it; XRC objects also count for the shares of their users at the hub
/// ([`Shares`](crate::xrc::hub::Shares)). The defaults resemble a usual adapter's, because programs reject unusual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Entries of a gather or scatter list.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Address handles.
    pub max_ah: u32,
    /// READs and atomics of the peer that a queue pair holds resources for (`max_qp_rd_atom`).
    pub max_rd_atomic: u8,
    /// READs and atomics that a queue pair can have outstanding itself (`max_qp_init_rd_atom`). They cost nothing, and peers that
    /// serve more than this device does can be used to the full.
    pub max_init_rd_atomic: u8,
    /// Bytes that may be posted inline.
    pub max_inline_data: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs of a multicast group.
    pub max_mcast_qp_attach: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self::USUAL
    }
}

impl Limits {
    /// The limits of a usual adapter.
    pub(super) const USUAL: Self = Self {
        max_qp: 65536,
        max_qp_wr: 16384,
        max_sge: 32,
        max_cq: 65536,
        max_cqe: 4_194_303,
        max_mr: 1 << 20,
        max_mw: 1 << 20,
        max_pd: 32768,
        max_srq: 32768,
        max_srq_wr: 32767,
        max_ah: 1 << 20,
        max_rd_atomic: 16,
        max_init_rd_atomic: 128,
        max_inline_data: 1024,
        max_mcast_grp: 8192,
        max_mcast_qp_attach: 256,
    };

    /// Caps these limits at those that a device supports: its table of keys has 2^24 - 1 entries, and a packet is gathered from
    /// 32 pieces.
    pub(super) fn possible(self) -> Self {
        const KEYS: u32 = (1 << 24) - 1;
        let max_mr = self.max_mr.min(KEYS);
        Self {
            max_mr,
            max_mw: self.max_mw.min(KEYS - max_mr),
            max_sge: self.max_sge.min(32),
            ..self
        }
    }

    /// Returns these limits for a device without datagrams: neither address handles nor groups.
    pub const fn without_datagrams(self) -> Self {
        Self { max_ah: 0, max_mcast_grp: 0, max_mcast_qp_attach: 0, ..self }
    }
}
