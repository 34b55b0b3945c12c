//! The endpoints and names that follow from ports and the file of addresses.

use rdmux::{GidEntry, Guid, Lid, Mtu};
use rdmux_acm::Port;
use rdmux_wire::sa::Rate;

use super::*;

fn at(kind: DeviceKind, number: u8) -> At {
    At { kind, number }
}

fn seen(kind: DeviceKind, number: u8, is_active: bool, ips: &[&str]) -> (At, Seen) {
    let (port_kind, device) = match kind {
        DeviceKind::Ib => (PortKind::InfiniBand, "ib0"),
        DeviceKind::Roce => (PortKind::Roce, "roce0"),
        DeviceKind::Iwarp => (PortKind::Iwarp, "iw0"),
    };
    let pkeys = vec![Pkey(0xffff), Pkey(0), Pkey(0x0012)];
    let port = Port {
        kind: port_kind,
        is_active,
        device_guid: Guid(1),
        number,
        count: 2,
        lid: Lid(number.into()),
        lmc: 0,
        sm_lid: Lid(1),
        sm_sl: 0,
        gids: Vec::new(),
        pkeys: vec![Pkey(0xffff), Pkey(0x0012)],
        rate: Rate::GBPS_100,
        mtu: Mtu::M4096,
        subnet_timeout: 18,
    };
    let ip = |text: &&str| {
        let ip: std::net::IpAddr = text.parse().unwrap();
        GidEntry { gid: Gid::from(ip), ..GidEntry::empty() }
    };
    let addresses = ips.iter().map(ip).collect();
    (at(kind, number), Seen { port, device: device.to_owned(), pkeys, addresses })
}

fn assigned(name: &str, port: u8, pkey: PkeyChoice) -> Assignment {
    Assignment { address: Address::name(name).unwrap(), device: "ib0".to_owned(), port, pkey }
}

fn texts(addresses: &[Address]) -> Vec<String> {
    addresses.iter().map(Address::to_string).collect()
}

#[test]
fn names_are_generated_for_the_first_active_port_and_for_each_by_its_number() {
    let found = BTreeMap::from([
        seen(DeviceKind::Ib, 1, false, &[]),
        seen(DeviceKind::Ib, 2, true, &[]),
        seen(DeviceKind::Roce, 1, true, &[]),
    ]);
    let all: Vec<_> = generated(&found, "node")
        .iter()
        .map(|a| format!("{} {} {} {}", a.address, a.device, a.port, a.pkey))
        .collect();
    let right = [
        "node roce0 1 default",
        "node ib0 2 default",
        "node-1 ib0 1 default",
        "node-2 ib0 2 default",
    ];
    assert_eq!(all, right);
}

#[test]
fn endpoints_are_the_partitions_that_lines_name_and_that_of_the_addresses() {
    let found = BTreeMap::from([
        seen(DeviceKind::Ib, 1, true, &["10.0.0.1", "fd00::1"]),
        seen(DeviceKind::Ib, 2, true, &["10.0.0.1"]),
    ]);
    let lines = [
        assigned("a", 1, PkeyChoice::First),
        assigned("a", 1, PkeyChoice::Of(Pkey(0x8012))),
        assigned("b", 1, PkeyChoice::Of(Pkey(0x13))),
        assigned("c", 3, PkeyChoice::First),
    ];
    let wanted = wanted(&found, &lines);
    let all: Vec<_> = wanted.iter().map(|(k, v)| (k.0.number, k.1.0, texts(v))).collect();
    let texts = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    // The second port has no address of its own, and so no endpoint.
    assert_eq!(
        all,
        [(1, 0x0012, texts(&["a"])), (1, 0xffff, texts(&["a", "10.0.0.1", "fd00::1"]))]
    );
}

#[test]
fn same_ip_address_may_be_at_infiniband_and_roce_ports() {
    let found = BTreeMap::from([
        seen(DeviceKind::Ib, 1, true, &["10.0.0.1"]),
        seen(DeviceKind::Roce, 1, true, &["10.0.0.1"]),
    ]);
    assert_eq!(wanted(&found, &[]).len(), 2);
}

#[test]
fn roce_and_iwarp_endpoints_are_also_sources_by_gid() {
    let ip = Address::from(std::net::IpAddr::from([10, 0, 0, 1]));
    let gid = Address::Gid(std::net::Ipv4Addr::new(10, 0, 0, 1).into());
    let addresses = [Address::name("a").unwrap(), ip];
    assert_eq!(sources(DeviceKind::Ib, &addresses), addresses);
    for kind in [DeviceKind::Roce, DeviceKind::Iwarp] {
        assert_eq!(sources(kind, &addresses), [addresses[0], ip, gid]);
    }
}

#[test]
fn unused_address_lines_are_warnings_and_device_names_ignore_case() {
    let found = BTreeMap::from([
        seen(DeviceKind::Ib, 1, true, &[]),
        seen(DeviceKind::Ib, 2, true, &[]),
        seen(DeviceKind::Roce, 1, true, &[]),
    ]);
    let text =
        "a IB0 1 default\n\nb ib0 3 default\nc mlx5_0 1 default\nd ib0 2 0x13\ne ib0 1 0x12\n";
    let (file, _) = rdmux_acm_files::addresses::parse("", text.as_bytes(), true);
    let named: Vec<_> = wanted(&found, &file.all).into_values().map(|all| texts(&all)).collect();
    assert_eq!(named, [["e"], ["a"]]);
    let right = "\
f:3: warning: b is not used: ib0 has the ports 1 to 2, and no 3
f:4: warning: c is not used: there is no device mlx5_0 at this time, but ib0, roce0
f:5: warning: d is not used: ib0 port 2 is not in partition 0x0013 at this time; ibv_devinfo -v shows its P_Keys
";
    assert_eq!(unmet(&found, &file, Path::new("f")).to_string(), right);
    let none = unmet(&BTreeMap::new(), &file, Path::new("f"));
    assert_eq!(none.warnings(), 5);
    assert!(none.to_string().contains("no device IB0 at this time, but none"), "{none}");
}
