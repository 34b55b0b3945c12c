//! Datagram Extended Transport Header: the sender of a datagram, and the Q_Key (IBTA 9.3.2).

use core::fmt;

use crate::bytes::{get24, get32, put24, put32};
use crate::{Qkey, Qpn, WireError};

/// The datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The Q_Key, which must be that of the receiving queue pair.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub src_qpn: Qpn,
}

mod field {
    pub(super) const QKEY: usize = 0;
    pub(super) const SRC_QPN: usize = 5;
}

header!(Deth, 8, "DETH");

impl Deth {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self { qkey: Qkey(get32(b, field::QKEY)), src_qpn: Qpn::new(get24(b, field::SRC_QPN)) })
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::QKEY, self.qkey.0);
        put24(&mut b, field::SRC_QPN, self.src_qpn.get());
        b
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qkey {} src_qpn {}", self.qkey, self.src_qpn)
    }
}
