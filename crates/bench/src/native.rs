//! Connections by GID along known paths, compared with those by IP address, each of which resolves a neighbour and queries subnet
//! administration: on an InfiniBand fabric of this process.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use rdmux::resolver::{Answer, Hints, Resolver};
use rdmux::umad::Fabric;
use rdmux::{Context, DeviceKind, PortState};

use super::connections::Connector;
use super::run::Bench;
use super::stats::{Figure, Goal, Unit};

/// The number of connections of one round, one at a time: five alternating rounds make a thousand of each.
const CONNECTIONS: u32 = 200;

/// Two hosts on a fabric.
struct Subnet {
    here: Context,
    there: Context,
}

impl Subnet {
    fn new() -> Result<Self> {
        let fabric = Fabric::managed("switch:3")?;
        let host = |name| -> Result<Context> {
            let builder = Context::builder().embedded().fabric(&fabric).host(name);
            let context = builder.device(DeviceKind::Ib).open()?;
            while context.query_port()?.state != PortState::Active {
                context.next_event(None)?;
            }
            Ok(context)
        };
        Ok(Self { here: host("here")?, there: host("there")? })
    }

    /// Returns the connections per second to the answer that `found` returns for the listener.
    fn rate(&self, found: impl FnOnce(SocketAddr) -> Result<Answer>) -> Result<f64> {
        let there = self.there.clone();
        let (tell, listens) = mpsc::channel();
        let server = thread::spawn(move || -> Result<()> {
            let connector = Connector::new(&there)?;
            let at = there.address()?;
            connector.accept(at, CONNECTIONS, |at| Ok(tell.send(at)?))
        });
        let to = listens.recv().context("the listener ended before it listened")?;
        let connector = Connector::new(&self.here)?;
        let (nodes, rate) = connector.connect_along(&found(to)?, CONNECTIONS as usize, 1)?;
        connector.disconnect(nodes)?;
        server.join().map_err(|_| anyhow!("the other side panicked"))??;
        Ok(rate)
    }
}

impl Bench {
    pub(super) fn native(&mut self) -> Result<Figure> {
        const NAME: &str = "connections by GID, paths given";
        let subnet = Subnet::new()?;
        let by_ip = |to: SocketAddr| Ok(Answer { dst: Some(to.into()), ..Answer::default() });
        let resolver = Resolver::new(&subnet.here);
        let native = |to| -> Result<Answer> {
            let hints = Hints { native: true, ..Hints::default() };
            let found = resolver.resolve_addr(to, &hints).into_iter().next();
            found.filter(|answer| !answer.paths.is_empty()).context("the resolver found no path")
        };
        let (ours, ip) = self.rounds(NAME, |_| subnet.rate(native), |_| subnet.rate(by_ip))?;
        let figure = Figure::alone(NAME, Unit::PerSecond, &ours);
        Ok(figure.beside("by IP, with resolution", &ip).with_goal(Goal::AtMost(0.7)))
    }
}
