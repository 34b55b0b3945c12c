//! Enhanced connection establishment (`ibv_query_ece(3)`, `ibv_set_ece(3)`): options that two devices of one vendor
//! may agree on. This device has none so far. iWARP
//! does not support it.

use std::ffi::c_int;

use crate::abi::verbs::*;
use crate::boundary::{Errno, code};
use crate::verbs::objects::{Object, Qp};

/// The options that this device supports.
const SUPPORTED: u32 = 0;

/// `ibv_query_ece(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (qp, ece) = unsafe { (Qp::get(qp)?, ece.as_mut()) };
        qp.opened.check_infiniband()?;
        let vendor_id = qp.opened.device.query().vendor_id;
        *ece.ok_or(Errno::EINVAL)? = ibv_ece { vendor_id, options: SUPPORTED, comp_mask: 0 };
        Ok(())
    })
}

/// `ibv_set_ece(3)`: takes the wanted options, and returns those that are supported.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (qp, ece) = unsafe { (Qp::get(qp)?, ece.as_mut()) };
        qp.opened.check_infiniband()?;
        let ece = ece.ok_or(Errno::EINVAL)?;
        // No vendor: the peer has no options.
        if ece.vendor_id == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if ece.vendor_id != qp.opened.device.query().vendor_id || ece.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        ece.options &= SUPPORTED;
        Ok(())
    })
}
