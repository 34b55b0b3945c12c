//! ask_for_time, set_private_data, and requests that go elsewhere.

use rdmux_wire::Gid;

use super::Manager;
use super::connect::check_len;
use super::entry::Link;
use crate::address::{Addr, IbAddr};
use crate::error::{CmError, Command};
use crate::fields::Courtesy;
use crate::ib::redirect::Redirected;
use crate::sink::{IdHandle, Sink};

/// Private data of MRA.
const MRA_DATA: usize = 222;

impl Manager {
    /// Asks the peer for time, by MRA, before a CONNECT_REQUEST, a CONNECT_RESPONSE or an ALTERNATE_REQUEST is answered. The peer
    /// waits for `service_timeout`, a code of 4.096 us * 2^code, and for as long as a packet takes. When its message comes
    /// again this MRA is sent again.
    ///
    /// # Errors
    /// When there is nothing to answer, the code exceeds 31, or there are more than 222 bytes of private data.
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

    /// The request of an id was sent elsewhere: where addresses are GIDs, the peer has another address now.
    pub(super) fn request_moved(&mut self, id: IdHandle, moved: &Redirected) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        found.link = match found.link {
            Link::Lookup(_) => Link::Lookup(moved.number),
            _ => Link::Conn(moved.number),
        };
        let has_lids = found.device.as_ref().is_some_and(|device| device.has_lids);
        let to = &moved.to;
        let gid_of = |was: Gid| if to.gid.is_zero() { was } else { to.gid };
        if let Some(route) = &mut found.route {
            route.av.dgid = gid_of(route.av.dgid);
            if has_lids {
                (route.av.dlid, route.av.sl) = (to.lid.0, to.sl);
                (route.av.traffic_class, route.av.flow_label) = (to.tclass, to.flow_label);
            }
            route.dst = match route.dst {
                Addr::Ip(addr) if !has_lids => {
                    Addr::Ip((route.av.dgid.ip().to_canonical(), addr.port()).into())
                }
                Addr::Ib(addr) => IbAddr { gid: gid_of(addr.gid), ..addr }.into(),
                Addr::Ip(_) => route.dst,
            };
            found.peer = Some(route.dst);
        }
        found.alternate = None;
        let av = found.route.map(|route| route.av);
        if let (Some(negotiated), Some(av)) = (&mut found.negotiated, av) {
            (negotiated.av, negotiated.alternate) = (av, None);
        }
        if let (Some(path), Some(av)) = (&mut found.path, av) {
            path.av = av;
        }
    }
}
