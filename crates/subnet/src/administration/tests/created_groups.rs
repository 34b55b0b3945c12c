//! Which groups programs can create.

use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask as Mask};
use rdmux_wire::{Gid, Qkey};

use super::groups::{CREATE, FULL, join, record};
use super::*;

fn mgid(text: &str) -> Gid {
    Gid::from(text.parse::<core::net::Ipv6Addr>().expect("an address"))
}

#[test]
fn group_with_reserved_flags_is_refused_unless_it_is_of_ipoib() {
    let mut net = Net::new("switch:3", 0);
    let invalid = Err(status::SA_REQUEST_INVALID);
    for (text, expected) in [
        ("ff02::16", Ok(())),
        ("ff12::16", Ok(())),
        ("ff22::16", invalid),
        ("ff42::16", invalid),
        ("ff92::16", invalid),
        ("fff2:a01b::16", invalid),
        ("ff92:401b:ffff::ffff:ffff", Ok(())),
        ("ff92:601b:ffff::16", Ok(())),
    ] {
        let wanted = record(&net, mgid(text), 2, FULL);
        assert_eq!(join(&mut net, CREATE, 2, &wanted).map(|_| ()), expected, "{text}");
    }
}

#[test]
fn ipoib_group_without_a_requested_hop_limit_has_the_broadcast_groups() {
    let mut net = Net::new("switch:3", 0);
    let text = "Default=0x7fff,ipoib,scope=5: ALL=full;";
    net.administration.set_partitions(Partitions::parse("p", text).unwrap());
    let wanted =
        McMemberRecord { qkey: Qkey(0x0b1b), ..record(&net, mgid("ff15:401b:ffff::16"), 2, FULL) };
    let invalid = Err(status::SA_REQUEST_INVALID);
    let refused = join(&mut net, CREATE | Mask::HOP_LIMIT, 2, &wanted);
    assert_eq!(refused, invalid, "the broadcast group's is 255");
    let created = join(&mut net, CREATE, 2, &wanted).expect("created");
    assert_eq!(created.hop_limit, 255);
    let own = McMemberRecord { hop_limit: 3, ..record(&net, mgid("ff15::16"), 2, FULL) };
    assert_eq!(join(&mut net, CREATE, 2, &own).expect("created").hop_limit, 0);
}
