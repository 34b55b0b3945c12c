//! The writer, in the output format of `ibnetdiscover`, which `ibsim` reads.

use core::fmt;

use super::model::{Node, NodeKind, Port, PortRef, Topology};

impl fmt::Display for Topology {
    /// Writes the nodes in order, each with its cables and an empty line after it. [`Topology::parse`] reads the same
    /// topology back, if descriptions were set by [`Node::describe`] and names have neither quotes nor control characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            node.heading(f)?;
            for (&number, port) in node.ports.iter().filter(|(number, _)| **number != 0) {
                self.port(f, node, number, port)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Node {
    fn heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vendor_id, device_id, system_guid, guid, id, num_ports, description, .. } = self;
        writeln!(
            f,
            "vendid={vendor_id:#x}\ndevid={device_id:#x}\nsysimgguid={:#x}",
            system_guid.0
        )?;
        match self.kind {
            NodeKind::Switch => writeln!(f, "switchguid={:#x}({:x})", guid.0, self.port_guid(0).0)?,
            NodeKind::Ca => writeln!(f, "caguid={:#x}", guid.0)?,
            NodeKind::Router => writeln!(f, "rtguid={:#x}", guid.0)?,
        }
        let kind = match self.kind {
            NodeKind::Switch => "Switch",
            NodeKind::Ca => "Ca",
            NodeKind::Router => "Rt",
        };
        write!(f, "{kind}\t{num_ports} \"{id}\"\t\t# \"{description}\"")?;
        if self.kind == NodeKind::Switch {
            let port0 = if self.enhanced_port0 { "enhanced" } else { "base" };
            let (lid, lmc) = self.lid_and_lmc(0);
            write!(f, " {port0} port 0 lid {lid} lmc {lmc}")?;
        }
        writeln!(f)
    }

    /// Writes a port without a cable as a comment, since ibsim would reject it.
    fn port_without_cable(&self, f: &mut fmt::Formatter<'_>, n: u8) -> fmt::Result {
        if self.kind == NodeKind::Switch {
            return Ok(());
        }
        write!(f, "#[{n}]({:x})", self.port_guid(n).0)?;
        match self.lid_and_lmc(n) {
            (0, _) => writeln!(f),
            (lid, lmc) => writeln!(f, " lid {lid} lmc {lmc}"),
        }
    }

    /// Returns the LID and LMC of a port; all ports of a switch have those of port 0.
    fn lid_and_lmc(&self, port: u8) -> (u16, u8) {
        let at = if self.kind == NodeKind::Switch { 0 } else { port };
        self.ports.get(&at).map_or((0, 0), |p| (p.lid.0, p.lmc))
    }
}

impl Topology {
    fn port(&self, f: &mut fmt::Formatter<'_>, node: &Node, n: u8, port: &Port) -> fmt::Result {
        let is_switch = node.kind == NodeKind::Switch;
        let Some((PortRef { node: far, port: far_port }, rate)) = port.link else {
            return node.port_without_cable(f, n);
        };
        write!(f, "[{n}]")?;
        if !is_switch {
            write!(f, "({:x})", node.port_guid(n).0)?;
        }
        let far = &self.nodes[far];
        write!(f, " \t\"{}\"[{far_port}]", far.id)?;
        if is_switch && far.kind != NodeKind::Switch {
            write!(f, "({:x})", far.port_guid(far_port).0)?;
        }
        write!(f, " \t\t#")?;
        if !is_switch {
            let (lid, lmc) = node.lid_and_lmc(n);
            write!(f, " lid {lid} lmc {lmc}")?;
        }
        let (far_lid, _) = far.lid_and_lmc(far_port);
        writeln!(f, " \"{}\" lid {far_lid} {rate}", far.description)
    }
}
