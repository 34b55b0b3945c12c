//! Answers that own their data.

use rdmux_wire::acm::ADDRESS_LEN;
use rdmux_wire::acm::client::{Answer, Counters, EndpointInfo, Paths, Statistic};
use rdmux_wire::layout::Text;

use crate::Error;

/// An answer of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The paths, for any query of a path.
    Paths(Paths),
    /// Counters.
    Counters(Counters),
    /// An endpoint.
    Endpoint(Endpoint),
    /// The number of invalidated cache entries.
    Flushed(u64),
    /// All counters of the service.
    Statistics(Vec<Statistic>),
}

/// An endpoint of the service's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The endpoint's attributes.
    pub info: EndpointInfo,
    /// The endpoint's names and addresses as text.
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
