//! What drivers show of the machine.

use alloc::vec::Vec;

use rdmux_wire::Lid;
use rdmux_wire::sa::McMemberRecord;

use super::{Machine, Row};
use crate::cache::Way;
use crate::{Counters, Endpoint, EndpointId, Options, Port, PortId};

impl Machine {
    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The ports, in order.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.ports.iter().map(|(id, state)| (*id, &state.port))
    }

    /// A port.
    pub fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(&id).map(|state| &state.port)
    }

    /// The endpoints, in order.
    pub fn endpoints(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.endpoints.iter().map(|(id, state)| (*id, &state.endpoint))
    }

    /// An endpoint.
    pub fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(&id).map(|state| &state.endpoint)
    }

    /// Whether the endpoint's port is active and has its P_Key, and it can ask: on InfiniBand it is in the lowest group.
    pub fn is_ready(&self, id: EndpointId) -> bool {
        let Some(state) = self.endpoints.get(&id).filter(|state| state.is_up) else { return false };
        let is_ip = self.port_of(id).is_some_and(|port| port.kind.is_ip());
        is_ip || state.groups.lowest().is_some()
    }

    /// The groups that the endpoint is a member of, from the lowest.
    pub fn groups(&self, endpoint: EndpointId) -> Vec<McMemberRecord> {
        let Some(state) = self.endpoints.get(&endpoint) else { return Vec::new() };
        let places = state.groups.joined();
        places.iter().filter_map(|at| state.groups.record(*at).copied()).collect()
    }

    /// What an endpoint has counted, or all together.
    pub fn counters(&self, endpoint: Option<EndpointId>) -> Counters {
        match endpoint {
            Some(id) => self.endpoints.get(&id).map(|state| state.counters).unwrap_or_default(),
            None => {
                let mut all = self.counters;
                for state in self.endpoints.values() {
                    all += state.counters;
                }
                all
            }
        }
    }

    /// What an endpoint knows, in no order. It may have expired.
    pub fn known(&self, endpoint: EndpointId) -> impl Iterator<Item = Row> {
        let state = self.endpoints.get(&endpoint);
        state.into_iter().flat_map(move |state| {
            (0..state.cache.len()).filter_map(move |at| {
                let (cache, port) = (&state.cache, self.port_of(endpoint)?);
                let holder = cache.holder(at);
                let (until, route_until) = cache.ends(at);
                let has_way = cache.way(at, 0) != Way::None;
                let route_end = if has_way { route_until } else { until };
                let is_nobody = cache.is_negative(at);
                let path = state.path(port, self.options.route_protocol, at, 0);
                Some(Row {
                    address: cache.address(at),
                    gid: if is_nobody { rdmux_wire::Gid::ZERO } else { holder.gid },
                    lid: if is_nobody { Lid::NONE } else { holder.lid },
                    path,
                    until: self.time(until),
                    route_until: self.time(route_end),
                    is_used: cache.is_used(at),
                    is_loaded: cache.is_loaded(at),
                })
            })
        })
    }

    /// How many addresses are known, and about how many bytes they take.
    pub fn memory(&self) -> (usize, usize) {
        let caches = self.endpoints.values().map(|state| &state.cache);
        caches.fold((0, 0), |(count, bytes), cache| (count + cache.len(), bytes + cache.bytes()))
    }

    /// How many requests wait for answers, and how many addresses are asked for.
    pub fn open(&self) -> (usize, usize) {
        (self.requests.len(), self.searches.len())
    }
}
