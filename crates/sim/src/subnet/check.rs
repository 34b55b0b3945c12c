//! The checks when nothing has happened for some time.

use std::collections::{BTreeMap, BTreeSet};

use rdmux_subnet::manager::Manager;
use rdmux_subnet::{NodeId, PortId};
use rdmux_wire::Lid;
use rdmux_wire::sm::{PortState, SmState};

use super::world::{GROUPS, World, is_end};

type Checked = Result<(), String>;

impl World {
    /// Checks each part of the subnet with a manager.
    pub(super) fn check(&mut self) -> Checked {
        let mut done = BTreeSet::new();
        for index in 0..self.seats.len() {
            let at = self.seats[index].port;
            if self.seats[index].manager.is_none() || done.contains(&at) {
                continue;
            }
            let part = self.part(at);
            done.extend(part.iter().copied());
            self.check_part(&part)?;
        }
        Ok(())
    }

    pub(super) fn is_switch(&self, node: NodeId) -> bool {
        self.subnet.port(PortId::new(node, 0)).is_some()
    }

    /// Returns the port at the other end of a link.
    pub(super) fn far(&self, port: PortId) -> Option<PortId> {
        self.subnet.peer(port).filter(|_| !self.subnet.is_cable_down(port))
    }

    /// Returns whether a node lies in a way that it cannot be managed.
    fn is_lost(&self, node: NodeId) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.is_lost() && liar.node == node)
    }

    /// Returns the end ports connected with this one. An adapter does not connect its ports.
    pub(super) fn part(&self, from: PortId) -> BTreeSet<PortId> {
        let (mut ends, mut next) = (BTreeSet::from([from]), vec![from]);
        while let Some(end) = next.pop() {
            let numbers = if end.number == 0 { 1..=u8::MAX } else { end.number..=end.number };
            for number in numbers {
                let port = PortId::new(end.node, number);
                if self.subnet.port(port).is_none() {
                    break;
                }
                let Some(far) = self.far(port).filter(|far| !self.is_lost(far.node)) else {
                    continue;
                };
                let far = if self.is_switch(far.node) { PortId::new(far.node, 0) } else { far };
                if ends.insert(far) {
                    next.push(far);
                }
            }
        }
        ends
    }

    fn check_part(&mut self, part: &BTreeSet<PortId>) -> Checked {
        let here = |port: &PortId| part.contains(port);
        let managers = self.seats.iter().filter(|seat| here(&seat.port));
        let states: Vec<SmState> =
            managers.filter_map(|seat| Some(seat.manager.as_ref()?.status().state)).collect();
        let masters = states.iter().filter(|state| **state == SmState::MASTER).count();
        if masters != 1 {
            return Err(format!("managers that reach each other are {states:?}"));
        }
        let master = self.seats.iter().filter(|seat| here(&seat.port));
        let master = master.filter_map(|seat| seat.manager.as_ref());
        let master = master.into_iter().find(|m| m.status().state == SmState::MASTER);
        let Some(master) = master else { return Ok(()) };
        self.check_ports(part, master)?;
        match self.programs.is_empty() {
            true => self.check_groups(part)?,
            false => self.check_administration(part)?,
        }
        self.stats.pairs += self.check_routes(part)?;
        Ok(())
    }

    fn check_ports(&self, part: &BTreeSet<PortId>, master: &Manager) -> Checked {
        if let Some(last) = master.status().last
            && (last.problem_count > last.problems.len() as u64
                || last.problems.iter().any(|p| !self.is_problem_of_liar(p.node, p.port)))
        {
            return Err(format!("the last sweep had problems: {:?}", last.problems));
        }
        let mut owners: BTreeMap<Lid, PortId> = BTreeMap::new();
        for view in self.subnet.ports() {
            let id = view.id();
            let end = if self.is_switch(id.node) { PortId::new(id.node, 0) } else { id };
            if !part.contains(&end) {
                continue;
            }
            let far = self.far(id).filter(|far| !self.is_lost(far.node));
            if far.is_some() && view.state() != PortState::ACTIVE {
                return Err(format!("{id} is in state {}", view.state()));
            }
            if !is_end(&self.subnet, id) {
                continue;
            }
            if view.lid() == Lid::NONE {
                return Err(format!("{id} has no LID"));
            }
            for lid in (view.lid().0..view.lid().0 + (1 << view.lmc())).map(Lid) {
                if let Some(other) = owners.insert(lid, id) {
                    return Err(format!("{id} and {other} have LID {lid}"));
                }
                let model = master.model();
                let known = model.by_lid(lid).and_then(|port| model.port(port));
                if known.is_none_or(|port| port.guid != view.guid()) {
                    return Err(format!("the master does not know that {id} has LID {lid}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that every end reaches every LID. Returns the number of pairs.
    fn check_routes(&self, part: &BTreeSet<PortId>) -> Result<u64, String> {
        let mut pairs = 0;
        for &to in part {
            let Some(view) = self.subnet.port(to) else { continue };
            for lid in (view.lid().0..view.lid().0 + (1 << view.lmc())).map(Lid) {
                for &from in part.iter().filter(|&&from| from != to) {
                    pairs += 1;
                    if !self.reaches(from, to, lid) {
                        return Err(format!("{from} does not reach {to} by LID {lid}"));
                    }
                }
            }
        }
        Ok(pairs)
    }

    /// Returns whether packets to a LID get from one port to another.
    pub(super) fn reaches(&self, from: PortId, to: PortId, lid: Lid) -> bool {
        let mut at = if from.number == 0 { Some(from) } else { self.far(from) };
        for _ in 0..=self.subnet.node_count() {
            let Some(here) = at else { return false };
            if here == to || here.node == to.node && to.number == 0 {
                return true;
            }
            let routes = self.subnet.routes(here.node, lid);
            at = routes.first().and_then(|&port| self.far(PortId::new(here.node, port)));
        }
        false
    }

    /// Checks that members of the groups of a run without programs reach each other once.
    fn check_groups(&self, part: &BTreeSet<PortId>) -> Checked {
        for (mlid, members) in GROUPS.into_iter().zip(&self.members) {
            let members: BTreeMap<PortId, bool> =
                members.intersection(part).map(|&member| (member, true)).collect();
            self.check_group(part, mlid, &members)?;
        }
        Ok(())
    }

    /// Checks that no switch has ports of groups other than these.
    pub(super) fn check_no_group(&self, part: &BTreeSet<PortId>, used: &BTreeSet<Lid>) -> Checked {
        for switch in part.iter().filter(|end| end.number == 0) {
            for (mlid, ports) in self.subnet.multicast_table(switch.node) {
                if !used.contains(&mlid) && !ports.is_empty() {
                    return Err(format!("{switch} sends packets to {mlid}, which nobody is in"));
                }
            }
        }
        Ok(())
    }

    /// Checks that packets of members reach all receiving members once, and no other port. `members` tells whether each receives.
    pub(super) fn check_group(
        &self,
        part: &BTreeSet<PortId>,
        mlid: Lid,
        members: &BTreeMap<PortId, bool>,
    ) -> Checked {
        // Without a switch there are no tables: an adapter receives everything that its peer sends.
        let has_switch = |end: &&PortId| {
            end.number == 0 || self.far(**end).is_some_and(|far| self.is_switch(far.node))
        };
        debug_assert!(members.keys().all(|member| part.contains(member)));
        for &from in members.keys().filter(has_switch) {
            let receivers = members.iter().filter(|(port, receives)| **receives && **port != from);
            let receivers: BTreeSet<PortId> = receivers.map(|(&port, _)| port).collect();
            let reached = self.reached(mlid, from)?;
            if reached != receivers {
                return Err(format!(
                    "group {mlid} of {members:?}: {from} reaches {reached:?}, not {receivers:?}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the other ports that get a port's packet to a group.
    fn reached(&self, mlid: Lid, from: PortId) -> Result<BTreeSet<PortId>, String> {
        let mut reached = BTreeSet::from([from]);
        let mut coming = match from.number {
            0 => self.leaving(from.node, 0, mlid),
            _ => vec![from],
        };
        let mut steps = 0;
        while let Some(egress) = coming.pop() {
            steps += 1;
            let at = if egress.number == 0 { Some(egress) } else { self.far(egress) };
            let Some(at) = at else { continue };
            if steps > 10_000 {
                return Err(format!("packets to group {mlid} from {from} run in a circle"));
            }
            if egress.number != 0 && self.is_switch(at.node) {
                coming.extend(self.leaving(at.node, at.number, mlid));
            } else if !reached.insert(at) {
                return Err(format!("{at} gets packets to {mlid} from {from} twice"));
            }
        }
        reached.remove(&from);
        Ok(reached)
    }

    /// Returns the ports by which a switch forwards packets to a group that enter by a port.
    fn leaving(&self, node: NodeId, ingress: u8, mlid: Lid) -> Vec<PortId> {
        let ports = self.subnet.routes(node, mlid).into_iter().filter(|port| *port != ingress);
        ports.map(|number| PortId::new(node, number)).collect()
    }
}
