//! The extended interface: the functions that <infiniband/verbs.h> calls through `verbs_context`, `ibv_cq_ex` and `ibv_qp_ex`, and
//! those that release 44 and its successors added to the classic one.
//!
//! `cq` polls, `send_ops` and `wr` post; then `device`, `mw`, `mr`, `dm`, `domain`, `import` and `ece`. Functions
//! newer than release 44 are in `recent`.

mod cq;
mod device;
mod dm;
mod domain;
pub(crate) mod ece;
mod import;
mod mr;
pub(crate) mod mw;
mod recent;
pub(crate) mod send_ops;
mod wr;

use crate::abi::verbs::verbs_context;

/// Stores the functions of this folder in a context's table. An entry that stays empty (flow steering, counters, work
/// queues and their tables, tag matching, rate limits) is unsupported: <infiniband/verbs.h> returns EOPNOTSUPP for it.
pub(crate) fn fill(table: &mut verbs_context) {
    table.create_cq_ex = Some(cq::create_cq_ex);
    table.modify_cq = Some(cq::modify_cq);
    table.query_device_ex = Some(device::query_device_ex);
    table.query_rt_values = Some(device::query_rt_values);
    table.alloc_td = Some(domain::alloc_td);
    table.dealloc_td = Some(domain::dealloc_td);
    table.alloc_parent_domain = Some(domain::alloc_parent_domain);
    table.alloc_null_mr = Some(mr::alloc_null_mr);
    table.advise_mr = Some(mr::advise_mr);
    table.alloc_dm = Some(dm::alloc_dm);
    table.free_dm = Some(dm::free_dm);
    table.reg_dm_mr = Some(dm::reg_dm_mr);
    table.context.ops.alloc_mw = Some(mw::alloc_mw);
    table.context.ops.bind_mw = Some(mw::bind_mw);
    table.context.ops.dealloc_mw = Some(mw::dealloc_mw);
}
