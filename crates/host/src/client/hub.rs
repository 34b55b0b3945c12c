//! A process's connection to the hub.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rdmux_link::spin_wait;
use rdmux_verbs::control::ControlError;
use rdmux_verbs::xrc::hub::{MemberId, TargetEvent};
use rdmux_verbs::xrc::{XrcReply, XrcRequest};
use rustix::process::Pid;

use super::control::{HostClient, control_error};
use crate::error::HostError;
use crate::proto::socket::{self, MAX_MESSAGE};
use crate::proto::{HubReply, HubRequest, HubResponse, Request};

/// The socket to the hub, once it was requested.
#[derive(Debug)]
pub(super) struct HubSession {
    inner: Mutex<Option<Inner>>,
    /// The process that owns the socket. A forked child shares it, but must not use it.
    owner: Pid,
}

#[derive(Debug)]
struct Inner {
    socket: OwnedFd,
    tx: Vec<u8>,
    rx: Vec<u8>,
}

/// Lets the service access this process's memory where the kernel restricts that to debuggers (Yama,
/// `ptrace(2)`): the hub copies large messages to their destination, and READs from this memory.
fn allow_copies(socket: &OwnedFd) {
    use rustix::process::{PTracer, getpid, set_ptracer};
    let service = rdmux_link::peer_credentials(socket).ok().and_then(|service| service.pid);
    if let Some(service) = service.filter(|service| *service != getpid()) {
        // Without Yama the call fails, and nothing is restricted.
        let _ = set_ptracer(PTracer::ProcessID(service));
    }
}

impl HubSession {
    pub(super) fn new() -> Self {
        Self { inner: Mutex::new(None), owner: rustix::process::getpid() }
    }
}

impl HostClient {
    /// Sends the hub a request. Connects to it at the first one.
    fn call_hub(
        &self,
        request: &HubRequest,
        fd: Option<BorrowedFd<'_>>,
        what: &'static str,
    ) -> Result<HubResponse, ControlError> {
        if self.is_gone() || rustix::process::getpid() != self.hub.owner {
            return Err(ControlError::Gone);
        }
        let mut inner = self.hub.inner.lock();
        let Inner { socket, tx, rx } = match &mut *inner {
            Some(inner) => inner,
            none => {
                let fd = self.descriptor(&Request::OpenHub, || what.to_owned());
                let socket = fd.map_err(control_error)?.ok_or(ControlError::Gone)?;
                allow_copies(&socket);
                none.insert(Inner { socket, tx: Vec::new(), rx: vec![0; MAX_MESSAGE] })
            }
        };
        let mut fds = Vec::new();
        let reply = socket::send(socket.as_fd(), request, fd.as_slice(), tx).and_then(|()| {
            spin_wait::look(|| socket::is_readable(socket.as_fd()));
            socket::recv_bytes(socket.as_fd(), rx, &mut fds).and_then(socket::decode::<HubReply>)
        });
        match reply {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(failure)) => Err(ControlError::Refused {
                what: what.to_owned(),
                why: failure.why,
                errno: failure.errno,
            }),
            // The hub ends only with the service.
            Err(_) => Err(ControlError::Gone),
        }
    }

    /// Returns the hub's slot, which names its ring.
    pub(super) fn ask_hub_slot(&self) -> Result<u16, ControlError> {
        match self.call_hub(&HubRequest::Slot, None, "find the XRC hub")? {
            HubResponse::Slot(slot) => Ok(slot),
            HubResponse::Xrc(_) => Err(ControlError::Gone),
        }
    }

    /// Sends the hub a request about XRC objects. `what` names the operation in the error.
    pub(super) fn ask_hub_xrc(
        &self,
        request: &XrcRequest,
        fd: Option<BorrowedFd<'_>>,
        what: &'static str,
    ) -> Result<XrcReply, ControlError> {
        match self.call_hub(&HubRequest::Xrc(request.clone()), fd, what)? {
            HubResponse::Xrc(reply) => Ok(reply),
            HubResponse::Slot(_) => Err(ControlError::Gone),
        }
    }

    /// Makes the service report an event to processes. Called by the hub.
    pub(crate) fn tell_target_event(&self, event: TargetEvent) -> Result<(), HostError> {
        let TargetEvent { qpn, event, holders } = event;
        let holders = holders.into_iter().map(|MemberId(id)| id).collect();
        self.session.tell(&Request::TargetEvent { qpn, event, holders })
    }
}
