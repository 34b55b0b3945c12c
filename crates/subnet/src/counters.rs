//! Counters of ports, and reasons for dropped datagrams.

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
    PortLocalPhysicalErrors,
    PortMalformedPacketErrors,
    PortBufferOverrunErrors,
    PortDlidMappingErrors,
    PortVlMappingErrors,
    PortLoopingErrors,
    PortInactiveDiscards,
    PortNeighborMtuDiscards,
    PortSwLifetimeLimitDiscards,
    PortSwHoqLifetimeLimitDiscards,
}

impl Counter {
    /// The number of counters.
    pub const COUNT: usize = Self::PortSwHoqLifetimeLimitDiscards as usize + 1;
    /// The number of counters that every port has allocated. The others are details of these and allocated on first use.
    const COMMON: usize = Self::PortMulticastRcvPkts as usize + 1;
}

/// The direction of the data that is counted by service level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Sent.
    Xmit = 0,
    /// Received.
    Rcv = 1,
}

/// Faults that are counted until a threshold is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tally {
    /// Physical errors.
    Physical = 0,
    /// Flow control update periods with an overrun.
    Overrun = 1,
}

/// The reason why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The egress port has no link.
    NoLink,
    /// One end of the link is not in a state to pass data.
    NotActive,
    /// The switch has no route to the LID.
    NoRoute,
    /// The route leads back to the port where it entered.
    Loop,
    /// The datagram crossed too many switches.
    TooManyHops,
    /// The directed route is inconsistent, or names a port that does not exist.
    DirectedRoute,
    /// The service level maps to no virtual lane of the link.
    NoVirtualLane,
    /// The datagram exceeds the MTU of the link. No management datagram does.
    TooLong,
    /// A switch port that enforces partitions did not let it out.
    PkeyOut,
    /// A switch port that enforces partitions did not let it in.
    PkeyIn,
    /// The datagram reached a port with another LID.
    WrongLid,
    /// Subnet management on a data lane, or the reverse.
    WrongQueuePair,
    /// The receiving port is not in the packet's partition.
    WrongPkey,
    /// The Q_Key is not that of QP1.
    WrongQkey,
    /// The M_Key is not that of the receiving port.
    WrongMkey,
    /// A version, class or method that no agent supports and that gets no answer.
    NotUnderstood,
}

impl DropReason {
    /// The number of reasons.
    pub const COUNT: usize = Self::NotUnderstood as usize + 1;

    /// Returns the specification's counter for this reason, if there is one.
    const fn counter(self) -> Option<Counter> {
        Some(match self {
            Self::NoLink | Self::NotActive | Self::TooManyHops | Self::TooLong => {
                Counter::PortXmitDiscards
            }
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

    /// Returns the detail counter for this reason (IBTA 16.1.4).
    const fn detail(self) -> Option<Counter> {
        Some(match self {
            Self::NoLink | Self::NotActive => Counter::PortInactiveDiscards,
            Self::TooManyHops => Counter::PortSwLifetimeLimitDiscards,
            Self::NoRoute => Counter::PortDlidMappingErrors,
            Self::Loop => Counter::PortLoopingErrors,
            Self::NoVirtualLane => Counter::PortVlMappingErrors,
            Self::TooLong => Counter::PortNeighborMtuDiscards,
            _ => return None,
        })
    }
}

/// The counters of a port. They only grow. Performance management sets a base that is subtracted, one for each of the two
/// attributes that show them.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    total: [u64; Counter::COMMON],
    rest: Option<Box<Rest>>,
}

/// Counters that most ports never use.
#[derive(Clone, Debug)]
struct Rest {
    bases: [[u64; Counter::COUNT]; 2],
    drops: [u64; DropReason::COUNT],
    details: [u64; Counter::COUNT - Counter::COMMON],
    tallies: [u32; 2],
    /// Words by service level, in both directions. Those of level 0 are the total minus the other levels.
    by_sl: [[u64; 16]; 2],
    by_sl_bases: [[u64; 16]; 2],
}

/// The attribute that shows a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// PortCounters, whose fields saturate.
    Classic = 0,
    /// PortCountersExtended, whose fields wrap.
    Extended = 1,
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self { total: [0; Counter::COMMON], rest: None }
    }

    /// Adds to a counter.
    #[inline]
    pub(crate) fn add(&mut self, counter: Counter, n: u64) {
        let at = counter as usize;
        let total = match self.total.get_mut(at) {
            Some(total) => total,
            None => &mut self.rest().details[at - Counter::COMMON],
        };
        *total = total.wrapping_add(n);
    }

    /// Counts data words of a service level.
    #[inline]
    pub(crate) fn add_data(&mut self, way: Way, sl: u8, words: u64) {
        let counter = match way {
            Way::Xmit => Counter::PortXmitData,
            Way::Rcv => Counter::PortRcvData,
        };
        self.add(counter, words);
        if sl & 0xf != 0 {
            let count = &mut self.rest().by_sl[way as usize][usize::from(sl & 0xf)];
            *count = count.wrapping_add(words);
        }
    }

    /// Returns the words of each service level since they were set.
    pub(crate) fn by_sl(&self, way: Way) -> [u64; 16] {
        let mut all = self.all_by_sl(way);
        if let Some(rest) = &self.rest {
            for (count, base) in all.iter_mut().zip(rest.by_sl_bases[way as usize]) {
                *count = count.wrapping_sub(base);
            }
        }
        all
    }

    /// Sets the word count of a service level.
    pub(crate) fn set_by_sl(&mut self, way: Way, sl: usize, value: u64) {
        let count = self.all_by_sl(way)[sl];
        self.rest().by_sl_bases[way as usize][sl] = count.wrapping_sub(value);
    }

    fn all_by_sl(&self, way: Way) -> [u64; 16] {
        let counter = match way {
            Way::Xmit => Counter::PortXmitData,
            Way::Rcv => Counter::PortRcvData,
        };
        let mut all = self.rest.as_ref().map_or([0; 16], |r| r.by_sl[way as usize]);
        let others = all.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n));
        all[0] = self.total[counter as usize].wrapping_sub(others);
        all
    }

    /// Counts faults in a row. Returns how many times the threshold was passed.
    pub(crate) fn tally(&mut self, tally: Tally, times: u32, threshold: u8) -> u32 {
        let row = &mut self.rest().tallies[tally as usize];
        let (sum, each) = (row.saturating_add(times), u32::from(threshold) + 1);
        *row = sum % each;
        sum / each
    }

    /// Counts a dropped packet, by its reason.
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drop_many(reason, 1);
    }

    /// Counts dropped packets, by their reason.
    pub(crate) fn drop_many(&mut self, reason: DropReason, n: u64) {
        for counter in [reason.counter(), reason.detail()].into_iter().flatten() {
            self.add(counter, n);
        }
        let drops = &mut self.rest().drops[reason as usize];
        *drops = drops.wrapping_add(n);
    }

    /// Returns the number of packets dropped for a reason.
    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.rest.as_ref().map_or(0, |r| r.drops[reason as usize])
    }

    /// Returns the value of a counter in one of the attributes, since it was last set there.
    pub(crate) fn get(&self, counter: Counter, shown: Shown) -> u64 {
        let base = self.rest.as_ref().map_or(0, |r| r.bases[shown as usize][counter as usize]);
        self.total(counter).wrapping_sub(base)
    }

    fn total(&self, counter: Counter) -> u64 {
        let at = counter as usize;
        let detail = || self.rest.as_ref().map_or(0, |r| r.details[at - Counter::COMMON]);
        self.total.get(at).copied().unwrap_or_else(detail)
    }

    /// Sets the value of a counter in one of the attributes. The other attribute keeps its value.
    pub(crate) fn set(&mut self, counter: Counter, shown: Shown, value: u64) {
        let base = self.total(counter).wrapping_sub(value);
        self.rest().bases[shown as usize][counter as usize] = base;
    }

    fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_with(|| {
            Box::new(Rest {
                bases: [[0; Counter::COUNT]; 2],
                drops: [0; DropReason::COUNT],
                details: [0; Counter::COUNT - Counter::COMMON],
                tallies: [0; 2],
                by_sl: [[0; 16]; 2],
                by_sl_bases: [[0; 16]; 2],
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_counters_and_extended_port_counters_are_cleared_separately() {
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
    fn drops_are_counted_by_reason_and_in_port_xmit_discards() {
        let mut counters = Counters::new();
        counters.drop(DropReason::NoLink);
        counters.drop(DropReason::WrongMkey);
        assert_eq!(counters.drops(DropReason::NoLink), 1);
        assert_eq!(counters.drops(DropReason::WrongMkey), 1);
        assert_eq!(counters.get(Counter::PortXmitDiscards, Shown::Classic), 1);
        assert_eq!(counters.get(Counter::PortInactiveDiscards, Shown::Classic), 1);
        counters.set(Counter::PortInactiveDiscards, Shown::Classic, 0);
        counters.drop(DropReason::NotActive);
        assert_eq!(counters.get(Counter::PortInactiveDiscards, Shown::Classic), 1);
        assert_eq!(counters.get(Counter::PortXmitDiscards, Shown::Classic), 2);
    }

    #[test]
    fn data_counters_by_sl_add_up_to_the_total_and_are_set_per_sl() {
        let mut counters = Counters::new();
        for (sl, words) in [(0, 10), (3, 4), (15, 1), (3, 2)] {
            counters.add_data(Way::Xmit, sl, words);
        }
        let by = counters.by_sl(Way::Xmit);
        assert_eq!((by[0], by[3], by[15], by[1]), (10, 6, 1, 0));
        assert_eq!(counters.by_sl(Way::Rcv), [0; 16]);
        assert_eq!(counters.get(Counter::PortXmitData, Shown::Extended), 17);
        counters.set_by_sl(Way::Xmit, 0, 0);
        counters.set_by_sl(Way::Xmit, 3, 1);
        counters.add_data(Way::Xmit, 0, 5);
        let by = counters.by_sl(Way::Xmit);
        assert_eq!((by[0], by[3], by[15]), (5, 1, 1));
    }

    #[test]
    fn error_threshold_counts_an_event_for_every_threshold_plus_one_errors() {
        let mut counters = Counters::new();
        let mut tally = |times| counters.tally(Tally::Physical, times, 3);
        assert_eq!([tally(3), tally(1), tally(9), tally(3)], [0, 1, 2, 1]);
        assert_eq!(counters.tally(Tally::Overrun, 5, 0), 5);
    }
}
