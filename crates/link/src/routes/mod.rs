//! The routes of an InfiniBand port's packets: a table that the owner of the subnet writes and the processes of the port's host read, so
//! that they send directly to the destination, without a third process.
//!
//! A subnet's switches are tables. Their owner walks them once for each change and stores the result here: for each unicast LID the [`Way`]
//! to the port that has it, for each multicast LID the ways to the ports that get a copy, for each such port the [`Peer`], which has the
//! address of its host's sockets, and the port's own properties ([`OwnPort`]).
//!
//! # Layout
//!
//! A memfd of fixed size; only the part in use takes memory. Only [`RouteTable`] writes it; others map it for reading.
//!
//! ```text
//! page 0   magic; number of the fabric; epoch; an entry and two places for the port's own properties
//! then     entries: peers by their number, unicast LIDs, multicast LIDs
//! then     rows, two cache lines each: a way or a peer, and for a group the number of the next row
//! ```
//!
//! # Reading while it is written
//!
//! An entry is one word: the number of its first row (zero for none), and how often the entry was written. A change writes unused rows,
//! then the entry. The old rows of the entry are reused only after that. A reader reads the entry, then the rows, then the entry again: if
//! it is unchanged, the rows are consistent. So readers never wait for the writer, and a writer that dies between two steps leaves every
//! entry consistent.
//!
//! A reader that caches a lookup compares [`RouteView::epoch`], which is one load, with the epoch that it read *before* the lookup.
//! [`RouteTable::publish`] raises the epoch after a change. (Each change is visible to lookups immediately, as a switch updates its tables
//! entry by entry.)
//!
//! # Counting of packets
//!
//! Ports on the path count passing packets, but only the sender knows how many it sends. So an entry has a [`RouteId`], which identifies
//! the present way with all its ports, even if no packet arrives at its end. A changed way gets another ID. Senders count by it
//! ([`rows`](crate::rows)).
//!
//! # A hostile writer
//!
//! Everything is read once into private memory, checked, and bounded: the writer can only cause packets to be lost or sent to another
//! address, as it may anyway.

mod reader;
mod writer;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rdmux_wire::{Guid, Lid, Mtu, Pkey};

pub use self::reader::RouteView;
pub use self::writer::{RouteError, RouteTable};

/// The maximum number of a peer.
pub const MAX_PEERS: u16 = if cfg!(loom) { 2 } else { 4095 };
/// The maximum number of entries of a port's P_Key table.
pub const PKEYS: usize = 128;

/// The number of a peer in one table: 1 to [`MAX_PEERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(u16);

impl PeerId {
    /// Returns none outside of 1 to [`MAX_PEERS`].
    pub const fn new(id: u16) -> Option<Self> {
        if id == 0 || id > MAX_PEERS { None } else { Some(Self(id)) }
    }

    /// Returns the number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Identifies a way to a LID, or the ways to a group, by the subnet's tables at some time; zero identifies none. An ID is not reused while
/// the writer of the table lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u64);

impl RouteId {
    /// No ID: the writer does not distinguish ways to this LID.
    pub const NONE: Self = Self(0);
}

/// The entry of a LID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The ID by which packets are counted.
    pub id: RouteId,
    /// The way to the port that has the LID, if packets arrive there.
    pub way: Option<Way>,
}

/// The port to which the table belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPort {
    /// Whether the port is active. Otherwise it neither sends nor receives data.
    pub active: bool,
    /// The port's base LID, or zero until a subnet manager assigns one.
    pub lid: Lid,
    /// The number of path bits at the low end of the LID, 0 to 7: the port has 2^LMC LIDs.
    pub lmc: u8,
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The prefix of the port's GIDs.
    pub gid_prefix: u64,
    /// The GUID in its first GID.
    pub port_guid: Guid,
    /// Whether the port's host receives groups by IP multicast ([`Peer::multicast`]), and so may send by it.
    pub multicast: bool,
    /// The port's P_Key table. Unused entries are zero.
    pub pkeys: [Pkey; PKEYS],
}

impl Default for OwnPort {
    /// Returns a port that is not active, without LID or P_Keys.
    fn default() -> Self {
        let (lid, port_guid, pkeys) = (Lid::NONE, Guid(0), [Pkey(0); PKEYS]);
        let (gid_prefix, mtu) = (0, Mtu::M256);
        Self { active: false, lid, lmc: 0, mtu, gid_prefix, port_guid, multicast: false, pkeys }
    }
}

impl OwnPort {
    /// Returns the path bits of a LID, if it is one of the port's (IBTA 7.11.1).
    pub fn path_bits(&self, lid: Lid) -> Option<u8> {
        has_lid(self.lid, self.lmc, lid).then_some((lid.0 & self.mask() & 0x7f) as u8)
    }

    /// Returns the LID with these path bits. The LMC determines how many of them are used.
    pub fn lid_with(&self, path_bits: u8) -> Lid {
        let mask = self.mask();
        Lid(self.lid.0 & !mask | u16::from(path_bits) & mask)
    }

    /// Returns the mask of the path bits of a LID.
    fn mask(&self) -> u16 {
        path_mask(self.lmc)
    }
}

fn path_mask(lmc: u8) -> u16 {
    (1 << lmc.min(7)) - 1
}

/// Returns whether a LID is one of those of a port with this base LID and LMC (IBTA 7.11.1).
fn has_lid(base: Lid, lmc: u8, lid: Lid) -> bool {
    let mask = path_mask(lmc);
    lid.is_unicast() && base.is_unicast() && lid.0 & !mask == base.0 & !mask
}

/// Another port, or this one, with the address at which its host receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of the sockets. Neither the address nor the port is zero.
    pub addr: SocketAddr,
    /// The port's GUID, which reveals a change of the port under the same number.
    pub port_guid: Guid,
    /// The port's base LID, whether or not it is reachable, or zero without one.
    pub lid: Lid,
    /// The number of path bits at the low end of the LID.
    pub lmc: u8,
    /// Whether the port's host is on this machine and receives groups by the machine's IP multicast, so that one datagram reaches
    /// all such hosts ([`ib`](crate::ib)).
    pub multicast: bool,
}

/// The properties of the way from the own port to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The other port.
    pub peer: PeerId,
    /// The number of links from port to port, or 0 if it is the own port.
    pub hops: u8,
    /// The maximum payload on all links.
    pub mtu: Mtu,
    /// The lowest rate of a link, as the code of a path record (IBTA 15.2.5.16).
    pub rate: u8,
    /// Bit n: packets of service level n have a virtual lane on every link.
    pub sls: u16,
    /// Bit i: packets with the P_Key at index i of the own table pass every partition enforcement.
    pub pkeys: u128,
    /// Bit b is set if packets from the other port to this port's LID with the path bits b arrive, provided that they may be sent in
    /// this direction: of the same size, with the same service levels. Only then are operations on the other's memory without a packet
    /// permitted.
    pub back: u128,
    /// Bit i is set if the other port accepts packets with the P_Key at index i of this port's table, and answers with that partition's
    /// key pass every enforcement, too.
    pub answered: u128,
}

impl Way {
    /// Returns whether packets of a service level, 0 to 15, pass.
    pub const fn takes_sl(&self, sl: u8) -> bool {
        sl < 16 && self.sls >> sl & 1 != 0
    }

    /// Returns whether packets with the P_Key at an index of the own table pass.
    pub const fn takes_pkey(&self, index: usize) -> bool {
        index < PKEYS && self.pkeys >> index & 1 != 0
    }

    /// Returns whether the other port's answers arrive, for packets from this port's LID with these path bits, and with the P_Key
    /// at an index of this port's table.
    pub const fn comes_back(&self, path_bits: u8, pkey: usize) -> bool {
        path_bits < 128
            && self.back >> path_bits & 1 != 0
            && pkey < PKEYS
            && self.answered >> pkey & 1 != 0
    }
}

/// The number of unicast LIDs that there is room for.
const LIDS: u16 = if cfg!(loom) { 2 } else { 0xc000 };
/// The number of multicast LIDs that there is room for.
const MLIDS: u16 = if cfg!(loom) { 2 } else { 0x4000 };
/// The number of rows. With one for each unicast LID and each peer, 200,000 are left for groups.
const ROWS: u32 = if cfg!(loom) { 4 } else { 1 << 18 };

/// The size of a row in bytes: two cache lines. The second contains only the number of the next row.
const LINE: usize = 128;
/// "rdmuxrt" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"rdmuxrt\x04");

/// Offsets, in bytes.
mod at {
    pub(super) const FABRIC: usize = 8;
    pub(super) const EPOCH: usize = 64;
    pub(super) const OWN: usize = 128;
    /// The first of two places.
    pub(super) const OWN_PLACES: usize = 192;
    pub(super) const OWN_SIZE: usize = 8 * super::OWN_WORDS;
    pub(super) const PEERS: usize = 4096;
    pub(super) const LIDS: usize = PEERS + 8 * (super::MAX_PEERS as usize + 1);
    pub(super) const MLIDS: usize = LIDS + 8 * super::LIDS as usize;
    /// The end of the entries, which in a model is not a multiple of a line.
    const ENTRIES_END: usize = MLIDS + 8 * super::MLIDS as usize;
    pub(super) const ROWS: usize = ENTRIES_END.next_multiple_of(super::LINE);
    pub(super) const END: usize = ROWS + super::ROWS as usize * super::LINE;
}

/// Returns the offset of a peer's entry.
const fn peer_entry(id: PeerId) -> usize {
    at::PEERS + 8 * id.0 as usize
}

/// Returns the offset of a unicast LID's entry.
const fn lid_entry(dlid: Lid) -> Option<usize> {
    if dlid.is_unicast() && dlid.0 < LIDS { Some(at::LIDS + 8 * dlid.0 as usize) } else { None }
}

/// Returns the offset of a multicast LID's entry.
const fn mlid_entry(mlid: Lid) -> Option<usize> {
    if !mlid.is_multicast() {
        return None;
    }
    let index = mlid.0 - Lid::FIRST_MULTICAST.0;
    if index < MLIDS { Some(at::MLIDS + 8 * index as usize) } else { None }
}

/// Returns the number of the first row in an entry, from 1 on; 0 for none.
const fn first(entry: u64) -> u32 {
    (entry & 0xffff_ffff) as u32
}

/// The contents of a row. The number of the next row is in the word after these.
type Words = [u64; 8];
/// The number of words that are written and read. Models use two, which reveal a mixture as well as all would, in less time.
const USED: usize = if cfg!(loom) { 2 } else { 8 };
/// The index of the word with the number of the next row.
const NEXT: usize = 8;

/// The number of words of [`OwnPort`].
const OWN_WORDS: usize = 3 + PKEYS / 4;

/// Splits a number, with the low half first.
fn halves(bits: u128) -> [u64; 2] {
    [(bits << 64 >> 64) as u64, (bits >> 64) as u64]
}

fn whole(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

impl Route {
    fn to_words(self) -> Words {
        let Some(way) = self.way else { return [0, 0, 0, 0, 0, 0, 0, self.id.0] };
        let Way { peer, hops, mtu, rate, sls, pkeys, back, answered } = way;
        let [a, b] = peer.0.to_le_bytes();
        let [c, d] = sls.to_le_bytes();
        let about = u64::from_le_bytes([a, b, c, d, hops, mtu.code(), rate, 0]);
        let ([p, q], [r, s], [t, u]) = (halves(pkeys), halves(back), halves(answered));
        [about, p, q, r, s, t, u, self.id.0]
    }

    fn from_words([about, p, q, r, s, t, u, id]: Words) -> Option<Self> {
        let [a, b, c, d, hops, mtu, rate, _] = about.to_le_bytes();
        let id = RouteId(id);
        if about == 0 {
            return Some(Self { id, way: None });
        }
        let way = Way {
            peer: PeerId::new(u16::from_le_bytes([a, b]))?,
            hops,
            mtu: Mtu::from_code(mtu)?,
            rate,
            sls: u16::from_le_bytes([c, d]),
            pkeys: whole(p, q),
            back: whole(r, s),
            answered: whole(t, u),
        };
        Some(Self { id, way: Some(way) })
    }
}

impl Peer {
    fn to_words(self) -> Words {
        let port = u64::from(self.addr.port()) << 16;
        let (family, high, low, scope) = match self.addr {
            SocketAddr::V4(v4) => (4, 0, u64::from(v4.ip().to_bits()), 0),
            SocketAddr::V6(v6) => {
                let [low, high] = halves(v6.ip().to_bits());
                (6, high, low, u64::from(v6.scope_id()))
            }
        };
        let lid =
            u64::from(self.multicast) << 24 | u64::from(self.lmc) << 16 | u64::from(self.lid.0);
        [scope << 32 | port | family, high, low, self.port_guid.0, lid, 0, 0, 0]
    }

    fn from_words([about, high, low, guid, lid, ..]: Words) -> Option<Self> {
        let port = (about >> 16 & 0xffff) as u16;
        let addr: SocketAddr = match about & 0xffff {
            4 => (Ipv4Addr::from_bits(u32::try_from(low).ok()?), port).into(),
            6 => {
                let ip = Ipv6Addr::from_bits(whole(low, high));
                SocketAddrV6::new(ip, port, 0, (about >> 32) as u32).into()
            }
            _ => return None,
        };
        let (base, lmc) = (Lid((lid & 0xffff) as u16), (lid >> 16 & 0xff) as u8);
        let multicast = lid >> 24 & 1 != 0;
        Self { addr, port_guid: Guid(guid), lid: base, lmc, multicast }.checked()
    }

    /// Returns whether the port has a LID.
    pub fn has_lid(&self, lid: Lid) -> bool {
        has_lid(self.lid, self.lmc, lid)
    }

    /// Returns itself, if packets can be sent there.
    fn checked(self) -> Option<Self> {
        let unspecified = match self.addr.ip() {
            IpAddr::V4(ip) => ip.is_unspecified(),
            IpAddr::V6(ip) => ip.is_unspecified(),
        };
        (!unspecified && self.addr.port() != 0 && self.lmc <= 7).then_some(self)
    }
}

impl OwnPort {
    fn to_words(&self) -> [u64; OWN_WORDS] {
        let Self { active, lid, lmc, mtu, gid_prefix, port_guid, multicast, pkeys } = self;
        let [a, b] = lid.0.to_le_bytes();
        let mut words = [0; OWN_WORDS];
        let (active, multicast) = (u8::from(*active), u8::from(*multicast));
        words[0] = u64::from_le_bytes([active, *lmc, a, b, mtu.code(), multicast, 0, 0]);
        (words[1], words[2]) = (*gid_prefix, port_guid.0);
        for (word, keys) in words[3..].iter_mut().zip(pkeys.as_chunks::<4>().0) {
            *word = keys.iter().rev().fold(0, |word, key| word << 16 | u64::from(key.0));
        }
        words
    }

    fn from_words(words: &[u64; OWN_WORDS]) -> Option<Self> {
        let [active, lmc, a, b, mtu, multicast, ..] = words[0].to_le_bytes();
        let mut pkeys = [Pkey(0); PKEYS];
        for (keys, word) in pkeys.as_chunks_mut::<4>().0.iter_mut().zip(&words[3..]) {
            for (i, key) in keys.iter_mut().enumerate() {
                *key = Pkey((word >> (16 * i) & 0xffff) as u16);
            }
        }
        Some(Self {
            active: active != 0,
            lid: Lid(u16::from_le_bytes([a, b])),
            lmc: if lmc <= 7 { lmc } else { return None },
            mtu: Mtu::from_code(mtu)?,
            gid_prefix: words[1],
            port_guid: Guid(words[2]),
            multicast: multicast != 0,
            pkeys,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
