//! The InfiniBand communication manager (IBTA 12): REQ MRA REJ REP RTU DREQ DREP, LAP/APR, SIDR.
//!
//! `Cm` knows connections by communication ids. Who owns one, who listens and what a program
//! hears is the business of [`id`](crate::id), to which everything that happens goes as an
//! `Upcall`.
//!
//! | file | what |
//! |---|---|
//! | `state` | the states of a connection, and what may follow on what |
//! | `conn` | one connection |
//! | `transport` | which queue pairs a REQ joins |
//! | `active` | REQ out, REP in, RTU out |
//! | `passive` | REQ in, REP out, RTU in |
//! | `respite` | MRA both ways |
//! | `reject` | REJ both ways |
//! | `redirect` | requests and lookups that go elsewhere |
//! | `disconnect` | DREQ, DREP, timewait; the end of an owner |
//! | `alternate` | LAP, APR |
//! | `sidr` | SIDR_REQ and SIDR_REP both ways |
//! | `timers` | retransmission, giving up, the end of timewait |
//! | `receive` | what is checked of each datagram before anything else |
//! | `format` | how our own messages are filled in |

pub(crate) mod active;
pub(crate) mod alternate;
pub(crate) mod conn;
mod disconnect;
mod format;
pub(crate) mod passive;
mod receive;
pub(crate) mod redirect;
mod reject;
mod respite;
pub(crate) mod sidr;
pub mod state;
mod timers;
pub(crate) mod transport;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};

use rdmux_transport::Time;
use rdmux_wire::cm::{Apr, Lap, Rej, Rep, Req, SidrRep, SidrReq};
use rdmux_wire::{Gid, Guid, Qpn};

use self::conn::{Conn, Mad};
use self::redirect::Redirected;
use self::sidr::{SidrClient, SidrKey, SidrServer};
pub use self::state::State;
use self::timers::Timer;
use crate::config::Config;
use crate::counters::Counters;
use crate::path::{MadPath, Peer};
use crate::rng::Rng;
use crate::sink::{IdHandle, Sink};
use crate::timers::Timers;

/// What a message or a timeout means to the layer of ids.
#[derive(Debug)]
pub(crate) enum Upcall {
    /// A peer wants to connect. The connection is in `ReqRcvd` and has no owner: give it one,
    /// [`refuse`](Cm::refuse) or [`forget`](Cm::forget) it. `options` are those of enhanced
    /// connection establishment.
    Request { conn: u32, path: MadPath, req: Box<Req>, options: u32 },
    /// A peer looks a service up: [`answer`](Cm::sidr_reply) it or [`forget`](Cm::sidr_forget) it.
    SidrRequest { key: SidrKey, path: MadPath, req: Box<SidrReq> },
    /// Something that an id must know.
    ToOwner { id: IdHandle, what: ConnEvent },
}

/// What happened to a connection or a lookup.
#[derive(Debug)]
pub(crate) enum ConnEvent {
    /// The peer accepted; the program must establish or reject. `local_qpn` is the peer's queue
    /// pair, whatever the transport. With the options of enhanced connection establishment.
    Response(Box<Rep>, u32),
    /// The connection is up.
    Established,
    /// The peer refused.
    Rejected(Box<Rej>),
    /// The peer asked for the request, or the lookup, to go elsewhere, and it went.
    Redirected(Redirected),
    /// It is to go to this GID, and where that is somebody must be asked. Then the message, which came by this path, is to be looked
    /// at again.
    PathWanted { gid: Gid, came: MadPath },
    /// The peer needs more time; a code.
    MoreTime(u8),
    /// The peer wants another alternate path; the program must answer.
    AlternateAsked(Box<Lap>),
    /// What became of our alternate path.
    AlternateAnswered(Box<Apr>),
    /// The peer did not say; a negative errno.
    AlternateUnanswered(i32),
    /// No answer came; a negative errno.
    Unreachable(i32),
    /// The connection is down; 0 or a negative errno.
    Disconnected(i32),
    /// Timewait is over.
    TimewaitExit,
    /// The answer to a lookup.
    SidrReply(Box<SidrRep>),
}

/// All connections and lookups of a host.
#[derive(Debug)]
pub(crate) struct Cm {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) rng: Rng,
    conns: BTreeMap<u32, Box<Conn>>,
    /// By the peer's node and communication id, from REQ or REP until forgotten.
    by_remote_id: BTreeMap<(Guid, u32), u32>,
    /// By the peer's node and queue pair, from REQ or REP until timewait.
    by_remote_qpn: BTreeMap<(Guid, Qpn), u32>,
    sidr_clients: BTreeMap<u32, SidrClient>,
    sidr_servers: BTreeMap<SidrKey, SidrServer>,
    /// Connections in TIMEWAIT, the oldest first. Some may be over by now.
    timewait: VecDeque<u32>,
    timers: Timers<Timer>,
}

impl Cm {
    pub(crate) fn new(config: Config, seed: [u8; 32]) -> Self {
        Self {
            config: config.clamped(),
            counters: Counters::default(),
            rng: Rng::new(seed),
            conns: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            sidr_clients: BTreeMap::new(),
            sidr_servers: BTreeMap::new(),
            timewait: VecDeque::new(),
            timers: Timers::new(),
        }
    }

    /// The state of a connection that is still known.
    pub(crate) fn state(&self, conn: u32) -> Option<State> {
        self.conns.get(&conn).map(|c| c.state())
    }
    /// The ACK timeout code of a connection's path; 0 if it is not known.
    pub(crate) fn ack_timeout(&self, conn: u32) -> u8 {
        self.conns.get(&conn).map_or(0, |c| c.ack_timeout)
    }
    /// Gives a requested connection to an id.
    pub(crate) fn set_owner(&mut self, conn: u32, owner: IdHandle) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.owner = Some(owner);
        }
    }
    /// Connections and lookups, those in timewait included.
    pub(crate) fn len(&self) -> usize {
        self.conns.len() + self.sidr_clients.len() + self.sidr_servers.len()
    }
    /// Whether a peer may not know yet that a connection is over.
    pub(crate) fn says_goodbye(&self) -> bool {
        self.conns.values().any(|c| c.state() == State::DreqSent)
    }
    /// The earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }
    /// How many deadlines are set.
    pub(crate) fn deadlines(&self) -> usize {
        self.timers.len()
    }

    /// A communication id that is not in use, timewait included (IBTA 12.9.8). Drawn anew for each connection: a peer
    /// that knows its own must not know those of others.
    fn new_local_id(&mut self) -> u32 {
        loop {
            let id = self.rng.next_u32();
            if id != 0 && !self.conns.contains_key(&id) && !self.sidr_clients.contains_key(&id) {
                return id;
            }
        }
    }

    /// Sends a message that no answer is awaited to.
    fn send(&mut self, path: &MadPath, mad: &Mad, sink: &mut impl Sink) {
        self.counters.mads_sent += 1;
        sink.send_mad(path, mad);
    }

    /// Sends a message, again and again until it is answered.
    fn send_until_answered(&mut self, now: Time, conn: u32, mad: &Mad, sink: &mut impl Sink) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.retries_left = c.max_retries;
        c.out = Some(Box::new(*mad));
        let at = c.next_retry(now);
        self.timers.set(&mut c.deadline, Timer::Conn(conn), at);
        let path = c.path;
        self.send(&path, mad, sink);
    }

    /// The answer came: stops sending.
    fn answered(&mut self, conn: u32) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.out = None;
            self.timers.clear(&mut c.deadline, Timer::Conn(conn));
        }
    }

    /// Forgets a connection, without a word to anybody.
    pub(crate) fn forget(&mut self, conn: u32) {
        let Some(mut c) = self.conns.remove(&conn) else { return };
        self.timers.clear(&mut c.deadline, Timer::Conn(conn));
        self.unlist_qpn(&c);
        let key = (c.remote_guid, c.remote_id);
        if self.by_remote_id.get(&key) == Some(&conn) {
            self.by_remote_id.remove(&key);
        }
    }

    /// Lets the peer use its queue pair for another connection.
    fn unlist_qpn(&mut self, c: &Conn) {
        let key = (c.remote_guid, c.remote_qpn);
        if self.by_remote_qpn.get(&key) == Some(&c.local_id) {
            self.by_remote_qpn.remove(&key);
        }
    }

    /// The connection that a message names, if it is the peer's too.
    fn find(&mut self, local_id: u32, remote_id: u32, path: &MadPath) -> Option<&mut Conn> {
        let found = self.conns.get_mut(&local_id).filter(|c| c.is_of(remote_id, path));
        if found.is_none() {
            self.counters.unknown_connection += 1;
        }
        found.map(Box::as_mut)
    }

    /// Gives up what waits for `peer`, which is known not to answer. Looks at everything, for it
    /// is a rare hint.
    pub(crate) fn waiting_for(&self, peer: Peer) -> alloc::vec::Vec<Timer> {
        let conns = self.conns.values().filter(|c| c.path.peer() == peer && c.state().awaits_rep());
        let lookups = self.sidr_clients.iter().filter(|(_, c)| c.path.peer() == peer);
        conns
            .map(|c| Timer::Conn(c.local_id))
            .chain(lookups.map(|(&id, _)| Timer::SidrClient(id)))
            .collect()
    }
}
