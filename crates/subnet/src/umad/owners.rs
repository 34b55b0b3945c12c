//! The agents that own requests.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_wire::mad::{MadHeader, Method, MgmtClass};

use super::{AgentNumber, Registration};
use crate::PortId;
use crate::rmpp::Mad;

/// Owners of methods, by port and class.
#[derive(Debug, Default)]
pub(super) struct Owners {
    classes: BTreeMap<Class, Vec<(u128, AgentNumber)>>,
}

/// A class of requests at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    port: PortId,
    class: u8,
    version: u8,
    /// Zero for classes without an OUI.
    oui: [u8; 3],
}

/// The offset of the OUI in MADs of vendor classes.
const OUI: usize = 37;

impl Owners {
    /// Gives methods to an agent. Returns false if another agent owns one of them.
    pub(super) fn claim(&mut self, port: PortId, what: &Registration, agent: AgentNumber) -> bool {
        if what.class == 0 || what.methods == 0 {
            return true;
        }
        let owners = self.classes.entry(Class::of(port, what)).or_default();
        if owners.iter().any(|(methods, _)| methods & what.methods != 0) {
            return false;
        }
        owners.push((what.methods, agent));
        true
    }

    /// Releases everything that an agent owns.
    pub(super) fn release(&mut self, port: PortId, what: &Registration, agent: AgentNumber) {
        let class = Class::of(port, what);
        let Some(owners) = self.classes.get_mut(&class) else { return };
        owners.retain(|&(_, owner)| owner != agent);
        if owners.is_empty() {
            self.classes.remove(&class);
        }
    }

    /// Returns the agent that owns this request.
    pub(super) fn owner(&self, port: PortId, header: &MadHeader, mad: &Mad) -> Option<AgentNumber> {
        let class = header.mgmt_class;
        let oui = match mad[OUI..].first_chunk() {
            Some(oui) if class.is_vendor_with_oui() => *oui,
            _ => [0; 3],
        };
        let class = Class { port, class: class.0, version: header.class_version, oui };
        let method = 1_u128 << (header.method.0 & !Method::RESPONSE_BIT);
        let owners = self.classes.get(&class)?;
        owners.iter().find(|(methods, _)| methods & method != 0).map(|&(_, agent)| agent)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }
}

impl Class {
    fn of(port: PortId, what: &Registration) -> Self {
        let oui = if MgmtClass(what.class).is_vendor_with_oui() { what.oui } else { [0; 3] };
        Self { port, class: what.class, version: what.class_version, oui }
    }
}
