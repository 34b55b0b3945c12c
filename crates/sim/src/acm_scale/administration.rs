//! Subnet administration: one queue, with joins in their order of arrival.

use std::time::Duration;

use rdmux_acm::Time;

/// The queue of administration.
#[derive(Debug)]
pub(super) struct Administration {
    join_time: Duration,
    free_at: Time,
    /// Queries received and answers sent.
    pub(super) datagrams: u64,
}

impl Administration {
    pub(super) fn new(joins_per_second: u32) -> Self {
        let join_time = Duration::from_secs(1) / joins_per_second.max(1);
        Self { join_time, free_at: Time::ZERO, datagrams: 0 }
    }

    /// Queues the joins of `ports` ports. Returns when the last of them is answered. Lost queries take no time.
    pub(super) fn join(&mut self, now: Time, ports: u32, is_lost: bool) -> Option<Time> {
        self.datagrams += u64::from(ports);
        if is_lost {
            return None;
        }
        self.datagrams += u64::from(ports);
        self.free_at = self.free_at.max(now).after(self.join_time * ports);
        Some(self.free_at)
    }
}
