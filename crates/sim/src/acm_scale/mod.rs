//! ACM at sizes beyond any available machine: the state machine of the service, for each of up to 65,536 endpoints that all
//! request paths to all others at the same time.
//!
//! Of a large subnet only [`Setup::sample`] endpoints are simulated, each with the whole state machine and a cache of all
//! endpoints. Each represents an equal share of the others, its crowd. When it sends, its crowd sends too, each member from
//! its own address and to its own destination, spread over the time since the previous sampled endpoint sent. Only whether a
//! member sends at once at the start is drawn for each member. A crowd answers requests for its members. If the sample has
//! all endpoints there is no crowd, and only the network is approximated.
//!
//! The network loses each delivery with the same probability, including joins and their answers. A datagram takes 5 us.
//! Receivers have [`recv_depth`](rdmux_acm::Options::recv_depth) buffers, free one per [`Setup::service_time`], and stop for
//! [`Setup::stall`] from time to time as processes do. Subnet administration answers joins one by one. An unanswered join is
//! retransmitted as by the management interface. A crowd's joins are lost together with those of its sampled endpoint. A
//! client whose request fails repeats it after a pause.

mod administration;
mod crowd;
mod node;
mod outcome;
mod plot;
mod report;
mod world;

use std::time::Duration;

pub use self::outcome::{BySa, Outcome, SaRates};
pub use self::plot::plot;
pub use self::report::{document, tables};
use self::world::World;

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The number of endpoints, 2 to 65,536.
    pub endpoints: u32,
    /// The number of endpoints that are simulated, at most all.
    pub sample: u32,
    /// Lost deliveries per million.
    pub loss_ppm: u32,
    /// Receive buffers per endpoint.
    pub recv_depth: u32,
    /// How long a receiver takes to free a buffer.
    pub service_time: Duration,
    /// How long a receiver stops, on average once per 100 times this duration.
    pub stall: Duration,
    /// The outstanding requests of a client.
    pub window: u32,
    /// The joins per second that subnet administration answers.
    pub joins_per_second: u32,
    /// The seed of all random decisions.
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            endpoints: 1024,
            sample: 512,
            loss_ppm: 0,
            recv_depth: 1024,
            service_time: Duration::from_micros(10),
            stall: Duration::from_millis(10),
            window: 64,
            joins_per_second: 97_000,
            seed: 1,
        }
    }
}

impl Setup {
    /// Returns the number of endpoints that each sampled one represents, including itself.
    fn weight(&self) -> u32 {
        (self.endpoints / self.sample.max(1)).max(1)
    }

    /// Returns a consistent setup: the sample divides the endpoints.
    fn rounded(&self) -> Self {
        let endpoints = self.endpoints.clamp(2, 1 << 16);
        let sample = self.sample.clamp(2, endpoints);
        let sample = (2..=sample).rev().find(|n| endpoints.is_multiple_of(*n)).unwrap_or(endpoints);
        Self { endpoints, sample, ..*self }
    }
}

/// Lets all endpoints resolve all others, first with empty caches, then again.
pub fn run(setup: &Setup) -> Outcome {
    let mut world = World::new(setup.rounded());
    world.run_cold();
    world.run_warm();
    world.outcome()
}

/// Returns the processor time of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acm_resolves_all_endpoints_with_under_4_requests_each() {
        let outcome = run(&Setup { endpoints: 512, sample: 512, ..Setup::default() });
        assert_eq!(outcome.resolved, 512 * 511);
        assert_eq!(outcome.wrong, 0);
        assert_eq!(outcome.overflows, 0);
        assert!(outcome.requests_per_endpoint < 4.0, "{outcome:?}");
        assert_eq!(outcome.warm_requests, 0);
    }

    #[test]
    fn acm_resolves_all_endpoints_despite_2_percent_loss() {
        let setup = Setup { endpoints: 256, sample: 256, loss_ppm: 20_000, ..Setup::default() };
        let outcome = run(&setup);
        assert_eq!(outcome.resolved, 256 * 255);
        assert!(outcome.lost > 0);
    }

    #[test]
    fn acm_resolves_all_endpoints_after_retries_with_20_percent_loss() {
        let setup = Setup { endpoints: 128, sample: 128, loss_ppm: 200_000, ..Setup::default() };
        let outcome = run(&setup);
        assert_eq!((outcome.resolved, outcome.wrong), (128 * 127, 0));
        // Some requests failed and were repeated.
        assert!(outcome.failures > 0);
        assert!(outcome.time > world::PAUSE, "{:?}", outcome.time);
    }

    #[test]
    fn acm_lost_multicast_joins_are_retried() {
        let setup = Setup { endpoints: 256, sample: 256, loss_ppm: 20_000, ..Setup::default() };
        let outcome = run(&setup);
        assert_eq!(outcome.resolved, 256 * 255);
        // Two joins per endpoint. A lost query gets no answer, and a query whose answer is lost is repeated.
        let administration = outcome.administration_per_endpoint;
        assert!((4.02..4.4).contains(&administration), "{administration}");
        assert!(outcome.join_time > Duration::from_secs(2), "{:?}", outcome.join_time);
        let all = run(&Setup { loss_ppm: 0, ..setup });
        assert!((all.administration_per_endpoint - 4.0).abs() < 1e-9);
        assert!(all.join_time < Duration::from_secs(1), "{:?}", all.join_time);
    }

    #[test]
    fn acm_sample_differs_from_the_full_simulation_by_at_most_20_percent() {
        for loss_ppm in [0, 10_000] {
            let setup = Setup { endpoints: 256, recv_depth: 128, loss_ppm, ..Setup::default() };
            let all = run(&Setup { sample: 256, ..setup });
            let some = run(&Setup { sample: 32, ..setup });
            let near = |a: f64, b: f64| (a - b).abs() <= 0.2 * a.max(b);
            assert!(
                near(all.requests_per_endpoint, some.requests_per_endpoint),
                "{all:?} {some:?}"
            );
            assert!(
                near(all.deliveries_per_endpoint, some.deliveries_per_endpoint),
                "{all:?} {some:?}"
            );
            assert_eq!((all.overflows, some.overflows), (0, 0));
            assert_eq!(some.wrong + all.wrong, 0);
        }
    }

    #[test]
    fn acm_small_sample_results_do_not_depend_on_the_seed() {
        for seed in 1..=8 {
            // On average one endpoint of the sample sends at once.
            let setup = Setup { endpoints: 2048, sample: 64, recv_depth: 128, ..Setup::default() };
            let outcome = run(&Setup { seed, ..setup });
            assert_eq!((outcome.resolved, outcome.wrong), (64 * 2047, 0));
            assert_eq!(outcome.overflows, 0, "{outcome:?}");
            assert!(outcome.requests_per_endpoint < 1.5, "{outcome:?}");
        }
    }

    #[test]
    fn acm_scale_simulation_is_deterministic_for_a_seed() {
        let setup = Setup { endpoints: 128, sample: 32, loss_ppm: 1000, ..Setup::default() };
        let (a, b) = (run(&setup), run(&setup));
        assert_eq!((a.requests_per_endpoint, a.time), (b.requests_per_endpoint, b.time));
    }
}
