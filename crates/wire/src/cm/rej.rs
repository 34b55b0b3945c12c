//! REJ: reject (IBTA 12.6.7).

use core::fmt;

use super::{RejReason, bits, put_bits};
use crate::WireError;
use crate::bytes::{get, get16, get32, put, put16, put32};

/// Reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's communication ID of the connection, or 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's communication ID of the connection, or 0 if it gave none.
    pub remote_comm_id: u32,
    /// The message that is rejected.
    pub message: RejOf,
    /// The number of valid bytes in `ari`, 7 bits.
    pub ari_len: u8,
    /// The reason.
    pub reason: RejReason,
    /// Additional reject information, by the reason.
    pub ari: [u8; Self::ARI_LEN],
    /// The consumer's private data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

/// The message to which a REJ refers, 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejOf {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// No particular message: the sender's wait timed out.
    NoMessage = 2,
    /// A code that belongs to no message.
    Reserved = 3,
}

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const MESSAGE: usize = 8;
    pub(super) const ARI_LEN: usize = 9;
    pub(super) const REASON: usize = 10;
    pub(super) const ARI: usize = 12;
    pub(super) const PRIVATE_DATA: usize = 84;
}

impl Rej {
    /// The length of the additional reject information, in bytes.
    pub const ARI_LEN: usize = 72;
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 148;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            local_comm_id: get32(b, field::LOCAL_COMM_ID),
            remote_comm_id: get32(b, field::REMOTE_COMM_ID),
            message: match bits(b[field::MESSAGE], 0, 2) {
                0 => RejOf::Req,
                1 => RejOf::Rep,
                2 => RejOf::NoMessage,
                _ => RejOf::Reserved,
            },
            ari_len: bits(b[field::ARI_LEN], 0, 7),
            reason: RejReason(get16(b, field::REASON)),
            ari: get(b, field::ARI),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::LOCAL_COMM_ID, self.local_comm_id);
        put32(&mut b, field::REMOTE_COMM_ID, self.remote_comm_id);
        b[field::MESSAGE] = put_bits(self.message as u8, 0, 2);
        b[field::ARI_LEN] = put_bits(self.ari_len, 0, 7);
        put16(&mut b, field::REASON, self.reason.0);
        put(&mut b, field::ARI, self.ari);
        put(&mut b, field::PRIVATE_DATA, self.private_data);
        b
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, reason, .. } = self;
        let of = match self.message {
            RejOf::Req => "REQ",
            RejOf::Rep => "REP",
            RejOf::NoMessage => "no message",
            RejOf::Reserved => "reserved",
        };
        write!(f, "REJ id {local_comm_id:#010x} remote {remote_comm_id:#010x} of {of}")?;
        write!(f, " reason {} ({reason})", reason.0)
    }
}
