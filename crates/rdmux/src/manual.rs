//! Queue pair attributes for programs that connect without the connection manager.

use rdmux_transport::attr::{Access, AttrMask, QpAttr, QpState, QpType};
use rdmux_wire::{AckTimeout, Psn, Qkey, RnrTimer};

use crate::error::Result;
use crate::{Ah, Context, Endpoint, Qp};

type Step = (QpAttr, AttrMask);

/// The acknowledgement timeout: 4.096 us * 2^14 = 67 ms until a retransmission.
const TIMEOUT: AckTimeout = AckTimeout::new(14);
/// The wait of a sender after an RNR NAK: 0.64 ms.
const RNR_TIMER: RnrTimer = RnrTimer::new(12);
/// The first PSN of both sides. A new queue pair holds no packets of an earlier connection.
const FIRST_PSN: Psn = Psn::new(0);

/// Returns the steps of a connected queue pair from RESET to RTS.
pub(crate) fn connect_steps(
    qp: &Qp,
    peer: Endpoint,
    sgid_index: u8,
    access: Access,
) -> Result<[Step; 3]> {
    let from = (qp.port(), sgid_index);
    let attr = attr(qp.pd().context(), &qp.attr(), peer, from, access)?;
    let (mut rtr, mut rts) = (RTR, AttrMask::STATE | AttrMask::SQ_PSN);
    if qp.qp_type() == QpType::Rc {
        rtr |= RTR_RC;
    }
    if matches!(qp.qp_type(), QpType::Rc | QpType::XrcSend) {
        rts |= RTS_RC;
    }
    let init = INIT | AttrMask::ACCESS_FLAGS;
    Ok([
        (QpAttr { state: QpState::Init, ..attr }, init),
        (QpAttr { state: QpState::Rtr, ..attr }, rtr),
        (QpAttr { state: QpState::Rts, ..attr }, rts),
    ])
}

/// Returns the steps of a queue pair that only receives from RESET to RTR.
pub(crate) fn receive_steps(attr: &QpAttr) -> [Step; 2] {
    [
        (QpAttr { state: QpState::Init, ..*attr }, INIT | AttrMask::ACCESS_FLAGS),
        (QpAttr { state: QpState::Rtr, ..*attr }, RTR | RTR_RC),
    ]
}

/// Returns the attributes for a connection to `peer`; the rest is as in `default`.
pub(crate) fn attr(
    context: &Context,
    default: &QpAttr,
    peer: Endpoint,
    (port, sgid_index): (u8, u8),
    access: Access,
) -> Result<QpAttr> {
    let limit = context.limits().max_rd_atomic;
    let way = if context.kind().is_on_fabric() {
        Ah::to_lid(peer.lid)
    } else {
        Ah::to_gid(peer.gid, sgid_index)
    };
    Ok(QpAttr {
        access,
        port_num: port,
        pkey_index: 0,
        av: *way.port(port).vector(),
        path_mtu: context.path_mtu(port, sgid_index)?,
        dest_qpn: peer.qpn,
        rq_psn: FIRST_PSN,
        sq_psn: FIRST_PSN,
        max_rd_atomic: limit,
        max_dest_rd_atomic: limit,
        min_rnr_timer: RNR_TIMER,
        timeout: TIMEOUT,
        retry_cnt: 7,
        rnr_retry: 7,
        ..*default
    })
}

/// Returns the steps of a datagram queue pair from RESET to RTS.
pub(crate) fn activate_steps(qp: &Qp, qkey: Qkey) -> [Step; 3] {
    let attr = QpAttr { qkey, port_num: qp.port(), pkey_index: 0, sq_psn: FIRST_PSN, ..qp.attr() };
    [
        (QpAttr { state: QpState::Init, ..attr }, INIT | AttrMask::QKEY),
        (QpAttr { state: QpState::Rtr, ..attr }, AttrMask::STATE),
        (QpAttr { state: QpState::Rts, ..attr }, AttrMask::STATE | AttrMask::SQ_PSN),
    ]
}

const INIT: AttrMask = AttrMask::STATE.union(AttrMask::PKEY_INDEX).union(AttrMask::PORT);
const RTR: AttrMask = AttrMask::STATE
    .union(AttrMask::AV)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);
const RTR_RC: AttrMask = AttrMask::MAX_DEST_RD_ATOMIC.union(AttrMask::MIN_RNR_TIMER);
const RTS_RC: AttrMask = AttrMask::TIMEOUT
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC);
