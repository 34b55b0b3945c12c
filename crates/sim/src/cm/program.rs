//! The behaviour of programs: mostly correct actions, after a delay, and sometimes arbitrary ones.

use std::net::SocketAddr;
use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use rdmux_cm::{ChannelId, ConnParam, Event, EventKind, IdHandle, OnlyDevice, PortSpace};
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_wire::Qpn;

use super::life::{Life, Role};
use super::messages::Word;
use super::paths;
use super::world::{Happening, Key, PORT, SERVER, World};
use crate::net::NodeId;

/// A delayed action of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thought {
    /// A client starts: a connection, or a lookup.
    Start { from: NodeId, to: NodeId, wish: Wish },
    /// An action on an id.
    Do(Key, Deed),
    /// An optional action on an id.
    Say(Key, Word),
    /// A random command for any id of a node.
    Chaos(NodeId),
}

/// The target of a client and its kind of request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    space: PortSpace,
    qp_type: QpType,
    transport: TransportType,
    role: Role,
}

impl Wish {
    const CONNECTION: Self = Self {
        space: PortSpace::Tcp,
        qp_type: QpType::Rc,
        transport: TransportType::Ib,
        role: Role::Active,
    };
    const STREAM: Self = Self { transport: TransportType::Iwarp, ..Self::CONNECTION };
    const EXTENDED: Self =
        Self { space: PortSpace::Ib, qp_type: QpType::XrcSend, ..Self::CONNECTION };
    const STRAY: Self = Self { space: PortSpace::Ib, role: Role::Stray, ..Self::CONNECTION };
    const LOOKUP: Self =
        Self { space: PortSpace::Udp, qp_type: QpType::Ud, role: Role::Asking, ..Self::CONNECTION };
}

/// The services of every node.
pub(super) const SERVICES: [(PortSpace, QpType); 3] =
    [(PortSpace::Tcp, QpType::Rc), (PortSpace::Ib, QpType::XrcRecv), (PortSpace::Udp, QpType::Ud)];

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Connect,
    Accept,
    Reject,
    Establish,
    Disconnect,
    Notify,
    Destroy,
}

const DEEDS: [Deed; 7] = [
    Deed::Connect,
    Deed::Accept,
    Deed::Reject,
    Deed::Establish,
    Deed::Disconnect,
    Deed::Notify,
    Deed::Destroy,
];

impl Role {
    /// Returns whether the role is a side of a connection.
    pub(super) fn connects(self) -> bool {
        matches!(self, Self::Active | Self::Passive)
    }
}

impl World {
    /// Schedules all external events.
    pub(super) fn plan(&mut self) {
        let nodes = self.scenario.nodes;
        for (count, wish) in [
            (self.scenario.connections, Wish::CONNECTION),
            (self.scenario.strays, Wish::STRAY),
            (self.scenario.lookups, Wish::LOOKUP),
        ] {
            for _ in 0..count {
                let (from, to) = (self.rng.random_range(0..nodes), self.rng.random_range(0..nodes));
                let extended =
                    wish.role == Role::Active && self.rng.random_bool(self.scenario.extended);
                let streaming =
                    wish.role == Role::Active && self.rng.random_bool(self.scenario.streaming);
                let wish = match (extended, streaming) {
                    (true, _) => Wish::EXTENDED,
                    (_, true) => Wish::STREAM,
                    _ => wish,
                };
                self.sometime(Happening::Thinks(Thought::Start { from, to, wish }));
            }
        }
        for _ in 0..self.scenario.chaos {
            let at = self.rng.random_range(0..nodes);
            self.sometime(Happening::Thinks(Thought::Chaos(at)));
        }
        for _ in 0..self.scenario.resets {
            self.sometime(Happening::Reset);
        }
        for _ in 0..self.scenario.strangers {
            let at = self.rng.random_range(0..nodes);
            self.sometime(Happening::Stranger(at));
        }
        for _ in 0..self.scenario.deaths {
            let at = self.rng.random_range(0..nodes);
            let clients = u64::from(self.scenario.connections);
            let channel = ChannelId(self.rng.random_range(SERVER.0..=SERVER.0 + clients));
            self.sometime(Happening::Dies(at, channel));
        }
        for _ in 0..self.scenario.cuts {
            let (a, b) = (self.rng.random_range(0..nodes), self.rng.random_range(0..nodes));
            self.sometime(Happening::Cut(a, b));
        }
        for _ in 0..self.scenario.restarts {
            let at = self.rng.random_range(0..nodes);
            self.sometime(Happening::Restarts(at));
        }
    }

    /// Schedules the failure of a rail after everything has started.
    pub(super) fn plan_failure(&mut self) {
        if let Some((rail, after)) = self.words.failure() {
            self.agenda.after(self.scenario.span * 2 + after, Happening::Fails(rail));
        }
    }

    fn sometime(&mut self, happening: Happening) {
        let delay = self.scenario.span.mul_f64(self.rng.random_range(0.0..2.0));
        self.agenda.after(delay, happening);
    }

    /// Schedules an action: at once, soon, or late.
    fn later(&mut self, key: Key, deed: Deed) {
        self.later_by(key, deed, Duration::ZERO);
    }

    /// Schedules an action like [`later`](Self::later), with an additional delay.
    fn later_by(&mut self, key: Key, deed: Deed, linger: Duration) {
        let delay = match self.rng.random_range(0..4) {
            0 => Duration::ZERO,
            1 | 2 => Duration::from_micros(self.rng.random_range(0..5000)),
            _ => Duration::from_millis(self.rng.random_range(0..150)),
        };
        self.agenda.after(delay + linger, Happening::Thinks(Thought::Do(key, deed)));
    }

    /// Executes a scheduled action of a program.
    pub(super) fn thinks(&mut self, thought: Thought) -> Result<(), String> {
        match thought {
            Thought::Start { from, to, wish } => self.start(from, to, wish),
            Thought::Do(key, deed) => self.does(key, deed),
            Thought::Say(key, word) => self.says(key, word),
            Thought::Chaos(node) => {
                let life = self.nodes[node].life;
                let keys: Vec<Key> = self.lives.keys().copied().collect();
                let here: Vec<Key> =
                    keys.into_iter().filter(|k| k.0 == node && k.1 == life).collect();
                let (Some(&key), Some(&deed)) =
                    (here.choose(&mut self.rng), DEEDS.choose(&mut self.rng))
                else {
                    return Ok(());
                };
                self.does(key, deed)
            }
        }
    }

    /// Starts a client process, with a channel of its own or that of another client.
    fn start(&mut self, from: NodeId, to: NodeId, wish: Wish) -> Result<(), String> {
        let (now, dst) = (self.agenda.now(), SocketAddr::new(self.nodes[to].ip, PORT));
        let clients = SERVER.0 + u64::from(self.scenario.connections);
        self.last_channel = (self.last_channel + 1).min(clients);
        let channel = ChannelId(self.last_channel.max(SERVER.0 + 1));
        let Wish { space, qp_type, transport, role } = wish;
        let node = &mut self.nodes[from];
        let only = OnlyDevice { device: transport as u32, transport };
        let id = node.cm.create_id_on(channel, space, qp_type, Some(only), 0);
        let id = id.map_err(|e| e.to_string())?;
        self.last_token += 1;
        self.words.tell(&mut node.cm, id);
        let key = (from, node.life, id);
        let mut new = Life::new(from, channel, role, self.last_token);
        new.iwarp = transport == TransportType::Iwarp;
        self.lives.insert(key, new);
        self.trace(format_args!("{key:?} starts as {role:?} {} to node {to}", self.last_token));
        let node = &mut self.nodes[from];
        let timeout = Duration::from_secs(1);
        let resolving =
            node.cm.resolve_addr(now, id, None, dst.into(), timeout, false, &mut node.out);
        resolving.map_err(|e| e.to_string())?;
        self.flush(from)
    }

    fn param(&mut self, token: u64) -> ConnParam {
        self.last_qpn += 1;
        ConnParam {
            private_data: token.to_be_bytes().to_vec(),
            qp_num: Qpn::new(self.last_qpn),
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }

    /// Executes a command. If it fails, it must not change anything.
    fn does(&mut self, key: Key, deed: Deed) -> Result<(), String> {
        let (at, life, id) = key;
        let now = self.agenda.now();
        let Some(token) = self.lives.get(&key).filter(|l| !l.destroyed).map(|l| l.token) else {
            return Ok(());
        };
        let established = |l: &Life| l.token == token && l.established;
        if deed == Deed::Notify && !self.lives.values().any(established) {
            // No queue pair gets data before the peer has its REP.
            return Ok(());
        }
        if self.nodes[at].life != life {
            return Err(format!("{key:?} outlives its node"));
        }
        let param = self.param(token);
        let node = &mut self.nodes[at];
        let (cm, out) = (&mut node.cm, &mut node.out);
        let result = match deed {
            Deed::Connect => cm.connect(now, id, &param, out),
            Deed::Accept => cm.accept(now, id, &param, out),
            Deed::Reject => cm.reject(now, id, 28, &[], out),
            Deed::Establish => cm.establish(now, id, out),
            Deed::Disconnect => cm.disconnect(now, id, out),
            Deed::Notify => cm.notify(now, id, out),
            Deed::Destroy => cm.destroy(now, id, out).map(|_| ()),
        };
        self.trace(format_args!("{key:?} {deed:?}: {result:?}"));
        if let (Ok(()), Some(life)) = (result, self.lives.get_mut(&key)) {
            match deed {
                Deed::Connect | Deed::Accept => {
                    life.said_yes = true;
                    life.qpn = Some(param.qp_num);
                }
                Deed::Establish => {
                    life.established = true;
                    self.is_up(key);
                }
                Deed::Reject => life.ended_here = true,
                Deed::Destroy => {
                    life.ended_here = true;
                    life.destroyed = true;
                }
                Deed::Disconnect | Deed::Notify => {}
            }
        }
        self.flush(at)
    }

    /// Handles an event for a process.
    pub(super) fn hears(
        &mut self,
        at: NodeId,
        channel: ChannelId,
        event: Event,
    ) -> Result<(), String> {
        let key = (at, self.nodes[at].life, event.id);
        self.stats.events += 1;
        self.trace(format_args!("{key:?} hears {} {}", event.kind, event.status));
        if event.kind == EventKind::ConnectRequest {
            return self.requested(key, channel, &event);
        }
        let life = self.lives.get_mut(&key).ok_or_else(|| format!("{key:?} is nobody's"))?;
        if life.channel != channel {
            return Err(format!("{key:?}: {} on the wrong channel", event.kind));
        }
        life.take(&event).map_err(|what| format!("{key:?}: {what}"))?;
        let (role, token) = (life.role, life.token);
        if event.kind == EventKind::Established && role == Role::Active {
            self.stats.established += 1;
        }
        self.talks(key, &event)?;
        match event.kind {
            EventKind::AddrResolved => return self.resolve_route(at, event.id),
            EventKind::RouteResolved => {
                self.paths.check(key, &event)?;
                self.later(key, Deed::Connect);
            }
            EventKind::RouteError => {
                self.paths.check(key, &event)?;
                return self.lacks_path(key, &event);
            }
            EventKind::ConnectResponse => {
                self.stats.established += 1;
                self.stats.extended += u64::from(qp_type_of(&event) == Some(QpType::XrcSend));
                self.names_peer(key, token, Role::Passive, &event)?;
                let refuses = self.rng.random_bool(0.1);
                self.later(key, if refuses { Deed::Reject } else { Deed::Establish });
                if !refuses {
                    self.maybe_ends(key);
                }
            }
            EventKind::Established if role == Role::Asking => self.stats.looked_up += 1,
            EventKind::Established => self.maybe_ends(key),
            EventKind::Disconnected => {
                self.stats.disconnected += 1;
                self.later(key, Deed::Disconnect);
                if self.rng.random_bool(0.5) {
                    self.later(key, Deed::Destroy);
                }
            }
            EventKind::Rejected => {
                self.stats.rejected += 1;
                self.stats.strays += u64::from(role == Role::Stray);
            }
            EventKind::Unreachable => self.stats.unreachable += 1,
            _ => {}
        }
        Ok(())
    }

    /// Ends some connections from one side, some from both; some stay.
    fn maybe_ends(&mut self, key: Key) {
        let deed = match self.rng.random_range(0..4) {
            0 | 1 => Deed::Disconnect,
            2 => Deed::Destroy,
            _ => return,
        };
        let linger = self.words.linger();
        self.later_by(key, deed, linger);
    }

    /// Resolves the route of an id.
    pub(super) fn resolve_route(&mut self, at: NodeId, id: IdHandle) -> Result<(), String> {
        let now = self.agenda.now();
        let node = &mut self.nodes[at];
        let resolving = node.cm.resolve_route(now, id, paths::TIMEOUT, &mut node.out);
        resolving.map_err(|e| e.to_string())
    }

    /// Handles a request at a server. A client's request may arrive again only after a negative answer, because a REJ may be lost.
    fn requested(&mut self, key: Key, channel: ChannelId, event: &Event) -> Result<(), String> {
        let data = event.param.private_data();
        let token = data.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let datagram = qp_type_of(event) == Some(QpType::Ud);
        let role = if datagram { Role::Answering } else { Role::Passive };
        let iwarp = event.negotiated.as_ref().map(|n| n.transport) == Some(TransportType::Iwarp);
        if !datagram && !iwarp {
            self.names_peer(key, token, Role::Active, event)?;
        }
        // A redirected request may arrive again at the first server before the refusal reaches the client.
        let elsewhere = self.lives.values().any(|l| l.token == token && l.redirected);
        let again = self.lives.values().any(|l| l.token == token && l.role == role && !l.over());
        // The client has cancelled its request. The server is notified that the first request is over when it answers it.
        let asks = |l: &Life| l.token == token && l.role == Role::Active && !l.over();
        let taken_back = !datagram && !self.lives.values().any(asks);
        let again = again && !elsewhere && !taken_back;
        // A client whose stream was reset tries again. The server is notified that the first request is dead when it answers it. An answer
        // to a lookup is cached for eight retransmissions, and a partitioned network may lose that many.
        let forgotten = datagram && self.scenario.cuts > 0;
        if again && !forgotten && !(iwarp && self.scenario.resets > 0) {
            return Err(format!("{key:?}: request {token} came again"));
        }
        let (at, _, id) = key;
        let mut new = Life::new(at, channel, role, token);
        new.iwarp = iwarp;
        self.lives.insert(key, new);
        self.nodes[at].cm.take(id).map_err(|e| e.to_string())?;
        self.talks(key, event)?;
        let deed = match self.rng.random_range(0..10) {
            0 => Deed::Reject,
            1 => Deed::Destroy,
            _ => Deed::Accept,
        };
        self.later(key, deed);
        if self.rng.random_bool(0.05) {
            // The program may reject after its accept.
            self.later(key, Deed::Reject);
        }
        Ok(())
    }

    /// Checks that the peer in an event is that of this connection.
    fn names_peer(&self, key: Key, token: u64, role: Role, event: &Event) -> Result<(), String> {
        let named = event.negotiated.as_ref().map(|n| n.dest_qpn);
        let is_peer = |l: &Life| l.token == token && l.role == role && l.qpn == named;
        if named.is_some() && self.lives.values().any(is_peer) {
            return Ok(());
        }
        Err(format!("{key:?}: {} names {named:?}, which is not {role:?} in {token}", event.kind))
    }
}

/// Returns the queue pair type in an event.
fn qp_type_of(event: &Event) -> Option<QpType> {
    event.negotiated.as_ref().map(|n| n.qp_type)
}
