//! Global Route Header: InfiniBand's layer 3, with the layout of an IPv6 header (IBTA 8.3).

use core::fmt;

use crate::bytes::{get, get16, get32, put, put16, put32};
use crate::{Gid, WireError};

/// The global route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class. Outside the ICRC.
    pub tclass: u8,
    /// Flow label, 20 bits. Outside the ICRC.
    pub flow_label: u32,
    /// Bytes from the end of this header through the ICRC.
    pub pay_len: u16,
    /// The next header; [`Grh::NEXT_BTH`].
    pub next_hdr: u8,
    /// The number of routers that the packet may still cross. Outside the ICRC.
    pub hop_limit: u8,
    /// The sender's GID.
    pub sgid: Gid,
    /// The GID of the receiver, or of a group.
    pub dgid: Gid,
}

mod field {
    pub(super) const VERSION_CLASS_FLOW: usize = 0;
    pub(super) const PAY_LEN: usize = 4;
    pub(super) const NEXT_HDR: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SGID: usize = 8;
    pub(super) const DGID: usize = 24;
}

header!(Grh, 40, "GRH");

impl Grh {
    /// The next header value of a BTH (IBTA 8.3.4).
    pub const NEXT_BTH: u8 = 0x1b;

    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let word = get32(b, field::VERSION_CLASS_FLOW);
        if word >> 28 != 6 {
            return Err(WireError::Value { what: "IPVer of a GRH", value: word >> 28 });
        }
        Ok(Self {
            tclass: (word << 4).to_be_bytes()[0],
            flow_label: word & 0x000f_ffff,
            pay_len: get16(b, field::PAY_LEN),
            next_hdr: b[field::NEXT_HDR],
            hop_limit: b[field::HOP_LIMIT],
            sgid: Gid(get(b, field::SGID)),
            dgid: Gid(get(b, field::DGID)),
        })
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let word = 6 << 28 | u32::from(self.tclass) << 20 | self.flow_label & 0x000f_ffff;
        put32(&mut b, field::VERSION_CLASS_FLOW, word);
        put16(&mut b, field::PAY_LEN, self.pay_len);
        b[field::NEXT_HDR] = self.next_hdr;
        b[field::HOP_LIMIT] = self.hop_limit;
        put(&mut b, field::SGID, self.sgid.0);
        put(&mut b, field::DGID, self.dgid.0);
        b
    }
}

impl fmt::Display for Grh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {} tclass {} flow {:#07x} hop_limit {}",
            self.sgid, self.dgid, self.tclass, self.flow_label, self.hop_limit
        )
    }
}
