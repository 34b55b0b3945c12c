//! What a message that resolves has behind its header: up to eight entries of 72 bytes, each an address or a path.

use crate::acm::{ADDRESS_LEN, Address, AddressType};
use crate::bytes::{get, put};
use crate::layout::flags;
use crate::sa::PathRecord;

/// The length of an entry, in bytes.
pub const ENTRY_LEN: usize = 72;

flags! {
    /// What an entry of a request is for.
    EntryFlags(u32, 32 bits) {
        /// Where the path starts.
        SOURCE = 0;
        /// Where it ends.
        DEST = 1;
        /// Only what is cached is asked for.
        NODELAY = 30;
        /// The path record is a question to subnet administration.
        QUERY_SA = 31;
    }
}

flags! {
    /// What a path of an answer is good for. The values are those of libibverbs' `IBV_PATH_FLAG_*`.
    PathFlags(u32, 32 bits) {
        /// Management datagrams.
        GMP = 0;
        /// The first of two paths.
        PRIMARY = 1;
        /// The second.
        ALTERNATE = 2;
        /// The way there.
        OUTBOUND = 3;
        /// The way back, of another path.
        INBOUND = 4;
        /// The way back, which is the way there reversed.
        INBOUND_REVERSE = 5;
    }
}

impl PathFlags {
    /// There and back.
    pub const BIDIRECTIONAL: Self = Self::OUTBOUND.union(Self::INBOUND_REVERSE);

    /// What the paths of a service are good for.
    pub const RESOLVED: Self = Self::GMP.union(Self::PRIMARY).union(Self::BIDIRECTIONAL);
}

/// Flags and type are in the order of the host.
mod field {
    pub(super) const FLAGS: usize = 0;
    pub(super) const TYPE: usize = 4;
    pub(super) const INFO: usize = 8;
}

/// An entry. Flags are [`EntryFlags`] in requests and for addresses, [`PathFlags`] for paths of answers.
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

    pub(super) fn of_address(flags: EntryFlags, address: &Address) -> Self {
        Self { flags: flags.bits(), kind: address.kind(), info: address.to_field() }
    }

    pub(super) fn of_path(flags: u32, path: &PathRecord) -> Self {
        Self { flags, kind: AddressType::PATH, info: path.to_bytes() }
    }

    /// The entry's flags, of a request.
    pub(super) fn entry_flags(&self) -> EntryFlags {
        EntryFlags::from_bits_retain(self.flags)
    }

    pub(super) fn path(&self) -> PathRecord {
        PathRecord::from_bytes(&self.info)
    }
}

/// The entries behind a header, and what is left behind the last one that is whole.
pub(super) fn entries(body: &[u8]) -> (impl Iterator<Item = Entry> + Clone + '_, &[u8]) {
    let (entries, rest) = body.as_chunks::<ENTRY_LEN>();
    (entries.iter().map(Entry::from_bytes), rest)
}
