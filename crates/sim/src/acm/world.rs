//! Hosts with their services, programs and ports, on the virtual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_acm::{
    ClientId, Dest, Endpoint, EndpointId, Failure, Forget, Machine, Peer, Port, PortId, PortKind,
    QuestionId, Request, RequestId, Resolved, SaFailure, To, User,
};
use rdmux_transport::Time;
use rdmux_wire::acm::{Address, Datagram};
use rdmux_wire::sa::{McMemberRecord, PathRecord, Rate};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qpn};

use super::driver::{Driver, Want};
use super::oracle::Oracle;
use super::{AcmFailure, AcmScenario, AcmStats};
use crate::agenda::Agenda;

/// The limit on the events of a run.
const EVENTS: u64 = 2_000_000;
const PORT: PortId = PortId(0);
const EP: EndpointId = EndpointId(0);
/// The users other than the owner, whose client is the first.
const OTHERS: [User; 2] = [User::Local(1), User::Local(2)];

/// An event of the agenda.
pub(super) enum Event {
    Wake(usize),
    Arrive { to: usize, from: Peer, bytes: Box<[u8; 256]> },
    Joined { host: usize, number: u64, record: Box<McMemberRecord>, ok: bool },
    Paths { host: usize, life: u32, id: QuestionId, answer: Result<Box<PathRecord>, SaFailure> },
    Room(usize),
    Notice(usize),
    Ask,
    Read,
    Move,
    Renumber,
    Restart,
    Cut,
    Heal(usize),
    Lie,
    Trouble,
    Up(usize),
}

/// A host with its ACM service.
pub(super) struct Host {
    pub(super) machine: Machine,
    pub(super) driver: Driver,
    wake: Option<Time>,
    gid: Gid,
    lid: Lid,
    qpn: Qpn,
    sm_lid: Lid,
    is_active: bool,
    is_cut: bool,
    addresses: Vec<Address>,
    members: BTreeSet<Gid>,
    /// The last join of each group, which is the only one that is answered.
    joins: BTreeMap<Gid, u64>,
    /// Incremented at each restart.
    life: u32,
    open: BTreeMap<(ClientId, RequestId), Open>,
}

/// An unanswered request.
struct Open {
    dest: Address,
    asked: Time,
    until: Time,
    was_held: bool,
}

/// All hosts, the network between them, and administration.
pub(super) struct World {
    pub(super) scenario: AcmScenario,
    pub(super) agenda: Agenda<Event>,
    pub(super) hosts: Vec<Host>,
    pub(super) oracle: Oracle,
    pub(super) stats: AcmStats,
    rng: ChaCha8Rng,
    tracing: bool,
    next: u64,
    /// Whether no new activity starts.
    over: bool,
    /// Whether answers are lost between machine and program, for tests.
    #[cfg(test)]
    pub(super) lose_answers: bool,
    /// Whether no datagram arrives, for tests.
    #[cfg(test)]
    pub(super) mute: bool,
}

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = AcmScenario::draw(&mut rng);
        Self::of(scenario, rng, tracing)
    }

    pub(super) fn of(scenario: AcmScenario, mut rng: ChaCha8Rng, tracing: bool) -> Self {
        let hosts = (0..scenario.hosts).map(|n| Host::new(n, &scenario, &mut rng)).collect();
        let mut world = Self {
            scenario,
            agenda: Agenda::default(),
            hosts,
            oracle: Oracle::default(),
            stats: AcmStats { seeds: 1, ..AcmStats::default() },
            rng,
            tracing,
            next: 0,
            over: false,
            #[cfg(test)]
            lose_answers: false,
            #[cfg(test)]
            mute: false,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let now = self.agenda.now();
        for n in 0..self.scenario.addresses {
            let host = self.rng.random_range(0..self.hosts.len());
            let address = address(n);
            self.hosts[host].addresses.push(address);
            self.oracle.moved(now, address, Some(self.hosts[host].gid));
        }
        for n in 0..self.hosts.len() {
            self.oracle.renumbered(now, self.hosts[n].gid, self.hosts[n].lid);
            self.tell_port(n);
            self.tell_endpoint(n);
            // The host's requests are executed when the clock runs.
            self.agenda.after(Duration::ZERO, Event::Room(n));
        }
        let scenario = &self.scenario;
        let plan: [(u32, fn() -> Event); 8] = [
            (scenario.requests, || Event::Ask),
            (scenario.requests, || Event::Read),
            (scenario.moves, || Event::Move),
            (scenario.renumbers, || Event::Renumber),
            (scenario.restarts, || Event::Restart),
            (scenario.cuts, || Event::Cut),
            (scenario.lies, || Event::Lie),
            (scenario.events, || Event::Trouble),
        ];
        // If nothing goes wrong, programs start when all hosts have joined their groups.
        let start = if scenario.is_good() { scenario.think * 3 } else { Duration::ZERO };
        let span = u64::try_from(scenario.span.as_nanos()).unwrap_or(u64::MAX);
        for (times, event) in plan {
            for _ in 0..times {
                let at = start + Duration::from_nanos(self.rng.random_range(0..span));
                self.agenda.after(at, event());
            }
        }
    }

    pub(super) fn run(mut self, seed: u64) -> Result<AcmStats, Box<AcmFailure>> {
        match self.run_all() {
            Ok(()) => Ok(self.stats),
            Err(what) => {
                let (at, scenario) = (self.agenda.now(), self.scenario);
                Err(Box::new(AcmFailure { seed, at, what, scenario }))
            }
        }
    }

    fn run_all(&mut self) -> Result<(), String> {
        let end = Time(1).after(self.scenario.span + self.scenario.think * 3);
        let mut events = 0;
        while let Some(event) = self.agenda.next_event() {
            self.step(event)?;
            events += 1;
            if events > EVENTS {
                return Err("it does not end".into());
            }
            if !self.over && self.agenda.now() > end {
                self.over = true;
                self.quiet_down()?;
            }
        }
        self.finish()
    }

    /// Processes the next event.
    #[cfg(test)]
    pub(super) fn advance(&mut self) -> Result<(), String> {
        match self.agenda.next_event() {
            Some(event) => self.step(event),
            None => self.finish(),
        }
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        let now = self.agenda.now();
        match event {
            Event::Wake(n) => {
                let host = &mut self.hosts[n];
                if host.wake == Some(now) {
                    host.wake = None;
                    self.with(n, |machine, driver| machine.handle_timeout(now, driver))?;
                }
            }
            Event::Arrive { to, from, bytes } => {
                self.with(to, |machine, driver| {
                    machine.handle_datagram(now, EP, &from, &bytes[..], driver);
                })?;
            }
            Event::Joined { host, number, record, ok } => {
                if self.hosts[host].joins.get(&record.mgid) != Some(&number) {
                    return Ok(());
                }
                if ok {
                    self.hosts[host].members.insert(record.mgid);
                }
                let answer = if ok { Ok(&*record) } else { Err(SaFailure::Silent) };
                self.with(host, |m, driver| m.handle_join(now, EP, record.mgid, answer, driver))?;
            }
            Event::Paths { host, life, id, answer } if self.hosts[host].life == life => {
                let answer = answer.as_deref().map_err(|error| *error);
                self.with(host, |machine, driver| machine.handle_paths(now, id, answer, driver))?;
            }
            Event::Paths { .. } => {}
            Event::Room(n) => {
                self.with(n, |machine, driver| machine.handle_room(now, EP, driver))?
            }
            Event::Notice(n) => {
                self.tell_port(n);
                self.settle(n)?;
            }
            Event::Ask => self.ask()?,
            Event::Read => self.read()?,
            Event::Move => self.move_address()?,
            Event::Renumber => self.renumber(),
            Event::Restart => self.restart()?,
            Event::Cut => {
                let n = self.any_host();
                self.hosts[n].is_cut = true;
                let pause = Duration::from_millis(self.rng.random_range(1..10_000));
                self.agenda.after(pause, Event::Heal(n));
            }
            Event::Heal(n) => self.hosts[n].is_cut = false,
            Event::Lie => self.lie(),
            Event::Trouble => self.trouble()?,
            Event::Up(n) => {
                self.hosts[n].is_active = true;
                self.tell_port(n);
                self.settle(n)?;
            }
        }
        Ok(())
    }

    fn any_host(&mut self) -> usize {
        self.rng.random_range(0..self.hosts.len())
    }

    fn any_address(&mut self) -> Address {
        // Includes addresses that no host has.
        let n = self.rng.random_range(0..self.scenario.addresses + 2);
        let host = self.rng.random_range(0..self.hosts.len());
        match self.rng.random_range(0..10) {
            0 => self.hosts[host].gid.into(),
            1 => self.hosts[host].lid.into(),
            _ => address(n),
        }
    }

    /// Calls a machine and executes its requests.
    fn with(
        &mut self,
        n: usize,
        act: impl FnOnce(&mut Machine, &mut Driver),
    ) -> Result<(), String> {
        let full = self.scenario.full > 0.0 && self.rng.random_bool(self.scenario.full);
        let host = &mut self.hosts[n];
        host.driver.room = if full { 0 } else { u32::MAX };
        act(&mut host.machine, &mut host.driver);
        self.settle(n)
    }

    /// Executes a machine's requests and checks its limits.
    fn settle(&mut self, n: usize) -> Result<(), String> {
        let now = self.agenda.now();
        if std::mem::take(&mut self.hosts[n].driver.was_full) {
            let pause = self.some(Duration::from_millis(3));
            self.agenda.after(pause, Event::Room(n));
        }
        for want in std::mem::take(&mut self.hosts[n].driver.wants) {
            match want {
                Want::Send(to, datagram) => self.send(n, to, &datagram),
                Want::Join(record) => {
                    let ok = !self.chance(self.scenario.refuses);
                    let think = self.some(self.scenario.think);
                    self.next += 1;
                    let number = self.next;
                    self.hosts[n].joins.insert(record.mgid, number);
                    self.agenda.after(think, Event::Joined { host: n, number, record, ok });
                }
                Want::Leave(mgid) => {
                    self.hosts[n].members.remove(&mgid);
                    self.hosts[n].joins.remove(&mgid);
                }
                Want::Paths(id, record) => self.administration(n, id, &record),
                Want::Answer(client, id, answer) => self.answered(n, (client, id), answer)?,
                Want::Believed { address, holder, claimant } => {
                    if self.scenario.refuses_lies() && self.oracle.is_holder(now, &address, holder)
                    {
                        let what = format!("{claimant} replaced {holder}, which has {address}");
                        return Err(format!("host {n}: {what}"));
                    }
                }
            }
        }
        self.check_bounds(n)?;
        let host = &mut self.hosts[n];
        if let Some(at) = host.machine.poll_timeout()
            && host.wake.is_none_or(|wake| at < wake)
        {
            host.wake = Some(at.max(now));
            self.agenda.at(at, Event::Wake(n));
        }
        Ok(())
    }

    fn check_bounds(&self, n: usize) -> Result<(), String> {
        let (options, machine) = (&self.scenario.options, &self.hosts[n].machine);
        let (entries, bytes) = machine.memory();
        let (requests, searches) = machine.open();
        if entries > options.max_entries || bytes > 1000 + options.max_entries * 400 {
            return Err(format!("host {n} remembers {entries} addresses in {bytes} bytes"));
        }
        if requests > options.max_requests || searches > options.max_requests {
            return Err(format!("host {n} has {requests} requests and {searches} searches open"));
        }
        let of_others = OTHERS.map(|user| machine.open_of(user));
        let sum = of_others.iter().fold((0, 0), |sum, open| (sum.0 + open.0, sum.1 + open.1));
        let [half, most] = [options.max_requests.div_ceil(2), options.max_requests];
        let is_beyond = |open: (usize, usize), most| open.0 > most || open.1 > most;
        if of_others.iter().any(|open| is_beyond(*open, half)) || is_beyond(sum, most - most / 4) {
            return Err(format!("host {n}: users have {of_others:?} open of {most}"));
        }
        let late = self.hosts[n].open.iter().find(|(_, open)| open.until < self.agenda.now());
        late.map_or(Ok(()), |(id, open)| {
            Err(format!("host {n}: request {id:?} should have ended at {}", open.until.0))
        })
    }

    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.rng.random_bool(p)
    }

    fn some(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.random_range(0..most.max(1)))
    }

    fn send(&mut self, n: usize, to: To, datagram: &Datagram) {
        self.stats.sent += 1;
        let now = self.agenda.now();
        self.stats.fingerprint = (self.stats.fingerprint ^ now.0 ^ datagram.tid())
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(5);
        self.trace(|| format!("host {n} to {to:?}: {datagram}"));
        let from = self.hosts[n].peer();
        let bytes = Box::new(datagram.to_bytes());
        self.spread(n, to, &from, &bytes);
    }

    fn spread(&mut self, n: usize, to: To, from: &Peer, bytes: &[u8; 256]) {
        for other in 0..self.hosts.len() {
            let host = &self.hosts[other];
            let hears = match to {
                To::Group(mgid) => host.members.contains(&mgid) && other != n,
                To::Peer(peer) => (host.lid, host.gid, host.qpn) == (peer.lid, peer.gid, peer.qpn),
            };
            #[cfg(test)]
            let hears = hears && !self.mute;
            if !hears {
                continue;
            }
            let is_cut = host.is_cut || self.hosts[n].is_cut || !host.is_active;
            let duplicate = self.chance(self.scenario.duplicate);
            self.stats.duplicated += u64::from(duplicate);
            for _ in 0..1 + u32::from(duplicate) {
                if is_cut || self.chance(self.scenario.loss) {
                    self.stats.lost += 1;
                    continue;
                }
                let delay = self.some(self.scenario.delay);
                let bytes = Box::new(*bytes);
                self.agenda.after(delay, Event::Arrive { to: other, from: *from, bytes });
            }
        }
    }

    /// Answers a query from the state at the time of the query.
    fn administration(&mut self, n: usize, id: QuestionId, record: &PathRecord) {
        self.stats.questions += 1;
        let refuses = self.chance(self.scenario.refuses);
        let found = self.hosts.iter().find(|host| {
            (record.dgid.is_zero() || host.gid == record.dgid)
                && (record.dlid == Lid::NONE || host.lid == record.dlid)
        });
        let own = &self.hosts[n];
        let answer = match found {
            _ if refuses => {
                let failures = [SaFailure::Silent, SaFailure::Status(0x0300), SaFailure::Status(1)];
                Err(failures[self.rng.random_range(0..3)])
            }
            None => Err(SaFailure::Status(0x0300)),
            Some(host) => Ok(Box::new(PathRecord {
                dgid: host.gid,
                dlid: host.lid,
                sgid: own.gid,
                slid: own.lid,
                sl: u8::try_from(host.lid.0 % 4).unwrap_or(0),
                mtu: Mtu::M2048.code(),
                rate: Rate::GBPS_40,
                ..*record
            })),
        };
        let (life, think) = (own.life, self.some(self.scenario.think));
        self.agenda.after(think, Event::Paths { host: n, life, id, answer });
    }

    fn ask(&mut self) -> Result<(), String> {
        let (n, dest) = (self.any_host(), self.any_address());
        let now = self.agenda.now();
        self.next += 1;
        let client = ClientId(self.rng.random_range(0..3));
        self.hosts[n].machine.set_user(client, user_of(client));
        let id = RequestId(self.next);
        let no_delay = self.rng.random_bool(0.05);
        let timeout = Some(self.scenario.timeout);
        let is_query = self.rng.random_bool(0.05);
        let what = match dest {
            Address::Gid(dgid) if is_query => {
                let sgid = self.hosts[n].gid;
                Dest::Query(PathRecord { dgid, sgid, numb_path: 1, ..PathRecord::default() })
            }
            dest => Dest::Address(dest),
        };
        let until = now.after(self.scenario.timeout.min(self.scenario.options.deadline));
        let was_held = self.oracle.is_held(now, &dest) && !no_delay;
        self.hosts[n].open.insert((client, id), Open { dest, asked: now, until, was_held });
        self.stats.requests += 1;
        self.trace(|| format!("host {n} asks for {dest}"));
        let request = Request { source: None, dest: what, no_delay, timeout };
        let mut is_same = true;
        self.with(n, |machine, driver| {
            machine.request(now, client, id, &request, driver);
            is_same = is_said_again(machine, driver, now, &request);
        })?;
        if !is_same {
            return Err(format!("host {n}: the same request for {dest} has another answer"));
        }
        if !self.scenario.is_good() && self.rng.random_bool(0.03) {
            self.hosts[n].open.remove(&(client, id));
            self.with(n, |machine, _| machine.cancel(client, id))?;
        }
        Ok(())
    }

    fn answered(
        &mut self,
        n: usize,
        id: (ClientId, RequestId),
        answer: Result<Resolved, Failure>,
    ) -> Result<(), String> {
        let now = self.agenda.now();
        #[cfg(test)]
        if self.lose_answers {
            return Ok(());
        }
        let open = self.hosts[n].open.remove(&id);
        let open = open.ok_or(format!("host {n}: {id:?} is answered, but was not asked"))?;
        if now > open.until {
            return Err(format!("host {n}: {id:?} is answered late"));
        }
        match answer {
            Ok(resolved) => {
                self.stats.found += 1;
                self.stats.at_once += u64::from(open.asked == now);
                self.judge(n, &open.dest, &resolved.path)?;
            }
            Err(failure) => {
                self.stats.failed += 1;
                let is_bound = failure == Failure::TooMany || failure == Failure::NoData;
                let had_time = open.until >= open.asked.after(self.scenario.needs());
                let gave_up = now < open.until || had_time;
                if self.scenario.is_good() && open.was_held && gave_up && !is_bound {
                    return Err(format!("host {n}: {} is not found: {failure}", open.dest));
                }
            }
        }
        Ok(())
    }

    fn judge(&mut self, n: usize, dest: &Address, path: &PathRecord) -> Result<(), String> {
        let (now, own) = (self.agenda.now(), self.hosts[n].gid);
        let is_true = self.oracle.judge(now, &self.scenario, own, dest, path);
        let is_true = is_true.map_err(|what| format!("host {n}: {what}"))?;
        self.stats.stale += u64::from(!is_true);
        Ok(())
    }

    /// Lets a program read the published paths.
    fn read(&mut self) -> Result<(), String> {
        let (n, dest) = (self.any_host(), self.any_address());
        let now = self.agenda.now();
        let found = self.hosts[n].driver.published.get(&dest).copied();
        if let Some((path, until)) = found
            && now < until
        {
            self.stats.read += 1;
            self.judge(n, &dest, &path).map_err(|what| format!("read: {what}"))?;
        }
        Ok(())
    }

    fn move_address(&mut self) -> Result<(), String> {
        let now = self.agenda.now();
        let address = address(self.rng.random_range(0..self.scenario.addresses));
        let to = self.rng.random_range(0..=self.hosts.len());
        let gid = self.hosts.get(to).map(|host| host.gid);
        self.trace(|| format!("{address} moves to host {to}"));
        self.oracle.moved(now, address, gid);
        for n in 0..self.hosts.len() {
            let addresses = &mut self.hosts[n].addresses;
            let had = addresses.contains(&address);
            addresses.retain(|own| *own != address);
            if n == to {
                addresses.push(address);
            }
            if had || n == to {
                self.tell_endpoint(n);
                self.settle(n)?;
            }
        }
        Ok(())
    }

    fn renumber(&mut self) {
        let now = self.agenda.now();
        let n = self.any_host();
        let lid = loop {
            let lid = Lid(self.rng.random_range(1..50));
            if self.hosts.iter().all(|host| host.lid != lid) {
                break lid;
            }
        };
        self.trace(|| format!("host {n} gets LID {lid}"));
        self.hosts[n].lid = lid;
        self.oracle.renumbered(now, self.hosts[n].gid, lid);
        let notice = self.some(Duration::from_millis(2));
        self.agenda.after(notice, Event::Notice(n));
    }

    fn restart(&mut self) -> Result<(), String> {
        let n = self.any_host();
        self.trace(|| format!("host {n} starts anew"));
        let seed = self.rng.random();
        let host = &mut self.hosts[n];
        self.stats.count(&host.machine);
        host.machine = Machine::new(self.scenario.options.clone(), seed);
        host.driver = Driver { room: u32::MAX, ..Driver::default() };
        host.life += 1;
        host.qpn = Qpn::new(host.qpn.get() + 1);
        host.members.clear();
        host.joins.clear();
        host.open.clear();
        self.tell_port(n);
        self.tell_endpoint(n);
        self.settle(n)
    }

    /// Lets a host claim an address of another one.
    fn lie(&mut self) {
        let n = self.any_host();
        let address = address(self.rng.random_range(0..self.scenario.addresses));
        let now = self.agenda.now();
        let host = &self.hosts[n];
        if host.addresses.contains(&address) {
            return;
        }
        let groups: rdmux_wire::acm::Groups = host.members.iter().copied().take(6).collect();
        let Some(lowest) = host.machine.groups(EP).first().map(|record| record.mgid) else {
            return;
        };
        self.trace(|| format!("host {n} says that it has {address}"));
        self.oracle.lied(now, address, host.gid);
        let request = rdmux_wire::acm::Request { tid: 7, source: address, dest: address, groups };
        let bytes = Datagram::Request(request).to_bytes();
        let from = host.peer();
        self.spread(n, To::Group(lowest), &from, &bytes);
    }

    fn trouble(&mut self) -> Result<(), String> {
        let n = self.any_host();
        let now = self.agenda.now();
        match self.rng.random_range(0..4) {
            0 => {
                let address = self.any_address();
                let what = [Forget::All, Forget::Routes, Forget::Address(address)];
                let what = what[self.rng.random_range(0..3)];
                self.with(n, |machine, driver| machine.forget(now, what, driver))
            }
            1 => {
                self.hosts[n].sm_lid = Lid(self.rng.random_range(60..70));
                self.tell_port(n);
                self.settle(n)
            }
            2 => self.with(n, |machine, driver| machine.reregister(now, PORT, driver)),
            _ => {
                self.hosts[n].is_active = false;
                let pause = Duration::from_millis(self.rng.random_range(1..10_000));
                self.agenda.after(pause, Event::Up(n));
                self.tell_port(n);
                self.settle(n)
            }
        }
    }

    /// Tells a machine the properties of its port.
    fn tell_port(&mut self, n: usize) {
        let now = self.agenda.now();
        let host = &mut self.hosts[n];
        let port = host.port();
        host.driver.room = u32::MAX;
        host.machine.set_port(now, PORT, port, &mut host.driver);
    }

    fn tell_endpoint(&mut self, n: usize) {
        let now = self.agenda.now();
        let host = &mut self.hosts[n];
        let (qpn, addresses) = (host.qpn, host.addresses.clone());
        let endpoint = Endpoint { port: PORT, pkey: Pkey::DEFAULT, qpn, addresses };
        host.driver.room = u32::MAX;
        host.machine.set_endpoint(now, EP, endpoint, &mut host.driver);
    }

    /// Ends all troubles and lets cache entries expire.
    fn quiet_down(&mut self) -> Result<(), String> {
        for n in 0..self.hosts.len() {
            self.hosts[n].is_cut = false;
            self.settle(n)?;
        }
        Ok(())
    }

    /// Checks that nothing is left at the end.
    fn finish(&mut self) -> Result<(), String> {
        for (n, host) in self.hosts.iter().enumerate() {
            if !host.open.is_empty() {
                return Err(format!("host {n}: {} requests were never answered", host.open.len()));
            }
            let (memory, open) = (host.machine.memory(), host.machine.open());
            if memory.0 != 0 || open != (0, 0) {
                return Err(format!("host {n}: {memory:?} and {open:?} are left"));
            }
            let joined = host.machine.groups(EP);
            let is_left = |mgid: &&Gid| joined.iter().all(|record| record.mgid != **mgid);
            if let Some(mgid) = host.members.iter().find(is_left) {
                return Err(format!("host {n} is a member of {mgid}, which it has left"));
            }
            self.stats.count(&host.machine);
        }
        self.stats.good += u64::from(self.scenario.is_good());
        self.stats.virtual_time = self.agenda.now().since(Time(1));
        Ok(())
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            eprintln!("{:>14} {}", self.agenda.now().0, what());
        }
    }
}

impl AcmScenario {
    /// Returns the longest time of a search if nothing goes wrong, including the searches queued before it.
    fn needs(&self) -> Duration {
        let options = &self.options;
        let search = (options.timeout + self.delay * 2) * (options.retries + 2) + self.think;
        search * (self.requests + 2)
    }
}

impl AcmStats {
    fn count(&mut self, machine: &Machine) {
        let counters = machine.counters(None);
        self.overheard += counters.overheard;
        self.contradictions += counters.contradictions;
        self.replaced += counters.replaced;
        self.refreshed += counters.refreshed;
        self.evicted += counters.evicted;
        self.negative += counters.negative_hits;
        self.deadlines += counters.deadlines;
        self.dropped += counters.dropped_answers;
    }
}

impl Host {
    fn new(n: usize, scenario: &AcmScenario, rng: &mut ChaCha8Rng) -> Self {
        let lid = u16::try_from(n + 1).unwrap_or(1);
        Self {
            machine: Machine::new(scenario.options.clone(), rng.random()),
            driver: Driver { room: u32::MAX, ..Driver::default() },
            wake: None,
            gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0001_0000 + n as u64)),
            lid: Lid(lid),
            qpn: Qpn::new(0x100 * u32::from(lid)),
            sm_lid: Lid(60),
            is_active: true,
            is_cut: false,
            addresses: Vec::new(),
            members: BTreeSet::new(),
            joins: BTreeMap::new(),
            life: 0,
            open: BTreeMap::new(),
        }
    }

    fn peer(&self) -> Peer {
        Peer { gid: self.gid, lid: self.lid, qpn: self.qpn, sl: 0 }
    }

    fn port(&self) -> Port {
        // Some ports are slower than others.
        let is_slow = self.gid.guid().0.is_multiple_of(3);
        Port {
            kind: PortKind::InfiniBand,
            is_active: self.is_active,
            device_guid: self.gid.guid(),
            number: 1,
            count: 1,
            lid: self.lid,
            lmc: 0,
            sm_lid: self.sm_lid,
            sm_sl: 0,
            gids: vec![self.gid],
            pkeys: vec![Pkey::DEFAULT],
            rate: if is_slow { Rate::GBPS_40 } else { Rate::GBPS_100 },
            mtu: if is_slow { Mtu::M2048 } else { Mtu::M4096 },
            subnet_timeout: 0,
        }
    }
}

fn user_of(client: ClientId) -> User {
    let other = usize::try_from(client.0).ok().and_then(|n| OTHERS.get(n.checked_sub(1)?));
    other.copied().unwrap_or_default()
}

/// Returns the address with a number: short and long names, and IP addresses.
pub(super) fn address(n: usize) -> Address {
    let low = u16::try_from(n).unwrap_or(0);
    match n % 4 {
        0 => Address::Ip4([10, 0, 1, low.to_be_bytes()[1]].into()),
        1 => Address::Ip6([0xfd00, 0, 0, 0, 0, 0, 0, low].into()),
        2 => Address::name(format!("node{n}")).unwrap_or(Address::Lid(Lid(1))),
        _ => Address::name(format!("a-node-with-a-long-name-{n}")).unwrap_or(Address::Lid(Lid(1))),
    }
}

/// Returns whether a cached answer is repeated unchanged during the rest of the [tick](Machine::tick), without other effects.
fn is_said_again(machine: &mut Machine, driver: &mut Driver, now: Time, request: &Request) -> bool {
    let Some(Want::Answer(client, _, Ok(first))) = driver.wants.last() else { return true };
    let (client, first, count) = (*client, *first, driver.wants.len());
    let moments = [0, 1, 10, 100, 249].map(|ms| now.after(Duration::from_millis(ms)));
    let is_same = |at: Time| {
        if !first.is_cached || machine.tick(at) != machine.tick(now) {
            return true;
        }
        machine.request(at, client, RequestId(0), request, driver);
        let is_alone = driver.wants.len() == count + 1;
        let said = driver.wants.pop();
        is_alone && matches!(said, Some(Want::Answer(.., Ok(second))) if second == first)
    };
    moments.into_iter().all(is_same)
}
