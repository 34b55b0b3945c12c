//! The machine: its state, and what the driver calls.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::{McMemberRecord, PathRecord};
use rdmux_wire::{Gid, Lid, Mtu};

use crate::{
    ClientId, Counters, Endpoint, EndpointId, Failure, Forget, Io, Options, Peer, Port, PortId,
    QuestionId, Request, RequestId, SaFailure,
};

/// Resolves addresses for the clients of a host, and answers other hosts.
#[derive(Debug)]
pub struct Machine {
    options: Options,
    ports: BTreeMap<PortId, Port>,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    counters: Counters,
}

/// What the operating system knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Its GID, which stands for its IP address.
    pub gid: Gid,
    /// The GID that packets to it come from; zero for that of the endpoint.
    pub source: Gid,
    /// The MTU of the way.
    pub mtu: Mtu,
    /// The hop limit of packets.
    pub hop_limit: u8,
}

/// A path that was loaded from a file, or an address that leads to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Where it leads.
    pub gid: Gid,
    /// The LID; zero if only the GID is known.
    pub lid: Lid,
    /// The whole path, if it is known. GIDs and LIDs of the source that are zero are those of the endpoint.
    pub path: Option<PathRecord>,
}

/// What is known of an address, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The address.
    pub address: Address,
    /// Who has it; zero if nobody has.
    pub gid: Gid,
    /// The LID.
    pub lid: Lid,
    /// The path, if it is known.
    pub path: Option<PathRecord>,
    /// When the address expires; [`Time::NEVER`] if it does not.
    pub until: Time,
    /// When the path does.
    pub route_until: Time,
    /// Whether a client has asked for it of late.
    pub is_used: bool,
    /// Whether it was loaded from a file.
    pub is_loaded: bool,
}

impl Machine {
    /// A machine without ports. The seed makes transaction IDs that strangers cannot guess; two machines have different ones.
    pub fn new(options: Options, seed: [u8; 16]) -> Self {
        let _ = seed;
        Self {
            options,
            ports: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Changes options. What is known stays, groups are joined and left as they say.
    pub fn set_options(&mut self, now: Time, options: Options, io: &mut impl Io) {
        let _ = (now, io);
        self.options = options;
    }

    /// A port is there, or has changed: its LID, subnet manager, GIDs, P_Keys or state. What does not hold any more is forgotten.
    pub fn set_port(&mut self, now: Time, id: PortId, port: Port, io: &mut impl Io) {
        let _ = (now, io);
        self.ports.insert(id, port);
    }

    /// A port is gone, and its endpoints with it.
    pub fn remove_port(&mut self, now: Time, id: PortId, io: &mut impl Io) {
        let _ = (now, io);
        self.ports.remove(&id);
        self.endpoints.retain(|_, endpoint| endpoint.port != id);
    }

    /// The subnet manager has forgotten the port's memberships (client reregister).
    pub fn reregister(&mut self, now: Time, id: PortId, io: &mut impl Io) {
        let _ = (now, id, io);
    }

    /// An endpoint is there, or its addresses or its queue pair are others than before. Its port is set before it.
    pub fn set_endpoint(
        &mut self,
        now: Time,
        id: EndpointId,
        endpoint: Endpoint,
        io: &mut impl Io,
    ) {
        let _ = (now, io);
        self.endpoints.insert(id, endpoint);
    }

    /// An endpoint is gone.
    pub fn remove_endpoint(&mut self, now: Time, id: EndpointId, io: &mut impl Io) {
        let _ = (now, io);
        self.endpoints.remove(&id);
    }

    /// A datagram came to the endpoint's queue pair, without its GRH.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        from: &Peer,
        bytes: &[u8],
        io: &mut impl Io,
    ) {
        let _ = (now, endpoint, from, bytes, io);
    }

    /// The endpoint's send queue, which was full, has room.
    pub fn handle_room(&mut self, now: Time, endpoint: EndpointId, io: &mut impl Io) {
        let _ = (now, endpoint, io);
    }

    /// Subnet administration has answered [`Io::join`]: with the group's record, or not.
    pub fn handle_join(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        mgid: Gid,
        answer: Result<&McMemberRecord, SaFailure>,
        io: &mut impl Io,
    ) {
        let _ = (now, endpoint, mgid, answer, io);
    }

    /// Subnet administration has answered [`Io::ask_paths`]: with the first record, or not.
    pub fn handle_paths(
        &mut self,
        now: Time,
        question: QuestionId,
        answer: Result<&PathRecord, SaFailure>,
        io: &mut impl Io,
    ) {
        let _ = (now, question, answer, io);
    }

    /// The operating system has answered [`Io::ask_system`]; with nothing if it does not know the address.
    pub fn handle_system(
        &mut self,
        now: Time,
        question: QuestionId,
        answer: Option<&System>,
        io: &mut impl Io,
    ) {
        let _ = (now, question, answer, io);
    }

    /// A client asks. [`Io::answer`] follows, once, at the latest when its time is over, unless the request is cancelled.
    pub fn request(
        &mut self,
        now: Time,
        client: ClientId,
        id: RequestId,
        request: &Request,
        io: &mut impl Io,
    ) {
        let _ = (now, request);
        self.counters.no_data += 1;
        io.answer(client, id, Err(Failure::NoData));
    }

    /// A client does not want the answer any more. The search goes on for the others.
    pub fn cancel(&mut self, client: ClientId, id: RequestId) {
        let _ = (client, id);
    }

    /// A client is gone, and its requests with it.
    pub fn remove_client(&mut self, client: ClientId) {
        let _ = client;
    }

    /// Forgets what is known. Searches go on.
    pub fn forget(&mut self, now: Time, what: Forget, io: &mut impl Io) {
        let _ = (now, what, io);
    }

    /// Learns an address from a file: it does not expire until it is [unloaded](Self::unload), and no claim replaces it. Paths are
    /// loaded by LID and GID, then addresses, which take the path of their GID if it is known.
    pub fn load(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: Address,
        known: &Known,
        io: &mut impl Io,
    ) {
        let _ = (now, endpoint, address, known, io);
    }

    /// Forgets what was loaded, before files are loaded again.
    pub fn unload(&mut self, now: Time, endpoint: EndpointId, io: &mut impl Io) {
        let _ = (now, endpoint, io);
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Sends what is due, asks again, gives up, and forgets what has expired.
    pub fn handle_timeout(&mut self, now: Time, io: &mut impl Io) {
        let _ = (now, io);
    }

    /// The ports, in order.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.ports.iter().map(|(id, port)| (*id, port))
    }

    /// The endpoints, in order.
    pub fn endpoints(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.endpoints.iter().map(|(id, endpoint)| (*id, endpoint))
    }

    /// The endpoint that has the address, which may be its port's GID or LID; one whose port is active if there are several.
    pub fn endpoint_of(&self, address: &Address) -> Option<EndpointId> {
        self.endpoints.iter().find(|(_, e)| e.addresses.contains(address)).map(|(id, _)| *id)
    }

    /// The groups that the endpoint is a member of, from the lowest.
    pub fn groups(&self, endpoint: EndpointId) -> Vec<McMemberRecord> {
        let _ = endpoint;
        Vec::new()
    }

    /// What an endpoint has counted, or all together.
    pub fn counters(&self, endpoint: Option<EndpointId>) -> Counters {
        let _ = endpoint;
        self.counters
    }

    /// What an endpoint knows, in no order.
    pub fn known(&self, endpoint: EndpointId) -> impl Iterator<Item = Row> {
        let _ = endpoint;
        core::iter::empty()
    }

    /// How many addresses are known, and how many bytes they take.
    pub fn memory(&self) -> (usize, usize) {
        (0, 0)
    }

    /// How many requests wait for answers, and how many addresses are asked for.
    pub fn open(&self) -> (usize, usize) {
        (0, 0)
    }
}
