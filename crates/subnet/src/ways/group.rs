//! Multicast routes: a tree of routes to the members of a group.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use rdmux_wire::Lid;

use super::trail::Kinds;
use super::{Lost, Met, Trail, WayFound};
use crate::counters::DropReason;
use crate::packet::PortId;
use crate::port::PortKind;
use crate::subnet::Subnet;

/// The packets that have entered a port: for each service level, a bitmap of their keys.
type Entered = [u128; 16];

impl Subnet {
    /// Returns the routes of packets from a port to all ports that get a copy of a packet to a multicast LID. As in
    /// [`Subnet::send`], no copy leaves a switch by the port where it entered, and each port is entered once. A port that
    /// gets several copies is listed for each of them. The sender itself gets none, unless tables lead back to it.
    pub fn group_ways(&self, from: PortId, mlid: Lid) -> Vec<WayFound> {
        self.group_ways_along(from, mlid, &mut Trail::default())
    }

    /// Returns the routes as [`Subnet::group_ways`] does, and adds to `trail` the dependencies of the result and the packets that ports
    /// count.
    pub fn group_ways_along(&self, from: PortId, mlid: Lid, trail: &mut Trail) -> Vec<WayFound> {
        let mut found = Vec::new();
        let Some(start) = self.sender(from).filter(|_| mlid.is_multicast()) else { return found };
        trail.push(&self.ports[start]);
        let Ok(mut met) = self.begin(start) else { return found };
        let mut leaving = VecDeque::new();
        if self.kind(start) == PortKind::Management {
            for egress in self.group_ports(start, None, mlid) {
                trail.push(&self.ports[egress]);
                leaving.push_back((egress, met));
            }
        } else if self.leave_adapter(start, &mut met, trail).is_ok() {
            leaving.push_back((start, met));
        }
        let mut entered: BTreeMap<usize, Entered> = BTreeMap::new();
        while let Some((egress, mut met)) = leaving.pop_front() {
            let ingress = match self.pass_link(egress, &mut met, trail) {
                Ok(ingress) => ingress,
                Err(Lost { at, reason }) => {
                    trail.lose(at, reason, met.kinds());
                    continue;
                }
            };
            if self.kind(ingress) != PortKind::External {
                found.push(met.arrived(self.ports[ingress].id));
                continue;
            }
            let (first, again) = first_time(entered.entry(ingress).or_default(), met);
            for kinds in again {
                trail.lose(self.ports[ingress].id, DropReason::Loop, kinds);
            }
            for mut met in first {
                if self.enter(ingress, &mut met, trail).is_err() {
                    continue;
                }
                let end = self.manager_of(ingress);
                for next in self.group_ports(end, Some(ingress), mlid) {
                    let mut met = met;
                    if next == end {
                        found.push(met.arrived(self.ports[end].id));
                        continue;
                    }
                    trail.push(&self.ports[next]);
                    if self.leave(ingress, next, &mut met, trail).is_ok() {
                        leaving.push_back((next, met));
                    }
                }
            }
        }
        found
    }
}

impl Subnet {
    /// Returns the multicast LIDs that can reach a member from an adapter's port: those for which the switch at the other end
    /// of its cable has ports. An adapter at the other end receives everything; then these are all multicast LIDs that the
    /// configuration allows a switch.
    pub fn groups_from(&self, from: PortId) -> Vec<Lid> {
        let Some(peer) = self.index(from).and_then(|at| self.ports[at].peer) else {
            return Vec::new();
        };
        match &self.node_of(peer).switch {
            Some(switch) => switch.multicast_table().into_iter().map(|(mlid, _)| mlid).collect(),
            None => {
                let first = Lid::FIRST_MULTICAST.0;
                let all = first..first + self.config.multicast_fdb_cap.min(0x3fff);
                all.map(Lid).collect()
            }
        }
    }
}

/// Splits packets into those that have not entered before, by service level if their keys differ, and those that have.
fn first_time<'a>(entered: &mut Entered, met: Met<'a>) -> (Vec<Met<'a>>, Vec<Kinds>) {
    let (mut parts, mut again): (Vec<Met<'a>>, Vec<Kinds>) = Default::default();
    for (sl, there) in entered.iter_mut().enumerate().filter(|(sl, _)| met.sls >> sl & 1 != 0) {
        let (new, old) = (met.pkeys & !*there, met.pkeys & *there);
        *there |= new;
        match parts.iter_mut().find(|part| part.pkeys == new) {
            _ if new == 0 => {}
            Some(part) => part.sls |= 1 << sl,
            None => parts.push(Met { sls: 1 << sl, pkeys: new, ..met }),
        }
        match again.iter_mut().find(|part| part.pkeys == old) {
            _ if old == 0 => {}
            Some(part) => part.sls |= 1 << sl,
            None => again.push(Kinds { sls: 1 << sl, pkeys: old, ..met.kinds() }),
        }
    }
    (parts, again)
}
