//! Null memory regions, and advice about on-demand paging (`ibv_alloc_null_mr(3)`, `ibv_advise_mr(3)`).

use std::ffi::c_int;

use rdmux_transport::wr::Sge;
use rdmux_verbs as verbs;
use rdmux_verbs::mr::{Advice, advise};
use rdmux_wire::Lkey;

use super::wr::list_of;
use crate::abi::verbs::*;
use crate::boundary::{Errno, code, pointer};
use crate::verbs::mr;
use crate::verbs::objects::dm::MrExt;
use crate::verbs::objects::{Object, Pd};

pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let domain = unsafe { Pd::get(pd)? };
        let region = verbs::Mr::null(&domain.core.pd)?;
        Ok(mr::publish(pd, domain, region, MrExt::default()))
    })
}

/// `IBV_ADVISE_MR_FLAG_FLUSH`: complete the advice before the call returns, as is always done.
const FLUSH: u32 = 1;

pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let pd = unsafe { Pd::get(pd)? };
        let advice = match advice {
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Advice::Prefetch,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::PrefetchWrite,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::PrefetchNoFault,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if flags & !FLUSH != 0 || num_sges == 0 || sg_list.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the list has as many entries as the program says.
        let list = unsafe { list_of(sg_list, num_sges as usize) };
        for s in list {
            let sge = Sge { addr: s.addr, length: s.length, lkey: Lkey(s.lkey) };
            advise(&pd.core.pd, advice, &[sge])?;
        }
        Ok(())
    })
}
