//! The commands connect, accept, establish, disconnect and notify.

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

/// The size of the private data of REQ and SIDR_REQ, including an IP header if there is one.
const REQ_DATA: usize = 92;
const SIDR_REQ_DATA: usize = 216;
/// The size of the private data of the answers.
const REP_DATA: usize = 196;
pub(super) const SIDR_REP_DATA: usize = 136;

/// Checks that private data of `len` bytes fit into `max` bytes.
pub(super) fn check_len(
    id: IdHandle,
    command: Command,
    len: usize,
    max: usize,
) -> Result<(), CmError> {
    if len > max { Err(CmError::PrivateData { id, command, len, max }) } else { Ok(()) }
}

impl Manager {
    /// Connects an id (rdma_connect(3)); UD: looks up the service. CONNECT_RESPONSE (UD: ESTABLISHED),
    /// REJECTED or UNREACHABLE follows.
    ///
    /// # Errors
    /// When the route is not resolved, the private data are too long, a depth is too large, or the
    /// id is the receiving end of XRC, which must listen.
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
                let what = "the receiving end of XRC cannot connect, it must listen";
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

    /// Checks that an id has a path, so that an id with only the peer's address gets an error of its own.
    fn has_path(&self, id: IdHandle) -> Result<(), CmError> {
        let found = self.get(id, Command::Connect)?;
        match (found.state(), found.peer) {
            (IdState::AddrResolved | IdState::RouteQuery, Some(addr)) => {
                Err(CmError::NoPath { id, addr })
            }
            _ => Ok(()),
        }
    }

    /// Returns the header before the private data of an id with IP addresses, which carries them to the peer (IBTA annex A11). REQ
    /// itself carries native addresses.
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

    /// Returns the most READs and atomics that a queue pair of the id's device serves, and has outstanding.
    fn most(&self, id: IdHandle) -> (u8, u8) {
        let config = &self.cm.config;
        if self.is_iwarp(id) {
            (config.iwarp.max_ird, config.iwarp.max_ord)
        } else {
            (config.max_rd_atomic, config.max_init_rd_atomic)
        }
    }

    /// Returns the parameters with 255 in a depth (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`)
    /// replaced by `most`, the responder resources and the initiator depth.
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
            let what = "more outstanding READs and atomics than the device supports";
            return Err(CmError::Invalid { id, command, what });
        }
        Ok(param)
    }

    /// Accepts a request (rdma_accept(3)): sends REP, or a SIDR_REP with the queue pair. The
    /// process must have its queue pair in RTS (or RTR) before. ESTABLISHED follows, but not for UD. A request that ends before
    /// it is accepted causes no event.
    ///
    /// # Errors
    /// When the request cannot be accepted any more, the private data are too long, or a depth is
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

    /// Establishes a connection (rdma_establish(3)): sends RTU. Called after CONNECT_RESPONSE, when the
    /// queue pair is in RTS. The connection is then established without a further event. If the peer has
    /// ended it meanwhile, DISCONNECTED follows at once.
    ///
    /// # Errors
    /// When there was no response, or the connection is over.
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

    /// Ends a connection (rdma_disconnect(3)): sends DREQ, or the answer to the peer's. DISCONNECTED and
    /// later TIMEWAIT_EXIT follow. Does nothing if the connection is over already.
    ///
    /// # Errors
    /// When the id was never connected, or is not connected yet.
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

    /// Establishes a connection whose queue pair received data before RTU arrived (rdma_notify(3) with
    /// IBV_EVENT_COMM_EST). Does nothing if it was established already.
    ///
    /// # Errors
    /// When the id has no connection.
    pub fn notify(&mut self, now: Time, id: IdHandle, sink: &mut impl Sink) -> Result<(), CmError> {
        let command = Command::Notify;
        let conn = match self.get(id, command)?.link {
            Link::Conn(conn) => conn,
            // No data arrives before the queue pair has the stream.
            Link::Stream(_) => return Ok(()),
            _ => return Err(self.wrong_state(id, command)),
        };
        if let Some(upcall) = self.cm.comm_established(conn) {
            self.handle_upcall(now, upcall, sink);
        }
        Ok(())
    }

    /// Returns the ACK timeout for a queue pair: the option's, or the path's.
    pub(super) fn qp_timeout(&self, id: IdHandle, of_path: AckTimeout) -> AckTimeout {
        let option = self.ids.get(&id).and_then(|i| i.options.ack_timeout);
        option.map_or(of_path, AckTimeout::new)
    }
}
