//! Alternate paths of connections as programs know them, on a network of two rails of which one fails.
//!
//! Each node has an address on each rail. Both ends of a connection must know the same path when a LAP was accepted. When a
//! rail fails, connections with a path on the other rail continue there: their ends migrate, and their disconnects reach both
//! ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::Rng;
use rdmux_cm::{Event, MadPath, Time};
use rdmux_wire::Gid;
use rdmux_wire::cm::{CmMad, Message, MraOf};

use super::life::{Life, Role};
use super::messages::{Word, Words};
use super::world::{Key, World};
use crate::net::NodeId;

/// A path as an end sees it: its own GID, and the peer's.
pub(super) type Way = (Gid, Gid);

/// The paths of an end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ways {
    /// The path in use.
    pub(super) now: Option<Way>,
    /// The path to which it may migrate, or from which it has migrated.
    pub(super) alternate: Option<Way>,
    /// The path of an unanswered LAP.
    pub(super) offered: Option<Way>,
    /// Whether the queue pair has migrated and the program has not yet notified the manager.
    pub(super) unsaid: bool,
}

impl Ways {
    /// Loads the offered path after the LAP was accepted.
    pub(super) fn load(&mut self) {
        self.alternate = self.offered.take().or(self.alternate);
    }

    /// Swaps the paths after the queue pair has migrated.
    pub(super) fn migrate(&mut self) {
        std::mem::swap(&mut self.now, &mut self.alternate);
        self.unsaid = false;
    }

    /// Returns whether the other end uses the same path, and would migrate to the same one.
    fn agree(&self, peer: &Self) -> bool {
        let same = |way: Option<Way>, other: Option<Way>| way == other.map(turned);
        same(self.now, peer.now) && same(self.alternate, peer.alternate)
    }
}

/// The state of the rails and of the connections on them.
#[derive(Debug, Default)]
pub(super) struct Rails {
    /// The failed rail.
    dead: Option<u8>,
    /// The tokens of connections that continue on the other rail.
    saved: BTreeSet<u64>,
    /// The time until which a message must not be retransmitted, by sender, communication ID and transaction.
    quiet: BTreeMap<(NodeId, u32, u64), Time>,
}

impl Rails {
    /// Returns whether a connection may end in any way, because a rail that it needs has failed.
    pub(super) fn excuse(&self, token: u64) -> bool {
        self.dead.is_some() && !self.saved.contains(&token)
    }

    /// Returns whether a rail has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.dead.is_some()
    }

    /// Returns whether the rail of an address works.
    pub(super) fn is_alive(&self, gid: Gid) -> bool {
        self.dead != Some(rail(gid))
    }

    fn carries(&self, (local, remote): Way) -> bool {
        self.is_alive(local) && self.is_alive(remote)
    }
}

/// Returns the rail of an address: the third byte of its IPv4 form.
fn rail(gid: Gid) -> u8 {
    gid.0[14]
}

const fn turned((local, remote): Way) -> Way {
    (remote, local)
}

impl Words {
    /// Returns which rail fails and how long after the start of everything, if one does.
    pub(super) fn failure(&mut self) -> Option<(u8, Duration)> {
        let fails = self.are_said && self.rng.random_bool(0.4);
        fails.then(|| {
            let after = Duration::from_millis(self.rng.random_range(500..4000));
            (self.rng.random_range(0..2), after)
        })
    }

    /// Returns how much longer a connection stays established if programs take optional actions.
    pub(super) fn linger(&mut self) -> Duration {
        if !self.are_said || self.rng.random_bool(0.4) {
            return Duration::ZERO;
        }
        Duration::from_millis(self.rng.random_range(0..6000))
    }
}

impl World {
    /// Migrates both queue pairs of a connection, if both ends know the path. The end that connected notifies its manager at once, the
    /// other one at once or later, but before it answers a further LAP. Returns false if they have not migrated.
    pub(super) fn both_migrate(&mut self, key: Key) -> bool {
        let Some((peer, true)) = self.peer_of(key) else { return false };
        let has_path = self.lives.get(&key).is_some_and(|l| l.ways.alternate.is_some());
        if !has_path || !self.migrates(key) {
            return false;
        }
        if let Some(life) = self.lives.get_mut(&peer) {
            life.ways.unsaid = true;
        }
        self.says_later(peer, Word::Migrated);
        true
    }

    /// Returns the other end of a connection that is established at both, and whether they agree on their paths.
    fn peer_of(&self, key: Key) -> Option<(Key, bool)> {
        let own = self.lives.get(&key).filter(|l| l.up())?;
        let is_peer = |l: &Life| l.token == own.token && l.role == Role::Passive && l.up();
        let mut peers = self.lives.iter().filter(|(_, l)| is_peer(l));
        let (&peer, life) = peers.next().filter(|_| peers.next().is_none())?;
        Some((peer, !life.ways.unsaid && own.ways.agree(&life.ways)))
    }

    /// Tells the manager that the queue pair has migrated. Returns false if that is an error.
    pub(super) fn migrates(&mut self, key: Key) -> bool {
        let migrated = self.nodes[key.0].cm.migrated(key.2);
        self.trace(format_args!("{key:?} migrates: {migrated:?}"));
        if let (Ok(()), Some(life)) = (&migrated, self.lives.get_mut(&key)) {
            life.ways.migrate();
            self.stats.migrations += 1;
        }
        migrated.is_ok()
    }

    /// Tells the manager of a migration that the program has not reported yet.
    pub(super) fn says_migrated(&mut self, key: Key) {
        if self.lives.get(&key).is_some_and(|l| l.ways.unsaid && !l.destroyed) {
            self.migrates(key);
        }
    }

    /// Fails a rail. Queue pairs migrate if both ends know a path on the other rail.
    pub(super) fn fails(&mut self, rail: u8) -> Result<(), String> {
        self.trace(format_args!("rail {rail} fails"));
        self.words.rails.dead = Some(rail);
        let active = |(_, l): &(&Key, &Life)| l.role == Role::Active && !l.iwarp;
        let keys: Vec<Key> = self.lives.iter().filter(active).map(|(&key, _)| key).collect();
        for key in keys {
            let Some((peer, _)) = self.peer_of(key) else { continue };
            self.says_migrated(peer);
            let (Some((_, true)), Some(life)) = (self.peer_of(key), self.lives.get(&key)) else {
                continue;
            };
            let (ways, token) = (life.ways, life.token);
            let carries = |way: Option<Way>| way.is_some_and(|way| self.words.rails.carries(way));
            let goes_on = carries(ways.now)
                || carries(ways.alternate) && self.migrates(key) && self.migrates(peer);
            if goes_on {
                self.stats.saved += 1;
                self.words.rails.saved.insert(token);
            }
        }
        for at in 0..self.nodes.len() {
            self.flush(at)?;
        }
        Ok(())
    }

    /// Returns whether the rails that a datagram needs are alive.
    pub(super) fn has_rails(&self, path: &MadPath) -> bool {
        self.words.rails.carries((path.local, path.remote()))
    }

    /// Records the first path of a connection, as in the REQ that this end or its peer received.
    pub(super) fn begins(&mut self, key: Key, event: &Event) {
        let Some(life) = self.lives.get(&key) else { return };
        let way = match event.message().map(|mad| mad.message) {
            Some(Message::Req(req)) => Some((req.primary.remote_gid, req.primary.local_gid)),
            _ => {
                let qpn = event.negotiated.as_ref().map(|n| n.dest_qpn);
                let peer =
                    |l: &&Life| l.token == life.token && l.role == Role::Passive && l.qpn == qpn;
                self.lives.values().find(peer).and_then(|l| l.ways.now).map(turned)
            }
        };
        if let Some(life) = self.lives.get_mut(&key) {
            life.ways.now = way;
        }
    }

    /// Records the path of a received LAP.
    pub(super) fn is_offered(&mut self, key: Key, event: &Event) -> Result<(), String> {
        let Some(Message::Lap(lap)) = event.message().map(|mad| mad.message) else {
            return Err(format!("{key:?}: {} without its message", event.kind));
        };
        if let Some(life) = self.lives.get_mut(&key) {
            life.ways.offered = Some((lap.alternate.remote_gid, lap.alternate.local_gid));
        }
        Ok(())
    }

    /// Checks the answer to a LAP: the peer has the path, or could not answer.
    pub(super) fn is_answered(&mut self, key: Key, status: i32) -> Result<(), String> {
        let Some(life) = self.lives.get_mut(&key) else { return Ok(()) };
        let (token, offered) = (life.token, life.ways.offered);
        if status == 0 {
            life.ways.load();
        } else {
            life.ways.offered = None;
        }
        let peers = || self.lives.values().filter(|l| l.token == token && l.role == Role::Passive);
        let excuse = peers().any(Life::over) || self.words.rails.has_failed();
        let has =
            |l: &Life| [l.ways.now, l.ways.alternate].map(|way| way.map(turned)).contains(&offered);
        if status == 0 && !excuse && !peers().any(has) {
            return Err(format!("{key:?} has loaded {offered:?}, which its peer has not"));
        }
        if status < 0 && !excuse && self.scenario.strict() {
            return Err(format!("{key:?} has no answer to its LAP without an excuse: {status}"));
        }
        Ok(())
    }

    /// Records a peer's request for more time.
    pub(super) fn waits(&mut self, at: NodeId, event: &Event) -> Result<(), String> {
        let Some(mad) = event.message() else {
            return Err(format!("node {at}: {} without its message", event.kind));
        };
        if let Message::Mra(mra) = mad.message
            && mra.message != MraOf::Rep
        {
            let wait = Duration::from_nanos(4096 << mra.service_timeout);
            let until = self.agenda.now().after(wait);
            self.words.rails.quiet.insert((at, mra.remote_comm_id, mad.tid), until);
        }
        Ok(())
    }

    /// Checks that a sender does not retransmit before the requested time is over.
    pub(super) fn check_quiet(&self, from: NodeId, mad: &[u8; 256]) -> Result<(), String> {
        let Ok(mad) = CmMad::parse(mad) else { return Ok(()) };
        let id = match &mad.message {
            Message::Req(req) => req.local_comm_id,
            Message::Lap(lap) => lap.local_comm_id,
            _ => return Ok(()),
        };
        let until = self.words.rails.quiet.get(&(from, id, mad.tid));
        match until.filter(|until| **until > self.agenda.now()) {
            Some(until) => Err(format!("node {from} was asked for time until {}: {mad}", until.0)),
            None => Ok(()),
        }
    }
}
