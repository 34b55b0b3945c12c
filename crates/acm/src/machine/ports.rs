//! Adding, changing and removing ports and endpoints.

use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;

use super::endpoint::{EndpointState, PortState, sorted};
use super::users::Turn;
use super::waiting::Waiting;
use super::{Machine, Timer};
use crate::cache::{Cache, Way};
use crate::{Endpoint, EndpointId, Failure, Forget, Io, Port, PortId, PortKind};

/// The changes of a port.
#[derive(Clone, Copy, Debug)]
struct Changes {
    /// Whether the LID or a GID changed.
    own: bool,
    /// Whether the subnet changed.
    prefix: bool,
    /// Whether the subnet manager changed.
    manager: bool,
    /// Whether the rate or the MTU changed.
    speed: bool,
}

impl Changes {
    fn between(old: &Port, new: &Port) -> Self {
        Self {
            own: (old.lid, old.lmc, &old.gids) != (new.lid, new.lmc, &new.gids),
            // The GIDs of other kinds of ports are IP addresses, which are added and removed individually.
            prefix: new.kind == PortKind::InfiniBand && old.gid().prefix() != new.gid().prefix(),
            manager: (old.sm_lid, old.sm_sl) != (new.sm_lid, new.sm_sl),
            speed: (old.rate, old.mtu) != (new.rate, new.mtu),
        }
    }
}

impl Machine {
    pub(super) fn port_of(&self, endpoint: EndpointId) -> Option<&Port> {
        let state = self.endpoints.get(&endpoint)?;
        Some(&self.ports.get(&state.endpoint.port)?.port)
    }

    fn endpoints_of(&self, port: PortId) -> Vec<EndpointId> {
        let of_port = self.endpoints.iter().filter(|(_, state)| state.endpoint.port == port);
        of_port.map(|(id, _)| *id).collect()
    }

    /// Adds a port or handles changes of its LID, subnet manager, GIDs, P_Keys or state. Cache entries that became invalid are
    /// removed.
    pub fn set_port(&mut self, now: Time, id: PortId, port: Port, io: &mut impl Io) {
        self.ticks(now);
        let Some(before) = self.ports.get_mut(&id) else {
            let state = PortState {
                port,
                routes_asked: 0,
                routes: Waiting::default(),
                turn: Turn::default(),
            };
            self.ports.insert(id, state);
            return;
        };
        let changes = Changes::between(&before.port, &port);
        before.port = port;
        for endpoint in self.endpoints_of(id) {
            self.port_changed(now, endpoint, changes, io);
        }
    }

    fn port_changed(&mut self, now: Time, id: EndpointId, changes: Changes, io: &mut impl Io) {
        let Some(port) = self.port_of(id) else { return };
        let (prefix, kind, gids) = (port.gid().prefix(), port.kind, port.gids.clone());
        if changes.prefix {
            self.forget(now, Forget::Endpoint(id), io);
        } else if changes.speed {
            self.drop_routes(id, io);
        } else if kind.is_ip() && changes.own {
            // Paths from addresses that the port still has remain valid.
            let has_source = |path: &PathRecord| gids.contains(&path.sgid);
            let goes = |way: &Way| matches!(way, Way::Path(path) if !has_source(path));
            self.drop_routes_if(id, goes, io);
        } else if changes.own || changes.manager {
            self.drop_routes(id, io);
        }
        if changes.prefix || changes.own || changes.manager || changes.speed {
            self.ask_routes_again(now, id, io);
        }
        let was_up = self.endpoints.get(&id).is_some_and(|state| state.is_up);
        self.update(now, id, io);
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        state.cache.prefix = prefix;
        if !state.is_up || !was_up {
            return;
        }
        if changes.own && self.options.announce {
            state.announce.clone_from(&state.endpoint.addresses);
        }
        if changes.speed {
            self.plan_groups(now, id, io);
        }
        if changes.prefix || changes.manager {
            self.rejoin(now, id, io);
        }
        self.pump(now, id, io);
    }

    /// Removes a port and its endpoints.
    pub fn remove_port(&mut self, now: Time, id: PortId, io: &mut impl Io) {
        for endpoint in self.endpoints_of(id) {
            self.remove_endpoint(now, endpoint, io);
        }
        self.ports.remove(&id);
    }

    /// Handles that the subnet manager has lost the port's memberships (client reregister). Routes may have changed,
    /// too.
    pub fn reregister(&mut self, now: Time, id: PortId, io: &mut impl Io) {
        self.ticks(now);
        for endpoint in self.endpoints_of(id) {
            self.drop_routes(endpoint, io);
            self.ask_routes_again(now, endpoint, io);
            self.rejoin(now, endpoint, io);
        }
    }

    /// Adds an endpoint, or handles changes of its addresses or its queue pair. Its port must be set before, and cannot change.
    pub fn set_endpoint(
        &mut self,
        now: Time,
        id: EndpointId,
        endpoint: Endpoint,
        io: &mut impl Io,
    ) {
        self.ticks(now);
        let moves = self.endpoints.get(&id).is_some_and(|state| {
            (state.endpoint.port, state.endpoint.pkey) != (endpoint.port, endpoint.pkey)
        });
        if moves {
            self.remove_endpoint(now, id, io);
        }
        let mut is_other_queue = false;
        if let Some(state) = self.endpoints.get_mut(&id) {
            is_other_queue = state.endpoint.qpn != endpoint.qpn;
            let before = core::mem::replace(&mut state.own, sorted(&endpoint.addresses));
            if self.options.announce && state.is_up {
                let is_new = |address: &&Address| before.binary_search(address).is_err();
                state.announce.retain(|address| state.own.binary_search(address).is_ok());
                state.announce.extend(endpoint.addresses.iter().filter(is_new));
            }
            state.endpoint = endpoint;
        } else {
            let mut cache = Cache::new(self.rng.key(), self.options.max_entries.max(1));
            let port = self.ports.get(&endpoint.port);
            cache.prefix = port.map_or(0, |state| state.port.gid().prefix());
            self.endpoints.insert(id, EndpointState::new(endpoint, cache));
        }
        self.forget_own(id, io);
        self.update(now, id, io);
        if is_other_queue {
            // It is attached to no group, and its send queue has room.
            self.rejoin(now, id, io);
            self.handle_room(now, id, io);
        }
        self.pump(now, id, io);
    }

    /// Removes the endpoint's own addresses from the caches.
    fn forget_own(&mut self, id: EndpointId, io: &mut impl Io) {
        let Some(state) = self.endpoints.get(&id) else { return };
        for address in state.endpoint.addresses.clone() {
            let Some(state) = self.endpoints.get(&id) else { return };
            if let Some(at) = state.cache.find(&state.cache.hashed(&address))
                && !state.cache.is_loaded(at)
            {
                self.drop_entry(id, at, io);
            }
        }
    }

    /// Removes an endpoint.
    pub fn remove_endpoint(&mut self, now: Time, id: EndpointId, io: &mut impl Io) {
        self.ticks(now);
        self.forget(now, Forget::Endpoint(id), io);
        self.unload(now, id, io);
        self.go_down(now, id, io);
        if let Some(mut state) = self.endpoints.remove(&id) {
            self.timers.clear(&mut state.pace.timer, Timer::Pace(id));
            self.counters += state.counters;
        }
    }

    /// Takes an endpoint up or down with its port.
    fn update(&mut self, now: Time, id: EndpointId, io: &mut impl Io) {
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        let is_up = self.ports.get(&state.endpoint.port).is_some_and(|state_of_port| {
            let port = &state_of_port.port;
            port.is_active && (port.kind.is_ip() || port.has_pkey(state.endpoint.pkey))
        });
        if is_up == state.is_up {
            return;
        }
        if is_up {
            state.is_up = true;
            self.plan_groups(now, id, io);
        } else {
            self.go_down(now, id, io);
        }
    }

    /// Takes an endpoint down, so that nothing can be sent any more. Its cache is kept.
    fn go_down(&mut self, now: Time, id: EndpointId, io: &mut impl Io) {
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        let port = state.endpoint.port;
        state.is_up = false;
        state.is_blocked = false;
        state.answers.clear();
        state.announce.clear();
        self.suspend_groups(id, io);
        let of_endpoint = self.searches.iter().filter(|(_, search)| search.endpoint == id);
        let searches: Vec<_> = of_endpoint.map(|(at, _)| super::place(at)).collect();
        for at in searches {
            self.conclude(now, at, Err(Failure::NotConnected), io);
        }
        if let Some(state) = self.endpoints.get_mut(&id) {
            let mut timer = core::mem::take(&mut state.pace.timer);
            self.timers.clear(&mut timer, Timer::Pace(id));
            state.pace.timer = Deadline::default();
        }
        // Its queries are over. Those of other endpoints at the port may be next.
        if self.ports.get(&port).is_some_and(|state| state.port.is_active) {
            self.pump_routes(now, port, io);
        }
    }
}
