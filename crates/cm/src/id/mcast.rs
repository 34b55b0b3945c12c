//! join, leave: multicast groups. On RoCE no subnet administration is asked; the group's address
//! is its GID, and the network hears of it by IGMP or MLD, which is the driver's part.

use core::net::IpAddr;

use rdmux_transport::Time;
use rdmux_transport::attr::{AddressVector, QpType};
use rdmux_wire::{Gid, Qkey, Qpn};

use super::entry::{Group, Id, IdState};
use super::{EventBody, Manager, normalised};
use crate::error::{CmError, Command, errno};
use crate::event::{EventKind, EventParam};
use crate::params::{JoinFlags, UdParam};
use crate::sink::{IdHandle, JoinQuery, Sink};

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
        let query = JoinQuery { local: device.ip, group, send_only };
        found.groups.insert(group, Group { context, send_only, joined: false, events: 0 });
        sink.join_multicast(id, query);
        Ok(())
    }

    /// The driver's answer to [`Sink::join_multicast`], and later the event that a group was lost:
    /// `Err` has a positive errno. A group that did not come or is lost needs no leave at the
    /// network.
    pub fn handle_joined(
        &mut self,
        now: Time,
        id: IdHandle,
        query: JoinQuery,
        result: Result<(), i32>,
        sink: &mut impl Sink,
    ) {
        let _ = now;
        let hop_limit = self.cm.config.hop_limit;
        let Some(found) = self.ids.get_mut(&id) else { return };
        let Some(group) = found.groups.get_mut(&query.group) else { return };
        let context = Some(group.context);
        if result.is_ok() && group.joined {
            return;
        }
        group.events += 1;
        group.joined = result.is_ok();
        let body = match result {
            Ok(()) => {
                let param = UdParam {
                    private_data: alloc::vec::Vec::new(),
                    av: group_av(found, query.group, hop_limit),
                    qp_num: Qpn::MULTICAST,
                    qkey: Qkey::RDMA_UDP,
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
        let Some(local) = found.device.as_ref().map(|d| d.ip) else { return };
        let joined = found.groups.iter().filter(|(_, g)| g.joined);
        let lost: alloc::vec::Vec<JoinQuery> =
            joined.map(|(&group, g)| JoinQuery { local, group, send_only: g.send_only }).collect();
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
        let query = JoinQuery { local: device.ip, group, send_only: left.send_only };
        sink.leave_multicast(id, query);
    }
}

impl Group {
    /// Whether the last event was that the group did not come or was lost.
    const fn failed(&self) -> bool {
        !self.joined && self.events > 0
    }
}

/// How to reach a group.
fn group_av(id: &Id, group: IpAddr, hop_limit: u8) -> AddressVector {
    AddressVector {
        is_global: true,
        dgid: Gid::from(group),
        sgid_index: id.device.as_ref().map_or(0, |d| d.sgid_index),
        port_num: id.device.as_ref().map_or(1, |d| d.port_num),
        hop_limit,
        traffic_class: id.options.tos.unwrap_or(0),
        ..AddressVector::default()
    }
}
