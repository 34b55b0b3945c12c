//! The descriptors that block here are TCP sockets whose peer does not read: their last close(2) waits.

use std::fs::File;
use std::io::{IoSlice, PipeReader, Read};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::*;
use crate::socket;
use rdmux_testing::{lingering, temp_dir};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Returns a descriptor, and a pipe whose end shows that it is closed.
fn plain() -> (OwnedFd, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    (writer.into(), reader)
}

fn await_closed(mut reader: PipeReader) {
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

/// Ends the blocked close of user 1's descriptor, and waits until everything is closed.
fn await_end_of(closer: &Closer, peer: TcpStream) {
    let (last, closed) = plain();
    drop(closer.foreign(1, last));
    drop(peer);
    await_closed(closed);
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// Returns how many descriptors of a user are still to be closed.
fn left(closer: &Closer, user: u32) -> usize {
    closer.0.state.lock().users.get(&user).map_or(0, |user| user.waiting.len() + user.busy)
}

#[test]
fn a_descriptor_whose_close_blocks_keeps_other_users_waiting_for_nothing() {
    let closer = Closer::default();
    let mut peers = Vec::new();
    for _ in 0..=USER_THREADS {
        let (fd, peer) = lingering();
        drop(closer.foreign(1, fd));
        peers.push(peer);
    }
    let (behind, closed_behind) = plain();
    drop(closer.foreign(1, behind));
    let (other, closed) = plain();
    drop(closer.foreign(2, other));
    await_closed(closed);
    assert_eq!(left(&closer, 1), USER_THREADS + 2);
    assert!(closer.0.state.lock().threads <= USER_THREADS + 1);
    drop(peers);
    await_closed(closed_behind);
}

#[test]
fn many_users_whose_closes_block_have_a_bounded_number_of_threads() {
    let closer = Closer::default();
    let mut peers = Vec::new();
    let users = u32::try_from(MAX_THREADS).unwrap() + 2;
    for user in 0..users {
        let (fd, peer) = lingering();
        drop(closer.foreign(user, fd));
        peers.push(peer);
    }
    assert!(closer.0.state.lock().threads <= MAX_THREADS);
    assert!((0..users).all(|user| left(&closer, user) == 1));
    drop(peers);
    let (fd, closed) = plain();
    drop(closer.foreign(0, fd));
    await_closed(closed);
}

#[test]
fn user_is_full_while_its_pending_closes_reach_the_limit() {
    let closer = Closer::default();
    let peers: Vec<TcpStream> = (0..USER_THREADS)
        .map(|_| {
            let (fd, peer) = lingering();
            drop(closer.foreign(1, fd));
            peer
        })
        .collect();
    for _ in USER_THREADS..MAX_WAITING {
        assert!(!closer.is_full(1));
        drop(closer.foreign(1, null()));
    }
    assert!(closer.is_full(1) && !closer.is_full(2));
    let (last, closed) = plain();
    drop(closer.foreign(1, last));
    drop(peers);
    await_closed(closed);
    assert!(!closer.is_full(1));
}

#[test]
fn socket_with_unread_messages_is_closed_in_the_background() {
    let closer = Closer::default();
    for theirs_open in [true, false] {
        let (ours, theirs) = socket::pair().unwrap();
        let theirs = theirs_open.then_some(theirs);
        drop(closer.socket(1, ours));
        assert_eq!(closer.0.state.lock().threads, 0);
        drop(theirs);
    }
    for bytes in [&b"bytes"[..], b""] {
        let (ours, theirs) = socket::pair().unwrap();
        let (fd, peer) = lingering();
        // An empty message alone could be taken for the end of the stream.
        socket::send_bytes(theirs.as_fd(), b"", &[]).unwrap();
        socket::send_bytes(theirs.as_fd(), bytes, &[fd.as_fd()]).unwrap();
        drop((fd, theirs));
        drop(closer.socket(1, ours));
        assert!(left(&closer, 1) > 0);
        await_end_of(&closer, peer);
    }
}

#[test]
fn stream_with_unread_normal_or_oob_bytes_is_closed_in_the_background() {
    let closer = Closer::default();
    let pair = || UnixStream::pair().unwrap();
    for theirs_open in [true, false] {
        let (ours, theirs) = pair();
        let theirs = theirs_open.then_some(theirs);
        drop(closer.socket(1, ours.into()));
        assert_eq!(closer.0.state.lock().threads, 0);
        drop(theirs);
    }
    for flags in [SendFlags::empty(), SendFlags::OOB] {
        let (ours, theirs) = pair();
        let (fd, peer) = lingering();
        send_with(&theirs, &fd, flags);
        drop((fd, theirs));
        drop(closer.socket(1, ours.into()));
        assert!(left(&closer, 1) > 0);
        await_end_of(&closer, peer);
    }
}

#[test]
fn descriptors_passed_with_normal_or_oob_stream_bytes_are_received() {
    for flags in [SendFlags::empty(), SendFlags::OOB] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ours = Closer::default().socket(1, ours.into());
        let (fd, _) = plain();
        send_with(&theirs, &fd, flags);
        let (mut buf, mut kept) = ([0; 8], Vec::new());
        let keep = |fd| kept.push(fd);
        assert_eq!(socket::try_read(ours.as_fd(), &mut buf, keep), Ok(1));
        assert_eq!((buf[0], kept.len()), (b'x', 1));
        drop(theirs);
        assert_eq!(socket::try_read(ours.as_fd(), &mut buf, |_| ()), Ok(0));
    }
}

/// Sends a byte and a descriptor on a stream.
fn send_with(socket: &UnixStream, fd: &OwnedFd, flags: SendFlags) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"x")], &mut control, flags).unwrap();
}

#[test]
fn only_genuine_memfd_and_nsfs_descriptors_are_accepted() {
    let closer = Closer::default();
    let foreign = |fd: OwnedFd| closer.foreign(1, fd);
    let open = |path: &std::path::Path| OwnedFd::from(File::open(path).unwrap());
    let dir = temp_dir();
    let forged = dir.path().join("user:[4026531837]");
    File::create(&forged).unwrap();
    let memory = || {
        let memory = rdmux_link::SharedMem::create("user:[1]", 8).unwrap();
        memory.duplicate().unwrap()
    };
    let (user, mounts) = ("/proc/self/ns/user".as_ref(), "/proc/self/ns/mnt".as_ref());
    assert!(foreign(memory()).into_memfd().is_some());
    assert!(foreign(open(user)).into_namespace("user").is_some());
    assert!(foreign(open(mounts)).into_namespace("mnt").is_some());
    assert!(foreign(open(mounts)).into_namespace("user").is_none());
    for other in [null, || plain().0, || lingering().0] {
        assert!(foreign(other()).into_memfd().is_none());
        assert!(foreign(other()).into_namespace("user").is_none());
    }
    assert!(foreign(open(&forged)).into_memfd().is_none());
    assert!(foreign(open(&forged)).into_namespace("user").is_none());
    assert!(foreign(memory()).into_namespace("user").is_none());
}
