//! The state machines without I/O: queue pairs and the connection manager.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdmux_cm::EventKind;
use rdmux_transport::Time;
use rdmux_transport::attr::QpType;
use rdmux_transport::wr::{RecvWr, SendData, SendOp, SendWr, Sge};
use rdmux_wire::{Lkey, Rkey};

#[path = "../../../crates/cm/tests/net/mod.rs"]
mod net;
#[path = "../../../crates/transport/benches/pair/mod.rs"]
mod pair;

use net::{Net, param};

/// Sends messages, each of which is acknowledged at once.
fn messages(count: u32, op: SendOp, data: SendData<'_>) -> Result<()> {
    let (mut a, mut a_env) = pair::connect(1, 2);
    let (mut b, mut b_env) = pair::connect(2, 1);
    let sges = [Sge { addr: 8192, length: 8192, lkey: Lkey(1) }];
    for n in 0..u64::from(count) {
        if op == SendOp::Send {
            b.post_recv(&RecvWr { wr_id: n, sges: &sges })?;
        }
        a.post_send(Time(n), &SendWr::new(n, op, data))?;
        a.poll_transmit(Time(n), 64, &mut a_env);
        pair::deliver(&mut a_env, 1, &mut b, &mut b_env);
        b.flush_ack(Time(n), &mut b_env);
        pair::deliver(&mut b_env, 2, &mut a, &mut a_env);
    }
    ensure!(a_env.completions == u64::from(count), "{} completions", a_env.completions);
    Ok(())
}

pub(crate) fn send(count: u32) -> Result<()> {
    messages(count, SendOp::Send, SendData::Inline(&[&[7; 64]]))
}

pub(crate) fn write(count: u32) -> Result<()> {
    let page = [Sge { addr: 0, length: 4096, lkey: Lkey(1) }];
    messages(count, SendOp::Write { remote_addr: 8192, rkey: Rkey(1) }, SendData::Sges(&page))
}

pub(crate) fn connect(count: u32) -> Result<()> {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    for _ in 0..count {
        let active = net.connecting(1, 0, QpType::Rc);
        net.run_until_idle();
        let request = net.hosts[0].event(EventKind::ConnectRequest);
        let (now, server) = (net.now, &mut net.hosts[0]);
        server.cm.accept(now, request.id, &param(0x22), &mut server.out)?;
        net.run_until_idle();
        let client = &mut net.hosts[1];
        client.event(EventKind::ConnectResponse);
        client.cm.establish(now, active, &mut client.out)?;
        net.run_until_idle();
        net.hosts[0].event(EventKind::Established);
        let client = &mut net.hosts[1];
        client.cm.disconnect(now, active, &mut client.out)?;
        net.run_until_idle();
        net.hosts[0].events();
        for (host, id) in [(0, request.id), (1, active)] {
            let host = &mut net.hosts[host];
            host.cm.destroy(now, id, &mut host.out).context("destroy")?;
        }
        // The remaining connections end by timeout.
        net.pass(Duration::from_secs(120));
        net.hosts.iter_mut().for_each(|host| drop(host.events()));
        net.log.clear();
    }
    Ok(())
}
