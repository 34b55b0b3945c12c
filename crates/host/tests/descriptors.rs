//! Tests of the service with descriptors that a client chooses: the last close(2) of one may block for as long as the
//! client likes, but the service must not.
//!
//! The service runs in a process of its own, this test program again. It is stopped while a descriptor is in flight and
//! the client closes its own copy, so that the service's is the last.

mod common;

use std::io::{BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use common::{Host, SECOND, raw};
use rdmux_host::client::admin;
use rdmux_host::proto::socket::{self, MAX_MESSAGE};
use rdmux_host::proto::{
    ClientKind, HubReply, HubRequest, HubResponse, Reply, Request, Response, VERSION,
};
use rdmux_host::{DeviceChoice, HostName, RuntimeDir};
use rdmux_testing::{TempDir, lingering, temp_dir};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::xrc::{XrcReply, XrcRequest};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::Serialize;
use serde::de::DeserializeOwned;

const SERVICE: &str = "RDMUX_TEST_SERVICE";

/// Runs the service of the other tests. Not a test itself.
#[test]
fn service() {
    if std::env::var_os(SERVICE).is_none() {
        return;
    }
    let host = Host::start();
    println!("SAYS {}", host.options.dir.path().display());
    loop {
        std::thread::park();
    }
}

/// The service of a host.
struct Service {
    child: Child,
    dir: RuntimeDir,
    _folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Service {
    fn start() -> Self {
        // A process that another test starts has copies of this process's descriptors until it calls exec.
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let folder = temp_dir();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "service", "--nocapture", "--test-threads=1"])
            .env(SERVICE, "")
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = lines.find_map(|l| l.split_once("SAYS ").map(|(_, dir)| dir.to_owned()));
        let dir = RuntimeDir::at(said.expect("it ended without a word")).unwrap();
        Self { child, dir, _folder: folder, _turn: turn }
    }

    /// Makes the service receive the descriptor that `pass` sends after this process has closed its copy.
    fn is_passed(&self, fd: OwnedFd, pass: impl FnOnce(BorrowedFd<'_>)) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
        pass(fd.as_fd());
        drop(fd);
        kill_process(pid, Signal::CONT).unwrap();
    }

    fn raw(&self) -> OwnedFd {
        raw(&self.dir.host(&HostName::new("test").unwrap()).unwrap().socket())
    }

    /// Checks that the service answers. Returns how many clients with a device it has.
    fn answers(&self, what: &str) -> usize {
        let status = admin::status(&self.dir, &HostName::new("test").unwrap());
        status.unwrap_or_else(|e| panic!("{what}: {e}")).clients.len()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const HELLO_TOOL: Request = Request::Hello { version: VERSION, kind: ClientKind::Tool };

fn hello_device() -> Request {
    Request::Hello { version: VERSION, kind: ClientKind::Device(DeviceKind::default()) }
}

fn send<T: Serialize>(socket: &OwnedFd, request: &T, fds: &[BorrowedFd<'_>]) {
    socket::send(socket.as_fd(), request, fds, &mut Vec::new()).unwrap();
}

fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> (T, Vec<OwnedFd>) {
    common::wait_readable(socket);
    let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
    let bytes = socket::recv_bytes(socket.as_fd(), &mut buf, &mut fds).unwrap();
    (socket::decode(bytes).unwrap(), fds)
}

fn ask(socket: &OwnedFd, request: &Request) -> (Response, Vec<OwnedFd>) {
    send(socket, request, &[]);
    let (reply, fds) = receive::<Reply>(socket);
    (reply.unwrap(), fds)
}

/// Returns the socket of a client that has greeted, and the descriptors that it got.
fn greeted(service: &Service, hello: &Request) -> (OwnedFd, Vec<OwnedFd>) {
    let socket = service.raw();
    let (_, fds) = ask(&socket, hello);
    (socket, fds)
}

/// A function that passes a descriptor, given a client's socket and the descriptors of its greeting.
type Pass<'a> = &'a dyn Fn(&OwnedFd, &[OwnedFd], BorrowedFd<'_>);

#[test]
fn the_service_answers_while_the_close_of_a_descriptor_that_it_was_passed_blocks() {
    let view = || Request::HoldView { devices: DeviceChoice::default() };
    let deeds: &[(&str, Option<Request>, Pass<'_>)] = &[
        ("a board", None, &|socket, _, fd| send(socket, &hello_device(), &[fd])),
        ("with a greeting that has none", None, &|socket, _, fd| send(socket, &HELLO_TOOL, &[fd])),
        ("with a request that has none", Some(HELLO_TOOL), &|socket, _, fd| {
            send(socket, &Request::Status, &[fd]);
        }),
        ("a namespace", Some(HELLO_TOOL), &|socket, _, fd| send(socket, &view(), &[fd, fd])),
        ("a request that takes none", Some(hello_device()), &|socket, _, fd| {
            send(socket, &Request::OpenChannel, &[fd]);
        }),
        ("too many in a message", None, &|socket, _, fd| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // The descriptor is the last one, where there might be no room for it.
            let other = std::fs::File::open("/dev/null").unwrap();
            let mut fds = [other.as_fd(); 100];
            fds[99] = fd;
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let bytes = [IoSlice::new(b"x")];
            rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::empty()).unwrap();
        }),
        ("on a socket on which only the service speaks", Some(hello_device()), &|_, fds, fd| {
            socket::send_bytes(fds[0].as_fd(), b"x", &[fd]).unwrap();
        }),
    ];
    for (what, hello, pass) in deeds {
        let service = Service::start();
        let (socket, fds) = match hello {
            Some(hello) => greeted(&service, hello),
            None => (service.raw(), Vec::new()),
        };
        let (fd, peer) = lingering();
        service.is_passed(fd, |fd| pass(&socket, &fds, fd));
        // This is answered after the message with the descriptor, or the connection is closed.
        let _ = socket::send(socket.as_fd(), &Request::Status, &[], &mut Vec::new());
        common::wait_readable(&socket);
        service.answers(what);
        drop((socket, fds));
        let deadline = Instant::now() + 20 * SECOND;
        while service.answers(what) > 0 {
            assert!(Instant::now() < deadline, "{what}: the client does not go");
        }
        service.answers(what);
        drop(peer);
    }
}

#[test]
fn the_hub_answers_while_the_close_of_a_descriptor_that_it_was_passed_blocks() {
    let service = Service::start();
    let session = || {
        let (client, fds) = greeted(&service, &hello_device());
        let (_, mut hub) = ask(&client, &Request::OpenHub);
        (client, fds, hub.remove(0))
    };
    let (_passes, _fds, hub) = session();
    let (_other, _others_fds, others) = session();
    let (fd, peer) = lingering();
    let open = XrcRequest::OpenDomain { create: true, exclusive: false };
    service.is_passed(fd, |fd| send(&hub, &HubRequest::Xrc(open), &[fd]));
    let (reply, _) = receive::<HubReply>(&hub);
    assert!(matches!(reply, Ok(HubResponse::Xrc(XrcReply::Domain(_)))));
    send(&others, &HubRequest::Slot, &[]);
    assert!(matches!(receive::<HubReply>(&others).0, Ok(HubResponse::Slot(_))));
    drop(peer);
}
