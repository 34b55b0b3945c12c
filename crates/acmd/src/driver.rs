//! The machine's driver: datagrams, memberships, queries, and answers to clients.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use rdmux::umad::RequestAttr;
use rdmux::{Cause, Gid, Qpn};
use rdmux_acm::{
    ClientId, Contradiction, EndpointId, Failure, Io, Peer, PortId, QuestionId, RequestId,
    Resolved, Time, To,
};
use rdmux_transport::attr::AddressVector;
use rdmux_wire::acm::client::{Answer, Op, Paths, Reply};
use rdmux_wire::acm::{Address, Datagram};
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask};

use crate::cache::Cache;
use crate::clients::Clients;
use crate::mads::{self, Administration, Mads};
use crate::queue::{Arrived, Queue};

/// The multicast queue pair number.
const MULTICAST: Qpn = Qpn::new(0x00ff_ffff);
/// Number of contradicting claims that are logged in a row. It is bounded because remote endpoints determine their number.
const CLAIMS_LOGGED: u32 = 16;

/// An endpoint's queue pair, and its groups.
pub(crate) struct EndpointIo {
    /// The endpoint's port.
    pub(crate) port: PortId,
    /// The endpoint's queue pair. None on ports that are not InfiniBand, or if it cannot be created.
    pub(crate) queue: Option<Queue>,
    /// The groups that the endpoint is a member of.
    groups: HashMap<Gid, McMemberRecord>,
    /// The groups to leave as soon as they are joined.
    leaving: HashSet<Gid>,
    /// Whether a datagram was not sent because the queue was full.
    is_blocked: bool,
}

impl EndpointIo {
    pub(crate) fn new(port: PortId) -> Self {
        Self {
            port,
            queue: None,
            groups: HashMap::new(),
            leaving: HashSet::new(),
            is_blocked: false,
        }
    }
}

/// A port's access to subnet administration.
pub(crate) struct PortIo {
    /// The port's number at its device.
    pub(crate) number: u8,
    /// The address of subnet administration.
    pub(crate) to: Administration,
    /// The management interface, if it is open.
    pub(crate) mads: Option<Mads>,
}

/// Work to do for the machine once its call has returned.
#[derive(Debug)]
pub(crate) enum Later {
    /// Handle an answer of subnet administration.
    Sa(mads::Answer),
    /// Query the operating system.
    System(EndpointId, QuestionId, Address),
    /// A client waits for the answer to a query.
    Waits(QuestionId, ClientId),
}

impl Later {
    /// Returns whether this is the answer to an endpoint's join of a group.
    fn answers_join(&self, id: EndpointId, mgid: Gid) -> bool {
        let Self::Sa(mads::Answer::Join(endpoint, group, _)) = self else { return false };
        (*endpoint, *group) == (id, mgid)
    }
}

/// The service's implementation of the machine's I/O.
pub(crate) struct Driver {
    pub(crate) ports: BTreeMap<PortId, PortIo>,
    pub(crate) endpoints: BTreeMap<EndpointId, EndpointIo>,
    pub(crate) clients: Clients,
    /// The clients that were worked on; some of them several times.
    touched: Vec<ClientId>,
    /// The endpoint of an answer from the cache.
    pub(crate) from_cache: Option<EndpointId>,
    /// Work to do once the machine's call has returned.
    pub(crate) later: VecDeque<Later>,
    /// The timeout and retries of queries to subnet administration.
    pub(crate) wait: RequestAttr,
    /// The memory from which clients read paths.
    pub(crate) cache: Cache,
    claims: u32,
    /// Datagrams that were not sent for a reason other than a full queue.
    pub(crate) send_errors: u64,
}

impl Driver {
    pub(crate) fn new(clients: Clients, cache: Cache) -> Self {
        Self {
            ports: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            clients,
            touched: Vec::new(),
            from_cache: None,
            later: VecDeque::new(),
            wait: RequestAttr::default(),
            cache,
            claims: 0,
            send_errors: 0,
        }
    }

    /// Queues an answer to a client.
    pub(crate) fn reply(&mut self, client: ClientId, reply: &Reply<'_>) {
        self.clients.answer(client, reply);
        self.touch(client);
    }

    /// Records that a client was worked on.
    pub(crate) fn touch(&mut self, client: ClientId) {
        if self.touched.last() != Some(&client) {
            self.touched.push(client);
        }
    }

    /// Returns the next client that was worked on.
    pub(crate) fn next_touched(&mut self) -> Option<ClientId> {
        self.touched.pop()
    }

    /// Removes the last record of a client, whose work is finished.
    pub(crate) fn untouch(&mut self, client: ClientId) {
        self.touched.pop_if(|last| *last == client);
    }

    /// Allows claims to be logged again.
    pub(crate) fn forgive_claims(&mut self) {
        self.claims = 0;
    }

    /// Returns the port of an endpoint.
    fn port_of(&mut self, endpoint: EndpointId) -> Option<&mut PortIo> {
        let port = self.endpoints.get(&endpoint)?.port;
        self.ports.get_mut(&port)
    }

    /// Returns whether a join of a group is unanswered.
    fn is_joining(&mut self, id: EndpointId, mgid: Gid) -> bool {
        let is_answered = self.later.iter().any(|later| later.answers_join(id, mgid));
        let mads = self.port_of(id).and_then(|port| port.mads.as_ref());
        is_answered || mads.is_some_and(|mads| mads.is_joining(id, mgid))
    }

    /// Releases a membership.
    fn give_back(&mut self, endpoint: EndpointId, record: &McMemberRecord) {
        if let Some(port) = self.port_of(endpoint)
            && let Some(mads) = &port.mads
        {
            mads.leave(port.to, record);
        }
    }

    /// Receives an endpoint's datagrams and the completions of its sends. Returns whether there may be more, and whether there is room
    /// now for a datagram that could not be sent.
    pub(crate) fn receive(
        &mut self,
        id: EndpointId,
        budget: usize,
        each: impl FnMut(&Arrived<'_>),
    ) -> rdmux::Result<(bool, bool)> {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return Ok((false, false)) };
        let Some(queue) = &mut endpoint.queue else { return Ok((false, false)) };
        let more = queue.receive(budget, each)?;
        let room = endpoint.is_blocked && queue.room() > 0;
        if room {
            endpoint.is_blocked = false;
        }
        Ok((more, room))
    }

    /// Removes an endpoint's queue pair and its groups.
    pub(crate) fn close_queue(&mut self, id: EndpointId) -> Option<Queue> {
        let endpoint = self.endpoints.get_mut(&id)?;
        endpoint.groups.clear();
        endpoint.leaving.clear();
        endpoint.is_blocked = false;
        endpoint.queue.take()
    }

    /// Records a granted membership, and attaches the queue pair. Returns whether that succeeded.
    pub(crate) fn joined(&mut self, id: EndpointId, record: &McMemberRecord) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return false };
        if endpoint.leaving.remove(&record.mgid) {
            self.give_back(id, record);
            return false;
        }
        let Some(queue) = &endpoint.queue else { return false };
        if let Some(known) = endpoint.groups.get_mut(&record.mgid) {
            *known = *record;
            return true;
        }
        match queue.attach(record.mgid) {
            Ok(()) => {
                endpoint.groups.insert(record.mgid, *record);
                true
            }
            Err(e) => {
                tracing::warn!("{e}");
                false
            }
        }
    }

    /// Leaves all groups of all endpoints.
    pub(crate) fn leave_all(&mut self) {
        let groups = |(id, endpoint): (&EndpointId, &EndpointIo)| {
            endpoint.groups.keys().map(|gid| (*id, *gid)).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.endpoints.iter().flat_map(groups).collect();
        for (endpoint, group) in all {
            self.leave(endpoint, group);
        }
    }

    /// Returns the address and queue pair of a datagram's destination.
    fn vector(&self, endpoint: &EndpointIo, to: To) -> Option<(AddressVector, Qpn)> {
        let port_num = self.ports.get(&endpoint.port)?.number;
        let global = AddressVector { is_global: true, port_num, ..AddressVector::default() };
        Some(match to {
            To::Group(gid) => {
                let group = endpoint.groups.get(&gid)?;
                let vector = AddressVector {
                    dgid: gid,
                    dlid: group.mlid.0,
                    sl: group.sl,
                    flow_label: group.flow_label,
                    hop_limit: group.hop_limit,
                    traffic_class: group.tclass,
                    ..global
                };
                (vector, MULTICAST)
            }
            To::Peer(Peer { gid, lid, qpn, sl }) => {
                (AddressVector { dgid: gid, dlid: lid.0, sl, hop_limit: 1, ..global }, qpn)
            }
        })
    }
}

impl Io for Driver {
    fn send(&mut self, id: EndpointId, to: To, datagram: &Datagram) -> bool {
        let vector = self.endpoints.get(&id).and_then(|endpoint| self.vector(endpoint, to));
        let endpoint = self.endpoints.get_mut(&id);
        let queue = endpoint.and_then(|e| Some((e.queue.as_mut()?, &mut e.is_blocked)));
        // Without a queue pair or a group it counts as lost.
        let Some(((vector, qpn), (queue, is_blocked))) = vector.zip(queue) else {
            self.send_errors += 1;
            return true;
        };
        match queue.send(vector, qpn, &datagram.to_bytes()) {
            Ok(()) => true,
            Err(e) if matches!(e.cause(), Cause::Full(_)) => {
                *is_blocked = true;
                false
            }
            Err(e) => {
                self.send_errors += 1;
                tracing::debug!("{e}");
                true
            }
        }
    }

    fn join(&mut self, id: EndpointId, record: &McMemberRecord, mask: McMemberRecordMask) {
        let wait = self.wait;
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.leaving.remove(&record.mgid);
        }
        // The answer to an earlier join of the group does not count any more.
        self.later.retain(|later| !later.answers_join(id, record.mgid));
        let asked = self.port_of(id).and_then(|port| {
            let to = port.to;
            let mads = port.mads.as_mut()?;
            mads.join(to, id, record, mask, &wait).map_err(|e| tracing::debug!("{e}")).ok()
        });
        if asked.is_none() {
            self.later.push_back(Later::Sa(mads::Asked::Join(id, record.mgid).unanswered()));
        }
    }

    fn leave(&mut self, id: EndpointId, mgid: Gid) {
        let is_joining = self.is_joining(id, mgid);
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        if is_joining {
            endpoint.leaving.insert(mgid);
        }
        let Some(record) = endpoint.groups.remove(&mgid) else { return };
        if let Some(queue) = &endpoint.queue {
            queue.detach(mgid);
        }
        self.give_back(id, &record);
    }

    fn ask_paths(
        &mut self,
        port: PortId,
        question: QuestionId,
        record: &PathRecord,
        mask: PathRecordMask,
    ) {
        let wait = self.wait;
        let asked = self.ports.get_mut(&port).and_then(|port| {
            let to = port.to;
            let mads = port.mads.as_mut()?;
            mads.paths(to, question, record, mask, &wait).map_err(|e| tracing::debug!("{e}")).ok()
        });
        if asked.is_none() {
            self.later.push_back(Later::Sa(mads::Asked::Paths(question).unanswered()));
        }
    }

    fn ask_system(&mut self, endpoint: EndpointId, question: QuestionId, address: &Address) {
        self.later.push_back(Later::System(endpoint, question, *address));
    }

    fn waits(&mut self, question: QuestionId, client: ClientId) {
        self.later.push_back(Later::Waits(question, client));
    }

    fn answer(&mut self, client: ClientId, request: RequestId, answer: Result<Resolved, Failure>) {
        let Some(tid) = self.clients.end(client, request) else { return };
        if let Ok(Resolved { endpoint, is_cached: true, .. }) = answer {
            self.from_cache = Some(endpoint);
        }
        let answer = match answer {
            Ok(Resolved { path, source: None, .. }) => {
                self.clients.answer_path(client, tid, &path);
                return self.touch(client);
            }
            Ok(found) => Answer::Paths(Paths::one(found.path, found.source)),
            Err(failure) => Answer::Failed(Op::RESOLVE, failure.status()),
        };
        self.reply(client, &Reply { tid, answer });
    }

    fn publish(&mut self, endpoint: EndpointId, address: &Address, path: &PathRecord, until: Time) {
        self.cache.publish(endpoint, address, path, until);
    }

    fn withdraw(&mut self, endpoint: EndpointId, address: &Address) {
        self.cache.withdraw(endpoint, address);
    }

    fn contradiction(&mut self, _: EndpointId, claim: &Contradiction<'_>) {
        self.claims = self.claims.saturating_add(1);
        if self.claims <= CLAIMS_LOGGED {
            let Contradiction { address, holder, claimant, is_believed } = claim;
            let believed =
                if *is_believed { "the claim is accepted" } else { "the claim is ignored" };
            tracing::warn!("{claimant} claims {address}, which {holder} holds; {believed}");
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_acm_client::{Places, Users};

    use super::*;
    use crate::clients::{Access, Limits};

    #[test]
    fn group_that_is_left_while_it_is_joined_again_is_left_when_the_answer_is_handled() {
        let dir = rdmux_testing::temp_dir();
        let cache = Cache::open(&Places::new(dir.path(), dir.path()), Users::NONE);
        let access = Access { users: Users::NONE, unknown: false };
        let mut driver = Driver::new(Clients::new(Limits::of(1, 1), access), cache);
        let (id, mgid) = (EndpointId(1), Gid([0xff; 16]));
        let record = McMemberRecord { mgid, ..McMemberRecord::default() };
        let is_leaving = |driver: &Driver| driver.endpoints[&id].leaving.contains(&mgid);
        let mut endpoint = EndpointIo::new(PortId(1));
        endpoint.groups.insert(mgid, record);
        driver.endpoints.insert(id, endpoint);
        driver.later.push_back(Later::Sa(mads::Answer::Join(id, mgid, Ok(record))));
        driver.leave(id, mgid);
        assert!(driver.endpoints[&id].groups.is_empty() && is_leaving(&driver));
        assert!(!driver.joined(id, &record) && !is_leaving(&driver));
        // Without a join there is no answer to wait for.
        driver.later.clear();
        driver.leave(id, mgid);
        assert!(!is_leaving(&driver));
    }
}
