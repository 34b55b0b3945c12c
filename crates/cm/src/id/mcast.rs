//! The commands join and leave, for multicast groups.
//!
//! The driver does the network's part. On RoCE it uses IGMP or MLD, and the group's address is its GID. On InfiniBand
//! it joins at subnet administration, which assigns the LID and the parameters for sending. Either way an
//! MCMemberRecord describes the group.
//!
//! ```text
//!   join --> Sink::join_multicast --> handle_joined: MULTICAST_JOIN, the record can be queried
//!                                          |      or MULTICAST_ERROR: the join failed
//!                                          v
//!                                     handle_joined: MULTICAST_ERROR, it was lost
//!   leave, at any time; a group that was not joined or was lost may be joined again instead
//! ```

use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_transport::attr::{AddressVector, QpType, TransportType};
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask as Mask};
use rdmux_wire::{Mtu, Qpn};

use super::entry::{Group, Id, IdState};
use super::{EventBody, Manager};
use crate::error::{CmError, Command, errno};
use crate::event::{EventKind, EventParam};
use crate::group::{GroupAddr, GroupFault, GroupWish};
use crate::params::UdParam;
use crate::sink::{IdHandle, JoinQuery, LocalAddress, Sink};

/// The most groups of one id.
const MAX_GROUPS: usize = 4096;

impl Manager {
    /// Joins a multicast group (rdma_join_multicast(3)). MULTICAST_JOIN or MULTICAST_ERROR
    /// follows, with `context`, which identifies the membership from now on.
    ///
    /// # Errors
    /// When the id is not of UD, has no local address, is past address resolution, or has the
    /// group already; or when the request is invalid, in general or for the id's port.
    pub fn join(
        &mut self,
        now: Time,
        id: IdHandle,
        wish: GroupWish,
        context: u64,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let _ = now;
        self.check_join(id, &wish, context)?;
        let found = self.get_mut(id, Command::Join)?;
        let group = Group { wish, name: wish.group(), record: None, lost: None, events: 0 };
        found.groups.retain(|_, old| old.name != group.name || old.lost.is_none());
        if let Some(query) = found.join_query(context, wish) {
            found.groups.insert(context, group);
            sink.join_multicast(id, query);
        }
        Ok(())
    }

    fn check_join(&self, id: IdHandle, wish: &GroupWish, context: u64) -> Result<(), CmError> {
        let command = Command::Join;
        let found = self.get(id, command)?;
        let invalid = |what| Err(CmError::Invalid { id, command, what });
        let wrong = |fault| CmError::Group { id, fault };
        let device = found.device.as_ref();
        if device.is_some_and(|device| device.transport == TransportType::Iwarp) {
            return Err(CmError::NoMulticast { id });
        }
        if found.qp_type != QpType::Ud {
            return invalid("only UD supports multicast");
        }
        let state = found.state();
        if !matches!(state, IdState::AddrBound | IdState::AddrResolved) {
            return Err(CmError::State { id, command, state });
        }
        let Some(device) = device else {
            return invalid("the id is not bound to a device");
        };
        wish.check().map_err(wrong)?;
        let group = wish.group();
        if !may_join(device, group) {
            return Err(CmError::Family { id, command });
        }
        self.check_at_port(device, wish).map_err(wrong)?;
        if found.groups.len() >= MAX_GROUPS {
            return Err(CmError::TooManyGroups { id, max: MAX_GROUPS });
        }
        let has = |g: &Group| g.name == group && !group.is_new() && g.lost.is_none();
        if found.groups.values().any(has) {
            return invalid("the id has joined this group already");
        }
        let is_other = |g: &Group| g.lost.is_none() || g.name != group;
        if found.groups.get(&context).is_some_and(is_other) {
            return invalid("the id uses this context for another group");
        }
        Ok(())
    }

    /// Checks a request to join at the port of an id.
    fn check_at_port(&self, device: &LocalAddress, wish: &GroupWish) -> Result<(), GroupFault> {
        let fault = |field, why| Err(GroupFault { field, why });
        if let GroupWish::Address { pkey, .. } = wish
            && pkey.0 != 0
            && (pkey.0 ^ device.pkey.0) & 0x7fff != 0
        {
            return fault("sib_pkey", "not the partition of the id");
        }
        if !device.has_lids {
            let hop_limit = self.config().hop_limit;
            return wish.over_ip(device.ip, hop_limit, device.mtu).map(drop);
        }
        if let GroupAddr::Gid(mgid) = wish.group()
            && !mgid.is_zero()
            && mgid.0[0] != 0xff
        {
            return fault("mgid", "not a multicast GID of InfiniBand");
        }
        let GroupWish::Record { record, mask } = wish else { return Ok(()) };
        let same = |port: &&crate::DevicePort| {
            (port.device, port.port_num) == (device.device, device.port_num)
        };
        let Some(port) = self.device_ports.iter().find(same) else { return Ok(()) };
        if mask.contains(Mask::PORT_GID) && port.gid_index(record.port_gid).is_none() {
            return fault("port_gid", "not a GID of the port");
        }
        if mask.contains(Mask::PKEY) && port.pkey_index(record.pkey).is_none() {
            return fault("pkey", "not in the port's P_Key table");
        }
        Ok(())
    }

    /// Handles the driver's answer to [`Sink::join_multicast`]: the group ([`JoinQuery::over_ip`] where it follows from the address). Later
    /// it handles the loss of a group: `Err` has a positive errno. A group that was not joined or is lost need not be left
    /// at the network.
    pub fn handle_joined(
        &mut self,
        now: Time,
        id: IdHandle,
        query: JoinQuery,
        result: Result<McMemberRecord, i32>,
        sink: &mut impl Sink,
    ) {
        let _ = now;
        let Some(found) = self.ids.get_mut(&id) else { return };
        let Some(group) = found.groups.get_mut(&query.context) else { return };
        // A join has one answer, and after that at most one loss.
        if group.lost.is_some() || result.is_ok() && group.record.is_some() {
            return;
        }
        group.events += 1;
        group.record = result.ok();
        group.lost = result.err();
        let body = match result {
            Ok(record) => {
                if group.name.is_new() {
                    group.name = record.mgid.into();
                }
                let param = UdParam {
                    private_data: Vec::new(),
                    av: group_av(found, &record),
                    qp_num: Qpn::MULTICAST,
                    qkey: record.qkey,
                };
                EventBody {
                    param: EventParam::Ud(param),
                    ..EventBody::new(EventKind::MulticastJoin)
                }
            }
            Err(errno) => EventBody::failed(EventKind::MulticastError, -errno.abs()),
        };
        self.emit(id, EventBody { context: Some(query.context), ..body }, sink);
    }

    /// Leaves the group that was joined with `context` (rdma_leave_multicast(3)). Returns the number of events that the group had.
    ///
    /// # Errors
    /// When the id has no such group.
    pub fn leave(
        &mut self,
        now: Time,
        id: IdHandle,
        context: u64,
        sink: &mut impl Sink,
    ) -> Result<u32, CmError> {
        let _ = now;
        let found = self.get_mut(id, Command::Leave)?;
        let left = found.groups.remove(&context).ok_or(CmError::NotJoined { id })?;
        leave_at_network(id, found, context, &left, sink);
        Ok(left.events)
    }

    /// Returns the record of the group that was joined with `context`, as the network returned it.
    ///
    /// # Errors
    /// When the id has no such group, when it is not joined yet, and when the join failed or the group was lost.
    pub fn group(&self, id: IdHandle, context: u64) -> Result<McMemberRecord, CmError> {
        let found = self.get(id, Command::Query)?;
        let group = found.groups.get(&context).ok_or(CmError::NotJoined { id })?;
        group.record.ok_or(CmError::NoGroup { id, errno: group.lost.unwrap_or(errno::ENOTCONN) })
    }

    /// Reports the loss of the groups of an id whose address is gone, and leaves them at the network.
    pub(super) fn lose_groups(&mut self, now: Time, id: IdHandle, sink: &mut impl Sink) {
        let Some(found) = self.ids.get(&id) else { return };
        let wanted = found.groups.iter().filter(|(_, g)| g.lost.is_none());
        let query = |(&context, g): (&u64, &Group)| found.join_query(context, g.wish);
        let lost: Vec<JoinQuery> = wanted.filter_map(query).collect();
        for query in lost {
            sink.leave_multicast(id, query);
            self.handle_joined(now, id, query, Err(errno::ENETRESET), sink);
        }
    }
}

/// Leaves a group at the network, unless the join was refused.
pub(super) fn leave_at_network(
    id: IdHandle,
    of: &Id,
    context: u64,
    left: &Group,
    sink: &mut impl Sink,
) {
    if left.lost.is_none()
        && let Some(query) = of.join_query(context, left.wish)
    {
        sink.leave_multicast(id, query);
    }
}

impl Id {
    /// Returns the join query of an id; none for an id without a device, which has no groups.
    fn join_query(&self, context: u64, wish: GroupWish) -> Option<JoinQuery> {
        let &LocalAddress { device, port_num, ip: local, .. } = self.device.as_ref()?;
        Some(JoinQuery { device, port_num, port_space: self.ps, local, context, wish })
    }
}

/// Returns whether an id with this address may join a group. On RoCE it joins groups of its family. On InfiniBand it joins
/// any, because every group there is a GID.
fn may_join(device: &LocalAddress, group: GroupAddr) -> bool {
    device.has_lids || group.is_new() || group.ip().is_ipv4() == device.ip.is_ipv4()
}

impl JoinQuery {
    /// Returns the group as it is where addresses are GIDs (RoCE), on a port with this MTU.
    ///
    /// # Errors
    /// EINVAL for a request that is invalid there.
    pub fn over_ip(&self, hop_limit: u8, mtu: Mtu) -> Result<McMemberRecord, i32> {
        self.wish.over_ip(self.local, hop_limit, mtu).map_err(|_| errno::EINVAL)
    }
}

/// Returns the address vector of a group.
fn group_av(id: &Id, group: &McMemberRecord) -> AddressVector {
    let device = id.device.as_ref();
    // The type of service applies to IP packets only.
    let tos = id.options.tos.filter(|_| device.is_none_or(|device| !device.has_lids));
    AddressVector {
        is_global: true,
        dgid: group.mgid,
        sgid_index: device.map_or(0, |d| d.sgid_index),
        port_num: device.map_or(1, |d| d.port_num),
        flow_label: group.flow_label,
        hop_limit: group.hop_limit,
        traffic_class: tos.unwrap_or(group.tclass),
        dlid: group.mlid.0,
        sl: group.sl,
        static_rate: group.rate.0,
        ..AddressVector::default()
    }
}
