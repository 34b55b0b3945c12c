//! Queries to subnet administration: rdmux's, and OpenSM's on the same fabric without its own manager.
//!
//! The same client queries either, on an adapter's port, as libibumad does: a query is a write, an answer a poll and a read.

use anyhow::{Context as _, Result, ensure};
use rdmux_fabric::client::MadFile;
use rdmux_subnet::topology::Shape;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::{Method, MgmtClass};
use rdmux_wire::sa::{
    self, JoinState, McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, SaMad,
};
use rdmux_wire::{Gid, Guid, Lid, Pkey, Qkey};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::fabrics::{Fabric, Ground};

/// The fabric on which both are queried.
const SHAPE: Shape = Shape::FatTree(3_240);
/// The fabrics between which the time of a path may grow.
const SMALL: Shape = Shape::FatTree(648);
const LARGE: Shape = Shape::FatTree(10_368);
/// The number of paths of a round.
const PATHS: u32 = 20_000;
/// The number of groups that are joined in a round, and of ports that join each.
const GROUPS: u32 = 64;
const MEMBERS: u32 = 128;
/// The number of outstanding joins.
const JOINS_OUT: u32 = 16;
/// The time in which a manager finishes the work that left groups cause. It is not measured.
const REST: Duration = Duration::from_millis(500);
/// The timeout of an answer, in milliseconds.
const TIMEOUT_MS: u32 = 20_000;
/// The step between chosen ports. It is prime, so that each port is chosen once.
const STEP: usize = 7_919;

/// The subnet administrations of rdmux and of OpenSM.
pub(super) struct Both {
    pub(super) ours: Client,
    pub(super) opensm: Client,
}

/// The subnet administrations of rdmux for few and for many nodes.
pub(super) struct Sizes {
    pub(super) small: Client,
    pub(super) large: Client,
}

/// A program on an adapter's port, and the fabric.
pub(super) struct Client {
    file: MadFile,
    agent: u32,
    /// The LID of subnet administration.
    manager: Lid,
    own: End,
    /// The ports of all other adapters.
    others: Vec<End>,
    /// Dropped last.
    _fabric: Fabric,
}

/// The addresses of a port.
#[derive(Clone, Copy)]
struct End {
    gid: Gid,
    lid: Lid,
}

/// A query.
struct Question {
    method: Method,
    attribute: u16,
    mask: u64,
    record: Vec<u8>,
}

impl Both {
    /// Brings up a subnet for each of the two.
    ///
    /// # Errors
    /// When a subnet does not come up.
    pub(super) fn new(ground: &Ground) -> Result<Self> {
        let mut fabric = ground.fabric(SHAPE, false)?;
        fabric.opensm(&[])?;
        Ok(Self { opensm: Client::new(fabric)?, ours: Client::of_own_manager(ground, SHAPE)? })
    }
}

impl Sizes {
    /// Brings up a subnet of each size.
    ///
    /// # Errors
    /// When a subnet does not come up.
    pub(super) fn new(ground: &Ground) -> Result<Self> {
        let client = |shape| Client::of_own_manager(ground, shape);
        Ok(Self { small: client(SMALL)?, large: client(LARGE)? })
    }
}

impl Client {
    fn of_own_manager(ground: &Ground, shape: Shape) -> Result<Self> {
        let fabric = ground.fabric(shape, true)?;
        fabric.until_up()?;
        Self::new(fabric)
    }

    /// Uses the second adapter: the first may belong to the manager's host.
    fn new(fabric: Fabric) -> Result<Self> {
        let shown = fabric.show()?;
        let ports = || shown.nodes.iter().flat_map(|node| &node.ports);
        let manager = ports().find(|port| port.is_sm).context("no port has a subnet manager")?.lid;
        let adapters = shown.nodes.iter().filter(|node| !node.is_switch);
        let guids: Vec<Guid> = adapters.clone().map(|node| node.guid).collect();
        let mut others: Vec<End> = adapters
            .filter_map(|node| {
                // The GUID of an adapter's port follows that of its node.
                let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(node.guid.0 + 1));
                let port = node.ports.iter().find(|port| port.number == 1)?;
                Some(End { gid, lid: port.lid })
            })
            .collect();
        ensure!(others.len() == guids.len() && others.len() > 2, "an adapter has no port 1");
        ensure!(others.iter().all(|end| end.lid.is_unicast()), "a port has no LID");
        let own = others.remove(1);
        let file = fabric.open(guids[1])?;
        let agent = file.register(&Registration {
            qpn: 1,
            class: MgmtClass::SUBN_ADM.0,
            class_version: sa::CLASS_VERSION,
            rmpp_version: 1,
            ..Registration::default()
        })?;
        Ok(Self { file, agent, manager, own, others, _fabric: fabric })
    }

    fn other(&self, n: u32) -> End {
        self.others[(n as usize + 1) * STEP % self.others.len()]
    }

    /// Queries paths by GIDs, `out` of them at a time. Returns answers per second.
    ///
    /// # Errors
    /// When an answer is missing or is a different path.
    pub(super) fn paths(&self, out: u32) -> Result<f64> {
        let mask = PathRecordMask::SGID | PathRecordMask::DGID | PathRecordMask::NUMB_PATH;
        let question = |n| Question {
            method: Method::GET,
            attribute: PathRecord::ATTR_ID,
            mask: mask.bits(),
            record: PathRecord {
                sgid: self.own.gid,
                dgid: self.other(n).gid,
                numb_path: 1,
                ..PathRecord::default()
            }
            .to_bytes()
            .to_vec(),
        };
        let time = self.ask(PATHS, out, question, |n, answer| {
            let (path, to): (PathRecord, _) = (answer.record()?, self.other(n));
            let is_it = path.dgid == to.gid && path.dlid == to.lid && path.slid == self.own.lid;
            ensure!(is_it, "the path leads elsewhere: {path:?}");
            Ok(())
        })?;
        Ok(f64::from(PATHS) / time)
    }

    /// Joins ports to groups, which are created by the first join. Returns joins per second. The ports leave
    /// afterwards.
    ///
    /// # Errors
    /// When an answer is missing or is not the answer to a join.
    pub(super) fn joins(&self) -> Result<f64> {
        let joins = GROUPS * MEMBERS;
        let member = McMemberRecordMask::MGID
            | McMemberRecordMask::PORT_GID
            | McMemberRecordMask::JOIN_STATE;
        let create = member
            | McMemberRecordMask::QKEY
            | McMemberRecordMask::TCLASS
            | McMemberRecordMask::PKEY
            | McMemberRecordMask::FLOW_LABEL
            | McMemberRecordMask::SL;
        let question = |method, mask: McMemberRecordMask, n| Question {
            method,
            attribute: McMemberRecord::ATTR_ID,
            mask: mask.bits(),
            record: McMemberRecord {
                mgid: group(n % GROUPS),
                port_gid: self.other(n / GROUPS).gid,
                qkey: Qkey(0x11),
                pkey: Pkey::DEFAULT,
                join_state: JoinState::FULL_MEMBER,
                ..McMemberRecord::default()
            }
            .to_bytes()
            .to_vec(),
        };
        let check = |n, answer: &SaMad<'_>| {
            let record: McMemberRecord = answer.record()?;
            let is_it = record.mgid == group(n % GROUPS) && record.mlid.is_multicast();
            ensure!(is_it, "the answer describes another group: {record:?}");
            Ok(())
        };
        let time = self.ask(joins, JOINS_OUT, |n| question(Method::SET, create, n), check)?;
        self.ask(joins, JOINS_OUT, |n| question(Method::DELETE, member, n), |_, _| Ok(()))?;
        sleep(REST);
        Ok(f64::from(joins) / time)
    }

    /// Sends this many queries, `out` at a time. Returns the seconds until all are answered.
    fn ask(
        &self,
        count: u32,
        out: u32,
        question: impl Fn(u32) -> Question,
        check: impl Fn(u32, &SaMad<'_>) -> Result<()>,
    ) -> Result<f64> {
        let (mut asked, mut answered) = (0, 0);
        let start = Instant::now();
        while answered < count {
            while asked < count && asked - answered < out {
                self.send(asked, &question(asked))?;
                asked += 1;
            }
            let Some(answer) = self.file.try_recv_mad()? else {
                self.file.wait()?;
                continue;
            };
            ensure!(answer.status == 0, "a query was not answered: error {}", answer.status);
            let mad = SaMad::parse(&answer.data)?;
            let status = mad.header.status;
            ensure!(status == 0, "subnet administration refused a query with status {status:#06x}");
            // The upper half belongs to the agent.
            let [.., a, b, c, d] = mad.header.tid.to_be_bytes();
            let n = u32::from_be_bytes([a, b, c, d]);
            ensure!(n < asked, "received an answer without a query");
            check(n, &mad)?;
            answered += 1;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn send(&self, n: u32, question: &Question) -> Result<()> {
        let mut mad = SaMad::new(question.method, question.attribute, &question.record);
        mad.header.tid = n.into();
        mad.sa.component_mask = question.mask;
        Ok(self.file.send_mad(&UserMad {
            agent: self.agent,
            status: 0,
            timeout_ms: TIMEOUT_MS,
            retries: 0,
            address: UserAddress::gsi(self.manager),
            data: mad.to_bytes().to_vec(),
        })?)
    }
}

fn group(n: u32) -> Gid {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0xff, 0x15, 0xc0, 0xde]);
    gid[12..].copy_from_slice(&n.to_be_bytes());
    Gid(gid)
}
