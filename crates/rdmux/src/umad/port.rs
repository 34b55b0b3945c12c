//! An open management interface.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdmux_fabric::FabricName;
use rdmux_fabric::client::MadFile;
use rdmux_subnet::umad::UserMad;
use rdmux_verbs::port::Managed;

use super::agent::{Agent, AgentAttr, AgentId, Tid};
use super::fabric::{OPEN, port_ref};
use super::{Client, Event, Fabric, RequestAttr};
use crate::Context;
use crate::error::{Attempt, Cause, Error, Result};
use crate::style::{Blocking, Style, block_on};
use crate::wait::{Deadline, Waiter};

/// The open management interface of a port, like an open `/dev/infiniband/umadN`. Clones are the same interface. It closes,
/// and its agents are unregistered, when the last clone and the last agent are dropped.
///
/// It receives for all its agents. One thread may receive while others send.
#[derive(Clone)]
pub struct Port(Arc<Opened>);

struct Opened {
    waiter: Waiter<MadFile>,
    // After the file: a private fabric outlives it, and so does the device, whose host has the adapter.
    fabric: Fabric,
    _device: Option<Context>,
    name: String,
    /// The last transaction ID.
    tid: AtomicU32,
}

impl Port {
    pub(super) fn new(
        file: MadFile,
        fabric: Fabric,
        device: Option<Context>,
        name: String,
    ) -> Self {
        let (waiter, tid) = (Waiter::new(file), AtomicU32::new(0));
        Self(Arc::new(Opened { waiter, fabric, _device: device, name, tid }))
    }

    /// Opens the management interface of a port of an InfiniBand device, by its number from 1 on, like
    /// `umad_open_port("rdmux_ib0", 1)` in C. A port may be open any number of times. The device stays open as long as the
    /// port.
    ///
    /// ```
    /// use rdmux::umad::sm::{Attribute, NodeInfo};
    /// use rdmux::umad::smp::Smp;
    /// use rdmux::umad::{Address, AgentAttr, Fabric, Method, MgmtClass, Port};
    /// use rdmux::{Context, DeviceKind};
    ///
    /// # fn main() -> rdmux::Result<()> {
    /// // Both of this process's own. `Context::builder().device(DeviceKind::Ib).open()` is for those that others use, too.
    /// let fabric = Fabric::embedded("switch:2")?;
    /// let context = Context::builder().embedded().fabric(&fabric).device(DeviceKind::Ib).open()?;
    ///
    /// // Who is behind our own cable?
    /// let agent = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
    /// let mut client = Port::open(&context, 1)?.client(&agent)?;
    /// let question = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &[1]);
    /// let answer = client.ask_smp(&Address::directed(), &question)?;
    /// let Some(Attribute::NodeInfo(node)) = answer.attribute() else { panic!("{answer:?}") };
    /// assert_eq!(node.num_ports, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Cause::Invalid`] for a port that the device does not have, and for a port that is not managed, which is one of RoCE
    /// or iWARP, or of a host that is not attached to a fabric yet; [`Cause::Host`]; [`Cause::Fabric`] when the fabric is
    /// not up.
    pub fn open(context: &Context, number: u8) -> Result<Self> {
        let object = format!("port {number} of {context}");
        let managed = managed(context, number).on(&object, OPEN)?;
        let at = port_ref(&managed.node, managed.port);
        let fabric = match context.fabric(&managed.fabric) {
            Some(fabric) => fabric.clone(),
            None => {
                let name = FabricName::new(&managed.fabric);
                let name = name.map_err(|e| Cause::Invalid(e.to_string())).on(&object, OPEN)?;
                Fabric::of_user(context.options().dir.user_dir().clone(), name)
            }
        };
        let file = fabric.open_file(&at).on(&object, OPEN)?;
        Ok(Self::new(file, fabric, Some(context.clone()), object))
    }

    /// Returns the fabric that the port belongs to.
    pub fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    /// Registers an agent.
    ///
    /// # Errors
    /// [`Cause::Invalid`] for a class, version, OUI or RMPP that no agent can have, and for a method that another agent of
    /// the port has, in any process; [`Cause::Resources`] for the 33rd agent; [`Cause::Fabric`].
    pub fn agent(&self, attr: &AgentAttr) -> Result<Agent> {
        Agent::register(self.clone(), attr)
    }

    /// Turns this into a client: registers an agent, and receives its answers only.
    ///
    /// # Errors
    /// As [`agent`](Self::agent).
    pub fn client(self, attr: &AgentAttr) -> Result<Client> {
        Ok(Client::new(self.agent(attr)?, RequestAttr::default()))
    }

    /// Waits for the next datagram or message for one of the agents, or the failure of a request.
    ///
    /// # Errors
    /// [`Cause::Fabric`] when the fabric is gone.
    pub fn recv(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.recv_by(Deadline::after(None))? {
                return Ok(event);
            }
        }
    }

    /// Receives as [`recv`](Self::recv) does, waiting at most for `timeout`.
    ///
    /// # Errors
    /// As `recv`, and [`Cause::TimedOut`].
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Event> {
        let event = self.recv_by(Deadline::after(Some(timeout)))?;
        event.ok_or_else(|| Error::new(self.to_string(), RECEIVE, Cause::TimedOut))
    }

    /// Receives as [`recv`](Self::recv) does, if an event is pending. Never blocks, except for the rest of a long
    /// message that has begun.
    ///
    /// # Errors
    /// As `recv`.
    pub fn try_recv(&self) -> Result<Option<Event>> {
        loop {
            let Some(record) = self.file().try_recv_mad().on(self, RECEIVE)? else {
                return Ok(None);
            };
            // Records without a header are skipped.
            if let Some(event) = Event::new(record) {
                return Ok(Some(event));
            }
        }
    }

    /// Awaits the next datagram, as [`recv`](Self::recv).
    ///
    /// # Errors
    /// As `recv`, and outside a tokio runtime.
    #[cfg(feature = "tokio")]
    pub async fn recv_async(&self) -> Result<Event> {
        loop {
            let deadline = Deadline::after(None);
            if let Some(event) = self.recv_in::<crate::style::Tokio>(deadline).await? {
                return Ok(event);
            }
        }
    }

    fn recv_by(&self, deadline: Deadline) -> Result<Option<Event>> {
        block_on(self.recv_in::<Blocking>(deadline))
    }

    async fn recv_in<S: Style>(&self, deadline: Deadline) -> Result<Option<Event>> {
        loop {
            let look = self.0.waiter.look();
            if let Some(event) = self.try_recv()? {
                return Ok(Some(event));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            S::one(look, deadline).await.on(self, RECEIVE)?;
        }
    }

    pub(super) fn file(&self) -> &MadFile {
        self.0.waiter.source()
    }

    /// Returns a new transaction ID, which repeats after 2^32 calls.
    pub(super) fn next_tid(&self) -> Tid {
        Tid(self.0.tid.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    pub(super) fn send(&self, record: &UserMad) -> Result<(), Cause> {
        Ok(self.file().send_mad(record)?)
    }

    pub(super) fn unregister(&self, agent: AgentId) {
        // The agents ended with the fabric.
        let _ = self.file().unregister(agent.0);
    }
}

/// Returns the fabric's port that a device's port currently is.
fn managed(context: &Context, number: u8) -> Result<Managed, Cause> {
    if context.client().is_gone() {
        return Err(Cause::Gone);
    }
    let mut devices = context.options().devices(context.client().host())?;
    let device = devices.iter_mut().find(|device| device.name == context.name());
    let index = usize::from(number).checked_sub(1);
    let port = device.zip(index).and_then(|(device, index)| device.ports.get_mut(index));
    let Some(port) = port else {
        return Err(Cause::Invalid("the device does not have this port".to_owned()));
    };
    port.managed.take().ok_or_else(|| {
        Cause::Invalid(if context.kind().is_on_fabric() {
            let host = context.host();
            format!(
                "its host is not attached to a fabric: `rdmux host status {host}` shows the reason"
            )
        } else {
            "only InfiniBand devices have a management interface".to_owned()
        })
    })
}

const RECEIVE: &str = "receive a datagram";

/// The descriptor is readable while a record is pending, and when the fabric is gone.
impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({})", self.0.name)
    }
}
