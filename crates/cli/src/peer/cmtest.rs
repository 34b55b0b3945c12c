//! `rdmux cmtest`: the exchange of `ucmatose`.
//!
//! The client opens all connections. When all are established, the server sends its messages on each. When the client
//! has received them all, it sends as many back. Then the server disconnects, and the client answers.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use rdmux::cm::{ConnParam, Event, EventChannel, EventKind, Id, IdOption, PortSpace};
use rdmux::{Access, Cq, EMPTY, Mr, Qp, QpType, SendWr, ok};

use super::pattern;
use crate::Global;
use rdmux_command::cmutil::{self, RESOLVE};
use rdmux_command::output;
use rdmux_command::say;

/// Connects and exchanges messages as `ucmatose` does. Both sides need the same -c, -C and -S.
#[derive(Args)]
pub(crate) struct CmtestArgs {
    /// The server to connect to; without it, be the server
    #[arg(short, long, value_name = "ADDRESS")]
    server: Option<String>,
    /// The address to bind
    #[arg(short, long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Connections; at most 16384, since an event of each may be unread
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=16384))]
    connections: u32,
    /// Messages in each direction of each connection; at most 16384, as many as a queue holds
    #[arg(short = 'C', long, default_value_t = 10, value_parser = super::count_parser())]
    count: u32,
    /// Bytes of a message
    #[arg(short = 'S', long, default_value_t = 100)]
    size: u32,
    /// The server's port
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    /// Type of service
    #[arg(short, long)]
    tos: Option<u8>,
    /// Local ACK timeout, as the exponent of 4.096 us * 2^N
    #[arg(short, long)]
    ack_timeout: Option<u8>,
    /// Move the connections to another event channel before they end
    #[arg(short, long)]
    migrate: bool,
    /// Seconds to wait for the peer
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    timeout: u64,
}

/// A connection.
struct Node {
    id: Id,
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    /// The memory for received messages, one after another, followed by the sent one.
    buffer: Mr,
}

struct Test<'a> {
    args: &'a CmtestArgs,
    channel: EventChannel,
    nodes: Vec<Node>,
    timeout: Duration,
}

/// Runs `rdmux cmtest`.
pub(crate) fn run(global: &Global, args: &CmtestArgs) -> Result<ExitCode> {
    let context = global.open()?;
    let channel = EventChannel::new(&context)?;
    let timeout = Duration::from_secs(args.timeout);
    let mut test = Test { args, channel, nodes: Vec::new(), timeout };
    match &args.server {
        Some(server) => test.client(server)?,
        None => test.server()?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Test<'_> {
    fn server(&mut self) -> Result<()> {
        let listener = Id::new(&self.channel, PortSpace::Tcp)?;
        let at = listener.bind(cmutil::local(self.args.bind.as_deref(), self.args.port)?)?;
        listener.listen(0)?;
        say!("waiting for {} connections on {at}", self.args.connections);
        let mut established = 0;
        while established < self.args.connections {
            // The first client may connect at any time.
            let timeout = (!self.nodes.is_empty()).then_some(self.timeout);
            let Some(event) = self.channel.next(timeout)? else {
                bail!("{established} of {} connections were established", self.args.connections);
            };
            match event.kind() {
                EventKind::ConnectRequest => self.accept(event)?,
                EventKind::Established => established += 1,
                _ => drop(event.expect(EventKind::Established, "accept")?),
            }
        }
        let start = Instant::now();
        self.send()?;
        self.receive()?;
        self.report(start);
        if self.args.migrate {
            self.migrate(Some(&listener))?;
        }
        for node in &self.nodes {
            node.id.disconnect()?;
        }
        self.disconnected(false)
    }

    fn accept(&mut self, mut event: Event) -> Result<()> {
        let Some(id) = event.take_id() else { return Ok(()) };
        let wish = event.conn().cloned().unwrap_or_default();
        if self.nodes.len() == self.args.connections as usize {
            return Ok(id.reject(&[])?);
        }
        let node = self.node(id)?;
        node.id.accept(&ConnParam {
            responder_resources: wish.responder_resources,
            initiator_depth: wish.initiator_depth,
            rnr_retry_count: 7,
            ..ConnParam::default()
        })?;
        self.nodes.push(node);
        Ok(())
    }

    fn client(&mut self, server: &str) -> Result<()> {
        let server = cmutil::address(server, self.args.port)?;
        let source = self.args.bind.as_deref().map(|b| cmutil::address(b, 0)).transpose()?;
        let mut ids = Vec::new();
        for _ in 0..self.args.connections {
            let id = Id::new(&self.channel, PortSpace::Tcp)?;
            id.resolve_addr(source.map(Into::into), server, RESOLVE)?;
            ids.push(id);
        }
        say!("connecting {} times to {server}", ids.len());
        let mut established = 0;
        while established < self.args.connections {
            let Some(event) = self.channel.next(Some(self.timeout))? else {
                bail!("{established} of {} connections were established", self.args.connections);
            };
            match event.kind() {
                EventKind::AddrResolved => {
                    if let Some(id) = ids.iter().find(|id| event.is_for(id)) {
                        self.options(id)?;
                        id.resolve_route(RESOLVE)?;
                    }
                }
                EventKind::RouteResolved => {
                    if let Some(at) = ids.iter().position(|id| event.is_for(id)) {
                        let node = self.node(ids.swap_remove(at))?;
                        node.id.connect(&Self::conn_param())?;
                        self.nodes.push(node);
                    }
                }
                EventKind::Established => established += 1,
                _ => drop(event.expect(EventKind::Established, "connect")?),
            }
        }
        let start = Instant::now();
        self.receive()?;
        self.send()?;
        self.report(start);
        if self.args.migrate {
            self.migrate(None)?;
        }
        self.disconnected(true)
    }

    fn options(&self, id: &Id) -> Result<()> {
        if let Some(tos) = self.args.tos {
            id.set_option(IdOption::Tos(tos))?;
        }
        if let Some(code) = self.args.ack_timeout {
            id.set_option(IdOption::AckTimeout(code))?;
        }
        Ok(())
    }

    fn conn_param() -> ConnParam {
        ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 5,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }

    /// Creates a queue pair with all receives posted.
    fn node(&self, id: Id) -> Result<Node> {
        let context = self.channel.context();
        let depth = self.args.count.max(1);
        let (size, slots) = (self.args.size as usize, self.args.count as usize + 1);
        let (pd, send_cq, recv_cq) = (context.pd(), context.cq(depth)?, context.cq(depth)?);
        let qp = pd
            .qp(QpType::Rc)
            .send_cq(&send_cq)
            .recv_cq(&recv_cq)
            .max_send_wr(depth)
            .max_recv_wr(depth)
            .max_sge(1)
            .signal_all()
            .build()?;
        let buffer = pd.alloc((size * slots).max(1), Access::LOCAL_WRITE)?;
        id.attach_qp(&qp)?;
        for n in 0..self.args.count as usize {
            qp.post_recv(n as u64, &[buffer.slice(n * size..(n + 1) * size)])?;
        }
        Ok(Node { id, qp, send_cq, recv_cq, buffer })
    }

    fn send(&self) -> Result<()> {
        let (size, count) = (self.args.size as usize, self.args.count as usize);
        for node in &self.nodes {
            node.buffer.write(count * size, &pattern(0, size));
            let piece = [node.buffer.slice(count * size..(count + 1) * size)];
            for n in 0..count {
                node.qp.post_send(&SendWr::send(n as u64).sges(&piece))?;
            }
        }
        self.nodes.iter().try_for_each(|node| self.complete(&node.send_cq, "send"))
    }

    fn receive(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| self.complete(&node.recv_cq, "receive"))
    }

    /// Waits for all messages of a queue. Their contents are not checked: `ucmatose` sends uninitialized memory.
    fn complete(&self, cq: &Cq, what: &str) -> Result<()> {
        let mut done = 0;
        let mut batch = [EMPTY; 16];
        while done < self.args.count {
            let n = cq.wait(&mut batch, Some(self.timeout))?;
            if n == 0 {
                bail!("timed out: could {what} only {done} of {} messages", self.args.count);
            }
            for completion in &batch[..n] {
                let length = ok(*completion)?.byte_len;
                if what == "receive" && length != self.args.size {
                    bail!(
                        "received a message of {length} bytes, not {}: use the same -S",
                        self.args.size
                    );
                }
                done += 1;
            }
        }
        Ok(())
    }

    fn report(&self, start: Instant) {
        say!(
            "{} connections, {} messages of {} each way in {}",
            self.nodes.len(),
            self.args.count,
            output::bytes(self.args.size.into()),
            output::time(start.elapsed())
        );
    }

    fn migrate(&mut self, listener: Option<&Id>) -> Result<()> {
        let new = EventChannel::new(self.channel.context())?;
        for id in self.nodes.iter().map(|node| &node.id).chain(listener) {
            id.migrate(&new)?;
        }
        self.channel = new;
        say!("moved to another event channel");
        Ok(())
    }

    /// Waits until every connection is down. `answer`: also answers.
    fn disconnected(&self, answer: bool) -> Result<()> {
        let mut left = self.nodes.len();
        while left > 0 {
            let Some(event) = self.channel.next(Some(self.timeout))? else {
                bail!("timed out: {left} connections were not disconnected");
            };
            if event.kind() != EventKind::Disconnected {
                continue;
            }
            if answer && let Some(node) = self.nodes.iter().find(|n| event.is_for(&n.id)) {
                // The peer may have exited before the answer arrives.
                let _ = node.id.disconnect();
            }
            left -= 1;
        }
        say!("disconnected");
        Ok(())
    }
}
