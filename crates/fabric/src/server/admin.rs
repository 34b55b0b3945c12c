//! Handles commands.

use rdmux_runtime::socket::{self, MAX_MESSAGE};
use rdmux_subnet::topology::{LinkRate, Speed, Width};
use rdmux_subnet::{Fault, NodeId, OperateError, PortId};
use rdmux_wire::Guid;
use rdmux_wire::sm::{CapabilityMask, PortState};
use serde::Serialize;

use super::connection::{ConnectionId, Part};
use super::core::{Core, Ends};
use super::setup::Setup;
use crate::FabricError;
use crate::proto::{
    AdminRequest, Attached, End, Failure, FileStatus, LinkView, NodeRef, NodeView, PortRef,
    PortView, Reply, Snapshot, Status,
};

/// The rate of a cable that `plug` adds.
const CABLE: LinkRate = LinkRate { width: Width::X4, speed: Speed::Edr };
/// Bytes of an answer in one message.
const PART: usize = MAX_MESSAGE / 2;

impl Core {
    /// Handles a command's request.
    pub(super) fn admin_request(&mut self, id: ConnectionId, message: &[u8]) -> Result<(), Ends> {
        let request = socket::decode(message);
        let answer = match request.map_err(|_| Ends::Broke("an invalid request"))? {
            AdminRequest::Stay => {
                self.stays = true;
                encoded(&self.status())
            }
            AdminRequest::Status => encoded(&self.status()),
            AdminRequest::Show => encoded(&self.snapshot()),
            AdminRequest::Topology => encoded(&self.world.subnet().topology().to_string()),
            AdminRequest::Tables => encoded(&self.tables()),
            AdminRequest::Plug { a, b } => self.plug(&a, &b).and_then(|said| encoded(&said)),
            AdminRequest::Unplug(end) => self.unplug(&end).and_then(|said| encoded(&said)),
            AdminRequest::Link { up, a, b } => {
                self.link(up, &a, &b).and_then(|said| encoded(&said))
            }
            AdminRequest::Reset(switch) => self.reset(&switch).and_then(|said| encoded(&said)),
            AdminRequest::Fault { at, fault, times } => {
                self.fault(&at, fault, times).and_then(|said| encoded(&said))
            }
            AdminRequest::SystemGuid { node, guid } => {
                self.system_guid(&node, guid).and_then(|said| encoded(&said))
            }
            AdminRequest::Partitions => self.partitions().and_then(|said| encoded(&said)),
        };
        let reply: Reply<u64> =
            answer.as_ref().map(|bytes| bytes.len() as u64).map_err(Clone::clone);
        self.send(id, &reply)?;
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        for part in answer.as_deref().unwrap_or_default().chunks(PART) {
            connection.out.send(&connection.socket, part, None)?;
        }
        Ok(())
    }

    /// Finds a port that programs can use.
    pub(super) fn find_port(&self, port: &PortRef) -> Result<PortId, Failure> {
        let node = self.find(&port.node)?;
        let named = self.nodes.get(node).filter(|named| named.has_programs_at(port.port));
        let why = || {
            let which = "adapters have ports from 1, programs on a switch are on port 0";
            Failure::new(libc::ENODEV, format!("{} has no port {}: {which}", port.node, port.port))
        };
        named.map(|_| PortId { node, number: port.port }).ok_or_else(why)
    }

    /// Finds a node, also by the name of an attached host.
    fn find(&self, node: &NodeRef) -> Result<NodeId, Failure> {
        if let NodeRef::Name(name) = node {
            let is_it = |part: &Part| matches!(part, Part::Attachment { host, .. } if host == name);
            let is_held = |id| self.connections.get(id).is_some_and(|c| is_it(&c.part));
            let held = self.attachments.iter().filter(|(_, id)| is_held(*id));
            let mut held = held.map(|(port, _)| port.node);
            if let Some(node) = held.next() {
                // A host may have several ports of one node.
                return match held.find(|other| *other != node) {
                    None => Ok(node),
                    Some(other) => {
                        let why = self.nodes.several(name, node, other);
                        Err(Failure::new(libc::ENODEV, why))
                    }
                };
            }
        }
        let found = self.nodes.find(self.world.subnet(), node);
        found.map_err(|why| Failure::new(libc::ENODEV, why))
    }

    /// Returns the ports of an end: the named one, or all.
    fn ports_of(&self, end: &End) -> Result<Vec<PortId>, Failure> {
        let node = self.find(&end.node)?;
        let most = self.nodes.get(node).map_or(0, |named| named.num_ports);
        match end.port {
            None => Ok((1..=most).map(|number| PortId { node, number }).collect()),
            Some(number) if number <= most => Ok(vec![PortId { node, number }]),
            Some(number) => {
                let why = format!("{} has no port {number}: its ports are 1 to {most}", end.node);
                Err(Failure::new(libc::ENODEV, why))
            }
        }
    }

    fn plug(&mut self, a: &End, b: &End) -> Result<String, Failure> {
        let subnet = self.world.subnet();
        let free = |end: &End| -> Result<PortId, Failure> {
            let ports = self.ports_of(end)?;
            let free = ports.iter().find(|port| subnet.peer(**port).is_none());
            let taken = || {
                let to = ports.first().and_then(|port| subnet.peer(*port));
                let to = to.map_or_else(String::new, |to| format!(", to {}", self.nodes.name(to)));
                Failure::new(libc::EBUSY, format!("{end} has a cable{to}: unplug it first"))
            };
            free.copied().ok_or_else(taken)
        };
        let (a, b) = (free(a)?, free(b)?);
        self.operate(|subnet, now, sink| subnet.plug(now, a, b, CABLE, sink))?;
        for port in [a, b] {
            self.has_cable(port);
        }
        Ok(format!("{} is plugged to {}", self.nodes.name(a), self.nodes.name(b)))
    }

    fn unplug(&mut self, end: &End) -> Result<String, Failure> {
        let subnet = self.world.subnet();
        let ports = self.ports_of(end)?;
        let cables: Vec<_> = ports.into_iter().filter(|p| subnet.peer(*p).is_some()).collect();
        let port = match cables[..] {
            [port] => port,
            [] => return Err(Failure::new(libc::ENOENT, format!("{end} has no cable"))),
            _ => {
                let why = format!("{end} has {} cables: name the port, as NODE:PORT", cables.len());
                return Err(Failure::new(libc::EINVAL, why));
            }
        };
        let peer = self.operate(|subnet, now, sink| subnet.unplug(now, port, sink))?;
        Ok(format!("{} is unplugged from {}", self.nodes.name(port), self.nodes.name(peer)))
    }

    fn link(&mut self, up: bool, a: &End, b: &End) -> Result<String, Failure> {
        let subnet = self.world.subnet();
        let far = self.ports_of(b)?;
        let near = self.ports_of(a)?;
        let links: Vec<_> = near
            .into_iter()
            .filter(|port| subnet.peer(*port).is_some_and(|peer| far.contains(&peer)))
            .collect();
        if links.is_empty() {
            return Err(Failure::new(libc::ENOENT, format!("no cable connects {a} and {b}")));
        }
        for port in &links {
            self.operate(|subnet, now, sink| subnet.set_cable(now, *port, up, sink))?;
        }
        let way = if up { "up" } else { "down" };
        let said = links.iter().map(|port| {
            let peer = self.world.subnet().peer(*port).unwrap_or(*port);
            format!("{} - {} is {way}", self.nodes.name(*port), self.nodes.name(peer))
        });
        Ok(said.collect::<Vec<_>>().join("\n"))
    }

    fn reset(&mut self, switch: &NodeRef) -> Result<String, Failure> {
        let node = self.find(switch)?;
        let name = self.nodes.get(node).map(|n| (n.id.clone(), n.is_switch()));
        let Some((id, true)) = name else {
            return Err(Failure::new(libc::EINVAL, format!("{switch} is not a switch")));
        };
        // Its counts until now are lost with its power.
        self.read_counts();
        self.operate(|subnet, now, sink| subnet.reset_switch(now, node, sink))?;
        Ok(format!("{id} is reset"))
    }

    fn fault(&mut self, at: &End, fault: Fault, times: u32) -> Result<String, Failure> {
        let ports = self.ports_of(at)?;
        let &[port] = &ports[..] else {
            let why = format!("{at} has {} ports: name one, as NODE:PORT", ports.len());
            return Err(Failure::new(libc::EINVAL, why));
        };
        let passed =
            self.operate(|subnet, now, sink| Ok(subnet.fault(now, port, fault, times, sink)))?;
        let (what, trap) = match fault {
            Fault::Symbol => ("symbol errors", 129),
            Fault::Overrun => ("buffer overruns", 130),
            Fault::Watchdog => ("expiries of the flow control watchdog", 131),
        };
        let name = self.nodes.name(port);
        let raised = if passed == 0 {
            format!("below the threshold of trap {trap}")
        } else {
            format!("trap {trap} is raised")
        };
        Ok(format!("{name} counted {times} {what}: {raised}"))
    }

    fn system_guid(&mut self, node: &NodeRef, guid: Guid) -> Result<String, Failure> {
        let found = self.find(node)?;
        self.operate(|subnet, now, sink| {
            subnet.set_system_guid(now, found, guid, sink);
            Ok(())
        })?;
        // Hosts learn of it when they attach.
        self.nodes.set_system_guid(found, guid);
        let id = self.nodes.get(found).map_or_else(String::new, |named| named.id.clone());
        Ok(format!("{id} has the system GUID {guid}"))
    }

    /// Applies the partitions of the stored options. After an error the earlier ones stay in force.
    fn partitions(&mut self) -> Result<String, Failure> {
        let wrong = |e: FabricError| Failure::new(libc::EINVAL, e.to_string());
        let setup = Setup::load(&self.dir).map_err(wrong)?.manager;
        let partitions = setup.partitions().map_err(wrong)?;
        let count = partitions.iter().count();
        let now = self.now();
        if !self.world.set_partitions(now, partitions) {
            return Err(Failure::new(libc::ENODEV, "the fabric has no subnet manager of its own"));
        }
        self.setup.manager.partitions = setup.partitions;
        let name = self.setup.manager.partitions.as_ref().map_or("no file", |file| &file.name);
        let noun = if count == 1 { "partition" } else { "partitions" };
        Ok(format!("{count} {noun} of {name}: the manager sets the tables of ports"))
    }

    /// Changes the subnet.
    fn operate<T>(
        &mut self,
        change: impl FnOnce(
            &mut rdmux_subnet::Subnet,
            rdmux_subnet::Time,
            &mut super::world::FromSubnet<'_>,
        ) -> Result<T, OperateError>,
    ) -> Result<T, Failure> {
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        let result = world.change(&mut programs, now, |subnet, sink| change(subnet, now, sink));
        self.store.touch();
        result.map_err(|e| Failure::new(libc::EINVAL, e.to_string()))
    }

    fn status(&self) -> Status {
        let subnet = self.world.subnet();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let active =
            subnet.ports().filter(|p| p.id().number != 0 && p.state() == PortState::ACTIVE);
        let cabled = || subnet.ports().filter(|p| subnet.peer(p.id()).is_some());
        let down = cabled().filter(|p| p.state() == PortState::DOWN);
        let attached = self.attachments.iter().filter_map(|(port, id)| {
            let (connection, named) = (self.connections.get(id)?, self.nodes.get(port.node)?);
            let Part::Attachment { host, .. } = &connection.part else { return None };
            Some(Attached {
                host: host.clone(),
                pid: connection.pid,
                adapter: subnet.node_description(port.node).unwrap_or_default(),
                guid: named.guid,
                port: port.number,
                lid: subnet.port(port)?.lid(),
            })
        });
        let files = self.files.iter().filter_map(|(id, file, control, mads)| {
            let port = self.world.umad().port(id)?;
            let waiting = mads.and_then(|id| self.connections.get(id)).map(|c| &c.out);
            Some(FileStatus {
                pid: self.connections.get(control)?.pid,
                comm: file.comm.clone(),
                node: self.nodes.get(port.node)?.id.clone(),
                port: port.number,
                waiting: waiting.map_or((0, 0), |o| (o.messages() as u64, o.bytes() as u64)),
                dropped: file.dropped,
            })
        });
        let mut files: Vec<_> = files.collect();
        files.sort_by_key(|file| file.pid);
        Status {
            fabric: self.name().to_string(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            stays: self.stays,
            source: self.setup.source.clone(),
            simulated: self.setup.simulate,
            listen: self.listens.map(|at| at.to_string()),
            switches: count(self.nodes.iter().filter(|(_, n)| n.is_switch()).count()),
            adapters: count(self.nodes.iter().filter(|(_, n)| n.is_adapter()).count()),
            links: count(cabled().count() / 2),
            links_down: count(down.count().div_ceil(2)),
            active_ports: count(active.count()),
            attached: attached.collect(),
            files,
            manager: self.manager_status(),
            counters: self.counters(),
        }
    }

    /// Returns the counters of the fabric, and those of its agents.
    fn counters(&self) -> Vec<(String, u64)> {
        let mut all = self.counts.all();
        let umad = self.world.umad().counters();
        all.extend(
            [
                ("agents_sent", umad.sent),
                ("agents_resent", umad.resent),
                ("agents_received", umad.received),
                ("agents_delivered", umad.delivered),
                ("agents_timed_out", umad.timed_out),
                ("agents_aborted", umad.aborted),
                ("agents_unsupported", umad.unsupported),
                ("agents_bad_version", umad.bad_version),
                ("agents_bad_qp", umad.bad_qp),
                ("agents_no_owner", umad.no_owner),
                ("agents_no_request", umad.no_request),
                ("agents_no_transfer", umad.no_transfer),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        all
    }

    fn snapshot(&self) -> Snapshot {
        let subnet = self.world.subnet();
        let host = |node: NodeId| {
            let holder = self.connections.get(self.attachments.holder_of_any(node)?)?;
            let Part::Attachment { host, .. } = &holder.part else { return None };
            Some(host.clone())
        };
        let nodes = self.nodes.iter().map(|(node, named)| NodeView {
            is_switch: named.is_switch(),
            id: named.id.clone(),
            description: subnet.node_description(node).unwrap_or_default(),
            guid: named.guid,
            host: host(node),
            ports: (u8::from(!named.is_switch())..=named.num_ports)
                .filter_map(|number| subnet.port(PortId { node, number }))
                .map(|view| PortView {
                    number: view.id().number,
                    guid: view.guid(),
                    lid: view.lid(),
                    lmc: view.lmc(),
                    state: view.state().0,
                    is_sm: view.capability_mask().contains(CapabilityMask::SM),
                })
                .collect(),
        });
        let links = subnet.ports().filter_map(|view| {
            let (a, b) = (view.id(), subnet.peer(view.id())?);
            let up = view.state() != PortState::DOWN;
            let rate = view.rate().map_or_else(String::new, |rate| rate.to_string());
            (a < b).then_some(LinkView {
                a: (a.node.0, a.number),
                b: (b.node.0, b.number),
                up,
                rate,
            })
        });
        Snapshot { fabric: self.name().to_string(), nodes: nodes.collect(), links: links.collect() }
    }
}

fn encoded(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    postcard::to_stdvec(value).map_err(|e| Failure::new(libc::EIO, e.to_string()))
}
