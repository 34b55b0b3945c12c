//! The client side: what clients release, and their checks of a process that listens at a fabric's
//! socket.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::Fabric;
use rdmux_fabric::client::{Attachment, ConnectOptions, IsSm, admin};
use rdmux_fabric::proto::{NodeRef, PortRef, VERSION};
use rdmux_fabric::server::{FIRST_GUID, ServerOptions, Setup};
use rdmux_fabric::{Config, FabricDir, FabricError, FabricName, server::Server};
use rdmux_runtime::socket::{self, MAX_MESSAGE};
use rdmux_runtime::{Listener, UserDir};
use rdmux_testing::{TempDir, temp_dir};
use rdmux_wire::Guid;
use rustix::net::sockopt::{Timeout, socket_timeout};

fn port() -> PortRef {
    PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 }
}

#[test]
fn dropped_is_sm_and_attachment_are_released_despite_a_forked_descriptor() {
    let fabric = Fabric::up("switch:2");
    let attach = || Attachment::open(&fabric.options, &fabric.name, "a", Guid(7));
    let (attachment, _) = attach().unwrap();
    let port = PortRef { node: NodeRef::Name("a".to_owned()), port: 1 };
    let set = || IsSm::set(&fabric.options, &fabric.name, &port, false);
    let is_sm = set().unwrap();
    let forked = [attachment.as_fd(), is_sm.as_fd()].map(|fd| fd.try_clone_to_owned().unwrap());
    drop(is_sm);
    // The fabric notices that soon.
    while set().is_err() {
        thread::yield_now();
    }
    drop(attachment);
    while attach().is_err() {
        thread::yield_now();
    }
    drop(forked);
}

#[test]
fn waiting_is_sm_request_has_no_receive_timeout() {
    let fabric = Fabric::up("two");
    // The holder releases it first.
    let is_sm = IsSm::set(&fabric.options, &fabric.name, &port(), true).unwrap();
    assert_eq!(socket_timeout(&is_sm, Timeout::Recv).unwrap(), None);
}

#[test]
fn plan_for_a_running_fabric_is_refused_as_already_up() {
    let mut fabric = Fabric::up("two");
    let plan =
        admin::Plan { setup: Setup { simulate: true, ..Setup::default() }, ..Default::default() };
    let keep = |fabric: &Fabric| plan.keep(&fabric.options, &fabric.name).map(drop);
    assert!(matches!(keep(&fabric), Err(FabricError::AlreadyUp { .. })));
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    assert!(!Setup::load(&dir).unwrap().simulate);
    assert_eq!(admin::running(&fabric.options).unwrap(), [fabric.name.clone()]);
    fabric.stop();
    keep(&fabric).unwrap();
    assert!(Setup::load(&dir).unwrap().simulate);
    assert_eq!(admin::running(&fabric.options).unwrap(), []);
}

#[test]
fn second_fabric_of_a_name_is_already_up_at_once() {
    let fabric = Fabric::up("two");
    let mut options = ServerOptions::new(fabric.name.clone(), fabric.options.user.clone());
    // Longer than a fabric that is ending may take.
    options.lock_wait = Duration::from_secs(3600);
    assert!(matches!(Server::new(options), Err(FabricError::AlreadyUp { .. })));
}

#[test]
fn fabric_on_demand_waits_for_its_first_client_and_ends_after_its_last() {
    let mut fabric = Fabric::up("two");
    fabric.stop();
    for _ in 0..5 {
        let mut options = ServerOptions::new(fabric.name.clone(), fabric.options.user.clone());
        options.idle_exit = Some(Duration::ZERO);
        let server = Server::new(options).unwrap();
        let running = thread::spawn(|| server.run());
        // The process that started it may be slow.
        thread::yield_now();
        assert!(!admin::status(&fabric.options, &fabric.name).unwrap().stays);
        running.join().unwrap().unwrap();
    }
}

#[test]
fn concurrent_attachments_start_one_fabric_on_demand() {
    let tmp = temp_dir();
    let user = UserDir::at(tmp.path().join("r")).unwrap();
    let options = ConnectOptions { user, config: Config::default(), embedded: true, program: None };
    let name = FabricName::default();
    let held: Vec<_> = thread::scope(|scope| {
        let attach = |n: u64| Attachment::open(&options, &name, &format!("h{n}"), Guid(n)).unwrap();
        let all: Vec<_> = (1..=8).map(|n| scope.spawn(move || attach(n))).collect();
        all.into_iter().map(|attaching| attaching.join().unwrap()).collect()
    });
    assert_eq!(admin::status(&options, &name).unwrap().attached.len(), held.len());
    admin::down(&options, &name).unwrap();
    while !matches!(admin::status(&options, &name), Err(FabricError::NotUp { .. })) {
        thread::yield_now();
    }
}

/// A process that listens at a fabric's socket, but is no fabric.
struct Impostor {
    listener: Listener,
    options: ConnectOptions,
    _tmp: TempDir,
}

impl Impostor {
    fn new() -> Self {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let dir = FabricDir::open(&user, &FabricName::default()).unwrap();
        let listener = Listener::open(&dir, dir.lock_service().unwrap().unwrap()).unwrap();
        let config = Config::default();
        let options = ConnectOptions { user, config, embedded: true, program: None };
        Self { listener, options, _tmp: tmp }
    }

    /// Returns the error of a client that gets these answers, one to each of its messages.
    fn tell(&mut self, answers: &[Vec<u8>]) -> FabricError {
        let options = self.options.clone();
        let asking = thread::spawn(move || admin::status(&options, &FabricName::default()));
        let client: OwnedFd = loop {
            if let Some(client) = self.listener.accept().unwrap() {
                break client;
            }
            thread::yield_now();
        };
        socket::set_nonblocking(&client, false).unwrap();
        let mut buf = vec![0; MAX_MESSAGE];
        for answer in answers {
            socket::recv_bytes(client.as_fd(), &mut buf, &mut Vec::new()).unwrap();
            socket::send_bytes(client.as_fd(), answer, &[]).unwrap();
        }
        drop(client);
        asking.join().unwrap().unwrap_err()
    }
}

#[test]
fn invalid_fabric_answers_are_version_protocol_or_gone_errors() {
    let mut impostor = Impostor::new();
    // An answer is Ok, followed by its value.
    let welcome = || vec![u8::try_from(VERSION).unwrap(), 0];
    let e = impostor.tell(&[vec![99, 0]]);
    assert!(matches!(e, FabricError::Version { theirs: 99, ours: VERSION, .. }), "{e}");
    assert_eq!(e.errno(), libc::EPROTO);
    for nonsense in [vec![0xff; 9], welcome()[..1].to_vec(), [welcome(), vec![7]].concat()] {
        let e = impostor.tell(&[nonsense]);
        assert!(matches!(e, FabricError::Protocol { .. }), "{e}");
    }
    let length = |length: u64| {
        let mut answer = vec![0];
        socket::append(&length, &mut answer).unwrap();
        answer
    };
    let e = impostor.tell(&[welcome(), length(u64::MAX)]);
    assert!(e.to_string().contains("too long"), "{e}");
    // The connection ends in the middle of an answer, and before any.
    for answers in [&[welcome(), length(5)][..], &[welcome()], &[]] {
        let e = impostor.tell(answers);
        assert!(matches!(e, FabricError::Gone { .. }), "{e}");
        assert_eq!(e.errno(), libc::EIO);
    }
}

#[test]
fn admin_down_returns_after_the_listening_socket_is_closed() {
    let tmp = temp_dir();
    let user = UserDir::at(tmp.path().join("r")).unwrap();
    let name = FabricName::new("a").unwrap();
    let dir = FabricDir::open(&user, &name).unwrap();
    let options = ConnectOptions { user, config: Config::default(), embedded: true, program: None };
    let mut listener = Listener::open(&dir, dir.lock_service().unwrap().unwrap()).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The fabric closes the connection that carries the request to end, and takes longer for
            // the rest.
            for _ in 0..2 {
                while listener.accept().unwrap().is_none() {
                    thread::yield_now();
                }
            }
            ended.store(true, Ordering::SeqCst);
            drop(listener);
        });
        admin::down(&options, &name).unwrap();
        assert!(ended.load(Ordering::SeqCst));
    });
    assert!(matches!(admin::down(&options, &name), Err(FabricError::NotUp { .. })));
}
