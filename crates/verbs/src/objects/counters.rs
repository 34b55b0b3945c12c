//! The counter page: one 64-bit counter a word, in memory that the service shares, so that
//! `rdmux host status` sees them while the process runs and after it died.

use std::sync::atomic::Ordering;

use rdmux_link::SharedMem;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident = $index:literal => $text:literal $($gauge:ident)?,)*) => {
        /// What is counted. Its value is the word of the page that it is counted in.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $name = $index,)* }

        impl Counter {
            /// All of them, in the order in which commands print them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The name that commands print.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// Whether it tells of the present, so that nothing of it is left when its process is gone.
            pub const fn is_gauge(self) -> bool {
                match self { $(Self::$name => counters!(@gauge $($gauge)?),)* }
            }
        }
    };
    (@gauge) => { false };
    (@gauge gauge) => { true };
}

// To add a counter: a line here, with the next free index, and the place that counts. An index means the same for ever:
// that of a counter that goes is not used again. A process and a service of different builds share pages: what one of them
// does not know is not shown. What breaks this, such as words of another width, raises `SCHEMA`.
counters! {
    /// Datagrams sent over UDP.
    TxPackets = 0 => "tx_packets",
    /// Bytes of them (UDP payload).
    TxBytes = 1 => "tx_bytes",
    /// Datagrams received over UDP.
    RxPackets = 2 => "rx_packets",
    /// Bytes of them.
    RxBytes = 3 => "rx_bytes",
    /// Records put into rings.
    RingTxPackets = 4 => "ring_tx_packets",
    /// Bytes of them.
    RingTxBytes = 5 => "ring_tx_bytes",
    /// Records taken from rings.
    RingRxPackets = 6 => "ring_rx_packets",
    /// Bytes of them.
    RingRxBytes = 7 => "ring_rx_bytes",
    /// WRITEs, or parts of a MiB, that went straight into the memory of another process.
    DirectWrites = 8 => "direct_writes",
    /// Bytes of them.
    DirectWriteBytes = 9 => "direct_write_bytes",
    /// READs, or parts of a MiB, that came straight out of the memory of another process.
    DirectReads = 10 => "direct_reads",
    /// Bytes of them.
    DirectReadBytes = 11 => "direct_read_bytes",
    /// Parts of SENDs and WRITEs, of a MiB at most, that were fetched from the memory of the process that sent them.
    Fetches = 12 => "direct_fetches",
    /// Bytes of them.
    FetchBytes = 13 => "direct_fetch_bytes",
    /// Parts that could not be, so that they were sent again through the ring.
    FetchFailures = 14 => "direct_fetch_failures",
    /// Processes whose memory the kernel did not let us reach: what is for them goes through rings.
    DirectRefused = 15 => "direct_refused",
    /// Packets that did not leave because the socket or ring was full; sent again later.
    TxBusy = 16 => "tx_busy",
    /// Packets that the operating system refused to send.
    TxErrors = 17 => "tx_errors",
    /// System calls that sent.
    TxCalls = 18 => "tx_calls",
    /// System calls that received something.
    RxCalls = 19 => "rx_calls",
    /// Lost on purpose (`$RDMUX_LOSS`).
    RxLost = 20 => "rx_drop_injected",
    /// Wrong invariant checksum.
    RxIcrc = 21 => "rx_drop_icrc",
    /// Too short, or a header that makes no sense.
    RxMalformed = 22 => "rx_drop_malformed",
    /// Wrong transport version.
    RxVersion = 23 => "rx_drop_version",
    /// No such queue pair.
    RxNoQp = 24 => "rx_drop_no_qp",
    /// Truncated by a full buffer.
    RxTruncated = 25 => "rx_drop_truncated",
    /// Arrived here but belonged to another process; handed to the service.
    RxStray = 26 => "rx_stray",
    /// A ring broke its rules and was closed.
    RingCorrupt = 27 => "ring_corrupt",
    /// The queue pair's state takes no packets.
    RxState = 28 => "rx_drop_qp_state",
    /// The opcode does not belong to the transport.
    RxOpcode = 29 => "rx_drop_opcode",
    /// Middle without a beginning, or the like.
    RxSequence = 30 => "rx_drop_sequence",
    /// Wrong length.
    RxLength = 31 => "rx_drop_length",
    /// Wrong partition.
    RxPkey = 32 => "rx_drop_pkey",
    /// Wrong Q_Key.
    RxQkey = 33 => "rx_drop_qkey",
    /// Not the connection's peer.
    RxSource = 34 => "rx_drop_source",
    /// Seen before.
    RxDuplicate = 35 => "rx_duplicate",
    /// Something before it was lost; sent again by the peer.
    RxGap = 36 => "rx_gap",
    /// Something before it was lost; kept until that came.
    RxKept = 37 => "rx_kept",
    /// Gaps that were filled, so that what had been kept behind them was carried out.
    RxGapFilled = 38 => "rx_gap_filled",
    /// A response to nothing.
    RxStale = 39 => "rx_stale",
    /// No receive was posted (UC, UD).
    RxNoReceive = 40 => "rx_drop_no_receive",
    /// The memory could not be written.
    RxMemory = 41 => "rx_drop_memory",
    /// Frames that the capture socket did not take.
    CaptureDrops = 42 => "capture_drops",
    /// Queue pairs that exist now.
    QpsOpen = 43 => "qps_open" gauge,
    /// Memory regions that exist now.
    MrsOpen = 44 => "mrs_open" gauge,
    /// Completion queues that overflowed.
    CqOverflows = 45 => "cq_overflows",
    /// Messages for which a stream was left unread until their receive was posted.
    RxWaits = 46 => "rx_waits_for_receive",
    /// Bytes of SENDs and WRITEs that the peer was told to fetch.
    OfferBytes = 47 => "direct_offer_bytes",
    /// Packets to a process of this host that were lost because the port has no link.
    TxNoLink = 48 => "tx_drop_no_link",
    /// Packets from a process of this host, likewise.
    RxNoLink = 49 => "rx_drop_no_link",
    // Words 64 to 95 are for what InfiniBand's wires drop, in the order of `IbDrop`, which counts in them itself.
    /// Packets over InfiniBand that did not leave because the port was not active, or had no LID.
    IbTxInactive = 64 => "tx_drop_ib_inactive",
    /// No packets come to their destination LID.
    IbTxNoWay = 65 => "tx_drop_ib_no_way",
    /// Their P_Key was not in the port's table, or did not pass an enforcement of partitions on the way.
    IbTxPkey = 66 => "tx_drop_ib_pkey",
    /// Their service level had no virtual lane on the way.
    IbTxSl = 67 => "tx_drop_ib_sl",
    /// They were larger than the MTU of a link on the way.
    IbTxLength = 68 => "tx_drop_ib_length",
    /// The GID table had no such index.
    IbTxGid = 69 => "tx_drop_ib_gid",
    /// The kernel did not take them.
    IbTxRefused = 70 => "tx_drop_ib_refused",
    /// Packets that came over InfiniBand by an encapsulation of another version.
    IbRxVersion = 71 => "rx_drop_ib_version",
    /// Encapsulation or headers made no sense.
    IbRxMalformed = 72 => "rx_drop_ib_malformed",
    /// Parts that had come already.
    IbRxPart = 73 => "rx_drop_ib_part",
    /// Not all parts came before others needed the room.
    IbRxGivenUp = 74 => "rx_drop_ib_given_up",
    /// The port was not active, or had no LID.
    IbRxInactive = 75 => "rx_drop_ib_inactive",
    /// They were for QP0 or on VL 15, which no data is.
    IbRxManagement = 76 => "rx_drop_ib_management",
    /// Their destination LID was neither the port's nor a group's, or their source LID no port's.
    IbRxLid = 77 => "rx_drop_ib_lid",
    /// Their destination GID was neither the port's nor a group's.
    IbRxGid = 78 => "rx_drop_ib_gid",
    /// No key of the port's P_Key table admitted theirs.
    IbRxPkey = 79 => "rx_drop_ib_pkey",
    /// Their Q_Key was not that of the queue pair.
    IbRxQkey = 80 => "rx_drop_ib_qkey",
    /// Their ICRC was wrong.
    IbRxIcrc = 81 => "rx_drop_ib_icrc",
    /// They were for another process of this host, which got them a little later.
    IbRxStray = 82 => "rx_ib_stray",
}

/// The first word in which packets are counted that InfiniBand's wires drop.
pub const IB_DROPS: usize = Counter::IbTxInactive as usize;

/// How many 64-bit words the page has.
pub const PAGE_COUNTERS: usize = 512;

/// What this build takes the words of a page for.
pub const SCHEMA: u64 = 1;

/// The word of a page that says by which schema its words are counted.
const SCHEMA_WORD: usize = PAGE_COUNTERS - 1;

const _: () = {
    let mut n = 0;
    while n < Counter::ALL.len() {
        assert!((Counter::ALL[n] as usize) < SCHEMA_WORD, "no word of the page is left");
        n += 1;
    }
};

/// Writes into a page by which schema its owner, the service, reads it.
pub fn declare_schema(page: &SharedMem) {
    if let Some(word) = page.words().get(SCHEMA_WORD) {
        word.store(SCHEMA, Ordering::Relaxed);
    }
}

/// The schema that its owner reads a page by.
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
    /// What has been counted.
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
    fn names_are_unique() {
        let mut names: Vec<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Counter::ALL.len());
    }

    #[test]
    fn what_infiniband_drops_is_counted_in_the_words_of_its_names() {
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
    fn a_page_tells_its_schema() {
        let page = SharedMem::create("page", PAGE_COUNTERS).unwrap();
        assert_eq!(schema_of(&page), 0);
        declare_schema(&page);
        assert_eq!(schema_of(&page), SCHEMA);
    }
}
