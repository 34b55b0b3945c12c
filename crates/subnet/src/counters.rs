//! What ports count, and why datagrams are dropped.

use alloc::boxed::Box;

/// A counter of a port, as performance management shows it (IBTA 16.1.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the counter of its name in the specification")]
pub enum Counter {
    SymbolError,
    LinkErrorRecovery,
    LinkDowned,
    PortRcvErrors,
    PortRcvRemotePhysicalErrors,
    PortRcvSwitchRelayErrors,
    PortXmitDiscards,
    PortXmitConstraintErrors,
    PortRcvConstraintErrors,
    LocalLinkIntegrityErrors,
    ExcessiveBufferOverrunErrors,
    Qp1Dropped,
    Vl15Dropped,
    PortXmitData,
    PortRcvData,
    PortXmitPkts,
    PortRcvPkts,
    PortXmitWait,
    PortUnicastXmitPkts,
    PortUnicastRcvPkts,
    PortMulticastXmitPkts,
    PortMulticastRcvPkts,
}

impl Counter {
    /// How many there are.
    pub const COUNT: usize = Self::PortMulticastRcvPkts as usize + 1;
}

/// Why a datagram went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// There is no link behind the port it should leave by.
    NoLink,
    /// One end of the link is not in a state to pass data.
    NotActive,
    /// The switch has no route to the LID.
    NoRoute,
    /// The route leads back to where it came from.
    Loop,
    /// It went round for too long.
    TooManyHops,
    /// A directed route that contradicts itself, or names a port that does not exist.
    DirectedRoute,
    /// The service level maps to no virtual lane of the link.
    NoVirtualLane,
    /// A switch port enforces partitions, and this one is not allowed out.
    PkeyOut,
    /// The same, in.
    PkeyIn,
    /// It came to a port with another LID.
    WrongLid,
    /// Subnet management on a data lane, or the reverse.
    WrongQueuePair,
    /// The receiving port is in no partition with it.
    WrongPkey,
    /// Its Q_Key is not that of QP1.
    WrongQkey,
    /// The receiving port's M_Key was not shown.
    WrongMkey,
    /// A version, class or method that no agent knows and that has no answer.
    NotUnderstood,
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = Self::NotUnderstood as usize + 1;

    /// The counter of the specification that it belongs to, where there is one.
    const fn counter(self) -> Option<Counter> {
        Some(match self {
            Self::NoLink | Self::NotActive | Self::TooManyHops => Counter::PortXmitDiscards,
            Self::NoRoute | Self::Loop | Self::NoVirtualLane => Counter::PortRcvSwitchRelayErrors,
            Self::PkeyOut => Counter::PortXmitConstraintErrors,
            Self::PkeyIn => Counter::PortRcvConstraintErrors,
            Self::DirectedRoute
            | Self::WrongLid
            | Self::WrongQueuePair
            | Self::WrongPkey
            | Self::WrongQkey
            | Self::WrongMkey
            | Self::NotUnderstood => return None,
        })
    }
}

/// The counters of a port. They only grow; what performance management sets is a base that is
/// subtracted, one for each of the two attributes that show them.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    total: [u64; Counter::COUNT],
    rest: Option<Box<Rest>>,
}

/// What most ports do not have.
#[derive(Clone, Debug)]
struct Rest {
    bases: [[u64; Counter::COUNT]; 2],
    drops: [u64; DropReason::COUNT],
}

/// Which attribute shows a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// PortCounters, whose fields stay at their largest value.
    Classic = 0,
    /// PortCountersExtended, whose fields wrap.
    Extended = 1,
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self { total: [0; Counter::COUNT], rest: None }
    }

    pub(crate) fn add(&mut self, counter: Counter, n: u64) {
        let total = &mut self.total[counter as usize];
        *total = total.wrapping_add(n);
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        if let Some(counter) = reason.counter() {
            self.add(counter, 1);
        }
        self.rest().drops[reason as usize] += 1;
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.rest.as_ref().map_or(0, |r| r.drops[reason as usize])
    }

    pub(crate) fn get(&self, counter: Counter, shown: Shown) -> u64 {
        let at = counter as usize;
        let base = self.rest.as_ref().map_or(0, |r| r.bases[shown as usize][at]);
        self.total[at].wrapping_sub(base)
    }

    pub(crate) fn set(&mut self, counter: Counter, shown: Shown, value: u64) {
        let at = counter as usize;
        let base = self.total[at].wrapping_sub(value);
        self.rest().bases[shown as usize][at] = base;
    }

    fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_with(|| {
            Box::new(Rest { bases: [[0; Counter::COUNT]; 2], drops: [0; DropReason::COUNT] })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_attributes_are_cleared_apart() {
        let mut counters = Counters::new();
        counters.add(Counter::PortXmitPkts, 5);
        counters.set(Counter::PortXmitPkts, Shown::Classic, 0);
        counters.add(Counter::PortXmitPkts, 2);
        assert_eq!(counters.get(Counter::PortXmitPkts, Shown::Classic), 2);
        assert_eq!(counters.get(Counter::PortXmitPkts, Shown::Extended), 7);
        counters.set(Counter::PortXmitPkts, Shown::Extended, 100);
        assert_eq!(counters.get(Counter::PortXmitPkts, Shown::Extended), 100);
    }

    #[test]
    fn drops_count_by_reason_and_by_the_specifications_counter() {
        let mut counters = Counters::new();
        counters.drop(DropReason::NoLink);
        counters.drop(DropReason::WrongMkey);
        assert_eq!(counters.drops(DropReason::NoLink), 1);
        assert_eq!(counters.drops(DropReason::WrongMkey), 1);
        assert_eq!(counters.get(Counter::PortXmitDiscards, Shown::Classic), 1);
    }
}
