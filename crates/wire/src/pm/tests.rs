//! The positions of the counters: the offsets that infiniband-diags' own decoder reads, except
//! QP1Dropped, which it reads from the two bytes after.

use super::*;

/// Returns data in which the first byte of each field of two bytes or more is its number in the data 0, 1, 2...
fn counting() -> [u8; DATA_LEN] {
    core::array::from_fn(|i| u8::try_from(i).unwrap())
}

fn number(at: u8, bytes: u8) -> u64 {
    (at..at + bytes).fold(0, |v, b| v << 8 | u64::from(b))
}

/// Returns name and value of each field.
fn fields(attr_id: u16) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    let attribute = Attribute::parse(attr_id, &counting()).unwrap().unwrap();
    attribute.fields(&mut |name, value| out.push((name, value.to_string())));
    out
}

fn assert_numbers(attr_id: u16, expected: &[(&'static str, u8, u8)]) {
    let found = fields(attr_id);
    for &(name, at, bytes) in expected {
        let (_, value) = found.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(*value, number(at, bytes).to_string(), "{name}");
    }
}

#[test]
fn port_counters() {
    assert_numbers(
        0x12,
        &[
            ("port_select", 1, 1),
            ("symbol_error_counter", 4, 2),
            ("link_error_recovery_counter", 6, 1),
            ("link_downed_counter", 7, 1),
            ("port_rcv_errors", 8, 2),
            ("port_rcv_remote_physical_errors", 10, 2),
            ("port_rcv_switch_relay_errors", 12, 2),
            ("port_xmit_discards", 14, 2),
            ("port_xmit_constraint_errors", 16, 1),
            ("port_rcv_constraint_errors", 17, 1),
            ("counter_select2", 18, 1),
            ("qp1_dropped", 20, 2),
            ("vl15_dropped", 22, 2),
            ("port_xmit_data", 24, 4),
            ("port_rcv_data", 28, 4),
            ("port_xmit_pkts", 32, 4),
            ("port_rcv_pkts", 36, 4),
            ("port_xmit_wait", 40, 4),
        ],
    );
    let c = PortCounters {
        local_link_integrity_errors: 0xa,
        excessive_buffer_overrun_errors: 0xb,
        ..PortCounters::default()
    };
    assert_eq!(c.to_bytes()[19], 0xab);
    let c = PortCounters { counter_select: CounterSelect::VL15_DROPPED, ..PortCounters::default() };
    assert_eq!(c.to_bytes()[2..4], [0x08, 0]);
}

#[test]
fn port_counters_extended() {
    assert_numbers(
        0x1d,
        &[
            ("port_select", 1, 1),
            ("counter_select2", 4, 4),
            ("port_xmit_data", 8, 8),
            ("port_rcv_data", 16, 8),
            ("port_xmit_pkts", 24, 8),
            ("port_rcv_pkts", 32, 8),
            ("port_unicast_xmit_pkts", 40, 8),
            ("port_unicast_rcv_pkts", 48, 8),
            ("port_multicast_xmit_pkts", 56, 8),
            ("port_multicast_rcv_pkts", 64, 8),
            ("symbol_error_counter", 72, 8),
            ("link_error_recovery_counter", 80, 8),
            ("link_downed_counter", 88, 8),
            ("port_rcv_errors", 96, 8),
            ("port_rcv_remote_physical_errors", 104, 8),
            ("port_rcv_switch_relay_errors", 112, 8),
            ("port_xmit_discards", 120, 8),
            ("port_xmit_constraint_errors", 128, 8),
            ("port_rcv_constraint_errors", 136, 8),
            ("local_link_integrity_errors", 144, 8),
            ("excessive_buffer_overrun_errors", 152, 8),
            ("vl15_dropped", 160, 8),
            ("port_xmit_wait", 168, 8),
            ("qp1_dropped", 176, 8),
        ],
    );
}

#[test]
fn optional_port_counters_layout() {
    assert_numbers(
        0x15,
        &[
            ("port_local_physical_errors", 4, 2),
            ("port_malformed_packet_errors", 6, 2),
            ("port_buffer_overrun_errors", 8, 2),
            ("port_dlid_mapping_errors", 10, 2),
            ("port_vl_mapping_errors", 12, 2),
            ("port_looping_errors", 14, 2),
        ],
    );
    assert_numbers(
        0x16,
        &[
            ("port_inactive_discards", 4, 2),
            ("port_neighbor_mtu_discards", 6, 2),
            ("port_sw_lifetime_limit_discards", 8, 2),
            ("port_sw_hoq_lifetime_limit_discards", 10, 2),
        ],
    );
    assert_numbers(0x17, &[("port_op_rcv_pkts", 4, 4), ("port_op_rcv_data", 8, 4)]);
    assert_numbers(0x18, &[("port_xmit_flow_pkts", 4, 4), ("port_rcv_flow_pkts", 8, 4)]);
    assert_numbers(
        0x10,
        &[
            ("op_code", 0, 1),
            ("port_select", 1, 1),
            ("tick", 2, 1),
            ("counter_width", 3, 1),
            ("sample_mechanisms", 10, 1),
            ("option_mask", 12, 8),
            ("vendor_mask", 20, 8),
            ("sample_start", 28, 4),
            ("sample_interval", 32, 4),
            ("tag", 36, 2),
            ("samples_only_option_mask", 72, 8),
        ],
    );
    let control = PortSamplesControl::parse(&counting()).unwrap();
    let select: [u16; 15] = control.counter_select;
    assert_eq!((select[0], select[1], select[14]), (0x2627, 0x2829, 0x4243));
    assert_eq!(PortSamplesControl::LEN, 80);
    let result = PortSamplesResult::parse(&counting()).unwrap();
    assert_eq!((result.tag, result.sample_status, result.counters[14]), (1, 3, 0x3c3d_3e3f));
    let by_sl = PortXmitDataSl::parse(&counting()).unwrap().port_xmit_data_sl;
    assert_eq!((by_sl[0], by_sl[15]), (0x0405_0607, 0x4041_4243));
    let by_sl = PortRcvDataSl::parse(&counting()).unwrap().port_rcv_data_sl;
    assert_eq!((by_sl[0], by_sl[15]), (0x0405_0607, 0x4041_4243));
    let by_vl = PortVlOpPackets::parse(&counting()).unwrap().port_vl_op_packets;
    assert_eq!((by_vl[0], by_vl[15]), (0x0405, 0x2223));
    let by_vl = PortVlXmitWaitCounters::parse(&counting()).unwrap().port_vl_xmit_wait;
    assert_eq!((by_vl[0], by_vl[15]), (0x0405, 0x2223));
    let by_vl = PortVlOpData::parse(&counting()).unwrap().port_vl_op_data;
    assert_eq!((by_vl[0], by_vl[15]), (0x0405_0607, 0x4041_4243));
    let errors = PortVlXmitFlowCtlUpdateErrors::parse(&[0, 1, 0, 0, 0b1100_0110, 0, 0, 1]).unwrap();
    let counts = errors.port_vl_xmit_flow_ctl_update_errors.map(|v| v.0);
    assert_eq!(counts, [3, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn class_port_info() {
    let b = counting();
    let info = ClassPortInfo::parse(&b).unwrap();
    assert_eq!((info.base_version, info.class_version), (0, 1));
    assert_eq!(info.capability_mask.bits(), 0x0203);
    assert_eq!((info.capability_mask2, info.resp_time_value), (0x0405_0607 >> 5, 7));
    assert_eq!((info.redirect_gid.0[0], info.redirect_tclass), (8, 24));
    assert_eq!((info.redirect_sl, info.redirect_flow_label), (1, 0x9_1a1b));
    assert_eq!((info.redirect_lid.0, info.redirect_pkey.0), (0x1c1d, 0x1e1f));
    assert_eq!((info.redirect_qp.get(), info.redirect_qkey.0), (0x21_2223, 0x2425_2627));
    assert_eq!((info.trap_gid.0[0], info.trap_tclass), (40, 56));
    assert_eq!((info.trap_sl, info.trap_flow_label), (3, 0x9_3a3b));
    assert_eq!((info.trap_lid.0, info.trap_pkey.0, info.trap_hop_limit), (0x3c3d, 0x3e3f, 0x40));
    assert_eq!((info.trap_qp.get(), info.trap_qkey.0), (0x41_4243, 0x4445_4647));
}

#[test]
fn pm_attribute_is_at_byte_64_of_the_mad() {
    let mut mad = PmMad::new(Method::GET, PortCounters::ATTR_ID);
    mad.set_attribute(&PortCounters { port_select: 3, ..PortCounters::default() }.into());
    let bytes = mad.to_bytes();
    assert_eq!(bytes[..4], [1, 4, 1, 1]);
    assert_eq!((bytes[17], bytes[65]), (0x12, 3));
    assert_eq!(PmMad::parse(&bytes), Ok(mad));
    assert!(
        mad.to_string().starts_with("Perf Get tid 0x0000000000000000 PortCounters port_select 3")
    );
    let mut other = bytes;
    other[1] = 3;
    assert!(PmMad::parse(&other).is_err() && PmMad::parse(&bytes[..255]).is_err());
}
