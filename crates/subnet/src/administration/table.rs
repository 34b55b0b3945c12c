//! The records of an answer.

use alloc::vec::Vec;

use rdmux_wire::layout::Layout;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{DATA_AT, Pattern};

use super::Status;
use super::request::Request;

/// The work limit of an answer, in multiples of its size limit.
const MOST_WORK: usize = 4;

/// The records of an answer, one after the other.
#[derive(Debug)]
pub(super) struct Table {
    /// The answer, starting with room for its headers.
    bytes: Vec<u8>,
    /// The length of a record; 0 without a record.
    record: usize,
    count: usize,
    /// The most bytes of records.
    limit: usize,
    /// The answer to a Get, which has exactly one record.
    single: bool,
    /// Bytes written, including records that did not match.
    work: usize,
}

impl Table {
    pub(super) fn new(request: &Request<'_>, limit: usize) -> Self {
        let single = !matches!(request.method(), Method::GET_TABLE | Method::GET_MULTI);
        let mut bytes = Vec::with_capacity(256);
        bytes.resize(DATA_AT, 0);
        Self { bytes, record: 0, count: 0, limit, single, work: 0 }
    }

    /// Adds a record.
    pub(super) fn push<R: Layout>(&mut self, record: &R) -> Result<(), Status> {
        self.write(record);
        self.keep::<R>()
    }

    /// Adds a record if it matches the pattern.
    pub(super) fn push_if<R: Layout>(
        &mut self,
        pattern: &Pattern,
        record: &R,
    ) -> Result<(), Status> {
        let at = self.bytes.len();
        self.write(record);
        if pattern.matches_bytes(&self.bytes[at..]) {
            return self.keep::<R>();
        }
        self.bytes.truncate(at);
        Ok(())
    }

    fn write<R: Layout>(&mut self, record: &R) {
        let at = self.bytes.len();
        self.bytes.resize(at + R::LEN, 0);
        record.write(&mut self.bytes[at..]);
        self.charge(R::LEN);
    }

    /// Keeps the record that was written last.
    fn keep<R: Layout>(&mut self) -> Result<(), Status> {
        if self.single && self.count == 1 {
            return Err(status::SA_TOO_MANY_RECORDS);
        }
        if self.bytes.len() > self.limit.saturating_add(DATA_AT) {
            return Err(status::SA_NO_RESOURCES);
        }
        self.record = R::LEN;
        self.count += 1;
        Ok(())
    }

    /// Marks the answer as an attribute that is no record, so that its attribute offset is zero.
    pub(super) fn is_no_record(&mut self) {
        self.record = 0;
    }

    /// Returns whether the answer is full: a Get that has its record.
    pub(super) fn is_full(&self) -> bool {
        self.single && self.count == 1
    }

    /// Returns the number of records.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Removes all but the first `count` records.
    pub(super) fn truncate(&mut self, count: usize) {
        if count < self.count {
            self.bytes.truncate(DATA_AT + count * self.record);
            self.count = count;
        }
    }

    /// Charges work for a search, in units of bytes written.
    pub(super) fn charge(&mut self, bytes: usize) {
        self.work = self.work.saturating_add(bytes);
    }

    /// Checks the work limit. A caller whose search charges little must call this.
    ///
    /// # Errors
    /// `SA_NO_RESOURCES` when the search takes too long for one answer.
    pub(super) fn check_work(&self) -> Result<(), Status> {
        if self.work > self.limit.saturating_mul(MOST_WORK) {
            return Err(status::SA_NO_RESOURCES);
        }
        Ok(())
    }

    /// Returns the work that the answer took, in bytes.
    pub(super) fn work(&self) -> usize {
        self.work
    }

    /// Checks that a Get has a record.
    pub(super) fn finish(&self) -> Result<(), Status> {
        if self.single && self.count == 0 { Err(status::SA_NO_RECORDS) } else { Ok(()) }
    }

    /// Returns the attribute offset: the distance between records in units of 8 bytes.
    pub(super) fn offset(&self) -> u16 {
        if self.count == 0 { 0 } else { u16::try_from(self.record / 8).unwrap_or(0) }
    }

    /// Returns the answer with its headers.
    pub(super) fn into_bytes(mut self, head: &[u8; DATA_AT]) -> Vec<u8> {
        self.bytes[..DATA_AT].copy_from_slice(head);
        self.bytes
    }
}
