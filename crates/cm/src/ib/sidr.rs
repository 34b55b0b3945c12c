//! SIDR: looking up the queue pair of a datagram service (IBTA 12.11).
//!
//! ```text
//!  asking                                       answering
//!    sidr_connect: SIDR_REQ out                   SIDR_REQ in
//!         v                                            v
//!      waiting -- time: SIDR_REQ again              asked      (duplicates are dropped)
//!         |                                            |  sidr_reply: SIDR_REP out
//!         |  SIDR_REP in, or no answer                 v
//!         v                                         answered   (duplicates are answered again)
//!     forgotten                                        |  time
//!                                                      v
//!                                                  forgotten
//! ```
//!
//! A SIDR_REP that redirects is followed by a lookup at the new address ([`redirect`](super::redirect)).

use alloc::boxed::Box;
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_wire::cm::{CmMad, Message, SidrRep, SidrReq, SidrStatus};
use rdmux_wire::{Pkey, Qkey, Qpn, ServiceId};

use super::conn::{Mad, tid_of};
use super::format::padded;
use super::redirect::{Followed, Wanted};
use super::timers::Timer;
use super::{Cm, ConnEvent, Upcall};
use crate::config::code_to_duration;
use crate::error::errno;
use crate::fields::Fields;
use crate::path::{MadPath, Peer};
use crate::sink::{IdHandle, Sink};
use crate::timers::Deadline;

/// The number of the peer's retry intervals for which an answer is kept, so that a program gets a
/// lookup twice only if as many retransmissions in a row are lost. (Linux keeps none.)
const LINGER: u32 = 8;

/// The most lookups of peers, answered or not, for which answers are kept. A bound is needed because peers decide how many there are.
const MOST_ANSWERS: usize = 4096;

/// A lookup that this end started, by its request id.
#[derive(Debug)]
pub(crate) struct SidrClient {
    pub(super) owner: IdHandle,
    pub(super) path: MadPath,
    service_id: ServiceId,
    pub(super) out: Box<Mad>,
    retries_left: u8,
    deadline: Deadline,
    max_retries: u8,
    /// The time between transmissions.
    interval: Duration,
    /// How often the lookup may still be redirected.
    pub(super) redirects_left: u8,
    /// The path to the port that the lookup is redirected to.
    pub(super) wanted: Wanted,
}

/// Identifies a lookup of a peer: the peer and its request id.
pub(crate) type SidrKey = (Peer, u32);

/// A lookup of a peer.
#[derive(Debug)]
pub(crate) struct SidrServer {
    path: MadPath,
    tid: u64,
    service_id: ServiceId,
    /// The answer, once sent.
    reply: Option<Box<Mad>>,
    deadline: Deadline,
}

/// The contents of a SIDR_REQ.
pub(crate) struct Lookup<'a> {
    pub(crate) owner: IdHandle,
    pub(crate) path: MadPath,
    pub(crate) service_id: ServiceId,
    pub(crate) pkey: Pkey,
    /// The id's options.
    pub(crate) fields: &'a Fields,
    /// The private data with the IP header in front.
    pub(crate) private_data: &'a [u8],
}

/// The contents of a SIDR_REP.
pub(crate) struct SidrAnswer<'a> {
    pub(crate) status: SidrStatus,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
    /// Additional information, whose meaning depends on the status.
    pub(crate) info: &'a [u8],
    pub(crate) private_data: &'a [u8],
}

impl SidrAnswer<'_> {
    /// Returns a refusal with this status.
    pub(crate) const fn refusal(status: SidrStatus) -> Self {
        Self { status, qpn: Qpn::new(0), qkey: Qkey(0), info: &[], private_data: &[] }
    }
}

impl Cm {
    /// Returns the interval between transmissions of a SIDR_REQ to a peer that must answer within `response_timeout` (code).
    fn sidr_interval(&self, response_timeout: u8) -> Duration {
        self.config.retry_interval.unwrap_or_else(|| code_to_duration(response_timeout))
    }

    /// Returns how long the answer to a peer's lookup is kept.
    fn linger(&self) -> Duration {
        self.sidr_interval(self.config.cm_response_timeout) * LINGER
    }

    /// Sends SIDR_REQ to a peer. Returns the request id.
    pub(crate) fn sidr_connect(
        &mut self,
        now: Time,
        lookup: &Lookup<'_>,
        sink: &mut impl Sink,
    ) -> u32 {
        let request_id = self.new_local_id();
        let &Lookup { owner, path, service_id, pkey, fields, private_data } = lookup;
        let private_data = padded(private_data);
        let req = SidrReq { request_id, pkey, service_id, private_data };
        let retries = fields.max_retries.unwrap_or(self.config.max_cm_retries);
        let answers_in = fields.remote_response_timeout.unwrap_or(self.config.cm_response_timeout);
        let client = SidrClient {
            owner,
            path,
            service_id,
            out: Box::new(CmMad::new(tid_of(request_id), Message::SidrReq(req)).to_bytes()),
            retries_left: retries,
            deadline: Deadline::default(),
            max_retries: retries,
            interval: self.sidr_interval(answers_in),
            redirects_left: fields.redirects(),
            wanted: Wanted::Nothing,
        };
        self.send_lookup(now, request_id, client, sink);
        request_id
    }

    fn send_lookup(
        &mut self,
        now: Time,
        request_id: u32,
        mut client: SidrClient,
        sink: &mut impl Sink,
    ) {
        let at = now.after(client.interval);
        self.timers.set(&mut client.deadline, Timer::SidrClient(request_id), at);
        let (path, mad) = (client.path, *client.out);
        self.sidr_clients.insert(request_id, client);
        self.send(&path, &mad, sink);
    }

    /// Sends this end's lookup to another address, as a new one. Returns the new request id.
    pub(super) fn resend_lookup(
        &mut self,
        now: Time,
        old: u32,
        path: MadPath,
        req: SidrReq,
        sink: &mut impl Sink,
    ) -> Option<u32> {
        let request_id = self.new_local_id();
        let mut client = self.sidr_clients.remove(&old)?;
        self.timers.clear(&mut client.deadline, Timer::SidrClient(old));
        let mad = CmMad::new(tid_of(request_id), Message::SidrReq(SidrReq { request_id, ..req }));
        client.out = Box::new(mad.to_bytes());
        client.path = path;
        client.retries_left = client.max_retries;
        client.redirects_left -= 1;
        client.wanted = Wanted::Nothing;
        self.send_lookup(now, request_id, client, sink);
        Some(request_id)
    }

    /// Stops retransmission while the path for a redirected lookup is looked up.
    pub(super) fn await_way(&mut self, request_id: u32) {
        if let Some(client) = self.sidr_clients.get_mut(&request_id) {
            client.wanted = Wanted::Asked;
            self.timers.clear(&mut client.deadline, Timer::SidrClient(request_id));
        }
    }

    /// Cancels a lookup that no id owns any more.
    pub(crate) fn sidr_cancel(&mut self, request_id: u32) {
        if let Some(mut client) = self.sidr_clients.remove(&request_id) {
            self.timers.clear(&mut client.deadline, Timer::SidrClient(request_id));
        }
    }

    /// Retransmits an unanswered SIDR_REQ, or gives it up if no retries remain.
    pub(super) fn sidr_timeout(
        &mut self,
        now: Time,
        request_id: u32,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let client = self.sidr_clients.get_mut(&request_id)?;
        if client.retries_left == 0 {
            return self.sidr_give_up(request_id, -errno::ETIMEDOUT);
        }
        client.retries_left -= 1;
        let at = now.after(client.interval);
        self.timers.set(&mut client.deadline, Timer::SidrClient(request_id), at);
        let (path, mad) = (client.path, *client.out);
        self.counters.mads_retried += 1;
        self.send(&path, &mad, sink);
        None
    }

    /// Ends a lookup without an answer, and reports UNREACHABLE with this status.
    pub(super) fn sidr_give_up(&mut self, request_id: u32, status: i32) -> Option<Upcall> {
        let id = self.sidr_clients.get(&request_id)?.owner;
        self.sidr_cancel(request_id);
        self.counters.timeouts += 1;
        Some(Upcall::ToOwner { id, what: ConnEvent::Unreachable(status) })
    }

    /// Handles a SIDR_REP. An answer about another service is ignored.
    pub(super) fn handle_sidr_rep(
        &mut self,
        now: Time,
        path: &MadPath,
        rep: Box<SidrRep>,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let known = self.sidr_clients.get(&rep.request_id);
        let refused = rep.status != SidrStatus::VALID;
        let Some(client) = known.filter(|c| c.path.peer() == path.peer()) else {
            self.counters.unknown_connection += 1;
            return None;
        };
        if client.service_id != rep.service_id && !refused {
            self.counters.bad_field += 1;
            return None;
        }
        let id = client.owner;
        if rep.status == SidrStatus::REDIRECT
            && let Followed::Done(told) = self.follow_sidr(now, (path, &rep), sink)
        {
            return told;
        }
        self.sidr_cancel(rep.request_id);
        Some(Upcall::ToOwner { id, what: ConnEvent::SidrReply(rep) })
    }

    /// Handles a SIDR_REQ: a duplicate, or a new lookup.
    pub(super) fn handle_sidr_req(
        &mut self,
        now: Time,
        path: &MadPath,
        tid: u64,
        req: Box<SidrReq>,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let key = (path.peer(), req.request_id);
        let linger = now.after(self.linger());
        let path = path.reply(self.config.hop_limit);
        if let Some(known) = self.sidr_servers.get_mut(&key) {
            self.counters.duplicates += 1;
            if let Some(reply) = known.reply.as_deref().copied() {
                self.timers.set(&mut known.deadline, Timer::SidrServer(key), linger);
                self.send(&path, &reply, sink);
            }
            return None;
        }
        let (service_id, deadline) = (req.service_id, Deadline::default());
        let server = SidrServer { path, tid, service_id, reply: None, deadline };
        self.sidr_servers.insert(key, server);
        Some(Upcall::SidrRequest { key, path, req })
    }

    /// Answers a lookup, once. Returns false if it was answered already.
    pub(crate) fn sidr_reply(
        &mut self,
        now: Time,
        key: SidrKey,
        answer: &SidrAnswer<'_>,
        sink: &mut impl Sink,
    ) -> bool {
        let linger = now.after(self.linger());
        let Some(server) = self.sidr_servers.get_mut(&key).filter(|s| s.reply.is_none()) else {
            return false;
        };
        let rep = SidrRep {
            request_id: key.1,
            status: answer.status,
            info_len: u8::try_from(answer.info.len()).unwrap_or(0),
            vendor_id: 0,
            qpn: answer.qpn,
            service_id: server.service_id,
            qkey: answer.qkey,
            info: padded(answer.info),
            private_data: padded(answer.private_data),
        };
        let mad = CmMad::new(server.tid, Message::SidrRep(rep)).to_bytes();
        server.reply = Some(Box::new(mad));
        self.timers.set(&mut server.deadline, Timer::SidrServer(key), linger);
        let path = server.path;
        self.send(&path, &mad, sink);
        if self.sidr_servers.len() > MOST_ANSWERS {
            self.counters.sidr_forgotten += 1;
            self.sidr_forget(key);
        }
        true
    }

    /// Refuses a lookup that no program saw. No state is kept: a duplicate is refused likewise.
    pub(crate) fn sidr_refuse(
        &mut self,
        now: Time,
        key: SidrKey,
        status: SidrStatus,
        sink: &mut impl Sink,
    ) {
        self.sidr_reply(now, key, &SidrAnswer::refusal(status), sink);
        self.sidr_forget(key);
    }

    /// Returns whether a lookup of a peer awaits its answer.
    pub(crate) fn is_asked(&self, key: SidrKey) -> bool {
        self.sidr_servers.get(&key).is_some_and(|server| server.reply.is_none())
    }

    /// Forgets a lookup of a peer without sending anything.
    pub(crate) fn sidr_forget(&mut self, key: SidrKey) {
        if let Some(mut server) = self.sidr_servers.remove(&key) {
            self.timers.clear(&mut server.deadline, Timer::SidrServer(key));
        }
    }
}
