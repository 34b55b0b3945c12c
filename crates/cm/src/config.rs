//! Configuration: timeouts, retries, limits. The defaults are those of Linux.

use core::ops::RangeInclusive;
use core::time::Duration;

use rdmux_wire::{AckTimeout, RnrTimer};

use crate::iw;

/// Timeouts, retries and limits of a [`Manager`](crate::Manager).
///
/// Timeouts that the wire carries are codes of 4.096 us * 2^code; all others are durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a peer may take to answer a CM message, sent to it in REQ; code, 20 is 4.3 s
    /// (IBTA 12.7.1, "CM Response Timeout").
    pub cm_response_timeout: u8,
    /// How often a CM message is retransmitted before the peer counts as unreachable; 0 to 15.
    pub max_cm_retries: u8,
    /// The interval between transmissions of a REQ, REP, DREQ or SIDR_REQ, instead of the one that follows from
    /// the timeout codes (6144 ms for REQ by default). For tests, and for hosts that give up sooner.
    pub retry_interval: Option<Duration>,
    /// The time that an MRA asks the peer to wait; code, 24 is 68.7 s.
    pub mra_service_timeout: u8,
    /// The lifetime of a packet in the network; code, 18 is 1.07 s. An id's option
    /// `ACK_TIMEOUT` overrides it.
    pub packet_lifetime: u8,
    /// The delay of this end's acknowledgements, sent to the peer in REP; code, 15 is 134 ms.
    pub ack_delay: u8,
    /// How long a closed connection's number stays out of use, instead of the time that
    /// follows from the path's ACK timeout (2.1 s by default, 16.4 s at most).
    pub timewait: Option<Duration>,
    /// The RNR NAK timer: how long a sender must wait when this end has no receive posted, unless the program sets it.
    /// A peer that retries fewer than seven times gets a longer time, so that its retries last for 50 ms.
    ///
    /// Linux's CM sets code 0, the *longest* time, 655 ms, so that a single late receive stalls
    /// a connection. The default here is code 12, 0.64 ms, as MPI libraries choose.
    pub min_rnr_timer: RnrTimer,
    /// The most READs and atomics that a queue pair serves as responder (`max_qp_rd_atom`). Larger values in
    /// connection parameters are an error; a peer's larger values are clamped.
    pub max_rd_atomic: u8,
    /// The most READs and atomics that a queue pair has outstanding as requester (`max_qp_init_rd_atom`), likewise.
    pub max_init_rd_atomic: u8,
    /// Hop limit of a routed path.
    pub hop_limit: u8,
    /// The range from which a bind to port 0 takes its port.
    pub ephemeral_ports: RangeInclusive<u16>,
    /// The lowest port that needs no privilege (`net.ipv4.ip_unprivileged_port_start`); up to 65,536.
    pub unprivileged_port_start: u32,
    /// The largest backlog (`net.rdma_ucm.max_backlog`). Larger values and 0 are replaced by it.
    pub max_backlog: u32,
    /// How long a request for a port is held for the next listener if the last one has just closed; zero
    /// refuses at once.
    pub listener_grace: Duration,
    /// Whether an IPv6 listener on the wildcard address refuses IPv4 unless an option of its id
    /// overrides this (`net.ipv6.bindv6only`).
    pub bind_v6_only: bool,
    /// The most ids of one event channel, a limit against processes that never destroy any.
    pub max_ids_per_channel: usize,
    /// Configuration of iWARP connections.
    pub iwarp: iw::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cm_response_timeout: 20,
            max_cm_retries: 15,
            retry_interval: None,
            mra_service_timeout: 24,
            packet_lifetime: 18,
            ack_delay: 15,
            timewait: None,
            min_rnr_timer: RnrTimer::new(12),
            max_rd_atomic: 128,
            max_init_rd_atomic: 128,
            hop_limit: 64,
            ephemeral_ports: 32768..=60999,
            unprivileged_port_start: 1024,
            max_backlog: 1024,
            listener_grace: Duration::from_millis(500),
            bind_v6_only: false,
            max_ids_per_channel: 1 << 20,
            iwarp: iw::Config::default(),
        }
    }
}

impl Config {
    /// Returns the configuration with codes and counts clamped to what fits their fields.
    pub(crate) fn clamped(mut self) -> Self {
        for code in [
            &mut self.cm_response_timeout,
            &mut self.mra_service_timeout,
            &mut self.packet_lifetime,
            &mut self.ack_delay,
        ] {
            *code = (*code).min(31);
        }
        self.max_cm_retries = self.max_cm_retries.min(15);
        self
    }

    /// Returns whether a bind to this port needs a privilege. Port 0 takes an ephemeral one.
    pub(crate) fn is_privileged(&self, port: u16) -> bool {
        port != 0 && u32::from(port) < self.unprivileged_port_start
    }

    /// Returns the interval between transmissions of a REQ on a path with packet lifetime `lifetime` (code), to a peer that must
    /// answer within `response_timeout` (code).
    pub(crate) fn request_interval(&self, lifetime: u8, response_timeout: u8) -> Duration {
        self.retry_interval
            .unwrap_or_else(|| code_to_duration(lifetime) * 2 + code_to_duration(response_timeout))
    }

    /// Returns the ACK timeout of a path with packet lifetime `lifetime` (code) towards a peer that
    /// acknowledges within `ack_delay` (code): twice the lifetime plus the delay, rounded up to a
    /// code (IBTA 9.7.6.1.3, 12.7.34).
    pub(crate) fn ack_timeout(ack_delay: u8, lifetime: u8) -> AckTimeout {
        let round_trip = lifetime + 1;
        let longer = ack_delay.max(round_trip);
        let sum = longer + u8::from(ack_delay.min(round_trip) + 1 >= longer);
        AckTimeout::new(sum.min(31))
    }
}

/// The longest time for which a peer can make this end keep something; code, 22 is 16.4 s. Linux sends 20.
pub(crate) const LONGEST_CODE: u8 = 22;

/// Returns the time of a timeout code as the CM rounds it: 2^(code - 8) ms, at least 1 ms.
pub(crate) fn code_to_duration(code: u8) -> Duration {
    Duration::from_millis(1 << code.min(31).saturating_sub(8))
}
