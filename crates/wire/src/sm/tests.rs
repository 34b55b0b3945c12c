//! Captured bytes, and the offsets that infiniband-diags' own decoder reads.

use super::*;
use crate::mad::{MAD_LEN, Method};
use crate::smp::Smp;
use crate::{Gid, Guid, Lid, Mkey, Pkey};

fn hex<const N: usize>(text: &str) -> [u8; N] {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    out
}

#[test]
fn node_info_of_a_simulated_adapter() {
    let bytes = hex::<40>(
        "01010102 0000000000200000 0000000000200000 0000000000200001 0040 0000 000000a1 01 000000",
    );
    let info = NodeInfo::from_bytes(&bytes);
    let expected = NodeInfo {
        base_version: 1,
        class_version: 1,
        node_type: NodeType::CA,
        num_ports: 2,
        system_image_guid: Guid(0x20_0000),
        node_guid: Guid(0x20_0000),
        port_guid: Guid(0x20_0001),
        partition_cap: 64,
        device_id: 0,
        revision: 0xa1,
        local_port_num: 1,
        vendor_id: 0,
    };
    assert_eq!(info, expected);
    assert_eq!(info.to_bytes(), bytes);
}

#[test]
fn switch_info_of_a_simulated_switch() {
    let bytes = hex::<20>("7800 0000 0400 0006 00 00 00 90 0000 0040 30 00 0000");
    let info = SwitchInfo::from_bytes(&bytes);
    let expected = SwitchInfo {
        linear_fdb_cap: 0x7800,
        multicast_fdb_cap: 0x0400,
        linear_fdb_top: Lid(6),
        life_time_value: 0x12,
        partition_enforcement_cap: 0x40,
        filter_raw_inbound_cap: true,
        filter_raw_outbound_cap: true,
        ..SwitchInfo::default()
    };
    assert_eq!(info, expected);
    assert_eq!(SwitchInfo { port_state_change: true, ..info }.to_bytes()[11], 0x94);
    assert_eq!(SwitchInfo { enhanced_port0: true, ..SwitchInfo::default() }.to_bytes()[16], 8);
}

#[test]
fn trap_144_of_a_simulated_adapter() {
    let notice = Notice::from_bytes(&hex("84 000001 0090 0006 0000 0000 0006 00 00 0050c04a"));
    assert!(notice.is_generic);
    assert_eq!(notice.notice_type, NoticeType::INFORMATIONAL);
    assert_eq!(notice.producer, Producer::CA);
    assert_eq!(notice.issuer_lid, Lid(6));
    let Some(Trap::Local(change)) = notice.trap() else { panic!("{notice}") };
    assert_eq!(change.lid, Lid(6));
    assert!(!change.other_local_changes);
    let mask = CapabilityMask::SM
        | CapabilityMask::TRAP
        | CapabilityMask::SL_MAPPING
        | CapabilityMask::EXTENDED_SPEEDS
        | CapabilityMask::CAPABILITY_MASK2
        | CapabilityMask::VENDOR_CLASS
        | CapabilityMask::CAPABILITY_MASK_NOTICE;
    assert_eq!(change.capability_mask, mask);
    assert_eq!(Notice::new(&Trap::Local(change), Producer::CA, Lid(6)), notice);
}

/// Each field alone set to ones: (value, first byte, its first bit, bits). The numbers are those of
/// the bits that libibmad's `mad_dump_portinfo` prints.
#[test]
fn port_info_offsets() {
    let d = PortInfo::default;
    for (info, at, first, bits) in [
        (PortInfo { mkey: Mkey(u64::MAX), ..d() }, 0, 0, 64),
        (PortInfo { gid_prefix: u64::MAX, ..d() }, 8, 0, 64),
        (PortInfo { lid: Lid(0xffff), ..d() }, 16, 0, 16),
        (PortInfo { sm_lid: Lid(0xffff), ..d() }, 18, 0, 16),
        (PortInfo { capability_mask: CapabilityMask::from_bits_retain(!0), ..d() }, 20, 0, 32),
        (PortInfo { diag_code: !0, ..d() }, 24, 0, 16),
        (PortInfo { mkey_lease_period: !0, ..d() }, 26, 0, 16),
        (PortInfo { local_port_num: !0, ..d() }, 28, 0, 8),
        (PortInfo { link_width_enabled: LinkWidth::from_bits_retain(!0), ..d() }, 29, 0, 8),
        (PortInfo { link_width_supported: LinkWidth::from_bits_retain(!0), ..d() }, 30, 0, 8),
        (PortInfo { link_width_active: LinkWidth::from_bits_retain(!0), ..d() }, 31, 0, 8),
        (PortInfo { link_speed_supported: LinkSpeed::from_bits_retain(!0), ..d() }, 32, 0, 4),
        (PortInfo { port_state: PortState(!0), ..d() }, 32, 4, 4),
        (PortInfo { port_physical_state: PhysState(!0), ..d() }, 33, 0, 4),
        (PortInfo { link_down_default_state: LinkDownDefault(!0), ..d() }, 33, 4, 4),
        (PortInfo { mkey_protect_bits: !0, ..d() }, 34, 0, 2),
        (PortInfo { lmc: !0, ..d() }, 34, 5, 3),
        (PortInfo { link_speed_active: LinkSpeed::from_bits_retain(!0), ..d() }, 35, 0, 4),
        (PortInfo { link_speed_enabled: LinkSpeed::from_bits_retain(!0), ..d() }, 35, 4, 4),
        (PortInfo { neighbor_mtu: !0, ..d() }, 36, 0, 4),
        (PortInfo { master_smsl: !0, ..d() }, 36, 4, 4),
        (PortInfo { vl_cap: VlCap(!0), ..d() }, 37, 0, 4),
        (PortInfo { init_type: !0, ..d() }, 37, 4, 4),
        (PortInfo { vl_high_limit: !0, ..d() }, 38, 0, 8),
        (PortInfo { vl_arbitration_high_cap: !0, ..d() }, 39, 0, 8),
        (PortInfo { vl_arbitration_low_cap: !0, ..d() }, 40, 0, 8),
        (PortInfo { init_type_reply: !0, ..d() }, 41, 0, 4),
        (PortInfo { mtu_cap: !0, ..d() }, 41, 4, 4),
        (PortInfo { vl_stall_count: !0, ..d() }, 42, 0, 3),
        (PortInfo { hoq_life: !0, ..d() }, 42, 3, 5),
        (PortInfo { operational_vls: VlCap(!0), ..d() }, 43, 0, 4),
        (PortInfo { partition_enforcement_inbound: true, ..d() }, 43, 4, 1),
        (PortInfo { partition_enforcement_outbound: true, ..d() }, 43, 5, 1),
        (PortInfo { filter_raw_inbound: true, ..d() }, 43, 6, 1),
        (PortInfo { filter_raw_outbound: true, ..d() }, 43, 7, 1),
        (PortInfo { mkey_violations: !0, ..d() }, 44, 0, 16),
        (PortInfo { pkey_violations: !0, ..d() }, 46, 0, 16),
        (PortInfo { qkey_violations: !0, ..d() }, 48, 0, 16),
        (PortInfo { guid_cap: !0, ..d() }, 50, 0, 8),
        (PortInfo { client_reregister: true, ..d() }, 51, 0, 1),
        (PortInfo { multicast_pkey_trap_suppression: !0, ..d() }, 51, 1, 2),
        (PortInfo { subnet_timeout: !0, ..d() }, 51, 3, 5),
        (PortInfo { resp_time_value: !0, ..d() }, 52, 3, 5),
        (PortInfo { local_phy_errors: !0, ..d() }, 53, 0, 4),
        (PortInfo { overrun_errors: !0, ..d() }, 53, 4, 4),
        (PortInfo { max_credit_hint: !0, ..d() }, 54, 0, 16),
        (PortInfo { link_round_trip_latency: !0, ..d() }, 57, 0, 24),
        (PortInfo { capability_mask2: CapabilityMask2::from_bits_retain(!0), ..d() }, 60, 0, 16),
        (PortInfo { link_speed_ext_active: LinkSpeedExt::from_bits_retain(!0), ..d() }, 62, 0, 4),
        (
            PortInfo { link_speed_ext_supported: LinkSpeedExt::from_bits_retain(!0), ..d() },
            62,
            4,
            4,
        ),
        (PortInfo { link_speed_ext_enabled: LinkSpeedExt::from_bits_retain(!0), ..d() }, 63, 3, 5),
    ] {
        let bytes = info.to_bytes();
        for bit in 0..64 * 8 {
            let set = bytes[bit / 8] >> (7 - bit % 8) & 1 == 1;
            let expected = (at * 8 + first..at * 8 + first + bits).contains(&bit);
            assert_eq!(set, expected, "byte {} bit {} of {info}", bit / 8, bit % 8);
        }
    }
}

#[test]
fn tables() {
    let mft = MulticastForwardingTable::from_bytes(&hex("000c"));
    assert_eq!(mft.port_masks[0], 1 << 2 | 1 << 3);
    let sl = SlToVlTable::from_bytes(&hex("0123456789abcdef"));
    assert!(sl.vls.iter().enumerate().all(|(i, vl)| usize::from(vl.0) == i), "{sl}");
    let arb = VlArbitration::from_bytes(&hex("0140 f2ff"));
    assert_eq!(arb.entries[0], VlArbEntry { reserved: 0, vl: 1, weight: 64 });
    assert_eq!(arb.entries[1], VlArbEntry { reserved: 0xf, vl: 2, weight: 255 });
    assert_eq!(PkeyTable::from_bytes(&hex("ffff 7fff")).pkeys[..2], [Pkey(0xffff), Pkey(0x7fff)]);
    assert_eq!(GuidInfo::from_bytes(&hex("0000000000000001 02")).guids[1], Guid(0x2 << 56));
    assert_eq!(
        SmInfo { priority: 5, state: SmState::MASTER, ..SmInfo::default() }.to_bytes()[20],
        0x53
    );
    assert_eq!(LedInfo { led_mask: true, ..LedInfo::default() }.to_bytes(), [0x80, 0, 0, 0]);
    assert_eq!(VendorDiag::from_bytes(&hex("0102 03")).next_index, 0x102);
    let ext = MlnxExtPortInfo::from_bytes(&hex("000000 01 000000 01 000000 01 000000 01"));
    assert_eq!(ext.link_speed_active, MlnxLinkSpeed::FDR10);
    assert_eq!(ext.reserved16, [0; 48]);
}

#[test]
fn trap_details_are_at_the_offsets_of_the_specification() {
    let mut details = [0; 54];
    for (byte, value) in details.iter_mut().zip(0x10..) {
        *byte = value;
    }
    let parse = |number| Trap::parse(number, &details).unwrap();
    for number in [64, 65, 66, 67] {
        let (Trap::GidInService(event)
        | Trap::GidOutOfService(event)
        | Trap::GroupCreated(event)
        | Trap::GroupDeleted(event)) = parse(number)
        else {
            panic!("{number}")
        };
        assert_eq!(event.gid, Gid(core::array::from_fn(|i| details[6 + i])));
    }
    assert!(matches!(parse(128), Trap::LinkState(LinkStateChange { lid: Lid(0x1011), .. })));
    assert!(matches!(
        parse(131),
        Trap::FlowControlWatchdog(LinkError { lid: Lid(0x1213), port: 0x14, .. })
    ));
    assert!(matches!(
        parse(145),
        Trap::SystemImageGuid(SystemImageGuidChange {
            lid: Lid(0x1213),
            system_image_guid: Guid(0x1617_1819_1a1b_1c1d),
            ..
        })
    ));
    let Trap::Mkey(mkey) = parse(256) else { panic!() };
    assert_eq!((mkey.lid, mkey.dr_slid, mkey.method), (Lid(0x1213), Lid(0x1415), 0x16));
    assert_eq!((mkey.attribute_id, mkey.attribute_modifier), (0x1819, 0x1a1b_1c1d));
    assert_eq!(mkey.mkey, Mkey(0x1e1f_2021_2223_2425));
    assert_eq!((mkey.dr_notice, mkey.dr_path_truncated, mkey.dr_hop_count), (false, false, 0x27));
    assert_eq!(mkey.return_path[0], 0x28);
    let Trap::Pkey(key) = parse(257) else { panic!() };
    assert_eq!((key.lid1, key.lid2, key.key, key.sl), (Lid(0x1213), Lid(0x1415), 0x1617_1819, 1));
    assert_eq!((key.qp1.get(), key.qp2.get()), (0x1b_1c1d, 0x1f_2021));
    assert_eq!((key.gid1.0[0], key.gid2.0[0]), (0x22, 0x32));
    let Trap::SwitchPkey(key) = parse(259) else { panic!() };
    assert_eq!((key.data_valid, key.pkey, key.sl), (0x1011, Pkey(0x1617), 1));
    assert_eq!((key.qp1.get(), key.qp2.get()), (0x19_1a1b, 0x1d_1e1f));
    assert_eq!((key.switch_lid, key.port), (Lid(0x4041), 0x42));
    for number in (64..68).chain(128..132).chain([144, 145]).chain(256..260) {
        let trap = parse(number);
        assert_eq!((trap.number(), trap.details()), (number, details), "{trap}");
    }
    assert_eq!(Trap::parse(68, &details), None);
    let vendors = Notice { trap_number: 64, ..Notice::default() };
    assert_eq!(vendors.trap(), None, "a vendor's notice has a meaning of its own");
}

#[test]
fn long_node_description_is_cut_at_a_utf8_boundary() {
    let name = NodeDescription::from("spine one");
    assert_eq!(name.to_string(), "NodeDescription node_description \"spine one\"");
    let long = NodeDescription::from(format!("{}é", "x".repeat(63)).as_str());
    assert_eq!(long.node_description.as_bytes(), [b'x'; 63]);
    let full = NodeDescription::from_bytes(&[b'y'; 64]);
    assert_eq!(full.node_description.as_bytes().len(), 64);
}

#[test]
fn reserved_attribute_fields_are_displayed_only_if_set() {
    let mut names = Vec::new();
    let info = PortInfo { reserved56: 1, ..PortInfo::default() };
    info.fields(&mut |name, value| names.push(format!("{name}={value}")));
    assert_eq!(names.len(), 55 - 4 + 1);
    assert!(
        names.contains(&"reserved56=1".into()) && names.contains(&"lid=0x0000".into()),
        "{names:?}"
    );
    let mask = CapabilityMask::SM | CapabilityMask::from_bits_retain(1);
    assert_eq!(mask.to_string(), "0x3(SM)");
    assert_eq!(PortState::ACTIVE.to_string(), "Active");
    assert_eq!(PortState(9).to_string(), "0x9");
    let arb = VlArbitration::default().to_string();
    assert!(arb.starts_with("VLArbitrationTable entries [0:0 0:0 "), "{arb}");
}

#[test]
fn port_lid_range_follows_from_lid_and_lmc() {
    let info = PortInfo { lid: Lid(8), lmc: 2, ..PortInfo::default() };
    assert_eq!(info.lids(), (Lid(8), Lid(11)));
    assert_eq!(PortInfo { lmc: 0, ..info }.lids(), (Lid(8), Lid(8)));
}

#[test]
fn sm_attributes_are_parsed_by_attribute_id() {
    let mut smp = Smp::lid_routed(Method::GET, 0, 0);
    let led = LedInfo { led_mask: true, ..LedInfo::default() };
    smp.data = [0xee; 64];
    smp.set_attribute(&led.into());
    assert_eq!((smp.header.attr_id, smp.data[0], smp.data[4]), (0x31, 0x80, 0));
    assert_eq!(smp.attribute(), Some(led.into()));
    smp.header.attr_id = 0x1a;
    assert_eq!(smp.attribute(), None);
    assert_eq!(smp.to_bytes().len(), MAD_LEN);
    let ids = [
        0x02, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x20, 0x30, 0x31, 0xff90,
    ];
    for id in ids {
        let attribute = Attribute::parse(id, &[0xa5; 64]).unwrap().unwrap();
        let mut out = [0; 64];
        attribute.emit(&mut out);
        assert_eq!(attribute.attr_id(), id);
        assert_eq!(out[..attribute.wire_len()], [0xa5; 64][..attribute.wire_len()]);
        assert!(attribute.to_string().starts_with(Attribute::name_of(id).unwrap()));
        assert!(Attribute::parse(id, &[0; 3]).is_err());
    }
}
