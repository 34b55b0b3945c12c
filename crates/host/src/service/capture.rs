//! Copies of traffic for `rdmux capture`: one socket, to which every process and the service write.

use std::os::fd::{AsFd, OwnedFd};

use super::clients::ClientId;
use super::core::Core;
use super::requests::failure;
use crate::proto::{Failure, Notify, socket};

/// The requested size of the capture socket's buffer, in bytes.
const BUFFER: usize = 8 << 20;

/// The running capture, if any.
#[derive(Debug, Default)]
pub(super) struct Capture {
    reader: Option<ClientId>,
    writer: Option<OwnedFd>,
    pub(super) tap: rdmux_verbs::Capture,
}

impl Core {
    /// Starts a capture for a client. Returns the socket that it reads from.
    pub(super) fn start_capture(&mut self, client: ClientId) -> Result<OwnedFd, Failure> {
        if self.capture.reader.is_some() {
            return Err(Failure::new(libc::EBUSY, "another client captures already"));
        }
        let open = || -> std::io::Result<_> {
            let (theirs, ours) = socket::pair()?;
            // As much as the kernel allows. Frames of a larger burst are dropped and counted.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&ours, BUFFER)
                .or_else(|_| rustix::net::sockopt::set_socket_send_buffer_size(&ours, BUFFER));
            Ok((theirs, ours.try_clone()?, ours))
        };
        let (theirs, tap, ours) = open().map_err(|e| failure(&e))?;
        self.capture.reader = Some(client);
        self.capture.writer = Some(ours);
        self.capture.tap.set(Some(tap));
        for id in self.clients.ids() {
            self.tell_capture(id);
        }
        Ok(theirs)
    }

    /// Returns whether a capture is running.
    pub(super) fn is_captured(&self) -> bool {
        self.capture.writer.is_some()
    }

    /// Sends a process the descriptor for frames, if a capture is running.
    pub(super) fn tell_capture(&mut self, id: ClientId) {
        if !self.is_device(id) {
            return;
        }
        let writer = self.capture.writer.as_ref().map(|w| w.as_fd().try_clone_to_owned());
        if let Some(Ok(writer)) = writer {
            self.notify(id, &Notify::Capture, vec![writer]);
        }
    }

    /// Ends the capture if this client started it.
    pub(super) fn capture_client_gone(&mut self, client: ClientId) {
        if self.capture.reader == Some(client) {
            self.capture.tap.set(None);
            self.capture.reader = None;
            self.capture.writer = None;
            self.notify_all(&Notify::Capture);
        }
    }
}
