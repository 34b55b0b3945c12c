//! What administration is to know, and how much it may keep.

use rdmux_wire::{Gid, SmKey};

/// What administration is to know, and how much it may keep.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The subnet prefix, of which GIDs are made.
    pub gid_prefix: u64,
    /// The key of trusted clients: who shows it may read P_Key tables, and all of what others have registered.
    pub sa_key: SmKey,
    /// The longest way through the subnet: 4.096 us * 2^code. It is the life time of packets.
    pub subnet_timeout: u8,
    /// The most bytes of a table; a longer one is refused with "no resources". A requester that has had twice as many within
    /// a second is told "busy".
    pub table_bytes: usize,
    /// How long the answer to a Report is waited for, in milliseconds.
    pub timeout_ms: u32,
    /// How often a Report without an answer, or what is not acknowledged of a table, is sent again.
    pub retries: u32,
    /// The most services of all ports; more are refused with "no resources".
    pub services: usize,
    /// The most services that one port may register.
    pub services_of_port: usize,
    /// The most subscriptions of all ports.
    pub subscriptions: usize,
    /// The most subscriptions of one port.
    pub subscriptions_of_port: usize,
    /// The most Reports that a port may leave unanswered at a time; others are dropped.
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
