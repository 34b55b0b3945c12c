//! Ids with a path from ACM. If the peer is unreachable along it, the path is reported, so that the service
//! invalidates it, and this process does not use it again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rdmux_cm::{Event, EventKind, IdHandle};
use rdmux_wire::cm::RejReason;

use super::known::Supplied;

/// Maximum number of ids that are remembered. Failed paths of further ids are not reported.
const MOST: usize = 64 * 1024;

/// The ids that have a path from ACM, that path, and since when they have it.
#[derive(Debug, Default)]
pub(super) struct Given {
    paths: Mutex<HashMap<IdHandle, (Supplied, Instant)>>,
    /// Whether the map may have entries.
    some: AtomicBool,
}

impl Given {
    /// Records that an id has this path. Returns the one that it had.
    pub(super) fn insert(&self, id: IdHandle, path: Supplied) -> Option<Supplied> {
        let mut all = self.paths.lock();
        if all.len() >= MOST && !all.contains_key(&id) {
            return None;
        }
        self.some.store(true, Ordering::Release);
        all.insert(id, (path, Instant::now())).map(|(path, _)| path)
    }

    /// Removes the id's path, because the path is gone or no longer needed, and returns it.
    pub(super) fn remove(&self, id: IdHandle) -> Option<Supplied> {
        self.take(id).map(|(path, _)| path)
    }

    fn take(&self, id: IdHandle) -> Option<(Supplied, Instant)> {
        if !self.some.load(Ordering::Acquire) {
            return None;
        }
        let mut all = self.paths.lock();
        let path = all.remove(&id);
        self.some.store(!all.is_empty(), Ordering::Release);
        path
    }

    /// Returns the path that an event shows to be wrong, and since when the id had it.
    pub(super) fn failed(&self, event: &Event) -> Option<(Supplied, Instant)> {
        match event.kind {
            EventKind::Unreachable | EventKind::Rejected => {
                self.take(event.id).filter(|_| is_of_path(event))
            }
            EventKind::Established | EventKind::ConnectResponse => {
                self.remove(event.id);
                None
            }
            _ => None,
        }
    }
}

/// Returns whether the path is at fault: nothing answered, or the peer rejects one of its fields (IBTA table 108).
fn is_of_path(event: &Event) -> bool {
    let fields = RejReason::INVALID_GID.0..=RejReason::INVALID_PACKET_RATE.0;
    let is_field = |reason| fields.contains(&reason) || reason == RejReason::INVALID_MTU.0;
    match event.kind {
        EventKind::Rejected => u16::try_from(event.status).is_ok_and(is_field),
        // A positive status is a datagram service's refusal.
        _ => event.status < 0,
    }
}

#[cfg(test)]
mod tests {
    use rdmux_cm::EventParam;
    use rdmux_wire::acm::Address;
    use rdmux_wire::sa::PathRecord;

    use super::*;

    fn path() -> Supplied {
        let to = Address::name("node7").unwrap();
        Supplied { to, way: (&PathRecord::default()).into() }
    }

    fn event(kind: EventKind, status: i32) -> Event {
        Event {
            id: IdHandle(1),
            context: 0,
            listen_id: None,
            kind,
            status,
            param: EventParam::None,
            route: None,
            negotiated: None,
            mad: None,
        }
    }

    #[test]
    fn only_path_failures_return_the_acm_path_and_only_once() {
        let path = path();
        let unreachable = event(EventKind::Unreachable, -libc::ETIMEDOUT);
        for (of, expected) in [
            (unreachable.clone(), Some(path)),
            (event(EventKind::Rejected, 13), Some(path)),
            (event(EventKind::Rejected, 26), Some(path)),
            (event(EventKind::Rejected, 8), None),
            (event(EventKind::Rejected, 28), None),
            (event(EventKind::Unreachable, 2), None),
            (event(EventKind::Established, 0), None),
        ] {
            let given = Given::default();
            assert_eq!(given.failed(&of), None);
            given.insert(IdHandle(1), path);
            given.insert(IdHandle(2), path);
            assert_eq!(given.failed(&of).map(|(path, _)| path), expected, "{of:?}");
            assert_eq!(given.failed(&unreachable), None);
            assert_eq!(given.remove(IdHandle(2)), Some(path));
        }
    }

    #[test]
    fn ids_beyond_the_bound_are_not_remembered() {
        let (given, path) = (Given::default(), path());
        for id in 0..=MOST as u64 {
            given.insert(IdHandle(id), path);
        }
        assert_eq!(given.remove(IdHandle(MOST as u64)), None);
        let to = Address::name("node8").unwrap();
        assert_eq!(given.insert(IdHandle(0), Supplied { to, ..path }), Some(path));
        assert_eq!(given.remove(IdHandle(0)), Some(Supplied { to, ..path }));
    }
}
