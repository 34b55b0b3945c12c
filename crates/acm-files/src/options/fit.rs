//! Options that fit the size of a subnet.

use std::time::Duration;

use super::Options;

/// What a subnet administration takes at once from all ports together, without answers being late.
const SA_AT_ONCE: u32 = 2048;

/// The most receive buffers that are worth their memory.
const MAX_RECV_DEPTH: u32 = 16384;

impl Options {
    /// For a subnet of so many endpoints, of which each may have several addresses.
    ///
    /// Every endpoint receives the requests of all others, so that what all have outstanding together is to fit into the receive
    /// buffers of one: small subnets ask for many addresses at once, large ones for one. The same holds for questions to the
    /// subnet administration. Large subnets wait longer for answers, which queue behind those of others.
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
        // Names and addresses of both families for each, and as many again for what has changed.
        let addresses = usize::try_from(size).unwrap_or(usize::MAX).saturating_mul(8);
        machine.max_entries = addresses.clamp(1 << 14, 1 << 20);
        options
    }
}
