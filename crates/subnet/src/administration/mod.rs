//! Subnet administration: what programs ask of the subnet, answered from the manager's [`Model`] (IBTA chapter 15).
//!
//! ```text
//!   UserMad --> handle_mad --> request     who asks, what, may they
//!                                 |
//!                             attributes   which methods an attribute has
//!                              /      \
//!                        records,    groups, services,      what members, services and
//!                        path        subscriptions,         subscribers have said
//!                              \     aliases
//!                               \    /
//!                               table      records of the answer
//!                                 |
//!   UserMad <---------------- AdministrationSink ---> the manager: trees, alias GUIDs
//! ```
//!
//! It is a program on the manager's port, as any other: the user MAD device ([`crate::umad`]) does retries and RMPP.
//! Statuses, and silence where there is no answer, are OpenSM's. What is kept for a requester is bounded, see [`Config`]; of all groups that
//! switches have room for, a port makes three quarters at most.

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

/// What administration wants done. Administration must not be called from here.
pub trait AdministrationSink {
    /// Send this from the manager's port, by an agent of the class with RMPP. Whether that was possible: what was refused,
    /// for example because too much is on its way, is not sent again.
    fn send(&mut self, mad: UserMad) -> bool;

    /// The members of a group are others than before: [`Administration::members`] has them. Called before the answer is sent.
    fn group_changed(&mut self, mlid: Lid);

    /// The same, if nothing has changed but one port, named by its own GUID: by now it is a member that receives, or one that only
    /// sends, or none.
    fn member_changed(&mut self, mlid: Lid, _port: Guid, _receives: Option<bool>) {
        self.group_changed(mlid);
    }

    /// A port has another alias GUID, or none where it is zero: to be kept in the model before the next question, and set at
    /// the port. Called before the answer is sent.
    fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid);
}

/// Subnet administration.
#[derive(Debug)]
pub struct Administration {
    config: Config,
    partitions: Partitions,
    /// The manager's port, while it is master and has swept.
    own: Option<Guid>,
    state: State,
    throttle: Throttle,
    counters: Counters,
    /// What is followed to find paths.
    links: Links,
}

/// What programs have registered.
#[derive(Debug, Default)]
struct State {
    groups: Groups,
    services: Services,
    subscriptions: Subscriptions,
    /// The P_Keys of ports at the end of the last sweep.
    pkeys: BTreeMap<Guid, Vec<Pkey>>,
    assigned_guids: u64,
    dropped_reports: u64,
}

/// What is known when something happens.
#[derive(Clone, Copy)]
struct Context<'a> {
    now: Time,
    model: &'a Model,
    config: &'a Config,
    partitions: &'a Partitions,
    /// The manager's port.
    own: Guid,
}

/// What a question is answered from.
#[derive(Clone, Copy)]
struct View<'a> {
    cx: Context<'a>,
    model: &'a Model,
    state: &'a State,
    links: &'a Links,
}

/// The context, borrowed from fields of an [`Administration`] that are not its state; none while it is not master.
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
    /// Administration of a subnet whose manager is not yet master.
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

    /// Says where the manager is once it is master and its first sweep is over, and with none that it is master no more. Until
    /// then no question is answered. Members, services and subscriptions are not inherited: the next master asks
    /// ports to register again.
    pub fn set_master(&mut self, port: Option<Guid>) {
        if self.own.is_some() != port.is_some() {
            self.reset();
        }
        self.own = port;
    }

    /// Other partitions. What ports have registered stays. Groups that partitions no longer have end when they have no members, and those
    /// that have members stay as these know them.
    pub fn set_partitions(&mut self, partitions: Partitions) {
        self.state.groups.set_partitions(&partitions);
        self.partitions = partitions;
    }

    fn reset(&mut self) {
        let groups = Groups::new(&self.partitions);
        let State { assigned_guids, dropped_reports, .. } = self.state;
        self.state = State { groups, assigned_guids, dropped_reports, ..State::default() };
    }

    /// The partitions.
    pub const fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// How many questions came, and what became of them.
    pub fn counters(&self) -> Counters {
        Counters { dropped_reports: self.state.dropped_reports, ..self.counters }
    }

    /// The MLIDs of all groups.
    pub fn groups(&self) -> impl Iterator<Item = Lid> + '_ {
        self.state.groups.mlids()
    }

    /// The members of a group: GUIDs of their ports, and whether a member receives. One that does not only sends.
    pub fn members(&self, mlid: Lid) -> impl Iterator<Item = (Guid, bool)> + '_ {
        self.state.groups.members(mlid)
    }

    /// A sweep of the master has ended: nodes, cables or tables may be others than before.
    pub fn model_changed(&mut self, now: Time, model: &Model, sink: &mut dyn AdministrationSink) {
        let (state, cx) = (&mut self.state, context!(self, now, model));
        state.groups.capacity = None;
        for (_, port) in model.end_ports().filter(|(_, port)| port.info.is_some()) {
            state.pkeys.entry(port.guid).or_default().clone_from(&port.pkeys);
        }
        let Some(cx) = cx else { return };
        events::swept(state, &cx, sink);
    }

    /// When [`Administration::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Time> {
        self.state.services.next_timeout()
    }

    /// Ends leases of services.
    pub fn handle_timeout(&mut self, now: Time) {
        self.state.services.handle_timeout(now);
    }

    /// A port is there since the last sweep.
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

    /// A port is not there any more. What it has registered is gone; services end with their lease. The model may have
    /// forgotten the port: who is told is who had a partition in common with it when it was seen last.
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

    /// A trap of a port is to be reported to subscribers.
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

    /// Something that was given to the sink could not be sent after all: its header, with a status. A Report is over, and dropped.
    pub fn handle_unsent(&mut self, mad: &UserMad) {
        let is_report =
            report_tid(mad).is_some_and(|tid| self.state.subscriptions.handle_response(tid));
        if is_report {
            self.state.dropped_reports += 1;
        } else {
            self.counters.unsent += 1;
        }
    }

    /// A datagram or message for the class has arrived, or a Report was not answered.
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
                    self.links.prepare(model, request.method() != Method::GET);
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

/// The transaction ID of a Report, if this is its response, or says that there is none.
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

/// A status of an answer: one of [`rdmux_wire::mad::status`].
type Status = u16;

/// What the records of an answer are read by.
type Read = fn(&View<'_>, &Request<'_>, &mut Table) -> Result<(), Status>;

/// What a record is set or deleted by.
type Write = fn(
    &mut State,
    &Context<'_>,
    &Request<'_>,
    &mut Table,
    &mut dyn AdministrationSink,
) -> Result<(), Status>;

#[cfg(test)]
pub(crate) mod tests;
