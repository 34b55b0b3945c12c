//! The cost of route tables: `cargo bench -p rdmux-fabric --bench route_tables [SHAPE ...]`.
//!
//! A subnet is brought up without hosts, then hosts that receive packets attach. The benchmark measures the time until the manager has
//! swept the subnet, memory, and the time of a sweep after a switch reset, with 0, 2 and 64 such hosts. The ratio is relative to no hosts.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdmux_fabric::client::{Attachment, ConnectOptions, admin};
use rdmux_fabric::server::{FIRST_GUID, ManagerSetup, Server, ServerOptions, Setup};
use rdmux_fabric::{Config, FabricDir, FabricName};
use rdmux_link::routes::RouteView;
use rdmux_runtime::UserDir;
use rdmux_subnet::topology::Shape;
use rdmux_testing::temp_dir;
use rdmux_wire::Guid;

/// Number of sweeps. The median is reported.
const ROUNDS: usize = 5;

fn main() {
    let shapes: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let shapes =
        if shapes.is_empty() { vec!["fattree:648".into(), "fattree:10368".into()] } else { shapes };
    println!("shape          hosts   bring-up   memory     sweep after a reset   ratio");
    for shape in shapes {
        let mut alone = None;
        for hosts in [0, 2, 64] {
            let figures = measure(&shape, hosts);
            let sweep = figures.sweep.as_secs_f64();
            let alone = *alone.get_or_insert(sweep);
            let [up, memory] = [figures.up.as_secs_f64(), figures.memory as f64 / 1e6];
            println!(
                "{shape:<14} {hosts:>5} {up:>8.2} s {memory:>6.1} MB {:>14.1} ms {:>11.2}",
                sweep * 1e3,
                sweep / alone
            );
        }
    }
}

struct Figures {
    up: Duration,
    memory: u64,
    sweep: Duration,
}

fn measure(shape: &str, hosts: u16) -> Figures {
    let tmp = temp_dir();
    let user = UserDir::at(tmp.path().join("r")).unwrap();
    let name = FabricName::default();
    let dir = FabricDir::open(&user, &name).unwrap();
    let manager = ManagerSetup { sweep_ms: Some(3_600_000), ..ManagerSetup::default() };
    let topology = shape.parse::<Shape>().unwrap().topology(FIRST_GUID);
    Setup { manager, ..Setup::default() }.keep(&dir, Some(&topology)).unwrap();
    drop(topology);
    let config = Config::default();
    let options = ConnectOptions { user: user.clone(), config, embedded: true, program: None };
    let before = memory();
    let start = Instant::now();
    let server = Server::spawn(ServerOptions::new(name.clone(), user)).unwrap();
    let sweeps = || {
        let manager = admin::status(&options, &name).unwrap().manager.unwrap();
        (manager.state == "master" && !manager.sweeping).then_some(manager.sweeps)
    };
    let swept = |more_than: u64| loop {
        match sweeps() {
            Some(sweeps) if sweeps > more_than => break sweeps,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    swept(0);
    let up = start.elapsed();
    let all: Vec<_> = (1..=hosts).map(|n| attach(&options, &name, n)).collect();
    for (attachment, _) in &all {
        let view = RouteView::map(attachment.routes().unwrap()).unwrap();
        assert!(view.own().active);
    }
    let shown = admin::show(&options, &name).unwrap();
    // A switch of the top level.
    let switch = shown.nodes.iter().rfind(|node| node.is_switch).unwrap();
    let switch = format!("{:#x}", switch.guid.0).parse().unwrap();
    drop(shown);
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let last = swept(0);
            let start = Instant::now();
            admin::reset(&options, &name, &switch).unwrap();
            swept(last);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let memory = memory().saturating_sub(before);
    drop(all);
    server.stop().unwrap();
    Figures { up, memory, sweep: times[ROUNDS / 2] }
}

/// Attaches a host that receives packets.
fn attach(options: &ConnectOptions, fabric: &FabricName, n: u16) -> (Attachment, SocketAddr) {
    let (mut attachment, _) =
        Attachment::open(options, fabric, &format!("h{n}"), Guid(n.into())).unwrap();
    let addr = SocketAddr::from(([127, 0, 0, 1], 4000 + n));
    attachment.set_endpoint(addr, false, false).unwrap();
    attachment.refresh().unwrap();
    attachment.refresh().unwrap();
    (attachment, addr)
}

/// Returns the proportional set size of this process.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
