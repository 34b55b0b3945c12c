//! A host's route table: memory that the host maps or, for a host of another machine, updates for its bridge.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdmux_link::routes::{
    OwnPort, Peer, PeerId, Route, RouteError, RouteId, RouteTable, RouteView, Way,
};
use rdmux_wire::Lid;

use crate::bridge::Machine;
use crate::proto::{Entry, MAX_MESSAGE, TableUpdate};

/// The location of a host on another machine.
#[derive(Clone, Debug)]
pub struct Place {
    /// The machine.
    pub(super) machine: Arc<Machine>,
    /// The number of the bridge's connection for the host.
    pub(super) connection: u64,
}

/// A host's table.
#[derive(Debug)]
pub(super) struct Table {
    table: RouteTable,
    far: Option<Far>,
}

/// Changes that have not been sent to the bridge of another machine yet.
#[derive(Debug)]
struct Far {
    place: Place,
    view: RouteView,
    entries: Vec<Entry>,
}

impl Table {
    /// Makes a table on the fabric with this number. Returns the table, and its descriptor for a host of this
    /// machine.
    ///
    /// # Errors
    /// Errors of memory and descriptors.
    pub(super) fn create(fabric: u64, place: Option<Place>) -> io::Result<(Self, Option<OwnedFd>)> {
        let table = RouteTable::of_fabric(fabric)?;
        let Some(place) = place else {
            let fd = table.fd().try_clone()?;
            return Ok((Self { table, far: None }, Some(fd)));
        };
        let view = RouteView::map(table.fd())?;
        let far = Far { place, view, entries: Vec::new() };
        Ok((Self { table, far: Some(far) }, None))
    }

    /// Returns the host's location, if it is on another machine.
    pub(super) fn place(&self) -> Option<&Place> {
        self.far.as_ref().map(|far| &far.place)
    }

    pub(super) fn set_own(&mut self, port: &OwnPort) -> Result<(), RouteError> {
        if let Some(far) = self.far.as_mut().filter(|far| far.view.own() != *port) {
            far.entries.push(Entry::own(port));
        }
        self.table.set_own(port)
    }

    pub(super) fn set_peer(&mut self, id: PeerId, peer: Option<&Peer>) -> Result<(), RouteError> {
        if let Some(far) = self.far.as_mut().filter(|far| far.view.peer(id).as_ref() != peer) {
            far.entries.push(Entry::peer(id, peer));
        }
        self.table.set_peer(id, peer)
    }

    pub(super) fn set_route(&mut self, dlid: Lid, route: Route) -> Result<(), RouteError> {
        if let Some(far) = self.far.as_mut().filter(|far| far.view.route(dlid) != route) {
            far.entries.push(Entry::route(dlid, &route));
        }
        self.table.set_route(dlid, route)
    }

    pub(super) fn set_group_route(
        &mut self,
        mlid: Lid,
        id: RouteId,
        ways: &[Way],
    ) -> Result<(), RouteError> {
        if let Some(far) = &mut self.far {
            let mut before = Vec::new();
            let is_same = far.view.group(mlid, &mut before) == id && before == ways;
            if !is_same {
                far.entries.extend(Entry::group(mlid, id, ways));
            }
        }
        self.table.set_group_route(mlid, id, ways)
    }

    /// Publishes the changes.
    pub(super) fn publish(&mut self) {
        self.table.publish();
        if let Some(far) = self.far.as_mut().filter(|far| !far.entries.is_empty()) {
            far.entries.push(Entry::Publish);
        }
    }

    /// Returns the updates for the bridge, in messages that fit, with the host's connection, but without update
    /// numbers.
    pub(super) fn take_updates(&mut self) -> Vec<TableUpdate> {
        const MOST: usize = MAX_MESSAGE * 3 / 4;
        let Some(far) = self.far.as_mut().filter(|far| !far.entries.is_empty()) else {
            return Vec::new();
        };
        let connection = far.place.connection;
        let update = |entries| TableUpdate { connection, entries, sequence: None };
        let (mut updates, mut entries, mut size) = (Vec::new(), Vec::new(), 0);
        for entry in far.entries.drain(..) {
            if size + entry.size() > MOST {
                updates.push(update(std::mem::take(&mut entries)));
                size = 0;
            }
            size += entry.size();
            entries.push(entry);
        }
        updates.push(update(entries));
        updates
    }
}

#[cfg(test)]
mod tests {
    use rdmux_wire::Mtu;

    use super::*;
    use crate::bridge::Machines;

    #[test]
    fn table_updates_for_a_bridge_contain_only_changes_and_fit_the_message_size() {
        let machine = Machines::for_tests();
        let place = Place { machine, connection: 7 };
        let (mut table, fd) = Table::create(7, Some(place)).unwrap();
        assert!(fd.is_none() && table.take_updates().is_empty());
        let way = |n: u16| {
            let peer = PeerId::new(1 + n % 4000).unwrap();
            let (sls, pkeys, back) = (u16::MAX, u128::MAX, u128::MAX);
            Way { peer, hops: 3, mtu: Mtu::M4096, rate: 3, sls, pkeys, back, answered: back }
        };
        let ways: Vec<_> = (0..4000).map(way).collect();
        for round in 0..2 {
            table.set_group_route(Lid(0xc001), RouteId(1), &ways).unwrap();
            for lid in 1..3000 {
                let route = Route { id: RouteId(lid.into()), way: Some(way(lid)) };
                table.set_route(Lid(lid), route).unwrap();
            }
            table.set_own(&OwnPort { active: true, ..OwnPort::default() }).unwrap();
            table.publish();
            let updates = table.take_updates();
            assert_eq!(updates.is_empty(), round == 1, "the second time nothing is new");
            for update in &updates {
                assert!(update.connection == 7 && update.sequence.is_none());
                let bytes = postcard::to_stdvec(update).unwrap();
                assert!(bytes.len() <= MAX_MESSAGE, "{}", bytes.len());
            }
            let entries: usize = updates.iter().map(|update| update.entries.len()).sum();
            assert_eq!(entries, if round == 0 { 8 + 2999 + 2 } else { 0 });
        }
    }
}
