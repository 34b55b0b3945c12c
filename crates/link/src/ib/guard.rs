//! Checks whether the subnet would forward packets that bypass it by a ring: those of a queue pair whose peer is a process of another host
//! on this machine. Also counts them for the ports on the path.

use std::net::SocketAddr;
use std::sync::Arc;

use rdmux_transport::attr::QpAttr;
use rdmux_wire::icrc::Icrc;
use rdmux_wire::lrh::Lrh;
use rdmux_wire::{Bth, Grh, Lid, Mtu, Pkey};

use super::sender::RouteHeaders;
use super::state::Known;
use super::{IbDrop, KeyViolation, Routes, SentCounts, SentKind, Violated};
use crate::routes::{Route, RouteView};
use crate::rows::Row;
use crate::wire::Frame;

/// The check for the packets of one queue pair. The result is cached until the routes change, which is detected by comparing the epoch.
#[derive(Debug)]
pub struct RouteGuard {
    routes: Arc<Routes>,
    /// The address at which the peer's host receives packets; not known before there was a route to it.
    to: Option<SocketAddr>,
    path: Path,
    /// The state that the result is valid for.
    seen: Option<Seen>,
    found: Result<Passage, IbDrop>,
    counts: SentCounts,
    /// The row in which the packets are counted.
    row: Option<Row>,
}

/// The properties that all packets of the queue pair share.
#[derive(Debug, Default)]
struct Path {
    dlid: Lid,
    sl: u8,
    src_path_bits: u8,
    is_global: bool,
    /// The maximum payload of a packet on a real link; a ring's packets may be longer.
    mtu: Option<Mtu>,
    pkey_index: u16,
}

/// The state that a result depends on.
#[derive(Debug)]
struct Seen {
    version: u64,
    epoch: u64,
    view: Option<Arc<RouteView>>,
    pkey: Pkey,
    /// The index of the P_Key in the port's table.
    index: Option<u8>,
    slid: Lid,
}

/// The packets that pass.
#[derive(Clone, Copy, Debug)]
struct Passage {
    /// The maximum payload.
    most: u32,
    /// Whether every packet of the queue pair and every answer passes.
    open: bool,
}

impl RouteGuard {
    /// Creates the guard of a queue pair whose peer's host receives packets at this address.
    pub fn new(routes: Arc<Routes>, to: SocketAddr) -> Self {
        Self { to: Some(to), ..Self::by_other_port(routes) }
    }

    /// Creates the guard of a queue pair whose peer's host is known by another port than that of these routes. The host's address at this
    /// port becomes known with a route to it.
    pub fn by_other_port(routes: Arc<Routes>) -> Self {
        let (path, found, counts) = (Path::default(), Err(IbDrop::TxNoWay), SentCounts::new());
        Self { routes, to: None, path, seen: None, found, counts, row: None }
    }

    /// Returns the number of the port by which the packets leave.
    #[inline]
    pub fn port(&self) -> u8 {
        self.routes.port_num()
    }

    /// Updates the attributes of the queue pair.
    pub fn follow(&mut self, attr: &QpAttr) {
        let QpAttr { av, path_mtu, pkey_index, .. } = attr;
        let (dlid, sl, src_path_bits) = (Lid(av.dlid), av.sl, av.src_path_bits);
        let (is_global, mtu, pkey_index) = (av.is_global, Some(*path_mtu), *pkey_index);
        self.path = Path { dlid, sl, src_path_bits, is_global, mtu, pkey_index };
        self.seen = None;
    }

    /// Returns the index of the queue pair's P_Key in the port's table.
    #[inline]
    pub fn pkey_index(&self) -> u16 {
        self.path.pkey_index
    }

    /// Returns whether every packet that the queue pair sends with a P_Key passes, and every answer to it. Only then are operations on
    /// the peer without a packet permitted.
    #[inline]
    pub fn is_open(&mut self, pkey: Pkey) -> bool {
        self.refresh(pkey);
        matches!(self.found, Ok(Passage { open: true, .. }))
    }

    /// Returns whether a packet passes, and counts it if not. If its payload exceeds the path's MTU, the first packet that a real link
    /// would carry decides.
    #[inline]
    pub fn passes(&mut self, pkey: Pkey, frame: &Frame<'_>) -> bool {
        self.refresh(pkey);
        let why = match self.found {
            Ok(Passage { open: true, .. }) => return true,
            Ok(Passage { most, .. }) => {
                if frame.payload.len().min(self.mtu()) <= most as usize {
                    return true;
                }
                IbDrop::TxLength
            }
            Err(why) => why,
        };
        self.lost(why, frame);
        false
    }

    /// Counts a packet for the ports on the way, by the length of its headers from the BTH on and of its payload. A payload that exceeds
    /// the path's MTU counts as the packets that would carry it.
    #[inline]
    pub fn sent(&mut self, header: usize, payload: usize) {
        let (packets, words) = self.on_the_wire(header, payload);
        self.counts.add(self.row, packets, words);
    }

    /// Returns how many packets a link would carry for a datagram with these lengths, and how many words altogether.
    #[inline]
    fn on_the_wire(&self, header: usize, payload: usize) -> (u64, u64) {
        let packets = payload.div_ceil(self.mtu()).max(1);
        let grh = if self.path.is_global { Grh::LEN } else { 0 };
        let each = Lrh::LEN + grh + Icrc::LEN;
        let later = (packets - 1) * Bth::LEN;
        let bytes = packets * each + header + later + payload.next_multiple_of(4);
        (packets as u64, bytes as u64 / 4)
    }

    /// Returns the maximum payload of a packet on a link.
    #[inline]
    fn mtu(&self) -> usize {
        self.path.mtu.map_or(usize::MAX, |mtu| mtu.bytes() as usize)
    }

    /// Counts and reports a packet that is lost, here or on its way.
    #[cold]
    fn lost(&self, why: IbDrop, frame: &Frame<'_>) {
        if why == IbDrop::TxInactive {
            return self.routes.drop_here(why);
        }
        self.routes.count(why, 1);
        let Path { dlid, sl, .. } = self.path;
        let Some(Seen { index: Some(pkey), slid, .. }) = self.seen else { return };
        let payload = frame.payload.len().min(self.mtu());
        let (_, words) = self.on_the_wire(frame.header.len(), payload);
        self.routes.lose(SentKind { dlid, sl, pkey }, payload, words);
        if why == IbDrop::TxPkey {
            let lrh = Lrh { sl, dlid, slid, ..Lrh::DEFAULT };
            let rest = frame.header.len() + payload.next_multiple_of(4) + Icrc::LEN;
            let violation = RouteHeaders::new(lrh, None, rest).and_then(|route| {
                KeyViolation::of(Violated::SwitchPkey, route.as_slice(), frame.header)
            });
            if let Some(violation) = violation {
                self.routes.violated(&violation);
            }
        }
    }

    #[inline]
    fn refresh(&mut self, pkey: Pkey) {
        let is_same = self.seen.as_ref().is_some_and(|seen| {
            seen.version == self.routes.version()
                && seen.pkey == pkey
                && seen.view.as_ref().is_none_or(|view| view.epoch() == seen.epoch)
        });
        if !is_same {
            self.look(pkey);
        }
    }

    #[cold]
    fn look(&mut self, pkey: Pkey) {
        let mut known = Known::default();
        known.refresh(&self.routes);
        let (version, epoch) = known.found_at();
        let slid = known.own.lid_with(self.path.src_path_bits);
        let index = known.pkey_index(pkey).and_then(|index| u8::try_from(index).ok());
        self.counts.refresh(known.count_by());
        self.found = self.find(&mut known, pkey);
        self.seen = Some(Seen { version, epoch, view: known.view, pkey, index, slid });
    }

    fn find(&mut self, known: &mut Known, pkey: Pkey) -> Result<Passage, IbDrop> {
        let Path { dlid, sl, src_path_bits, mtu, .. } = self.path;
        if !known.is_active() {
            return Err(IbDrop::TxInactive);
        }
        let view = known.view.clone().ok_or(IbDrop::TxInactive)?;
        let index = known.pkey_index(pkey).ok_or(IbDrop::TxPkey)?;
        let kind = SentKind { dlid, sl, pkey: u8::try_from(index).unwrap_or(u8::MAX) };
        let Route { id, way } = view.route(dlid);
        // On failure the route has changed, and so has the epoch: it is looked up again.
        self.row = self.counts.row(known.count_by(), kind, id).unwrap_or_default();
        let way = way.ok_or(IbDrop::TxNoWay)?;
        // Another host may have the LID by now.
        let peer = view.peer(way.peer).ok_or(IbDrop::TxNoWay)?;
        if *self.to.get_or_insert(peer.addr) != peer.addr {
            return Err(IbDrop::TxNoWay);
        }
        known.check(Some(&way), sl, index, 0)?;
        let most = way.mtu.min(known.own.mtu);
        let bits = known.own.path_bits(known.own.lid_with(src_path_bits)).unwrap_or(0);
        let open = mtu.is_some_and(|mtu| mtu <= most) && way.comes_back(bits, index);
        Ok(Passage { most: most.bytes(), open })
    }
}
