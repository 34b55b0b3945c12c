//! Subnet administration: one queue, joins in the order in which they come.

use std::time::Duration;

use rdmux_acm::Time;

/// What it has to do.
#[derive(Debug)]
pub(super) struct Administration {
    join_time: Duration,
    free_at: Time,
    /// Questions that were sent to it, and its answers.
    pub(super) datagrams: u64,
}

impl Administration {
    pub(super) fn new(joins_per_second: u32) -> Self {
        let join_time = Duration::from_secs(1) / joins_per_second.max(1);
        Self { join_time, free_at: Time::ZERO, datagrams: 0 }
    }

    /// So many ports ask to join at the same time; when the last of them has its answer. Questions that are lost take no time.
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
