//! A port's IsSM bit, which is set while a subnet manager runs there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::ConnectOptions;
use super::link::Link;
use super::opening::{Opening, Progress};
use crate::proto::{PortRef, Role};
use crate::{FabricDir, FabricError, FabricName};

/// The bit, which is set until this is dropped, or the process ends.
#[derive(Debug)]
pub struct IsSm(OwnedFd);

impl IsSm {
    /// Sets a port's bit. If another process has set it and `wait` is true, waits until that process clears it.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `EAGAIN` when another process has set it and `wait` is false, with `ENODEV` when
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
        let (link, ()) = Link::open(fabric, socket, role, || to_set(port))?;
        Ok(Self(link.into_socket()))
    }

    /// Starts to set a port's bit on a fabric that is up; None if it is not up. The fabric answers when no other process
    /// has set it. Nothing here waits for that.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn begin(dir: &FabricDir, port: &PortRef) -> Result<Option<SettingIsSm>, FabricError> {
        let opening = Opening::begin(dir, Role::IsSm { port: port.clone(), wait: true })?;
        Ok(opening.map(|opening| SettingIsSm { opening, port: port.clone() }))
    }
}

impl Drop for IsSm {
    /// Clears the bit, even if a forked child has the descriptor, too.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

impl AsFd for IsSm {
    /// Returns the descriptor that becomes readable when the fabric is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A bit that is being set. The descriptor is readable when the fabric has answered.
#[derive(Debug)]
pub struct SettingIsSm {
    opening: Opening,
    port: PortRef,
}

impl SettingIsSm {
    /// Returns the bit, if the fabric has answered.
    ///
    /// # Errors
    /// As [`IsSm::set`].
    pub fn poll(self) -> Result<Progress<IsSm, Self>, FabricError> {
        let Self { opening, port } = self;
        Ok(match opening.poll(|| to_set(&port))? {
            Progress::Done((link, (), _)) => Progress::Done(IsSm(link.into_socket())),
            Progress::Pending(opening) => Progress::Pending(Self { opening, port }),
        })
    }
}

impl AsFd for SettingIsSm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opening.as_fd()
    }
}

fn to_set(port: &PortRef) -> String {
    format!("set IsSM at {} port {}", port.node, port.port)
}
