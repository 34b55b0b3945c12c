//! Updates of route tables, sent to a bridge that keeps copies of its hosts' tables ([`rdmux_link::routes`]).

use std::net::SocketAddr;

use rdmux_link::routes::{OwnPort, Peer, PeerId, Route, RouteId, RouteTable, Way};
use rdmux_link::rows::Counted;
use rdmux_wire::{Guid, Lid, Mtu, Pkey};
use serde::{Deserialize, Serialize};

/// A part of an update, as one message. The last part has the update's number. What the fabric later sends on other connections carries
/// this number or a later one, and is not shown to clients before the update was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableUpdate {
    /// The number of the bridge's connection whose host has the table.
    pub connection: u64,
    /// The changes.
    pub entries: Vec<Entry>,
    /// The number of the update, if this is its last part.
    pub sequence: Option<u64>,
}

/// An entry of a route table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// The state of the host's own port.
    Own {
        /// Whether the port is active.
        active: bool,
        /// The port's base LID.
        lid: Lid,
        /// The number of path bits in the LID.
        lmc: u8,
        /// Code of its MTU.
        mtu: u8,
        /// The prefix of the port's GIDs.
        gid_prefix: u64,
        /// The port's GUID.
        port_guid: Guid,
        /// The port's P_Keys, up to the last one.
        pkeys: Vec<Pkey>,
    },
    /// The address where another host receives packets.
    Peer {
        /// The peer's number in the table.
        id: u16,
        /// The peer; none if it is gone.
        peer: Option<PeerEntry>,
    },
    /// The route to a LID.
    Route {
        /// The LID.
        dlid: Lid,
        /// The id under which packets are counted.
        id: u64,
        /// The route; none if packets are not delivered.
        way: Option<WayEntry>,
    },
    /// The routes to the members of a group.
    Group {
        /// The group's LID.
        mlid: Lid,
        /// The id under which packets are counted.
        id: u64,
        /// Some of the routes.
        ways: Vec<WayEntry>,
        /// Whether more follow in the next entry.
        more: bool,
    },
    /// Advances the table's epoch.
    Publish,
}

/// A [`Peer`], as encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerEntry {
    addr: SocketAddr,
    port_guid: Guid,
    lid: Lid,
    lmc: u8,
}

impl From<&Peer> for PeerEntry {
    /// The entry omits whether the peer receives groups by its machine's IP multicast, because that is another machine.
    fn from(&Peer { addr, port_guid, lid, lmc, multicast: _ }: &Peer) -> Self {
        Self { addr, port_guid, lid, lmc }
    }
}

/// A [`Way`], as encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayEntry {
    peer: u16,
    hops: u8,
    mtu: u8,
    rate: u8,
    sls: u16,
    pkeys: u128,
    back: u128,
    answered: u128,
}

impl From<&Way> for WayEntry {
    fn from(way: &Way) -> Self {
        let &Way { peer, hops, mtu, rate, sls, pkeys, back, answered } = way;
        Self { peer: peer.get(), hops, mtu: mtu.code(), rate, sls, pkeys, back, answered }
    }
}

impl WayEntry {
    fn way(&self) -> Option<Way> {
        let &Self { peer, hops, mtu, rate, sls, pkeys, back, answered } = self;
        let (peer, mtu) = (PeerId::new(peer)?, Mtu::from_code(mtu)?);
        Some(Way { peer, hops, mtu, rate, sls, pkeys, back, answered })
    }
}

impl Entry {
    /// Maximum number of routes of a group in an entry.
    pub(crate) const WAYS: usize = 512;

    /// Makes the entry of the port's own properties.
    pub(crate) fn own(port: &OwnPort) -> Self {
        let OwnPort { active, lid, lmc, mtu, gid_prefix, port_guid, multicast: _, pkeys } = port;
        let used = pkeys.iter().rposition(|key| *key != Pkey(0)).map_or(0, |last| last + 1);
        Self::Own {
            active: *active,
            lid: *lid,
            lmc: *lmc,
            mtu: mtu.code(),
            gid_prefix: *gid_prefix,
            port_guid: *port_guid,
            pkeys: pkeys[..used].to_vec(),
        }
    }

    /// Makes the entry of a peer.
    pub(crate) fn peer(id: PeerId, peer: Option<&Peer>) -> Self {
        Self::Peer { id: id.get(), peer: peer.map(PeerEntry::from) }
    }

    /// Makes the entry of a unicast LID.
    pub(crate) fn route(dlid: Lid, route: &Route) -> Self {
        Self::Route { dlid, id: route.id.0, way: route.way.as_ref().map(WayEntry::from) }
    }

    /// Makes the entries of a group. All but the last are marked as continued.
    pub(crate) fn group(mlid: Lid, id: RouteId, ways: &[Way]) -> Vec<Self> {
        let mut parts: Vec<Vec<WayEntry>> =
            ways.chunks(Self::WAYS).map(|part| part.iter().map(WayEntry::from).collect()).collect();
        let last = parts.pop().unwrap_or_default();
        let part = |ways, more| Self::Group { mlid, id: id.0, ways, more };
        parts.into_iter().map(|ways| part(ways, true)).chain([part(last, false)]).collect()
    }

    /// Returns the maximum number of bytes that the entry takes in a message.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Own { pkeys, .. } => 64 + 4 * pkeys.len(),
            Self::Group { ways, .. } => 32 + 72 * ways.len(),
            Self::Peer { .. } | Self::Route { .. } | Self::Publish => 96,
        }
    }

    /// Applies the entry to a copy. `ways` collects the routes of a group until its last entry.
    ///
    /// # Errors
    /// If the entry is invalid; then the copy has no such entry.
    pub(crate) fn write(
        &self,
        table: &mut RouteTable,
        ways: &mut Vec<Way>,
    ) -> Result<(), &'static str> {
        const NONE: &str = "an invalid entry";
        match self {
            Self::Own { active, lid, lmc, mtu, gid_prefix, port_guid, pkeys } => {
                let mtu = Mtu::from_code(*mtu).ok_or(NONE)?;
                let mut port = OwnPort {
                    active: *active,
                    lid: *lid,
                    lmc: *lmc,
                    mtu,
                    gid_prefix: *gid_prefix,
                    port_guid: *port_guid,
                    ..OwnPort::default()
                };
                let places = port.pkeys.get_mut(..pkeys.len()).ok_or(NONE)?;
                places.copy_from_slice(pkeys);
                table.set_own(&port).map_err(|_| NONE)
            }
            Self::Peer { id, peer } => {
                let id = PeerId::new(*id).ok_or(NONE)?;
                let peer = peer.map(|PeerEntry { addr, port_guid, lid, lmc }| Peer {
                    addr,
                    port_guid,
                    lid,
                    lmc,
                    multicast: false,
                });
                table.set_peer(id, peer.as_ref()).map_err(|_| NONE)
            }
            Self::Route { dlid, id, way } => {
                let way = way.as_ref().map(|way| way.way().ok_or(NONE)).transpose()?;
                table.set_route(*dlid, Route { id: RouteId(*id), way }).map_err(|_| NONE)
            }
            Self::Group { mlid, id, ways: some, more } => {
                for way in some {
                    ways.push(way.way().ok_or(NONE)?);
                }
                if ways.len() > usize::from(rdmux_link::routes::MAX_PEERS) {
                    return Err(NONE);
                }
                if *more {
                    return Ok(());
                }
                let ways = std::mem::take(ways);
                table.set_group_route(*mlid, RouteId(*id), &ways).map_err(|_| NONE)
            }
            Self::Publish => {
                table.publish();
                Ok(())
            }
        }
    }
}

/// A row of a host's process, as read by a bridge ([`rdmux_link::rows::RowRead`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowEntry {
    /// The id of the route; 0 if the table has none, and for drops by the port itself.
    pub route: u64,
    /// The destination LID; 0 for drops by the port itself.
    pub dlid: Lid,
    /// The service level, or the number of the drop reason.
    pub sl: u8,
    /// The index of the P_Key.
    pub pkey: u8,
    /// Bytes of payload, if packets are dropped because of their size.
    pub payload: u16,
    /// Number of packets.
    pub packets: u64,
    /// Number of words of four bytes.
    pub words: u64,
}

impl RowEntry {
    pub(crate) fn new(counted: Counted, packets: u64, words: u64) -> Self {
        match counted {
            Counted::Sent { route, dlid, sl, pkey, payload } => {
                Self { route: route.0, dlid, sl, pkey, payload, packets, words }
            }
            Counted::Dropped(sl) => {
                let (route, dlid, pkey, payload) = (0, Lid::NONE, 0, 0);
                Self { route, dlid, sl, pkey, payload, packets, words }
            }
        }
    }

    /// Returns the key of the counts.
    pub(crate) fn counted(&self) -> Counted {
        let &Self { route, dlid, sl, pkey, payload, .. } = self;
        if dlid == Lid::NONE {
            return Counted::Dropped(sl);
        }
        Counted::Sent { route: RouteId(route), dlid, sl: sl & 0xf, pkey, payload }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_link::routes::RouteView;

    use super::*;

    fn copied(entries: Vec<Entry>) -> (RouteTable, RouteView) {
        let mut table = RouteTable::create().unwrap();
        let view = RouteView::map(table.fd()).unwrap();
        let mut ways = Vec::new();
        for entry in entries {
            let bytes = postcard::to_stdvec(&entry).unwrap();
            assert!(bytes.len() <= entry.size(), "{} {entry:?}", bytes.len());
            let entry: Entry = postcard::from_bytes(&bytes).unwrap();
            entry.write(&mut table, &mut ways).unwrap();
        }
        (table, view)
    }

    fn way(n: u16) -> Way {
        let (sls, pkeys, back) = (n | 0x8000, u128::MAX - u128::from(n), u128::MAX);
        let peer = PeerId::new(1 + n % 4095).unwrap();
        Way { peer, hops: 255, mtu: Mtu::M2048, rate: 63, sls, pkeys, back, answered: back }
    }

    #[test]
    fn update_entries_reproduce_the_route_table() {
        let mut own = OwnPort { active: true, lid: Lid(9), lmc: 3, ..OwnPort::default() };
        (own.mtu, own.gid_prefix, own.port_guid) = (Mtu::M4096, u64::MAX, Guid(u64::MAX));
        own.pkeys = [Pkey(0xffff); 128];
        let peer = Peer {
            addr: "[fe80::1]:65535".parse().unwrap(),
            port_guid: Guid(u64::MAX),
            lid: Lid(0xbfff),
            lmc: 7,
            multicast: false,
        };
        let id = PeerId::new(4095).unwrap();
        let route = Route { id: RouteId(u64::MAX), way: Some(way(7)) };
        let ways: Vec<_> = (0..1100).map(way).collect();
        let group = Entry::group(Lid(0xc005), RouteId(8), &ways);
        assert_eq!(group.len(), 3);
        let entries = [
            Entry::own(&own),
            Entry::peer(id, Some(&peer)),
            Entry::route(Lid(0xbfff), &route),
            Entry::route(Lid(5), &Route { id: RouteId(4), way: None }),
        ];
        let all = entries.into_iter().chain(group).chain([Entry::Publish]).collect();
        let (_table, view) = copied(all);
        assert_eq!((view.own(), view.peer(id), view.epoch()), (own, Some(peer), 2));
        assert_eq!((view.route(Lid(0xbfff)), view.route_id(Lid(5))), (route, RouteId(4)));
        let mut found = Vec::new();
        assert_eq!((view.group(Lid(0xc005), &mut found), found), (RouteId(8), ways));
        let (_table, view) = copied(vec![
            Entry::peer(id, Some(&peer)),
            Entry::peer(id, None),
            Entry::route(Lid(5), &Route { id: RouteId(4), way: Some(way(1)) }),
            Entry::route(Lid(5), &Route::default()),
        ]);
        assert_eq!((view.peer(id), view.route(Lid(5))), (None, Route::default()));
    }

    #[test]
    fn invalid_route_table_update_entries_are_refused() {
        let mut table = RouteTable::create().unwrap();
        let bad = WayEntry { peer: 0, ..WayEntry::from(&way(1)) };
        let many = vec![WayEntry::from(&way(1)); 4096];
        let Entry::Own { active, lid, mtu, gid_prefix, port_guid, .. } =
            Entry::own(&OwnPort::default())
        else {
            unreachable!()
        };
        let own = |lmc, mtu, pkeys| Entry::Own {
            active,
            lid,
            lmc,
            mtu,
            gid_prefix,
            port_guid,
            pkeys: vec![Pkey(1); pkeys],
        };
        let (addr, lid) = ("0.0.0.0:1".parse().unwrap(), Lid(1));
        let nowhere = Peer { addr, port_guid: Guid(1), lid, lmc: 0, multicast: false };
        for entry in [
            own(8, mtu, 1),
            own(0, 0, 1),
            own(0, mtu, 129),
            Entry::Peer { id: 0, peer: None },
            Entry::Peer { id: 1, peer: Some(PeerEntry::from(&nowhere)) },
            Entry::Route { dlid: Lid(0), id: 1, way: None },
            Entry::Route { dlid: Lid(1), id: 1, way: Some(bad) },
            Entry::Group { mlid: Lid(0xc000), id: 1, ways: vec![bad], more: false },
            Entry::Group { mlid: Lid(0xc000), id: 1, ways: many, more: true },
        ] {
            entry.write(&mut table, &mut Vec::new()).unwrap_err();
        }
    }

    #[test]
    fn counter_row_entries_round_trip() {
        let route = RouteId(7);
        for counted in [
            Counted::Dropped(12),
            Counted::Sent { route, dlid: Lid(9), sl: 15, pkey: 127, payload: 4096 },
        ] {
            assert_eq!(RowEntry::new(counted, 1, 2).counted(), counted);
        }
    }
}
