//! RTU: ready to use (IBTA 12.6.9).

use core::fmt;

use crate::WireError;
use crate::bytes::{get, get32, put, put32};

/// Ready to use: the connection is established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's communication ID of the connection.
    pub local_comm_id: u32,
    /// The receiver's communication ID of the connection.
    pub remote_comm_id: u32,
    /// The consumer's private data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const PRIVATE_DATA: usize = 8;
}

impl Rtu {
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 224;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            local_comm_id: get32(b, field::LOCAL_COMM_ID),
            remote_comm_id: get32(b, field::REMOTE_COMM_ID),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::LOCAL_COMM_ID, self.local_comm_id);
        put32(&mut b, field::REMOTE_COMM_ID, self.remote_comm_id);
        put(&mut b, field::PRIVATE_DATA, self.private_data);
        b
    }
}

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, .. } = self;
        write!(f, "RTU id {local_comm_id:#010x} remote {remote_comm_id:#010x}")
    }
}
