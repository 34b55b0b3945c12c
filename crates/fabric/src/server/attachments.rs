//! Hosts that have adapters.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use rdmux_link::rows::RowReader;
use rdmux_runtime::name::is_label;
use rdmux_runtime::socket;
use rdmux_subnet::topology::{LinkRate, Node, NodeKind, Speed, Width};
use rdmux_subnet::umad::Ports;
use rdmux_subnet::{NODE_REVISION, NodeId, PortEvent, PortId};
use rdmux_wire::Guid;

use super::connection::{ConnectionId, Part};
use super::core::{Core, Ends};
use super::counters::Count;
use super::facts::facts;
use super::published::data_port;
use crate::proto::{
    AttachmentRequest, Described, Failure, MAX_PORTS, OtherPort, PortFacts, PortUpdate,
};

/// The cable by which a host is plugged to a free port.
const CABLE: LinkRate = LinkRate { width: Width::X4, speed: Speed::Edr };

/// Which connection has which node.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    by_node: BTreeMap<NodeId, ConnectionId>,
    /// Those that have something to be told.
    pending: BTreeSet<ConnectionId>,
}

impl Attachments {
    /// The connection that has a node.
    pub(super) fn holder(&self, node: NodeId) -> Option<ConnectionId> {
        self.by_node.get(&node).copied()
    }

    /// All, in the order of the nodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, ConnectionId)> {
        self.by_node.iter().map(|(&node, &id)| (node, id))
    }
}

impl Core {
    /// A host takes an adapter.
    pub(super) fn attach(&mut self, id: ConnectionId, host: &str, guid: Guid) -> Result<(), Ends> {
        let node = match self.adapter_for(host, guid) {
            Ok(node) => node,
            Err(failure) => return self.welcome::<Described>(id, Err(failure)),
        };
        self.attachments.by_node.insert(node, id);
        let part = Part::Attachment { host: host.to_owned(), guid, node, pending: Vec::new() };
        self.become_part(id, part);
        self.set_attached(node);
        if let Some(named) = self.nodes.get(node) {
            self.store.set_adapter(guid, named.guid);
        }
        self.read_counts();
        let place = self.connections.get(id).and_then(|c| c.place.clone());
        match self.describe(node) {
            Some(described) => {
                let is_joined = place.is_some() || self.listens.is_some();
                let routes = self.published.open(data_port(node), place);
                self.welcome_with(id, Ok(Described { is_joined, ..described }), routes)
            }
            None => Err(Ends::Closed),
        }
    }

    /// A host gives its adapter back.
    pub(super) fn detach(&mut self, id: ConnectionId, node: NodeId) {
        self.attachments.by_node.remove(&node);
        self.attachments.pending.remove(&id);
        self.published.close(self.world.subnet_mut(), data_port(node));
        self.set_attached(node);
    }

    fn set_attached(&mut self, node: NodeId) {
        for number in 1..=self.nodes.get(node).map_or(0, |named| named.num_ports) {
            self.serve_port(PortId { node, number });
        }
    }

    /// The adapter that a host gets.
    fn adapter_for(&mut self, host: &str, guid: Guid) -> Result<NodeId, Failure> {
        if !is_label(host) || guid == Guid(0) {
            return Err(Failure::new(libc::EINVAL, "a host has a name and a GUID"));
        }
        if self.setup.simulate {
            let why = "all its adapters are simulated: bring it up without `--simulate`";
            return Err(Failure::new(libc::EPERM, why));
        }
        if let Some(other) = self.host_with(guid) {
            let why = format!(
                "host \"{other}\" with the GUID {guid} is attached already: `rdmux host up {host} --guid GUID` gives \
                 this host another one"
            );
            return Err(Failure::new(libc::EEXIST, why));
        }
        if let Some(node) = self.free_adapter(host, guid) {
            return Ok(node);
        }
        if self.nodes.by_guid(guid).is_some() {
            let why = format!(
                "another node has the GUID {guid}: `rdmux host up {host} --guid GUID` gives this host another one"
            );
            return Err(Failure::new(libc::EEXIST, why));
        }
        self.new_adapter(host, guid)
    }

    /// The host that is attached with this GUID.
    fn host_with(&self, guid: Guid) -> Option<&str> {
        self.connections.iter().find_map(|(_, c)| match &c.part {
            Part::Attachment { host, guid: g, .. } if *g == guid => Some(host.as_str()),
            _ => None,
        })
    }

    /// The adapter that the host had before, else the one that has its GUID or its name, else the first that is free, and
    /// rather one that no other host had.
    fn free_adapter(&self, host: &str, guid: Guid) -> Option<NodeId> {
        let free = || {
            self.nodes.iter().filter(|(node, named)| {
                named.is_adapter() && self.attachments.holder(*node).is_none()
            })
        };
        let had = self.store.adapter_of(guid);
        let is_named = |node: NodeId, id: &str| {
            id == host || self.world.subnet().node_description(node).is_some_and(|d| d == host)
        };
        free()
            .find(|(_, named)| Some(named.guid) == had)
            .or_else(|| free().find(|(_, named)| named.guid == guid))
            .or_else(|| free().find(|(node, named)| is_named(*node, &named.id)))
            .or_else(|| free().find(|(_, named)| !self.store.is_anothers(named.guid, guid)))
            .or_else(|| free().next())
            .map(|(node, _)| node)
    }

    /// Plugs a new adapter to the first free port of a switch.
    fn new_adapter(&mut self, host: &str, guid: Guid) -> Result<NodeId, Failure> {
        let subnet = self.world.subnet();
        let mut ports =
            self.nodes.iter().filter(|(_, named)| named.is_switch()).flat_map(|(node, named)| {
                (1..=named.num_ports).map(move |number| PortId { node, number })
            });
        let port = ports.find(|port| subnet.peer(*port).is_none());
        drop(ports);
        let Some(port) = port else {
            let why = "all adapters are taken, and no port of a switch is free: `rdmux fabric up` with a larger shape \
                       gives it more";
            return Err(Failure::new(libc::ENODEV, why));
        };
        let mut node = Node::new(NodeKind::Ca, format!("H-{:016x}", guid.0), guid, 1);
        node.describe(host);
        self.nodes.add(&node);
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        let plugged = world.change(&mut programs, now, |subnet, sink| {
            let added = subnet.add(&node);
            let own = PortId { node: added, number: 1 };
            subnet.plug(now, own, port, CABLE, sink).map(|()| added)
        });
        self.store.touch();
        plugged.map_err(|e| Failure::new(libc::ENODEV, e.to_string()))
    }

    fn describe(&self, node: NodeId) -> Option<Described> {
        let named = self.nodes.get(node)?;
        Some(Described {
            node_guid: named.guid,
            system_guid: named.system_guid,
            description: self.world.subnet().node_description(node).unwrap_or_default(),
            vendor_id: named.vendor_id,
            device_id: named.device_id,
            revision: NODE_REVISION,
            is_joined: false,
            port: self.facts(PortId { node, number: 1 })?,
            others: self.other_ports(node).filter_map(|port| self.facts(port)).collect(),
        })
    }

    /// The ports behind the first of which a host is told.
    fn other_ports(&self, node: NodeId) -> impl Iterator<Item = PortId> + use<> {
        let ports = self.nodes.get(node).map_or(0, |named| named.num_ports);
        (2..=ports.min(MAX_PORTS)).map(move |number| PortId { node, number })
    }

    /// How the ports of a host's node are, with what happened to them; `all` of them also where nothing did.
    fn update(&self, node: NodeId, events: &[(u8, PortEvent)], all: bool) -> Option<PortUpdate> {
        let of = |number: u8| {
            events.iter().filter(|(port, _)| *port == number).map(|(_, event)| *event).collect()
        };
        let others = self.other_ports(node).filter_map(|port| {
            let events: Vec<_> = of(port.number);
            let tell = all || !events.is_empty();
            let port = self.facts(port).filter(|_| tell)?;
            Some(OtherPort { events, port })
        });
        let port = self.facts(PortId { node, number: 1 })?;
        Some(PortUpdate { events: of(1), port, others: others.collect() })
    }

    fn facts(&self, port: PortId) -> Option<PortFacts> {
        let subnet = self.world.subnet();
        // The whole table, as far as PartitionCap goes.
        let pkeys = (0..).map_while(|index| subnet.pkey(port, index)).collect();
        Some(facts(subnet.port(port)?, pkeys))
    }

    /// What a host asks.
    pub(super) fn attachment_request(
        &mut self,
        id: ConnectionId,
        message: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Ends> {
        let request = socket::decode(message);
        let user = self.connections.get(id).map_or(0, |c| c.uid);
        let rows = self.closer.only_memfd(user, fds);
        let request = request.map_err(|_| Ends::Broke("a request that makes no sense"))?;
        let Some(Part::Attachment { node, .. }) = self.connections.get(id).map(|c| &c.part) else {
            return Ok(());
        };
        let (node, now) = (*node, self.now());
        match request {
            AttachmentRequest::Rows { process } => {
                return match rows {
                    Some(rows) => self.open_rows(node, process, &rows),
                    None => Err(Ends::Broke("rows without memory")),
                };
            }
            AttachmentRequest::RowsGone { process } => {
                let subnet = self.world.subnet_mut();
                self.published.counts.close(subnet, data_port(node), process);
                return Ok(());
            }
            AttachmentRequest::Violation(violation) => {
                self.key_violation(id, node, &violation);
                return Ok(());
            }
            AttachmentRequest::Counted { .. } | AttachmentRequest::CountBy { .. }
                if self.connections.get(id).is_none_or(|c| c.place.is_none()) =>
            {
                return Err(Ends::Broke("counts of no bridge"));
            }
            AttachmentRequest::Counted { rows } => {
                let subnet = self.world.subnet_mut();
                for row in &rows {
                    self.published.counts.counted(subnet, data_port(node), row);
                }
                return Ok(());
            }
            AttachmentRequest::CountBy { made, ways } => {
                self.published.counts.counts_by(data_port(node), made, ways);
                return Ok(());
            }
            AttachmentRequest::Refresh => self.read_counts(),
            AttachmentRequest::Describe(text) => {
                let (world, mut programs) = self.world_and_programs();
                world.change(&mut programs, now, |subnet, sink| {
                    subnet.set_node_description(now, node, &text, sink);
                });
                self.store.touch();
            }
            AttachmentRequest::Endpoint { addr, everywhere } => {
                if !self.set_endpoint(id, addr, everywhere) {
                    return Err(Ends::Broke("an address to which nothing can be sent"));
                }
            }
        }
        match self.update(node, &[], true) {
            Some(update) => self.send(id, &update),
            None => Ok(()),
        }
    }

    /// A process of a host counts what it sends.
    fn open_rows(&mut self, node: NodeId, process: u16, rows: &OwnedFd) -> Result<(), Ends> {
        let rows = RowReader::map(rows).map_err(|_| Ends::Broke("rows that are none"))?;
        self.published.counts.close(self.world.subnet_mut(), data_port(node), process);
        let is_open = self.published.counts.open(data_port(node), process, rows);
        if is_open { Ok(()) } else { Err(Ends::Broke("more processes than there can be")) }
    }

    /// Tells a host how its port is, soon.
    pub(super) fn tell_host_soon(&mut self, id: ConnectionId) {
        self.attachments.pending.insert(id);
    }

    /// Tells hosts what has happened to their ports. One that does not read is told when it does.
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
        let is_told = (1..=MAX_PORTS).contains(&port.number);
        let Some(id) = self.attachments.holder(port.node).filter(|_| is_told) else {
            return;
        };
        if let Some(Part::Attachment { pending, .. }) =
            self.connections.get_mut(id).map(|c| &mut c.part)
        {
            // An event that comes again counts as the later one.
            pending.retain(|earlier| *earlier != (port.number, event));
            pending.push((port.number, event));
            self.attachments.pending.insert(id);
        }
    }

    fn tell_host(&mut self, id: ConnectionId) -> Result<(), Ends> {
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        let reads = connection.out.is_empty();
        let Part::Attachment { node, pending, .. } = &mut connection.part else { return Ok(()) };
        if !reads {
            self.attachments.pending.insert(id);
            return Ok(());
        }
        let (node, events) = (*node, std::mem::take(pending));
        if let Some(update) = self.update(node, &events, false) {
            self.send(id, &update)?;
        }
        self.watch(id);
        Ok(())
    }
}
