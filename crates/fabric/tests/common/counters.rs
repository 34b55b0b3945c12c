//! Ports' counters, read from each node's own agent, so that the queries cross no link.

use rdmux_fabric::client::MadFile;
use rdmux_fabric::proto::{NodeRef, NodeView, PortRef};
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass, status};
use rdmux_wire::pm::{CLASS_VERSION, DATA_AT, PortCounters, PortCountersExtended};
use rdmux_wire::{Guid, Lid};

use super::{DIRECTED, Fabric};

/// A client of a node's performance management agent.
pub(crate) struct Counters {
    file: MadFile,
    agent: u32,
    lid: Lid,
}

impl Counters {
    /// Opens it for a node of a fabric: by port 0 of a switch, else by port 1.
    pub(crate) fn of(fabric: &Fabric, node: &NodeView) -> Self {
        let number = if node.is_switch { 0 } else { 1 };
        let port = node.ports.iter().find(|port| port.number == number).unwrap();
        Self::at(fabric, node.guid, number, port.lid)
    }

    pub(crate) fn at(fabric: &Fabric, node: Guid, port: u8, lid: Lid) -> Self {
        let at = PortRef { node: NodeRef::Guid(node), port };
        let file = MadFile::open(&fabric.options, &fabric.name, &at).unwrap();
        let (class, class_version) = (MgmtClass::PERF.0, CLASS_VERSION);
        let agent = file.register(&Registration { qpn: 1, class, class_version, ..DIRECTED });
        Self { agent: agent.unwrap(), file, lid }
    }

    fn ask(&self, method: Method, attr_id: u16, data: &[u8]) -> Vec<u8> {
        let mut mad = vec![0; MAD_LEN];
        let mut header = MadHeader::new(MgmtClass::PERF, CLASS_VERSION, method);
        (header.attr_id, header.tid) = (attr_id, 1);
        header.emit(&mut mad);
        mad[DATA_AT..DATA_AT + data.len()].copy_from_slice(data);
        let request = UserMad {
            agent: self.agent,
            status: 0,
            timeout_ms: 60_000,
            retries: 0,
            address: UserAddress::gsi(self.lid),
            data: mad,
        };
        self.file.send_mad(&request).unwrap();
        let answer = self.file.recv_mad().unwrap();
        assert_eq!(answer.status, 0, "no answer");
        assert_eq!(MadHeader::parse(&answer.data).unwrap().status, status::OK);
        answer.data[DATA_AT..].to_vec()
    }

    pub(crate) fn extended(&self, port: u8) -> PortCountersExtended {
        let asked = PortCountersExtended { port_select: port, ..Default::default() };
        let answer = self.ask(Method::GET, PortCountersExtended::ATTR_ID, &asked.to_bytes());
        PortCountersExtended::read(&answer).unwrap()
    }

    pub(crate) fn classic(&self, port: u8) -> PortCounters {
        let asked = PortCounters { port_select: port, ..Default::default() };
        let answer = self.ask(Method::GET, PortCounters::ATTR_ID, &asked.to_bytes());
        PortCounters::read(&answer).unwrap()
    }

    /// Clears all counters of a port, in both attributes.
    pub(crate) fn clear(&self, port: u8) {
        let mut classic = [0; PortCounters::LEN];
        (classic[1], classic[2], classic[3]) = (port, 0xff, 0xff);
        self.ask(Method::SET, PortCounters::ATTR_ID, &classic);
        let mut extended = [0; PortCountersExtended::LEN];
        (extended[1], extended[2], extended[3]) = (port, 0xff, 0xff);
        extended[4..8].fill(0xff);
        self.ask(Method::SET, PortCountersExtended::ATTR_ID, &extended);
    }
}
