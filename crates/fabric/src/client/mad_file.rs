//! A program's management interface of a port: the equivalent of an open `/dev/infiniband/umadN`.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rdmux_runtime::socket::MessageError;
use rdmux_subnet::umad::{Registration, UserMad};
use rdmux_wire::mad::MAD_LEN;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::ConnectOptions;
use super::link::{Link, broken};
use crate::proto::mad::{
    BadRecord, FIRST, FRAGMENT, HEADER, MAX_RECORD, begins, decode, encode, record_length,
};
use crate::proto::{FileReply, FileRequest, PortRef, Role};
use crate::{FabricError, FabricName};

/// An open management interface. Its agents end with it, and with the process.
///
/// Datagrams are records ([`crate::proto::mad`]): a header in the layout of `struct ib_user_mad`, and the datagram.
#[derive(Debug)]
pub struct MadFile {
    fabric: FabricName,
    mads: OwnedFd,
    control: Mutex<Link>,
    /// The first message of a record that a reader has taken from the socket although the reader had no room for the rest.
    /// The other messages stay in the socket, so that the descriptor is readable. The locks let one thread at a time read,
    /// or write, because a record may be several messages.
    reading: Mutex<Option<[u8; FIRST]>>,
    writing: Mutex<()>,
}

/// The result of [`MadFile::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A whole record of this many bytes, including the header.
    Whole(usize),
    /// A record of this many bytes is longer than the buffer. It stays in the socket, and the buffer has the part that fits.
    TooLong(usize),
    /// No record is available now.
    Nothing,
}

/// A record that has arrived in part.
#[derive(Debug, Default)]
pub struct Partial {
    /// A buffer as long as the record, or empty without one.
    record: Vec<u8>,
    filled: usize,
}

impl MadFile {
    /// Opens the management interface of a port. Several may be open at once.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `ENODEV` when there is no such port; those of the connection.
    pub fn open(
        options: &ConnectOptions,
        fabric: &FabricName,
        port: &PortRef,
    ) -> Result<Self, FabricError> {
        let what = || format!("open the management interface of {} port {}", port.node, port.port);
        let role = Role::OpenFile(port.clone());
        let (control, opened) = Link::open(fabric, options.connect(fabric)?, role, what)?;
        let FileReply::Opened { file, key } = opened else {
            return Err(unexpected(fabric, &opened));
        };
        let role = Role::Mads { file, key };
        let (mads, ()) = Link::open(fabric, options.connect(fabric)?, role, what)?;
        Ok(Self::new(fabric.clone(), mads.into_socket(), Mutex::new(control)))
    }

    pub(super) fn new(fabric: FabricName, mads: OwnedFd, control: Mutex<Link>) -> Self {
        Self { fabric, mads, control, reading: Mutex::new(None), writing: Mutex::new(()) }
    }

    /// Registers an agent. Returns its number.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with the errno of the kernel's device; those of the connection.
    pub fn register(&self, registration: &Registration) -> Result<u32, FabricError> {
        let class = registration.class;
        let what = || format!("register an agent of class {class:#04x}");
        match self.ask(&FileRequest::Register(*registration), what)? {
            FileReply::Agent(agent) => Ok(agent),
            other => Err(unexpected(&self.fabric, &other)),
        }
    }

    /// Unregisters an agent. Its queued datagrams are dropped.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `EINVAL` when there is none; those of the connection.
    pub fn unregister(&self, agent: u32) -> Result<(), FabricError> {
        match self
            .ask(&FileRequest::Unregister { agent }, || format!("unregister agent {agent}"))?
        {
            FileReply::Done => Ok(()),
            other => Err(unexpected(&self.fabric, &other)),
        }
    }

    /// Checks whether a datagram could be sent now, which [`send`](Self::send) does not report.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `EINVAL` when a request with the same transaction ID and class is outstanding, or
    /// something else is wrong, with `EIO` when there is no such agent; those of the connection.
    pub fn check(&self, mad: &UserMad) -> Result<(), FabricError> {
        let mad = UserMad { data: mad.data.iter().copied().take(MAD_LEN).collect(), ..mad.clone() };
        match self.ask(&FileRequest::Check(mad), || "send a datagram".to_owned())? {
            FileReply::Done => Ok(()),
            other => Err(unexpected(&self.fabric, &other)),
        }
    }

    fn ask(
        &self,
        request: &FileRequest,
        what: impl FnOnce() -> String,
    ) -> Result<FileReply, FabricError> {
        self.control.lock().call(request, what)
    }

    /// Sends a datagram. The header's length is filled in here. Blocks while the fabric's queue is full. The fabric
    /// counts datagrams that it cannot send; such a request that expects a response is returned at once, like one that
    /// timed out, with the error number in its status.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `ENOMEM` for a datagram that is longer than any record ([`MAX_RECORD`]);
    /// [`FabricError::Gone`] and others of the connection.
    pub fn send(&self, header: &[u8; HEADER], datagram: &[u8]) -> Result<(), FabricError> {
        let mut head = *header;
        let length = HEADER.saturating_add(datagram.len());
        if length > MAX_RECORD {
            let why = format!("its {} bytes exceed the maximum length of a record", datagram.len());
            return Err(FabricError::Refused {
                what: "send a datagram".to_owned(),
                why,
                errno: libc::ENOMEM,
            });
        }
        head[16..20].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        let _turn = self.writing.lock();
        let (first, rest) = datagram.split_at(datagram.len().min(FIRST - HEADER));
        self.send_message(&[IoSlice::new(&head), IoSlice::new(first)])?;
        rest.chunks(FRAGMENT).try_for_each(|part| self.send_message(&[IoSlice::new(part)]))
    }

    /// Sends a datagram given as a value.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_mad(&self, mad: &UserMad) -> Result<(), FabricError> {
        let mut record = Vec::with_capacity(HEADER + mad.data.len());
        encode(mad, &mut record);
        match record.split_first_chunk() {
            Some((header, datagram)) => self.send(header, datagram),
            None => Ok(()),
        }
    }

    /// Waits for the next record, and decodes it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn recv_mad(&self) -> Result<UserMad, FabricError> {
        loop {
            self.wait()?;
            if let Some(mad) = self.try_recv_mad()? {
                return Ok(mad);
            }
        }
    }

    /// Decodes the next record, if any. Waits for the rest of a long record.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn try_recv_mad(&self) -> Result<Option<UserMad>, FabricError> {
        let mut record = vec![0; FIRST];
        loop {
            match self.read(&mut record)? {
                Received::Nothing => return Ok(None),
                // Another thread may read it meanwhile: then the next one is read.
                Received::TooLong(length) => record.resize(length, 0),
                Received::Whole(length) => {
                    let decoded = decode(&record[..length]).map_err(|e| self.protocol(e));
                    return decoded.map(Some);
                }
            }
        }
    }

    /// Receives like [`try_recv_mad`](Self::try_recv_mad), for a caller that must not block, with a file of
    /// [`begin`](Self::begin): the part of a long record that has arrived is kept in `partial`, and a later call takes the
    /// rest.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn try_recv_part(&self, partial: &mut Partial) -> Result<Option<UserMad>, FabricError> {
        if partial.record.is_empty() {
            partial.record.resize(FIRST, 0);
            let first = self.recv(&mut partial.record, RecvFlags::DONTWAIT);
            let Ok(Some(got)) = first else {
                partial.record.clear();
                return first.map(|_| None);
            };
            let known = partial.record.get(..got.min(FIRST)).unwrap_or_default();
            let length = begins(known, got).map_err(|e| self.protocol(e))?;
            partial.record.resize(length, 0);
            partial.filled = got.min(length);
        }
        while partial.filled < partial.record.len() {
            let rest = &mut partial.record[partial.filled..];
            let part = rest.len().min(FRAGMENT);
            match self.recv(&mut rest[..part], RecvFlags::DONTWAIT)? {
                None => return Ok(None),
                Some(got) if got == part => partial.filled += part,
                Some(got) => return Err(self.protocol(BadRecord::Fragment(got))),
            }
        }
        let decoded = decode(&partial.record).map_err(|e| self.protocol(e));
        partial.record.clear();
        decoded.map(Some)
    }

    fn send_message(&self, parts: &[IoSlice<'_>]) -> Result<(), FabricError> {
        let sent = rustix::io::retry_on_intr(|| {
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut []);
            rustix::net::sendmsg(&self.mads, parts, &mut control, SendFlags::NOSIGNAL)
        });
        sent.map(|_| ()).map_err(|e| self.broken(e))
    }

    /// Reads the next record into a buffer of at least [`HEADER`] bytes. Does not wait for a record, but waits for the
    /// rest of a long one. A record of at most [`FIRST`] bytes takes one system call if the buffer has that many.
    ///
    /// # Errors
    /// [`FabricError::Gone`] when the fabric is gone, and others of the connection.
    pub fn read(&self, buf: &mut [u8]) -> Result<Received, FabricError> {
        let mut held = self.reading.lock();
        let length = match &*held {
            Some(first) => {
                let fits = buf.len().min(FIRST);
                buf[..fits].copy_from_slice(&first[..fits]);
                record_length(first).map_err(|e| self.protocol(e))?
            }
            None if buf.len() < FIRST => return self.read_small(buf),
            None => {
                let Some(got) = self.recv(&mut buf[..FIRST], RecvFlags::DONTWAIT)? else {
                    return Ok(Received::Nothing);
                };
                let first = buf.get(..got.min(FIRST)).unwrap_or_default();
                let length = begins(first, got).map_err(|e| self.protocol(e))?;
                if length <= FIRST {
                    return Ok(Received::Whole(length));
                }
                *held = buf.first_chunk().copied();
                length
            }
        };
        if length > buf.len() {
            return Ok(Received::TooLong(length));
        }
        *held = None;
        for part in buf[FIRST..length].chunks_mut(FRAGMENT) {
            match self.recv(part, RecvFlags::empty())? {
                Some(got) if got == part.len() => {}
                Some(got) => return Err(self.protocol(BadRecord::Fragment(got))),
                None => return Err(self.broken(Errno::AGAIN)),
            }
        }
        Ok(Received::Whole(length))
    }

    /// Like [`read`](Self::read), for a buffer that a first message may not fit into: the message is peeked at, and taken
    /// only if it is the whole record.
    fn read_small(&self, buf: &mut [u8]) -> Result<Received, FabricError> {
        let Some(got) = self.recv(buf, RecvFlags::DONTWAIT | RecvFlags::PEEK)? else {
            return Ok(Received::Nothing);
        };
        let length = record_length(&buf[..got.min(buf.len())]).map_err(|e| self.protocol(e))?;
        if length > buf.len() {
            return Ok(Received::TooLong(length));
        }
        // The message is in the socket already.
        self.recv(&mut [0; 1], RecvFlags::empty())?;
        Ok(Received::Whole(length))
    }

    /// Waits until a record is readable, or the fabric is gone.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&self) -> Result<(), FabricError> {
        let mut fds = [PollFd::new(&self.mads, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))
            .map(|_| ())
            .map_err(|e| FabricError::io("wait for a datagram", e))
    }

    /// Receives the next message, as far as it fits. Returns its whole length, or None if the call would block or the socket's
    /// timeout has expired.
    fn recv(&self, into: &mut [u8], flags: RecvFlags) -> Result<Option<usize>, FabricError> {
        let flags = flags | RecvFlags::TRUNC;
        match rustix::io::retry_on_intr(|| rustix::net::recv(&self.mads, &mut *into, flags)) {
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(self.broken(e)),
            Ok((_, 0)) => Err(FabricError::Gone { fabric: self.fabric.clone() }),
            Ok((_, length)) => Ok(Some(length)),
        }
    }

    fn protocol(&self, e: BadRecord) -> FabricError {
        FabricError::Protocol { fabric: self.fabric.clone(), why: e.to_string() }
    }

    fn broken(&self, e: Errno) -> FabricError {
        broken(&self.fabric, &self.mads, &MessageError::from(e))
    }
}

impl AsFd for MadFile {
    /// Returns the descriptor, which is readable when a record is available, or the fabric is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mads.as_fd()
    }
}

/// Makes the error for an answer that does not fit the request.
pub(super) fn unexpected(fabric: &FabricName, reply: &FileReply) -> FabricError {
    let why = format!("a reply that does not match the request: {reply:?}");
    FabricError::Protocol { fabric: fabric.clone(), why }
}
