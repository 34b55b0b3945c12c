//! The open device.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rdmux_host::{ConnectOptions, DeviceChoice, HostClient, HostName};
use rdmux_transport::attr::QpType;
use rdmux_verbs as verbs;
use rdmux_verbs::control::{Control as _, DeviceKind, Limits};
use rdmux_verbs::device::PORT;
use rdmux_verbs::port::GidEntry;
use rdmux_wire::{Gid, Mtu, Pkey};

use crate::cm::Ids;
use crate::embedded::{self, Embedded};
use crate::error::{Attempt, Cause, Error, Result};
use crate::umad::Fabric;
use crate::wait::{Deadline, Waiter};
use crate::{AsyncEvent, Cq, Pd, QpBuilder, Srq, Xrcd};

/// An open device of a host. Clones are the same device; it closes when the last object made from it is dropped.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

/// Fields drop in order: the device, the connection to the service, the service.
struct Inner {
    events: Waiter<EventFd>,
    ids: Ids,
    client: Arc<HostClient>,
    options: ConnectOptions,
    embedded: Option<Embedded>,
}

/// A builder that opens a [`Context`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is opened before `open`"]
pub struct ContextBuilder {
    host: Option<String>,
    kind: Option<DeviceKind>,
    how: How,
    config: Option<PathBuf>,
    fabrics: Vec<Fabric>,
    driven: bool,
}

/// The way in which the host's service is reached.
#[derive(Clone, Copy, Debug, Default)]
enum How {
    #[default]
    StartIfNeeded,
    ConnectOnly,
    Embedded,
}

impl ContextBuilder {
    /// Opens the device of this virtual host. Without this call, the host is the one that `$RDMUX_HOST` names, or the
    /// default host, which has the machine's own addresses.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.host = Some(name.into());
        self
    }
    /// Opens the device of this kind. Without it, the kind is the first that `$RDMUX_DEVICE` names (`roce`, `iw`,
    /// `ib` or `all`), or RoCE.
    pub fn device(mut self, kind: DeviceKind) -> Self {
        self.kind = Some(kind);
        self
    }
    /// Fails if the host's service is not running, instead of starting it.
    pub fn no_start(mut self) -> Self {
        self.how = How::ConnectOnly;
        self
    }
    /// Runs a private host within this process, isolated from all others: a service in a thread, with a free loopback
    /// address. It ends with the context.
    pub fn embedded(mut self) -> Self {
        self.how = How::Embedded;
        self
    }
    /// Sets the configuration file of an embedded host, which may set its addresses. By default an embedded host has no file
    /// and uses the defaults: the user's configuration is for other hosts.
    pub fn config(mut self, file: impl Into<PathBuf>) -> Self {
        self.config = Some(file.into());
        self
    }
    /// Attaches the InfiniBand adapter of an embedded host to this fabric. The host uses the runtime directory of that fabric, in which
    /// hosts need different [names](Self::host). A second call attaches the next port, to the same fabric or to one
    /// [beside](Fabric::beside) it.
    pub fn fabric(mut self, fabric: &Fabric) -> Self {
        self.fabrics.push(fabric.clone());
        self
    }
    /// Opens the device without a thread of its own. The program's event loop takes its place and calls [`Context::drive`].
    /// This saves context switches where many processes share few processors. Calls that wait, such as [`Cq::wait`], do not
    /// drive the device.
    pub fn driven(mut self) -> Self {
        self.driven = true;
        self
    }

    /// Opens the device.
    ///
    /// # Errors
    /// [`Cause::Host`] when there is no service and none can be started.
    pub fn open(self) -> Result<Context> {
        let name = match &self.host {
            Some(name) => HostName::new(name),
            None if matches!(self.how, How::Embedded) => HostName::new("own"),
            None => HostName::of_environment(),
        };
        let name = name.map_err(|e| Cause::Invalid(e.to_string())).on("a host", "be named")?;
        let kind = self.kind()?;
        let object = format!("host {name}");
        let of_environment = || ConnectOptions::of_environment().on(&object, OPEN);
        let (embedded, options, client) = match self.how {
            How::StartIfNeeded => {
                let options = of_environment()?;
                let client = options.connect_or_start(&name, kind);
                (None, options, client.on(&object, OPEN)?)
            }
            How::ConnectOnly => {
                let options = of_environment()?;
                let client = options.connect(&name, kind);
                (None, options, client.on(&object, OPEN)?)
            }
            How::Embedded => {
                let started = embedded::start(&name, kind, self.config.as_deref(), self.fabrics);
                let (service, options, client) = started.on(&object, OPEN)?;
                (Some(service), options, client)
            }
        };
        let open = if self.driven { verbs::Device::open_driven } else { verbs::Device::open };
        let device = open(client.clone()).on(&object, OPEN)?;
        let events = Waiter::new(EventFd(device));
        let ids = Ids::default();
        Ok(Context(Arc::new(Inner { events, ids, client, options, embedded })))
    }
}

impl ContextBuilder {
    /// Returns the kind of device to open.
    fn kind(&self) -> Result<DeviceKind> {
        if let Some(kind) = self.kind {
            return Ok(kind);
        }
        let choice = DeviceChoice::of_environment();
        let choice =
            choice.map_err(|e| Cause::Invalid(e.to_string())).on("a device", "be chosen")?;
        Ok(choice.kinds().first().copied().unwrap_or_default())
    }
}

/// The operation that an error names when opening fails.
const OPEN: &str = "open its device";

impl Context {
    /// Opens the device of the host that `$RDMUX_HOST` names, or of the default host. Starts the host's service if it
    /// is not running.
    ///
    /// # Errors
    /// [`Cause::Host`] when there is no service and none can be started.
    pub fn open() -> Result<Self> {
        Self::builder().open()
    }

    /// Returns a builder, which selects the host and how to open it.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    pub(crate) fn device(&self) -> &Arc<verbs::Device> {
        &self.0.events.source().0
    }
    pub(crate) fn client(&self) -> &Arc<HostClient> {
        &self.0.client
    }
    /// Returns how the host's service is reached.
    pub(crate) fn options(&self) -> &ConnectOptions {
        &self.0.options
    }
    /// Returns the fabric of this name, if the embedded host is attached to it.
    pub(crate) fn fabric(&self, name: &str) -> Option<&Fabric> {
        self.0.embedded.as_ref()?.fabric(name)
    }
    pub(crate) fn ids(&self) -> &Ids {
        &self.0.ids
    }

    /// Returns the host's name.
    pub fn host(&self) -> &str {
        self.device().host()
    }
    /// Returns the device's kind.
    pub fn kind(&self) -> DeviceKind {
        self.client().info().kind
    }
    /// Returns the device's name.
    pub fn name(&self) -> &str {
        self.device().name()
    }
    /// Returns the attributes of the device.
    pub fn query(&self) -> DeviceAttr {
        self.device().query()
    }
    /// Returns the attributes of the first port.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn query_port(&self) -> Result<PortAttr> {
        self.query_port_number(PORT)
    }
    /// Returns the number of ports, which are numbered from 1.
    pub fn num_ports(&self) -> u8 {
        self.device().num_ports()
    }
    /// Returns the attributes of the port with this number.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn query_port_number(&self, port: u8) -> Result<PortAttr> {
        self.device().query_port(port).on(self, "query its port")
    }
    /// Returns an entry of a port's P_Key table; 0 if it is empty.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn pkey(&self, port: u8, index: u16) -> Result<Pkey> {
        self.device().query_pkey(port, index).ok_or_else(|| {
            let why = format!("port {port} has no entry {index}");
            Error::new(self.to_string(), "find a P_Key", Cause::Invalid(why))
        })
    }
    /// Returns the limits of the device.
    pub fn limits(&self) -> Limits {
        self.query().limits
    }
    /// Returns the GID table of the first port: on RoCE the host's addresses, on iWARP a single entry that is not an
    /// address.
    pub fn gids(&self) -> Vec<GidEntry> {
        self.gids_of_port(PORT)
    }
    /// Returns the GID table of a port; empty if there is no such port.
    pub fn gids_of_port(&self, port: u8) -> Vec<GidEntry> {
        self.device().gids(port)
    }
    /// Returns an entry of the GID table of the first port.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn gid(&self, index: u8) -> Result<Gid> {
        self.gid_of_port(PORT, index)
    }
    /// Returns an entry of the GID table of a port.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn gid_of_port(&self, port: u8, index: u8) -> Result<Gid> {
        self.gid_entry(port, index).map(|entry| entry.gid)
    }
    /// Returns the host's first address.
    ///
    /// # Errors
    /// When the host has no address.
    pub fn address(&self) -> Result<IpAddr> {
        let first = self.device().addresses().into_iter().next();
        first.map(|entry| entry.gid.ip()).ok_or_else(|| {
            Error::new(self.to_string(), "find an address", Cause::Invalid("it has none".into()))
        })
    }
    /// Returns the IP addresses of a port, each at its index. The entry of a removed address is zero. On RoCE these are
    /// the port's GIDs.
    pub fn addresses_of_port(&self, port: u8) -> Vec<GidEntry> {
        self.device().addresses_of_port(port)
    }
    /// Returns the `sgid_index` of an IP address of the first port: on InfiniBand that of the port's own GID, elsewhere the index of
    /// the address.
    ///
    /// # Errors
    /// When the address is none of the first port's.
    pub fn gid_index(&self, ip: IpAddr) -> Result<u8> {
        self.device().gid_index(PORT, ip.into()).ok_or_else(|| {
            let why = format!("{ip} is none of its addresses");
            Error::new(self.to_string(), "find a GID", Cause::Invalid(why))
        })
    }
    /// Returns the MTU of paths from an entry of the GID table.
    pub(crate) fn path_mtu(&self, port: u8, sgid_index: u8) -> Result<Mtu> {
        self.gid_entry(port, sgid_index).map(|entry| entry.mtu)
    }
    fn gid_entry(&self, port: u8, index: u8) -> Result<GidEntry> {
        self.device().gid(port, index).ok_or_else(|| {
            let why = format!("port {port} has no entry {index}");
            Error::new(self.to_string(), "find a GID", Cause::Invalid(why))
        })
    }

    /// Allocates a protection domain within the device's limit ([`Limits::max_pd`]).
    ///
    /// # Errors
    /// When the limit is reached.
    pub fn try_pd(&self) -> Result<Pd> {
        Pd::try_new(self)
    }
    /// Allocates a protection domain regardless of the device's limit, which [`try_pd`](Self::try_pd) respects.
    pub fn pd(&self) -> Pd {
        Pd::new(self)
    }
    /// Creates a completion queue that holds `entries` completions.
    ///
    /// # Errors
    /// When `entries` is 0 or beyond the device's limit.
    pub fn cq(&self, entries: u32) -> Result<Cq> {
        Cq::new(self, entries)
    }

    /// Advances a [driven](ContextBuilder::driven) device: receives packets, runs timers, and resumes blocked sends. Poll completion
    /// queues afterwards. Returns how long the call need not be repeated unless [`drive_fd`](Self::drive_fd) becomes readable; none
    /// means forever. Call it once after opening the device.
    pub fn drive(&self) -> Option<Duration> {
        self.device().drive()
    }

    /// Returns a descriptor that is readable while [`drive`](Self::drive) has work.
    pub fn drive_fd(&self) -> BorrowedFd<'_> {
        self.device().drive_fd()
    }

    /// Returns the next asynchronous event; waits at most for `timeout` (none: without limit). None when the timeout
    /// expired.
    ///
    /// # Errors
    /// The operating system's.
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        let deadline = Deadline::after(timeout);
        loop {
            let look = self.0.events.look();
            if let Some(event) = self.device().try_get_async_event() {
                return Ok(Some(AsyncEvent::from(&event)));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            look.wait(deadline).on(self, "wait for an event")?;
        }
    }

    /// Awaits the next asynchronous event.
    ///
    /// # Errors
    /// The operating system's, or outside a tokio runtime.
    #[cfg(feature = "tokio")]
    pub async fn next_event_async(&self) -> Result<AsyncEvent> {
        loop {
            let look = self.0.events.look();
            if let Some(event) = self.device().try_get_async_event() {
                return Ok(AsyncEvent::from(&event));
            }
            look.ready().await.on(self, "wait for an event")?;
        }
    }
}

impl Pd {
    /// Returns a builder for a queue pair of this transport.
    pub fn qp(&self, qp_type: QpType) -> QpBuilder {
        QpBuilder::new(self, qp_type)
    }
    /// Creates a shared receive queue of `max_wr` receives with up to `max_sge` pieces each.
    ///
    /// # Errors
    /// When one of them is beyond the device's limits.
    pub fn srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq> {
        Srq::new(self, max_wr, max_sge)
    }
    /// Creates a shared receive queue of an XRC domain, whose receives complete in `cq`. Senders name it by its
    /// [`number`](Srq::number).
    ///
    /// # Errors
    /// As for [`srq`](Self::srq), or when the three belong to different devices.
    pub fn xrc_srq(&self, domain: &Xrcd, cq: &Cq, max_wr: u32, max_sge: u32) -> Result<Srq> {
        Srq::of_domain(self, domain, cq, max_wr, max_sge)
    }
}

/// The descriptor is readable while [`Context::next_event`] has an event, for event loops that also wait for other things.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device().async_fd()
    }
}

/// The device, seen as the descriptor of its asynchronous events.
struct EventFd(Arc<verbs::Device>);

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.async_fd()
    }
}

/// Attributes of a port.
pub use rdmux_verbs::port::PortAttr;
/// Attributes of a device.
pub use rdmux_verbs::query::DeviceAttr;

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} of host {}", self.name(), self.host())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({self})")
    }
}
