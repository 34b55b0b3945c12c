//! Multicast groups: which queue pairs hear which, and the sockets that hear them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use rdmux_link::UdpPort;
use rdmux_link::udp::Datagram;
use rdmux_wire::Gid;

use super::drive::Bound;
use super::receive::count;
use super::{Engine, Source};
use crate::counters::Counter;
use crate::device::Device;
use crate::error::VerbsError;
use crate::qp::QpCore;

/// Groups of this process.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<BTreeMap<Gid, Group>>);

#[derive(Debug, Default)]
struct Group {
    members: Vec<Arc<QpCore>>,
    socket: Option<Arc<UdpPort>>,
}

impl Engine {
    /// Lets a queue pair hear a group.
    pub(crate) fn attach(
        &self,
        device: &Arc<Device>,
        qp: &Arc<QpCore>,
        mgid: Gid,
    ) -> Result<(), VerbsError> {
        let fd = device.control().attach_multicast(qp.qpn, mgid)?;
        let socket = fd
            .map(|fd| UdpPort::new(fd).map(Arc::new))
            .transpose()
            .map_err(VerbsError::os("use the socket of a multicast group"))?;
        let mut groups = self.groups().0.write();
        let group = groups.entry(mgid).or_default();
        group.members.push(qp.clone());
        if let Some(socket) = socket {
            group.socket = Some(socket.clone());
            drop(groups);
            self.listen_to(Source::Group(socket))?;
        }
        Ok(())
    }

    /// Lets it hear the group no more.
    pub(crate) fn detach(
        &self,
        device: &Arc<Device>,
        qp: &Arc<QpCore>,
        mgid: Gid,
    ) -> Result<(), VerbsError> {
        {
            let mut groups = self.groups().0.write();
            if let Some(group) = groups.get_mut(&mgid) {
                group.members.retain(|m| !Arc::ptr_eq(m, qp));
                if group.members.is_empty() {
                    let socket = groups.remove(&mgid).and_then(|g| g.socket);
                    drop(groups);
                    socket.iter().for_each(|socket| self.unlisten(socket));
                }
            }
        }
        device.control().detach_multicast(qp.qpn, mgid)?;
        Ok(())
    }

    /// Hands a group's datagram to every member.
    pub(crate) fn deliver_multicast(&self, device: &Arc<Device>, datagram: &Datagram<'_>) {
        let mgid = Gid::from(datagram.dst.ip());
        let groups = self.groups().0.read();
        let Some(group) = groups.get(&mgid) else {
            return count(device, Counter::RxNoQp);
        };
        for member in &group.members {
            Bound::lock(device, member).receive(std::iter::once(*datagram));
        }
    }
}
