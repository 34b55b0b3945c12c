//! A connection that is being made, for a caller that may not wait.

use std::os::fd::{AsFd, BorrowedFd};

use rdmux_runtime::connect::{ConnectError, connect_nonblocking};
use serde::de::DeserializeOwned;

use super::link::{Link, Opened};
use crate::proto::Role;
use crate::{FabricDir, FabricError, FabricName};

/// What has become of a connection that is being made.
#[derive(Debug)]
pub enum Progress<T, P> {
    /// The fabric has answered.
    Done(T),
    /// It has not yet: this is to be asked again.
    Pending(P),
}

/// The greeting is on its way, and the descriptor is readable when the fabric has answered, or is gone. Nothing here
/// waits: how long the fabric may take is for the caller to say.
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
                why: "too many connections wait for it".to_owned(),
            },
            ConnectError::Io(e) => {
                FabricError::io(format!("connect to {}", dir.socket().display()), e)
            }
        })?;
        let greeted = socket.map(|socket| Link::greet(dir.name(), socket, role));
        Ok(greeted.transpose()?.map(|link| Self { link }))
    }

    /// The connection and what the fabric answered, with descriptors if there are any, or this again if it has not. `what` is for the error: what was tried.
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

    /// Which fabric this leads to.
    pub(super) fn fabric(&self) -> &FabricName {
        self.link.fabric()
    }
}

impl AsFd for Opening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
