//! Which groups programs can create.

use rdmux_wire::Gid;

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
