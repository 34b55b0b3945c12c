//! Options for the size of a subnet.

use std::time::Duration;

use super::Options;

/// Number of concurrent queries from all ports that a subnet administration handles without late answers.
const SA_AT_ONCE: u32 = 2048;

/// The maximum number of receive buffers that are worth their memory.
const MAX_RECV_DEPTH: u32 = 16384;

impl Options {
    /// Returns options for a subnet of this many endpoints, which may have several addresses each.
    ///
    /// Every endpoint receives the requests of all others, so all outstanding requests together should fit into the receive
    /// buffers of one endpoint: endpoints of small subnets request many addresses at once, those of large ones a single one. The
    /// same applies to queries to subnet administration. In large subnets the timeouts are longer, because answers queue behind
    /// those of others.
    pub fn fitted(endpoints: u32) -> Self {
        let mut options = Self::default();
        let size = endpoints.clamp(1, 1 << 24);
        let machine = &mut options.machine;
        machine.recv_depth = size.next_power_of_two().clamp(1024, MAX_RECV_DEPTH);
        machine.resolve_depth = (machine.recv_depth / size).clamp(1, 64);
        machine.send_depth = machine.resolve_depth;
        machine.sa_depth = (SA_AT_ONCE / size).clamp(1, 32);
        machine.timeout = Duration::from_millis(u64::from(500 + size / 16).clamp(500, 8000));
        machine.subnet_size = size;
        // Names and addresses of both families for each endpoint, and as many again for changed ones.
        let addresses = usize::try_from(size).unwrap_or(usize::MAX).saturating_mul(8);
        machine.max_entries = addresses.clamp(1 << 14, 1 << 20);
        options
    }
}
