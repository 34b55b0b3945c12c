//! The entries after the header of a message that resolves: up to eight of 72 bytes, each an address or a path.

use crate::acm::{ADDRESS_LEN, Address, AddressType};
use crate::bytes::{get, put};
use crate::layout::flags;
use crate::sa::PathRecord;

/// The length of an entry, in bytes.
pub const ENTRY_LEN: usize = 72;

flags! {
    /// The purpose of an entry in a request.
    EntryFlags(u32, 32 bits) {
        /// The source of the path.
        SOURCE = 0;
        /// The destination of the path.
        DEST = 1;
        /// Only cached data is requested.
        NODELAY = 30;
        /// The path record is a query to subnet administration.
        QUERY_SA = 31;
    }
}

flags! {
    /// The purpose of a path in a reply. The values are those of libibverbs' `IBV_PATH_FLAG_*`.
    PathFlags(u32, 32 bits) {
        /// The path is for management datagrams.
        GMP = 0;
        /// The first of two paths.
        PRIMARY = 1;
        /// The second of two paths.
        ALTERNATE = 2;
        /// The path to the destination.
        OUTBOUND = 3;
        /// The path back, if it is a different one.
        INBOUND = 4;
        /// The path back, which is the reverse of the path to the destination.
        INBOUND_REVERSE = 5;
    }
}

impl PathFlags {
    /// The path serves both directions.
    pub const BIDIRECTIONAL: Self = Self::OUTBOUND.union(Self::INBOUND_REVERSE);

    /// The flags of a path from a service.
    pub const RESOLVED: Self = Self::GMP.union(Self::PRIMARY).union(Self::BIDIRECTIONAL);
}

/// Offsets. Flags and type are in host byte order.
mod field {
    pub(super) const FLAGS: usize = 0;
    pub(super) const TYPE: usize = 4;
    pub(super) const INFO: usize = 8;
}

/// An entry. Its flags are [`EntryFlags`] in requests and for addresses, [`PathFlags`] for paths in replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) flags: u32,
    pub(super) kind: AddressType,
    pub(super) info: [u8; ADDRESS_LEN],
}

impl Entry {
    pub(super) fn from_bytes(b: &[u8; ENTRY_LEN]) -> Self {
        Self {
            flags: u32::from_ne_bytes(get(b, field::FLAGS)),
            kind: AddressType(u16::from_ne_bytes(get(b, field::TYPE))),
            info: get(b, field::INFO),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; ENTRY_LEN] {
        let mut b = [0; ENTRY_LEN];
        self.emit(&mut b);
        b
    }

    pub(super) fn emit(&self, b: &mut [u8; ENTRY_LEN]) {
        *b = [0; ENTRY_LEN];
        put(b, field::FLAGS, self.flags.to_ne_bytes());
        put(b, field::TYPE, self.kind.0.to_ne_bytes());
        put(b, field::INFO, self.info);
    }

    /// Creates the entry of an address.
    pub(super) fn of_address(flags: EntryFlags, address: &Address) -> Self {
        Self { flags: flags.bits(), kind: address.kind(), info: address.to_field() }
    }

    /// Creates the entry of a path record.
    pub(super) fn of_path(flags: u32, path: &PathRecord) -> Self {
        Self { flags, kind: AddressType::PATH, info: path.to_bytes() }
    }

    /// Returns the flags of a request's entry.
    pub(super) fn entry_flags(&self) -> EntryFlags {
        EntryFlags::from_bits_retain(self.flags)
    }

    pub(super) fn path(&self) -> PathRecord {
        PathRecord::from_bytes(&self.info)
    }
}

/// Returns the entries after a header, and the bytes after the last complete one.
pub(super) fn entries(body: &[u8]) -> (impl Iterator<Item = Entry> + Clone + '_, &[u8]) {
    let (entries, rest) = body.as_chunks::<ENTRY_LEN>();
    (entries.iter().map(Entry::from_bytes), rest)
}
