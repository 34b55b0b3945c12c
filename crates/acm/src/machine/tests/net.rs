//! A subnet of machines for tests: datagrams arrive in the order in which they are sent, and subnet administration answers
//! at once.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_wire::acm::{Address, Datagram};
use rdmux_wire::sa::{
    McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, Rate, Selector,
};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qpn};

use crate::{
    ClientId, Contradiction, Dest, Endpoint, EndpointId, Failure, Io, Machine, Options, Peer, Port,
    PortId, PortKind, QuestionId, Request, RequestId, Resolved, SaFailure, To,
};

pub(super) const PORT: PortId = PortId(1);
pub(super) const EP: EndpointId = EndpointId(1);
pub(super) const CLIENT: ClientId = ClientId(1);

/// A driver that records the machine's calls.
#[derive(Default)]
pub(super) struct Driver {
    pub(super) sent: VecDeque<(To, Datagram)>,
    pub(super) joins: VecDeque<McMemberRecord>,
    pub(super) members: Vec<Gid>,
    pub(super) questions: VecDeque<(QuestionId, PathRecord)>,
    pub(super) system: VecDeque<(QuestionId, Address)>,
    /// The clients reported as waiting for the answers to these queries, once for each report.
    pub(super) waits: Vec<(QuestionId, ClientId)>,
    pub(super) answers: Vec<(RequestId, Result<Resolved, Failure>)>,
    pub(super) published: BTreeMap<Address, (PathRecord, Time)>,
    pub(super) contradictions: Vec<(Address, Gid, Gid, bool)>,
    /// Whether the send queue is full.
    pub(super) is_full: bool,
    pub(super) count: usize,
}

impl Io for Driver {
    fn send(&mut self, _: EndpointId, to: To, datagram: &Datagram) -> bool {
        if !self.is_full {
            self.sent.push_back((to, datagram.clone()));
            self.count += 1;
        }
        !self.is_full
    }
    fn join(&mut self, _: EndpointId, record: &McMemberRecord, _: McMemberRecordMask) {
        self.joins.retain(|earlier| earlier.mgid != record.mgid);
        self.joins.push_back(*record);
    }
    fn leave(&mut self, _: EndpointId, mgid: Gid) {
        // What is granted later is released at once.
        self.joins.retain(|record| record.mgid != mgid);
        self.members.retain(|member| *member != mgid);
    }
    fn ask_paths(&mut self, _: PortId, id: QuestionId, record: &PathRecord, _: PathRecordMask) {
        self.questions.push_back((id, *record));
    }
    fn ask_system(&mut self, _: EndpointId, question: QuestionId, address: &Address) {
        self.system.push_back((question, *address));
    }
    fn waits(&mut self, question: QuestionId, client: ClientId) {
        self.waits.push((question, client));
    }
    fn answer(&mut self, _: ClientId, request: RequestId, answer: Result<Resolved, Failure>) {
        self.answers.push((request, answer));
    }
    fn publish(&mut self, _: EndpointId, address: &Address, path: &PathRecord, until: Time) {
        self.published.insert(*address, (*path, until));
    }
    fn withdraw(&mut self, _: EndpointId, address: &Address) {
        self.published.remove(address);
    }
    fn contradiction(&mut self, _: EndpointId, claim: &Contradiction<'_>) {
        let Contradiction { address, holder, claimant, is_believed } = *claim;
        self.contradictions.push((*address, holder, claimant, is_believed));
    }
}

/// A host.
pub(super) struct Host {
    pub(super) machine: Machine,
    pub(super) io: Driver,
    pub(super) is_cut_off: bool,
}

/// A subnet.
pub(super) struct Net {
    pub(super) hosts: Vec<Host>,
    pub(super) now: Time,
    /// Whether subnet administration answers.
    pub(super) has_sa: bool,
    /// The queries that subnet administration received.
    pub(super) asked: Vec<PathRecord>,
    next: u64,
}

pub(super) fn acm() -> Options {
    Options { route_protocol: crate::RouteProtocol::Acm, ..Options::default() }
}

pub(super) fn gid(n: usize) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(0x10_0000 + n as u64))
}

pub(super) fn lid(n: usize) -> Lid {
    Lid(u16::try_from(n + 1).unwrap())
}

pub(super) fn name(n: usize) -> Address {
    Address::name(format!("node{n}")).unwrap()
}

pub(super) fn ip(n: usize) -> Address {
    Address::Ip4([10, 0, 0, u8::try_from(n + 1).unwrap()].into())
}

pub(super) fn peer(n: usize) -> Peer {
    Peer { gid: gid(n), lid: lid(n), qpn: Qpn::new(0x40), sl: 0 }
}

pub(super) fn port(n: usize) -> Port {
    Port {
        kind: PortKind::InfiniBand,
        is_active: true,
        device_guid: Guid(n as u64),
        number: 1,
        count: 1,
        lid: lid(n),
        lmc: 0,
        sm_lid: Lid(1000),
        sm_sl: 0,
        gids: [gid(n)].into(),
        pkeys: [Pkey::DEFAULT].into(),
        rate: Rate::GBPS_100,
        mtu: Mtu::M4096,
        subnet_timeout: 0,
    }
}

pub(super) fn endpoint(n: usize) -> Endpoint {
    let addresses = [name(n), ip(n)].into();
    Endpoint { port: PORT, pkey: Pkey::DEFAULT, qpn: Qpn::new(0x40), addresses }
}

impl Net {
    pub(super) fn new(hosts: usize, options: &Options) -> Self {
        let mut net = Self {
            hosts: Vec::new(),
            now: Time(5_000_000_000),
            has_sa: true,
            asked: Vec::new(),
            next: 0,
        };
        for n in 0..hosts {
            net.add(n, options.clone());
        }
        net.run();
        net
    }

    pub(super) fn add(&mut self, n: usize, options: Options) {
        let machine = Machine::new(options, [u8::try_from(n).unwrap(); 16]);
        self.hosts.push(Host { machine, io: Driver::default(), is_cut_off: false });
        let (now, Host { machine, io, .. }) = (self.now, &mut self.hosts[n]);
        machine.set_port(now, PORT, port(n), io);
        machine.set_endpoint(now, EP, endpoint(n), io);
    }

    /// Calls a host's machine.
    pub(super) fn with<T>(
        &mut self,
        n: usize,
        act: impl FnOnce(&mut Machine, Time, &mut Driver) -> T,
    ) -> T {
        let Host { machine, io, .. } = &mut self.hosts[n];
        act(machine, self.now, io)
    }

    /// Sends a request of a client of host `n`.
    pub(super) fn ask(&mut self, n: usize, dest: Dest) -> RequestId {
        self.request(n, &Request { source: None, dest, no_delay: false, timeout: None })
    }

    pub(super) fn request(&mut self, n: usize, request: &Request) -> RequestId {
        self.next += 1;
        let id = RequestId(self.next);
        self.with(n, |machine, now, io| machine.request(now, CLIENT, id, request, io));
        id
    }

    pub(super) fn answer(&self, n: usize, id: RequestId) -> Option<Result<Resolved, Failure>> {
        let answers = self.hosts[n].io.answers.iter().filter(|(of, _)| *of == id);
        assert!(answers.clone().count() <= 1, "answered twice");
        answers.map(|(_, answer)| *answer).next_back()
    }

    /// Sends a request, and processes all events of the next millisecond.
    pub(super) fn resolve(&mut self, n: usize, dest: Address) -> Option<Result<Resolved, Failure>> {
        let id = self.ask(n, Dest::Address(dest));
        self.pass(Duration::from_millis(1));
        self.answer(n, id)
    }

    /// Processes all events that take no time.
    pub(super) fn run(&mut self) {
        while (0..self.hosts.len()).any(|n| self.step(n)) {}
    }

    fn step(&mut self, n: usize) -> bool {
        let io = &mut self.hosts[n].io;
        if let Some(record) = io.joins.pop_front() {
            if self.has_sa {
                io.members.push(record.mgid);
                self.with(n, |m, now, io| m.handle_join(now, EP, record.mgid, Ok(&record), io));
            } else {
                let answer = Err(SaFailure::Silent);
                self.with(n, |m, now, io| m.handle_join(now, EP, record.mgid, answer, io));
            }
            return true;
        }
        if let Some((id, record)) = io.questions.pop_front() {
            self.asked.push(record);
            let answer = self.administration(&record);
            self.with(n, |m, now, io| m.handle_paths(now, id, answer.as_ref().map_err(|e| *e), io));
            return true;
        }
        if let Some((to, datagram)) = io.sent.pop_front() {
            self.deliver(n, to, &datagram);
            return true;
        }
        let due = self.hosts[n].machine.poll_timeout().is_some_and(|at| at <= self.now);
        if due {
            self.with(n, |machine, now, io| machine.handle_timeout(now, io));
        }
        due
    }

    fn administration(&self, record: &PathRecord) -> Result<PathRecord, SaFailure> {
        if !self.has_sa {
            return Err(SaFailure::Silent);
        }
        let ports = self.hosts.iter().filter(|host| !host.is_cut_off);
        let mut ports = ports.filter_map(|host| host.machine.port(PORT));
        let found = ports.find(|port| port.gid() == record.dgid || port.lid == record.dlid);
        let port = found.ok_or(SaFailure::Status(0x0300))?;
        Ok(PathRecord {
            dgid: port.gid(),
            dlid: port.lid,
            sl: 3,
            mtu_selector: Selector::EXACTLY,
            mtu: Mtu::M4096.code(),
            rate_selector: Selector::EXACTLY,
            rate: Rate::GBPS_100,
            ..*record
        })
    }

    fn deliver(&mut self, n: usize, to: To, datagram: &Datagram) {
        let from = self.hosts[n].machine.port(PORT).map(|port| (port.gid(), port.lid)).unwrap();
        let qpn = self.hosts[n].machine.endpoint(EP).unwrap().qpn;
        let from = Peer { gid: from.0, lid: from.1, qpn, sl: 0 };
        for other in (0..self.hosts.len()).filter(|other| *other != n) {
            let host = &self.hosts[other];
            let hears = match to {
                To::Group(mgid) => host.io.members.contains(&mgid),
                To::Peer(peer) => host.machine.port(PORT).is_some_and(|port| port.lid == peer.lid),
            };
            if hears && !host.is_cut_off && !self.hosts[n].is_cut_off {
                self.with(other, |m, now, io| {
                    m.handle_datagram(now, EP, &from, &datagram.to_bytes(), io)
                });
            }
        }
    }

    /// Lets time pass, and handles what is due at its time.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        loop {
            self.run();
            let next = self.hosts.iter().filter_map(|host| host.machine.poll_timeout()).min();
            match next.filter(|next| *next <= end) {
                Some(next) => self.now = next.max(self.now),
                None => break,
            }
        }
        self.now = end;
        self.run();
    }

    pub(super) fn sent(&self) -> usize {
        self.hosts.iter().map(|host| host.io.count).sum()
    }
}
