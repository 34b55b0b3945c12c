//! Multicast groups: their member queue pairs, and the sockets that receive them.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rdmux_link::wire::Arrival;
use rdmux_wire::{Gid, Qpn};

use super::Engine;
use super::drive::Bound;
use super::receive::count;
use super::wire::AnyWire;
use crate::engine::device::{Device, PORT};
use crate::engine::qp::QpCore;
use crate::objects::control::{ControlError, Limits};
use crate::objects::counters::Counter;
use crate::objects::error::VerbsError;
use crate::objects::quota;

/// The groups of this process, each at a port.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_gid: RwLock<BTreeMap<(u8, Gid), Group>>,
    /// Locked while a queue pair is attached or detached, here and by the service: the service passes a group's socket once, so
    /// both must see the same order. The caller holds the lock of neither a round nor a queue pair.
    changing: Mutex<()>,
}

/// The queue pairs and wires of a group.
#[derive(Debug, Default)]
struct Group {
    members: Vec<Arc<QpCore>>,
    /// The wires that receive it: one for each address on which the service has joined the group for this process.
    wires: Vec<Heard>,
}

/// A wire that receives a group.
#[derive(Debug)]
struct Heard {
    wire: AnyWire,
    /// The members that the socket may serve: when the last of them leaves, the service has left the group on its address.
    members: Vec<Qpn>,
}

impl Group {
    /// Records that the service has made a queue pair a member: on the address of `fresh`, or else on one on which the group is
    /// already received.
    fn heard_by(&mut self, qpn: Qpn, fresh: Option<AnyWire>) {
        match fresh {
            Some(wire) => self.wires.push(Heard { wire, members: vec![qpn] }),
            None => self.wires.iter_mut().for_each(|heard| heard.members.push(qpn)),
        }
    }

    /// Removes a member. Returns the wires that are no longer needed.
    fn left_by(&mut self, qpn: Qpn) -> Vec<AnyWire> {
        self.members.retain(|member| member.qpn != qpn);
        self.wires.iter_mut().for_each(|heard| heard.members.retain(|member| *member != qpn));
        self.wires
            .extract_if(.., |heard| heard.members.is_empty())
            .map(|heard| heard.wire)
            .collect()
    }
}

impl Groups {
    /// Adds a member, if the device's limits permit it.
    fn add(&self, limits: &Limits, qp: &Arc<QpCore>, at: (u8, Gid)) -> Result<(), VerbsError> {
        const WHAT: &str = "attach to a multicast group";
        let mut groups = self.by_gid.write();
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

    /// Returns the port at which a queue pair receives a group.
    fn port_of(&self, qp: &Arc<QpCore>, mgid: Gid) -> Option<u8> {
        let groups = self.by_gid.read();
        let hears = |group: &Group| group.members.iter().any(|member| Arc::ptr_eq(member, qp));
        let found = groups.iter().find(|((_, gid), group)| *gid == mgid && hears(group));
        found.map(|((port, _), _)| *port)
    }
}

impl Engine {
    /// Attaches a queue pair to a group.
    pub(crate) fn attach(
        &self,
        device: &Arc<Device>,
        qp: &Arc<QpCore>,
        mgid: Gid,
    ) -> Result<(), VerbsError> {
        let _changing = self.groups().changing.lock();
        let at = (qp.port(), mgid);
        self.groups().add(device.limits(), qp, at)?;
        let joined = self.join(device, qp, at);
        if joined.is_err() {
            self.leave(qp, at);
            // The service may have it as a member, and would not pass the socket again to the next one.
            let _ = device.control().detach_multicast(at.0, qp.qpn, mgid);
        }
        joined
    }

    /// Makes the host join the group, and receives from its socket.
    fn join(
        &self,
        device: &Arc<Device>,
        qp: &Arc<QpCore>,
        (port, mgid): (u8, Gid),
    ) -> Result<(), VerbsError> {
        let fd = device.control().attach_multicast(port, qp.qpn, mgid)?;
        let wire = fd.map(|fd| match device.control().group_wire(port, mgid, fd.as_fd())? {
            Some(wire) => Ok(AnyWire::from(wire)),
            None => {
                AnyWire::of_group(fd).map_err(VerbsError::os("use the socket of a multicast group"))
            }
        });
        let wire = wire.transpose()?;
        if let Some(group) = self.groups().by_gid.write().get_mut(&(port, mgid)) {
            group.heard_by(qp.qpn, wire.clone());
        }
        wire.map_or(Ok(()), |wire| self.listen(wire))
    }

    /// Detaches a queue pair from a group.
    pub(crate) fn detach(
        &self,
        device: &Arc<Device>,
        qp: &Arc<QpCore>,
        mgid: Gid,
    ) -> Result<(), VerbsError> {
        let _changing = self.groups().changing.lock();
        let port = self.groups().port_of(qp, mgid).unwrap_or(qp.port());
        self.leave(qp, (port, mgid));
        match device.control().detach_multicast(port, qp.qpn, mgid) {
            // The membership ended with the service.
            Ok(()) | Err(ControlError::Gone) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes a member, and closes the wires that only it used.
    fn leave(&self, qp: &Arc<QpCore>, at: (u8, Gid)) {
        let mut groups = self.groups().by_gid.write();
        let Some(group) = groups.get_mut(&at) else { return };
        let wires = group.left_by(qp.qpn);
        if group.members.is_empty() {
            groups.remove(&at);
        }
        drop(groups);
        wires.iter().for_each(|wire| self.unlisten(wire));
    }

    /// Delivers packets of a [group](group_of) to all its members.
    pub(crate) fn deliver_multicast<'a>(
        &self,
        device: &Arc<Device>,
        group: (u8, Gid),
        packets: impl Iterator<Item = Arrival<'a>>,
    ) {
        let groups = self.groups().by_gid.read();
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

/// Returns the group that a packet was sent to: the port at which it arrived, and the group's GID.
pub(crate) fn group_of(packet: &Arrival<'_>) -> (u8, Gid) {
    (packet.ib.map_or(PORT, |route| route.port_num), packet.dgid())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc;
    use std::thread;

    use rdmux_transport::attr::QpType;
    use rdmux_wire::Qkey;
    use rustix::thread::gettid;

    use super::*;
    use crate::handles::qp::Qp;
    use crate::lab::{Lab, Node, rests};

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 209, 1);

    /// A process with two datagram queue pairs.
    fn two_qps(ip: &str) -> (Node, Qp) {
        let node = Node::new(&Lab::new(false), ip, QpType::Ud, 64);
        node.ready_ud(Qkey(1));
        let other = Qp::new(&node.pd, node.qp.init().clone()).unwrap();
        (node, other)
    }

    fn wires(node: &Node) -> usize {
        node.device.engine().inbound(|inbound| inbound.wires())
    }

    #[test]
    fn attach_during_detach_of_the_last_member_keeps_the_multicast_wire() {
        let (node, other) = two_qps("127.77.209.1");
        let mgid = Gid::from(GROUP);
        let before = wires(&node);
        node.qp.attach_multicast(mgid).unwrap();
        assert_eq!(wires(&node), before + 1);
        let (tell, hear) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        node.control.at_detach(move || {
            begin.send(()).unwrap();
            let attaching: String = hear.recv().unwrap();
            while !rests(&attaching) {
                thread::yield_now();
            }
        });
        let other = &other;
        thread::scope(|scope| {
            scope.spawn(move || {
                begun.recv().unwrap();
                tell.send(gettid().as_raw_nonzero().to_string()).unwrap();
                other.attach_multicast(mgid).unwrap();
            });
            node.qp.detach_multicast(mgid).unwrap();
        });
        assert_eq!(wires(&node), before + 1, "the group's is there");
    }

    #[test]
    fn detach_of_a_group_joined_on_two_addresses_closes_its_wires() {
        let (node, other) = two_qps("127.77.209.2");
        let mgid = Gid::from(GROUP);
        let before = wires(&node);
        other.attach_multicast(mgid).unwrap();
        for _ in 0..3 {
            node.control.join_on("127.77.209.3");
            node.qp.attach_multicast(mgid).unwrap();
            assert_eq!(wires(&node), before + 2);
            node.qp.detach_multicast(mgid).unwrap();
            assert_eq!(wires(&node), before + 1);
        }
        node.qp.attach_multicast(mgid).unwrap();
        other.detach_multicast(mgid).unwrap();
        assert_eq!(wires(&node), before + 1);
        node.qp.detach_multicast(mgid).unwrap();
        assert_eq!(wires(&node), before);
    }
}
