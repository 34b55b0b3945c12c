//! The counter page: one 64-bit counter per word, in memory that the service shares, so that `rdmux host status` sees the
//! counters while the process runs and after it has died.

use std::sync::atomic::Ordering;

use rdmux_link::SharedMem;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident = $index:literal => $text:literal $($gauge:ident)?,)*) => {
        /// A counter. Its value is the index of its word in the page.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $name = $index,)* }

        impl Counter {
            /// All counters, in the order in which commands print them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Returns the name that commands print.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// Returns whether the counter is a gauge of present state, which reads zero once its process is gone.
            pub const fn is_gauge(self) -> bool {
                match self { $(Self::$name => counters!(@gauge $($gauge)?),)* }
            }
        }
    };
    (@gauge) => { false };
    (@gauge gauge) => { true };
}

// To add a counter: a line here, with the next free index, and the code that counts. An index keeps its meaning forever: that of
// a removed counter is not reused. A process and a service of different builds share pages: a counter that one of them does not
// know is not shown. Incompatible changes, such as words of another width, raise `SCHEMA`.
counters! {
    /// Datagrams sent over UDP.
    TxPackets = 0 => "tx_packets",
    /// Bytes of datagrams sent over UDP (UDP payload).
    TxBytes = 1 => "tx_bytes",
    /// Datagrams received over UDP.
    RxPackets = 2 => "rx_packets",
    /// Bytes of datagrams received over UDP.
    RxBytes = 3 => "rx_bytes",
    /// Records put into rings.
    RingTxPackets = 4 => "ring_tx_packets",
    /// Bytes of records put into rings.
    RingTxBytes = 5 => "ring_tx_bytes",
    /// Records taken from rings.
    RingRxPackets = 6 => "ring_rx_packets",
    /// Bytes of records taken from rings.
    RingRxBytes = 7 => "ring_rx_bytes",
    /// WRITEs, or their parts of up to a MiB, copied directly into the memory of another process.
    DirectWrites = 8 => "direct_writes",
    /// Bytes of WRITEs copied directly.
    DirectWriteBytes = 9 => "direct_write_bytes",
    /// READs, or their parts of up to a MiB, copied directly out of the memory of another process.
    DirectReads = 10 => "direct_reads",
    /// Bytes of READs copied directly.
    DirectReadBytes = 11 => "direct_read_bytes",
    /// Parts of SENDs and WRITEs, of up to a MiB, that were fetched from the memory of the sending process.
    Fetches = 12 => "direct_fetches",
    /// Bytes of fetched parts.
    FetchBytes = 13 => "direct_fetch_bytes",
    /// Parts that could not be fetched, so that they were sent again through the ring.
    FetchFailures = 14 => "direct_fetch_failures",
    /// Processes whose memory the kernel did not permit access to, so that traffic with them uses rings.
    DirectRefused = 15 => "direct_refused",
    /// Packets that were not sent because the socket or ring was full, and are sent later.
    TxBusy = 16 => "tx_busy",
    /// Packets that the operating system refused to send.
    TxErrors = 17 => "tx_errors",
    /// System calls that send.
    TxCalls = 18 => "tx_calls",
    /// System calls that received something.
    RxCalls = 19 => "rx_calls",
    /// Packets dropped on purpose (`$RDMUX_LOSS`).
    RxLost = 20 => "rx_drop_injected",
    /// Packets with a wrong invariant CRC.
    RxIcrc = 21 => "rx_drop_icrc",
    /// Packets that were too short, or had an invalid header.
    RxMalformed = 22 => "rx_drop_malformed",
    /// Packets with a wrong transport version.
    RxVersion = 23 => "rx_drop_version",
    /// Packets for a queue pair that does not exist.
    RxNoQp = 24 => "rx_drop_no_qp",
    /// Packets truncated by a full buffer.
    RxTruncated = 25 => "rx_drop_truncated",
    /// Packets that arrived here but belonged to another process, and were passed to the service.
    RxStray = 26 => "rx_stray",
    /// Rings that violated the protocol and were closed.
    RingCorrupt = 27 => "ring_corrupt",
    /// Packets that the queue pair's state does not accept.
    RxState = 28 => "rx_drop_qp_state",
    /// Packets whose opcode does not belong to the transport.
    RxOpcode = 29 => "rx_drop_opcode",
    /// Packets out of sequence within a message, such as a middle without a first.
    RxSequence = 30 => "rx_drop_sequence",
    /// Packets with a wrong length.
    RxLength = 31 => "rx_drop_length",
    /// Packets with a wrong P_Key.
    RxPkey = 32 => "rx_drop_pkey",
    /// Packets with a wrong Q_Key.
    RxQkey = 33 => "rx_drop_qkey",
    /// Packets that are not from the connection's peer.
    RxSource = 34 => "rx_drop_source",
    /// Duplicate packets.
    RxDuplicate = 35 => "rx_duplicate",
    /// Packets dropped because an earlier one was lost; the peer retransmits them.
    RxGap = 36 => "rx_gap",
    /// Out-of-order packets that were buffered until the lost one arrived.
    RxKept = 37 => "rx_kept",
    /// Gaps that were filled, so that the buffered packets behind them were executed.
    RxGapFilled = 38 => "rx_gap_filled",
    /// Responses to no outstanding request.
    RxStale = 39 => "rx_stale",
    /// Packets without a posted receive (UC, UD).
    RxNoReceive = 40 => "rx_drop_no_receive",
    /// Packets whose memory could not be written.
    RxMemory = 41 => "rx_drop_memory",
    /// Frames that the capture socket did not accept.
    CaptureDrops = 42 => "capture_drops",
    /// Queue pairs that exist now.
    QpsOpen = 43 => "qps_open" gauge,
    /// Memory regions that exist now.
    MrsOpen = 44 => "mrs_open" gauge,
    /// Completion queues that overflowed.
    CqOverflows = 45 => "cq_overflows",
    /// Messages whose stream was left unread until their receive was posted.
    RxWaits = 46 => "rx_waits_for_receive",
    /// Bytes of SENDs and WRITEs that the peer was requested to fetch.
    OfferBytes = 47 => "direct_offer_bytes",
    /// Packets to a process of this host that were dropped because the port has no link.
    TxNoLink = 48 => "tx_drop_no_link",
    /// Packets from a process of this host that were dropped because the port has no link.
    RxNoLink = 49 => "rx_drop_no_link",
    /// Packets for other processes and reports of wrong keys that were dropped because the service did not read.
    ReportsDropped = 50 => "reports_dropped",
    // Words 64 to 95 count the packets that InfiniBand wires drop, in the order of `IbDrop`, which increments them itself.
    /// Packets not sent over InfiniBand because the port was not active, or had no LID.
    IbTxInactive = 64 => "tx_drop_ib_inactive",
    /// Packets without a route to their destination LID.
    IbTxNoWay = 65 => "tx_drop_ib_no_way",
    /// Packets whose P_Key was not in the port's table, or did not pass partition enforcement on the way.
    IbTxPkey = 66 => "tx_drop_ib_pkey",
    /// Packets whose service level had no virtual lane on the way.
    IbTxSl = 67 => "tx_drop_ib_sl",
    /// Packets larger than the MTU of a link on the way.
    IbTxLength = 68 => "tx_drop_ib_length",
    /// Packets with a GID index beyond the GID table.
    IbTxGid = 69 => "tx_drop_ib_gid",
    /// Packets that the kernel refused.
    IbTxRefused = 70 => "tx_drop_ib_refused",
    /// Packets received over InfiniBand in an encapsulation of another version.
    IbRxVersion = 71 => "rx_drop_ib_version",
    /// Packets with invalid encapsulation or headers.
    IbRxMalformed = 72 => "rx_drop_ib_malformed",
    /// Duplicate parts of packets.
    IbRxPart = 73 => "rx_drop_ib_part",
    /// Packets discarded incomplete, because others needed the buffer.
    IbRxGivenUp = 74 => "rx_drop_ib_given_up",
    /// Packets that arrived while the port was not active, or had no LID.
    IbRxInactive = 75 => "rx_drop_ib_inactive",
    /// Packets for QP0 or on VL 15, which never carry data.
    IbRxManagement = 76 => "rx_drop_ib_management",
    /// Packets whose destination LID was neither the port's nor a group's, or whose source LID no port has.
    IbRxLid = 77 => "rx_drop_ib_lid",
    /// Packets whose destination GID was neither the port's nor a group's.
    IbRxGid = 78 => "rx_drop_ib_gid",
    /// Packets whose P_Key no key of the port's table admitted.
    IbRxPkey = 79 => "rx_drop_ib_pkey",
    /// Packets whose Q_Key was not that of the queue pair.
    IbRxQkey = 80 => "rx_drop_ib_qkey",
    /// Packets with a wrong ICRC.
    IbRxIcrc = 81 => "rx_drop_ib_icrc",
    /// Packets for another process of this host, which were passed on to it.
    IbRxStray = 82 => "rx_ib_stray",
}

/// The first of the words that count the packets which InfiniBand wires drop.
pub const IB_DROPS: usize = Counter::IbTxInactive as usize;

/// The number of 64-bit words of the page.
pub const PAGE_COUNTERS: usize = 512;

/// The version of the meaning of a page's words, in this build.
pub const SCHEMA: u64 = 1;

/// The word of a page that holds its schema.
const SCHEMA_WORD: usize = PAGE_COUNTERS - 1;

const _: () = {
    let mut n = 0;
    while n < Counter::ALL.len() {
        assert!((Counter::ALL[n] as usize) < SCHEMA_WORD, "no word of the page is left");
        n += 1;
    }
};

/// Writes this build's schema into a page that the service owns.
pub fn declare_schema(page: &SharedMem) {
    if let Some(word) = page.words().get(SCHEMA_WORD) {
        word.store(SCHEMA, Ordering::Relaxed);
    }
}

/// Returns the schema that a page's owner declared.
pub fn schema_of(page: &SharedMem) -> u64 {
    page.words().get(SCHEMA_WORD).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// The counters of this process.
pub(crate) struct Counters<'a>(pub(crate) &'a SharedMem);

impl Counters<'_> {
    /// Adds to a counter.
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        if let Some(c) = self.0.words().get(counter as usize) {
            c.fetch_add(n, Ordering::Relaxed);
        }
    }
    /// Returns the value of a counter.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0.words().get(counter as usize).map_or(0, |c| c.load(Ordering::Relaxed))
    }
    /// Subtracts from a gauge.
    pub(crate) fn sub(&self, counter: Counter, n: u64) {
        if let Some(c) = self.0.words().get(counter as usize) {
            c.fetch_sub(n, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_link::ib::{IbDrop, Routes};

    use super::*;

    #[test]
    fn counter_names_are_unique() {
        let mut names: Vec<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Counter::ALL.len());
    }

    #[test]
    fn infiniband_drop_counters_have_the_names_and_words_of_ib_drop() {
        for (at, why) in IbDrop::ALL.iter().enumerate() {
            let counter = Counter::ALL.iter().find(|counter| **counter as usize == IB_DROPS + at);
            let name = counter.map(|counter| counter.name().replace("_drop_ib_", "_"));
            assert_eq!(name.map(|name| name.replace("_ib_", "_")).as_deref(), Some(why.name()));
        }
        let page = SharedMem::create("page", PAGE_COUNTERS).unwrap();
        let same = SharedMem::map(page.duplicate().unwrap(), PAGE_COUNTERS).unwrap();
        // A wire counts without a table: its port is not active.
        let routes = Routes::counting_in(1, same, IB_DROPS);
        assert_eq!(routes.dropped(IbDrop::RxPkey), 0);
        page.words()[Counter::IbRxPkey as usize].store(7, Ordering::Relaxed);
        assert_eq!(routes.dropped(IbDrop::RxPkey), 7);
    }

    #[test]
    fn counter_page_declares_its_schema() {
        let page = SharedMem::create("page", PAGE_COUNTERS).unwrap();
        assert_eq!(schema_of(&page), 0);
        declare_schema(&page);
        assert_eq!(schema_of(&page), SCHEMA);
    }
}
