//! A port of the host's adapter: attached when its fabric is up, kept as long as the fabric runs, and requested again
//! afterwards.
//!
//! Nothing here waits for the fabric. Its messages are read when they arrive, a limited number at a time. A greeting that
//! gets no answer in time is given up.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rdmux_cm::{DevicePort, Time};
use rdmux_fabric::client::{Attaching, Attachment, Progress};
use rdmux_fabric::proto::{Described, HostPort, NodeRef, PortFacts, PortRef, Violation};
use rdmux_fabric::{FabricDir, FabricError, FabricName};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::port::{self, Port, PortAttr, PortEvent, PortState};
use rdmux_verbs::throttled;
use rdmux_wire::{Gid, Guid};

use super::adapters::PortAt;
use super::data::{Data, Endpoint};
use super::groups::Groups;
use super::interface::Interface;
use super::lookout::Lookout;
use super::manager::Manager;
use super::sa::SaClient;
use super::{Ib, facts};
use crate::proto::FabricStatus;
use crate::service::core::Core;
use crate::service::counters::Count;
use crate::service::poller::{Interest, Token};

/// Time that a fabric may take to answer. Clients wait as long, so it is short. A fabric takes some milliseconds.
const ANSWER: Duration = Duration::from_secs(1);
/// The first interval between attempts to find a fabric. It doubles each time.
pub(super) const FIRST_RETRY: Duration = Duration::from_millis(50);
/// The longest interval between attempts.
pub(super) const LAST_RETRY: Duration = Duration::from_secs(2);
/// Time to wait after updates before more are read: each may cost a message to every process, and files of the view.
const PAUSE: Duration = Duration::from_millis(5);
/// Updates that are read before other sources get their turn.
const MAX_ROW: usize = 32;

/// A port of the adapter, and the fabric that it is plugged into.
#[derive(Debug)]
pub(in crate::service) struct Adapter {
    fabric: FabricName,
    /// The port's number.
    pub(super) wanted: HostPort,
    state: State,
    /// The interval after the next failure.
    retry: Duration,
    /// Watches for a fabric to come up, while none is up.
    pub(super) lookout: Option<Lookout>,
    /// The fabric's description of the port, from now or from when the fabric was last up.
    known: Option<Known>,
    /// The reason why the port is not attached. Reported once.
    refused: Option<String>,
    pub(super) manager: Manager,
    /// The sockets for the port's data.
    pub(in crate::service) data: Data,
    pub(in crate::service) sa: SaClient,
    pub(in crate::service) interface: Interface,
    pub(in crate::service) groups: Groups,
    /// Deadline for the fabric to confirm the address where data arrives. Until it does, other hosts have no route to
    /// this one.
    settles: Option<Time>,
    /// Whether that address was reported since the port was attached.
    is_told: bool,
    /// Time at which reports that failed are repeated: of that address, or of processes' counter rows.
    again: Option<Time>,
}

/// The state of a port's attachment.
#[derive(Debug)]
enum State {
    /// The fabric is not running. The service looks for it again at that time, or earlier when a client greets if the
    /// fabric was down, because that check costs nothing.
    Away { until: Time, is_up: bool },
    /// The fabric was greeted, and must answer by that time.
    Asked { attaching: Attaching, until: Time },
    /// The port is attached. The fabric's messages are read after the pause, if any.
    Held { attachment: Attachment, pause: Option<Time> },
}

/// The changes that an update contained.
enum News {
    Nothing,
    Counters,
    Port,
}

/// The fabric's description of the port.
#[derive(Debug)]
struct Known {
    node_guid: Guid,
    adapter: port::Adapter,
    port: Port,
}

impl Adapter {
    /// Makes a port that is not attached. It is requested at once.
    pub(super) fn new(fabric: FabricName, wanted: HostPort) -> Self {
        Self {
            fabric,
            wanted,
            state: State::Away { until: Time::ZERO, is_up: false },
            retry: FIRST_RETRY,
            lookout: None,
            known: None,
            refused: None,
            manager: Manager::default(),
            data: Data::default(),
            sa: SaClient::default(),
            interface: Interface::default(),
            groups: Groups::default(),
            settles: None,
            is_told: false,
            again: None,
        }
    }

    /// Returns the port as processes see it. `host` is the GUID of the host's node.
    pub(super) fn port(&self, kind: DeviceKind, host: Guid) -> Port {
        let known = self.known.as_ref().map(|known| known.port.clone());
        known.unwrap_or_else(|| facts::unplugged(kind, own_guid(host), self.wanted.number))
    }

    /// Returns the port's attributes, if the adapter ever was on a fabric.
    pub(in crate::service) fn attr(&self) -> Option<&PortAttr> {
        self.known.as_ref().map(|known| &known.port.attr)
    }

    /// Returns the state of its link.
    pub(super) fn state(&self) -> PortState {
        self.attr().map_or(PortState::Down, |attr| attr.state)
    }

    /// Returns the GID by which the port is known: the first of its table.
    pub(super) fn port_gid(&self, host: Guid) -> Gid {
        self.port(Ib::KIND, host).gids().first().map_or(Gid::ZERO, |entry| entry.gid)
    }

    /// Returns the port's tables.
    pub(super) fn device_port(&self, host: Guid) -> DevicePort {
        let port = self.port(Ib::KIND, host);
        DevicePort {
            device: Ib::KIND as u32,
            port_num: self.wanted.number,
            transport: Ib::KIND.transport_type(),
            node_guid: self.known_guid().unwrap_or_else(|| own_guid(host)),
            mtu: port.attr.active_mtu,
            has_lids: true,
            lid: port.attr.lid,
            lmc: port.attr.lmc,
            gids: port.gids().iter().map(|entry| entry.gid).collect(),
            pkeys: port.pkeys,
        }
    }

    /// Returns the GUID of its node, if it ever was on a fabric.
    pub(super) fn known_guid(&self) -> Option<Guid> {
        self.known.as_ref().map(|known| known.node_guid)
    }

    /// Returns the fabric's description of it, if it ever was on one.
    pub(super) fn described(&self) -> Option<&port::Adapter> {
        self.known.as_ref().map(|known| &known.adapter)
    }

    /// Returns whether a greeting to the fabric is unanswered, or the fabric has not confirmed yet where data arrives.
    pub(super) fn is_asked_for(&self) -> bool {
        matches!(self.state, State::Asked { .. }) || self.settles.is_some()
    }

    /// Returns the name of the port's fabric.
    pub(super) fn fabric(&self) -> &FabricName {
        &self.fabric
    }

    /// Returns the reference by which the fabric knows the port, while it is attached.
    pub(super) fn held_port(&self) -> Option<PortRef> {
        let known = self.known.as_ref().filter(|_| matches!(self.state, State::Held { .. }))?;
        let port = known.port.managed.as_ref()?.port;
        Some(PortRef { node: NodeRef::Guid(known.node_guid), port })
    }

    /// Returns the port's status.
    pub(super) fn status(&self) -> FabricStatus {
        let held = self.known.as_ref().filter(|_| matches!(self.state, State::Held { .. }));
        let attr = held.map(|known| &known.port.attr);
        FabricStatus {
            port: self.wanted.number,
            name: self.fabric.to_string(),
            node_guid: held.map(|known| known.node_guid),
            lid: attr.map_or(0, |attr| attr.lid.0),
            lmc: attr.map_or(0, |attr| attr.lmc),
            sm_lid: attr.map_or(0, |attr| attr.sm_lid.0),
            sm_sl: attr.map_or(0, |attr| attr.sm_sl),
            pkeys: held.map_or_else(Vec::new, |known| {
                known.port.pkeys.iter().filter(|key| key.0 & 0x7fff != 0).copied().collect()
            }),
            gids: held.map_or_else(Vec::new, |known| {
                let gids = known.port.gids().iter().map(|entry| entry.gid);
                gids.filter(|gid| *gid != Gid::ZERO).collect()
            }),
            state: attr.map_or(PortState::Down, |attr| attr.state).name().to_owned(),
            is_sm: self.manager.has_bit(),
            why: self.refused.clone(),
        }
    }

    /// Reports to the fabric the rows in which a process counts.
    pub(super) fn count_in(&mut self, process: u16, rows: BorrowedFd<'_>) -> Result<(), String> {
        match &mut self.state {
            State::Held { attachment, .. } => {
                attachment.count_in(process, rows).map_err(|e| e.to_string())
            }
            _ => Err("there is no fabric".to_owned()),
        }
    }

    /// Notifies the fabric that a process is gone. If the fabric is gone, its counts are gone, too.
    pub(super) fn process_gone(&mut self, process: u16) {
        if let State::Held { attachment, .. } = &mut self.state {
            let _ = attachment.process_gone(process);
        }
    }

    /// Reports to the fabric a packet with a key that does not match. The report may be lost.
    pub(super) fn key_violation(&mut self, violation: &Violation) {
        if let State::Held { attachment, .. } = &mut self.state {
            let _ = attachment.violated(violation);
        }
    }

    /// Schedules the repetition of a report to the fabric that failed.
    pub(super) fn report_later(&mut self, now: Time) {
        if self.again.is_none() {
            self.again = Some(now.after(self.retry));
            self.retry = (self.retry * 2).min(LAST_RETRY);
        }
    }

    /// Returns when the next action is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let due = self.attachment_timeout();
        [due, self.sa.poll_timeout(), self.interface.poll_timeout()].into_iter().flatten().min()
    }

    /// Returns when the attachment's next action is due.
    fn attachment_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Away { until, .. } | State::Asked { until, .. } => Some(*until),
            State::Held { pause, .. } => {
                [*pause, self.settles, self.again].into_iter().flatten().min()
            }
        }
    }
}

/// Returns the GUID of the node of an InfiniBand adapter, next to the host's other ones. The GUID after it is the port's, so
/// it is even: all are among the four that begin with the host's own.
pub(super) fn own_guid(host: Guid) -> Guid {
    Guid((host.0 ^ 2) & !1)
}

impl Core {
    /// Looks for the fabric if that is due, or gives up a greeting that timed out.
    pub(in crate::service) fn poll_adapter(&mut self) {
        let now = self.now();
        if self.adapter.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        for at in self.adapter.every() {
            self.poll_sa(at);
            self.poll_interface(at);
            self.poll_attachment(at, now);
        }
    }

    fn poll_attachment(&mut self, at: PortAt, now: Time) {
        if self.adapter[at].attachment_timeout().is_none_or(|due| due > now) {
            return;
        }
        match &mut self.adapter[at].state {
            State::Away { .. } => self.ask_fabric(at),
            State::Asked { attaching, .. } => {
                self.poller.remove(attaching);
                self.counts.add(Count::FabricSilent);
                self.adapter_gone(at, &format!("no reply for {ANSWER:?}"));
            }
            State::Held { attachment, pause } => {
                if pause.take_if(|due| *due <= now).is_some() {
                    self.poller.change(attachment, Token::Fabric(at.number()), Interest::Read);
                }
                if self.adapter[at].settles.is_some_and(|due| due <= now) {
                    self.settle(at);
                }
                if self.adapter[at].again.take_if(|due| *due <= now).is_some() {
                    self.report_again(at);
                }
            }
        }
    }

    /// Looks for fabrics that may have just come up, when a client queries the devices.
    pub(super) fn look_for_fabrics(&mut self) {
        for at in self.adapter.every() {
            if matches!(self.adapter[at].state, State::Away { is_up: false, .. }) {
                self.ask_fabric(at);
            }
        }
    }

    /// Looks for a fabric that may have come up, unless it was greeted already or the port is attached.
    pub(super) fn look_for_new_fabric(&mut self, at: PortAt) {
        if matches!(self.adapter[at].state, State::Away { .. }) {
            self.adapter[at].retry = FIRST_RETRY;
            self.ask_fabric(at);
        }
    }

    fn ask_fabric(&mut self, at: PortAt) {
        self.watch_for_fabric(at);
        let user = self.options.dir.user_dir();
        let host = self.options.host.as_str();
        let (guid, adapter) = (own_guid(self.node_guid), &self.adapter[at]);
        let begun = FabricDir::existing(user, &adapter.fabric)
            .map_err(FabricError::from)
            .map(|dir| dir.map(|dir| Attachment::begin(&dir, host, guid, &adapter.wanted)))
            .and_then(|begun| begun.transpose().map(Option::flatten));
        match begun {
            Ok(Some(attaching)) => {
                let until = self.now().after(ANSWER);
                self.await_answer(at, attaching, until);
            }
            Ok(None) => self.look_later(at, false),
            Err(e) => self.refuse_adapter(at, &e),
        }
    }

    fn await_answer(&mut self, at: PortAt, attaching: Attaching, until: Time) {
        match self.poller.add(&attaching, Token::Fabric(at.number()), Interest::Read) {
            Ok(()) => self.adapter[at].state = State::Asked { attaching, until },
            Err(e) => {
                throttled!(warn, "cannot watch the connection to a fabric: {e}");
                self.forget_fabric(at);
            }
        }
    }

    /// Handles a message of the fabric, or its end. A closed socket is removed from the poller first: if a forked
    /// process has a duplicate, closing alone would leave it there.
    pub(in crate::service) fn fabric_event(&mut self, at: PortAt) {
        let away = State::Away { until: self.now(), is_up: true };
        match std::mem::replace(&mut self.adapter[at].state, away) {
            State::Asked { attaching, until } => {
                self.poller.remove(&attaching);
                self.fabric_answered(at, attaching, until);
            }
            State::Held { attachment, .. } => self.port_changed(at, attachment),
            away @ State::Away { .. } => self.adapter[at].state = away,
        }
    }

    fn fabric_answered(&mut self, at: PortAt, attaching: Attaching, until: Time) {
        match attaching.poll() {
            Ok(Progress::Pending(attaching)) => self.await_answer(at, attaching, until),
            Ok(Progress::Done((attachment, described))) => {
                self.attached(at, attachment, &described)
            }
            Err(e) => self.refuse_adapter(at, &e),
        }
    }

    fn attached(&mut self, at: PortAt, attachment: Attachment, described: &Described) {
        let before = self.adapter[at].port(Ib::KIND, self.node_guid);
        if let Err(why) = self.know(at, described) {
            return self.fabric_broke(at, why);
        }
        let events =
            facts::events_between(&before, &self.adapter[at].port(Ib::KIND, self.node_guid));
        if let Err(e) = self.poller.add(&attachment, Token::Fabric(at.number()), Interest::Read) {
            return self.adapter_gone(at, &format!("cannot watch its connection: {e}"));
        }
        let table = attachment.routes().map(OwnedFd::try_clone).transpose();
        self.adapter[at].state = State::Held { attachment, pause: None };
        self.set_everywhere(at, described.is_joined);
        self.adapter[at].retry = FIRST_RETRY;
        // First, because the processes' rows may fill the connection.
        self.tell_endpoint(at);
        self.take_table(at, table.unwrap_or_default());
        self.adapter[at].refused = None;
        self.end_lookout(at);
        self.counts.add(Count::FabricAttached);
        let (fabric, node, number) = (&self.adapter[at].fabric, described.node_guid, at.number());
        tracing::info!("fabric {fabric} assigned adapter {node} to port {number}");
        self.tell_port(at, events);
        self.watch_managers();
        self.open_sa(at);
        self.answer_greetings();
    }

    /// Ends the wait for the fabric to confirm the address where data arrives: waiting greetings are answered.
    fn settle(&mut self, at: PortAt) {
        if self.adapter[at].settles.take().is_some() {
            self.answer_greetings();
        }
    }

    fn port_changed(&mut self, at: PortAt, mut attachment: Attachment) {
        let mut last = Ok(None);
        let mut events = Vec::new();
        let mut is_answered = false;
        for _ in 0..MAX_ROW {
            match attachment.poll_update() {
                Ok(Some(update)) => {
                    is_answered |= update.is_answer();
                    facts::note(&mut events, &update.events);
                    last = Ok(Some(update.port));
                }
                Ok(None) => break,
                Err(e) => {
                    last = Err(e);
                    break;
                }
            }
        }
        let news = match last {
            Ok(None) => Ok(News::Nothing),
            Ok(Some(facts)) => self.know_port(at, &facts),
            Err(FabricError::Protocol { .. }) => Err("an invalid message"),
            Err(e) => {
                self.poller.remove(&attachment);
                return self.adapter_gone(at, &e.to_string());
            }
        };
        match news {
            Ok(news) => {
                // Nothing is read for a moment, so that a fabric that sends without end costs no more.
                self.poller.change(&attachment, Token::Fabric(at.number()), Interest::End);
                let pause = Some(self.now().after(PAUSE));
                self.adapter[at].state = State::Held { attachment, pause };
                match news {
                    // A manager's request to register again changes nothing in the port.
                    _ if !events.is_empty() => self.tell_port(at, events),
                    News::Port => self.tell_port(at, Vec::new()),
                    News::Counters => self.refresh_view(),
                    News::Nothing => {}
                }
                if is_answered {
                    self.settle(at);
                }
            }
            Err(why) => {
                self.poller.remove(&attachment);
                self.fabric_broke(at, why);
            }
        }
    }

    /// Requests the port's counters, which change without an update. A request that cannot be sent means that the
    /// fabric is gone, which its socket reports, or has enough to read.
    pub(in crate::service) fn ask_for_counters(&mut self) {
        for adapter in self.adapter.iter_mut() {
            if let State::Held { attachment, .. } = &mut adapter.state {
                let _ = attachment.ask();
            }
        }
    }

    /// Reports to the fabric the address where the port receives data. Clients learn of the adapter after the fabric's answer. If there
    /// are no sockets, or the fabric has enough to read, the report is sent later. Nothing is reported without a route table.
    fn tell_endpoint(&mut self, at: PortAt) {
        let endpoint = self.open_data(at);
        let now = self.now();
        let adapter = &mut self.adapter[at];
        let State::Held { attachment, .. } = &mut adapter.state else { return };
        if attachment.routes().is_none() {
            return;
        }
        let is_told = endpoint.is_some_and(|Endpoint { addr, everywhere, multicast }| {
            attachment.set_endpoint(addr, everywhere, multicast).is_ok()
        });
        adapter.is_told = is_told;
        if is_told {
            adapter.settles = Some(now.after(ANSWER));
        } else {
            adapter.report_later(now);
        }
    }

    /// Opens the port's sockets, if earlier attempts failed or there was no fabric yet, and reports their address, if it was not.
    pub(super) fn need_data(&mut self, at: PortAt) {
        let is_held = matches!(self.adapter[at].state, State::Held { .. });
        if is_held && !self.adapter[at].is_told {
            self.tell_endpoint(at);
        } else {
            self.open_data(at);
        }
    }

    /// Repeats reports to the fabric that failed.
    fn report_again(&mut self, at: PortAt) {
        if !self.adapter[at].is_told {
            self.tell_endpoint(at);
        }
        self.tell_rows_again(at);
    }

    fn know(&mut self, at: PortAt, described: &Described) -> Result<(), &'static str> {
        let adapter = facts::adapter(described)?;
        let node_guid = described.node_guid;
        let port = self.read_port(at, node_guid, &described.port)?;
        self.adapter[at].known = Some(Known { node_guid, adapter, port });
        Ok(())
    }

    fn know_port(&mut self, at: PortAt, facts: &PortFacts) -> Result<News, &'static str> {
        let Some(node) = self.adapter[at].known_guid() else { return Ok(News::Nothing) };
        let port = self.read_port(at, node, facts)?;
        let Some(known) = &mut self.adapter[at].known else { return Ok(News::Nothing) };
        let mut before = std::mem::replace(&mut known.port, port);
        if before == known.port {
            return Ok(News::Nothing);
        }
        before.managed.clone_from(&known.port.managed);
        Ok(if before == known.port { News::Counters } else { News::Port })
    }

    fn read_port(&self, at: PortAt, node: Guid, facts: &PortFacts) -> Result<Port, &'static str> {
        facts::port(Ib::KIND, self.adapter[at].fabric.as_str(), node, facts)
    }

    /// Handles a refusal by the fabric. The request is repeated, because that may change.
    fn refuse_adapter(&mut self, at: PortAt, e: &FabricError) {
        let why = e.to_string();
        if self.adapter[at].refused.as_ref() != Some(&why) {
            tracing::warn!("fabric {} assigns no adapter: {why}", self.adapter[at].fabric);
        }
        self.adapter[at].refused = Some(why);
        self.counts.add(match e {
            FabricError::Protocol { .. } | FabricError::Version { .. } => Count::FabricBroke,
            _ => Count::FabricRefused,
        });
        self.forget_fabric(at);
    }

    fn fabric_broke(&mut self, at: PortAt, why: &str) {
        self.counts.add(Count::FabricBroke);
        self.adapter_gone(at, why);
    }

    /// Takes the port down after its fabric is lost.
    fn adapter_gone(&mut self, at: PortAt, why: &str) {
        throttled!(warn, "detached from fabric {}: {why}", self.adapter[at].fabric);
        self.forget_fabric(at);
    }

    fn forget_fabric(&mut self, at: PortAt) {
        self.look_later(at, true);
        let adapter = &mut self.adapter[at];
        (adapter.settles, adapter.is_told, adapter.again) = (None, false, None);
        self.close_sa(at);
        self.take_table(at, None);
        self.clear_is_sm(at);
        if let Some(known) = &mut self.adapter[at].known {
            let before = known.port.clone();
            if facts::take_down(&mut known.port) {
                let events = facts::events_between(&before, &known.port);
                self.tell_port(at, events);
            }
        }
        self.answer_greetings();
    }

    /// Closes the connections to the fabric, which removes them from the poller, and schedules another attempt.
    fn look_later(&mut self, at: PortAt, is_up: bool) {
        let adapter = &mut self.adapter[at];
        if !is_up {
            adapter.refused = None;
        }
        let until = Time::ZERO.after(self.started.elapsed()).after(adapter.retry);
        adapter.state = State::Away { until, is_up };
        adapter.retry = (adapter.retry * 2).min(LAST_RETRY);
    }

    fn tell_port(&mut self, at: PortAt, events: Vec<PortEvent>) {
        self.follow_gids(at);
        self.follow_ports();
        self.react_to(at, &events);
        let events = events.into_iter().map(|event| (at.number(), event)).collect();
        self.notify_ports_of(Ib::KIND, events);
        self.refresh_view();
    }
}

impl Core {
    /// Ends memberships and invalidates other hosts' addresses after events of the port, as Linux does
    /// (`mcast_event_handler`, `ipoib_event`).
    fn react_to(&mut self, at: PortAt, events: &[PortEvent]) {
        use PortEvent as E;
        let ends_groups = |event: &PortEvent| match event {
            E::Error | E::LidChange | E::ClientReregister => true,
            E::PkeyChange => self.has_left_partitions(at),
            _ => false,
        };
        if events.iter().any(ends_groups) {
            self.lose_groups(at);
            self.forget_neighbours(at);
        } else if events.iter().any(|event| matches!(event, E::PkeyChange | E::GidChange)) {
            self.forget_neighbours(at);
        }
        self.follow_interface(at);
        self.drain_outbox();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_and_port_guids_of_a_host_are_distinct_in_its_block_of_four() {
        for low in 0..4 {
            let host = 0x0211_2233_4455_6670 | low;
            let node = own_guid(Guid(host)).0;
            let all = [host, host ^ 1, node, node + 1];
            for (i, guid) in all.iter().enumerate() {
                assert_eq!(guid & !3, host & !3);
                assert!(!all[..i].contains(guid), "{all:x?}");
            }
        }
    }
}
