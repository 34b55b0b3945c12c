//! The rows on an InfiniBand fabric: its subnet manager brings it up, and its subnet administration answers queries.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::umad::mad::status;
use rdmux::umad::sa::{
    CLASS_VERSION, JoinState, McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, SaMad,
};
use rdmux::umad::{Address, AgentAttr, Client, Fabric, Method, MgmtClass};
use rdmux_fabric::client::ConnectOptions;
use rdmux_fabric::client::admin::{self, Plan};
use rdmux_fabric::proto::{Snapshot, Status};
use rdmux_fabric::routes::Routes;
use rdmux_fabric::server::{FIRST_GUID, Setup};
use rdmux_fabric::{FabricError, FabricName};
use rdmux_subnet::topology::Shape;
use rdmux_wire::layout::Layout;
use rdmux_wire::{Gid, Guid, Lid, Pkey, Qkey};

use super::side::TIMEOUT;
use super::stage::Done;
use rdmux_command::signals;

/// The fabric's name.
const NAME: &str = "demo";
/// Its nodes and cables: adapters at leaf switches, and those at spines.
const SHAPE: Shape = Shape::FatTree(40);
/// The state of a port that carries data (IBTA 14.2.5.6).
const ACTIVE: u8 = 4;
/// The interval of checks for the manager's progress.
const GLANCE: Duration = Duration::from_millis(1);

/// A row: its name and its function.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) run: fn(&Ground) -> Result<Done>,
}

/// All rows, in the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row { name: "fabric: its manager makes every port active", run: active },
    Row { name: "fabric: every port reaches every other one", run: reached },
    Row { name: "fabric: PathRecords to all adapters", run: paths },
    Row { name: "fabric: two ports join a multicast group", run: group },
];

/// The fabric. It ends when this is dropped.
pub(super) struct Ground {
    options: ConnectOptions,
    name: FabricName,
    /// The fabric, as programs see it.
    fabric: Fabric,
    shown: Snapshot,
}

/// An adapter's port.
struct End {
    /// The index of its node.
    node: usize,
    gid: Gid,
    lid: Lid,
}

impl Ground {
    /// Brings the fabric up, and waits until its manager has swept it.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn up() -> Result<Self> {
        let options = crate::fabric::options()?;
        let name = FabricName::new(NAME)?;
        let setup = Setup { source: SHAPE.to_string(), ..Setup::default() };
        let topology = Some(SHAPE.topology(FIRST_GUID));
        let plan = Plan { setup, topology, secret: None };
        let mut up = admin::up(&options, &name, Some(&plan));
        if let Err(FabricError::AlreadyUp { .. }) = up {
            // A demo that was interrupted has left it.
            admin::down(&options, &name)?;
            up = admin::up(&options, &name, Some(&plan));
        }
        up?;
        let shown = Snapshot { fabric: NAME.to_owned(), nodes: Vec::new(), links: Vec::new() };
        let mut this = Self { options, name, fabric: Fabric::open(NAME)?, shown };
        until("the manager to sweep", || {
            let manager = this.status()?.manager;
            Ok(manager.is_some_and(|m| m.state == "master" && m.last.is_some()))
        })?;
        this.shown = admin::show(&this.options, &this.name)?;
        Ok(this)
    }

    /// Returns the fabric's status.
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn status(&self) -> Result<Status> {
        Ok(admin::status(&self.options, &self.name)?)
    }

    /// Returns the ports of all adapters.
    fn ends(&self) -> Vec<End> {
        let adapters = self.shown.nodes.iter().enumerate().filter(|(_, node)| !node.is_switch);
        let end = |(index, node): (usize, &rdmux_fabric::proto::NodeView)| {
            // The GUID of an adapter's port follows that of its node.
            let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(node.guid.0 + 1));
            let port = node.ports.iter().find(|port| port.number == 1)?;
            Some(End { node: index, gid, lid: port.lid })
        };
        adapters.filter_map(end).collect()
    }

    /// Returns a client of subnet administration on an adapter's port.
    fn client(&self, at: &End) -> Result<Asker> {
        let ports = self.shown.nodes.iter().flat_map(|node| &node.ports);
        let manager =
            ports.clone().find(|port| port.is_sm).context("no port has a subnet manager")?.lid;
        let port = self.fabric.port(&self.shown.nodes[at.node].id, 1)?;
        let client = port.client(&AgentAttr::new(MgmtClass::SUBN_ADM, CLASS_VERSION).rmpp())?;
        Ok(Asker { client, manager: Address::gsi(manager) })
    }

    /// Returns whether a switch has ports for a multicast LID.
    fn has_tree(&self, mlid: Lid) -> Result<bool> {
        let tables = admin::tables(&self.options, &self.name)?;
        let mut groups = tables.switches.iter().flat_map(|switch| &switch.multicast);
        Ok(groups.any(|(lid, _)| *lid == mlid))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Err(error) = admin::down(&self.options, &self.name) {
            tracing::warn!(%error, "cannot stop the fabric that this command started");
        }
    }
}

/// A client of subnet administration.
struct Asker {
    client: Client,
    manager: Address,
}

impl Asker {
    /// Sends a query. Returns the record in the answer.
    fn ask<R: Layout>(&mut self, method: Method, attribute: u16, mask: u64, of: &R) -> Result<R> {
        let mut record = vec![0; R::LEN];
        of.write(&mut record);
        let mut mad = SaMad::new(method, attribute, &record);
        mad.sa.component_mask = mask;
        let answer = self.client.ask(&self.manager, &mad.to_bytes())?;
        let answer = SaMad::parse(&answer.mad)?;
        let refused = answer.header.status;
        ensure!(
            refused == status::OK,
            "subnet administration refused the request with status {refused:#06x}"
        );
        Ok(answer.record()?)
    }
}

/// Waits for an event that is expected soon.
pub(super) fn until(what: &str, mut happened: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !happened()? {
        signals::check()?;
        ensure!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        std::thread::sleep(GLANCE);
    }
    Ok(())
}

/// Checks that the last sweep found all nodes, and both ends of every cable are active. The row's time is that of the
/// sweep.
fn active(ground: &Ground) -> Result<Done> {
    let status = ground.status()?;
    let manager = status.manager.context("the fabric has no subnet manager")?;
    ensure!(manager.master == Some(manager.guid), "another subnet manager is the master");
    let last = manager.last.context("the subnet manager has not swept yet")?;
    ensure!(last.problem_count == 0, "problems: {:?}", last.problems);
    let nodes = ground.shown.nodes.len() as u64;
    ensure!(last.nodes == nodes, "the sweep did not find {nodes} nodes, but {}", last.nodes);
    for (node, number) in ground.shown.links.iter().flat_map(|link| [link.a, link.b]) {
        let node = &ground.shown.nodes[node as usize];
        let port = node.ports.iter().find(|port| port.number == number);
        let state = port.map(|port| port.state);
        ensure!(state == Some(ACTIVE), "port {number} of {} has state {state:?}", node.description);
    }
    Ok(Done { bytes: 0, time: Duration::from_micros(last.took_us) })
}

/// Checks that the forwarding tables lead from every port to every LID.
fn reached(ground: &Ground) -> Result<Done> {
    let start = Instant::now();
    let tables = admin::tables(&ground.options, &ground.name)?;
    let check = Routes::new(&ground.shown, &tables).check();
    ensure!(
        check.is_whole() && check.lost == 0 && check.pairs > 0,
        "not every port is reachable from every other one: {check:?}"
    );
    Ok(Done { bytes: 0, time: start.elapsed() })
}

/// Checks that subnet administration's paths end where the tables lead.
fn paths(ground: &Ground) -> Result<Done> {
    let ends = ground.ends();
    let (from, others) = ends.split_first().context("the fabric has no adapters")?;
    let tables = admin::tables(&ground.options, &ground.name)?;
    let routes = Routes::new(&ground.shown, &tables);
    let mut asker = ground.client(from)?;
    let mask = PathRecordMask::SGID | PathRecordMask::DGID | PathRecordMask::NUMB_PATH;
    let (mut bytes, mut time) = (0, Duration::ZERO);
    for to in others {
        let wanted =
            PathRecord { sgid: from.gid, dgid: to.gid, numb_path: 1, ..PathRecord::default() };
        let start = Instant::now();
        let path = asker.ask(Method::GET, PathRecord::ATTR_ID, mask.bits(), &wanted)?;
        time += start.elapsed();
        let is_it = (path.sgid, path.dgid, path.slid) == (from.gid, to.gid, from.lid);
        ensure!(is_it, "the path has other ends: {path:?}");
        ensure!(
            path.dlid == to.lid,
            "the path leads to LID {}; the port has LID {}",
            path.dlid,
            to.lid
        );
        if let Err(lost) = routes.route((u32::try_from(from.node)?, 1), path.dlid) {
            bail!("a packet to LID {} does not arrive: {lost}", path.dlid);
        }
        bytes += PathRecord::LEN as u64;
    }
    Ok(Done { bytes, time })
}

/// Joins two ports to a group, checks that it has a tree from then on, and leaves it.
fn group(ground: &Ground) -> Result<Done> {
    let ends = ground.ends();
    let (Some(first), Some(last)) = (ends.first(), ends.last()) else {
        bail!("the fabric has no adapters")
    };
    let member =
        McMemberRecordMask::MGID | McMemberRecordMask::PORT_GID | McMemberRecordMask::JOIN_STATE;
    let create = member
        | McMemberRecordMask::QKEY
        | McMemberRecordMask::TCLASS
        | McMemberRecordMask::PKEY
        | McMemberRecordMask::FLOW_LABEL
        | McMemberRecordMask::SL;
    let mut mgid = [0; 16];
    mgid[..4].copy_from_slice(&[0xff, 0x15, 0xde, 0x30]);
    let record = |end: &End| McMemberRecord {
        mgid: Gid(mgid),
        port_gid: end.gid,
        qkey: Qkey(0x11),
        pkey: Pkey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let mut askers = [(ground.client(first)?, first), (ground.client(last)?, last)];
    let start = Instant::now();
    let mut mlids = Vec::new();
    for (asker, end) in &mut askers {
        let (id, mask) = (McMemberRecord::ATTR_ID, create.bits());
        let joined = asker.ask(Method::SET, id, mask, &record(end))?;
        ensure!(
            joined.mgid == Gid(mgid) && joined.port_gid == end.gid,
            "another port or group was joined: {joined:?}"
        );
        mlids.push(joined.mlid);
    }
    ensure!(
        mlids[0].is_multicast() && mlids[0] == mlids[1],
        "the two ports joined different groups: {mlids:?}"
    );
    until("the switches to have the group", || ground.has_tree(mlids[0]))?;
    let time = start.elapsed();
    for (asker, end) in &mut askers {
        asker.ask(Method::DELETE, McMemberRecord::ATTR_ID, member.bits(), &record(end))?;
    }
    until("the switches to remove the group", || Ok(!ground.has_tree(mlids[0])?))?;
    Ok(Done { bytes: 4 * McMemberRecord::LEN as u64, time })
}
