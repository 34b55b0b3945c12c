//! Bridges to the fabric of another machine: when they end, and what ends with them.

mod common;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::Fabric;
use rdmux_fabric::client::{Attachment, ConnectOptions, admin};
use rdmux_fabric::server::{Server, ServerOptions, Setup};
use rdmux_fabric::{Config, FabricDir, FabricError, bridge};
use rdmux_runtime::UserDir;
use rdmux_wire::Guid;

/// A bridge in a thread, and the directory of its machine.
struct Joined {
    options: ConnectOptions,
    running: Option<JoinHandle<Result<(), FabricError>>>,
}

impl Joined {
    /// Waits until the bridge has ended.
    fn ended(&mut self) {
        self.running.take().unwrap().join().unwrap().unwrap();
    }
}

fn listening() -> Fabric {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    Fabric::with("switch:2", Setup { listen, ..common::unmanaged() }, Config::default())
}

fn join(fabric: &Fabric, idle_exit: Option<Duration>) -> Joined {
    join_for(fabric, idle_exit, Config::default())
}

fn join_for(fabric: &Fabric, idle_exit: Option<Duration>, config: Config) -> Joined {
    let status = admin::status(&fabric.options, &fabric.name).unwrap();
    let at: SocketAddr = status.listen.unwrap().parse().unwrap();
    let here = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let user = UserDir::at(fabric.tmp().join("other")).unwrap();
    let there = FabricDir::open(&user, &fabric.name).unwrap();
    bridge::keep_secret(&there, &std::fs::read(here.secret()).unwrap()).unwrap();
    let mut options = ServerOptions::new(fabric.name.clone(), user.clone());
    (options.idle_exit, options.config) = (idle_exit, config);
    let client = bridge::Client::open(at, &there, options).unwrap();
    let running = thread::spawn(|| client.run());
    let config = Config::default();
    let options = ConnectOptions { user, config, embedded: true, program: None };
    Joined { options, running: Some(running) }
}

fn attach(joined: &Joined, fabric: &Fabric) -> Attachment {
    Attachment::open(&joined.options, &fabric.name, "far", Guid(0xfa)).unwrap().0
}

fn is_up(joined: &Joined, fabric: &Fabric) -> bool {
    match admin::status(&joined.options, &fabric.name) {
        Ok(_) => true,
        Err(FabricError::NotUp { .. } | FabricError::Gone { .. }) => false,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn bridge_ends_with_its_fabric_also_when_nobody_uses_it() {
    let mut fabric = listening();
    let mut joined = join(&fabric, None);
    fabric.stop();
    joined.ended();
}

#[test]
fn clients_of_a_bridge_end_with_it_and_the_fabric_notices() {
    let fabric = listening();
    let mut joined = join(&fabric, None);
    let mut host = attach(&joined, &fabric);
    let attached = || admin::status(&fabric.options, &fabric.name).unwrap().attached.len();
    assert_eq!(attached(), 1);
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
    while host.refresh().is_ok() {}
    while attached() > 0 {
        thread::yield_now();
    }
    assert_eq!(host.refresh().unwrap_err().errno(), 5);
}

#[test]
fn host_behind_a_bridge_is_managed_and_has_no_data() {
    let fabric = listening();
    let mut joined = join(&fabric, None);
    let mut host = attach(&joined, &fabric);
    assert!(host.routes().is_none());
    let e = host.set_endpoint("127.0.0.1:9".parse().unwrap()).unwrap_err();
    assert!(e.errno() == libc::EOPNOTSUPP && e.to_string().contains("another machine"), "{e}");
    host.refresh().unwrap();
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
}

#[test]
fn bridge_on_demand_ends_after_its_last_client() {
    let fabric = listening();
    let mut joined = join(&fabric, Some(Duration::ZERO));
    let host = attach(&joined, &fabric);
    for _ in 0..20 {
        assert!(is_up(&joined, &fabric), "it has a client");
        let attached = admin::status(&fabric.options, &fabric.name).unwrap().attached;
        assert_eq!(attached.len(), 1, "by the bridge, not to a fabric of the other machine's own");
    }
    drop(host);
    joined.ended();
    // The fabric itself stays, and notices that the host is gone.
    while !admin::status(&fabric.options, &fabric.name).unwrap().attached.is_empty() {
        thread::yield_now();
    }
}

#[test]
fn bridge_that_is_told_to_stay_outlives_its_clients() {
    let fabric = listening();
    let mut joined = join(&fabric, Some(Duration::ZERO));
    let host = attach(&joined, &fabric);
    // The answer is the fabric's.
    let status = admin::up(&joined.options, &fabric.name, None).unwrap();
    assert_eq!(status.attached.len(), 1);
    drop(host);
    for _ in 0..20 {
        assert!(is_up(&joined, &fabric));
    }
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
    assert!(!is_up(&joined, &fabric));
}

#[test]
fn bridge_that_is_told_to_stay_does_not_tell_the_fabric() {
    let mut fabric = listening();
    fabric.stop();
    let mut options = ServerOptions::new(fabric.name.clone(), fabric.options.user.clone());
    options.idle_exit = Some(Duration::from_secs(3600));
    let server = Server::spawn(options).unwrap();
    let mut joined = join(&fabric, None);
    let status = admin::up(&joined.options, &fabric.name, None).unwrap();
    assert!(!status.stays, "it ends when nobody uses it");
    assert!(!admin::status(&fabric.options, &fabric.name).unwrap().stays);
    server.stop().unwrap();
    joined.ended();
}

#[test]
fn users_of_the_configuration_attach_by_a_bridge_and_may_not_command() {
    if !rustix::process::geteuid().is_root() {
        println!("only root can be another user: not run");
        return;
    }
    let fabric = listening();
    let passable = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(fabric.tmp(), passable).unwrap();
    let mut joined = join_for(&fabric, None, Config { users: vec![4001], ..Config::default() });
    let (options, name) = (joined.options.clone(), fabric.name.clone());
    let as_user = |uid: u32| {
        let (options, name) = (options.clone(), name.clone());
        let thread = thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
            let attached = Attachment::open(&options, &name, "a", Guid(1)).map(drop);
            let commands = [admin::status(&options, &name).map(drop), admin::down(&options, &name)];
            (attached.map_err(|e| e.errno()), commands.map(|c| c.unwrap_err().errno()))
        });
        thread.join().unwrap()
    };
    assert_eq!(as_user(4001), (Ok(()), [1, 1]));
    assert_eq!(as_user(4002), (Err(1), [1, 1]));
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
}
