//! Round trips of a management datagram to the agent of a simulated node, compared with a Unix-socket ping-pong of
//! the same size.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rdmux_fabric::client::admin::{self, Plan};
use rdmux_fabric::client::{ConnectOptions, MadFile};
use rdmux_fabric::proto::{NodeRef, PortRef};
use rdmux_fabric::server::{FIRST_GUID, ManagerSetup, Setup};
use rdmux_fabric::{Config, FabricName};
use rdmux_runtime::{UserDir, socket};
use rdmux_subnet::topology::Shape;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::{MAD_LEN, Method, MgmtClass};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Lid, Qpn};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::protocol::Ask;
use super::run::{Bench, PINGS, done};
use super::stats::{Figure, Goal, Unit};

/// The timeout of an answer, in milliseconds.
const TIMEOUT_MS: u32 = 20_000;
/// The attribute ID of NodeInfo.
const NODE_INFO: u16 = 0x11;

impl Bench {
    /// Measures a MAD to a simulated node and back.
    pub(super) fn mad(&mut self) -> Result<Figure> {
        const NAME: &str = "MAD to a simulated node and back";
        let tmp = tempfile::tempdir()?;
        let fabric = Fabric::up(tmp.path())?;
        let (ours, ping) = self.rounds(
            NAME,
            |_| fabric.ping(PINGS),
            |b| {
                let socket = Listening::new(tmp.path())?;
                let path = socket.path.display().to_string();
                b.local.tell(&Ask::UnixEcho { path, count: PINGS })?;
                let time = socket.ping(PINGS)?;
                done(&mut b.local)?;
                Ok(time)
            },
        )?;
        let figure = Figure::alone(NAME, Unit::Seconds, &ours);
        Ok(figure.beside("Unix-socket ping-pong, 256 B", &ping).with_goal(Goal::AtMost(4.0)))
    }
}

/// A fabric with two adapters, in a separate process, and the management interface of one adapter.
struct Fabric {
    options: ConnectOptions,
    name: FabricName,
    file: MadFile,
    agent: u32,
}

impl Fabric {
    fn up(dir: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let options = ConnectOptions {
            user: UserDir::at(dir.join("fabric"))?,
            config: Config::default(),
            embedded: false,
            program: Some(program),
        };
        let name = FabricName::default();
        let manager = ManagerSetup::off();
        let setup = Setup { source: "two".to_owned(), simulate: true, manager, ..Setup::default() };
        let topology = Some(Shape::Two.topology(FIRST_GUID));
        admin::up(&options, &name, Some(&Plan { setup, topology, secret: None }))?;
        let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
        let file = MadFile::open(&options, &name, &port)?;
        let class = MgmtClass::SUBN_DIRECTED.0;
        let agent = Registration { qpn: 0, class, class_version: 1, ..Registration::default() };
        let agent = file.register(&agent)?;
        Ok(Self { options, name, file, agent })
    }

    /// Queries NodeInfo from the other adapter's agent. Returns the seconds per round trip.
    fn ping(&self, count: u32) -> Result<f64> {
        let start = Instant::now();
        for tid in 1..=count {
            let mut smp = Smp::directed(Method::GET, NODE_INFO, 0, &[1]);
            smp.header.tid = tid.into();
            self.file.send_mad(&UserMad {
                agent: self.agent,
                status: 0,
                timeout_ms: TIMEOUT_MS,
                retries: 0,
                address: UserAddress { lid: Lid(0xffff), qpn: Qpn::QP0, ..UserAddress::default() },
                data: smp.to_bytes().to_vec(),
            })?;
            let answer = self.file.recv_mad()?;
            ensure!(answer.status == 0, "a MAD was not answered: error {}", answer.status);
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(count))
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if let Err(error) = admin::down(&self.options, &self.name) {
            tracing::warn!(%error, "cannot stop the fabric that this command started");
        }
    }
}

/// A Unix socket of packets.
struct Listening {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listening {
    fn new(dir: &Path) -> Result<Self> {
        let path = dir.join("echo");
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let socket = seqpacket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
        rustix::net::listen(&socket, 1)?;
        Ok(Self { socket, path })
    }

    /// Exchanges messages. Returns the seconds per round trip.
    fn ping(&self, count: u32) -> Result<f64> {
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        let (message, mut buf) = ([0x5a; MAD_LEN], [0; MAD_LEN]);
        let start = Instant::now();
        for _ in 0..count {
            socket::send_bytes(socket.as_fd(), &message, &[])?;
            rustix::net::recv(&socket, &mut buf, rustix::net::RecvFlags::empty())?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(count))
    }
}

/// Runs the other side of [`Listening::ping`].
pub(super) fn echo(path: &str, count: u32) -> Result<()> {
    let socket = seqpacket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut buf = [0; MAD_LEN];
    for _ in 0..count {
        rustix::net::recv(&socket, &mut buf, rustix::net::RecvFlags::empty())?;
        socket::send_bytes(socket.as_fd(), &buf, &[])?;
    }
    Ok(())
}

fn seqpacket() -> Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}
