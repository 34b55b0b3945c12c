//! Counts packets for the ports on their path ([`rows`](crate::rows)).
//!
//! Each sender has its own [`SentCounts`], with a row for each kind of packets to a LID. Packets that are lost, here or on arrival,
//! are counted together for the process ([`LostCounts`]), since they are rare.

use std::sync::Arc;

use parking_lot::Mutex;
use rdmux_wire::Lid;

use super::IbDrop;
use crate::routes::{RouteId, RouteView};
use crate::rows::{Counted, Row, Rows, Tally, Unfound};

/// The part of a port's routes that counting needs.
#[derive(Clone, Copy, Debug)]
pub struct CountBy<'a> {
    /// The table in which routes are looked up.
    pub view: Option<&'a Arc<RouteView>>,
    /// The process's rows.
    pub rows: Option<&'a Arc<Rows>>,
}

/// The properties of a packet that determine its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentKind {
    /// The packet's destination LID, of a port or a group.
    pub dlid: Lid,
    /// The packet's service level, 0 to 15.
    pub sl: u8,
    /// The index of the packet's P_Key in the port's table.
    pub pkey: u8,
}

/// The route that was looked up is no longer in the table, and must be looked up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayChanged;

impl SentKind {
    fn counted(self, route: RouteId, payload: u16) -> Counted {
        let Self { dlid, sl, pkey } = self;
        Counted::Sent { route, dlid, sl, pkey, payload }
    }
}

/// The rows in which one sender counts its packets. Packets to the own port, which never leave it, are not counted.
#[derive(Debug)]
pub struct SentCounts {
    /// The writer of the rows. None without rows.
    tally: Option<Tally>,
    /// The rows that were found last, by the LID's low bits.
    last: [Option<(SentKind, RouteId, Row)>; Self::LAST],
}

impl SentCounts {
    const LAST: usize = 64;

    /// Creates counts without rows.
    pub const fn new() -> Self {
        Self { tally: None, last: [None; Self::LAST] }
    }

    /// Updates the counts after routes, or their table, may have changed. To be called before the next lookup.
    pub fn refresh(&mut self, by: CountBy<'_>) {
        self.last = [None; Self::LAST];
        match (&mut self.tally, by.rows) {
            (Some(tally), Some(rows)) if tally.is_of(rows) => tally.refresh(),
            (tally, rows) => *tally = rows.map(|rows| Tally::new(rows.clone())),
        }
    }

    /// Returns the row for packets of a kind along a route; none if they are not counted. To be called before they are sent.
    ///
    /// # Errors
    ///
    /// [`WayChanged`].
    #[inline]
    pub fn row(
        &mut self,
        by: CountBy<'_>,
        kind: SentKind,
        route: RouteId,
    ) -> Result<Option<Row>, WayChanged> {
        if let Some((_, _, row)) = self.last[usize::from(kind.dlid.0) % Self::LAST]
            .as_ref()
            .filter(|(last, by, _)| (*last, *by) == (kind, route))
        {
            return Ok(Some(*row));
        }
        self.find(by, kind, route)
    }

    #[cold]
    fn find(
        &mut self,
        by: CountBy<'_>,
        kind: SentKind,
        route: RouteId,
    ) -> Result<Option<Row>, WayChanged> {
        let Some(tally) = &mut self.tally else { return Ok(None) };
        match tally.find(&kind.counted(route, 0), |counted| is_current(by.view, counted)) {
            Ok(row) => {
                self.last[usize::from(kind.dlid.0) % Self::LAST] = Some((kind, route, row));
                Ok(Some(row))
            }
            Err(Unfound::Changed) => Err(WayChanged),
            // There are more kinds at once than rows: the ports do not see these packets.
            Err(Unfound::Full) => Ok(None),
        }
    }

    /// Adds packets, and their length in words of four bytes from LRH to ICRC.
    #[inline]
    pub fn add(&mut self, row: Option<Row>, packets: u64, words: u64) {
        if let Some((tally, row)) = self.tally.as_mut().zip(row) {
            tally.add(row, packets, words);
        }
    }
}

impl Default for SentCounts {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns whether a table still has the route of a row.
fn is_current(view: Option<&Arc<RouteView>>, counted: &Counted) -> bool {
    match (view, counted) {
        (Some(view), Counted::Sent { route, dlid, .. }) => view.route_id(*dlid) == *route,
        (None, Counted::Sent { .. }) => false,
        (_, Counted::Dropped(_)) => true,
    }
}

/// A process's counts of lost packets.
#[derive(Debug, Default)]
pub(super) struct LostCounts(Mutex<Option<Tally>>);

impl LostCounts {
    /// Counts packets that the port itself drops.
    pub(super) fn dropped(&self, by: CountBy<'_>, why: IbDrop, packets: u64) {
        self.count(by, packets, 0, || Counted::Dropped(why as u8));
    }

    /// Counts a packet that leaves the port and is dropped on the way.
    pub(super) fn lost(&self, by: CountBy<'_>, kind: SentKind, payload: u16, words: u64) {
        let Some(view) = by.view else { return };
        self.count(by, 1, words, || kind.counted(view.route_id(kind.dlid), payload));
    }

    fn count(&self, by: CountBy<'_>, packets: u64, words: u64, what: impl Fn() -> Counted) {
        /// The maximum number of route changes meanwhile.
        const TRIES: usize = 16;
        let Some(rows) = by.rows else { return };
        let mut tally = self.0.lock();
        let tally = match &mut *tally {
            Some(tally) if tally.is_of(rows) => tally,
            tally => tally.insert(Tally::new(rows.clone())),
        };
        tally.refresh();
        for _ in 0..TRIES {
            let counted = what();
            match tally.find(&counted, |counted| is_current(by.view, counted)) {
                Ok(row) => {
                    tally.add(row, packets, words);
                    if matches!(counted, Counted::Dropped(_)) {
                        tally.has_dropped();
                    }
                    return;
                }
                Err(Unfound::Changed) => {}
                Err(Unfound::Full) => return,
            }
        }
    }
}
