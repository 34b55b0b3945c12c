//! Connection manager ids.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdmux_cm::{Addr, ConnParam, IdHandle, IdOption, PathData, PortSpace, Route};
use rdmux_transport::attr::{Access, QpType};

use super::channel::EventChannel;
use super::core::{Core, REASON_CONSUMER, UP, advance, to_init};
use crate::Qp;
use crate::error::{Attempt, Result};

/// One side of a connection, a listener or a datagram peer (`rdma_cm_id`).
///
/// Methods that name an event as their outcome only start the operation. See the [module](super) for the course of a
/// connection.
pub struct Id(Arc<Core>);

impl Id {
    /// Returns a new id. Connections of [`PortSpace::Tcp`] are RC; see [`with_type`](Self::with_type) for UC.
    ///
    /// # Errors
    /// When the host service is gone or its limit is reached.
    pub fn new(channel: &EventChannel, space: PortSpace) -> Result<Self> {
        let qp_type = if space == PortSpace::Tcp { QpType::Rc } else { QpType::Ud };
        Self::with_type(channel, space, qp_type)
    }

    /// Returns a new id whose connection has this transport.
    ///
    /// # Errors
    /// As for [`new`](Self::new), or when transport and port space do not match.
    pub fn with_type(channel: &EventChannel, space: PortSpace, qp_type: QpType) -> Result<Self> {
        let context = channel.context();
        let handle = context
            .client()
            .create_id(channel.waiter().source(), space, qp_type, 0)
            .on(context, "create an id")?;
        Ok(Self(Core::new(channel, handle, space)))
    }

    /// Returns the new id of a CONNECT_REQUEST.
    pub(super) fn requested(channel: &EventChannel, event: &rdmux_cm::Event) -> Result<Self> {
        let space = match &event.param {
            rdmux_cm::EventParam::Ud(_) => PortSpace::Udp,
            _ => PortSpace::Tcp,
        };
        let core = Core::new(channel, event.id, space);
        {
            let mut state = core.lock();
            state.passive = true;
            state.negotiated = event.negotiated.as_deref().copied();
            state.route = event.route.as_deref().copied();
            state.local = state.route.map(|r| r.src);
        }
        Ok(Self(core))
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// Binds the id to an address: an address of the host or a wildcard, with a port (0: any free one), or a GID and a
    /// service ID ([`IbAddr`](super::IbAddr)). Returns the address with its port or service ID.
    ///
    /// # Errors
    /// `AddrInUse` when another id has the port on this address. `AddrNotAvailable` when one of the two ids is bound
    /// to the wildcard, or when the address is none of the host's. Also when the id is already bound.
    pub fn bind(&self, addr: impl Into<Addr>) -> Result<Addr> {
        let addr = addr.into();
        let client = self.0.context.client();
        let bound = client
            .bind_addr(self.0.handle, addr)
            .on(format_args!("{} at {addr}", self.0), "bind")?;
        self.0.lock().local = Some(bound);
        Ok(bound)
    }

    /// Listens for connections with a queue of at most `backlog` requests (0: the host's maximum). Each request
    /// raises an event ConnectRequest.
    ///
    /// # Errors
    /// `AddrInUse` when another id listens on this address and port, `AddrNotAvailable` when one of the two ids is bound to the wildcard.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        self.0.context.client().listen(self.0.handle, backlog).map(drop).on(&*self.0, "listen")
    }

    /// Resolves the local address for `dst` (or uses `src`). The outcome is an event AddrResolved or AddrError within
    /// `timeout`.
    ///
    /// # Errors
    /// When the state does not allow it, or `src` cannot be bound.
    pub fn resolve_addr(
        &self,
        src: Option<Addr>,
        dst: impl Into<Addr>,
        timeout: Duration,
    ) -> Result<()> {
        let dst = dst.into();
        self.0
            .context
            .client()
            .resolve_addr(self.0.handle, src, dst, timeout)
            .on(format_args!("{} towards {dst}", self.0), "resolve the address")
    }

    /// Resolves the path to the peer. The outcome is an event RouteResolved or RouteError within `timeout`.
    ///
    /// The ACM service is queried first if it runs (`$RDMA_CM_USE_IB_ACM` can change this). The query may add half a
    /// second, or `$RDMUX_ACM_TIMEOUT`, before the path is resolved without it.
    ///
    /// # Errors
    /// When the state does not allow it.
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        let client = self.0.context.client();
        let route = {
            let mut state = self.0.lock();
            let wants_path = std::mem::replace(&mut state.wants_path, false);
            state.route.filter(|_| wants_path)
        };
        let asked = match route {
            Some(route) => client.find_route_soon(self.0.handle, &route, timeout),
            None => client.resolve_route(self.0.handle, timeout),
        };
        asked.on(&*self.0, "resolve the route")
    }

    /// Sets up to five path records ([`PathData`]) instead of calling [`resolve_route`](Self::resolve_route). They are used as
    /// they are, without any query. The outcome is an event RouteResolved.
    ///
    /// # Errors
    /// When the state does not allow it, or a record contradicts another or the id's port.
    pub fn set_paths(&self, records: &[PathData]) -> Result<()> {
        let client = self.0.context.client();
        client.set_paths(self.0.handle, records).on(&*self.0, "set the paths")?;
        self.0.lock().wants_path = false;
        Ok(())
    }

    /// Sets addresses and path records together, instead of [`resolve_addr`](Self::resolve_addr) and
    /// [`resolve_route`](Self::resolve_route), without any query. The outcome is an event RouteResolved.
    ///
    /// # Errors
    /// When the state does not allow it, or a record contradicts another, the addresses or the port.
    pub fn resolve_along(
        &self,
        src: Option<Addr>,
        dst: impl Into<Addr>,
        records: &[PathData],
    ) -> Result<()> {
        let dst = dst.into();
        let client = self.0.context.client();
        let taken = client.resolve_along(self.0.handle, src, dst, records);
        taken.on(format_args!("{} towards {dst}", self.0), "take the paths")
    }

    /// Attaches `qp` to the id, which moves it through its states from now on. Receives may be posted afterwards. Call
    /// it before `connect` or `accept`, and for datagrams after the address is known.
    /// # Errors
    /// When the queue pair is not in state RESET. It is not attached then.
    pub fn attach_qp(&self, qp: &Qp) -> Result<()> {
        let negotiated = self.0.lock().negotiated;
        match (qp.qp_type(), negotiated) {
            (QpType::Ud, Some(n)) => advance(qp, &n, UP)?,
            (QpType::Ud, None) => qp.activate(rdmux_wire::Qkey::RDMA_UDP)?,
            // Over iWARP the stream moves the queue pair from INIT to RTS, and no other attribute is set on the way.
            _ if self.0.has_streams() => {
                let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                to_init(qp, all)?;
            }
            _ => to_init(qp, Access::empty())?,
        }
        self.0.lock().qp = Some(qp.clone());
        Ok(())
    }

    /// Returns the attached queue pair.
    pub fn qp(&self) -> Option<Qp> {
        self.0.lock().qp.clone()
    }

    /// Connects to the resolved address. The outcome is an event Established, Rejected, Unreachable or ConnectError. On
    /// Rejected the attached queue pair moves to the error state. Without an attached queue pair, name one in `param`:
    /// the outcome is then ConnectResponse, after which the program calls [`establish`](Self::establish).
    ///
    /// # Errors
    /// When the state does not allow it or the private data are too long (56 bytes, UDP 180, iWARP
    /// 508).
    pub fn connect(&self, param: &ConnParam) -> Result<()> {
        let param = self.with_qp(param);
        self.0.context.client().connect_id(self.0.handle, &param).on(&*self.0, "connect")
    }

    /// Accepts a CONNECT_REQUEST. The outcome is an event Established. An attached queue pair is ready before the reply
    /// is sent to the peer.
    ///
    /// # Errors
    /// When the peer is gone, the queue pair cannot follow, or the private data are too long
    /// (196 bytes, UDP 136, iWARP 508).
    pub fn accept(&self, param: &ConnParam) -> Result<()> {
        let param = self.with_qp(param);
        let (qp, negotiated) = {
            let state = self.0.lock();
            (state.qp.clone(), state.negotiated)
        };
        if let (Some(qp), Some(mut negotiated)) = (qp, negotiated)
            && qp.qp_type() != QpType::Ud
            && !self.0.has_streams()
        {
            negotiated.accept(&param);
            advance(&qp, &negotiated, UP)?;
        }
        self.0.context.client().accept(self.0.handle, &param).on(&*self.0, "accept")
    }

    /// Returns `param` with the number of the attached queue pair.
    fn with_qp(&self, param: &ConnParam) -> ConnParam {
        let mut param = param.clone();
        if let Some(qp) = &self.0.lock().qp {
            param.qp_num = qp.qpn();
            param.srq = qp.srq().is_some();
        }
        param
    }

    /// Rejects a CONNECT_REQUEST. The peer of a connection gets Rejected with reason 28 and at most 148 bytes of
    /// private data; the peer of a datagram id gets Unreachable with status 2 and at most 136.
    ///
    /// # Errors
    /// When no request is pending.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.0
            .context
            .client()
            .reject(self.0.handle, REASON_CONSUMER, private_data)
            .on(&*self.0, "reject")
    }

    /// Completes a connection after ConnectResponse, when no queue pair was attached and the
    /// program has brought its own to RTS.
    ///
    /// # Errors
    /// When the state does not allow it.
    pub fn establish(&self) -> Result<()> {
        self.0.context.client().establish(self.0.handle).on(&*self.0, "establish")
    }

    /// Reports that data arrived on the accepted connection ([`QpEvent::CommEst`](crate::QpEvent)): the peer's last
    /// handshake message was lost, but the connection is established.
    ///
    /// # Errors
    /// When the host service is gone.
    pub fn notify(&self) -> Result<()> {
        self.0.context.client().notify(self.0.handle).on(&*self.0, "notify")
    }

    /// Ends the connection, or answers the peer's disconnect: the queue pair moves to the error state, and both sides
    /// get an event Disconnected.
    ///
    /// Over iWARP, outstanding sends are completed first, and the events are raised when the stream has ended.
    ///
    /// # Errors
    /// When the id has no connection.
    pub fn disconnect(&self) -> Result<()> {
        if let Some(qp) = self.qp()
            && qp.qp_type() != QpType::Ud
            && !self.0.has_streams()
        {
            qp.fail()?;
        }
        self.0.context.client().disconnect(self.0.handle).on(&*self.0, "disconnect")
    }

    /// Moves the id and its pending events to another channel.
    ///
    /// # Errors
    /// When the host service is gone.
    pub fn migrate(&self, to: &EventChannel) -> Result<()> {
        let client = self.0.context.client();
        let from = self.channel();
        client
            .migrate_id(self.0.handle, from.waiter().source(), to.waiter().source())
            .on(&*self.0, "migrate")?;
        self.0.lock().channel = to.clone();
        Ok(())
    }

    /// Sets an option.
    ///
    /// # Errors
    /// When the state does not allow it.
    pub fn set_option(&self, option: IdOption) -> Result<()> {
        self.0.context.client().set_option(self.0.handle, option).on(&*self.0, "set an option")?;
        if let IdOption::Cm(option) = option
            && let Some(negotiated) = &mut self.0.lock().negotiated
        {
            negotiated.take_option(option);
        }
        Ok(())
    }

    /// Returns the local address, once bound or resolved.
    pub fn local_addr(&self) -> Option<Addr> {
        let state = self.0.lock();
        state.route.map(|r| r.src).or(state.local)
    }
    /// Returns the peer's address, once resolved or known.
    pub fn peer_addr(&self) -> Option<Addr> {
        self.0.lock().route.map(|r| r.dst)
    }
    /// Returns the path, once resolved or known.
    pub fn route(&self) -> Option<Route> {
        self.0.lock().route
    }
    /// Returns the id's handle at the host service.
    pub fn handle(&self) -> IdHandle {
        self.0.handle
    }
    /// Returns the id's channel.
    pub fn channel(&self) -> EventChannel {
        self.0.lock().channel.clone()
    }

    /// Destroys the id. **Waits** until the program has dropped all events of the id. A plain drop does not wait.
    ///
    /// # Errors
    /// When the host service is gone.
    pub fn destroy(self) -> Result<()> {
        self.0.wait_acknowledged();
        self.0.destroy()
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({}, {})", self.0.handle, self.0)
    }
}
