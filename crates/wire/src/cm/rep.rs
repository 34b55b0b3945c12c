//! REP: reply to a request for communication (IBTA 12.6.8).

use core::fmt;

use super::{Transport, bits, put_bits};
use crate::bytes::{get, get24, get32, get64, put, put24, put32, put64};
use crate::{Guid, Psn, Qkey, Qpn, WireError};

/// Reply to a request for communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's communication ID of the connection.
    pub local_comm_id: u32,
    /// The receiver's communication ID of the connection.
    pub remote_comm_id: u32,
    /// The sender's Q_Key, for reliable datagrams.
    pub local_qkey: Qkey,
    /// The sender's queue pair; zero with XRC.
    pub local_qpn: Qpn,
    /// The sender's end-to-end context, 24 bits; with XRC its queue pair, see [`Self::qpn`].
    pub local_eecn: u32,
    /// Vendor ID of enhanced connection establishment, 24 bits.
    pub vendor_id: u32,
    /// The first PSN that the sender expects: its peer begins with it.
    pub starting_psn: Psn,
    /// The maximum number of READs and atomics of the peer that the sender serves at a time.
    pub responder_resources: u8,
    /// The number of READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// The sender's acknowledgement delay: 4.096 us * 2^code, 5 bits.
    pub target_ack_delay: u8,
    /// Whether failover to the alternate path was accepted, 2 bits; 0 means yes.
    pub failover_accepted: u8,
    /// Whether the sender supports end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// The number of retries that the receiver should make after an RNR NAK, 3 bits; 7 means infinite.
    pub rnr_retry_count: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: bool,
    /// The GUID of the sender's adapter.
    pub local_ca_guid: Guid,
    /// The consumer's private data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const LOCAL_QKEY: usize = 8;
    pub(super) const LOCAL_QPN: usize = 12;
    pub(super) const VENDOR_ID_HIGH: usize = 15;
    pub(super) const LOCAL_EECN: usize = 16;
    pub(super) const VENDOR_ID_MIDDLE: usize = 19;
    pub(super) const STARTING_PSN: usize = 20;
    pub(super) const VENDOR_ID_LOW: usize = 23;
    pub(super) const RESPONDER_RESOURCES: usize = 24;
    pub(super) const INITIATOR_DEPTH: usize = 25;
    /// Target ACK delay 5, failover accepted 2, flow control 1.
    pub(super) const ACK_DELAY: usize = 26;
    /// RNR retry count 3, SRQ 1.
    pub(super) const RNR_RETRY: usize = 27;
    pub(super) const LOCAL_CA_GUID: usize = 28;
    pub(super) const PRIVATE_DATA: usize = 36;
}

impl Rep {
    /// The length of the private data, in bytes.
    pub const PRIVATE_DATA_LEN: usize = 196;

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    pub(super) fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let (delay, retry) = (b[field::ACK_DELAY], b[field::RNR_RETRY]);
        Ok(Self {
            local_comm_id: get32(b, field::LOCAL_COMM_ID),
            remote_comm_id: get32(b, field::REMOTE_COMM_ID),
            local_qkey: Qkey(get32(b, field::LOCAL_QKEY)),
            local_qpn: Qpn::new(get24(b, field::LOCAL_QPN)),
            local_eecn: get24(b, field::LOCAL_EECN),
            vendor_id: u32::from_be_bytes([
                0,
                b[field::VENDOR_ID_HIGH],
                b[field::VENDOR_ID_MIDDLE],
                b[field::VENDOR_ID_LOW],
            ]),
            starting_psn: Psn::new(get24(b, field::STARTING_PSN)),
            responder_resources: b[field::RESPONDER_RESOURCES],
            initiator_depth: b[field::INITIATOR_DEPTH],
            target_ack_delay: bits(delay, 0, 5),
            failover_accepted: bits(delay, 5, 2),
            end_to_end_flow_control: bits(delay, 7, 1) == 1,
            rnr_retry_count: bits(retry, 0, 3),
            srq: bits(retry, 3, 1) == 1,
            local_ca_guid: Guid(get64(b, field::LOCAL_CA_GUID)),
            private_data: get(b, field::PRIVATE_DATA),
        })
    }

    /// Returns the sender's queue pair. For this it needs the transport of the connection, which only the
    /// REQ contains: with XRC the queue pair is in the field of the end-to-end context (IBTA annex A14).
    pub const fn qpn(&self, transport: Transport) -> Qpn {
        match transport {
            Transport::XRC => Qpn::new(self.local_eecn),
            _ => self.local_qpn,
        }
    }

    /// Returns the message in wire format, without the MAD header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let [_, vendor_high, vendor_middle, vendor_low] = self.vendor_id.to_be_bytes();
        put32(&mut b, field::LOCAL_COMM_ID, self.local_comm_id);
        put32(&mut b, field::REMOTE_COMM_ID, self.remote_comm_id);
        put32(&mut b, field::LOCAL_QKEY, self.local_qkey.0);
        put24(&mut b, field::LOCAL_QPN, self.local_qpn.get());
        b[field::VENDOR_ID_HIGH] = vendor_high;
        put24(&mut b, field::LOCAL_EECN, self.local_eecn);
        b[field::VENDOR_ID_MIDDLE] = vendor_middle;
        put24(&mut b, field::STARTING_PSN, self.starting_psn.get());
        b[field::VENDOR_ID_LOW] = vendor_low;
        b[field::RESPONDER_RESOURCES] = self.responder_resources;
        b[field::INITIATOR_DEPTH] = self.initiator_depth;
        b[field::ACK_DELAY] = put_bits(self.target_ack_delay, 0, 5)
            | put_bits(self.failover_accepted, 5, 2)
            | put_bits(self.end_to_end_flow_control.into(), 7, 1);
        b[field::RNR_RETRY] =
            put_bits(self.rnr_retry_count, 0, 3) | put_bits(self.srq.into(), 3, 1);
        put64(&mut b, field::LOCAL_CA_GUID, self.local_ca_guid.0);
        put(&mut b, field::PRIVATE_DATA, self.private_data);
        b
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, local_qpn, local_eecn, starting_psn, .. } = self;
        write!(f, "REP id {local_comm_id:#010x} remote {remote_comm_id:#010x}")?;
        match (local_qpn.get(), local_eecn) {
            (_, 0) => write!(f, " qpn {local_qpn}")?,
            (0, _) => write!(f, " XRC qpn {}", self.qpn(Transport::XRC))?,
            _ => write!(f, " qpn {local_qpn} eecn {local_eecn:#08x}")?,
        }
        write!(f, " psn {starting_psn}")?;
        write!(f, " resources {}/{}", self.responder_resources, self.initiator_depth)
    }
}
