//! A subnet with a program on every port, which stores the delivered datagrams.

use std::collections::VecDeque;
use std::time::Duration;

use rdmux_subnet::topology::Shape;
use rdmux_subnet::{Config, MadPacket, NodeId, PortEvent, PortId, Sink, Subnet, Time, Topology};
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, status};
use rdmux_wire::sm::{Attribute, PortInfo, PortState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid, Pkey, Qkey, Qpn};

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) packets: VecDeque<(PortId, MadPacket)>,
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

pub(crate) struct Net {
    pub(crate) subnet: Subnet,
    pub(crate) inbox: Inbox,
    pub(crate) now: Time,
    tid: u64,
}

pub(crate) const fn port(node: u32, number: u8) -> PortId {
    PortId::new(NodeId(node), number)
}

impl Net {
    pub(crate) fn new(topology: &Topology) -> Self {
        let mut subnet = Subnet::new(topology, Config::default());
        let all: Vec<_> = subnet.ports().map(|p| p.id()).collect();
        all.into_iter().for_each(|port| subnet.set_attached(port, true));
        Self { subnet, inbox: Inbox::default(), now: Time::ZERO, tid: 0x1000 }
    }

    pub(crate) fn of(shape: &str) -> Self {
        let shape: Shape = shape.parse().expect("a shape");
        Self::new(&shape.topology(Guid(0x10_0000)))
    }

    pub(crate) fn send(&mut self, from: PortId, packet: MadPacket) {
        self.subnet.send(self.now, from, packet, &mut self.inbox);
    }

    /// Sends an SMP from QP0 of `from`. Returns the answer, if there is one.
    pub(crate) fn ask(&mut self, from: PortId, to: Lid, mut smp: Smp) -> Option<Smp> {
        self.tid += 1;
        smp.header.tid = self.tid;
        let slid = self.subnet.port(from).expect("a port").lid();
        let slid = if slid == Lid::NONE { Lid::PERMISSIVE } else { slid };
        self.send(from, qp0(slid, to, &smp));
        let mine = |(port, packet): &(PortId, MadPacket)| {
            let tid = MadHeader::parse(&packet.mad[..]).map(|h| h.tid);
            *port == from && tid == Ok(self.tid)
        };
        let at = self.inbox.packets.iter().position(mine)?;
        let (_, packet) = self.inbox.packets.remove(at)?;
        Some(Smp::parse(&packet.mad[..]).expect("an SMP"))
    }

    /// Sends an SMP by a directed route.
    pub(crate) fn dr(&mut self, from: PortId, hops: &[u8], smp: &Smp) -> Option<Smp> {
        let mut routed =
            Smp::directed(smp.header.method, smp.header.attr_id, smp.header.attr_mod, hops);
        (routed.data, routed.mkey) = (smp.data, smp.mkey);
        self.ask(from, Lid::PERMISSIVE, routed)
    }

    /// Sends a Get by a directed route. Returns the answer's data; its status must be 0.
    pub(crate) fn get(
        &mut self,
        from: PortId,
        hops: &[u8],
        attr_id: u16,
        modifier: u32,
    ) -> Attribute {
        let answer = self.dr(from, hops, &get(attr_id, modifier)).expect("an answer");
        assert_eq!(answer.status(), status::OK, "{answer}");
        answer.attribute().expect("a known attribute")
    }

    /// Sends a Set by a directed route. Returns the status and the data of the answer, if there is one.
    pub(crate) fn set(
        &mut self,
        from: PortId,
        hops: &[u8],
        attribute: impl Into<Attribute>,
        modifier: u32,
    ) -> Option<(u16, Attribute)> {
        let answer = self.dr(from, hops, &set(attribute, modifier))?;
        Some((answer.status(), answer.attribute().expect("a known attribute")))
    }

    pub(crate) fn port_info(&mut self, from: PortId, hops: &[u8], number: u32) -> PortInfo {
        match self.get(from, hops, PortInfo::ATTR_ID, number) {
            Attribute::PortInfo(info) => info,
            other => panic!("{other}"),
        }
    }

    /// Reads PortInfo, changes it, and writes it. Returns the status and the answer.
    pub(crate) fn change(
        &mut self,
        from: PortId,
        hops: &[u8],
        number: u32,
        change: impl FnOnce(&mut PortInfo),
    ) -> Option<(u16, PortInfo)> {
        let mut info = self.port_info(from, hops, number);
        info.port_state = PortState::NO_CHANGE;
        info.port_physical_state = Default::default();
        change(&mut info);
        match self.set(from, hops, info, number)? {
            (status, Attribute::PortInfo(info)) => Some((status, info)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn state(&self, port: PortId) -> PortState {
        self.subnet.port(port).expect("a port").state()
    }

    /// Takes the other datagrams that were delivered, as SMPs.
    pub(crate) fn take_smps(&mut self) -> Vec<(PortId, MadPacket, Smp)> {
        let smp = |(port, packet): (PortId, MadPacket)| {
            let smp = Smp::parse(&packet.mad[..]).expect("an SMP");
            (port, packet, smp)
        };
        self.inbox.packets.drain(..).map(smp).collect()
    }

    pub(crate) fn take_events(&mut self) -> Vec<(PortId, PortEvent)> {
        std::mem::take(&mut self.inbox.events)
    }

    /// Advances time and handles all timeouts.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        while let Some(at) = self.subnet.next_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.subnet.handle_timeout(self.now, &mut self.inbox);
        }
        self.now = until;
    }
}

pub(crate) fn get(attr_id: u16, modifier: u32) -> Smp {
    Smp::lid_routed(Method::GET, attr_id, modifier)
}

pub(crate) fn set(attribute: impl Into<Attribute>, modifier: u32) -> Smp {
    let attribute = attribute.into();
    let mut smp = Smp::lid_routed(Method::SET, attribute.attr_id(), modifier);
    smp.set_attribute(&attribute);
    smp
}

/// Returns a packet from QP0 to QP0.
pub(crate) fn qp0(slid: Lid, dlid: Lid, smp: &Smp) -> MadPacket {
    MadPacket::smp(slid, dlid, 0, Box::new(smp.to_bytes()))
}

/// Returns a packet from QP1 to QP1 with the default keys.
pub(crate) fn qp1(slid: Lid, dlid: Lid, mad: [u8; MAD_LEN]) -> MadPacket {
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
