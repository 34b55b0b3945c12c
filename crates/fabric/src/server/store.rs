//! Stores in the fabric's directory what must survive a restart.

use std::time::{Duration, Instant};

use rdmux_runtime::file::replace_unsynced;
use rdmux_subnet::Subnet;
use rdmux_wire::Guid;

use super::setup::{Adapters, Had};
use crate::{FabricDir, FabricError};

/// Time after a change at which the store is written. A manager changes all LIDs at once.
const DELAY: Duration = Duration::from_millis(50);
/// The pause between writes as a multiple of the last one's time, so that a large subnet is not written
/// all the time.
const PAUSE: u32 = 20;
/// Time after which a write that failed is repeated for the first time, and the longest such time. It doubles with each failure.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// The stored state: the subnet has the topology with the LIDs of ports, and the hosts' adapters are
/// here.
#[derive(Debug)]
pub(super) struct Store {
    adapters: Adapters,
    /// Time at which to write, if anything has changed.
    due: Option<Instant>,
    /// Time that the last write took.
    took: Duration,
    /// Time after which the last write is repeated; zero if it succeeded.
    retry: Duration,
}

impl Store {
    pub(super) fn load(dir: &FabricDir) -> Result<Self, FabricError> {
        Ok(Self {
            adapters: Adapters::load(dir)?,
            due: None,
            took: Duration::ZERO,
            retry: Duration::ZERO,
        })
    }

    /// Returns the node GUID of the adapter that a host had, by the GUID of the host's node.
    pub(super) fn adapter_of(&self, host: Guid) -> Option<Guid> {
        self.adapters.hosts.get(&host).map(|had| had.adapter)
    }

    /// Returns whether a host other than this one had an adapter.
    pub(super) fn is_anothers(&self, adapter: Guid, host: Guid) -> bool {
        self.adapters.hosts.iter().any(|(h, had)| had.adapter == adapter && *h != host)
    }

    /// Returns the user whose host had an adapter, if the last one is known.
    pub(super) fn user_of(&self, adapter: Guid) -> Option<u32> {
        self.adapters.hosts.values().find(|had| had.adapter == adapter)?.user
    }

    /// Assigns an adapter to a user's host, which will get it again.
    pub(super) fn set_adapter(&mut self, host: Guid, adapter: Guid, user: u32) {
        self.adapters.hosts.retain(|_, had| had.adapter != adapter);
        self.adapters.hosts.insert(host, Had { adapter, user: Some(user) });
        self.touch();
    }

    /// Returns whether an adapter was made for a host.
    pub(super) fn is_made(&self, adapter: Guid) -> bool {
        self.adapters.made.contains(&adapter)
    }

    /// Records an adapter that was made for a host.
    pub(super) fn add_made(&mut self, adapter: Guid) {
        self.adapters.made.insert(adapter);
        self.touch();
    }

    /// Forgets an adapter that no longer exists.
    pub(super) fn forget(&mut self, adapter: Guid) {
        self.adapters.made.remove(&adapter);
        self.adapters.hosts.retain(|_, had| had.adapter != adapter);
        self.adapters.taken.retain(|(a, _)| *a != adapter);
        self.touch();
    }

    /// Records that another host's adapter took the cable of a port of an adapter.
    pub(super) fn take_cable(&mut self, adapter: Guid, port: u8) {
        self.adapters.taken.insert((adapter, port));
        self.touch();
    }

    /// Returns whether another host's adapter has taken the cable of a port, and the port has got none since.
    pub(super) fn is_taken(&self, adapter: Guid, port: u8) -> bool {
        self.adapters.taken.contains(&(adapter, port))
    }

    /// Forgets that the cable of a port was taken: the port has one again.
    pub(super) fn give_cable(&mut self, adapter: Guid, port: u8) {
        if self.adapters.taken.remove(&(adapter, port)) {
            self.touch();
        }
    }

    /// Schedules a write after a change.
    pub(super) fn touch(&mut self) {
        let delay = DELAY.max(self.took * PAUSE);
        self.due.get_or_insert_with(|| Instant::now() + delay);
    }

    /// Returns how long until a write is due.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Writes the changes, if that is due.
    pub(super) fn save_if_due(&mut self, dir: &FabricDir, subnet: &Subnet) {
        if self.due_in() == Some(Duration::ZERO) {
            self.save(dir, subnet);
        }
    }

    /// Writes the changes. After a failure, for example on a full disk, the fabric continues, and another write becomes due.
    pub(super) fn save(&mut self, dir: &FabricDir, subnet: &Subnet) {
        if self.due.take().is_none() {
            return;
        }
        let start = Instant::now();
        let files =
            [(dir.topology(), subnet.topology().to_string()), (dir.hosts(), self.adapters.text())];
        let failed = files.iter().filter_map(|(path, text)| {
            Some((path, replace_unsynced(path, text.as_bytes()).err()?))
        });
        let failed: Vec<_> = failed.collect();
        self.took = start.elapsed();
        if failed.is_empty() {
            self.retry = Duration::ZERO;
            return;
        }
        self.retry = (self.retry * 2).clamp(RETRY[0], RETRY[1]);
        self.due = Some(Instant::now() + self.retry);
        for (path, error) in failed {
            tracing::warn!(
                "cannot write {}, which keeps its earlier content: {error}; check that its disk has space: a fabric that \
                 is up tries again in {} s, and when it ends",
                path.display(),
                self.retry.as_secs()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::UserDir;
    use rdmux_subnet::topology::Shape;
    use rdmux_testing::{TempDir, temp_dir};

    use super::super::setup::FIRST_GUID;
    use super::*;
    use crate::FabricName;

    const HOSTS: [Guid; 2] = [Guid(1), Guid(2)];
    const ADAPTERS: [Guid; 2] = [Guid(0x10), Guid(0x20)];
    const USER: u32 = 1000;

    fn store() -> (TempDir, FabricDir, Store) {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let dir = FabricDir::open(&user, &FabricName::default()).unwrap();
        let store = Store::load(&dir).unwrap();
        (tmp, dir, store)
    }

    fn subnet() -> Subnet {
        Subnet::new(&Shape::Two.topology(FIRST_GUID), rdmux_subnet::Config::default())
    }

    #[test]
    fn adapter_is_reserved_for_the_host_that_had_it_last() {
        let (_tmp, _dir, mut store) = store();
        assert_eq!(store.adapter_of(HOSTS[0]), None);
        store.set_adapter(HOSTS[0], ADAPTERS[0], USER);
        assert!(
            !store.is_anothers(ADAPTERS[0], HOSTS[0]) && !store.is_anothers(ADAPTERS[1], HOSTS[0])
        );
        store.set_adapter(HOSTS[1], ADAPTERS[0], USER);
        assert_eq!(HOSTS.map(|host| store.adapter_of(host)), [None, Some(ADAPTERS[0])]);
        assert!(store.is_anothers(ADAPTERS[0], HOSTS[0]));
        store.set_adapter(HOSTS[1], ADAPTERS[1], USER);
        assert_eq!(store.adapter_of(HOSTS[1]), Some(ADAPTERS[1]));
        assert!(!store.is_anothers(ADAPTERS[0], HOSTS[0]), "it has another one now");
    }

    #[test]
    fn store_writes_changes_once_and_nothing_when_unchanged() {
        let (_tmp, dir, mut store) = store();
        let subnet = subnet();
        store.save(&dir, &subnet);
        assert!(!dir.hosts().exists() && !dir.topology().exists(), "nothing has changed");
        store.set_adapter(HOSTS[0], ADAPTERS[0], USER);
        store.save_if_due(&dir, &subnet);
        assert!(!dir.hosts().exists(), "more changes may follow");
        store.save(&dir, &subnet);
        assert_eq!(Store::load(&dir).unwrap().adapter_of(HOSTS[0]), Some(ADAPTERS[0]));
        let text = std::fs::read_to_string(dir.topology()).unwrap();
        assert_eq!(text, subnet.topology().to_string());
        assert_eq!(store.due_in(), None);
        std::fs::remove_file(dir.hosts()).unwrap();
        store.save(&dir, &subnet);
        assert!(!dir.hosts().exists());
    }

    #[test]
    fn continuous_changes_are_saved_after_the_first_ones_delay_with_pauses_between() {
        let (_tmp, dir, mut store) = store();
        store.touch();
        let due = store.due;
        assert!(due.is_some_and(|due| due <= Instant::now() + DELAY));
        store.touch();
        assert_eq!(store.due, due, "the first of them counts");
        store.due = Some(Instant::now());
        store.save_if_due(&dir, &subnet());
        assert!(dir.topology().exists() && store.due.is_none() && store.took > Duration::ZERO);
        store.took = Duration::from_secs(1);
        let before = Instant::now();
        store.touch();
        assert!(store.due.is_some_and(|due| due >= before + store.took * PAUSE));
    }

    #[test]
    fn failed_save_is_repeated_after_growing_pauses_and_when_the_fabric_ends() {
        let (_tmp, dir, mut store) = store();
        let subnet = subnet();
        store.set_adapter(HOSTS[0], ADAPTERS[0], 0);
        // Neither file can replace a directory.
        for path in [dir.topology(), dir.hosts()] {
            std::fs::create_dir(path).unwrap();
        }
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let before = Instant::now();
            store.save(&dir, &subnet);
            let pause = Duration::from_secs(seconds);
            assert!(store.retry == pause && store.due.is_some_and(|due| due >= before + pause));
        }
        let due = store.due;
        store.set_adapter(HOSTS[1], ADAPTERS[1], 0);
        assert_eq!(store.due, due, "changes do not shorten the pause");
        std::fs::remove_dir(dir.topology()).unwrap();
        store.save(&dir, &subnet);
        assert!(dir.topology().is_file() && store.due.is_some(), "one of the two is missing");
        std::fs::remove_dir(dir.hosts()).unwrap();
        store.save(&dir, &subnet);
        assert_eq!(Store::load(&dir).unwrap().adapter_of(HOSTS[1]), Some(ADAPTERS[1]));
        assert_eq!((store.due, store.retry), (None, Duration::ZERO));
    }
}
