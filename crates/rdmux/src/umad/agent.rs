//! Agents: registration, sending, and dispatch of received datagrams.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdmux_fabric::FabricError;
use rdmux_subnet::umad::{Registration, UserMad};
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use rdmux_wire::{Rmpp, RmppFlags, rmpp};

use super::{Address, Incoming, Port};
use crate::error::{Attempt, Cause, Result};

/// The attributes with which an agent is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing is registered before `Port::agent`"]
pub struct AgentAttr(Registration);

/// The timeout and retries of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAttr {
    /// The timeout after each transmission, in whole milliseconds, at least one.
    pub timeout: Duration,
    /// The number of retransmissions.
    pub retries: u32,
}

/// The number of an agent among those of its port, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u32);

/// A transaction ID: the lower half of the one in the datagram. The upper half belongs to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u32);

/// An agent of a port. Clones are the same agent. It is unregistered when the last of them is dropped, and its outstanding
/// requests then end without an answer.
#[derive(Clone)]
pub struct Agent(Arc<Registered>);

/// A registration, which ends when it is dropped.
struct Registered {
    port: Port,
    id: AgentId,
    attr: AgentAttr,
}

impl AgentAttr {
    /// Returns the attributes of an agent of a class and its version. It receives only the answers to its own
    /// requests.
    pub fn new(class: MgmtClass, version: u8) -> Self {
        let qpn = u32::from(!class.is_subnet_management());
        let class = class.0;
        Self(Registration { qpn, class, class_version: version, ..Registration::default() })
    }

    /// Lets the agent receive requests of these methods, which then no other agent of the port may receive.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        let bit = |method: Method| 1_u128.checked_shl(method.0.into()).unwrap_or(0);
        self.0.methods |= methods.into_iter().map(bit).fold(0, |mask, bit| mask | bit);
        self
    }

    /// Sets the vendor's OUI, in the classes 0x30 to 0x4f.
    pub fn oui(mut self, oui: [u8; 3]) -> Self {
        self.0.oui = oui;
        self
    }

    /// Enables RMPP (IBTA 13.6), which segments and reassembles messages of any length. For subnet and device
    /// administration, and for the vendors' classes 0x30 to 0x4f.
    pub fn rmpp(mut self) -> Self {
        self.0.rmpp_version = Rmpp::VERSION;
        self
    }

    /// Leaves RMPP to the program, which sends and receives single datagrams.
    pub fn own_rmpp(mut self) -> Self {
        self.0.flags |= Registration::USER_RMPP;
        self.rmpp()
    }

    fn sends_messages(&self) -> bool {
        self.0.rmpp_version != 0 && self.0.flags & Registration::USER_RMPP == 0
    }
}

/// The default: one second, and three retries.
impl Default for RequestAttr {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(1), retries: 3 }
    }
}

impl Tid {
    pub(super) fn of(header: &MadHeader) -> Self {
        let [.., a, b, c, d] = header.tid.to_be_bytes();
        Self(u32::from_be_bytes([a, b, c, d]))
    }
}

impl Agent {
    pub(super) fn register(port: Port, attr: &AgentAttr) -> Result<Self> {
        let registered = port.file().register(&attr.0).map_err(|e| why_not(attr, e));
        let id = AgentId(registered.on(&port, "register an agent")?);
        Ok(Self(Arc::new(Registered { port, id, attr: *attr })))
    }

    /// Returns the agent's number, as in [`Event::agent`](super::Event::agent).
    pub fn id(&self) -> AgentId {
        self.0.id
    }

    /// Returns the port at which the agent is registered.
    pub fn port(&self) -> &Port {
        &self.0.port
    }

    /// Sends a request and returns its transaction ID, which replaces the ID in the request. The port receives the
    /// answer, or an event that none arrived, with this ID.
    ///
    /// A datagram of fewer than 256 bytes is padded with zeroes. An agent with RMPP sends messages of any length.
    ///
    /// # Errors
    /// [`Cause::Invalid`] for a datagram that is shorter than a header, is a response, or is too long; [`Cause::Fabric`] when
    /// the fabric is gone. A refusal by the fabric is received as [`Why::Refused`](super::Why::Refused).
    pub fn request(&self, to: &Address, mad: &[u8], attr: &RequestAttr) -> Result<Tid> {
        // 0 would mean that no answer is expected.
        let timeout_ms = attr.timeout.as_nanos().div_ceil(1_000_000).max(1);
        let timeout_ms = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
        self.ask(to, mad, timeout_ms, attr.retries).on(self, "send a request")
    }

    /// Sends a datagram without waiting for an answer.
    ///
    /// # Errors
    /// As [`request`](Self::request). A datagram that the fabric refuses is dropped.
    pub fn send(&self, to: &Address, mad: &[u8]) -> Result<()> {
        self.ask(to, mad, 0, 0).map(drop).on(self, "send a datagram")
    }

    /// Answers a datagram that this agent received: sends the answer to the datagram's sender, with its transaction ID.
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`Cause::Invalid`] for a datagram that is not a response.
    pub fn respond(&self, to: &Incoming, mad: &[u8]) -> Result<()> {
        let sent = self.record(&to.from, mad).and_then(|mut record| {
            if !is_response(&record.data) {
                return Err(Cause::Invalid("its method is not that of a response".to_owned()));
            }
            record.data[TID..TID + 8].copy_from_slice(&to.header.tid.to_be_bytes());
            self.0.port.send(&record)
        });
        sent.on(self, "send an answer")
    }

    fn ask(&self, to: &Address, mad: &[u8], timeout_ms: u32, retries: u32) -> Result<Tid, Cause> {
        let mut record = self.record(to, mad)?;
        if is_response(&record.data) {
            return Err(Cause::Invalid("its method is that of a response".to_owned()));
        }
        let tid = self.0.port.next_tid();
        record.data[TID..TID + 4].fill(0);
        record.data[TID + 4..TID + 8].copy_from_slice(&tid.0.to_be_bytes());
        (record.timeout_ms, record.retries) = (timeout_ms, retries);
        self.0.port.send(&record)?;
        Ok(tid)
    }

    /// Returns the record in which a datagram or message is sent.
    fn record(&self, to: &Address, mad: &[u8]) -> Result<UserMad, Cause> {
        MadHeader::parse(mad).map_err(|e| Cause::Invalid(e.to_string()))?;
        let mut data = mad.to_vec();
        if data.len() > MAD_LEN {
            if !self.0.attr.sends_messages() {
                return Err(Cause::TooLong { len: mad.len(), max: MAD_LEN });
            }
            data[RMPP_VERSION] = Rmpp::VERSION;
            data[RMPP_FLAGS] |= RmppFlags::ACTIVE.0;
        }
        data.resize(data.len().max(MAD_LEN), 0);
        let AgentId(agent) = self.0.id;
        Ok(UserMad { agent, status: 0, timeout_ms: 0, retries: 0, address: *to, data })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.port.unregister(self.id);
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {} of {}", self.0.id.0, self.0.port)
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Agent({} of {})", self.0.id.0, self.0.port)
    }
}

const TID: usize = 8;
const METHOD: usize = 3;
const RMPP_VERSION: usize = rmpp::OFFSET;
const RMPP_FLAGS: usize = rmpp::OFFSET + 2;

fn is_response(mad: &[u8]) -> bool {
    let method = Method(mad[METHOD]);
    method.is_response() || method == Method::TRAP_REPRESS
}

/// Returns the cause of a refused registration. The fabric reports no more detail than the kernel's device.
fn why_not(attr: &AgentAttr, e: FabricError) -> Cause {
    let (class, version) = (MgmtClass(attr.0.class), attr.0.class_version);
    match e {
        FabricError::Refused { errno: libc::EINVAL, .. } => Cause::Invalid(format!(
            "another agent is registered for one of these methods of class {class}, or version \
             {version}, OUI and RMPP do not fit the class"
        )),
        FabricError::Refused { errno: libc::ENOMEM, why, .. } => Cause::Resources(why),
        e => e.into(),
    }
}
