//! The fabric's own counters.

macro_rules! counts {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// A counter of the fabric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Count { $(#[doc = $doc] $variant,)* }
        /// Their names, in the same order.
        const NAMES: &[&str] = &[$($name,)*];
    };
}

counts! {
    ClientsRefused "clients_refused" "Clients that were not let in.",
    ClientsBroke "clients_broke" "Clients that broke the protocol.",
    MadsSent "mads_sent" "Datagrams that programs sent.",
    MadsRefused "mads_refused" "Of them those that could not be sent: no such agent, a wrong address or length.",
    MadsReceived "mads_received" "Datagrams and timeouts that programs were given.",
    MadsDropped "mads_dropped" "Of them those that were dropped since the program did not read.",
    PortEvents "port_events" "Events of ports.",
    RowsRefused "rows_refused" "Processes whose packets are not counted since their user has its share of rows.",
    CaptureDrops "capture_drops" "Copies of datagrams that were dropped since who captures did not read.",
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
