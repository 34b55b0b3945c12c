//! A port's IsSM bit, which says that a manager runs there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::ConnectOptions;
use super::link::Link;
use crate::proto::{PortRef, Role};
use crate::{FabricError, FabricName};

/// The bit is set as long as this lives, and not longer than the process.
#[derive(Debug)]
pub struct IsSm(OwnedFd);

impl IsSm {
    /// Sets a port's bit. If another process has set it, this waits for it to let go, or does not.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `EAGAIN` when another process has set it and `wait` is not given, with `ENODEV` when
    /// there is no such port; those of the connection.
    pub fn set(
        options: &ConnectOptions,
        fabric: &FabricName,
        port: &PortRef,
        wait: bool,
    ) -> Result<Self, FabricError> {
        let socket = options.connect(fabric)?;
        if wait {
            let forever = rustix::net::sockopt::set_socket_timeout(
                &socket,
                rustix::net::sockopt::Timeout::Recv,
                None,
            );
            forever.map_err(|e| FabricError::io("use a socket", e))?;
        }
        let role = Role::IsSm { port: port.clone(), wait };
        let what = || format!("set IsSM at {} port {}", port.node, port.port);
        let (link, ()) = Link::open(fabric, socket, role, what)?;
        Ok(Self(link.into_socket()))
    }
}

impl AsFd for IsSm {
    /// Becomes readable when the fabric is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
