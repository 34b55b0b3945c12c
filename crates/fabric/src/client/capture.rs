//! Captures the management datagrams of a port.

use std::os::fd::{AsFd, BorrowedFd};

use super::ConnectOptions;
use super::link::Link;
use crate::proto::{PortRef, Role};
use crate::{FabricError, FabricName};

/// A capture of everything that a port sends and receives on QP0 and QP1, whether by programs or by the port's own
/// agents.
#[derive(Debug)]
pub struct Capture(Link);

impl Capture {
    /// Starts to capture a port.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `ENODEV` when there is no such port, with `EPERM` unless the caller is the fabric's owner, root or the
    /// owner of the host that has the port (through a bridge, only the bridge's owner and root may); those of the connection.
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

    /// Returns the next frame, if any: a [`FrameHeader`](rdmux_link::capture::FrameHeader) and an InfiniBand packet. The
    /// descriptor is readable when one is available.
    ///
    /// # Errors
    /// [`FabricError::Gone`], also when the host whose owner captures here has released the port; those of the connection.
    pub fn poll_frame(&mut self) -> Result<Option<&[u8]>, FabricError> {
        self.0.try_receive_bytes()
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
