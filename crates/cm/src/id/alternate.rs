//! The alternate path of a connection (IBTA 17.2.8): first that of REQ, then those of LAPs.
//!
//! ```text
//!  active                                   passive
//!   connect, with an alternate path  ---REQ--->  CONNECT_REQUEST has it if it begins at a local port
//!   CONNECT_RESPONSE has it, or not  <--REP----  accept: loads it or not, and REP says which
//!
//!   load_alternate                   ---LAP--->  ALTERNATE_REQUEST
//!   ALTERNATE_RESPONSE               <--APR----  answer_alternate
//!   migrated                                     migrated
//! ```
//!
//! The events carry the attributes by which the queue pair is changed ([`Negotiated::alternate`]). Only the program is notified of a
//! migration. `migrated` reports it to the connection manager, whose messages then take the new path too.

use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::cm::{Apr, AprStatus, Lap};

use super::connect::check_len;
use super::entry::{Id, IdState, Link};
use super::peer_path::Wrong;
use super::{EventBody, Manager};
use crate::config::Config;
use crate::error::{CmError, Command};
use crate::event::{EventKind, EventParam};
use crate::fields::Refusal;
use crate::ib::alternate::Answer;
use crate::params::{Alternate, ConnParam, Negotiated, PathData, Route};
use crate::path::Path;
use crate::sink::{IdHandle, Sink};

/// Size of the private data of LAP and APR.
const LAP_DATA: usize = 168;
const APR_DATA: usize = 148;

impl Manager {
    /// Asks the peer of a connection to load another alternate path, by LAP. ALTERNATE_RESPONSE follows, with the attributes for the queue
    /// pair. `records` are one or two with [`PathData::ALTERNATE`], as for [`set_paths`](Self::set_paths). Only the side that connected
    /// may send LAP (IBTA 12.9.5).
    ///
    /// # Errors
    /// When the id is not connected or is the accepting side; when the last LAP is not answered; when the records describe no usable
    /// path for the connection, or the private data exceed 168 bytes.
    pub fn load_alternate(
        &mut self,
        now: Time,
        id: IdHandle,
        records: &[PathData],
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::LoadAlternate;
        check_len(id, command, private_data.len(), LAP_DATA)?;
        let found = self.in_state(id, command, IdState::Connect)?;
        let (link, base, negotiated) = (found.link, found.path, found.negotiated);
        let (Link::Conn(conn), Some(base), Some(negotiated)) = (link, base, negotiated) else {
            return Err(self.wrong_state(id, command));
        };
        let device = self.get(id, command)?.device.clone();
        let device = device.ok_or_else(|| self.wrong_state(id, command))?;
        let path = self.alternate_along(&device, &base, records, negotiated.path_mtu);
        let path = path.map_err(|(path, field)| CmError::Path { id, path, field })?;
        if !self.cm.load_alternate(now, conn, &path, private_data, sink) {
            let what = "only the active side of an established connection sends LAP, one at a time";
            return Err(CmError::Invalid { id, command, what });
        }
        self.get_mut(id, command)?.asked_alternate = Some(path);
        Ok(())
    }

    /// Answers an ALTERNATE_REQUEST, by APR. Reason 0 reports that the queue pair has loaded the path;
    /// an [`AprStatus`] gives the reason why it did not.
    ///
    /// # Errors
    /// When there is no LAP to answer, the status exceeds 255, or something is too long.
    pub fn answer_alternate(
        &mut self,
        id: IdHandle,
        answer: &Refusal,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::AnswerAlternate;
        let Refusal { reason, info, private_data } = answer;
        check_len(id, command, private_data.len(), APR_DATA)?;
        let Some(status) = u8::try_from(*reason).ok().filter(|_| info.len() <= Refusal::INFO)
        else {
            let what = "the status exceeds 255, or the additional information 72 bytes";
            return Err(CmError::Invalid { id, command, what });
        };
        let status = AprStatus(status);
        let found = self.get(id, command)?;
        let device = found.route.map_or(0, |route| route.device);
        let (Link::Conn(conn), taken) = (found.link, found.asked_alternate) else {
            return Err(self.wrong_state(id, command));
        };
        let taken = taken.filter(|_| status == AprStatus::LOADED);
        let path = taken.map(|path| path.mad_path(device, path.av));
        if !self.cm.answer_alternate(conn, &Answer { status, info, private_data, path }, sink) {
            return Err(self.wrong_state(id, command));
        }
        let found = self.get_mut(id, command)?;
        found.asked_alternate = None;
        found.take_alternate(taken);
        Ok(())
    }

    /// Reports that the queue pair has migrated (IBV_EVENT_PATH_MIG, rdma_notify(3)): the connection manager's messages take the new
    /// path. The previous path is forgotten with the next LAP.
    ///
    /// # Errors
    /// When the connection has no alternate path.
    pub fn migrated(&mut self, id: IdHandle) -> Result<(), CmError> {
        let command = Command::Notify;
        let found = self.get(id, command)?;
        let (link, alternate) = (found.link, found.alternate);
        let (Link::Conn(conn), Some(new)) = (link, alternate) else {
            let what = "the connection has no alternate path";
            return Err(CmError::Invalid { id, command, what });
        };
        let device = self.get(id, command)?.route.map_or(0, |route| route.device);
        self.cm.migrated(conn, &new.mad_path(device, new.av));
        let found = self.get_mut(id, command)?;
        let former = found.route.map(|route| former(&route, &new));
        if let Some(route) = &mut found.route {
            (route.av, route.sgid, route.slid) = (new.av, new.local, new.slid);
            (route.pkey, route.pkey_index) = (new.pkey, new.pkey_index);
            route.packet_lifetime = new.packet_lifetime;
        }
        found.alternate = former;
        Ok(())
    }

    /// Returns the attributes of an alternate path for an id's queue pair.
    pub(super) fn alternate(&self, id: IdHandle, path: &Path) -> Alternate {
        let delay = self.ids.get(&id).map_or(0, |found| found.peer_ack_delay);
        let timeout = Config::ack_timeout(delay, path.packet_lifetime.min(31));
        Alternate {
            av: path.av,
            pkey_index: path.pkey_index,
            timeout: self.qp_timeout(id, timeout),
        }
    }

    /// Handles a LAP: refuses a path that is impossible for this end, and passes others to the program.
    pub(super) fn alternate_asked(&mut self, id: IdHandle, lap: &Lap, sink: &mut impl Sink) {
        let Some(found) = self.ids.get(&id) else { return };
        let path = match found.options.fields.messages {
            true => self.path_of_lap(found, lap),
            false => Err(AprStatus::UNSUPPORTED),
        };
        let (path, negotiated) = match (path, found.negotiated) {
            (Ok(path), Some(negotiated)) => (path, negotiated),
            (path, _) => {
                let status = path.err().unwrap_or(AprStatus::UNSUPPORTED);
                if let Link::Conn(conn) = found.link {
                    self.cm.answer_alternate(conn, &Answer::refusal(status), sink);
                }
                return;
            }
        };
        let timeout = self.qp_timeout(id, lap.alternate.ack_timeout);
        let told = Alternate { av: path.av, pkey_index: path.pkey_index, timeout };
        if let Some(found) = self.ids.get_mut(&id) {
            found.asked_alternate = Some(path);
        }
        let negotiated = Negotiated { alternate: Some(told), reloads: true, ..negotiated };
        let private_data = lap.private_data.to_vec();
        let param = EventParam::Conn(ConnParam { private_data, ..ConnParam::default() });
        let body = EventBody::new(EventKind::AlternateRequest);
        self.emit(id, EventBody { param, negotiated: Some(negotiated), ..body }, sink);
    }

    /// Returns the path of a LAP, seen from this end.
    fn path_of_lap(&self, found: &Id, lap: &Lap) -> Result<Path, AprStatus> {
        let (device, route) =
            found.device.as_ref().zip(found.route).ok_or(AprStatus::UNSUPPORTED)?;
        let path = self.path_of_alternate(device, &lap.alternate, &route);
        let path = path.map_err(|wrong| match wrong {
            Wrong::Gid => AprStatus::INVALID_GID,
            Wrong::Lid => AprStatus::INVALID_LID,
        })?;
        let ends =
            |av: &AddressVector| (av.dgid, av.dlid, av.port_num, av.src_path_bits, av.sgid_index);
        if ends(&path.av) == ends(&route.av) { Err(AprStatus::IS_CURRENT) } else { Ok(path) }
    }

    /// Reports the outcome of this end's LAP: APR's status, or a negative errno.
    pub(super) fn alternate_answered(
        &mut self,
        id: IdHandle,
        apr: Result<&Apr, i32>,
        sink: &mut impl Sink,
    ) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        let status = apr.map_or_else(|errno| errno, |apr| i32::from(apr.status.0));
        let asked = found.asked_alternate.take();
        let taken = asked.filter(|_| status == 0);
        found.take_alternate(taken);
        let told = taken.map(|path| self.alternate(id, &path));
        let of_id = self.ids.get(&id).and_then(|found| found.negotiated);
        let negotiated = of_id.zip(told).map(|(negotiated, told)| Negotiated {
            alternate: Some(told),
            reloads: true,
            ..negotiated
        });
        let private_data = apr.map_or_else(|_| Default::default(), |apr| apr.private_data.to_vec());
        let param = EventParam::Conn(ConnParam { private_data, ..ConnParam::default() });
        let body = EventBody::failed(EventKind::AlternateResponse, status);
        self.emit(id, EventBody { param, negotiated, ..body }, sink);
    }
}

impl Id {
    /// Makes this the alternate path, if it was taken.
    fn take_alternate(&mut self, taken: Option<Path>) {
        self.alternate = taken.or(self.alternate);
    }
}

/// Returns the path that a connection has migrated from.
fn former(route: &Route, like: &Path) -> Path {
    Path {
        local: route.sgid,
        slid: route.slid,
        back_lid: route.slid,
        av: route.av,
        pkey: route.pkey,
        pkey_index: route.pkey_index,
        packet_lifetime: route.packet_lifetime,
        ..*like
    }
}
