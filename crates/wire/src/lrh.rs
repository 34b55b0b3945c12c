//! Local Route Header: InfiniBand's layer 2 (IBTA 7.7).

use core::fmt;

use crate::bytes::{get16, put16};
use crate::{Lid, WireError};

/// The local route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lrh {
    /// Virtual lane, 0 to 15; 15 is for subnet management. Outside the ICRC.
    pub vl: u8,
    /// Link version, 0 for data packets.
    pub lver: u8,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// The type of the next header.
    pub lnh: Lnh,
    /// The LID of the receiving port, or of a group.
    pub dlid: Lid,
    /// Length in 4-byte words from the first byte of this header through the ICRC, 11 bits.
    pub pkt_len: u16,
    /// The LID of the sending port.
    pub slid: Lid,
}

/// Link next header: the type of the header after an LRH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Lnh {
    /// A raw packet with an EtherType.
    Raw = 0,
    /// A raw IPv6 packet.
    Ip = 1,
    /// A BTH.
    Local = 2,
    /// A GRH, and then a BTH.
    Global = 3,
}

mod field {
    pub(super) const VL_LVER: usize = 0;
    pub(super) const SL_LNH: usize = 1;
    pub(super) const DLID: usize = 2;
    pub(super) const PKT_LEN: usize = 4;
    pub(super) const SLID: usize = 6;
}

header!(Lrh, 8, "LRH");

impl Lrh {
    /// The largest [`Lrh::pkt_len`].
    pub const MAX_PKT_LEN: u16 = 0x07ff;

    /// A header on lane and service level 0, without addresses, before a BTH. The length is 0.
    pub const DEFAULT: Self = Self {
        vl: 0,
        lver: 0,
        sl: 0,
        lnh: Lnh::Local,
        dlid: Lid::NONE,
        pkt_len: 0,
        slid: Lid::NONE,
    };

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            vl: b[field::VL_LVER] >> 4,
            lver: b[field::VL_LVER] & 0xf,
            sl: b[field::SL_LNH] >> 4,
            lnh: match b[field::SL_LNH] & 3 {
                0 => Lnh::Raw,
                1 => Lnh::Ip,
                2 => Lnh::Local,
                _ => Lnh::Global,
            },
            dlid: Lid(get16(b, field::DLID)),
            pkt_len: get16(b, field::PKT_LEN) & Self::MAX_PKT_LEN,
            slid: Lid(get16(b, field::SLID)),
        })
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[field::VL_LVER] = self.vl << 4 | self.lver & 0xf;
        b[field::SL_LNH] = self.sl << 4 | self.lnh as u8;
        put16(&mut b, field::DLID, self.dlid.0);
        put16(&mut b, field::PKT_LEN, self.pkt_len & Self::MAX_PKT_LEN);
        put16(&mut b, field::SLID, self.slid.0);
        b
    }
}

impl fmt::Display for Lrh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lid {} > {} sl {} vl {}", self.slid, self.dlid, self.sl, self.vl)
    }
}
