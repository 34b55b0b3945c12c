//! The records that a program writes to its file and reads from it.

use alloc::vec::Vec;

use rdmux_wire::{Gid, Lid, MadHeader, Qkey, Qpn};

use super::Errno;

/// A MAD with its addresses: `struct ib_user_mad` and the data after it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UserMad {
    /// The agent of the file, 0 to 31.
    pub agent: u32,
    /// When read: 0, or the Linux error number with which a request ended; `data` is then the request's header of 24 bytes.
    pub status: u32,
    /// When written: how long to wait for a response, in milliseconds; 0 means no response is expected.
    pub timeout_ms: u32,
    /// When written: how often to retransmit when no response arrives in that time.
    pub retries: u32,
    /// The destination or source.
    pub address: UserAddress,
    /// The whole MAD: 256 bytes, or more or fewer with RMPP.
    pub data: Vec<u8>,
}

impl UserMad {
    /// The [`UserMad::status`] of a request without a response: ETIMEDOUT.
    pub const TIMED_OUT: u32 = 110;

    /// The [`UserMad::status`] of a request whose transfer the peer has ended: ECONNABORTED.
    pub const ABORTED: u32 = 103;
}

/// The part of an unsent request that is returned to the program, so that it does not wait for an answer.
#[derive(Clone, Debug)]
pub struct Unsent {
    agent: u32,
    address: UserAddress,
    header: [u8; MadHeader::LEN],
}

impl Unsent {
    /// Returns the part to keep; none if the MAD has no header.
    pub fn of(mad: &UserMad) -> Option<Self> {
        let header = *mad.data.first_chunk()?;
        Some(Self { agent: mad.agent, address: mad.address, header })
    }

    /// Returns the record to read: the header, with `why` as its status.
    pub fn record(self, why: Errno) -> UserMad {
        let status = u32::try_from(why.raw()).unwrap_or(UserMad::TIMED_OUT);
        let Self { agent, address, header } = self;
        UserMad { agent, status, timeout_ms: 0, retries: 0, address, data: header.to_vec() }
    }
}

/// The address in a [`UserMad`]: the destination when written, the source when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UserAddress {
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Not used: QP0 has no Q_Key, and QP1's is always sent and required.
    pub qkey: Qkey,
    /// The peer's LID.
    pub lid: Lid,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// The LID of the local port, as an offset from its base LID.
    pub path_bits: u8,
    /// The global route header, if the packet has one.
    pub grh: Option<UserGrh>,
    /// Index of the P_Key in the port's table; not meaningful on QP0.
    pub pkey_index: u16,
}

impl UserAddress {
    /// Returns the address of a directed route that begins at the local port. The datagram itself has the route.
    pub fn directed() -> Self {
        Self::smi(Lid::PERMISSIVE)
    }

    /// Returns the address of subnet management at a LID: QP0.
    pub fn smi(lid: Lid) -> Self {
        Self { lid, qpn: Qpn::QP0, ..Self::default() }
    }

    /// Returns the address of general services at a LID: QP1.
    pub fn gsi(lid: Lid) -> Self {
        Self { lid, qpn: Qpn::QP1, qkey: Qkey::QP1, ..Self::default() }
    }
}

/// The part of a [`UserAddress`] in the global route header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UserGrh {
    /// Index of the local GID in the port's table.
    pub gid_index: u8,
    /// The peer's GID.
    pub gid: Gid,
    /// The number of routers that the packet may still cross.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}
