//! A connection in progress, for a caller that must not block.

use std::os::fd::{AsFd, BorrowedFd};

use rdmux_runtime::connect::{ConnectError, connect_nonblocking};
use serde::de::DeserializeOwned;

use super::link::{Link, Opened};
use crate::proto::Role;
use crate::{FabricDir, FabricError, FabricName};

/// The progress of a connection.
#[derive(Debug)]
pub enum Progress<T, P> {
    /// The fabric has answered.
    Done(T),
    /// The fabric has not answered yet. The caller must poll this again.
    Pending(P),
}

/// A connection whose greeting was sent. The descriptor is readable when the fabric has answered, or is gone. Nothing
/// here waits: the caller must handle timeouts.
#[derive(Debug)]
pub(super) struct Opening {
    link: Link,
}

impl Opening {
    /// Connects to a fabric that is up, and greets it; None if it is not up.
    ///
    /// # Errors
    /// [`FabricError::Unresponsive`] when it accepts no connection now, and those of the connection.
    pub(super) fn begin(dir: &FabricDir, role: Role) -> Result<Option<Self>, FabricError> {
        let socket = connect_nonblocking(dir).map_err(|e| match e {
            ConnectError::Busy(_) => FabricError::Unresponsive {
                fabric: dir.name().clone(),
                pid: dir.service_lock_holder(),
                why: "its backlog of connections is full".to_owned(),
            },
            ConnectError::Io(e) => {
                FabricError::io(format!("connect to {}", dir.socket().display()), e)
            }
        })?;
        let greeted = socket.map(|socket| Link::greet(dir.name(), socket, role));
        Ok(greeted.transpose()?.map(|link| Self { link }))
    }

    /// Returns the connection and the fabric's answer, with its descriptors, or `self` if no answer has arrived yet. `what` names the
    /// operation in the error.
    ///
    /// # Errors
    /// [`FabricError::Refused`], [`FabricError::Version`] and those of the connection.
    pub(super) fn poll<T: DeserializeOwned>(
        mut self,
        what: impl FnOnce() -> String,
    ) -> Result<Progress<Opened<T>, Self>, FabricError> {
        let mut fds = Vec::new();
        let Some(message) = self.link.try_receive_with(&mut fds)?.map(<[u8]>::to_vec) else {
            return Ok(Progress::Pending(self));
        };
        let value = self.link.welcomed(&message, what)?;
        Ok(Progress::Done((self.link, value, fds)))
    }

    /// Returns the name of the fabric.
    pub(super) fn fabric(&self) -> &FabricName {
        self.link.fabric()
    }
}

impl AsFd for Opening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
