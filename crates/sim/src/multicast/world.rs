//! Hosts with their ids, administration and the network, on the virtual clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_cm::{
    ChannelId, Config, Event as CmEvent, EventKind, GroupAddr, GroupWish, IdHandle, JoinFlags,
    JoinQuery, LocalAddress, MadPath, Manager, PathQuery, PortSpace, RouteQuery, Sink, Time,
};
use rdmux_ipoib::membership::Administration;
use rdmux_ipoib::{Join, Memberships};
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask as Mask};
use rdmux_wire::{Gid, Guid, Mtu, Qkey};

use super::{MulticastFailure, MulticastScenario, MulticastStats};
use crate::administration::{Fate, Groups, Manner, Question};
use crate::agenda::Agenda;

/// The limit on the events of a run.
const EVENTS: u64 = 1_000_000;
const CHANNEL: ChannelId = ChannelId(1);
const ENETRESET: i32 = 102;

type Checked = Result<(), String>;
/// An id and its context for a group.
type Member = (IdHandle, u64);

macro_rules! ensure {
    ($holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(format!($($what)*));
        }
    };
}

/// An event of the agenda.
enum Event {
    Wish,
    Send,
    Answer { host: usize, asked: u32, question: Question, errno: Option<i32> },
    Arrive { host: usize, mgid: Gid, number: u64 },
    Forget,
}

/// A program's knowledge about one of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Waiting,
    Joined(McMemberRecord),
    Failed,
}

/// A program's membership in a group.
struct Program {
    wish: GroupWish,
    /// The name of the group; for a new group, once joined, its assigned GID.
    name: GroupAddr,
    known: Known,
    /// Datagrams that it has yet to receive, if nothing is lost.
    awaited: BTreeSet<u64>,
}

/// A host with its connection manager and its group memberships.
struct Host {
    cm: Manager,
    memberships: Memberships<Member>,
    ids: Vec<IdHandle>,
    queries: BTreeMap<Member, JoinQuery>,
    programs: BTreeMap<Member, Program>,
}

/// The requests of a host's machines.
#[derive(Default)]
struct Out(VecDeque<Action>);

/// An output of a state machine that is to be executed.
enum Action {
    Told(CmEvent),
    Join(IdHandle, JoinQuery),
    Leave(IdHandle, JoinQuery),
    Ask(Question),
    Joined(Member, Result<McMemberRecord, i32>),
}

impl Sink for Out {
    fn send_mad(&mut self, _: &MadPath, _: &[u8; 256]) {}
    fn event(&mut self, _: ChannelId, event: CmEvent) {
        self.0.push_back(Action::Told(event));
    }
    fn resolve(&mut self, _: IdHandle, _: RouteQuery) {}
    fn query_path(&mut self, _: IdHandle, _: PathQuery) {}
    fn join_multicast(&mut self, id: IdHandle, query: JoinQuery) {
        self.0.push_back(Action::Join(id, query));
    }
    fn leave_multicast(&mut self, id: IdHandle, query: JoinQuery) {
        self.0.push_back(Action::Leave(id, query));
    }
}

impl Administration<Member> for Out {
    fn join(&mut self, number: u64, record: &McMemberRecord, mask: Mask) {
        self.0.push_back(Action::Ask(Question { number, record: *record, mask, is_join: true }));
    }
    fn leave(&mut self, number: u64, record: &McMemberRecord, mask: Mask) {
        self.0.push_back(Action::Ask(Question { number, record: *record, mask, is_join: false }));
    }
    fn joined(&mut self, member: Member, result: Result<McMemberRecord, i32>) {
        self.0.push_back(Action::Joined(member, result));
    }
}

fn port_gid(host: usize) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(0x100 + host as u64))
}

fn own_address(host: usize) -> LocalAddress {
    let ip = Ipv4Addr::new(10, 0, 0, u8::try_from(host).unwrap_or(u8::MAX)).into();
    let (device, guid) = ((2, TransportType::Ib), Guid(0x10 + host as u64));
    let over_ip = LocalAddress::over_ip(ip, device, guid, Mtu::M2048);
    LocalAddress { gid: port_gid(host), has_lids: true, ..over_ip }
}

/// Returns the GID of a name.
fn mgid_of(name: GroupAddr) -> Gid {
    match name {
        GroupAddr::Gid(gid) => gid,
        GroupAddr::Ip(ip) => {
            let mut gid = Gid::from(ip);
            gid.0[..2].copy_from_slice(&[0xff, 0x12]);
            gid
        }
    }
}

/// All hosts, their groups, and administration.
pub(super) struct World {
    scenario: MulticastScenario,
    agenda: Agenda<Event>,
    rng: ChaCha8Rng,
    hosts: Vec<Host>,
    groups: Groups,
    /// How often administration has forgotten everything.
    forgotten: u32,
    contexts: u64,
    number: u64,
    /// Queries that were answered with an error.
    refused: u64,
    stats: MulticastStats,
    tracing: bool,
}

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = MulticastScenario::draw(&mut rng);
        let hosts = (0..scenario.hosts).map(|n| Host::new(n, scenario.ids)).collect();
        let mut agenda = Agenda::default();
        let happens: [(u32, fn() -> Event); 3] = [
            (scenario.wishes, || Event::Wish),
            (scenario.sends, || Event::Send),
            (scenario.forgets, || Event::Forget),
        ];
        agenda.scatter(scenario.span, &happens, &mut rng);
        let stats = MulticastStats { seeds: 1, ..MulticastStats::default() };
        let (groups, forgotten, contexts, number, refused) = (Groups::default(), 0, 0, 0, 0);
        Self {
            scenario,
            agenda,
            rng,
            hosts,
            groups,
            forgotten,
            contexts,
            number,
            refused,
            stats,
            tracing,
        }
    }

    pub(super) fn run(mut self, seed: u64) -> Result<MulticastStats, Box<MulticastFailure>> {
        match self.play() {
            Ok(()) => {
                self.stats.virtual_time = Duration::from_nanos(self.agenda.now().0);
                Ok(self.stats)
            }
            Err(what) => {
                let (at, scenario) = (self.agenda.now(), self.scenario);
                Err(Box::new(MulticastFailure { seed, at, what, scenario }))
            }
        }
    }

    fn play(&mut self) -> Checked {
        self.until_nothing_happens()?;
        let is_sure = self.scenario.loss == 0.0;
        for (n, host) in self.hosts.iter().enumerate() {
            for (member, program) in &host.programs {
                ensure!(program.known != Known::Waiting, "{member:?} of host {n} waits for ever");
                let missing = &program.awaited;
                ensure!(!is_sure || missing.is_empty(), "{member:?} misses {missing:?}");
            }
        }
        for host in 0..self.hosts.len() {
            let members: Vec<Member> = self.hosts[host].programs.keys().copied().collect();
            members.into_iter().try_for_each(|member| self.leave(host, member))?;
        }
        // Administration answers all queries from now on.
        (self.scenario.refuses, self.scenario.silent) = (0.0, 0.0);
        self.until_nothing_happens()?;
        for (n, host) in self.hosts.iter().enumerate() {
            ensure!(host.memberships.is_empty(), "host {n} is still in groups");
        }
        let may_be_left = self.refused > 0;
        ensure!(may_be_left || self.groups.is_empty(), "administration has {:?}", self.groups);
        Ok(())
    }

    fn until_nothing_happens(&mut self) -> Checked {
        for _ in 0..EVENTS {
            let Some(event) = self.agenda.next_event() else { return Ok(()) };
            match event {
                Event::Wish => self.wish()?,
                Event::Send => self.send()?,
                Event::Answer { host, asked, question, errno } => {
                    self.answer(host, asked, &question, errno)?;
                }
                Event::Arrive { host, mgid, number } => self.arrive(host, mgid, number),
                Event::Forget => self.forget()?,
            }
        }
        Err("it does not end".to_owned())
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            eprintln!("{:>14} {}", self.agenda.now().0, what());
        }
    }

    fn note(&mut self, what: u64) {
        self.agenda.mix(&mut self.stats.fingerprint, what);
    }

    /// Calls the machines of a host and executes their requests.
    fn with(&mut self, host: usize, f: impl FnOnce(&mut Host, Time, &mut Out)) -> Checked {
        let now = self.agenda.now();
        let mut out = Out::default();
        f(&mut self.hosts[host], now, &mut out);
        while let Some(action) = out.0.pop_front() {
            match action {
                Action::Told(event) => self.told(host, &event)?,
                Action::Ask(question) => self.asks(host, question)?,
                Action::Join(id, query) => {
                    let member = (id, query.context);
                    let join = join_of(host, &query);
                    let host = &mut self.hosts[host];
                    host.queries.insert(member, query);
                    host.memberships.join(member, join, &mut out);
                }
                Action::Leave(id, query) => {
                    let host = &mut self.hosts[host];
                    host.queries.remove(&(id, query.context));
                    host.memberships.leave((id, query.context), &mut out);
                }
                Action::Joined(member, result) => {
                    let host = &mut self.hosts[host];
                    let Some(query) = host.queries.get(&member).copied() else { continue };
                    host.cm.handle_joined(now, member.0, query, result, &mut out);
                }
            }
        }
        Ok(())
    }

    /// Lets an id join or leave.
    fn wish(&mut self) -> Checked {
        let host = self.rng.random_range(0..self.hosts.len());
        let known: Vec<Member> = self.hosts[host].programs.keys().copied().collect();
        if !known.is_empty() && self.rng.random_bool(0.4) {
            let member = known[self.rng.random_range(0..known.len())];
            return self.leave(host, member);
        }
        let id = self.hosts[host].ids[self.rng.random_range(0..self.scenario.ids)];
        let wish = self.draw_wish(host);
        self.contexts += 1;
        let (context, name) = (self.contexts, wish.group());
        self.trace(|| format!("host {host}: {id} wants {name} as {context}: {wish:?}"));
        let same = |(member, program): (&Member, &Program)| {
            member.0 == id && program.name == name && program.known != Known::Failed
        };
        let has = !name.is_new() && self.hosts[host].programs.iter().any(same);
        let mut outcome = Ok(());
        // The answer may arrive at once.
        let program = Program { wish, name, known: Known::Waiting, awaited: BTreeSet::new() };
        self.hosts[host].programs.insert((id, context), program);
        self.with(host, |host, now, out| {
            outcome = host.cm.join(now, id, wish, context, out);
        })?;
        ensure!(outcome.is_err() == has, "{id} joins {name}: {outcome:?}");
        let programs = &mut self.hosts[host].programs;
        if has {
            programs.remove(&(id, context));
        } else {
            // A failed or lost group of the same name is replaced.
            programs.retain(|member, old| {
                let is_old = *member != (id, context) && member.0 == id && old.name == name;
                !is_old || old.known != Known::Failed
            });
        }
        Ok(())
    }

    fn draw_wish(&mut self, host: usize) -> GroupWish {
        let n = self.rng.random_range(0..=self.scenario.groups);
        let ip = Ipv4Addr::new(239, 0, 0, n);
        if self.rng.random_bool(0.6) {
            let flags = match self.rng.random_bool(0.3) {
                true => JoinFlags::SendOnlyFullMember,
                false => JoinFlags::FullMember,
            };
            let group = if n == 0 { GroupAddr::NEW } else { ip.into() };
            return GroupWish::address(group, flags);
        }
        let states = self.rng.random_range(1..16);
        let mgid = if n == 0 { Gid::ZERO } else { mgid_of(ip.into()) };
        let record = McMemberRecord {
            mgid,
            port_gid: port_gid(host),
            join_state: JoinState::from_bits_retain(states),
            qkey: Qkey(0x77),
            tclass: self.rng.random(),
            ..McMemberRecord::default()
        };
        // Fields that may differ between members must not be in the mask, or members would be refused.
        let more = if self.rng.random_bool(0.5) { Mask::QKEY } else { Mask::empty() };
        GroupWish::Record { record, mask: Mask::MGID | Mask::PORT_GID | Mask::JOIN_STATE | more }
    }

    fn leave(&mut self, host: usize, member: Member) -> Checked {
        self.trace(|| format!("host {host}: {member:?} leaves"));
        let mut outcome = Ok(0);
        self.with(host, |host, now, out| {
            host.programs.remove(&member);
            outcome = host.cm.leave(now, member.0, member.1, out);
        })?;
        outcome.map(drop).map_err(|e| e.to_string())
    }

    /// Handles an event at a program.
    fn told(&mut self, host: usize, event: &CmEvent) -> Checked {
        self.note(event.context);
        let member = (event.id, event.context);
        self.trace(|| format!("host {host}: {member:?} is told {} {}", event.kind, event.status));
        let host = &mut self.hosts[host];
        let group = host.cm.group(event.id, event.context);
        let Some(program) = host.programs.get_mut(&member) else {
            return Err(format!("{member:?} is told of a group that it has left"));
        };
        let before = program.known;
        match (event.kind, before, group) {
            (EventKind::MulticastJoin, Known::Waiting, Ok(record)) => {
                ensure!(!record.mgid.is_zero(), "{member:?} is told of no group");
                self.stats.assigned += u64::from(program.wish.group().is_new());
                self.stats.joined += 1;
                if program.name.is_new() {
                    program.name = record.mgid.into();
                }
                program.known = Known::Joined(record);
            }
            (EventKind::MulticastError, Known::Waiting, Err(_)) => {
                self.stats.failed += 1;
                program.known = Known::Failed;
            }
            (EventKind::MulticastError, Known::Joined(_), Err(_)) => {
                ensure!(event.status == -ENETRESET, "{member:?} loses its group: {}", event.status);
                self.stats.lost_groups += 1;
                program.known = Known::Failed;
                program.awaited.clear();
            }
            (kind, before, group) => {
                return Err(format!("{member:?}, {before:?}, is told {kind}; {group:?}"));
            }
        }
        Ok(())
    }

    fn asks(&mut self, host: usize, question: Question) -> Checked {
        self.note(question.number);
        self.trace(|| format!("host {host} asks {question:?}"));
        if question.is_join {
            let queries = self.hosts[host].queries.values();
            let join = Join { record: question.record, mask: question.mask };
            let is_wanted = queries.map(|query| join_of(host, query)).any(|wanted| wanted == join);
            ensure!(is_wanted, "administration is asked for what nobody wants: {question:?}");
        }
        let MulticastScenario { refuses, silent, think, .. } = self.scenario;
        let Fate { is_done_unheard, errno, after } =
            Manner { refuses, silent, think }.draw(&mut self.rng);
        if is_done_unheard {
            self.groups.answer(host, &question);
        }
        let asked = self.forgotten;
        self.agenda.after(after, Event::Answer { host, asked, question, errno });
        Ok(())
    }

    fn answer(
        &mut self,
        host: usize,
        asked: u32,
        question: &Question,
        errno: Option<i32>,
    ) -> Checked {
        // Of the queries sent before administration forgot, some were executed before, and some arrive or are repeated afterwards.
        let is_forgotten = asked != self.forgotten && self.rng.random_bool(0.5);
        self.refused += u64::from(errno.is_some());
        let answer = match errno {
            None if is_forgotten => Ok(self.groups.record(question)),
            None => Ok(self.groups.answer(host, question)),
            Some(errno) => Err(errno),
        };
        let number = question.number;
        self.with(host, |host, _, out| host.memberships.handle_answer(number, answer, out))
    }

    /// Makes administration forget everything and ask ports to reregister.
    fn forget(&mut self) -> Checked {
        self.trace(|| "administration forgets".to_owned());
        self.groups.forget();
        self.forgotten += 1;
        for host in 0..self.hosts.len() {
            self.with(host, |host, _, out| host.memberships.lose_all(out))?;
        }
        Ok(())
    }

    /// Sends to a group by its address, if the id is a member.
    fn send(&mut self) -> Checked {
        let from = self.rng.random_range(0..self.hosts.len());
        let id = self.hosts[from].ids[self.rng.random_range(0..self.scenario.ids)];
        let name = GroupAddr::from(Ipv4Addr::new(
            239,
            0,
            0,
            self.rng.random_range(0..=self.scenario.groups),
        ));
        let of_id = self.hosts[from].programs.iter().filter(|(member, _)| member.0 == id);
        let joined = of_id.filter(|(_, program)| program.is_called(name));
        let Some(mgid) = joined.filter_map(|(_, program)| program.mgid()).next() else {
            self.stats.unsent += 1;
            return Ok(());
        };
        self.stats.sent += 1;
        self.number += 1;
        let number = self.number;
        self.trace(|| format!("host {from}: {id} sends {number} to {mgid}"));
        for to in 0..self.hosts.len() {
            self.deliver(to, mgid, number)?;
        }
        Ok(())
    }

    /// Delivers a datagram to the ports that administration has in the group.
    fn deliver(&mut self, to: usize, mgid: Gid, number: u64) -> Checked {
        let state = self.groups.state(to, mgid);
        let is_member = state.intersects(JoinState::FULL_MEMBER | JoinState::NON_MEMBER);
        let hears = self.hosts[to].programs.iter_mut().filter(|(_, program)| program.hears(mgid));
        for (member, program) in hears {
            ensure!(is_member, "{member:?} of host {to} is told that it is in {mgid}, and is not");
            program.awaited.insert(number);
        }
        if !is_member {
            return Ok(());
        }
        if self.rng.random_bool(self.scenario.loss) {
            self.stats.lost += 1;
            return Ok(());
        }
        let duplicate = self.rng.random_bool(self.scenario.duplicate);
        self.stats.duplicated += u64::from(duplicate);
        for _ in 0..1 + u32::from(duplicate) {
            let delay = self.scenario.delay.mul_f64(self.rng.random_range(0.0..1.0));
            self.agenda.after(delay, Event::Arrive { host: to, mgid, number });
        }
        Ok(())
    }

    fn arrive(&mut self, host: usize, mgid: Gid, number: u64) {
        self.note(number);
        let hears = self.hosts[host].programs.values_mut().filter(|program| program.hears(mgid));
        for program in hears {
            program.awaited.remove(&number);
            self.stats.received += 1;
        }
    }
}

impl Host {
    fn new(host: usize, ids: usize) -> Self {
        let mut seed = [0; 32];
        seed[0] = u8::try_from(host).unwrap_or(u8::MAX);
        let (mut cm, mut out) = (Manager::new(Config::default(), seed), Out::default());
        let address = own_address(host);
        let ip = address.ip;
        cm.set_addresses(Time(0), vec![address], &mut out);
        let bound = |_| {
            // Neither fails: there are few ids, and the address is the host's.
            let id = cm.create_id(CHANNEL, PortSpace::Udp, QpType::Ud, 0).ok()?;
            cm.bind(id, std::net::SocketAddr::new(ip, 0), false).ok().map(|_| id)
        };
        let ids = (0..ids).filter_map(bound).collect();
        let memberships = Memberships::new();
        let (queries, programs) = (BTreeMap::new(), BTreeMap::new());
        Self { cm, memberships, ids, queries, programs }
    }
}

impl Program {
    fn is_called(&self, name: GroupAddr) -> bool {
        self.name == name || self.mgid().is_some_and(|mgid| mgid == mgid_of(name))
    }

    fn mgid(&self) -> Option<Gid> {
        match self.known {
            Known::Joined(record) => Some(record.mgid),
            _ => None,
        }
    }

    /// Returns whether the program's queue pair is attached to a group.
    fn hears(&self, mgid: Gid) -> bool {
        self.wish.hears() && self.mgid() == Some(mgid)
    }
}

/// Returns the join that the driver sends: a record unchanged, or the record that follows from an address.
fn join_of(host: usize, query: &JoinQuery) -> Join {
    match query.wish {
        GroupWish::Record { record, mask } => Join { record, mask },
        GroupWish::Address { group, .. } => {
            let record = McMemberRecord {
                mgid: mgid_of(group),
                port_gid: port_gid(host),
                qkey: Qkey(0x77),
                join_state: query.wish.join_state(),
                ..McMemberRecord::default()
            };
            let mask = Mask::MGID | Mask::PORT_GID | Mask::JOIN_STATE | Mask::QKEY;
            Join { record, mask }
        }
    }
}
