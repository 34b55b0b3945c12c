//! LAP: load alternate path (IBTA 12.8.1).

use core::fmt;

use super::path::{self, Path};
use super::{bits, put_bits};
use crate::bytes::{get, get24, get32, put, put24, put32};
use crate::{Qpn, WireError};

/// Load alternate path: the path to which the connection may migrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// The sender's communication ID of the connection.
    pub local_comm_id: u32,
    /// The receiver's communication ID of the connection.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The time within which the receiver should respond: 4.096 us * 2^code, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// The alternate path.
    pub alternate: Path,
    /// The consumer's private data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const REMOTE_QPN: usize = 12;
    pub(super) const TIMEOUT: usize = 15;
    pub(super) const ALTERNATE: usize = 20;
    pub(super) const PRIVATE_DATA: usize = ALTERNATE + super::Path::LEN;
}

impl Lap {
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 168;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            local_comm_id: get32(b, field::LOCAL_COMM_ID),
            remote_comm_id: get32(b, field::REMOTE_COMM_ID),
            remote_qpn: Qpn::new(get24(b, field::REMOTE_QPN)),
            remote_cm_response_timeout: bits(b[field::TIMEOUT], 0, 5),
            alternate: Path::read(&b[field::ALTERNATE..], &path::LAP),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::LOCAL_COMM_ID, self.local_comm_id);
        put32(&mut b, field::REMOTE_COMM_ID, self.remote_comm_id);
        put24(&mut b, field::REMOTE_QPN, self.remote_qpn.get());
        b[field::TIMEOUT] = put_bits(self.remote_cm_response_timeout, 0, 5);
        self.alternate.write(&mut b[field::ALTERNATE..], &path::LAP);
        put(&mut b, field::PRIVATE_DATA, self.private_data);
        b
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, remote_qpn, alternate, .. } = self;
        write!(f, "LAP id {local_comm_id:#010x} remote {remote_comm_id:#010x}")?;
        write!(f, " qpn {remote_qpn} path {alternate}")
    }
}
