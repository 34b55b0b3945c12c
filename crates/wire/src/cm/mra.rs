//! MRA: message receipt acknowledgement (IBTA 12.6.6).

use core::fmt;

use super::{bits, put_bits};
use crate::WireError;
use crate::bytes::{get, get32, put, put32};

/// Message receipt acknowledgement: the message arrived, and the response takes longer than agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's communication ID of the connection.
    pub local_comm_id: u32,
    /// The receiver's communication ID of the connection.
    pub remote_comm_id: u32,
    /// The message that arrived.
    pub message: MraOf,
    /// The time that the response may take: 4.096 us * 2^code, 5 bits.
    pub service_timeout: u8,
    /// The consumer's private data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

/// The message to which an MRA refers, 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MraOf {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// A LAP.
    Lap = 2,
    /// A code that belongs to no message.
    Reserved = 3,
}

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const MESSAGE: usize = 8;
    pub(super) const SERVICE_TIMEOUT: usize = 9;
    pub(super) const PRIVATE_DATA: usize = 10;
}

impl Mra {
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 222;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            local_comm_id: get32(b, field::LOCAL_COMM_ID),
            remote_comm_id: get32(b, field::REMOTE_COMM_ID),
            message: match bits(b[field::MESSAGE], 0, 2) {
                0 => MraOf::Req,
                1 => MraOf::Rep,
                2 => MraOf::Lap,
                _ => MraOf::Reserved,
            },
            service_timeout: bits(b[field::SERVICE_TIMEOUT], 0, 5),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::LOCAL_COMM_ID, self.local_comm_id);
        put32(&mut b, field::REMOTE_COMM_ID, self.remote_comm_id);
        b[field::MESSAGE] = put_bits(self.message as u8, 0, 2);
        b[field::SERVICE_TIMEOUT] = put_bits(self.service_timeout, 0, 5);
        put(&mut b, field::PRIVATE_DATA, self.private_data);
        b
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, service_timeout, .. } = self;
        let of = match self.message {
            MraOf::Req => "REQ",
            MraOf::Rep => "REP",
            MraOf::Lap => "LAP",
            MraOf::Reserved => "reserved",
        };
        write!(f, "MRA id {local_comm_id:#010x} remote {remote_comm_id:#010x}")?;
        write!(f, " of {of} service_timeout {service_timeout}")
    }
}
