//! Start, end and restart of services.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Host, loopback_address, next_event};
use rdmux_host::client::admin;
use rdmux_host::service::{Service, ServiceOptions};
use rdmux_host::{Config, ConnectOptions, HostError, HostName, RuntimeDir};
use rdmux_testing::{TempDir, temp_dir};
use rdmux_verbs::control::{Control, ControlError, DeviceKind};

#[test]
fn second_service_of_a_host_is_already_up() {
    let host = Host::start();
    let error = Service::new(host.options.clone()).unwrap_err();
    assert!(matches!(error, HostError::AlreadyUp { .. }), "{error}");
}

#[test]
fn address_in_use_is_eaddrinuse_and_names_the_holding_process() {
    let host = Host::start();
    let dir = temp_dir();
    let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
    let mut options = ServiceOptions::new(HostName::new("second").unwrap(), runtime);
    options.addresses = Some(vec![host.ip]);
    let error = Service::new(options).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE);
    let text = error.to_string();
    let pid = format!("process {}", std::process::id());
    assert!(text.contains(&host.ip.to_string()) && text.contains(&pid), "{text}");
}

#[test]
fn clients_of_a_service_that_ends_fail_and_a_new_one_starts_clean() {
    let mut host = Host::start();
    let client = host.client();
    client.new_slot().unwrap();
    host.service.take().unwrap().stop().unwrap();
    assert!(matches!(next_event(&client), Err(ControlError::Gone)));
    assert!(matches!(client.new_slot(), Err(ControlError::Gone)));
    assert!(client.is_gone());
    assert!(!host.host_dir().socket().exists());
    let error =
        host.connect_options().connect(&host.options.host, DeviceKind::default()).unwrap_err();
    assert!(matches!(error, HostError::NotUp { .. }), "{error}");

    // What a killed service leaves behind does not stop the next one.
    std::fs::write(host.host_dir().socket(), "stale").unwrap();
    host.service = Some(Service::spawn(host.options.clone()).unwrap());
    assert_eq!(host.status().clients.len(), 0);
}

#[test]
fn the_node_guid_of_a_host_outlives_its_service_and_its_queue_pair_numbers_do_not() {
    let mut host = Host::start();
    let life = |host: &Host| {
        let guid = host.client().info().node_guid;
        // Eight slots that were never used before.
        let clients: Vec<_> = (0..8).map(|_| host.client()).collect();
        (guid, clients.iter().map(|c| c.info().slot).collect::<Vec<_>>())
    };
    let (guid, slots) = life(&host);
    assert_eq!(guid.0 >> 56, 0x02, "locally administered, and of one node: {guid}");
    host.service.take().unwrap().stop().unwrap();
    host.service = Some(Service::spawn(host.options.clone()).unwrap());
    let (again, next) = life(&host);
    assert_eq!(again, guid);
    assert_ne!(next, slots);
    assert_eq!(host.status().node_guid, guid);
    assert_ne!(Host::start().client().info().node_guid, guid);
}

#[test]
fn a_service_started_on_demand_ends_after_its_last_client() {
    let (host, first) = Host::start_on_demand(Duration::from_millis(50));
    let client = host.client();
    drop(first);
    assert!(client.new_slot().is_ok());
    drop(client);
    wait_for_end(&host);
    assert!(!host.host_dir().socket().exists());
}

#[test]
fn a_service_that_is_held_outlives_one_that_is_not() {
    let (held, first) = Host::start_on_demand(Duration::from_millis(50));
    let (hold, devices) = held.connect_options().hold(&held.options.host).unwrap();
    assert!(!devices.is_empty());
    drop(first);
    let (other, first) = Host::start_on_demand(Duration::from_millis(50));
    drop((other.client(), first));
    wait_for_end(&other);
    assert!(!held.service.as_ref().unwrap().is_finished());
    drop(hold);
    wait_for_end(&held);
}

fn wait_for_end(host: &Host) {
    let service = host.service.as_ref().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !service.is_finished() {
        assert!(std::time::Instant::now() < deadline, "it goes on");
        std::thread::yield_now();
    }
}

#[test]
fn concurrent_clients_start_one_service() {
    let dir = temp_dir();
    let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
    let name = HostName::new("meeting").unwrap();
    rdmux_host::Registry::open(&runtime).unwrap().assign(&name, loopback_address()).unwrap();
    let mut config = Config::default();
    config.service.idle_exit = Duration::from_secs(1);
    let options =
        Arc::new(ConnectOptions { dir: runtime.clone(), config, embedded: true, program: None });
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (options, name) = (Arc::clone(&options), name.clone());
            std::thread::spawn(move || {
                options.connect_or_start(&name, DeviceKind::default()).unwrap()
            })
        })
        .collect();
    let clients: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let mut slots: Vec<_> = clients.iter().map(|c| c.info().slot.slot).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 8);
    assert_eq!(admin::status(&runtime, &name).unwrap().clients.len(), 8);
    admin::down(&runtime, &name).unwrap();
}

#[test]
fn host_up_keeps_the_service_until_host_down() {
    let host = Host::start_with(|o| o.idle_exit = Some(Duration::from_secs(3600)));
    let status = admin::up(&host.connect_options(), &host.options.host, None).unwrap();
    assert_eq!((status.host.as_str(), status.port), ("test", 4791));
    assert_eq!(status.gids.len(), 1);
    assert_eq!(status.gids[0].gid.ip(), host.ip);
    assert_eq!(status.pid, std::process::id());
    let running = admin::running(&host.options.dir).unwrap();
    assert_eq!(running, std::slice::from_ref(&host.options.host));
    let client = host.client();
    let of_client = &host.status().clients[0];
    assert_eq!(of_client.slots, [client.info().slot.slot]);
    assert_eq!(of_client.pid.cast_unsigned(), std::process::id());
    admin::down(&host.options.dir, &host.options.host).unwrap();
    assert!(matches!(next_event(&client), Err(ControlError::Gone)));
}

#[test]
fn a_host_that_was_ended_is_not_up_for_the_next_command() {
    for _ in 0..16 {
        let host = Host::start_with(|o| o.idle_exit = Some(Duration::from_secs(3600)));
        admin::down(&host.options.dir, &host.options.host).unwrap();
        assert_eq!(admin::running(&host.options.dir).unwrap(), []);
    }
}

#[test]
fn a_program_that_cannot_be_run_is_named() {
    let dir = temp_dir();
    let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
    let config = Config::default();
    let options = ConnectOptions { dir: runtime, config, embedded: true, program: None };
    let name = HostName::new("nowhere").unwrap();
    rdmux_host::Registry::open(&options.dir)
        .unwrap()
        .assign(&name, "192.0.2.1".parse().unwrap())
        .unwrap();
    let error = options.connect_or_start(&name, DeviceKind::default()).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

/// Returns a host of a runtime directory whose registry has this text.
fn registered(name: &str, text: &str) -> (TempDir, ServiceOptions) {
    let dir = temp_dir();
    let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
    std::fs::write(runtime.path().join("registry"), text).unwrap();
    (dir, ServiceOptions::new(HostName::new(name).unwrap(), runtime))
}

fn address_of(options: &ServiceOptions) -> String {
    let status = admin::status(&options.dir, &options.host).unwrap();
    status.gids[0].gid.ip().to_string()
}

#[test]
fn a_drawn_address_that_another_directory_uses_is_exchanged_for_a_free_one() {
    let (_dir, first) = registered("a", "");
    let _first = Service::spawn(first.clone()).unwrap();
    let taken = address_of(&first);
    // The registries of two directories that start at the same address.
    let (_dir, second) = registered("b", &format!("c 127.77.99.99\nb {taken}\n"));
    let service = Service::spawn(second.clone()).unwrap();
    let address = address_of(&second);
    assert_ne!(address, taken);
    let registry = std::fs::read_to_string(second.dir.path().join("registry")).unwrap();
    assert_eq!(registry, format!("c 127.77.99.99\nb {address}\n"));
    service.stop().unwrap();
    let _service = Service::spawn(second.clone()).unwrap();
    assert_eq!(address_of(&second), address);
}

#[test]
fn a_host_without_an_address_gets_one_that_nobody_uses() {
    let (_dir, first) = registered("a", "");
    // All but two addresses of the block where this directory starts.
    let runtime = first.dir.clone();
    let free: Vec<_> = rdmux_host::Registry::open(&runtime).unwrap().free().take(254).collect();
    let _first = Service::spawn(first.clone()).unwrap();
    let taken = address_of(&first);
    let others = free.iter().map(ToString::to_string).filter(|a| *a != taken);
    let text: String = others.skip(1).zip(1..).map(|(a, n)| format!("h{n} {a}\n")).collect();
    // The same directory represents one with a path that has the same hash.
    std::fs::write(runtime.path().join("registry"), text).unwrap();
    let mut second = first.clone();
    second.host = HostName::new("second").unwrap();
    let _second = Service::spawn(second.clone()).unwrap();
    assert_ne!(address_of(&second), taken);
}

#[test]
fn an_assigned_address_in_use_is_refused_with_its_holder_and_what_to_do() {
    let (_dir, first) = registered("a", "");
    let _first = Service::spawn(first.clone()).unwrap();
    let taken = address_of(&first);
    let (_dir, second) = registered("b", &format!("b {taken} assigned\n"));
    let error = Service::new(second.clone()).unwrap_err();
    assert!(matches!(error, HostError::AssignedInUse { .. }), "{error}");
    assert_eq!(error.errno(), libc::EADDRINUSE);
    let text = error.to_string();
    let pid = format!("process {}", std::process::id());
    assert!(text.contains(&taken) && text.contains(&pid), "{text}");
    assert!(text.contains("rdmux host up b --addr"), "{text}");
}

#[test]
fn lock_held_without_a_listener_is_unresponsive_with_its_pid() {
    let (_dir, mut options) = registered("a", "");
    let host = options.dir.host(&options.host).unwrap();
    let lock = std::fs::File::create(host.path().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    options.lock_wait = Duration::from_millis(1);
    let error = Service::new(options).unwrap_err();
    let own = rustix::process::getpid();
    let is_ours = matches!(&error, HostError::Unresponsive { pid, .. } if *pid == Some(own));
    assert!(is_ours, "{error}");
    assert!(error.to_string().contains("rdmux host down --force a"), "{error}");
}

#[test]
fn missing_local_address_error_names_the_configuration_key() {
    let (_dir, mut options) = registered("default", "");
    options.config.addresses = Some(vec!["198.51.100.77".parse().unwrap()]);
    let text = Service::new(options).unwrap_err().to_string();
    assert!(text.contains("`addresses`") && text.contains("198.51.100.77"), "{text}");
    assert!(!text.contains("--addr"), "{text}");
}
