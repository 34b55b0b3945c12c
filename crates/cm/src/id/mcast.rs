//! join, leave: multicast groups.
//!
//! How the network hears of it is the driver's part: on RoCE by IGMP or MLD, and the group's address is its GID; on InfiniBand
//! by subnet administration, which gives the group its LID and says how to send to it. Either way a group is described by an
//! MCMemberRecord.

use core::net::IpAddr;

use rdmux_transport::Time;
use rdmux_transport::attr::{AddressVector, QpType};
use rdmux_wire::sa::{JoinState, McMemberRecord, Selector};
use rdmux_wire::{Gid, Mtu, Pkey, Qkey, Qpn};

use super::entry::{Group, Id, IdState};
use super::{EventBody, Manager, normalised};
use crate::error::{CmError, Command, errno};
use crate::event::{EventKind, EventParam};
use crate::params::{JoinFlags, UdParam};
use crate::sink::{IdHandle, JoinQuery, LocalAddress, Sink};

impl Manager {
    /// Joins a multicast group (rdma_join_multicast(3)). MULTICAST_JOIN or MULTICAST_ERROR
    /// follows, with `context`.
    ///
    /// # Errors
    /// When the id is not of UD, has no local address, is past address resolution, or has the
    /// group already; or the address is not a group of the id's family.
    pub fn join(
        &mut self,
        now: Time,
        id: IdHandle,
        group: IpAddr,
        flags: JoinFlags,
        context: u64,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let _ = now;
        let command = Command::Join;
        let group = normalised((group, 0).into()).ip();
        let found = self.get_mut(id, command)?;
        let state = found.state();
        let invalid = |what| Err(CmError::Invalid { id, command, what });
        if found.qp_type != QpType::Ud {
            return invalid("only UD has multicast");
        }
        if !matches!(state, IdState::AddrBound | IdState::AddrResolved) {
            return Err(CmError::State { id, command, state });
        }
        let Some(device) = &found.device else {
            return invalid("the id is bound to no device's address");
        };
        if !group.is_multicast() {
            return invalid("not a multicast address");
        }
        if group.is_ipv4() != device.ip.is_ipv4() {
            return Err(CmError::Family { id, command });
        }
        if found.groups.contains_key(&group) {
            return invalid("the id has joined this group already");
        }
        let send_only = flags == JoinFlags::SendOnlyFullMember;
        let query = found.join_query(device, group, send_only);
        found.groups.insert(group, Group { context, send_only, joined: false, events: 0 });
        sink.join_multicast(id, query);
        Ok(())
    }

    /// The driver's answer to [`Sink::join_multicast`], the group ([`JoinQuery::over_ip`] where it follows from the address), and
    /// later the event that a group was lost: `Err` has a positive errno. A group that did not come or is lost needs no leave
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
        let Some(group) = found.groups.get_mut(&query.group) else { return };
        let context = Some(group.context);
        if result.is_ok() && group.joined {
            return;
        }
        group.events += 1;
        group.joined = result.is_ok();
        let body = match result {
            Ok(record) => {
                let param = UdParam {
                    private_data: alloc::vec::Vec::new(),
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
        self.emit(id, EventBody { context, ..body }, sink);
    }

    /// Leaves a group (rdma_leave_multicast(3)). Gives the number of events that the group had.
    ///
    /// # Errors
    /// When the id has no such group.
    pub fn leave(
        &mut self,
        now: Time,
        id: IdHandle,
        group: IpAddr,
        sink: &mut impl Sink,
    ) -> Result<u32, CmError> {
        let _ = now;
        let command = Command::Leave;
        let group = normalised((group, 0).into()).ip();
        let found = self.get_mut(id, command)?;
        let Some(left) = found.groups.remove(&group) else {
            return Err(CmError::NotJoined { id, group });
        };
        leave_at_network(id, found, group, &left, sink);
        Ok(left.events)
    }

    /// The network lost the groups of an id.
    pub(super) fn lose_groups(&mut self, now: Time, id: IdHandle, sink: &mut impl Sink) {
        let Some(found) = self.ids.get(&id) else { return };
        let Some(device) = &found.device else { return };
        let joined = found.groups.iter().filter(|(_, g)| g.joined);
        let query = |(&group, g): (&IpAddr, &Group)| found.join_query(device, group, g.send_only);
        let lost: alloc::vec::Vec<JoinQuery> = joined.map(query).collect();
        for query in lost {
            self.handle_joined(now, id, query, Err(errno::ENETRESET), sink);
        }
    }
}

/// Takes a join back that was not refused.
pub(super) fn leave_at_network(
    id: IdHandle,
    of: &Id,
    group: IpAddr,
    left: &Group,
    sink: &mut impl Sink,
) {
    if let Some(device) = &of.device
        && !left.failed()
    {
        sink.leave_multicast(id, of.join_query(device, group, left.send_only));
    }
}

impl Group {
    /// Whether the last event was that the group did not come or was lost.
    const fn failed(&self) -> bool {
        !self.joined && self.events > 0
    }
}

impl Id {
    fn join_query(&self, device: &LocalAddress, group: IpAddr, send_only: bool) -> JoinQuery {
        let &LocalAddress { device, port_num, ip: local, .. } = device;
        JoinQuery { device, port_num, port_space: self.ps, local, group, send_only }
    }
}

impl JoinQuery {
    /// The group as it is where addresses are GIDs (RoCE), on a port with this MTU.
    pub fn over_ip(&self, hop_limit: u8, mtu: Mtu) -> McMemberRecord {
        McMemberRecord {
            mgid: Gid::from(self.group),
            port_gid: Gid::from(self.local),
            qkey: Qkey::RDMA_UDP,
            mtu_selector: Selector::EXACTLY,
            mtu: mtu.code(),
            pkey: Pkey::DEFAULT,
            hop_limit,
            join_state: if self.send_only {
                JoinState::SEND_ONLY_FULL_MEMBER
            } else {
                JoinState::FULL_MEMBER
            },
            ..McMemberRecord::default()
        }
    }
}

/// How to reach a group.
fn group_av(id: &Id, group: &McMemberRecord) -> AddressVector {
    let device = id.device.as_ref();
    // The type of service is that of IP packets.
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
