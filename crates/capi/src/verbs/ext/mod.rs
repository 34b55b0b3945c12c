//! The extended interface: what <infiniband/verbs.h> reaches through `verbs_context`, `ibv_cq_ex` and `ibv_qp_ex`.

use crate::abi::verbs::verbs_context;

/// State of a protection domain beyond the classic one.
#[derive(Debug, Default)]
pub(crate) struct PdExt {}

/// State of a completion queue that is polled by the extended interface.
#[derive(Debug, Default)]
pub(crate) struct CqExt {}

/// State of a queue pair that is posted to by the extended interface.
#[derive(Debug, Default)]
pub(crate) struct QpExt {}

/// Puts the functions of this folder into a context's table.
pub(crate) fn fill(_table: &mut verbs_context) {}
