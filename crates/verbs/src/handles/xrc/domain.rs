//! XRC domains (`ibv_open_xrcd(3)`): which shared receive queues a target may deliver to, and which
//! processes may hold it. Here are also the calls on targets by number, without a handle.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use rdmux_transport::attr::{AttrMask, QpAttr, QpState};
use rdmux_wire::Qpn;

use crate::handles::device::Device;
use crate::objects::control::DeviceKind;
use crate::objects::error::VerbsError;
use crate::objects::xrc::ask::unexpected;
use crate::objects::xrc::request::{Hold, XrcReply, XrcRequest};

/// How a domain is opened, as a file is (`open(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcdFlags {
    /// Make it if it does not exist (`O_CREAT`).
    pub create: bool,
    /// With `create`: it must not exist (`O_EXCL`).
    pub exclusive: bool,
}

/// An opening of an XRC domain. The domain goes with its last opening.
#[derive(Clone, Debug)]
pub struct Xrcd(Arc<Opening>);

#[derive(Debug)]
pub(crate) struct Opening {
    device: Arc<Device>,
    id: u32,
    /// Shared receive queues, handles and registrations that were made with this opening.
    users: AtomicUsize,
}

/// Keeps an opening in use.
#[derive(Debug)]
pub(crate) struct Use(Xrcd);

/// A registration, which counts as a use, but does not keep the opening: the device that has it would live for
/// ever.
#[derive(Debug)]
pub(crate) struct Registration(Weak<Opening>);

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(opening) = self.0.upgrade() {
            opening.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Use {
    pub(crate) fn xrcd(&self) -> &Xrcd {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Xrcd {
    /// Opens the domain of a file, which any process may open that may open the file; or, without one, a
    /// domain of this process alone.
    ///
    /// # Errors
    ///
    /// EAGAIN when there is none and `create` is not set, EINVAL when there is one and `exclusive` is;
    /// the service's, when it is gone; EOPNOTSUPP for iWARP.
    pub fn open(
        device: &Arc<Device>,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Self, VerbsError> {
        const WHAT: &str = "open an XRC domain";
        if device.kind() == DeviceKind::Iwarp {
            return Err(VerbsError::unsupported(WHAT, "iWARP has no XRC"));
        }
        let XrcdFlags { create, exclusive } = flags;
        let request = XrcRequest::OpenDomain { create, exclusive };
        match device.ask_hub(&request, file, WHAT)? {
            XrcReply::Domain(id) => {
                let users = AtomicUsize::new(0);
                Ok(Self(Arc::new(Opening { device: device.clone(), id, users })))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Closes the domain, unless something was made with it that still is.
    ///
    /// # Errors
    ///
    /// EBUSY, with the domain as it was.
    pub fn close(self) -> Result<(), (Self, VerbsError)> {
        match self.users() {
            0 => Ok(()),
            n => {
                let why =
                    format!("{n} shared receive queues, queue pairs and registrations use it");
                Err((self, VerbsError::Busy { what: "close an XRC domain", why }))
            }
        }
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    /// How many shared receive queues, handles and registrations were made with it.
    pub fn users(&self) -> usize {
        self.0.users.load(Ordering::Acquire)
    }

    /// Creates a target in RESET and registers this process for it (`ibv_create_xrc_rcv_qp` of OFED 1.3).
    ///
    /// # Errors
    ///
    /// ENOMEM when there are as many targets as there can be.
    pub fn create_registered(&self) -> Result<Qpn, VerbsError> {
        let hold = Hold::Registration;
        let request = XrcRequest::CreateTarget { domain: self.0.id, hold };
        match self.ask(&request, "create an XRC receive queue pair")? {
            XrcReply::Target(qpn) => {
                self.0.device.xrc().registered(qpn, self.registration());
                Ok(qpn)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Creates a target, takes it to RTR and registers this process (`ibv_xrc_rcv_qp_alloc` of the
    /// proposal of 2007). `attr` is what INIT and RTR need: port, P_Key and rights, path, MTU, the peer's
    /// number, its first PSN, the READs and atomics to serve, and the RNR timer.
    ///
    /// # Errors
    ///
    /// As for [`create_registered`](Self::create_registered) and [`modify`](Self::modify); nothing is left then.
    pub fn alloc_registered(&self, attr: &QpAttr) -> Result<Qpn, VerbsError> {
        let qpn = self.create_registered()?;
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let rtr = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let steps = [(QpState::Init, init), (QpState::Rtr, rtr)];
        let ready = steps
            .into_iter()
            .try_for_each(|(state, mask)| self.modify(qpn, &QpAttr { state, ..*attr }, mask));
        if let Err(error) = ready {
            // It was created here, so it can only be gone already.
            let _ = self.unregister(qpn);
            return Err(error);
        }
        Ok(qpn)
    }

    /// Registers this process for a target: from now on it keeps it alive. Once is enough; there is no
    /// count.
    ///
    /// # Errors
    ///
    /// EINVAL for a number that is unknown, of something else, or of another domain.
    pub fn register(&self, qpn: Qpn) -> Result<(), VerbsError> {
        let request = XrcRequest::HoldTarget { domain: self.0.id, qpn, hold: Hold::Registration };
        self.ask(&request, "register for an XRC receive queue pair")?;
        self.0.device.xrc().registered(qpn, self.registration());
        Ok(())
    }

    /// Takes the registration back, and the events that it brought and nobody took. If nobody holds the target
    /// then, it is destroyed.
    ///
    /// # Errors
    ///
    /// EINVAL as for [`register`](Self::register), and for a process that is not registered.
    pub fn unregister(&self, qpn: Qpn) -> Result<(), VerbsError> {
        let request = XrcRequest::LetGo { domain: self.0.id, qpn, hold: Hold::Registration };
        self.ask(&request, "unregister from an XRC receive queue pair")?;
        self.0.device.xrc().unregistered(qpn);
        self.0.device.events().withdraw(|e| e.is_about_xrc_qp(qpn));
        Ok(())
    }

    /// Changes attributes and state of a target of this domain.
    ///
    /// # Errors
    ///
    /// EINVAL when the table of transitions does not admit it, or for a number as in
    /// [`register`](Self::register); ENETUNREACH and the like when there is no way to the peer.
    pub fn modify(&self, qpn: Qpn, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        let attr = Box::new(*attr);
        let request = XrcRequest::ModifyTarget { domain: self.0.id, qpn, attr, mask };
        self.ask(&request, "modify an XRC receive queue pair").map(drop)
    }

    /// All attributes of a target of this domain.
    ///
    /// # Errors
    ///
    /// EINVAL for a number as in [`register`](Self::register).
    pub fn query(&self, qpn: Qpn) -> Result<QpAttr, VerbsError> {
        let request = XrcRequest::QueryTarget { domain: self.0.id, qpn };
        match self.ask(&request, "query an XRC receive queue pair")? {
            XrcReply::Attr(attr) => Ok(*attr),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id
    }

    /// Counts a user.
    pub(crate) fn in_use(&self) -> Use {
        self.0.users.fetch_add(1, Ordering::AcqRel);
        Use(self.clone())
    }

    fn registration(&self) -> Registration {
        self.0.users.fetch_add(1, Ordering::AcqRel);
        Registration(Arc::downgrade(&self.0))
    }

    pub(crate) fn ask(
        &self,
        request: &XrcRequest,
        what: &'static str,
    ) -> Result<XrcReply, VerbsError> {
        self.0.device.ask_hub(request, None, what)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let request = XrcRequest::CloseDomain { domain: self.id };
        // Where the service is gone, so is the domain.
        let _ = self.device.ask_hub(&request, None, "close an XRC domain");
    }
}

impl PartialEq for Xrcd {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Xrcd {}
