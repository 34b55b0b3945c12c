//! Memberships: the groups that an endpoint joins, and those that it shares with another.
//!
//! The lowest group is joined first, since all requests are sent to it. When paths are built from groups, the group of the port's own
//! rate and MTU follows, then those of the options. When a remote endpoint turns out to be a member of a group that suits communication
//! with it better than the common groups, the endpoint joins that group. So in a subnet of equal ports each endpoint joins two groups.

use arrayvec::ArrayVec;
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;
use rdmux_wire::acm::{Group, Groups, MAX_GROUPS, QKEY, SCOPE};
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask, Selector};
use rdmux_wire::{Gid, Pkey};

use super::{Machine, Timer};
use crate::{EndpointId, GroupSpec, Io, Options, Port, RouteProtocol, SaFailure};

/// The maximum of the growing pauses between attempts to join a group.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The number of failed joins, in about a minute, after which another endpoint's group makes room for a different one.
const MAX_TRIES: u32 = 6;

/// A group that an endpoint is a member of, or intends to join.
#[derive(Debug)]
pub(super) struct Membership {
    group: Group,
    sl: u8,
    is_asked: bool,
    /// Whether the driver may still have the membership, although it counts no more, because it must be requested again.
    is_held: bool,
    record: Option<McMemberRecord>,
    tries: u32,
    timer: Deadline,
    /// Time when another endpoint last listed the group, if this endpoint joins it only for that.
    listed: Option<Time>,
}

/// The groups of an endpoint, at indices that do not change, because cache entries contain them. The lowest group is
/// the first.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    rows: [Option<Membership>; MAX_GROUPS],
}

impl Memberships {
    /// Returns the record of a group that it is a member of.
    pub(super) fn record(&self, at: u8) -> Option<&McMemberRecord> {
        self.rows.get(usize::from(at))?.as_ref()?.record.as_ref()
    }

    /// Returns whether the endpoint is about to join a group, and no join of it or of the lowest group has failed.
    pub(super) fn is_joining(&self, at: u8) -> bool {
        let row = |at: usize| self.rows.get(at)?.as_ref();
        let has_failed = |row: &Membership| row.record.is_none() && row.tries > 0;
        let joins = |row: &Membership| row.record.is_none() && row.tries == 0;
        row(usize::from(at)).is_some_and(joins) && !row(0).is_none_or(has_failed)
    }

    /// Returns the group for requests, if the endpoint is a member.
    pub(super) fn lowest(&self) -> Option<&McMemberRecord> {
        self.record(0)
    }

    /// Returns the indices of the groups that it is a member of, lowest priority first.
    pub(super) fn joined(&self) -> ArrayVec<u8, MAX_GROUPS> {
        let mut places: ArrayVec<u8, MAX_GROUPS> = (0..).take(MAX_GROUPS).collect();
        places.retain(|at| self.record(*at).is_some());
        places.sort_by_key(|at| (*at != 0, self.rank(*at)));
        places
    }

    fn rank(&self, at: u8) -> Option<(u32, u8, u8)> {
        let row = self.rows.get(usize::from(at))?.as_ref()?;
        Some(rank(&row.group, row.sl))
    }

    /// Returns the groups that it is a member of, in the form for datagrams.
    pub(super) fn list(&self) -> Groups {
        let places = self.joined();
        places.iter().filter_map(|at| Some(self.record(*at)?.mgid)).collect()
    }

    /// Returns the best group that it is a member of and that is in a list.
    pub(super) fn best(&self, theirs: &[Gid]) -> Option<u8> {
        let is_common = |at: &u8| self.record(*at).is_some_and(|own| theirs.contains(&own.mgid));
        (0..).take(MAX_GROUPS).filter(is_common).max_by_key(|at| (*at != 0, self.rank(*at)))
    }

    fn place(&self, mgid: Gid) -> Option<usize> {
        self.rows.iter().position(|row| row.as_ref().is_some_and(|row| row.group.gid() == mgid))
    }

    fn len(&self) -> usize {
        self.rows.iter().flatten().count()
    }

    /// Records that another endpoint is a member of these groups.
    pub(super) fn listed(&mut self, now: Time, theirs: &[Gid]) {
        for row in self.rows.iter_mut().flatten() {
            if row.listed.is_some() && theirs.contains(&row.group.gid()) {
                row.listed = Some(now);
            }
        }
    }

    /// Returns the indices of the groups of other endpoints that stay besides the wanted groups: as many as there is room for, those that
    /// were listed last.
    fn last_listed(
        &self,
        options: &Options,
        wanted: &[(Group, u8)],
    ) -> ArrayVec<usize, MAX_GROUPS> {
        if options.route_protocol == RouteProtocol::Sa {
            return ArrayVec::new();
        }
        let is_wanted =
            |row: &Membership| wanted.iter().any(|(group, _)| group.gid() == row.group.gid());
        let rows = self.rows.iter().enumerate();
        let mut rows: ArrayVec<_, MAX_GROUPS> = rows
            .filter_map(|(at, row)| row.as_ref().filter(|row| !is_wanted(row)).zip(Some(at)))
            .filter_map(|(row, at)| Some((row.listed?, at)))
            .collect();
        rows.sort_unstable_by(|one, other| other.cmp(one));
        let room = options.max_groups.clamp(1, MAX_GROUPS).saturating_sub(wanted.len());
        rows.into_iter().map(|(_, at)| at).take(room).collect()
    }

    /// Returns the index for one more group of other endpoints: a free one, or that of such a group that no endpoint has listed within the
    /// lifetime of addresses, or that cannot be joined.
    fn place_for_theirs(&self, now: Time, options: &Options) -> Option<usize> {
        let is_full = self.len() >= options.max_groups.clamp(1, MAX_GROUPS);
        let goes = |row: &Membership| {
            let is_old = |listed| now.since(listed) > options.address_timeout;
            row.listed.is_some_and(|listed| is_old(listed) || row.tries >= MAX_TRIES)
        };
        let gone = || (1..MAX_GROUPS).find(|at| self.rows[*at].as_ref().is_some_and(goes));
        free_place(self).filter(|_| !is_full).or_else(gone)
    }
}

/// Returns the rank of a group, higher is better: the rate, the MTU, the service level.
fn rank(group: &Group, sl: u8) -> (u32, u8, u8) {
    (group.rate.mbps(), group.mtu.code(), sl)
}

/// Returns the groups that an endpoint must join, lowest first.
fn wanted(options: &Options, port: &Port, pkey: Pkey) -> ArrayVec<(Group, u8), MAX_GROUPS> {
    let lowest = GroupSpec { rate: options.min_rate, mtu: options.min_mtu, sl: 0, tos: 0 };
    let own = GroupSpec { rate: port.rate, mtu: port.mtu, ..lowest };
    let mut all: ArrayVec<(Group, u8), MAX_GROUPS> = ArrayVec::new();
    for spec in [lowest, own].iter().chain(&options.groups) {
        let GroupSpec { rate, mtu, sl, tos } = *spec;
        let group = Group { pkey, tos, rate, mtu };
        let is_new = !all.iter().any(|(other, _)| other.gid() == group.gid());
        if is_new && all.len() < options.max_groups.clamp(1, MAX_GROUPS) {
            all.push((group, sl));
        }
        if options.route_protocol == RouteProtocol::Sa {
            break;
        }
    }
    all
}

impl Machine {
    /// Leaves groups that are not needed any more, and joins those that are.
    pub(super) fn plan_groups(&mut self, now: Time, id: EndpointId, io: &mut impl Io) {
        let Some(state) = self.endpoints.get(&id).filter(|state| state.is_up) else { return };
        let Some(port) = self.ports.get(&state.endpoint.port) else { return };
        if port.port.kind.is_ip() {
            return;
        }
        let wanted = wanted(&self.options, &port.port, state.endpoint.pkey);
        let kept = state.groups.last_listed(&self.options, &wanted);
        for at in 0..MAX_GROUPS {
            let Some(row) = self.endpoints.get(&id).and_then(|s| s.groups.rows[at].as_ref()) else {
                continue;
            };
            let is_lowest = wanted.first().is_some_and(|(group, _)| group.gid() == row.group.gid());
            let stays = wanted.iter().any(|(group, _)| group.gid() == row.group.gid());
            if (at == 0) != is_lowest || !(stays || kept.contains(&at)) {
                self.drop_group(id, at, io);
            }
        }
        for (at, (group, sl)) in wanted.into_iter().enumerate() {
            let Some(state) = self.endpoints.get_mut(&id) else { return };
            if let Some(at) = state.groups.place(group.gid()) {
                if let Some(row) = &mut state.groups.rows[at] {
                    row.listed = None;
                }
                continue;
            }
            let free = if at == 0 { Some(0) } else { free_place(&state.groups) };
            let Some(at) = free else { break };
            state.groups.rows[at] = Some(Membership::new(group, sl));
        }
        self.join_next(now, id, io);
        self.joins_changed(now, id, io);
    }

    /// Joins the needed groups, the lowest first, since the others are useless without it.
    pub(super) fn join_next(&mut self, now: Time, id: EndpointId, io: &mut impl Io) {
        let end = now.after(self.question_timeout());
        let Some(state) = self.endpoints.get_mut(&id).filter(|state| state.is_up) else { return };
        let Some(port) = self.ports.get(&state.endpoint.port) else { return };
        let has_lowest = state.groups.lowest().is_some();
        for (at, row) in state.groups.rows.iter_mut().enumerate() {
            let Some(row) = row else { continue };
            if row.is_asked || row.record.is_some() || row.timer.at().is_some_and(|at| at > now) {
                continue;
            }
            if at > 0 && !has_lowest {
                break;
            }
            row.is_asked = true;
            let timer = Timer::Join(id, u8::try_from(at).unwrap_or(0));
            self.timers.set(&mut row.timer, timer, end);
            let record = row.question(port.port.gid(), state.endpoint.pkey);
            io.join(id, &record, mask());
        }
    }

    /// Handles the answer to [`Io::join`]: the group's record, or a failure.
    pub fn handle_join(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        mgid: Gid,
        answer: Result<&McMemberRecord, SaFailure>,
        io: &mut impl Io,
    ) {
        self.ticks(now);
        let random = self.rng.next();
        let timers = &mut self.timers;
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        let Some(at) = state.groups.place(mgid) else { return };
        let Some(row) = state.groups.rows[at].as_mut().filter(|row| row.is_asked) else { return };
        row.is_asked = false;
        let timer = Timer::Join(endpoint, u8::try_from(at).unwrap_or(0));
        timers.clear(&mut row.timer, timer);
        if let Ok(record) = answer {
            state.counters.joins += 1;
            row.tries = 0;
            row.record = Some(McMemberRecord { mgid, ..*record });
        } else {
            state.counters.failed_joins += 1;
            let pause = Duration::from_secs(1 << row.tries.min(6)).min(LONGEST_PAUSE);
            let jitter = Duration::from_millis(random % 500);
            row.tries = row.tries.saturating_add(1);
            timers.set(&mut row.timer, timer, now.after(pause + jitter));
        }
        self.join_next(now, endpoint, io);
        self.joins_changed(now, endpoint, io);
        self.pump(now, endpoint, io);
    }

    /// Requests a group again.
    pub(super) fn join_again(&mut self, now: Time, endpoint: EndpointId, at: u8, io: &mut impl Io) {
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        if let Some(row) = state.groups.rows.get_mut(usize::from(at)).and_then(Option::as_mut) {
            row.timer = Deadline::default();
            // The driver should have answered.
            if core::mem::take(&mut row.is_asked) {
                state.counters.failed_joins += 1;
                row.tries = row.tries.saturating_add(1);
            }
        }
        self.join_next(now, endpoint, io);
        self.joins_changed(now, endpoint, io);
    }

    /// Joins all groups again after subnet administration has lost the endpoint's memberships. Open joins are repeated, because their
    /// answers may be outdated, or may never arrive if they were sent to another subnet manager.
    pub(super) fn rejoin(&mut self, now: Time, endpoint: EndpointId, io: &mut impl Io) {
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        for (at, row) in state.groups.rows.iter_mut().enumerate() {
            let Some(row) = row else { continue };
            let timer = Timer::Join(endpoint, u8::try_from(at).unwrap_or(0));
            self.timers.clear(&mut row.timer, timer);
            row.is_held |= row.record.is_some() || row.is_asked;
            row.record = None;
            row.is_asked = false;
            row.tries = 0;
        }
        self.join_next(now, endpoint, io);
    }

    /// Leaves all groups until the endpoint's port is active again. Entries that use their paths keep them, but programs must not use
    /// these now.
    pub(super) fn suspend_groups(&mut self, endpoint: EndpointId, io: &mut impl Io) {
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        for (at, row) in (0..).zip(state.groups.rows.iter_mut()) {
            let Some(row) = row else { continue };
            self.timers.clear(&mut row.timer, Timer::Join(endpoint, at));
            if row.is_at_driver() {
                io.leave(endpoint, row.group.gid());
            }
            (row.record, row.is_asked, row.is_held, row.tries) = (None, false, false, 0);
            state.cache.withdraw_group(at, |address| io.withdraw(endpoint, address));
        }
    }

    fn drop_group(&mut self, endpoint: EndpointId, at: usize, io: &mut impl Io) {
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        let Some(mut row) = state.groups.rows[at].take() else { return };
        let place = u8::try_from(at).unwrap_or(0);
        self.timers.clear(&mut row.timer, Timer::Join(endpoint, place));
        state.cache.drop_group(place, |address| io.withdraw(endpoint, address));
        if state.joining > 0 {
            self.forget_group_of_searches(endpoint, place);
        }
        if row.is_at_driver() {
            io.leave(endpoint, row.group.gid());
        }
    }

    /// Considers the groups of another endpoint: joins the best of those that are better than the common ones, if the port can. It may
    /// replace a group that is not needed any more.
    pub(super) fn consider_groups(
        &mut self,
        now: Time,
        id: EndpointId,
        theirs: &[Gid],
        io: &mut impl Io,
    ) {
        if self.options.route_protocol == RouteProtocol::Sa {
            return;
        }
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        let Some(port) = self.ports.get(&state.endpoint.port) else { return };
        state.groups.listed(now, theirs);
        if theirs.iter().all(|gid| state.groups.place(*gid).is_some()) {
            return;
        }
        let Some(at) = state.groups.place_for_theirs(now, &self.options) else { return };
        let best = state.groups.best(theirs).and_then(|at| state.groups.rank(at));
        let most = (port.port.rate.mbps(), port.port.mtu.code());
        let pkey = state.endpoint.pkey.0 & 0x7fff;
        let possible = theirs.iter().filter_map(|gid| Group::from_gid(*gid)).filter(|group| {
            group.pkey.0 & 0x7fff == pkey
                && group.tos == 0
                && group.rate.mbps() != 0
                && group.rate.mbps() <= most.0
                && group.mtu.code() <= most.1
                && Some(rank(group, 0)) > best
                && state.groups.place(group.gid()).is_none()
        });
        let Some(group) = possible.max_by_key(|group| rank(group, 0)) else { return };
        self.drop_group(id, at, io);
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        state.groups.rows[at] = Some(Membership { listed: Some(now), ..Membership::new(group, 0) });
        self.join_next(now, id, io);
        self.joins_changed(now, id, io);
    }
}

/// Returns a free index for a group other than the lowest.
fn free_place(groups: &Memberships) -> Option<usize> {
    (1..MAX_GROUPS).find(|at| groups.rows[*at].is_none())
}

impl Membership {
    fn new(group: Group, sl: u8) -> Self {
        let timer = Deadline::default();
        Self {
            group,
            sl,
            is_asked: false,
            is_held: false,
            record: None,
            tries: 0,
            timer,
            listed: None,
        }
    }

    /// Returns whether the driver has a membership or a join to end.
    fn is_at_driver(&self) -> bool {
        self.record.is_some() || self.is_asked || self.is_held
    }

    /// Returns the record to request from subnet administration.
    fn question(&self, port_gid: Gid, pkey: Pkey) -> McMemberRecord {
        McMemberRecord {
            mgid: self.group.gid(),
            port_gid,
            qkey: QKEY,
            mtu_selector: Selector::EXACTLY,
            mtu: self.group.mtu.code(),
            tclass: self.group.tos,
            pkey,
            rate_selector: Selector::EXACTLY,
            rate: self.group.rate,
            sl: self.sl,
            scope: SCOPE,
            join_state: JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        }
    }
}

/// Returns the component mask of a join: all components needed to create the group.
fn mask() -> McMemberRecordMask {
    use McMemberRecordMask as M;
    M::MGID
        | M::PORT_GID
        | M::QKEY
        | M::MTU_SELECTOR
        | M::MTU
        | M::TCLASS
        | M::PKEY
        | M::RATE_SELECTOR
        | M::RATE
        | M::SL
        | M::FLOW_LABEL
        | M::SCOPE
        | M::JOIN_STATE
}
