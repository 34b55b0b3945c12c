//! Where a row of the demo plays: this process, another one, and the link between them.

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

/// The hosts: this process is on the first.
pub(super) const HOSTS: [&str; 2] = ["demo-a", "demo-b"];

/// What lies between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Two hosts: UDP port 4791.
    Udp,
    /// One host: shared memory.
    SameHost,
    /// Two hosts, iWARP: TCP.
    Tcp,
    /// The same, between hosts that want a CRC in each frame.
    TcpCrc,
}

impl Link {
    /// The name in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::SameHost => "same host",
            Self::Tcp => "TCP",
            Self::TcpCrc => "TCP, CRC",
        }
    }

    /// Which of the hosts' devices it belongs to.
    pub(super) fn device(self) -> DeviceKind {
        match self {
            Self::Udp | Self::SameHost => DeviceKind::Roce,
            Self::Tcp | Self::TcpCrc => DeviceKind::Iwarp,
        }
    }

    /// The same, as a choice.
    pub(super) fn choice(self) -> DeviceChoice {
        DeviceChoice::Only(self.device())
    }

    /// Which of the hosts the other process is on.
    pub(super) fn host(self) -> usize {
        usize::from(self != Self::SameHost)
    }
}

/// What a row did.
pub(super) struct Done {
    /// Bytes moved and compared.
    pub(super) bytes: u64,
    /// How long the operation took.
    pub(super) time: Duration,
}

/// The two processes.
pub(super) struct Stage {
    pub(super) context: Context,
    pub(super) other: Child,
    pub(super) link: Link,
    /// The other's address.
    pub(super) addr: IpAddr,
    /// Our own.
    pub(super) own_addr: IpAddr,
    /// Who plays in the rows on XRC.
    pub(super) xrc: Option<Cast>,
    connection: Option<(Kind, Connected)>,
    seed: u32,
    hosts: Rc<Hosts>,
}

/// A connection, and what is known of its other side.
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

    /// The state of the other's host.
    pub(super) fn status(&self) -> Result<Status> {
        self.hosts.status(self.link.host())
    }

    /// The other's host.
    pub(super) fn host(&self) -> &'static str {
        HOSTS[self.link.host()]
    }

    /// New data of this length.
    pub(super) fn data(&mut self, len: usize) -> Data {
        self.seed += 1;
        Data { len, seed: self.seed }
    }

    /// Asks for what is simply done.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<()> {
        self.other.tell(ask)?;
        self.done()
    }

    /// Waits until what was asked is done.
    pub(super) fn done(&mut self) -> Result<()> {
        match self.other.hear()? {
            Answer::Done => Ok(()),
            other => bail!("{other:?} came instead of an end"),
        }
    }

    /// Asks for something that listens.
    pub(super) fn listening(&mut self, ask: &Ask) -> Result<SocketAddr> {
        match self.other.ask(ask)? {
            Answer::Listening(at) => Ok(at),
            other => bail!("{ask:?} was answered by {other:?}"),
        }
    }

    /// Asks for memory, or waits for it.
    pub(super) fn memory(&mut self, ask: Option<&Ask>) -> Result<RemoteMr> {
        if let Some(ask) = ask {
            self.other.tell(ask)?;
        }
        match self.other.hear()? {
            Answer::Memory(memory) => Ok(memory.into()),
            other => bail!("{other:?} came instead of memory"),
        }
    }

    /// A connection of this kind: the one that there is, or a new one.
    pub(super) fn connect(&mut self, kind: Kind) -> Result<()> {
        if self.connection.as_ref().is_some_and(|(k, _)| *k == kind) {
            return Ok(());
        }
        self.hang_up()?;
        self.connect_with(kind, &[]).map(drop)
    }

    /// A new connection; what the other side said.
    pub(super) fn connect_with(&mut self, kind: Kind, words: &[u8]) -> Result<Vec<u8>> {
        let at = self.addr;
        let to = self.listening(&Ask::Accept { at, kind })?;
        let (side, said) = Side::connect(&self.context, to, kind, words)?;
        let remote = self.memory(None)?;
        let same_host = side.qp.is_same_host();
        if same_host != (self.link == Link::SameHost) {
            bail!("the connection takes the wrong link");
        }
        self.connection = Some((kind, Connected { side, remote }));
        Ok(said)
    }

    /// The connection that [`connect`](Self::connect) made.
    pub(super) fn connection(&self) -> Result<&Connected> {
        Ok(&self.connection.as_ref().context("there is no connection")?.1)
    }

    /// Ends the connection, if there is one, and waits until both sides know.
    pub(super) fn hang_up(&mut self) -> Result<()> {
        let Some((_, connected)) = self.connection.take() else { return Ok(()) };
        connected.side.id.disconnect()?;
        self.ask(&Ask::WaitDisconnected)
    }

    /// Forgets a connection that failed.
    pub(super) fn abandon(&mut self) {
        self.connection = None;
    }
}
