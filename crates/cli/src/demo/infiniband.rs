//! The rows on an InfiniBand fabric with two hosts at two switches, which two cables connect: queue pairs that communicate by LID, by
//! GID and by a group, a cable that fails, and rerouting.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rdmux::cm::{EventChannel, EventKind, Id, JoinFlags, PortSpace};
use rdmux::resolver::{Hints, Resolver};
use rdmux::umad::sa::{CLASS_VERSION, JoinState, McMemberRecord, McMemberRecordMask, SaMad};
use rdmux::umad::{Address, AgentAttr, Method, MgmtClass, Port};
use rdmux::{
    Access, AddressVector, Ah, AsyncEvent, Completion, Context, Cq, DeviceKind, Gid, Lid, Mr,
    Options, Pkey, PortState, Qkey, Qp, QpType, Qpn, SendWr, WcFlags,
};
use rdmux_fabric::client::ConnectOptions;
use rdmux_fabric::client::admin::{self, Plan};
use rdmux_fabric::proto::{End as CableEnd, NodeRef};
use rdmux_fabric::routes::{Hop, Routes};
use rdmux_fabric::server::{FIRST_GUID, ManagerSetup, Setup};
use rdmux_fabric::{FabricError, FabricName};
use rdmux_subnet::Topology;
use rdmux_subnet::topology::{LinkRate, Node, NodeKind, PortRef};
use rdmux_wire::Guid;

use super::fabric::until;
use super::migration::there_and_back;
use super::protocol::Data;
use super::side::{self, TIMEOUT, pattern};
use super::stage::Done;
use super::temporary;
use rdmux_command::hosts::Hosts;

/// The fabric's name.
const NAME: &str = "demo-ib";
/// The hosts, given by the names of their adapters.
pub(super) const HOSTS: [&str; 2] = ["demo-ib-a", "demo-ib-b"];
/// The indices of the switches among the nodes.
const SWITCHES: [usize; 2] = [0, 1];
/// The ports of each switch with cables to the other one. Its first port leads to a host.
const BETWEEN: [u8; 2] = [2, 3];
/// The bytes of a connection's memory.
pub(super) const SIZE: usize = 1 << 20;
/// The Q_Key of datagram queue pairs.
const QKEY: Qkey = Qkey(0x0b1b);
/// The group.
const GROUP: Gid = Gid([0xff, 0x15, 0xde, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// Another group, by its address.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(239, 77, 91, 3);

/// A row: its name and its function.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) run: fn(&Ground) -> Result<Done>,
}

/// All rows, in the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row { name: "InfiniBand: the ports of two hosts get LIDs", run: active },
    Row { name: "InfiniBand: RC SEND by LID", run: send },
    Row { name: "InfiniBand: RC WRITE by LID", run: write },
    Row { name: "InfiniBand: RC READ by LID", run: read },
    Row { name: "InfiniBand: UD SEND by LID", run: |ground| datagram(ground, false) },
    Row { name: "InfiniBand: UD SEND by GID", run: |ground| datagram(ground, true) },
    Row { name: "InfiniBand: UD SEND to a group", run: group },
    Row { name: "InfiniBand: UD SEND to a group by its IP address", run: group_by_address },
    Row { name: "InfiniBand: connect by name, GID and path known", run: by_name },
    Row { name: "InfiniBand: RC migrates to other LIDs, back by LAP", run: there_and_back },
    Row { name: "InfiniBand: a cable fails, RC uses another", run: reroute },
    Row { name: "InfiniBand: a port loses its link and recovers", run: flap },
];

/// The fabric and its hosts. They end when this is dropped.
pub(super) struct Ground {
    options: ConnectOptions,
    name: FabricName,
    contexts: [Context; 2],
    /// The time that the manager and the hosts took until both ports were active.
    up: Duration,
    _hosts: Hosts,
    _fabric: Down,
}

/// Ends the fabric when it is dropped.
struct Down(ConnectOptions, FabricName);

impl Drop for Down {
    fn drop(&mut self) {
        if let Err(error) = admin::down(&self.0, &self.1) {
            tracing::warn!(%error, "cannot stop the fabric that this command started");
        }
    }
}

/// Returns the topology: two switches with an adapter each.
fn topology() -> Result<Topology> {
    let mut topology = Topology::default();
    let guid = |n: u64| Guid(FIRST_GUID.0 + n * 0x100);
    for (n, name) in [(0, "left"), (1, "right")] {
        let mut node = Node::new(NodeKind::Switch, format!("switch-{name}"), guid(n), 4);
        node.describe(name);
        topology.add(node);
    }
    for (n, name) in (2..).zip(HOSTS) {
        let mut node = Node::new(NodeKind::Ca, name.to_owned(), guid(n), 1);
        node.describe(name);
        topology.add(node);
    }
    let at = |node, port| PortRef { node, port };
    let [left, right] = SWITCHES;
    let cables = [(at(2, 1), at(left, 1)), (at(3, 1), at(right, 1))];
    let between = BETWEEN.map(|port| (at(left, port), at(right, port)));
    for (a, b) in cables.into_iter().chain(between) {
        topology.connect(a, b, LinkRate::DEFAULT)?;
    }
    Ok(topology)
}

impl Ground {
    /// Brings the fabric and its hosts up, and waits until both ports are active.
    ///
    /// # Errors
    /// When they do not come up.
    pub(super) fn up() -> Result<Self> {
        let options = crate::fabric::options()?;
        let name = FabricName::new(NAME)?;
        // Each port has two LIDs.
        let manager = ManagerSetup { lmc: 1, ..ManagerSetup::default() };
        let source = "two switches".to_owned();
        let setup = Setup { source, manager, ..Setup::default() };
        let plan = Plan { setup, topology: Some(topology()?), secret: None };
        let start = Instant::now();
        let mut up = admin::up(&options, &name, Some(&plan));
        if let Err(FabricError::AlreadyUp { .. }) = up {
            // A demo that was interrupted has left it.
            admin::down(&options, &name)?;
            up = admin::up(&options, &name, Some(&plan));
        }
        up?;
        let fabric = Down(options.clone(), name.clone());
        let hosts = hosts()?;
        let open = |host| -> Result<Context> {
            let context = Context::builder().host(host).device(DeviceKind::Ib).open()?;
            wait_for(&context, PortState::Active)?;
            Ok(context)
        };
        let contexts = [open(HOSTS[0])?, open(HOSTS[1])?];
        let up = start.elapsed();
        Ok(Self { options, name, contexts, up, _hosts: hosts, _fabric: fabric })
    }

    /// Returns the two hosts' devices.
    pub(super) fn contexts(&self) -> &[Context; 2] {
        &self.contexts
    }

    /// Creates a queue pair on each host.
    fn ends(&self, qp_type: QpType) -> Result<[End; 2]> {
        let [a, b] = &self.contexts;
        Ok([End::new(a, qp_type)?, End::new(b, qp_type)?])
    }

    /// Returns two connected ends.
    fn connected(&self) -> Result<[End; 2]> {
        let [a, b] = self.ends(QpType::Rc)?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (to_a, to_b) = (a.qp.endpoint(0)?, b.qp.endpoint(0)?);
        ensure!(to_a.lid != to_b.lid, "both ports have LID {}", to_a.lid);
        a.qp.connect(to_b, 0, access)?;
        b.qp.connect(to_a, 0, access)?;
        Ok([a, b])
    }

    /// Returns the switches on the route from the first host to the second, according to the tables.
    fn way(&self) -> Result<Vec<Hop>> {
        let shown = admin::show(&self.options, &self.name)?;
        let tables = admin::tables(&self.options, &self.name)?;
        let lid = self.contexts[1].query_port()?.lid;
        let from = shown.nodes.iter().position(|node| node.description == HOSTS[0]);
        let from = u32::try_from(from.context("the fabric has no adapter of the first host")?)?;
        let way = Routes::new(&shown, &tables).route((from, 1), lid);
        way.map_err(|lost| anyhow::anyhow!("no route to LID {lid}: {lost}"))
    }

    /// Returns the port through which packets leave the first switch.
    fn egress(&self) -> Result<u8> {
        Ok(self.way()?.first().context("the route between the hosts has no switch")?.egress)
    }

    /// Disconnects the cable of a node's port, or connects it again.
    fn link(&self, up: bool, a: (&str, u8), b: (&str, u8)) -> Result<()> {
        let end = |(name, port): (&str, u8)| CableEnd {
            node: NodeRef::Name(name.to_owned()),
            port: Some(port),
        };
        admin::link(&self.options, &self.name, up, &end(a), &end(b))?;
        Ok(())
    }
}

/// Starts the hosts on this fabric.
fn hosts() -> Result<Hosts> {
    Hosts::up_configured(&HOSTS, &temporary(&format!("[fabric]\nname = \"{NAME}\"\n"))?)
}

/// Compares received data.
pub(super) fn compare(have: &[u8], want: &[u8]) -> Result<()> {
    side::compare("the memory", have, want)
}

/// Waits until a device's port is in a state.
fn wait_for(context: &Context, state: PortState) -> Result<()> {
    until("a port's state", || Ok(context.query_port()?.state == state))
}

/// A queue pair, its completion queue, and memory.
pub(super) struct End {
    cq: Cq,
    pub(super) qp: Qp,
    pub(super) mr: Mr,
}

impl End {
    pub(super) fn new(context: &Context, qp_type: QpType) -> Result<Self> {
        let (cq, pd) = (context.cq(64)?, context.pd());
        let qp = pd.qp(qp_type).cq(&cq).build()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Self { cq, qp, mr: pd.alloc(SIZE, access)? })
    }

    /// Waits for the next completion.
    pub(super) fn wait(&self) -> Result<Completion> {
        Ok(self.cq.wait_one(Some(TIMEOUT))?)
    }
}

/// Checks that both ports are active. The row's time is that of the fabric, its manager and the hosts.
fn active(ground: &Ground) -> Result<Done> {
    let [a, b] = [ground.contexts[0].query_port()?, ground.contexts[1].query_port()?];
    ensure!(a.lid != b.lid && a.lid.is_unicast() && b.lid.is_unicast(), "{a:?}, {b:?}");
    ensure!(
        ground.way()?.len() == 3,
        "the route is not two switches and an adapter: {:?}",
        ground.way()?
    );
    Ok(Done { bytes: 0, time: ground.up })
}

fn send(ground: &Ground) -> Result<Done> {
    let [a, b] = ground.connected()?;
    let data = pattern(Data { seed: 1, len: SIZE });
    a.mr.write(0, &data);
    b.qp.post_recv(1, &[b.mr.slice(..)])?;
    let start = Instant::now();
    a.qp.post_send(&SendWr::send(2).sges(&[a.mr.slice(..)]).signaled())?;
    let received = b.wait()?.byte_len;
    let time = start.elapsed();
    a.wait()?;
    ensure!(received as usize == SIZE, "{received} bytes arrived, not {SIZE}");
    compare(&b.mr.to_vec(..), &data)?;
    Ok(Done { bytes: SIZE as u64, time })
}

fn write(ground: &Ground) -> Result<Done> {
    let [a, b] = ground.connected()?;
    let data = pattern(Data { seed: 2, len: SIZE });
    a.mr.write(0, &data);
    let start = Instant::now();
    a.qp.post_send(&SendWr::write(2, b.mr.remote()).sges(&[a.mr.slice(..)]).signaled())?;
    a.wait()?;
    let time = start.elapsed();
    compare(&b.mr.to_vec(..), &data)?;
    Ok(Done { bytes: SIZE as u64, time })
}

fn read(ground: &Ground) -> Result<Done> {
    let [a, b] = ground.connected()?;
    let data = pattern(Data { seed: 3, len: SIZE });
    b.mr.write(0, &data);
    let start = Instant::now();
    a.qp.post_send(&SendWr::read(2, b.mr.remote()).sges(&[a.mr.slice(..)]).signaled())?;
    a.wait()?;
    let time = start.elapsed();
    compare(&a.mr.to_vec(..), &data)?;
    Ok(Done { bytes: SIZE as u64, time })
}

/// Sends a datagram to the other host's LID, with a GRH or without; its receiver gets the sender's address.
fn datagram(ground: &Ground, global: bool) -> Result<Done> {
    const LEN: usize = 2000;
    let [a, b] = ground.ends(QpType::Ud)?;
    [&a, &b].iter().try_for_each(|end| end.qp.activate(QKEY))?;
    let [from, to] = &ground.contexts;
    let local = Ah::to_lid(to.query_port()?.lid);
    let dgid = to.gid(0).context("a port has a GID")?;
    let vector = AddressVector { is_global: global, dgid, hop_limit: 1, ..*local.vector() };
    let data = pattern(Data { seed: 4, len: LEN });
    a.mr.write(0, &data);
    b.qp.post_recv(1, &[b.mr.slice(..)])?;
    let ah = Ah::from_vector(vector);
    let start = Instant::now();
    let sges = [a.mr.slice(..LEN)];
    a.qp.post_send(&SendWr::send(2).sges(&sges).to(&ah, b.qp.qpn(), QKEY).signaled())?;
    let got = b.wait()?;
    let time = start.elapsed();
    a.wait()?;
    let lid = from.query_port()?.lid;
    ensure!(got.slid == lid.0 && got.src_qp == a.qp.qpn(), "the datagram is from LID {}", got.slid);
    ensure!(got.flags.contains(WcFlags::GRH) == global, "the completion's GRH flag is wrong");
    let sgid = from.gid(0).context("a port has a GID")?;
    ensure!(!global || b.mr.to_vec(8..24) == sgid.0, "the datagram is from another GID");
    compare(&b.mr.to_vec(40..40 + LEN), &data)?;
    Ok(Done { bytes: LEN as u64, time })
}

/// Joins both hosts to a group; a datagram of the first reaches both.
fn group(ground: &Ground) -> Result<Done> {
    const LEN: usize = 1000;
    let [a, b] = ground.ends(QpType::Ud)?;
    let mut mlids = Vec::new();
    for (end, context) in [&a, &b].into_iter().zip(&ground.contexts) {
        end.qp.activate(QKEY)?;
        mlids.push(join(context)?);
        end.qp.attach_multicast(GROUP)?;
        end.qp.post_recv(1, &[end.mr.slice(SIZE / 2..)])?;
    }
    ensure!(
        mlids[0].is_multicast() && mlids[0] == mlids[1],
        "the two ports joined different groups: {mlids:?}"
    );
    until("the switches to have the group", || {
        let tables = admin::tables(&ground.options, &ground.name)?;
        Ok(tables.switches.iter().all(|switch| {
            switch.multicast.iter().any(|(lid, ports)| *lid == mlids[0] && ports.len() >= 2)
        }))
    })?;
    let vector = AddressVector {
        is_global: true,
        dgid: GROUP,
        hop_limit: 1,
        ..*Ah::to_lid(mlids[0]).vector()
    };
    let data = pattern(Data { seed: 5, len: LEN });
    a.mr.write(0, &data);
    let ah = Ah::from_vector(vector);
    let start = Instant::now();
    let sges = [a.mr.slice(..LEN)];
    a.qp.post_send(&SendWr::send(2).sges(&sges).to(&ah, Qpn::MULTICAST, QKEY))?;
    for end in [&a, &b] {
        let got = end.wait()?;
        ensure!(got.src_qp == a.qp.qpn(), "the datagram is from queue pair {}", got.src_qp);
        let from = SIZE / 2 + 40;
        compare(&end.mr.to_vec(from..from + LEN), &data)?;
    }
    Ok(Done { bytes: 2 * LEN as u64, time: start.elapsed() })
}

/// Resolves a name to a GID and a path, and connects with these without another query.
fn by_name(ground: &Ground) -> Result<Done> {
    const WORDS: &[u8] = b"found by name";
    let [a, b] = &ground.contexts;
    let mut listener = Options::new().context(b).bind((b.address()?, 0).into())?;
    let port = listener.local_addr().port().to_string();
    let hints = Hints { native: true, ..Hints::default() };
    let found = Resolver::new(a).resolve(Some(HOSTS[1]), Some(&port), &hints)?;
    let best = found.first().context("the name was not found")?;
    let gid = best.dst.as_ref().and_then(|dst| Some(dst.ib()?.gid));
    ensure!(gid == b.gid(0).ok() && best.paths.len() == 1, "the name leads to {best:?}");
    let server = thread::spawn(move || listener.accept());
    let start = Instant::now();
    let mut connection = Options::new().context(a).timeout(TIMEOUT).connect_along(best)?;
    let time = start.elapsed();
    let mut peer = server.join().map_err(|_| anyhow!("the listener panicked"))??;
    connection.send(WORDS)?;
    ensure!(peer.recv()?.as_deref() == Some(WORDS), "the received message differs");
    Ok(Done { bytes: WORDS.len() as u64, time })
}

/// Joins both hosts to a group by its IP address; a datagram that the first sends to the address reaches the second.
fn group_by_address(ground: &Ground) -> Result<Done> {
    const LEN: usize = 1000;
    let ends = ground.ends(QpType::Ud)?;
    let mut ids = Vec::new();
    for (end, context) in ends.iter().zip(&ground.contexts) {
        let id = member(context)?;
        id.1.attach_qp(&end.qp)?;
        // Waits until the service has joined the broadcast group, which supplies the parameters of others.
        until("a host to join a group by its address", || {
            id.1.join_multicast(ADDRESS, JoinFlags::FullMember)?;
            let event = id.0.next(Some(TIMEOUT))?.context("the join was not answered in time")?;
            Ok(event.kind() == EventKind::MulticastJoin)
        })?;
        end.qp.post_recv(1, &[end.mr.slice(SIZE / 2..)])?;
        ids.push(id.1);
    }
    let groups = [ids[0].group(ADDRESS)?, ids[1].group(ADDRESS)?];
    ensure!(groups[0].mlid == groups[1].mlid, "the two ports joined different groups: {groups:?}");
    until("the switches to have the group", || {
        let tables = admin::tables(&ground.options, &ground.name)?;
        Ok(tables.switches.iter().all(|switch| {
            switch.multicast.iter().any(|(lid, ports)| *lid == groups[0].mlid && ports.len() >= 2)
        }))
    })?;
    let [a, b] = &ends;
    let data = pattern(Data { seed: 6, len: LEN });
    a.mr.write(0, &data);
    let start = Instant::now();
    ids[0].send_to(SendWr::send(2).sges(&[a.mr.slice(..LEN)]), ADDRESS)?;
    let got = b.wait()?;
    ensure!(got.src_qp == a.qp.qpn(), "the datagram is from queue pair {}", got.src_qp);
    let from = SIZE / 2 + 40;
    compare(&b.mr.to_vec(from..from + LEN), &data)?;
    let time = start.elapsed();
    ids.iter().try_for_each(|id| id.leave_multicast(ADDRESS))?;
    Ok(Done { bytes: LEN as u64, time })
}

/// Returns an id on a host's address, with its channel.
fn member(context: &Context) -> Result<(EventChannel, Id)> {
    let channel = EventChannel::new(context)?;
    let id = Id::new(&channel, PortSpace::Udp)?;
    id.bind(SocketAddr::new(context.address()?, 0))?;
    Ok((channel, id))
}

/// Joins a host's port to the group by subnet administration.
fn join(context: &Context) -> Result<Lid> {
    let components = McMemberRecordMask::MGID
        | McMemberRecordMask::PORT_GID
        | McMemberRecordMask::JOIN_STATE
        | McMemberRecordMask::QKEY
        | McMemberRecordMask::TCLASS
        | McMemberRecordMask::PKEY
        | McMemberRecordMask::FLOW_LABEL
        | McMemberRecordMask::SL;
    let record = McMemberRecord {
        mgid: GROUP,
        port_gid: context.gid(0).context("a port has a GID")?,
        qkey: QKEY,
        pkey: Pkey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    }
    .to_bytes();
    let mut mad = SaMad::new(Method::SET, McMemberRecord::ATTR_ID, &record);
    mad.sa.component_mask = components.bits();
    let agent = AgentAttr::new(MgmtClass::SUBN_ADM, CLASS_VERSION);
    let mut client = Port::open(context, 1)?.client(&agent)?;
    let manager = Address::gsi(context.query_port()?.sm_lid);
    let answer = client.ask(&manager, &mad.to_bytes())?;
    let answer = SaMad::parse(&answer.mad)?;
    ensure!(
        answer.header.status == 0,
        "subnet administration refused the join with status {:#06x}",
        answer.header.status
    );
    Ok(answer.record::<McMemberRecord>()?.mlid)
}

/// Disconnects the cable in use in the middle of a stream of messages. The manager reroutes to the other one, and nothing is
/// lost.
fn reroute(ground: &Ground) -> Result<Done> {
    const MESSAGES: u64 = 64;
    const LEN: usize = 16 << 10;
    let [a, b] = ground.connected()?;
    let before = ground.egress()?;
    ensure!(
        BETWEEN.contains(&before),
        "packets leave through port {before}, which is not between the switches"
    );
    let data = pattern(Data { seed: 6, len: LEN });
    a.mr.write(0, &data);
    let start = Instant::now();
    for n in 0..MESSAGES {
        b.qp.post_recv(n, &[b.mr.slice(..LEN)])?;
        if n == MESSAGES / 2 {
            ground.link(false, ("left", before), ("right", before))?;
        }
        a.qp.post_send(&SendWr::send(n).sges(&[a.mr.slice(..LEN)]).signaled())?;
        ensure!(b.wait()?.wr_id == n && a.wait()?.wr_id == n, "message {n} is out of order");
        compare(&b.mr.to_vec(..LEN), &data)?;
        b.mr.write(0, &[0; LEN]);
    }
    let time = start.elapsed();
    let after = ground.egress()?;
    ensure!(
        after != before && BETWEEN.contains(&after),
        "after the cable failed, packets leave through port {after}"
    );
    ground.link(true, ("left", before), ("right", before))?;
    Ok(Done { bytes: MESSAGES * LEN as u64, time })
}

/// Disconnects a host's own cable and connects it again: its port reports it, and an RC queue pair continues.
fn flap(ground: &Ground) -> Result<Done> {
    const LEN: usize = 4096;
    let [a, b] = ground.connected()?;
    let data = pattern(Data { seed: 7, len: LEN });
    a.mr.write(0, &data);
    b.qp.post_recv(1, &[b.mr.slice(..LEN)])?;
    let context = &ground.contexts[1];
    while context.next_event(Some(Duration::ZERO))?.is_some() {}
    let start = Instant::now();
    ground.link(false, (HOSTS[1], 1), ("right", 1))?;
    event(context, &AsyncEvent::PortError(1))?;
    a.qp.post_send(&SendWr::send(2).sges(&[a.mr.slice(..LEN)]).signaled())?;
    ensure!(b.cq.poll_one().is_none(), "a message arrived over a failed cable");
    ground.link(true, (HOSTS[1], 1), ("right", 1))?;
    event(context, &AsyncEvent::PortActive(1))?;
    b.wait()?;
    a.wait()?;
    compare(&b.mr.to_vec(..LEN), &data)?;
    Ok(Done { bytes: LEN as u64, time: start.elapsed() })
}

/// Waits for an event of a port, ignoring others before it.
fn event(context: &Context, expected: &AsyncEvent) -> Result<()> {
    loop {
        match context.next_event(Some(TIMEOUT))? {
            Some(event) if event == *expected => return Ok(()),
            Some(_) => {}
            None => bail!("the port did not report {expected:?} in time"),
        }
    }
}
