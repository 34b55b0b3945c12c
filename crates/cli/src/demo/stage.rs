//! The setting of the demo's rows: this process, another one, and the link between them.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rdmux::{Context, DeviceChoice, DeviceKind, RemoteMr};
use rdmux_host::proto::Status;

use super::protocol::{Answer, Ask, Data, Kind};
use super::side::Side;
use super::xrc::Cast;
use rdmux_command::child::Child;
use rdmux_command::hosts::Hosts;

/// The hosts. This process is on the first.
pub(super) const HOSTS: [&str; 2] = ["demo-a", "demo-b"];

/// The link between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Two hosts: UDP port 4791.
    Udp,
    /// One host: shared memory.
    SameHost,
    /// Two hosts, iWARP: TCP.
    Tcp,
    /// Like `Tcp`, between hosts that request a CRC in each FPDU.
    TcpCrc,
}

impl Link {
    /// Returns the name in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::SameHost => "same host",
            Self::Tcp => "TCP",
            Self::TcpCrc => "TCP, CRC",
        }
    }

    /// Returns the kind of device that it uses.
    pub(super) fn device(self) -> DeviceKind {
        match self {
            Self::Udp | Self::SameHost => DeviceKind::Roce,
            Self::Tcp | Self::TcpCrc => DeviceKind::Iwarp,
        }
    }

    /// Returns the kind of device as a choice.
    pub(super) fn choice(self) -> DeviceChoice {
        DeviceChoice::Only(self.device())
    }

    /// Returns the index of the other process's host.
    pub(super) fn host(self) -> usize {
        usize::from(self != Self::SameHost)
    }
}

/// The outcome of a row.
pub(super) struct Done {
    /// The number of bytes transferred and compared.
    pub(super) bytes: u64,
    /// The duration of the operation.
    pub(super) time: Duration,
}

/// The two processes.
pub(super) struct Stage {
    pub(super) context: Context,
    pub(super) other: Child,
    pub(super) link: Link,
    /// The other process's address.
    pub(super) addr: IpAddr,
    /// This process's address.
    pub(super) own_addr: IpAddr,
    /// The processes of the rows on XRC.
    pub(super) xrc: Option<Cast>,
    connection: Option<(Kind, Connected)>,
    seed: u32,
    hosts: Rc<Hosts>,
}

/// A connection, and the memory of its other side.
pub(super) struct Connected {
    pub(super) side: Side,
    pub(super) remote: RemoteMr,
}

impl Stage {
    pub(super) fn new(
        context: Context,
        other: Child,
        link: Link,
        own_addr: IpAddr,
        addr: IpAddr,
        hosts: Rc<Hosts>,
    ) -> Self {
        let (xrc, connection) = (None, None);
        Self { context, other, link, addr, own_addr, xrc, connection, seed: 0, hosts }
    }

    /// Returns the state of the other process's host.
    pub(super) fn status(&self) -> Result<Status> {
        self.hosts.status(self.link.host())
    }

    /// Returns the other process's host.
    pub(super) fn host(&self) -> &'static str {
        HOSTS[self.link.host()]
    }

    /// Returns new data of this length.
    pub(super) fn data(&mut self, len: usize) -> Data {
        self.seed += 1;
        Data { len, seed: self.seed }
    }

    /// Sends a request that is answered by `Done`.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<()> {
        self.other.tell(ask)?;
        self.done()
    }

    /// Waits until a request is done.
    pub(super) fn done(&mut self) -> Result<()> {
        match self.other.hear()? {
            Answer::Done => Ok(()),
            other => bail!("the other process sent {other:?}, not Done"),
        }
    }

    /// Sends a request that listens. Returns its address.
    pub(super) fn listening(&mut self, ask: &Ask) -> Result<SocketAddr> {
        match self.other.ask(ask)? {
            Answer::Listening(at) => Ok(at),
            other => bail!("{ask:?} was answered by {other:?}"),
        }
    }

    /// Sends a request that is answered by memory, or waits for one.
    pub(super) fn memory(&mut self, ask: Option<&Ask>) -> Result<RemoteMr> {
        if let Some(ask) = ask {
            self.other.tell(ask)?;
        }
        match self.other.hear()? {
            Answer::Memory(memory) => Ok(memory.into()),
            other => bail!("the other process sent {other:?}, not Memory"),
        }
    }

    /// Connects with this kind of transport, unless there is such a connection already.
    pub(super) fn connect(&mut self, kind: Kind) -> Result<()> {
        if self.connection.as_ref().is_some_and(|(k, _)| *k == kind) {
            return Ok(());
        }
        self.hang_up()?;
        self.connect_with(kind, &[]).map(drop)
    }

    /// Opens a new connection. Returns the other side's private data.
    pub(super) fn connect_with(&mut self, kind: Kind, words: &[u8]) -> Result<Vec<u8>> {
        let at = self.addr;
        let to = self.listening(&Ask::Accept { at, kind })?;
        let (side, said) = Side::connect(&self.context, to, kind, words)?;
        let remote = self.memory(None)?;
        let same_host = side.qp.is_same_host();
        if same_host != (self.link == Link::SameHost) {
            bail!("the connection uses the wrong link: shared memory or not");
        }
        self.connection = Some((kind, Connected { side, remote }));
        Ok(said)
    }

    /// Returns the connection of [`connect`](Self::connect).
    pub(super) fn connection(&self) -> Result<&Connected> {
        Ok(&self.connection.as_ref().context("there is no connection")?.1)
    }

    /// Ends the connection, if there is one, and waits until both sides have noticed.
    pub(super) fn hang_up(&mut self) -> Result<()> {
        let Some((_, connected)) = self.connection.take() else { return Ok(()) };
        connected.side.id.disconnect()?;
        self.ask(&Ask::WaitDisconnected)
    }

    /// Drops a failed connection.
    pub(super) fn abandon(&mut self) {
        self.connection = None;
    }
}
