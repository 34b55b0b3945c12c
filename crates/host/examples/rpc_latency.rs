//! Measures the latency of a request: `cargo run --release -p rdmux-host --example rpc_latency`.

use std::time::Instant;

use rdmux_cm::PortSpace;
use rdmux_host::service::{Service, ServiceOptions};
use rdmux_host::{Config, ConnectOptions, EventChannel, HostName, RuntimeDir};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::DeviceKind;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const CALLS: u32 = 100_000;
    let path = std::env::temp_dir().join(format!("rdmux-latency-{}", std::process::id()));
    let dir = RuntimeDir::at(&path)?;
    let host = HostName::new("latency")?;
    let mut options = ServiceOptions::new(host.clone(), dir.clone());
    options.addresses = Some(vec!["127.79.1.1".parse()?]);
    let service = Service::spawn(options)?;
    let client = ConnectOptions { dir, config: Config::default(), embedded: true, program: None }
        .connect(&host, DeviceKind::default())?;
    let channel = EventChannel::open(&client)?;
    let id = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0)?;
    let start = Instant::now();
    for _ in 0..CALLS {
        client.query_id(id)?;
    }
    println!("{:?} a request", start.elapsed() / CALLS);
    drop((channel, client));
    service.stop()?;
    std::fs::remove_dir_all(path)?;
    Ok(())
}
