//! Paths that ACM has supplied to programs, and those along which no connection came about.
//!
//! All connections of a process to a host share them, because a program may look up a path by one and connect by another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdmux_acm_client::Places;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid};

/// Time for which a path that has failed is not used, unless the service invalidates it before.
const PAUSE: Duration = Duration::from_secs(600);
/// Maximum number of paths that are remembered: as many as a subnet has unicast LIDs. Further ones are neither reported nor avoided.
const MOST: usize = 48 * 1024;

/// The ends of a path, and the LID to which its packets go: what a peer's change makes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Way {
    sgid: Gid,
    dgid: Gid,
    dlid: Lid,
}

impl From<&PathRecord> for Way {
    fn from(path: &PathRecord) -> Self {
        Self { sgid: path.sgid, dgid: path.dgid, dlid: path.dlid }
    }
}

/// A path from ACM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Supplied {
    /// The address that ACM was asked for.
    pub(super) to: Address,
    pub(super) way: Way,
}

/// What a process knows of the paths of a host's service.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The paths that programs have, and the addresses that ACM was asked for.
    supplied: Mutex<HashMap<Way, Address>>,
    /// The paths that have failed.
    failed: Mutex<HashMap<Way, Failed>>,
}

/// A path along which no connection came about.
#[derive(Clone, Copy, Debug)]
enum Failed {
    /// It is not used until this time.
    Avoided(Instant),
    /// The service invalidated it at this time, and finds it anew. Ids may have had it before.
    Renewed(Instant),
}

impl Known {
    /// Returns what this process knows of the service at these places.
    pub(super) fn of(places: &Places) -> Arc<Self> {
        static ALL: Mutex<Vec<(u32, Places, Arc<Known>)>> = Mutex::new(Vec::new());
        // At fork(2), threads of the parent may have held these locks, which are then never released here.
        let Some(mut all) = ALL.try_lock_for(PATIENCE) else { return Arc::default() };
        let process = std::process::id();
        all.retain(|(of, ..)| *of == process);
        if let Some((.., known)) = all.iter().find(|(_, of, _)| of == places) {
            return Arc::clone(known);
        }
        let known = Arc::<Self>::default();
        all.push((process, places.clone(), Arc::clone(&known)));
        known
    }

    /// Records that a program has this path.
    pub(super) fn supply(&self, supplied: Supplied) {
        let mut all = self.supplied.lock();
        if all.len() < MOST || all.contains_key(&supplied.way) {
            all.insert(supplied.way, supplied.to);
        }
    }

    /// Returns the path of these that ACM has supplied.
    pub(super) fn supplied<'a>(
        &self,
        records: impl IntoIterator<Item = &'a PathRecord>,
    ) -> Option<Supplied> {
        let all = self.supplied.lock();
        records.into_iter().map(Way::from).find_map(|way| {
            let to = *all.get(&way)?;
            Some(Supplied { to, way })
        })
    }

    /// Records that no connection came about along this path, which a program had since `since`. Returns whether this is news: not if the
    /// path is avoided already, or the service has invalidated it meanwhile.
    pub(super) fn fail(&self, way: Way, since: Instant, now: Instant) -> bool {
        let mut failed = self.failed.lock();
        match failed.get(&way) {
            Some(Failed::Avoided(until)) if now < *until => return false,
            Some(Failed::Renewed(at)) if since <= *at => return false,
            _ => {}
        }
        if failed.len() >= MOST {
            failed.retain(|_, of| match of {
                Failed::Avoided(until) => now < *until,
                Failed::Renewed(at) => now.saturating_duration_since(*at) < PAUSE,
            });
        }
        if let Some(until) = now.checked_add(PAUSE)
            && (failed.len() < MOST || failed.contains_key(&way))
        {
            failed.insert(way, Failed::Avoided(until));
        }
        true
    }

    /// Records that the service has invalidated this path: it finds one anew.
    pub(super) fn renew(&self, way: Way, now: Instant) {
        if let Some(of) = self.failed.lock().get_mut(&way) {
            *of = Failed::Renewed(now);
        }
    }

    /// Returns whether the path has failed and must not be used.
    pub(super) fn has_failed(&self, way: Way, now: Instant) -> bool {
        let failed = self.failed.lock();
        matches!(failed.get(&way), Some(Failed::Avoided(until)) if now < *until)
    }
}

/// Longer than any other thread holds the lock.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn supplied(dlid: u16) -> Supplied {
        let record = PathRecord { dlid: Lid(dlid), ..PathRecord::default() };
        Supplied { to: Address::name("node7").unwrap(), way: Way::from(&record) }
    }

    #[test]
    fn connections_to_one_host_share_what_they_know_of_its_paths() {
        let [first, second] = ["/nowhere/1", "/nowhere/2"].map(|at| Places::new(at, "/nowhere"));
        let now = Instant::now();
        assert!(Known::of(&first).fail(supplied(1).way, now, now));
        assert!(Known::of(&first).has_failed(supplied(1).way, now));
        assert!(!Known::of(&second).has_failed(supplied(1).way, now));
    }

    #[test]
    fn path_that_failed_is_avoided_until_the_service_or_time_renews_it() {
        let (known, now) = (Known::default(), Instant::now());
        let [way, other] = [1, 2].map(|dlid| supplied(dlid).way);
        assert!(!known.has_failed(way, now));
        assert!(known.fail(way, now, now));
        assert!(known.has_failed(way, now) && !known.has_failed(other, now));
        assert!(!known.has_failed(way, now + PAUSE));
        assert!(!known.fail(way, now, now), "it is avoided already");
        known.renew(way, now);
        assert!(!known.has_failed(way, now));
    }

    #[test]
    fn failures_of_ids_that_had_a_path_before_it_was_invalidated_are_no_news() {
        let (known, now) = (Known::default(), Instant::now());
        let (way, later) = (supplied(1).way, now + Duration::from_secs(1));
        assert!(known.fail(way, now, later));
        known.renew(way, later);
        assert!(!known.fail(way, now, later) && !known.has_failed(way, later));
        let since = later + Duration::from_secs(1);
        assert!(known.fail(way, since, since) && known.has_failed(way, since));
    }

    #[test]
    fn records_with_the_ends_and_lid_of_a_supplied_path_are_that_path() {
        let known = Known::default();
        known.supply(supplied(1));
        let record = |dlid| PathRecord { dlid: Lid(dlid), sl: 3, ..PathRecord::default() };
        assert_eq!(known.supplied(&[record(2), record(1)]), Some(supplied(1)));
        assert_eq!(known.supplied(&[record(2)]), None);
    }

    #[test]
    fn paths_that_failed_long_ago_make_room() {
        let (known, now) = (Known::default(), Instant::now());
        let way = |n: usize| {
            let sgid = Gid(u128::try_from(n).unwrap().to_be_bytes());
            Way::from(&PathRecord { sgid, ..PathRecord::default() })
        };
        for n in 0..=MOST {
            assert!(known.fail(way(n), now, now));
        }
        assert!(!known.has_failed(way(MOST), now));
        assert!(known.fail(way(MOST), now, now + PAUSE));
        assert!(known.has_failed(way(MOST), now + PAUSE));
    }
}
