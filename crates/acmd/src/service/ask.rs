//! Client requests.

use std::time::Instant;

use rdmux_acm::{ClientId, Counters, Dest, EndpointId, Forget, Request, RequestId};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{
    self, Answer, Endpoint, EndpointInfo, Op, Query, Refusal, Reply, Status, Subject,
};
use rdmux_wire::layout::Text;

use super::{MESSAGES, Service, time};
use crate::poller::Ready;

/// The provider name, as in ibacm.
const PROVIDER: &str = "ibacmp";

impl Service {
    /// Handles a client's ready socket. A client whose answer is cached gets it before the next client's turn.
    pub(super) fn handle_client(&mut self, id: u64, event: &Ready, now: Instant) {
        let id = ClientId(u32::try_from(id).unwrap_or(u32::MAX));
        if event.gone {
            // No answer can reach it any more.
            self.driver.clients.remove(id, &self.poller);
            self.resolver.change().remove_client(id);
            return;
        }
        if event.readable {
            self.driver.clients.fill(id);
        }
        self.serve_client(id);
        self.driver.untouch(id);
        self.settle_client(id, now);
    }

    /// Processes messages of all clients that have more than their turn allowed.
    pub(super) fn serve(&mut self) {
        let all = self.driver.clients.servable();
        if !all.is_empty() {
            self.now = time();
        }
        for id in all {
            self.driver.touch(id);
            self.serve_client(id);
        }
    }

    fn serve_client(&mut self, id: ClientId) {
        for _ in 0..MESSAGES {
            if self.driver.clients.answer_known(id, &mut self.resolver, self.now) {
                continue;
            }
            let Some(message) = self.driver.clients.take(id) else { break };
            if !self.process(id, message) {
                break;
            }
        }
    }

    /// Processes a message. Returns false if the client was dropped for it.
    fn process(&mut self, id: ClientId, message: Result<client::Request, Refusal>) -> bool {
        match message {
            Ok(request) => self.answer(id, &request),
            Err(Refusal::Answer(header)) => {
                let answer = Answer::Failed(header.op, header.status);
                self.driver.reply(id, &Reply { tid: header.tid, answer });
            }
            Err(Refusal::Close(e)) => {
                tracing::debug!("client {}: {e}", id.0);
                self.driver.clients.remove(id, &self.poller);
                self.resolver.change().remove_client(id);
                return false;
            }
        }
        true
    }

    fn answer(&mut self, id: ClientId, request: &client::Request) {
        let tid = request.tid;
        match request.query {
            Query::Resolve { source, dest, cached_only } => {
                self.resolve(id, tid, source, Dest::Address(dest), cached_only);
            }
            Query::ResolvePath { path, cached_only } => {
                self.resolve(id, tid, None, Dest::Path(path), cached_only);
            }
            Query::QuerySa { path } => self.resolve(id, tid, None, Dest::Query(path), false),
            Query::Counters(subject) => {
                let answer = match self.counters_of(&subject) {
                    Ok(counters) => {
                        Answer::Counters(counters.values().take(Counters::IBACM).collect())
                    }
                    Err(status) => Answer::Failed(Op::PERF_QUERY, status),
                };
                self.driver.reply(id, &Reply { tid, answer });
            }
            Query::Endpoint { index, port } => self.describe(id, tid, index, port),
            Query::Flush(address) => self.flush(id, tid, address),
            Query::Statistics => {
                let all: Vec<_> =
                    self.statistics().iter().map(client::Statistic::to_bytes).collect();
                self.driver.reply(id, &Reply { tid, answer: Answer::Statistics(&all) });
            }
        }
    }

    fn resolve(
        &mut self,
        id: ClientId,
        tid: u64,
        source: Option<Address>,
        dest: Dest,
        no_delay: bool,
    ) {
        self.next_request += 1;
        let number = RequestId(self.next_request);
        self.driver.clients.begin(id, number, tid);
        let request = Request { source, dest, no_delay, timeout: None };
        self.resolver.request(self.now, id, number, &request, &mut self.driver);
        if let Some(endpoint) = self.driver.from_cache.take()
            && let Some(answer) = self.driver.clients.last_answer(id)
        {
            self.resolver.keep(endpoint, answer);
        }
    }

    /// Returns the endpoints of active ports, of one port number or of all, as ibacm's clients count them from 1.
    fn listed(&self, port: u8) -> Vec<EndpointId> {
        let is_of = |endpoint: &rdmux_acm::Endpoint| {
            self.resolver.get().ports().any(|(id, at)| {
                id == endpoint.port && at.is_active && (port == 0 || at.number == port)
            })
        };
        self.resolver.get().endpoints().filter(|(_, e)| is_of(e)).map(|(id, _)| id).collect()
    }

    fn by_index(&self, index: u8, port: u8) -> Option<EndpointId> {
        self.listed(port).get(usize::from(index).checked_sub(1)?).copied()
    }

    fn counters_of(&self, subject: &Subject) -> Result<Counters, Status> {
        let endpoint = match subject {
            Subject::Service => None,
            Subject::Index(index) => Some(self.by_index(*index, 0).ok_or(Status::INVALID)?),
            Subject::Address(address) => {
                Some(self.resolver.get().endpoint_of(address).ok_or(Status::SOURCE_ADDRESS)?)
            }
        };
        Ok(self.resolver.get().counters(endpoint))
    }

    fn describe(&mut self, id: ClientId, tid: u64, index: u8, port: u8) {
        let found = self.by_index(index, port);
        let endpoint = found.and_then(|id| self.resolver.get().endpoints().find(|(e, _)| *e == id));
        let port =
            |id| self.resolver.get().ports().find(|(port, _)| *port == id).map(|(_, port)| port);
        let described = endpoint.and_then(|(_, e)| Some((e, port(e.port)?)));
        let Some((endpoint, port)) = described else {
            let answer = Answer::Failed(Op::EP_QUERY, Status::INVALID);
            self.driver.reply(id, &Reply { tid, answer });
            return;
        };
        let text = |address: &Address| Text::<64>::from(address.to_string().as_str()).0;
        let fields: Vec<_> = endpoint.addresses.iter().map(text).collect();
        let info = EndpointInfo {
            dev_guid: port.device_guid,
            port_num: port.number,
            phys_port_cnt: port.count,
            pkey: endpoint.pkey,
            prov_name: Text::from(PROVIDER),
            ..EndpointInfo::default()
        };
        let answer = Answer::Endpoint(Endpoint { info, fields: &fields });
        self.driver.reply(id, &Reply { tid, answer });
    }

    /// Flushes the caches for the owner. Other users could make all hosts repeat their requests.
    fn flush(&mut self, id: ClientId, tid: u64, address: Option<Address>) {
        let answer = if self.driver.clients.is_owner(id) {
            let before = self.resolver.get().memory().0;
            let what = address.map_or(Forget::All, Forget::Address);
            self.resolver.change().forget(self.now, what, &mut self.driver);
            let gone = before.saturating_sub(self.resolver.get().memory().0);
            tracing::info!("client {} has had {gone} addresses forgotten", id.0);
            Answer::Flushed(u64::try_from(gone).unwrap_or(u64::MAX))
        } else {
            Answer::Failed(Op::FLUSH, Status::INVALID)
        };
        self.driver.reply(id, &Reply { tid, answer });
        self.idle_since = Instant::now();
    }
}
