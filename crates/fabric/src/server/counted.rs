//! Adds the packets that hosts have counted to the counters of the ports on their routes.
//!
//! Each route in a host's table has an ID, under which the host's processes count ([`rdmux_link::rows`]). The ports on a route are kept
//! here under its id until no process counts under it any more. The rows are read when a client requests ports' counters, before a port's
//! counters are set, and when routes have changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdmux_link::ib::IbDrop;
use rdmux_link::routes::RouteId;
use rdmux_link::rows::{Counted, MAX_PACKETS, RowRead, RowReader};
use rdmux_runtime::{Exceeded, Shares};
use rdmux_subnet::{Counter, DropReason, PacketKind, PortId, Subnet, Traffic, Trail};
use rdmux_wire::Lid;

use crate::bridge::Machine;
use crate::process_rows::{self, MAX_PROCESSES, ProcessRows};
use crate::proto::RowEntry;

/// The minimum time for which a route is kept after it was removed from tables, because a process may count by it whose rows the
/// host has sent, but the fabric has not received yet.
const KEPT: Duration = Duration::from_secs(2);

/// The ids of routes, and the rows of the processes that count by them.
#[derive(Debug)]
pub(super) struct Counts {
    /// The last id.
    last: u64,
    ways: HashMap<RouteId, Named>,
    /// Ids of routes that were removed from tables, by the port of the table.
    retired: BTreeMap<PortId, BTreeMap<RouteId, Retired>>,
    /// The ports with ids that were retired since their rows were read.
    changed: BTreeSet<PortId>,
    /// The rows of processes, by their host's port.
    rows: BTreeMap<PortId, BTreeMap<u16, ProcessRows>>,
    shares: Shares,
    /// Hosts of other machines, whose bridges read the rows.
    far: BTreeMap<PortId, Far>,
}

/// The reason why the rows of a process are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// The host has more processes than possible.
    TooMany,
    /// The user's share is used up.
    Exceeded(Exceeded),
}

/// A host of another machine.
#[derive(Debug)]
struct Far {
    machine: Arc<Machine>,
    /// The route table update after which its bridge read the rows, and the routes by which processes counted then.
    made: u64,
    ways: BTreeSet<RouteId>,
}

/// A retired route.
#[derive(Clone, Copy, Debug)]
struct Retired {
    since: Instant,
    /// The number of the route table update that removes it on another machine.
    update: u64,
}

/// A route with an id.
#[derive(Debug)]
struct Named {
    from: PortId,
    trail: Arc<Trail>,
}

impl Default for Counts {
    fn default() -> Self {
        Self::of(process_rows::shares())
    }
}

impl Counts {
    fn of(shares: Shares) -> Self {
        Self {
            last: 0,
            ways: HashMap::new(),
            retired: BTreeMap::new(),
            changed: BTreeSet::new(),
            rows: BTreeMap::new(),
            shares,
            far: BTreeMap::new(),
        }
    }

    /// Assigns an id to a route from a port.
    pub(super) fn name(&mut self, from: PortId, trail: &Arc<Trail>) -> RouteId {
        self.last += 1;
        let id = RouteId(self.last);
        self.ways.insert(id, Named { from, trail: trail.clone() });
        id
    }

    /// Retires a route, which the next publication removes from the port's table. Packets that were counted by it are still added to its
    /// ports.
    pub(super) fn retire(&mut self, id: RouteId) {
        if let Some(way) = self.ways.get(&id) {
            let update = self.far.get(&way.from).map_or(0, |far| far.machine.sequence() + 1);
            let retired = Retired { since: Instant::now(), update };
            self.retired.entry(way.from).or_default().insert(id, retired);
            self.changed.insert(way.from);
        }
    }

    /// Starts to read the rows of a process of a port's host, which is this user's.
    ///
    /// # Errors
    /// [`Unread`]; the process's earlier rows have been read to the end.
    pub(super) fn open(
        &mut self,
        subnet: &mut Subnet,
        uid: u32,
        (port, process): (PortId, u16),
        rows: RowReader,
    ) -> Result<(), Unread> {
        self.close(subnet, port, process);
        let all = self.rows.entry(port).or_default();
        if all.len() >= MAX_PROCESSES {
            return Err(Unread::TooMany);
        }
        let rows = ProcessRows::new(rows, &self.shares, uid).map_err(Unread::Exceeded)?;
        all.insert(process, rows);
        Ok(())
    }

    /// Stops reading a process's rows, because it is gone or has other rows. Its counts stay.
    pub(super) fn close(&mut self, subnet: &mut Subnet, port: PortId, process: u16) {
        let all = self.rows.get_mut(&port);
        let Some(mut rows) = all.and_then(|all| all.remove(&process)) else { return };
        rows.read(|row| apply(subnet, port, &self.ways, row));
    }

    /// Removes a host with all its processes.
    pub(super) fn close_all(&mut self, subnet: &mut Subnet, port: PortId) {
        self.read_port(subnet, port);
        self.rows.remove(&port);
        self.far.remove(&port);
    }

    /// Adds a port of a host on another machine, whose bridge reads the rows.
    pub(super) fn open_far(&mut self, port: PortId, machine: Arc<Machine>) {
        self.far.insert(port, Far { machine, made: 0, ways: BTreeSet::new() });
    }

    /// Adds the counts of a row that a bridge has read.
    pub(super) fn counted(&self, subnet: &mut Subnet, port: PortId, row: &RowEntry) {
        let &RowEntry { packets, words, .. } = row;
        let (packets, counted) = (packets.min(MAX_PACKETS), row.counted());
        apply(subnet, port, &self.ways, &RowRead { counted, packets, words, is_open: true });
    }

    /// Records the routes by which a host's processes still counted after an update, as reported by its bridge.
    pub(super) fn counts_by(&mut self, port: PortId, made: u64, ways: Vec<u64>) {
        let Some(far) = self.far.get_mut(&port) else { return };
        (far.made, far.ways) = (made, ways.into_iter().map(RouteId).collect());
        self.forget(port, &BTreeSet::new());
    }

    /// Reads all rows, and adds the counts to the ports.
    pub(super) fn read(&mut self, subnet: &mut Subnet) {
        let ports: Vec<_> = self.rows.keys().copied().collect();
        for port in ports {
            self.read_port(subnet, port);
        }
    }

    /// Reads only the rows of hosts that have dropped packets themselves, for their ports' counters of key violations.
    pub(super) fn read_dropped(&mut self, subnet: &mut Subnet) {
        let dropped =
            |rows: &BTreeMap<u16, ProcessRows>| rows.values().any(ProcessRows::has_dropped);
        let ports = self.rows.iter().filter(|(_, rows)| dropped(rows));
        let ports: Vec<_> = ports.map(|(port, _)| *port).collect();
        for port in ports {
            self.read_port(subnet, port);
        }
    }

    /// Reads only the rows of ports whose routes have changed, so that retired routes can be dropped. The tables must have been
    /// changed before.
    pub(super) fn read_changed(&mut self, subnet: &mut Subnet) {
        for port in std::mem::take(&mut self.changed) {
            self.read_port(subnet, port);
        }
    }

    /// Reads only the rows of the host at a port.
    pub(super) fn read_port(&mut self, subnet: &mut Subnet, port: PortId) {
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

    /// Forgets retired routes by which no process counts.
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

/// Adds a row's counts to the ports. A process may claim anything about its own packets.
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

/// Returns the present route to a LID. Tables have no ids for LIDs that no host has.
fn trail_now(subnet: &Subnet, from: PortId, dlid: Lid) -> Trail {
    let mut trail = Trail::default();
    if dlid.is_multicast() {
        subnet.group_ways_along(from, dlid, &mut trail);
    } else {
        // It does not matter whether packets arrive.
        let _ = subnet.way_along(from, dlid, &mut trail);
    }
    trail
}

/// Counts packets that a host's port dropped itself. There is no counter for other reasons, as in adapters.
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

#[cfg(test)]
mod tests {
    use rdmux_link::rows::{Rows, Tally};

    use super::*;
    use crate::server::{DEFAULT_SHAPE, FIRST_GUID};

    /// Returns a process, and the reader of its rows.
    fn process() -> (Tally, RowReader) {
        let fd = Rows::create().unwrap();
        (Tally::new(Arc::new(Rows::map(&fd).unwrap())), RowReader::map(&fd).unwrap())
    }

    /// Returns two ports of a subnet.
    fn ports() -> (Subnet, [PortId; 2]) {
        let topology = DEFAULT_SHAPE.topology(FIRST_GUID);
        let subnet = Subnet::new(&topology, rdmux_subnet::Config::default());
        let mut ports = subnet.ports().map(|port| port.id());
        let first = [ports.next().unwrap(), ports.next().unwrap()];
        drop(ports);
        (subnet, first)
    }

    #[test]
    fn counter_rows_are_read_only_for_the_process_that_exited() {
        let (mut subnet, [port, _]) = ports();
        let mut counts = Counts::default();
        let mut tallies = Vec::new();
        for number in 1..=2 {
            let (mut tally, reader) = process();
            let counted = Counted::Dropped(IbDrop::RxIcrc as u8);
            let row = tally.find(&counted, |_| true).unwrap();
            tally.add(row, 10 * number, 0);
            tally.has_dropped();
            let process = (port, u16::try_from(number).unwrap());
            counts.open(&mut subnet, 0, process, reader).unwrap();
            tallies.push(tally);
        }
        let unread = |counts: &Counts| -> Vec<u16> {
            let all = counts.rows[&port].iter().filter(|(_, rows)| rows.has_dropped());
            all.map(|(process, _)| *process).collect()
        };
        let errors = |subnet: &Subnet| subnet.port(port).unwrap().counter(Counter::PortRcvErrors);
        assert_eq!(unread(&counts), [1, 2], "nobody has asked what they count");
        counts.close(&mut subnet, port, 5000);
        assert_eq!((unread(&counts), errors(&subnet)), (vec![1, 2], 0));
        counts.close(&mut subnet, port, 1);
        assert_eq!((unread(&counts), errors(&subnet)), (vec![2], 10));
        // It uses other rows from now on.
        counts.open(&mut subnet, 0, (port, 2), process().1).unwrap();
        assert_eq!((unread(&counts), errors(&subnet)), (vec![], 30));
    }

    #[test]
    fn counter_rows_of_a_user_are_limited_to_its_share_and_the_owner_is_not() {
        let (mut subnet, [port, other]) = ports();
        let mut counts = Counts::of(Shares::of(1000, 16 * 64));
        let mut next = 0;
        let mut open = |counts: &mut Counts, subnet: &mut Subnet, uid, port| {
            next += 1;
            counts.open(subnet, uid, (port, next), process().1)
        };
        let (counts, subnet) = (&mut counts, &mut subnet);
        let first = (0..20).take_while(|_| open(counts, subnet, 1, port).is_ok()).count();
        assert_eq!(first, 8, "by all ports");
        let refused = open(counts, subnet, 1, other);
        assert!(matches!(refused, Err(Unread::Exceeded(e)) if e.user == 1), "{refused:?}");
        let second = (0..20).take_while(|_| open(counts, subnet, 2, other).is_ok()).count();
        assert_eq!(second, 4);
        open(counts, subnet, 1000, other).unwrap();
        // They replace the process's earlier rows.
        counts.open(subnet, 1, (port, 1), process().1).unwrap();
        assert!(open(counts, subnet, 1, port).is_err());
        counts.close(subnet, port, 1);
        open(counts, subnet, 1, other).unwrap();
        counts.close_all(subnet, port);
        open(counts, subnet, 3, other).unwrap();
    }

    #[test]
    fn processes_of_a_host_are_limited_to_2048() {
        let (mut subnet, [port, other]) = ports();
        let mut counts = Counts::default();
        let fd = Rows::create().unwrap();
        let mut open = |port, process| {
            counts.open(&mut subnet, 0, (port, process), RowReader::map(&fd).unwrap())
        };
        for process in 0..2048 {
            open(port, process).unwrap();
        }
        assert_eq!(open(port, 2048), Err(Unread::TooMany));
        open(port, 7).unwrap();
        open(other, 2048).unwrap();
    }
}
