//! Troubles of the fabric: cables, switches, managers, P_Keys, groups and hosts' attachment.

use rand::Rng;
use rand::seq::{IndexedMutRandom, IndexedRandom};
use rdmux_subnet::topology::LinkRate;
use rdmux_subnet::{NodeId, PortId};

use super::rogue::Undo;
use super::world::World;

impl World {
    /// Causes a trouble.
    pub(super) fn trouble(&mut self) -> Result<(), String> {
        self.stats.troubles += 1;
        match self.rng.random_range(0..16) {
            0 | 1 => self.flap(),
            2 => self.swap_cables(),
            3 | 4 => self.move_host(),
            5 => self.reset_a_switch(),
            6 | 7 => self.take_keys(),
            8 => self.wrong_routes(),
            9 => self.wrong_tree(),
            10 | 11 => self.wrong_port(),
            12 => self.other_lid(),
            13 => {
                let host = self.rng.random_range(0..self.hosts.len());
                if self.hosts[host].attached {
                    self.trace(format_args!("host {host} loses the fabric"));
                    self.detach(host);
                    self.undo_later(Undo::Attach(host));
                }
            }
            14 => self.change_group(),
            _ => self.trouble_managers(),
        }
        Ok(())
    }

    /// Returns a port with a cable, preferably a host's.
    fn cabled_port(&mut self) -> Option<PortId> {
        let ports = self.subnet.ports().map(|view| view.id());
        let cabled: Vec<PortId> = ports.filter(|port| self.subnet.peer(*port).is_some()).collect();
        let of_hosts = self.hosts.iter().map(|host| host.port);
        let of_hosts: Vec<PortId> = of_hosts.filter(|port| cabled.contains(port)).collect();
        let from = if self.rng.random_bool(0.4) { &of_hosts } else { &cabled };
        from.choose(&mut self.rng).copied()
    }

    fn flap(&mut self) {
        let Some(port) = self.cabled_port() else { return };
        self.trace(format_args!("the cable of {port} fails"));
        let now = self.agenda.now();
        let _ = self.subnet.set_cable(now, port, false, &mut self.inbox);
        self.undo_later(Undo::Cable(port));
    }

    /// Swaps the ends of two cables.
    fn swap_cables(&mut self) {
        let (Some(a), Some(b)) = (self.cabled_port(), self.cabled_port()) else { return };
        let (Some(to_a), Some(to_b)) = (self.subnet.peer(a), self.subnet.peer(b)) else { return };
        if a == b || to_a == b {
            return;
        }
        self.trace(format_args!("{a} and {b} change places"));
        let now = self.agenda.now();
        for end in [a, b] {
            let _ = self.subnet.unplug(now, end, &mut self.inbox);
        }
        for (end, far) in [(a, to_b), (b, to_a)] {
            let _ = self.subnet.plug(now, end, far, LinkRate::DEFAULT, &mut self.inbox);
        }
    }

    /// Moves a host's cable to a free port of a switch, if there is one.
    fn move_host(&mut self) {
        let host = self.rng.random_range(0..self.hosts.len());
        let port = self.hosts[host].port;
        let is_switch = |node: NodeId| self.subnet.port(PortId::new(node, 0)).is_some();
        let free: Vec<PortId> = self
            .subnet
            .ports()
            .map(|view| view.id())
            .filter(|p| p.number != 0 && is_switch(p.node) && self.subnet.peer(*p).is_none())
            .collect();
        let Some(&to) = free.choose(&mut self.rng) else { return self.swap_cables() };
        self.trace(format_args!("host {host} moves to {to}"));
        let now = self.agenda.now();
        let _ = self.subnet.unplug(now, port, &mut self.inbox);
        let _ = self.subnet.plug(now, port, to, LinkRate::DEFAULT, &mut self.inbox);
    }

    fn reset_a_switch(&mut self) {
        let Some(node) = self.some_switch() else { return };
        self.trace(format_args!("{node} is reset"));
        let now = self.agenda.now();
        let _ = self.subnet.reset_switch(now, node, &mut self.inbox);
        // The driver of a manager on this port sets the bit again.
        for seat in self.seats.iter().filter(|s| s.port.node == node && s.manager.is_some()) {
            self.subnet.set_is_sm(now, seat.port, true, &mut self.inbox);
        }
    }

    /// Removes a host from a partition, or changes its membership.
    fn take_keys(&mut self) {
        let host = self.rng.random_range(0..self.hosts.len());
        let guid = self.view(host).guid();
        let Some(keys) = self.keys.0.get_mut(&guid) else { return };
        let old = keys.clone();
        match self.rng.random_range(0..3) {
            0 => keys.clear(),
            1 => {
                let at = self.rng.random_range(0..keys.len().max(1));
                if let Some(key) = keys.get_mut(at) {
                    key.0 ^= 0x8000;
                }
            }
            _ => {
                keys.pop();
            }
        }
        self.trace(format_args!("host {host} loses P_Keys: it had {old:?}"));
        self.tell_managers();
        // Of two overlapping changes, undoing the first would restore too little.
        if old.len() > 1 || self.rng.random_bool(0.8) {
            self.undo_later(Undo::Keys(host, old));
        }
    }

    /// Makes a host join or leave a group.
    fn change_group(&mut self) {
        let hosts = self.hosts.len();
        let Some(group) = self.groups.choose_mut(&mut self.rng) else { return };
        let host = self.rng.random_range(0..hosts);
        let was = group.members.len();
        group.members.retain(|member| *member != host);
        if group.members.len() == was {
            group.members.push(host);
        }
        let members = group.members.clone();
        self.trace(format_args!("a group has the hosts {members:?} now"));
        self.tell_managers();
    }

    fn trouble_managers(&mut self) {
        let index = self.rng.random_range(0..self.seats.len());
        let now = self.agenda.now();
        if self.rng.random_bool(0.5) {
            self.trace(format_args!("manager {index} sweeps"));
            return self.with(index, |manager, _| manager.sweep(now));
        }
        self.trace(format_args!("manager {index} dies"));
        self.stop(index);
        self.undo_later(Undo::Manager(index));
    }
}
