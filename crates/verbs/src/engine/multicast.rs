//! Multicast groups: which queue pairs hear which, and the sockets that hear them.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use parking_lot::RwLock;
use rdmux_link::wire::Arrival;
use rdmux_wire::Gid;

use super::Engine;
use super::drive::Bound;
use super::receive::count;
use super::wire::AnyWire;
use crate::engine::device::{Device, PORT};
use crate::engine::qp::QpCore;
use crate::objects::control::Limits;
use crate::objects::counters::Counter;
use crate::objects::error::VerbsError;
use crate::objects::quota;

/// Groups of this process, each at a port.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<BTreeMap<(u8, Gid), Group>>);

#[derive(Debug, Default)]
struct Group {
    members: Vec<Arc<QpCore>>,
    /// What hears it.
    wire: Option<AnyWire>,
}

impl Groups {
    /// Makes a queue pair a member, if the device's limits admit it.
    fn add(&self, limits: &Limits, qp: &Arc<QpCore>, at: (u8, Gid)) -> Result<(), VerbsError> {
        const WHAT: &str = "attach to a multicast group";
        let mut groups = self.0.write();
        let most = limits.max_mcast_grp;
        if !groups.contains_key(&at) && groups.len() >= most as usize {
            return Err(quota::full(WHAT, "groups", "max_mcast_grp", most));
        }
        let members = groups.get(&at).map_or(0, |group| group.members.len());
        let most = limits.max_mcast_qp_attach;
        if members >= most as usize {
            return Err(quota::full(WHAT, "members of the group", "max_mcast_qp_attach", most));
        }
        groups.entry(at).or_default().members.push(qp.clone());
        Ok(())
    }

    /// The port at which a queue pair hears a group.
    fn port_of(&self, qp: &Arc<QpCore>, mgid: Gid) -> Option<u8> {
        let groups = self.0.read();
        let hears = |group: &Group| group.members.iter().any(|member| Arc::ptr_eq(member, qp));
        let found = groups.iter().find(|((_, gid), group)| *gid == mgid && hears(group));
        found.map(|((port, _), _)| *port)
    }
}

impl Engine {
    /// Lets a queue pair hear a group.
    pub(crate) fn attach(
        &self,
        device: &Arc<Device>,
        qp: &Arc<QpCore>,
        mgid: Gid,
    ) -> Result<(), VerbsError> {
        // The place is taken first, since the service is asked without a lock.
        let at = (qp.port(), mgid);
        self.groups().add(device.limits(), qp, at)?;
        let joined = self.join(device, qp, at);
        if joined.is_err() {
            self.leave(qp, at);
        }
        joined
    }

    /// Has the host join the group, and hears its socket.
    fn join(
        &self,
        device: &Arc<Device>,
        qp: &Arc<QpCore>,
        (port, mgid): (u8, Gid),
    ) -> Result<(), VerbsError> {
        let fd = device.control().attach_multicast(port, qp.qpn, mgid)?;
        let Some(fd) = fd else { return Ok(()) };
        let wire = match device.control().group_wire(port, mgid, fd.as_fd())? {
            Some(wire) => AnyWire::from(wire),
            None => AnyWire::of_group(fd).map_err(VerbsError::os("use a group's socket"))?,
        };
        if let Some(group) = self.groups().0.write().get_mut(&(port, mgid)) {
            group.wire = Some(wire.clone());
        }
        self.listen(wire)
    }

    /// Lets it hear the group no more.
    pub(crate) fn detach(
        &self,
        device: &Arc<Device>,
        qp: &Arc<QpCore>,
        mgid: Gid,
    ) -> Result<(), VerbsError> {
        let port = self.groups().port_of(qp, mgid).unwrap_or(qp.port());
        self.leave(qp, (port, mgid));
        device.control().detach_multicast(port, qp.qpn, mgid)?;
        Ok(())
    }

    /// The queue pair is no member any more; with the last one the wire goes.
    fn leave(&self, qp: &Arc<QpCore>, at: (u8, Gid)) {
        let mut groups = self.groups().0.write();
        let Some(group) = groups.get_mut(&at) else { return };
        group.members.retain(|m| !Arc::ptr_eq(m, qp));
        if group.members.is_empty() {
            let wire = groups.remove(&at).and_then(|g| g.wire);
            drop(groups);
            wire.iter().for_each(|wire| self.unlisten(wire));
        }
    }

    /// Hands packets of a [group](group_of) to all its members.
    pub(crate) fn deliver_multicast<'a>(
        &self,
        device: &Arc<Device>,
        group: (u8, Gid),
        packets: impl Iterator<Item = Arrival<'a>>,
    ) {
        let groups = self.groups().0.read();
        match groups.get(&group).map_or(&[][..], |group| &group.members) {
            [] => packets.for_each(|_| count(device, Counter::RxNoQp)),
            [only] => Bound::lock(device, only).receive(packets),
            members => {
                let packets: Vec<_> = packets.collect();
                for member in members {
                    Bound::lock(device, member).receive(packets.iter().copied());
                }
            }
        }
    }
}

/// The group that a packet was sent to: the port at which it came, and the group's GID.
pub(crate) fn group_of(packet: &Arrival<'_>) -> (u8, Gid) {
    (packet.ib.map_or(PORT, |route| route.port_num), packet.dgid())
}
