//! Messages and file descriptors over a `SOCK_SEQPACKET` Unix socket (unix(7)).
//!
//! Each message is one packet, so no framing is needed: a message arrives in full or not at all.
//! Descriptors are passed with `SCM_RIGHTS`, and arrive close-on-exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::retry::until_timeout;

/// The maximum number of bytes in a message.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// The maximum number of descriptors in a message.
pub const MAX_FDS: usize = 8;
/// The maximum number of descriptors that the kernel allows in a message (`SCM_MAX_FD`, `unix(7)`). There is room for
/// all: the kernel would close those that do not fit before the call returns, and their sender can make that block.
const SYSTEM_FDS: usize = 253;

/// The reason why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The peer closed the socket, or died.
    #[error("the socket is closed")]
    Closed,
    /// The socket has nothing to read, or no room to write, now.
    #[error("the socket would block")]
    WouldBlock,
    /// The message is longer than [`MAX_MESSAGE`].
    #[error("the message exceeds {MAX_MESSAGE} bytes")]
    TooLong,
    /// The message carried more descriptors than [`MAX_FDS`], or this process's table has no room for them.
    #[error("descriptors were truncated")]
    FdsCut,
    /// The message is not one of this protocol version.
    #[error("cannot decode the message: {0}")]
    Decode(#[from] postcard::Error),
    /// The operating system returned an error.
    #[error(transparent)]
    Io(io::Error),
}

impl From<rustix::io::Errno> for MessageError {
    fn from(e: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match e {
            Errno::AGAIN => Self::WouldBlock,
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            Errno::MSGSIZE => Self::TooLong,
            e => Self::Io(e.into()),
        }
    }
}

/// Creates a connected pair of sockets, close-on-exec.
///
/// # Errors
/// Those of socketpair(2), mostly that the process has no descriptor left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends bytes and descriptors as one message, without raising SIGPIPE.
///
/// # Errors
/// [`MessageError::WouldBlock`] when the socket does not block and is full, or its send timeout has expired.
pub fn send_bytes(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), MessageError> {
    send_message(socket, bytes, fds, SendFlags::empty())
}

/// Like [`send_bytes`] without descriptors, but never blocks.
///
/// # Errors
/// [`MessageError::WouldBlock`] when the socket is full.
pub fn try_send_bytes(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), MessageError> {
    send_message(socket, bytes, &[], SendFlags::DONTWAIT)
}

fn send_message(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), MessageError> {
    if bytes.len() > MAX_MESSAGE {
        return Err(MessageError::TooLong);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = fds.len() <= MAX_FDS
        && (fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    if !fits {
        return Err(MessageError::FdsCut);
    }
    let iov = [IoSlice::new(bytes)];
    until_timeout(socket, Timeout::Send, || {
        rustix::net::sendmsg(socket, &iov, &mut control, flags | SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Sends a value and descriptors as one message. `scratch` is the buffer for its encoding.
///
/// # Errors
/// As [`send_bytes`].
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    value: &T,
    fds: &[BorrowedFd<'_>],
    scratch: &mut Vec<u8>,
) -> Result<(), MessageError> {
    scratch.clear();
    append(value, scratch)?;
    send_bytes(socket, scratch, fds)
}

/// Appends the encoding of a value to `message`, which is unchanged if that fails.
///
/// # Errors
/// [`MessageError::Decode`], which does not occur with the messages of this project.
pub fn append<T: Serialize>(value: &T, message: &mut Vec<u8>) -> Result<(), MessageError> {
    let len = message.len();
    if let Err(e) = postcard::to_io(value, &mut *message) {
        message.truncate(len);
        return Err(e.into());
    }
    Ok(())
}

/// Returns whether a message, or the end, can be received.
pub fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())) != Ok(0)
}

/// Receives one message into `buf` and returns its bytes. Its descriptors replace those in `fds`.
///
/// # Errors
/// [`MessageError::Closed`] at the end; [`MessageError::WouldBlock`] on a socket that does not
/// block, or whose receive timeout has expired.
pub fn recv_bytes<'b>(
    socket: BorrowedFd<'_>,
    buf: &'b mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<&'b [u8], MessageError> {
    fds.clear();
    recv(socket, buf, RecvFlags::empty(), |fd| fds.push(fd))
}

/// Like [`recv_bytes`], but returns whether descriptors were cut off instead of [`MessageError::FdsCut`].
///
/// # Errors
/// As [`recv_bytes`].
pub fn recv_bytes_with_cut<'b>(
    socket: BorrowedFd<'_>,
    buf: &'b mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<(&'b [u8], bool), MessageError> {
    fds.clear();
    recv_with_cut(socket, buf, RecvFlags::empty(), |fd| fds.push(fd))
}

/// Like [`recv_bytes`], but never blocks: returns [`MessageError::WouldBlock`] when no message is queued.
///
/// # Errors
/// As [`recv_bytes`].
pub fn try_recv_bytes<'b>(
    socket: BorrowedFd<'_>,
    buf: &'b mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<&'b [u8], MessageError> {
    fds.clear();
    try_recv_each(socket, buf, |fd| fds.push(fd))
}

/// Like [`try_recv_bytes`], but passes each descriptor to `keep`, also those of a message that is refused.
///
/// # Errors
/// As [`recv_bytes`].
pub fn try_recv_each<'b>(
    socket: BorrowedFd<'_>,
    buf: &'b mut [u8],
    keep: impl FnMut(OwnedFd),
) -> Result<&'b [u8], MessageError> {
    recv(socket, buf, RecvFlags::DONTWAIT, keep)
}

/// Like [`try_recv_bytes`], for a message without descriptors, which stays in the queue until [`discard`] removes it.
///
/// # Errors
/// As [`recv_bytes`].
pub fn peek_bytes<'b>(socket: BorrowedFd<'_>, buf: &'b mut [u8]) -> Result<&'b [u8], MessageError> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, len) = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *buf, flags))?;
    match len {
        0 => Err(MessageError::Closed),
        _ => buf.get(..len).ok_or(MessageError::TooLong),
    }
}

/// Removes the next message.
pub fn discard(socket: BorrowedFd<'_>) {
    // An error is ignored: the message was there just now.
    let _ =
        rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT));
}

/// Waits for a message, or the end, and leaves it in the queue.
///
/// # Errors
/// [`MessageError::WouldBlock`] on a socket that does not block, or whose receive timeout has expired.
pub fn await_readable(socket: BorrowedFd<'_>) -> Result<(), MessageError> {
    let peek = || rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK);
    until_timeout(socket, Timeout::Recv, peek)?;
    Ok(())
}

fn recv<'b>(
    socket: BorrowedFd<'_>,
    buf: &'b mut [u8],
    flags: RecvFlags,
    keep: impl FnMut(OwnedFd),
) -> Result<&'b [u8], MessageError> {
    match recv_with_cut(socket, buf, flags, keep)? {
        (bytes, false) => Ok(bytes),
        (_, true) => Err(MessageError::FdsCut),
    }
}

/// Receives a message, and returns whether descriptors were cut off.
fn recv_with_cut<'b>(
    socket: BorrowedFd<'_>,
    buf: &'b mut [u8],
    flags: RecvFlags,
    mut keep: impl FnMut(OwnedFd),
) -> Result<(&'b [u8], bool), MessageError> {
    let mut count = 0;
    let (len, told) = receive(socket, &mut *buf, flags, |fd| {
        count += 1;
        keep(fd);
    })?;
    if told.contains(ReturnFlags::TRUNC) {
        return Err(MessageError::TooLong);
    }
    let cut = told.contains(ReturnFlags::CTRUNC) || count > MAX_FDS;
    // An empty packet cannot be distinguished from the end of the stream. No message of this project is empty.
    if len == 0 && !cut {
        return Err(MessageError::Closed);
    }
    Ok((&buf[..len], cut))
}

/// Receives bytes, and passes each descriptor that arrived with them to `keep`. Returns the number of bytes, and the
/// kernel's flags.
fn receive(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    flags: RecvFlags,
    mut keep: impl FnMut(OwnedFd),
) -> rustix::io::Result<(usize, ReturnFlags)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SYSTEM_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = until_timeout(socket, Timeout::Recv, || {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(buf)],
            &mut control,
            flags | RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(&mut keep);
        }
    }
    Ok((got.bytes, got.flags))
}

/// Reads bytes of a stream without blocking, and passes each descriptor that arrived with them to `keep`. Returns the
/// number of bytes, zero at the end.
///
/// # Errors
/// Those of recvmsg(2).
pub fn try_read(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    keep: impl FnMut(OwnedFd),
) -> rustix::io::Result<usize> {
    Ok(receive(socket, buf, RecvFlags::DONTWAIT, keep)?.0)
}

/// Decodes the first of a message's values, and returns it with the bytes of the others.
///
/// # Errors
/// [`MessageError::Decode`].
pub fn decode_first<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), MessageError> {
    Ok(postcard::take_from_bytes(bytes)?)
}

/// Decodes a whole message. Trailing bytes are an error.
///
/// # Errors
/// [`MessageError::Decode`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    let (value, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(MessageError::Decode(postcard::Error::DeserializeBadEncoding))
    }
}

/// Sets whether calls on the socket block.
///
/// # Errors
/// Those of ioctl(2), for an invalid descriptor.
pub fn set_nonblocking(socket: impl AsFd, nonblocking: bool) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(socket, nonblocking)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_passed_descriptors_arrive_together_with_cloexec() {
        let (a, b) = pair().unwrap();
        let (c, d) = pair().unwrap();
        let mut scratch = Vec::new();
        send(a.as_fd(), &(7u32, "seven"), &[c.as_fd()], &mut scratch).unwrap();
        let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
        let bytes = recv_bytes(b.as_fd(), &mut buf, &mut fds).unwrap();
        assert_eq!(decode::<(u32, String)>(bytes).unwrap(), (7, "seven".to_owned()));
        assert_eq!(fds.len(), 1);
        assert!(rustix::io::fcntl_getfd(&fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        // The descriptor that arrived refers to the one that was sent.
        send_bytes(fds[0].as_fd(), b"x", &[]).unwrap();
        assert_eq!(recv_bytes(d.as_fd(), &mut buf, &mut fds).unwrap(), b"x");
    }

    #[test]
    fn empty_socket_is_would_block_and_peer_close_is_closed() {
        let (a, b) = pair().unwrap();
        let (mut buf, mut fds) = (vec![0; 16], Vec::new());
        set_nonblocking(&b, true).unwrap();
        assert!(matches!(recv_bytes(b.as_fd(), &mut buf, &mut fds), Err(MessageError::WouldBlock)));
        drop(a);
        assert!(matches!(recv_bytes(b.as_fd(), &mut buf, &mut fds), Err(MessageError::Closed)));
        assert!(matches!(send_bytes(b.as_fd(), b"x", &[]), Err(MessageError::Closed)));
    }

    #[test]
    fn too_long_message_or_too_many_descriptors_is_an_error() {
        let (a, b) = pair().unwrap();
        let (mut buf, mut fds) = (vec![0; 16], Vec::new());
        send_bytes(a.as_fd(), &[1; 17], &[]).unwrap();
        assert!(matches!(recv_bytes(b.as_fd(), &mut buf, &mut fds), Err(MessageError::TooLong)));
        let many = [a.as_fd(); MAX_FDS + 1];
        assert!(matches!(send_bytes(a.as_fd(), b"x", &many), Err(MessageError::FdsCut)));
        assert!(matches!(
            send_bytes(a.as_fd(), &vec![0; MAX_MESSAGE + 1], &[]),
            Err(MessageError::TooLong)
        ));
    }

    #[test]
    fn message_with_trailing_bytes_does_not_decode() {
        let mut bytes = postcard::to_stdvec(&5u8).unwrap();
        assert_eq!(decode::<u8>(&bytes).unwrap(), 5);
        bytes.push(0);
        assert!(decode::<u8>(&bytes).is_err());
        assert!(decode::<u32>(&[]).is_err());
    }
}
