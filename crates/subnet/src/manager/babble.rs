//! Babbling ports: repeated traps of link errors (129 to 131).
//!
//! As in OpenSM: when identical traps follow each other within 5 s, the tenth and later ones are repressed and otherwise
//! ignored until none has arrived for a minute. A port that has sent 250 such traps is disabled, if the policy
//! ([`Config::disable_babbling`](super::Config::disable_babbling)) allows it.

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

/// Identical traps that follow each other within this time form a series.
const SERIES: Duration = Duration::from_secs(5);

/// The number of traps of a series that are reported.
const TOLD: u32 = 9;

/// A series that is ignored ends when no trap has arrived for this long.
const IGNORED: Duration = Duration::from_secs(60);

/// A port is disabled after this many traps, and again after each further such number.
const DISABLED: u32 = 250;

/// The most series that are tracked. Traps of further ones are ignored.
const MAX_SERIES: usize = 4096;

/// The port's node GUID and number, and the trap number.
type Key = (Guid, u8, u16);

/// A series of identical traps.
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

/// The series of traps, by port and trap number.
#[derive(Debug, Default)]
pub(super) struct Babble {
    series: BTreeMap<Key, Series>,
}

impl Babble {
    /// Counts a trap and returns the count of its series; none if there are too many series.
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

    /// Uncounts the last trap of a series, because it could not be acted on.
    fn take_back(&mut self, key: Key) {
        if let Some(series) = self.series.get_mut(&key) {
            series.count = series.count.saturating_sub(1);
        }
    }
}

/// Returns the port that a trap of a link error is about. It must belong to the node that sent the trap.
fn subject(model: &Model, sender: PortRef, trap: &Trap) -> Option<PortRef> {
    let (Trap::LinkIntegrity(error)
    | Trap::BufferOverrun(error)
    | Trap::FlowControlWatchdog(error)) = trap
    else {
        return None;
    };
    let is_switch = model.node(sender.node)?.is_switch();
    // An adapter's port reports only itself.
    let place =
        PortRef { node: sender.node, port: if is_switch { error.port } else { sender.port } };
    model.port(place).map(|_| place)
}

impl Manager {
    /// Returns whether a trap is to be ignored as one of too many. `sender` is the port that sent it, if known.
    pub(super) fn is_babble(
        &mut self,
        now: Time,
        sender: Option<PortRef>,
        notice: &Notice,
        out: &mut impl ManagerSink,
    ) -> bool {
        let Some(trap) = notice.trap().filter(is_link_error) else { return false };
        // Ignore traps that a port sends in the name of another.
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
                // Requests refer to the model that is being discovered. The next trap triggers the action.
                self.babble.take_back(key);
            } else {
                self.disable(place, out);
            }
        }
        count > TOLD
    }

    /// Disables a port. For an adapter's port this disables the peer port of its switch, whose answer can arrive.
    fn disable(&mut self, place: PortRef, out: &mut impl ManagerSink) {
        let peer = |at: PortRef| self.model.port(at).and_then(|port| port.peer);
        let node = |at: PortRef| self.model.node(at.node);
        let is_external = |at: &PortRef| at.port != 0 && node(*at).is_some_and(Node::is_switch);
        let port = [Some(place), peer(place)].into_iter().flatten().find(is_external);
        // The manager does not disconnect itself.
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
