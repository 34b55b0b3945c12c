//! The counter page: one 64-bit counter a slot, in memory that the service shares, so that
//! `rdmux host status` sees them while the process runs and after it died.

use std::sync::atomic::Ordering;

use rdmux_link::SharedMem;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $name,)* }

        impl Counter {
            /// All of them, in the order of the page.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The name that commands print.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

counters! {
    /// Datagrams sent over UDP.
    TxPackets => "tx_packets",
    /// Bytes of them (UDP payload).
    TxBytes => "tx_bytes",
    /// Datagrams received over UDP.
    RxPackets => "rx_packets",
    /// Bytes of them.
    RxBytes => "rx_bytes",
    /// Records put into rings.
    RingTxPackets => "ring_tx_packets",
    /// Bytes of them.
    RingTxBytes => "ring_tx_bytes",
    /// Records taken from rings.
    RingRxPackets => "ring_rx_packets",
    /// Bytes of them.
    RingRxBytes => "ring_rx_bytes",
    /// WRITEs, or parts of a MiB, that went straight into the memory of another process.
    DirectWrites => "direct_writes",
    /// Bytes of them.
    DirectWriteBytes => "direct_write_bytes",
    /// READs, or parts of a MiB, that came straight out of the memory of another process.
    DirectReads => "direct_reads",
    /// Bytes of them.
    DirectReadBytes => "direct_read_bytes",
    /// Parts of SENDs and WRITEs, of a MiB at most, that were fetched from the memory of the process that sent them.
    Fetches => "direct_fetches",
    /// Bytes of them.
    FetchBytes => "direct_fetch_bytes",
    /// Parts that could not be, so that they were sent again through the ring.
    FetchFailures => "direct_fetch_failures",
    /// Processes whose memory the system did not let us reach: what is for them goes through rings.
    DirectRefused => "direct_refused",
    /// Packets that did not leave because the socket or ring was full; sent again later.
    TxBusy => "tx_busy",
    /// Packets that the operating system refused to send.
    TxErrors => "tx_errors",
    /// System calls that sent.
    TxCalls => "tx_calls",
    /// System calls that received something.
    RxCalls => "rx_calls",
    /// Lost on purpose (`$RDMUX_LOSS`).
    RxLost => "rx_drop_injected",
    /// Wrong invariant checksum.
    RxIcrc => "rx_drop_icrc",
    /// Too short, or a header that makes no sense.
    RxMalformed => "rx_drop_malformed",
    /// Wrong transport version.
    RxVersion => "rx_drop_version",
    /// No such queue pair.
    RxNoQp => "rx_drop_no_qp",
    /// Truncated by a full buffer.
    RxTruncated => "rx_drop_truncated",
    /// Arrived here but belonged to another process; handed to the service.
    RxStray => "rx_stray",
    /// A ring broke its rules and was closed.
    RingCorrupt => "ring_corrupt",
    /// The queue pair's state takes no packets.
    RxState => "rx_drop_qp_state",
    /// The opcode does not belong to the transport.
    RxOpcode => "rx_drop_opcode",
    /// Middle without a beginning, or the like.
    RxSequence => "rx_drop_sequence",
    /// Wrong length.
    RxLength => "rx_drop_length",
    /// Wrong partition.
    RxPkey => "rx_drop_pkey",
    /// Wrong Q_Key.
    RxQkey => "rx_drop_qkey",
    /// Not the connection's peer.
    RxSource => "rx_drop_source",
    /// Seen before.
    RxDuplicate => "rx_duplicate",
    /// Something before it was lost; sent again by the peer.
    RxGap => "rx_gap",
    /// Something before it was lost; kept until that came.
    RxKept => "rx_kept",
    /// Gaps that were filled, so that what had been kept behind them was carried out.
    RxGapFilled => "rx_gap_filled",
    /// A response to nothing.
    RxStale => "rx_stale",
    /// No receive was posted (UC, UD).
    RxNoReceive => "rx_drop_no_receive",
    /// The memory could not be written.
    RxMemory => "rx_drop_memory",
    /// Frames that the capture socket did not take.
    CaptureDrops => "capture_drops",
    /// Queue pairs that exist now.
    QpsOpen => "qps_open",
    /// Memory regions that exist now.
    MrsOpen => "mrs_open",
    /// Completion queues that overflowed.
    CqOverflows => "cq_overflows",
    /// Messages for which a stream was left unread until their receive was posted.
    RxWaits => "rx_waits_for_receive",
}

/// How many 64-bit slots the page has.
pub const PAGE_COUNTERS: usize = 512;

/// The counters of this process.
pub(crate) struct Counters<'a>(pub(crate) &'a SharedMem);

impl Counters<'_> {
    /// Adds to a counter.
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        if let Some(c) = self.0.words().get(counter as usize) {
            c.fetch_add(n, Ordering::Relaxed);
        }
    }
    /// Subtracts from a gauge.
    pub(crate) fn sub(&self, counter: Counter, n: u64) {
        if let Some(c) = self.0.words().get(counter as usize) {
            c.fetch_sub(n, Ordering::Relaxed);
        }
    }
}
