//! A server and its clients, or one program alone.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use crate::process::Process;
use crate::proof::{Proof, Said, Uncalibrated};
use crate::row::Way;
use crate::stage::{SHORTLY, Scene, Side};

/// The programs of a row, the order in which they start, and the expected result.
///
/// In command lines `{server}` and `{client}` are replaced by the addresses of both sides, `{server4}` by the
/// server's IPv4 address, `{port}` by a
/// port that is the row's own, `{gid}` by the index of the side's address in its GID table, `{dev}`
/// by the device, `{group}` by a multicast group and `{tmp}` by a folder.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) title: String,
    server: Option<Server>,
    clients: Vec<String>,
    /// Whether a client is started only when the one before it has ended.
    in_turn: bool,
    /// Whether the sides are swapped.
    turned: bool,
    /// Whether all programs run on the server's side.
    beside: bool,
    /// Options of `rdmux run`.
    options: &'static [&'static str],
    /// The arguments of `rdmux run --device` for the server and for the clients, if not the row's device.
    devices: Option<(&'static str, &'static str)>,
    proofs: Vec<Proof>,
    timeout: Duration,
    /// The ways in which CI runs the row.
    pub(crate) brief: &'static [Way],
}

/// A server program: its command line, the sign that it is ready, and its expected end.
#[derive(Clone, Debug)]
struct Server {
    line: String,
    ready: Ready,
    end: End,
}

/// The sign that a server is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    /// The server listens on TCP port `{port}`.
    Tcp,
    /// The server listens on this TCP port, because it supports no other.
    TcpPort(u16),
    /// The host's service has a listening id of it.
    Cm,
    /// The host's service has its membership in a multicast group.
    Group,
    /// The server prints this.
    Says(&'static str),
}

/// How a program ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The program exits by itself, with status 0.
    Alone,
    /// The suite ends the program by a signal.
    Told,
}

impl Exchange {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            server: None,
            clients: Vec::new(),
            in_turn: false,
            turned: false,
            beside: false,
            options: &[],
            devices: None,
            proofs: Vec::new(),
            // A hanging program never ends; a slow one may be waiting for a processor.
            timeout: Duration::from_secs(180),
            brief: &[],
        }
    }

    /// Sets the command line of the server.
    pub(crate) fn server(mut self, line: impl Into<String>, ready: Ready, end: End) -> Self {
        self.server = Some(Server { line: line.into(), ready, end });
        self
    }

    /// Runs one client after the other.
    pub(crate) fn in_turn(mut self) -> Self {
        self.in_turn = true;
        self
    }

    /// Adds the command line of a client; all of them run at the same time, unless they run in turn.
    pub(crate) fn client(mut self, line: impl Into<String>) -> Self {
        self.clients.push(line.into());
        self
    }

    /// Swaps the sides: the server runs on the client's side, and the clients on the server's.
    pub(crate) fn turned(mut self) -> Self {
        self.turned = true;
        self
    }

    /// Runs the clients on the server's side too.
    pub(crate) fn beside(mut self) -> Self {
        self.beside = true;
        self
    }

    /// Adds these options of `rdmux run`.
    pub(crate) fn run_with(mut self, options: &'static [&'static str]) -> Self {
        self.options = options;
        self
    }

    /// Sets the devices of the server and of the clients, as `rdmux run --device` takes them.
    pub(crate) fn devices(mut self, server: &'static str, client: &'static str) -> Self {
        self.devices = Some((server, client));
        self
    }

    /// Changes all command lines.
    pub(crate) fn lines(mut self, change: impl Fn(&str) -> String) -> Self {
        for line in self.server.iter_mut().map(|s| &mut s.line).chain(&mut self.clients) {
            *line = change(line);
        }
        self
    }

    /// Sets the proof that the output must contain.
    pub(crate) fn proof(mut self, proof: Proof) -> Self {
        self.proofs.push(proof);
        self
    }

    /// Sets how long a client may run, if not three minutes.
    pub(crate) fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    /// Sets the ways in which CI runs the row.
    pub(crate) fn brief(mut self, ways: &'static [Way]) -> Self {
        self.brief = ways;
        self
    }

    /// Runs the programs.
    ///
    /// # Errors
    /// When a program does not end as it should, or its output lacks the proof; [`Uncalibrated`] if one of
    /// them reports that.
    pub(crate) fn run(&self, scene: &Scene) -> Result<()> {
        let mut started = Vec::new();
        let outcome = self.play(scene, &mut started);
        if outcome.is_err() && started.iter().any(|p| Uncalibrated::is_said_in(&p.output())) {
            return outcome.context(Uncalibrated);
        }
        outcome
    }

    /// Runs the programs. `started` gets the processes, the server first.
    fn play(&self, scene: &Scene, started: &mut Vec<Process>) -> Result<()> {
        let sides = [&scene.server, if self.beside { &scene.server } else { &scene.client }];
        let [there, here] = if self.turned { [sides[1], sides[0]] } else { sides };
        let own = scene.device.option();
        let (theirs, ours) = self.devices.unwrap_or((own, own));
        if let Some(server) = &self.server {
            started.push(scene.start(there, "server", (theirs, self.options), &server.line)?);
            self.await_server(server, scene, there, &mut started[0])?;
        }
        let servers = started.len();
        for (n, line) in (1..).zip(&self.clients) {
            started.push(scene.start(here, &format!("client{n}"), (ours, self.options), line)?);
            if self.in_turn {
                started[servers..].last_mut().map_or(Ok(()), |c| c.succeed(self.timeout))?;
            }
        }
        let (servers, clients) = started.split_at_mut(servers);
        for client in &mut *clients {
            client.succeed(self.timeout)?;
        }
        let outputs = clients.iter().map(Process::output).collect();
        let mut said = Said { server: String::new(), clients: outputs };
        if let (Some(process), Some(server)) = (servers.first_mut(), &self.server) {
            match server.end {
                End::Alone => process.succeed(SHORTLY)?,
                End::Told => process.stop(Signal::TERM, SHORTLY)?,
            }
            said.server = process.output();
        }
        self.proofs.iter().try_for_each(|p| p.check(scene, &said))
    }

    /// Waits until the server is ready.
    fn await_server(
        &self,
        server: &Server,
        scene: &Scene,
        side: &Side,
        process: &mut Process,
    ) -> Result<()> {
        process.until("serve", self.timeout, |p| match server.ready {
            Ready::Tcp => tcp_listens(p.pid(), scene.port),
            Ready::TcpPort(port) => tcp_listens(p.pid(), port),
            Ready::Cm => cm_listens(side),
            Ready::Group => Ok(has(&side.status()?["groups"])),
            Ready::Says(text) => Ok(p.output().contains(text)),
        })
    }
}

/// Returns whether a process in the network namespace of this one listens on this TCP port.
fn tcp_listens(pid: u32, port: u16) -> Result<bool> {
    /// The state `TCP_LISTEN` in `/proc/net/tcp`.
    const LISTEN: &str = "0A";
    let wanted = format!(":{port:04X}");
    for table in ["tcp", "tcp6"] {
        let path = format!("/proc/{pid}/net/{table}");
        let Ok(text) = fs::read_to_string(path) else { continue };
        let listens = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().is_some_and(|l| l.ends_with(&wanted));
            local && words.nth(1) == Some(LISTEN)
        };
        if text.lines().any(listens) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether an id of this host listens.
fn cm_listens(side: &Side) -> Result<bool> {
    let status = side.status()?;
    let ids = status["ids"].as_array().context("the host's status has no list of ids")?;
    Ok(ids.iter().any(|id| id["state"] == "LISTEN"))
}

fn has(list: &Value) -> bool {
    list.as_array().is_some_and(|l| !l.is_empty())
}
