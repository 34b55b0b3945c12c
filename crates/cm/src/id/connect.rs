//! connect, accept, establish, disconnect, notify.

use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_wire::cm::{IpHeader, IpPair, SidrStatus};
use rdmux_wire::{AckTimeout, Guid};

use super::Manager;
use super::entry::{IdState, Link};
use super::resolve::datagram;
use super::route::service_of;
use crate::address::Addr;
use crate::error::{CmError, Command};
use crate::fields::{Courtesy, Failover};
use crate::ib::active::Connect;
use crate::ib::passive::Accept;
use crate::ib::sidr::{Lookup, SidrAnswer};
use crate::ib::transport;
use crate::params::{ConnParam, Negotiated, Route};
use crate::path::Path;
use crate::sink::{IdHandle, Sink};

/// Private data that fit in REQ, and in SIDR_REQ, with the IP header if there is one.
const REQ_DATA: usize = 92;
const SIDR_REQ_DATA: usize = 216;
/// Private data of the answers.
const REP_DATA: usize = 196;
pub(super) const SIDR_REP_DATA: usize = 136;

pub(super) fn check_len(
    id: IdHandle,
    command: Command,
    len: usize,
    max: usize,
) -> Result<(), CmError> {
    if len > max { Err(CmError::PrivateData { id, command, len, max }) } else { Ok(()) }
}

impl Manager {
    /// Connects (rdma_connect(3)); UD: looks the service up. CONNECT_RESPONSE (UD: ESTABLISHED),
    /// REJECTED or UNREACHABLE follows.
    ///
    /// # Errors
    /// When the route is not resolved, the private data are too long, a depth is too large, or the
    /// id is for the receiving end of XRC, which peers connect to.
    pub fn connect(
        &mut self,
        now: Time,
        id: IdHandle,
        param: &ConnParam,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::Connect;
        self.has_path(id)?;
        let found = self.in_state(id, command, IdState::RouteResolved)?;
        let (ps, qp_type, psn) = (found.ps, found.qp_type, found.psn);
        let iwarp = self.is_iwarp(id);
        let header = self.ip_header(id, command)?;
        if !iwarp {
            let max = if qp_type == QpType::Ud { SIDR_REQ_DATA } else { REQ_DATA };
            check_len(id, command, param.private_data.len(), max - header.len())?;
        }
        let param = self.depths(id, command, param, self.most(id))?;
        let Some((path, mut route)) = self.refresh_route(id) else {
            return Err(self.wrong_state(id, command));
        };
        let fields = self.get(id, command)?.options.fields;
        route.mtu = fields.path_mtu.map_or(route.mtu, |mtu| mtu.min(route.mtu));
        let mut private_data = header;
        private_data.extend_from_slice(&param.private_data);
        let service_id = service_of(ps, &route.dst);
        let primary =
            Path { av: route.av, mtu: route.mtu, packet_lifetime: route.packet_lifetime, ..path };
        let found = self.get(id, command)?;
        let (alternate, cm_path) = (found.alternate, found.cm_path.unwrap_or(primary));
        let mad_path = cm_path.mad_path(route.device, cm_path.av);
        let link = if iwarp {
            Link::Stream(self.connect_stream(now, id, &param, &route, sink)?)
        } else if qp_type == QpType::Ud {
            let lookup = Lookup {
                owner: id,
                path: mad_path,
                service_id,
                pkey: path.pkey,
                fields: &fields,
                private_data: &private_data,
            };
            Link::Lookup(self.cm.sidr_connect(now, &lookup, sink))
        } else {
            let Some(transport) = transport::asked_by(qp_type) else {
                let what = "the receiving end of XRC does not connect, it is connected to";
                return Err(CmError::Invalid { id, command, what });
            };
            let connect = Connect {
                owner: id,
                service_id,
                node_guid: self.node_guid(id),
                transport,
                psn,
                path: mad_path,
                primary,
                alternate,
                fields: &fields,
                param: &param,
                private_data: &private_data,
            };
            Link::Conn(self.cm.connect(now, &connect, sink))
        };
        let mut wishes = Negotiated {
            qp_type,
            transport: if iwarp { TransportType::Iwarp } else { TransportType::Ib },
            rq_psn: psn,
            retry_cnt: param.retry_count.min(7),
            max_rd_atomic: param.initiator_depth,
            max_dest_rd_atomic: param.responder_resources,
            qkey: self.get(id, command)?.qkey(),
            alternate: alternate.map(|path| self.alternate(id, &path)),
            ..datagram(&self.cm.config, &route)
        };
        wishes.bear(param.rnr_retry_count);
        let found = self.get_mut(id, command)?;
        found.link = link;
        found.route = Some(route);
        found.qpn = Some(param.qp_num);
        found.negotiated = Some(wishes);
        found.go(IdState::Connect);
        Ok(())
    }

    /// An id that knows its peer and not the way there is told so.
    fn has_path(&self, id: IdHandle) -> Result<(), CmError> {
        let found = self.get(id, Command::Connect)?;
        match (found.state(), found.peer) {
            (IdState::AddrResolved | IdState::RouteQuery, Some(addr)) => {
                Err(CmError::NoPath { id, addr })
            }
            _ => Ok(()),
        }
    }

    /// What goes before the private data of an id with IP addresses, so that its peer knows them (IBTA annex A11). Native addresses
    /// are in REQ itself.
    fn ip_header(&self, id: IdHandle, command: Command) -> Result<Vec<u8>, CmError> {
        let found = self.get(id, command)?;
        let Some(Route { src, dst, .. }) = &found.route else {
            return Err(self.wrong_state(id, command));
        };
        let (Addr::Ip(src), Addr::Ip(dst)) = (src, dst) else { return Ok(Vec::new()) };
        let Some(addrs) = IpPair::new(src.ip(), dst.ip()) else {
            return Err(CmError::Family { id, command });
        };
        Ok(Vec::from(IpHeader { src_port: src.port(), addrs }.to_bytes()))
    }

    fn node_guid(&self, id: IdHandle) -> Guid {
        let device = self.ids.get(&id).and_then(|i| i.device.as_ref());
        device.map_or(Guid(0), |d| d.node_guid)
    }

    /// The most READs and atomics that a queue pair of the id's device serves, and has outstanding.
    fn most(&self, id: IdHandle) -> (u8, u8) {
        let config = &self.cm.config;
        if self.is_iwarp(id) {
            (config.iwarp.max_ird, config.iwarp.max_ord)
        } else {
            (config.max_rd_atomic, config.max_init_rd_atomic)
        }
    }

    /// The parameters with depths that are numbers: 255 (`RDMA_MAX_RESP_RES`,
    /// `RDMA_MAX_INIT_DEPTH`) asks for `most`, the responder resources and the initiator depth.
    fn depths(
        &self,
        id: IdHandle,
        command: Command,
        param: &ConnParam,
        most: (u8, u8),
    ) -> Result<ConnParam, CmError> {
        let mut param = param.clone();
        if param.responder_resources == ConnParam::MAX_DEPTH {
            param.responder_resources = most.0;
        }
        if param.initiator_depth == ConnParam::MAX_DEPTH {
            param.initiator_depth = most.1;
        }
        let (serves, asks) = self.most(id);
        if param.responder_resources > serves || param.initiator_depth > asks {
            let what = "more READs and atomics than the device can do";
            return Err(CmError::Invalid { id, command, what });
        }
        Ok(param)
    }

    /// Accepts a request (rdma_accept(3)): sends REP, or a SIDR_REP with the queue pair. The
    /// process must have its queue pair in RTS (or RTR) before. ESTABLISHED follows, but not for UD. How a request ends before
    /// it is accepted, no event tells.
    ///
    /// # Errors
    /// When there is no request to accept any more, the private data are too long, or a depth is
    /// too large.
    pub fn accept(
        &mut self,
        now: Time,
        id: IdHandle,
        param: &ConnParam,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let accepted = self.accept_request(now, id, param, sink);
        if accepted.is_ok() {
            self.get_mut(id, Command::Accept)?.is_unanswered = false;
        }
        accepted
    }

    fn accept_request(
        &mut self,
        now: Time,
        id: IdHandle,
        param: &ConnParam,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::Accept;
        self.take(id).map_err(|_| CmError::NoSuchId { id, command })?;
        let found = self.get(id, command)?;
        let (link, psn, negotiated) = (found.link, found.psn, found.negotiated);
        let Some(mut negotiated) = negotiated else { return Err(self.wrong_state(id, command)) };
        let len = param.private_data.len();
        match link {
            Link::Conn(conn) => {
                check_len(id, command, len, REP_DATA)?;
                let most = (negotiated.max_dest_rd_atomic, negotiated.max_rd_atomic);
                let param = self.depths(id, command, param, most)?;
                let found = self.get(id, command)?;
                let (fields, device) = (found.options.fields, found.route.map_or(0, |r| r.device));
                let failover = fields.failover.unwrap_or(found.failover);
                let taken = found.alternate.filter(|_| failover == Failover::Accepted);
                let accept = Accept {
                    node_guid: self.node_guid(id),
                    psn,
                    param: &param,
                    fields: &fields,
                    failover,
                    other_path: taken.map(|path| path.mad_path(device, path.av)),
                };
                let accepted = self.cm.accept(now, conn, &accept, sink);
                accepted.map_err(|_| self.wrong_state(id, command))?;
                negotiated.accept(&param);
                if taken.is_none() {
                    negotiated.alternate = None;
                }
                self.get_mut(id, command)?.alternate = taken;
            }
            Link::Stream(stream) => {
                let most = (negotiated.max_dest_rd_atomic, negotiated.max_rd_atomic);
                let param = self.depths(id, command, param, most)?;
                let found = self.get_mut(id, command)?;
                found.qpn = Some(param.qp_num);
                return self.accept_stream(now, id, stream, &param, sink);
            }
            Link::LookedUp(key) => {
                check_len(id, command, len, SIDR_REP_DATA)?;
                let of_option = self.get(id, command)?.options.fields.local_qkey;
                let qkey = param.qkey.or(of_option).unwrap_or(negotiated.qkey);
                let answer = SidrAnswer {
                    status: SidrStatus::VALID,
                    qpn: param.qp_num,
                    qkey,
                    info: &[],
                    private_data: &param.private_data,
                };
                self.cm.sidr_reply(now, key, &answer, sink);
                negotiated.qkey = qkey;
                self.get_mut(id, command)?.link = Link::None;
            }
            Link::None | Link::Lookup(_) => return Err(self.wrong_state(id, command)),
        }
        let found = self.get_mut(id, command)?;
        found.qpn = Some(param.qp_num);
        found.negotiated = Some(negotiated);
        Ok(())
    }

    /// After CONNECT_RESPONSE, when the queue pair is in RTS: tells the peer (RTU). The connection
    /// is then established; no further event says so (rdma_establish(3)). If the peer has ended it
    /// meanwhile, DISCONNECTED follows at once.
    ///
    /// # Errors
    /// When no response came, or the connection is over meanwhile.
    pub fn establish(
        &mut self,
        now: Time,
        id: IdHandle,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::Establish;
        let found = self.ids.get(&id).ok_or(CmError::NoSuchId { id, command })?;
        let Link::Conn(conn) = found.link else {
            return Err(self.wrong_state(id, command));
        };
        let established = self.cm.establish(conn, found.courtesy(Courtesy::Rtu), sink);
        if let Some(upcall) = established.map_err(|_| self.wrong_state(id, command))? {
            self.handle_upcall(now, upcall, sink);
        }
        Ok(())
    }

    /// Ends a connection (rdma_disconnect(3)): DREQ, or the answer to the peer's. DISCONNECTED and
    /// later TIMEWAIT_EXIT follow. Of a connection that is over already it does nothing.
    ///
    /// # Errors
    /// When the id never was connected, or is not yet.
    pub fn disconnect(
        &mut self,
        now: Time,
        id: IdHandle,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::Disconnect;
        let found = self.ids.get(&id).ok_or(CmError::NoSuchId { id, command })?;
        match (found.link, found.state()) {
            (Link::Conn(conn), _) => {
                let data = (found.courtesy(Courtesy::Dreq), found.courtesy(Courtesy::Drep));
                let ended = self.cm.disconnect(now, conn, data, sink);
                ended.map_err(|_| self.wrong_state(id, command))
            }
            (Link::Stream(stream), _) => self.disconnect_stream(id, stream, sink),
            (Link::None, IdState::Connect | IdState::Disconnect | IdState::DeviceRemoval) => Ok(()),
            _ => Err(self.wrong_state(id, command)),
        }
    }

    /// The queue pair saw data before RTU came (rdma_notify(3) with IBV_EVENT_COMM_EST): the
    /// connection is established. Does nothing if it was already.
    ///
    /// # Errors
    /// When the id has no connection.
    pub fn notify(&mut self, now: Time, id: IdHandle, sink: &mut impl Sink) -> Result<(), CmError> {
        let command = Command::Notify;
        let conn = match self.get(id, command)?.link {
            Link::Conn(conn) => conn,
            // Nothing comes before a stream is the queue pair's.
            Link::Stream(_) => return Ok(()),
            _ => return Err(self.wrong_state(id, command)),
        };
        if let Some(upcall) = self.cm.comm_established(conn) {
            self.handle_upcall(now, upcall, sink);
        }
        Ok(())
    }

    /// The ACK timeout that a queue pair gets: the option's, or the path's.
    pub(super) fn qp_timeout(&self, id: IdHandle, of_path: AckTimeout) -> AckTimeout {
        let option = self.ids.get(&id).and_then(|i| i.options.ack_timeout);
        option.map_or(of_path, AckTimeout::new)
    }
}
