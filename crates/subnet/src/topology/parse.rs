//! The reader of topology files.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use rdmux_wire::{Guid, Lid};

use super::model::{LinkError, Node, NodeKind, Port, PortRef, Topology};
use super::rate::{LinkRate, Speed, Width};
use super::scan::{self, Line};
use super::{MAX_ALL_PORTS, MAX_DESCRIPTION, MAX_NODES, MAX_PORTS};

/// A line that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line's number, from 1.
    pub line: usize,
    /// Where on the line reading stopped: the next word, at most 64 characters of it.
    pub token: String,
    /// The rule that it breaks.
    pub rule: Rule,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, at `{}`: {}", self.line, self.token, self.rule)
    }
}

impl core::error::Error for ParseError {}

/// A rule of the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// No line begins like this.
    #[error(
        "a line begins with Switch, Ca, Hca, Rt, a port in square brackets, `keyword=value` or #"
    )]
    Line,
    /// `include`, `do` and aliases are ibsim's.
    #[error("include, do and @alias are not supported: write the nodes into one file")]
    IbsimOnly,
    /// A keyword that nobody knows.
    #[error(
        "a keyword is one of vendid, devid, sysimgguid, switchguid, caguid, hcaguids, rtguid, width, speed, extspeed"
    )]
    Keyword,
    /// Not a number that fits.
    #[error("{0} must be a number, at most {1:#x}")]
    Number(&'static str, u64),
    /// A node's line has to say how many ports there are.
    #[error("a node has 1 to {MAX_PORTS} ports: `Switch 36 \"S-1\"`")]
    Ports,
    /// A name between quotes is missing.
    #[error("a name between quotes is expected: `Switch 36 \"S-1\"`, `[1] \"H-1\"[1]`")]
    Name,
    /// Two nodes have one name.
    #[error("another node has this name already, see line {0}")]
    SameName(usize),
    /// Two nodes have one GUID, or a GUID is zero.
    #[error("{0} is zero, or the GUID of another node already")]
    Guid(Guid),
    /// A description is too long.
    #[error("a description has at most {MAX_DESCRIPTION} bytes and no control characters")]
    Description,
    /// There is no node that the port could belong to.
    #[error("a port belongs to the node above it; an empty line ends a node")]
    NoNode,
    /// A port's number is not one of the node's.
    #[error("the ports of this node are [1] to [{0}]")]
    Port(u8),
    /// A port is there twice.
    #[error("this port has a line already")]
    SamePort,
    /// What follows a port's number.
    #[error("after a port come (GUID), \"name\"[port], and w=, s= or e= with a number")]
    AfterPort,
    /// The other end of a cable is not in the file.
    #[error("there is no node with this name, or it has no such port")]
    Remote,
    /// The two ends of a cable contradict each other.
    #[error("{0}")]
    Cable(LinkError),
    /// Too much of it.
    #[error("a topology has at most {MAX_NODES} nodes and {MAX_ALL_PORTS} ports")]
    TooLarge,
}

impl Topology {
    /// Reads what `ibnetdiscover` prints and `ibsim` reads. What stands behind `#` is read where it has
    /// their form (descriptions, LIDs, rates) and is a comment elsewhere. A cable that stands at one
    /// of its ends only is a cable.
    ///
    /// ```
    /// # use rdmux_subnet::Topology;
    /// let text = "Switch 8 \"S-1\" # \"spine\"\n[1] \"H-1\"[1]\n\nHca 1 \"H-1\" # \"node1\"\n";
    /// let topology = Topology::parse(text).expect("a good file");
    /// assert_eq!(topology.nodes[1].description, "node1");
    /// assert_eq!(topology.links().count(), 1);
    /// ```
    ///
    /// # Errors
    /// [`ParseError`] names the line, the token and the rule.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut reader = Reader::default();
        for (index, line) in text.lines().enumerate() {
            reader.number = index + 1;
            reader.line(line)?;
        }
        reader.finish()
    }
}

/// What stands before a node's line.
#[derive(Default)]
struct Attributes {
    vendor_id: u32,
    device_id: u16,
    system_guid: Option<Guid>,
    guid: Option<Guid>,
    port0_guid: Option<Guid>,
}

/// A cable as one of its ends tells it.
struct Cable<'a> {
    line: usize,
    from: PortRef,
    to: (&'a str, u8),
    /// The rate, if the line has one.
    rate: Option<LinkRate>,
}

#[derive(Default)]
struct Reader<'a> {
    number: usize,
    topology: Topology,
    attributes: Attributes,
    /// Whether port lines belong to the last node.
    open: bool,
    all_ports: usize,
    /// Width, speed and extended speed for the lines that follow.
    masks: [Option<u8>; 3],
    names: BTreeMap<&'a str, (usize, usize)>,
    cables: Vec<Cable<'a>>,
    /// The line of each node that has a GUID by the file.
    guid_lines: Vec<(usize, usize)>,
}

impl<'a> Reader<'a> {
    fn line(&mut self, text: &'a str) -> Result<(), ParseError> {
        let mut line = Line::new(text);
        if line.is_empty() {
            self.open = false;
            self.attributes = Attributes::default();
            return Ok(());
        }
        match text.trim_start().as_bytes()[0] {
            b'#' => {
                self.port_without_cable(line);
                Ok(())
            }
            b'[' => self.port(line),
            b'@' => Err(self.error(line, Rule::IbsimOnly)),
            _ => match line.assignment() {
                Some(key) => self.keyword(key, line, text),
                None => self.node(line),
            },
        }
    }

    fn keyword(&mut self, key: &str, mut line: Line<'a>, text: &'a str) -> Result<(), ParseError> {
        let slot = match key {
            "vendid" => {
                self.attributes.vendor_id = self.value(&mut line, "vendid", 0xff_ffff)?;
                return Ok(());
            }
            "devid" => {
                self.attributes.device_id = self.value(&mut line, "devid", 0xffff)?;
                return Ok(());
            }
            "width" | "speed" | "extspeed" => {
                let at = ["width", "speed", "extspeed"].iter().position(|k| *k == key);
                self.masks[at.unwrap_or_default()] = Some(self.value(&mut line, "a mask", 31)?);
                return Ok(());
            }
            "sysimgguid" => &mut self.attributes.system_guid,
            "switchguid" | "caguid" | "hcaguid" | "hcaguids" | "rtguid" => {
                &mut self.attributes.guid
            }
            _ => return Err(self.error(Line::new(text), Rule::Keyword)),
        };
        let at = line;
        let word = line.word().and_then(scan::guid);
        let missing = word.is_none();
        *slot = word;
        self.attributes.port0_guid = line.guid_in_brackets().or(self.attributes.port0_guid);
        if missing { Err(self.error(at, Rule::Number("a GUID", u64::MAX))) } else { Ok(()) }
    }

    fn value<T: TryFrom<u64>>(
        &self,
        line: &mut Line<'a>,
        what: &'static str,
        most: u64,
    ) -> Result<T, ParseError> {
        let at = *line;
        let number = line.number().filter(|n| *n <= most).and_then(|n| T::try_from(n).ok());
        number.ok_or_else(|| self.error(at, Rule::Number(what, most)))
    }

    fn node(&mut self, mut line: Line<'a>) -> Result<(), ParseError> {
        let start = line;
        let kind = match line.word() {
            Some("Switch") => NodeKind::Switch,
            Some("Ca" | "Hca") => NodeKind::Ca,
            Some("Rt") => NodeKind::Router,
            Some("include" | "do" | "module") => return Err(self.error(start, Rule::IbsimOnly)),
            _ => return Err(self.error(start, Rule::Line)),
        };
        let at = line;
        let ports = line.number().and_then(|n| u8::try_from(n).ok());
        let ports = ports.filter(|n| (1..=MAX_PORTS).contains(n));
        let ports = ports.ok_or_else(|| self.error(at, Rule::Ports))?;
        let at = line;
        let id = line.quoted().filter(|id| !id.is_empty() && !id.contains(char::is_control));
        let id = id.ok_or_else(|| self.error(at, Rule::Name))?;
        self.all_ports += usize::from(ports) + 1;
        if self.topology.nodes.len() == MAX_NODES || self.all_ports > MAX_ALL_PORTS {
            return Err(self.error(start, Rule::TooLarge));
        }
        let index = self.topology.nodes.len();
        if let Some((_, line)) = self.names.insert(id, (index, self.number)) {
            return Err(self.error(at, Rule::SameName(line)));
        }
        let node = self.new_node(kind, id, ports, line)?;
        self.topology.nodes.push(node);
        self.open = true;
        Ok(())
    }

    fn new_node(
        &mut self,
        kind: NodeKind,
        id: &str,
        ports: u8,
        mut line: Line<'a>,
    ) -> Result<Node, ParseError> {
        let given = core::mem::take(&mut self.attributes);
        let in_name = id.get(2..).filter(|t| t.len() == 16).and_then(scan::guid);
        let guid = given.guid.or(in_name);
        if guid.is_some() {
            self.guid_lines.push((self.topology.nodes.len(), self.number));
        }
        let mut node = Node::new(kind, id.to_string(), guid.unwrap_or_default(), ports);
        node.system_guid = given.system_guid.unwrap_or_default();
        node.vendor_id = given.vendor_id;
        node.device_id = given.device_id;
        if line.skip("#")
            && let at = line
            && let Some(text) = line.quoted()
        {
            if text.len() > MAX_DESCRIPTION || text.contains(char::is_control) {
                return Err(self.error(at, Rule::Description));
            }
            node.description = text.to_string();
        }
        if kind == NodeKind::Switch {
            node.enhanced_port0 = line.skip("enhanced");
            let (lid, lmc) = lid_and_lmc(&mut line);
            let own = given.port0_guid.filter(|g| *g != node.guid);
            if own.is_some() || lid != Lid(0) {
                node.ports.insert(0, Port { guid: own, lid, lmc, link: None });
            }
        }
        Ok(node)
    }

    fn port(&mut self, mut line: Line<'a>) -> Result<(), ParseError> {
        let start = line;
        let Some(index) = self.open.then(|| self.topology.nodes.len() - 1) else {
            return Err(self.error(line, Rule::NoNode));
        };
        let node = &self.topology.nodes[index];
        let (ports, is_switch) = (node.num_ports, node.kind == NodeKind::Switch);
        let number = line.bracketed().filter(|n| (1..=ports).contains(n));
        let number = number.ok_or_else(|| self.error(start, Rule::Port(ports)))?;
        if node.ports.contains_key(&number) {
            return Err(self.error(start, Rule::SamePort));
        }
        let guid = line.guid_in_brackets();
        let mut port = Port { guid, ..Port::default() };
        let at = line;
        let to = line.quoted();
        if let Some(remote) = to {
            let far = line.bracketed().ok_or_else(|| self.error(line, Rule::AfterPort))?;
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
            self.cables.push(Cable { line: self.number, from, to: (remote, far), rate });
        } else if guid.is_none() || !(at.is_empty() || line.skip("#")) {
            return Err(self.error(at, Rule::AfterPort));
        }
        self.topology.nodes[index].ports.insert(number, port);
        Ok(())
    }

    /// `#[1](GUID) lid L lmc M`, as the writer has it. Anything else behind `#` is a comment.
    fn port_without_cable(&mut self, mut line: Line<'a>) {
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

    /// `w=`, `s=` and `e=`: masks of enabled widths, speeds and extended speeds; those that stand
    /// for the whole file hold where a port says nothing.
    fn options(&self, line: &mut Line<'a>) -> Result<Option<LinkRate>, ParseError> {
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

    fn finish(mut self) -> Result<Topology, ParseError> {
        self.check_guids()?;
        for cable in core::mem::take(&mut self.cables) {
            let (name, port) = cable.to;
            let error = |rule| {
                let token = format!("\"{name}\"[{port}]").chars().take(64).collect();
                ParseError { line: cable.line, token, rule }
            };
            let &(node, _) = self.names.get(name).ok_or_else(|| error(Rule::Remote))?;
            let to = PortRef { node, port };
            if port == 0 || port > self.topology.nodes[node].num_ports {
                return Err(error(Rule::Remote));
            }
            let known = self.topology.link(cable.from).map(|(_, rate)| rate);
            let rate = cable.rate.or(known).unwrap_or(LinkRate::DEFAULT);
            let put = self.topology.connect(cable.from, to, rate);
            put.map_err(|e| error(Rule::Cable(e)))?;
        }
        self.drop_default_guids();
        Ok(self.topology)
    }

    /// Nodes without a GUID get one, as ibsim would choose them; two nodes with one GUID are refused.
    fn check_guids(&mut self) -> Result<(), ParseError> {
        let mut seen = BTreeMap::new();
        for &(node, line) in &self.guid_lines {
            let guid = self.topology.nodes[node].guid;
            if guid == Guid(0) || seen.insert(guid, node).is_some() {
                let token = self.topology.nodes[node].id.chars().take(64).collect();
                return Err(ParseError { line, token, rule: Rule::Guid(guid) });
            }
        }
        let mut next = Guid(0x0010_0000);
        for (index, node) in self.topology.nodes.iter_mut().enumerate() {
            if node.guid == Guid(0) {
                while seen.contains_key(&next) {
                    next.0 += 0x100;
                }
                node.guid = next;
                seen.insert(next, index);
            }
            if node.system_guid == Guid(0) {
                node.system_guid = node.guid;
            }
        }
        Ok(())
    }

    /// What a port has by default it does not have as its own.
    fn drop_default_guids(&mut self) {
        for node in &mut self.topology.nodes {
            let (guid, is_switch) = (node.guid.0, node.kind == NodeKind::Switch);
            for (&number, port) in &mut node.ports {
                let default = Guid(guid.wrapping_add(if is_switch { 0 } else { number.into() }));
                let ignored = is_switch && number != 0;
                port.guid = port.guid.filter(|g| *g != default && !ignored);
            }
            node.ports.retain(|_, p| *p != Port::default());
        }
    }

    fn error(&self, at: Line<'_>, rule: Rule) -> ParseError {
        ParseError { line: self.number, token: at.token().chars().take(64).collect(), rule }
    }
}

/// `lid L lmc M` of a port itself, behind the `#`: before the description of the other end.
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

/// The rate that stands somewhere behind the `#`.
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
