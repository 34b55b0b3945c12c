//! The InfiniBand communication manager (IBTA 12): REQ MRA REJ REP RTU DREQ DREP, LAP/APR, SIDR.
//!
//! `Cm` identifies connections by communication ids. The layer of [`id`](crate::id) knows which id owns a
//! connection, which ids listen and which events a program gets. It receives everything that happens as an
//! `Upcall`.
//!
//! | file | contents |
//! |---|---|
//! | `state` | the states of a connection and their transitions |
//! | `conn` | one connection |
//! | `transport` | the queue pair types that a REQ joins |
//! | `active` | the connecting side: REQ, REP, RTU |
//! | `passive` | the accepting side: REQ, REP, RTU |
//! | `respite` | MRA both ways |
//! | `reject` | REJ both ways |
//! | `redirect` | redirected requests and lookups |
//! | `disconnect` | DREQ, DREP, timewait; the release of an owner |
//! | `alternate` | LAP, APR |
//! | `sidr` | SIDR_REQ and SIDR_REP both ways |
//! | `timers` | retransmission, timeouts, the end of timewait |
//! | `receive` | the checks of each datagram, and its dispatch |
//! | `format` | building outgoing messages |

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

/// The effect of a message or a timeout on the layer of ids.
#[derive(Debug)]
pub(crate) enum Upcall {
    /// A peer wants to connect. The connection is in `ReqRcvd` and has no owner: give it one,
    /// [`refuse`](Cm::refuse) or [`forget`](Cm::forget) it. `options` are those of enhanced
    /// connection establishment.
    Request { conn: u32, path: MadPath, req: Box<Req>, options: u32 },
    /// A peer looks up a service: [`answer`](Cm::sidr_reply) it or [`forget`](Cm::sidr_forget) it.
    SidrRequest { key: SidrKey, path: MadPath, req: Box<SidrReq> },
    /// An event of a connection or lookup for its id.
    ToOwner { id: IdHandle, what: ConnEvent },
}

/// An event of a connection or a lookup.
#[derive(Debug)]
pub(crate) enum ConnEvent {
    /// The peer accepted; the program must establish or reject. `local_qpn` is the peer's queue
    /// pair, whatever the transport. The options of enhanced connection establishment are included.
    Response(Box<Rep>, u32),
    /// The connection is up.
    Established,
    /// The peer refused.
    Rejected(Box<Rej>),
    /// The peer redirected the request or the lookup, and it was sent to the new address.
    Redirected(Redirected),
    /// The request is redirected to this GID, and the caller must find the path to it. Process the message, which arrived along the path
    /// `came`, again afterwards.
    PathWanted { gid: Gid, came: MadPath },
    /// The peer needs more time; a code.
    MoreTime(u8),
    /// The peer requests that this end load another alternate path; the program must answer.
    AlternateAsked(Box<Lap>),
    /// The outcome of this end's LAP.
    AlternateAnswered(Box<Apr>),
    /// The peer did not answer the LAP; a negative errno.
    AlternateUnanswered(i32),
    /// No answer arrived; a negative errno.
    Unreachable(i32),
    /// The connection is down; 0 or a negative errno.
    Disconnected(i32),
    /// Timewait is over.
    TimewaitExit,
    /// The answer to a lookup.
    SidrReply(Box<SidrRep>),
}

/// The connections and lookups of a host.
#[derive(Debug)]
pub(crate) struct Cm {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) rng: Rng,
    conns: BTreeMap<u32, Box<Conn>>,
    /// Connections by the peer's node and communication id, from REQ or REP until forgotten.
    by_remote_id: BTreeMap<(Guid, u32), u32>,
    /// Connections by the peer's node and queue pair, from REQ or REP until timewait.
    by_remote_qpn: BTreeMap<(Guid, Qpn), u32>,
    sidr_clients: BTreeMap<u32, SidrClient>,
    sidr_servers: BTreeMap<SidrKey, SidrServer>,
    /// Connections in TIMEWAIT, oldest first. Some may have been forgotten already.
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

    /// Returns the state of a connection that is still known.
    pub(crate) fn state(&self, conn: u32) -> Option<State> {
        self.conns.get(&conn).map(|c| c.state())
    }
    /// Returns the ACK timeout code of a connection's path; 0 if the connection is not known.
    pub(crate) fn ack_timeout(&self, conn: u32) -> u8 {
        self.conns.get(&conn).map_or(0, |c| c.ack_timeout)
    }
    /// Assigns a requested connection to an id.
    pub(crate) fn set_owner(&mut self, conn: u32, owner: IdHandle) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.owner = Some(owner);
        }
    }
    /// Returns the number of connections and lookups, those in timewait included.
    pub(crate) fn len(&self) -> usize {
        self.conns.len() + self.sidr_clients.len() + self.sidr_servers.len()
    }
    /// Returns whether a peer may not know yet that a connection is over.
    pub(crate) fn says_goodbye(&self) -> bool {
        self.conns.values().any(|c| c.state() == State::DreqSent)
    }
    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }
    /// Returns how many deadlines are set.
    pub(crate) fn deadlines(&self) -> usize {
        self.timers.len()
    }

    /// Returns a communication id that is not in use, timewait included (IBTA 12.9.8). It is random for each connection, so that a
    /// peer that knows its own cannot infer those of others.
    fn new_local_id(&mut self) -> u32 {
        loop {
            let id = self.rng.next_u32();
            if id != 0 && !self.conns.contains_key(&id) && !self.sidr_clients.contains_key(&id) {
                return id;
            }
        }
    }

    /// Sends a message that needs no answer.
    fn send(&mut self, path: &MadPath, mad: &Mad, sink: &mut impl Sink) {
        self.counters.mads_sent += 1;
        sink.send_mad(path, mad);
    }

    /// Sends a message and retransmits it until it is answered.
    fn send_until_answered(&mut self, now: Time, conn: u32, mad: &Mad, sink: &mut impl Sink) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.retries_left = c.max_retries;
        c.out = Some(Box::new(*mad));
        let at = c.next_retry(now);
        self.timers.set(&mut c.deadline, Timer::Conn(conn), at);
        let path = c.path;
        self.send(&path, mad, sink);
    }

    /// Stops retransmission, because the answer arrived.
    fn answered(&mut self, conn: u32) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.out = None;
            self.timers.clear(&mut c.deadline, Timer::Conn(conn));
        }
    }

    /// Forgets a connection without sending anything.
    pub(crate) fn forget(&mut self, conn: u32) {
        let Some(mut c) = self.conns.remove(&conn) else { return };
        self.timers.clear(&mut c.deadline, Timer::Conn(conn));
        self.unlist_qpn(&c);
        let key = (c.remote_guid, c.remote_id);
        if self.by_remote_id.get(&key) == Some(&conn) {
            self.by_remote_id.remove(&key);
        }
    }

    /// Allows the peer to use its queue pair for another connection.
    fn unlist_qpn(&mut self, c: &Conn) {
        let key = (c.remote_guid, c.remote_qpn);
        if self.by_remote_qpn.get(&key) == Some(&c.local_id) {
            self.by_remote_qpn.remove(&key);
        }
    }

    /// Returns the connection that a message names, if the peer's names match too.
    fn find(&mut self, local_id: u32, remote_id: u32, path: &MadPath) -> Option<&mut Conn> {
        let found = self.conns.get_mut(&local_id).filter(|c| c.is_of(remote_id, path));
        if found.is_none() {
            self.counters.unknown_connection += 1;
        }
        found.map(Box::as_mut)
    }

    /// Returns the timers of requests and lookups that await `peer`, which is known not to answer. Searches all of them, because
    /// such a hint is rare.
    pub(crate) fn waiting_for(&self, peer: Peer) -> alloc::vec::Vec<Timer> {
        let conns = self.conns.values().filter(|c| c.path.peer() == peer && c.state().awaits_rep());
        let lookups = self.sidr_clients.iter().filter(|(_, c)| c.path.peer() == peer);
        conns
            .map(|c| Timer::Conn(c.local_id))
            .chain(lookups.map(|(&id, _)| Timer::SidrClient(id)))
            .collect()
    }
}
