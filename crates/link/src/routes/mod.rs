//! Where the packets of an InfiniBand port go: a table that the process which owns the subnet writes and the processes of
//! the port's host read, so that they send straight to the destination and no third process touches data.
//!
//! A subnet's switches are tables. Their owner walks them once for each change and leaves the outcome here: for
//! each unicast LID the [`Way`] to the port that has it, for each multicast LID the ways to the ports that get a copy,
//! for each such port the [`Peer`], which is the address of its host's sockets, and the port's own properties ([`OwnPort`]).
//!
//! # Layout
//!
//! A memfd of fixed size, of which only what is used takes memory. [`RouteTable`] alone writes it; others map it to read.
//!
//! ```text
//! page 0   magic; the fabric's number; the epoch; an entry and two places for the port's own properties
//! then     entries: of peers by their number, of unicast LIDs, of multicast LIDs
//! then     rows, a cache line each: a way or a peer, and for a group the number of the next row
//! ```
//!
//! # Reading while it is written
//!
//! An entry is one word: the number of its first row, none if it is zero, and how often the entry was written. A change writes
//! rows that no entry has, then the entry, and the rows that it had before are used again only after that. A reader takes
//! the entry, then the rows, then looks at the entry again: if it is the same, the rows are all of one change. So
//! readers never wait for the writer, and a writer that dies between two steps leaves every entry whole.
//!
//! A reader that keeps what it found compares [`RouteView::epoch`], which is one load, with the epoch that it read
//! *before* it looked. [`RouteTable::publish`] raises the epoch after a change. (A change is visible to those who look
//! from the moment on that it is made, as a switch takes its tables entry by entry.)
//!
//! # What is counted of packets
//!
//! Ports on the way count what comes by, and only the sender knows how much it sends. So an entry has a [`RouteId`], which names the way as
//! it is now with all its ports, also where nothing arrives at its end; a changed way has another one. Senders count by it
//! ([`rows`](crate::rows)).
//!
//! # A hostile writer
//!
//! Whatever it writes is read once into private memory, checked, and bounded: it can make packets be lost or go to another address,
//! as is its trade, and no more.

mod reader;
mod writer;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rdmux_wire::{Guid, Lid, Mtu, Pkey};

pub use self::reader::RouteView;
pub use self::writer::{RouteError, RouteTable};

/// The largest number of a peer.
pub const MAX_PEERS: u16 = if cfg!(loom) { 2 } else { 4095 };
/// How many entries a port's P_Key table can have here.
pub const PKEYS: usize = 128;

/// The number of a peer in one table: 1 to [`MAX_PEERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(u16);

impl PeerId {
    /// None outside of 1 to [`MAX_PEERS`].
    pub const fn new(id: u16) -> Option<Self> {
        if id == 0 || id > MAX_PEERS { None } else { Some(Self(id)) }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Names a way to a LID, or the ways to a group, as the subnet's tables are at some time; zero names none. It is not used again as
/// long as the writer of the table lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u64);

impl RouteId {
    /// No name: the writer does not tell ways to this LID apart.
    pub const NONE: Self = Self(0);
}

/// What an entry says of a LID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// By what packets are counted.
    pub id: RouteId,
    /// The way to the port that has it, if packets come there.
    pub way: Option<Way>,
}

/// The port whose table it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPort {
    /// Whether the port is active: no other one sends or receives data.
    pub active: bool,
    /// Its base LID; zero while no subnet manager has given it one.
    pub lid: Lid,
    /// How many low bits of the LID are path bits, 0 to 7: the port has 2^LMC LIDs.
    pub lmc: u8,
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The prefix of its GIDs.
    pub gid_prefix: u64,
    /// The GUID in its first GID.
    pub port_guid: Guid,
    /// Whether its host hears groups by IP multicast ([`Peer::multicast`]), and so may send by it.
    pub multicast: bool,
    /// Its P_Key table; zero where there is none.
    pub pkeys: [Pkey; PKEYS],
}

impl Default for OwnPort {
    /// A port that is not active, and has nothing.
    fn default() -> Self {
        let (lid, port_guid, pkeys) = (Lid::NONE, Guid(0), [Pkey(0); PKEYS]);
        let (gid_prefix, mtu) = (0, Mtu::M256);
        Self { active: false, lid, lmc: 0, mtu, gid_prefix, port_guid, multicast: false, pkeys }
    }
}

impl OwnPort {
    /// The path bits of a LID, if it is one of the port's (IBTA 7.11.1).
    pub fn path_bits(&self, lid: Lid) -> Option<u8> {
        has_lid(self.lid, self.lmc, lid).then_some((lid.0 & self.mask() & 0x7f) as u8)
    }

    /// The LID with some path bits, of which only as many count as the LMC says.
    pub fn lid_with(&self, path_bits: u8) -> Lid {
        let mask = self.mask();
        Lid(self.lid.0 & !mask | u16::from(path_bits) & mask)
    }

    /// The path bits of a LID.
    fn mask(&self) -> u16 {
        path_mask(self.lmc)
    }
}

fn path_mask(lmc: u8) -> u16 {
    (1 << lmc.min(7)) - 1
}

/// Whether a port with a base LID and an LMC has a LID (IBTA 7.11.1).
fn has_lid(base: Lid, lmc: u8, lid: Lid) -> bool {
    let mask = path_mask(lmc);
    lid.is_unicast() && base.is_unicast() && lid.0 & !mask == base.0 & !mask
}

/// Another port, or this one: where its host takes its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of the sockets. Neither the address nor the port is zero.
    pub addr: SocketAddr,
    /// The port's GUID, by which a change of the port is seen where the number stays.
    pub port_guid: Guid,
    /// Its base LID, whether or not a way leads there; zero while it has none.
    pub lid: Lid,
    /// How many low bits of the LID are path bits.
    pub lmc: u8,
    /// Whether its host is on this machine and hears groups by the machine's IP multicast, so that one datagram reaches all such hosts
    /// ([`ib`](crate::ib)).
    pub multicast: bool,
}

/// What a packet meets between the own port and another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The other port.
    pub peer: PeerId,
    /// Links from port to port, or 0 if it is the own port.
    pub hops: u8,
    /// The largest payload that every link takes.
    pub mtu: Mtu,
    /// The lowest rate of a link, as the code of a path record (IBTA 15.2.5.16).
    pub rate: u8,
    /// Bit n: packets of service level n have a virtual lane on every link.
    pub sls: u16,
    /// Bit i: packets with the P_Key at index i of the own table pass every partition enforcement.
    pub pkeys: u128,
    /// Bit b: what the other port sends to the own LID with the path bits b arrives, if it is what may be sent there: packets as
    /// large, with the same service levels. All that is done to the other's memory without a packet is allowed only then.
    pub back: u128,
    /// Bit i: the other port takes packets with the P_Key at index i of the own table, and answers with that partition's key
    /// pass every enforcement, too.
    pub answered: u128,
}

impl Way {
    /// Whether packets of a service level, 0 to 15, pass.
    pub const fn takes_sl(&self, sl: u8) -> bool {
        sl < 16 && self.sls >> sl & 1 != 0
    }

    /// Whether packets with the P_Key at an index of the own table pass.
    pub const fn takes_pkey(&self, index: usize) -> bool {
        index < PKEYS && self.pkeys >> index & 1 != 0
    }

    /// Whether what the other port answers to packets from the own LID with these path bits, and with the P_Key at an index of
    /// the own table, arrives.
    pub const fn comes_back(&self, path_bits: u8, pkey: usize) -> bool {
        path_bits < 128
            && self.back >> path_bits & 1 != 0
            && pkey < PKEYS
            && self.answered >> pkey & 1 != 0
    }
}

/// The unicast LIDs that there is room for.
const LIDS: u16 = if cfg!(loom) { 2 } else { 0xc000 };
/// The multicast LIDs.
const MLIDS: u16 = if cfg!(loom) { 2 } else { 0x4000 };
/// How many rows. With one for each unicast LID and each peer, 200,000 are left to groups.
const ROWS: u32 = if cfg!(loom) { 4 } else { 1 << 18 };

/// The bytes of a row: two cache lines, of which the second has the end of what it holds and the number of the next row.
const LINE: usize = 128;
/// "rdmuxrt" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"rdmuxrt\x04");

/// Offsets, in bytes.
mod at {
    pub(super) const FABRIC: usize = 8;
    pub(super) const EPOCH: usize = 64;
    pub(super) const OWN: usize = 128;
    /// Two of them.
    pub(super) const OWN_PLACES: usize = 192;
    pub(super) const OWN_SIZE: usize = 8 * super::OWN_WORDS;
    pub(super) const PEERS: usize = 4096;
    pub(super) const LIDS: usize = PEERS + 8 * (super::MAX_PEERS as usize + 1);
    pub(super) const MLIDS: usize = LIDS + 8 * super::LIDS as usize;
    /// In a model nothing lies on a line.
    const ENTRIES_END: usize = MLIDS + 8 * super::MLIDS as usize;
    pub(super) const ROWS: usize = ENTRIES_END.next_multiple_of(super::LINE);
    pub(super) const END: usize = ROWS + super::ROWS as usize * super::LINE;
}

/// The entry of a peer.
const fn peer_entry(id: PeerId) -> usize {
    at::PEERS + 8 * id.0 as usize
}

/// The entry of a unicast LID.
const fn lid_entry(dlid: Lid) -> Option<usize> {
    if dlid.is_unicast() && dlid.0 < LIDS { Some(at::LIDS + 8 * dlid.0 as usize) } else { None }
}

/// The entry of a multicast LID.
const fn mlid_entry(mlid: Lid) -> Option<usize> {
    if !mlid.is_multicast() {
        return None;
    }
    let index = mlid.0 - Lid::FIRST_MULTICAST.0;
    if index < MLIDS { Some(at::MLIDS + 8 * index as usize) } else { None }
}

/// The number in a word that says where a row is, from 1 on; 0 is none.
const fn first(entry: u64) -> u32 {
    (entry & 0xffff_ffff) as u32
}

/// What a row holds; the word after these is the number of the next row.
type Words = [u64; 8];
/// How many of them are written and read: in models two, which show a mixture as well as all, in less time.
const USED: usize = if cfg!(loom) { 2 } else { 8 };
/// The number of the next row, which has a word of its own.
const NEXT: usize = 8;

/// The words of [`OwnPort`].
const OWN_WORDS: usize = 3 + PKEYS / 4;

/// The low half first.
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

    /// Whether the port has a LID.
    pub fn has_lid(&self, lid: Lid) -> bool {
        has_lid(self.lid, self.lmc, lid)
    }

    /// Itself, if packets can go there.
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
