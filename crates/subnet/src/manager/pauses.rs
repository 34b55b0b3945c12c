//! Pauses before sweeps that traps ask for.
//!
//! After each sweep nothing is swept again for as long as it took. For a node whose traps have had nine sweeps made the pause doubles from
//! sweep to sweep, until none of its traps has come for a minute: one that sends traps without end does not keep the manager busy. The pause
//! is no longer than the time between light sweeps, and no other node's traps wait for it.

use alloc::collections::BTreeMap;
use core::time::Duration;

use rdmux_wire::Guid;

use super::{Manager, sweep::Phase};
use crate::Time;
use crate::topology::PortRef;

/// So many sweeps are made for a node before its pause grows.
const FREE: u32 = 9;

/// How often it is doubled at most.
const MAX_DOUBLINGS: u32 = 4;

/// A node that has asked for nothing for so long begins anew.
const QUIET: Duration = Duration::from_secs(60);

/// A node whose traps ask for sweeps.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    /// When it has asked last.
    asked: Time,
    /// It is yet to get the sweep.
    waits: bool,
    /// The sweep that is under way was made for it.
    served: bool,
    /// Sweeps that were made for it.
    sweeps: u32,
    /// None is made for it before.
    until: Time,
}

impl Pause {
    fn is_over(&self, now: Time) -> bool {
        !self.waits && now.since(self.asked) > QUIET
    }
}

/// All of them, by the node's GUID; zero stands for all that are not known.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    nodes: BTreeMap<Guid, Pause>,
}

impl Pauses {
    /// A node asks for a sweep. Whether it has had so many that it has to wait longer than others.
    fn ask(&mut self, now: Time, node: Guid) -> bool {
        let pause = self.nodes.entry(node).or_default();
        if pause.is_over(now) {
            *pause = Pause::default();
        }
        (pause.asked, pause.waits) = (now, true);
        pause.sweeps > FREE
    }

    /// When a sweep is due for a node that has asked for one.
    fn due(&self) -> Option<Time> {
        self.nodes.values().filter(|pause| pause.waits).map(|pause| pause.until).min()
    }

    /// A sweep begins: it is for all.
    pub(super) fn begin(&mut self, now: Time) {
        self.nodes.retain(|_, pause| !pause.is_over(now));
        for pause in self.nodes.values_mut() {
            pause.served = core::mem::take(&mut pause.waits);
            pause.sweeps = pause.sweeps.saturating_add(pause.served.into());
        }
    }

    /// It has ended, after which nothing is swept for a while.
    pub(super) fn end(&mut self, now: Time, rest: Duration, most: Duration) {
        for pause in self.nodes.values_mut().filter(|pause| pause.served) {
            let doublings = pause.sweeps.saturating_sub(FREE).min(MAX_DOUBLINGS);
            pause.until = now.after((rest * (1 << doublings)).min(most.max(rest)));
        }
    }
}

impl Manager {
    /// A trap from this port, as far as it is known, says that something has changed.
    pub(super) fn request_sweep_for(&mut self, now: Time, sender: Option<PortRef>) {
        let node = sender.and_then(|at| self.model.node(at.node));
        if !self.pauses.ask(now, node.map_or(Guid(0), |node| node.info.node_guid)) {
            self.failures = 0;
        }
        self.sweep_for_traps(now);
    }

    /// Has a sweep made for traps that ask for one, when it is due; while another one is under way that is for its end to do.
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

    /// How long a node that asks at once waits after each of so many sweeps, of which each takes a second.
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
    fn who_asks_without_end_waits_longer_and_longer_until_it_is_quiet() {
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
