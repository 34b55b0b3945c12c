//! Commands of the connection manager, one for each of rdma_cm's functions, and their replies.

use std::time::Duration;

use rdmux_cm::{
    Addr, ChannelId, ConnParam, Courtesy, EventKind, GroupAddr, GroupWish, IdHandle, IdInfo,
    IdOption, JoinFlags, LocalAddress, PortSpace, Refusal,
};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::DeviceKind;
use rdmux_wire::Pkey;
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask};
use serde::{Deserialize, Serialize};

use crate::names::ServiceKey;

/// A command. See the method of the same name of [`HostClient`](crate::client::HostClient).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the client's methods say what the fields are")]
pub enum CmRequest {
    CreateId {
        /// One of the reserved numbers. If none, the service chooses.
        id: Option<IdHandle>,
        channel: ChannelId,
        space: PortSpace,
        qp_type: QpType,
        /// The only kind of device that the id may use, if it is restricted.
        only: Option<DeviceKind>,
        context: u64,
    },
    Destroy {
        id: IdHandle,
    },
    Bind {
        id: IdHandle,
        addr: Addr,
    },
    Listen {
        id: IdHandle,
        backlog: u32,
    },
    ResolveAddr {
        id: IdHandle,
        src: Option<Addr>,
        dst: Addr,
        timeout: Duration,
    },
    ResolveRoute {
        id: IdHandle,
        timeout: Duration,
    },
    SetPaths {
        id: IdHandle,
        /// Flags and 64 bytes for each path record.
        records: Vec<(u32, Vec<u8>)>,
    },
    ResolveAlong {
        id: IdHandle,
        src: Option<Addr>,
        dst: Addr,
        records: Vec<(u32, Vec<u8>)>,
    },
    Connect {
        id: IdHandle,
        param: ConnParam,
    },
    Accept {
        id: IdHandle,
        param: ConnParam,
    },
    Reject {
        id: IdHandle,
        reason: u16,
        private_data: Vec<u8>,
    },
    RejectWith {
        id: IdHandle,
        refusal: Refusal,
    },
    AskForTime {
        id: IdHandle,
        service_timeout: u8,
        private_data: Vec<u8>,
    },
    LoadAlternate {
        id: IdHandle,
        records: Vec<(u32, Vec<u8>)>,
        private_data: Vec<u8>,
    },
    AnswerAlternate {
        id: IdHandle,
        answer: Refusal,
    },
    SetPrivateData {
        id: IdHandle,
        of: Courtesy,
        private_data: Vec<u8>,
    },
    /// Reports that the queue pair has migrated.
    Migrated {
        id: IdHandle,
    },
    Establish {
        id: IdHandle,
    },
    Disconnect {
        id: IdHandle,
    },
    Notify {
        id: IdHandle,
    },
    /// Moves the id away from the held channel ([`Request::HoldChannel`](super::Request::HoldChannel)), which is released. Each
    /// event that was put back or waits there is moved to its id's channel, whether or not the id could be moved.
    Migrate {
        id: IdHandle,
        channel: ChannelId,
    },
    SetOption {
        id: IdHandle,
        option: IdOption,
    },
    Query {
        id: IdHandle,
    },
    Join {
        id: IdHandle,
        wish: Wish,
        context: u64,
    },
    Leave {
        id: IdHandle,
        /// The context of the join.
        context: u64,
    },
    /// Queries the group that was joined with a context, in subnet administration's form.
    Group {
        id: IdHandle,
        context: u64,
    },
    /// Puts an event of the program into the channel.
    WriteEvent {
        id: IdHandle,
        kind: EventKind,
        status: i32,
        arg: u64,
    },
    /// Looks up services at subnet administration; an event reports them.
    ResolveService {
        id: IdHandle,
        service: ServiceKey,
        timeout: Duration,
    },
    /// Reports that the process has read the CONNECT_REQUEST that brought the id.
    Take {
        id: IdHandle,
    },
    /// Reserves this many id numbers for `CreateId`. Unused earlier ones become void.
    Reserve {
        count: u32,
    },
}

impl CmRequest {
    /// Returns whether the command may be sent without waiting for a reply.
    pub fn may_be_soon(&self) -> bool {
        match self {
            Self::CreateId { id, .. } => id.is_some(),
            Self::Destroy { .. }
            | Self::ResolveAddr { .. }
            | Self::ResolveRoute { .. }
            | Self::Connect { .. }
            | Self::Accept { .. }
            | Self::Establish { .. }
            | Self::Disconnect { .. }
            | Self::Take { .. } => true,
            _ => false,
        }
    }
}

/// A [`GroupWish`] as encoded in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Joins by address.
    Address {
        /// See [`GroupWish::Address`].
        group: GroupAddr,
        /// See above.
        pkey: Pkey,
        /// See above.
        flags: JoinFlags,
    },
    /// Joins by record.
    Record {
        /// An MCMemberRecord. One of another length decodes as all zeros, which no id can use.
        record: Vec<u8>,
        /// The components that are set.
        mask: u64,
    },
}

impl From<GroupWish> for Wish {
    fn from(wish: GroupWish) -> Self {
        match wish {
            GroupWish::Address { group, pkey, flags } => Self::Address { group, pkey, flags },
            GroupWish::Record { record, mask } => {
                Self::Record { record: record.to_bytes().to_vec(), mask: mask.bits() }
            }
        }
    }
}

impl From<Wish> for GroupWish {
    fn from(wish: Wish) -> Self {
        match wish {
            Wish::Address { group, pkey, flags } => Self::Address { group, pkey, flags },
            Wish::Record { record, mask } => Self::Record {
                record: group_record(&record),
                mask: McMemberRecordMask::from_bits_retain(mask),
            },
        }
    }
}

/// Decodes an MCMemberRecord. All zeros if the length is wrong.
pub(crate) fn group_record(bytes: &[u8]) -> McMemberRecord {
    bytes.try_into().map(McMemberRecord::from_bytes).unwrap_or_default()
}

/// A reply that is more than "done".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmReply {
    /// A new id.
    Id(IdHandle),
    /// The first of the reserved numbers.
    Reserved(IdHandle),
    /// The id's address, and its device and port, unless the address is a wildcard.
    Bound(Addr, Option<Box<LocalAddress>>),
    /// The number of events of the id that were put into its channel.
    Events(u32),
    /// The id's addresses, state and route.
    Info(Box<IdInfo>),
    /// An MCMemberRecord.
    Group(Vec<u8>),
}
