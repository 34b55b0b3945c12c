//! What hosts have counted of the packets that they send, brought to the ports that the packets came by.
//!
//! Each way in a host's route table has a name of its own, by which the host's processes count ([`rdmux_link::rows`]). The trail of a way
//! is kept here under its name, until no process counts by it any more. What has been counted is read when somebody asks what ports have counted,
//! before a port's counters are set, and when ways have changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdmux_link::ib::IbDrop;
use rdmux_link::routes::RouteId;
use rdmux_link::rows::{Counted, MAX_PACKETS, RowRead, RowReader};
use rdmux_subnet::{Counter, DropReason, PacketKind, PortId, Subnet, Traffic, Trail};
use rdmux_wire::Lid;

use crate::bridge::Machine;
use crate::proto::RowEntry;

/// The most processes of a host that count, one for each slot of queue pair numbers and the host service.
const MAX_PROCESSES: usize = 2048;

/// How long a way is kept after tables have it no more, at the least: a process may count by it of which the host has told, and the
/// fabric has not heard yet.
const KEPT: Duration = Duration::from_secs(2);

/// The names of ways, and who counts by them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The last name.
    last: u64,
    ways: HashMap<RouteId, Named>,
    /// Names that tables do not have any more, by the port whose table had them, and since when.
    retired: BTreeMap<PortId, BTreeMap<RouteId, Retired>>,
    /// The ports with names that were retired since their rows were read.
    changed: BTreeSet<PortId>,
    /// The rows of processes, by the port of their host.
    rows: BTreeMap<PortId, BTreeMap<u16, RowReader>>,
    /// Hosts of other machines, whose bridges read the rows.
    far: BTreeMap<PortId, Far>,
}

/// A host of another machine.
#[derive(Debug)]
struct Far {
    machine: Arc<Machine>,
    /// The update of route tables after which its bridge looked at rows, and the ways by which processes counted then.
    made: u64,
    ways: BTreeSet<RouteId>,
}

/// When a way went out of use.
#[derive(Clone, Copy, Debug)]
struct Retired {
    since: Instant,
    /// The update of the route tables of another machine that takes it away.
    update: u64,
}

/// A way with a name.
#[derive(Debug)]
struct Named {
    from: PortId,
    trail: Arc<Trail>,
}

impl Counts {
    /// A name for a way from a port.
    pub(super) fn name(&mut self, from: PortId, trail: &Arc<Trail>) -> RouteId {
        self.last += 1;
        let id = RouteId(self.last);
        self.ways.insert(id, Named { from, trail: trail.clone() });
        id
    }

    /// The table of the port does not have this way any more, once it is published. Packets that were counted by it are still brought to
    /// its ports.
    pub(super) fn retire(&mut self, id: RouteId) {
        if let Some(way) = self.ways.get(&id) {
            let update = self.far.get(&way.from).map_or(0, |far| far.machine.sequence() + 1);
            let retired = Retired { since: Instant::now(), update };
            self.retired.entry(way.from).or_default().insert(id, retired);
            self.changed.insert(way.from);
        }
    }

    /// A process of a port's host counts in these rows from now on. False if there are too many.
    pub(super) fn open(&mut self, port: PortId, process: u16, rows: RowReader) -> bool {
        let all = self.rows.entry(port).or_default();
        let fits = all.len() < MAX_PROCESSES || all.contains_key(&process);
        if fits {
            all.insert(process, rows);
        }
        fits
    }

    /// The process is gone, or counts in other rows. What it has counted stays.
    pub(super) fn close(&mut self, subnet: &mut Subnet, port: PortId, process: u16) {
        self.read_port(subnet, port);
        if let Some(all) = self.rows.get_mut(&port) {
            all.remove(&process);
        }
    }

    /// The host is gone with all its processes.
    pub(super) fn close_all(&mut self, subnet: &mut Subnet, port: PortId) {
        self.read_port(subnet, port);
        self.rows.remove(&port);
        self.far.remove(&port);
    }

    /// The port is that of a host on another machine, whose bridge reads the rows.
    pub(super) fn open_far(&mut self, port: PortId, machine: Arc<Machine>) {
        self.far.insert(port, Far { machine, made: 0, ways: BTreeSet::new() });
    }

    /// What a bridge has read of a host's rows.
    pub(super) fn counted(&self, subnet: &mut Subnet, port: PortId, row: &RowEntry) {
        let &RowEntry { packets, words, .. } = row;
        let (packets, counted) = (packets.min(MAX_PACKETS), row.counted());
        apply(subnet, port, &self.ways, &RowRead { counted, packets, words, is_open: true });
    }

    /// By which ways a host's processes still counted after an update, as its bridge says.
    pub(super) fn counts_by(&mut self, port: PortId, made: u64, ways: Vec<u64>) {
        let Some(far) = self.far.get_mut(&port) else { return };
        (far.made, far.ways) = (made, ways.into_iter().map(RouteId).collect());
        self.forget(port, &BTreeSet::new());
    }

    /// Brings what has been counted to the ports.
    pub(super) fn read(&mut self, subnet: &mut Subnet) {
        let ports: Vec<_> = self.rows.keys().copied().collect();
        for port in ports {
            self.read_port(subnet, port);
        }
    }

    /// The same of those hosts that have dropped something themselves: what their ports tell of wrong keys.
    pub(super) fn read_dropped(&mut self, subnet: &mut Subnet) {
        let dropped = |rows: &BTreeMap<u16, RowReader>| rows.values().any(RowReader::has_dropped);
        let ports = self.rows.iter().filter(|(_, rows)| dropped(rows));
        let ports: Vec<_> = ports.map(|(port, _)| *port).collect();
        for port in ports {
            self.read_port(subnet, port);
        }
    }

    /// The same, where ways have changed, so that those by which nobody counts can be forgotten. The tables have been changed before.
    pub(super) fn read_changed(&mut self, subnet: &mut Subnet) {
        for port in std::mem::take(&mut self.changed) {
            self.read_port(subnet, port);
        }
    }

    fn read_port(&mut self, subnet: &mut Subnet, port: PortId) {
        let mut in_use = BTreeSet::new();
        let Self { rows, ways, .. } = self;
        for rows in rows.get_mut(&port).into_iter().flat_map(BTreeMap::values_mut) {
            rows.read(|row| {
                if let Some(id) = row.counted.route().filter(|_| row.is_open) {
                    in_use.insert(id);
                }
                apply(subnet, port, ways, row);
            });
        }
        self.forget(port, &in_use);
    }

    /// Forgets retired ways by which nobody counts.
    fn forget(&mut self, port: PortId, in_use: &BTreeSet<RouteId>) {
        let Some(retired) = self.retired.get_mut(&port) else { return };
        let (ways, far) = (&mut self.ways, self.far.get(&port));
        retired.retain(|id, retired| {
            let is_far = |far: &Far| far.made < retired.update || far.ways.contains(id);
            let in_use = in_use.contains(id) || far.is_some_and(is_far);
            let stays = in_use || retired.since.elapsed() < KEPT;
            if !stays {
                ways.remove(id);
            }
            stays
        });
        if retired.is_empty() {
            self.retired.remove(&port);
        }
    }
}

/// Has the ports count what a row says. A process may say anything of what it has sent itself.
fn apply(subnet: &mut Subnet, port: PortId, ways: &HashMap<RouteId, Named>, row: &RowRead) {
    let &RowRead { counted, packets, words, .. } = row;
    if packets == 0 && words == 0 {
        return;
    }
    match counted {
        Counted::Sent { route, dlid, sl, pkey, payload } => {
            let kind = PacketKind { sl, pkey, payload };
            let traffic = Traffic { packets, words, is_multicast: dlid.is_multicast() };
            if route == RouteId::NONE {
                let trail = trail_now(subnet, port, dlid);
                subnet.count_along(&trail, kind, traffic);
            } else if let Some(way) = ways.get(&route).filter(|way| way.from == port) {
                subnet.count_along(&way.trail, kind, traffic);
            }
        }
        Counted::Dropped(why) => {
            if let Some(why) = IbDrop::from_number(why) {
                drop_here(subnet, port, why, packets);
            }
        }
    }
}

/// Where packets to a LID go by the tables as they are. Tables have no name for LIDs that no host has.
fn trail_now(subnet: &Subnet, from: PortId, dlid: Lid) -> Trail {
    let mut trail = Trail::default();
    if dlid.is_multicast() {
        subnet.group_ways_along(from, dlid, &mut trail);
    } else {
        // Whether any arrive does not matter.
        let _ = subnet.way_along(from, dlid, &mut trail);
    }
    trail
}

/// What the port of a host counts of packets that it drops itself. Of other reasons it has no counter, as adapters have none.
fn drop_here(subnet: &mut Subnet, port: PortId, why: IbDrop, packets: u64) {
    match why {
        IbDrop::TxInactive => subnet.count_loss(port, DropReason::NotActive, packets),
        IbDrop::RxPkey => subnet.count_violations(port, DropReason::WrongPkey, packets),
        IbDrop::RxQkey => subnet.count_violations(port, DropReason::WrongQkey, packets),
        IbDrop::RxLid => subnet.count_loss(port, DropReason::WrongLid, packets),
        IbDrop::RxManagement => subnet.count_loss(port, DropReason::WrongQueuePair, packets),
        IbDrop::RxIcrc => subnet.count(port, Counter::PortRcvErrors, packets),
        IbDrop::RxVersion | IbDrop::RxMalformed => {
            subnet.count(port, Counter::PortRcvErrors, packets);
            subnet.count(port, Counter::PortMalformedPacketErrors, packets);
        }
        _ => {}
    }
}
