//! Names of nodes and ports: modules, and aliases.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};

use super::model::PortRef;
use super::parse::At;
use super::rate::LinkRate;

/// The longest name of a module, as in ibsim.
const MAX_MODULE: usize = 20;

/// The names that were read.
#[derive(Default)]
pub(super) struct Names {
    /// The module that the lines belong to; empty if they belong to none.
    module: String,
    nodes: BTreeMap<String, usize>,
    aliases: BTreeMap<String, Alias>,
}

struct Alias {
    port: PortRef,
    rate: Option<LinkRate>,
    at: At,
}

/// The other end of a cable.
pub(super) enum Remote {
    /// By its name: the node may come later.
    Named(String, u8),
    /// By an alias, with the rate that its line has.
    Port(PortRef, Option<LinkRate>),
}

/// An end that a command names.
pub(super) enum Named {
    /// By the name of its node.
    Node(usize),
    /// By an alias.
    Port(PortRef),
}

impl Names {
    /// Begins a module, or ends the last one with an empty name. Whether the name is a good one.
    pub(super) fn set_module(&mut self, name: &str) -> bool {
        let good = name.len() <= MAX_MODULE
            && !name.contains(|c: char| c.is_control() || c == '#' || c == '@');
        if good {
            self.module = name.to_string();
        }
        good
    }

    /// The name of a node of this module. In none all characters are allowed, so that what was written
    /// of a topology with modules can be read.
    pub(super) fn new_id(&self, base: &str) -> Option<String> {
        if self.module.is_empty() {
            return Some(base.to_string());
        }
        (!base.contains(['#', '@'])).then(|| format!("{}#{base}", self.module))
    }

    /// Enters a node, or returns the one that has the name.
    pub(super) fn insert(&mut self, id: &str, node: usize) -> Option<usize> {
        let other = self.nodes.get(id).copied();
        if other.is_none() {
            self.nodes.insert(id.to_string(), node);
        }
        other
    }

    /// Enters an alias, or returns the line that has it already.
    pub(super) fn insert_alias(
        &mut self,
        name: &str,
        port: PortRef,
        rate: Option<LinkRate>,
        at: At,
    ) -> Option<At> {
        let name = format!("{}@{name}", self.module);
        let other = self.aliases.get(&name).map(|alias| alias.at);
        if other.is_none() {
            self.aliases.insert(name, Alias { port, rate, at });
        }
        other
    }

    /// The other end of a cable, as a line of this module names it: `name`, `module#name`, `@alias` or
    /// `module@alias`. An alias has no number of its own.
    pub(super) fn remote(&self, name: &str, port: u8) -> Remote {
        match self.alias(name) {
            Some(alias) => Remote::Port(alias.port, alias.rate),
            None => Remote::Named(self.expand(name), port),
        }
    }

    /// What a command names: only what is above it.
    pub(super) fn find(&self, name: &str) -> Option<Named> {
        match self.alias(name) {
            Some(alias) => Some(Named::Port(alias.port)),
            None => self.node(&self.expand(name)).map(Named::Node),
        }
    }

    /// The node that has this name, module and all.
    pub(super) fn node(&self, id: &str) -> Option<usize> {
        self.nodes.get(id).copied()
    }

    fn alias(&self, name: &str) -> Option<&Alias> {
        if name.starts_with('@') {
            return self.aliases.get(&format!("{}{name}", self.module));
        }
        self.aliases.get(name)
    }

    fn expand(&self, name: &str) -> String {
        if self.module.is_empty() || name.contains(['#', '@']) {
            return name.to_string();
        }
        format!("{}#{name}", self.module)
    }
}
