//! Hosts that have attached adapters: a connection for each port.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use rdmux_link::rows::RowReader;
use rdmux_runtime::closing::Foreign;
use rdmux_runtime::name::is_label;
use rdmux_runtime::socket;
use rdmux_subnet::topology::{LinkRate, Node, NodeKind, Speed, Width};
use rdmux_subnet::umad::Ports;
use rdmux_subnet::{NODE_REVISION, NodeId, OperateError, PortEvent, PortId};
use rdmux_wire::Guid;

use super::connection::{ConnectionId, Part};
use super::core::{Core, Ends, is_privileged};
use super::counted::Unread;
use super::counters::Count;
use super::facts::facts;
use super::nodes::Named;
use crate::proto::{AttachmentRequest, Described, Failure, HostPort, PortFacts, PortUpdate};

/// The rate of a cable that connects a host to a free port.
const CABLE: LinkRate = LinkRate { width: Width::X4, speed: Speed::Edr };

/// Maximum number of adapters with the same number of ports that are kept without cables after they were made for hosts
/// that are gone. Beyond that a new host gets one of these, with its own GUID.
const MOST_SPARE: usize = 64;

/// The attached ports and their connections.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    by_port: BTreeMap<PortId, ConnectionId>,
    /// The connections with updates to be sent.
    pending: BTreeSet<ConnectionId>,
}

impl Attachments {
    /// Returns the connection that has attached a port.
    pub(super) fn holder(&self, port: PortId) -> Option<ConnectionId> {
        self.by_port.get(&port).copied()
    }

    /// Returns a connection that has attached a port of a node.
    pub(super) fn holder_of_any(&self, node: NodeId) -> Option<ConnectionId> {
        let ports = PortId { node, number: 0 }..=PortId { node, number: u8::MAX };
        self.by_port.range(ports).next().map(|(_, &id)| id)
    }

    /// Returns all attachments, in the order of the nodes and their ports.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PortId, ConnectionId)> {
        self.by_port.iter().map(|(&port, &id)| (port, id))
    }
}

impl Core {
    /// Attaches a host to a port of an adapter.
    pub(super) fn attach(
        &mut self,
        id: ConnectionId,
        host: &str,
        guid: Guid,
        wanted: &HostPort,
    ) -> Result<(), Ends> {
        let Some(user) = self.connections.get(id).map(|c| c.uid) else { return Ok(()) };
        let node = match self.adapter_for((host, guid), user, wanted) {
            Ok(node) => node,
            Err(failure) => return self.welcome::<Described>(id, Err(failure)),
        };
        let port = PortId { node, number: wanted.number };
        self.attachments.by_port.insert(port, id);
        let part = Part::Attachment { host: host.to_owned(), guid, port, pending: Vec::new() };
        self.become_part(id, part);
        self.serve_port(port);
        if let Some(named) = self.nodes.get(node) {
            self.store.set_adapter(guid, named.guid, user);
        }
        self.read_counts();
        let place = self.connections.get(id).and_then(|c| c.place.clone());
        match self.describe(port) {
            Some(described) => {
                let is_joined = place.is_some() || self.listens.is_some();
                let routes = self.published.open(port, place);
                self.welcome_with(id, Ok(Described { is_joined, ..described }), routes)
            }
            None => Err(Ends::Closed),
        }
    }

    /// Releases a port of a host's adapter.
    pub(super) fn detach(&mut self, id: ConnectionId, port: PortId) {
        self.attachments.by_port.remove(&port);
        self.attachments.pending.remove(&id);
        self.end_captures_of_others(port);
        self.published.close(self.world.subnet_mut(), port);
        self.serve_port(port);
    }

    /// Chooses the adapter for a user's host.
    fn adapter_for(
        &mut self,
        (host, guid): (&str, Guid),
        user: u32,
        wanted: &HostPort,
    ) -> Result<NodeId, Failure> {
        if !is_label(host) || guid == Guid(0) || !wanted.is_sound() {
            return Err(Failure::new(
                libc::EINVAL,
                "a host needs a valid name, a GUID that is not 0 and a valid port",
            ));
        }
        if self.setup.simulate {
            let why = "all adapters of the fabric are simulated: bring it up without `--simulate`";
            return Err(Failure::new(libc::EPERM, why));
        }
        let held = self.ports_of_host(guid);
        if let Some((other, ..)) =
            held.iter().find(|(other, port, _)| *other != host || port.number == wanted.number)
        {
            let why = format!(
                "host \"{other}\" with the GUID {guid} is attached already: `rdmux host up {host} --guid GUID` gives \
                 this host another one"
            );
            return Err(Failure::new(libc::EEXIST, why));
        }
        let held = held.first().map(|(_, port, holder)| (port.node, *holder));
        let had = self.store.adapter_of(guid).and_then(|adapter| self.store.user_of(adapter));
        let named = self.nodes.by_guid(guid).and_then(|node| self.nodes.get(node));
        let of_guid = named.and_then(|named| self.store.user_of(named.guid));
        let users = [held.map(|(_, holder)| holder), had, of_guid];
        if let Some(other) = users.into_iter().flatten().find(|other| *other != user)
            && !is_privileged(user)
        {
            let why = format!(
                "the adapter of the host with the GUID {guid} is that of user {other}, not of user {user}: `rdmux host up \
                 {host} --guid GUID` gives this host another one"
            );
            return Err(Failure::new(libc::EPERM, why));
        }
        if let Some((node, _)) = held {
            return self.with_port(node, wanted);
        }
        if let Some(node) = self.free_adapter((host, guid), user, wanted) {
            return Ok(self.with_cables(node, guid, wanted));
        }
        // The owner and root can have one of another user's host rather than none.
        if is_privileged(user)
            && !self.has_places(guid, wanted)
            && let Some(node) = self.plugged_adapter(guid, wanted)
        {
            return Ok(self.with_cables(node, guid, wanted));
        }
        if self.nodes.by_guid(guid).is_none() {
            return self.new_adapter(host, guid, guid, wanted);
        }
        // The one that was made for the host is attached by another host, or has too few ports.
        if self.store.is_made(guid) && wanted.is_all_here() {
            return self.new_adapter(host, guid, self.free_guid(guid, wanted.of), wanted);
        }
        let why = format!(
            "another node has the GUID {guid}: `rdmux host up {host} --guid GUID` gives this host another one"
        );
        Err(Failure::new(libc::EEXIST, why))
    }

    /// Finds a GUID that no node has, and after which as many GUIDs as ports are free. The steps leave room for the ports of other
    /// nodes.
    fn free_guid(&self, near: Guid, ports: u8) -> Guid {
        const STEP: u64 = 1 << 16;
        let is_free = |guid: &Guid| {
            (0..=ports)
                .all(|port| self.nodes.by_guid(Guid(guid.0.wrapping_add(port.into()))).is_none())
        };
        let steps = std::iter::successors(Some(near), |guid| Some(Guid(guid.0.wrapping_add(STEP))));
        // There are more steps than nodes.
        steps.skip(1).find(is_free).unwrap_or(near)
    }

    /// Returns the ports attached by hosts with this GUID, with the hosts' names and users.
    fn ports_of_host(&self, guid: Guid) -> Vec<(&str, PortId, u32)> {
        let held = self.connections.iter().filter_map(|(_, c)| match &c.part {
            Part::Attachment { host, guid: g, port, .. } if *g == guid => {
                Some((host.as_str(), *port, c.uid))
            }
            _ => None,
        });
        held.collect()
    }

    /// Checks that an adapter has this port, for a host that has another port of the adapter. Returns the adapter.
    fn with_port(&self, node: NodeId, wanted: &HostPort) -> Result<NodeId, Failure> {
        let ports = self.nodes.get(node).map_or(0, |named| named.num_ports);
        if wanted.number <= ports {
            return Ok(node);
        }
        let why = format!(
            "the host's adapter has {ports} ports, but none with the number {}",
            wanted.number
        );
        Err(Failure::new(libc::EINVAL, why))
    }

    /// Returns whether a host can have an adapter. If some of the host's ports are on another fabric, the adapter must be the
    /// same node there, so it must have the host's own GUID.
    fn fits(named: &Named, guid: Guid, wanted: &HostPort) -> bool {
        named.num_ports >= wanted.of && (wanted.is_all_here() || named.guid == guid)
    }

    /// Returns whether all ports that must be on this fabric have cables.
    fn is_plugged(&self, node: NodeId, wanted: &HostPort) -> bool {
        let subnet = self.world.subnet();
        wanted.here.iter().all(|&number| subnet.peer(PortId { node, number }).is_some())
    }

    /// Returns the adapters that a host can have, and that no host has.
    fn free_adapters(
        &self,
        guid: Guid,
        wanted: &HostPort,
    ) -> impl Iterator<Item = (NodeId, &Named)> {
        self.nodes.iter().filter(move |(node, named)| {
            named.is_adapter()
                && self.attachments.holder_of_any(*node).is_none()
                && Self::fits(named, guid, wanted)
        })
    }

    /// Returns the first adapter with cables that no host has, whichever user's host had it.
    fn plugged_adapter(&self, guid: Guid, wanted: &HostPort) -> Option<NodeId> {
        let mut free = self.free_adapters(guid, wanted).map(|(node, _)| node);
        free.find(|node| self.is_plugged(*node, wanted))
    }

    /// Finds the adapter that the host had before, else the one that has its GUID or its name, else the first that is
    /// free, preferring those that no other host had. Those of other users' hosts have their LIDs and partitions, and are not free.
    fn free_adapter(
        &self,
        (host, guid): (&str, Guid),
        user: u32,
        wanted: &HostPort,
    ) -> Option<NodeId> {
        let free = || self.free_adapters(guid, wanted);
        // An adapter whose cable another host's adapter took over has none.
        let plugged = || free().filter(|(node, _)| self.is_plugged(*node, wanted));
        let had = self.store.adapter_of(guid);
        let is_open =
            |named: &Named| self.store.user_of(named.guid).is_none_or(|other| other == user);
        let is_named = |node: NodeId, named: &Named| {
            let has_name = |node| self.world.subnet().node_description(node);
            is_open(named) && (named.id == host || has_name(node).is_some_and(|d| d == host))
        };
        free()
            .find(|(_, named)| Some(named.guid) == had)
            .or_else(|| free().find(|(_, named)| named.guid == guid))
            .or_else(|| free().find(|(node, named)| is_named(*node, named)))
            .or_else(|| plugged().find(|(_, named)| !self.store.is_anothers(named.guid, guid)))
            .or_else(|| plugged().find(|(_, named)| is_open(named)))
            .map(|(node, _)| node)
    }

    /// Returns where new adapters can be connected: free ports of switches and, if there are too few, those of adapters that no
    /// host has.
    fn places(&self, host: Guid) -> impl Iterator<Item = PortId> {
        let subnet = self.world.subnet();
        let switches = self.nodes.iter().filter(|(_, named)| named.is_switch());
        let ports = switches.flat_map(|(node, named)| {
            (1..=named.num_ports).map(move |number| PortId { node, number })
        });
        let free = ports.filter(|port| subnet.peer(*port).is_none());
        let unused = |is_anothers: bool| {
            let adapters = self.nodes.iter().filter(move |(node, named)| {
                named.is_adapter()
                    && self.attachments.holder_of_any(*node).is_none()
                    && self.store.is_anothers(named.guid, host) == is_anothers
            });
            let ports = adapters.flat_map(|(node, named)| {
                (1..=named.num_ports).map(move |number| PortId { node, number })
            });
            let peers = ports.filter_map(|port| subnet.peer(port));
            peers.filter(|peer| self.nodes.get(peer.node).is_some_and(Named::is_switch))
        };
        free.chain(unused(false)).chain(unused(true))
    }

    /// Returns whether there are as many places as a host needs for a new adapter.
    fn has_places(&self, host: Guid, wanted: &HostPort) -> bool {
        self.places(host).take(wanted.here.len()).count() == wanted.here.len()
    }

    /// Connects the ports that a host will use to new places if adapters of other hosts have taken their cables. Those that an
    /// operator has unplugged, and those for which no place is left, stay without a cable. Returns the adapter.
    fn with_cables(&mut self, node: NodeId, host: Guid, wanted: &HostPort) -> NodeId {
        let Some(adapter) = self.nodes.get(node).map(|named| named.guid) else { return node };
        let subnet = self.world.subnet();
        let bare = wanted.here.iter().map(|&number| PortId { node, number }).filter(|port| {
            self.store.is_taken(adapter, port.number) && subnet.peer(*port).is_none()
        });
        let bare: Vec<_> = bare.collect();
        let is_own = |place: &PortId| subnet.peer(*place).is_some_and(|peer| peer.node == node);
        let places = self.places(host).filter(|place| !is_own(place));
        let places = places.take(bare.len()).collect();
        if let Err(Failure { why, .. }) = self.connect(bare, places) {
            tracing::warn!("cannot connect the ports of the adapter {adapter} again: {why}");
        }
        node
    }

    /// Connects ports to these places, as many as there are. The adapters that have cables there lose them.
    fn connect(&mut self, ports: Vec<PortId>, places: Vec<PortId>) -> Result<(), Failure> {
        for (port, place) in ports.into_iter().zip(places) {
            let now = self.now();
            let (world, mut programs) = self.world_and_programs();
            let lost = world.change(&mut programs, now, |subnet, sink| {
                let lost = subnet.peer(place);
                if lost.is_some() {
                    subnet.unplug(now, place, sink)?;
                }
                subnet.plug(now, port, place, CABLE, sink)?;
                Ok::<_, OperateError>(lost)
            });
            let lost = lost.map_err(|e| Failure::new(libc::ENODEV, e.to_string()))?;
            if let Some((named, lost)) =
                lost.and_then(|lost| Some((self.nodes.get(lost.node)?, lost)))
            {
                self.store.take_cable(named.guid, lost.number);
            }
            self.has_cable(port);
        }
        Ok(())
    }

    /// Records that a port has a cable again.
    pub(super) fn has_cable(&mut self, port: PortId) {
        if let Some(named) = self.nodes.get(port.node) {
            self.store.give_cable(named.guid, port.number);
        }
    }

    /// Adds an adapter and connects it. It gets the host's GUID if no other node has that.
    fn new_adapter(
        &mut self,
        host: &str,
        host_guid: Guid,
        guid: Guid,
        wanted: &HostPort,
    ) -> Result<NodeId, Failure> {
        let places: Vec<_> = self.places(host_guid).take(wanted.here.len()).collect();
        if places.len() < wanted.here.len() {
            return Err(no_place(self.plugged_adapter(host_guid, wanted).is_some()));
        }
        let mut node = Node::new(NodeKind::Ca, format!("H-{:016x}", guid.0), guid, wanted.of);
        if (1..=wanted.of).any(|port| self.nodes.by_guid(node.port_guid(port)).is_some()) {
            let why = format!(
                "another node has the GUID of a port of this host: `rdmux host up {host} --guid GUID` gives this \
                 host another one"
            );
            return Err(Failure::new(libc::EEXIST, why));
        }
        node.describe(host);
        let added = self.add_adapter(&node);
        let ports = wanted.here.iter().map(|&number| PortId { node: added, number }).collect();
        self.connect(ports, places)?;
        Ok(added)
    }

    /// Adds an adapter that is made for a host, perhaps replacing one whose host is gone.
    fn add_adapter(&mut self, node: &Node) -> NodeId {
        let spare = self.spare_adapter(node.num_ports);
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        let (added, is_new) = world.change(&mut programs, now, |subnet, _| {
            match spare.filter(|&spare| subnet.replace(spare, node)) {
                Some(spare) => (spare, false),
                None => (subnet.add(node), true),
            }
        });
        if is_new {
            self.nodes.add(node);
        } else {
            if let Some(old) = self.nodes.get(added) {
                self.store.forget(old.guid);
            }
            self.nodes.replace(added, node);
        }
        self.store.add_made(node.guid);
        added
    }

    /// Returns an unused adapter with this many ports that was made for a host, if there are many.
    fn spare_adapter(&self, ports: u8) -> Option<NodeId> {
        let (subnet, used) = (self.world.subnet(), self.used_nodes());
        let is_plugged =
            |node| (1..=ports).any(|number| subnet.peer(PortId { node, number }).is_some());
        let mut spares = self.nodes.iter().filter(|(node, named)| {
            named.num_ports == ports
                && self.store.is_made(named.guid)
                && !is_plugged(*node)
                && !used.contains(node)
        });
        let (spare, _) = spares.next()?;
        (spares.count() + 1 >= MOST_SPARE).then_some(spare)
    }

    /// Returns the nodes whose ports are in use.
    fn used_nodes(&self) -> BTreeSet<NodeId> {
        let ports = self.connections.iter().filter_map(|(_, connection)| match &connection.part {
            Part::Attachment { port, .. } | Part::IsSm { port, .. } | Part::Capture(port) => {
                Some(*port)
            }
            Part::Control(file) | Part::Mads(file) => self.world.umad().port(*file),
            Part::New | Part::Tables | Part::Admin => None,
        });
        ports.map(|port| port.node).collect()
    }

    fn describe(&self, port: PortId) -> Option<Described> {
        let named = self.nodes.get(port.node)?;
        Some(Described {
            node_guid: named.guid,
            system_guid: named.system_guid,
            description: self.world.subnet().node_description(port.node).unwrap_or_default(),
            vendor_id: named.vendor_id,
            device_id: named.device_id,
            revision: NODE_REVISION,
            is_joined: false,
            port: self.facts(port)?,
        })
    }

    /// Returns the state of a host's port, with its events.
    fn update(&self, port: PortId, events: Vec<PortEvent>) -> Option<PortUpdate> {
        Some(PortUpdate { events, port: self.facts(port)? })
    }

    fn facts(&self, port: PortId) -> Option<PortFacts> {
        let subnet = self.world.subnet();
        // The whole table, up to PartitionCap.
        let pkeys = (0..).map_while(|index| subnet.pkey(port, index)).collect();
        Some(facts(subnet.port(port)?, pkeys))
    }

    /// Handles a host's request.
    pub(super) fn attachment_request(
        &mut self,
        id: ConnectionId,
        message: &[u8],
        fds: Vec<Foreign>,
    ) -> Result<(), Ends> {
        let request = socket::decode(message);
        let rows = <[Foreign; 1]>::try_from(fds).ok().and_then(|[fd]| fd.into_memfd());
        let request = request.map_err(|_| Ends::Broke("an invalid request"))?;
        let Some(Part::Attachment { port, .. }) = self.connections.get(id).map(|c| &c.part) else {
            return Ok(());
        };
        let (port, now) = (*port, self.now());
        match request {
            AttachmentRequest::Rows { process } => {
                return match rows {
                    Some(rows) => self.open_rows(id, port, process, &rows),
                    None => Err(Ends::Broke("a request for counter rows without their memory")),
                };
            }
            AttachmentRequest::RowsGone { process } => {
                let subnet = self.world.subnet_mut();
                self.published.counts.close(subnet, port, process);
                return Ok(());
            }
            AttachmentRequest::Violation(violation) => {
                self.key_violation(id, port, &violation);
                return Ok(());
            }
            AttachmentRequest::Counted { .. } | AttachmentRequest::CountBy { .. }
                if self.connections.get(id).is_none_or(|c| c.place.is_none()) =>
            {
                return Err(Ends::Broke("counts from a client that is not a bridge"));
            }
            AttachmentRequest::Counted { rows } => {
                let subnet = self.world.subnet_mut();
                for row in &rows {
                    self.published.counts.counted(subnet, port, row);
                }
                return Ok(());
            }
            AttachmentRequest::CountBy { made, ways } => {
                self.published.counts.counts_by(port, made, ways);
                return Ok(());
            }
            AttachmentRequest::Refresh => self.read_counts(),
            AttachmentRequest::Describe(text) => {
                let (world, mut programs) = self.world_and_programs();
                world.change(&mut programs, now, |subnet, sink| {
                    subnet.set_node_description(now, port.node, &text, sink);
                });
                self.store.touch();
            }
            AttachmentRequest::Endpoint { addr, everywhere, multicast } => {
                if !self.set_endpoint(id, addr, (everywhere, multicast)) {
                    return Err(Ends::Broke("an address to which packets cannot be sent"));
                }
            }
        }
        match self.update(port, Vec::new()) {
            Some(update) => self.send(id, &update),
            None => Ok(()),
        }
    }

    /// Starts to read the rows of a host's process.
    fn open_rows(
        &mut self,
        id: ConnectionId,
        port: PortId,
        process: u16,
        rows: &OwnedFd,
    ) -> Result<(), Ends> {
        let Some(uid) = self.connections.get(id).map(|c| c.uid) else { return Ok(()) };
        let rows = RowReader::map(rows)
            .map_err(|_| Ends::Broke("a descriptor that holds no counter rows"))?;
        let subnet = self.world.subnet_mut();
        match self.published.counts.open(subnet, uid, (port, process), rows) {
            Ok(()) => Ok(()),
            Err(Unread::TooMany) => Err(Ends::Broke("too many processes")),
            Err(Unread::Exceeded(why)) => {
                tracing::debug!(%why, "the packets of a process are not counted");
                self.count(Count::RowsRefused);
                Ok(())
            }
        }
    }

    /// Schedules an update for a host.
    pub(super) fn tell_host_soon(&mut self, id: ConnectionId) {
        self.attachments.pending.insert(id);
    }

    /// Sends hosts the events of their ports. A host that does not read gets them when it does.
    pub(super) fn tell_hosts(&mut self) {
        for (port, event) in self.world.take_events() {
            self.note(port, event);
        }
        for id in std::mem::take(&mut self.attachments.pending) {
            if self.tell_host(id).is_err() {
                self.close(id, Ends::Closed);
            }
        }
    }

    fn note(&mut self, port: PortId, event: PortEvent) {
        self.count(Count::PortEvents);
        if event == PortEvent::LidChange {
            self.store.touch();
        }
        let Some(id) = self.attachments.holder(port) else { return };
        if let Some(Part::Attachment { pending, .. }) =
            self.connections.get_mut(id).map(|c| &mut c.part)
        {
            // A repeated event counts as the later one.
            pending.retain(|earlier| *earlier != event);
            pending.push(event);
            self.attachments.pending.insert(id);
        }
    }

    fn tell_host(&mut self, id: ConnectionId) -> Result<(), Ends> {
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        let reads = connection.out.is_empty();
        let Part::Attachment { port, pending, .. } = &mut connection.part else { return Ok(()) };
        if !reads {
            self.attachments.pending.insert(id);
            return Ok(());
        }
        let (port, events) = (*port, std::mem::take(pending));
        if let Some(update) = self.update(port, events) {
            self.send(id, &update)?;
        }
        self.watch(id);
        Ok(())
    }
}

/// Returns the error for a host that can have no cable. Adapters of other users' hosts may be free.
fn no_place(of_others: bool) -> Failure {
    let taken = if of_others {
        "all adapters are taken or those of other users' hosts"
    } else {
        "all adapters are taken"
    };
    let why = format!(
        "{taken}, and no port of a switch is free: `rdmux fabric up` with a larger shape gives it \
         more"
    );
    Failure::new(libc::ENODEV, why)
}
