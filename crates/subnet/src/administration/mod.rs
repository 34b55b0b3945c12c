//! Subnet administration: answers programs' queries about the subnet from the manager's [`Model`] (IBTA chapter 15).
//!
//! ```text
//!   UserMad --> handle_mad --> request     parse, authorize
//!                                 |
//!                             attributes   which methods an attribute has
//!                              /      \
//!                        records,    groups, services,      registrations of
//!                        path        subscriptions,         ports
//!                              \     aliases
//!                               \    /
//!                               table      records of the answer
//!                                 |
//!   UserMad <---------------- AdministrationSink ---> the manager: trees, alias GUIDs
//! ```
//!
//! Administration is a program on the manager's port like any other: the user MAD device ([`crate::umad`]) does
//! retransmission and RMPP. Statuses, and which requests get no answer, are OpenSM's. State per requester is bounded, see
//! [`Config`]. A port creates at most three quarters of the groups that switches have room for.

mod access;
mod aliases;
mod attributes;
mod class_port_info;
mod config;
mod counters;
mod events;
mod groups;
pub(crate) mod path;
mod records;
mod reply;
mod request;
mod services;
mod subscriptions;
mod table;
mod throttle;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_wire::mad::{MadHeader, Method, status};
use rdmux_wire::sm::Notice;
use rdmux_wire::{Gid, Guid, Lid, Pkey};

use self::attributes::{Outcome, Row};
use self::groups::Groups;
use self::path::Links;
use self::request::Request;
use self::services::Services;
use self::subscriptions::{Audience, Subscriptions};
use self::table::Table;
use self::throttle::Throttle;
use crate::Time;
use crate::manager::Model;
use crate::manager::model::Port;
use crate::partitions::Partitions;
use crate::topology::PortRef;
use crate::umad::UserMad;

pub use config::Config;
pub use counters::Counters;

/// Receives the output of administration. An implementation must not call administration.
pub trait AdministrationSink {
    /// Sends a message from the manager's port, by an agent of the class with RMPP. Returns whether that was possible. A
    /// message that was refused, for example because too many are outstanding, is not sent again.
    fn send(&mut self, mad: UserMad) -> bool;

    /// Reports that members of a group have changed: [`Administration::members`] returns them. Called before the answer is sent.
    fn group_changed(&mut self, mlid: Lid);

    /// Reports that a single member of a group has changed. `_port` is the port's own GUID. It now receives, only sends, or is no
    /// member (none).
    fn member_changed(&mut self, mlid: Lid, _port: Guid, _receives: Option<bool>) {
        self.group_changed(mlid);
    }

    /// Sets an alias GUID of a port, or removes it if it is zero. It must be in the model before the next request, and be written to
    /// the port. Called before the answer is sent.
    fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid);
}

/// Subnet administration.
#[derive(Debug)]
pub struct Administration {
    config: Config,
    partitions: Partitions,
    /// The manager's port, while the manager is master and has swept.
    own: Option<Guid>,
    state: State,
    throttle: Throttle,
    counters: Counters,
    /// The links that path queries follow.
    links: Links,
}

/// The registrations of programs.
#[derive(Debug, Default)]
struct State {
    groups: Groups,
    services: Services,
    subscriptions: Subscriptions,
    /// The P_Keys of each port at the end of the last sweep.
    pkeys: BTreeMap<Guid, Vec<Pkey>>,
    assigned_guids: u64,
    dropped_reports: u64,
}

/// The configuration, model and time with which an event is handled.
#[derive(Clone, Copy)]
struct Context<'a> {
    now: Time,
    model: &'a Model,
    config: &'a Config,
    partitions: &'a Partitions,
    /// The GUID of the manager's port.
    own: Guid,
}

/// The data from which a query is answered.
#[derive(Clone, Copy)]
struct View<'a> {
    cx: Context<'a>,
    model: &'a Model,
    state: &'a State,
    links: &'a Links,
}

/// Returns the context, borrowed from the fields of an [`Administration`] other than its state; none while it is not master.
macro_rules! context {
    ($administration:expr, $now:expr, $model:expr) => {
        $administration.own.map(|own| Context {
            now: $now,
            model: $model,
            config: &$administration.config,
            partitions: &$administration.partitions,
            own,
        })
    };
}

impl Administration {
    /// Creates the administration of a subnet whose manager is not yet master.
    pub fn new(config: Config, partitions: Partitions) -> Self {
        let state = State { groups: Groups::new(&partitions), ..State::default() };
        Self {
            config,
            partitions,
            own: None,
            state,
            throttle: Throttle::default(),
            counters: Counters::default(),
            links: Links::default(),
        }
    }

    /// Sets the manager's port once the manager is master and its first sweep has ended; none when it is no longer master.
    /// Until then no request is answered. Members, services and subscriptions are not inherited: the next master asks ports
    /// to reregister.
    pub fn set_master(&mut self, port: Option<Guid>) {
        if self.own.is_some() != port.is_some() {
            self.reset();
        }
        self.own = port;
    }

    /// Changes the partitions. Registrations of ports stay. Groups that no partition has any more end when they have no
    /// members. Groups with members keep their parameters.
    pub fn set_partitions(&mut self, partitions: Partitions) {
        self.state.groups.set_partitions(&partitions);
        self.partitions = partitions;
    }

    fn reset(&mut self) {
        let groups = Groups::new(&self.partitions);
        let State { assigned_guids, dropped_reports, .. } = self.state;
        self.state = State { groups, assigned_guids, dropped_reports, ..State::default() };
    }

    /// Returns the partitions.
    pub const fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// Returns how many requests arrived, by outcome.
    pub fn counters(&self) -> Counters {
        Counters { dropped_reports: self.state.dropped_reports, ..self.counters }
    }

    /// Returns the MLIDs of all groups.
    pub fn groups(&self) -> impl Iterator<Item = Lid> + '_ {
        self.state.groups.mlids()
    }

    /// Returns the members of a group: the GUIDs of their ports, and whether each receives. A send-only member does not.
    pub fn members(&self, mlid: Lid) -> impl Iterator<Item = (Guid, bool)> + '_ {
        self.state.groups.members(mlid)
    }

    /// Handles the end of a master's sweep: nodes, cables or tables may have changed.
    pub fn model_changed(&mut self, now: Time, model: &Model, sink: &mut dyn AdministrationSink) {
        let (state, cx) = (&mut self.state, context!(self, now, model));
        state.groups.capacity = None;
        for (_, port) in model.end_ports().filter(|(_, port)| port.info.is_some()) {
            state.pkeys.entry(port.guid).or_default().clone_from(&port.pkeys);
        }
        let Some(cx) = cx else { return };
        events::swept(state, &cx, sink);
    }

    /// Returns when [`Administration::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Time> {
        self.state.services.next_timeout()
    }

    /// Expires leases of services.
    pub fn handle_timeout(&mut self, now: Time) {
        self.state.services.handle_timeout(now);
    }

    /// Reports that a port has appeared since the last sweep.
    pub fn port_appeared(
        &mut self,
        now: Time,
        model: &Model,
        guid: Guid,
        sink: &mut dyn AdministrationSink,
    ) {
        let (state, cx) = (&mut self.state, context!(self, now, model));
        let Some(port) = port(model, guid) else { return };
        state.pkeys.insert(guid, port.pkeys.clone());
        let Some(cx) = cx else { return };
        events::port(state, &cx, guid, port, true, sink);
    }

    /// Handles the disappearance of a port: removes its registrations, except services, which end with their lease. The model
    /// may not have the port any more, so the audience is the ports that last had a partition in common with it.
    pub fn port_gone(
        &mut self,
        now: Time,
        model: &Model,
        guid: Guid,
        sink: &mut dyn AdministrationSink,
    ) {
        let (state, cx) = (&mut self.state, context!(self, now, model));
        let deleted = state.groups.remove_members(guid, |_, _| true, sink);
        state.subscriptions.remove_port(guid);
        let seen = state.pkeys.remove(&guid);
        let Some(cx) = cx else { return };
        let known = || port(model, guid).map(|port| port.pkeys.clone());
        let pkeys = seen.or_else(known).unwrap_or_default();
        let last_seen = Port { guid, pkeys, ..Port::default() };
        events::port(state, &cx, guid, &last_seen, false, sink);
        for (mgid, pkey) in deleted {
            events::group_deleted(state, &cx, mgid, pkey, sink);
        }
    }

    /// Reports a port's trap to subscribers.
    pub fn handle_notice(
        &mut self,
        now: Time,
        model: &Model,
        notice: &Notice,
        sink: &mut dyn AdministrationSink,
    ) {
        let (state, cx) = (&mut self.state, context!(self, now, model));
        let Some(cx) = cx else { return };
        let Some(port) = subscriptions::issuer(&cx, notice.issuer_lid) else { return };
        let issuer = Gid::new(cx.config.gid_prefix, port.guid);
        let dropped = state.subscriptions.report(&cx, notice, issuer, Audience::Of(port), sink);
        state.dropped_reports += dropped;
    }

    /// Handles a message that could not be sent after all: its header, with a status. A Report is dropped.
    pub fn handle_unsent(&mut self, mad: &UserMad) {
        let is_report =
            report_tid(mad).is_some_and(|tid| self.state.subscriptions.handle_response(tid));
        if is_report {
            self.state.dropped_reports += 1;
        } else {
            self.counters.unsent += 1;
        }
    }

    /// Handles a datagram or message of the class, or the timeout of a Report.
    pub fn handle_mad(
        &mut self,
        now: Time,
        model: &Model,
        mad: &UserMad,
        sink: &mut dyn AdministrationSink,
    ) {
        self.counters.received += 1;
        if let Some(tid) = report_tid(mad) {
            let was_report = self.state.subscriptions.handle_response(tid);
            self.counters.ignored += u64::from(!was_report);
            return;
        }
        let Some(cx) = context!(self, now, model) else {
            self.counters.not_master += 1;
            return;
        };
        let request = Request::new(model, &self.config, mad);
        let row = request.as_ref().and_then(|request| Row::of(request.sa.header.attr_id));
        let (Some(request), Some(row)) = (request, row) else {
            self.counters.ignored += 1;
            return;
        };
        let limit = self.config.table_bytes as u64 * 2;
        if self.throttle.is_over(now, request.place, limit) {
            self.counters.busy += 1;
            sink.send(reply::reply(&self.config, &request, Err(status::BUSY)));
            return;
        }
        self.state.services.handle_timeout(now);
        let mut table = Table::new(&request, self.config.table_bytes);
        let result = match row.outcome(request.method()) {
            Outcome::Silent => {
                self.counters.ignored += 1;
                return;
            }
            Outcome::Status(status) => Err(status),
            Outcome::Read(read) => {
                if row.follows_paths() {
                    table.charge(self.links.prepare(model, path::has_many_pairs(&request)));
                }
                let view = View { cx, model, state: &self.state, links: &self.links };
                read(&view, &request, &mut table)
            }
            Outcome::Write(write) => write(&mut self.state, &cx, &request, &mut table, sink),
        };
        self.throttle.add(now, request.place, table.work());
        let result = result.and_then(|()| table.finish());
        match result {
            Ok(()) => self.counters.answered += 1,
            Err(_) => self.counters.refused += 1,
        }
        if !sink.send(reply::reply(&self.config, &request, result.map(|()| table))) {
            self.counters.unsent += 1;
        }
    }
}

/// Returns the transaction ID of a Report if `mad` is its response or its timeout.
fn report_tid(mad: &UserMad) -> Option<u32> {
    let header = MadHeader::parse(&mad.data).ok()?;
    let is_response = header.method == Method::REPORT_RESP && mad.status == 0;
    let is_over = header.method == Method::REPORT && mad.status != 0;
    let [_, _, _, _, low @ ..] = header.tid.to_be_bytes();
    (is_response || is_over).then_some(u32::from_be_bytes(low))
}

fn port(model: &Model, guid: Guid) -> Option<&Port> {
    model.port(model.by_own_guid(guid)?)
}

/// The status of an answer: one of [`rdmux_wire::mad::status`].
type Status = u16;

/// A function that adds the records of an answer to a query.
type Read = fn(&View<'_>, &Request<'_>, &mut Table) -> Result<(), Status>;

/// A function that sets or deletes a record.
type Write = fn(
    &mut State,
    &Context<'_>,
    &Request<'_>,
    &mut Table,
    &mut dyn AdministrationSink,
) -> Result<(), Status>;

#[cfg(test)]
pub(crate) mod tests;
