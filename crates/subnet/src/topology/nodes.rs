//! Lines of nodes and of their ports.

use alloc::string::{String, ToString as _};

use rdmux_wire::{Guid, Lid};

use super::error::{ParseError, Rule};
use super::model::{Node, NodeKind, Port, PortRef};
use super::parse::{Cable, Origin, Reader, place_of};
use super::rate::{LinkRate, Speed, Width};
use super::scan::{self, Line};
use super::{MAX_ALL_PORTS, MAX_DESCRIPTION, MAX_NODES, MAX_PORTS};

impl Reader {
    /// Parses the rest of a node's first line.
    pub(super) fn node(
        &mut self,
        kind: NodeKind,
        start: Line<'_>,
        mut line: Line<'_>,
    ) -> Result<(), ParseError> {
        let at = line;
        let ports = line.number().and_then(|n| u8::try_from(n).ok());
        let ports = ports.filter(|n| (1..=MAX_PORTS).contains(n));
        let ports = ports.ok_or_else(|| self.error(at, Rule::Ports))?;
        let at = line;
        let base = line.quoted().filter(|id| !id.is_empty() && !id.contains(char::is_control));
        let base = base.ok_or_else(|| self.error(at, Rule::Name))?;
        self.all_ports += usize::from(ports) + 1;
        if self.topology.nodes.len() == MAX_NODES || self.all_ports > MAX_ALL_PORTS {
            return Err(self.error(start, Rule::TooLarge));
        }
        let id = self.names.new_id(base).ok_or_else(|| self.error(at, Rule::Reserved))?;
        let index = self.topology.nodes.len();
        if let Some(other) = self.names.insert(&id, index) {
            let (_, other) = self.origins[other];
            return Err(self.error(at, Rule::SameName(self.place(other))));
        }
        let in_name = base.get(2..).filter(|t| t.len() == 16).and_then(scan::guid);
        let given = self.guids[place_of(kind)].0.take();
        let origin = given.map(Origin::Given).or(in_name.map(Origin::InName));
        self.origins.push((origin.unwrap_or(Origin::Next), self.at));
        let node = self.new_node(kind, id, ports, line)?;
        self.topology.nodes.push(node);
        self.open = true;
        Ok(())
    }

    fn new_node(
        &mut self,
        kind: NodeKind,
        id: String,
        ports: u8,
        mut line: Line<'_>,
    ) -> Result<Node, ParseError> {
        let given = core::mem::take(&mut self.attributes);
        let mut node = Node::new(kind, id, Guid::default(), ports);
        node.system_guid = given.system_guid.unwrap_or_default();
        node.vendor_id = given.vendor_id;
        node.device_id = given.device_id;
        let mut described = None;
        if line.skip("#") {
            let at = line;
            described = line.quoted();
            if described.is_some_and(|t| t.len() > MAX_DESCRIPTION || t.contains(char::is_control))
            {
                return Err(self.error(at, Rule::Description));
            }
        }
        match described {
            Some(text) => node.description = text.to_string(),
            None => node.describe(&node.id.clone()),
        }
        if kind == NodeKind::Switch {
            node.enhanced_port0 = line.skip("enhanced");
            let (lid, lmc) = lid_and_lmc(&mut line);
            if given.port0_guid.is_some() || lid != Lid(0) {
                node.ports.insert(0, Port { guid: given.port0_guid, lid, lmc, link: None });
            }
        }
        Ok(node)
    }

    /// Parses the line of a port with its cable.
    pub(super) fn port(&mut self, mut line: Line<'_>) -> Result<(), ParseError> {
        let start = line;
        let PortRef { node: index, port: number } = self.own_port(&mut line)?;
        let node = &self.topology.nodes[index];
        let is_switch = node.kind == NodeKind::Switch;
        if node.ports.contains_key(&number) {
            return Err(self.error(start, Rule::SamePort));
        }
        let guid = line.guid_in_brackets();
        let mut port = Port { guid, ..Port::default() };
        let at = line;
        let to = line.quoted();
        if let Some(remote) = to {
            let far = self.far_port(&mut line)?;
            line.guid_in_brackets();
            let mut rate = self.options(&mut line)?;
            if line.skip("#") {
                let own = if is_switch { (Lid(0), 0) } else { lid_and_lmc(&mut line) };
                (port.lid, port.lmc) = own;
                rate = rate.or_else(|| trailing_rate(line));
            } else if !line.is_empty() {
                return Err(self.error(line, Rule::AfterPort));
            }
            let from = PortRef { node: index, port: number };
            let to = self.names.remote(remote, far);
            self.cables.push(Cable { at: self.at, from, to, rate });
        } else if guid.is_none() || !(at.is_empty() || line.skip("#")) {
            return Err(self.error(at, Rule::AfterPort));
        }
        self.topology.nodes[index].ports.insert(number, port);
        Ok(())
    }

    /// Parses the port of the present node at the beginning of a line.
    fn own_port(&self, line: &mut Line<'_>) -> Result<PortRef, ParseError> {
        let start = *line;
        let Some(node) = self.open.then(|| self.topology.nodes.len() - 1) else {
            return Err(self.error(start, Rule::NoNode));
        };
        let ports = self.topology.nodes[node].num_ports;
        let port = line.bracketed().filter(|n| (1..=ports).contains(n));
        let port = port.ok_or_else(|| self.error(start, Rule::Port(ports)))?;
        Ok(PortRef { node, port })
    }

    /// Parses the port at the other end; 1 if it is missing, as for an adapter's only port.
    fn far_port(&self, line: &mut Line<'_>) -> Result<u8, ParseError> {
        let at = *line;
        match line.bracketed() {
            Some(port) => Ok(port),
            None if at.starts_with("[") => Err(self.error(at, Rule::AfterPort)),
            None => Ok(1),
        }
    }

    /// Parses `@[1] "name"`: an alias for a port, to which a cable can be connected from elsewhere.
    pub(super) fn alias(&mut self, mut line: Line<'_>) -> Result<(), ParseError> {
        line.skip("@");
        let port = self.own_port(&mut line)?;
        let at = line;
        let name =
            line.quoted().filter(|name| !name.is_empty() && !name.contains(char::is_control));
        let name = name.ok_or_else(|| self.error(at, Rule::Name))?;
        if name.contains(['#', '@']) {
            return Err(self.error(at, Rule::Reserved));
        }
        let rate = self.options(&mut line)?;
        if !(line.is_empty() || line.skip("#")) {
            return Err(self.error(line, Rule::AfterPort));
        }
        match self.names.insert_alias(name, port, rate, self.at) {
            Some(other) => Err(self.error(at, Rule::SameAlias(self.place(other)))),
            None => Ok(()),
        }
    }

    /// Parses `#[1](GUID) lid L lmc M`, as the writer prints it. Other text after `#` is a comment.
    pub(super) fn port_without_cable(&mut self, mut line: Line<'_>) {
        line.skip("#");
        let (number, guid) = (line.bracketed(), line.guid_in_brackets());
        let (lid, lmc) = lid_and_lmc(&mut line);
        let node = self.topology.nodes.last_mut().filter(|_| self.open && line.is_empty());
        if let (Some(node), Some(number), Some(_)) = (node, number, guid)
            && node.kind != NodeKind::Switch
            && (1..=node.num_ports).contains(&number)
        {
            node.ports.entry(number).or_insert(Port { guid, lid, lmc, link: None });
        }
    }

    /// Parses `w=`, `s=` and `e=`: masks of enabled widths, speeds and extended speeds. The masks of the file apply to ports
    /// without their own.
    pub(super) fn options(&self, line: &mut Line<'_>) -> Result<Option<LinkRate>, ParseError> {
        let mut masks = self.masks;
        loop {
            let at = *line;
            let slot = match line.assignment() {
                Some("w") => &mut masks[0],
                Some("s") => &mut masks[1],
                Some("e") => &mut masks[2],
                Some(_) => return Err(self.error(at, Rule::AfterPort)),
                None => break,
            };
            *slot = Some(self.value(line, "a mask", 31)?);
        }
        if masks == [None; 3] {
            return Ok(None);
        }
        let default = LinkRate::DEFAULT;
        let width = masks[0].and_then(Width::widest).unwrap_or(default.width);
        let speed = match (masks[1], masks[2]) {
            (None, None) => default.speed,
            (speed, ext) => {
                Speed::fastest(speed.unwrap_or(7), ext.unwrap_or(0), 0).unwrap_or(Speed::Sdr)
            }
        };
        Ok(Some(LinkRate { width, speed }))
    }
}

/// Parses `lid L lmc M` of a port itself, after the `#` and before the description of the other end.
fn lid_and_lmc(line: &mut Line<'_>) -> (Lid, u8) {
    let before = *line;
    line.skip("base");
    if line.skip("port") {
        line.number();
    }
    let mut value = |name| if line.skip(name) { line.number() } else { None };
    let lid = value("lid").and_then(|n| u16::try_from(n).ok()).filter(|n| (1..0xc000).contains(n));
    let lmc = value("lmc").and_then(|n| u8::try_from(n).ok()).filter(|n| *n < 8);
    match (lid, lmc) {
        (Some(lid), Some(lmc)) => (Lid(lid), lmc),
        (Some(lid), None) => (Lid(lid), 0),
        _ => {
            *line = before;
            (Lid(0), 0)
        }
    }
}

/// Finds a rate anywhere after the `#`.
fn trailing_rate(mut line: Line<'_>) -> Option<LinkRate> {
    while !line.is_empty() {
        if line.quoted().is_some() {
            continue;
        }
        if let Ok(rate) = line.any()?.parse() {
            return Some(rate);
        }
    }
    None
}
