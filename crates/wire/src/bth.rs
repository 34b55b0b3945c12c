//! Base Transport Header, which every packet has (IBTA 9.2).

use core::fmt;

use crate::bytes::{get16, get24, put16, put24};
use crate::{Opcode, Pkey, Psn, Qpn, WireError};

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The operation, which determines the extension headers.
    pub opcode: Opcode,
    /// Solicited event: the responder's completion wakes a waiter for solicited events only.
    pub solicited: bool,
    /// Migration state: set while the path is the one that was migrated to.
    pub mig_req: bool,
    /// The number of zero bytes between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Transport header version; 0 is the only one.
    pub tver: u8,
    /// The partition.
    pub pkey: Pkey,
    /// Forward congestion notification. Outside the ICRC.
    pub fecn: bool,
    /// Backward congestion notification. Outside the ICRC.
    pub becn: bool,
    /// The number of the destination queue pair.
    pub dest_qpn: Qpn,
    /// Whether the requester requests an acknowledgement of this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

mod field {
    pub(super) const OPCODE: usize = 0;
    pub(super) const FLAGS: usize = 1;
    pub(super) const PKEY: usize = 2;
    pub(super) const CONGESTION: usize = super::CONGESTION_BYTE;
    pub(super) const DEST_QPN: usize = 5;
    pub(super) const ACK: usize = 8;
    pub(super) const PSN: usize = 9;
}

/// The one byte of a BTH that the ICRC does not cover: FECN, BECN and six reserved bits.
pub const CONGESTION_BYTE: usize = 4;

header!(Bth, 12, "BTH");

impl Bth {
    /// Creates a header with every flag and the pad count zero, and the default partition.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let flags = b[field::FLAGS];
        Ok(Self {
            opcode: Opcode(b[field::OPCODE]),
            solicited: flags & 0x80 != 0,
            mig_req: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            tver: flags & 0xf,
            pkey: Pkey(get16(b, field::PKEY)),
            fecn: b[field::CONGESTION] & 0x80 != 0,
            becn: b[field::CONGESTION] & 0x40 != 0,
            dest_qpn: Qpn::new(get24(b, field::DEST_QPN)),
            ack_req: b[field::ACK] & 0x80 != 0,
            psn: Psn::new(get24(b, field::PSN)),
        })
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[field::OPCODE] = self.opcode.0;
        b[field::FLAGS] = u8::from(self.solicited) << 7
            | u8::from(self.mig_req) << 6
            | (self.pad & 3) << 4
            | self.tver & 0xf;
        put16(&mut b, field::PKEY, self.pkey.0);
        b[field::CONGESTION] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        put24(&mut b, field::DEST_QPN, self.dest_qpn.get());
        b[field::ACK] = u8::from(self.ack_req) << 7;
        put24(&mut b, field::PSN, self.psn.get());
        b
    }
}

/// Prints `RC SEND_ONLY qpn 0x000012 psn 0x00a3f1 ack_req`, without fields that have their usual value.
impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qpn {} psn {}", self.opcode, self.dest_qpn, self.psn)?;
        for (set, name) in [
            (self.ack_req, "ack_req"),
            (self.solicited, "solicited"),
            (self.mig_req, "mig_req"),
            (self.fecn, "fecn"),
            (self.becn, "becn"),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        if self.pkey != Pkey::DEFAULT {
            write!(f, " pkey {}", self.pkey)?;
        }
        if self.pad != 0 {
            write!(f, " pad {}", self.pad)?;
        }
        if self.tver != 0 {
            write!(f, " tver {}", self.tver)?;
        }
        Ok(())
    }
}
