//! The subnet manager on a subnet whose answers arrive unchanged, changed, late or not at all, between untrusted datagrams.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use rdmux_subnet::manager::{Config, Event, Manager, ManagerSink};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::topology::Shape;
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{
    Config as SubnetConfig, MadPacket, NodeId, PortEvent, PortId, Sink, Subnet, Time,
};
use rdmux_wire::mad::{MAD_LEN, Method, MgmtClass};
use rdmux_wire::sm::{Notice, SmInfo};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

/// The most requests in flight.
const WINDOW: usize = 16;

/// The limit on ports.
const MAX_PORTS: usize = 600;

/// How many datagrams per direction are queued; further ones are lost.
const QUEUE: usize = 64;

/// The datagrams that the manager has sent.
#[derive(Default)]
struct Out(VecDeque<(UserAddress, Box<Mad>)>);

impl ManagerSink for Out {
    fn send(&mut self, to: UserAddress, mad: Box<Mad>) {
        self.0.push_back((to, mad));
    }
    fn event(&mut self, event: Event) {
        if let Event::SweepEnded(report) = event {
            assert!(report.problems.len() <= 32, "{} problems", report.problems.len());
        }
    }
}

/// The datagrams that the subnet has delivered to the manager.
#[derive(Default)]
struct Inbox(VecDeque<MadPacket>);

impl Sink for Inbox {
    fn deliver(&mut self, _: PortId, packet: MadPacket) {
        self.0.push_back(packet);
    }
    fn port_event(&mut self, _: PortId, _: PortEvent) {}
}

/// The manager and its subnet.
struct World {
    subnet: Subnet,
    at: PortId,
    manager: Manager,
    now: Time,
    out: Out,
    inbox: Inbox,
}

/// Runs answers, traps, other managers, and time.
pub fn subnet_manager(data: &[u8]) {
    let Some((&kind, mut rest)) = data.split_first() else { return };
    let mut world = World::new(kind);
    while let Some((&[command, a, b, c], tail)) = rest.split_first_chunk() {
        rest = tail;
        match command % 16 {
            0 => world.pass(Duration::from_millis(u64::from(b) << (c & 15))),
            1 => world.arrive(|_| a & 1 == 0),
            2..=4 => {
                let (changes, tail) = rest.split_at(rest.len().min(usize::from(c & 15) * 2));
                rest = tail;
                world.arrive(|mad| {
                    for change in changes.chunks_exact(2) {
                        // Usually the status or the attribute's data.
                        let at = if change[0] & 0x80 == 0 { 64 } else { 0 };
                        mad[at + usize::from(change[0] & 0x7f)] ^= change[1];
                    }
                    true
                });
            }
            5 | 6 => {
                let (bytes, tail) = rest.split_at(rest.len().min(MAD_LEN));
                rest = tail;
                world.stranger(bytes, [a, b, c]);
            }
            7 => {
                let (now, port) = (world.now, PortId::new(NodeId(u32::from(a & 7)), b & 7));
                let _ = world.subnet.set_cable(now, port, c & 1 == 0, &mut world.inbox);
            }
            8 => world
                .manager
                .set_group(Lid(0xc000 | u16::from(a)), [Guid(0x10_0101), Guid(b.into())]),
            9 => world.manager.sweep(world.now),
            10 => {
                let node = NodeId(u32::from(a & 7));
                let _ = world.subnet.reset_switch(world.now, node, &mut world.inbox);
            }
            11 if c == 0 => {
                let before = world.out.0.len();
                world.manager.leave(world.now, &mut world.out);
                world.check(before);
            }
            // A sweep continues undisturbed for some time.
            _ => (0..=b).for_each(|_| world.arrive(|_| true)),
        }
        world.settle();
    }
}

impl World {
    fn new(kind: u8) -> Self {
        let shape = ["two", "switch:3", "torus:3x1x1", "fattree:4"][usize::from(kind & 3)];
        let shape: Result<Shape, _> = shape.parse();
        let topology = shape.map(|shape| shape.topology(Guid(0x10_0000))).unwrap_or_default();
        let mut subnet = Subnet::new(&topology, SubnetConfig::default());
        let ports: Vec<PortId> = subnet.ports().map(|view| view.id()).collect();
        let at = if kind & 4 == 0 { ports.first() } else { ports.last() };
        let at = at.copied().unwrap_or(PortId::new(NodeId(0), 1));
        let config = Config {
            outstanding: WINDOW,
            max_ports: MAX_PORTS,
            disable_babbling: kind & 8 != 0,
            routing_slice: 1,
            lmc: kind >> 6,
            ..Config::default()
        };
        let mut inbox = Inbox::default();
        subnet.set_attached(at, true);
        subnet.set_is_sm(Time::ZERO, at, true, &mut inbox);
        let (now, out) = (Time::ZERO, Out::default());
        Self { subnet, at, manager: Manager::new(config, now), now, out, inbox }
    }

    /// Checks the output of a call: at most all requests in flight, each of them retransmitted, and an answer.
    fn check(&self, before: usize) {
        let sent = self.out.0.len() - before;
        assert!(sent <= 2 * WINDOW + 2, "{sent} datagrams at once");
        assert!(self.manager.model().port_count() <= MAX_PORTS);
    }

    /// Runs the manager until nothing is due, and delivers its datagrams to the subnet.
    fn settle(&mut self) {
        let mut calls = 0;
        while self.manager.next_timeout().is_some_and(|due| due <= self.now) {
            let before = self.out.0.len();
            self.manager.handle_timeout(self.now, &mut self.out);
            self.check(before);
            calls += 1;
            assert!(calls < 100_000, "it is due again and again");
        }
        while let Some((to, mad)) = self.out.0.pop_front() {
            let own = self.subnet.port(self.at).map_or(Lid::NONE, |view| view.lid());
            let packet = MadPacket::smp(own, to.lid, 0, mad);
            self.subnet.send(self.now, self.at, packet, &mut self.inbox);
        }
        if self.subnet.next_timeout().is_some_and(|due| due <= self.now) {
            self.subnet.handle_timeout(self.now, &mut self.inbox);
        }
        self.inbox.0.truncate(QUEUE);
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// Delivers the next queued datagram, which `change` may modify, or drop by returning false.
    fn arrive(&mut self, change: impl FnOnce(&mut Mad) -> bool) {
        if let Some(mut packet) = self.inbox.0.pop_front()
            && change(&mut packet.mad)
        {
            self.take(packet.slid, &packet.mad);
        }
        self.settle();
    }

    /// Delivers an untrusted datagram: a trap, SMInfo, or anything.
    fn stranger(&mut self, bytes: &[u8], [a, b, c]: [u8; 3]) {
        let mut mad = [0; MAD_LEN];
        mad[..bytes.len()].copy_from_slice(bytes);
        let attr_id = match a & 3 {
            0 => Notice::ATTR_ID,
            1 => SmInfo::ATTR_ID,
            _ => return self.take(Lid(b.into()), &mad),
        };
        let method = [Method::GET, Method::SET, Method::TRAP, Method::GET_RESP][usize::from(c & 3)];
        let method = if a & 3 == 0 { Method::TRAP } else { method };
        let mut smp = Smp::lid_routed(method, attr_id, u32::from(c >> 5));
        smp.data.copy_from_slice(&mad[..64]);
        if a & 4 == 0 && a & 3 == 0 {
            // A generic notice with a known number, from a known port.
            smp.data[0] = 0x80;
            let number = [128_u16, 129, 131, 144, 145, 256][usize::from(c % 6)];
            smp.data[4..6].copy_from_slice(&number.to_be_bytes());
            smp.data[6..8].copy_from_slice(&u16::from(b & 7).to_be_bytes());
        }
        let mut mad = smp.to_bytes();
        if a & 8 != 0 {
            mad[1] = MgmtClass::SUBN_DIRECTED.0;
        }
        for _ in 0..=(a >> 4) {
            self.take(Lid(u16::from(b & 7)), &mad);
        }
    }

    fn take(&mut self, from: Lid, mad: &Mad) {
        let before = self.out.0.len();
        self.manager.handle_mad(self.now, &UserAddress::smi(from), mad, &mut self.out);
        self.check(before);
    }
}

/// Returns scripts with a sweep of each subnet, alone, with losses, with false answers, and with untrusted datagrams.
///
/// # Errors
/// Never.
pub fn scripts() -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for kind in [0, 1, 2, 3, 6, 0x4a, 0xc3] {
        let mut quiet = vec![kind];
        for _ in 0..8 {
            quiet.extend_from_slice(&[15, 0, 255, 0]);
        }
        let mut busy = quiet.clone();
        quiet.extend_from_slice(&[0, 0, 255, 6, 15, 0, 255, 0]);
        for command in 0..=11 {
            busy.extend_from_slice(&[command, 1, 20, command]);
            busy.extend_from_slice(&[0x8a, command, 0x04, 1, 0x20, 2, 15, 0, 40, 0, 0, 0, 250, 2]);
        }
        busy.extend_from_slice(&[15, 0, 255, 0, 0, 0, 255, 6, 15, 0, 255, 0]);
        all.extend([quiet, busy]);
    }
    Ok(all)
}
