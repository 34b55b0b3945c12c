//! Attributes of queue pairs and address handles, converted from C to the engine's form and back.

use rdmux_transport::attr::{Access, AddressVector, AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_verbs::Device;
use rdmux_verbs::kind::LinkLayer;
use rdmux_wire::{AckTimeout, Gid, Lid, Mtu, Psn, Qkey, Qpn, RnrTimer};

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result};

/// Returns the state with this number.
///
/// # Errors
/// EINVAL for an invalid number.
pub(crate) fn state(state: ibv_qp_state) -> Result<QpState> {
    use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];
    states.into_iter().find(|s| *s as u32 == state).ok_or(Errno::EINVAL)
}

/// Returns the transport with this number.
///
/// # Errors
/// EOPNOTSUPP for one that this device does not support, EINVAL for an invalid number.
pub(crate) fn qp_type(qp_type: ibv_qp_type) -> Result<QpType> {
    Ok(match qp_type {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        IBV_QPT_XRC_SEND => QpType::XrcSend,
        IBV_QPT_XRC_RECV => QpType::XrcRecv,
        IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    })
}

/// Returns the number of a transport.
pub(crate) fn qp_type_to_c(qp_type: QpType) -> ibv_qp_type {
    match qp_type {
        QpType::Rc => IBV_QPT_RC,
        QpType::Uc => IBV_QPT_UC,
        QpType::Ud => IBV_QPT_UD,
        QpType::XrcSend => IBV_QPT_XRC_SEND,
        QpType::XrcRecv => IBV_QPT_XRC_RECV,
    }
}

/// Converts sizes to the engine's form.
pub(crate) fn caps(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Converts sizes to C's form.
pub(crate) fn cap(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    }
}

/// Converts a path to the engine's form.
///
/// # Errors
/// EINVAL without a GRH, where the port needs one; for a port that does not exist, or an empty entry of the GID table; on
/// InfiniBand for an invalid LID, or a service level above 15.
pub(crate) fn address_vector(device: &Device, attr: &ibv_ah_attr) -> Result<AddressVector> {
    let row = device.kind().row();
    let is_global = attr.is_global != 0;
    if !device.has_port(attr.port_num) || row.grh_required && !is_global {
        return Err(Errno::EINVAL);
    }
    if row.link_layer == LinkLayer::InfiniBand {
        let dlid = Lid(attr.dlid);
        if !(dlid.is_unicast() || dlid.is_multicast() && is_global) || attr.sl > 15 {
            return Err(Errno::EINVAL);
        }
    }
    let local = AddressVector {
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        port_num: attr.port_num,
        ..AddressVector::default()
    };
    if !is_global {
        return Ok(local);
    }
    if device.gid(attr.port_num, attr.grh.sgid_index).is_none_or(|entry| entry.gid.is_zero()) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: every bit pattern is a GID.
    let dgid = Gid(unsafe { attr.grh.dgid.raw });
    Ok(AddressVector {
        is_global,
        dgid,
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label & 0xf_ffff,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        ..local
    })
}

/// Converts a path to C's form.
pub(crate) fn ah_attr(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: av.is_global.into(),
        port_num: av.port_num,
    }
}

/// Converts the attributes that a mask selects, on top of those that the queue pair has.
///
/// # Errors
/// EINVAL for an unknown bit or an invalid value.
pub(crate) fn to_engine(
    device: &Device,
    current: QpAttr,
    attr: &ibv_qp_attr,
    mask: u32,
) -> Result<(QpAttr, AttrMask)> {
    let mask = AttrMask::from_bits(mask).ok_or(Errno::EINVAL)?;
    let limits = device.query().limits;
    let mut to = current;
    let has = |bit| mask.contains(bit);
    // The engine keeps five bits of a time. A larger code is a mistake, not a shorter time.
    let time = |code: u8| if code < 32 { Ok(code) } else { Err(Errno::EINVAL) };
    if has(AttrMask::STATE) {
        to.state = state(attr.qp_state)?;
    }
    if has(AttrMask::CUR_STATE) {
        to.cur_state = state(attr.cur_qp_state)?;
    }
    if has(AttrMask::EN_SQD_ASYNC_NOTIFY) {
        to.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    }
    if has(AttrMask::ACCESS_FLAGS) {
        to.access = Access::from_bits(attr.qp_access_flags).ok_or(Errno::EINVAL)?;
    }
    if has(AttrMask::PKEY_INDEX) {
        to.pkey_index = attr.pkey_index;
    }
    if has(AttrMask::PORT) {
        to.port_num = port(device, attr.port_num)?;
    }
    if has(AttrMask::QKEY) {
        to.qkey = Qkey(attr.qkey);
    }
    if has(AttrMask::AV) {
        to.av = address_vector(device, &attr.ah_attr)?;
    }
    if has(AttrMask::PATH_MTU) {
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
        to.path_mtu = mtu.ok_or(Errno::EINVAL)?;
    }
    if has(AttrMask::TIMEOUT) {
        to.timeout = AckTimeout::new(time(attr.timeout)?);
    }
    if has(AttrMask::RETRY_CNT) {
        to.retry_cnt = attr.retry_cnt;
    }
    if has(AttrMask::RNR_RETRY) {
        to.rnr_retry = attr.rnr_retry;
    }
    if has(AttrMask::RQ_PSN) {
        to.rq_psn = Psn::new(attr.rq_psn);
    }
    if has(AttrMask::MAX_QP_RD_ATOMIC) {
        to.max_rd_atomic = depth(attr.max_rd_atomic, limits.max_init_rd_atomic)?;
    }
    if has(AttrMask::ALT_PATH) {
        to.alt_av = address_vector(device, &attr.alt_ah_attr)?;
        to.alt_pkey_index = attr.alt_pkey_index;
        to.alt_port_num = port(device, attr.alt_port_num)?;
        to.alt_timeout = AckTimeout::new(time(attr.alt_timeout)?);
    }
    if has(AttrMask::MIN_RNR_TIMER) {
        to.min_rnr_timer = RnrTimer::new(time(attr.min_rnr_timer)?);
    }
    if has(AttrMask::SQ_PSN) {
        to.sq_psn = Psn::new(attr.sq_psn);
    }
    if has(AttrMask::MAX_DEST_RD_ATOMIC) {
        to.max_dest_rd_atomic = depth(attr.max_dest_rd_atomic, limits.max_rd_atomic)?;
    }
    if has(AttrMask::PATH_MIG_STATE) {
        to.path_mig_state = u8::try_from(attr.path_mig_state).map_err(|_| Errno::EINVAL)?;
    }
    if has(AttrMask::CAP) {
        to.caps = caps(&attr.cap);
    }
    if has(AttrMask::DEST_QPN) {
        to.dest_qpn = Qpn::new(attr.dest_qp_num);
    }
    if has(AttrMask::RATE_LIMIT) {
        to.rate_limit = attr.rate_limit;
    }
    Ok((to, mask))
}

fn port(device: &Device, port: u8) -> Result<u8> {
    if device.has_port(port) { Ok(port) } else { Err(Errno::EINVAL) }
}

/// Returns the number of READs and atomics outstanding, limited to the device's maximum.
fn depth(depth: u8, limit: u8) -> Result<u8> {
    if depth <= limit { Ok(depth) } else { Err(Errno::EINVAL) }
}

/// Converts all attributes of a queue pair to C's form.
pub(crate) fn to_c(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.state as u32,
        path_mtu: attr.path_mtu.code().into(),
        path_mig_state: attr.path_mig_state.into(),
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        dest_qp_num: attr.dest_qpn.get(),
        qp_access_flags: attr.access.bits(),
        cap: cap(&attr.caps),
        ah_attr: ah_attr(&attr.av),
        alt_ah_attr: ah_attr(&attr.alt_av),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer.code(),
        port_num: attr.port_num,
        timeout: attr.timeout.code(),
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout.code(),
        rate_limit: attr.rate_limit,
    }
}

/// The engine's enumerations have the numbers of the headers.
const _: () = {
    assert!(QpState::Err as u32 == IBV_QPS_ERR && QpState::Sqd as u32 == IBV_QPS_SQD);
    assert!(AttrMask::RATE_LIMIT.bits() == IBV_QP_RATE_LIMIT);
    assert!(AttrMask::DEST_QPN.bits() == IBV_QP_DEST_QPN);
    assert!(Access::HUGETLB.bits() == IBV_ACCESS_HUGETLB);
    assert!(Access::RELAXED_ORDERING.bits() == IBV_ACCESS_RELAXED_ORDERING);
};
