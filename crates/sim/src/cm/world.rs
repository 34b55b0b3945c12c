//! The nodes, the network and the clock.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_cm::iw::StreamWish;
use rdmux_cm::{
    ChannelId, Config, Event, IdHandle, JoinQuery, LocalAddress, MadPath, Manager, Path, PathQuery,
    RouteQuery, Sink, Time,
};
use rdmux_transport::attr::TransportType;
use rdmux_wire::cm::CmMad;
use rdmux_wire::{Guid, Mtu};

use super::life::{Life, Role};
use super::messages::{Words, other_ip};
use super::paths::Paths;
use super::program::{SERVICES, Thought};
use super::streams::{self, Tcp};
use super::{CmFailure, CmScenario, CmStats};
use crate::agenda::Agenda;
use crate::net::{Network, NodeId};

/// The service that all nodes offer.
pub(super) const PORT: u16 = 7174;
/// The channel of a node's server. Clients use others.
pub(super) const SERVER: ChannelId = ChannelId(1);
/// The limit on events, beyond which a run counts as stuck.
const MOST_EVENTS: u64 = 2_000_000;

/// An event of the simulation.
#[derive(Debug)]
pub(super) enum Happening {
    Arrives { to: NodeId, path: MadPath, mad: Box<[u8; 256]> },
    Timer(NodeId),
    Path { to: Key, attempt: u32, answer: Result<Path, i32> },
    Thinks(Thought),
    Stream((u64, bool), streams::StreamEvent),
    Reset,
    Stranger(NodeId),
    Cut(NodeId, NodeId),
    Fails(u8),
    Dies(NodeId, ChannelId),
    Restarts(NodeId),
}

/// The output of a manager.
#[derive(Default)]
pub(super) struct Out {
    mads: Vec<(MadPath, [u8; 256])>,
    events: Vec<(ChannelId, Event)>,
    queries: Vec<(IdHandle, RouteQuery)>,
    paths: Vec<(IdHandle, PathQuery)>,
    cancelled: Vec<(IdHandle, u32)>,
    streams: VecDeque<StreamWish>,
}

impl Out {
    fn is_empty(&self) -> bool {
        self.mads.is_empty()
            && self.events.is_empty()
            && self.queries.is_empty()
            && self.paths.is_empty()
            && self.cancelled.is_empty()
            && self.streams.is_empty()
    }
}

impl Sink for Out {
    fn send_mad(&mut self, path: &MadPath, mad: &[u8; 256]) {
        self.mads.push((*path, *mad));
    }
    fn event(&mut self, channel: ChannelId, event: Event) {
        self.events.push((channel, event));
    }
    fn resolve(&mut self, id: IdHandle, query: RouteQuery) {
        self.queries.push((id, query));
    }
    fn query_path(&mut self, id: IdHandle, query: PathQuery) {
        self.paths.push((id, query));
    }
    fn cancel_path(&mut self, id: IdHandle, attempt: u32) {
        self.cancelled.push((id, attempt));
    }
    fn join_multicast(&mut self, _: IdHandle, _: JoinQuery) {}
    fn leave_multicast(&mut self, _: IdHandle, _: JoinQuery) {}
    fn stream(&mut self, wish: StreamWish) {
        self.streams.push_back(wish);
    }
}

/// A node with its connection manager.
pub(super) struct Node {
    pub(super) cm: Manager,
    pub(super) out: Out,
    pub(super) ip: IpAddr,
    /// The number of restarts: ids of an earlier life differ from those of this one.
    pub(super) life: u32,
    timer: Option<Time>,
}

/// The key of an id among all that ever existed.
pub(super) type Key = (NodeId, u32, IdHandle);

/// The state of the simulation.
pub(super) struct World {
    pub(super) scenario: CmScenario,
    pub(super) rng: ChaCha8Rng,
    pub(super) agenda: Agenda<Happening>,
    pub(super) nodes: Vec<Node>,
    pub(super) lives: BTreeMap<Key, Life>,
    pub(super) tcp: Tcp,
    pub(super) paths: Paths,
    pub(super) words: Words,
    pub(super) stats: CmStats,
    pub(super) last_token: u64,
    pub(super) last_qpn: u32,
    pub(super) last_channel: u64,
    seed: u64,
    net: Network,
    tracing: bool,
}

fn config() -> Config {
    Config {
        retry_interval: Some(Duration::from_millis(10)),
        timewait: Some(Duration::from_millis(100)),
        mra_service_timeout: 12,
        ..Config::default()
    }
}

fn address(node: NodeId) -> LocalAddress {
    let n = u8::try_from(node + 1).unwrap_or(u8::MAX);
    let ip = Ipv4Addr::new(10, 0, 0, n).into();
    LocalAddress::over_ip(ip, (0, TransportType::Ib), Guid(n.into()), Mtu::M1024)
}

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let paths = Paths::new(seed);
        let scenario = CmScenario { paths: paths.odds, ..CmScenario::draw(&mut rng) };
        let net = Network::new(scenario.faults.clone());
        let mut world = Self {
            rng,
            agenda: Agenda::default(),
            nodes: Vec::new(),
            lives: BTreeMap::new(),
            tcp: Tcp::default(),
            paths,
            words: Words::new(seed),
            stats: CmStats::default(),
            last_token: 0,
            last_qpn: 0x100,
            last_channel: SERVER.0,
            seed,
            net,
            tracing,
            scenario,
        };
        for node in 0..world.scenario.nodes {
            let cm = world.service(node);
            let ip = address(node).ip;
            world.nodes.push(Node { cm, out: Out::default(), ip, life: 0, timer: None });
            world.listen(node);
        }
        world.plan();
        world.plan_failure();
        world
    }

    fn service(&mut self, node: NodeId) -> Manager {
        let mut cm = Manager::new(config(), self.rng.random());
        let roce = address(node);
        let other = LocalAddress { ip: other_ip(node), gid: other_ip(node).into(), ..roce.clone() };
        let iwarp = LocalAddress { device: 1, transport: TransportType::Iwarp, ..roce.clone() };
        cm.set_addresses(self.agenda.now(), vec![roce, iwarp, other], &mut Out::default());
        cm
    }

    /// Starts listeners of all kinds.
    pub(super) fn listen(&mut self, node: NodeId) {
        let backlog = self.scenario.backlog;
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
        let cm = &mut self.nodes[node].cm;
        for (ps, qp_type) in SERVICES {
            let id = cm.create_id(SERVER, ps, qp_type, 0).expect("a new id");
            self.words.tell(cm, id);
            cm.bind(id, any, false).expect("a free port");
            cm.listen(id, backlog).expect("a bound id");
        }
    }

    pub(super) fn trace(&self, what: fmt::Arguments<'_>) {
        if self.tracing {
            eprintln!("{:>12} {what}", self.agenda.now().0);
        }
    }

    /// Runs the simulation to its end.
    pub(super) fn run(mut self) -> Result<CmStats, Box<CmFailure>> {
        let result = self.live().and_then(|()| self.check_all()).and_then(|()| self.clean_up());
        let Self { seed, scenario, agenda, mut stats, net, .. } = self;
        stats.net = net.stats;
        stats.virtual_time = agenda.now().since(Time(1));
        stats.seeds = 1;
        let at = agenda.now();
        result.map(|()| stats).map_err(|what| Box::new(CmFailure { seed, at, what, scenario }))
    }

    /// Runs until no events are pending.
    fn live(&mut self) -> Result<(), String> {
        let mut count = 0;
        while let Some(happening) = self.agenda.next_event() {
            count += 1;
            if count > MOST_EVENTS {
                return Err("it does not end".into());
            }
            self.happens(happening)?;
        }
        Ok(())
    }

    fn happens(&mut self, happening: Happening) -> Result<(), String> {
        let now = self.agenda.now();
        match happening {
            Happening::Arrives { to, path, mad } => {
                let node = &mut self.nodes[to];
                node.cm.handle_mad(now, &path, &mad[..], &mut node.out);
                self.flush(to)
            }
            Happening::Timer(at) => {
                let node = &mut self.nodes[at];
                node.timer = None;
                node.cm.handle_timeout(now, &mut node.out);
                self.flush(at)
            }
            Happening::Path { to, attempt, answer } => {
                self.answers_path(to, attempt, answer);
                self.flush(to.0)
            }
            Happening::Thinks(thought) => self.thinks(thought),
            Happening::Stream(to, event) => self.comes(to, event),
            Happening::Reset => self.resets_one(),
            Happening::Stranger(at) => self.stranger(at),
            Happening::Cut(a, b) => {
                self.trace(format_args!("nodes {a} and {b} are cut"));
                let until = now.after(self.scenario.cut_lasts);
                self.net.partition(a, b, until);
                Ok(())
            }
            Happening::Fails(rail) => self.fails(rail),
            Happening::Dies(at, channel) => {
                self.trace(format_args!("node {at}: process {} dies", channel.0));
                self.stats.deaths += u64::from(self.end_lives(at, Some(channel)));
                let node = &mut self.nodes[at];
                node.cm.channel_gone(now, channel, &mut node.out);
                if channel == SERVER {
                    self.listen(at);
                }
                self.flush(at)
            }
            Happening::Restarts(at) => {
                self.trace(format_args!("node {at} starts anew"));
                self.end_lives(at, None);
                self.stats.restarts += 1;
                self.close_all(at);
                self.paths.forget(at);
                self.nodes[at].cm = self.service(at);
                self.nodes[at].life += 1;
                self.listen(at);
                self.flush(at)
            }
        }
    }

    /// Ends the ids of a process, or of all processes of a node. Returns whether one was not over.
    fn end_lives(&mut self, node: NodeId, channel: Option<ChannelId>) -> bool {
        let mut ended = false;
        let of = |life: &&mut Life| {
            life.node == node && channel.is_none_or(|channel| life.channel == channel)
        };
        for life in self.lives.values_mut().filter(of) {
            ended |= !life.over();
            life.ended_here = true;
            life.destroyed = true;
        }
        ended
    }

    /// Executes a manager's requests, until there are no more.
    pub(super) fn flush(&mut self, at: NodeId) -> Result<(), String> {
        let now = self.agenda.now();
        loop {
            let out = std::mem::take(&mut self.nodes[at].out);
            if out.is_empty() {
                break;
            }
            for wish in out.streams {
                self.does_stream(at, wish);
            }
            for (path, mad) in out.mads {
                self.check_quiet(at, &mad)?;
                self.send(at, &path, &mad);
            }
            for (channel, event) in out.events {
                self.hears(at, channel, event)?;
            }
            for (id, query) in out.queries {
                let node = &mut self.nodes[at];
                let answer = query.over_ip(node.ip, 0);
                node.cm.handle_resolved(now, id, answer, &mut node.out);
            }
            for (id, query) in out.paths {
                self.asks_path(at, id, &query);
            }
            for (id, attempt) in out.cancelled {
                self.cancels_path(at, id, attempt)?;
            }
        }
        let node = &mut self.nodes[at];
        let (deadlines, connections) = (node.cm.deadlines(), node.cm.connections());
        let asking = self.paths.open_at(at);
        if deadlines > connections + asking {
            return Err(format!(
                "node {at}: {deadlines} deadlines of {connections} connections and {asking} path queries"
            ));
        }
        self.wake(at);
        Ok(())
    }

    /// Schedules a node's next deadline.
    pub(super) fn wake(&mut self, at: NodeId) {
        let node = &mut self.nodes[at];
        if let Some(next) = node.cm.poll_timeout()
            && node.timer.is_none_or(|timer| next < timer)
        {
            node.timer = Some(next);
            self.agenda.at(next, Happening::Timer(at));
        }
    }

    fn send(&mut self, from: NodeId, path: &MadPath, mad: &[u8; 256]) {
        let Some(to) = self.node_at(path.remote().ip().to_canonical()) else { return };
        if !self.has_rails(path) {
            return;
        }
        let mut hasher = DefaultHasher::new();
        (from, to, mad).hash(&mut hasher);
        let identity = hasher.finish();
        let now = self.agenda.now();
        self.stats.fingerprint =
            (self.stats.fingerprint.rotate_left(5) ^ identity).wrapping_add(now.0);
        let verdict = self.net.send(now, from, to, identity, &mut self.rng);
        if self.tracing {
            let what = CmMad::parse(mad).map_or_else(|e| e.to_string(), |mad| mad.to_string());
            let fate = verdict.deliveries.len();
            self.trace(format_args!("{from} -> {to}: {what}, arrives {fate} times"));
        }
        let path = path.seen_by_peer();
        for delivery in verdict.deliveries {
            let mad = Box::new(*mad);
            self.agenda.after(delivery.after, Happening::Arrives { to, path, mad });
        }
    }

    /// Checks the final state.
    fn check_all(&mut self) -> Result<(), String> {
        for (key, life) in &self.lives {
            life.check_end().map_err(|what| format!("{key:?} {what}"))?;
        }
        self.check_alternates()?;
        if !self.scenario.strict() {
            return Ok(());
        }
        let judged = self.lives.iter().filter(|(_, life)| !self.words.rails.excuse(life.token));
        for (key, life) in judged {
            // A lookup has no MRA, so a slow program is an excuse. So is a refusal, which may be lost each time.
            let refused = self
                .lives
                .values()
                .any(|p| p.token == life.token && p.role == Role::Passive && p.ended_here);
            if life.gave_up() && life.role != Role::Asking && (life.iwarp || !refused) {
                return Err(format!("{key:?} gave up without an excuse: {life:?}"));
            }
            let peers =
                self.lives.values().filter(|p| p.token == life.token && p.role != life.role);
            if life.up() && life.role.connects() && peers.filter(|p| p.up()).count() != 1 {
                return Err(format!("{key:?} is connected to nobody: {life:?}"));
            }
        }
        Ok(())
    }

    /// Destroys everything, and checks that nothing is left.
    fn clean_up(&mut self) -> Result<(), String> {
        self.stats.redirected += self.nodes.iter().map(|n| n.cm.counters().redirected).sum::<u64>();
        self.end_all();
        for at in 0..self.nodes.len() {
            let now = self.agenda.now();
            let node = &mut self.nodes[at];
            for id in node.cm.ids().collect::<Vec<_>>() {
                // Destroying a listener destroys its requests as well.
                let _events = node.cm.destroy(now, id, &mut node.out);
            }
            self.flush(at)?;
        }
        self.live()?;
        for (at, node) in self.nodes.iter().enumerate() {
            let cm = &node.cm;
            let left = [cm.ids().count(), cm.connections(), cm.deadlines(), cm.ports_in_use()];
            if left != [0; 4] {
                return Err(format!("node {at} keeps ids, connections, timers, ports: {left:?}"));
            }
        }
        if let Some(at) = (0..self.nodes.len()).find(|&at| self.paths.open_at(at) > 0) {
            return Err(format!("node {at} leaves path queries open"));
        }
        if self.tcp.len() > 0 {
            return Err(format!("{} ends of streams are left", self.tcp.len()));
        }
        Ok(())
    }

    fn end_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.end_lives(node, None);
        }
    }
}
