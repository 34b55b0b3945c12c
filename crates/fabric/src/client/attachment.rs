//! A host's hold on an adapter.

use std::os::fd::{AsFd, BorrowedFd};

use rdmux_wire::Guid;

use super::ConnectOptions;
use super::link::Link;
use crate::proto::{AttachmentRequest, Described, PortUpdate, Role};
use crate::{FabricError, FabricName};

/// An adapter that a host has. It is the host's as long as this lives, and not longer than the process.
#[derive(Debug)]
pub struct Attachment {
    link: Link,
}

impl Attachment {
    /// Takes an adapter of a fabric, which is started if need be: the one that this host had before, else the one that has
    /// its name or its GUID, else the first free one, else a new one at a free port of a switch. `node_guid` is the GUID of
    /// the host's node, which a new adapter gets.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `EEXIST` when another host with this GUID is attached, with `ENODEV` when nothing is
    /// free; those of starting and of the connection.
    pub fn open(
        options: &ConnectOptions,
        fabric: &FabricName,
        host: &str,
        node_guid: Guid,
    ) -> Result<(Self, Described), FabricError> {
        options.greet(fabric, |socket| {
            let role = Role::Attach { host: host.to_owned(), node_guid };
            let what = || format!("attach host \"{host}\" to fabric \"{fabric}\"");
            let (link, described) = Link::open(fabric, socket, role, what)?;
            Ok((Self { link }, described))
        })
    }

    /// The next change of the port, if there is one. The descriptor is readable when there is.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn poll_update(&mut self) -> Result<Option<PortUpdate>, FabricError> {
        self.link.try_receive()
    }

    /// Asks how the port is, and waits for the next update. If something happened meanwhile, it is in there; then another
    /// update follows.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn refresh(&mut self) -> Result<PortUpdate, FabricError> {
        self.link.tell(&AttachmentRequest::Refresh)?;
        self.link.receive()
    }

    /// Changes the description of the node, at most 64 bytes of it.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn describe(&mut self, description: &str) -> Result<(), FabricError> {
        self.link.tell(&AttachmentRequest::Describe(description.to_owned()))
    }

    /// Which fabric it is on.
    pub fn fabric(&self) -> &FabricName {
        self.link.fabric()
    }
}

impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
