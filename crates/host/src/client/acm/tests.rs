//! ACM services that answer, hang, die or answer nonsense: each costs a bounded time and affects no other query.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rdmux_testing::acm::{self, AcmService, Step};
use rdmux_testing::{TempDir, temp_dir};
use rdmux_wire::Gid;
use rdmux_wire::acm::client::{Answer, Counters, Query, Reply, Request, Status};
use rdmux_wire::sa::PathRecord;

use super::*;

/// Longer than anything in these tests takes.
const LONG: Duration = Duration::from_secs(30);
/// Timeout for services that do not answer.
const SHORT: Duration = Duration::from_millis(20);

fn asks(folder: &TempDir, timeout: Duration) -> Arc<Acm> {
    let settings = Settings { usage: Use::IfThere, timeout };
    let places = Places::new(folder.path(), "/nowhere");
    Acm::new(settings, places, || unreachable!("nothing is started")).unwrap()
}

fn record() -> PathRecord {
    let gid = |last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    PathRecord { sgid: gid(1), dgid: gid(2), ..PathRecord::default() }
}

fn question() -> Question {
    Question::of_ip(None, [10, 0, 0, 2].into())
}

fn find(acm: &Arc<Acm>) -> Option<PathData> {
    acm.find(&question(), acm.deadline())
}

fn answers(request: &Request) -> Step {
    Step::Say(acm::path(request, record()))
}

#[test]
fn acm_path_is_returned_and_connection_reused_for_next_query() {
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), |request| {
        let dest = std::net::IpAddr::from([10, 0, 0, 2]).into();
        assert_eq!(request.query, Query::Resolve { source: None, dest, cached_only: false });
        answers(request)
    });
    let acm = asks(&folder, LONG);
    for _ in 0..3 {
        assert_eq!(find(&acm), Some(PathData { flags: PathData::WHOLE, record: record() }));
    }
    assert_eq!((service.connections(), service.questions()), (1, 3));
}

#[test]
fn failure_is_an_answer_and_the_connection_kept() {
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), |request| {
        Step::Say(acm::failure(request, Status::TIMED_OUT))
    });
    let acm = asks(&folder, LONG);
    assert_eq!((find(&acm), find(&acm), find(&acm)), (None, None, None));
    assert_eq!((service.connections(), service.questions()), (1, 3));
    assert!(acm.may_answer());
}

#[test]
fn no_acm_query_without_a_listening_service() {
    let folder = temp_dir();
    let acm = asks(&folder, LONG);
    assert!(!acm.may_answer());
    assert_eq!(find(&acm), None);
    // A service that exited without removing its socket.
    drop(std::os::unix::net::UnixListener::bind(folder.path().join("ibacm.sock")).unwrap());
    assert_eq!(find(&acm), None);
    let never = Settings { usage: Use::Never, timeout: LONG };
    assert!(Acm::new(never, Places::new("/", "/"), || unreachable!()).is_none());
}

#[test]
fn service_that_does_not_answer_is_left_alone_after_two_questions() {
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), |_| Step::Hang);
    let acm = asks(&folder, SHORT);
    // Two, unless this thread is so slow that a query is not even sent.
    let mut most = 0;
    while acm.may_answer() {
        assert_eq!(find(&acm), None);
        most += 1;
    }
    assert_eq!((find(&acm), find(&acm)), (None, None));
    assert!(most >= 2 && service.questions() <= most);
}

#[test]
fn malformed_acm_answers_are_rejected() {
    let good = |request: &Request| acm::path(request, record());
    let changed = move |request: &Request, at: usize, to: u8| {
        let mut bytes = good(request);
        bytes[at] = to;
        bytes
    };
    type Script = Box<dyn Fn(&Request) -> Vec<u8> + Send + Sync>;
    let scripts: [(&str, Script); 6] = [
        ("another version", Box::new(move |request| changed(request, 0, 2))),
        ("an unknown opcode", Box::new(move |request| changed(request, 1, 0x0f))),
        ("an entry that is no path", Box::new(move |request| changed(request, 20, 1))),
        ("a length beyond all", Box::new(move |request| changed(request, 7, 0xff))),
        (
            "counters",
            Box::new(|request| {
                let answer = Answer::Counters(Counters::new());
                acm::bytes(&Reply { tid: request.tid, answer })
            }),
        ),
        ("nothing", Box::new(|_| vec![0; 88])),
    ];
    for (what, script) in scripts {
        let folder = temp_dir();
        let service = AcmService::start(folder.path(), move |request| Step::Say(script(request)));
        let acm = asks(&folder, LONG);
        assert_eq!((find(&acm), find(&acm)), (None, None), "{what}");
        // Only here is it known where the next message begins.
        let connections = if what == "counters" { 1 } else { 2 };
        assert_eq!(service.connections(), connections, "{what}");
    }
}

#[test]
fn answer_to_another_question_is_not_believed() {
    let folder = temp_dir();
    let _service = AcmService::start(folder.path(), |request| {
        let other = Request { tid: !request.tid, ..*request };
        Step::Say(acm::path(&other, record()))
    });
    assert_eq!(find(&asks(&folder, SHORT)), None);
}

#[test]
fn truncated_acm_answer_is_rejected_on_close_and_on_timeout() {
    let half = |request: &Request| acm::path(request, record())[..40].to_vec();
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), move |request| Step::SayAndClose(half(request)));
    let acm = asks(&folder, LONG);
    assert_eq!((find(&acm), find(&acm)), (None, None));
    assert_eq!(service.connections(), 2);
    drop(service);
    let _service = AcmService::start(folder.path(), move |request| Step::Say(half(request)));
    let acm = asks(&folder, SHORT);
    assert_eq!(find(&acm), None);
}

#[test]
fn service_that_was_started_anew_answers_by_a_new_connection() {
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), answers);
    let acm = asks(&folder, LONG);
    assert!(find(&acm).is_some());
    drop(service);
    let service = AcmService::start(folder.path(), answers);
    assert!(find(&acm).is_some() && find(&acm).is_some());
    assert_eq!((service.connections(), service.questions()), (1, 2));
    drop(service);
    assert_eq!(find(&acm), None);
}

#[test]
fn question_that_waits_holds_up_no_other() {
    let folder = temp_dir();
    let (release, released) = mpsc::channel::<()>();
    let (asked, is_asked) = mpsc::channel();
    let (released, asked) = (Mutex::new(released), Mutex::new(asked));
    let _service = AcmService::start(folder.path(), move |request| {
        if matches!(request.query, Query::Resolve { cached_only: false, .. }) {
            asked.lock().send(()).unwrap();
            let _ = released.lock().recv();
        }
        answers(request)
    });
    let acm = asks(&folder, LONG);
    let waiting = std::thread::spawn({
        let acm = Arc::clone(&acm);
        move || find(&acm)
    });
    is_asked.recv().unwrap();
    assert!(acm.find(&question().cached(true), acm.deadline()).is_some());
    drop(release);
    assert!(waiting.join().unwrap().is_some());
}

#[test]
fn service_that_takes_no_connection_costs_no_more_than_the_timeout() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let folder = temp_dir();
    let address = SocketAddrUnix::new(folder.path().join("ibacm.sock")).unwrap();
    let socket = || rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let listener = socket();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let first = socket();
    rustix::net::connect(&first, &address).unwrap();
    let acm = asks(&folder, SHORT);
    assert_eq!((find(&acm), find(&acm)), (None, None));
    assert!(!acm.may_answer());
}

#[test]
fn path_of_a_socket_may_be_longer_than_its_address() {
    let parent = temp_dir();
    let folder = parent.path().join("x".repeat(60));
    let _service = AcmService::start(&folder, answers);
    let long = folder.join("../".to_owned() + &"x".repeat(60));
    let settings = Settings { usage: Use::IfThere, timeout: LONG };
    let acm = Acm::new(settings, Places::new(long, "/"), || unreachable!()).unwrap();
    assert!(find(&acm).is_some());
}

#[test]
fn expired_deadline_sends_no_acm_query() {
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), answers);
    let acm = asks(&folder, LONG);
    assert_eq!(acm.find(&question(), Instant::now()), None);
    let acm = asks(&folder, Duration::ZERO);
    assert_eq!(find(&acm), None);
    assert_eq!(service.questions(), 0);
}

/// Puts the path into a running service's cache.
fn put(table: &mut rdmux_link::acm::PathTable) {
    use rdmux_link::acm::{Entry, Key, now};
    use rdmux_wire::acm::client::{PathData, PathFlags};
    let (now, hour) = (now(), 3_600_000_000_000);
    table.renew(now + 30_000_000_000);
    let key = Key { source: None, dest: question().to };
    let path = PathData { flags: PathFlags::RESOLVED, path: record() };
    table.put(&key, &Entry { path, source: None, expiry: now + hour }, now);
}

#[test]
fn path_in_shared_acm_cache_needs_no_query() {
    use rdmux_acm_client::{Offer, Users};
    use rdmux_link::acm::PathTable;
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), |_| Step::Hang);
    let mut table = PathTable::create(64, 1).unwrap();
    put(&mut table);
    let places = Places::new(folder.path(), "/nowhere");
    let _offer = Offer::start(places.paths(), &table, Users::NONE).unwrap();
    for timeout in [LONG, Duration::ZERO] {
        let acm = asks(&folder, timeout);
        assert_eq!(find(&acm).unwrap().record, record());
        // Nothing is cached for other addresses.
        let other = Question::of_ip(None, [10, 0, 0, 3].into());
        assert_eq!(acm.cached(&other), None);
    }
    assert_eq!(service.questions(), 0);
}

#[test]
fn caller_waits_for_a_cache_only_where_it_may_and_without_a_query() {
    use rdmux_link::acm::PathTable;
    use rustix::net::SocketType;
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), |_| Step::Hang);
    let places = Places::new(folder.path(), "/nowhere");
    let listener = rdmux_runtime::listen_at(&places.paths(), SocketType::SEQPACKET, 0o600).unwrap();
    rustix::io::ioctl_fionbio(&listener, false).unwrap();
    let mut table = PathTable::create(64, 1).unwrap();
    put(&mut table);
    let acm = asks(&folder, Duration::ZERO);
    // The service has not even accepted the connection.
    assert_eq!(acm.cached(&question()), None);
    assert!(acm.is_cache_coming() && !acm.may_answer());
    let client = rustix::net::accept(&listener).unwrap();
    let fds = [table.fd().as_fd()];
    rdmux_runtime::socket::send_bytes(client.as_fd(), &[0], &fds).unwrap();
    assert_eq!(find(&acm).unwrap().record, record());
    assert!(!acm.is_cache_coming());
    assert_eq!(service.questions(), 0);
}

/// The path, as the service supplies it.
fn supplied() -> Supplied {
    Supplied { to: question().to, way: (&record()).into() }
}

#[test]
fn path_that_failed_is_not_used_until_the_service_has_invalidated_it() {
    for invalidates in [false, true] {
        let folder = temp_dir();
        let (asked, is_asked) = mpsc::channel();
        let asked = Mutex::new(asked);
        let _service = AcmService::start(folder.path(), move |request| match request.query {
            Query::Flush(_) => {
                asked.lock().send(()).unwrap();
                let answer = if invalidates { Answer::Flushed(1) } else { Answer::Flushed(0) };
                Step::Say(acm::bytes(&Reply { tid: request.tid, answer }))
            }
            _ => answers(request),
        });
        // A program may look up a path by one connection and connect by another.
        let [finds, connects] = [(); 2].map(|()| asks(&folder, LONG));
        let path = find(&finds).unwrap();
        assert_eq!(finds.supply(&question(), path), Some(path));
        connects.report(connects.known.supplied([&record()]).unwrap(), Instant::now());
        if invalidates {
            while finds.supply(&question(), path).is_none() {
                std::thread::yield_now();
            }
        } else {
            is_asked.recv().unwrap();
            assert!(find(&connects).is_some());
            assert_eq!(finds.supply(&question(), path), None);
        }
    }
}

#[test]
fn id_that_ends_before_its_request_returns_has_no_path_recorded() {
    let folder = temp_dir();
    let (acm, id) = (asks(&folder, SHORT), IdHandle(7));
    let ends = || {
        assert_eq!(acm.given.remove(id), Some(supplied()));
        Ok(())
    };
    acm.with_given(id, supplied(), ends).unwrap();
    assert_eq!(acm.given.remove(id), None);
    // A request that is refused changes nothing.
    let refused = || {
        let (what, why) = ("set the paths".to_owned(), "it has one".to_owned());
        Err(HostError::Refused { what, why, errno: libc::EINVAL })
    };
    acm.with_given(id, supplied(), refused).unwrap_err();
    assert_eq!(acm.given.remove(id), None);
    acm.given.insert(id, supplied());
    acm.with_given(id, supplied(), refused).unwrap_err();
    assert_eq!(acm.given.remove(id), Some(supplied()));
}

#[test]
fn path_that_failed_is_reported_and_the_service_forgets_it() {
    let folder = temp_dir();
    let (asked, is_asked) = mpsc::channel();
    let asked = Mutex::new(asked);
    let _service = AcmService::start(folder.path(), move |request| {
        asked.lock().send(request.query).unwrap();
        Step::Hang
    });
    asks(&folder, SHORT).report(supplied(), Instant::now());
    assert_eq!(is_asked.recv(), Ok(Query::Flush(Some(question().to))));
}

/// Many reports in front of a query would otherwise delay it by a timeout each.
#[test]
fn report_that_waited_for_the_timeout_is_dropped() {
    let folder = temp_dir();
    let service = AcmService::start(folder.path(), |_| Step::Hang);
    let acm = asks(&folder, SHORT);
    // All threads are busy, and later only the first one is not.
    let (begun, begins) = mpsc::channel();
    let mut releases = Vec::new();
    for _ in 0..helpers::MOST {
        let (release, released) = mpsc::channel::<()>();
        releases.push(release);
        let begun = begun.clone();
        acm.helpers.run(move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        });
    }
    begins.iter().take(helpers::MOST).for_each(drop);
    acm.report(supplied(), Instant::now());
    let (done, is_done) = mpsc::channel();
    acm.helpers.run(move || done.send(()).unwrap());
    let deadline = acm.deadline();
    while Instant::now() < deadline {
        std::thread::yield_now();
    }
    drop(releases.swap_remove(0));
    is_done.recv().unwrap();
    assert_eq!((service.connections(), service.questions()), (0, 0));
    assert!(!acm.is_usable(&PathData { flags: PathData::WHOLE, record: record() }));
}

/// A starter whose program is a script, for the service at these places.
fn starter(folder: &TempDir, places: &Places, script: &str) -> Starter {
    use std::os::unix::fs::PermissionsExt as _;
    let program = folder.path().join("ib_acm");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (dir, host) = host_of(folder);
    Starter::new(Some(folder.path().join("rdmux")), dir, host, places.clone())
}

fn host_of(folder: &TempDir) -> (crate::RuntimeDir, crate::HostDir) {
    let dir = crate::RuntimeDir::at(folder.path().join("run")).unwrap();
    let host = dir.host(&crate::HostName::new("a").unwrap()).unwrap();
    (dir, host)
}

#[test]
fn service_is_started_on_demand_once_and_answers_when_it_is_there() {
    let folder = temp_dir();
    let ran = folder.path().join("ran");
    let script = format!("echo \"$@\" >> {}\necho ready", ran.display());
    let places = Places::new(folder.path().join("acm"), "/nowhere");
    let settings = Settings { usage: Use::Always, timeout: LONG };
    let acm = Acm::new(settings, places.clone(), || starter(&folder, &places, &script)).unwrap();
    // The script reports that it serves, but does not.
    assert_eq!((find(&acm), find(&acm)), (None, None));
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "--on-demand --host a\n");
    let _service = AcmService::start(&folder.path().join("acm"), answers);
    assert!(find(&acm).is_some());
}

/// Leaves the files of a service that was killed: a port number at which nothing listens. The returned socket keeps others from that
/// port.
fn leave_port(folder: &Path) -> (PathBuf, OwnedFd) {
    use rustix::net::{AddressFamily, SocketType};
    std::fs::create_dir_all(folder).unwrap();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap();
    let port = SocketAddr::try_from(address).unwrap().port();
    let file = folder.join("ibacm-tcp.port");
    std::fs::write(&file, port.to_string()).unwrap();
    std::os::unix::fs::symlink(&file, folder.join("ibacm.port")).unwrap();
    (file, socket)
}

#[test]
fn service_that_was_killed_and_left_its_port_is_started_again() {
    let folder = temp_dir();
    let (ran, acm) = (folder.path().join("ran"), folder.path().join("acm"));
    let (_port, _socket) = leave_port(&acm);
    let there = Places::new(folder.path().join("there"), "/nowhere");
    let _service = AcmService::start(there.runtime(), answers);
    let places = Places::new(&acm, "/nowhere");
    // Only the program makes the socket appear.
    let (there, link) = (there.socket_link(), places.socket_link());
    let script = format!(
        "ln -s {} {}\necho \"$@\" >> {}\necho ready",
        there.display(),
        link.display(),
        ran.display()
    );
    let settings = Settings { usage: Use::Always, timeout: LONG };
    let acm = Acm::new(settings, places.clone(), || starter(&folder, &places, &script)).unwrap();
    assert!(find(&acm).is_some());
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "--on-demand --host a\n");
}

#[test]
fn service_elsewhere_keeps_none_from_being_started_where_the_program_looks() {
    let folder = temp_dir();
    let ran = folder.path().join("ran");
    let (_, host) = host_of(&folder);
    let _elsewhere = AcmService::start(host.acm().runtime(), answers);
    let script = format!("echo \"$@\" >> {}\necho ready", ran.display());
    let places = Places::new(folder.path().join("acm"), "/nowhere");
    let settings = Settings { usage: Use::Always, timeout: LONG };
    let acm = Acm::new(settings, places.clone(), || starter(&folder, &places, &script)).unwrap();
    assert_eq!(find(&acm), None);
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "--on-demand --host a\n");
}

#[test]
fn service_that_is_hidden_from_programs_is_not_started_again() {
    let folder = temp_dir();
    let (ran, places) = (folder.path().join("ran"), Places::new(folder.path().join("acm"), ""));
    let service = AcmService::start(places.runtime(), answers);
    std::fs::remove_file(places.socket_link()).unwrap();
    let settings = Settings { usage: Use::Always, timeout: LONG };
    let script = format!("echo ran > {}\necho ready", ran.display());
    let acm = Acm::new(settings, places.clone(), || starter(&folder, &places, &script)).unwrap();
    assert_eq!((find(&acm), service.questions(), ran.exists()), (None, 0, false));
}

#[test]
fn listener_has_a_service_that_was_killed_started_again() {
    let folder = temp_dir();
    let (ran, acm) = (folder.path().join("ran"), folder.path().join("acm"));
    let _left = leave_port(&acm);
    let script = format!("echo ran > {}\necho ready", ran.display());
    let settings = Settings { usage: Use::Always, timeout: LONG };
    let places = Places::new(&acm, "/nowhere");
    let acm = Acm::new(settings, places.clone(), || starter(&folder, &places, &script)).unwrap();
    acm.serve();
    while !ran.exists() {
        std::thread::yield_now();
    }
}

#[test]
fn listener_has_the_service_started_and_stay() {
    let folder = temp_dir();
    let (asked, is_asked) = mpsc::channel();
    let asked = Mutex::new(asked);
    let places = Places::new(folder.path().join("acm"), "/nowhere");
    let settings = Settings { usage: Use::Always, timeout: LONG };
    let ran = folder.path().join("ran");
    let script = format!("echo ran > {}\necho ready", ran.display());
    let acm = Acm::new(settings, places.clone(), || starter(&folder, &places, &script)).unwrap();
    acm.serve();
    while !ran.exists() {
        std::thread::yield_now();
    }
    let _service = AcmService::start(&folder.path().join("acm"), move |request| {
        asked.lock().send(request.query).unwrap();
        Step::Hang
    });
    // The first job may still be running, and then a later one counts.
    let until = std::time::Instant::now() + LONG;
    let mut first = None;
    while first.is_none() && std::time::Instant::now() < until {
        acm.serve();
        std::thread::yield_now();
        first = is_asked.try_recv().ok();
    }
    assert_eq!(first, Some(Query::Statistics));
}

#[test]
fn listeners_whose_service_takes_long_keep_no_route_waiting() {
    let folder = temp_dir();
    let (asked, is_asked) = mpsc::channel();
    let asked = Mutex::new(asked);
    let _service = AcmService::start(folder.path(), move |request| match request.query {
        Query::Statistics => {
            asked.lock().send(()).unwrap();
            Step::Hang
        }
        _ => answers(request),
    });
    let settings = Settings { usage: Use::Always, timeout: LONG };
    let places = Places::new(folder.path(), "/nowhere");
    let acm = Acm::new(settings, places.clone(), || starter(&folder, &places, "exit 1")).unwrap();
    for _ in 0..40 {
        acm.serve();
    }
    let (found, is_found) = mpsc::channel();
    assert!(acm.helpers.run({
        let acm = Arc::clone(&acm);
        move || found.send(find(&acm)).unwrap()
    }));
    assert!(is_found.recv().unwrap().is_some());
    // The others need not query.
    assert!(is_asked.try_iter().count() <= 1);
}

#[test]
fn acm_service_that_fails_to_start_yields_no_path_and_no_error() {
    for script in ["exit 1", "echo error: no adapter"] {
        let folder = temp_dir();
        let places = Places::new(folder.path().join("acm"), "/nowhere");
        let settings = Settings { usage: Use::Always, timeout: LONG };
        let acm = Acm::new(settings, places.clone(), || starter(&folder, &places, script)).unwrap();
        assert_eq!(find(&acm), None);
    }
}
