//! Names for display (`ibv_node_type_str(3)`, `ibv_event_type_str(3)`, `ibv_wc_status_str(3)`).

use std::ffi::{CStr, c_char, c_int};

use crate::abi::verbs::*;

/// Writes a string into a field of a C structure, truncated to fit, and ended by a NUL.
pub(crate) fn fill<const N: usize>(field: &mut [c_char; N], text: &str) {
    field.fill(0);
    for (slot, byte) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *slot = byte.cast_signed();
    }
}

/// Names of device node types.
const NODE_TYPES: &[(c_int, &CStr)] = &[
    (IBV_NODE_CA, c"InfiniBand channel adapter"),
    (IBV_NODE_SWITCH, c"InfiniBand switch"),
    (IBV_NODE_ROUTER, c"InfiniBand router"),
    (IBV_NODE_RNIC, c"iWARP NIC"),
    (IBV_NODE_USNIC, c"usNIC"),
    (IBV_NODE_USNIC_UDP, c"usNIC UDP"),
    (IBV_NODE_UNSPECIFIED, c"unspecified"),
];

/// Names of port states.
const PORT_STATES: &[(u32, &CStr)] = &[
    (IBV_PORT_NOP, c"no state change (NOP)"),
    (IBV_PORT_DOWN, c"down"),
    (IBV_PORT_INIT, c"init"),
    (IBV_PORT_ARMED, c"armed"),
    (IBV_PORT_ACTIVE, c"active"),
    (IBV_PORT_ACTIVE_DEFER, c"active defer"),
];

/// Names of asynchronous events.
const EVENTS: &[(u32, &CStr)] = &[
    (IBV_EVENT_CQ_ERR, c"CQ error"),
    (IBV_EVENT_QP_FATAL, c"local work queue catastrophic error"),
    (IBV_EVENT_QP_REQ_ERR, c"invalid request local work queue error"),
    (IBV_EVENT_QP_ACCESS_ERR, c"local access violation work queue error"),
    (IBV_EVENT_COMM_EST, c"communication established"),
    (IBV_EVENT_SQ_DRAINED, c"send queue drained"),
    (IBV_EVENT_PATH_MIG, c"path migrated"),
    (IBV_EVENT_PATH_MIG_ERR, c"path migration request error"),
    (IBV_EVENT_DEVICE_FATAL, c"local catastrophic error"),
    (IBV_EVENT_PORT_ACTIVE, c"port active"),
    (IBV_EVENT_PORT_ERR, c"port error"),
    (IBV_EVENT_LID_CHANGE, c"LID change"),
    (IBV_EVENT_PKEY_CHANGE, c"P_Key change"),
    (IBV_EVENT_SM_CHANGE, c"SM change"),
    (IBV_EVENT_SRQ_ERR, c"SRQ catastrophic error"),
    (IBV_EVENT_SRQ_LIMIT_REACHED, c"SRQ limit reached"),
    (IBV_EVENT_QP_LAST_WQE_REACHED, c"last WQE reached"),
    (IBV_EVENT_CLIENT_REREGISTER, c"client reregistration"),
    (IBV_EVENT_GID_CHANGE, c"GID table change"),
    (IBV_EVENT_WQ_FATAL, c"WQ fatal"),
];

/// Names of completion statuses.
const STATUSES: &[(u32, &CStr)] = &[
    (IBV_WC_SUCCESS, c"success"),
    (IBV_WC_LOC_LEN_ERR, c"local length error"),
    (IBV_WC_LOC_QP_OP_ERR, c"local QP operation error"),
    (IBV_WC_LOC_EEC_OP_ERR, c"local EE context operation error"),
    (IBV_WC_LOC_PROT_ERR, c"local protection error"),
    (IBV_WC_WR_FLUSH_ERR, c"Work Request Flushed Error"),
    (IBV_WC_MW_BIND_ERR, c"memory management operation error"),
    (IBV_WC_BAD_RESP_ERR, c"bad response error"),
    (IBV_WC_LOC_ACCESS_ERR, c"local access error"),
    (IBV_WC_REM_INV_REQ_ERR, c"remote invalid request error"),
    (IBV_WC_REM_ACCESS_ERR, c"remote access error"),
    (IBV_WC_REM_OP_ERR, c"remote operation error"),
    (IBV_WC_RETRY_EXC_ERR, c"transport retry counter exceeded"),
    (IBV_WC_RNR_RETRY_EXC_ERR, c"RNR retry counter exceeded"),
    (IBV_WC_LOC_RDD_VIOL_ERR, c"local RDD violation error"),
    (IBV_WC_REM_INV_RD_REQ_ERR, c"remote invalid RD request"),
    (IBV_WC_REM_ABORT_ERR, c"aborted error"),
    (IBV_WC_INV_EECN_ERR, c"invalid EE context number"),
    (IBV_WC_INV_EEC_STATE_ERR, c"invalid EE context state"),
    (IBV_WC_FATAL_ERR, c"fatal error"),
    (IBV_WC_RESP_TIMEOUT_ERR, c"response timeout error"),
    (IBV_WC_GENERAL_ERR, c"general error"),
    (IBV_WC_TM_ERR, c"TM error"),
    (IBV_WC_TM_RNDV_INCOMPLETE, c"TM software rendezvous"),
];

fn find<T: PartialEq>(table: &[(T, &'static CStr)], value: T) -> *const c_char {
    table.iter().find(|(v, _)| *v == value).map_or(c"unknown", |(_, text)| text).as_ptr()
}

/// `ibv_node_type_str(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    find(NODE_TYPES, node_type)
}

/// `ibv_port_state_str(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    find(PORT_STATES, state)
}

/// `ibv_event_type_str(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    find(EVENTS, event)
}

/// `ibv_wc_status_str(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    find(STATUSES, status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_the_headers_has_a_word_and_others_are_unknown() {
        let word = |p| {
            // SAFETY: a static string.
            unsafe { CStr::from_ptr(p) }
        };
        for value in 0..=IBV_WC_TM_RNDV_INCOMPLETE {
            assert_ne!(word(ibv_wc_status_str(value)), c"unknown", "{value}");
        }
        for value in 0..=IBV_EVENT_WQ_FATAL {
            assert_ne!(word(ibv_event_type_str(value)), c"unknown", "{value}");
        }
        assert_eq!(word(ibv_wc_status_str(99)), c"unknown");
        assert_eq!(word(ibv_port_state_str(IBV_PORT_ACTIVE)), c"active");
        assert_eq!(word(ibv_node_type_str(IBV_NODE_UNKNOWN)), c"unknown");
    }

    #[test]
    fn a_long_name_is_cut_and_ended() {
        let mut field = [1; 4];
        fill(&mut field, "abcdef");
        assert_eq!(field, [97, 98, 99, 0]);
    }
}
