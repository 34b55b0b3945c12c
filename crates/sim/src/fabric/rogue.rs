//! Changes that no manager makes: tables and ports that are set behind its back, and set back later.

use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use rdmux_subnet::{MadPacket, NodeId, PortId};
use rdmux_wire::Lid;
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{
    Attribute, LinearForwardingTable, MulticastForwardingTable, NO_ROUTE, PhysState, PkeyTable,
    PortInfo, PortState, SlToVlTable, VlCap,
};
use rdmux_wire::smp::Smp;

use super::world::{Event, World};

/// The end of a trouble.
#[derive(Debug)]
pub(super) enum Undo {
    /// A Set of an attribute to its former value.
    Set { end: PortId, attr_id: u16, modifier: u32, attribute: Attribute },
    /// A cable works again.
    Cable(PortId),
    /// A host gets its P_Keys back.
    Keys(usize, Vec<rdmux_wire::Pkey>),
    /// A host attaches again.
    Attach(usize),
    /// A manager restarts.
    Manager(usize),
}

impl World {
    /// Sets an attribute at the port whose agent is addressed, without the manager's knowledge.
    pub(super) fn set(&mut self, end: PortId, attr_id: u16, modifier: u32, attribute: &Attribute) {
        let mut smp = Smp::directed(Method::SET, attr_id, modifier, &[]);
        smp.set_attribute(attribute);
        self.send_smp(end, &smp);
    }

    fn send_smp(&mut self, end: PortId, smp: &Smp) {
        let mad = Box::new(smp.to_bytes());
        let packet = MadPacket::smp(Lid::NONE, Lid::PERMISSIVE, 0, mad);
        let now = self.agenda.now();
        self.subnet.send(now, end, packet, &mut self.inbox);
    }

    /// Sets an attribute for some time.
    fn set_for_a_while(
        &mut self,
        end: PortId,
        attr_id: u16,
        modifier: u32,
        new: &Attribute,
        old: Attribute,
    ) {
        self.set(end, attr_id, modifier, new);
        self.undo_later(Undo::Set { end, attr_id, modifier, attribute: old });
    }

    /// Schedules the end of a change.
    pub(super) fn undo_later(&mut self, undo: Undo) {
        let most = *[1, 10, 100, 1000].choose(&mut self.rng).expect("four");
        let lasts = Duration::from_millis(most).mul_f64(self.rng.random());
        self.agenda.after(lasts, Event::Undo(Box::new(undo)));
    }

    pub(super) fn undo(&mut self, undo: Undo) -> Result<(), String> {
        let now = self.agenda.now();
        self.trace(format_args!("undone: {undo:?}"));
        match undo {
            Undo::Set { end, attr_id, modifier, attribute } => {
                self.set(end, attr_id, modifier, &attribute);
            }
            Undo::Cable(port) => {
                let _ = self.subnet.set_cable(now, port, true, &mut self.inbox);
            }
            Undo::Keys(host, keys) => {
                let guid = self.view(host).guid();
                self.keys.0.insert(guid, keys);
                self.tell_managers();
            }
            Undo::Attach(host) if !self.hosts[host].attached => self.attach(host)?,
            Undo::Manager(index) if self.seats[index].manager.is_none() => self.start(index),
            Undo::Attach(_) | Undo::Manager(_) => {}
        }
        Ok(())
    }

    /// Returns a switch of the subnet, if there is one.
    pub(super) fn some_switch(&mut self) -> Option<NodeId> {
        let switches: Vec<NodeId> =
            self.subnet.ports().map(|v| v.id()).filter(|p| p.number == 0).map(|p| p.node).collect();
        switches.choose(&mut self.rng).copied()
    }

    /// Makes routes of a switch to some hosts wrong.
    pub(super) fn wrong_routes(&mut self) {
        let Some(node) = self.some_switch() else { return };
        let table = self.subnet.linear_table(node);
        let lids: Vec<Lid> = (0..self.hosts.len()).map(|host| self.view(host).lid()).collect();
        let Some(&lid) = lids.choose(&mut self.rng) else { return };
        let block = lid.0 / 64;
        let mut old = [NO_ROUTE; 64];
        for (port, lid) in old.iter_mut().zip(usize::from(block) * 64..) {
            *port = table.get(lid).copied().unwrap_or(NO_ROUTE);
        }
        let ports = u8::try_from(self.ports_of(node).len()).unwrap_or(1);
        let mut new = old;
        for lid in lids.iter().filter(|lid| lid.0 / 64 == block) {
            if self.rng.random_bool(0.6) {
                let port = self.rng.random_range(0..=ports);
                new[usize::from(lid.0 % 64)] = if port == ports { NO_ROUTE } else { port };
            }
        }
        self.trace(format_args!("routes of {node} to {lids:?} are wrong"));
        let (end, attr_id) = (PortId::new(node, 0), LinearForwardingTable::ATTR_ID);
        let [new, old] = [new, old].map(|ports| LinearForwardingTable { ports }.into());
        self.set_for_a_while(end, attr_id, block.into(), &new, old);
    }

    /// Changes the ports of a switch for a group, possibly with loops.
    pub(super) fn wrong_tree(&mut self) {
        let Some(node) = self.some_switch() else { return };
        let mlids: Vec<Lid> = self.groups.iter().map(|group| group.mlid).collect();
        let Some(mlid) = mlids.choose(&mut self.rng) else { return };
        let block = (mlid.0 - Lid::FIRST_MULTICAST.0) / 32;
        let mut old = [0; 32];
        for (lid, ports) in self.subnet.multicast_table(node) {
            let at = lid.0 - Lid::FIRST_MULTICAST.0;
            if at / 32 == block {
                let mask = ports.iter().filter(|port| **port < 16).fold(0, |m, port| m | 1 << port);
                old[usize::from(at % 32)] = mask;
            }
        }
        let mut new = old;
        new[usize::from((mlid.0 - Lid::FIRST_MULTICAST.0) % 32)] ^= self.rng.random::<u16>();
        self.trace(format_args!("{node} sends {mlid} to other ports"));
        let (end, attr_id) = (PortId::new(node, 0), MulticastForwardingTable::ATTR_ID);
        let [new, old] =
            [new, old].map(|port_masks| MulticastForwardingTable { port_masks }.into());
        self.set_for_a_while(end, attr_id, block.into(), &new, old);
    }

    /// Changes P_Keys, enforcement, lanes, MTU or state of any port.
    pub(super) fn wrong_port(&mut self) {
        let ports: Vec<PortId> = self.subnet.ports().map(|view| view.id()).collect();
        let Some(&port) = ports.choose(&mut self.rng) else { return };
        let zero = PortId { number: 0, ..port };
        let is_switch = self.subnet.port(zero).is_some();
        let end = if is_switch { zero } else { port };
        let Some(view) = self.subnet.port(port) else { return };
        let (old, keys) = (*view.info(), view.pkeys().to_vec());
        let number = u32::from(port.number);
        self.trace(format_args!("{port} is set by somebody"));
        match self.rng.random_range(0..3) {
            0 => {
                let table = |keys: &[rdmux_wire::Pkey]| {
                    let mut table = PkeyTable::default();
                    table.pkeys.iter_mut().zip(keys).for_each(|(slot, key)| *slot = *key);
                    table
                };
                let mut other = keys.clone();
                let first = 1.min(other.len());
                other.rotate_left(first);
                other.truncate(self.rng.random_range(0..=keys.len()));
                let modifier = if is_switch { number << 16 } else { 0 };
                let [new, old] = [other, keys].map(|keys| table(&keys).into());
                self.set_for_a_while(end, PkeyTable::ATTR_ID, modifier, &new, old);
            }
            1 => {
                let input = if is_switch { self.rng.random_range(0..8) } else { 0 };
                let modifier = if is_switch { input << 8 | number } else { 0 };
                let mut table = SlToVlTable::from_bytes(&[0; 8]);
                for vl in &mut table.vls {
                    vl.0 = self.rng.random_range(0..16);
                }
                let whole: SlToVlTable = {
                    let mut whole = table;
                    (0..).zip(&mut whole.vls).for_each(|(sl, vl)| vl.0 = sl % 8);
                    whole
                };
                let attr_id = SlToVlTable::ATTR_ID;
                self.set_for_a_while(end, attr_id, modifier, &table.into(), whole.into());
            }
            _ => {
                let (old, new) = (unchanged(old), self.other_port(unchanged(old)));
                let attr_id = PortInfo::ATTR_ID;
                self.set_for_a_while(end, attr_id, number, &new.into(), old.into());
            }
        }
    }

    fn other_port(&mut self, mut info: PortInfo) -> PortInfo {
        match self.rng.random_range(0..6) {
            0 => info.partition_enforcement_inbound ^= true,
            1 => info.partition_enforcement_outbound ^= true,
            2 => info.operational_vls = VlCap(self.rng.random_range(1..=4)),
            3 => info.neighbor_mtu = self.rng.random_range(1..=self.scenario.mtu.code()),
            4 => info.port_state = PortState::DOWN,
            _ => info.lmc = self.rng.random_range(0..=2),
        }
        info
    }

    /// Changes the LID of a host's port, as another manager would.
    pub(super) fn other_lid(&mut self) {
        let host = self.rng.random_range(0..self.hosts.len());
        let (port, view) = (self.hosts[host].port, self.view(host));
        let mut info = unchanged(*view.info());
        info.lid = Lid(self.rng.random_range(1..=120));
        self.trace(format_args!("host {host} has LID {} now", info.lid));
        self.set(port, PortInfo::ATTR_ID, port.number.into(), &info.into());
    }

    /// Returns the numbers of a node's ports.
    fn ports_of(&self, node: NodeId) -> Vec<u8> {
        self.subnet.ports().map(|v| v.id()).filter(|p| p.node == node).map(|p| p.number).collect()
    }
}

/// Returns a PortInfo for a Set that changes nothing.
fn unchanged(info: PortInfo) -> PortInfo {
    PortInfo { port_state: PortState(0), port_physical_state: PhysState(0), ..info }
}
