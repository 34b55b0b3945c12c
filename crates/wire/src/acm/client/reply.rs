//! The replies of a service.

use arrayvec::ArrayVec;

use super::entry::{Entry, entries};
use super::header::whole;
use super::statistic::{MAX_STATISTICS, STATISTIC_LEN};
use super::{Endpoint, EndpointInfo, EntryFlags, Header, MAX_ENTRIES, Op, PathFlags, Status};
use crate::WireError;
use crate::acm::{ADDRESS_LEN, Address, AddressType};
use crate::bytes::{get64, head, put64};
use crate::sa::PathRecord;

/// The names of ibacm's counters, in order.
pub const COUNTERS: [&str; 7] = [
    "Error Count",
    "Resolve Count",
    "No Data",
    "Addr Query Count",
    "Addr Cache Count",
    "Route Query Count",
    "Route Cache Count",
];

/// The maximum number of counters in a message.
const MAX_COUNTERS: usize = (super::MAX_LEN - Header::LEN) / 8;

/// Counters in the order of [`COUNTERS`]. A service may have more or fewer.
pub type Counters = ArrayVec<u64, MAX_COUNTERS>;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The transaction ID of the request.
    pub tid: u64,
    /// The contents.
    pub answer: Answer<'a>,
}

/// The contents of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A failure.
    Failed(Op, Status),
    /// Paths, in reply to any query for one.
    Paths(Paths),
    /// Counters.
    Counters(Counters),
    /// An endpoint.
    Endpoint(Endpoint<'a>),
    /// The number of cache entries invalidated.
    Flushed(u64),
    /// All statistics of the service, each to be read with [`Statistic::from_bytes`](super::Statistic::from_bytes).
    Statistics(&'a [[u8; STATISTIC_LEN]]),
}

/// Paths, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The paths, at least one.
    pub paths: ArrayVec<PathData, MAX_ENTRIES>,
    /// The source that the service chose, if the request had none.
    pub source: Option<Address>,
}

/// A path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathData {
    /// The purpose of the path.
    pub flags: PathFlags,
    /// The path.
    pub path: PathRecord,
}

impl Paths {
    /// Creates a reply with one path in both directions.
    #[inline]
    pub fn one(path: PathRecord, source: Option<Address>) -> Self {
        let mut paths = ArrayVec::new();
        paths.push(PathData { flags: PathFlags::RESOLVED, path });
        Self { paths, source }
    }
}

impl<'a> Reply<'a> {
    /// Parses one complete message without further bytes.
    ///
    /// # Errors
    /// If it is not a reply, or lacks required contents.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = whole(bytes)?;
        let body = &bytes[Header::LEN..];
        let answer = match header.op {
            op if !header.status.is_success() => Answer::Failed(op, header.status),
            Op::RESOLVE => Answer::Paths(paths(body)?),
            Op::PERF_QUERY => Answer::Counters(counters(header.src_out, body)?),
            Op::EP_QUERY => Answer::Endpoint(endpoint(body)?),
            Op::FLUSH => Answer::Flushed(flushed(body)?),
            _ => Answer::Statistics(statistics(body)?),
        };
        Ok(Self { tid: header.tid, answer })
    }

    /// Returns the length of the message, in bytes. A reply about an endpoint omits addresses that do not fit.
    pub fn wire_len(&self) -> usize {
        Header::LEN
            + match &self.answer {
                Answer::Failed(..) => 0,
                Answer::Paths(paths) => paths.count() * super::ENTRY_LEN,
                Answer::Counters(counters) => counters.len() * 8,
                Answer::Endpoint(endpoint) => {
                    EndpointInfo::LEN + endpoint.that_fit().len() * ADDRESS_LEN
                }
                Answer::Flushed(_) => 8,
                Answer::Statistics(all) => all.len().min(MAX_STATISTICS) * STATISTIC_LEN,
            }
    }

    /// Returns the message with one path in both directions, for a request that named the source.
    /// This is the most frequent reply.
    pub fn one_path(tid: u64, path: &PathRecord) -> [u8; Header::LEN + super::ENTRY_LEN] {
        let mut out = [0; Header::LEN + super::ENTRY_LEN];
        let (head, body) = out.split_at_mut(Header::LEN);
        let length = u16::try_from(Header::LEN + super::ENTRY_LEN).unwrap_or(u16::MAX);
        head.copy_from_slice(&Header { length, ..Header::new(Op::RESOLVE, tid) }.to_bytes());
        if let Some(body) = body.first_chunk_mut() {
            Entry::of_path(PathFlags::RESOLVED.bits(), path).emit(body);
        }
        out
    }

    /// Writes the message at the start of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`Self::wire_len`].
    pub fn emit(&self, out: &mut [u8]) {
        let length = u16::try_from(self.wire_len()).unwrap_or(u16::MAX);
        let header = Header { length, ..self.header() };
        let (head, body) = out.split_at_mut(Header::LEN);
        head.copy_from_slice(&header.to_bytes());
        match &self.answer {
            Answer::Failed(..) => {}
            Answer::Paths(paths) => {
                let chunks = body.as_chunks_mut().0;
                chunks.iter_mut().zip(paths.entries()).for_each(|(out, entry)| entry.emit(out));
            }
            Answer::Counters(counters) => {
                counters.iter().enumerate().for_each(|(i, n)| put64(body, i * 8, *n));
            }
            Answer::Endpoint(endpoint) => emit_endpoint(endpoint, body),
            Answer::Flushed(entries) => put64(body, 0, *entries),
            Answer::Statistics(all) => {
                let that_fit = all.iter().take(MAX_STATISTICS);
                for (out, statistic) in body.chunks_mut(STATISTIC_LEN).zip(that_fit) {
                    out.copy_from_slice(statistic);
                }
            }
        }
    }

    fn header(&self) -> Header {
        let new = |op| Header { ack: true, ..Header::new(op, self.tid) };
        match &self.answer {
            Answer::Failed(op, status) => Header { status: *status, ..new(*op) },
            Answer::Paths(_) => Header { ack: false, ..new(Op::RESOLVE) },
            Answer::Counters(counters) => {
                let src_out = u8::try_from(counters.len()).unwrap_or(u8::MAX);
                Header { src_out, ..new(Op::PERF_QUERY) }
            }
            Answer::Endpoint(_) => new(Op::EP_QUERY),
            Answer::Flushed(_) => new(Op::FLUSH),
            Answer::Statistics(_) => new(Op::STATISTICS),
        }
    }
}

impl Paths {
    /// Returns the maximum number of paths in the message.
    fn room(&self) -> usize {
        MAX_ENTRIES - usize::from(self.source.is_some())
    }

    fn count(&self) -> usize {
        self.paths.len().min(self.room()) + usize::from(self.source.is_some())
    }

    /// Returns as many entries as fit into a message, the source last.
    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let path = |path: &PathData| Entry::of_path(path.flags.bits(), &path.path);
        let source = self.source.map(|source| Entry::of_address(EntryFlags::SOURCE, &source));
        self.paths.iter().take(self.room()).map(path).chain(source)
    }
}

fn paths(body: &[u8]) -> Result<Paths, WireError> {
    let (all, rest) = entries(body);
    if !rest.is_empty() || body.len() > MAX_ENTRIES * super::ENTRY_LEN {
        return Err(super::bad_length("length of an ACM answer with paths", body.len()));
    }
    let (mut paths, mut source) = (ArrayVec::new(), None);
    for entry in all {
        if entry.kind == AddressType::PATH {
            let flags = PathFlags::from_bits_retain(entry.flags);
            paths.push(PathData { flags, path: entry.path() });
        } else if entry.entry_flags().contains(EntryFlags::SOURCE) {
            source = Some(Address::from_field(entry.kind, &entry.info)?);
        }
    }
    if paths.is_empty() {
        return Err(WireError::Value { what: "paths of an ACM answer", value: 0 });
    }
    Ok(Paths { paths, source })
}

fn counters(count: u8, body: &[u8]) -> Result<Counters, WireError> {
    let (all, rest) = body.as_chunks::<8>();
    if all.len() != usize::from(count) || !rest.is_empty() || all.len() > MAX_COUNTERS {
        let (what, says, have) = ("ACM counters", usize::from(count) * 8, body.len());
        return Err(WireError::Truncated { what, says, have });
    }
    Ok(all.iter().map(|b| u64::from_be_bytes(*b)).collect())
}

fn endpoint(body: &[u8]) -> Result<Endpoint<'_>, WireError> {
    let info = EndpointInfo::from_bytes(head::<{ EndpointInfo::LEN }>(body, "ACM endpoint")?);
    let (fields, rest) = body[EndpointInfo::LEN..].as_chunks::<ADDRESS_LEN>();
    if fields.len() != usize::from(info.addr_cnt) || !rest.is_empty() {
        let says = usize::from(info.addr_cnt) * ADDRESS_LEN;
        let have = body.len() - EndpointInfo::LEN;
        return Err(WireError::Truncated { what: "addresses of an ACM endpoint", says, have });
    }
    Ok(Endpoint { info, fields })
}

fn flushed(body: &[u8]) -> Result<u64, WireError> {
    let what = "length of an ACM answer to a flush";
    let b: &[u8; 8] = body.try_into().map_err(|_| super::bad_length(what, body.len()))?;
    Ok(get64(b, 0))
}

fn statistics(body: &[u8]) -> Result<&[[u8; STATISTIC_LEN]], WireError> {
    let (all, rest) = body.as_chunks();
    let what = "length of ACM statistics";
    if rest.is_empty() { Ok(all) } else { Err(super::bad_length(what, body.len())) }
}

fn emit_endpoint(endpoint: &Endpoint<'_>, body: &mut [u8]) {
    let fields = endpoint.that_fit();
    let addr_cnt = u16::try_from(fields.len()).unwrap_or(u16::MAX);
    EndpointInfo { addr_cnt, ..endpoint.info }.emit(body);
    for (out, field) in body[EndpointInfo::LEN..].chunks_mut(ADDRESS_LEN).zip(fields) {
        out.copy_from_slice(field);
    }
}
