//! A connection to a fabric, after the greeting.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rdmux_link::spin_wait;
use rdmux_runtime::socket::{self, MAX_MESSAGE, MessageError};
use rustix::net::sockopt::{self, Timeout};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::proto::{Greeting, Reply, Role, VERSION};
use crate::{FabricError, FabricName};

/// A connection, the fabric's answer to the greeting, and the answer's descriptors.
pub(super) type Opened<T> = (Link, T, Vec<OwnedFd>);

/// A connection, with the buffers for its messages. The caller must ensure that only one thread at a time
/// uses it.
#[derive(Debug)]
pub(super) struct Link {
    fabric: FabricName,
    socket: OwnedFd,
    tx: Vec<u8>,
    rx: Vec<u8>,
}

impl Link {
    /// Greets the fabric behind a socket. `what` names the operation in the error.
    ///
    /// # Errors
    /// [`FabricError::Refused`], [`FabricError::Version`] and those of the connection.
    pub(super) fn open<T: DeserializeOwned>(
        fabric: &FabricName,
        socket: OwnedFd,
        role: Role,
        what: impl FnOnce() -> String,
    ) -> Result<(Self, T), FabricError> {
        let (link, value, _) = Self::open_with(fabric, socket, role, what)?;
        Ok((link, value))
    }

    /// Like [`open`](Self::open), with the descriptors of the answer.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_with<T: DeserializeOwned>(
        fabric: &FabricName,
        socket: OwnedFd,
        role: Role,
        what: impl FnOnce() -> String,
    ) -> Result<Opened<T>, FabricError> {
        let mut link = Self::greet(fabric, socket, role)?;
        let mut fds = Vec::new();
        let message = link.receive_with(&mut fds)?.to_vec();
        let value = link.welcomed(&message, what)?;
        Ok((link, value, fds))
    }

    /// Sends the greeting; [`welcomed`](Self::welcomed) parses the answer.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn greet(
        fabric: &FabricName,
        socket: OwnedFd,
        role: Role,
    ) -> Result<Self, FabricError> {
        let mut link =
            Self { fabric: fabric.clone(), socket, tx: Vec::new(), rx: vec![0; MAX_MESSAGE] };
        link.tell(&Greeting::new(role))?;
        Ok(link)
    }

    /// Parses the answer to the greeting.
    ///
    /// # Errors
    /// [`FabricError::Refused`], [`FabricError::Version`], [`FabricError::Protocol`].
    pub(super) fn welcomed<T: DeserializeOwned>(
        &self,
        message: &[u8],
        what: impl FnOnce() -> String,
    ) -> Result<T, FabricError> {
        let (theirs, rest) = socket::decode_first::<u32>(message).map_err(|e| self.broken(&e))?;
        if theirs != VERSION {
            let fabric = self.fabric.clone();
            return Err(FabricError::Version { fabric, ours: VERSION, theirs });
        }
        let reply: Reply<T> = socket::decode(rest).map_err(|e| self.broken(&e))?;
        refused(reply, what)
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// [`FabricError::Refused`] and those of the connection.
    pub(super) fn call<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        what: impl FnOnce() -> String,
    ) -> Result<T, FabricError> {
        self.tell(request)?;
        refused(self.receive()?, what)
    }

    /// Sends a message that has no answer.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn tell(&mut self, request: &impl Serialize) -> Result<(), FabricError> {
        self.tell_with(request, &[])
    }

    /// Sends like [`tell`](Self::tell), with descriptors.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn tell_with(
        &mut self,
        request: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FabricError> {
        socket::send(self.socket.as_fd(), request, fds, &mut self.tx).map_err(|e| self.broken(&e))
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, FabricError> {
        let decoded = self.receive_bytes().map(socket::decode)?;
        decoded.map_err(|e| self.broken(&e))
    }

    /// Waits for the bytes of the next message.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn receive_bytes(&mut self) -> Result<&[u8], FabricError> {
        self.receive_with(&mut Vec::new())
    }

    fn receive_with(&mut self, fds: &mut Vec<OwnedFd>) -> Result<&[u8], FabricError> {
        spin_wait::look(|| socket::is_readable(self.socket.as_fd()));
        match socket::recv_bytes(self.socket.as_fd(), &mut self.rx, fds) {
            Ok(message) => {
                let len = message.len();
                Ok(&self.rx[..len])
            }
            Err(e) => Err(broken(&self.fabric, &self.socket, &e)),
        }
    }

    /// Returns the next message, if any.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn try_receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FabricError> {
        let decoded = self.try_receive_bytes()?.map(socket::decode).transpose();
        decoded.map_err(|e| self.broken(&e))
    }

    /// Returns the bytes of the next message, if any.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn try_receive_bytes(&mut self) -> Result<Option<&[u8]>, FabricError> {
        self.try_receive_with(&mut Vec::new())
    }

    /// Like [`try_receive_bytes`](Self::try_receive_bytes), with the message's descriptors.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn try_receive_with(
        &mut self,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Option<&[u8]>, FabricError> {
        match socket::try_recv_bytes(self.socket.as_fd(), &mut self.rx, fds) {
            Ok(message) => {
                let len = message.len();
                Ok(Some(&self.rx[..len]))
            }
            Err(MessageError::WouldBlock) => Ok(None),
            Err(e) => Err(broken(&self.fabric, &self.socket, &e)),
        }
    }

    /// Returns the name of the fabric.
    pub(super) fn fabric(&self) -> &FabricName {
        &self.fabric
    }

    /// Returns the socket alone.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Ends the connection: after any of these errors, requests and replies can no longer be matched.
    pub(super) fn broken(&self, error: &MessageError) -> FabricError {
        broken(&self.fabric, &self.socket, error)
    }
}

/// Converts an error of the connection.
pub(super) fn broken(fabric: &FabricName, socket: &OwnedFd, error: &MessageError) -> FabricError {
    let fabric = fabric.clone();
    match error {
        MessageError::Closed | MessageError::Io(_) => FabricError::Gone { fabric },
        // The socket's timeout.
        MessageError::WouldBlock => {
            let timeout = sockopt::socket_timeout(socket, Timeout::Recv).ok().flatten();
            FabricError::Unresponsive {
                fabric,
                pid: rdmux_link::peer_credentials(socket).ok().and_then(|peer| peer.pid),
                why: format!("no reply for {:?}", timeout.unwrap_or_default()),
            }
        }
        other => FabricError::Protocol { fabric, why: other.to_string() },
    }
}

fn refused<T>(reply: Reply<T>, what: impl FnOnce() -> String) -> Result<T, FabricError> {
    reply.map_err(|failure| FabricError::Refused {
        what: what(),
        why: failure.why,
        errno: failure.errno,
    })
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
