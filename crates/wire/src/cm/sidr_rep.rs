//! SIDR_REP: service ID resolution response (IBTA 12.11.2).

use core::fmt;

use super::service_id::Service;
use crate::bytes::{get, get16, get24, get32, get64, put, put16, put24, put32, put64};
use crate::{Qkey, Qpn, ServiceId, WireError};

/// Service ID resolution response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The ID of the request.
    pub request_id: u32,
    /// The status of the resolution.
    pub status: SidrStatus,
    /// The number of valid bytes in `info`.
    pub info_len: u8,
    /// Vendor ID of enhanced connection establishment, 24 bits.
    pub vendor_id: u32,
    /// The queue pair.
    pub qpn: Qpn,
    /// The service.
    pub service_id: ServiceId,
    /// The queue pair's Q_Key.
    pub qkey: Qkey,
    /// Additional information, by the status.
    pub info: [u8; Self::INFO_LEN],
    /// The consumer's private data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

/// The status of a resolution. Unknown values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QPN and Q_Key are valid.
    pub const VALID: Self = Self(0);
    /// There is no such service.
    pub const UNSUPPORTED_SERVICE_ID: Self = Self(1);
    /// The service rejected the request.
    pub const REJECT: Self = Self(2);
    /// The service has no queue pair.
    pub const NO_QP: Self = Self(3);
    /// The request is redirected.
    pub const REDIRECT: Self = Self(4);
    /// The version of the request is not supported.
    pub const UNSUPPORTED_VERSION: Self = Self(5);
}

mod field {
    pub(super) const REQUEST_ID: usize = 0;
    pub(super) const STATUS: usize = 4;
    pub(super) const INFO_LEN: usize = 5;
    pub(super) const VENDOR_ID_HIGH: usize = 6;
    pub(super) const QPN: usize = 8;
    pub(super) const VENDOR_ID_LOW: usize = 11;
    pub(super) const SERVICE_ID: usize = 12;
    pub(super) const QKEY: usize = 20;
    pub(super) const INFO: usize = 24;
    pub(super) const PRIVATE_DATA: usize = 96;
}

impl SidrRep {
    /// The length of the additional information, in bytes.
    pub const INFO_LEN: usize = 72;
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 136;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let vendor_high = get16(b, field::VENDOR_ID_HIGH);
        Ok(Self {
            request_id: get32(b, field::REQUEST_ID),
            status: SidrStatus(b[field::STATUS]),
            info_len: b[field::INFO_LEN],
            vendor_id: u32::from(vendor_high) << 8 | u32::from(b[field::VENDOR_ID_LOW]),
            qpn: Qpn::new(get24(b, field::QPN)),
            service_id: ServiceId(get64(b, field::SERVICE_ID)),
            qkey: Qkey(get32(b, field::QKEY)),
            info: get(b, field::INFO),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let [_, vendor_high, vendor_middle, vendor_low] = self.vendor_id.to_be_bytes();
        put32(&mut b, field::REQUEST_ID, self.request_id);
        b[field::STATUS] = self.status.0;
        b[field::INFO_LEN] = self.info_len;
        put16(&mut b, field::VENDOR_ID_HIGH, u16::from_be_bytes([vendor_high, vendor_middle]));
        put24(&mut b, field::QPN, self.qpn.get());
        b[field::VENDOR_ID_LOW] = vendor_low;
        put64(&mut b, field::SERVICE_ID, self.service_id.0);
        put32(&mut b, field::QKEY, self.qkey.0);
        put(&mut b, field::INFO, self.info);
        put(&mut b, field::PRIVATE_DATA, self.private_data);
        b
    }
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::VALID => "valid",
            Self::UNSUPPORTED_SERVICE_ID => "service ID not supported",
            Self::REJECT => "rejected by the service",
            Self::NO_QP => "no QP available",
            Self::REDIRECT => "redirected",
            Self::UNSUPPORTED_VERSION => "version not supported",
            Self(other) => return write!(f, "unknown status {other}"),
        })
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_id, status, qpn, qkey, .. } = self;
        write!(f, "SIDR_REP id {request_id:#010x} {} {status}", Service(self.service_id))?;
        if *status == SidrStatus::VALID { write!(f, " qpn {qpn} qkey {qkey}") } else { Ok(()) }
    }
}
