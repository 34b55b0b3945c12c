//! A small subnet manager: discovers all nodes by directed routes, assigns LIDs, writes forwarding tables, and activates the
//! ports. It retransmits unanswered requests.

use std::collections::{BTreeMap, VecDeque};

use rdmux_subnet::PortId;
use rdmux_wire::mad::status;
use rdmux_wire::sm::{
    Attribute, LinearForwardingTable, NO_ROUTE, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo,
};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

use crate::net::{Net, get, set};

/// How often a request is sent before the sweep fails.
const TRIES: u32 = 30;

struct Found {
    path: Vec<u8>,
    info: NodeInfo,
    lid: Lid,
    /// For each port with a link: the node and the port at its other end.
    peers: BTreeMap<u8, (usize, u8)>,
}

pub(crate) struct Manager<'a> {
    net: &'a mut Net,
    port: PortId,
    /// Decides which requests are lost.
    loses: Box<dyn FnMut() -> bool>,
    /// Changes the subnet; called before each request.
    during: Box<dyn FnMut(&mut Net)>,
    nodes: Vec<Found>,
    by_port: BTreeMap<(Guid, u8), usize>,
}

/// A request that was never answered, or was answered with an error because the subnet had changed.
#[derive(Debug)]
pub(crate) struct Silent;

impl<'a> Manager<'a> {
    /// Brings a subnet up from a port. Returns the LID of every end port.
    pub(crate) fn bring_up(net: &'a mut Net, port: PortId) -> Result<Vec<Lid>, Silent> {
        Self::bring_up_losing(net, port, || false)
    }

    /// Brings a subnet up while some requests are lost.
    pub(crate) fn bring_up_losing(
        net: &'a mut Net,
        port: PortId,
        loses: impl FnMut() -> bool + 'static,
    ) -> Result<Vec<Lid>, Silent> {
        let mut manager = Self::new(net, port);
        manager.loses = Box::new(loses);
        manager.sweep()
    }

    /// Brings a subnet up while it changes.
    pub(crate) fn bring_up_during(
        net: &'a mut Net,
        port: PortId,
        during: impl FnMut(&mut Net) + 'static,
    ) -> Result<Vec<Lid>, Silent> {
        let mut manager = Self::new(net, port);
        manager.during = Box::new(during);
        manager.sweep()
    }

    fn new(net: &'a mut Net, port: PortId) -> Self {
        let (nodes, by_port) = (Vec::new(), BTreeMap::new());
        Self { net, port, loses: Box::new(|| false), during: Box::new(|_| {}), nodes, by_port }
    }

    fn sweep(mut self) -> Result<Vec<Lid>, Silent> {
        self.discover()?;
        self.give_lids()?;
        self.write_routes()?;
        self.activate()?;
        Ok(self.nodes.iter().map(|n| n.lid).collect())
    }

    fn ask(&mut self, path: &[u8], smp: &Smp) -> Result<Attribute, Silent> {
        for _ in 0..TRIES {
            (self.during)(self.net);
            if (self.loses)() {
                continue;
            }
            let answer = self.net.dr(self.port, path, smp);
            if (self.loses)() {
                continue;
            }
            let answer = answer.ok_or(Silent)?;
            if answer.status() != status::OK {
                return Err(Silent);
            }
            return answer.attribute().ok_or(Silent);
        }
        Err(Silent)
    }

    fn port_info(&mut self, path: &[u8], number: u8) -> Result<PortInfo, Silent> {
        match self.ask(path, &get(PortInfo::ATTR_ID, number.into()))? {
            Attribute::PortInfo(info) => Ok(info),
            other => panic!("{other}"),
        }
    }

    fn discover(&mut self) -> Result<(), Silent> {
        let mut next = VecDeque::new();
        self.visit(vec![], None, &mut next)?;
        while let Some((node, number)) = next.pop_front() {
            let mut path = self.nodes[node].path.clone();
            path.push(number);
            self.visit(path, Some((node, number)), &mut next)?;
        }
        Ok(())
    }

    fn visit(
        &mut self,
        path: Vec<u8>,
        from: Option<(usize, u8)>,
        next: &mut VecDeque<(usize, u8)>,
    ) -> Result<(), Silent> {
        let Attribute::NodeInfo(info) = self.ask(&path, &get(NodeInfo::ATTR_ID, 0))? else {
            panic!("not NodeInfo")
        };
        // Each port of an adapter has a LID and counts as an end of its own here.
        let is_switch = info.node_type == NodeType::SWITCH;
        let key = (info.node_guid, if is_switch { 0 } else { info.local_port_num });
        let index = match self.by_port.get(&key) {
            Some(&index) => index,
            None => {
                let index = self.nodes.len();
                self.by_port.insert(key, index);
                let ports = if is_switch {
                    1..=info.num_ports
                } else {
                    info.local_port_num..=info.local_port_num
                };
                for number in ports {
                    if self.port_info(&path, number)?.port_state != PortState::DOWN {
                        next.push_back((index, number));
                    }
                }
                let lid = Lid(u16::try_from(index + 1).expect("a LID"));
                self.nodes.push(Found { path, info, lid, peers: BTreeMap::new() });
                index
            }
        };
        // An adapter forwards no requests. Only behind the first one, which is the manager's own, discovery continues.
        if !is_switch && index != 0 {
            next.retain(|(node, _)| *node != index);
        }
        if let Some((node, number)) = from {
            self.nodes[node].peers.insert(number, (index, info.local_port_num));
            self.nodes[index].peers.insert(info.local_port_num, (node, number));
        }
        Ok(())
    }

    fn give_lids(&mut self) -> Result<(), Silent> {
        for index in 0..self.nodes.len() {
            let (path, lid) = (self.nodes[index].path.clone(), self.nodes[index].lid);
            let number = self.managed_port(index);
            let info = self.port_info(&path, number)?;
            let new = PortInfo {
                lid,
                sm_lid: Lid(1),
                port_state: PortState::NO_CHANGE,
                port_physical_state: Default::default(),
                ..info
            };
            self.ask(&path, &set(new, number.into()))?;
        }
        Ok(())
    }

    /// Returns the port that has the node's LID.
    fn managed_port(&self, index: usize) -> u8 {
        match self.nodes[index].info.node_type {
            NodeType::SWITCH => 0,
            _ => self.nodes[index].info.local_port_num,
        }
    }

    fn write_routes(&mut self) -> Result<(), Silent> {
        let last = self.nodes.len();
        let mut tables = vec![vec![NO_ROUTE; (last / 64 + 1) * 64]; last];
        for to in 0..last {
            self.route_to(to, &mut tables);
        }
        for (index, table) in tables.iter().enumerate() {
            if self.nodes[index].info.node_type != NodeType::SWITCH {
                continue;
            }
            let path = self.nodes[index].path.clone();
            let Attribute::SwitchInfo(info) = self.ask(&path, &get(SwitchInfo::ATTR_ID, 0))? else {
                panic!("not SwitchInfo")
            };
            let top = Lid(u16::try_from(last).expect("a LID"));
            let new = SwitchInfo { linear_fdb_top: top, port_state_change: true, ..info };
            self.ask(&path, &set(new, 0))?;
            for (block, ports) in table.chunks_exact(64).enumerate() {
                let ports = ports.try_into().expect("64 ports");
                let block = u32::try_from(block).expect("a block");
                self.ask(&path, &set(LinearForwardingTable { ports }, block))?;
            }
        }
        Ok(())
    }

    /// Computes shortest paths to one end, backwards from it.
    fn route_to(&self, to: usize, tables: &mut [Vec<u8>]) {
        let lid = usize::from(self.nodes[to].lid.0);
        tables[to][lid] = 0;
        let mut seen = vec![false; self.nodes.len()];
        seen[to] = true;
        let mut next = VecDeque::from([to]);
        while let Some(node) = next.pop_front() {
            if node != to && self.nodes[node].info.node_type != NodeType::SWITCH {
                continue;
            }
            for &(far, far_port) in self.nodes[node].peers.values() {
                if !std::mem::replace(&mut seen[far], true) {
                    tables[far][lid] = far_port;
                    next.push_back(far);
                }
            }
        }
    }

    fn activate(&mut self) -> Result<(), Silent> {
        for state in [PortState::ARMED, PortState::ACTIVE] {
            for index in 0..self.nodes.len() {
                let path = self.nodes[index].path.clone();
                let numbers: Vec<u8> = self.nodes[index].peers.keys().copied().collect();
                for number in numbers {
                    let info = self.port_info(&path, number)?;
                    let new = PortInfo {
                        port_state: state,
                        port_physical_state: Default::default(),
                        ..info
                    };
                    self.ask(&path, &set(new, number.into()))?;
                }
            }
        }
        Ok(())
    }
}
