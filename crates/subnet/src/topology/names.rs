//! Names of nodes and ports: modules and aliases.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};

use super::model::PortRef;
use super::parse::At;
use super::rate::LinkRate;

/// The longest name of a module, as in ibsim.
const MAX_MODULE: usize = 20;

/// The names read so far.
#[derive(Default)]
pub(super) struct Names {
    /// The module of the present lines; empty outside of modules.
    module: String,
    nodes: BTreeMap<String, usize>,
    aliases: BTreeMap<String, Alias>,
}

/// A port with an alias, and the place of its definition.
struct Alias {
    port: PortRef,
    rate: Option<LinkRate>,
    at: At,
}

/// The other end of a cable.
pub(super) enum Remote {
    /// Named by node name and port number. The node may be defined later in the file.
    Named(String, u8),
    /// Named by an alias, with the rate in the alias's line.
    Port(PortRef, Option<LinkRate>),
}

/// A node or port that a command names.
pub(super) enum Named {
    /// A node, by its name.
    Node(usize),
    /// A port, by an alias.
    Port(PortRef),
}

impl Names {
    /// Begins a module, or ends the last one if the name is empty. Returns whether the name is valid.
    pub(super) fn set_module(&mut self, name: &str) -> bool {
        let good = name.len() <= MAX_MODULE
            && !name.contains(|c: char| c.is_control() || c == '#' || c == '@');
        if good {
            self.module = name.to_string();
        }
        good
    }

    /// Returns the full name of a node of this module. Outside of modules all characters are allowed, so that the written
    /// form of a topology with modules can be read again.
    pub(super) fn new_id(&self, base: &str) -> Option<String> {
        if self.module.is_empty() {
            return Some(base.to_string());
        }
        (!base.contains(['#', '@'])).then(|| format!("{}#{base}", self.module))
    }

    /// Adds a node, or returns the node that already has the name.
    pub(super) fn insert(&mut self, id: &str, node: usize) -> Option<usize> {
        let other = self.nodes.get(id).copied();
        if other.is_none() {
            self.nodes.insert(id.to_string(), node);
        }
        other
    }

    /// Adds an alias, or returns the line that already defines it.
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

    /// Resolves the other end of a cable as named by a line of this module: `name`, `module#name`, `@alias` or
    /// `module@alias`. An alias includes its port number.
    pub(super) fn remote(&self, name: &str, port: u8) -> Remote {
        match self.alias(name) {
            Some(alias) => Remote::Port(alias.port, alias.rate),
            None => Remote::Named(self.expand(name), port),
        }
    }

    /// Resolves a name in a command, which must precede the command.
    pub(super) fn find(&self, name: &str) -> Option<Named> {
        match self.alias(name) {
            Some(alias) => Some(Named::Port(alias.port)),
            None => self.node(&self.expand(name)).map(Named::Node),
        }
    }

    /// Returns the node with this full name.
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
