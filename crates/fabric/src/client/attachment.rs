//! A host's attachment to a port of an adapter.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rdmux_wire::Guid;

use super::ConnectOptions;
use super::link::Link;
use super::opening::{Opening, Progress};
use crate::proto::{AttachmentRequest, Described, HostPort, PortUpdate, Role, Violation};
use crate::{FabricDir, FabricError, FabricName};

/// A port of an adapter that a host has attached. It is released when this is dropped, or the process ends.
#[derive(Debug)]
pub struct Attachment {
    link: Link,
    routes: Option<OwnedFd>,
}

impl Attachment {
    /// Attaches an adapter of a fabric, which is started if need be: the one that this host had before, else the one that
    /// has its name or its GUID, else the first free one, else a new one at a free port of a switch. `node_guid` is the
    /// GUID of the host's node, which a new adapter gets.
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

    /// Like [`open`](Self::open), for one of the ports of the host's adapter.
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

    /// Starts to attach a port of a fabric that is up, as [`open_port`](Self::open_port) would; None if it is not up. Neither this nor the
    /// attachment waits for the fabric.
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

    /// Returns the route table of the port, for [`rdmux_link::routes::RouteView::map`], which contains the destinations of packets with
    /// data. It is empty until [`set_endpoint`](Self::set_endpoint) was answered, and keeps its last state when the fabric is gone.
    /// Returns none if the fabric has no memory for it: such a host is managed, but has no data.
    pub fn routes(&self) -> Option<&OwnedFd> {
        self.routes.as_ref()
    }

    /// Reports to the fabric the loopback address where this host receives packets for the port, whether it receives them at all
    /// addresses of the machine, so that hosts of other machines may send them, and whether it receives groups by the machine's IP
    /// multicast, which is only possible if it receives packets at no other address. From the next update on, which is the answer, its
    /// route table is kept up to date, and other hosts' tables have routes to it. May be called again.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `EOPNOTSUPP` if the host has no table, and with `EINVAL` if the address is not a loopback address
    /// or the port is 0; [`FabricError::Gone`] and those of the connection.
    pub fn set_endpoint(
        &mut self,
        addr: SocketAddr,
        everywhere: bool,
        multicast: bool,
    ) -> Result<(), FabricError> {
        let refused = |why: &str, errno| FabricError::Refused {
            what: format!("receive packets at {addr}"),
            why: why.to_owned(),
            errno,
        };
        if self.routes.is_none() {
            let why = "the fabric provided no route table";
            return Err(refused(why, libc::EOPNOTSUPP));
        }
        if !addr.ip().is_loopback() || addr.port() == 0 {
            let why = "the address must be a loopback address with a port";
            return Err(refused(why, libc::EINVAL));
        }
        self.link.tell(&AttachmentRequest::Endpoint { addr, everywhere, multicast })
    }

    /// Returns the next change of the port, if any. The descriptor is readable when one is available.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn poll_update(&mut self) -> Result<Option<PortUpdate>, FabricError> {
        self.link.try_receive()
    }

    /// Requests the state of the port, and waits for the next update. That update has any event that happened meanwhile,
    /// and another update then follows. An attachment that was made by [`begin`](Self::begin) never waits: it
    /// [asks](Self::ask) and is polled.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn refresh(&mut self) -> Result<PortUpdate, FabricError> {
        self.link.tell(&AttachmentRequest::Refresh)?;
        self.link.receive()
    }

    /// Requests the state of the port. The answer arrives as an update.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn ask(&mut self) -> Result<(), FabricError> {
        self.link.tell(&AttachmentRequest::Refresh)
    }

    /// Registers the rows ([`rdmux_link::rows::Rows::create`]) in which a process of this host counts the packets that it sends through the
    /// port, by the route table's routes. The host chooses the number of the process. Its earlier rows are no longer read. Must be called
    /// before the process sends.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn count_in(&mut self, process: u16, rows: BorrowedFd<'_>) -> Result<(), FabricError> {
        self.link.tell_with(&AttachmentRequest::Rows { process }, &[rows])
    }

    /// Reports that a process is gone. Its counts are kept.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn process_gone(&mut self, process: u16) -> Result<(), FabricError> {
        self.link.tell(&AttachmentRequest::RowsGone { process })
    }

    /// Reports a packet with a key that does not match, after rows have counted it.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn violated(&mut self, violation: &Violation) -> Result<(), FabricError> {
        self.link.tell(&AttachmentRequest::Violation(*violation))
    }

    /// Changes the description of the node to at most 64 bytes of this.
    ///
    /// # Errors
    /// [`FabricError::Gone`] and those of the connection.
    pub fn describe(&mut self, description: &str) -> Result<(), FabricError> {
        self.link.tell(&AttachmentRequest::Describe(description.to_owned()))
    }

    /// Returns the name of its fabric.
    pub fn fabric(&self) -> &FabricName {
        self.link.fabric()
    }
}

impl Drop for Attachment {
    /// Releases the port, even if a forked child has the descriptor, too.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(self.link.as_fd(), rustix::net::Shutdown::Both);
    }
}

impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// An attachment in progress. The descriptor is readable when the fabric has answered.
#[derive(Debug)]
pub struct Attaching {
    opening: Opening,
    host: String,
}

impl Attaching {
    /// Returns the attachment, if the fabric has answered.
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
