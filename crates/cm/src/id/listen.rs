//! The commands listen and take, and the dispatch of requests to listeners.

use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddr};

use rdmux_transport::Time;
use rdmux_transport::attr::QpType;
use rdmux_wire::cm::{IpHeader, RejReason, Req, SidrReq, SidrStatus};
use rdmux_wire::{AckTimeout, Gid, Pkey, Psn, Qpn, ServiceId};

use super::entry::{Id, IdState, Link, Options, Owns};
use super::resolve::datagram;
use super::route::route_along;
use super::{EventBody, Manager};
use crate::address::Addr;
use crate::error::{CmError, Command};
use crate::event::{EventKind, EventParam};
use crate::fields::Failover;
use crate::ib::sidr::SidrKey;
use crate::ib::transport;
use crate::params::{Alternate, ConnParam, Ece, Negotiated, Route, UdParam};
use crate::path::{MadPath, Path};
use crate::ports::PortSpace;
use crate::sink::{IdHandle, LocalAddress, Sink};

/// How a request is refused without reaching a program.
pub(super) enum Refusal {
    /// REJ with this reason and additional information.
    Reason(RejReason, Option<u8>),
    /// No answer, so that the peer retries.
    Silent,
}

/// The listener of a request.
pub(super) struct Target {
    listener: IdHandle,
    pub(super) device: LocalAddress,
    /// The listener's address and the peer's.
    pub(super) ends: (Addr, Addr),
}

impl Target {
    /// Returns the route back along a path, with the listener's options.
    fn route(&self, path: &Path, options: &Options) -> Route {
        route_along(path, self.device.device, options, self.ends)
    }

    /// Returns the program's part of the private data: the bytes after the IP header if there is one.
    fn user_data(&self, private_data: &[u8]) -> Vec<u8> {
        let header = self.ends.0.socket().map_or(0, |_| IpHeader::LEN);
        private_data.get(header..).unwrap_or_default().to_vec()
    }
}

/// The service that a request addresses.
pub(super) struct Ask<'a> {
    pub(super) service_id: ServiceId,
    pub(super) private_data: &'a [u8],
    pub(super) qp_type: QpType,
    /// The local GID and the peer's, as the request has them.
    pub(super) gids: (Gid, Gid),
    pub(super) pkey: Pkey,
}

impl Manager {
    /// Listens for connection requests (rdma_listen(3)). An id that is not bound gets the IPv4 wildcard
    /// and an ephemeral port. Returns the address.
    ///
    /// `backlog` is the number of CONNECT_REQUESTs not yet taken ([`take`](Self::take)). It is limited to
    /// [`Config::max_backlog`](crate::Config::max_backlog), which 0 means too. Further requests are
    /// dropped without an answer, so that the peer retries; Linux does likewise.
    ///
    /// A request for another transport than the listener's is refused with reason 9, invalid
    /// transport type; Linux gives 28, as if the program had refused. The receiving end of XRC
    /// accepts requests of the sending end, and nothing else.
    ///
    /// # Errors
    /// When the id is in another state, another listener has the port, or the id is the
    /// sending end of XRC, which must connect.
    pub fn listen(&mut self, id: IdHandle, backlog: u32) -> Result<Addr, CmError> {
        let command = Command::Listen;
        let found = self.get(id, command)?;
        if found.qp_type == QpType::XrcSend {
            let what = "the sending end of XRC cannot listen, it must connect";
            return Err(CmError::Invalid { id, command, what });
        }
        if found.state() == IdState::Idle {
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            self.bind_to(id, any, None, false, command)?;
        }
        let found = self.in_state(id, command, IdState::AddrBound)?;
        let owns = found.owns;
        let Some(local) = found.local else { return Err(self.wrong_state(id, command)) };
        match owns {
            Owns::Port(ps, port) => {
                let claimed = self.port_table(ps).listen(port, id);
                claimed.map_err(|error| error.of(id, command, local))?;
            }
            Owns::Service => {
                self.services.listen(id);
            }
            Owns::Nothing => {
                let what = "the id is bound to a GID without a service ID";
                return Err(CmError::Invalid { id, command, what });
            }
        }
        let max = self.cm.config.max_backlog;
        let found = self.get_mut(id, command)?;
        found.options.reuse_addr = false;
        found.backlog = if backlog == 0 { max } else { backlog.min(max) };
        found.go(IdState::Listen);
        if let Owns::Port(_, port) = owns {
            self.held.listener_came(port);
        }
        self.iw.check_queue();
        Ok(local)
    }

    /// Returns the numbers of the devices with a listener at a local address, in the order in which the devices were given.
    pub fn listening_devices(&self, ps: PortSpace, at: SocketAddr) -> Vec<u32> {
        let at = super::normalised(at);
        let listener = self.ports.get(&ps).and_then(|table| table.listener(at.port(), at.ip()));
        let Some(found) = listener.and_then(|id| self.ids.get(&id)) else { return Vec::new() };
        let devices = self.addresses.iter().filter(|a| a.ip == at.ip());
        let devices = devices.filter(|a| found.may_use(a.device, a.transport)).map(|a| a.device);
        let mut devices: Vec<u32> = devices.collect();
        // A device may have several ports.
        devices.dedup();
        devices
    }

    /// Takes the request `id` after the process has read its CONNECT_REQUEST: it no longer counts for its
    /// listener's backlog and outlives the listener. accept, reject, set_option, migrate and destroy imply this.
    ///
    /// # Errors
    /// When there is no such id.
    pub fn take(&mut self, id: IdHandle) -> Result<(), CmError> {
        let found = self.get_mut(id, Command::Take)?;
        if let Some(listener) = found.listener.take()
            && let Some(listener) = self.ids.get_mut(&listener)
        {
            listener.requests.remove(&id);
            self.iw.check_queue();
        }
        Ok(())
    }

    /// Handles a REQ.
    pub(super) fn handle_request(
        &mut self,
        now: Time,
        conn: u32,
        path: &MadPath,
        req: (&Req, u32),
        sink: &mut impl Sink,
    ) {
        match self.request_target(path, req.0) {
            Ok((target, back)) => self.announce(now, conn, req, &target, &back, sink),
            Err(Refusal::Silent) => self.cm.forget(conn),
            Err(Refusal::Reason(reason, ari)) => {
                let ari = ari.as_slice();
                self.cm.refuse(conn, reason, ari, sink);
            }
        }
    }

    fn request_target(&mut self, path: &MadPath, req: &Req) -> Result<(Target, Path), Refusal> {
        let unknown = Refusal::Reason(RejReason::INVALID_TRANSPORT_TYPE, None);
        let qp_type = transport::asked_for(req.transport).ok_or(unknown)?;
        let ask = Ask {
            service_id: req.service_id,
            private_data: &req.private_data,
            qp_type,
            gids: (req.primary.remote_gid, req.primary.local_gid),
            pkey: req.pkey,
        };
        let target = self.target(path, &ask)?;
        let back = self.path_of_request(path, req, &target.device, target.ends)?;
        Ok((target, back))
    }

    /// Returns the listener for a request, if the request is valid and the backlog has room.
    fn target(&mut self, path: &MadPath, ask: &Ask<'_>) -> Result<Target, Refusal> {
        match self.native_target(path, ask) {
            Some(target) => target,
            None => self.ip_target(path, ask),
        }
    }

    /// Returns the listener for a request with IP addresses, likewise.
    fn ip_target(&mut self, path: &MadPath, ask: &Ask<'_>) -> Result<Target, Refusal> {
        let &Ask { service_id, private_data, .. } = ask;
        let nobody = Refusal::Reason(RejReason::INVALID_SERVICE_ID, None);
        let senseless = || Refusal::Reason(RejReason::CONSUMER_DEFINED, None);
        let Some((ps, port)) = service_id.port() else { return Err(nobody) };
        let Some(ps) = PortSpace::from_code(ps) else { return Err(nobody) };
        // A listener with a native address takes no requests with IP addresses.
        let is_ip = |id: &IdHandle| {
            self.ids.get(id).is_some_and(|i| i.local.is_some_and(|a| a.ib().is_none()))
        };
        let table = self.ports.get(&ps);
        let Ok(header) = IpHeader::parse(private_data) else {
            // A request by GID has no header, and matters to nobody if no listener takes headers.
            let is_taken = table.is_some_and(|table| table.listeners(port).any(|id| is_ip(&id)));
            let counters = &mut self.cm.counters;
            let count = if is_taken { &mut counters.bad_field } else { &mut counters.no_listener };
            *count += 1;
            return Err(if is_taken { senseless() } else { nobody });
        };
        let (src, dst) = (header.addrs.src(), header.addrs.dst());
        let listener = table.and_then(|table| table.listener(port, dst));
        let Some(listener) = listener.filter(is_ip) else {
            self.cm.counters.no_listener += 1;
            return Err(nobody);
        };
        // Where paths have LIDs, packets do not carry the IP address: it is trusted as the peer's host states it.
        let port_num = self.asked_port(path, ask.gids.0);
        let device = self.address_at_port(path.device, port_num, dst).cloned();
        if device.as_ref().is_none_or(|device| !device.has_lids) && (dst, src) != path.addresses() {
            self.cm.counters.bad_field += 1;
            return Err(Refusal::Reason(RejReason::INVALID_GID, None));
        }
        let device = device.ok_or_else(senseless)?;
        let ends = (SocketAddr::new(dst, port), SocketAddr::new(src, header.src_port));
        self.takes(listener, device, (ends.0.into(), ends.1.into()), ask.qp_type)
    }

    /// Checks whether a listener takes a request that arrived at a device. Returns the request's target, or how to refuse it.
    pub(super) fn takes(
        &mut self,
        listener: IdHandle,
        device: LocalAddress,
        ends: (Addr, Addr),
        qp_type: QpType,
    ) -> Result<Target, Refusal> {
        let nobody = Refusal::Reason(RejReason::INVALID_SERVICE_ID, None);
        let found = self.ids.get(&listener);
        let Some(found) = found.filter(|found| found.may_use(device.device, device.transport))
        else {
            self.cm.counters.no_listener += 1;
            return Err(nobody);
        };
        if found.qp_type != qp_type {
            return Err(Refusal::Reason(RejReason::INVALID_TRANSPORT_TYPE, None));
        }
        let full = usize::try_from(found.backlog).is_ok_and(|max| found.requests.len() >= max);
        if full || self.room_in(found.channel).is_err() {
            self.cm.counters.backlog_full += 1;
            return Err(Refusal::Silent);
        }
        Ok(Target { listener, device, ends })
    }

    /// Creates an id for a request, on its listener's channel.
    fn requested(&mut self, target: &Target, route: Route, link: Link) -> Option<IdHandle> {
        self.new_child(target.listener, &target.device, target.ends, route, link)
    }

    /// Creates an id of a listener, for a request that arrived at `device`.
    pub(super) fn new_child(
        &mut self,
        of: IdHandle,
        device: &LocalAddress,
        ends: (Addr, Addr),
        route: Route,
        link: Link,
    ) -> Option<IdHandle> {
        let listener = self.ids.get_mut(&of)?;
        self.last_id += 1;
        let child = IdHandle(self.last_id);
        listener.requests.insert(child);
        let psn = Psn::new(self.cm.rng.next_u32());
        let psn = listener.options.fields.starting_psn.unwrap_or(psn);
        let new = Id::new(listener.channel, listener.ps, listener.qp_type, listener.context, psn);
        let mut new = new.requested(of);
        new.only = listener.only;
        new.options = Options { reuse_addr: false, ..listener.options };
        (new.local, new.peer) = (Some(ends.0), Some(ends.1));
        new.device = Some(device.clone());
        new.route = Some(route);
        new.link = link;
        self.insert(child, new);
        Some(child)
    }

    /// Sends CONNECT_REQUEST to the listener's process.
    fn announce(
        &mut self,
        now: Time,
        conn: u32,
        (req, ece_options): (&Req, u32),
        target: &Target,
        back: &Path,
        sink: &mut impl Sink,
    ) {
        let _ = now;
        let Some(options) = self.ids.get(&target.listener).map(|i| i.options) else { return };
        let mut route = target.route(back, &options);
        // The peer's values for its path override the listener's options.
        (route.av, route.packet_lifetime) = (back.av, back.packet_lifetime);
        let Some(child) = self.requested(target, route, Link::Conn(conn)) else { return };
        self.cm.set_owner(conn, child);
        let alternate = self.alternate_of_request(req, target, back);
        let timeout = |path: AckTimeout| options.ack_timeout.map_or(path, AckTimeout::new);
        let loaded = alternate.as_ref().ok().copied().flatten().map(|path| Alternate {
            av: path.av,
            pkey_index: path.pkey_index,
            timeout: timeout(req.alternate.ack_timeout),
        });
        let Some(new) = self.ids.get_mut(&child) else { return };
        match alternate {
            Ok(path) => new.alternate = path,
            Err(_) => new.failover = Failover::Rejected,
        }
        let config = &self.cm.config;
        let negotiated = Negotiated {
            qp_type: new.qp_type,
            dest_qpn: req.local_qpn,
            rq_psn: new.psn,
            sq_psn: req.starting_psn,
            max_rd_atomic: req.responder_resources.min(config.max_init_rd_atomic),
            max_dest_rd_atomic: req.initiator_depth.min(config.max_rd_atomic),
            timeout: timeout(req.primary.ack_timeout),
            retry_cnt: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            srq: req.srq,
            alternate: loaded,
            ..datagram(&self.cm.config, &route)
        };
        new.negotiated = Some(negotiated);
        let param = ConnParam {
            private_data: target.user_data(&req.private_data),
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            qp_num: req.local_qpn,
            qkey: None,
            ece: Ece { vendor_id: req.vendor_id, options: ece_options },
            peer_to_peer: None,
        };
        let body = EventBody {
            param: EventParam::Conn(param),
            route: Some(route),
            negotiated: Some(negotiated),
            child: Some(child),
            ..EventBody::new(EventKind::ConnectRequest)
        };
        self.emit(target.listener, body, sink);
    }

    /// Handles a SIDR_REQ.
    pub(super) fn handle_lookup(
        &mut self,
        now: Time,
        key: SidrKey,
        path: &MadPath,
        req: &SidrReq,
        sink: &mut impl Sink,
    ) {
        let ask = Ask {
            service_id: req.service_id,
            private_data: &req.private_data,
            qp_type: QpType::Ud,
            gids: (path.local, path.remote()),
            pkey: req.pkey,
        };
        let target = match self.target(path, &ask) {
            Ok(target) => target,
            Err(Refusal::Silent) => return self.cm.sidr_forget(key),
            Err(Refusal::Reason(reason, _)) => {
                let nobody = reason == RejReason::INVALID_SERVICE_ID;
                let status =
                    if nobody { SidrStatus::UNSUPPORTED_SERVICE_ID } else { SidrStatus::REJECT };
                return self.cm.sidr_refuse(now, key, status, sink);
            }
        };
        let Some(options) = self.ids.get(&target.listener).map(|i| i.options) else { return };
        let back = self.path_of_datagram(path, &target.device, target.ends);
        let route = target.route(&back, &options);
        let Some(child) = self.requested(&target, route, Link::LookedUp(key)) else { return };
        let mut negotiated = datagram(&self.cm.config, &route);
        if let Some(new) = self.ids.get_mut(&child) {
            negotiated.qkey = new.qkey();
            new.negotiated = Some(negotiated);
        }
        // SIDR_REQ does not name the requester's queue pair: its datagrams will show it.
        let param = UdParam {
            private_data: target.user_data(&req.private_data),
            av: route.av,
            qp_num: Qpn::default(),
            qkey: negotiated.qkey,
        };
        let body = EventBody {
            param: EventParam::Ud(param),
            route: Some(route),
            negotiated: Some(negotiated),
            child: Some(child),
            ..EventBody::new(EventKind::ConnectRequest)
        };
        self.emit(target.listener, body, sink);
    }
}
