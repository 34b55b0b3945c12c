//! Services that ports have registered (IBTA 15.2.5.14).

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use rdmux_wire::mad::status;
use rdmux_wire::sa::{ServiceRecord, ServiceRecordMask as Mask};
use rdmux_wire::{Gid, Guid, Pkey, ServiceId};

use super::groups::has_partition;
use super::request::Request;
use super::table::Table;
use super::{AdministrationSink, Context, State, Status, View};
use crate::Time;

/// A lease that does not expire.
const FOR_EVER: u32 = u32::MAX;

/// The key of a service.
type Key = (ServiceId, Gid, Pkey);

/// The registered services.
#[derive(Debug, Default)]
pub(super) struct Services {
    by_key: BTreeMap<Key, Service>,
    /// The times at which leases expire.
    ends: BTreeSet<(Time, Key)>,
    /// The number of services of each port.
    by_port: BTreeMap<Guid, usize>,
}

/// A registered service.
#[derive(Clone, Debug)]
struct Service {
    record: ServiceRecord,
    ends: Option<Time>,
    /// The port that registered the service.
    port: Guid,
}

impl Services {
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.ends.first().map(|&(at, _)| at)
    }

    /// Removes services whose lease has expired.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, key)) = self.ends.first() {
            if at > now {
                return;
            }
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Service> {
        let service = self.by_key.remove(key)?;
        if let Some(at) = service.ends {
            self.ends.remove(&(at, *key));
        }
        if let Some(count) = self.by_port.get_mut(&service.port) {
            *count -= 1;
            if *count == 0 {
                self.by_port.remove(&service.port);
            }
        }
        Some(service)
    }

    fn insert(&mut self, key: Key, service: Service) {
        self.remove(&key);
        if let Some(at) = service.ends {
            self.ends.insert((at, key));
        }
        *self.by_port.entry(service.port).or_default() += 1;
        self.by_key.insert(key, service);
    }
}

impl Service {
    /// Returns whether a request presents the service's key, if the service has one.
    fn is_shown(&self, key: &[u8; 16]) -> bool {
        self.record.service_key == [0; 16] || self.record.service_key == *key
    }

    /// Returns the record with the remaining lease.
    fn record(&self, now: Time, trusted: bool) -> ServiceRecord {
        let left = |at: Time| u32::try_from(at.since(now).as_secs()).unwrap_or(FOR_EVER);
        ServiceRecord {
            service_lease: self.ends.map_or(FOR_EVER, left),
            service_key: if trusted { self.record.service_key } else { [0; 16] },
            ..self.record
        }
    }
}

/// Answers a Get or GetTable of ServiceRecord.
pub(super) fn read(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    // Untrusted clients cannot probe for a key. The lease changes every second and is not matched.
    let hidden = if request.trusted { Mask::empty() } else { Mask::SERVICE_KEY };
    let pattern = request.pattern::<ServiceRecord>((hidden | Mask::SERVICE_LEASE).bits())?;
    for service in view.state.services.by_key.values() {
        let pkey = service.record.service_pkey;
        if request.trusted || pkey == Pkey(0) || has_partition(&request.requester.pkeys, pkey) {
            table.push_if(&pattern, &service.record(view.cx.now, request.trusted))?;
        }
    }
    Ok(())
}

/// Handles a Set of ServiceRecord: registers a service.
pub(super) fn register(
    state: &mut State,
    cx: &Context<'_>,
    request: &Request<'_>,
    table: &mut Table,
    _: &mut dyn AdministrationSink,
) -> Result<(), Status> {
    let mut record: ServiceRecord = request.record()?;
    let mask = Mask::from_bits_retain(request.mask());
    let all = !mask.contains(Mask::SERVICE_PKEY);
    if all {
        // A component that is not in the mask has no meaning.
        record.service_pkey = Pkey(0);
    }
    let pkey = record.service_pkey;
    let owns =
        all || has_partition(&request.requester.pkeys, pkey) && is_in(cx, record.service_gid, pkey);
    if !mask.contains(Mask::SERVICE_ID | Mask::SERVICE_GID) || !owns {
        return Err(status::SA_REQUEST_INVALID);
    }
    let key = (record.service_id, record.service_gid, pkey);
    let services = &mut state.services;
    let old = services.by_key.get(&key);
    if old.is_some_and(|old| !old.is_shown(&record.service_key)) {
        return Err(status::SA_REQUEST_INVALID);
    }
    let port = request.requester.guid;
    let has = services.by_port.get(&port).copied().unwrap_or(0);
    let is_own = old.is_some_and(|old| old.port == port);
    let full = services.by_key.len() >= cx.config.services && old.is_none();
    if full || has >= cx.config.services_of_port && !is_own {
        return Err(status::SA_NO_RESOURCES);
    }
    if !mask.contains(Mask::SERVICE_LEASE) {
        record.service_lease = FOR_EVER;
    }
    let lease = Duration::from_secs(record.service_lease.into());
    let ends = (record.service_lease != FOR_EVER).then(|| cx.now.after(lease));
    services.insert(key, Service { record, ends, port });
    let shown = if request.trusted { record.service_key } else { [0; 16] };
    let service_pkey = if all { Pkey::DEFAULT } else { pkey };
    table.push(&ServiceRecord { service_pkey, service_key: shown, ..record })
}

/// Returns whether a GID may have a service in a partition: a group's, or that of a port in the partition.
fn is_in(cx: &Context<'_>, gid: Gid, pkey: Pkey) -> bool {
    let port = cx.model.by_port_guid(gid.guid()).and_then(|at| cx.model.port(at));
    gid.is_multicast() || port.is_some_and(|port| has_partition(&port.pkeys, pkey))
}

/// Handles a Delete of ServiceRecord: removes a service.
pub(super) fn unregister(
    state: &mut State,
    cx: &Context<'_>,
    request: &Request<'_>,
    table: &mut Table,
    _: &mut dyn AdministrationSink,
) -> Result<(), Status> {
    let record: ServiceRecord = request.record()?;
    let pkey = record.service_pkey;
    let sees = pkey == Pkey(0) || has_partition(&request.requester.pkeys, pkey);
    let named = request.has(Mask::SERVICE_PKEY.bits());
    if named && !sees {
        return Err(status::SA_REQUEST_INVALID);
    }
    let services = &mut state.services;
    let key_in = |pkey| (record.service_id, record.service_gid, pkey);
    // Programs send back the record that they received, also with a mask without the P_Key.
    let known = sees && services.by_key.contains_key(&key_in(pkey));
    let key = key_in(if named || known { pkey } else { Pkey(0) });
    let service = services.by_key.get(&key).ok_or(status::SA_NO_RECORDS)?;
    if !service.is_shown(&record.service_key) {
        return Err(status::SA_REQUEST_INVALID);
    }
    let answer = service.record(cx.now, request.trusted);
    services.remove(&key);
    table.push(&answer)
}
