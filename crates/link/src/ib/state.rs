//! The state that the wires of an InfiniBand port share: routes, the port's GIDs, and counters.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;
use rdmux_wire::{Gid, Guid, Lid, Pkey};

use super::counting::{CountBy, LostCounts, SentKind};
use super::drops::Drops;
use super::violations::Reports;
use super::{Encap, IbDrop, KeyViolation};
use crate::routes::{OwnPort, RouteView, Way};
use crate::rows::Rows;
use crate::shm::SharedMem;

/// The present routes of one port of a device. All the port's wires use it, in all threads.
///
/// Without a table, no packet is sent or admitted: before the port is attached to a fabric, and after the fabric is gone.
#[derive(Debug, Default)]
pub struct Routes {
    /// The number of the port.
    port_num: u8,
    now: RwLock<Now>,
    /// Raised when the contents of `now` are replaced.
    version: AtomicU64,
    drops: Drops,
    lost: LostCounts,
    reports: Reports,
    narrow: Narrow,
}

/// The maximum part of a packet in one datagram to an address, if the path MTU is small.
#[derive(Debug, Default)]
struct Narrow {
    /// Whether `rooms` has any address.
    any: AtomicBool,
    rooms: RwLock<HashMap<SocketAddr, usize>>,
}

/// The present table, rows and GIDs.
#[derive(Debug, Default, Clone)]
struct Now {
    view: Option<Arc<RouteView>>,
    rows: Option<Arc<Rows>>,
    gids: Arc<[Gid]>,
}

impl Now {
    fn count_by(&self) -> CountBy<'_> {
        CountBy { view: self.view.as_ref(), rows: self.rows.as_ref() }
    }
}

impl Routes {
    /// Returns the number of the port.
    pub fn port_num(&self) -> u8 {
        self.port_num
    }

    /// Creates the routes of the port with this number, without a table and without GIDs.
    pub fn new(port_num: u8) -> Self {
        Self { port_num, ..Self::default() }
    }

    /// Creates routes like [`new`](Self::new), but counts drops in the words of a page that other processes see, from `first` on
    /// in the order of [`IbDrop::ALL`].
    pub fn counting_in(port_num: u8, page: SharedMem, first: usize) -> Self {
        Self { port_num, drops: Drops::in_page(page, first), ..Self::default() }
    }

    /// Replaces the table, or removes it. Packets are no longer counted for the ports on the way.
    pub fn set_view(&self, view: Option<RouteView>) {
        self.set_view_with(view, None);
    }

    /// Sets the table like [`set_view`](Self::set_view), with rows in which this process counts packets for the writer of the
    /// table.
    pub fn set_view_with(&self, view: Option<RouteView>, rows: Option<Rows>) {
        let (view, rows) = (view.map(Arc::new), rows.map(Arc::new));
        {
            let mut now = self.now.write();
            (now.view, now.rows) = (view, rows);
        }
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the table.
    pub fn view(&self) -> Option<Arc<RouteView>> {
        self.now.read().view.clone()
    }

    /// Returns the address at which the host that has a LID receives packets, whether or not a route to it exists.
    pub fn endpoint(&self, lid: Lid) -> Option<SocketAddr> {
        Some(self.view()?.peer_with(lid)?.addr)
    }

    /// Sets the GIDs of the port, by their index.
    pub fn set_gids(&self, gids: &[Gid]) {
        self.now.write().gids = gids.into();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns how many packets were dropped for a reason.
    pub fn dropped(&self, why: IbDrop) -> u64 {
        self.drops.get(why)
    }

    /// Returns the name and count of each reason for drops.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        IbDrop::ALL.iter().map(|why| (why.name(), self.dropped(*why)))
    }

    /// Returns how often the state was replaced.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Counts `n` packets that were dropped.
    pub(super) fn count(&self, why: IbDrop, n: u64) {
        self.drops.count(why, n);
    }

    /// Counts a packet that the port drops because its ICRC is wrong, also in the port's own counters.
    #[cold]
    pub(super) fn wrong_icrc(&self) {
        self.drop_here(IbDrop::RxIcrc);
    }

    /// Counts a packet that the port itself drops, also in the port's own counters.
    pub(super) fn drop_here(&self, why: IbDrop) {
        self.count(why, 1);
        let now = self.now.read();
        self.lost.dropped(now.count_by(), why, 1);
    }

    /// Counts a packet with this payload and total number of words, which leaves the port and reaches the port that drops it.
    pub(super) fn lose(&self, kind: SentKind, payload: usize, words: u64) {
        let payload = u16::try_from(payload).unwrap_or(u16::MAX);
        let now = self.now.read();
        self.lost.lost(now.count_by(), kind, payload, words);
    }

    /// Counts a packet with a wrong key, and reports it, with a limited rate.
    pub fn violated(&self, violation: &KeyViolation) {
        if let Some(why) = violation.kind.counted_as() {
            self.drop_here(why);
        }
        self.reports.report(violation);
    }

    /// Sets the function that is called for reports of wrong keys, by any thread that sends or receives.
    pub fn report_violations(&self, take: impl Fn(&KeyViolation) + Send + Sync + 'static) {
        self.reports.set(Box::new(take));
    }

    /// Returns the maximum size of parts of a packet to an address.
    #[inline]
    pub(super) fn room(&self, to: SocketAddr) -> usize {
        let is_any = self.narrow.any.load(Ordering::Relaxed);
        let narrow = if is_any { self.narrow.rooms.read().get(&to).copied() } else { None };
        narrow.unwrap_or(room::WHOLE)
    }

    /// Limits the size of parts to an address.
    #[cold]
    pub(super) fn narrow(&self, to: SocketAddr, room: usize) {
        self.narrow.rooms.write().insert(to, room);
        self.narrow.any.store(true, Ordering::Relaxed);
    }

    /// Removes the limits, as packets may take other paths than before.
    #[cold]
    pub(super) fn widen(&self) {
        if self.narrow.any.swap(false, Ordering::Relaxed) {
            self.narrow.rooms.write().clear();
        }
    }
}

/// A sender's or receiver's copy of the routes, whose validity is checked by two loads.
#[derive(Debug)]
pub(super) struct Known {
    /// The number of the port.
    pub(super) port_num: u8,
    version: u64,
    epoch: u64,
    /// The table, or none if the port is not attached.
    pub(super) view: Option<Arc<RouteView>>,
    rows: Option<Arc<Rows>>,
    pub(super) gids: Arc<[Gid]>,
    /// The port's own properties.
    pub(super) own: OwnPort,
    /// The number of the fabric.
    pub(super) fabric: u64,
    /// The P_Key that was looked up last, and the result.
    pkey: (Pkey, Option<usize>),
}

impl Default for Known {
    fn default() -> Self {
        let (version, epoch, view, rows, gids) = (u64::MAX, 0, None, None, Arc::default());
        let (own, fabric, pkey) = (OwnPort::default(), 0, (Pkey(0), None));
        Self { port_num: 0, version, epoch, view, rows, gids, own, fabric, pkey }
    }
}

impl Known {
    /// Updates the copy. Returns whether anything has changed.
    #[inline]
    pub(super) fn refresh(&mut self, routes: &Routes) -> bool {
        let version = routes.version();
        let epoch = self.view.as_ref().map_or(0, |view| view.epoch());
        if version == self.version && epoch == self.epoch {
            return false;
        }
        self.renew(routes, version);
        true
    }

    #[cold]
    fn renew(&mut self, routes: &Routes, version: u64) {
        let Now { view, rows, gids } = routes.now.read().clone();
        (self.port_num, self.version) = (routes.port_num, version);
        // The epoch is read first: later reads are at least as new.
        self.epoch = view.as_ref().map_or(0, |view| view.epoch());
        self.own = view.as_ref().map(|view| view.own()).unwrap_or_default();
        self.fabric = view.as_ref().map_or(0, |view| view.fabric());
        (self.view, self.rows, self.gids) = (view, rows, gids);
        self.pkey = (Pkey(0), None);
    }

    /// Returns the table and rows by which packets are counted.
    #[inline]
    pub(super) fn count_by(&self) -> CountBy<'_> {
        CountBy { view: self.view.as_ref(), rows: self.rows.as_ref() }
    }

    /// Returns the version and the epoch of the copy.
    pub(super) fn found_at(&self) -> (u64, u64) {
        (self.version, self.epoch)
    }

    /// Returns whether the port sends and receives.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.own.active && self.own.lid.is_unicast()
    }

    /// Returns the index of a P_Key in the port's table.
    #[inline]
    pub(super) fn pkey_index(&mut self, pkey: Pkey) -> Option<usize> {
        if self.pkey.0 != pkey {
            let at = || self.own.pkeys.iter().position(|key| *key == pkey);
            self.pkey = (pkey, if is_partition(pkey) { at() } else { None });
        }
        self.pkey.1
    }

    /// Returns the index of the key in the port's table that admits a packet with this P_Key.
    #[inline]
    pub(super) fn admitted(&mut self, pkey: Pkey) -> Option<usize> {
        if self.pkey.0 != pkey {
            let at = || self.own.pkeys.iter().position(|key| pkey.admits(*key));
            self.pkey = (pkey, if is_partition(pkey) { at() } else { None });
        }
        self.pkey.1
    }

    /// Checks whether a packet with this many bytes of payload, and with the P_Key at an index of this port's table, passes all
    /// links of a way. Without a way, checks a packet to this port itself.
    #[inline]
    pub(super) fn check(
        &self,
        way: Option<&Way>,
        sl: u8,
        pkey: usize,
        payload: usize,
    ) -> Result<(), IbDrop> {
        let mtu = way.map_or(self.own.mtu, |way| way.mtu.min(self.own.mtu));
        if payload > mtu.bytes() as usize {
            return Err(IbDrop::TxLength);
        }
        let Some(way) = way else { return Ok(()) };
        if !way.takes_pkey(pkey) {
            return Err(IbDrop::TxPkey);
        }
        if way.takes_sl(sl & 0xf) { Ok(()) } else { Err(IbDrop::TxSl) }
    }

    /// Returns whether a GID is one of the port's: one of its table, or one with the default prefix in place of the subnet's
    /// (IBTA 4.1.1).
    pub(super) fn has_gid(&self, gid: Gid) -> bool {
        let is_default = gid.prefix() == Gid::DEFAULT_PREFIX && gid.guid() != Guid(0);
        self.gids.contains(&gid)
            || (is_default && self.gids.iter().any(|own| own.guid() == gid.guid()))
    }
}

/// Returns whether this is the key of a partition: no key is zero, with or without full membership (IBTA 10.9.1.1).
fn is_partition(pkey: Pkey) -> bool {
    pkey.0 & 0x7fff != 0
}

/// The maximum number of bytes of a packet in a datagram to a host.
pub(super) mod room {
    use super::Encap;

    /// The limit of UDP over IPv4.
    pub(in crate::ib) const WHOLE: usize = 65_507 - Encap::LEN;
    /// Common path MTUs, in descending order; every path supports the last.
    const PATHS: [usize; 6] = [9000, 1500, 1450, 1400, 1280, 576];
    /// The length of IPv6, UDP and encapsulation headers.
    const HEADERS: usize = 48 + Encap::LEN;

    /// Returns the next smaller size.
    pub(in crate::ib) fn below(room: usize) -> Option<usize> {
        PATHS.iter().map(|mtu| mtu - HEADERS).find(|narrower| *narrower < room)
    }
}
