//! Options and limits of administration.

use rdmux_wire::{Gid, SmKey};

/// Options and limits of administration.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The subnet prefix of all GIDs.
    pub gid_prefix: u64,
    /// The key of trusted clients: a client that presents it may read P_Key tables and everything that others have registered.
    pub sa_key: SmKey,
    /// The longest transit time through the subnet: 4.096 us * 2^code. It is the packet life time of paths.
    pub subnet_timeout: u8,
    /// The size limit of an answer in bytes. A longer one is refused with "no resources". A requester that has received twice
    /// as many bytes within a second gets "busy".
    pub table_bytes: usize,
    /// How long to wait for the response to a Report, in milliseconds.
    pub timeout_ms: u32,
    /// How often an unanswered Report, or unacknowledged segments of a table, are retransmitted.
    pub retries: u32,
    /// The most services of all ports together. Further ones are refused with "no resources".
    pub services: usize,
    /// The most services that one port may register.
    pub services_of_port: usize,
    /// The most subscriptions of all ports together.
    pub subscriptions: usize,
    /// The most subscriptions of one port.
    pub subscriptions_of_port: usize,
    /// The most unanswered Reports of one port, at most 64; fewer while many ports have unanswered ones. Further ones are dropped.
    pub reports_of_port: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gid_prefix: Gid::DEFAULT_PREFIX,
            sa_key: SmKey(1),
            subnet_timeout: 0x12,
            table_bytes: 32 << 20,
            timeout_ms: 1000,
            retries: 3,
            services: 65_536,
            services_of_port: 4096,
            subscriptions: 65_536,
            subscriptions_of_port: 64,
            reports_of_port: 64,
        }
    }
}
