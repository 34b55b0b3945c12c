//! The outcome of a simulation, compared with subnet administration alone.

use std::time::Duration;

use rdmux_acm::Time;
use serde::{Serialize, Serializer};

use super::Setup;
use super::node::{ENDPOINT, Node};
use super::world::START;

/// The counters of the world.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The time at which the last endpoint had joined its groups.
    pub(super) joined: Time,
    /// The time at which the last pair was resolved.
    pub(super) end: Time,
    pub(super) cpu: Duration,
    pub(super) warm_cpu: Duration,
    pub(super) requests: u64,
    pub(super) responses: u64,
    pub(super) others: u64,
    pub(super) lost: u64,
    pub(super) resolved: u64,
    pub(super) warm: u64,
    pub(super) warm_requests: u64,
    /// Whether a client has received an answer.
    pub(super) is_news: bool,
}

/// The outcome of a simulation, in JSON with times in seconds. Numbers per endpoint are means, except for those called "most".
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The number of endpoints.
    pub endpoints: u32,
    /// The number of endpoints that were simulated.
    pub sample: u32,
    /// Lost deliveries per million.
    pub loss_ppm: u32,
    /// Multicast requests that an endpoint sent.
    pub requests_per_endpoint: f64,
    /// Datagrams delivered to an endpoint: others' requests, and answers.
    pub deliveries_per_endpoint: f64,
    /// Datagrams delivered to the endpoint that got most.
    pub most_deliveries: u64,
    /// Answers that an endpoint sent.
    pub answers_per_endpoint: f64,
    /// Subnet administration datagrams per endpoint: queries and answers of joins.
    pub administration_per_endpoint: f64,
    /// Datagrams on each link of the multicast tree between switches, on the way down.
    pub messages_per_link: u64,
    /// The time from the first request to the last resolved pair.
    #[serde(serialize_with = "seconds")]
    pub time: Duration,
    /// The time from the start to the last join.
    #[serde(serialize_with = "seconds")]
    pub join_time: Duration,
    /// Pairs that the sampled endpoints resolved.
    pub resolved: u64,
    /// Paths that led to a wrong destination.
    pub wrong: u64,
    /// Failed requests of clients, which were repeated.
    pub failures: u64,
    /// Deliveries to sampled endpoints that the network lost.
    pub lost: u64,
    /// Deliveries dropped for lack of a receive buffer.
    pub overflows: u64,
    /// The most receive buffers of an endpoint in use.
    pub most_buffers: u64,
    /// Bytes of an endpoint's cache.
    pub bytes_per_endpoint: u64,
    /// Bytes of the cache per address.
    pub bytes_per_address: f64,
    /// Processor time per datagram that an endpoint receives, with all effects and the simulation's own work.
    pub nanoseconds_per_delivery: f64,
    /// Processor time of resolving a cached address.
    pub nanoseconds_per_warm_resolve: f64,
    /// Requests that were sent for cached addresses.
    pub warm_requests: u64,
    /// Processor time of the simulation.
    #[serde(serialize_with = "seconds")]
    pub cpu: Duration,
    /// The cost of the same pairs by subnet administration alone.
    pub by_sa: BySa,
}

/// The cost of all pairs by queries to subnet administration.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BySa {
    /// Datagrams received and sent.
    pub messages: u64,
    /// The processing time at each of the rates.
    #[serde(serialize_with = "seconds_each")]
    pub time: [Duration; 2],
}

/// Path queries per second that subnet administrations answer.
#[derive(Clone, Copy, Debug)]
pub struct SaRates;

impl SaRates {
    /// The rates of rdmux and of OpenSM, with 64 queries outstanding on a subnet of 3,240 nodes, measured by `rdmux bench
    /// --peers --only sa-paths-64`, see docs/performance.md.
    pub const MEASURED: [f64; 2] = [268_230.0, 76_638.0];
}

impl BySa {
    /// Returns the cost for a number of endpoints.
    pub fn of(endpoints: u32) -> Self {
        let pairs = u64::from(endpoints) * u64::from(endpoints - 1);
        #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
        let time = SaRates::MEASURED.map(|rate| Duration::from_secs_f64(pairs as f64 / rate));
        Self { messages: pairs * 2, time }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures to read")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

fn seconds_each<S: Serializer>(times: &[Duration; 2], serializer: S) -> Result<S::Ok, S::Error> {
    times.map(|time| time.as_secs_f64()).serialize(serializer)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Outcome {
    pub(super) fn new(setup: &Setup, counts: &Counts, nodes: &[Node], administration: u64) -> Self {
        let (endpoints, sample) = (u64::from(setup.endpoints), u64::from(setup.sample));
        let sum = |f: fn(&Node) -> u64| nodes.iter().map(f).sum::<u64>();
        let deliveries = sum(|node| node.received);
        let (addresses, bytes) = nodes.iter().fold((0, 0), |(addresses, bytes), node| {
            let (count, size) = node.machine.memory();
            (addresses + count as u64, bytes + size as u64)
        });
        let requests = counts.requests - counts.warm_requests;
        let answers = sum(|node| node.machine.counters(Some(ENDPOINT)).sent_answers);
        // Answers of a sampled endpoint for its crowd are counted by the world.
        let answers = counts.responses.max(answers);
        Self {
            endpoints: setup.endpoints,
            sample: setup.sample,
            loss_ppm: setup.loss_ppm,
            requests_per_endpoint: ratio(requests, endpoints),
            deliveries_per_endpoint: ratio(deliveries, sample),
            most_deliveries: nodes.iter().map(|node| node.received).max().unwrap_or(0),
            answers_per_endpoint: ratio(answers, endpoints),
            administration_per_endpoint: ratio(administration, endpoints),
            messages_per_link: requests,
            time: counts.end.since(counts.joined),
            join_time: counts.joined.since(START),
            resolved: counts.resolved,
            wrong: sum(|node| node.wrong),
            failures: sum(|node| node.failures),
            lost: counts.lost,
            overflows: sum(|node| node.overflows),
            most_buffers: nodes.iter().map(|node| node.most_buffers).max().unwrap_or(0),
            bytes_per_endpoint: bytes / sample,
            bytes_per_address: ratio(bytes, addresses),
            nanoseconds_per_delivery: ratio(nanoseconds(counts.cpu), deliveries),
            nanoseconds_per_warm_resolve: ratio(nanoseconds(counts.warm_cpu), counts.warm),
            warm_requests: counts.warm_requests,
            cpu: counts.cpu,
            by_sa: BySa::of(setup.endpoints),
        }
    }
}
