//! Receives clients' messages, and dispatches them by the connection's purpose.

use std::os::fd::AsFd;

use rdmux_link::Inbox;
use rdmux_runtime::socket::{self, MessageError};
use rdmux_subnet::umad::FileId;

use super::connection::{ConnectionId, Part};
use super::core::{Core, Ends};
use crate::proto::mad::FRAGMENT;

/// Messages of a connection that are served before others get their turn.
const TURN: usize = 32;
/// Datagrams of a program that one call receives.
const MADS: usize = 16;

/// The reason why a client that passes unexpected descriptors is disconnected.
const NOT_ASKED_FOR: Ends = Ends::Broke("unexpected descriptors");

/// Makes the buffers for datagrams.
pub(super) fn inbox() -> Inbox {
    Inbox::new(MADS, FRAGMENT)
}

impl Core {
    /// Serves a client's messages. Reading counts takes long, so a turn ends after that, and the next one of the same user is in the next
    /// round, unless the user is the owner or root.
    pub(super) fn serve(&mut self, id: ConnectionId) -> Result<(), Ends> {
        let Some(connection) = self.connections.get(id) else { return Ok(()) };
        let user = connection.uid;
        if self.held.contains(&user) {
            return Ok(());
        }
        self.has_read = false;
        let result = if let Part::Mads(file) = connection.part {
            self.serve_mads(id, file, TURN)
        } else {
            self.serve_turn(id)
        };
        if self.has_read && !is_unlimited(user) {
            self.held.insert(user);
        }
        result
    }

    fn serve_turn(&mut self, id: ConnectionId) -> Result<(), Ends> {
        let mut buf = std::mem::take(&mut self.buf);
        let result = (0..TURN).try_for_each(|_| {
            self.serve_one(id, &mut buf)?;
            if self.has_read { Err(Stop::Enough) } else { Ok(()) }
        });
        self.buf = buf;
        match result {
            Err(Stop::Enough) | Ok(()) => Ok(()),
            Err(Stop::Ends(ends)) => Err(ends),
        }
    }

    fn serve_one(&mut self, id: ConnectionId, buf: &mut [u8]) -> Result<(), Stop> {
        let Some(connection) = self.connections.get(id).filter(|c| c.may_ask()) else {
            return Err(Stop::Enough);
        };
        let user = connection.uid;
        if let Part::New = connection.part {
            self.refuse_if_full(id, user)?;
        }
        let Some(connection) = self.connections.get(id) else { return Err(Stop::Enough) };
        let mut fds = Vec::new();
        let keep = |fd| fds.push(self.closer.foreign(user, fd));
        let message = socket::try_recv_each(connection.socket.as_fd(), buf, keep);
        let message = message.map_err(|error| stop(&error))?;
        let takes_some = matches!(connection.part, Part::Attachment { .. });
        if !fds.is_empty() && (!takes_some || self.closer.is_full(user)) {
            return Err(NOT_ASKED_FOR.into());
        }
        match connection.part {
            Part::New => self.greet(id, message)?,
            Part::Attachment { .. } => self.attachment_request(id, message, fds)?,
            Part::Control(file) => {
                self.drain_mads(file)?;
                self.file_request(id, file, message)?;
            }
            Part::Mads(file) => self.file_message(file, message)?,
            Part::Admin => self.admin_request(id, message)?,
            Part::IsSm { .. } | Part::Tables | Part::Capture(_) => {
                return Err(Ends::Broke("an unexpected message").into());
            }
        }
        Ok(())
    }

    /// Serves at least this many of a program's datagrams, or all if they are fewer.
    fn serve_mads(&mut self, id: ConnectionId, file: FileId, most: usize) -> Result<(), Ends> {
        let mut inbox = std::mem::replace(&mut self.inbox, Inbox::new(0, 0));
        let result = self.serve_mads_in(&mut inbox, id, file, most);
        self.inbox = inbox;
        result
    }

    fn serve_mads_in(
        &mut self,
        inbox: &mut Inbox,
        id: ConnectionId,
        file: FileId,
        most: usize,
    ) -> Result<(), Ends> {
        let mut served = 0;
        while served < most {
            let Some(connection) = self.connections.get(id) else { break };
            let mut fds = Vec::new();
            let keep = |fd| fds.push(self.closer.foreign(connection.uid, fd));
            served += inbox.receive(&connection.socket, keep).map_err(|_| Ends::Closed)?;
            // Counts that are read for one of these datagrams include what was sent before any of them.
            self.is_fresh = false;
            if !fds.is_empty() {
                return Err(NOT_ASKED_FOR);
            }
            for message in inbox.messages() {
                match message {
                    Some([]) => return Err(Ends::Closed),
                    Some(message) => self.file_message(file, message)?,
                    None => return Err(Ends::Broke("a message that is too long")),
                }
            }
            // All of a long list are served if `most` says so, else the turn ends after counts were read.
            if !inbox.is_full() || self.has_read && most == TURN {
                break;
            }
        }
        Ok(())
    }

    /// Serves all datagrams that a program sent before its request, or before the end of its file.
    pub(super) fn drain_mads(&mut self, file: FileId) -> Result<(), Ends> {
        /// As many messages as the socket's buffer holds. The program cannot have sent more before.
        const ALL: usize = 1024;
        match self.files.mads_of(file) {
            Some(mads) => self.serve_mads(mads, file, ALL),
            None => Ok(()),
        }
    }
}

/// Returns whether a user is the fabric's owner or root.
fn is_unlimited(user: u32) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&user)
}

/// The reason why no more messages of a connection are served now.
#[derive(Debug)]
enum Stop {
    /// No more messages are available, or the client does not read its answers.
    Enough,
    /// The connection ends.
    Ends(Ends),
}

impl From<Ends> for Stop {
    fn from(ends: Ends) -> Self {
        Self::Ends(ends)
    }
}

/// Converts the reason why no message was received.
fn stop(error: &MessageError) -> Stop {
    match error {
        MessageError::WouldBlock => Stop::Enough,
        MessageError::Closed | MessageError::Io(_) => Ends::Closed.into(),
        MessageError::TooLong => Ends::Broke("a message that is too long").into(),
        MessageError::FdsCut | MessageError::Decode(_) => NOT_ASKED_FOR.into(),
    }
}
