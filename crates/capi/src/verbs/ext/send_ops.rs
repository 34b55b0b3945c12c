//! The operations that a queue pair can be created to build (`IBV_QP_INIT_ATTR_SEND_OPS_FLAGS` of `ibv_create_qp_ex(3)`).

use rdmux_transport::attr::QpType;

use super::wr;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result};
use crate::verbs::objects::build::{Allowed, QpExt};
use crate::verbs::objects::{Object, Pd, Qp};

const DATAGRAMS: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

const LOCAL: u32 = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;

const UNRELIABLE: u32 =
    DATAGRAMS | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | LOCAL;

const RELIABLE: u32 = UNRELIABLE
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// Enables posting by building on a new queue pair.
///
/// # Errors
/// EOPNOTSUPP for operations that its transport does not support.
pub(crate) fn offer_send_ops(qp: &mut Qp, send_ops: u64) -> Result<()> {
    let init = qp.own()?.init();
    let served = match init.qp_type {
        QpType::Rc | QpType::XrcSend => RELIABLE,
        QpType::Uc => UNRELIABLE,
        QpType::Ud => DATAGRAMS,
        QpType::XrcRecv => 0,
    };
    if send_ops & !u64::from(served) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let caps = init.caps;
    let allowed = Allowed {
        ops: send_ops,
        max_send_wr: caps.max_send_wr,
        max_send_sge: caps.max_send_sge,
        max_inline_data: caps.max_inline_data,
    };
    let public = qp.public.get_mut();
    // SAFETY: the domain that it was created in, which it keeps.
    let single_threaded = unsafe { Pd::get(public.qp_base.pd)? }.ext.single_threaded();
    wr::fill(public);
    qp.ext = QpExt::new(allowed, single_threaded);
    Ok(())
}

/// `ibv_qp_to_qp_ex(3)`: returns NULL for a queue pair that was created without operations to build.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller guarantees it.
    match unsafe { Qp::peek(qp) } {
        Ok(object) if object.ext.is_built() => qp.cast(),
        _ => std::ptr::null_mut(),
    }
}
