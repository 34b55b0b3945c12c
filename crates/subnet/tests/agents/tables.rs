//! The tables: GUIDs, P_Keys, service levels, arbitration, forwarding.

use rdmux_subnet::{NodeId, PortEvent};
use rdmux_wire::mad::status;
use rdmux_wire::sm::{
    Attribute, GuidInfo, LinearForwardingTable, MulticastForwardingTable, PkeyTable, SlToVlTable,
    SwitchInfo, Vl, VlArbEntry, VlArbitration,
};
use rdmux_wire::{Gid, Guid, Lid, Pkey};

use crate::net::{Net, get, port};

const HERE: rdmux_subnet::PortId = port(1, 1);

fn status_of(net: &mut Net, hops: &[u8], attribute: impl Into<Attribute>, modifier: u32) -> u16 {
    net.set(HERE, hops, attribute, modifier).expect("an answer").0
}

#[test]
fn the_first_guid_is_read_only_and_the_others_are_gids() {
    let mut net = Net::of("switch:2");
    let mut guids = GuidInfo { guids: [Guid(9); 8] };
    let (status, answer) = net.set(HERE, &[1, 2], guids, 0).expect("an answer");
    guids.guids[0] = net.subnet.port(port(2, 1)).expect("a port").guid();
    assert_eq!((status, answer), (status::OK, guids.into()));
    assert_eq!(net.take_events(), [(port(2, 1), PortEvent::GidChange)]);
    let (status, _) = net.set(HERE, &[1, 2], guids, 0).expect("an answer");
    assert_eq!((status, net.take_events().len()), (status::OK, 0), "nothing has changed");
    let far = net.subnet.port(port(2, 1)).expect("a port");
    assert_eq!(far.gid(7), Some(Gid::new(Gid::DEFAULT_PREFIX, Guid(9))));
    assert_eq!(far.gid(8), None);
    assert_eq!(status_of(&mut net, &[1, 2], guids, 3), status::OK);
    assert_eq!(status_of(&mut net, &[1, 2], guids, 4), status::INVALID_VALUE, "32 GUIDs");
    assert_eq!(status_of(&mut net, &[1, 2], guids, u32::MAX), status::INVALID_VALUE);
}

#[test]
fn pkey_table_modifier_selects_the_switch_port_and_block() {
    let mut net = Net::of("switch:2");
    let mut table = PkeyTable::default();
    table.pkeys[..3].copy_from_slice(&[Pkey(0xffff), Pkey(0), Pkey(0x8001)]);
    assert_eq!(status_of(&mut net, &[1, 2], table, 0), status::OK);
    assert_eq!(net.take_events(), [(port(2, 1), PortEvent::PkeyChange)]);
    let far = net.subnet.port(port(2, 1)).expect("a port");
    assert_eq!((far.pkey(1), far.pkey(2)), (None, Some(Pkey(0x8001))));
    assert_eq!(status_of(&mut net, &[1], table, 2 << 16), status::OK);
    assert_eq!(net.subnet.port(port(0, 2)).expect("a port").pkeys().len(), 3);
    assert_eq!(net.take_events(), [], "nobody is on an external port");
    assert_eq!(net.get(HERE, &[1], PkeyTable::ATTR_ID, 2 << 16), table.into());
    assert_eq!(status_of(&mut net, &[1], table, 1), status::OK, "the second block of port 0");
    for (hops, modifier) in
        [(&[1][..], 2), (&[1], 3 << 16), (&[1, 2], 2), (&[1, 2], 2 << 16), (&[1], 1 << 24)]
    {
        assert_eq!(
            status_of(&mut net, hops, table, modifier),
            status::INVALID_VALUE,
            "{modifier:#x}"
        );
    }
}

#[test]
fn service_levels_map_from_port_to_port() {
    let mut net = Net::of("switch:2");
    let table = SlToVlTable { vls: [Vl(3); 16] };
    assert_eq!(status_of(&mut net, &[1], table, 1 << 8 | 2), status::OK);
    assert_eq!(net.get(HERE, &[1], SlToVlTable::ATTR_ID, 1 << 8 | 2), table.into());
    let default: [Vl; 16] = core::array::from_fn(|sl| Vl(u8::try_from(sl % 8).expect("small")));
    let default = SlToVlTable { vls: default };
    assert_eq!(net.get(HERE, &[1], SlToVlTable::ATTR_ID, 2 << 8 | 1), default.into());
    assert_eq!(net.get(HERE, &[1, 2], SlToVlTable::ATTR_ID, 0), default.into());
    assert_eq!(status_of(&mut net, &[1, 2], table, 0), status::OK);
    assert_eq!(net.get(HERE, &[1, 2], SlToVlTable::ATTR_ID, 0), table.into());
    assert_eq!(net.get(HERE, &[1, 2], SlToVlTable::ATTR_ID, 1), table.into(), "the port's number");
    for (hops, modifier) in [(&[1][..], 3), (&[1], 3 << 8), (&[1, 2], 2), (&[1], 1 << 16)] {
        assert_eq!(
            status_of(&mut net, hops, table, modifier),
            status::INVALID_VALUE,
            "{modifier:#x}"
        );
    }
}

#[test]
fn arbitration_tables_have_as_many_entries_as_portinfo_says() {
    let mut net = Net::of("switch:2");
    let entry = VlArbEntry { reserved: 0, vl: 2, weight: 5 };
    let table = VlArbitration { entries: [entry; 32] };
    let (status, answer) = net.set(HERE, &[1], table, 1 << 16 | 2).expect("an answer");
    let Attribute::VlArbitration(kept) = answer else { panic!("{answer}") };
    assert_eq!(
        (status, kept.entries[7], kept.entries[8]),
        (status::OK, entry, VlArbEntry::default())
    );
    assert_eq!(
        net.get(HERE, &[1], VlArbitration::ATTR_ID, 3 << 16 | 2),
        VlArbitration::default().into()
    );
    assert_eq!(status_of(&mut net, &[1, 2], table, 3 << 16 | 1), status::OK);
    for (hops, modifier) in [
        (&[1][..], 2),
        (&[1], 2 << 16 | 1),
        (&[1], 5 << 16 | 1),
        (&[1], 1 << 16 | 3),
        (&[1, 2], 1 << 16 | 2),
    ] {
        assert_eq!(
            status_of(&mut net, hops, table, modifier),
            status::INVALID_VALUE,
            "{modifier:#x}"
        );
    }
}

#[test]
fn forwarding_tables_are_kept_and_bounded() {
    let mut net = Net::of("switch:2");
    let lft = LinearForwardingTable { ports: [2; 64] };
    let empty = LinearForwardingTable { ports: [255; 64] };
    assert_eq!(net.get(HERE, &[1], LinearForwardingTable::ATTR_ID, 767), empty.into());
    assert_eq!(status_of(&mut net, &[1], lft, 3), status::OK);
    assert_eq!(net.get(HERE, &[1], LinearForwardingTable::ATTR_ID, 3), lft.into());
    for block in [768, 0x8000_0000, u32::MAX] {
        assert_eq!(status_of(&mut net, &[1], lft, block), status::INVALID_VALUE);
    }
    let mft = MulticastForwardingTable { port_masks: [0b110; 32] };
    assert_eq!(status_of(&mut net, &[1], mft, 2), status::OK);
    assert_eq!(net.get(HERE, &[1], MulticastForwardingTable::ATTR_ID, 2), mft.into());
    assert_eq!(net.subnet.routes(NodeId(0), Lid(0xc040)), [1, 2]);
    for modifier in [32, 1 << 28, 1 << 12] {
        assert_eq!(
            status_of(&mut net, &[1], mft, modifier),
            status::INVALID_VALUE,
            "{modifier:#x}"
        );
    }
}

#[test]
fn the_top_of_the_linear_table_is_below_its_capacity() {
    let mut net = Net::of("switch:2");
    let Attribute::SwitchInfo(info) = net.get(HERE, &[1], SwitchInfo::ATTR_ID, 0) else { panic!() };
    let too_high = SwitchInfo { linear_fdb_top: Lid(0xc000), ..info };
    assert_eq!(status_of(&mut net, &[1], too_high, 0), status::INVALID_VALUE);
    let top = SwitchInfo { linear_fdb_top: Lid(0xbfff), linear_fdb_cap: 5, ..info };
    let (status, Attribute::SwitchInfo(now)) = net.set(HERE, &[1], top, 0).expect("an answer")
    else {
        panic!()
    };
    assert_eq!((status, now.linear_fdb_top, now.linear_fdb_cap), (status::OK, Lid(0xbfff), 0xc000));
    assert!(net.dr(HERE, &[1], &get(SwitchInfo::ATTR_ID, 0)).is_some());
}
