//! PortInfo and the effects of a Set: cases 5 and 6, and the events of section 8.

use rdmux_subnet::PortEvent;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sm::{LinkWidth, PortInfo, VlCap};
use rdmux_wire::{Lid, Mtu};

use crate::net::{Net, get, port};

const HERE: rdmux_subnet::PortId = port(1, 1);

fn star() -> Net {
    Net::of("switch:2")
}

#[test]
fn the_modifier_is_echoed_with_bit_31_and_local_port_num_is_the_ingress() {
    let mut net = star();
    let answer = net.dr(HERE, &[1], &get(PortInfo::ATTR_ID, 2 | 1 << 31)).expect("an answer");
    assert_eq!((answer.status(), answer.header.attr_mod), (status::OK, 2 | 1 << 31));
    assert_eq!(net.port_info(HERE, &[1], 2).local_port_num, 1);
    assert_eq!(net.port_info(HERE, &[1, 2], 0).local_port_num, 1);
    assert_eq!(net.port_info(HERE, &[], 1).local_port_num, 1);
}

#[test]
fn port_info_of_a_nonexistent_port_is_invalid_value() {
    let mut net = star();
    for (hops, number) in [(&[1][..], 3), (&[1], 0x100), (&[1], 1 << 30), (&[], 2), (&[], 0x101)] {
        let answer = net.dr(HERE, hops, &get(PortInfo::ATTR_ID, number)).expect("an answer");
        assert_eq!(answer.status(), status::INVALID_VALUE, "{number:#x}");
    }
}

#[test]
fn port_info_of_a_cas_other_port_can_be_read_and_set_is_invalid_value() {
    let text = "Ca 2 \"a\"\n[1] \"b\"[1]\n[2] \"b\"[2]\n\nCa 2 \"b\"\n";
    let mut net = Net::new(&rdmux_subnet::Topology::parse(text).expect("a file"));
    let info = net.port_info(port(0, 1), &[1], 2);
    assert_eq!(info.local_port_num, 1);
    let changed = net.change(port(0, 1), &[1], 1, |info| info.lid = Lid(5));
    assert_eq!(changed.map(|(status, _)| status), Some(status::OK));
    let refused = net.dr(port(0, 1), &[1], &crate::net::set(PortInfo { lid: Lid(6), ..info }, 2));
    assert_eq!(refused.map(|smp| smp.status()), Some(status::INVALID_VALUE));
    assert_eq!(net.subnet.port(port(1, 2)).expect("a port").lid(), Lid::NONE);
}

#[test]
fn lids_must_be_unicast_and_aligned_to_the_lmc() {
    let mut net = star();
    let mut lid = |lid, lmc| {
        let set = net.change(HERE, &[], 1, |info| (info.lid, info.lmc) = (Lid(lid), lmc));
        let (status, info) = set.expect("an answer");
        (status, info.lid.0, info.lmc)
    };
    assert_eq!(lid(8, 3), (status::OK, 8, 3));
    assert_eq!(lid(0xc000, 0), (status::INVALID_VALUE, 8, 3));
    assert_eq!(lid(0xffff, 0), (status::INVALID_VALUE, 8, 3));
    assert_eq!(lid(0, 0), (status::INVALID_VALUE, 8, 3));
    assert_eq!(lid(9, 1), (status::INVALID_VALUE, 8, 3));
    assert_eq!(lid(9, 0), (status::OK, 9, 0));
    let sm = net.change(HERE, &[], 1, |info| info.sm_lid = Lid(0xc001)).expect("an answer");
    assert_eq!((sm.0, sm.1.sm_lid), (status::INVALID_VALUE, Lid::NONE));
    let base = net.change(HERE, &[1], 0, |info| (info.lid, info.lmc) = (Lid(16), 1));
    assert_eq!(base.expect("an answer").0, status::INVALID_VALUE, "port 0 has one LID");
}

#[test]
fn port_info_set_raises_an_event_for_each_change_and_none_otherwise() {
    let mut net = star();
    let (status, info) = net
        .change(port(1, 1), &[], 1, |info| {
            (info.lid, info.sm_lid, info.master_smsl) = (Lid(3), Lid(4), 2);
            info.client_reregister = true;
        })
        .expect("an answer");
    assert_eq!(status, status::OK);
    assert!(info.client_reregister, "echoed");
    let events: Vec<_> = net.take_events().into_iter().map(|(_, event)| event).collect();
    assert_eq!(events, [PortEvent::LidChange, PortEvent::SmChange, PortEvent::ClientReregister]);
    assert!(!net.port_info(HERE, &[], 1).client_reregister, "in that answer only");
    net.change(HERE, &[], 1, |info| info.gid_prefix = 0xfec0_0000_0000_0001).expect("an answer");
    assert_eq!(net.take_events(), [(HERE, PortEvent::GidChange)]);
    net.change(HERE, &[], 1, |_| ()).expect("an answer");
    assert_eq!(net.take_events(), [], "nothing has changed");
}

#[test]
fn violation_counters_are_cleared_by_zero_only() {
    let mut net = star();
    let mut keys = net.port_info(HERE, &[], 1);
    keys.mkey = rdmux_wire::Mkey(7);
    net.set(
        HERE,
        &[],
        PortInfo {
            port_state: Default::default(),
            port_physical_state: Default::default(),
            ..keys
        },
        1,
    );
    assert_eq!(net.dr(HERE, &[], &crate::net::set(keys, 1)), None, "a wrong key");
    let mut info = net.port_info(HERE, &[], 1);
    assert_eq!(info.mkey_violations, 1);
    let mut write = |count| {
        (info.mkey_violations, info.port_state, info.port_physical_state) =
            (count, Default::default(), Default::default());
        let mut smp = crate::net::set(info, 1);
        smp.mkey = rdmux_wire::Mkey(7);
        net.dr(HERE, &[], &smp).expect("an answer");
        net.port_info(HERE, &[], 1).mkey_violations
    };
    assert_eq!(write(5), 1);
    assert_eq!(write(0), 0);
}

#[test]
fn port_info_set_beyond_capabilities_is_invalid_value_and_the_rest_applies() {
    let mut net = star();
    type Change = fn(&mut PortInfo);
    let cases: [(&str, Change); 5] = [
        ("MTU", |i| i.neighbor_mtu = 6),
        ("lanes", |i| i.operational_vls = VlCap::VL0_14),
        ("width", |i| i.link_width_enabled = LinkWidth::X12),
        ("default", |i| i.link_down_default_state.0 = 7),
        ("speed", |i| i.link_speed_enabled = rdmux_wire::sm::LinkSpeed::from_bits_retain(8)),
    ];
    for (what, wrong) in cases {
        let (status, info) = net
            .change(HERE, &[1], 2, |info| {
                info.hoq_life = 7;
                wrong(info);
            })
            .expect("an answer");
        assert_eq!((status, info.hoq_life), (status::INVALID_VALUE, 7), "{what}");
        net.change(HERE, &[1], 2, |info| info.hoq_life = 0).expect("an answer");
    }
    let (status, info) = net
        .change(HERE, &[1], 2, |info| {
            info.neighbor_mtu = Mtu::M2048.code();
            info.operational_vls = VlCap::VL0_3;
            info.link_width_enabled = LinkWidth::X1;
        })
        .expect("an answer");
    assert_eq!((status, info.neighbor_mtu, info.operational_vls), (status::OK, 4, VlCap::VL0_3));
    let (_, info) = net
        .change(HERE, &[1], 2, |i| i.link_width_enabled = LinkWidth::from_bits_retain(0xff))
        .expect("an answer");
    assert_eq!(info.link_width_enabled, info.link_width_supported);
}

#[test]
fn lid_sm_lid_and_mkey_of_an_external_switch_port_cannot_be_set() {
    let mut net = star();
    let (status, info) = net
        .change(HERE, &[1], 2, |info| (info.lid, info.sm_lid, info.mkey.0) = (Lid(9), Lid(9), 9))
        .expect("an answer");
    assert_eq!((status, info.lid, info.sm_lid, info.mkey.0), (status::OK, Lid(0), Lid(0), 0));
}

#[test]
fn other_methods_have_no_answer() {
    let mut net = star();
    for method in [Method::SEND, Method::REPORT, Method::TRAP_REPRESS, Method::GET_TABLE] {
        let mut smp = get(PortInfo::ATTR_ID, 1);
        smp.header.method = method;
        assert_eq!(net.dr(HERE, &[1], &smp), None, "{method}");
    }
}
