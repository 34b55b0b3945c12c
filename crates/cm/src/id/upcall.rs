//! Reports upcalls of connections and lookups as events.

use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_wire::cm::{Rep, SidrRep, SidrStatus};
use rdmux_wire::{AckTimeout, Qpn};

use super::entry::{IdState, Link};
use super::{EventBody, Manager};
use crate::address::IbAddr;
use crate::error::{CmError, Command, errno};
use crate::event::{EventKind, EventParam};
use crate::ib::{ConnEvent, Upcall};
use crate::params::{ConnParam, Ece, UdParam};
use crate::sink::{IdHandle, Sink};

impl Manager {
    /// Writes a program's own event to the id's channel (rdma_write_cm_event(3)): USER, with
    /// `arg`, or the outcome of a lookup that the process did itself.
    ///
    /// # Errors
    /// When there is no such id, or only the connection manager may report this kind.
    pub fn write_event(
        &mut self,
        id: IdHandle,
        kind: EventKind,
        status: i32,
        arg: u64,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::WriteEvent;
        self.get(id, command)?;
        if !matches!(kind, EventKind::User | EventKind::AddrinfoResolved | EventKind::AddrinfoError)
        {
            let what = "programs cannot write events of this type";
            return Err(CmError::Invalid { id, command, what });
        }
        let param = EventParam::Arg(arg);
        self.emit(id, EventBody { status, param, ..EventBody::new(kind) }, sink);
        Ok(())
    }

    /// Handles the result of an id's lookup of services at subnet administration, or a positive errno. Reports ADDRINFO_RESOLVED, or
    /// ADDRINFO_ERROR, also when no service was found.
    pub fn handle_services(
        &mut self,
        id: IdHandle,
        answer: Result<Vec<IbAddr>, i32>,
        sink: &mut impl Sink,
    ) {
        let body = match answer {
            Ok(found) if found.is_empty() => {
                EventBody::failed(EventKind::AddrinfoError, -errno::ENOENT)
            }
            Ok(found) => EventBody {
                param: EventParam::Services(found),
                ..EventBody::new(EventKind::AddrinfoResolved)
            },
            Err(errno) => EventBody::failed(EventKind::AddrinfoError, -errno.abs()),
        };
        self.emit(id, body, sink);
    }

    /// Reports the failure of a command whose caller did not wait for the answer, by an error event in place of the event for its
    /// success. A command that failed because the connection is over or the device is gone needs no event: that was reported already. For
    /// a request that was over before it was accepted, the end is reported now.
    pub fn handle_refused(
        &mut self,
        id: IdHandle,
        command: Command,
        errno: i32,
        sink: &mut impl Sink,
    ) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        let is_unanswered = command == Command::Accept && found.is_unanswered;
        if is_unanswered {
            found.is_unanswered = false;
            if let Some(end) = found.end.take() {
                return found.tell(*end, sink);
            }
        }
        let kind = match (command, found.state()) {
            (Command::ResolveAddr, IdState::Idle | IdState::AddrBound) => EventKind::AddrError,
            (Command::ResolveRoute, IdState::AddrResolved) => EventKind::RouteError,
            (Command::ResolveAlong, IdState::Idle | IdState::AddrBound) => EventKind::RouteError,
            (Command::Connect, IdState::RouteResolved) => EventKind::ConnectError,
            (Command::Accept, IdState::Connect) if is_unanswered => EventKind::ConnectError,
            _ => return,
        };
        self.emit(id, EventBody::failed(kind, -errno), sink);
    }

    /// Handles an upcall of a connection or lookup, which may not have an id yet.
    pub(super) fn handle_upcall(&mut self, now: Time, upcall: Upcall, sink: &mut impl Sink) {
        match upcall {
            Upcall::ToOwner { id, what } => self.handle_conn_event(now, id, what, sink),
            wish => self.handle_wish(now, wish, sink),
        }
    }

    fn handle_conn_event(
        &mut self,
        now: Time,
        id: IdHandle,
        what: ConnEvent,
        sink: &mut impl Sink,
    ) {
        if let ConnEvent::PathWanted { gid, came } = what {
            return self.path_wanted(now, id, (gid, came), sink);
        }
        // After any event, the lookup of a path for a redirection is obsolete.
        self.cancel_path(id, sink);
        let Some(found) = self.ids.get_mut(&id) else { return };
        if let Link::Conn(conn) = found.link
            && self.cm.state(conn).is_none()
        {
            found.link = Link::None;
        }
        let state = found.state();
        let body = match what {
            ConnEvent::TimewaitExit if state == IdState::Disconnect => {
                EventBody::new(EventKind::TimewaitExit)
            }
            ConnEvent::TimewaitExit => return,
            _ if state != IdState::Connect => return,
            ConnEvent::Response(rep, options) => self.response(id, &rep, options),
            ConnEvent::Established => EventBody::new(EventKind::Established),
            ConnEvent::Redirected(moved) => return self.request_moved(id, &moved),
            ConnEvent::PathWanted { .. } => return,
            ConnEvent::MoreTime(_) if !found.options.fields.messages => return,
            ConnEvent::MoreTime(code) => EventBody::failed(EventKind::MoreTime, i32::from(code)),
            ConnEvent::AlternateAsked(lap) => return self.alternate_asked(id, &lap, sink),
            ConnEvent::AlternateAnswered(apr) => {
                return self.alternate_answered(id, Ok(&*apr), sink);
            }
            ConnEvent::AlternateUnanswered(errno) => {
                return self.alternate_answered(id, Err(errno), sink);
            }
            ConnEvent::Rejected(rej) => {
                let private_data = rej.private_data.into();
                let param = ConnParam { private_data, ..Default::default() };
                let body = EventBody::failed(EventKind::Rejected, i32::from(rej.reason.0));
                EventBody { param: EventParam::Conn(param), ..body }
            }
            ConnEvent::Unreachable(status) => {
                found.link = Link::None;
                EventBody::failed(EventKind::Unreachable, status)
            }
            ConnEvent::Disconnected(status) => {
                found.go(IdState::Disconnect);
                EventBody::failed(EventKind::Disconnected, status)
            }
            ConnEvent::SidrReply(rep) => {
                found.link = Link::None;
                self.looked_up(id, &rep)
            }
        };
        self.emit(id, body, sink);
    }

    /// Handles the peer's acceptance: its depths are this end's with the sides swapped, and it says how often this end
    /// retries when the peer is not ready.
    fn response(&mut self, id: IdHandle, rep: &Rep, options: u32) -> EventBody {
        let (serves, asks) = (self.cm.config.max_rd_atomic, self.cm.config.max_init_rd_atomic);
        let code = match self.ids.get(&id).map(|i| i.link) {
            Some(Link::Conn(conn)) => self.cm.ack_timeout(conn),
            _ => 0,
        };
        let timeout = self.qp_timeout(id, AckTimeout::new(code));
        if let Some(found) = self.ids.get_mut(&id) {
            found.peer_ack_delay = rep.target_ack_delay;
            found.alternate = found.alternate.filter(|_| rep.failover_accepted == 0);
        }
        let alternate = self.ids.get(&id).and_then(|found| found.alternate);
        let alternate = alternate.map(|path| self.alternate(id, &path));
        let param = ConnParam {
            private_data: rep.private_data.into(),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.end_to_end_flow_control,
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            qp_num: rep.local_qpn,
            qkey: None,
            ece: Ece { vendor_id: rep.vendor_id, options },
            peer_to_peer: None,
        };
        let wishes = self.ids.get_mut(&id).and_then(|i| i.negotiated.as_mut());
        let negotiated = wishes.map(|n| {
            n.dest_qpn = rep.local_qpn;
            n.sq_psn = rep.starting_psn;
            n.max_rd_atomic = rep.responder_resources.min(asks);
            n.max_dest_rd_atomic = rep.initiator_depth.min(serves);
            n.timeout = timeout;
            n.rnr_retry = rep.rnr_retry_count;
            n.srq = rep.srq;
            n.alternate = alternate;
            *n
        });
        let body = EventBody::new(EventKind::ConnectResponse);
        EventBody { param: EventParam::Conn(param), negotiated, ..body }
    }

    /// Handles the answer to a lookup. Anything but a queue pair is reported as UNREACHABLE with the status, as in
    /// Linux.
    fn looked_up(&mut self, id: IdHandle, rep: &SidrRep) -> EventBody {
        let route = self.ids.get(&id).and_then(|i| i.route);
        let valid = rep.status == SidrStatus::VALID;
        let param = UdParam {
            private_data: rep.private_data.into(),
            av: route.map(|r| r.av).unwrap_or_default(),
            qp_num: if valid { rep.qpn } else { Qpn::default() },
            qkey: rep.qkey,
        };
        let param = EventParam::Ud(param);
        if !valid {
            let body = EventBody::failed(EventKind::Unreachable, i32::from(rep.status.0));
            return EventBody { param, ..body };
        }
        let wishes = self.ids.get_mut(&id).and_then(|i| i.negotiated.as_mut());
        let negotiated = wishes.map(|n| {
            n.dest_qpn = rep.qpn;
            *n
        });
        EventBody { param, negotiated, ..EventBody::new(EventKind::Established) }
    }
}
