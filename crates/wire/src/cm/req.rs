//! REQ: request for communication (IBTA 12.6.5).

use core::fmt;

use super::path::{self, Path};
use super::service_id::Service;
use super::{IpHeader, bits, put_bits};
use crate::bytes::{get, get16, get24, get32, get64, put, put16, put24, put32, put64};
use crate::{Guid, Pkey, Psn, Qkey, Qpn, ServiceId, WireError};

/// Request for communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's communication ID of the connection.
    pub local_comm_id: u32,
    /// Vendor ID of enhanced connection establishment, 24 bits.
    pub vendor_id: u32,
    /// The requested service.
    pub service_id: ServiceId,
    /// The GUID of the sender's adapter.
    pub local_ca_guid: Guid,
    /// The sender's Q_Key, for reliable datagrams.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// The maximum number of READs and atomics of the peer that the sender serves at a time.
    pub responder_resources: u8,
    /// The sender's end-to-end context, 24 bits.
    pub local_eecn: u32,
    /// The number of READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context, 24 bits.
    pub remote_eecn: u32,
    /// The time within which the receiver should respond: 4.096 us * 2^code, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// The transport service.
    pub transport: Transport,
    /// Whether the sender supports end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// The first PSN that the sender expects: its peer begins with it. (Linux does so, and the captures show it.)
    pub starting_psn: Psn,
    /// The time within which the sender responds: 4.096 us * 2^code, 5 bits.
    pub local_cm_response_timeout: u8,
    /// The number of retries of the queue pair, 3 bits.
    pub retry_count: u8,
    /// The partition.
    pub pkey: Pkey,
    /// The path MTU, a code of 4 bits; see [`Mtu::from_code`](crate::Mtu::from_code).
    pub path_mtu: u8,
    /// Whether a reliable datagram channel exists.
    pub rdc_exists: bool,
    /// The number of retries after an RNR NAK, 3 bits; 7 means infinite.
    pub rnr_retry_count: u8,
    /// The maximum number of retransmissions of a CM message, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: bool,
    /// The primary path.
    pub primary: Path,
    /// The alternate path, mostly absent, see [`Path::is_none`].
    pub alternate: Path,
    /// The consumer's private data. For an IP-based service it starts with an [`IpHeader`].
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

/// The transport service of a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// An extended transport, 3 bits.
    Extended(u8),
}

impl Transport {
    /// Extended reliable connection.
    pub const XRC: Self = Self::Extended(1);

    const fn from_codes(transport: u8, extended: u8) -> Self {
        match transport {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            _ => Self::Extended(extended),
        }
    }

    /// Returns the transport as one number: RC is 0, UC 1, RD 2, and an extended transport 4 plus
    /// its code, which is 1 for XRC.
    pub const fn code(self) -> u8 {
        match self.codes() {
            (3, extended) => 4 + extended,
            (transport, _) => transport,
        }
    }

    const fn codes(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Extended(extended) => (3, extended),
        }
    }
}

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const VENDOR_ID: usize = 5;
    pub(super) const SERVICE_ID: usize = 8;
    pub(super) const LOCAL_CA_GUID: usize = 16;
    pub(super) const LOCAL_QKEY: usize = 28;
    pub(super) const LOCAL_QPN: usize = 32;
    pub(super) const RESPONDER_RESOURCES: usize = 35;
    pub(super) const LOCAL_EECN: usize = 36;
    pub(super) const INITIATOR_DEPTH: usize = 39;
    pub(super) const REMOTE_EECN: usize = 40;
    /// Remote CM response timeout 5, transport 2, flow control 1.
    pub(super) const REMOTE_TIMEOUT: usize = 43;
    pub(super) const STARTING_PSN: usize = 44;
    /// Local CM response timeout 5, retry count 3.
    pub(super) const LOCAL_TIMEOUT: usize = 47;
    pub(super) const PKEY: usize = 48;
    /// Path MTU 4, RDC exists 1, RNR retry count 3.
    pub(super) const PATH_MTU: usize = 50;
    /// Max CM retries 4, SRQ 1, extended transport 3.
    pub(super) const MAX_CM_RETRIES: usize = 51;
    pub(super) const PRIMARY: usize = 52;
    pub(super) const ALTERNATE: usize = PRIMARY + super::Path::LEN;
    pub(super) const PRIVATE_DATA: usize = ALTERNATE + super::Path::LEN;
}

impl Req {
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 92;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let remote = b[field::REMOTE_TIMEOUT];
        let local = b[field::LOCAL_TIMEOUT];
        let mtu = b[field::PATH_MTU];
        let retries = b[field::MAX_CM_RETRIES];
        Ok(Self {
            local_comm_id: get32(b, field::LOCAL_COMM_ID),
            vendor_id: get24(b, field::VENDOR_ID),
            service_id: ServiceId(get64(b, field::SERVICE_ID)),
            local_ca_guid: Guid(get64(b, field::LOCAL_CA_GUID)),
            local_qkey: Qkey(get32(b, field::LOCAL_QKEY)),
            local_qpn: Qpn::new(get24(b, field::LOCAL_QPN)),
            responder_resources: b[field::RESPONDER_RESOURCES],
            local_eecn: get24(b, field::LOCAL_EECN),
            initiator_depth: b[field::INITIATOR_DEPTH],
            remote_eecn: get24(b, field::REMOTE_EECN),
            remote_cm_response_timeout: bits(remote, 0, 5),
            transport: Transport::from_codes(bits(remote, 5, 2), bits(retries, 5, 3)),
            end_to_end_flow_control: bits(remote, 7, 1) == 1,
            starting_psn: Psn::new(get24(b, field::STARTING_PSN)),
            local_cm_response_timeout: bits(local, 0, 5),
            retry_count: bits(local, 5, 3),
            pkey: Pkey(get16(b, field::PKEY)),
            path_mtu: bits(mtu, 0, 4),
            rdc_exists: bits(mtu, 4, 1) == 1,
            rnr_retry_count: bits(mtu, 5, 3),
            max_cm_retries: bits(retries, 0, 4),
            srq: bits(retries, 4, 1) == 1,
            primary: Path::read(&b[field::PRIMARY..], &path::REQ),
            alternate: Path::read(&b[field::ALTERNATE..], &path::REQ),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let (transport, extended) = self.transport.codes();
        put32(&mut b, field::LOCAL_COMM_ID, self.local_comm_id);
        put24(&mut b, field::VENDOR_ID, self.vendor_id);
        put64(&mut b, field::SERVICE_ID, self.service_id.0);
        put64(&mut b, field::LOCAL_CA_GUID, self.local_ca_guid.0);
        put32(&mut b, field::LOCAL_QKEY, self.local_qkey.0);
        put24(&mut b, field::LOCAL_QPN, self.local_qpn.get());
        b[field::RESPONDER_RESOURCES] = self.responder_resources;
        put24(&mut b, field::LOCAL_EECN, self.local_eecn);
        b[field::INITIATOR_DEPTH] = self.initiator_depth;
        put24(&mut b, field::REMOTE_EECN, self.remote_eecn);
        b[field::REMOTE_TIMEOUT] = put_bits(self.remote_cm_response_timeout, 0, 5)
            | put_bits(transport, 5, 2)
            | put_bits(self.end_to_end_flow_control.into(), 7, 1);
        put24(&mut b, field::STARTING_PSN, self.starting_psn.get());
        b[field::LOCAL_TIMEOUT] =
            put_bits(self.local_cm_response_timeout, 0, 5) | put_bits(self.retry_count, 5, 3);
        put16(&mut b, field::PKEY, self.pkey.0);
        b[field::PATH_MTU] = put_bits(self.path_mtu, 0, 4)
            | put_bits(self.rdc_exists.into(), 4, 1)
            | put_bits(self.rnr_retry_count, 5, 3);
        b[field::MAX_CM_RETRIES] = put_bits(self.max_cm_retries, 0, 4)
            | put_bits(self.srq.into(), 4, 1)
            | put_bits(extended, 5, 3);
        self.primary.write(&mut b[field::PRIMARY..], &path::REQ);
        self.alternate.write(&mut b[field::ALTERNATE..], &path::REQ);
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

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Rc => f.write_str("RC"),
            Self::Uc => f.write_str("UC"),
            Self::Rd => f.write_str("RD"),
            Self::XRC => f.write_str("XRC"),
            Self::Extended(code) => write!(f, "extended transport {code}"),
        }
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, local_qpn, starting_psn, .. } = self;
        write!(f, "REQ id {local_comm_id:#010x} {} {}", self.transport, Service(self.service_id))?;
        if self.service_id.port().is_some()
            && let Ok(ip) = self.ip_header()
        {
            write!(f, " {ip}")?;
        }
        write!(f, " qpn {local_qpn} psn {starting_psn}")?;
        if let Some(mtu) = crate::Mtu::from_code(self.path_mtu) {
            write!(f, " mtu {mtu}")?;
        }
        write!(f, " resources {}/{}", self.responder_resources, self.initiator_depth)
    }
}
