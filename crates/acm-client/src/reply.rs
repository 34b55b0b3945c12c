//! Answers that outlive the bytes that they came in.

use rdmux_wire::acm::ADDRESS_LEN;
use rdmux_wire::acm::client::{Answer, Counters, EndpointInfo, Paths, Statistic};
use rdmux_wire::layout::Text;

use crate::Error;

/// What a service has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Paths, to any question for one.
    Paths(Paths),
    /// Counters.
    Counters(Counters),
    /// An endpoint.
    Endpoint(Endpoint),
    /// How many entries of the cache were forgotten.
    Flushed(u64),
    /// All that the service counts.
    Statistics(Vec<Statistic>),
}

/// An endpoint of the service's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// What it is.
    pub info: EndpointInfo,
    /// Its names and addresses as text.
    pub addresses: Vec<Text<ADDRESS_LEN>>,
}

impl Reply {
    pub(crate) fn of(answer: Answer<'_>) -> Result<Self, Error> {
        Ok(match answer {
            Answer::Failed(op, status) => return Err(Error::Status(op, status)),
            Answer::Paths(paths) => Self::Paths(paths),
            Answer::Counters(counters) => Self::Counters(counters),
            Answer::Endpoint(endpoint) => Self::Endpoint(Endpoint {
                info: endpoint.info,
                addresses: endpoint.addresses().collect(),
            }),
            Answer::Flushed(entries) => Self::Flushed(entries),
            Answer::Statistics(all) => {
                Self::Statistics(all.iter().map(Statistic::from_bytes).collect())
            }
        })
    }
}
