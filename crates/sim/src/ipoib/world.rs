//! Hosts with their interfaces, on the virtual clock.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_ipoib::neighbours::{LIFE, Link};
use rdmux_ipoib::{Join, Memberships, Neighbours, Source, To};
use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::ipoib::{LinkAddress, Resolution};
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask};
use rdmux_wire::{Gid, Qpn};

use super::{IpoibFailure, IpoibScenario, IpoibStats};
use crate::administration::{Fate, Groups, Manner, Question, Wanted};
use crate::agenda::Agenda;

/// The limit on the events of a run.
const EVENTS: u64 = 1_000_000;
/// The longest time of an address resolution: all pauses together.
const PATIENCE: Duration = Duration::from_millis(3000);
const ENETRESET: i32 = 102;

/// An event of the agenda.
enum Event {
    Arrive { to: usize, from: usize, bytes: Vec<u8> },
    Wake { host: usize },
    Look,
    Move,
    Flush,
    Wish,
    Answer { host: usize, asked: u32, question: Question, errno: Option<i32> },
    Forget,
}

/// A host with its neighbour cache and its group memberships.
struct Host {
    neighbours: Neighbours,
    memberships: Memberships<u32>,
    wake: Option<Time>,
    /// Addresses that are being resolved, and since when.
    waiting: BTreeMap<IpAddr, Time>,
    /// Unanswered queries to administration.
    open: Vec<Question>,
    /// Unanswered join requests, and granted ones with group and join state.
    wishes: BTreeMap<u32, JoinState>,
    members: BTreeMap<u32, (Gid, JoinState)>,
}

/// The owners of an address, with the end of each ownership; none for the present owner.
#[derive(Default)]
struct Owners(Vec<(usize, Option<Time>)>);

/// The output of a host's neighbour machine in one call.
struct Out<'a> {
    own: LinkAddress,
    host: usize,
    owners: &'a BTreeMap<IpAddr, Owners>,
    sent: Vec<(Option<usize>, Vec<u8>)>,
    resolved: Vec<(IpAddr, Option<LinkAddress>)>,
}

impl Link for Out<'_> {
    fn send(&mut self, to: To<'_>, datagram: &Resolution) {
        let to = match to {
            To::All => None,
            To::Sender(source) => Some(host_of(source.qpn)),
        };
        self.sent.push((to, datagram.to_bytes().as_slice().to_vec()));
    }
    fn resolved(&mut self, ip: IpAddr, found: Option<LinkAddress>) {
        self.resolved.push((ip, found));
    }
    fn own(&self, ip: IpAddr, _: &Source) -> Option<LinkAddress> {
        let owner = self.owners.get(&ip)?.now()?;
        (owner == self.host).then_some(self.own)
    }
}

impl Owners {
    fn now(&self) -> Option<usize> {
        self.0.last().filter(|(_, until)| until.is_none()).map(|(host, _)| *host)
    }

    /// Returns whether a host has had the address at some time since `since`.
    fn had(&self, host: usize, since: Time) -> bool {
        self.0.iter().any(|(owner, until)| *owner == host && until.is_none_or(|u| u >= since))
    }

    /// Returns whether one host has had it all the time since `since`.
    fn is_settled(&self, since: Time) -> bool {
        self.now().is_some()
            && self.0.iter().rev().nth(1).is_none_or(|(_, until)| until.is_none_or(|u| u < since))
    }
}

fn link(host: usize) -> LinkAddress {
    let n = u8::try_from(host).unwrap_or(u8::MAX);
    LinkAddress::datagrams(Qpn::new(0x100 + u32::from(n)), Gid([0x10 + n; 16]))
}

fn host_of(qpn: Qpn) -> usize {
    (qpn.get() - 0x100) as usize
}

fn address(n: usize) -> IpAddr {
    let low = u8::try_from(n).unwrap_or(u8::MAX);
    match n % 2 {
        0 => Ipv4Addr::new(10, 0, 0, low).into(),
        _ => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, low.into()).into(),
    }
}

/// Returns the addresses from which a host sends queries, which never move.
fn own_addresses(host: usize) -> [IpAddr; 2] {
    let low = u8::try_from(host).unwrap_or(u8::MAX);
    [
        Ipv4Addr::new(10, 0, 1, low).into(),
        Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, low.into()).into(),
    ]
}

/// All hosts, the subnet between them, and administration.
pub(super) struct World {
    scenario: IpoibScenario,
    agenda: Agenda<Event>,
    rng: ChaCha8Rng,
    hosts: Vec<Host>,
    owners: BTreeMap<IpAddr, Owners>,
    /// The time at which each address was last assigned to a host or removed.
    moved: BTreeMap<IpAddr, Time>,
    groups: Groups,
    /// How often administration has forgotten everything.
    forgotten: u32,
    /// Whether administration executes and answers all queries.
    is_kind: bool,
    next_member: u32,
    stats: IpoibStats,
    tracing: bool,
}

type Checked = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(format!($($what)*));
        }
    };
}

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = IpoibScenario::draw(&mut rng);
        let host = |_| Host {
            neighbours: Neighbours::new(),
            memberships: Memberships::new(),
            wake: None,
            waiting: BTreeMap::new(),
            open: Vec::new(),
            wishes: BTreeMap::new(),
            members: BTreeMap::new(),
        };
        let hosts: Vec<_> = (0..scenario.hosts).map(host).collect();
        let mut owners = BTreeMap::new();
        for n in 0..scenario.addresses {
            let owner = rng.random_range(0..scenario.hosts);
            owners.insert(address(n), Owners(vec![(owner, None)]));
        }
        for host in 0..scenario.hosts {
            owners.extend(own_addresses(host).map(|ip| (ip, Owners(vec![(host, None)]))));
        }
        let mut agenda = Agenda::default();
        let happens: [(u32, fn() -> Event); 5] = [
            (scenario.lookups, || Event::Look),
            (scenario.moves, || Event::Move),
            (scenario.flushes, || Event::Flush),
            (scenario.wishes, || Event::Wish),
            (scenario.forgets, || Event::Forget),
        ];
        agenda.scatter(scenario.span, &happens, &mut rng);
        let is_kind = scenario.refuses == 0.0 && scenario.silent == 0.0;
        Self {
            scenario,
            agenda,
            rng,
            hosts,
            owners,
            moved: BTreeMap::new(),
            groups: Groups::default(),
            forgotten: 0,
            is_kind,
            next_member: 0,
            stats: IpoibStats { seeds: 1, ..IpoibStats::default() },
            tracing,
        }
    }

    pub(super) fn run(mut self, seed: u64) -> Result<IpoibStats, Box<IpoibFailure>> {
        match self.play() {
            Ok(()) => {
                self.stats.virtual_time = Duration::from_nanos(self.agenda.now().0);
                Ok(self.stats)
            }
            Err(what) => {
                let (at, scenario) = (self.agenda.now(), self.scenario);
                Err(Box::new(IpoibFailure { seed, at, what, scenario }))
            }
        }
    }

    fn play(&mut self) -> Checked {
        self.until_nothing_happens()?;
        for host in 0..self.hosts.len() {
            ensure!(self.hosts[host].waiting.is_empty(), "host {host} waits for addresses");
            ensure!(self.hosts[host].wishes.is_empty(), "host {host} waits for groups");
            self.leave_all(host)?;
        }
        // Administration answers all queries from now on.
        (self.scenario.refuses, self.scenario.silent) = (0.0, 0.0);
        self.until_nothing_happens()?;
        for (n, host) in self.hosts.iter().enumerate() {
            ensure!(
                host.memberships.is_empty(),
                "host {n} is still in groups: {:?}",
                host.memberships
            );
            ensure!(host.neighbours.is_empty(), "host {n} knows addresses for ever");
        }
        let may_be_left = self.stats.refused > 0;
        ensure!(
            may_be_left || self.groups.is_empty(),
            "administration has members: {:?}",
            self.groups
        );
        Ok(())
    }

    fn until_nothing_happens(&mut self) -> Checked {
        for _ in 0..EVENTS {
            let Some(event) = self.agenda.next_event() else { return Ok(()) };
            self.happens(event)?;
        }
        Err("it does not end".to_owned())
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            eprintln!("{:>14} {}", self.agenda.now().0, what());
        }
    }

    fn happens(&mut self, event: Event) -> Checked {
        let any = self.rng.random_range(0..self.hosts.len());
        match event {
            Event::Arrive { to, from, bytes } => {
                let qpn = link(from).qpn;
                let source = Source { av: AddressVector::default(), qpn, is_near: true };
                self.neighbours(to, |machine, now, out| {
                    machine.handle(now, &source, &bytes, out).map_err(|e| e.to_string())
                })?
            }
            Event::Wake { host } => {
                self.hosts[host].wake = None;
                self.neighbours(host, |machine, now, out| machine.handle_timeout(now, out))?;
                Ok(())
            }
            Event::Look => self.look(any),
            Event::Move => {
                self.give_away();
                Ok(())
            }
            Event::Flush => {
                self.trace(|| format!("host {any} forgets what it knows"));
                self.forget_all(any)
            }
            Event::Wish => self.wish(any),
            Event::Answer { host, asked, question, errno } => {
                self.answer(host, asked, &question, errno)
            }
            Event::Forget => self.forget(),
        }
    }

    /// Calls the neighbour machine of a host.
    fn neighbours<R>(
        &mut self,
        host: usize,
        f: impl FnOnce(&mut Neighbours, Time, &mut Out<'_>) -> R,
    ) -> Result<R, String> {
        let now = self.agenda.now();
        let (sent, resolved) = (Vec::new(), Vec::new());
        let mut out = Out { own: link(host), host, owners: &self.owners, sent, resolved };
        let result = f(&mut self.hosts[host].neighbours, now, &mut out);
        let Out { sent, resolved, .. } = out;
        for (to, bytes) in sent {
            self.sends(host, to, &bytes);
        }
        for (ip, found) in resolved {
            self.resolved(host, ip, found)?;
        }
        let due = self.hosts[host].neighbours.poll_timeout();
        if let Some(due) = due.filter(|due| self.hosts[host].wake.is_none_or(|wake| *due < wake)) {
            self.hosts[host].wake = Some(due);
            self.agenda.at(due, Event::Wake { host });
        }
        Ok(result)
    }

    fn sends(&mut self, from: usize, to: Option<usize>, bytes: &[u8]) {
        let others =
            (0..self.hosts.len()).filter(|host| *host != from && to.is_none_or(|to| to == *host));
        for to in others.collect::<Vec<_>>() {
            self.stats.sent += 1;
            self.note(bytes.len() as u64);
            if self.rng.random_bool(self.scenario.loss) {
                self.stats.lost += 1;
                continue;
            }
            let duplicate = self.rng.random_bool(self.scenario.duplicate);
            self.stats.duplicated += u64::from(duplicate);
            for _ in 0..1 + u32::from(duplicate) {
                let delay = self.scenario.delay.mul_f64(self.rng.random_range(0.0..1.0));
                self.agenda.after(delay, Event::Arrive { to, from, bytes: bytes.to_vec() });
            }
        }
    }

    fn note(&mut self, what: u64) {
        self.agenda.mix(&mut self.stats.fingerprint, what);
    }

    /// Lets a program resolve an address.
    fn look(&mut self, host: usize) -> Checked {
        let ip = address(self.rng.random_range(0..=self.scenario.addresses));
        let now = self.agenda.now();
        if self.owners.get(&ip).and_then(Owners::now) == Some(host) {
            return Ok(());
        }
        self.stats.lookups += 1;
        let [v4, v6] = own_addresses(host);
        let (from, own) = (if ip.is_ipv4() { v4 } else { v6 }, link(host));
        let was_waited_for = self.hosts[host].waiting.contains_key(&ip);
        // A program that is answered at once gets the answer as the return value.
        self.hosts[host].waiting.entry(ip).or_insert(now);
        let found =
            self.neighbours(host, |machine, now, out| machine.resolve(now, ip, (from, own), out))?;
        if let Some(found) = found {
            if !was_waited_for {
                self.hosts[host].waiting.remove(&ip);
            }
            self.stats.known += 1;
            self.is_or_was_there(host, ip, found)?;
        }
        Ok(())
    }

    /// Flushes a host's cache, and restarts its pending resolutions.
    fn forget_all(&mut self, host: usize) -> Checked {
        let [v4, v6] = own_addresses(host);
        let since = self.agenda.now();
        self.hosts[host].waiting.values_mut().for_each(|waits| *waits = since);
        let waiting: Vec<IpAddr> = self.hosts[host].waiting.keys().copied().collect();
        self.neighbours(host, |machine, now, out| {
            machine.forget_all();
            for ip in waiting {
                let from = if ip.is_ipv4() { v4 } else { v6 };
                machine.resolve(now, ip, (from, link(host)), out);
            }
        })
    }

    /// Checks the result of a resolution: an address, or that no host has it.
    fn resolved(&mut self, host: usize, ip: IpAddr, found: Option<LinkAddress>) -> Checked {
        let now = self.agenda.now();
        self.trace(|| format!("host {host} is told of {ip}: {found:?}"));
        // Cache entries are confirmed without a waiting program.
        let Some(since) = self.hosts[host].waiting.remove(&ip) else { return Ok(()) };
        ensure!(now <= since.after(PATIENCE), "host {host} has waited too long for {ip}");
        match found {
            Some(found) => {
                self.stats.found += 1;
                self.is_or_was_there(host, ip, found)
            }
            None => {
                self.stats.failed += 1;
                // If the host itself got the address in the meantime, no answer arrives.
                let is_elsewhere =
                    |owners: &Owners| owners.is_settled(since) && owners.now() != Some(host);
                let is_there = self.owners.get(&ip).is_some_and(is_elsewhere);
                let is_sure = self.scenario.loss == 0.0;
                let stayed = self.moved.get(&ip).is_none_or(|moved| *moved < since);
                ensure!(
                    !(is_there && is_sure && stayed),
                    "host {host} is told that nobody has {ip}, although nothing was lost"
                );
                Ok(())
            }
        }
    }

    fn is_or_was_there(&mut self, host: usize, ip: IpAddr, found: LinkAddress) -> Checked {
        let now = self.agenda.now();
        let there = host_of(found.qpn);
        ensure!(found == link(there), "host {host} is told of {found}, which nobody is");
        let owners = self.owners.get(&ip).ok_or(format!("nobody has ever had {ip}"))?;
        // A cache entry lives this long after it was received, and was sent a little earlier.
        let oldest = now.0.saturating_sub(nanos(LIFE + 2 * self.scenario.delay));
        ensure!(owners.had(there, Time(oldest)), "host {host} is told that host {there} has {ip}");
        self.stats.stale += u64::from(owners.now() != Some(there));
        Ok(())
    }

    /// Moves an address to another host, or to none.
    fn give_away(&mut self) {
        let ip = address(self.rng.random_range(0..self.scenario.addresses));
        let now = self.agenda.now();
        let to = self.rng.random_range(0..=self.hosts.len());
        self.trace(|| format!("{ip} goes to host {to}"));
        let Some(owners) = self.owners.get_mut(&ip) else { return };
        if let Some((_, until)) = owners.0.last_mut().filter(|(_, until)| until.is_none()) {
            *until = Some(now);
        }
        if to < self.hosts.len() {
            owners.0.push((to, None));
        }
        self.moved.insert(ip, now);
    }

    /// Calls the membership machine of a host.
    fn memberships(
        &mut self,
        host: usize,
        f: impl FnOnce(&mut Memberships<u32>, &mut Wanted),
    ) -> Checked {
        let mut wanted = Wanted::default();
        f(&mut self.hosts[host].memberships, &mut wanted);
        for question in wanted.questions {
            self.asks(host, question)?;
        }
        for (member, result) in wanted.told {
            self.told(host, member, result)?;
        }
        Ok(())
    }

    fn asks(&mut self, host: usize, question: Question) -> Checked {
        self.stats.questions += 1;
        self.note(question.number);
        self.trace(|| format!("host {host} asks {question:?}"));
        let mgid = question.record.mgid;
        let other = self.hosts[host].open.iter().find(|open| open.record.mgid == mgid);
        ensure!(mgid.is_zero() || other.is_none(), "two questions about {mgid} at a time");
        self.hosts[host].open.push(question);
        let asked = self.forgotten;
        let IpoibScenario { refuses, silent, think, .. } = self.scenario;
        let Fate { is_done_unheard, errno, after } =
            Manner { refuses, silent, think }.draw(&mut self.rng);
        if is_done_unheard {
            self.groups.answer(host, &question);
        }
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
        self.hosts[host].open.retain(|open| open.number != question.number);
        let answer = match errno {
            None if is_forgotten => Ok(self.groups.record(question)),
            None => Ok(self.groups.answer(host, question)),
            Some(errno) => Err(errno),
        };
        self.stats.refused += u64::from(answer.is_err());
        let number = question.number;
        self.memberships(host, |machine, wanted| machine.handle_answer(number, answer, wanted))?;
        self.is_what_members_want(host)
    }

    /// Checks that administration has a port in the state that all its members want, and in no more.
    fn is_what_members_want(&self, host: usize) -> Checked {
        let mut wanted: BTreeMap<Gid, JoinState> = BTreeMap::new();
        for (mgid, state) in self.hosts[host].members.values() {
            let all = wanted.entry(*mgid).or_default();
            *all |= *state;
        }
        for (mgid, state) in wanted {
            let has = self.groups.state(host, mgid);
            let is_asked = self.hosts[host].open.iter().any(|open| open.record.mgid == mgid);
            let is_right = has == state || has.contains(state) && (is_asked || !self.is_kind);
            ensure!(is_right, "host {host} is {has:?} in {mgid}, members want {state:?}");
        }
        Ok(())
    }

    /// Lets a program join or leave.
    fn wish(&mut self, host: usize) -> Checked {
        let known: Vec<u32> = {
            let Host { wishes, members, .. } = &self.hosts[host];
            wishes.keys().chain(members.keys()).copied().collect()
        };
        if !known.is_empty() && self.rng.random_bool(0.4) {
            let member = known[self.rng.random_range(0..known.len())];
            return self.leave(host, member);
        }
        let join_state = match self.rng.random_range(0..4) {
            0 => JoinState::SEND_ONLY_FULL_MEMBER,
            1 => JoinState::NON_MEMBER,
            _ => JoinState::FULL_MEMBER,
        };
        let group = self.rng.random_range(0..=self.scenario.groups);
        let mgid = if group == 0 { Gid::ZERO } else { Gid([group; 16]) };
        let record = McMemberRecord { mgid, join_state, ..McMemberRecord::default() };
        let mask = McMemberRecordMask::MGID | McMemberRecordMask::JOIN_STATE;
        self.next_member += 1;
        let member = self.next_member;
        self.hosts[host].wishes.insert(member, join_state);
        self.trace(|| format!("host {host}: {member} wants {join_state:?} of {mgid}"));
        let join = Join { record, mask };
        self.memberships(host, |machine, wanted| machine.join(member, join, wanted))
    }

    fn leave(&mut self, host: usize, member: u32) -> Checked {
        self.trace(|| format!("host {host}: {member} leaves"));
        let Host { wishes, members, .. } = &mut self.hosts[host];
        wishes.remove(&member);
        members.remove(&member);
        self.memberships(host, |machine, wanted| machine.leave(member, wanted))
    }

    fn leave_all(&mut self, host: usize) -> Checked {
        let members: Vec<u32> = self.hosts[host].members.keys().copied().collect();
        members.into_iter().try_for_each(|member| self.leave(host, member))
    }

    /// Checks the result that a member gets for its request, or the loss of its membership.
    fn told(&mut self, host: usize, member: u32, result: Result<McMemberRecord, i32>) -> Checked {
        self.trace(|| format!("host {host}: {member} is told {result:?}"));
        let Host { wishes, members, .. } = &mut self.hosts[host];
        match (wishes.remove(&member), result) {
            (Some(state), Ok(record)) => {
                ensure!(!record.mgid.is_zero(), "{member} is told of no group");
                members.insert(member, (record.mgid, state));
                self.stats.granted += 1;
            }
            (Some(_), Err(_)) => {}
            (None, Err(ENETRESET)) => {
                ensure!(members.remove(&member).is_some(), "{member} loses what it has not");
                self.stats.forgotten += 1;
            }
            (None, result) => {
                return Err(format!("{member} is told {result:?}, and wanted nothing"));
            }
        }
        Ok(())
    }

    /// Makes administration forget everything and ask ports to reregister.
    fn forget(&mut self) -> Checked {
        self.trace(|| "administration forgets".to_owned());
        self.groups.forget();
        self.forgotten += 1;
        for host in 0..self.hosts.len() {
            self.memberships(host, |machine, wanted| machine.lose_all(wanted))?;
            let Host { members, .. } = &self.hosts[host];
            ensure!(members.is_empty(), "members of host {host} are not told");
        }
        Ok(())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
