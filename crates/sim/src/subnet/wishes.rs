//! The registrations that programs may want, and their requests.

use rdmux_subnet::Time;
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{
    InformInfo, McMemberRecord, McMemberRecordMask, Rate, Selector, ServiceRecord,
    ServiceRecordMask,
};
use rdmux_wire::sm::Producer;
use rdmux_wire::{Gid, Lid, Mtu, Pkey, Qkey, Qpn, ServiceId};

use super::programs::Program;

/// Groups that programs join. The first is the default partition's, which exists without members.
pub(super) const MGIDS: [u8; 4] = [0, 1, 2, 3];

/// The group that a program creates at the end.
pub(super) const LAST: usize = 3;

/// A lease that does not expire.
pub(super) const FOR_EVER: u32 = u32::MAX;

/// A possible registration of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// Membership of the group with this index.
    Member(usize),
    /// A service with this number.
    Service(u64),
    /// A subscription to a trap.
    Subscription(u16),
}

/// The state that a program wants for an item, and the state that it knows.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) wanted: bool,
    /// The last answer of administration; none if the program must send a request.
    pub(super) done: Option<bool>,
    /// Whether nothing has happened since that could change a manager's state.
    pub(super) is_certain: bool,
    /// The lease of a service, in seconds.
    pub(super) lease: u32,
    /// The time at which the registering request was sent.
    pub(super) since: Time,
    /// The latest time until which the service may exist, by any request.
    pub(super) latest: Time,
    /// The group's LID.
    pub(super) mlid: Lid,
}

pub(super) fn mgid(group: usize) -> Gid {
    let mut mgid = [0; 16];
    if group == 0 {
        mgid[..6].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b, 0xff, 0xff]);
        mgid[12..].copy_from_slice(&[0xff; 4]);
    } else {
        (mgid[0], mgid[1], mgid[15]) = (0xff, 0x15, MGIDS[group]);
    }
    Gid(mgid)
}

pub(super) fn bytes<R: Layout>(record: &R) -> Vec<u8> {
    let mut bytes = vec![0; R::LEN];
    record.write(&mut bytes);
    bytes
}

impl Program {
    /// Returns the request that makes an item as wanted: method, attribute, components, and record.
    pub(super) fn request(&self, item: Item, wish: &Wish) -> (Method, u16, u64, Vec<u8>) {
        let method = if wish.wanted { Method::SET } else { Method::DELETE };
        match item {
            Item::Member(group) => {
                use McMemberRecordMask as Mask;
                let record = McMemberRecord {
                    mgid: mgid(group),
                    port_gid: self.gid,
                    qkey: Qkey(0x0b1b),
                    pkey: Pkey::DEFAULT,
                    join_state: self.states[group],
                    // Values that all ports support.
                    mtu_selector: Selector::EXACTLY,
                    mtu: Mtu::M256.code(),
                    rate_selector: Selector::EXACTLY,
                    rate: Rate::GBPS_2_5,
                    ..McMemberRecord::default()
                };
                let mask = Mask::MGID | Mask::PORT_GID | Mask::JOIN_STATE;
                let new = Mask::QKEY | Mask::PKEY | Mask::TCLASS | Mask::FLOW_LABEL | Mask::SL;
                let size = Mask::MTU_SELECTOR | Mask::MTU | Mask::RATE_SELECTOR | Mask::RATE;
                let mask = match wish.wanted {
                    true if group == 0 => mask | Mask::QKEY | Mask::PKEY,
                    true => mask | new | size,
                    false => mask,
                };
                (method, McMemberRecord::ATTR_ID, mask.bits(), bytes(&record))
            }
            Item::Service(number) => {
                use ServiceRecordMask as Mask;
                let record = ServiceRecord {
                    service_id: ServiceId(number),
                    service_gid: self.gid,
                    service_lease: wish.lease,
                    ..ServiceRecord::default()
                };
                let mask = Mask::SERVICE_ID | Mask::SERVICE_GID | Mask::SERVICE_LEASE;
                (method, ServiceRecord::ATTR_ID, mask.bits(), bytes(&record))
            }
            Item::Subscription(trap) => {
                let record = InformInfo {
                    lid_range_begin: Lid(0xffff),
                    is_generic: 1,
                    subscribe: wish.wanted.into(),
                    notice_type: 0xffff,
                    trap_number: trap,
                    qpn: if wish.wanted { Qpn::QP0 } else { Qpn::QP1 },
                    producer: Producer(0x00ff_ffff),
                    ..InformInfo::default()
                };
                (Method::SET, InformInfo::ATTR_ID, 0, bytes(&record))
            }
        }
    }
}

/// Returns whether a refused withdrawal means that the item does not exist.
pub(super) fn is_gone(item: Item, status: u16) -> bool {
    match item {
        Item::Member(_) | Item::Subscription(_) => status == status::SA_REQUEST_INVALID,
        Item::Service(_) => status == status::SA_NO_RECORDS,
    }
}
