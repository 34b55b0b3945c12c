//! A service whose descriptors the kernel refuses to send, because too many are in flight (`ETOOMANYREFS`, unix(7)).

mod common;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use common::{Host, next_event, wait_readable};
use rdmux_host::proto::socket::{self, MAX_MESSAGE};
use rdmux_host::proto::{ClientKind, Reply, Request, Response, VERSION};
use rdmux_verbs::control::{Control, ControlEvent, DeviceKind};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// The number of descriptors that the test puts in flight: the maximum of a message.
const IN_FLIGHT: usize = 253;

/// Gives up the capabilities of this thread, and of those that it starts, that exempt from the limit.
fn be_limited() {
    let mut sets = capabilities(None).unwrap();
    let exempt = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    sets.effective -= exempt;
    sets.permitted -= exempt;
    sets.inheritable -= exempt;
    set_capabilities(None, sets).unwrap();
}

/// Sends descriptors to a socket that nobody reads yet.
fn put_in_flight(socket: &OwnedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(IN_FLIGHT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [socket.as_fd(); IN_FLIGHT];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let (bytes, flags) = ([IoSlice::new(b"x")], SendFlags::empty());
    rustix::net::sendmsg(socket, &bytes, &mut control, flags).unwrap();
}

fn send(socket: &OwnedFd, request: &Request) {
    socket::send(socket.as_fd(), request, &[], &mut Vec::new()).unwrap();
}

fn reply(socket: &OwnedFd) -> (Response, Vec<OwnedFd>) {
    wait_readable(socket);
    let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
    let bytes = socket::recv_bytes(socket.as_fd(), &mut buf, &mut fds).unwrap();
    (socket::decode::<Reply>(bytes).unwrap().unwrap(), fds)
}

/// Connects a process with a device. Returns its connection, its slot, and the descriptors of its greeting.
fn device(host: &Host) -> (OwnedFd, u16, Vec<OwnedFd>) {
    let socket = host.raw();
    let kind = ClientKind::Device(DeviceKind::default());
    send(&socket, &Request::Hello { version: VERSION, kind });
    match reply(&socket) {
        (Response::Welcome(welcome), fds) => (socket, welcome.slot, fds),
        other => panic!("{other:?}"),
    }
}

/// The only test of this program, because it changes the limits of the process.
#[test]
fn replies_and_notifications_with_refused_descriptors_are_sent_later() {
    be_limited();
    let host = Host::start();
    let (peer, bystander) = (host.client(), host.client());
    // The service notices the end of a socket for notifications.
    let (client, _, _notify_and_counters) = device(&host);
    let (leaving, slot, _its_notify_and_counters) = device(&host);
    let (full, reads) = socket::pair().unwrap();

    // The limit of descriptors in flight is that of open ones.
    let before = getrlimit(Resource::Nofile);
    let limit = Some(u64::try_from(IN_FLIGHT).unwrap() - 1);
    setrlimit(Resource::Nofile, Rlimit { current: limit, ..before }).unwrap();
    put_in_flight(&full);
    send(&client, &Request::ConnectRing { host: None, peer: peer.info().slot.slot });
    send(&client, &Request::NewSlot);
    // The service has read the requests before this one.
    bystander.new_slot().unwrap();
    assert!(!socket::is_readable(client.as_fd()), "it was answered, or dropped");
    // A process may leave meanwhile.
    send(&leaving, &Request::OpenChannel);
    bystander.new_slot().unwrap();
    drop(leaving);
    let left = next_event(&bystander);
    assert!(matches!(left, Ok(ControlEvent::PeerGone { slot: s }) if s == slot), "{left:?}");

    setrlimit(Resource::Nofile, before).unwrap();
    drop(reads);
    let (ring, fds) = reply(&client);
    assert!(matches!(ring, Response::Ring { .. }), "{ring:?}");
    assert_eq!(fds.len(), 3);
    let (slot, _) = reply(&client);
    assert!(matches!(slot, Response::Slot { .. }), "{slot:?}");
    assert!(matches!(next_event(&peer), Ok(ControlEvent::Ring { .. })));
}
