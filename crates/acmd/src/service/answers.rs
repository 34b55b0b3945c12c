//! Incoming datagrams, answers of subnet administration, and answers of the operating system.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use rdmux::DeviceKind;
use rdmux_acm::{ClientId, EndpointId, Peer, PortId, QuestionId};
use rdmux_wire::acm::Address;

use super::{DATAGRAMS, Service, time};
use crate::clients::Clients;
use crate::driver::Later;
use crate::mads;
use crate::names::{Asker, Found, Question, Waiting};
use crate::queue::{Arrived, Queue};
use crate::resolver::Resolver;
use crate::system::{ip_of, system_of};

/// Number of the machine's queries that are answered in one turn.
const LATER: usize = 4096;

/// A batch of received datagrams: the sender and the position of each. Its memory is reused.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    list: Vec<(Peer, Range<usize>)>,
}

impl Service {
    /// Handles received datagrams and completed sends of an endpoint. Returns how many datagrams were for this host,
    /// and how many only for others.
    fn handle_queue(&mut self, id: EndpointId) -> (u32, u32) {
        let Inbox { bytes, list } = &mut self.inbox;
        bytes.clear();
        list.clear();
        let taken = self.driver.receive(id, DATAGRAMS, |datagram| {
            let start = bytes.len();
            bytes.extend_from_slice(datagram.bytes);
            list.push((peer(datagram), start..bytes.len()));
        });
        let (now, mut ours, mut others) = (time(), 0, 0);
        for (from, place) in list {
            let bytes = &bytes[place.clone()];
            let is_for_us =
                self.resolver.change().handle_datagram(now, id, from, bytes, &mut self.driver);
            ours += u32::from(is_for_us);
            others += u32::from(!is_for_us);
        }
        match taken {
            Ok((more, room)) => {
                if more {
                    self.busy.insert(id);
                }
                if room {
                    self.resolver.change().handle_room(now, id, &mut self.driver);
                }
            }
            // The device reports it, too, and is opened again then.
            Err(e) => tracing::debug!("{e}"),
        }
        (ours, others)
    }

    /// Drives a device, and receives from the queues of its endpoints.
    pub(super) fn drive(&mut self, kind: DeviceKind, now: Instant) {
        self.devices.drive(kind, now, &self.poller);
        let (ours, others) = self.handle_queues(|_| true);
        self.expects |= ours > 0;
        self.devices.rest(kind, others, &self.poller);
    }

    /// Receives from the selected queues. Returns how many datagrams were for this host, and how many only for others.
    fn handle_queues(&mut self, which: impl Fn(&Queue) -> bool) -> (u32, u32) {
        let endpoints = self.driver.endpoints.iter();
        let all: Vec<EndpointId> = endpoints
            .filter(|(_, endpoint)| endpoint.queue.as_ref().is_some_and(&which))
            .map(|(id, _)| *id)
            .collect();
        all.into_iter().fold((0, 0), |(ours, others), id| {
            let came = self.handle_queue(id);
            (ours + came.0, others + came.1)
        })
    }

    /// Drives the devices that are due, and takes the completions of sends.
    pub(super) fn handle_devices(&mut self, now: Instant) {
        for kind in self.devices.due(now) {
            self.drive(kind, now);
        }
        self.handle_queues(Queue::has_sent);
    }

    /// Continues with endpoints that had more datagrams than their turn allowed.
    pub(super) fn handle_busy_queues(&mut self) {
        for id in std::mem::take(&mut self.busy) {
            self.handle_queue(id);
        }
        self.is_busy |= !self.busy.is_empty();
    }

    /// Handles answers of subnet administration.
    pub(super) fn handle_mads(&mut self, id: PortId) {
        let Some(mads) = self.driver.ports.get_mut(&id).and_then(|port| port.mads.as_mut()) else {
            return;
        };
        match mads.take() {
            Ok(answers) => self.driver.later.extend(answers.into_iter().map(Later::Sa)),
            Err(e) => {
                tracing::warn!("{e}; it is opened again");
                self.close_mads(id);
                self.look_soon();
            }
        }
    }

    /// Performs the work that had to wait until the machine's call returned.
    pub(super) fn handle_later(&mut self) {
        for _ in 0..LATER {
            let Some(later) = self.driver.later.pop_front() else { return };
            match later {
                Later::Sa(answer) => self.handle_sa(answer),
                Later::System(endpoint, question, address) => {
                    self.ask_system(endpoint, question, &address);
                }
                Later::Waits(question, client) => self.join_question(question, client),
            }
        }
    }

    fn handle_sa(&mut self, answer: mads::Answer) {
        let now = time();
        match answer {
            mads::Answer::Join(endpoint, mgid, answer) => {
                let answer = match answer {
                    Ok(record) if self.driver.joined(endpoint, &record) => Ok(record),
                    Ok(_) => Err(rdmux_acm::SaFailure::Silent),
                    Err(e) => Err(e),
                };
                if let Err(e) = &answer {
                    tracing::warn!("endpoint {} is not in group {mgid}: {e:?}", endpoint.0);
                }
                let answer = answer.as_ref().map_err(|e| *e);
                self.resolver.change().handle_join(now, endpoint, mgid, answer, &mut self.driver);
            }
            mads::Answer::Paths(question, answer) => {
                let answer = match &answer {
                    Ok(records) => records.first().ok_or(rdmux_acm::SaFailure::Silent),
                    Err(e) => Err(*e),
                };
                self.resolver.change().handle_paths(now, question, answer, &mut self.driver);
            }
        }
    }

    fn ask_system(&mut self, endpoint: EndpointId, question: QuestionId, address: &Address) {
        if let Address::Name(name) = address
            && let Some(name) = name.as_str()
        {
            let question = Question { endpoint, question, name: name.to_owned() };
            let mut waiting =
                Askers { resolver: &mut self.resolver, clients: &self.driver.clients };
            let refused = self.names.ask(question, &mut waiting);
            return self.tell_names(refused);
        }
        let addresses: Vec<_> = ip_of(address).into_iter().collect();
        self.tell_system(endpoint, question, &addresses);
    }

    fn tell_system(
        &mut self,
        endpoint: EndpointId,
        question: QuestionId,
        addresses: &[std::net::IpAddr],
    ) {
        let planned = self.planned.get(&endpoint);
        let seen = planned.and_then(|planned| self.seen.get(&planned.at));
        let known = seen.and_then(|seen| system_of(addresses, &seen.addresses));
        self.resolver.change().handle_system(time(), question, known.as_ref(), &mut self.driver);
    }

    /// Handles results of name lookups.
    pub(super) fn handle_names(&mut self) {
        let mut waiting = Askers { resolver: &mut self.resolver, clients: &self.driver.clients };
        let found = self.names.take(&mut waiting);
        self.tell_names(found);
    }

    /// Records that a client waits for a name, which another client may have requested before.
    fn join_question(&mut self, question: QuestionId, client: ClientId) {
        let mut waiting = Askers { resolver: &mut self.resolver, clients: &self.driver.clients };
        let Some(asker) = waiting.asker(client) else { return };
        let refused = self.names.join(question, asker, &mut waiting);
        self.tell_names(refused);
    }

    fn tell_names(&mut self, found: Vec<Found>) {
        for Found { endpoint, question, addresses } in found {
            match addresses {
                Some(addresses) => self.tell_system(endpoint, question, &addresses),
                None => self.resolver.change().refuse_system(time(), question, &mut self.driver),
            }
        }
    }
}

/// The clients that wait for names.
struct Askers<'a> {
    resolver: &'a mut Resolver,
    clients: &'a Clients,
}

impl Askers<'_> {
    fn asker(&self, client: ClientId) -> Option<Asker> {
        Some(Asker { user: Some(self.clients.peer(client)?), client: Some(client) })
    }
}

impl Waiting for Askers<'_> {
    fn is_wanted(&mut self, question: QuestionId) -> bool {
        self.resolver.change().is_wanted(time(), question)
    }

    fn askers(&self, question: QuestionId) -> BTreeSet<Asker> {
        let clients = self.resolver.get().clients_of(question);
        clients.filter_map(|client| self.asker(client)).collect()
    }
}

/// Returns the sender of a datagram. A datagram without a network header has no GID.
fn peer(datagram: &Arrived<'_>) -> Peer {
    Peer {
        gid: datagram.sgid.unwrap_or_default(),
        lid: datagram.slid,
        qpn: datagram.qpn,
        sl: datagram.sl,
    }
}
