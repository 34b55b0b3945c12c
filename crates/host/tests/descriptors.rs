//! What the service does with descriptors of which a client decides what they are: the last close(2) of one may wait for
//! whom the client likes, and the service waits for nobody.

mod common;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use common::Host;
use rdmux_host::DeviceChoice;
use rdmux_host::proto::socket::{self, MAX_MESSAGE};
use rdmux_host::proto::{
    ClientKind, HubReply, HubRequest, HubResponse, Reply, Request, Response, VERSION,
};
use rdmux_testing::{close_elsewhere as close, lingering};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::xrc::{XrcReply, XrcRequest};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// A client that has greeted, and what it got.
fn greeted(host: &Host, hello: &Request) -> (OwnedFd, Vec<OwnedFd>) {
    let socket = host.raw();
    let (_, fds) = ask(&socket, hello);
    (socket, fds)
}

/// Something that a client does with a descriptor, and what of the client stays.
type Deed<'a> = &'a dyn Fn(&Host, BorrowedFd<'_>) -> Vec<OwnedFd>;

#[test]
fn the_service_answers_while_the_close_of_a_descriptor_that_it_was_passed_blocks() {
    let hello = |request: Request| {
        move |host: &Host, fd: BorrowedFd<'_>| {
            let socket = host.raw();
            send(&socket, &request, &[fd]);
            vec![socket]
        }
    };
    let deeds: &[(&str, Deed<'_>)] = &[
        ("a board", &hello(hello_device())),
        ("with a greeting that has none", &hello(HELLO_TOOL)),
        ("with a request that has none", &|host, fd| {
            let (socket, _) = greeted(host, &HELLO_TOOL);
            send(&socket, &Request::Status, &[fd]);
            vec![socket]
        }),
        ("a namespace", &|host, fd| {
            let (socket, _) = greeted(host, &HELLO_TOOL);
            send(&socket, &Request::HoldView { devices: DeviceChoice::default() }, &[fd, fd]);
            vec![socket]
        }),
        ("a request that takes none", &|host, fd| {
            let (socket, fds) = greeted(host, &hello_device());
            send(&socket, &Request::OpenChannel, &[fd]);
            fds.into_iter().chain([socket]).collect()
        }),
        ("too many in a message", &|host, fd| {
            let socket = host.raw();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // This one comes last, where there might be no room for it.
            let other = std::fs::File::open("/dev/null").unwrap();
            let mut fds = [other.as_fd(); 100];
            fds[99] = fd;
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let bytes = [IoSlice::new(b"x")];
            rustix::net::sendmsg(&socket, &bytes, &mut control, SendFlags::empty()).unwrap();
            vec![socket]
        }),
        ("on a socket on which only the service speaks", &|host, fd| {
            let (socket, fds) = greeted(host, &hello_device());
            socket::send_bytes(fds[0].as_fd(), b"x", &[fd]).unwrap();
            vec![socket]
        }),
    ];
    for (what, deed) in deeds {
        let host = Host::start();
        let (fd, peer) = lingering();
        let client = deed(&host, fd.as_fd());
        close(fd);
        // The first of these may be answered before the descriptor is looked at, which another socket brings.
        for _ in 0..20 {
            let (bystander, _) = greeted(&host, &HELLO_TOOL);
            assert!(matches!(ask(&bystander, &Request::Status).0, Response::Status(_)), "{what}");
        }
        drop(client);
        let (bystander, _) = greeted(&host, &HELLO_TOOL);
        assert!(matches!(ask(&bystander, &Request::Status).0, Response::Status(_)), "{what}");
        drop(peer);
    }
}

#[test]
fn the_hub_answers_while_the_close_of_a_descriptor_that_it_was_passed_blocks() {
    let host = Host::start();
    let session = || {
        let (client, fds) = greeted(&host, &hello_device());
        let (_, mut hub) = ask(&client, &Request::OpenHub);
        (client, fds, hub.remove(0))
    };
    let (fd, peer) = lingering();
    let (_passes, _fds, hub) = session();
    let open = XrcRequest::OpenDomain { create: true, exclusive: false };
    send(&hub, &HubRequest::Xrc(open), &[fd.as_fd()]);
    close(fd);
    let (reply, _) = receive::<HubReply>(&hub);
    assert!(matches!(reply, Ok(HubResponse::Xrc(XrcReply::Domain(_)))));
    let (_other, _fds, others) = session();
    send(&others, &HubRequest::Slot, &[]);
    assert!(matches!(receive::<HubReply>(&others).0, Ok(HubResponse::Slot(_))));
    drop(peer);
}
