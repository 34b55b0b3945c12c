//! Sending: paced requests, and answers.

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;
use rdmux_wire::acm::{Address, Datagram, Request};

use super::pace::Load;
use super::search::{Stage, What};
use super::users::Turn;
use super::waiting::Ticket;
use super::{Machine, Timer};
use crate::cache::Hashed;
use crate::{EndpointId, Failure, Io, Peer, PortId, RequestId, To};

/// A queue of searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// For requests to the group of this endpoint.
    Group(EndpointId),
    /// For queries of this port to subnet administration.
    Routes(PortId),
}

impl Machine {
    /// Queues a search for a request to the group.
    pub(super) fn enqueue(&mut self, now: Time, at: u32, io: &mut impl Io) {
        self.leave_stage(at);
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        search.stage = Stage::Queued;
        let (ticket, endpoint) = ((at, search.tid), search.endpoint);
        self.keep(now, at);
        if let Some(state) = self.endpoints.get_mut(&endpoint) {
            state.pace.push(ticket);
        }
        self.pump(now, endpoint, io);
    }

    /// Sets the timer of a queued search that is kept, so that it ends when it has been kept long enough. A search that is not kept ends
    /// with the time of its waiting requests.
    pub(super) fn keep(&mut self, now: Time, at: u32) {
        if let Some(search) = self.searches.get_mut(at as usize)
            && search.stage.is_unsent()
            && search.is_kept(now)
        {
            self.timers.set(&mut search.timer, Timer::Search(at), search.keep_until);
        }
    }

    /// Sends requests as far as pacing allows.
    pub(super) fn pump(&mut self, now: Time, id: EndpointId, io: &mut impl Io) {
        while self.may_send(now, id) {
            let Some(state) = self.endpoints.get_mut(&id) else { return };
            if state.pace.queue.len() == 0 {
                let Some(address) = state.announce.pop() else { return };
                if !self.send_announcement(now, id, address, io) {
                    return;
                }
                continue;
            }
            let any = state.pace.is_crowded().then(|| self.rng.next());
            let next = self.next_of_clients(Queue::Group(id), any);
            let Some((at, _)) = next.or_else(|| self.take_queued(id, any)) else { return };
            if !self.send_request(now, at, io) {
                return;
            }
        }
    }

    /// Returns whether the endpoint has something to send and may send it now. Sets a timer if it may later.
    fn may_send(&mut self, now: Time, id: EndpointId) -> bool {
        let Some(at) = self.may_send_at(now, id) else { return false };
        let Some(state) = self.endpoints.get_mut(&id) else { return false };
        if at <= now || at == Time::NEVER {
            self.timers.clear(&mut state.pace.timer, Timer::Pace(id));
        } else if state.pace.timer.at() != Some(at) {
            self.timers.set(&mut state.pace.timer, Timer::Pace(id), at);
        }
        at <= now
    }

    /// Returns when the endpoint may send; [`Time::NEVER`] if an event has to happen before. None without the endpoint.
    fn may_send_at(&mut self, now: Time, id: EndpointId) -> Option<Time> {
        let state = self.endpoints.get_mut(&id)?;
        let (is_waiting, announces) = (state.pace.queue.len() > 0, !state.announce.is_empty());
        if !(is_waiting || announces) || state.is_blocked || state.groups.lowest().is_none() {
            return Some(Time::NEVER);
        }
        let depth = self.options.resolve_depth;
        let room_at = if is_waiting { state.pace.room_at(now, depth) } else { now };
        if room_at > now {
            return Some(room_at);
        }
        let lid = self.ports.get(&state.endpoint.port)?.port.lid;
        let known = u64::try_from(state.cache.len()).unwrap_or(u64::MAX);
        let load = || Load {
            strangers: self.options.size(lid).saturating_sub(known),
            at_once: self.options.at_once(),
            rate: self.options.rate(),
            random: self.rng.next(),
        };
        Some(state.pace.next(now, load))
    }

    /// Returns a search of the client whose turn it is, if several wait, or if there are searches that none waits for: the one that has
    /// waited longest, or any, chosen by a number. Its ticket stays in the queue, and is skipped there.
    pub(super) fn next_of_clients(&mut self, queue: Queue, any: Option<u64>) -> Option<Ticket> {
        if !self.users.are_several() && self.unwaited == 0 {
            return None;
        }
        let turn = self.turn_of(queue)?;
        turn.is_client_s = !turn.is_client_s;
        if !turn.is_client_s {
            return None;
        }
        let mut turn = core::mem::take(turn);
        let queued = |(_, request): &(RequestId, u32)| {
            let at = self.requests.get(*request as usize)?.search;
            let search = self.searches.get(at as usize)?;
            let endpoint = || self.endpoints.get(&search.endpoint).map(|of| &of.endpoint);
            let waits = match queue {
                Queue::Group(id) => search.endpoint == id && search.stage == Stage::Queued,
                Queue::Routes(id) => {
                    search.stage == Stage::RouteQueued && endpoint().is_some_and(|e| e.port == id)
                }
            };
            waits.then_some((at, search.tid))
        };
        let next = self.users.next(&mut turn, |requests| {
            let len = u64::try_from(requests.len()).unwrap_or(u64::MAX);
            let first = any.map_or(0, |any| usize::try_from(any % len.max(1)).unwrap_or(0));
            let (before, after) = requests.split_at(first);
            after.iter().chain(before).find_map(queued)
        });
        *self.turn_of(queue)? = turn;
        next
    }

    fn turn_of(&mut self, queue: Queue) -> Option<&mut Turn> {
        match queue {
            Queue::Group(id) => self.endpoints.get_mut(&id).map(|state| &mut state.turn),
            Queue::Routes(id) => self.ports.get_mut(&id).map(|state| &mut state.turn),
        }
    }

    fn take_queued(&mut self, id: EndpointId, any: Option<u64>) -> Option<Ticket> {
        let searches = &self.searches;
        let waits = |(at, tid): &Ticket| {
            let search = searches.get(*at as usize);
            search.is_some_and(|search| search.tid == *tid && search.stage == Stage::Queued)
        };
        self.endpoints.get_mut(&id)?.pace.queue.take(any, waits)
    }

    /// Sends the request of a search to the group. Returns false if there is no room: then it is queued again.
    fn send_request(&mut self, now: Time, at: u32, io: &mut impl Io) -> bool {
        let rate = self.options.rate();
        let Some(search) = self.searches.get(at as usize) else { return true };
        let What::Address(dest) = search.what else { return true };
        let (id, tid, source, tries) = (search.endpoint, search.tid, search.source, search.tries);
        if !search.is_wanted(now) {
            self.conclude(now, at, Err(Failure::TimedOut), io);
            return true;
        }
        self.leave_stage(at);
        let Some(port) = self.port_of(id).map(crate::Port::subnet_timeout) else { return true };
        let wait = self.options.wait(tries, port);
        let Some(state) = self.endpoints.get_mut(&id) else { return true };
        let Some(group) = state.groups.lowest().map(|record| record.mgid) else { return true };
        let request = Request { tid, source, dest, groups: state.groups.list() };
        let was_sent = io.send(id, To::Group(group), &Datagram::Request(request));
        let Some(search) = self.searches.get_mut(at as usize) else { return true };
        if !was_sent {
            state.is_blocked = true;
            search.stage = Stage::Queued;
            state.pace.push((at, tid));
            return false;
        }
        state.pace.sent(now, rate);
        state.pace.asked += 1;
        state.told = Some(now);
        state.counters.sent_requests += 1;
        state.counters.retries += u64::from(tries > 0);
        search.stage = Stage::Asked;
        self.timers.set(&mut search.timer, Timer::Search(at), now.after(wait));
        true
    }

    /// Announces an address by a request for it, which no other endpoint answers. Returns false if there is no room.
    pub(super) fn send_announcement(
        &mut self,
        now: Time,
        id: EndpointId,
        address: Address,
        io: &mut impl Io,
    ) -> bool {
        let (tid, rate) = (self.rng.next(), self.options.rate());
        let Some(state) = self.endpoints.get_mut(&id) else { return false };
        let Some(group) = state.groups.lowest().map(|record| record.mgid) else { return false };
        let groups = state.groups.list();
        let request = Request { tid, source: address, dest: address, groups };
        if !io.send(id, To::Group(group), &Datagram::Request(request)) {
            state.is_blocked = true;
            state.announce.push(address);
            return false;
        }
        state.pace.sent(now, rate);
        state.told = Some(now);
        state.counters.sent_requests += 1;
        state.counters.announcements += 1;
        true
    }

    /// Queries the known holder whether it still has the address.
    pub(super) fn ask_holder(&mut self, now: Time, at: u32, io: &mut impl Io) {
        self.leave_stage(at);
        let Some(search) = self.searches.get(at as usize) else { return };
        let What::Address(dest) = search.what else { return };
        let (id, tid, source, tries) = (search.endpoint, search.tid, search.source, search.tries);
        let Some(port) = self.port_of(id).map(crate::Port::subnet_timeout) else { return };
        let wait = self.options.wait(tries, port);
        let Some(entry) = self.entry(now, id, &Hashed::again(&dest, search.hash)) else {
            return self.give_up(now, at, io);
        };
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        let holder = state.cache.holder(entry);
        let record = holder.group.and_then(|group| state.groups.record(group));
        let sl = record.or(state.groups.lowest()).map_or(0, |record| record.sl);
        let request = Request { tid, source, dest, groups: state.groups.list() };
        let peer = Peer { gid: holder.gid, lid: holder.lid, qpn: holder.qpn, sl };
        if !state.is_blocked {
            // Without room the request counts as lost.
            let was_sent = io.send(id, To::Peer(peer), &Datagram::Request(request));
            state.is_blocked = !was_sent;
            state.counters.sent_checks += u64::from(was_sent);
        }
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        search.stage = Stage::Checked;
        self.timers.set(&mut search.timer, Timer::Search(at), now.after(wait));
    }

    /// Handles the timer of a search.
    pub(super) fn handle_search_timer(&mut self, now: Time, at: u32, io: &mut impl Io) {
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        search.timer = Deadline::default();
        match search.stage {
            stage if stage.is_unsent() && search.is_wanted(now) => self.keep(now, at),
            Stage::Queued | Stage::RouteQueued | Stage::Joining => {
                self.finish(now, at, Err(Failure::TimedOut), io);
            }
            // The driver should have answered.
            Stage::RouteAsked | Stage::System => {
                self.finish(now, at, Err(Failure::TimedOut), io);
            }
            Stage::Asked | Stage::Checked => self.ask_again(now, at, io),
        }
    }

    /// Handles the timeout of a search's attempt.
    fn ask_again(&mut self, now: Time, at: u32, io: &mut impl Io) {
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        search.tries += 1;
        let (stage, tries, endpoint) = (search.stage, search.tries, search.endpoint);
        if !search.is_wanted(now) {
            return self.finish(now, at, Err(Failure::TimedOut), io);
        } else if tries > self.options.retries {
            self.give_up(now, at, io);
        } else if stage == Stage::Asked {
            return self.enqueue(now, at, io);
        } else {
            return self.ask_holder(now, at, io);
        }
        self.pump(now, endpoint, io);
    }

    /// Returns the longest time that a query to the driver may take.
    pub(super) fn question_timeout(&self) -> core::time::Duration {
        let tries = self.options.retries.saturating_add(2);
        self.options.timeout.saturating_mul(tries).max(core::time::Duration::from_secs(1))
    }

    /// Answers an endpoint that has requested a local address.
    pub(super) fn send_answer(
        &mut self,
        id: EndpointId,
        peer: Peer,
        datagram: Datagram,
        io: &mut impl Io,
    ) {
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        if !state.is_blocked && state.answers.is_empty() {
            if io.send(id, To::Peer(peer), &datagram) {
                state.counters.sent_answers += 1;
                return;
            }
            state.is_blocked = true;
        }
        if state.answers.len() < self.options.send_depth.max(1) as usize {
            state.answers.push_back((peer, datagram));
        } else {
            state.counters.dropped_answers += 1;
        }
    }

    /// Handles that the endpoint's full send queue has room again.
    pub fn handle_room(&mut self, now: Time, endpoint: EndpointId, io: &mut impl Io) {
        self.ticks(now);
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        state.is_blocked = false;
        while let Some((peer, datagram)) = state.answers.front() {
            if !io.send(endpoint, To::Peer(*peer), datagram) {
                state.is_blocked = true;
                return;
            }
            state.answers.pop_front();
            state.counters.sent_answers += 1;
        }
        self.pump(now, endpoint, io);
    }
}
