//! Has the fabric's directory keep what must survive a restart.

use std::time::{Duration, Instant};

use rdmux_runtime::file::replace_unsynced;
use rdmux_subnet::Subnet;
use rdmux_wire::Guid;

use super::setup::{Hosts, hosts_text, load_hosts};
use crate::{FabricDir, FabricError};

/// How long after a change it is written: a manager changes all LIDs at once.
const DELAY: Duration = Duration::from_millis(50);
/// How many times longer than the last writing took: a large subnet is not written all the time.
const PAUSE: u32 = 20;

/// What is kept: the topology with the LIDs of ports is the subnet's, and who had which adapter is here.
#[derive(Debug)]
pub(super) struct Store {
    hosts: Hosts,
    /// When to write, if anything has changed.
    due: Option<Instant>,
    /// How long the last writing took.
    took: Duration,
}

impl Store {
    pub(super) fn load(dir: &FabricDir) -> Result<Self, FabricError> {
        Ok(Self { hosts: load_hosts(dir)?, due: None, took: Duration::ZERO })
    }

    /// The adapter, by its node GUID, that a host had, by the GUID of its node.
    pub(super) fn adapter_of(&self, host: Guid) -> Option<Guid> {
        self.hosts.get(&host).copied()
    }

    /// Whether another host than this one had an adapter.
    pub(super) fn is_anothers(&self, adapter: Guid, host: Guid) -> bool {
        self.hosts.iter().any(|(h, a)| *a == adapter && *h != host)
    }

    /// A host has an adapter, from now on it is meant for it.
    pub(super) fn set_adapter(&mut self, host: Guid, adapter: Guid) {
        self.hosts.retain(|_, a| *a != adapter);
        self.hosts.insert(host, adapter);
        self.touch();
    }

    /// Something has changed.
    pub(super) fn touch(&mut self) {
        let delay = DELAY.max(self.took * PAUSE);
        self.due.get_or_insert_with(|| Instant::now() + delay);
    }

    /// How long until something must be written.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Writes what has changed, if it is time.
    pub(super) fn save_if_due(&mut self, dir: &FabricDir, subnet: &Subnet) {
        if self.due_in() == Some(Duration::ZERO) {
            self.save(dir, subnet);
        }
    }

    /// Writes what has changed. A fabric that cannot, as on a full disk, goes on.
    pub(super) fn save(&mut self, dir: &FabricDir, subnet: &Subnet) {
        if self.due.take().is_none() {
            return;
        }
        let start = Instant::now();
        let files = [
            (dir.topology(), subnet.topology().to_string()),
            (dir.hosts(), hosts_text(&self.hosts)),
        ];
        for (path, text) in files {
            if let Err(error) = replace_unsynced(&path, text.as_bytes()) {
                tracing::warn!("cannot write {}: {error}; it is as it was before", path.display());
            }
        }
        self.took = start.elapsed();
    }
}
