//! The dispatcher of management datagrams (IBTA 13.4, 16): who gets a datagram to QP0 or QP1, and
//! who waits for which response.

use std::collections::BTreeMap;
use std::time::Duration;

use rdmux_cm::Time;
use rdmux_wire::Qpn;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};

use super::clients::ClientId;
use super::counters::Count;
use crate::proto::{Failure, MadAddress};

/// Class version of communication management.
const CM_CLASS_VERSION: u8 = 2;
/// The agents that one client may have.
const MAX_AGENTS: usize = 64;
/// The requests of one agent that may await a response.
const MAX_WAITING: usize = 1024;

/// Who takes datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The connection manager, in the service itself.
    Cm,
    /// A process.
    Client(ClientId),
}

/// A registration. Its number is the upper half of the transaction IDs of its requests.
#[derive(Debug)]
struct Agent {
    owner: Owner,
    qpn: Qpn,
    class: MgmtClass,
    class_version: u8,
    /// Bit n is unsolicited method n.
    methods: u128,
}

/// A request that awaits its response.
#[derive(Debug)]
struct Waiting {
    agent: u32,
    to: MadAddress,
    mad: [u8; MAD_LEN],
    due: Time,
    timeout: Duration,
    retries: u8,
}

/// What is to be done when time has passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Send it again.
    Retry { to: MadAddress, mad: Box<[u8; MAD_LEN]> },
    /// Tell the client that nobody answered.
    Expired { agent: u32, client: ClientId, to: MadAddress, mad: Box<[u8; MAD_LEN]> },
}

/// All agents.
#[derive(Debug)]
pub(super) struct Agents {
    agents: BTreeMap<u32, Agent>,
    waiting: BTreeMap<u64, Waiting>,
    next: u32,
}

impl Agents {
    /// The connection manager is the first agent.
    pub(super) fn new() -> Self {
        let cm = Agent {
            owner: Owner::Cm,
            qpn: Qpn::QP1,
            class: MgmtClass::COMM,
            class_version: CM_CLASS_VERSION,
            methods: 1 << Method::SEND.0,
        };
        Self { agents: BTreeMap::from([(0, cm)]), waiting: BTreeMap::new(), next: 1 }
    }

    /// Registers a client for a class.
    pub(super) fn register(
        &mut self,
        client: ClientId,
        qpn: Qpn,
        class: u8,
        class_version: u8,
        methods: u128,
    ) -> Result<u32, Failure> {
        let class = MgmtClass(class);
        let owner = Owner::Client(client);
        if qpn != Qpn::QP0 && qpn != Qpn::QP1 {
            return Err(Failure::new(libc::EINVAL, format!("{qpn} is neither QP0 nor QP1")));
        }
        if self.agents.values().filter(|a| a.owner == owner).count() >= MAX_AGENTS {
            return Err(Failure::new(libc::ENOMEM, format!("it has {MAX_AGENTS} agents already")));
        }
        let taken = |a: &&Agent| {
            a.qpn == qpn
                && a.class == class
                && a.class_version == class_version
                && a.methods & methods != 0
        };
        if self.agents.values().any(|a| taken(&a)) {
            return Err(Failure::new(libc::EBUSY, "another agent has one of these methods"));
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        self.agents.insert(number, Agent { owner, qpn, class, class_version, methods });
        Ok(number)
    }

    /// Takes a registration back, and forgets what it waits for.
    pub(super) fn unregister(&mut self, client: ClientId, agent: u32) -> Result<(), Failure> {
        self.owned(client, agent)?;
        self.agents.remove(&agent);
        self.waiting.retain(|_, w| w.agent != agent);
        Ok(())
    }

    /// Takes all registrations of a client back.
    pub(super) fn client_gone(&mut self, client: ClientId) {
        self.agents.retain(|_, a| a.owner != Owner::Client(client));
        self.waiting.retain(|_, w| self.agents.contains_key(&w.agent));
    }

    /// Prepares a client's datagram to be sent: puts the agent's number into the transaction ID, and
    /// remembers to await the response if there is a timeout.
    pub(super) fn send(
        &mut self,
        now: Time,
        client: ClientId,
        agent: u32,
        to: MadAddress,
        mad: &[u8],
        (timeout, retries): (Duration, u8),
    ) -> Result<[u8; MAD_LEN], Failure> {
        self.owned(client, agent)?;
        let bad = |why: String| Failure::new(libc::EINVAL, why);
        let mut mad = <[u8; MAD_LEN]>::try_from(mad)
            .map_err(|_| bad(format!("a datagram of {} bytes, not {MAD_LEN}", mad.len())))?;
        let mut header = MadHeader::parse(&mad).map_err(|e| bad(e.to_string()))?;
        if header.method.is_response() {
            return Ok(mad);
        }
        header.tid = u64::from(agent) << 32 | header.tid & 0xffff_ffff;
        mad[..MadHeader::LEN].copy_from_slice(&header.to_bytes());
        if !timeout.is_zero() {
            if self.waiting.values().filter(|w| w.agent == agent).count() >= MAX_WAITING {
                return Err(Failure::new(libc::ENOMEM, "too many requests await a response"));
            }
            let due = now.after(timeout);
            self.waiting.insert(header.tid, Waiting { agent, to, mad, due, timeout, retries });
        }
        Ok(mad)
    }

    /// Whose a datagram is that came to `qpn`: the agent's number and owner.
    pub(super) fn dispatch(&mut self, qpn: Qpn, mad: &[u8]) -> Result<(u32, Owner), Count> {
        if mad.len() != MAD_LEN {
            return Err(Count::DropMadLength);
        }
        let header = MadHeader::parse(mad).map_err(|_| Count::DropMadVersion)?;
        if header.method.is_response() {
            let waiting = self.waiting.remove(&header.tid).ok_or(Count::DropMadStale)?;
            let agent = self.agents.get(&waiting.agent).ok_or(Count::DropMadStale)?;
            return Ok((waiting.agent, agent.owner));
        }
        let takes = |a: &Agent| {
            a.qpn == qpn
                && a.class == header.mgmt_class
                && a.class_version == header.class_version
                && a.methods >> header.method.0 & 1 != 0
        };
        let agent = self.agents.iter().find(|(_, a)| takes(a));
        agent.map(|(&n, a)| (n, a.owner)).ok_or(Count::DropMadClass)
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.waiting.values().map(|w| w.due).min()
    }

    /// The requests whose time is up.
    pub(super) fn handle_timeout(&mut self, now: Time) -> Vec<Due> {
        let mut all = Vec::new();
        let agents = &self.agents;
        self.waiting.retain(|_, w| {
            if w.due > now {
                return true;
            }
            let mad = Box::new(w.mad);
            if let Some(left) = w.retries.checked_sub(1) {
                w.retries = left;
                w.due = now.after(w.timeout);
                all.push(Due::Retry { to: w.to, mad });
                return true;
            }
            if let Some(&Agent { owner: Owner::Client(client), .. }) = agents.get(&w.agent) {
                all.push(Due::Expired { agent: w.agent, client, to: w.to, mad });
            }
            false
        });
        all
    }

    fn owned(&self, client: ClientId, agent: u32) -> Result<(), Failure> {
        match self.agents.get(&agent) {
            Some(a) if a.owner == Owner::Client(client) => Ok(()),
            _ => Err(Failure::new(libc::ENOENT, format!("there is no agent {agent} of yours"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_wire::{Gid, Qkey};

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const TO: MadAddress =
        MadAddress { local: Gid::ZERO, remote: Gid::ZERO, qpn: Qpn::QP1, qkey: Qkey::QP1 };

    fn mad(class: u8, version: u8, method: u8, tid: u64) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[1, class, version, method]);
        mad[8..16].copy_from_slice(&tid.to_be_bytes());
        mad
    }

    #[test]
    fn the_class_its_version_and_the_method_choose_the_agent() {
        let mut agents = Agents::new();
        let sa = agents.register(A, Qpn::QP1, 3, 2, 1 << 1 | 1 << 2).unwrap();
        let cm = (0, Owner::Cm);
        assert_eq!(agents.dispatch(Qpn::QP1, &mad(7, 2, 3, 0)), Ok(cm));
        assert_eq!(agents.dispatch(Qpn::QP1, &mad(3, 2, 2, 0)), Ok((sa, Owner::Client(A))));
        for (qpn, class, version, method) in
            [(1, 7, 1, 3), (1, 7, 2, 1), (1, 3, 2, 3), (1, 8, 2, 3), (0, 7, 2, 3), (1, 3, 2, 127)]
        {
            let got = agents.dispatch(Qpn::new(qpn), &mad(class, version, method, 0));
            assert_eq!(got, Err(Count::DropMadClass), "{qpn} {class} {version} {method}");
        }
        assert_eq!(agents.dispatch(Qpn::QP1, &[1; 255]), Err(Count::DropMadLength));
        assert_eq!(agents.dispatch(Qpn::QP1, &[0; 256]), Err(Count::DropMadVersion));
    }

    #[test]
    fn methods_are_not_shared_and_agents_not_borrowed() {
        let mut agents = Agents::new();
        let first = agents.register(A, Qpn::QP1, 3, 2, 0b10).unwrap();
        assert_eq!(agents.register(B, Qpn::QP1, 3, 2, 0b110).unwrap_err().errno, libc::EBUSY);
        assert_eq!(agents.register(B, Qpn::QP1, 7, 2, 1 << 3).unwrap_err().errno, libc::EBUSY);
        assert_eq!(agents.register(B, Qpn::new(2), 3, 2, 0).unwrap_err().errno, libc::EINVAL);
        agents.register(B, Qpn::QP1, 3, 2, 0).unwrap();
        assert_eq!(agents.unregister(B, first).unwrap_err().errno, libc::ENOENT);
        agents.unregister(A, first).unwrap();
        assert_eq!(agents.dispatch(Qpn::QP1, &mad(3, 2, 1, 0)), Err(Count::DropMadClass));
    }

    #[test]
    fn a_response_finds_its_request_once() {
        let mut agents = Agents::new();
        let agent = agents.register(A, Qpn::QP1, 3, 2, 0).unwrap();
        let wait = (Duration::from_secs(1), 0);
        let sent =
            agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, 0xdead_0000_0007), wait).unwrap();
        let tid = u64::from(agent) << 32 | 7;
        assert_eq!(MadHeader::parse(&sent).unwrap().tid, tid);
        assert_eq!(agents.dispatch(Qpn::QP1, &mad(3, 2, 0x81, 7)), Err(Count::DropMadStale));
        let answer = mad(3, 2, 0x81, tid);
        assert_eq!(agents.dispatch(Qpn::QP1, &answer), Ok((agent, Owner::Client(A))));
        assert_eq!(agents.dispatch(Qpn::QP1, &answer), Err(Count::DropMadStale));
        assert_eq!(agents.poll_timeout(), None);
    }

    #[test]
    fn a_request_without_answer_is_sent_again_and_then_given_up() {
        let mut agents = Agents::new();
        let agent = agents.register(A, Qpn::QP1, 3, 2, 0).unwrap();
        let second = Duration::from_secs(1);
        agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, 7), (second, 1)).unwrap();
        let mut now = agents.poll_timeout().unwrap();
        assert_eq!(now, Time::ZERO.after(second));
        assert!(agents.handle_timeout(Time::ZERO).is_empty());
        assert!(matches!(agents.handle_timeout(now)[..], [Due::Retry { .. }]));
        now = now.after(second);
        assert!(matches!(agents.handle_timeout(now)[..], [Due::Expired { client: A, .. }]));
        assert_eq!(agents.poll_timeout(), None);
    }

    #[test]
    fn what_a_dead_client_waited_for_is_forgotten() {
        let mut agents = Agents::new();
        let agent = agents.register(A, Qpn::QP1, 3, 2, 0b10).unwrap();
        agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, 7), (Duration::MAX, 9)).unwrap();
        agents.client_gone(A);
        assert_eq!(agents.poll_timeout(), None);
        assert_eq!(agents.dispatch(Qpn::QP1, &mad(3, 2, 1, 0)), Err(Count::DropMadClass));
    }
}
