//! A program's management interface of a port: what an open `/dev/infiniband/umadN` is.

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

/// An open management interface. Its agents go with it, and with the process.
///
/// Datagrams are records ([`crate::proto::mad`]): a header as `struct ib_user_mad` has it, and the datagram.
#[derive(Debug)]
pub struct MadFile {
    fabric: FabricName,
    mads: OwnedFd,
    control: Mutex<Link>,
    /// A record is read, or written, by one thread at a time: it may be several messages. The first of them was taken from
    /// the socket if the reader had no room for the others, which stay there, so that the descriptor is readable.
    reading: Mutex<Option<[u8; FIRST]>>,
    writing: Mutex<()>,
}

/// What [`MadFile::read`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A record of as many bytes, header included.
    Whole(usize),
    /// A record of as many bytes, for which the buffer is too small. It stays; the buffer has what fits of its beginning.
    TooLong(usize),
    /// Nothing now.
    Nothing,
}

/// A record of which only a part has come.
#[derive(Debug, Default)]
pub struct Partial {
    /// As long as the record will be; empty if there is none.
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

    /// Registers an agent; its number.
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

    /// Ends an agent. What waits for it is dropped.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `EINVAL` when there is none; those of the connection.
    pub fn unregister(&self, agent: u32) -> Result<(), FabricError> {
        match self.ask(&FileRequest::Unregister { agent }, || format!("end agent {agent}"))? {
            FileReply::Done => Ok(()),
            other => Err(unexpected(&self.fabric, &other)),
        }
    }

    /// Whether a datagram could be sent now: [`send`](Self::send) does not tell.
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

    /// Sends a datagram. The header's length is filled in here. Waits while the fabric has more than it takes at once.
    /// What the fabric cannot send is counted there; a request whose answer is waited for comes back at once, as one that
    /// timed out does, with the error number in its status.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with `ENOMEM` for a datagram that is longer than any record ([`MAX_RECORD`]);
    /// [`FabricError::Gone`] and others of the connection.
    pub fn send(&self, header: &[u8; HEADER], datagram: &[u8]) -> Result<(), FabricError> {
        let mut head = *header;
        let length = HEADER.saturating_add(datagram.len());
        if length > MAX_RECORD {
            let why = format!("it has {} bytes, too many to keep", datagram.len());
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

    /// Sends a datagram that is a value.
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

    /// The next record as a value, waited for.
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

    /// The next record as a value, if there is one. The rest of a long record is waited for.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn try_recv_mad(&self) -> Result<Option<UserMad>, FabricError> {
        let mut record = vec![0; FIRST];
        loop {
            match self.read(&mut record)? {
                Received::Nothing => return Ok(None),
                // Another thread may read it meanwhile: then the next one is looked at.
                Received::TooLong(length) => record.resize(length, 0),
                Received::Whole(length) => {
                    let decoded = decode(&record[..length]).map_err(|e| self.protocol(e));
                    return decoded.map(Some);
                }
            }
        }
    }

    /// As [`try_recv_mad`](Self::try_recv_mad), for a caller that waits for nothing, with a file of [`begin`](Self::begin): of a long
    /// record what is there is kept in `partial`, and the rest taken by a later call.
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

    /// Reads the next record into a buffer, of [`HEADER`] bytes at least; does not wait for one. The rest of a long record
    /// is waited for. One system call takes a record of at most [`FIRST`] bytes into a buffer of as many.
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

    /// As [`read`](Self::read), with a buffer that a first message may not fit into: that is looked at, and taken only if it
    /// is the whole record.
    fn read_small(&self, buf: &mut [u8]) -> Result<Received, FabricError> {
        let Some(got) = self.recv(buf, RecvFlags::DONTWAIT | RecvFlags::PEEK)? else {
            return Ok(Received::Nothing);
        };
        let length = record_length(&buf[..got.min(buf.len())]).map_err(|e| self.protocol(e))?;
        if length > buf.len() {
            return Ok(Received::TooLong(length));
        }
        // It is there already.
        self.recv(&mut [0; 1], RecvFlags::empty())?;
        Ok(Received::Whole(length))
    }

    /// Waits until there is something to read, or the fabric is gone.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&self) -> Result<(), FabricError> {
        let mut fds = [PollFd::new(&self.mads, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))
            .map(|_| ())
            .map_err(|e| FabricError::io("wait for a datagram", e))
    }

    /// The next message, as far as it fits; its whole length. None if the call would block, or the socket's timeout has passed.
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
    /// Readable when there is a record to read, or the fabric is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mads.as_fd()
    }
}

/// An answer to another question.
pub(super) fn unexpected(fabric: &FabricName, reply: &FileReply) -> FabricError {
    let why = format!("an answer that does not belong to the question: {reply:?}");
    FabricError::Protocol { fabric: fabric.clone(), why }
}
