//! Tests of the checks themselves: each breaks one thing on purpose in a good run.

use std::time::Duration;

use rdmux_link::ib::Encap;
use rdmux_link::routes::RouteView;
use rdmux_transport::attr::{Access, QpState, QpType};
use rdmux_wire::Pkey;
use rdmux_wire::icrc::Icrc;
use rdmux_wire::sm::{Attribute, LinearForwardingTable, NO_ROUTE, PkeyTable};

use super::end::Target;
use super::world::{Event, World};

/// Long enough for much to happen.
const SOON: Duration = Duration::from_millis(20);

/// Returns a world without subnet changes and losses, and with busy connections between hosts of one switch.
fn running() -> World {
    for seed in 0.. {
        let mut world = World::new(seed, false);
        let scenario = &mut world.scenario;
        scenario.troubles = 0;
        if scenario.shape != "switch:6" || world.hosts.len() < 3 || world.scenario.groups == 0 {
            continue;
        }
        for (left, plan) in world.left.iter_mut().zip(&mut world.scenario.plans) {
            (*left, plan.lives) = ([1_000_000; 2], 0);
        }
        world.net = crate::net::Network::new(crate::net::Faults::none(world.scenario.faults.delay));
        world.scenario.faults.duplicate = 0.0;
        world.attach_all().expect("memory for tables");
        while world.stats.completions < 100 {
            world.step().expect("nothing is broken");
        }
        let between = |id: &usize| world.hosts_of(*id)[0] != world.hosts_of(*id)[1];
        let rc = |id: &usize| world.ends[*id].qp.qp_type() == QpType::Rc;
        if (0..world.ends.len()).filter(rc).any(|id| between(&id)) {
            return world;
        }
    }
    unreachable!()
}

impl World {
    fn hosts_of(&self, id: usize) -> [usize; 2] {
        [self.ends[id].host, self.ends[self.ends[id].peer].host]
    }

    /// Returns an RC queue pair whose peer is on another host.
    fn connected(&self) -> usize {
        let is_one = |id: &usize| {
            let [a, b] = self.hosts_of(*id);
            a != b && self.ends[*id].qp.qp_type() == QpType::Rc
        };
        (0..self.ends.len()).find(is_one).expect("there is one")
    }

    /// Runs for some time and returns the first failure.
    fn found(&mut self, within: Duration) -> String {
        let until = self.agenda.now().after(within);
        while self.agenda.now() < until {
            if let Err(what) = self.step() {
                return what;
            }
        }
        "nothing".to_owned()
    }

    /// Lets a queue pair send before anything else happens.
    fn sends(&mut self, id: usize) -> Result<(), String> {
        self.ends[id].to_post = 1000;
        (0..1000).try_for_each(|_| self.post_some(id).and_then(|()| self.wake(id)))
    }

    /// Lets applications post one more signaled operation, stops later connections, and completes everything in flight.
    fn finish(&mut self) {
        self.left.fill([0, 0]);
        self.ends.iter_mut().for_each(|end| end.to_post = end.to_post.min(1));
        while !self.is_finished() {
            self.step().expect("nothing is broken");
        }
    }

    /// Returns the next datagram to a host that is a whole packet with a message, and its hosts.
    fn next_datagram(&mut self) -> (usize, usize, Vec<u8>) {
        loop {
            let event = self.agenda.next_event().expect("traffic");
            if let Event::Deliver { to, from, datagram, .. } = &event
                && datagram[3] == 1
                && datagram.len() > 200
                && datagram[Encap::LEN + 1] & 3 == 2
            {
                return (*to, *from, datagram.clone());
            }
            self.happen(event).expect("nothing is broken");
            self.settle();
        }
    }
}

/// Sets a table without publishing it.
fn set(world: &mut World, host: usize, table: Attribute, attr_id: u16, modifier: u32) {
    let port = world.hosts[host].port;
    let at = match attr_id {
        LinearForwardingTable::ATTR_ID => {
            let switch = world.subnet.peer(port).expect("a cable").node;
            rdmux_subnet::PortId::new(switch, 0)
        }
        _ => port,
    };
    world.set(at, attr_id, modifier, &table);
}

#[test]
fn unbroken_fabric_passes_all_checks() {
    let mut world = running();
    assert_eq!(world.found(SOON), "nothing");
    world.audit().expect("tables");
    world.finish();
    world.take_down().expect("nothing is left");
}

#[test]
fn packet_sent_over_a_removed_route_is_detected() {
    let mut world = running();
    let table = LinearForwardingTable { ports: [NO_ROUTE; 64] };
    set(&mut world, 0, table.into(), LinearForwardingTable::ATTR_ID, 0);
    // The change is not published.
    let said = world.audit().expect_err("stale tables");
    assert!(said.contains("the table says true, the switches false"), "{said}");
    let id = world.connected();
    let said = world.sends(id).expect_err("a packet that no switch would forward");
    assert!(said.contains("has sent [") && said.ends_with("not "), "{said}");
}

#[test]
fn a_packet_that_does_not_go_where_the_switches_lead_is_found() {
    let mut world = running();
    let id = world.connected();
    world.hosts[world.ends[id].host].wire.routes().set_view(None);
    let said = world.sends(id).expect_err("a packet that is not sent");
    assert!(said.contains("has sent , not ["), "{said}");
}

#[test]
fn port_accepting_a_packet_with_a_bad_pkey_is_detected() {
    let mut world = running();
    let (to, from, datagram) = world.next_datagram();
    let table = PkeyTable { pkeys: [Pkey(0); 32] };
    set(&mut world, to, table.into(), PkeyTable::ATTR_ID, 0);
    // The change is not published.
    let said = world.deliver(to, from, &datagram, false).expect_err("no P_Key");
    assert!(said.contains("which its port does not allow"), "{said}");
}

#[test]
fn port_dropping_a_valid_packet_is_detected() {
    let mut world = running();
    let (to, from, datagram) = world.next_datagram();
    // The host has a table of its own, which is never written.
    let table = rdmux_link::routes::RouteTable::create().expect("memory");
    let view = RouteView::map(table.fd()).expect("a table");
    world.hosts[to].wire.routes().set_view(Some(view));
    let said = world.deliver(to, from, &datagram, false).expect_err("dropped");
    assert!(said.contains("drops a packet for no reason"), "{said}");
}

#[test]
fn forged_payload_with_a_valid_icrc_is_detected() {
    let mut world = running();
    let (to, from, mut datagram) = world.next_datagram();
    let total = usize::from(u16::from_be_bytes([datagram[14], datagram[15]]));
    let packet = &mut datagram[Encap::LEN..Encap::LEN + total];
    let at = packet.len() - Icrc::LEN - 1;
    packet[at] ^= 1;
    let mut icrc = Icrc::of_route_headers(&packet[..8]);
    icrc.update(&packet[8..at + 1]);
    let icrc = icrc.finish();
    packet[at + 1..].copy_from_slice(&icrc);
    let said = world.deliver(to, from, &datagram, false).expect_err("forged");
    assert!(said.contains("that nobody has sent"), "{said}");
}

#[test]
fn message_delivered_with_wrong_payload_is_detected() {
    let mut world = running();
    let id = world.connected();
    // Its peer expects another message.
    let mut said = "nothing".to_owned();
    for _ in 0..1_000_000 {
        if let Some(expected) = world.ends[id].expected.back_mut() {
            expected.op ^= 1 << 40;
            said = world.found(SOON);
            break;
        }
        world.step().expect("nothing is broken");
    }
    assert!(said.contains("other bytes") || said.contains("has imm"), "{said}");
}

#[test]
fn misdelivered_or_duplicate_datagram_is_detected() {
    let mut world = running();
    let op = loop {
        world.step().expect("nothing is broken");
        let came = world.datagrams.iter().find(|(_, d)| !d.came.is_empty() && d.has_key);
        if let Some((op, _)) = came {
            break *op;
        }
    };
    let datagram = world.datagrams[&op].clone();
    let id = datagram.came[0].0;
    let again = |world: &mut World| {
        let (len, sent) = (datagram.len, datagram.sent.clone().expect("it was sent"));
        let mut bytes = sent.grh.unwrap_or([0; 40]).to_vec();
        bytes.extend(crate::memory::pattern(op, len as usize));
        let wc = rdmux_transport::wr::Completion {
            byte_len: 40 + len,
            ..rdmux_transport::wr::Completion::EMPTY
        };
        world.check_datagram(id, &wc, &bytes).expect_err("wrong")
    };
    let said = again(&mut world);
    assert!(said.contains("has come 2 times"), "{said}");
    let entry = world.datagrams.get_mut(&op).expect("it is there");
    entry.to = Target::End(usize::MAX);
    let said = again(&mut world);
    assert!(said.contains("was for"), "{said}");
}

#[test]
fn a_connection_that_fails_although_the_fabric_carries_its_packets_is_found() {
    let mut world = running();
    let id = world.connected();
    // The network loses everything, which it must not.
    let host = world.ends[world.ends[id].peer].host;
    world.net.crash(host);
    // The others stop.
    for (_, end) in world.ends.iter_mut().enumerate().filter(|(end, _)| *end != id) {
        end.to_post = 0;
    }
    let said = world.found(Duration::from_secs(60));
    assert!(said.contains("but the fabric has dropped 0 packets only"), "{said}");
}

#[test]
fn leaked_region_or_wrong_atomic_counter_at_the_end_is_detected() {
    let mut world = running();
    world.finish();
    world.hosts[0].process.memory.register(vec![0; 8], Access::LOCAL_WRITE);
    let said = world.take_down().expect_err("a region");
    assert!(said.contains("1 regions are left"), "{said}");
    let mut world = running();
    world.finish();
    let id = world.connected();
    assert_eq!(world.ends[id].qp.state(), QpState::Rts);
    world.ends[id].peer_counter ^= 1;
    let said = world.take_down().expect_err("an atomic too many");
    assert!(said.contains("counter is"), "{said}");
}
