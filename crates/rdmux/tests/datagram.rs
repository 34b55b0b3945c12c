//! Datagrams, through the public API.

mod common;

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use common::{infiniband, lose_groups, on, over_every_link, over_roce};
use rdmux::cm::{GroupWish, JoinFlags, JoinState, McMemberRecord, McMemberRecordMask};
use rdmux::{Ah, Cause, Context, Datagram, Gid, Peer, Qkey};

const TIMEOUT: Duration = Duration::from_secs(10);

fn endpoint(context: &Context) -> Datagram {
    on(context).datagram((context.address().unwrap(), 0).into()).unwrap()
}

#[test]
fn datagram_peer_resolved_by_address_can_reply_to_the_sender() {
    over_every_link(|a, b| {
        let (mut left, mut right) = (endpoint(a), endpoint(b));
        let peer = left.resolve(right.local_addr()).unwrap();
        for len in [0, 1, 1000, left.max_len()] {
            left.send_to(&peer, &vec![7; len]).unwrap();
            let (message, from) = right.recv_timeout(TIMEOUT).unwrap();
            assert_eq!(message, vec![7; len]);
            right.send_to(&from, b"answer").unwrap();
            assert_eq!(left.recv_timeout(TIMEOUT).unwrap().0, b"answer");
        }
    });
}

#[test]
fn unroutable_datagram_fails_its_send_and_endpoint_stays_usable() {
    over_roce(|a, b| {
        let (mut left, mut right) = (endpoint(a), endpoint(b));
        let peer = left.resolve(right.local_addr()).unwrap();
        // From an IPv4 address to an IPv6 one.
        let nowhere = Peer { ah: Ah::to_ip(Ipv6Addr::LOCALHOST.into(), 0), ..peer };
        for _ in 0..2 {
            let error = left.send_to(&nowhere, b"lost").unwrap_err();
            assert!(matches!(error.cause(), Cause::Completion(_)), "{error}");
            left.send_to(&peer, b"hello").unwrap();
            assert_eq!(right.recv_timeout(TIMEOUT).unwrap().0, b"hello");
        }
    });
}

/// Returns a host with an address of each family and a private UDP port; none if the machine has no IPv6.
fn host_of_both_families() -> Option<Context> {
    let [high, low, ..] = std::process::id().wrapping_mul(0x9e37_79b1).to_be_bytes();
    // Another process may take the port before the host does.
    (0..8).find_map(|n| {
        let free = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).ok()?.local_addr().unwrap().port();
        let file = tempfile::NamedTempFile::new().unwrap();
        let addresses = format!("addresses = ['127.{}.{high}.{low}', '::1']\n", 140 + n);
        fs::write(&file, format!("{addresses}[service]\nport = {free}\n")).unwrap();
        Context::builder().embedded().config(file.path()).open().ok()
    })
}

#[test]
fn a_peer_that_sends_by_the_other_family_is_answered_by_it() {
    let Some(host) = host_of_both_families() else {
        eprintln!("this machine has no IPv6");
        return;
    };
    let (mut left, mut right) = (endpoint(&host), endpoint(&host));
    let peer = left.resolve(right.local_addr()).unwrap();
    assert!(peer.ah.ip().is_ipv4());
    let ip = IpAddr::from(Ipv6Addr::LOCALHOST);
    let by_ipv6 = Peer { ah: Ah::to_ip(ip, host.gid_index(ip).unwrap()), ..peer };
    for peer in [by_ipv6, peer] {
        left.send_to(&peer, b"hello").unwrap();
        let (_, from) = right.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(from.ah.ip(), peer.ah.ip());
        right.send_to(&from, b"answer").unwrap();
        assert_eq!(left.recv_timeout(TIMEOUT).unwrap().0, b"answer");
    }
}

#[test]
fn datagram_beyond_mtu_is_too_long() {
    over_every_link(|a, b| {
        let (mut left, right) = (endpoint(a), endpoint(b));
        let peer = left.resolve(right.local_addr()).unwrap();
        let error = left.send_to(&peer, &vec![0; left.max_len() + 1]).unwrap_err();
        assert!(matches!(error.cause(), Cause::TooLong { .. }), "{error}");
    });
}

#[test]
fn resolving_without_udp_listener_is_connection_refused() {
    over_every_link(|a, b| {
        let error = endpoint(a).resolve((b.address().unwrap(), 1).into()).unwrap_err();
        assert!(matches!(error.cause(), Cause::Rejected { reason: 1, .. }), "{error}");
        assert_eq!(error.cause().kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains("no such service"), "{error}");
    });
}

#[test]
fn a_group_reaches_its_members_until_they_leave() {
    // A group that only this test uses: other tests may run at the same time on this machine.
    let [high, low, ..] = std::process::id().to_be_bytes()[2..] else { unreachable!() };
    let group = IpAddr::from([239, 77, high, low]);
    over_every_link(|a, b| {
        let (mut left, mut right) = (endpoint(a), endpoint(b));
        right.join(group).unwrap();
        let members = left.join(group).unwrap();
        left.send_to(&members, b"all").unwrap();
        assert_eq!(right.recv_timeout(TIMEOUT).unwrap().0, b"all");
        right.leave(group).unwrap();
        left.send_to(&members, b"gone").unwrap();
        // A datagram sent to the endpoint itself arrives after one sent earlier to the group.
        let peer = left.resolve(right.local_addr()).unwrap();
        left.send_to(&peer, b"you").unwrap();
        assert_eq!(right.recv_timeout(TIMEOUT).unwrap().0, b"you");
    });
}

#[test]
fn groups_joined_by_mcmember_record_are_sent_to_by_address() {
    let [high, low, ..] = std::process::id().to_be_bytes()[2..] else { unreachable!() };
    let group = Ipv4Addr::new(239, 78, high, low);
    over_every_link(|a, b| {
        let (mut left, mut right) = (endpoint(a), endpoint(b));
        if !a.gids().iter().any(|entry| entry.gid == a.address().unwrap().into()) {
            // On InfiniBand the group has another GID, which subnet administration returns.
            right.join(group).unwrap();
            left.join_as(GroupWish::address(group, JoinFlags::SendOnlyFullMember)).unwrap();
            let told = left.group(group).unwrap();
            assert!(told.mlid.is_multicast(), "{told:?}");
            left.send_to_group(told.mgid, b"all").unwrap();
            assert_eq!(right.recv_timeout(TIMEOUT).unwrap().0, b"all");
            return;
        }
        let record = |join_state| McMemberRecord {
            mgid: Gid::from(group),
            tclass: 0x20,
            join_state,
            ..McMemberRecord::default()
        };
        let mask = McMemberRecordMask::MGID | McMemberRecordMask::JOIN_STATE;
        let wish = |join_state| GroupWish::Record {
            record: record(join_state),
            mask: mask | McMemberRecordMask::TCLASS,
        };
        right.join_as(wish(JoinState::FULL_MEMBER)).unwrap();
        // The sender is a send-only member, and names the group by its GID.
        left.join_as(wish(JoinState::SEND_ONLY_FULL_MEMBER)).unwrap();
        let told = left.group(Gid::from(group)).unwrap();
        assert_eq!((told.mgid, told.tclass, told.qkey), (group.into(), 0x20, Qkey::RDMA_UDP));
        left.send_to_group(Gid::from(group), b"all").unwrap();
        assert_eq!(right.recv_timeout(TIMEOUT).unwrap().0, b"all");
        let error = left.join_as(wish(JoinState::empty())).unwrap_err();
        assert!(error.to_string().contains("join_state"), "{error}");
        left.leave(Gid::from(group)).unwrap();
        left.send_to_group(Gid::from(group), b"gone").unwrap_err();
    });
}

#[test]
fn a_group_that_was_lost_can_be_joined_again() {
    let [a, b] = infiniband();
    let group = Ipv4Addr::new(239, 79, 1, 2);
    let (mut left, mut right) = (endpoint(&a), endpoint(&b));
    right.join(group).unwrap();
    lose_groups(&b);
    let until = Instant::now() + TIMEOUT;
    while right.group(group).is_ok() {
        assert!(Instant::now() < until, "the group is not lost");
        thread::yield_now();
    }
    right.join(group).unwrap();
    right.group(group).unwrap();
    left.join_as(GroupWish::address(group, JoinFlags::SendOnlyFullMember)).unwrap();
    // The switches may learn of the group after the members do.
    let until = Instant::now() + TIMEOUT;
    let got = loop {
        assert!(Instant::now() < until, "nothing comes");
        left.send_to_group(group, b"all").unwrap();
        if let Ok((message, _)) = right.recv_timeout(Duration::from_millis(1)) {
            break message;
        }
    };
    assert_eq!(got, b"all");
    right.leave(group).unwrap();
    right.leave(group).unwrap_err();
}

#[test]
fn a_group_that_is_joined_twice_is_heard_until_it_is_left_twice() {
    let [high, low, ..] = std::process::id().to_be_bytes()[2..] else { unreachable!() };
    let group = IpAddr::from([239, 80, high, low]);
    over_every_link(|a, b| {
        let (mut left, mut right) = (endpoint(a), endpoint(b));
        right.join(group).unwrap();
        right.join(group).unwrap();
        left.join(group).unwrap();
        right.leave(group).unwrap();
        left.send_to_group(group, b"all").unwrap();
        assert_eq!(right.recv_timeout(TIMEOUT).unwrap().0, b"all");
        right.leave(group).unwrap();
        right.leave(group).unwrap_err();
    });
}
