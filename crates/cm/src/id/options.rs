//! The command set_option.

use rdmux_transport::attr::QpType;

use super::Manager;
use super::entry::{IdState, Link, Owns};
use crate::error::{CmError, Command};
use crate::fields::CmOption;
use crate::ib::state::State;
use crate::params::IdOption;
use crate::sink::IdHandle;

impl Manager {
    /// Sets an option (rdma_set_option(3)).
    ///
    /// # Errors
    /// When the id is past the state that allows it, or the option does not fit the transport.
    pub fn set_option(&mut self, id: IdHandle, option: IdOption) -> Result<(), CmError> {
        let command = Command::SetOption;
        self.take(id)?;
        let is_request = match self.get(id, command)?.link {
            Link::Conn(conn) => self.cm.state(conn) == Some(State::ReqRcvd),
            _ => false,
        };
        let found = self.get_mut(id, command)?;
        let state = found.state();
        let invalid = |what| Err(CmError::Invalid { id, command, what });
        let not_now = Err(CmError::State { id, command, state });
        match option {
            IdOption::Tos(tos) => found.options.tos = Some(tos),
            // As in Linux, an id that shares its address cannot revoke that, and a listener never shares.
            IdOption::ReuseAddr(reuse)
                if state != IdState::Idle && (!reuse || state == IdState::Listen) =>
            {
                return not_now;
            }
            IdOption::AfOnly(_) if !matches!(state, IdState::Idle | IdState::AddrBound) => {
                return not_now;
            }
            IdOption::ReuseAddr(reuse) => {
                found.options.reuse_addr = reuse;
                if let Owns::Port(ps, port) = found.owns {
                    self.port_table(ps).set_reuse(port, id, reuse);
                }
            }
            IdOption::AfOnly(only) => {
                found.options.af_only = Some(only);
                let is_ip = found.local.is_some_and(|local| local.socket().is_some());
                if let (Owns::Port(ps, port), true) = (found.owns, is_ip) {
                    self.port_table(ps).set_af_only(port, id, only);
                }
            }
            IdOption::AckTimeout(_) if !matches!(found.qp_type, QpType::Rc | QpType::XrcSend) => {
                return invalid("only RC and the sending end of XRC have an ACK timeout");
            }
            IdOption::PeerToPeer(_) if found.qp_type != QpType::Rc => {
                return invalid("only RC supports peer-to-peer mode");
            }
            IdOption::PeerToPeer(either) => found.options.peer_to_peer = Some(either),
            IdOption::Cm(CmOption::StartingPsn(_)) if state == IdState::Connect && !is_request => {
                return not_now;
            }
            IdOption::Cm(option) => {
                found.options.fields.set(option).or_else(invalid)?;
                if let Some(psn) = found.options.fields.starting_psn {
                    found.psn = psn;
                    if let Some(negotiated) = &mut found.negotiated {
                        negotiated.rq_psn = psn;
                    }
                }
            }
            IdOption::AckTimeout(32..) => return invalid("the ACK timeout code exceeds 31"),
            IdOption::AckTimeout(code) => {
                found.options.ack_timeout = Some(code);
                if let Some(negotiated) = &mut found.negotiated {
                    negotiated.timeout = rdmux_wire::AckTimeout::new(code);
                }
            }
        }
        Ok(())
    }
}
