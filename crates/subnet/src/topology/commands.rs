//! `do`: ibsim commands that define a topology.

use rdmux_wire::Lid;

use super::error::{ParseError, Rule};
use super::model::{NodeKind, PortRef};
use super::names::{Named, Remote};
use super::parse::{Cable, Reader};
use super::scan::{self, Line};

impl Reader {
    /// Executes `do COMMAND ...`; case is ignored. A command can only name what precedes it.
    pub(super) fn command(&mut self, mut line: Line<'_>) -> Result<(), ParseError> {
        let start = line;
        let is = |word: &str, name: &str| word.eq_ignore_ascii_case(name);
        match line.any() {
            Some(word) if is(word, "Link") => self.link(line),
            Some(word) if is(word, "Guid") => self.set_guid(line),
            Some(word) if is(word, "Baselid") => self.base_lid(line),
            Some(word) if word.starts_with('#') => Ok(()),
            _ => Err(self.error(start, Rule::Command)),
        }
    }

    /// Executes `Link "node"[port] "node"[port]`.
    fn link(&mut self, mut line: Line<'_>) -> Result<(), ParseError> {
        let mut end = || {
            let at = line;
            match self.end(&mut line, Rule::Link)? {
                (node, Some(port)) if port != 0 => Ok(PortRef { node, port }),
                _ => Err(self.error(at, Rule::Link)),
            }
        };
        let (from, to) = (end()?, end()?);
        let rate = self.options(&mut line)?;
        self.end_of_line(line, Rule::Link)?;
        let to = Remote::Port(to, None);
        self.cables.push(Cable { at: self.at, from, to, rate });
        Ok(())
    }

    /// Executes `Guid "node"[port] GUID`, which sets the GUID of a node, whose ports keep theirs, or of a port.
    fn set_guid(&mut self, mut line: Line<'_>) -> Result<(), ParseError> {
        let start = line;
        let (node, port) = self.end(&mut line, Rule::SetGuid)?;
        let is_switch = self.topology.nodes[node].kind == NodeKind::Switch;
        if port == Some(0) || is_switch && port.is_some() {
            return Err(self.error(start, Rule::SetGuid));
        }
        let at = line;
        let guid = line.word().and_then(scan::guid);
        let guid = guid.ok_or_else(|| self.error(at, Rule::SetGuid))?;
        self.end_of_line(line, Rule::SetGuid)?;
        self.commanded.push((self.at, node, port, guid));
        Ok(())
    }

    /// Executes `Baselid "node"[port] LID [LMC]`.
    fn base_lid(&mut self, mut line: Line<'_>) -> Result<(), ParseError> {
        let start = line;
        let (node, port) = self.end(&mut line, Rule::Baselid)?;
        let is_switch = self.topology.nodes[node].kind == NodeKind::Switch;
        let port = port.filter(|port| (*port == 0) == is_switch);
        let port = port.ok_or_else(|| self.error(start, Rule::Baselid))?;
        let at = line;
        let lid = line.number().and_then(|n| u16::try_from(n).ok()).map(Lid);
        let lid = lid.filter(|lid| lid.is_unicast());
        let lid = lid.ok_or_else(|| self.error(at, Rule::Baselid))?;
        let at = line;
        let lmc = if line.is_empty() || line.starts_with("#") { Some(0) } else { line.number() };
        let lmc = lmc.and_then(|n| u8::try_from(n).ok()).filter(|lmc| *lmc < 8);
        let lmc = lmc.ok_or_else(|| self.error(at, Rule::Baselid))?;
        self.end_of_line(line, Rule::Baselid)?;
        let port = self.topology.nodes[node].ports.entry(port).or_default();
        (port.lid, port.lmc) = (lid, lmc);
        Ok(())
    }

    /// Parses the name of a preceding node or port: `"node"`, `"node"[port]` or `"module@alias"`.
    fn end(&self, line: &mut Line<'_>, rule: Rule) -> Result<(usize, Option<u8>), ParseError> {
        let at = *line;
        let name = line.quoted().ok_or_else(|| self.error(at, rule.clone()))?;
        let named = self.names.find(name).ok_or_else(|| self.error(at, Rule::Named))?;
        let node = match named {
            Named::Port(PortRef { node, port }) => return Ok((node, Some(port))),
            Named::Node(node) => node,
        };
        if !line.starts_with("[") {
            return Ok((node, None));
        }
        let before = *line;
        let port = line.bracketed().ok_or_else(|| self.error(before, rule))?;
        if port > self.topology.nodes[node].num_ports {
            return Err(self.error(at, Rule::Named));
        }
        Ok((node, Some(port)))
    }

    fn end_of_line(&self, line: Line<'_>, rule: Rule) -> Result<(), ParseError> {
        if line.is_empty() || line.starts_with("#") {
            return Ok(());
        }
        Err(self.error(line, rule))
    }
}
