//! `rdmux mctest`: the exchange of `mckey`. All sides join a group; the sender sends its messages, and each receiver
//! waits for all of them.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use rdmux::Ah;
use rdmux::cm::{EventChannel, EventKind, Id, JoinFlags, PortSpace};

use super::udtest::{Node, Remote};
use crate::Global;
use rdmux_command::cmutil::{self, RESOLVE};
use rdmux_command::output;
use rdmux_command::say;

/// Sends or receives multicast as `mckey` does. All sides need the same -C and -S.
#[derive(Args)]
pub(crate) struct MctestArgs {
    /// The address of the group
    #[arg(short = 'm', long, value_name = "ADDRESS")]
    group: IpAddr,
    /// Send; without it, receive
    #[arg(short, long)]
    sender: bool,
    /// The local address to join on
    #[arg(short, long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Messages; at most 16384, as many as a queue holds
    #[arg(short = 'C', long, default_value_t = 10, value_parser = super::count_parser())]
    count: u32,
    /// Bytes of a message; at most the path MTU
    #[arg(short = 'S', long, default_value_t = 100)]
    size: u32,
    /// Join as a send-only member
    #[arg(short = 'o', long, requires = "sender")]
    send_only: bool,
    /// Milliseconds that the sender waits after its join, so that receivers can join
    #[arg(long, value_name = "MS", default_value_t = 0)]
    delay: u64,
    /// Seconds to wait for the sender
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    timeout: u64,
}

/// Runs `rdmux mctest`.
pub(crate) fn run(global: &Global, args: &MctestArgs) -> Result<ExitCode> {
    let context = global.open()?;
    let channel = EventChannel::new(&context)?;
    let id = Id::new(&channel, PortSpace::Udp)?;
    if let Some(bind) = &args.bind {
        id.bind(cmutil::address(bind, 0)?)?;
    }
    id.resolve_addr(None, SocketAddr::new(args.group, 0), RESOLVE)?;
    cmutil::expect(&channel, EventKind::AddrResolved, "resolve the address", RESOLVE * 2)?;
    let timeout = Duration::from_secs(args.timeout);
    let mut node = Node::new(&context, &id, (args.count, args.size), timeout)?;
    if !args.sender {
        node.post_receives()?;
    }
    let flags = if args.send_only { JoinFlags::SendOnlyFullMember } else { JoinFlags::FullMember };
    id.join_multicast(args.group, flags)?;
    let event = cmutil::expect(&channel, EventKind::MulticastJoin, "join the group", timeout)?;
    let ud = event.ud().context("the join's event does not describe the group")?;
    let remote = Remote { ah: Ah::from_vector(ud.av), qpn: ud.qp_num, qkey: ud.qkey };
    say!("joined {}", ud.av.dgid);
    drop(event);

    if args.sender {
        std::thread::sleep(Duration::from_millis(args.delay));
        node.send(remote)?;
    } else {
        node.receive()?;
    }
    id.leave_multicast(args.group)?;
    let what = if args.sender { "sent" } else { "received" };
    say!("{what} {} datagrams of {}", args.count, output::bytes(args.size.into()));
    Ok(ExitCode::SUCCESS)
}
