//! The state of one connection, on either side.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_wire::cm::Transport;
use rdmux_wire::{Guid, Qpn};

use super::redirect::Wanted;
use super::state::State;
use crate::path::MadPath;
use crate::sink::IdHandle;
use crate::timers::Deadline;

/// A management datagram.
pub(crate) type Mad = [u8; 256];

/// A connection, identified by this end's communication id.
#[derive(Debug)]
pub(crate) struct Conn {
    /// The id that gets its events; none once that was destroyed.
    pub(crate) owner: Option<IdHandle>,
    state: State,
    /// The transport that REQ requested.
    pub(super) transport: Transport,
    /// This end's communication id.
    pub(super) local_id: u32,
    /// The peer's communication id; 0 while unknown.
    pub(super) remote_id: u32,
    /// The GUID of this end's node.
    pub(super) local_guid: Guid,
    /// The GUID of the peer's node; zero while unknown.
    pub(super) remote_guid: Guid,
    /// This end's queue pair.
    pub(super) local_qpn: Qpn,
    /// The peer's queue pair; zero while unknown.
    pub(super) remote_qpn: Qpn,
    /// The transaction of REQ, which REP, RTU, MRA and REJ repeat, or of the peer's DREQ.
    pub(super) tid: u64,
    /// The path to the peer.
    pub(super) path: MadPath,
    /// The path of messages along the alternate path.
    pub(super) other_path: Option<MadPath>,
    /// The alternate path before the current one. The peer may have migrated to it while another one was loaded.
    pub(super) former_path: Option<MadPath>,
    /// Whether the program has reported a migration of this end since the last path was loaded.
    pub(super) has_migrated: bool,
    /// Whether this end sent REQ.
    pub(super) is_active: bool,
    /// The progress of a LAP.
    pub(super) lap: Lapping,
    /// The transactions of LAPs answered before the last one, to distinguish delayed duplicates from new requests.
    pub(super) old_laps: VecDeque<u64>,
    /// The MRA that the program has sent for the message that it must answer, sent again for each duplicate.
    pub(super) mra: Option<Box<Mad>>,
    /// The number of times that the peer has asked for more time, by MRA.
    pub(super) respites: u8,
    /// The service timeout code of MRAs sent because the program has not answered.
    pub(super) service_timeout: u8,
    /// How often REQ may still be redirected.
    pub(super) redirects_left: u8,
    /// The path to the port that the request is redirected to.
    pub(super) wanted: Wanted,
    /// The time within which the peer should answer; a code.
    pub(super) response_timeout: u8,
    /// The RTU that was sent.
    pub(super) rtu: Option<Box<Mad>>,
    /// A DREQ that arrived before the program established the connection: its sender's communication id and its transaction.
    pub(super) early_dreq: Option<(u32, u64)>,
    /// The message in flight that awaits an answer.
    pub(super) out: Option<Box<Mad>>,
    /// The REJ that revoked an accept. The peer may not have received it.
    pub(super) refusal: Option<Box<Mad>>,
    /// How often `out` may still be retransmitted.
    pub(super) retries_left: u8,
    /// How often any message may be retransmitted.
    pub(super) max_retries: u8,
    /// The time between transmissions.
    pub(super) interval: Duration,
    /// The ACK timeout code of the path.
    pub(super) ack_timeout: u8,
    /// The deadline of the next retransmission, or of the end of timewait.
    pub(super) deadline: Deadline,
}

/// The progress of a LAP. Only the side that sent REQ sends LAPs (IBTA 12.9.5), so there is at most one at a time.
#[derive(Debug)]
pub(super) enum Lapping {
    /// No LAP was sent or received yet.
    None,
    /// This end's LAP is not answered yet; its transaction, and the path of messages along the new path.
    Sent(u64, MadPath),
    /// The peer's LAP arrived, and the program has not answered.
    Asked(u64),
    /// The peer's LAP was answered with this APR.
    Answered(u64, Box<Mad>),
}

/// The initial values of a new connection.
pub(super) struct NewConn {
    pub(super) state: State,
    pub(super) owner: Option<IdHandle>,
    pub(super) transport: Transport,
    pub(super) local_id: u32,
    pub(super) tid: u64,
    pub(super) path: MadPath,
    pub(super) max_retries: u8,
    pub(super) interval: Duration,
    pub(super) ack_timeout: u8,
    pub(super) service_timeout: u8,
    pub(super) response_timeout: u8,
}

impl Conn {
    pub(super) fn new(new: NewConn) -> Self {
        Self {
            owner: new.owner,
            state: new.state,
            transport: new.transport,
            local_id: new.local_id,
            remote_id: 0,
            local_guid: Guid(0),
            remote_guid: Guid(0),
            local_qpn: Qpn::default(),
            remote_qpn: Qpn::default(),
            tid: new.tid,
            path: new.path,
            other_path: None,
            former_path: None,
            has_migrated: false,
            is_active: new.state.awaits_rep(),
            lap: Lapping::None,
            old_laps: VecDeque::new(),
            mra: None,
            respites: 0,
            service_timeout: new.service_timeout,
            redirects_left: 0,
            wanted: Wanted::Nothing,
            response_timeout: new.response_timeout,
            rtu: None,
            early_dreq: None,
            out: None,
            refusal: None,
            retries_left: 0,
            max_retries: new.max_retries,
            interval: new.interval,
            ack_timeout: new.ack_timeout,
            deadline: Deadline::default(),
        }
    }

    /// Returns the current state.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Changes the state. No other function does.
    pub(super) fn go(&mut self, next: State) {
        debug_assert!(self.state.may_become(next), "{} -> {next}", self.state);
        self.state = next;
    }

    /// Returns whether a message with these communication ids, from this peer, belongs to this connection.
    pub(super) fn is_of(&self, remote_id: u32, path: &MadPath) -> bool {
        self.remote_id == remote_id && self.is_from(path)
    }

    /// Returns whether a message came from the peer: along any current, former or requested path of the connection.
    pub(super) fn is_from(&self, path: &MadPath) -> bool {
        let asked = match self.lap {
            Lapping::Sent(_, path) => Some(path),
            _ => None,
        };
        let paths = [Some(self.path), self.other_path, self.former_path, asked];
        paths.iter().flatten().any(|known| known.peer() == path.peer())
    }

    /// Sends to the peer along this path from now on, if the peer has migrated to it and this end's program has not reported the migration
    /// yet. Once the program has, a message by another path is a late one.
    pub(super) fn follow(&mut self, path: &MadPath) {
        if self.has_migrated {
            return;
        }
        let own = &mut self.path;
        let others = [&mut self.other_path, &mut self.former_path];
        let came = others.into_iter().flatten().find(|other| other.peer() == path.peer());
        if let Some(other) = came.filter(|_| own.peer() != path.peer()) {
            core::mem::swap(own, other);
        }
    }

    /// Sends messages along this path from now on.
    pub(super) fn move_to(&mut self, to: &MadPath) {
        self.has_migrated = true;
        let is_it = |path: &MadPath| (path.local, path.peer()) == (to.local, to.peer());
        if is_it(&self.path) {
            return;
        }
        for other in [&mut self.other_path, &mut self.former_path].into_iter().flatten() {
            if is_it(other) {
                core::mem::swap(&mut self.path, other);
                return;
            }
        }
        self.former_path = Some(core::mem::replace(&mut self.path, *to));
    }

    /// Adopts a new alternate path, which both ends have loaded.
    pub(super) fn take_path(&mut self, new: MadPath) {
        self.former_path = self.other_path.replace(new);
        self.has_migrated = false;
    }

    /// Returns the transaction of a message that this end initiates.
    pub(super) fn own_tid(&self) -> u64 {
        tid_of(self.local_id)
    }

    /// Returns when the next transmission is due.
    pub(super) fn next_retry(&self, now: Time) -> Time {
        now.after(self.interval)
    }
}

/// Returns the transaction for a communication id. The upper half, by which Linux distinguishes its
/// agents, is never zero.
pub(super) fn tid_of(local_id: u32) -> u64 {
    1 << 32 | u64::from(local_id)
}
