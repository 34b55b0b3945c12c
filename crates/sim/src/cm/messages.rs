//! Optional actions of programs: alternate paths by LAP and APR, requests for more time, redirections.
//!
//! Each node has two addresses. After a migration the messages of a connection use the other ones.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_cm::{
    CmOption, Event, EventKind, IdHandle, IdOption, Manager, PathData, Redirect, Refusal,
};
use rdmux_wire::Mtu;
use rdmux_wire::sa::PathRecord;

use super::life::Role;
use super::migration::Rails;
use super::program::Thought;
use super::world::{Happening, Key, World};
use crate::net::NodeId;

/// An optional action of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    AskForTime,
    Redirect,
    Load,
    /// Answers a LAP, and accepts its path or not.
    Answer(bool),
    Migrated,
}

/// Whether and when programs of a scenario take optional actions.
pub(super) struct Words {
    /// A separate generator, so that the rest of a seed does not depend on these actions.
    pub(super) rng: ChaCha8Rng,
    pub(super) are_said: bool,
    pub(super) rails: Rails,
}

impl Words {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ u64::from_be_bytes(*b"messages"));
        let are_said = rng.random_bool(0.7);
        Self { rng, are_said, rails: Rails::default() }
    }

    /// Makes an id report all messages.
    pub(super) fn tell(&self, cm: &mut Manager, id: IdHandle) {
        if self.are_said {
            let told = IdOption::Cm(CmOption::Messages(true));
            cm.set_option(id, told).expect("it may be set at any time");
        }
    }
}

/// Returns the second address of a node.
pub(super) fn other_ip(node: NodeId) -> IpAddr {
    Ipv4Addr::new(10, 0, 1, u8::try_from(node + 1).unwrap_or(u8::MAX)).into()
}

impl World {
    /// Schedules an action: at once, soon, or late.
    pub(super) fn says_later(&mut self, key: Key, word: Word) {
        let rng = &mut self.words.rng;
        let delay = match rng.random_range(0..3) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(rng.random_range(0..5000)),
            _ => Duration::from_millis(rng.random_range(0..100)),
        };
        self.agenda.after(delay, Happening::Thinks(Thought::Say(key, word)));
    }

    fn perhaps(&mut self, odds: f64, key: Key, word: Word) {
        if self.words.are_said && self.words.rng.random_bool(odds) {
            self.says_later(key, word);
        }
    }

    /// Schedules optional reactions to an event.
    pub(super) fn talks(&mut self, key: Key, event: &Event) -> Result<(), String> {
        match event.kind {
            EventKind::ConnectRequest => {
                self.begins(key, event);
                self.perhaps(0.2, key, Word::AskForTime);
                self.perhaps(0.1, key, Word::Redirect);
            }
            EventKind::ConnectResponse => {
                self.begins(key, event);
                self.perhaps(0.2, key, Word::AskForTime);
                self.perhaps(0.1, key, Word::Load); // too early
            }
            EventKind::AlternateRequest => {
                self.is_offered(key, event)?;
                self.perhaps(0.3, key, Word::AskForTime);
                let takes = self.words.rng.random_bool(0.7);
                self.says_later(key, Word::Answer(takes));
            }
            EventKind::AlternateResponse => {
                self.is_answered(key, event.status)?;
                if event.status == 0 {
                    self.stats.alternates += 1;
                    self.perhaps(0.5, key, Word::Migrated);
                }
                self.perhaps(0.7, key, Word::Load);
            }
            EventKind::MoreTime => {
                self.stats.respites += 1;
                self.waits(key.0, event)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles establishment at the active end, which may load alternate paths.
    pub(super) fn is_up(&mut self, key: Key) {
        for odds in [0.8, 0.3] {
            self.perhaps(odds, key, Word::Load);
        }
    }

    /// Takes an action. If it fails, it must not change anything.
    pub(super) fn says(&mut self, key: Key, word: Word) -> Result<(), String> {
        let (at, life, id) = key;
        let Some(role) = self.lives.get(&key).filter(|l| !l.destroyed).map(|l| l.role) else {
            return Ok(());
        };
        if self.nodes[at].life != life {
            return Err(format!("{key:?} outlives its node"));
        }
        match word {
            // Connections that could survive use the remaining rail.
            Word::Migrated if self.words.rails.has_failed() => return Ok(()),
            Word::Migrated if role == Role::Active => {
                self.both_migrate(key);
                return self.flush(at);
            }
            Word::Migrated | Word::Answer(_) => self.says_migrated(key),
            _ => {}
        }
        let to = self.words.rng.random_range(0..self.nodes.len());
        let records = self.records(at, id);
        let (now, to) = (self.agenda.now(), self.nodes[to].ip);
        let node = &mut self.nodes[at];
        let (cm, out) = (&mut node.cm, &mut node.out);
        let result = match word {
            Word::AskForTime => cm.ask_for_time(id, 12, b"soon", out),
            Word::Redirect => {
                let to = Redirect { gid: to.into(), ..Redirect::default() };
                let reason = if role == Role::Answering { 4 } else { 24 };
                let (info, private_data) = (to.to_info().to_vec(), Vec::new());
                let refusal = Refusal { reason, info, private_data };
                cm.reject_with(now, id, &refusal, out)
            }
            Word::Load => cm.load_alternate(now, id, &records, &[], out),
            Word::Answer(takes) => {
                let reason = if takes { 0 } else { 3 };
                cm.answer_alternate(id, &Refusal { reason, ..Refusal::default() }, out)
            }
            Word::Migrated => Ok(()),
        };
        self.trace(format_args!("{key:?} {word:?}: {result:?}"));
        if let (Ok(()), Some(life)) = (&result, self.lives.get_mut(&key)) {
            match word {
                Word::Redirect => {
                    life.ended_here = true;
                    life.redirected = true;
                }
                Word::Load => {
                    life.laps += 1;
                    life.ways.offered = records.first().map(|r| (r.record.sgid, r.record.dgid));
                    self.stats.laps += 1;
                }
                Word::Answer(true) => {
                    life.taken += 1;
                    life.ways.load();
                }
                Word::AskForTime | Word::Answer(false) | Word::Migrated => {}
            }
        }
        self.flush(at)
    }

    /// Returns a path between two of the ends' addresses.
    fn records(&mut self, at: NodeId, id: IdHandle) -> Vec<PathData> {
        let peer = self.nodes[at].cm.query(id).ok().and_then(|info| info.peer);
        let peer = peer.and_then(|peer| self.node_at(peer.ip())).unwrap_or(at);
        let mut one_of = |node: NodeId| {
            let addresses = [self.nodes[node].ip, other_ip(node)];
            let alive = addresses.map(|ip| self.words.rails.is_alive(ip.into()));
            let only = addresses.into_iter().zip(alive).find(|_| alive != [true; 2]);
            match only {
                Some(_) => addresses[usize::from(!alive[0])],
                None => *addresses.choose(&mut self.words.rng).expect("there are two"),
            }
        };
        let record = PathRecord {
            sgid: one_of(at).into(),
            dgid: one_of(peer).into(),
            mtu: Mtu::M1024.code(),
            packet_life_time: 14,
            hop_limit: 64,
            ..PathRecord::default()
        };
        vec![PathData { flags: PathData::ALTERNATE | PathData::BIDIRECTIONAL, record }]
    }

    /// Returns the node with an address.
    pub(super) fn node_at(&self, ip: IpAddr) -> Option<NodeId> {
        (0..self.nodes.len()).find(|&node| self.nodes[node].ip == ip || other_ip(node) == ip)
    }

    /// Checks that paths loaded at one end were accepted at the other.
    pub(super) fn check_alternates(&self) -> Result<(), String> {
        for (key, life) in self.lives.iter().filter(|(_, life)| life.loaded > 0) {
            let passive = |l: &&super::life::Life| l.token == life.token && l.role == Role::Passive;
            let taken: u32 = self.lives.values().filter(passive).map(|l| l.taken).sum();
            if taken < life.loaded {
                let loaded = life.loaded;
                return Err(format!("{key:?} has loaded {loaded} paths, its peer {taken}"));
            }
        }
        Ok(())
    }
}
