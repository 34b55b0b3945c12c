//! XRC domains (`ibv_open_xrcd(3)`): they determine to which shared receive queues a target may deliver, and which processes may
//! hold it. Calls on targets by number, without a handle, are here as well.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rdmux_transport::attr::{AttrMask, QpAttr, QpState, QpType};
use rdmux_wire::Qpn;

use crate::engine::device::Device;
use crate::objects::control::ControlError;
use crate::objects::error::VerbsError;
use crate::objects::xrc::ask::unexpected;
use crate::objects::xrc::opening::{Opening, Registration};
use crate::objects::xrc::request::{Hold, XrcReply, XrcRequest};

/// The flags with which a domain is opened, as for a file (`open(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcdFlags {
    /// Create the domain if it does not exist (`O_CREAT`).
    pub create: bool,
    /// Whether the domain must not exist yet, with `create` (`O_EXCL`).
    pub exclusive: bool,
}

/// An opening of an XRC domain. The domain is destroyed with its last opening.
#[derive(Clone, Debug)]
pub struct Xrcd {
    opening: Arc<Opening>,
    device: Arc<Device>,
}

/// A use of an opening. The opening counts as in use until it is dropped.
#[derive(Debug)]
pub(crate) struct Use(Xrcd);

impl Use {
    /// Returns the domain in use.
    pub(crate) fn xrcd(&self) -> &Xrcd {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.opening.remove_user();
    }
}

impl Xrcd {
    /// Opens the domain of a file. Any process that may open the file may open it. Without a file, opens a domain of this process
    /// alone.
    ///
    /// # Errors
    ///
    /// EAGAIN when the domain does not exist and `create` is not set; EINVAL when it exists and `exclusive` is set; the service's
    /// error, when it is gone; EOPNOTSUPP for iWARP.
    pub fn open(
        device: &Arc<Device>,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Self, VerbsError> {
        const WHAT: &str = "open an XRC domain";
        let kind = device.kind().row();
        if !kind.services.include(QpType::XrcRecv) {
            return Err(VerbsError::unsupported(
                WHAT,
                format!("{} does not support XRC", kind.title),
            ));
        }
        let XrcdFlags { create, exclusive } = flags;
        let request = XrcRequest::OpenDomain { create, exclusive };
        match device.ask_hub(&request, file, WHAT)? {
            XrcReply::Domain(id) => {
                let opening = Opening::new(device.control().clone(), id);
                Ok(Self { opening, device: device.clone() })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Closes the domain, unless objects that were created with it still exist.
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

    /// Returns the domain's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns how many shared receive queues, handles and registrations were made with it.
    pub fn users(&self) -> usize {
        self.opening.users()
    }

    /// Creates a target in RESET and registers this process for it (`ibv_create_xrc_rcv_qp` of OFED 1.3).
    ///
    /// # Errors
    ///
    /// ENOMEM when the hub has as many targets as it can have, or as the user may have.
    pub fn create_registered(&self) -> Result<Qpn, VerbsError> {
        let hold = Hold::Registration;
        let request = XrcRequest::CreateTarget { domain: self.id(), hold };
        match self.ask(&request, "create an XRC receive queue pair")? {
            XrcReply::Target(qpn) => {
                self.device.xrc().registered(qpn, self.registration());
                Ok(qpn)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Creates a target, moves it to RTR and registers this process (`ibv_xrc_rcv_qp_alloc` of the proposal of 2007). `attr` has
    /// the attributes that INIT and RTR require: port, P_Key and rights, path, MTU, the peer's number, its first PSN, the READs
    /// and atomics to serve, and the RNR timer.
    ///
    /// # Errors
    ///
    /// As for [`create_registered`](Self::create_registered) and [`modify`](Self::modify); no target remains then.
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
            // The target was created here, so the only possible error is that it is gone already.
            let _ = self.unregister(qpn);
            return Err(error);
        }
        Ok(qpn)
    }

    /// Registers this process for a target, which keeps the target alive. Registrations are not counted: registering again has no
    /// effect.
    ///
    /// # Errors
    ///
    /// EINVAL for a number that is unknown, that is not a target's, or that belongs to another domain.
    pub fn register(&self, qpn: Qpn) -> Result<(), VerbsError> {
        let request = XrcRequest::HoldTarget { domain: self.id(), qpn, hold: Hold::Registration };
        self.ask(&request, "register for an XRC receive queue pair")?;
        self.device.xrc().registered(qpn, self.registration());
        Ok(())
    }

    /// Removes the registration, and its events that have not been taken. Destroys the target if no process holds it any more.
    ///
    /// # Errors
    ///
    /// EINVAL as for [`register`](Self::register), and for a process that is not registered.
    pub fn unregister(&self, qpn: Qpn) -> Result<(), VerbsError> {
        let request = XrcRequest::LetGo { domain: self.id(), qpn, hold: Hold::Registration };
        match self.ask(&request, "unregister from an XRC receive queue pair") {
            // The target ended with the service.
            Ok(_) | Err(VerbsError::Control(ControlError::Gone)) => {}
            Err(e) => return Err(e),
        }
        self.device.xrc().unregistered(qpn);
        self.device.events().withdraw(|e| e.is_about_xrc_qp(qpn));
        Ok(())
    }

    /// Changes attributes and state of a target of this domain.
    ///
    /// # Errors
    ///
    /// EINVAL when the table of transitions does not permit it, or for a number as in [`register`](Self::register); ENETUNREACH
    /// and the like when there is no route to the peer.
    pub fn modify(&self, qpn: Qpn, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        let attr = Box::new(*attr);
        let request = XrcRequest::ModifyTarget { domain: self.id(), qpn, attr, mask };
        self.ask(&request, "modify an XRC receive queue pair").map(drop)
    }

    /// Returns all attributes of a target of this domain.
    ///
    /// # Errors
    ///
    /// EINVAL for a number as in [`register`](Self::register).
    pub fn query(&self, qpn: Qpn) -> Result<QpAttr, VerbsError> {
        let request = XrcRequest::QueryTarget { domain: self.id(), qpn };
        match self.ask(&request, "query an XRC receive queue pair")? {
            XrcReply::Attr(attr) => Ok(*attr),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.opening.id()
    }

    /// Adds a user, until the returned value is dropped.
    pub(crate) fn in_use(&self) -> Use {
        self.opening.add_user();
        Use(self.clone())
    }

    fn registration(&self) -> Registration {
        self.opening.registration()
    }

    /// Sends a request about this domain to the hub. `what` names the operation in the error.
    pub(crate) fn ask(
        &self,
        request: &XrcRequest,
        what: &'static str,
    ) -> Result<XrcReply, VerbsError> {
        self.device.ask_hub(request, None, what)
    }
}

impl PartialEq for Xrcd {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.opening, &other.opening)
    }
}
impl Eq for Xrcd {}
