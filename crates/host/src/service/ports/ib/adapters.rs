//! The ports of the host's adapter, one for each fabric that the host was assigned.

use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;

use rdmux_cm::Time;
use rdmux_fabric::FabricName;
use rdmux_fabric::proto::HostPort;
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::port::{self, Port, PortState};
use rdmux_wire::Guid;

use super::adapter::{Adapter, own_guid};
use super::greetings::Greeting;
use crate::proto::{FabricStatus, GroupStatus};

/// The ports of the host's adapter.
#[derive(Debug)]
pub(in crate::service) struct Adapters {
    first: Adapter,
    others: Vec<Adapter>,
    /// Clients whose greetings wait until it is decided whether the host has an adapter.
    pub(super) waiting: Vec<Greeting>,
    /// The inotify descriptor for opens of the files that subnet managers hold.
    pub(super) issm: Option<OwnedFd>,
}

/// The index of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::service) struct PortAt(u8);

impl PortAt {
    /// The first port.
    pub(in crate::service) const FIRST: Self = Self(0);

    /// Returns the port's number.
    pub(in crate::service) fn number(self) -> u8 {
        self.0 + 1
    }
}

impl Adapters {
    /// Makes one port for each of these fabrics, in order. None is attached yet.
    pub(in crate::service) fn new(fabrics: &[FabricName]) -> Self {
        let of = u8::try_from(fabrics.len()).unwrap_or(port::MAX_PORTS).min(port::MAX_PORTS);
        let mut all = (1..=of).zip(fabrics).map(|(number, fabric)| {
            let here = (1..=of).zip(fabrics).filter(|(_, other)| *other == fabric);
            let here = here.map(|(number, _)| number).collect();
            Adapter::new(fabric.clone(), HostPort { number, of, here })
        });
        let only = || Adapter::new(FabricName::default(), HostPort::only());
        let first = all.next().unwrap_or_else(only);
        Self { first, others: all.collect(), waiting: Vec::new(), issm: None }
    }

    /// Returns all ports.
    pub(in crate::service) fn every(&self) -> impl Iterator<Item = PortAt> + use<> {
        let last = u8::try_from(self.others.len()).unwrap_or(u8::MAX - 1);
        (0..=last).map(PortAt)
    }

    /// Returns the port with this number, if any.
    pub(in crate::service) fn at(&self, number: u8) -> Option<PortAt> {
        self.every().find(|at| at.number() == number)
    }

    pub(in crate::service) fn iter(&self) -> impl Iterator<Item = &Adapter> {
        std::iter::once(&self.first).chain(&self.others)
    }
    pub(in crate::service) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Adapter> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// Returns the ports as processes see them. `host` is the GUID of the host's node.
    pub(super) fn ports(&self, kind: DeviceKind, host: Guid) -> Vec<Port> {
        self.iter().map(|adapter| adapter.port(kind, host)).collect()
    }

    /// Returns the GUID of the node, which has all ports.
    pub(super) fn node_guid(&self, host: Guid) -> Guid {
        self.iter().find_map(Adapter::known_guid).unwrap_or(own_guid(host))
    }

    /// Returns a fabric's description of the adapter, if it ever was on one.
    pub(super) fn described(&self) -> Option<&port::Adapter> {
        self.iter().find_map(Adapter::described)
    }

    /// Returns whether a greeting to a fabric is unanswered, or a fabric has not confirmed yet where data arrives.
    pub(super) fn is_asked_for(&self) -> bool {
        self.iter().any(Adapter::is_asked_for)
    }

    /// Returns the status of each port.
    pub(in crate::service) fn status(&self) -> Vec<FabricStatus> {
        self.iter().map(Adapter::status).collect()
    }

    /// Returns the groups that ids are members of.
    pub(in crate::service) fn groups(&self) -> Vec<GroupStatus> {
        self.iter().flat_map(|adapter| adapter.groups.status()).collect()
    }

    /// Returns the ports in the order in which the host's IP addresses lead to them: active ones, then the others.
    pub(super) fn preferred(&self) -> Vec<PortAt> {
        let (mut active, others): (Vec<_>, Vec<_>) =
            self.every().partition(|at| self[*at].state() == PortState::Active);
        active.extend(others);
        active
    }

    /// Returns the port to which the host's addresses lead.
    pub(super) fn of_ip(&self) -> PortAt {
        self.preferred().first().copied().unwrap_or(PortAt::FIRST)
    }

    /// Returns whether a port is active.
    pub(in crate::service) fn has_link(&self) -> bool {
        self.iter().any(|adapter| adapter.state() == PortState::Active)
    }

    /// Returns the ports that resolve other hosts' addresses and answer for this one's: one for each fabric, so that no two answers
    /// contradict each other. It is the first active one, or else the first with a link.
    pub(super) fn speakers(&self) -> Vec<PortAt> {
        let mut speakers = Vec::<PortAt>::new();
        for at in self.preferred() {
            let adapter = &self[at];
            let is_other = |other: &PortAt| self[*other].fabric() != adapter.fabric();
            if adapter.state() != PortState::Down && speakers.iter().all(is_other) {
                speakers.push(at);
            }
        }
        speakers
    }

    /// Returns when the next action is due.
    pub(in crate::service) fn poll_timeout(&self) -> Option<Time> {
        self.iter().filter_map(Adapter::poll_timeout).min()
    }
}

impl Index<PortAt> for Adapters {
    type Output = Adapter;

    fn index(&self, PortAt(at): PortAt) -> &Adapter {
        at.checked_sub(1).map_or(&self.first, |other| &self.others[usize::from(other)])
    }
}

impl IndexMut<PortAt> for Adapters {
    fn index_mut(&mut self, PortAt(at): PortAt) -> &mut Adapter {
        match at.checked_sub(1) {
            None => &mut self.first,
            Some(other) => &mut self.others[usize::from(other)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(names: &[&str]) -> Vec<HostPort> {
        let names: Vec<_> = names.iter().map(|name| FabricName::new(name).unwrap()).collect();
        Adapters::new(&names).iter().map(|adapter| adapter.wanted.clone()).collect()
    }

    #[test]
    fn each_port_lists_the_ports_of_its_device_on_the_same_fabric() {
        let port = |number, of, here: &[u8]| HostPort { number, of, here: here.to_vec() };
        assert_eq!(ports(&["a"]), [port(1, 1, &[1])]);
        assert_eq!(ports(&["a", "a"]), [port(1, 2, &[1, 2]), port(2, 2, &[1, 2])]);
        assert_eq!(ports(&["a", "b"]), [port(1, 2, &[1]), port(2, 2, &[2])]);
        assert_eq!(ports(&[]), [HostPort::only()]);
        assert_eq!(ports(&["a"; 3]).len(), 2, "a device has no more");
    }

    #[test]
    fn ports_are_found_by_their_numbers() {
        let adapters = Adapters::new(&[FabricName::default(), FabricName::default()]);
        let numbers: Vec<_> = adapters.every().map(|at| adapters[at].wanted.number).collect();
        assert_eq!(numbers, [1, 2]);
        assert_eq!((adapters.at(0), adapters.at(3)), (None, None));
    }
}
