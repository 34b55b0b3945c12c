//! What a program writes to its file and reads from it.

use alloc::vec::Vec;

use rdmux_wire::{Gid, Lid, MadHeader, Qkey, Qpn};

use super::Errno;

/// A MAD with its addresses: `struct ib_user_mad` and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UserMad {
    /// The agent of the file, 0 to 31.
    pub agent: u32,
    /// Of what is read: 0, or the error number of Linux with which a request ended; then `data` is
    /// the request's header of 24 bytes.
    pub status: u32,
    /// Of what is written: how long to wait for a response, in milliseconds; 0 waits for none.
    pub timeout_ms: u32,
    /// Of what is written: how often to send again when no response comes in that time.
    pub retries: u32,
    /// Where to, or where from.
    pub address: UserAddress,
    /// The whole MAD: 256 bytes, or more or fewer with RMPP.
    pub data: Vec<u8>,
}

impl UserMad {
    /// [`UserMad::status`] of a request to which no response came: ETIMEDOUT.
    pub const TIMED_OUT: u32 = 110;

    /// [`UserMad::status`] of a request whose transfer the peer has ended: ECONNABORTED.
    pub const ABORTED: u32 = 103;
}

/// What comes back of a request that was not sent, so that nobody waits for its answer.
#[derive(Clone, Debug)]
pub struct Unsent {
    agent: u32,
    address: UserAddress,
    header: [u8; MadHeader::LEN],
}

impl Unsent {
    /// None of what has no header.
    pub fn of(mad: &UserMad) -> Option<Self> {
        let header = *mad.data.first_chunk()?;
        Some(Self { agent: mad.agent, address: mad.address, header })
    }

    /// What is read: the header, with `why` as its status.
    pub fn record(self, why: Errno) -> UserMad {
        let status = u32::try_from(why.raw()).unwrap_or(UserMad::TIMED_OUT);
        let Self { agent, address, header } = self;
        UserMad { agent, status, timeout_ms: 0, retries: 0, address, data: header.to_vec() }
    }
}

/// The address in a [`UserMad`]: of the destination when it is written, of the source when it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UserAddress {
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Not used: QP0 has none, and QP1's is sent and required.
    pub qkey: Qkey,
    /// The peer's LID.
    pub lid: Lid,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Which of the LIDs of the own port, as an offset from its base LID.
    pub path_bits: u8,
    /// With a global route header.
    pub grh: Option<UserGrh>,
    /// Index of the P_Key in the port's table; of no meaning on QP0.
    pub pkey_index: u16,
}

impl UserAddress {
    /// Of a directed route that begins at the own port: which way it goes is in the datagram.
    pub fn directed() -> Self {
        Self::smi(Lid::PERMISSIVE)
    }

    /// Of subnet management at a LID: QP0.
    pub fn smi(lid: Lid) -> Self {
        Self { lid, qpn: Qpn::QP0, ..Self::default() }
    }

    /// Of general services at a LID: QP1.
    pub fn gsi(lid: Lid) -> Self {
        Self { lid, qpn: Qpn::QP1, qkey: Qkey::QP1, ..Self::default() }
    }
}

/// The part of a [`UserAddress`] that travels in the global route header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UserGrh {
    /// Index of the own GID in the port's table.
    pub gid_index: u8,
    /// The peer's GID.
    pub gid: Gid,
    /// Routers that the packet may still cross.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}
