//! The dispatcher of management datagrams (IBTA 13.4, 16): which agent gets a datagram to QP0 or
//! QP1, and which request a response answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdmux_cm::Time;
use rdmux_runtime::{Share, Shares};
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

/// Maximum number of requests that are sent again or given up before clients get their turn.
const MAX_DUE: usize = 256;

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
    /// The share for its requests that wait for a response.
    waiting: Share,
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
    /// The requests that wait for a response, by transaction ID.
    waiting: BTreeMap<u64, Waiting>,
    /// Their deadlines and transaction IDs.
    deadlines: BTreeSet<(Time, u64)>,
    next: u32,
}

impl Agents {
    /// Makes the table. The connection manager is the first agent of each port. Its requests do not wait here.
    pub(super) fn new(requests: &Shares) -> Self {
        let cm = |port| {
            let (class, class_version) = (MgmtClass::COMM, CM_CLASS_VERSION);
            let key = AgentKey { port, qpn: Qpn::QP1, class, class_version };
            let waiting = requests.none(0);
            Agent { owner: Owner::Cm, key, methods: 1 << Method::SEND.0, waiting }
        };
        let agents: BTreeMap<u32, Agent> = (0..).zip(PortId::with_cm().map(cm)).collect();
        let next = agents.keys().next_back().map_or(0, |last| last + 1);
        Self { agents, waiting: BTreeMap::new(), deadlines: BTreeSet::new(), next }
    }

    /// Registers a client for a class. Its requests that wait for a response are charged to this share, which is empty at
    /// first.
    pub(super) fn register(
        &mut self,
        (client, waiting): (ClientId, Share),
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
        self.agents.insert(number, Agent { owner, key, methods, waiting });
        Ok(number)
    }

    /// Unregisters an agent, and drops its requests.
    pub(super) fn unregister(&mut self, client: ClientId, agent: u32) -> Result<(), Failure> {
        self.owned(client, agent)?;
        self.remove(agent);
        Ok(())
    }

    /// Unregisters all agents of a client.
    pub(super) fn client_gone(&mut self, client: ClientId) {
        let is_its = |(_, agent): &(&u32, &Agent)| agent.owner == Owner::Client(client);
        let agents: Vec<u32> = self.agents.iter().filter(is_its).map(|(&n, _)| n).collect();
        agents.into_iter().for_each(|agent| self.remove(agent));
    }

    /// Removes an agent and its requests.
    fn remove(&mut self, agent: u32) {
        let of_agent = tid(agent, 0)..=tid(agent, u64::MAX);
        let tids: Vec<u64> = self.waiting.range(of_agent).map(|(&tid, _)| tid).collect();
        for tid in tids {
            self.take(tid);
        }
        self.agents.remove(&agent);
    }

    /// Ends the wait for a response.
    fn take(&mut self, tid: u64) -> Option<Waiting> {
        let taken = self.waiting.remove(&tid)?;
        self.deadlines.remove(&(taken.due, tid));
        if let Some(agent) = self.agents.get_mut(&taken.agent) {
            agent.waiting.set(agent.waiting.count().saturating_sub(1));
        }
        Some(taken)
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
        header.tid = tid(agent, header.tid);
        mad[..MadHeader::LEN].copy_from_slice(&header.to_bytes());
        if !timeout.is_zero() {
            // A request with the same transaction ID is replaced.
            self.take(header.tid);
            self.charge(agent)?;
            let due = now.after(timeout);
            self.deadlines.insert((due, header.tid));
            self.waiting.insert(header.tid, Waiting { agent, to, mad, due, timeout, retries });
        }
        Ok((port, mad))
    }

    /// Charges another request that waits for a response to an agent.
    fn charge(&mut self, agent: u32) -> Result<(), Failure> {
        let Some(agent) = self.agents.get_mut(&agent) else { return Ok(()) };
        let full = |why: String| Failure::new(libc::ENOMEM, why);
        if agent.waiting.count() >= MAX_WAITING {
            let why = format!("{MAX_WAITING} requests of the agent await a response, the maximum");
            return Err(full(why));
        }
        agent.waiting.take(1).map_err(|e| {
            full(format!("the user's share of requests that await a response is used up: {e}"))
        })
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
            self.take(header.tid);
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
        self.deadlines.first().map(|&(due, _)| due)
    }

    /// Returns the requests that timed out, some at a time. The others stay due.
    pub(super) fn handle_timeout(&mut self, now: Time) -> Vec<Due> {
        let is_due = |deadline: &&(Time, u64)| deadline.0 <= now;
        let due: Vec<u64> =
            self.deadlines.iter().take_while(is_due).take(MAX_DUE).map(|&(_, tid)| tid).collect();
        due.into_iter().filter_map(|tid| self.expire(now, tid)).collect()
    }

    /// Restarts or ends the wait of a request that timed out.
    fn expire(&mut self, now: Time, tid: u64) -> Option<Due> {
        let w = self.waiting.get_mut(&tid)?;
        let agent = self.agents.get(&w.agent)?;
        if let Some(left) = w.retries.checked_sub(1) {
            w.retries = left;
            self.deadlines.remove(&(w.due, tid));
            w.due = now.after(w.timeout);
            self.deadlines.insert((w.due, tid));
            return Some(Due::Retry { port: agent.key.port, to: w.to, mad: Box::new(w.mad) });
        }
        let owner = agent.owner;
        let Waiting { agent, to, mad, .. } = self.take(tid)?;
        let Owner::Client(client) = owner else { return None };
        Some(Due::Expired { agent, client, to, mad: Box::new(mad) })
    }

    fn owned(&self, client: ClientId, agent: u32) -> Result<&Agent, Failure> {
        match self.agents.get(&agent) {
            Some(a) if a.owner == Owner::Client(client) => Ok(a),
            _ => Err(Failure::new(libc::ENOENT, format!("this process has no agent {agent}"))),
        }
    }
}

/// Returns the transaction ID of an agent's request: its number, and the lower half of the ID that the client chose.
fn tid(agent: u32, of_client: u64) -> u64 {
    u64::from(agent) << 32 | of_client & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_wire::{Gid, Qkey};

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const TO: MadAddress =
        MadAddress { local: Gid::ZERO, remote: Gid::ZERO, qpn: Qpn::QP1, qkey: Qkey::QP1 };

    fn agents() -> Agents {
        Agents::new(&Shares::new(0))
    }

    /// A client of a user without limits.
    fn by(client: ClientId) -> (ClientId, Share) {
        (client, Shares::new(0).none(0))
    }

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
        let mut agents = agents();
        let sa = agents.register(by(A), key(Qpn::QP1, 3, 2), 1 << 1 | 1 << 2).unwrap();
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
        let mut agents = agents();
        let first = agents.register(by(A), key(Qpn::QP1, 3, 2), 0b10).unwrap();
        assert_eq!(
            agents.register(by(B), key(Qpn::QP1, 3, 2), 0b110).unwrap_err().errno,
            libc::EBUSY
        );
        assert_eq!(
            agents.register(by(B), key(Qpn::QP1, 7, 2), 1 << 3).unwrap_err().errno,
            libc::EBUSY
        );
        assert_eq!(
            agents.register(by(B), key(Qpn::new(2), 3, 2), 0).unwrap_err().errno,
            libc::EINVAL
        );
        agents.register(by(B), key(Qpn::QP1, 3, 2), 0).unwrap();
        assert_eq!(agents.unregister(B, first).unwrap_err().errno, libc::ENOENT);
        agents.unregister(A, first).unwrap();
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &mad(3, 2, 1, 0)), Err(Count::DropMadClass));
    }

    #[test]
    fn mad_response_matches_its_request_by_tid_only_once() {
        let mut agents = agents();
        let agent = agents.register(by(A), key(Qpn::QP1, 3, 2), 0).unwrap();
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
        let mut agents = agents();
        let agent = agents.register(by(A), key(Qpn::QP1, 3, 2), 0).unwrap();
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
        let mut agents = agents();
        let agent = agents.register(by(A), key(Qpn::QP1, 3, 2), 0b10).unwrap();
        agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, 7), (Duration::MAX, 9)).unwrap();
        let other = agents.register(by(B), key(Qpn::QP1, 4, 1), 0b10).unwrap();
        agents.client_gone(A);
        assert_eq!(agents.poll_timeout(), None);
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &mad(3, 2, 1, 0)), Err(Count::DropMadClass));
        let of_other = agents.dispatch(port(), Qpn::QP1, &mad(4, 1, 1, 0));
        assert_eq!(of_other, Ok((other, Owner::Client(B))));
    }

    #[test]
    fn agents_and_waiting_requests_of_a_client_are_bounded() {
        let mut agents = agents();
        let of = |agents: &mut Agents, client, n| {
            agents.register(by(client), key(Qpn::QP1, 3, u8::try_from(n).unwrap()), 0b10)
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
    fn requests_of_one_user_that_await_a_response_leave_room_for_others() {
        let (greedy, other) = (4001, 4002);
        let shares = Shares::new(8);
        let mut agents = agents();
        let mut agent = |client, user, version| {
            let client_of = (client, shares.none(user));
            agents.register(client_of, key(Qpn::QP1, 3, version), 0b10).unwrap()
        };
        let [first, second, of_other] =
            [agent(A, greedy, 1), agent(A, greedy, 2), agent(B, other, 3)];
        let send = |agents: &mut Agents, client, agent, tid| {
            let wait = (Duration::from_secs(1), 0);
            agents.send(Time::ZERO, client, agent, TO, &mad(3, 2, 1, tid), wait)
        };
        for tid in 0..3 {
            send(&mut agents, A, first, tid).unwrap();
        }
        send(&mut agents, A, second, 0).unwrap();
        let refused = send(&mut agents, A, first, 3).unwrap_err();
        assert_eq!(refused.errno, libc::ENOMEM);
        assert!(refused.why.contains("user 4001 holds 4 of 8"), "{}", refused.why);
        send(&mut agents, B, of_other, 0).unwrap();
        // A transaction ID that is used again replaces its request. Responses, ends of agents and timeouts make room.
        send(&mut agents, A, first, 2).unwrap();
        let response = mad(3, 2, 0x81, tid(first, 0));
        agents.dispatch(port(), Qpn::QP1, &response).unwrap();
        send(&mut agents, A, first, 3).unwrap();
        agents.unregister(A, second).unwrap();
        send(&mut agents, A, first, 4).unwrap();
        assert!(send(&mut agents, A, first, 5).is_err());
        assert_eq!(agents.handle_timeout(Time::ZERO.after(Duration::from_secs(1))).len(), 5);
        send(&mut agents, A, first, 5).unwrap();
    }

    #[test]
    fn many_requests_that_time_out_at_once_are_handled_in_parts() {
        let mut agents = agents();
        let agent = agents.register(by(A), key(Qpn::QP1, 3, 2), 0).unwrap();
        let second = Duration::from_secs(1);
        for tid in 0..MAX_WAITING as u64 {
            agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, tid), (second, 0)).unwrap();
        }
        let now = Time::ZERO.after(second);
        let parts = std::iter::from_fn(|| {
            agents.poll_timeout()?;
            Some(agents.handle_timeout(now).len())
        });
        let parts: Vec<usize> = parts.collect();
        assert_eq!(parts, vec![MAX_DUE; MAX_WAITING / MAX_DUE]);
    }

    #[test]
    fn mads_at_another_port_are_not_dispatched_to_the_agent() {
        let mut agents = agents();
        let agent = agents.register(by(A), key(Qpn::QP1, 3, 2), 0b10).unwrap();
        let wait = (Duration::from_secs(1), 0);
        let (from, _) = agents.send(Time::ZERO, A, agent, TO, &mad(3, 2, 1, 7), wait).unwrap();
        assert_eq!(from, port());
        let other = PortId { number: 2, ..port() };
        let response = mad(3, 2, 0x81, u64::from(agent) << 32 | 7);
        assert_eq!(agents.dispatch(other, Qpn::QP1, &mad(3, 2, 1, 0)), Err(Count::DropMadClass));
        assert_eq!(agents.dispatch(other, Qpn::QP1, &response), Err(Count::DropMadStale));
        assert_eq!(agents.dispatch(port(), Qpn::QP1, &response), Ok((agent, Owner::Client(A))));
        let there = AgentKey { port: other, ..key(Qpn::QP1, 3, 2) };
        assert_eq!(agents.register(by(B), there, 0b10).unwrap_err().errno, libc::EINVAL);
    }
}
