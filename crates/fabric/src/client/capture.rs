//! Copies of the management datagrams of a port.

use std::os::fd::{AsFd, BorrowedFd};

use super::ConnectOptions;
use super::link::Link;
use crate::proto::{PortRef, Role};
use crate::{FabricError, FabricName};

/// All that a port sends and receives on QP0 and QP1, whoever sends or takes it: programs and the port's own agents.
#[derive(Debug)]
pub struct Capture(Link);

impl Capture {
    /// Begins to capture a port.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `ENODEV` when there is no such port, with `EPERM` for others than the fabric's owner, root and the owner
    /// of the host that has the port, and by a bridge for others than its owner and root; those of the connection.
    pub fn start(
        options: &ConnectOptions,
        fabric: &FabricName,
        port: &PortRef,
    ) -> Result<Self, FabricError> {
        let socket = options.connect(fabric)?;
        let what = || format!("capture {} port {}", port.node, port.port);
        let (link, ()) = Link::open(fabric, socket, Role::Capture(port.clone()), what)?;
        Ok(Self(link))
    }

    /// The next frame, if it is there: a [`FrameHeader`](rdmux_link::capture::FrameHeader) and an InfiniBand packet. The descriptor is readable when
    /// it is.
    ///
    /// # Errors
    /// [`FabricError::Gone`], also when the host whose owner captures here has given the port back; those of the connection.
    pub fn poll_frame(&mut self) -> Result<Option<&[u8]>, FabricError> {
        self.0.try_receive_bytes()
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
