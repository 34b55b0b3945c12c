//! Names and parameters of multicast groups.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask as Mask, Selector};
use rdmux_wire::{Gid, Mtu, Pkey, Qkey};

/// The name of a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum GroupAddr {
    /// A multicast IP address, from which the connection manager derives the group's GID.
    Ip(IpAddr),
    /// The group's GID. Zero names a new group, whose GID subnet administration assigns.
    Gid(Gid),
}

impl GroupAddr {
    /// A group that has no GID yet.
    pub const NEW: Self = Self::Gid(Gid::ZERO);

    /// Returns whether the address names a group that has no GID yet.
    pub fn is_new(&self) -> bool {
        *self == Self::NEW
    }

    /// Returns the IP address. For a GID: the IP address that it maps on RoCE, otherwise the GID written as an IPv6 address.
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::Ip(ip) => *ip,
            Self::Gid(gid) => gid.ip(),
        }
    }

    /// Returns whether the address is a multicast address.
    pub fn is_multicast(&self) -> bool {
        self.ip().is_multicast()
    }

    /// Returns the address with an IPv4-mapped IPv6 address converted to IPv4.
    #[must_use]
    pub fn canonical(self) -> Self {
        match self {
            Self::Ip(ip) => Self::Ip(ip.to_canonical()),
            gid => gid,
        }
    }
}

impl From<IpAddr> for GroupAddr {
    fn from(ip: IpAddr) -> Self {
        Self::Ip(ip)
    }
}

impl From<Ipv4Addr> for GroupAddr {
    fn from(ip: Ipv4Addr) -> Self {
        Self::Ip(ip.into())
    }
}

impl From<Ipv6Addr> for GroupAddr {
    fn from(ip: Ipv6Addr) -> Self {
        Self::Ip(ip.into())
    }
}

impl From<Gid> for GroupAddr {
    fn from(gid: Gid) -> Self {
        Self::Gid(gid)
    }
}

impl fmt::Display for GroupAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            gid if gid.is_new() => f.write_str("a new group"),
            Self::Gid(gid) => write!(f, "MGID {gid}"),
        }
    }
}

/// How to join a multicast group (rdma_join_multicast_ex(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum JoinFlags {
    /// Send and receive.
    #[default]
    FullMember,
    /// Send only.
    SendOnlyFullMember,
}

/// A request to join a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupWish {
    /// Join by address, with the parameters of IP over InfiniBand's broadcast group (rdma_join_multicast(3)).
    Address {
        /// The address of the group.
        group: GroupAddr,
        /// Its partition. Zero is the id's partition.
        pkey: Pkey,
        /// The kind of membership.
        flags: JoinFlags,
    },
    /// Join by a record and the mask of its components that count. On InfiniBand subnet administration gets both
    /// unchanged (IBTA 15.2.5.17). The record's join state gives the kind of membership.
    Record {
        /// The record.
        record: McMemberRecord,
        /// The components.
        mask: Mask,
    },
}

/// The error in a request to join: the field, by its name in C, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFault {
    /// The field.
    pub field: &'static str,
    /// The required value of the field.
    pub why: &'static str,
}

impl fmt::Display for GroupFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.why)
    }
}

const fn fault(field: &'static str, why: &'static str) -> Result<(), GroupFault> {
    Err(GroupFault { field, why })
}

impl GroupWish {
    /// Returns a request to join a group by its address.
    pub fn address(group: impl Into<GroupAddr>, flags: JoinFlags) -> Self {
        Self::Address { group: group.into().canonical(), pkey: Pkey(0), flags }
    }

    /// Returns the group.
    pub fn group(&self) -> GroupAddr {
        match self {
            Self::Address { group, .. } => group.canonical(),
            Self::Record { record, mask } if mask.contains(Mask::MGID) => record.mgid.into(),
            Self::Record { .. } => GroupAddr::NEW,
        }
    }

    /// Returns the kind of membership.
    pub fn join_state(&self) -> JoinState {
        match self {
            Self::Address { flags: JoinFlags::FullMember, .. } => JoinState::FULL_MEMBER,
            Self::Address { flags: JoinFlags::SendOnlyFullMember, .. } => {
                JoinState::SEND_ONLY_FULL_MEMBER
            }
            Self::Record { record, .. } => record.join_state,
        }
    }

    /// Returns whether the member receives what is sent to the group.
    pub fn hears(&self) -> bool {
        self.join_state().intersects(JoinState::FULL_MEMBER | JoinState::NON_MEMBER)
    }

    /// Checks the fields whose validity does not depend on the port.
    ///
    /// # Errors
    /// The first field that is invalid.
    pub fn check(&self) -> Result<(), GroupFault> {
        let group = self.group();
        match self {
            Self::Address { .. } if !group.is_new() && !group.is_multicast() => match group {
                GroupAddr::Ip(_) => fault("address", "not a multicast address"),
                GroupAddr::Gid(_) => fault("sib_addr", "not a multicast GID"),
            },
            Self::Address { .. } => Ok(()),
            Self::Record { record, mask } => {
                if !group.is_new() && !group.is_multicast() {
                    return fault("mgid", "not a multicast GID");
                }
                check_record(record, *mask)
            }
        }
    }

    /// Returns the group on RoCE, where addresses are GIDs, for an address of a port with this MTU. RoCE has no subnet
    /// administration, so a record chooses its Q_Key, service level, flow label, traffic class and hop limit, and nothing else.
    ///
    /// # Errors
    /// The field with a value that a group on RoCE cannot have.
    pub fn over_ip(
        &self,
        local: IpAddr,
        hop_limit: u8,
        mtu: Mtu,
    ) -> Result<McMemberRecord, GroupFault> {
        let mgid = Gid::from(self.group().ip());
        let scope = if mgid.ip().is_ipv6() { mgid.0[1] & 0xf } else { 0 };
        let group = McMemberRecord {
            mgid,
            port_gid: Gid::from(local),
            qkey: Qkey::RDMA_UDP,
            mtu_selector: Selector::EXACTLY,
            mtu: mtu.code(),
            pkey: Pkey::DEFAULT,
            hop_limit,
            scope,
            join_state: self.join_state(),
            ..McMemberRecord::default()
        };
        if self.group().is_new() {
            let field = if matches!(self, Self::Record { .. }) { "mgid" } else { "sib_addr" };
            return Err(GroupFault {
                field,
                why: "RoCE has no subnet administration that assigns GIDs",
            });
        }
        match self {
            Self::Address { .. } => Ok(group),
            Self::Record { record, mask } => {
                fits_ip(record, *mask, &group)?;
                Ok(chosen(record, *mask, group))
            }
        }
    }
}

/// Checks that a record's fields have defined values.
fn check_record(record: &McMemberRecord, mask: Mask) -> Result<(), GroupFault> {
    const NIBBLE: &str = "more than 4 bits";
    const SIX_BITS: &str = "more than 6 bits";
    const TWO_BITS: &str = "more than 2 bits";
    if !(mask - Mask::all()).is_empty() {
        return fault("comp_mask", "MCMemberRecord has components 0 to 17");
    }
    if record.join_state.is_empty() {
        return fault("join_state", "at least one bit must be set");
    }
    let mtu_counts = mask.contains(Mask::MTU);
    let fields: [(&'static str, bool, &'static str); 11] = [
        ("join_state", record.join_state.bits() > 0xf, NIBBLE),
        ("scope", record.scope > 0xf, NIBBLE),
        ("sl", record.sl > 0xf, NIBBLE),
        ("flow_label", record.flow_label > 0xf_ffff, "more than 20 bits"),
        ("mtu", record.mtu > 0x3f, SIX_BITS),
        ("mtu", mtu_counts && Mtu::from_code(record.mtu).is_none(), "not a code from 1 to 5"),
        ("rate", record.rate.0 > 0x3f, SIX_BITS),
        ("packet_life_time", record.packet_life_time > 0x3f, SIX_BITS),
        ("mtu_selector", record.mtu_selector.0 > 3, TWO_BITS),
        ("rate_selector", record.rate_selector.0 > 3, TWO_BITS),
        ("packet_life_time_selector", record.packet_life_time_selector.0 > 3, TWO_BITS),
    ];
    match fields.into_iter().find(|(_, is_wrong, _)| *is_wrong) {
        Some((field, _, why)) => fault(field, why),
        None => Ok(()),
    }
}

/// Checks that a record describes a group that can exist on RoCE.
fn fits_ip(record: &McMemberRecord, mask: Mask, group: &McMemberRecord) -> Result<(), GroupFault> {
    let differs = |component, is_same: bool| mask.contains(component) && !is_same;
    let mtu = match record.mtu_selector {
        Selector::GREATER_THAN => group.mtu > record.mtu,
        Selector::LESS_THAN => group.mtu < record.mtu,
        Selector::EXACTLY => group.mtu == record.mtu,
        _ => true,
    };
    let mtu = mtu || !mask.contains(Mask::MTU_SELECTOR);
    let fields = [
        (Mask::PORT_GID, record.port_gid == group.port_gid, "port_gid", "not the id's own address"),
        (Mask::MLID, record.mlid.0 == 0, "mlid", "RoCE has no LIDs"),
        (
            Mask::PKEY,
            record.pkey.0 | 0x8000 == group.pkey.0,
            "pkey",
            "RoCE has only the P_Key 0xffff",
        ),
        (Mask::MTU, mtu, "mtu", "not the MTU of the port"),
        (Mask::SCOPE, record.scope == group.scope, "scope", "not the scope of the GID"),
        (Mask::PROXY_JOIN, !record.proxy_join, "proxy_join", "RoCE has no proxy joins"),
    ];
    match fields.into_iter().find(|&(component, is_same, ..)| differs(component, is_same)) {
        Some((_, _, field, why)) => fault(field, why),
        None => Ok(()),
    }
}

/// Returns the group with the components that a record may choose.
fn chosen(record: &McMemberRecord, mask: Mask, group: McMemberRecord) -> McMemberRecord {
    let counts = |component| mask.contains(component);
    let pick = |component, value: u8, default: u8| if counts(component) { value } else { default };
    McMemberRecord {
        qkey: if counts(Mask::QKEY) { record.qkey } else { group.qkey },
        flow_label: if counts(Mask::FLOW_LABEL) { record.flow_label } else { group.flow_label },
        sl: pick(Mask::SL, record.sl, group.sl),
        tclass: pick(Mask::TCLASS, record.tclass, group.tclass),
        hop_limit: pick(Mask::HOP_LIMIT, record.hop_limit, group.hop_limit),
        ..group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn record() -> McMemberRecord {
        McMemberRecord {
            mgid: Gid::from(Ipv4Addr::new(239, 1, 2, 3)),
            join_state: JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        }
    }

    fn wish(record: McMemberRecord, mask: Mask) -> GroupWish {
        GroupWish::Record { record, mask: mask | Mask::MGID }
    }

    fn field(result: Result<impl fmt::Debug, GroupFault>) -> &'static str {
        result.unwrap_err().field
    }

    #[test]
    fn join_without_mgid_is_for_a_new_group_and_mapped_ipv4_group_is_ipv4() {
        let ip: IpAddr = "::ffff:239.1.2.3".parse().unwrap();
        let group = GroupWish::address(ip, JoinFlags::FullMember).group();
        assert_eq!(group, Ipv4Addr::new(239, 1, 2, 3).into());
        assert!(group.is_multicast() && !group.is_new());
        assert!(GroupAddr::NEW.is_new() && !GroupAddr::NEW.is_multicast());
        assert_eq!(wish(record(), Mask::empty()).group(), record().mgid.into());
        let unnamed = GroupWish::Record { record: record(), mask: Mask::JOIN_STATE };
        assert!(unnamed.group().is_new());
    }

    #[test]
    fn only_full_member_and_non_member_join_states_receive_multicast() {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        assert!(GroupWish::address(group, JoinFlags::FullMember).hears());
        assert!(!GroupWish::address(group, JoinFlags::SendOnlyFullMember).hears());
        for (join_state, hears) in [
            (JoinState::NON_MEMBER, true),
            (JoinState::SEND_ONLY_NON_MEMBER, false),
            (JoinState::FULL_MEMBER | JoinState::SEND_ONLY_NON_MEMBER, true),
        ] {
            let record = McMemberRecord { join_state, ..record() };
            assert_eq!(wish(record, Mask::empty()).hears(), hears, "{join_state}");
        }
    }

    #[test]
    fn invalid_mcmember_record_field_is_named_in_the_error() {
        assert_eq!(wish(record(), Mask::all()).check().map_err(|f| f.field), Err("mtu"));
        assert_eq!(wish(record(), Mask::all() - Mask::MTU).check(), Ok(()));
        type Change = fn(&mut McMemberRecord);
        let table: [(Change, &str); 11] = [
            (|r| r.mgid = Gid::from(LOCAL), "mgid"),
            (|r| r.join_state = JoinState::empty(), "join_state"),
            (|r| r.join_state = JoinState::from_bits_retain(0x10), "join_state"),
            (|r| r.scope = 16, "scope"),
            (|r| r.sl = 16, "sl"),
            (|r| r.flow_label = 1 << 20, "flow_label"),
            (|r| r.mtu = 64, "mtu"),
            (|r| r.rate.0 = 64, "rate"),
            (|r| r.packet_life_time = 64, "packet_life_time"),
            (|r| r.mtu_selector.0 = 4, "mtu_selector"),
            (|r| r.rate_selector.0 = 4, "rate_selector"),
        ];
        for (change, name) in table {
            let mut record = record();
            change(&mut record);
            assert_eq!(field(wish(record, Mask::empty()).check()), name);
        }
        let unknown = Mask::from_bits_retain(1 << 18);
        assert_eq!(field(wish(record(), unknown).check()), "comp_mask");
        let host = GroupWish::address(LOCAL, JoinFlags::FullMember);
        assert_eq!(field(host.check()), "address");
    }

    #[test]
    fn roce_join_takes_qkey_tclass_sl_flow_label_and_hop_limit_from_the_record() {
        let over_ip = |record, mask| wish(record, mask).over_ip(LOCAL, 64, Mtu::M1024);
        let plain = over_ip(record(), Mask::empty()).unwrap();
        assert_eq!((plain.qkey, plain.hop_limit), (Qkey::RDMA_UDP, 64));
        assert_eq!((plain.mgid.ip(), plain.port_gid), (record().mgid.ip(), LOCAL.into()));
        let wished = McMemberRecord {
            qkey: Qkey(7),
            tclass: 8,
            sl: 9,
            flow_label: 10,
            hop_limit: 11,
            ..record()
        };
        let mask = Mask::QKEY | Mask::TCLASS | Mask::SL | Mask::FLOW_LABEL | Mask::HOP_LIMIT;
        let got = over_ip(wished, mask).unwrap();
        assert_eq!((got.qkey, got.tclass, got.sl), (Qkey(7), 8, 9));
        assert_eq!((got.flow_label, got.hop_limit), (10, 11));
        assert_eq!(
            over_ip(wished, Mask::empty()),
            Ok(plain),
            "what does not count is not looked at"
        );
    }

    #[test]
    fn roce_join_with_port_gid_mlid_pkey_mtu_scope_or_proxy_join_is_refused() {
        type Change = fn(&mut McMemberRecord);
        let table: [(Mask, Change, &str); 6] = [
            (Mask::PORT_GID, |_| {}, "port_gid"),
            (Mask::MLID, |r| r.mlid.0 = 0xc001, "mlid"),
            (Mask::PKEY, |r| r.pkey.0 = 0x8001, "pkey"),
            (Mask::MTU | Mask::MTU_SELECTOR, |r| (r.mtu_selector.0, r.mtu) = (0, 5), "mtu"),
            (Mask::SCOPE, |r| r.scope = 2, "scope"),
            (Mask::PROXY_JOIN, |r| r.proxy_join = true, "proxy_join"),
        ];
        for (mask, change, name) in table {
            let mut record = record();
            change(&mut record);
            assert_eq!(field(wish(record, mask).over_ip(LOCAL, 64, Mtu::M1024)), name);
        }
        let new = GroupWish::address(GroupAddr::NEW, JoinFlags::FullMember);
        assert_eq!(field(new.over_ip(LOCAL, 64, Mtu::M1024)), "sib_addr");
        let new = GroupWish::Record { record: record(), mask: Mask::JOIN_STATE };
        assert_eq!(field(new.over_ip(LOCAL, 64, Mtu::M1024)), "mgid");
    }
}
