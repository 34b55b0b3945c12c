//! A path, as REQ and LAP describe it (IBTA 12.6.5 and 12.6.11).

use core::fmt;

use crate::bytes::{get, get16, get24, put, put16, put24};
use crate::cm::{bits, put_bits};
use crate::{AckTimeout, Gid, Lid};

/// The path of packets between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Path {
    /// The LID of the sender's port.
    pub local_lid: Lid,
    /// The LID of the receiver's port.
    pub remote_lid: Lid,
    /// The GID of the sender's port.
    pub local_gid: Gid,
    /// The GID of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The static rate, a code of 6 bits.
    pub rate: u8,
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Whether both ports are in one subnet.
    pub subnet_local: bool,
    /// The sender's timeout for an ACK.
    pub ack_timeout: AckTimeout,
}

/// The offsets of the last fields, whose order differs between REQ and LAP.
pub(super) struct Order {
    pub(super) rate: usize,
    pub(super) tclass: usize,
    pub(super) hop_limit: usize,
}

/// The order in a REQ.
pub(super) const REQ: Order = Order { rate: 39, tclass: 40, hop_limit: 41 };
/// The order in a LAP.
pub(super) const LAP: Order = Order { rate: 41, tclass: 39, hop_limit: 40 };

mod field {
    pub(super) const LOCAL_LID: usize = 0;
    pub(super) const REMOTE_LID: usize = 2;
    pub(super) const LOCAL_GID: usize = 4;
    pub(super) const REMOTE_GID: usize = 20;
    pub(super) const FLOW_LABEL: usize = 36;
    pub(super) const SL: usize = 42;
    pub(super) const ACK_TIMEOUT: usize = 43;
}

impl Path {
    pub(super) const LEN: usize = 44;

    /// Reads a path at the start of `b`, which has at least [`Path::LEN`] bytes.
    pub(super) fn read(b: &[u8], order: &Order) -> Self {
        Self {
            local_lid: Lid(get16(b, field::LOCAL_LID)),
            remote_lid: Lid(get16(b, field::REMOTE_LID)),
            local_gid: Gid(get(b, field::LOCAL_GID)),
            remote_gid: Gid(get(b, field::REMOTE_GID)),
            flow_label: get24(b, field::FLOW_LABEL) >> 4,
            rate: bits(b[order.rate], 2, 6),
            tclass: b[order.tclass],
            hop_limit: b[order.hop_limit],
            sl: bits(b[field::SL], 0, 4),
            subnet_local: bits(b[field::SL], 4, 1) == 1,
            ack_timeout: AckTimeout::new(bits(b[field::ACK_TIMEOUT], 0, 5)),
        }
    }

    pub(super) fn write(&self, b: &mut [u8], order: &Order) {
        put16(b, field::LOCAL_LID, self.local_lid.0);
        put16(b, field::REMOTE_LID, self.remote_lid.0);
        put(b, field::LOCAL_GID, self.local_gid.0);
        put(b, field::REMOTE_GID, self.remote_gid.0);
        put24(b, field::FLOW_LABEL, self.flow_label << 4);
        b[order.rate] = put_bits(self.rate, 2, 6);
        b[order.tclass] = self.tclass;
        b[order.hop_limit] = self.hop_limit;
        b[field::SL] = put_bits(self.sl, 0, 4) | put_bits(self.subnet_local.into(), 4, 1);
        b[field::ACK_TIMEOUT] = put_bits(self.ack_timeout.code(), 0, 5);
    }

    /// Returns whether there is no path: a REQ without alternate path has zeros there.
    pub fn is_none(&self) -> bool {
        self.local_lid.0 == 0 && self.local_gid.is_zero()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_gid, remote_gid, sl, hop_limit, .. } = self;
        write!(f, "{local_gid} > {remote_gid} sl {sl} hop_limit {hop_limit}")
    }
}
