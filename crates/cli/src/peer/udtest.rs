//! `rdmux udtest`: the exchange of `udaddy`.
//!
//! The client resolves the server's queue pairs by address and sends its messages to each, with its own queue pair
//! number as immediate data. The server answers with as many, to the received number and address.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rdmux::cm::{ConnParam, EventChannel, EventKind, Id, IdOption, PortSpace};
use rdmux::{Access, Ah, Completion, Context, Cq, Mr, Qkey, Qp, QpType, Qpn, SendWr, WcOpcode};

use super::pattern;
use crate::Global;
use rdmux_command::cmutil::{self, RESOLVE};
use rdmux_command::output;
use rdmux_command::say;

/// The network header in front of each datagram.
pub(super) const GRH: usize = 40;

/// Exchanges datagrams as `udaddy` does. Both sides need the same -c, -C and -S.
#[derive(Args)]
pub(crate) struct UdtestArgs {
    /// The server to send to; without it, be the server
    #[arg(short, long, value_name = "ADDRESS")]
    server: Option<String>,
    /// The address to bind
    #[arg(short, long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Pairs of queue pairs
    #[arg(short, long, default_value_t = 1)]
    connections: u32,
    /// Messages in each direction of each pair; at most 16384, as many as a queue holds
    #[arg(short = 'C', long, default_value_t = 10, value_parser = super::count_parser())]
    count: u32,
    /// Bytes of a message; at most the path MTU
    #[arg(short = 'S', long, default_value_t = 100)]
    size: u32,
    /// The server's port
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
    /// Type of service
    #[arg(short, long)]
    tos: Option<u8>,
    /// Seconds to wait for the peer
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    timeout: u64,
}

/// The destination of a node's messages.
#[derive(Clone, Copy)]
pub(super) struct Remote {
    pub(super) ah: Ah,
    pub(super) qpn: Qpn,
    pub(super) qkey: Qkey,
}

/// A datagram queue pair with its buffers.
pub(super) struct Node {
    pub(super) qp: Qp,
    cq: Cq,
    buffer: Mr,
    count: u32,
    size: u32,
    timeout: Duration,
    received: u32,
    sent: u32,
}

impl Node {
    pub(super) fn new(
        context: &Context,
        id: &Id,
        (count, size): (u32, u32),
        timeout: Duration,
    ) -> Result<Self> {
        let depth = count.max(1);
        let (pd, cq) = (context.pd(), context.cq(depth * 2)?);
        let qp =
            pd.qp(QpType::Ud).cq(&cq).max_send_wr(depth).max_recv_wr(depth).max_sge(1).build()?;
        let buffer = pd.alloc((GRH + size as usize) * (count as usize + 1), Access::LOCAL_WRITE)?;
        id.attach_qp(&qp)?;
        Ok(Self { qp, cq, buffer, count, size, timeout, received: 0, sent: 0 })
    }

    /// Posts a receive for each datagram.
    pub(super) fn post_receives(&self) -> Result<()> {
        let slot = GRH + self.size as usize;
        for n in 0..self.count as usize {
            self.qp.post_recv(n as u64, &[self.buffer.slice(n * slot..(n + 1) * slot)])?;
        }
        Ok(())
    }

    /// Sends all messages, and waits until all have been sent.
    pub(super) fn send(&mut self, to: Remote) -> Result<()> {
        let (size, slot) = (self.size as usize, GRH + self.size as usize);
        let at = self.count as usize * slot;
        self.buffer.write(at, &pattern(0, size));
        let piece = [self.buffer.slice(at..at + size)];
        let imm = self.qp.qpn().get().to_be_bytes();
        for n in 0..self.count {
            let wr = SendWr::send(n.into()).sges(&piece).imm(imm).to(&to.ah, to.qpn, to.qkey);
            self.qp.post_send(&wr.signaled())?;
        }
        while self.sent < self.count {
            self.next()?;
        }
        Ok(())
    }

    /// Waits for all messages; returns the first.
    pub(super) fn receive(&mut self) -> Result<Option<Completion>> {
        let mut first = None;
        while self.received < self.count {
            let done = self.next()?;
            if done.opcode == WcOpcode::Recv {
                let length = (done.byte_len as usize).saturating_sub(GRH);
                if length != self.size as usize {
                    bail!(
                        "received a message of {length} bytes, not {}: use the same -S",
                        self.size
                    );
                }
                first.get_or_insert(done);
            }
        }
        Ok(first)
    }

    fn next(&mut self) -> Result<Completion> {
        let done = self.cq.wait_one(Some(self.timeout)).with_context(|| {
            format!("received {} of {} messages, sent {}", self.received, self.count, self.sent)
        })?;
        match done.opcode {
            WcOpcode::Recv => self.received += 1,
            _ => self.sent += 1,
        }
        Ok(done)
    }

    /// Returns the sender of a received message, as `udaddy` determines it.
    fn sender(&self, of: &Completion) -> Result<Remote> {
        let slot = GRH + self.size as usize;
        let mut grh = [0; GRH];
        self.buffer.read(usize::try_from(of.wr_id)? * slot, &mut grh);
        let ah = Ah::reply_to(&grh, 0).context("received a datagram without a network header")?;
        let ah = self.local_index(&grh).map_or(ah, |index| Ah::to_ip(ah.ip(), index));
        Ok(Remote { ah, qpn: Qpn::new(u32::from_be_bytes(of.imm)), qkey: self.qp.attr().qkey })
    }

    /// Returns the entry of the local GID table to which a datagram was sent.
    fn local_index(&self, grh: &[u8; GRH]) -> Option<u8> {
        let to = if grh[0] >> 4 == 6 {
            <[u8; 16]>::try_from(&grh[24..]).ok()?.into()
        } else {
            <[u8; 4]>::try_from(&grh[36..]).ok()?.into()
        };
        self.qp.pd().context().gid_index(to).ok()
    }
}

/// Runs `rdmux udtest`.
pub(crate) fn run(global: &Global, args: &UdtestArgs) -> Result<ExitCode> {
    let context = global.open()?;
    let channel = EventChannel::new(&context)?;
    match &args.server {
        Some(server) => client(&channel, args, server)?,
        None => server(&channel, args)?,
    }
    say!(
        "{} queue pairs, {} datagrams of {} each way",
        args.connections,
        args.count,
        output::bytes(args.size.into())
    );
    Ok(ExitCode::SUCCESS)
}

fn timeout(args: &UdtestArgs) -> Duration {
    Duration::from_secs(args.timeout)
}

fn server(channel: &EventChannel, args: &UdtestArgs) -> Result<()> {
    let listener = Id::new(channel, PortSpace::Udp)?;
    let at = listener.bind(cmutil::local(args.bind.as_deref(), args.port)?)?;
    listener.listen(0)?;
    say!("waiting for {} peers on {at}", args.connections);
    let mut nodes = Vec::new();
    while nodes.len() < args.connections as usize {
        let Some(mut event) = channel.next(None)? else { continue };
        let Some(id) = event.take_id() else { continue };
        let node = Node::new(channel.context(), &id, (args.count, args.size), timeout(args))?;
        node.post_receives()?;
        id.accept(&ConnParam { qp_num: node.qp.qpn(), ..ConnParam::default() })?;
        nodes.push((id, node));
    }
    let mut remotes = Vec::new();
    for (_, node) in &mut nodes {
        remotes.push(match node.receive()? {
            Some(first) => Some(node.sender(&first)?),
            None => None,
        });
    }
    for ((_, node), remote) in nodes.iter_mut().zip(remotes) {
        if let Some(remote) = remote {
            node.send(remote)?;
        }
    }
    Ok(())
}

fn client(channel: &EventChannel, args: &UdtestArgs, server: &str) -> Result<()> {
    let server = cmutil::address(server, args.port)?;
    let source = args.bind.as_deref().map(|b| cmutil::address(b, 0)).transpose()?;
    let mut nodes = Vec::new();
    for _ in 0..args.connections {
        let id = Id::new(channel, PortSpace::Udp)?;
        id.resolve_addr(source.map(Into::into), server, RESOLVE)?;
        cmutil::expect(channel, EventKind::AddrResolved, "resolve the address", RESOLVE * 2)?;
        if let Some(tos) = args.tos {
            id.set_option(IdOption::Tos(tos))?;
        }
        id.resolve_route(RESOLVE)?;
        cmutil::expect(channel, EventKind::RouteResolved, "resolve the route", RESOLVE * 2)?;
        let node = Node::new(channel.context(), &id, (args.count, args.size), timeout(args))?;
        node.post_receives()?;
        id.connect(&ConnParam::default())?;
        let event = cmutil::expect(channel, EventKind::Established, "connect", timeout(args))?;
        let ud = event.ud().context("the peer's answer has no address")?;
        let ah = Ah::from_vector(ud.av);
        let remote = Remote { ah, qpn: ud.qp_num, qkey: ud.qkey };
        drop(event);
        nodes.push((id, node, remote));
    }
    for (_, node, remote) in &mut nodes {
        node.send(*remote)?;
    }
    for (_, node, _) in &mut nodes {
        node.receive()?;
    }
    Ok(())
}
