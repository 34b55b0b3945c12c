//! The client: offers its memory, and measures how long the server takes to read and write it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rdmux::Context;
use rdmux::cm::{EventChannel, EventKind, Id, PortSpace};
use rdmux_command::say;
use rdmux_command::{cmutil, output};
use serde::Serialize;

use super::PingArgs;
use super::endpoint::Endpoint;
use super::exchange;
use crate::interrupt::on_interrupt;

/// The measurements, in microseconds.
#[derive(Serialize)]
struct Summary {
    server: String,
    size: u32,
    pings: u32,
    verified: bool,
    min_us: f64,
    avg_us: f64,
    max_us: f64,
}

/// The statistics of the round trips, without storing them, because there may be billions.
#[derive(Default)]
struct Times {
    pings: u32,
    min: Option<Duration>,
    max: Duration,
    total: Duration,
}

impl Times {
    fn add(&mut self, time: Duration) {
        self.pings += 1;
        self.min = Some(self.min.map_or(time, |min| min.min(time)));
        self.max = self.max.max(time);
        self.total += time;
    }
}

/// Pings the server, until Ctrl-C if there is no count.
pub(super) fn run(context: &Context, args: &PingArgs) -> Result<()> {
    let server = cmutil::address(args.addr.as_deref().unwrap_or_default(), args.port)?;
    let source = args.source.as_deref().map(|s| cmutil::address(s, 0)).transpose()?;
    let channel = EventChannel::new(context)?;
    let id = Id::new(&channel, PortSpace::Tcp)?;
    cmutil::resolve(&channel, &id, source, server)?;

    let mut endpoint = Endpoint::new(&channel, id, args.timeout())?;
    endpoint.id.connect(&Endpoint::conn_param())?;
    cmutil::expect(&channel, EventKind::Established, "connect", args.timeout())
        .with_context(|| format!("no server at {server}"))?;
    tracing::info!(host = endpoint.context().host(), %server, "connected");

    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    on_interrupt(move || flag.store(true, Ordering::Relaxed))?;
    let mut times = Times::default();
    let ended = pings(&mut endpoint, args, &interrupted, &mut times);
    let ended = ended.and_then(|()| endpoint.disconnect());
    if !interrupted.load(Ordering::Relaxed) {
        ended?;
    }
    summarise(server.to_string(), args, &times)?;
    match args.count {
        Some(count) if times.pings < count => {
            bail!("interrupted after {} of {count} pings", times.pings)
        }
        _ => Ok(()),
    }
}

/// Runs all pings, or those until Ctrl-C, and adds their round trips.
fn pings(
    endpoint: &mut Endpoint,
    args: &PingArgs,
    interrupted: &AtomicBool,
    times: &mut Times,
) -> Result<()> {
    let size = args.size as usize;
    let (source, sink) = (endpoint.buffer(size)?, endpoint.buffer(size)?);
    for ping in 0..args.count.unwrap_or(u32::MAX) {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        let data = exchange::data(ping, size);
        source.write(0, &data);
        let start = Instant::now();
        for buffer in [&source, &sink] {
            endpoint.advertise(buffer.remote())?;
            if endpoint.hear()?.is_err() {
                bail!("the server disconnected during ping {ping}");
            }
        }
        let time = start.elapsed();
        let back = sink.to_vec(..);
        if args.verify && back != data {
            let at = back.iter().zip(&data).position(|(a, b)| a != b).unwrap_or(0);
            bail!("ping {ping}: the returned data differ from byte {at} on");
        }
        if args.data && !args.json {
            say!("ping data: {}", String::from_utf8_lossy(&back[..exchange::echo_len(&back) - 1]));
        }
        if !args.quiet && !args.json {
            say!("{size} bytes: ping {ping}: {}", output::time(time));
        }
        times.add(time);
    }
    Ok(())
}

fn summarise(server: String, args: &PingArgs, times: &Times) -> Result<()> {
    let us = |d: Duration| d.as_secs_f64() * 1e6;
    let &Times { pings, min, max, total } = times;
    let summary = Summary {
        server,
        size: args.size,
        pings,
        verified: args.verify,
        min_us: us(min.unwrap_or_default()),
        avg_us: us(total.checked_div(pings).unwrap_or_default()),
        max_us: us(max),
    };
    if args.json {
        return output::json(&summary);
    }
    let checked = if args.verify { ", all data verified" } else { "" };
    say!(
        "{pings} pings of {}{checked}; round trip min/avg/max {:.1}/{:.1}/{:.1} us",
        output::bytes(args.size.into()),
        summary.min_us,
        summary.avg_us,
        summary.max_us
    );
    Ok(())
}
