//! Ports that babble: traps of link errors (129 to 131) that come again and again.
//!
//! As OpenSM has it: the tenth of identical traps, none of which came more than 5 s after the one before, and those after it, are repressed
//! and otherwise ignored until none has come for a minute. A port of which 250 have come so is disabled, if the policy
//! ([`Config::disable_babbling`](super::Config::disable_babbling)) says so.

use alloc::collections::BTreeMap;
use core::time::Duration;

use rdmux_wire::Guid;
use rdmux_wire::sm::{Notice, Trap};

use super::model::{Model, Node};
use super::requests::{Request, What};
use super::sweep::Phase;
use super::{Event, Manager, ManagerSink};
use crate::Time;
use crate::topology::PortRef;

/// Identical traps count as one series that come no later than this after each other.
const SERIES: Duration = Duration::from_secs(5);

/// So many of a series are told on.
const TOLD: u32 = 9;

/// A series that is ignored ends when nothing has come for so long.
const IGNORED: Duration = Duration::from_secs(60);

/// The port that sends so many, and each time that it has sent as many again, is disabled.
const DISABLED: u32 = 250;

/// The most series that are counted at a time: what comes beyond that is ignored.
const MAX_SERIES: usize = 4096;

/// The port that it is about, by its node's GUID and its number, and the number of the trap.
type Key = (Guid, u8, u16);

/// Traps that have come one after the other.
#[derive(Clone, Copy, Debug)]
struct Series {
    last: Time,
    count: u32,
}

impl Series {
    fn is_over(&self, now: Time) -> bool {
        now.since(self.last) > if self.count > TOLD { IGNORED } else { SERIES }
    }
}

/// All series.
#[derive(Debug, Default)]
pub(super) struct Babble {
    series: BTreeMap<Key, Series>,
}

impl Babble {
    /// How many traps of a series there have been with this one; none if it cannot be counted.
    fn count(&mut self, now: Time, key: Key) -> Option<u32> {
        if !self.series.contains_key(&key) && self.series.len() >= MAX_SERIES {
            self.series.retain(|_, series| !series.is_over(now));
            if self.series.len() >= MAX_SERIES {
                return None;
            }
        }
        let series = self.series.entry(key).or_insert(Series { last: now, count: 0 });
        if series.is_over(now) {
            series.count = 0;
        }
        series.last = now;
        series.count = series.count.saturating_add(1);
        Some(series.count)
    }

    /// The last one of a series is not counted: nothing could be done about it.
    fn take_back(&mut self, key: Key) {
        if let Some(series) = self.series.get_mut(&key) {
            series.count = series.count.saturating_sub(1);
        }
    }
}

/// The port that a trap of a link error is about, which is one of the node that has sent it.
fn subject(model: &Model, sender: PortRef, trap: &Trap) -> Option<PortRef> {
    let (Trap::LinkIntegrity(error)
    | Trap::BufferOverrun(error)
    | Trap::FlowControlWatchdog(error)) = trap
    else {
        return None;
    };
    let is_switch = model.node(sender.node)?.is_switch();
    // An adapter's port tells of itself only.
    let place =
        PortRef { node: sender.node, port: if is_switch { error.port } else { sender.port } };
    model.port(place).map(|_| place)
}

impl Manager {
    /// Whether a trap is one of so many that nobody is to be told. `sender` is the port that has sent it, as far as it is known.
    pub(super) fn is_babble(
        &mut self,
        now: Time,
        sender: Option<PortRef>,
        notice: &Notice,
        out: &mut impl ManagerSink,
    ) -> bool {
        let Some(trap) = notice.trap().filter(is_link_error) else { return false };
        // Nobody speaks for others.
        let issuer = self.model.by_lid(notice.issuer_lid);
        let Some(place) = sender
            .filter(|sender| issuer == Some(*sender))
            .and_then(|sender| subject(&self.model, sender, &trap))
        else {
            return true;
        };
        let Some(node) = self.model.node(place.node) else { return true };
        let key = (node.info.node_guid, place.port, notice.trap_number);
        let Some(count) = self.babble.count(now, key) else { return true };
        if count.is_multiple_of(DISABLED) && self.config.disable_babbling {
            if self.phase == Phase::Discovery {
                // Requests are about what is being found now: the next trap is soon enough.
                self.babble.take_back(key);
            } else {
                self.disable(place, out);
            }
        }
        count > TOLD
    }

    /// Disables a port; of an adapter the switch's port that it is at, whose answer arrives.
    fn disable(&mut self, place: PortRef, out: &mut impl ManagerSink) {
        let peer = |at: PortRef| self.model.port(at).and_then(|port| port.peer);
        let node = |at: PortRef| self.model.node(at.node);
        let is_external = |at: &PortRef| at.port != 0 && node(*at).is_some_and(Node::is_switch);
        let port = [Some(place), peer(place)].into_iter().flatten().find(is_external);
        // The manager does not cut itself off.
        let Some(port) = port.filter(|&port| peer(port) != Some(self.own)) else { return };
        if let Some(node) = node(port) {
            out.event(Event::PortDisabled { node: node.info.node_guid, port: port.port });
            self.queue.push_back(Request { port, what: What::Disable });
        }
    }
}

const fn is_link_error(trap: &Trap) -> bool {
    matches!(trap, Trap::LinkIntegrity(_) | Trap::BufferOverrun(_) | Trap::FlowControlWatchdog(_))
}
