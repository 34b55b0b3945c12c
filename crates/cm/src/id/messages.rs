//! The commands ask_for_time and set_private_data, and redirected requests.

use core::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::Gid;

use super::Manager;
use super::connect::check_len;
use super::entry::Link;
use super::route::service_of;
use crate::address::{Addr, IbAddr};
use crate::error::{CmError, Command};
use crate::fields::Courtesy;
use crate::ib::redirect::Redirected;
use crate::path::{MadPath, Path, PathQuery};
use crate::sink::{IdHandle, Sink};

/// The size of the private data of MRA.
const MRA_DATA: usize = 222;

/// The timeout of the path lookup for a redirected request.
const WAY_TIMEOUT: Duration = Duration::from_secs(2);

impl Manager {
    /// Asks the peer for time, by MRA, before a CONNECT_REQUEST, a CONNECT_RESPONSE or an ALTERNATE_REQUEST is answered. The peer
    /// waits for `service_timeout`, a code of 4.096 us * 2^code, plus the time of a packet. This MRA is sent again for each duplicate
    /// of its message.
    ///
    /// # Errors
    /// When there is no message to answer, the code exceeds 31, or there are more than 222 bytes of private data.
    pub fn ask_for_time(
        &mut self,
        id: IdHandle,
        service_timeout: u8,
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::AskForTime;
        self.take(id).map_err(|_| CmError::NoSuchId { id, command })?;
        check_len(id, command, private_data.len(), MRA_DATA)?;
        if service_timeout > 31 {
            let what = "the timeout code exceeds 31";
            return Err(CmError::Invalid { id, command, what });
        }
        let Link::Conn(conn) = self.get(id, command)?.link else {
            return Err(self.wrong_state(id, command));
        };
        let asked = self.cm.ask_for_time(conn, service_timeout, private_data, sink);
        asked.map_err(|_| self.wrong_state(id, command))
    }

    /// Sets the private data of a message that other calls send: RTU with `establish`, DREQ and DREP with `disconnect`.
    ///
    /// # Errors
    /// When they are too long: [`Courtesy::room`].
    pub fn set_private_data(
        &mut self,
        id: IdHandle,
        of: Courtesy,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let command = Command::SetPrivateData;
        self.take(id).map_err(|_| CmError::NoSuchId { id, command })?;
        check_len(id, command, private_data.len(), of.room())?;
        self.get_mut(id, command)?.courtesies.insert(of, private_data.to_vec());
        Ok(())
    }

    /// Looks up the path to the GID to which the message being processed redirects an id's request, from the same
    /// port.
    pub(super) fn path_wanted(
        &mut self,
        now: Time,
        id: IdHandle,
        (gid, came): (Gid, MadPath),
        sink: &mut impl Sink,
    ) {
        let Some(mad) = self.arrived.bytes() else { return };
        let Some(found) = self.ids.get_mut(&id) else { return };
        let Some((path, route)) = found.path.zip(found.route) else { return };
        found.path_query = found.path_query.wrapping_add(1);
        let query = PathQuery {
            attempt: found.path_query,
            device: route.device,
            src: route.src,
            dst: route.dst,
            service_id: service_of(found.ps, &route.dst),
            by_address: Path { av: AddressVector { dgid: gid, ..path.av }, ..path },
            timeout: WAY_TIMEOUT,
        };
        found.redirection = Some((came, mad));
        self.timers.set(&mut found.deadline, id, now.after(WAY_TIMEOUT));
        sink.query_path(id, query);
    }

    /// Handles the result of the path lookup. Without a path the redirection counts as a refusal.
    pub(super) fn way_found(
        &mut self,
        now: Time,
        id: IdHandle,
        path: Option<Path>,
        sink: &mut impl Sink,
    ) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        let Some((came, mad)) = found.redirection.take() else { return };
        let path = path.map(Path::normal);
        match found.link {
            Link::Conn(conn) => self.cm.way_of_request(conn, path),
            Link::Lookup(number) => self.cm.way_of_lookup(number, path),
            Link::None | Link::Stream(_) | Link::LookedUp(_) => return,
        }
        // The message was counted when it arrived.
        self.cm.counters.mads_received -= 1;
        self.handle_mad(now, &came, &mad, sink);
    }

    /// Handles the timeout of the path lookup.
    pub(super) fn no_way_found(&mut self, now: Time, id: IdHandle, sink: &mut impl Sink) {
        let redirection = self.ids.get(&id).and_then(|found| found.redirection.clone());
        self.cancel_path(id, sink);
        if let Some(found) = self.ids.get_mut(&id) {
            found.redirection = redirection;
        }
        self.way_found(now, id, None, sink);
    }

    /// Records that the request of an id was redirected: where addresses are GIDs, the peer has another address now.
    pub(super) fn request_moved(&mut self, id: IdHandle, moved: &Redirected) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        found.link = match found.link {
            Link::Lookup(_) => Link::Lookup(moved.number),
            _ => Link::Conn(moved.number),
        };
        let has_lids = found.device.as_ref().is_some_and(|device| device.has_lids);
        let to = &moved.to;
        if let Some(route) = &mut found.route {
            route.av.dgid = to.gid;
            if let Some(path) = &moved.along {
                (route.av, route.slid, route.mtu) = (path.av, path.slid, route.mtu.min(path.mtu));
            } else if has_lids {
                (route.av.dlid, route.av.sl) = (to.lid.0, to.sl);
                (route.av.traffic_class, route.av.flow_label) = (to.tclass, to.flow_label);
            }
            route.dst = match route.dst {
                Addr::Ip(addr) if !has_lids => {
                    Addr::Ip((route.av.dgid.ip().to_canonical(), addr.port()).into())
                }
                Addr::Ib(addr) => IbAddr { gid: to.gid, ..addr }.into(),
                Addr::Ip(_) => route.dst,
            };
            found.peer = Some(route.dst);
        }
        found.alternate = None;
        let av = found.route.map(|route| route.av);
        if let (Some(negotiated), Some(route)) = (&mut found.negotiated, &found.route) {
            (negotiated.av, negotiated.alternate) = (route.av, None);
            negotiated.path_mtu = negotiated.path_mtu.min(route.mtu);
        }
        if let (Some(path), Some(av)) = (&mut found.path, av) {
            *path = moved.along.unwrap_or(Path { av, ..*path });
        }
    }
}
