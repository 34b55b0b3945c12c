//! Hosts, their programs and strangers, on the virtual clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_subnet::umad::{
    Config, Errno, FileId, Ports, Registration, Umad, UmadSink, UserAddress, UserGrh, UserMad,
};
use rdmux_subnet::{MadPacket, NodeId, PortId, Time};
use rdmux_wire::{Gid, Lid, Pkey, Qkey, Qpn, Rmpp};

use super::message::{CLASS, Kind, Question, VERSION};
use super::{MadFailure, MadScenario, MadStats};
use crate::agenda::Agenda;
use crate::net::Network;

/// The limit on the events of a run.
const EVENTS: u64 = 20_000_000;

/// How many overheard packets strangers remember.
const OVERHEARD: usize = 64;

/// An event of the agenda.
enum Event {
    Arrive { to: usize, packet: MadPacket },
    Wake { node: usize },
    Ask { node: usize, client: usize },
    Answer { node: usize, server: FileId, record: UserMad },
    Cut,
    Die,
    Stranger,
}

/// A host with its user MAD device and its programs.
struct Node {
    umad: Umad,
    wake: Option<Time>,
    server: FileId,
    clients: Vec<FileId>,
}

/// The output of a host's device in one call.
#[derive(Default)]
struct Out {
    sent: Vec<MadPacket>,
    read: Vec<(FileId, UserMad)>,
}

impl UmadSink for Out {
    fn transmit(&mut self, _: PortId, packet: MadPacket) {
        self.sent.push(packet);
    }
    fn readable(&mut self, file: FileId, record: UserMad) {
        self.read.push((file, record));
    }
    fn set_is_sm(&mut self, _: PortId, _: bool) {}
}

/// Addresses: each host has four LIDs, or a GID.
#[derive(Clone, Copy)]
struct Addresses {
    by_gid: bool,
}

impl Ports for Addresses {
    fn lid(&self, port: PortId) -> Option<(Lid, u8)> {
        (!self.by_gid).then(|| (lid(port.node.0 as usize), 2))
    }
    fn pkey(&self, _: PortId, index: u16) -> Option<Pkey> {
        (index == 0).then_some(Pkey::DEFAULT)
    }
    fn gid(&self, port: PortId, index: u8) -> Option<Gid> {
        (index == 0).then(|| gid(port.node.0 as usize))
    }
}

fn lid(node: usize) -> Lid {
    Lid(u16::try_from(4 * (node + 1)).unwrap_or(0))
}

fn gid(node: usize) -> Gid {
    let mut gid = [0xfe; 16];
    gid[15] = u8::try_from(node).unwrap_or(u8::MAX);
    Gid(gid)
}

fn port(node: usize) -> PortId {
    PortId::new(NodeId(u32::try_from(node).unwrap_or(u32::MAX)), 1)
}

/// All hosts and the network between them.
pub(super) struct World {
    scenario: MadScenario,
    addresses: Addresses,
    agenda: Agenda<Event>,
    rng: ChaCha8Rng,
    net: Network,
    nodes: Vec<Node>,
    /// Outstanding requests.
    asked: BTreeMap<(usize, FileId, u32), Question>,
    next_tid: u32,
    overheard: VecDeque<(usize, MadPacket)>,
    stats: MadStats,
    tracing: bool,
}

type Checked = Result<(), String>;

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = MadScenario::draw(&mut rng);
        let mut world = Self {
            addresses: Addresses { by_gid: scenario.by_gid },
            agenda: Agenda::default(),
            net: Network::new(scenario.faults.clone()),
            nodes: (0..scenario.nodes).map(|node| Node::new(node, scenario.clients)).collect(),
            asked: BTreeMap::new(),
            next_tid: rng.random(),
            overheard: VecDeque::new(),
            stats: MadStats { seeds: 1, ..MadStats::default() },
            scenario,
            rng,
            tracing,
        };
        world.plan();
        world
    }

    /// Schedules programs' requests and all troubles.
    fn plan(&mut self) {
        let s = self.scenario.clone();
        for _ in 0..s.requests {
            let event = Event::Ask {
                node: self.rng.random_range(0..s.nodes),
                client: self.rng.random_range(0..s.clients),
            };
            self.some_time(s.span, event);
        }
        // While datagrams are in flight.
        let later = s.span + Duration::from_secs(2);
        (0..s.cuts).for_each(|_| self.some_time(later, Event::Cut));
        (0..s.deaths).for_each(|_| self.some_time(later, Event::Die));
        (0..s.strangers).for_each(|_| self.some_time(later, Event::Stranger));
    }

    fn some_time(&mut self, span: Duration, event: Event) {
        self.agenda.after(span.mul_f64(self.rng.random()), event);
    }

    pub(super) fn run(mut self, seed: u64) -> Result<MadStats, Box<MadFailure>> {
        let result = self.events().and_then(|()| self.end());
        let at = self.agenda.now();
        self.stats.net = self.net.stats;
        self.stats.virtual_time = Duration::from_nanos(at.0);
        match result {
            Ok(()) => Ok(self.stats),
            Err(what) => Err(Box::new(MadFailure { seed, at, what, scenario: self.scenario })),
        }
    }

    fn events(&mut self) -> Checked {
        for _ in 0..EVENTS {
            let Some(event) = self.agenda.next_event() else { return Ok(()) };
            self.happen(event)?;
        }
        Err(format!("no end after {EVENTS} events"))
    }

    fn happen(&mut self, event: Event) -> Checked {
        match event {
            Event::Arrive { to, packet } => {
                let (now, addresses) = (self.agenda.now(), self.addresses);
                self.call(to, |umad, out| umad.arrived(now, port(to), &packet, &addresses, out))
            }
            Event::Wake { node } => {
                let now = self.agenda.now();
                self.nodes[node].wake = None;
                self.call(node, |umad, out| umad.handle_timeout(now, out))
            }
            Event::Ask { node, client } => self.ask(node, client),
            Event::Answer { node, server, record } => self.answer(node, server, record),
            Event::Cut => {
                let (a, b) = (self.any_node(), self.any_node());
                let until = self.agenda.now().after(self.scenario.cut_lasts);
                self.net.partition(a, b, until);
                Ok(())
            }
            Event::Die => self.die(),
            Event::Stranger => {
                self.interfere();
                Ok(())
            }
        }
    }

    fn any_node(&mut self) -> usize {
        self.rng.random_range(0..self.scenario.nodes)
    }

    /// Calls the device of a host and executes its output.
    fn call<R>(
        &mut self,
        node: usize,
        act: impl FnOnce(&mut Umad, &mut Out) -> R,
    ) -> Result<R, String> {
        let mut out = Out::default();
        let result = act(&mut self.nodes[node].umad, &mut out);
        for packet in out.sent {
            self.send(node, packet);
        }
        for (file, record) in out.read {
            self.read(node, file, record)?;
        }
        let host = &mut self.nodes[node];
        if let Some(at) = host.umad.next_timeout()
            && host.wake.is_none_or(|wake| at < wake)
        {
            host.wake = Some(at);
            self.agenda.at(at, Event::Wake { node });
        }
        Ok(result)
    }

    fn send(&mut self, from: usize, packet: MadPacket) {
        let now = self.agenda.now();
        let to = match packet.grh {
            Some(grh) => usize::from(grh.dgid.0[15]),
            None => usize::from(packet.dlid.0 / 4).wrapping_sub(1),
        };
        let identity = packet.mad.iter().fold(fnv(0, from as u64), |h, &b| fnv(h, b.into()));
        self.stats.sent += 1;
        self.stats.fingerprint = fnv(self.stats.fingerprint, identity ^ now.0);
        self.trace(|| format!("{from} > {to}: {}", shown(&packet)));
        if to >= self.nodes.len() {
            return;
        }
        if self.scenario.strangers > 0 {
            self.overheard.truncate(OVERHEARD - 1);
            self.overheard.push_front((to, packet.clone()));
        }
        for delivery in self.net.send(now, from, to, identity, &mut self.rng).deliveries {
            let packet = packet.clone();
            self.agenda.after(delivery.after, Event::Arrive { to, packet });
        }
    }

    /// Lets a client send a request.
    fn ask(&mut self, node: usize, client: usize) -> Checked {
        let (longest, silent) = (self.scenario.longest, self.scenario.silent);
        let question = Question::draw(longest, silent, &mut self.rng);
        self.next_tid = self.next_tid.wrapping_add(1);
        let tid = self.next_tid;
        let to = self.any_node();
        let file = self.nodes[node].clients[client];
        let record = UserMad {
            agent: 0,
            status: 0,
            timeout_ms: self.scenario.timeout_ms,
            retries: self.scenario.retries,
            address: self.address(to),
            data: question.request(tid),
        };
        self.stats.requests += 1;
        self.asked.insert((node, file, tid), question);
        self.trace(|| format!("{node} asks {to}: tid {tid:#x} {question:?}"));
        let (now, addresses) = (self.agenda.now(), self.addresses);
        self.call(node, |umad, out| umad.write(now, file, record, &addresses, out))?
            .map_err(|e| format!("a request is refused: {e}"))
    }

    fn address(&mut self, to: usize) -> UserAddress {
        let path_bits = self.rng.random_range(0..4);
        let grh = UserGrh { gid: gid(to), hop_limit: 1, ..UserGrh::default() };
        UserAddress {
            qpn: Qpn::QP1,
            qkey: Qkey::QP1,
            lid: Lid(lid(to).0 | self.rng.random_range(0..4)),
            path_bits,
            grh: self.scenario.by_gid.then_some(grh),
            ..UserAddress::default()
        }
    }

    /// Lets a program read a record.
    fn read(&mut self, node: usize, file: FileId, record: UserMad) -> Checked {
        self.trace(|| {
            let len = record.data.len();
            format!("{node} reads of {file:?}: {len} bytes, status {}", record.status)
        });
        if file != self.nodes[node].server {
            return self.ended(node, file, &record);
        }
        let Some(question) = Question::parse(&record.data) else {
            let strange = self.is_strange(&record) || record.status != 0;
            return if strange { Ok(()) } else { Err("a request has wrong bytes".into()) };
        };
        self.stats.compared += record.data.len() as u64;
        if !question.silent {
            let think = self.scenario.think.mul_f64(self.rng.random());
            self.agenda.after(think, Event::Answer { node, server: file, record });
        }
        Ok(())
    }

    fn is_strange(&self, record: &UserMad) -> bool {
        let stranger = self.nodes.len();
        match record.address.grh {
            Some(grh) => grh.gid == gid(stranger),
            None => record.address.lid == lid(stranger),
        }
    }

    /// Lets a server answer a request that it has read.
    fn answer(&mut self, node: usize, server: FileId, record: UserMad) -> Checked {
        if self.nodes[node].server != server {
            return Ok(());
        }
        let Some(question) = Question::parse(&record.data) else { return Ok(()) };
        let tid = record.data[8..].first_chunk().map_or(0, |tid| u64::from_be_bytes(*tid));
        let response = UserMad {
            timeout_ms: 0,
            retries: self.scenario.retries,
            data: question.response(tid),
            ..record
        };
        let (now, addresses) = (self.agenda.now(), self.addresses);
        match self.call(node, |umad, out| umad.write(now, server, response, &addresses, out))? {
            // A duplicate request is answered twice while the first response is in flight.
            Ok(()) | Err(Errno::Inval) => Ok(()),
            Err(e) => Err(format!("a response is refused: {e}")),
        }
    }

    /// Checks how a client's request ended.
    fn ended(&mut self, node: usize, file: FileId, record: &UserMad) -> Checked {
        let low = record.data.get(12..).and_then(|b| b.first_chunk());
        let tid = low.map_or(0, |tid| u32::from_be_bytes(*tid));
        let Some(question) = self.asked.remove(&(node, file, tid)) else {
            return Err(format!("tid {tid:#x} ends a second time, or nobody asked"));
        };
        if record.status == 0 {
            if !question.is_answered_by(&record.data) {
                return Err(format!("the response to tid {tid:#x} has wrong bytes"));
            }
            self.stats.answered += 1;
            self.stats.long += u64::from(record.data.len() > 256);
            self.stats.compared += record.data.len() as u64;
            return Ok(());
        }
        self.stats.failed += 1;
        if record.data.len() != 24 || record.data[3] != question.kind.method() {
            return Err(format!("a failure of {} bytes", record.data.len()));
        }
        if self.scenario.strict() {
            return Err(format!("tid {tid:#x} failed with {} for no reason", record.status));
        }
        Ok(())
    }

    /// Kills a program and starts another in its place.
    fn die(&mut self) -> Checked {
        let node = self.any_node();
        let which = self.rng.random_range(0..=self.scenario.clients);
        let host = &mut self.nodes[node];
        let slot = host.clients.get_mut(which).unwrap_or(&mut host.server);
        let old = *slot;
        let methods: &[Kind] = if which < self.scenario.clients { &[] } else { &Kind::ALL };
        let before = self.asked.len();
        self.asked.retain(|&(n, file, _), _| (n, file) != (node, old));
        self.stats.orphaned += (before - self.asked.len()) as u64;
        self.call(node, |umad, out| umad.close(old, out))?;
        let host = &mut self.nodes[node];
        let new = open(&mut host.umad, node, methods);
        *host.clients.get_mut(which).unwrap_or(&mut host.server) = new;
        Ok(())
    }

    /// Sends a modified copy of an overheard packet, from a stranger's own address.
    fn interfere(&mut self) {
        if self.overheard.is_empty() {
            return;
        }
        let which = self.rng.random_range(0..self.overheard.len());
        let (to, mut packet) = self.overheard[which].clone();
        let stranger = self.nodes.len();
        packet.slid = if self.scenario.by_gid { Lid(0) } else { lid(stranger) };
        if let Some(grh) = &mut packet.grh {
            grh.sgid = gid(stranger);
        }
        let mut rmpp = Rmpp::of(&packet.mad);
        match self.rng.random_range(0..8) {
            0 => rmpp.kind.0 = self.rng.random_range(0..6),
            1 => rmpp.segment = self.rng.random_range(0..200),
            2 => rmpp.length = self.rng.random_range(0..400),
            3 => rmpp.status.0 = self.rng.random(),
            4 => rmpp.flags.0 = self.rng.random_range(0..8),
            5 => packet.mad[3] ^= 0x80,
            6 => packet.mad[15] ^= 1,
            _ => {}
        }
        rmpp.put(&mut packet.mad);
        self.stats.foreign += 1;
        self.trace(|| format!("a stranger > {to}: {}", shown(&packet)));
        self.agenda.after(Duration::ZERO, Event::Arrive { to, packet });
    }

    /// Checks that nothing is left at the end.
    fn end(&mut self) -> Checked {
        if let Some(((node, _, tid), question)) = self.asked.first_key_value() {
            return Err(format!("tid {tid:#x} of {node} never ended: {question:?}"));
        }
        for node in 0..self.nodes.len() {
            let host = &self.nodes[node];
            let files: Vec<_> = host.clients.iter().chain([&host.server]).copied().collect();
            let left: usize = files.iter().map(|&file| host.umad.outstanding(file)).sum();
            if left != 0 || host.umad.next_timeout().is_some() {
                return Err(format!("{left} requests and transfers of {node} are left"));
            }
            let counters = *host.umad.counters();
            self.stats.resent += counters.resent;
            self.stats.aborted += counters.aborted;
            for file in files {
                self.call(node, |umad, out| umad.close(file, out))?;
            }
            if !self.nodes[node].umad.is_idle() {
                return Err(format!("closed files of {node} leave something"));
            }
        }
        Ok(())
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            eprintln!("{:>14} {}", self.agenda.now().0, what());
        }
    }
}

impl Node {
    fn new(node: usize, clients: usize) -> Self {
        let mut umad = Umad::new(Config::default());
        let server = open(&mut umad, node, &Kind::ALL);
        let clients = (0..clients).map(|_| open(&mut umad, node, &[])).collect();
        Self { umad, wake: None, server, clients }
    }
}

/// Opens a file with an agent of subnet administration.
fn open(umad: &mut Umad, node: usize, methods: &[Kind]) -> FileId {
    let file = umad.open(port(node));
    let what = Registration {
        qpn: 1,
        class: CLASS,
        class_version: VERSION,
        methods: methods.iter().fold(0, |mask, kind| mask | 1 << kind.method()),
        rmpp_version: 1,
        ..Registration::default()
    };
    umad.register(file, &what).expect("nobody else has these methods");
    file
}

fn shown(packet: &MadPacket) -> String {
    let header = rdmux_wire::mad::MadHeader::parse(&packet.mad[..]);
    let header = header.map_or_else(|e| e.to_string(), |h| h.to_string());
    format!("{header} {}", Rmpp::of(&packet.mad))
}

fn fnv(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
}
