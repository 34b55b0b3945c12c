//! The machine's state, for drivers to show.

use alloc::vec::Vec;

use rdmux_wire::Lid;
use rdmux_wire::sa::McMemberRecord;

use super::{Machine, Row};
use crate::cache::Way;
use crate::{Counters, Endpoint, EndpointId, Options, Port, PortId, User};

impl Machine {
    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the ports, in order.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.ports.iter().map(|(id, state)| (*id, &state.port))
    }

    /// Returns a port.
    pub fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(&id).map(|state| &state.port)
    }

    /// Returns the endpoints, in order.
    pub fn endpoints(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.endpoints.iter().map(|(id, state)| (*id, &state.endpoint))
    }

    /// Returns an endpoint.
    pub fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(&id).map(|state| &state.endpoint)
    }

    /// Returns whether the endpoint's port is active and has its P_Key, and the endpoint can send requests: on
    /// InfiniBand, it is in the lowest group.
    pub fn is_ready(&self, id: EndpointId) -> bool {
        let Some(state) = self.endpoints.get(&id).filter(|state| state.is_up) else { return false };
        let is_ip = self.port_of(id).is_some_and(|port| port.kind.is_ip());
        is_ip || state.groups.lowest().is_some()
    }

    /// Returns the groups that the endpoint is a member of, lowest first.
    pub fn groups(&self, endpoint: EndpointId) -> Vec<McMemberRecord> {
        let Some(state) = self.endpoints.get(&endpoint) else { return Vec::new() };
        let places = state.groups.joined();
        places.iter().filter_map(|at| state.groups.record(*at).copied()).collect()
    }

    /// Returns the counters of an endpoint, or the sum of all.
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

    /// Returns an endpoint's cache entries, in no order. They may have expired.
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

    /// Returns the number of cached addresses, and approximately their bytes.
    pub fn memory(&self) -> (usize, usize) {
        let caches = self.endpoints.values().map(|state| &state.cache);
        caches.fold((0, 0), |(count, bytes), cache| (count + cache.len(), bytes + cache.bytes()))
    }

    /// Returns the number of waiting requests, and of addresses being searched.
    pub fn open(&self) -> (usize, usize) {
        (self.requests.len(), self.searches.len())
    }

    /// Returns the number of a user's waiting requests, and of addresses being searched because of a request of this user.
    pub fn open_of(&self, user: User) -> (usize, usize) {
        let open = self.users.open(user);
        (open.requests, open.searches)
    }
}
