//! Clients with conforming services, and with misbehaving ones.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rdmux_link::acm::{Entry, Key, PathTable, now};
use rdmux_runtime::listen_at;
use rdmux_runtime::socket::send_bytes;
use rdmux_testing::{TempDir, temp_dir};
use rdmux_wire::acm::Address as Name;
use rdmux_wire::acm::client::{
    Answer, Frame, Op, Paths, Query, Reply as Message, Request, Status, Subject,
};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Lid, WireError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType};

use crate::{Client, Error, Offer, Places, Reply, Requests, Target, Users};

/// Long enough for any answer.
const LONG: Duration = Duration::from_secs(60);
/// A timeout for services that never answer.
const SHORT: Duration = Duration::from_millis(30);

fn places() -> (TempDir, Places) {
    let dir = temp_dir();
    let places = Places::new(dir.path(), dir.path());
    (dir, places)
}

/// Starts a service that handles each connection, numbered from 0 on, by `handle` in a thread.
fn serve(places: &Places, handle: impl Fn(usize, UnixStream) + Send + Sync + Clone + 'static) {
    let _ = std::fs::remove_file(places.socket_link());
    let listener = UnixListener::bind(places.socket_link()).unwrap();
    thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let handle = handle.clone();
            thread::spawn(move || handle(n, stream.unwrap()));
        }
    });
}

/// Returns the next request; none at the end.
fn request(stream: &mut impl Read) -> Option<Request> {
    let mut bytes = Vec::new();
    while let Frame::Needs(len) = Frame::of_request(&bytes).unwrap() {
        let mut more = vec![0; len - bytes.len()];
        stream.read_exact(&mut more).ok()?;
        bytes.extend(more);
    }
    Some(Request::parse(&bytes).unwrap())
}

fn bytes(tid: u64, answer: Answer<'_>) -> Vec<u8> {
    let reply = Message { tid, answer };
    let mut bytes = vec![0; reply.wire_len()];
    reply.emit(&mut bytes);
    bytes
}

fn paths(n: u16) -> Paths {
    let path = PathRecord { dlid: Lid(n), slid: Lid(1), ..PathRecord::default() };
    Paths::one(path, Name::name("me"))
}

/// Returns a path to LID N, for a request for `nodeN` or a path to LID N.
fn answer(request: &Request) -> Vec<u8> {
    bytes(request.tid, Answer::Paths(paths(number(&request.query))))
}

fn number(query: &Query) -> u16 {
    match query {
        Query::Resolve { dest, .. } => dest.to_string().trim_start_matches("node").parse().unwrap(),
        Query::ResolvePath { path, .. } | Query::QuerySa { path } => path.dlid.0,
        other => panic!("{other:?}"),
    }
}

fn node(n: u16) -> Name {
    Name::name(format!("node{n}")).unwrap()
}

fn query(n: u16) -> Query {
    Query::Resolve { source: None, dest: node(n), cached_only: false }
}

fn client(places: &Places) -> Client {
    Client::new([Target::Programs(places.clone())])
}

fn requests(places: &Places) -> Requests {
    Requests::new([Target::Programs(places.clone())]).unwrap()
}

/// Answers every request.
fn good(_: usize, mut stream: UnixStream) {
    while let Some(request) = request(&mut stream) {
        stream.write_all(&answer(&request)).unwrap();
    }
}

#[test]
fn answers_arrive_whole_however_they_are_sent() {
    let (_dir, places) = places();
    serve(&places, |_, mut stream| {
        while let Some(request) = request(&mut stream) {
            answer(&request).iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
        }
    });
    let client = client(&places);
    for n in [3, 4] {
        assert_eq!(client.resolve(None, node(n), LONG), Ok(paths(n)));
    }
    let path = PathRecord { dlid: Lid(9), ..PathRecord::default() };
    assert_eq!(client.resolve_path(path, LONG), Ok(paths(9)));
    assert_eq!(client.query_sa(path, LONG), Ok(paths(9)));
}

#[test]
fn every_kind_of_question_has_its_answer() {
    let (_dir, places) = places();
    serve(&places, |_, mut stream| {
        while let Some(request) = request(&mut stream) {
            let answer = match request.query {
                Query::Counters(_) => Answer::Counters([1, 2, 3].into_iter().collect()),
                Query::Flush(None) => Answer::Flushed(17),
                Query::Statistics => Answer::Statistics(&[[0; 48]]),
                _ => Answer::Failed(Op::EP_QUERY, Status::INVALID),
            };
            stream.write_all(&bytes(request.tid, answer)).unwrap();
        }
    });
    let client = client(&places);
    assert_eq!(client.counters(Subject::Service, LONG).map(|c| c.to_vec()), Ok(vec![1, 2, 3]));
    assert_eq!(client.flush(None, LONG), Ok(17));
    assert_eq!(client.statistics(LONG).map(|all| all.len()), Ok(1));
    let none = client.endpoint(1, 0, LONG).unwrap_err();
    assert_eq!(none, Error::Status(Op::EP_QUERY, Status::INVALID));
    assert_eq!(none.errno(), 22);
}

#[test]
fn missing_service_is_no_service_error_with_advice() {
    let (_dir, places) = places();
    let targets = [Target::Programs(places.clone()), Target::Tools(places.clone())];
    let error = Client::new(targets).resolve(None, node(1), LONG).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ibacm.sock or ") && text.contains("start ib_acm"), "{text}");
    assert_eq!(error.errno(), 111);
    // A service that died leaves its socket.
    drop(UnixListener::bind(places.socket_link()).unwrap());
    assert!(matches!(client(&places).resolve(None, node(1), LONG), Err(Error::NoService(_))));
    // The next place is tried.
    let (_dir2, other) = super::tests::places();
    serve(&other, good);
    let client = Client::new([Target::Programs(places), Target::Programs(other)]);
    assert_eq!(client.resolve(None, node(1), LONG), Ok(paths(1)));
}

#[test]
fn service_that_closes_or_hangs_costs_a_bounded_time() {
    for (n, error) in [
        (0, Error::Closed),
        (1, Error::Closed),
        (2, Error::TimedOut(SHORT)),
        (3, Error::TimedOut(SHORT)),
        (4, Error::TimedOut(SHORT)),
    ] {
        let (_dir, places) = places();
        serve(&places, move |_, mut stream| {
            let half = |stream: &mut UnixStream| {
                let request = request(stream).unwrap();
                stream.write_all(&answer(&request)[..50]).unwrap();
            };
            match n {
                0 => drop(request(&mut stream)),
                1 => half(&mut stream),
                2 => half(&mut stream),
                3 => drop(request(&mut stream)),
                // It does not even read.
                _ => {}
            }
            if n > 1 {
                thread::park();
            }
        });
        assert_eq!(
            client(&places).resolve(None, node(1), error_time(&error)),
            Err(error.clone()),
            "{n}"
        );
        let mut requests = requests(&places);
        let id = requests.start(&query(1), error_time(&error));
        assert_eq!(requests.wait(LONG), Some((id, Err(error))), "{n}");
        assert!(requests.is_empty());
    }
}

/// Returns the timeout of the request that ended with this error.
fn error_time(error: &Error) -> Duration {
    if *error == Error::Closed { LONG } else { SHORT }
}

#[test]
fn service_with_full_backlog_times_out() {
    let (_dir, places) = places();
    let listener = UnixListener::bind(places.socket_link()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _waiting: Vec<_> = (0..3).map_while(|_| connect_now(&places)).collect();
    assert_eq!(client(&places).resolve(None, node(1), SHORT), Err(Error::TimedOut(SHORT)));
    let mut requests = requests(&places);
    let id = requests.start(&query(1), SHORT);
    assert_eq!(requests.wait(LONG), Some((id, Err(Error::TimedOut(SHORT)))));
}

fn connect_now(places: &Places) -> Option<crate::socket::Connecting> {
    match crate::socket::connect(&[Target::Programs(places.clone())], 0).unwrap().1 {
        crate::socket::Connecting::Busy => None,
        other => Some(other),
    }
}

#[test]
fn service_that_goes_on_sending_costs_a_bounded_time() {
    let (_dir, places) = places();
    serve(&places, |_, mut stream| {
        // The socket always has more input than one receive call takes.
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 1 << 20).unwrap();
        let request = request(&mut stream).unwrap();
        let foreign = bytes(request.tid + 1000, Answer::Failed(Op::RESOLVE, Status::INVALID));
        // This much is written atomically, even if other threads write.
        let many = foreign.repeat(1000);
        let write = || {
            // Far more than can be read in the time, followed by the answer, which is too late.
            let is_read = (0..(1 << 27) / many.len()).all(|_| (&stream).write_all(&many).is_ok());
            if is_read {
                let _ = (&stream).write_all(&answer(&request));
            }
        };
        thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(write))));
    });
    assert_eq!(client(&places).resolve(None, node(1), SHORT), Err(Error::TimedOut(SHORT)));
    let mut requests = requests(&places);
    let id = requests.start(&query(1), SHORT);
    assert_eq!(requests.wait(LONG), Some((id, Err(Error::TimedOut(SHORT)))));
}

#[test]
fn malformed_answer_is_protocol_error_and_unknown_tid_is_ignored() {
    let (_dir, places) = places();
    serve(&places, |n, mut stream| {
        let request = request(&mut stream).unwrap();
        if n == 0 {
            stream.write_all(&[0xff; 32]).unwrap();
        } else {
            stream.write_all(&bytes(request.tid + 1000, Answer::Paths(paths(77)))).unwrap();
            stream.write_all(&answer(&request)).unwrap();
        }
    });
    let client = client(&places);
    let error = client.resolve(None, node(1), LONG).unwrap_err();
    assert!(matches!(error, Error::Protocol(WireError::Value { .. })), "{error}");
    assert_eq!(client.resolve(None, node(1), LONG), Ok(paths(1)));
}

#[test]
fn answer_of_another_kind_is_an_error() {
    let (_dir, places) = places();
    serve(&places, |_, mut stream| {
        let request = request(&mut stream).unwrap();
        stream.write_all(&bytes(request.tid, Answer::Paths(paths(1)))).unwrap();
    });
    let client = client(&places);
    assert!(matches!(client.flush(None, LONG), Err(Error::Protocol(_))));
}

#[test]
fn request_after_a_restart_connects_again() {
    let (_dir, places) = places();
    // Each connection answers one request, and is then closed.
    serve(&places, |_, mut stream| {
        let request = request(&mut stream).unwrap();
        stream.write_all(&answer(&request)).unwrap();
    });
    let (client, mut requests) = (client(&places), requests(&places));
    for n in 1..5 {
        assert_eq!(client.resolve(None, node(n), LONG), Ok(paths(n)));
        let id = requests.start(&query(n), LONG);
        assert_eq!(requests.wait(LONG), Some((id, Ok(Reply::Paths(paths(n))))));
    }
    serve(&places, good);
    assert_eq!(client.resolve(None, node(5), LONG), Ok(paths(5)));
}

#[test]
fn request_after_a_restart_ends_well_however_many_connections_were_kept() {
    let (_dir, places) = places();
    let streams = Arc::new(Mutex::new(Vec::new()));
    let kept = streams.clone();
    // Without a shared cache it gets one request at a time.
    serve(&places, move |n, stream| {
        kept.lock().push(stream.try_clone().unwrap());
        good(n, stream);
    });
    let mut requests = requests(&places);
    for round in 0..3 {
        let ids: Vec<_> = (0..8).map(|n| (n, requests.start(&query(n), LONG))).collect();
        for _ in 0..8 {
            let (id, reply) = requests.wait(LONG).unwrap();
            let (n, _) = ids.iter().find(|(_, asked)| *asked == id).unwrap();
            assert_eq!(reply, Ok(Reply::Paths(paths(*n))), "{round}");
        }
        let ended = std::mem::take(&mut *streams.lock());
        assert!(ended.len() > 1);
        ended.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
    }
}

#[test]
fn calls_of_threads_do_not_wait_for_each_other() {
    let (_dir, places) = places();
    let (answered, wait) = mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    serve(&places, move |_, mut stream| {
        while let Some(request) = request(&mut stream) {
            if number(&request.query) == 1 {
                wait.lock().unwrap().recv().unwrap();
            }
            stream.write_all(&answer(&request)).unwrap();
        }
    });
    let client = client(&places);
    thread::scope(|scope| {
        let first = scope.spawn(|| client.resolve(None, node(1), LONG));
        assert_eq!(client.resolve(None, node(2), LONG), Ok(paths(2)));
        answered.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Ok(paths(1)));
    });
}

#[test]
fn one_connection_is_kept_after_calls_of_several_threads() {
    const CALLS: u16 = 4;
    let (_dir, places) = places();
    let all_asked = Arc::new(std::sync::Barrier::new(CALLS.into()));
    let (tell, ended) = mpsc::channel();
    serve(&places, move |_, mut stream| {
        let first = request(&mut stream).unwrap();
        all_asked.wait();
        stream.write_all(&answer(&first)).unwrap();
        good(0, stream);
        tell.send(()).unwrap();
    });
    let client = client(&places);
    thread::scope(|scope| {
        for n in 0..CALLS {
            let client = &client;
            scope.spawn(move || assert_eq!(client.resolve(None, node(n), LONG), Ok(paths(n))));
        }
    });
    (1..CALLS).for_each(|_| ended.recv_timeout(LONG).unwrap());
    assert_eq!(client.resolve(None, node(9), LONG), Ok(paths(9)));
    assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty));
}

/// Writes the number of a socket's port where clients look for it.
fn name_port(places: &Places, socket: impl AsFd) {
    let address = rustix::net::getsockname(socket).unwrap();
    let port = SocketAddr::try_from(address).unwrap().port();
    std::fs::write(places.port_link(), format!("{port}\n")).unwrap();
}

/// Answers every request.
fn serve_tcp(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                while let Some(request) = request(&mut stream) {
                    stream.write_all(&answer(&request)).unwrap();
                }
            });
        }
    });
}

#[test]
fn tcp_port_is_found_by_its_file() {
    let (_dir, places) = places();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    name_port(&places, &listener);
    serve_tcp(listener);
    assert_eq!(client(&places).resolve(None, node(6), LONG), Ok(paths(6)));
    let mut requests = requests(&places);
    let id = requests.start(&query(6), LONG);
    assert_eq!(requests.wait(LONG), Some((id, Ok(Reply::Paths(paths(6))))));
}

/// Returns the places of a service that was killed: its port is still recorded, but has no listener. The socket keeps the port
/// reserved.
fn killed() -> (TempDir, Places, OwnedFd) {
    let (dir, places) = places();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    name_port(&places, &socket);
    (dir, places, socket)
}

#[test]
fn refused_tcp_port_is_no_service_and_next_target_is_tried() {
    let ((_dir, first, _port), (_dir2, second, _port2)) = (killed(), killed());
    let targets = [Target::Programs(first), Target::Programs(second)];
    let error = Client::new(targets.clone()).resolve(None, node(1), LONG).unwrap_err();
    assert!(matches!(error, Error::NoService(_)), "{error}");
    let mut requests = Requests::new(targets.clone()).unwrap();
    let id = requests.start(&query(1), LONG);
    let (ended, reply) = requests.wait(LONG).unwrap();
    assert!(ended == id && matches!(reply, Err(Error::NoService(_))), "{reply:?}");
    let (_dir3, good) = places();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    name_port(&good, &listener);
    serve_tcp(listener);
    let targets = targets.into_iter().chain([Target::Programs(good)]);
    assert_eq!(Client::new(targets.clone()).resolve(None, node(1), LONG), Ok(paths(1)));
    let mut requests = Requests::new(targets).unwrap();
    let ids: Vec<_> = (0..20).map(|n| (n, requests.start(&query(n), LONG))).collect();
    for _ in 0..20 {
        let (id, reply) = requests.wait(LONG).unwrap();
        let (n, _) = ids.iter().find(|(_, asked)| *asked == id).unwrap();
        assert_eq!(reply, Ok(Reply::Paths(paths(*n))));
    }
}

#[test]
fn port_is_used_only_if_the_socket_cannot_be() {
    let (_dir, places) = places();
    serve(&places, good);
    // It never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    name_port(&places, &listener);
    let answered = || {
        assert_eq!(client(&places).resolve(None, node(6), LONG), Ok(paths(6)));
        let mut requests = requests(&places);
        let id = requests.start(&query(6), LONG);
        assert_eq!(requests.wait(LONG), Some((id, Ok(Reply::Paths(paths(6))))));
    };
    answered();
    // A service that has only a port, beside a socket that another one has left.
    std::fs::remove_file(places.socket_link()).unwrap();
    drop(UnixListener::bind(places.socket_link()).unwrap());
    serve_tcp(listener);
    answered();
}

#[test]
fn port_of_another_user_is_not_used() {
    const OTHER: u32 = 4003;
    let (_dir, places) = places();
    let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
    if !rustix::process::geteuid().is_root() {
        return println!("there can be no other user here: not run");
    }
    let Some(listener) = as_user(OTHER, bind) else {
        return println!("this process cannot change users: not run");
    };
    name_port(&places, &listener);
    let at = listener.local_addr().unwrap().to_string();
    serve_tcp(listener);
    let right = Err(Error::Untrusted { at, uid: OTHER });
    assert_eq!(client(&places).resolve(None, node(6), LONG), right);
    let mut requests = requests(&places);
    let id = requests.start(&query(6), LONG);
    assert_eq!(requests.wait(LONG), Some((id, right.map(Reply::Paths))));
}

/// Returns an offered table with a path to `node1`.
fn offered(places: &Places) -> (PathTable, Offer) {
    let mut table = PathTable::create(64, 1).unwrap();
    let now = now();
    table.renew(now + 30_000_000_000);
    let expiry = now + 60_000_000_000;
    let entry = Entry { path: paths(1).paths[0], source: None, expiry };
    table.put(&Key { source: None, dest: node(1) }, &entry, now);
    let offer = Offer::start(places.paths(), &table, Users::NONE).unwrap();
    (table, offer)
}

/// Returns requests to a service that has passed its cache.
fn requests_with_cache(places: &Places) -> Requests {
    let mut requests = requests(places);
    loop {
        requests.start(&query(1), LONG);
        let (_, reply) = requests.wait(LONG).unwrap();
        if reply == Ok(Reply::Paths(shared_paths())) {
            return requests;
        }
    }
}

fn shared_paths() -> Paths {
    Paths { source: None, ..paths(1) }
}

#[test]
fn shared_cache_answers_without_a_message() {
    let (_dir, places) = places();
    let (mut table, offer) = offered(&places);
    let client = client(&places);
    // The other socket has no listener.
    assert_eq!(client.resolve(None, node(1), LONG), Ok(shared_paths()));
    assert!(matches!(client.resolve(None, node(2), LONG), Err(Error::NoService(_))));
    let mut requests = requests_with_cache(&places);
    let id = requests.start(&query(1), LONG);
    assert!(becomes_readable(&requests));
    assert_eq!(requests.next(), Some((id, Ok(Reply::Paths(shared_paths())))));
    assert!(!is_readable(&requests));
    let mut all = Vec::new();
    client.shared().unwrap().each(|key, _| all.push(key.dest));
    assert_eq!(all, [node(1)]);
    table.flush();
    assert_eq!(client.cached(None, &node(1)), None);
    drop((table, offer));
    assert!(matches!(client.resolve(None, node(1), LONG), Err(Error::NoService(_))));
    assert!(!places.paths().exists());
}

/// Listens for clients that want the cache.
fn listen_for_cache(places: &Places) -> OwnedFd {
    let listener = listen_at(&places.paths(), SocketType::SEQPACKET, 0o600).unwrap();
    rustix::io::ioctl_fionbio(&listener, false).unwrap();
    listener
}

/// Passes the cache to the next client.
fn give(listener: &OwnedFd, table: &PathTable) {
    let client = rustix::net::accept(listener).unwrap();
    send_bytes(client.as_fd(), &[0], &[table.fd().as_fd()]).unwrap();
}

#[test]
fn requests_do_not_wait_for_a_service_that_passes_no_cache() {
    let (_dir, places) = places();
    let (table, offer) = offered(&places);
    drop(offer);
    let listener = listen_for_cache(&places);
    serve(&places, good);
    let (client, mut requests) = (client(&places), requests(&places));
    // The service gets the request, although it has passed no cache.
    let id = requests.start(&query(1), LONG);
    assert_eq!(requests.wait(LONG), Some((id, Ok(Reply::Paths(paths(1))))));
    give(&listener, &table);
    let id = requests.start(&query(1), LONG);
    assert_eq!(requests.wait(LONG), Some((id, Ok(Reply::Paths(shared_paths())))));
    assert_eq!(client.cached(None, &node(1)), None);
    give(&listener, &table);
    assert_eq!(client.cached(None, &node(1)), Some(shared_paths()));
}

#[test]
fn blocking_calls_wait_for_the_cache_within_their_timeout() {
    let (_dir, places) = places();
    let (table, offer) = offered(&places);
    drop(offer);
    let listener = listen_for_cache(&places);
    serve(&places, |_, _| thread::park());
    let client = client(&places);
    let shared = client.shared().unwrap();
    assert_eq!(client.resolve(None, node(1), SHORT), Err(Error::TimedOut(SHORT)));
    assert!(shared.is_coming() && !shared.wait(SHORT));
    thread::scope(|scope| {
        scope.spawn(|| give(&listener, &table));
        assert_eq!(client.resolve(None, node(1), LONG), Ok(shared_paths()));
    });
    assert!(!shared.is_coming() && shared.wait(SHORT));
}

/// Runs this in a thread of another user. None if the process cannot change users.
fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).ok()?;
            Some(what())
        });
        thread.join().unwrap()
    })
}

#[test]
fn shared_cache_is_given_to_the_users_who_may_use_the_service_only() {
    const LET_IN: u32 = 4001;
    const NOT: u32 = 4002;
    let (dir, places) = places();
    let passable = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(dir.path(), passable).unwrap();
    let sees = || std::fs::metadata(dir.path()).is_ok();
    if !rustix::process::geteuid().is_root() || as_user(LET_IN, sees) != Some(true) {
        return println!("there can be no other user here who sees {:?}: not run", dir.path());
    }
    let (_table, offer) = offered(&places);
    let is_given = || client(&places).shared().unwrap().is_there();
    let given = || [LET_IN, NOT].map(|uid| as_user(uid, is_given).unwrap());
    assert_eq!(given(), [false, false]);
    offer.set_users(Users::Of([LET_IN].into())).unwrap();
    assert_eq!((given(), offer.refused()), ([true, false], 1));
    offer.set_users(Users::All).unwrap();
    assert_eq!(given(), [true, true]);
    offer.set_users(Users::NONE).unwrap();
    assert_eq!((given(), offer.refused()), ([false, false], 1));
    // The mode is only a hint.
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(places.paths(), anybody).unwrap();
    assert_eq!((given(), offer.refused()), ([false, false], 3));
    assert!(client(&places).shared().unwrap().is_there());
}

#[test]
fn user_that_does_not_read_the_shared_cache_gets_a_bounded_number() {
    const OTHERS: [u32; 2] = [4004, 4005];
    let (dir, places) = places();
    let passable = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(dir.path(), passable).unwrap();
    let sees = || std::fs::metadata(dir.path()).is_ok();
    if !rustix::process::geteuid().is_root() || as_user(OTHERS[0], sees) != Some(true) {
        return println!("there can be no other user here who sees {:?}: not run", dir.path());
    }
    let (_table, offer) = offered(&places);
    offer.set_users(Users::All).unwrap();
    let connect = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let at = rustix::net::SocketAddrUnix::new(places.paths()).unwrap();
        rustix::net::connect(&socket, &at).unwrap();
        // The service has sent its message, or has closed the connection.
        poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
        socket
    };
    let is_sent = |socket: &OwnedFd| {
        let flags = rustix::net::RecvFlags::PEEK;
        rustix::net::recv(socket, &mut [0; 1], flags).unwrap().0 == 1
    };
    let unread: Vec<_> =
        as_user(OTHERS[0], || std::iter::repeat_with(connect).take(200).filter(is_sent).collect())
            .unwrap();
    assert_eq!(unread.len(), 128);
    // Sockets that are shut down still have their messages.
    unread.iter().for_each(|s| rustix::net::shutdown(s, rustix::net::Shutdown::Both).unwrap());
    assert!(!as_user(OTHERS[0], || is_sent(&connect())).unwrap());
    assert!(as_user(OTHERS[1], || is_sent(&connect())).unwrap());
    assert!(client(&places).shared().unwrap().is_there());
    drop(unread);
    assert!(as_user(OTHERS[0], || is_sent(&connect())).unwrap());
}

#[test]
fn socket_or_file_in_place_of_the_shared_cache_is_not_used() {
    let (_dir, places) = places();
    // Not a table, but a stream or a file.
    let (table, _offer) = offered(&places);
    assert!(client(&places).shared().unwrap().is_there());
    std::fs::remove_file(places.paths()).unwrap();
    let listener = UnixListener::bind(places.paths()).unwrap();
    assert!(!client(&places).shared().unwrap().is_there());
    drop(listener);
    std::fs::remove_file(places.paths()).unwrap();
    std::fs::write(places.paths(), "").unwrap();
    assert!(!client(&places).shared().unwrap().is_there());
    drop(table);
}

#[test]
fn long_paths_of_sockets_work() {
    let dir = temp_dir();
    let long = dir.path().join("x".repeat(120));
    std::fs::create_dir(&long).unwrap();
    let places = Places::new(long, "/nowhere");
    let (_table, _offer) = offered(&places);
    assert_eq!(client(&places).resolve(None, node(1), LONG), Ok(shared_paths()));
}

fn is_readable(fd: &impl AsFd) -> bool {
    is_readable_within(fd, Duration::ZERO)
}

/// Returns whether the descriptor becomes readable, although an expired timer may be a little late.
fn becomes_readable(fd: &impl AsFd) -> bool {
    is_readable_within(fd, LONG)
}

fn is_readable_within(fd: &impl AsFd, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&time)) == Ok(1)
}

#[test]
fn many_requests_are_answered_in_any_order_on_one_connection() {
    let (_dir, places) = places();
    let (_table, _offer) = offered(&places);
    serve(&places, |n, mut stream| {
        assert_eq!(n, 0, "one connection");
        while let Some(first) = request(&mut stream) {
            let others: Vec<_> = (1..20).map(|_| request(&mut stream).unwrap()).collect();
            for request in others.iter().rev().chain([&first]) {
                stream.write_all(&answer(request)).unwrap();
            }
        }
    });
    let mut requests = requests(&places);
    let ids: Vec<_> = (10..50).map(|n| (n, requests.start(&query(n), LONG))).collect();
    assert_eq!(requests.len(), 40);
    for _ in 0..40 {
        let (id, reply) = requests.wait(LONG).unwrap();
        let (n, _) = ids.iter().find(|(_, asked)| *asked == id).unwrap();
        assert_eq!(reply, Ok(Reply::Paths(paths(*n))));
    }
    assert_eq!((requests.len(), requests.wait(LONG)), (0, None));
}

#[test]
fn requests_that_are_sent_too_late_for_their_connection_are_asked_by_another() {
    let (_dir, places) = places();
    let (_table, _offer) = offered(&places);
    let (tell, stream) = mpsc::channel();
    serve(&places, move |n, mut stream| {
        if n == 0 {
            request(&mut stream).unwrap();
            tell.send(stream).unwrap();
        } else {
            good(n, stream);
        }
    });
    let mut requests = requests(&places);
    for n in [10, 11] {
        requests.start(&query(n), LONG);
    }
    drop(stream.recv().unwrap());
    for _ in 0..2 {
        let (_, reply) = requests.wait(LONG).unwrap();
        assert!(reply.is_ok(), "{reply:?}");
    }
}

#[test]
fn requests_behind_the_first_are_sent_together() {
    let (_dir, places) = places();
    let (_table, _offer) = offered(&places);
    let (tell, read) = std::sync::mpsc::channel();
    serve(&places, move |_, mut stream| {
        let mut bytes = [0; 1 << 16];
        while let Ok(len @ 1..) = stream.read(&mut bytes) {
            tell.send(len).unwrap();
            let mut left = &bytes[..len];
            while let Some(request) = request(&mut left) {
                stream.write_all(&answer(&request)).unwrap();
            }
        }
    });
    let mut requests = requests(&places);
    (10..30).for_each(|n| {
        requests.start(&query(n), LONG);
    });
    let first = read.recv().unwrap();
    assert!(becomes_readable(&requests));
    (0..20).for_each(|_| assert!(requests.wait(LONG).unwrap().1.is_ok()));
    assert_eq!(read.recv(), Ok(19 * first));
    assert!(!is_readable(&requests) && requests.is_empty());
}

/// Like ibacm: the result of one receive call is one request, or the connection is closed.
fn one_at_a_time(_: usize, mut stream: UnixStream) {
    let mut bytes = [0; 592];
    while let Ok(len) = stream.read(&mut bytes) {
        let Ok(request) = Request::parse(&bytes[..len]) else { return };
        stream.write_all(&answer(&request)).unwrap();
    }
}

#[test]
fn service_that_takes_one_request_at_a_time_gets_no_more() {
    for pretends in [false, true] {
        let (_dir, places) = places();
        // A socket that another service has left there.
        let _left = pretends.then(|| UnixListener::bind(places.paths()).unwrap());
        serve(&places, one_at_a_time);
        let mut requests = requests(&places);
        let ids: Vec<_> = (0..40).map(|n| (n, requests.start(&query(n), LONG))).collect();
        for _ in 0..40 {
            let (id, reply) = requests.wait(LONG).unwrap();
            let (n, _) = ids.iter().find(|(_, asked)| *asked == id).unwrap();
            assert_eq!(reply, Ok(Reply::Paths(paths(*n))));
        }
    }
}

#[test]
fn connection_carries_many_requests_also_after_the_service_has_closed_one_that_did() {
    const MANY: u16 = 20;
    const ROUNDS: u16 = 4;
    for before in [0, 5] {
        let (_dir, places) = places();
        let (_table, _offer) = offered(&places);
        serve(&places, move |n, mut stream| {
            let take = |stream: &mut UnixStream, count: u16| -> Vec<_> {
                (0..count).map_while(|_| request(stream)).collect()
            };
            let give = |stream: &mut UnixStream, requests: &[Request]| {
                requests.iter().for_each(|request| stream.write_all(&answer(request)).unwrap());
            };
            // Those that the connection before has left unanswered arrive together.
            if n > 0 {
                let left = take(&mut stream, MANY - before);
                give(&mut stream, &left);
            }
            let asked = take(&mut stream, MANY);
            give(&mut stream, &asked[..asked.len().min(before.into())]);
        });
        let mut requests = requests(&places);
        for round in 0..ROUNDS {
            let ids: Vec<_> =
                (10..10 + MANY).map(|n| (n, requests.start(&query(n), LONG))).collect();
            for _ in 0..MANY {
                let (id, reply) = requests.wait(LONG).unwrap();
                let (n, _) = ids.iter().find(|(_, asked)| *asked == id).unwrap();
                assert_eq!(reply, Ok(Reply::Paths(paths(*n))), "{before} {round}");
            }
        }
    }
}

#[test]
fn cancelled_request_is_not_answered_and_leaves_the_others() {
    let (_dir, places) = places();
    serve(&places, |_, mut stream| {
        while let Some(request) = request(&mut stream) {
            if number(&request.query) != 1 {
                stream.write_all(&answer(&request)).unwrap();
            }
        }
    });
    let mut requests = requests(&places);
    let (first, second) = (requests.start(&query(1), LONG), requests.start(&query(2), LONG));
    assert!(requests.cancel(first) && !requests.cancel(first));
    assert_eq!(requests.wait(LONG), Some((second, Ok(Reply::Paths(paths(2))))));
    assert!(requests.is_empty() && !requests.cancel(second));
}

#[test]
fn answer_that_is_not_taken_keeps_the_descriptor_readable() {
    let (_dir, places) = places();
    serve(&places, good);
    let mut requests = requests(&places);
    let (first, second) = (requests.start(&query(1), LONG), requests.start(&query(2), LONG));
    let answer = |requests: &mut Requests, id| loop {
        if let Some(answer) = requests.take(id) {
            return answer;
        }
        poll(&mut [PollFd::new(requests, PollFlags::IN)], None).unwrap();
    };
    assert_eq!(answer(&mut requests, second), Ok(Reply::Paths(paths(2))));
    assert_eq!(answer(&mut requests, first), Ok(Reply::Paths(paths(1))));
    assert_eq!((requests.take(first), requests.len()), (None, 0));
    // Cached answers are available at once.
    let (_table, _offer) = offered(&places);
    let mut requests = requests_with_cache(&places);
    let (first, second) = (requests.start(&query(1), LONG), requests.start(&query(1), LONG));
    assert_eq!(requests.take(second), Some(Ok(Reply::Paths(shared_paths()))));
    assert!(becomes_readable(&requests));
    assert_eq!(requests.take(first), Some(Ok(Reply::Paths(shared_paths()))));
    assert!(!is_readable(&requests));
}

#[test]
fn request_without_a_service_ends_at_once() {
    let (_dir, places) = places();
    let mut requests = requests(&places);
    let id = requests.start(&query(1), LONG);
    assert!(becomes_readable(&requests));
    let (ended, reply) = requests.next().unwrap();
    assert!(ended == id && matches!(reply, Err(Error::NoService(_))));
    serve(&places, good);
    let id = requests.start(&query(1), LONG);
    assert_eq!(requests.wait(LONG), Some((id, Ok(Reply::Paths(paths(1))))));
}
