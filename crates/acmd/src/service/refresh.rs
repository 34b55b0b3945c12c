//! Refreshes ports, endpoints and addresses: notifies the machine of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use std::time::Instant;

use rdmux::{DeviceKind, Gid, Pkey};
use rdmux_acm::{Endpoint, EndpointId, PortId, PortKind};
use rdmux_acm_files::addresses::{Assignment, Assignments, PkeyChoice};
use rdmux_acm_files::{Problem, Report, Severity, names};
use rdmux_wire::acm::Address;

use super::{Service, time};
use crate::devices::{At, Seen};
use crate::driver::{EndpointIo, Later, PortIo};
use crate::mads::{Administration, Mads};
use crate::poller::{Interest, Token};
use crate::queue::{Queue, Shape};
use crate::system::ip_of;

/// The minimum number of outstanding sends of an endpoint.
const MIN_SENDS: u32 = 64;

/// An endpoint as reported to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// The endpoint's port.
    pub(super) at: At,
    /// The description for the machine.
    endpoint: Endpoint,
    /// The index of the endpoint's P_Key, and the number of its queue pair's receives.
    shape: (u16, u32),
}

/// Something that the service needs, and that can fail to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Needed {
    /// A port's access to subnet administration.
    Mads(At),
    /// The queue pair of an endpoint.
    Queue(EndpointId),
    /// The sockets that clients connect to.
    Sockets,
}

impl Planned {
    /// Returns the endpoint's partition.
    pub(super) fn pkey(&self) -> Pkey {
        self.endpoint.pkey
    }
}

/// The required endpoints: their partitions, and their names and addresses.
type Wanted = BTreeMap<(At, Pkey), Vec<Address>>;

impl Service {
    /// Refreshes everything.
    pub(super) fn refresh(&mut self) {
        self.devices.open(Instant::now(), &self.poller);
        let mut found = self.devices.see();
        // The ports of a device that is being opened again stay, but are not active meanwhile.
        for (at, seen) in &self.seen {
            if self.devices.context(at.kind).is_none() {
                let mut seen = seen.clone();
                seen.port.is_active = false;
                found.insert(*at, seen);
            }
        }
        let gone: Vec<At> =
            self.seen.keys().filter(|at| !found.contains_key(at)).copied().collect();
        for at in gone {
            self.remove_port(at);
        }
        let generated = || generated(&found, &self.sources.name);
        let file = self.config.assignments.as_ref();
        let assignments = file.map_or_else(generated, |file| file.all.clone());
        let wanted = wanted(&found, &assignments);
        let unmet = file.map(|file| unmet(&found, file, &self.sources.addresses_path()));
        self.tell_unmet(unmet.unwrap_or_default());
        for (at, seen) in found {
            self.set_port(at, seen);
        }
        self.set_endpoints(&wanted);
        self.load();
        self.driver.forgive_claims();
        self.listen_anew();
    }

    /// Logs that something cannot be had, and schedules another attempt.
    pub(super) fn retry(&mut self, what: Needed, why: &impl Display) {
        let at = self.failures.tell(Instant::now(), what, why);
        // A refresh before then tries again, too.
        if !self.look.iter().any(|look| *look <= at) {
            self.look.push(at);
        }
    }

    /// Logs which lines of the file of addresses have no port, unless that has been logged.
    fn tell_unmet(&mut self, unmet: Report) {
        if self.unmet == unmet {
            return;
        }
        for problem in unmet.problems() {
            tracing::warn!("{problem}");
        }
        self.unmet = unmet;
    }

    /// Notifies the machine of a new or changed port.
    fn set_port(&mut self, at: At, seen: Seen) {
        let id = self.devices.id(at);
        let to = Administration { lid: seen.port.sm_lid, sl: seen.port.sm_sl };
        let new = || PortIo { number: at.number, to, mads: None };
        self.driver.ports.entry(id).or_insert_with(new).to = to;
        if seen.port.kind == PortKind::InfiniBand && seen.port.is_active {
            self.open_mads(at, id);
        }
        if self.seen.get(&at).is_some_and(|known| known.port == seen.port) {
            self.seen.insert(at, seen);
            return;
        }
        let port = &seen.port;
        tracing::info!(
            "{} port {}: {}, lid {}, sm lid {}, {} GIDs, {} P_Keys",
            seen.device,
            at.number,
            if port.is_active { "active" } else { "not active" },
            port.lid.0,
            port.sm_lid.0,
            port.gids.len(),
            port.pkeys.len()
        );
        self.resolver.change().set_port(time(), id, port.clone(), &mut self.driver);
        self.seen.insert(at, seen);
    }

    /// Opens a port's access to subnet administration, if it is not open.
    fn open_mads(&mut self, at: At, id: PortId) {
        let Some(port) = self.driver.ports.get_mut(&id).filter(|port| port.mads.is_none()) else {
            return;
        };
        let Some(context) = self.devices.context(at.kind) else { return };
        let opened = Mads::open(context, at.number).and_then(|mads| {
            let watched = self.poller.add(&mads, Token::Mads(id.0.into()), Interest::Read);
            watched.map(|()| mads).map_err(|e| {
                rdmux::Error::new(context.to_string(), "be watched", rdmux::Cause::Os(e))
            })
        });
        match opened {
            Ok(mads) => {
                port.mads = Some(mads);
                self.failures.end(&Needed::Mads(at));
            }
            Err(e) => self.retry(Needed::Mads(at), &e),
        }
    }

    /// Closes a port's access to subnet administration. Outstanding queries are unanswered.
    pub(super) fn close_mads(&mut self, id: PortId) {
        let mads = self.driver.ports.get_mut(&id).and_then(|port| port.mads.take());
        if let Some(mads) = mads {
            self.poller.remove(&mads);
            self.driver.later.extend(mads.give_up().map(Later::Sa));
        }
    }

    /// Closes everything of a port that belongs to its device.
    pub(super) fn close_port(&mut self, at: At) {
        let id = self.devices.id(at);
        self.close_mads(id);
        let endpoints: Vec<EndpointId> =
            self.planned.iter().filter(|(_, p)| p.at == at).map(|(id, _)| *id).collect();
        for endpoint in endpoints {
            self.close_queue(endpoint);
        }
    }

    fn remove_port(&mut self, at: At) {
        self.close_port(at);
        let id = self.devices.id(at);
        self.resolver.change().remove_port(time(), id, &mut self.driver);
        let endpoints: Vec<EndpointId> =
            self.planned.iter().filter(|(_, p)| p.at == at).map(|(id, _)| *id).collect();
        endpoints.into_iter().for_each(|id| self.forget_endpoint(id));
        self.driver.ports.remove(&id);
        self.failures.end(&Needed::Mads(at));
        if let Some(seen) = self.seen.remove(&at) {
            tracing::info!("{} port {} is gone", seen.device, at.number);
        }
    }

    fn close_queue(&mut self, id: EndpointId) {
        self.driver.close_queue(id);
        self.busy.remove(&id);
    }

    /// Notifies the machine of endpoints that are new, have changed, or are gone.
    fn set_endpoints(&mut self, wanted: &Wanted) {
        let mut kept = BTreeSet::new();
        for ((at, pkey), addresses) in wanted {
            let id = self.endpoint_id(*at, *pkey);
            kept.insert(id);
            self.set_endpoint(id, *at, *pkey, addresses);
        }
        let gone: Vec<EndpointId> =
            self.planned.keys().filter(|id| !kept.contains(id)).copied().collect();
        for id in gone {
            self.resolver.change().remove_endpoint(time(), id, &mut self.driver);
            self.close_queue(id);
            self.forget_endpoint(id);
        }
        let is_down = |id: &&EndpointId| !self.resolver.get().is_up(**id);
        let down = self.planned.keys().filter(is_down).copied().collect();
        if self.driver.cache.set_down(down) {
            self.resolver.change().published_nothing();
        }
    }

    /// Removes an endpoint that the machine does not have any more, and whose queue pair is closed.
    fn forget_endpoint(&mut self, id: EndpointId) {
        self.driver.endpoints.remove(&id);
        if self.driver.cache.forget(id) {
            self.resolver.change().published_nothing();
        }
        self.planned.remove(&id);
        self.failures.end(&Needed::Queue(id));
    }

    /// Returns the number of an endpoint, which does not change while it exists.
    fn endpoint_id(&self, at: At, pkey: Pkey) -> EndpointId {
        let same = |planned: &Planned| {
            planned.at == at && (planned.endpoint.pkey.0 ^ pkey.0) & 0x7fff == 0
        };
        let known = self.planned.iter().find(|(_, planned)| same(planned));
        known.map_or_else(
            || {
                // InfiniBand endpoints precede others in the lists of clients, and when a source is chosen.
                let first = first_id(at.kind);
                let free = (first..).map(EndpointId).find(|id| !self.planned.contains_key(id));
                free.unwrap_or_default()
            },
            |(id, _)| *id,
        )
    }

    fn set_endpoint(&mut self, id: EndpointId, at: At, pkey: Pkey, addresses: &[Address]) {
        let port = self.devices.id(at);
        let index = self.seen.get(&at).and_then(|seen| seen.pkey(pkey)).map_or(0, |(i, _)| i);
        let shape = (index, self.config.options.machine.recv_depth);
        self.driver.endpoints.entry(id).or_insert_with(|| EndpointIo::new(port));
        if self.planned.get(&id).is_some_and(|planned| planned.shape != shape) {
            self.close_queue(id);
        }
        self.open_queue(id, at, shape);
        let queue = self.driver.endpoints.get(&id).and_then(|endpoint| endpoint.queue.as_ref());
        let qpn = queue.map(Queue::qpn).unwrap_or_default();
        let endpoint = Endpoint { port, pkey, qpn, addresses: addresses.to_vec() };
        let planned = Planned { at, endpoint, shape };
        if self.planned.get(&id) == Some(&planned) {
            return;
        }
        let names: Vec<String> = addresses.iter().map(Address::to_string).collect();
        tracing::info!(
            "endpoint {} at {} port {}, pkey {pkey}, queue pair {qpn}: {}",
            id.0,
            self.seen.get(&at).map_or("?", |seen| &seen.device),
            at.number,
            names.join(", ")
        );
        if self.driver.cache.set_endpoint(id, &sources(at.kind, addresses)) {
            self.resolver.change().published_nothing();
        }
        self.resolver.change().set_endpoint(time(), id, planned.endpoint.clone(), &mut self.driver);
        self.planned.insert(id, planned);
    }

    /// Creates the queue pair of an endpoint, if it needs one and has none.
    fn open_queue(&mut self, id: EndpointId, at: At, (pkey_index, receives): (u16, u32)) {
        let is_up = self.seen.get(&at).is_some_and(|seen| seen.port.is_active);
        let has = self.driver.endpoints.get(&id).is_some_and(|e| e.queue.is_some());
        if at.kind != DeviceKind::Ib || !is_up || has {
            return;
        }
        let Some(context) = self.devices.context(at.kind) else { return };
        let sends = self.config.options.machine.send_depth.max(MIN_SENDS);
        let shape = Shape { port: at.number, pkey_index, receives, sends };
        match Queue::open(context, shape) {
            Ok(queue) => {
                if let Some(endpoint) = self.driver.endpoints.get_mut(&id) {
                    endpoint.queue = Some(queue);
                }
                self.failures.end(&Needed::Queue(id));
            }
            Err(e) => self.retry(Needed::Queue(id), &e),
        }
    }
}

/// Returns the first endpoint number for a kind of device.
fn first_id(kind: DeviceKind) -> u16 {
    match kind {
        DeviceKind::Ib => 0,
        DeviceKind::Roce => 0x4000,
        DeviceKind::Iwarp => 0x8000,
    }
}

/// Returns the addresses by which programs name an endpoint as a source: its addresses, and off a fabric also their GIDs.
fn sources(kind: DeviceKind, addresses: &[Address]) -> Vec<Address> {
    let ips = addresses.iter().filter(|_| kind != DeviceKind::Ib).filter_map(ip_of);
    addresses.iter().copied().chain(ips.map(|ip| Gid::from(ip).into())).collect()
}

/// Returns the names for a host without a file of addresses, those that `ib_acme -A` would write into it.
fn generated(found: &BTreeMap<At, Seen>, host: &str) -> Vec<Assignment> {
    let named: Vec<names::Port<'_>> = found.iter().map(named).collect();
    let ports: Vec<(&At, &Seen)> = found.iter().collect();
    let assignment = |(name, index): (String, usize)| {
        let (at, seen) = ports[index];
        let (device, port, pkey) = (seen.device.clone(), at.number, PkeyChoice::First);
        Address::name(name).map(|address| Assignment { address, device, port, pkey })
    };
    names::of_ports(host, &named).into_iter().filter_map(assignment).collect()
}

fn named<'a>((at, seen): (&At, &'a Seen)) -> names::Port<'a> {
    let is_of_subnet = at.kind == DeviceKind::Ib;
    names::Port { device: &seen.device, is_active: seen.port.is_active, is_of_subnet }
}

/// Returns the endpoint of a line of the file of addresses, or the reason why it has none now. Device names are case-insensitive, as
/// for ibacm.
fn endpoint_of(found: &BTreeMap<At, Seen>, line: &Assignment) -> Result<(At, Pkey), String> {
    let Assignment { device, port, .. } = line;
    let mut of_device = found.iter().filter(|(_, seen)| seen.device.eq_ignore_ascii_case(device));
    let Some((at, seen)) = of_device.clone().find(|(at, _)| at.number == *port) else {
        return Err(of_device.next().map_or_else(
            || no_device(found, device),
            |(_, seen)| format!("{device} has the ports 1 to {}, and no {port}", seen.port.count),
        ));
    };
    let pkey = match line.pkey {
        PkeyChoice::First => seen.default_pkey(),
        PkeyChoice::Of(pkey) => seen.pkey(pkey).map(|(_, pkey)| pkey),
    };
    pkey.map(|pkey| (*at, pkey)).ok_or_else(|| match line.pkey {
        PkeyChoice::First => format!("{device} port {port} has no P_Key at this time"),
        PkeyChoice::Of(pkey) => format!(
            "{device} port {port} is not in partition {pkey} at this time; ibv_devinfo -v shows its P_Keys"
        ),
    })
}

fn no_device(found: &BTreeMap<At, Seen>, device: &str) -> String {
    let names: BTreeSet<&str> = found.values().map(|seen| seen.device.as_str()).collect();
    let there = match names.len() {
        0 => "none".to_owned(),
        _ => names.into_iter().collect::<Vec<_>>().join(", "),
    };
    format!("there is no device {device} at this time, but {there}")
}

/// Returns the lines of the file of addresses that have no endpoint now, each with the reason. A port may match them later.
pub(crate) fn unmet(found: &BTreeMap<At, Seen>, file: &Assignments, path: &Path) -> Report {
    let mut report = Report::default();
    for (line, number) in file.all.iter().zip(&file.lines) {
        let Err(what) = endpoint_of(found, line) else { continue };
        let what = format!("{} is not used: {what}", line.address);
        let (file, severity) = (path.display().to_string(), Severity::Warning);
        report.push(Problem { file, line: *number, severity, what });
    }
    report
}

/// Returns the required endpoints: those that the file of addresses names, and those that have the host's IP addresses. Each address
/// of the host belongs to the first port of a kind that has it, in the default partition.
fn wanted(found: &BTreeMap<At, Seen>, assignments: &[Assignment]) -> Wanted {
    let mut wanted = Wanted::new();
    let mut known = BTreeSet::new();
    for assignment in assignments {
        let Ok((at, pkey)) = endpoint_of(found, assignment) else { continue };
        if known.insert((at, pkey, assignment.address)) {
            wanted.entry((at, pkey)).or_default().push(assignment.address);
        }
    }
    let mut taken = BTreeSet::new();
    for (at, seen) in found {
        let Some(pkey) = seen.default_pkey() else { continue };
        for entry in &seen.addresses {
            let address = Address::from(entry.gid.ip());
            if taken.insert((at.kind, address)) && known.insert((*at, pkey, address)) {
                wanted.entry((*at, pkey)).or_default().push(address);
            }
        }
    }
    // ibacm opens an endpoint once it has a name or an address.
    wanted.retain(|_, addresses| !addresses.is_empty());
    wanted
}

#[cfg(test)]
mod tests;
