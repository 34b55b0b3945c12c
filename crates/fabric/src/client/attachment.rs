//! A host's hold on an adapter.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rdmux_wire::Guid;

use super::ConnectOptions;
use super::link::Link;
use super::opening::{Opening, Progress};
use crate::proto::{AttachmentRequest, Described, HostPort, PortUpdate, Role, Violation};
use crate::{FabricDir, FabricError, FabricName};

/// A port of an adapter that a host has. It is the host's as long as this lives, and not longer than the process.
#[derive(Debug)]
pub struct Attachment {
    link: Link,
    routes: Option<OwnedFd>,
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
        Self::open_port(options, fabric, host, node_guid, &HostPort::only())
    }

    /// As [`open`](Self::open), for one of the ports of the host's adapter.
    ///
    /// # Errors
    /// The same.
    pub fn open_port(
        options: &ConnectOptions,
        fabric: &FabricName,
        host: &str,
        node_guid: Guid,
        port: &HostPort,
    ) -> Result<(Self, Described), FabricError> {
        options.greet(fabric, |socket| {
            let port = port.clone();
            let role = Role::Attach { host: host.to_owned(), node_guid, port };
            let what = || to_attach(host, fabric);
            let (link, described, fds) = Link::open_with(fabric, socket, role, what)?;
            Ok((Self::new(link, fds), described))
        })
    }

    /// Begins to take a port of an adapter of a fabric that is up, as [`open_port`](Self::open_port) would; None if it is not up. Neither this
    /// nor the attachment waits for the fabric.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn begin(
        dir: &FabricDir,
        host: &str,
        node_guid: Guid,
        port: &HostPort,
    ) -> Result<Option<Attaching>, FabricError> {
        let port = port.clone();
        let role = Role::Attach { host: host.to_owned(), node_guid, port };
        let opening = Opening::begin(dir, role)?;
        Ok(opening.map(|opening| Attaching { opening, host: host.to_owned() }))
    }

    fn new(link: Link, fds: Vec<OwnedFd>) -> Self {
        Self { link, routes: fds.into_iter().next() }
    }

    /// The route table of the port, for [`rdmux_link::routes::RouteView::map`]: where packets with data go. It is empty until
    /// [`set_endpoint`](Self::set_endpoint) has been answered, and stays as it was last when the fabric is gone. None where the fabric has no memory for it:
    /// such a host is managed, but has no data.
    pub fn routes(&self) -> Option<&OwnedFd> {
        self.routes.as_ref()
    }

    /// Says where this host takes packets for the port, at a loopback address, and whether it does at all addresses of the machine, so that hosts of
    /// other machines may send them; and whether it hears groups by the machine's IP multicast, which only who takes packets at no other address can. From the next update on, which answers this, its route table is kept, and
    /// the tables of others have ways to it. It may be said again.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `EOPNOTSUPP` where there is no table, and with `EINVAL` for what is no loopback address or for port 0;
    /// [`FabricError::Gone`] and those of the connection.
    pub fn set_endpoint(
        &mut self,
        addr: SocketAddr,
        everywhere: bool,
        multicast: bool,
    ) -> Result<(), FabricError> {
        let refused = |why: &str, errno| FabricError::Refused {
            what: format!("take packets at {addr}"),
            why: why.to_owned(),
            errno,
        };
        if self.routes.is_none() {
            let why = "the fabric has given no route table";
            return Err(refused(why, libc::EOPNOTSUPP));
        }
        if !addr.ip().is_loopback() || addr.port() == 0 {
            let why = "data goes to a loopback address and a port of this machine";
            return Err(refused(why, libc::EINVAL));
        }
        self.link.tell(&AttachmentRequest::Endpoint { addr, everywhere, multicast })
    }

    /// The next change of the port, if there is one. The descriptor is readable when there is.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn poll_update(&mut self) -> Result<Option<PortUpdate>, FabricError> {
        self.link.try_receive()
    }

    /// Asks how the port is, and waits for the next update. If something happened meanwhile, it is in there; then another
    /// update follows. One that was made by [`begin`](Self::begin) never waits: it [asks](Self::ask) and is polled.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn refresh(&mut self) -> Result<PortUpdate, FabricError> {
        self.link.tell(&AttachmentRequest::Refresh)?;
        self.link.receive()
    }

    /// Asks how the port is. The answer comes with the updates.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn ask(&mut self) -> Result<(), FabricError> {
        self.link.tell(&AttachmentRequest::Refresh)
    }

    /// Tells that a process of this host counts in these rows what it sends by port 1 ([`rdmux_link::rows::Rows::create`]), by the ways of the route
    /// table. The process has a number of the host's; rows that it had before count no more. Tell this before the process sends.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn count_in(&mut self, process: u16, rows: BorrowedFd<'_>) -> Result<(), FabricError> {
        self.link.tell_with(&AttachmentRequest::Rows { process }, &[rows])
    }

    /// Tells that a process is gone. What it has counted stays.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn process_gone(&mut self, process: u16) -> Result<(), FabricError> {
        self.link.tell(&AttachmentRequest::RowsGone { process })
    }

    /// Tells of a packet with a key that does not fit, after rows have counted it.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn violated(&mut self, violation: &Violation) -> Result<(), FabricError> {
        self.link.tell(&AttachmentRequest::Violation(*violation))
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

impl Drop for Attachment {
    /// A forked child may have the descriptor, too: the adapter is given back all the same.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(self.link.as_fd(), rustix::net::Shutdown::Both);
    }
}

impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// An attachment that is being made. The descriptor is readable when the fabric has answered.
#[derive(Debug)]
pub struct Attaching {
    opening: Opening,
    host: String,
}

impl Attaching {
    /// The attachment, if the fabric has answered.
    ///
    /// # Errors
    /// As [`Attachment::open`].
    pub fn poll(self) -> Result<Progress<(Attachment, Described), Self>, FabricError> {
        let Self { opening, host } = self;
        let fabric = opening.fabric().clone();
        Ok(match opening.poll(|| to_attach(&host, &fabric))? {
            Progress::Done((link, described, fds)) => {
                Progress::Done((Attachment::new(link, fds), described))
            }
            Progress::Pending(opening) => Progress::Pending(Self { opening, host }),
        })
    }
}

impl AsFd for Attaching {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opening.as_fd()
    }
}

fn to_attach(host: &str, fabric: &FabricName) -> String {
    format!("attach host \"{host}\" to fabric \"{fabric}\"")
}
