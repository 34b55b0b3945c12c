//! The requests of a program.

use core::fmt;

use super::entry::{Entry, entries};
use super::header::whole;
use super::{Bytes, EntryFlags, Header, Op, Status};
use crate::WireError;
use crate::acm::{Address, AddressType};
use crate::sa::PathRecord;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The transaction ID, which the reply repeats.
    pub tid: u64,
    /// The query.
    pub query: Query,
}

/// The query of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// Resolves the path to an address.
    Resolve {
        /// An address of the host. Without one the service chooses one, and returns it.
        source: Option<Address>,
        /// The destination.
        dest: Address,
        /// Whether to use only the cache: without an entry the request fails at once with [`Status::NO_DATA`].
        cached_only: bool,
    },
    /// Resolves the path to the DLID of a record, or to its DGID if it has no DLID. The source is
    /// its SGID or SLID, if it has one.
    ResolvePath {
        /// The known components of the path.
        path: PathRecord,
        /// Whether to use only the cache: without an entry the request fails at once.
        cached_only: bool,
    },
    /// Queries subnet administration for a path: components that are not 0 must match.
    QuerySa {
        /// The record of the query.
        path: PathRecord,
    },
    /// Queries counters.
    Counters(Subject),
    /// Queries an endpoint.
    Endpoint {
        /// The index of the endpoint, from 1.
        index: u8,
        /// The port whose endpoints count; 0 means all ports.
        port: u8,
    },
    /// Invalidates the cache entries of an address, or all entries learned from other hosts.
    Flush(Option<Address>),
    /// Queries all statistics.
    Statistics,
}

/// The owner of the queried counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The service.
    Service,
    /// An endpoint, by its index from 1.
    Index(u8),
    /// The endpoint that has an address.
    Address(Address),
}

/// A service's reaction to bytes that are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The service closes the connection without a reply, since the start of the next message is not known.
    Close(WireError),
    /// The service replies with this header.
    Answer(Header),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Close(error) => error.fmt(f),
            Self::Answer(header) => write!(f, "{} request refused: {}", header.op, header.status),
        }
    }
}

impl core::error::Error for Refusal {}

impl Request {
    /// Parses one complete message without further bytes.
    ///
    /// # Errors
    /// What the service must do with the message instead.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let header = whole(bytes).map_err(Refusal::Close)?;
        let body = &bytes[Header::LEN..];
        let query = match header.op {
            Op::RESOLVE => resolve(body),
            Op::PERF_QUERY => counters(&header, body),
            Op::EP_QUERY => endpoint(&header, body),
            Op::FLUSH => flush(body),
            _ if body.is_empty() => Ok(Query::Statistics),
            _ => Err(Status::INVALID),
        };
        match query {
            Ok(query) => Ok(Self { tid: header.tid, query }),
            Err(status) => Err(Refusal::Answer(header.failure(status))),
        }
    }

    /// Returns the request in wire format.
    pub fn to_bytes(&self) -> Bytes {
        match &self.query {
            Query::Resolve { source, dest, cached_only } => {
                let source = source.map(|source| Entry::of_address(EntryFlags::SOURCE, &source));
                let flags = EntryFlags::DEST | nodelay(*cached_only);
                let dest = Entry::of_address(flags, dest);
                message(Header::new(Op::RESOLVE, self.tid), source.into_iter().chain([dest]))
            }
            Query::ResolvePath { path, cached_only } => {
                let entry = Entry::of_path(nodelay(*cached_only).bits(), path);
                message(Header::new(Op::RESOLVE, self.tid), [entry])
            }
            Query::QuerySa { path } => {
                let entry = Entry::of_path(EntryFlags::QUERY_SA.bits(), path);
                message(Header::new(Op::RESOLVE, self.tid), [entry])
            }
            Query::Counters(subject) => self.counters_bytes(subject),
            Query::Endpoint { index, port } => {
                let header = Header::new(Op::EP_QUERY, self.tid);
                message(Header { src_out: *index, src_index: *port, ..header }, [])
            }
            Query::Flush(address) => {
                let entry = address.map(|a| Entry::of_address(EntryFlags::DEST, &a));
                message(Header::new(Op::FLUSH, self.tid), entry)
            }
            Query::Statistics => message(Header::new(Op::STATISTICS, self.tid), []),
        }
    }

    fn counters_bytes(&self, subject: &Subject) -> Bytes {
        let header = Header::new(Op::PERF_QUERY, self.tid);
        match subject {
            Subject::Service => message(header, []),
            Subject::Index(index) => message(Header { src_index: *index, ..header }, []),
            Subject::Address(address) => {
                message(header, [Entry::of_address(EntryFlags::SOURCE, address)])
            }
        }
    }
}

fn nodelay(cached_only: bool) -> EntryFlags {
    if cached_only { EntryFlags::NODELAY } else { EntryFlags::empty() }
}

/// Returns a message from a header, whose length is filled in, and entries.
pub(super) fn message(header: Header, entries: impl IntoIterator<Item = Entry>) -> Bytes {
    let mut bytes = Bytes::new();
    bytes.extend(header.to_bytes());
    entries.into_iter().for_each(|entry| bytes.extend(entry.to_bytes()));
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    bytes[..Header::LEN].copy_from_slice(&Header { length, ..header }.to_bytes());
    bytes
}

fn resolve(body: &[u8]) -> Result<Query, Status> {
    let (mut all, rest) = entries(body);
    if !rest.is_empty() {
        return Err(Status::INVALID);
    }
    match all.clone().next() {
        None => Err(Status::INVALID),
        Some(first) if first.kind == AddressType::PATH => path(&first, all.nth(1).is_none()),
        Some(_) => addresses(all),
    }
}

fn path(entry: &Entry, is_alone: bool) -> Result<Query, Status> {
    let (flags, path) = (entry.entry_flags(), entry.path());
    if flags.contains(EntryFlags::QUERY_SA) {
        return if is_alone { Ok(Query::QuerySa { path }) } else { Err(Status::INVALID) };
    }
    if path.dlid.0 == 0 && path.dgid.is_zero() {
        return Err(Status::DEST_ADDRESS);
    }
    Ok(Query::ResolvePath { path, cached_only: flags.contains(EntryFlags::NODELAY) })
}

fn addresses(entries: impl Iterator<Item = Entry>) -> Result<Query, Status> {
    let (mut source, mut dest, mut cached_only) = (None, None, false);
    for entry in entries {
        let flags = entry.entry_flags();
        cached_only |= flags.contains(EntryFlags::NODELAY);
        if flags.contains(EntryFlags::SOURCE) {
            set(&mut source, &entry, Status::SOURCE_ADDRESS, Status::SOURCE_TYPE)?;
        }
        if flags.contains(EntryFlags::DEST) {
            set(&mut dest, &entry, Status::DEST_ADDRESS, Status::DEST_TYPE)?;
        }
    }
    let dest = dest.ok_or(Status::DEST_ADDRESS)?;
    Ok(Query::Resolve { source, dest, cached_only })
}

/// Stores the address of an entry, which must be the only one of its kind.
fn set(
    address: &mut Option<Address>,
    entry: &Entry,
    bad_address: Status,
    bad_type: Status,
) -> Result<(), Status> {
    if address.is_some() {
        return Err(bad_address);
    }
    if entry.kind < AddressType::NAME || entry.kind > AddressType::LID {
        return Err(bad_type);
    }
    *address = Some(Address::from_field(entry.kind, &entry.info).map_err(|_| bad_address)?);
    Ok(())
}

/// Parses a query of counters. An entry that is not a source is ignored, as in ibacm.
fn counters(header: &Header, body: &[u8]) -> Result<Query, Status> {
    let (mut all, rest) = entries(body);
    let subject = match all.next() {
        _ if !rest.is_empty() => return Err(Status::INVALID),
        None if header.src_index == 0 => Subject::Service,
        None => Subject::Index(header.src_index),
        Some(entry) if entry.entry_flags().contains(EntryFlags::SOURCE) => {
            let mut source = None;
            set(&mut source, &entry, Status::SOURCE_ADDRESS, Status::SOURCE_TYPE)?;
            Subject::Address(source.ok_or(Status::SOURCE_ADDRESS)?)
        }
        Some(_) => Subject::Service,
    };
    Ok(Query::Counters(subject))
}

fn endpoint(header: &Header, body: &[u8]) -> Result<Query, Status> {
    if !body.is_empty() || header.src_out == 0 {
        return Err(Status::INVALID);
    }
    Ok(Query::Endpoint { index: header.src_out, port: header.src_index })
}

fn flush(body: &[u8]) -> Result<Query, Status> {
    let (mut all, rest) = entries(body);
    let (first, more) = (all.next(), all.next().is_some());
    if more || !rest.is_empty() {
        return Err(Status::INVALID);
    }
    let mut address = None;
    if let Some(entry) = first {
        set(&mut address, &entry, Status::DEST_ADDRESS, Status::DEST_TYPE)?;
    }
    Ok(Query::Flush(address))
}
