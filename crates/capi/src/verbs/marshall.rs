//! Conversion between the kernel's structures (<rdma/ib_user_verbs.h>, <rdma/ib_user_sa.h>) and the library's, for programs that use the
//! kernel's interface directly: `ibv_copy_ah_attr_from_kern` and its like of <infiniband/marshall.h>.

use crate::abi::verbs::*;

/// `ib_uverbs_ah_attr`, with the `ib_uverbs_global_route` at its head.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_route: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `ib_uverbs_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAhAttr,
    alt_ah_attr: KernelAhAttr,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelPathRec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = {
    assert!(size_of::<KernelAhAttr>() == 32);
    assert!(size_of::<KernelQpAttr>() == 144);
    assert!(size_of::<KernelPathRec>() == 64);
};

fn ah_attr(from: &KernelAhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.dgid },
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const KernelAhAttr,
) {
    // SAFETY: the caller's structures.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        *to = ah_attr(from);
    }
}

/// `ibv_copy_qp_attr_from_kern`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const KernelQpAttr,
) {
    // SAFETY: the caller's structures.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        *to = qp_attr(from);
    }
}

fn qp_attr(from: &KernelQpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: from.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        },
        ah_attr: ah_attr(&from.ah_attr),
        alt_ah_attr: ah_attr(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: 0,
    }
}

/// `ibv_copy_path_rec_from_kern`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const KernelPathRec,
) {
    // SAFETY: the caller's structures.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        *to = path_rec(from);
    }
}

fn path_rec(from: &KernelPathRec) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_signed(),
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible.cast_signed(),
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: u8::try_from(from.mtu).unwrap_or(u8::MAX),
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

/// `ibv_copy_path_rec_to_kern`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    to: *mut KernelPathRec,
    from: *const ibv_sa_path_rec,
) {
    // SAFETY: the caller's structures.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        *to = kernel_path_rec(from);
    }
}

fn kernel_path_rec(from: &ibv_sa_path_rec) -> KernelPathRec {
    // SAFETY: every bit pattern is a GID.
    let raw = |gid: &ibv_gid| unsafe { gid.raw };
    KernelPathRec {
        dgid: raw(&from.dgid),
        sgid: raw(&from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_unsigned(),
        flow_label: from.flow_label,
        reversible: from.reversible.cast_unsigned(),
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_path_record_round_trips() {
        let kernel = KernelPathRec {
            dgid: [1; 16],
            sgid: [2; 16],
            dlid: 3,
            flow_label: 4,
            reversible: 1,
            mtu: 5,
            pkey: 6,
            preference: 7,
            ..KernelPathRec::default()
        };
        let again = kernel_path_rec(&path_rec(&kernel));
        assert_eq!(format!("{again:?}"), format!("{kernel:?}"));
    }

    #[test]
    fn kernel_qp_attributes_are_copied_to_their_fields() {
        let ah = KernelAhAttr { dlid: 9, port_num: 1, hop_limit: 64, ..Default::default() };
        let kernel = KernelQpAttr {
            qp_state: 3,
            dest_qp_num: 17,
            max_inline_data: 18,
            alt_timeout: 19,
            alt_ah_attr: ah,
            ..KernelQpAttr::default()
        };
        let attr = qp_attr(&kernel);
        assert_eq!((attr.qp_state, attr.dest_qp_num, attr.alt_timeout), (3, 17, 19));
        assert_eq!((attr.cap.max_inline_data, attr.alt_ah_attr.dlid), (18, 9));
        assert_eq!((attr.alt_ah_attr.grh.hop_limit, attr.ah_attr.port_num), (64, 0));
    }
}
