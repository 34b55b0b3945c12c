//! A subnet with managers on some of its ports, and a clock.

use std::collections::VecDeque;
use std::time::Duration;

use rdmux_subnet::manager::{Config as ManagerConfig, Event, Manager, ManagerSink};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::topology::Shape;
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{Config, MadPacket, NodeId, PortEvent, PortId, Sink, Subnet, Time, Topology};
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sm::{PortState, SmState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid, Pkey, Qkey, Qpn};

/// The output of managers, by their index.
#[derive(Default)]
pub(crate) struct Out {
    from: usize,
    sent: VecDeque<(usize, UserAddress, Box<Mad>)>,
    pub(crate) events: Vec<(usize, Event)>,
}

impl Out {
    /// Takes the next datagram that was sent.
    pub(crate) fn next(&mut self) -> Option<Box<Mad>> {
        self.sent.pop_front().map(|(_, _, mad)| mad)
    }
}

impl ManagerSink for Out {
    fn send(&mut self, to: UserAddress, mad: Box<Mad>) {
        self.sent.push_back((self.from, to, mad));
    }
    fn event(&mut self, event: Event) {
        self.events.push((self.from, event));
    }
}

/// The output of the subnet.
#[derive(Default)]
pub(crate) struct Inbox {
    packets: VecDeque<(PortId, MadPacket)>,
    pub(crate) events: Vec<(PortId, PortEvent)>,
}

impl Sink for Inbox {
    fn deliver(&mut self, port: PortId, packet: MadPacket) {
        self.packets.push_back((port, packet));
    }
    fn port_event(&mut self, port: PortId, event: PortEvent) {
        self.events.push((port, event));
    }
}

/// Intercepts a datagram to or from a manager: may change it, and drops it by returning false.
type Meddler = Box<dyn FnMut(&mut Subnet, Way, &mut Mad) -> bool>;

/// The direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToSubnet,
    ToManager,
}

pub(crate) struct Net {
    pub(crate) subnet: Subnet,
    pub(crate) managers: Vec<(PortId, Manager)>,
    /// Stopped managers, which get no datagrams.
    pub(crate) dead: Vec<bool>,
    pub(crate) out: Out,
    pub(crate) inbox: Inbox,
    pub(crate) now: Time,
    pub(crate) meddler: Meddler,
    /// Datagrams for ports without a manager.
    pub(crate) strays: Vec<(PortId, MadPacket)>,
    /// The number of Sets and Gets that managers have sent.
    pub(crate) sets: u64,
    pub(crate) gets: u64,
}

pub(crate) const fn port(node: u32, number: u8) -> PortId {
    PortId::new(NodeId(node), number)
}

pub(crate) fn config() -> ManagerConfig {
    ManagerConfig::default()
}

/// Returns a datagram to QP1 of a port.
pub(crate) fn qp1(slid: Lid, dlid: Lid, mad: Mad) -> MadPacket {
    MadPacket {
        slid,
        dlid,
        sl: 0,
        src_qpn: Qpn::QP1,
        dst_qpn: Qpn::QP1,
        qkey: Qkey::QP1,
        pkey: Pkey::DEFAULT,
        grh: None,
        mad: Box::new(mad),
    }
}

impl Net {
    pub(crate) fn new(topology: &Topology) -> Self {
        Self {
            subnet: Subnet::new(topology, Config::default()),
            managers: Vec::new(),
            dead: Vec::new(),
            out: Out::default(),
            inbox: Inbox::default(),
            now: Time::ZERO,
            meddler: Box::new(|_, _, _| true),
            strays: Vec::new(),
            sets: 0,
            gets: 0,
        }
    }

    pub(crate) fn of(shape: &str) -> Self {
        let shape: Shape = shape.parse().expect("a shape");
        Self::new(&shape.topology(Guid(0x10_0000)))
    }

    /// Creates the subnet with a manager where the fabric has it, and completes its first sweeps.
    pub(crate) fn up(shape: &str, config: ManagerConfig) -> Self {
        let mut net = Self::of(shape);
        net.start_first(config);
        net
    }

    /// Starts a manager at port 0 of the first switch, or at the first adapter's port, and completes its first sweeps.
    pub(crate) fn start_first(&mut self, config: ManagerConfig) -> usize {
        let all = || self.subnet.ports().map(|view| view.id());
        let at = all().find(|id| id.number == 0).or_else(|| all().next()).expect("a port");
        self.start(at, config)
    }

    /// Starts a manager at a port, and completes its first sweeps.
    pub(crate) fn start(&mut self, at: PortId, config: ManagerConfig) -> usize {
        self.managers.push((at, Manager::new(config, self.now)));
        self.dead.push(false);
        self.subnet.set_attached(at, true);
        self.subnet.set_is_sm(self.now, at, true, &mut self.inbox);
        self.settle();
        self.managers.len() - 1
    }

    pub(crate) fn manager(&mut self) -> &mut Manager {
        &mut self.managers[0].1
    }

    pub(crate) fn state(&self, index: usize) -> SmState {
        self.managers[index].1.status().state
    }

    /// Kills a manager.
    pub(crate) fn kill(&mut self, index: usize) {
        self.dead[index] = true;
        let at = self.managers[index].0;
        self.subnet.set_is_sm(self.now, at, false, &mut self.inbox);
        self.settle();
    }

    /// Calls a manager and processes its output.
    pub(crate) fn with<T>(
        &mut self,
        index: usize,
        f: impl FnOnce(&mut Manager, Time, &mut Out) -> T,
    ) -> T {
        self.out.from = index;
        let result = f(&mut self.managers[index].1, self.now, &mut self.out);
        self.settle();
        result
    }

    /// Calls the subnet and processes its output.
    pub(crate) fn change<T>(&mut self, f: impl FnOnce(&mut Subnet, Time, &mut Inbox) -> T) -> T {
        let result = f(&mut self.subnet, self.now, &mut self.inbox);
        self.settle();
        result
    }

    /// Processes everything that takes no time.
    pub(crate) fn settle(&mut self) {
        self.settle_until(|| false);
    }

    /// Like `settle`, but stops as soon as a condition holds.
    pub(crate) fn settle_until(&mut self, come_about: impl Fn() -> bool) {
        for _ in 0..50_000_000_u64 {
            if come_about() {
                return;
            } else if let Some((index, to, mad)) = self.out.sent.pop_front() {
                self.transmit(index, to, mad);
            } else if let Some((at, packet)) = self.inbox.packets.pop_front() {
                self.arrive(at, packet);
            } else if let Some(index) = self.first_due() {
                self.out.from = index;
                self.managers[index].1.handle_timeout(self.now, &mut self.out);
            } else if self.subnet.next_timeout().is_some_and(|due| due <= self.now) {
                self.subnet.handle_timeout(self.now, &mut self.inbox);
            } else {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn first_due(&self) -> Option<usize> {
        let due = |(_, manager): &(PortId, Manager)| manager.next_timeout();
        let mut all = self.managers.iter().zip(&self.dead).enumerate();
        all.find(|(_, (m, dead))| !**dead && due(m).is_some_and(|due| due <= self.now))
            .map(|(i, _)| i)
    }

    /// Advances time.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        loop {
            self.settle();
            let alive = self.managers.iter().zip(&self.dead).filter(|(_, dead)| !**dead);
            let managers = alive.filter_map(|((_, manager), _)| manager.next_timeout());
            let Some(next) = managers.chain(self.subnet.next_timeout()).min() else { break };
            if next > until {
                break;
            }
            self.now = self.now.max(next);
        }
        self.now = until;
    }

    fn transmit(&mut self, index: usize, to: UserAddress, mut mad: Box<Mad>) {
        if self.dead[index] {
            return;
        }
        let from = self.managers[index].0;
        match MadHeader::parse(&mad[..]).expect("a MAD").method {
            Method::SET => self.sets += 1,
            Method::GET => self.gets += 1,
            _ => {}
        }
        if !(self.meddler)(&mut self.subnet, Way::ToSubnet, &mut mad) {
            return;
        }
        let own = self.subnet.port(from).expect("a port").lid();
        let packet = MadPacket::smp(own, to.lid, 0, mad);
        self.subnet.send(self.now, from, packet, &mut self.inbox);
    }

    /// Sends a datagram. Returns the ports that receive it.
    pub(crate) fn deliver(&mut self, from: PortId, packet: MadPacket) -> Vec<PortId> {
        let mut inbox = Inbox::default();
        self.subnet.send(self.now, from, packet, &mut inbox);
        inbox.packets.into_iter().map(|(to, _)| to).collect()
    }

    /// Returns a node's answer to a program's request, if there is one.
    pub(crate) fn ask(&mut self, from: PortId, mut smp: Smp) -> Option<Smp> {
        const TID: u64 = 0x7777_0000_0001;
        smp.header.tid = TID;
        let own = self.subnet.port(from).expect("a port").lid();
        let packet = MadPacket::smp(own, Lid::PERMISSIVE, 0, Box::new(smp.to_bytes()));
        let mut inbox = Inbox::default();
        self.subnet.send(self.now, from, packet, &mut inbox);
        let answers = inbox.packets.iter().map(|(_, p)| Smp::parse(&p.mad[..]).expect("a MAD"));
        answers.into_iter().find(|answer| answer.header.tid == TID)
    }

    fn arrive(&mut self, at: PortId, mut packet: MadPacket) {
        let mut all = self.managers.iter().zip(&self.dead);
        let Some(index) = all.position(|((port, _), dead)| *port == at && !dead) else {
            return self.strays.push((at, packet));
        };
        if !(self.meddler)(&mut self.subnet, Way::ToManager, &mut packet.mad) {
            return;
        }
        self.out.from = index;
        let from = UserAddress::smi(packet.slid);
        self.managers[index].1.handle_mad(self.now, &from, &packet.mad, &mut self.out);
    }

    /// Checks that all ports with working cables are active, and that all end ports have distinct LIDs.
    pub(crate) fn assert_configured(&self) {
        let mut owners = std::collections::BTreeMap::new();
        for view in self.subnet.ports() {
            let id = view.id();
            let cabled = self.subnet.peer(id).is_some() && !self.subnet.is_cable_down(id);
            let is_end = id.number == 0 || !self.is_switch(id.node);
            if cabled || id.number == 0 {
                assert_eq!(view.state(), PortState::ACTIVE, "{id}");
            }
            if is_end && (cabled || id.number == 0) {
                assert_ne!(view.lid(), Lid::NONE, "{id}");
                self.assert_known(id);
                for lid in view.lid().0..view.lid().0 + (1 << view.lmc()) {
                    assert_eq!(owners.insert(lid, id), None, "{id} has LID {lid} of another port");
                }
            }
        }
    }

    /// Checks that the master knows the owner of an end port's LID.
    fn assert_known(&self, end: PortId) {
        let view = self.subnet.port(end).expect("a port");
        let masters = self.managers.iter().zip(&self.dead).filter(|(_, dead)| !**dead);
        for ((_, manager), _) in masters.filter(|((_, m), _)| m.status().state == SmState::MASTER) {
            let model = manager.model();
            let known = model.by_lid(view.lid()).and_then(|port| model.port(port));
            assert_eq!(known.map(|port| port.guid), Some(view.guid()), "{end}");
        }
    }

    pub(crate) fn is_switch(&self, node: NodeId) -> bool {
        self.subnet.port(PortId::new(node, 0)).is_some()
    }

    /// Returns how many switches a packet crosses from a port to a LID; none if it does not arrive.
    pub(crate) fn hops(&self, from: PortId, to: Lid) -> Option<usize> {
        let owns = |id: PortId| {
            let view = self.subnet.port(id).expect("a port");
            let (first, count) = (view.lid().0, 1 << view.lmc());
            (first..first + count).contains(&to.0)
        };
        if owns(from) {
            return Some(0);
        }
        let mut at = if from.number == 0 { from } else { self.subnet.peer(from)? };
        for hops in 1..100 {
            if !self.is_switch(at.node) {
                return owns(at).then_some(hops - 1);
            }
            let zero = PortId::new(at.node, 0);
            if owns(zero) {
                return Some(hops);
            }
            let egress = *self.subnet.routes(at.node, to).first()?;
            at = self.subnet.peer(PortId::new(at.node, egress))?;
        }
        None
    }

    /// Returns the ports with LIDs.
    pub(crate) fn ends(&self) -> Vec<PortId> {
        let views = self.subnet.ports().filter(|view| view.lid() != Lid::NONE);
        views.map(|view| view.id()).collect()
    }

    /// Checks that every end port reaches every LID.
    pub(crate) fn assert_routed(&self) {
        let ends = self.ends();
        for &from in &ends {
            for &to in &ends {
                let view = self.subnet.port(to).expect("a port");
                for lid in view.lid().0..view.lid().0 + (1 << view.lmc()) {
                    assert!(
                        self.hops(from, Lid(lid)).is_some(),
                        "{from} does not reach {to}, LID {lid}"
                    );
                }
            }
        }
    }
}
