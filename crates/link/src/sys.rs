//! System calls that take pointers, wrapped so that callers hold slices.
//!
//! # What the unsafe code here relies on
//!
//! Every pointer given to the kernel is made from a slice that lives until the call returns: no call here is asynchronous, except
//! that the kernel continues to read pages that are sent zero-copy, which it references itself. The kernel writes at most the
//! lengths that it is given.
//!
//! Sending and receiving bypass the C library's wrappers, which make each call a cancellation point at some cost. No thread that
//! runs this code is ever cancelled.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::udp::control;
use crate::wire::Piece;

/// The size of a buffer for any IPv4 or IPv6 socket address.
pub(crate) const NAME_LEN: usize = mem::size_of::<libc::sockaddr_in6>();
/// The size of a buffer for the control messages of a received datagram.
pub(crate) const CONTROL_LEN: usize = 128;
/// The maximum number of messages of one [`receive`].
pub(crate) const MAX_MESSAGES: usize = 64;
/// The maximum number of pieces of one [`send_pieces`] or [`receive_pieces`].
pub(crate) const MAX_IOVECS: usize = 256;

/// Sets a socket option that is an integer.
pub(crate) fn set_int(fd: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set(fd, level, name, &value.to_ne_bytes())
}

/// Sets a socket option.
pub(crate) fn set(fd: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = length(value.len());
    // SAFETY: `value` is `len` readable bytes.
    let r = unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, value.as_ptr().cast(), len)
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns a socket option that is an integer.
pub(crate) fn get_int(fd: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let (mut value, mut len) = (0_i32, length(mem::size_of::<i32>()));
    // SAFETY: `value` is `len` writable bytes, and so is `len`.
    let r = unsafe {
        let into = (&raw mut value).cast();
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, into, &raw mut len)
    };
    if r == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Returns the credentials of the process at the other end of a Unix socket, with PID 0 if that is outside of this PID namespace.
pub(crate) fn peer_credentials(fd: impl AsFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = length(mem::size_of::<libc::ucred>());
    // SAFETY: `peer` is `len` writable bytes, and so is `len`; any bytes are a `ucred`.
    let r = unsafe {
        let into = (&raw mut peer).cast();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, into, &raw mut len)
    };
    if r == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

/// Returns how many bytes of memory the messages take that a Unix socket's peer has not read.
pub(crate) fn unread_by_peer(fd: impl AsFd) -> io::Result<usize> {
    let mut len = 0_i32;
    // SAFETY: the request writes an `int`, which `len` is.
    let r = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut len) };
    if r == 0 { Ok(usize::try_from(len).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a classic BPF program that selects the socket of a SO_REUSEPORT group (`socket(7)`).
pub(crate) fn attach_reuseport_cbpf(
    fd: impl AsFd,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: `program` points at `len` instructions; the kernel copies and checks them.
    let r = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            length(mem::size_of::<libc::sock_fprog>()),
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns empty attributes of a thread: policy, priority and slice (`sched_setattr(2)`).
fn attributes() -> libc::sched_attr {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut attr: libc::sched_attr = unsafe { mem::zeroed() };
    attr.size = u32::try_from(mem::size_of::<libc::sched_attr>()).unwrap_or(0);
    attr
}

/// Returns the calling thread's present attributes (`sched_getattr(2)`).
fn own_attributes() -> io::Result<libc::sched_attr> {
    let mut attr = attributes();
    // SAFETY: `attr` has room for the given size.
    let r = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, attr.size, 0) };
    if r == 0 { Ok(attr) } else { Err(io::Error::last_os_error()) }
}

/// Sets the calling thread's scheduling slice, if its policy has one.
pub(crate) fn set_slice(slice: Duration) -> io::Result<()> {
    let mut attr = own_attributes()?;
    let policy = i32::try_from(attr.sched_policy).unwrap_or(-1);
    if ![libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&policy) {
        return Ok(());
    }
    attr.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(0);
    // SAFETY: `attr` is readable for the size in its field.
    let r = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the resource usage of the process (`getrusage(2)`).
pub(crate) fn own_usage() -> io::Result<libc::rusage> {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: `usage` is writable.
    let r = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    if r == 0 { Ok(usage) } else { Err(io::Error::last_os_error()) }
}

/// Returns the calling thread's policy and nice value.
#[cfg(test)]
pub(crate) fn policy() -> io::Result<(u32, i32)> {
    own_attributes().map(|attr| (attr.sched_policy, attr.sched_nice))
}

/// Sends one message, without blocking (`sendmsg(2)`). With `more`, only begins it.
pub(crate) fn send(
    fd: impl AsFd,
    name: &socket2::SockAddr,
    bytes: &[u8],
    control: &[u8],
    more: bool,
) -> io::Result<usize> {
    let more = if more { libc::MSG_MORE } else { 0 };
    let mut iovec =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = name.as_ptr().cast_mut().cast();
    message.msg_namelen = name.len();
    message.msg_iov = &raw mut iovec;
    message.msg_iovlen = 1;
    if !control.is_empty() {
        message.msg_control = control.as_ptr().cast_mut().cast();
        message.msg_controllen = control.len() as _;
    }
    retry(|| {
        // SAFETY: name, control and bytes are borrowed for the call, which writes to none of them.
        unsafe {
            libc::syscall(
                libc::SYS_sendmsg,
                fd.as_fd().as_raw_fd(),
                &raw const message,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more,
            )
        }
    })
}

/// Puts the pages of `bytes` into an empty pipe, without a copy (`vmsplice(2)`). Returns how many bytes it put in. A reader of
/// the pipe sees the contents at the time of the read, not the present ones.
pub(crate) fn name_pages(pipe: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let iovec = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    retry(|| {
        // SAFETY: `bytes` is borrowed for the call, which writes to none of them. The kernel holds the pages until the pipe
        // is read, mapped or not.
        unsafe {
            let fd = pipe.as_fd().as_raw_fd();
            libc::syscall(libc::SYS_vmsplice, fd, &raw const iovec, 1, libc::SPLICE_F_NONBLOCK)
        }
    })
}

/// Writes pieces to a stream without blocking, except their first `skip` bytes (`sendmsg(2)`). Pieces beyond [`MAX_IOVECS`] are
/// left out. The kernel checks their addresses: unmapped memory yields `EFAULT`.
pub(crate) fn send_pieces(fd: impl AsFd, pieces: &[Piece], skip: usize) -> io::Result<usize> {
    let mut iovecs = [const { MaybeUninit::uninit() }; MAX_IOVECS];
    let count = name_pieces(&mut iovecs, pieces, skip);
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = iovecs.as_mut_ptr().cast();
    message.msg_iovlen = count as _;
    retry(|| {
        // SAFETY: the first `count` iovecs are initialised; the kernel reads only mapped memory through them.
        unsafe {
            libc::syscall(
                libc::SYS_sendmsg,
                fd.as_fd().as_raw_fd(),
                &raw const message,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        }
    })
}

/// Receives from a stream without blocking, into pieces and then into `rest` (`recvmsg(2)`).
///
/// # Safety
///
/// The pieces are memory that its owner permits to be written, or that is not mapped.
pub(crate) unsafe fn receive_pieces(
    fd: impl AsFd,
    pieces: &[Piece],
    rest: &mut [u8],
) -> io::Result<usize> {
    let mut iovecs = [const { MaybeUninit::uninit() }; MAX_IOVECS];
    let count = name_pieces(&mut iovecs[..MAX_IOVECS - 1], pieces, 0);
    // `rest` follows only if all pieces are named.
    let whole = pieces.len() < MAX_IOVECS;
    let iov_len = if whole { rest.len() } else { 0 };
    iovecs[count].write(libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len });
    let count = count + 1;
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = iovecs.as_mut_ptr().cast();
    message.msg_iovlen = count as _;
    retry(|| {
        // SAFETY: the first `count` iovecs are initialised. They name `rest`, which is exclusive, and
        // memory that may be written, as the caller promises.
        unsafe {
            libc::syscall(
                libc::SYS_recvmsg,
                fd.as_fd().as_raw_fd(),
                &raw mut message,
                libc::MSG_DONTWAIT,
            )
        }
    })
}

/// Writes bytes to a stream without blocking (`sendto(2)`): for a single run of bytes, the kernel's setup is half that of
/// [`send_pieces`].
pub(crate) fn send_bytes(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    retry(|| {
        // SAFETY: `bytes` is borrowed for the call, which reads it; no address is named.
        unsafe {
            libc::syscall(
                libc::SYS_sendto,
                fd.as_fd().as_raw_fd(),
                bytes.as_ptr(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                std::ptr::null::<libc::sockaddr>(),
                0,
            )
        }
    })
}

/// Receives bytes from a stream without blocking (`recvfrom(2)`).
pub(crate) fn receive_bytes(fd: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    retry(|| {
        // SAFETY: `into` is borrowed exclusively for the call, which writes to it. No address is requested.
        unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                fd.as_fd().as_raw_fd(),
                into.as_mut_ptr(),
                into.len(),
                libc::MSG_DONTWAIT,
                std::ptr::null_mut::<libc::sockaddr>(),
                std::ptr::null_mut::<libc::socklen_t>(),
            )
        }
    })
}

/// Writes iovecs for the pieces, except their first `skip` bytes. Returns how many.
fn name_pieces(
    iovecs: &mut [MaybeUninit<libc::iovec>],
    pieces: &[Piece],
    mut skip: usize,
) -> usize {
    let mut named = 0;
    for piece in pieces {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        if named == iovecs.len() {
            break;
        }
        if skipped < piece.len() {
            let iov_base = piece.as_ptr().wrapping_add(skipped).cast_mut().cast();
            iovecs[named].write(libc::iovec { iov_base, iov_len: piece.len() - skipped });
            named += 1;
        }
    }
    named
}

/// Makes a system call, and repeats it when a signal interrupts it.
fn retry(mut call: impl FnMut() -> libc::c_long) -> io::Result<usize> {
    loop {
        if let Ok(n) = usize::try_from(call()) {
            return Ok(n);
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// The kernel's information about one received message, besides its bytes.
#[derive(Clone, Copy)]
pub(crate) struct RxMeta {
    /// A socket address, as the kernel lays it out.
    pub(crate) name: [u8; NAME_LEN],
    /// Control messages, as the kernel lays them out.
    pub(crate) control: [u8; CONTROL_LEN],
    /// The number of valid bytes of `control`.
    pub(crate) control_len: usize,
    /// The number of bytes of the message that were stored.
    pub(crate) len: usize,
    /// Whether the message was longer than its buffer.
    pub(crate) truncated: bool,
}

impl RxMeta {
    /// An empty value.
    pub(crate) const EMPTY: Self = Self {
        name: [0; NAME_LEN],
        control: [0; CONTROL_LEN],
        control_len: 0,
        len: 0,
        truncated: false,
    };
}

/// Receives messages without blocking (`recvmmsg(2)`), at most one per element of `meta`: message i into the i-th of as many
/// equal shares of `data`. Returns how many were received.
pub(crate) fn receive(fd: impl AsFd, data: &mut [u8], meta: &mut [RxMeta]) -> io::Result<usize> {
    let count = meta.len().min(MAX_MESSAGES);
    if count == 0 {
        return Ok(0);
    }
    let share = data.len() / meta.len();
    // Initialised only as far as they are used: a polling loop calls this constantly.
    let mut iovecs = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    let buffers = data.chunks_exact_mut(share.max(1)).zip(&mut *meta);
    for ((message, iovec), (buffer, m)) in messages.iter_mut().zip(&mut iovecs).zip(buffers) {
        let header = &mut message.write(message_into(buffer, iovec)).msg_hdr;
        header.msg_name = m.name.as_mut_ptr().cast();
        header.msg_namelen = length(NAME_LEN);
        header.msg_control = m.control.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_LEN as _;
    }
    // SAFETY: each of the first `count` headers points at exclusive, disjoint buffers of the lengths that it contains.
    // All of them outlive the call.
    let received = unsafe { receive_many(fd, &mut messages[..count])? };
    for (m, message) in meta.iter_mut().zip(&messages).take(received) {
        // SAFETY: one of the first `count`, which were initialised.
        let message = unsafe { message.assume_init_ref() };
        m.len = (message.msg_len as usize).min(share);
        m.truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        #[allow(clippy::useless_conversion, reason = "not a usize in every C library")]
        let control_len = usize::try_from(message.msg_hdr.msg_controllen).unwrap_or(0);
        m.control_len = control_len.min(CONTROL_LEN);
    }
    Ok(received)
}

/// The maximum number of descriptors that the kernel permits in a message (`SCM_MAX_FD`, `unix(7)`).
const MAX_RIGHTS: usize = 253;
/// The size of a control message with that many.
const RIGHTS_LEN: usize =
    mem::size_of::<libc::cmsghdr>() + (MAX_RIGHTS * mem::size_of::<i32>()).next_multiple_of(8);

/// Room for the descriptors of a message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Rights([u8; RIGHTS_LEN]);

impl Rights {
    /// Creates an empty buffer.
    pub(crate) const fn new() -> Self {
        Self([0; RIGHTS_LEN])
    }
}

/// Receives like [`receive`], but returns descriptors instead of addresses: received ones, close-on-exec, are passed to `keep`. A
/// length is none if the message was longer than its share of `data`. `rights` has as many elements as `lengths`.
pub(crate) fn receive_messages(
    fd: impl AsFd,
    data: &mut [u8],
    lengths: &mut [Option<usize>],
    rights: &mut [Rights],
    mut keep: impl FnMut(OwnedFd),
) -> io::Result<usize> {
    let count = lengths.len().min(rights.len()).min(MAX_MESSAGES);
    if count == 0 {
        return Ok(0);
    }
    let share = data.len() / lengths.len();
    let mut iovecs = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    let buffers = data.chunks_exact_mut(share.max(1)).zip(&mut *rights).take(count);
    let mut ready = 0;
    for ((message, iovec), (buffer, rights)) in messages.iter_mut().zip(&mut iovecs).zip(buffers) {
        let header = &mut message.write(message_into(buffer, iovec)).msg_hdr;
        header.msg_control = rights.0.as_mut_ptr().cast();
        header.msg_controllen = RIGHTS_LEN as _;
        ready += 1;
    }
    // SAFETY: as in `receive`, for the first `ready`.
    let received = unsafe { receive_many(fd, &mut messages[..ready])? };
    for ((length, message), rights) in lengths.iter_mut().zip(&messages).zip(rights).take(received)
    {
        // SAFETY: one of the first `ready`, which were initialised.
        let message = unsafe { message.assume_init_ref() };
        let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
        *length = whole.then(|| (message.msg_len as usize).min(share));
        #[allow(clippy::useless_conversion, reason = "not a usize in every C library")]
        let control_len = usize::try_from(message.msg_hdr.msg_controllen).unwrap_or(0);
        for (level, kind, numbers) in control::parse(&rights.0[..control_len.min(RIGHTS_LEN)]) {
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                for number in numbers.as_chunks().0 {
                    // SAFETY: the kernel has just created this descriptor for this process.
                    keep(unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes(*number)) });
                }
            }
        }
    }
    Ok(received)
}

/// Returns a message header for receiving into a buffer, to which `iovec` points.
fn message_into(buffer: &mut [u8], iovec: &mut MaybeUninit<libc::iovec>) -> libc::mmsghdr {
    let iov =
        iovec.write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
    // SAFETY: all zeros is a valid mmsghdr.
    let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
    message.msg_hdr.msg_iov = &raw mut *iov;
    message.msg_hdr.msg_iovlen = 1;
    message
}

/// Receives messages without blocking. Returns how many, zero if none is queued.
///
/// # Safety
/// All of `messages` are initialised, with pointers to exclusive, disjoint buffers of the given lengths.
unsafe fn receive_many(
    fd: impl AsFd,
    messages: &mut [MaybeUninit<libc::mmsghdr>],
) -> io::Result<usize> {
    let answer = retry(|| {
        // SAFETY: the caller's promise.
        unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                fd.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                length(messages.len()),
                libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
                std::ptr::null_mut::<libc::timespec>(),
            )
        }
    });
    match answer {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => Ok(other?.min(messages.len())),
    }
}

/// Converts a length to the kernel's `socklen_t`; all lengths here are small.
fn length(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
