//! The command reject: refusals by a program, with all fields of REJ and SIDR_REP.

use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_wire::cm::{RejReason, SidrStatus};

use super::Manager;
use super::connect::{SIDR_REP_DATA, check_len};
use super::entry::Link;
use crate::error::{CmError, Command};
use crate::fields::Refusal;
use crate::ib::sidr::SidrAnswer;
use crate::sink::{IdHandle, Sink};

/// The size of the private data of REJ.
const REJ_DATA: usize = 148;

impl Manager {
    /// Refuses a request, or revokes an accept or a connect (rdma_reject(3)). `reason` is REJ's, usually 28
    /// (consumer); for UD the status is always 2 (rejected).
    ///
    /// # Errors
    /// When there is nothing to refuse, or the private data are too long.
    pub fn reject(
        &mut self,
        now: Time,
        id: IdHandle,
        reason: u16,
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let (info, private_data) = (Vec::new(), private_data.to_vec());
        let of_lookup = u16::from(SidrStatus::REJECT.0);
        let is_lookup = matches!(self.get(id, Command::Reject)?.link, Link::LookedUp(_));
        let reason = if is_lookup { of_lookup } else { reason };
        self.reject_with(now, id, &Refusal { reason, info, private_data }, sink)
    }

    /// Refuses as [`reject`](Self::reject) does, for any reason and with additional information. For a lookup the reason is SIDR's status,
    /// 1 to 255. A refusal with reason 24 or 25, or with status 4, redirects ([`Redirect`](crate::Redirect)).
    ///
    /// # Errors
    /// When there is nothing to refuse, something is too long, or the reason is invalid for a lookup. iWARP streams have private
    /// data only.
    pub fn reject_with(
        &mut self,
        now: Time,
        id: IdHandle,
        refusal: &Refusal,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::Reject;
        self.take(id).map_err(|_| CmError::NoSuchId { id, command })?;
        let Refusal { reason, info, private_data } = refusal;
        let len = private_data.len();
        if info.len() > Refusal::INFO {
            let what = "the additional information exceeds 72 bytes";
            return Err(CmError::Invalid { id, command, what });
        }
        match self.get(id, command)?.link {
            Link::Conn(conn) => {
                check_len(id, command, len, REJ_DATA)?;
                let reason = RejReason(*reason);
                let rejected = self.cm.reject(now, conn, reason, info, private_data, sink);
                rejected.map_err(|_| self.wrong_state(id, command))?;
                self.cm.release(now, conn, sink);
            }
            Link::Stream(stream) => self.reject_stream(id, stream, private_data, sink)?,
            Link::LookedUp(key) => {
                check_len(id, command, len, SIDR_REP_DATA)?;
                let Some(status) = u8::try_from(*reason).ok().filter(|&status| status > 0) else {
                    let what = "a SIDR rejection needs a status from 1 to 255";
                    return Err(CmError::Invalid { id, command, what });
                };
                let answer = SidrAnswer::refusal(SidrStatus(status));
                self.cm.sidr_reply(now, key, &SidrAnswer { info, private_data, ..answer }, sink);
            }
            Link::None | Link::Lookup(_) => return Err(self.wrong_state(id, command)),
        }
        self.get_mut(id, command)?.link = Link::None;
        Ok(())
    }
}
