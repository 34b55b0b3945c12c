//! Clients that send garbage, users without permission, and machines that do not know the secret.

mod common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::thread;

use common::{DIRECTED, Fabric, Manager};
use rdmux_fabric::bridge;
use rdmux_fabric::client::{Attachment, Capture, ConnectOptions, IsSm, admin};
use rdmux_fabric::proto::mad::{FIRST, MAX_RECORD, decode};
use rdmux_fabric::proto::{
    AdminRequest, AttachmentRequest, Described, FileReply, FileRequest, Greeting, HostPort,
    NodeRef, PortRef, Reply, Role, Status,
};
use rdmux_fabric::server::{FIRST_GUID, Server, ServerOptions, Setup};
use rdmux_fabric::{Config, FabricDir, FabricError};
use rdmux_link::rows::Rows;
use rdmux_runtime::connect::connect;
use rdmux_runtime::socket::MessageError;
use rdmux_runtime::start::raise_descriptor_limit;
use rdmux_runtime::{UserDir, socket};
use rdmux_subnet::umad::Registration;
use rdmux_testing::lingering;
use rdmux_wire::Guid;
use rdmux_wire::mad::Method;
use rdmux_wire::smp::Smp;
use std::time::Duration;

/// Returns pseudo-random bytes from a seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn clients_sending_garbage_are_disconnected_without_effect_on_others() {
    let fabric = Fabric::up("two");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let mut manager = Manager::open(&fabric.options, &fabric.name, &port);
    let roles = [
        None,
        Some(Role::Attach { host: "x".into(), node_guid: Guid(9), port: HostPort::only() }),
        Some(Role::OpenFile(port.clone())),
        Some(Role::Mads { file: 1, key: [0; 16] }),
        Some(Role::IsSm { port, wait: true }),
        Some(Role::Admin),
    ];
    for (n, role) in roles.iter().enumerate() {
        for seed in 0..40 {
            let socket = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
            if let Some(role) = role {
                let greeting = Greeting::new(role.clone());
                socket::send(socket.as_fd(), &greeting, &[], &mut Vec::new()).unwrap();
            }
            for (more, length) in [1, 3, 17, 64, 320, 33_000].into_iter().enumerate() {
                let bytes = noise((n * 1000 + seed * 10 + more) as u64 + 1, length);
                if socket::send_bytes(socket.as_fd(), &bytes, &[]).is_err() {
                    break;
                }
            }
            if matches!(role, Some(Role::Admin)) {
                wait_for_the_end(socket.as_fd());
            }
        }
        manager.get(&[1], 0x11, 0);
    }
    let status = admin::status(&fabric.options, &fabric.name).unwrap();
    let broke = status.counters.iter().find(|(name, _)| name == "clients_broke").unwrap();
    // Others may have left before the fabric read their message, or seem to be of another version.
    assert!(broke.1 >= 40, "{broke:?}");
}

#[test]
fn fabric_answers_while_the_close_of_a_descriptor_that_it_was_passed_blocks() {
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let attach = Role::Attach { host: "x".into(), node_guid: Guid(9), port: HostPort::only() };
    // The message that precedes the one with the descriptor.
    let greeting = |role: Role| postcard::to_stdvec(&Greeting::new(role)).unwrap();
    let cases: [(&str, Vec<u8>); 6] = [
        ("with a greeting", Vec::new()),
        ("behind a greeting that makes no sense, so that nobody receives it", b"x".to_vec()),
        ("as a host", greeting(attach)),
        ("as a command", greeting(Role::Admin)),
        ("beside a file", greeting(Role::OpenFile(port.clone()))),
        ("as the port's manager", greeting(Role::IsSm { port, wait: true })),
    ];
    for (what, before) in cases {
        let mut fabric = Fabric::up("two");
        fabric.stop();
        let options = ServerOptions::new(fabric.name.clone(), fabric.options.user.clone());
        let server = Server::new(options).unwrap();
        // It is connected, but not served yet, so that its descriptor is the last.
        let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
        let client = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
        let (fd, peer) = lingering();
        if !before.is_empty() {
            socket::send_bytes(client.as_fd(), &before, &[]).unwrap();
        }
        let message = greeting(Role::Admin);
        socket::send_bytes(client.as_fd(), &message, &[fd.as_fd()]).unwrap();
        drop(fd);
        let server = thread::spawn(|| server.run());
        // The first may be answered before the descriptor is received.
        for _ in 0..20 {
            assert!(admin::status(&fabric.options, &fabric.name).is_ok(), "{what}");
        }
        drop(client);
        assert!(admin::status(&fabric.options, &fabric.name).is_ok(), "{what}");
        drop(peer);
        admin::down(&fabric.options, &fabric.name).unwrap();
        server.join().unwrap().unwrap();
    }
}

#[test]
fn fabric_answers_while_the_close_of_a_descriptor_that_came_with_a_datagram_blocks() {
    // Sometimes the fabric closes its descriptor before this test closes its own, which is then the
    // last.
    for _ in 0..10 {
        pass_with_a_datagram();
    }
}

/// Returns a connection that has greeted, and the fabric's answer.
fn greeted(dir: &FabricDir, role: Role) -> (OwnedFd, Vec<u8>) {
    let socket = connect(dir, Duration::from_secs(10)).unwrap().unwrap();
    socket::send(socket.as_fd(), &Greeting::new(role), &[], &mut Vec::new()).unwrap();
    let (mut buf, mut fds) = (vec![0; socket::MAX_MESSAGE], Vec::new());
    let reply = socket::recv_bytes(socket.as_fd(), &mut buf, &mut fds).unwrap().to_vec();
    (socket, reply)
}

fn pass_with_a_datagram() {
    let fabric = Fabric::up("two");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let greeted = |role| greeted(&dir, role);
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let (control, reply) = greeted(Role::OpenFile(port));
    let (_, reply): (u32, Reply<FileReply>) = socket::decode(&reply).unwrap();
    let Ok(FileReply::Opened { file, key }) = reply else { panic!("{reply:?}") };
    let (mads, _) = greeted(Role::Mads { file, key });
    let (fd, peer) = lingering();
    let sender = mads.try_clone().unwrap();
    thread::spawn(move || {
        socket::send_bytes(sender.as_fd(), b"x", &[fd.as_fd()]).unwrap();
        drop(fd);
    });
    for _ in 0..20 {
        admin::status(&fabric.options, &fabric.name).unwrap();
    }
    // Both connections of the file have ended.
    for socket in [&mads, &control] {
        wait_for_the_end(socket.as_fd());
    }
    drop(peer);
}

#[test]
fn unreachable_waiting_is_sm_clients_are_disconnected_and_skipped() {
    // Each has a descriptor at both ends.
    raise_descriptor_limit();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let most = (most / 2).saturating_sub(200).min(4000);
    let fabric = Fabric::up("two");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let held = IsSm::set(&fabric.options, &fabric.name, &port, false).unwrap();
    let waiting: Vec<_> = std::iter::repeat_with(|| {
        let socket = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
        let greeting = Greeting::new(Role::IsSm { port: port.clone(), wait: true });
        socket::send(socket.as_fd(), &greeting, &[], &mut Vec::new()).unwrap();
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Read).unwrap();
        socket
    })
    .take(most)
    .collect();
    // All of them are waiting: earlier connections were served first.
    admin::status(&fabric.options, &fabric.name).unwrap();
    drop(held);
    // If they were still waiting, each would get the port before this one.
    let _held = IsSm::set(&fabric.options, &fabric.name, &port, true).unwrap();
    admin::status(&fabric.options, &fabric.name).unwrap();
    drop(waiting);
}

#[test]
fn client_that_shuts_down_without_reading_its_answers_is_disconnected() {
    let fabric = Fabric::up("two");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let files = || admin::status(&fabric.options, &fabric.name).unwrap().files.len();
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let (control, _) = greeted(&dir, Role::OpenFile(port));
    socket::set_nonblocking(&control, true).unwrap();
    let question = FileRequest::Unregister { agent: 0 };
    let fill = || {
        let send = || socket::send(control.as_fd(), &question, &[], &mut Vec::new());
        std::iter::repeat_with(send).take_while(Result::is_ok).count()
    };
    // The fabric reads no more of its requests, because the answers wait.
    while fill() > 0 {
        assert_eq!(files(), 1);
    }
    rustix::net::shutdown(&control, rustix::net::Shutdown::Both).unwrap();
    // The end may be handled after the first of these.
    assert!((0..20).any(|_| files() == 0), "the file is still open");
}

/// Waits until the fabric has closed a connection.
fn wait_for_the_end(socket: BorrowedFd<'_>) {
    let (mut buf, mut fds) = ([0; 4096], Vec::new());
    while socket::recv_bytes(socket, &mut buf, &mut fds).is_ok_and(|bytes| !bytes.is_empty()) {}
}

/// Acts as another user, in a thread of its own.
fn as_user<T: Send + 'static>(uid: u32, act: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
        act()
    });
    thread.join().unwrap()
}

#[test]
fn other_users_are_refused_unless_the_configuration_lets_them_attach() {
    let Some(fabric) = fabric_for(&[4001], "switch:2") else { return };
    let attach_as = |uid: u32| {
        let (options, name) = (fabric.options.clone(), fabric.name.clone());
        as_user(uid, move || Attachment::open(&options, &name, "a", Guid(u64::from(uid))).map(drop))
    };
    attach_as(4001).unwrap();
    let e = attach_as(4002).unwrap_err();
    assert!(e.errno() == 1 && e.to_string().contains("[fabric]"), "{e}");
    let (options, name) = (fabric.options.clone(), fabric.name.clone());
    let e = as_user(4001, move || admin::down(&options, &name)).unwrap_err();
    assert_eq!(e.errno(), 1, "{e}");
    let status = admin::status(&fabric.options, &fabric.name).unwrap();
    let refused = status.counters.iter().find(|(name, _)| name == "clients_refused").unwrap();
    assert_eq!((status.adapters, refused.1), (2, 2));
}

#[test]
fn programs_of_other_users_query_the_subnet_but_do_not_manage_it() {
    let Some(fabric) = fabric_for(&[4001], "switch:2") else { return };
    let port = PortRef { node: NodeRef::Guid(Guid(FIRST_GUID.0 + 0x100)), port: 1 };
    let (options, name, at) = (fabric.options.clone(), fabric.name.clone(), port.clone());
    let refused = |e: FabricError| assert_eq!(e.errno(), libc::EPERM, "{e}");
    let mut manager = as_user(4001, move || {
        let e = IsSm::set(&options, &name, &at, true).unwrap_err();
        assert!(e.to_string().contains("may not manage its subnet"), "{e}");
        refused(e);
        Manager::open(&options, &name, &at)
    });
    for class in [0x01, 0x81] {
        let takes = Registration { class, methods: 1 << Method::GET.0, ..DIRECTED };
        refused(manager.file.register(&takes).unwrap_err());
    }
    let asked = Registration { qpn: 1, class: 4, methods: 1 << Method::GET.0, ..DIRECTED };
    manager.file.register(&asked).unwrap();
    // Of the port that cables the switch to the other adapter.
    const PORT_INFO: u16 = 0x15;
    let info = manager.get(&[1], PORT_INFO, 2);
    for method in [Method::SET, Method::SEND, Method::TRAP, Method::TRAP_REPRESS, Method::GET_RESP]
    {
        let mut smp = Smp::directed(method, PORT_INFO, 2, &[1]);
        smp.data = info.data;
        let set = manager.request(&smp);
        refused(manager.file.check(&set).unwrap_err());
        manager.file.send_mad(&set).unwrap();
        let back = manager.file.recv_mad().unwrap();
        assert_eq!((back.agent, back.status), (manager.agent, 1), "{method:?}");
    }
    assert_eq!(manager.get(&[1], PORT_INFO, 2).data, info.data);
    let mut owner = Manager::open(&fabric.options, &fabric.name, &port);
    let mut set = Smp::directed(Method::SET, PORT_INFO, 2, &[1]);
    set.data = info.data;
    let set = owner.request(&set);
    owner.file.check(&set).unwrap();
    drop(IsSm::set(&fabric.options, &fabric.name, &port, false).unwrap());
}

/// Starts a fabric to which these users may attach. None if this process cannot change its user.
fn fabric_for(users: &[u32], shape: &str) -> Option<Fabric> {
    if !rustix::process::geteuid().is_root() {
        println!("only root can be another user: not run");
        return None;
    }
    let config = Config { users: users.to_vec(), ..Config::default() };
    let fabric = Fabric::with(shape, common::unmanaged(), config);
    std::fs::set_permissions(fabric.tmp(), std::fs::Permissions::from_mode(0o711)).unwrap();
    Some(fabric)
}

#[test]
fn captures_of_a_user_end_when_the_users_host_gives_the_port_back() {
    let Some(fabric) = fabric_for(&[4001, 4002], "switch:1") else { return };
    let port = PortRef { node: NodeRef::Guid(Guid(FIRST_GUID.0 + 0x100)), port: 1 };
    let attach_as = |uid: u32| {
        let (options, name) = (fabric.options.clone(), fabric.name.clone());
        // The owner may have any adapter.
        let attached = as_user(uid, move || Attachment::open(&options, &name, "a", Guid(4001)));
        let (attachment, described) = attached.unwrap();
        assert_eq!(NodeRef::Guid(described.node_guid), port.node);
        attachment
    };
    let capture_as = |uid: u32| {
        let (options, name, port) = (fabric.options.clone(), fabric.name.clone(), port.clone());
        as_user(uid, move || Capture::start(&options, &name, &port))
    };
    let first = attach_as(4001);
    let (mut of_first, mut of_owner) = (capture_as(4001).unwrap(), capture_as(0).unwrap());
    assert_eq!(capture_as(4002).unwrap_err().errno(), 1);
    drop(first);
    let _second = attach_as(0);
    for user in [4001, 4002] {
        assert_eq!(capture_as(user).unwrap_err().errno(), 1);
    }
    Manager::open(&fabric.options, &fabric.name, &port).get(&[1], 0x11, 0);
    loop {
        match of_first.poll_frame() {
            Ok(None) => thread::yield_now(),
            Ok(Some(_)) => panic!("a datagram of another user's host"),
            Err(e) => break assert!(matches!(e, FabricError::Gone { .. }), "{e}"),
        }
    }
    while of_owner.poll_frame().unwrap().is_none() {
        thread::yield_now();
    }
}

#[test]
fn adapters_of_a_users_host_are_eperm_for_other_users_and_their_cables_are_not() {
    let Some(mut fabric) = fabric_for(&[4001, 4002], "switch:2") else { return };
    let attach_as = |fabric: &Fabric, uid: u32, (host, guid, number): (&'static str, u64, u8)| {
        let (options, name) = (fabric.options.clone(), fabric.name.clone());
        let port = HostPort { number, of: 2, here: vec![1, 2] };
        as_user(uid, move || Attachment::open_port(&options, &name, host, Guid(guid), &port))
    };
    let refused = |attached: Result<_, FabricError>| {
        let e = attached.map(|(_, described): (Attachment, Described)| described).unwrap_err();
        assert!(e.errno() == libc::EPERM && e.to_string().contains("user 4001"), "{e}");
    };
    let all_gone = |fabric: &Fabric| {
        while !admin::status(&fabric.options, &fabric.name).unwrap().attached.is_empty() {
            thread::yield_now();
        }
    };
    let (first, described) = attach_as(&fabric, 4001, ("a", 0x70, 1)).unwrap();
    let adapter = described.node_guid;
    refused(attach_as(&fabric, 4002, ("a", 0x70, 2)));
    let second = attach_as(&fabric, 4001, ("a", 0x70, 2)).unwrap();
    drop((first, second));
    fabric.stop();
    fabric.start();
    for number in [1, 2] {
        refused(attach_as(&fabric, 4002, ("a", 0x70, number)));
    }
    refused(attach_as(&fabric, 4002, ("b", 0x71, 1)));
    let (other, described) = attach_as(&fabric, 4002, ("a", 0x80, 1)).unwrap();
    assert_eq!((described.node_guid, described.port.phys_state), (Guid(0x80), 5));
    drop(other);
    all_gone(&fabric);
    let (held, described) = attach_as(&fabric, 4001, ("a", 0x70, 1)).unwrap();
    assert_eq!((described.node_guid, described.port.phys_state), (adapter, 5));
    drop(held);
    all_gone(&fabric);
    attach_as(&fabric, 0, ("a", 0x70, 1)).unwrap();
}

#[test]
fn counter_rows_beyond_a_users_share_are_refused_and_counted() {
    let Some(fabric) = fabric_for(&[4001], "switch:6") else { return };
    let attach_as = |uid: u32, guid: u64| {
        let (options, name) = (fabric.options.clone(), fabric.name.clone());
        let host = format!("h{guid}");
        as_user(uid, move || Attachment::open(&options, &name, &host, Guid(guid))).unwrap().0
    };
    let rows = Rows::create().unwrap();
    let refused = |host: &mut Attachment| {
        host.refresh().unwrap();
        let status = admin::status(&fabric.options, &fabric.name).unwrap();
        status.counters.iter().find(|(name, _)| name == "rows_refused").unwrap().1
    };
    let [mut full, mut other, mut more @ ..] = [1, 2, 3, 4, 5].map(|guid| attach_as(4001, guid));
    for host in more.iter_mut().chain([&mut full]) {
        for process in 0..2048 {
            host.count_in(process, rows.as_fd()).unwrap();
        }
        assert_eq!(refused(host), 0);
    }
    other.count_in(0, rows.as_fd()).unwrap();
    assert_eq!(refused(&mut other), 1);
    full.process_gone(7).unwrap();
    assert_eq!(refused(&mut full), 1);
    other.count_in(0, rows.as_fd()).unwrap();
    assert_eq!(refused(&mut other), 1);
    drop(other);
    attach_as(0, 6).count_in(0, rows.as_fd()).unwrap();
    assert_eq!(refused(&mut full), 1);
}

#[test]
fn counts_are_read_once_a_round_for_a_user_and_others_get_their_turns() {
    let Some(mut fabric) = fabric_for(&[4001], "switch:2") else { return };
    fabric.stop();
    let mut options = ServerOptions::new(fabric.name.clone(), fabric.options.user.clone());
    options.config = Config { users: vec![4001], ..Config::default() };
    let server = Server::new(options).unwrap();
    // They are connected, but not served yet, so that all their messages wait.
    let connect_as = |uid: u32, messages: Vec<Vec<u8>>| {
        let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
        as_user(uid, move || {
            let socket = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
            for message in &messages {
                socket::send_bytes(socket.as_fd(), message, &[]).unwrap();
            }
            socket
        })
    };
    let greeting = |role: Role| postcard::to_stdvec(&Greeting::new(role)).unwrap();
    let floods = ["a", "b"].map(|host| {
        let guid = Guid(u64::from(host.as_bytes()[0]));
        let attach = Role::Attach { host: host.into(), node_guid: guid, port: HostPort::only() };
        let refresh = postcard::to_stdvec(&AttachmentRequest::Refresh).unwrap();
        let refreshes = std::iter::repeat_n(refresh, 60);
        connect_as(4001, std::iter::once(greeting(attach)).chain(refreshes).collect())
    });
    let status = postcard::to_stdvec(&AdminRequest::Status).unwrap();
    let command = connect_as(0, vec![greeting(Role::Admin), status]);
    let server = thread::spawn(|| server.run());
    let (mut buf, mut fds) = (vec![0; socket::MAX_MESSAGE], Vec::new());
    // The answers to the greeting and the request, before the status itself.
    for _ in 0..2 {
        socket::recv_bytes(command.as_fd(), &mut buf, &mut fds).unwrap();
    }
    let status = socket::recv_bytes(command.as_fd(), &mut buf, &mut fds).unwrap();
    let counters = socket::decode::<Status>(status).unwrap().counters;
    let read = counters.iter().find(|(name, _)| name == "counts_read").unwrap().1;
    // The fabric accepts one connection in each round, so this is the third or fourth one.
    assert!((1..8).contains(&read), "{read}");
    // All of them are answered.
    for flood in &floods {
        for _ in 0..61 {
            socket::recv_bytes(flood.as_fd(), &mut buf, &mut fds).unwrap();
        }
    }
    admin::down(&fabric.options, &fabric.name).unwrap();
    server.join().unwrap().unwrap();
}

/// Opens a management interface as a user. Returns its two connections, for requests and for datagrams.
fn open_as(fabric: &Fabric, uid: u32) -> [OwnedFd; 2] {
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    as_user(uid, move || {
        let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
        let (control, reply) = greeted(&dir, Role::OpenFile(port));
        let (_, reply): (u32, Reply<FileReply>) = socket::decode(&reply).unwrap();
        let Ok(FileReply::Opened { file, key }) = reply else { panic!("{reply:?}") };
        [control, greeted(&dir, Role::Mads { file, key }).0]
    })
}

#[test]
fn records_of_which_a_part_has_come_are_within_shares_of_users() {
    let Some(fabric) = fabric_for(&[4001, 4002], "two") else { return };
    const SHORT: usize = FIRST + 9;
    // Makes the first message of a request of this many bytes.
    let first = |length: usize| {
        let mut record = vec![0; FIRST];
        record[8..12].copy_from_slice(&60_000_u32.to_le_bytes());
        record[16..20].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
        record
    };
    let send = |[control, mads]: &[OwnedFd; 2], messages: &[Vec<u8>]| {
        for message in messages {
            socket::send_bytes(mads.as_fd(), message, &[]).unwrap();
        }
        // The answer follows everything that was sent before.
        let question = FileRequest::Unregister { agent: 0 };
        socket::send(control.as_fd(), &question, &[], &mut Vec::new()).unwrap();
        socket::recv_bytes(control.as_fd(), &mut [0; 4096], &mut Vec::new()).unwrap();
    };
    let begin = |file, length| send(file, &[first(length)]);
    // Returns the status of a request that was returned because it cannot be sent.
    let status = |[_, mads]: &[OwnedFd; 2]| {
        let mut buf = [0; FIRST];
        let back = socket::try_recv_bytes(mads.as_fd(), &mut buf, &mut Vec::new()).unwrap();
        decode(back).unwrap().status
    };
    let rest = vec![0; SHORT - FIRST];
    let files = || admin::status(&fabric.options, &fabric.name).unwrap().files.len();
    let [one, two, third] = [(); 3].map(|()| open_as(&fabric, 4001));
    begin(&one, MAX_RECORD);
    begin(&two, MAX_RECORD);
    for _ in 0..2 {
        begin(&third, SHORT);
        assert_eq!(status(&third), 12, "ENOMEM");
        send(&third, std::slice::from_ref(&rest));
    }
    let [other, owners] = [4002, 0].map(|uid| open_as(&fabric, uid));
    begin(&owners, MAX_RECORD);
    let open = files();
    drop(two);
    while files() == open {
        thread::yield_now();
    }
    for file in [&other, &third] {
        send(file, &[first(SHORT), rest.clone()]);
        assert_eq!(status(file), 5, "it is whole, and of no agent");
    }
}

#[test]
fn connection_of_an_unauthorized_user_is_eperm_and_closed() {
    let Some(fabric) = fabric_for(&[4001], "two") else { return };
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let greeted = as_user(4002, move || {
        let socket = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
        socket::send(socket.as_fd(), &Greeting::new(Role::Admin), &[], &mut Vec::new()).unwrap();
        let (mut buf, mut fds) = (vec![0; socket::MAX_MESSAGE], Vec::new());
        let reply = socket::recv_bytes(socket.as_fd(), &mut buf, &mut fds).unwrap();
        let (_, reply): (u32, Reply<()>) = socket::decode(reply).unwrap();
        assert_eq!(reply.unwrap_err().errno, 1);
        socket
    });
    let end = socket::recv_bytes(greeted.as_fd(), &mut [0; 64], &mut Vec::new()).map(<[u8]>::len);
    assert!(matches!(end, Err(MessageError::Closed)), "{end:?}");
}

#[test]
fn host_of_another_machine_attaches_with_the_secret_and_not_without() {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let setup = Setup { listen, ..common::unmanaged() };
    let fabric = Fabric::with("two", setup, Config::default());
    let status = admin::status(&fabric.options, &fabric.name).unwrap();
    let address = status.listen.unwrap().parse().unwrap();
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let secret = std::fs::read(dir.secret()).unwrap();

    // The directory of the other machine.
    let user = UserDir::at(fabric.tmp().join("other")).unwrap();
    let there = FabricDir::open(&user, &fabric.name).unwrap();
    let join = || {
        let options = ServerOptions::new(fabric.name.clone(), user.clone());
        bridge::Client::open(address, &there, options)
    };
    assert!(matches!(join(), Err(FabricError::File { .. })), "no secret");
    bridge::keep_secret(&there, b"another secret, long enough").unwrap();
    let e = join().unwrap_err().to_string();
    assert!(e.contains("secret"), "{e}");
    bridge::keep_secret(&there, &secret).unwrap();
    let client = join().unwrap();
    let running = thread::spawn(|| client.run());

    let config = Config::default();
    let options = ConnectOptions { user: user.clone(), config, embedded: true, program: None };
    let (mut attachment, described) =
        Attachment::open(&options, &fabric.name, "far", Guid(0xfa)).unwrap();
    assert_eq!(described.node_guid, FIRST_GUID);
    attachment.refresh().unwrap();
    let port = PortRef { node: NodeRef::Name("far".into()), port: 1 };
    let mut manager = Manager::open(&options, &fabric.name, &port);
    manager.get(&[1], 0x11, 0);
    assert_eq!(admin::status(&fabric.options, &fabric.name).unwrap().attached[0].host, "far");

    // `down` ends the bridge; the fabric stays.
    admin::down(&options, &fabric.name).unwrap();
    running.join().unwrap().unwrap();
    assert!(matches!(admin::status(&options, &fabric.name), Err(FabricError::NotUp { .. })));
    admin::status(&fabric.options, &fabric.name).unwrap();
}
