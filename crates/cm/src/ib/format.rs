//! Builds outgoing messages. [`rdmux_wire::cm`] documents the meaning of the fields.

use rdmux_wire::cm::{
    Apr, CmMad, Drep, Dreq, Lap, Message, Mra, MraOf, Path, Rej, RejOf, RejReason, Rep, Req, Rtu,
    Transport, private_data,
};
use rdmux_wire::{AckTimeout, Lid, Qpn};

use super::active::Connect;
use super::alternate::Answer;
use super::conn::{Conn, Mad};
use super::passive::Accept;
use super::state::State;
use crate::config::Config;
use crate::params::Ece;

/// The LID of a routed path, which is not known here (IBTA 12.6.5, permissive LID).
const PERMISSIVE: Lid = Lid(0xffff);

fn mad(tid: u64, message: impl Into<Message>) -> Mad {
    CmMad::new(tid, message.into()).to_bytes()
}

/// Builds a message that carries the options of enhanced connection establishment in its header.
fn mad_with(ece: Ece, tid: u64, message: impl Into<Message>) -> Mad {
    CmMad { tid, attr_mod: ece.options, message: message.into() }.to_bytes()
}

/// Pads private data to the size of their field. The command has checked their length.
pub(super) fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    private_data(&data[..data.len().min(N)]).unwrap_or([0; N])
}

/// Builds the REQ of a connection.
pub(super) fn req(config: &Config, tid: u64, local_id: u32, connect: &Connect<'_>) -> Mad {
    let Connect { param, primary, fields, .. } = connect;
    let timeout = |field: Option<u8>| field.unwrap_or(config.cm_response_timeout);
    let none = Path { ack_timeout: AckTimeout::new(0), ..Path::default() };
    let alternate = connect.alternate.as_ref().map_or(none, |path| path_of(config, path));
    let mut req = Req {
        local_comm_id: local_id,
        vendor_id: param.ece.vendor_id,
        service_id: connect.service_id,
        local_ca_guid: connect.node_guid,
        local_qkey: fields.local_qkey.unwrap_or_default(),
        local_qpn: param.qp_num,
        responder_resources: param.responder_resources,
        local_eecn: fields.local_eecn,
        initiator_depth: param.initiator_depth,
        remote_eecn: fields.remote_eecn,
        remote_cm_response_timeout: timeout(fields.remote_response_timeout),
        transport: connect.transport,
        end_to_end_flow_control: param.flow_control,
        starting_psn: connect.psn,
        local_cm_response_timeout: timeout(fields.local_response_timeout),
        retry_count: param.retry_count.min(7),
        pkey: primary.pkey,
        path_mtu: primary.mtu.code(),
        rdc_exists: fields.rdc_exists,
        rnr_retry_count: param.rnr_retry_count.min(7),
        max_cm_retries: fields.max_retries.unwrap_or(config.max_cm_retries),
        srq: param.srq,
        primary: path_of(config, primary),
        alternate,
        private_data: padded(connect.private_data),
    };
    if req.transport == Transport::XRC {
        // The sending end serves no requests and the receiving end sends none (Linux leaves these fields out, too).
        (req.responder_resources, req.srq) = (0, false);
        (req.retry_count, req.rnr_retry_count) = (0, 0);
    }
    mad_with(param.ece, tid, req)
}

/// Describes a path as REQ and LAP do. Its LIDs are the destinations of either side.
pub(super) fn path_of(config: &Config, path: &crate::path::Path) -> Path {
    let av = &path.av;
    let routed = av.is_global && av.hop_limit > 1;
    let lids = (path.back_lid, Lid(av.dlid));
    let (local_lid, remote_lid) = if routed { (PERMISSIVE, PERMISSIVE) } else { lids };
    Path {
        local_lid,
        remote_lid,
        local_gid: path.local,
        remote_gid: av.dgid,
        flow_label: av.flow_label,
        rate: av.static_rate,
        tclass: av.traffic_class,
        hop_limit: av.hop_limit,
        sl: av.sl,
        subnet_local: !routed,
        ack_timeout: Config::ack_timeout(config.ack_delay, path.packet_lifetime),
    }
}

/// Builds the REP of a connection.
pub(super) fn rep(config: &Config, c: &Conn, accept: &Accept<'_>) -> Mad {
    let (param, fields) = (accept.param, accept.fields);
    let mut rep = Rep {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        local_qkey: fields.local_qkey.unwrap_or_default(),
        local_qpn: param.qp_num,
        local_eecn: fields.local_eecn,
        vendor_id: param.ece.vendor_id,
        starting_psn: accept.psn,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        target_ack_delay: fields.target_ack_delay.unwrap_or(config.ack_delay),
        failover_accepted: accept.failover as u8,
        end_to_end_flow_control: param.flow_control,
        rnr_retry_count: param.rnr_retry_count.min(7),
        srq: param.srq,
        local_ca_guid: accept.node_guid,
        private_data: padded(&param.private_data),
    };
    if c.transport == Transport::XRC {
        // Each request names the shared receive queue that it is for, and the receiving end sends no requests.
        (rep.local_eecn, rep.local_qpn) = (rep.local_qpn.get(), Qpn::default());
        (rep.srq, rep.initiator_depth, rep.end_to_end_flow_control) = (true, 0, false);
    }
    mad_with(param.ece, c.tid, rep)
}

/// Builds the RTU of a connection.
pub(super) fn rtu(c: &Conn, private_data: &[u8]) -> Mad {
    let (local_comm_id, remote_comm_id) = (c.local_id, c.remote_id);
    mad(c.tid, Rtu { local_comm_id, remote_comm_id, private_data: padded(private_data) })
}

/// Builds an MRA for a message with this transaction.
pub(super) fn mra(
    c: &Conn,
    tid: u64,
    message: MraOf,
    service_timeout: u8,
    private_data: &[u8],
) -> Mad {
    let (local_comm_id, remote_comm_id) = (c.local_id, c.remote_id);
    let private_data = padded(private_data);
    mad(tid, Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data })
}

/// Builds a LAP for an alternate path of a connection.
pub(super) fn lap(
    config: &Config,
    tid: u64,
    c: &Conn,
    path: &crate::path::Path,
    private_data: &[u8],
) -> Mad {
    let lap = Lap {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        remote_qpn: c.remote_qpn,
        remote_cm_response_timeout: c.response_timeout,
        alternate: path_of(config, path),
        private_data: padded(private_data),
    };
    mad(tid, lap)
}

/// Builds an APR to the LAP with this transaction.
pub(super) fn apr(c: &Conn, tid: u64, answer: &Answer<'_>) -> Mad {
    let apr = Apr {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        info_len: u8::try_from(answer.info.len()).unwrap_or(0),
        status: answer.status,
        info: padded(answer.info),
        private_data: padded(answer.private_data),
    };
    mad(tid, apr)
}

/// Builds a REJ of the peer's last message, or of no particular message.
pub(super) fn rej(c: &Conn, reason: RejReason, ari: &[u8], private_data: &[u8]) -> Mad {
    let message = match c.state() {
        State::ReqRcvd => RejOf::Req,
        State::RepRcvd => RejOf::Rep,
        _ => RejOf::NoMessage,
    };
    rej_of(c.tid, (c.local_id, c.remote_id), message, reason, ari, private_data)
}

/// Builds a REJ with these communication ids, this end's and the peer's.
pub(super) fn rej_of(
    tid: u64,
    (local_comm_id, remote_comm_id): (u32, u32),
    message: RejOf,
    reason: RejReason,
    ari: &[u8],
    private_data: &[u8],
) -> Mad {
    let rej = Rej {
        local_comm_id,
        remote_comm_id,
        message,
        ari_len: u8::try_from(ari.len()).unwrap_or(0),
        reason,
        ari: padded(ari),
        private_data: padded(private_data),
    };
    mad(tid, rej)
}

/// Builds the DREQ of a connection.
pub(super) fn dreq(c: &Conn, private_data: &[u8]) -> Mad {
    let (local_comm_id, remote_comm_id) = (c.local_id, c.remote_id);
    let (remote_qpn, private_data) = (c.remote_qpn, padded(private_data));
    mad(c.own_tid(), Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data })
}

/// Builds a DREP to the DREQ whose transaction the connection keeps.
pub(super) fn drep(c: &Conn, private_data: &[u8]) -> Mad {
    drep_of(c.tid, (c.local_id, c.remote_id), private_data)
}

/// Builds a DREP with these communication ids, this end's and the peer's.
pub(super) fn drep_of(
    tid: u64,
    (local_comm_id, remote_comm_id): (u32, u32),
    private_data: &[u8],
) -> Mad {
    mad(tid, Drep { local_comm_id, remote_comm_id, private_data: padded(private_data) })
}
