//! Extended reliable connections (IBTA annex A14): domains and targets.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use rdmux_transport::attr::{Access, AttrMask, QpAttr};
use rdmux_verbs as verbs;
pub use rdmux_verbs::XrcdFlags;
use rdmux_verbs::device::PORT;
use rdmux_wire::Qpn;

use crate::error::{Attempt, Result};
use crate::{Context, Endpoint, manual};

/// An open XRC domain, which associates shared receive queues with targets. Clones are the same opening. It closes
/// when everything made with it is dropped, and the domain is destroyed with its last opening.
///
/// With an extended reliable connection (XRC), one sender reaches the shared receive queues of many processes. The
/// receiving end, a *target*, belongs to no process: it exists in the host's service, until the last process that
/// holds it releases it or exits in any way. A received message is placed by the shared receive queue that the
/// request names, in whichever process created that queue in the same [`Xrcd`].
///
/// A process holds a target by registration, which is not counted ([`Xrcd::alloc`], [`Xrcd::register`],
/// [`Xrcd::unregister`]: the proposal of 2007), or by handles, which are counted ([`Xrcd::create`],
/// [`Xrcd::open_target`]: as `ibv_open_qp(3)`). Either keeps the target.
///
/// ```
/// # use rdmux::{Access, Context, QpType, SendWr, Xrcd, XrcdFlags};
/// # fn main() -> rdmux::Result<()> {
/// # let (context, sender) = (Context::builder().embedded().open()?, Context::builder().embedded().open()?);
/// # let file = std::fs::File::open("/proc/self/exe").unwrap();
/// // The sender makes a queue pair; its endpoint goes to a receiver by any channel.
/// let qp = sender.pd().qp(QpType::XrcSend).cq(&sender.cq(16)?).build()?;
///
/// // A receiver opens the domain of a file, makes a queue and the target; others register by its number.
/// let domain = Xrcd::of_file(&context, &file, XrcdFlags { create: true, exclusive: false })?;
/// let (pd, cq) = (context.pd(), context.cq(16)?);
/// let srq = pd.xrc_srq(&domain, &cq, 16, 1)?;
/// let memory = pd.alloc(4096, Access::LOCAL_WRITE)?;
/// srq.post_recv(1, &[memory.slice(..)])?;
/// let target = domain.alloc(qp.endpoint(0)?, 0, Access::empty())?;
///
/// // The sender connects to the target, and names the queue in each request.
/// let there = rdmux::Endpoint::new(context.gid(0)?, target);
/// qp.connect(there, 0, Access::empty())?;
/// let number = srq.number().expect("a queue of a domain has a number");
/// qp.post_send(&SendWr::send(2).srq(number).inline(&[b"hello"]))?;
/// assert_eq!(cq.wait_one(None)?.byte_len, 5);
/// domain.unregister(target)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Xrcd {
    xrcd: verbs::Xrcd,
    context: Context,
    /// The port of the domain's targets.
    port: u8,
}

impl Xrcd {
    /// Opens the domain of a file. Any process that may open the file may open the domain.
    ///
    /// # Errors
    /// When the domain does not exist and `flags` do not permit creating it, or when it exists and they require
    /// a new one.
    pub fn of_file(context: &Context, file: impl AsFd, flags: XrcdFlags) -> Result<Self> {
        let xrcd = verbs::Xrcd::open(context.device(), Some(file.as_fd()), flags)
            .on(context, "open an XRC domain")?;
        Ok(Self { xrcd, context: context.clone(), port: PORT })
    }

    /// Opens a new domain that only this process can use.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn private(context: &Context) -> Result<Self> {
        let flags = XrcdFlags { create: true, exclusive: false };
        let xrcd = verbs::Xrcd::open(context.device(), None, flags)
            .on(context, "make a private XRC domain")?;
        Ok(Self { xrcd, context: context.clone(), port: PORT })
    }

    /// Returns the same opening with another port, from 1, for its targets, instead of the first one.
    #[must_use]
    pub fn at_port(&self, port: u8) -> Self {
        Self { port, ..self.clone() }
    }

    pub(crate) fn verbs(&self) -> &verbs::Xrcd {
        &self.xrcd
    }

    /// Returns the device on which the domain was opened.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Creates a target for the sender at `peer`, ready to receive (RTR), and registers this process for it. Returns
    /// its number, to which the sender connects. The peer may access the memory of the domain's processes as far as
    /// both `access` and their regions allow.
    ///
    /// # Errors
    /// When there are too many targets, or `peer` cannot be reached from `sgid_index`. No target is left then.
    pub fn alloc(&self, peer: Endpoint, sgid_index: u8, access: Access) -> Result<Qpn> {
        let attr = self.attr(peer, sgid_index, access)?;
        self.xrcd.alloc_registered(&attr).on(self, "make a target")
    }

    /// Registers this process for a target, which exists at least until this process unregisters. Registering again
    /// changes nothing.
    ///
    /// # Errors
    /// When the number is unknown, or is not of a target of this domain.
    pub fn register(&self, target: Qpn) -> Result<()> {
        self.xrcd.register(target).on(format_args!("target {target}"), "register")
    }

    /// Unregisters this process. The target is destroyed if no process holds it any more.
    ///
    /// # Errors
    /// As for [`register`](Self::register), or when this process is not registered.
    pub fn unregister(&self, target: Qpn) -> Result<()> {
        self.xrcd.unregister(target).on(format_args!("target {target}"), "unregister")
    }

    /// Returns all attributes of a target of this domain.
    ///
    /// # Errors
    /// When the number is unknown, or is not of a target of this domain.
    pub fn query(&self, target: Qpn) -> Result<QpAttr> {
        self.xrcd.query(target).on(format_args!("target {target}"), "query")
    }

    /// Creates a target, in RESET, and a handle on it.
    ///
    /// # Errors
    /// When there are too many targets.
    pub fn create(&self) -> Result<XrcTarget> {
        let target = verbs::Target::create(&self.xrcd, 0).on(self, "make a target")?;
        Ok(XrcTarget(Arc::new(Handle { target, domain: self.clone() })))
    }

    /// Opens another handle on a target, which any process may have created.
    ///
    /// # Errors
    /// When the number is unknown, or is not of a target of this domain.
    pub fn open_target(&self, target: Qpn) -> Result<XrcTarget> {
        let opened = verbs::Target::open(&self.xrcd, target, 0);
        let target = opened.on(format_args!("target {target}"), "open")?;
        Ok(XrcTarget(Arc::new(Handle { target, domain: self.clone() })))
    }

    fn attr(&self, peer: Endpoint, sgid_index: u8, access: Access) -> Result<QpAttr> {
        manual::attr(&self.context, &QpAttr::default(), peer, (self.port, sgid_index), access)
    }
}

impl fmt::Display for Xrcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XRC domain on {}", self.context)
    }
}

impl fmt::Debug for Xrcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xrcd({} users)", self.xrcd.users())
    }
}

/// A handle on a target. Clones are the same handle; dropping the last one releases it.
#[derive(Clone)]
pub struct XrcTarget(Arc<Handle>);

/// Fields drop in order: the handle before the domain.
struct Handle {
    target: verbs::Target,
    domain: Xrcd,
}

impl XrcTarget {
    /// Returns the target's number. The top bit is 1, and numbers are not reused soon.
    pub fn qpn(&self) -> Qpn {
        self.0.target.qpn()
    }
    /// Returns the domain in which the target was created or opened.
    pub fn domain(&self) -> &Xrcd {
        &self.0.domain
    }
    /// Returns the endpoint that a sender needs to connect to the target.
    ///
    /// # Errors
    /// When entry `sgid_index` of the GID table does not exist.
    pub fn endpoint(&self, sgid_index: u8) -> Result<Endpoint> {
        let Xrcd { context, port, .. } = &self.0.domain;
        Endpoint::of(context, (*port, sgid_index), self.qpn())
    }
    /// Returns all attributes of the target.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn attr(&self) -> Result<QpAttr> {
        self.0.target.query().on(self, "query")
    }
    /// Changes attributes of the target, most often the state, for all its holders.
    ///
    /// # Errors
    /// When the transition does not exist, or an attribute is missing, not allowed or out of range.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        self.0.target.modify(attr, mask).on(self, "modify")
    }
    /// Moves the target from RESET to RTR for the sender at `peer`, from which it then receives.
    ///
    /// # Errors
    /// When the target is not in RESET, or `peer` cannot be reached from `sgid_index`.
    pub fn accept(&self, peer: Endpoint, sgid_index: u8, access: Access) -> Result<()> {
        let attr = self.0.domain.attr(peer, sgid_index, access)?;
        manual::receive_steps(&attr).iter().try_for_each(|(attr, mask)| self.modify(attr, *mask))
    }
}

impl fmt::Display for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "target {}", self.qpn())
    }
}

impl fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XrcTarget({})", self.qpn())
    }
}
