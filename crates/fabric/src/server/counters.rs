//! The fabric's own counters.

macro_rules! counts {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// A counter of the fabric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Count { $(#[doc = $doc] $variant,)* }
        /// The names of the counters, in the same order.
        const NAMES: &[&str] = &[$($name,)*];
    };
}

counts! {
    ClientsRefused "clients_refused" "Clients that were refused.",
    ClientsBroke "clients_broke" "Clients that violated the protocol.",
    MadsSent "mads_sent" "Datagrams that programs sent, including refused ones.",
    MadsRefused "mads_refused" "Datagrams that could not be sent: no such agent, a wrong address or length.",
    MadsReceived "mads_received" "Datagrams and timeouts for programs, including dropped ones.",
    MadsDropped "mads_dropped" "Datagrams and timeouts that were dropped because the program did not read.",
    PortEvents "port_events" "Port events.",
    RowsRefused "rows_refused" "Processes whose packets are not counted, because their user's share is used up.",
    CountsRead "counts_read" "Times that the rows in which hosts count packets were read, of all hosts or of one.",
    CaptureDrops "capture_drops" "Copies of datagrams that were dropped because the capturing program did not read.",
}

/// All counters.
#[derive(Debug)]
pub(super) struct Counts([u64; NAMES.len()]);

impl Counts {
    pub(super) fn new() -> Self {
        Self([0; NAMES.len()])
    }

    pub(super) fn add(&mut self, count: Count) {
        let value = &mut self.0[count as usize];
        *value = value.saturating_add(1);
    }

    /// Returns names and values.
    pub(super) fn all(&self) -> Vec<(String, u64)> {
        NAMES.iter().zip(self.0).map(|(name, value)| ((*name).to_owned(), value)).collect()
    }
}
