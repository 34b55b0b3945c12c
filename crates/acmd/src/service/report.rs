//! The service's counters.

use rdmux_acm::Counters;
use rdmux_wire::acm::client::Statistic;

use super::Service;

impl Service {
    /// Returns all counters, by name.
    pub(super) fn statistics(&self) -> Vec<Statistic> {
        let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let machine = self.resolver.get().counters(None);
        let mut all: Vec<Statistic> = Counters::NAMES
            .iter()
            .zip(machine.values())
            .map(|(name, value)| Statistic::new(name, value))
            .collect();
        let clients = self.driver.clients.counters();
        let (known, bytes) = self.resolver.get().memory();
        let (requests, searches) = self.resolver.get().open();
        let ours = [
            ("clients", number(self.driver.clients.len())),
            ("clients_accepted", clients.accepted),
            ("clients_not_allowed", clients.not_allowed + self.driver.cache.refused()),
            ("clients_too_many", clients.too_many),
            ("clients_closed_idle", clients.idle),
            ("clients_dropped_unread", clients.stalled),
            ("clients_dropped_malformed", clients.malformed),
            ("known_addresses", number(known)),
            ("known_bytes", number(bytes)),
            ("open_requests", number(requests)),
            ("open_searches", number(searches)),
            ("endpoints", number(self.planned.len())),
            ("send_errors", self.driver.send_errors),
            ("seconds", self.began.elapsed().as_secs()),
        ];
        all.extend(ours.map(|(name, value)| Statistic::new(name, value)));
        all
    }

    /// Writes the counters to the log.
    pub(super) fn report(&self) {
        for statistic in self.statistics() {
            let name = String::from_utf8_lossy(statistic.name.as_bytes()).into_owned();
            tracing::info!("{name} {}", statistic.value);
        }
    }
}
