//! Rate limit on sweeps that traps and other managers' commands request.
//!
//! After each sweep the manager pauses for as long as the sweep took. If a node's traps have caused nine sweeps, the node's
//! pause doubles with each further sweep, until none of its traps has arrived for a minute. A node that sends traps endlessly
//! thus cannot occupy the manager. The pause is at most the interval of light sweeps, and does not delay sweeps for other
//! nodes.

use alloc::collections::BTreeMap;
use core::time::Duration;

use rdmux_wire::Guid;

use super::{Manager, sweep::Phase};
use crate::Time;
use crate::topology::PortRef;

/// The number of sweeps for a node before its pause grows.
const FREE: u32 = 9;

/// How often the pause is doubled at most.
const MAX_DOUBLINGS: u32 = 4;

/// A node that has requested nothing for this long starts afresh.
const QUIET: Duration = Duration::from_secs(60);

/// The state of a node whose traps request sweeps.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    /// The time of the node's last request.
    asked: Time,
    /// Whether the node still waits for a sweep.
    waits: bool,
    /// Whether the present sweep serves the node's request.
    served: bool,
    /// The number of sweeps that the node has caused.
    sweeps: u32,
    /// The end of its pause.
    until: Time,
}

impl Pause {
    fn is_over(&self, now: Time) -> bool {
        !self.waits && now.since(self.asked) > QUIET
    }
}

/// The state of all nodes by GUID; zero stands for unknown nodes.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    nodes: BTreeMap<Guid, Pause>,
}

impl Pauses {
    /// Notes a node's request for a sweep. Returns whether its pause is extended.
    fn ask(&mut self, now: Time, node: Guid) -> bool {
        let pause = self.nodes.entry(node).or_default();
        if pause.is_over(now) {
            *pause = Pause::default();
        }
        (pause.asked, pause.waits) = (now, true);
        pause.sweeps > FREE
    }

    /// Returns when a sweep is due for a node that waits for one.
    fn due(&self) -> Option<Time> {
        self.nodes.values().filter(|pause| pause.waits).map(|pause| pause.until).min()
    }

    /// Notes the start of a sweep, which serves all nodes.
    pub(super) fn begin(&mut self, now: Time) {
        self.nodes.retain(|_, pause| !pause.is_over(now));
        for pause in self.nodes.values_mut() {
            pause.served = core::mem::take(&mut pause.waits);
            pause.sweeps = pause.sweeps.saturating_add(pause.served.into());
        }
    }

    /// Notes the end of a sweep and starts the pauses.
    pub(super) fn end(&mut self, now: Time, rest: Duration, most: Duration) {
        for pause in self.nodes.values_mut().filter(|pause| pause.served) {
            let doublings = pause.sweeps.saturating_sub(FREE).min(MAX_DOUBLINGS);
            pause.until = now.after((rest * (1 << doublings)).min(most.max(rest)));
        }
    }
}

impl Manager {
    /// Handles a trap that reports a change, or a command to sweep. `sender` is the port that sent it, if known.
    pub(super) fn request_sweep_for(&mut self, now: Time, sender: Option<PortRef>) {
        let node = sender.and_then(|at| self.model.node(at.node));
        if !self.pauses.ask(now, node.map_or(Guid(0), |node| node.info.node_guid)) {
            self.failures = 0;
        }
        self.sweep_for_traps(now);
    }

    /// Schedules a sweep that nodes have requested. Does nothing during a sweep, whose end calls this again.
    pub(super) fn sweep_for_traps(&mut self, now: Time) {
        if matches!(self.phase, Phase::Idle | Phase::Light)
            && let Some(due) = self.pauses.due()
        {
            let soon = now.max(self.rest_until).max(due);
            self.heavy_due = Some(self.heavy_due.map_or(soon, |due| due.min(soon)));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the pause after each of `sweeps` sweeps of a second for a node that requests the next one at once.
    fn waits(pauses: &mut Pauses, now: &mut Time, most: Duration, sweeps: usize) -> Vec<u64> {
        let sweep = |_| {
            pauses.ask(*now, Guid(1));
            pauses.begin(*now);
            *now = now.after(SECOND);
            pauses.end(*now, SECOND, most);
            pauses.ask(*now, Guid(1));
            let due = pauses.due().expect("it has asked");
            let wait = due.since(*now).as_secs();
            *now = due;
            wait
        };
        (0..sweeps).map(sweep).collect()
    }

    #[test]
    fn repeated_sweep_requests_of_a_node_back_off_exponentially_until_quiet() {
        let (mut pauses, mut now) = (Pauses::default(), Time::ZERO);
        let expected = [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 16];
        assert_eq!(waits(&mut pauses, &mut now, 60 * SECOND, 14), expected);
        assert_eq!(waits(&mut pauses, &mut now, 10 * SECOND, 1), [10], "a light sweep looks then");
        assert!(pauses.ask(now, Guid(1)) && !pauses.ask(now, Guid(2)));
        pauses.begin(now);
        pauses.end(now, SECOND, 10 * SECOND);
        pauses.ask(now, Guid(2));
        assert_eq!(
            pauses.due(),
            Some(now.after(SECOND)),
            "another one waits no longer than before"
        );
        pauses.begin(now);
        now = now.after(QUIET).after(SECOND);
        assert_eq!(waits(&mut pauses, &mut now, 10 * SECOND, 9), [1; 9]);
        now = now.after(QUIET).after(SECOND);
        pauses.begin(now);
        pauses.begin(now.after(QUIET).after(SECOND));
        assert_eq!(pauses.nodes.len(), 0);
    }
}
