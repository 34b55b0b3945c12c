//! SIDR_REQ: service ID resolution request (IBTA 12.11.1).

use core::fmt;

use super::IpHeader;
use super::service_id::Service;
use crate::bytes::{get, get16, get32, get64, put, put16, put32, put64};
use crate::{Pkey, ServiceId, WireError};

/// Service ID resolution request: a query for the queue pair that receives datagrams for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's ID of the request.
    pub request_id: u32,
    /// The partition.
    pub pkey: Pkey,
    /// The requested service.
    pub service_id: ServiceId,
    /// The consumer's private data. For an IP-based service it starts with an [`IpHeader`].
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

mod field {
    pub(super) const REQUEST_ID: usize = 0;
    pub(super) const PKEY: usize = 4;
    pub(super) const SERVICE_ID: usize = 8;
    pub(super) const PRIVATE_DATA: usize = 16;
}

impl SidrReq {
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 216;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            request_id: get32(b, field::REQUEST_ID),
            pkey: Pkey(get16(b, field::PKEY)),
            service_id: ServiceId(get64(b, field::SERVICE_ID)),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::REQUEST_ID, self.request_id);
        put16(&mut b, field::PKEY, self.pkey.0);
        put64(&mut b, field::SERVICE_ID, self.service_id.0);
        put(&mut b, field::PRIVATE_DATA, self.private_data);
        b
    }

    /// Returns the IP addresses in the private data of a request for an IP-based service.
    ///
    /// # Errors
    /// If the private data does not start with an IP addressing header.
    pub fn ip_header(&self) -> Result<IpHeader, WireError> {
        IpHeader::parse(&self.private_data)
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIDR_REQ id {:#010x} {}", self.request_id, Service(self.service_id))?;
        if self.service_id.port().is_some()
            && let Ok(ip) = self.ip_header()
        {
            write!(f, " {ip}")?;
        }
        Ok(())
    }
}
