//! Opens a management interface with one agent, for a caller that must not block.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rdmux_subnet::umad::Registration;

use super::link::Link;
use super::mad_file::{MadFile, unexpected};
use super::opening::{Opening, Progress};
use crate::proto::{FileReply, FileRequest, PortRef, Reply, Role};
use crate::{FabricDir, FabricError};

/// A management interface being opened. The descriptor is readable when the fabric has answered, and changes with each
/// [`poll`](Self::poll).
#[derive(Debug)]
pub struct OpeningFile {
    dir: FabricDir,
    port: PortRef,
    registration: Registration,
    step: Step,
}

/// The outstanding request to the fabric.
#[derive(Debug)]
enum Step {
    File(Opening),
    Mads { control: Link, opening: Opening },
    Agent { control: Link, mads: OwnedFd },
}

impl MadFile {
    /// Starts to open the management interface of a port of a fabric that is up, with one agent; None if it is not up. Neither
    /// this nor the file waits for the fabric: a datagram that cannot be sent at once is refused
    /// ([`FabricError::Unresponsive`]).
    ///
    /// # Errors
    /// Those of the connection.
    pub fn begin(
        dir: &FabricDir,
        port: &PortRef,
        registration: Registration,
    ) -> Result<Option<OpeningFile>, FabricError> {
        let opening = Opening::begin(dir, Role::OpenFile(port.clone()))?;
        Ok(opening.map(|opening| {
            let (dir, port, step) = (dir.clone(), port.clone(), Step::File(opening));
            OpeningFile { dir, port, registration, step }
        }))
    }
}

impl OpeningFile {
    /// Returns the file and the number of its agent, once the fabric has answered all requests.
    ///
    /// # Errors
    /// As [`MadFile::open`] and [`MadFile::register`].
    pub fn poll(self) -> Result<Progress<(MadFile, u32), Self>, FabricError> {
        let Self { dir, port, registration, step } = self;
        let again = |step| {
            Ok(Progress::Pending(Self { dir: dir.clone(), port: port.clone(), registration, step }))
        };
        let what = || format!("open the management interface of {} port {}", port.node, port.port);
        match step {
            Step::File(opening) => match opening.poll(what)? {
                Progress::Pending(opening) => again(Step::File(opening)),
                Progress::Done((control, FileReply::Opened { file, key }, _)) => {
                    let opening = Opening::begin(&dir, Role::Mads { file, key })?;
                    let gone = || FabricError::Gone { fabric: dir.name().clone() };
                    again(Step::Mads { control, opening: opening.ok_or_else(gone)? })
                }
                Progress::Done((_, other, _)) => Err(unexpected(dir.name(), &other)),
            },
            Step::Mads { mut control, opening } => match opening.poll::<()>(what)? {
                Progress::Pending(opening) => again(Step::Mads { control, opening }),
                Progress::Done((mads, (), _)) => {
                    control.tell(&FileRequest::Register(registration))?;
                    again(Step::Agent { control, mads: mads.into_socket() })
                }
            },
            Step::Agent { mut control, mads } => match control.try_receive::<Reply<FileReply>>()? {
                None => again(Step::Agent { control, mads }),
                Some(Ok(FileReply::Agent(agent))) => {
                    let file = MadFile::new(dir.name().clone(), mads, Mutex::new(control));
                    Ok(Progress::Done((file, agent)))
                }
                Some(Ok(other)) => Err(unexpected(dir.name(), &other)),
                Some(Err(failure)) => Err(FabricError::Refused {
                    what: format!("register an agent of class {:#04x}", registration.class),
                    why: failure.why,
                    errno: failure.errno,
                }),
            },
        }
    }
}

impl AsFd for OpeningFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.step {
            Step::File(opening) | Step::Mads { opening, .. } => opening.as_fd(),
            Step::Agent { control, .. } => control.as_fd(),
        }
    }
}
