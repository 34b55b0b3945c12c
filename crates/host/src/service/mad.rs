//! The dispatcher of management datagrams (IBTA 13.4, 16): which agent gets a datagram to QP0 or
//! QP1, and which request a response answers.

use std::collections::BTreeMap;
use std::time::Duration;

use rdmux_cm::Time;
use rdmux_wire::Qpn;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};

use super::clients::ClientId;
use super::counters::Count;
use super::ports::PortId;
use crate::proto::{Failure, MadAddress};

/// Class version of communication management.
const CM_CLASS_VERSION: u8 = 2;
/// Maximum number of agents of one client.
const MAX_AGENTS: usize = 64;
/// Maximum number of requests of one agent that wait for a response.
const MAX_WAITING: usize = 1024;

/// The owner of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The connection manager in the service itself.
    Cm,
    /// A client process.
    Client(ClientId),
}

/// The registration of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgentKey {
    /// The port.
    pub(super) port: PortId,
    /// QP0 or QP1 of it.
    pub(super) qpn: Qpn,
    /// Management class.
    pub(super) class: MgmtClass,
    /// Class version.
    pub(super) class_version: u8,
}

/// A registered agent. Its number is the upper half of the transaction IDs of its requests.
#[derive(Debug)]
struct Agent {
    owner: Owner,
    key: AgentKey,
    /// Bit n is unsolicited method n.
    methods: u128,
}

/// A request that waits for its response.
#[derive(Debug)]
struct Waiting {
    agent: u32,
    to: MadAddress,
    mad: [u8; MAD_LEN],
    due: Time,
    timeout: Duration,
    retries: u8,
}

/// The action for a request that timed out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Send it again.
    Retry { port: PortId, to: MadAddress, mad: Box<[u8; MAD_LEN]> },
    /// Notify the client that no response arrived.
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
    /// Makes the table. The connection manager is the first agent of each port.
    pub(super) fn new() -> Self {
        let cm = |port| {
            let (class, class_version) = (MgmtClass::COMM, CM_CLASS_VERSION);
            let key = AgentKey { port, qpn: Qpn::QP1, class, class_version };
            Agent { owner: Owner::Cm, key, methods: 1 << Method::SEND.0 }
        };
        let agents: BTreeMap<u32, Agent> = (0..).zip(PortId::with_cm().map(cm)).collect();
        let next = agents.keys().next_back().map_or(0, |last| last + 1);
        Self { agents, waiting: BTreeMap::new(), next }
    }

    /// Registers a client for a class.
    pub(super) fn register(
        &mut self,
        client: ClientId,
        key: AgentKey,
        methods: u128,
    ) -> Result<u32, Failure> {
        let owner = Owner::Client(client);
        let AgentKey { port, qpn, .. } = key;
        if !PortId::with_qp1().any(|with| with == port) {
            let (name, number) = (port.device.device_name(), port.number);
            return Err(Failure::new(libc::EINVAL, format!("{name} has no QP1 at port {number}")));
        }
        if qpn != Qpn::QP0 && qpn != Qpn::QP1 {
            return Err(Failure::new(libc::EINVAL, format!("{qpn} is neither QP0 nor QP1")));
        }
        if self.agents.values().filter(|a| a.owner == owner).count() >= MAX_AGENTS {
            return Err(Failure::new(
                libc::ENOMEM,
                format!("the process has {MAX_AGENTS} agents already, the maximum"),
            ));
        }
        if self.agents.values().any(|a| a.key == key && a.methods & methods != 0) {
            return Err(Failure::new(
                libc::EBUSY,
                "another agent is registered for one of these methods",
            ));
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        self.agents.insert(number, Agent { owner, key, methods });
        Ok(number)
    }

    /// Unregisters an agent, and drops its requests.
    pub(super) fn unregister(&mut self, client: ClientId, agent: u32) -> Result<(), Failure> {
        self.owned(client, agent)?;
        self.agents.remove(&agent);
        self.waiting.retain(|_, w| w.agent != agent);
        Ok(())
    }

    /// Unregisters all agents of a client.
    pub(super) fn client_gone(&mut self, client: ClientId) {
        self.agents.retain(|_, a| a.owner != Owner::Client(client));
        self.waiting.retain(|_, w| self.agents.contains_key(&w.agent));
    }

    /// Prepares a client's datagram for sending: puts the agent's number into the transaction ID
    /// and, if a timeout is set, records that a response is expected.
    pub(super) fn send(
        &mut self,
        now: Time,
        client: ClientId,
        agent: u32,
        to: MadAddress,
        mad: &[u8],
        (timeout, retries): (Duration, u8),
    ) -> Result<(PortId, [u8; MAD_LEN]), Failure> {
        let port = self.owned(client, agent)?.key.port;
        let bad = |why: String| Failure::new(libc::EINVAL, why);
        let mut mad = <[u8; MAD_LEN]>::try_from(mad)
            .map_err(|_| bad(format!("the datagram has {} bytes, not {MAD_LEN}", mad.len())))?;
        let mut header = MadHeader::parse(&mad).map_err(|e| bad(e.to_string()))?;
        if header.method.is_response() {
            return Ok((port, mad));
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
        Ok((port, mad))
    }

    /// Returns the number and owner of the agent for a datagram that arrived at `qpn` of a port.
    pub(super) fn dispatch(
        &mut self,
        port: PortId,
        qpn: Qpn,
        mad: &[u8],
    ) -> Result<(u32, Owner), Count> {
        if mad.len() != MAD_LEN {
            return Err(Count::DropMadLength);
        }
        let header = MadHeader::parse(mad).map_err(|_| Count::DropMadVersion)?;
        if header.method.is_response() {
            let number = self.waiting.get(&header.tid).ok_or(Count::DropMadStale)?.agent;
            let agent = self.agents.get(&number).filter(|agent| agent.key.port == port);
            let owner = agent.ok_or(Count::DropMadStale)?.owner;
            self.waiting.remove(&header.tid);
            return Ok((number, owner));
        }
        let (class, class_version) = (header.mgmt_class, header.class_version);
        let key = AgentKey { port, qpn, class, class_version };
        let takes = |a: &Agent| a.key == key && a.methods >> header.method.0 & 1 != 0;
        let agent = self.agents.iter().find(|(_, a)| takes(a));
        agent.map(|(&n, a)| (n, a.owner)).ok_or(Count::DropMadClass)
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.waiting.values().map(|w| w.due).min()
    }

    /// Returns the requests that timed out.
    pub(super) fn handle_timeout(&mut self, now: Time) -> Vec<Due> {
        let mut all = Vec::new();
        let agents = &self.agents;
        self.waiting.retain(|_, w| {
            if w.due > now {
                return true;
            }
            let mad = Box::new(w.mad);
            let Some(agent) = agents.get(&w.agent) else { return false };
            if let Some(left) = w.retries.checked_sub(1) {
                w.retries = left;
                w.due = now.after(w.timeout);
                all.push(Due::Retry { port: agent.key.port, to: w.to, mad });
                return true;
            }
            if let Owner::Client(client) = agent.owner {
                all.push(Due::Expired { agent: w.agent, client, to: w.to, mad });
            }
            false
        });
        all
    }

    fn owned(&self, client: ClientId, agent: u32) -> Result<&Agent, Failure> {
        match self.agents.get(&agent) {
            Some(a) if a.owner == Owner::Client(client) => Ok(a),
            _ => Err(Failure::new(libc::ENOENT, format!("this process has no agent {agent}"))),
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

    fn port() -> PortId {
        PortId::with_qp1().next().unwrap()
    }

    fn key(qpn: Qpn, class: u8, class_version: u8) -> AgentKey {
        AgentKey { port: port(), qpn, class: MgmtClass(class), class_version }
    }

    fn mad(class: u8, version: u8, method: u8, tid: u64) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[1, class, version, method]);
        mad[8..16].copy_from_slice(&tid.to_be_bytes());
        mad
    }

    #[test]
    fn the_class_its_version_and_the_method_choose_the_agent() {
        let mut agents = Agents::new();
        let sa = agents.register(A, key(Qpn::QP1, 3, 2), 1 << 1 | 1 << 2).unwrap();
        let cm = (0, Owner::Cm);
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &mad(7, 2, 3, 0)), Ok(cm));
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &mad(3, 2, 2, 0)), Ok((sa, Owner::Client(A))));
        for (qpn, class, version, method) in
            [(1, 7, 1, 3), (1, 7, 2, 1), (1, 3, 2, 3), (1, 8, 2, 3), (0, 7, 2, 3), (1, 3, 2, 127)]
        {
            let got = agents.dispatch(port(), Qpn::new(qpn), &mad(class, version, method, 0));
            assert_eq!(got, Err(Count::DropMadClass), "{qpn} {class} {version} {method}");
        }
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &[1; 255]), Err(Count::DropMadLength));
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &[0; 256]), Err(Count::DropMadVersion));
    }

    #[test]
    fn mad_method_of_another_agent_is_ebusy_and_foreign_agent_is_enoent() {
        let mut agents = Agents::new();
        let first = agents.register(A, key(Qpn::QP1, 3, 2), 0b10).unwrap();
        assert_eq!(agents.register(B, key(Qpn::QP1, 3, 2), 0b110).unwrap_err().errno, libc::EBUSY);
        assert_eq!(agents.register(B, key(Qpn::QP1, 7, 2), 1 << 3).unwrap_err().errno, libc::EBUSY);
        assert_eq!(agents.register(B, key(Qpn::new(2), 3, 2), 0).unwrap_err().errno, libc::EINVAL);
        agents.register(B, key(Qpn::QP1, 3, 2), 0).unwrap();
        assert_eq!(agents.unregister(B, first).unwrap_err().errno, libc::ENOENT);
        agents.unregister(A, first).unwrap();
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &mad(3, 2, 1, 0)), Err(Count::DropMadClass));
    }

    #[test]
    fn mad_response_matches_its_request_by_tid_only_once() {
        let mut agents = Agents::new();
        let agent = agents.register(A, key(Qpn::QP1, 3, 2), 0).unwrap();
        let wait = (Duration::from_secs(1), 0);
        let (_, sent) =
            agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, 0xdead_0000_0007), wait).unwrap();
        let tid = u64::from(agent) << 32 | 7;
        assert_eq!(MadHeader::parse(&sent).unwrap().tid, tid);
        assert_eq!(
            agents.dispatch(port(), Qpn::QP1, &mad(3, 2, 0x81, 7)),
            Err(Count::DropMadStale)
        );
        let answer = mad(3, 2, 0x81, tid);
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &answer), Ok((agent, Owner::Client(A))));
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &answer), Err(Count::DropMadStale));
        assert_eq!(agents.poll_timeout(), None);
    }

    #[test]
    fn a_request_without_answer_is_sent_again_and_then_given_up() {
        let mut agents = Agents::new();
        let agent = agents.register(A, key(Qpn::QP1, 3, 2), 0).unwrap();
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
    fn dead_clients_mad_agents_and_requests_are_removed() {
        let mut agents = Agents::new();
        let agent = agents.register(A, key(Qpn::QP1, 3, 2), 0b10).unwrap();
        agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, 7), (Duration::MAX, 9)).unwrap();
        let other = agents.register(B, key(Qpn::QP1, 4, 1), 0b10).unwrap();
        agents.client_gone(A);
        assert_eq!(agents.poll_timeout(), None);
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &mad(3, 2, 1, 0)), Err(Count::DropMadClass));
        let of_other = agents.dispatch(port(), Qpn::QP1, &mad(4, 1, 1, 0));
        assert_eq!(of_other, Ok((other, Owner::Client(B))));
    }

    #[test]
    fn agents_and_waiting_requests_of_a_client_are_bounded() {
        let mut agents = Agents::new();
        let of = |agents: &mut Agents, client, n| {
            agents.register(client, key(Qpn::QP1, 3, u8::try_from(n).unwrap()), 0b10)
        };
        let first = of(&mut agents, A, 0).unwrap();
        for n in 1..MAX_AGENTS {
            of(&mut agents, A, n).unwrap();
        }
        assert_eq!(of(&mut agents, A, MAX_AGENTS).unwrap_err().errno, libc::ENOMEM);
        of(&mut agents, B, MAX_AGENTS).unwrap();
        let mut send = |tid| {
            let wait = (Duration::from_secs(1), 0);
            agents.send(Time::ZERO, A, first, TO, &mad(3, 2, 1, tid), wait)
        };
        for tid in 0..MAX_WAITING as u64 {
            send(tid).unwrap();
        }
        assert_eq!(send(MAX_WAITING as u64).unwrap_err().errno, libc::ENOMEM);
    }

    #[test]
    fn mads_at_another_port_are_not_dispatched_to_the_agent() {
        let mut agents = Agents::new();
        let agent = agents.register(A, key(Qpn::QP1, 3, 2), 0b10).unwrap();
        let wait = (Duration::from_secs(1), 0);
        let (from, _) = agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, 7), wait).unwrap();
        assert_eq!(from, port());
        let other = PortId { number: 2, ..port() };
        let response = mad(3, 2, 0x81, u64::from(agent) << 32 | 7);
        assert_eq!(agents.dispatch(other, Qpn::QP1, &mad(3, 2, 1, 0)), Err(Count::DropMadClass));
        assert_eq!(agents.dispatch(other, Qpn::QP1, &response), Err(Count::DropMadStale));
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &response), Ok((agent, Owner::Client(A))));
        let there = AgentKey { port: other, ..key(Qpn::QP1, 3, 2) };
        assert_eq!(agents.register(B, there, 0b10).unwrap_err().errno, libc::EINVAL);
    }
}
