//! APR: alternate path response (IBTA 12.8.2).

use core::fmt;

use crate::WireError;
use crate::bytes::{get, get32, put, put32};

/// Alternate path response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apr {
    /// The sender's communication ID of the connection.
    pub local_comm_id: u32,
    /// The receiver's communication ID of the connection.
    pub remote_comm_id: u32,
    /// The number of valid bytes in `info`.
    pub info_len: u8,
    /// The outcome: the path was loaded, or the reason why not.
    pub status: AprStatus,
    /// Additional information, by the status.
    pub info: [u8; Self::INFO_LEN],
    /// The consumer's private data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

/// The outcome of a LAP (IBTA 12.8.2.3, table 124). Unknown values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AprStatus(pub u8);

macro_rules! statuses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl AprStatus {
            $(#[doc = concat!("Status ", stringify!($code), ": ", $text, ".")]
            pub const $name: Self = Self($code);)*

            /// Returns the meaning of the code, or none for an unknown one.
            pub const fn text(self) -> Option<&'static str> {
                match self.0 { $($code => Some($text),)* _ => None }
            }
        }
    };
}

statuses! {
    LOADED = 0, "the path was loaded";
    INVALID_COMM_ID = 1, "invalid communication ID";
    UNSUPPORTED = 2, "alternate paths are not supported";
    REJECTED = 3, "the consumer rejected the path";
    REDIRECT = 4, "redirected";
    IS_CURRENT = 5, "the path is already in use";
    INVALID_QPN = 6, "wrong queue pair or end-to-end context";
    INVALID_LID = 7, "LID rejected";
    INVALID_GID = 8, "GID rejected";
    INVALID_FLOW_LABEL = 9, "flow label rejected";
    INVALID_TRAFFIC_CLASS = 10, "traffic class rejected";
    INVALID_HOP_LIMIT = 11, "hop limit rejected";
    INVALID_PACKET_RATE = 12, "packet rate rejected";
    INVALID_SL = 13, "service level rejected";
}

impl fmt::Display for AprStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().unwrap_or("unknown"))
    }
}

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const INFO_LEN: usize = 8;
    pub(super) const STATUS: usize = 9;
    pub(super) const INFO: usize = 12;
    pub(super) const PRIVATE_DATA: usize = 84;
}

impl Apr {
    /// The length of the additional information, in bytes.
    pub const INFO_LEN: usize = 72;
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 148;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            local_comm_id: get32(b, field::LOCAL_COMM_ID),
            remote_comm_id: get32(b, field::REMOTE_COMM_ID),
            info_len: b[field::INFO_LEN],
            status: AprStatus(b[field::STATUS]),
            info: get(b, field::INFO),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::LOCAL_COMM_ID, self.local_comm_id);
        put32(&mut b, field::REMOTE_COMM_ID, self.remote_comm_id);
        b[field::INFO_LEN] = self.info_len;
        b[field::STATUS] = self.status.0;
        put(&mut b, field::INFO, self.info);
        put(&mut b, field::PRIVATE_DATA, self.private_data);
        b
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, status, .. } = self;
        write!(f, "APR id {local_comm_id:#010x} remote {remote_comm_id:#010x}")?;
        write!(f, " status {} ({status})", status.0)
    }
}
