//! A client of subnet administration in this crate: it sends requests to a manager, and to ports, that no program of the distribution
//! sends.

use std::time::Instant;

use anyhow::{Result, ensure};
use rdmux_fabric::FabricName;
use rdmux_fabric::client::MadFile;
use rdmux_fabric::proto::{NodeRef, PortRef, Snapshot};
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::{Method, MgmtClass};
use rdmux_wire::rmpp::{RmppFlags, RmppType};
use rdmux_wire::sa::{CLASS_VERSION, SaMad};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Gid, Lid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::TIMEOUT;
use super::diags::own;
use super::ground::{self, Ground, HOSTS, Shown};

/// The timeout of the manager's answers.
const ANSWER_MS: u32 = 60_000;

/// A port, with an agent that receives answers.
pub(super) struct Client {
    file: MadFile,
    agent: u32,
    /// The LID of the manager.
    pub(super) manager: Lid,
    next: u64,
    /// The port's GID.
    pub(super) gid: Gid,
}

impl Client {
    /// Opens the second host's port, beside whatever else has it open.
    pub(super) fn open(ground: &Ground) -> Result<Self> {
        let shown = ground.show()?;
        let manager = ground::lid(ground.manager_in(&shown)?)?;
        Self::to(ground, &shown, HOSTS[1], manager)
    }

    /// Opens the port of an adapter with this name, to send requests to the manager with this LID.
    pub(super) fn to(ground: &Ground, shown: &Snapshot, own: &str, manager: Lid) -> Result<Self> {
        let node = shown.node(own)?;
        let port = PortRef { node: NodeRef::Guid(node.guid), port: 1 };
        let file = MadFile::open(&ground.connect_options()?, &FabricName::default(), &port)?;
        let agent = file.register(&Registration {
            qpn: 1,
            class: MgmtClass::SUBN_ADM.0,
            class_version: CLASS_VERSION,
            rmpp_version: 1,
            ..Registration::default()
        })?;
        Ok(Self { file, agent, manager, next: 1, gid: Gid(own::gid(node).octets()) })
    }

    /// Sends a request and returns the complete answer, whose status must be success.
    pub(super) fn ask(
        &mut self,
        method: Method,
        attr_id: u16,
        record: &[u8],
        mask: u64,
    ) -> Result<Vec<u8>> {
        let mut mad = SaMad::new(method, attr_id, record);
        (mad.header.tid, mad.sa.component_mask) = (self.next, mask);
        if method == Method::GET_MULTI {
            (mad.rmpp.version, mad.rmpp.kind, mad.rmpp.flags) =
                (1, RmppType::DATA, RmppFlags::ACTIVE);
        }
        self.next += 1;
        self.send(mad.to_bytes().to_vec(), ANSWER_MS)?;
        let got = self.receive()?;
        ensure!(got.status == 0, "the manager did not answer: status {}", got.status);
        let mad = SaMad::parse(&got.data)?;
        ensure!(mad.header.status == 0, "the manager refused the request: {mad}");
        Ok(got.data)
    }

    /// Sends a datagram to the manager, with this timeout for the answer.
    pub(super) fn send(&self, data: Vec<u8>, timeout_ms: u32) -> Result<()> {
        let (agent, address) = (self.agent, UserAddress::gsi(self.manager));
        let mad = UserMad { agent, status: 0, timeout_ms, retries: 0, address, data };
        Ok(self.file.send_mad(&mad)?)
    }

    /// Receives the next datagram.
    pub(super) fn receive(&self) -> Result<UserMad> {
        receive(&self.file)
    }
}

/// Sends an SMP to the port with a LID, from the second host's port. Returns the answer, whose status must be success.
pub(super) fn ask_port(ground: &Ground, lid: Lid, smp: &Smp) -> Result<Smp> {
    let own = ground.show()?.node(HOSTS[1])?.guid;
    let port = PortRef { node: NodeRef::Guid(own), port: 1 };
    let file = MadFile::open(&ground.connect_options()?, &FabricName::default(), &port)?;
    let class = MgmtClass::SUBN_LID.0;
    let agent = file.register(&Registration { class, class_version: 1, ..Registration::default() });
    let (address, data) = (UserAddress::smi(lid), smp.to_bytes().to_vec());
    let (agent, timeout_ms) = (agent?, ANSWER_MS);
    file.send_mad(&UserMad { agent, status: 0, timeout_ms, retries: 0, address, data })?;
    let got = receive(&file)?;
    ensure!(got.status == 0, "LID {lid} did not answer: status {}", got.status);
    let answer = Smp::parse(&got.data)?;
    ensure!(answer.header.status == 0, "LID {lid} refused the request: {answer:?}");
    Ok(answer)
}

/// Receives the next datagram.
fn receive(file: &MadFile) -> Result<UserMad> {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(mad) = file.try_recv_mad()? {
            return Ok(mad);
        }
        let left = end.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "no datagram arrived in time");
        let mut fds = [PollFd::new(file, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::try_from(left)?))?;
    }
}
