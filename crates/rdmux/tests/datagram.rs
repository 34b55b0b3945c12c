//! Datagrams, from the outside.

mod common;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use common::{on, over_every_link};
use rdmux::cm::{GroupWish, JoinFlags, JoinState, McMemberRecord, McMemberRecordMask};
use rdmux::{Cause, Context, Datagram, Gid, Qkey};

const TIMEOUT: Duration = Duration::from_secs(10);

fn endpoint(context: &Context) -> Datagram {
    on(context).datagram((context.address().unwrap(), 0).into()).unwrap()
}

#[test]
fn a_peer_is_found_by_address_and_answers_to_the_sender() {
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
fn more_than_a_packet_is_refused() {
    over_every_link(|a, b| {
        let (mut left, right) = (endpoint(a), endpoint(b));
        let peer = left.resolve(right.local_addr()).unwrap();
        let error = left.send_to(&peer, &vec![0; left.max_len() + 1]).unwrap_err();
        assert!(matches!(error.cause(), Cause::TooLong { .. }), "{error}");
    });
}

#[test]
fn nobody_at_an_address_is_an_error() {
    over_every_link(|a, b| {
        let error = endpoint(a).resolve((b.address().unwrap(), 1).into()).unwrap_err();
        assert!(matches!(error.cause(), Cause::Rejected { reason: 1, .. }), "{error}");
        assert_eq!(error.cause().kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains("no such service"), "{error}");
    });
}

#[test]
fn a_group_reaches_its_members_until_they_leave() {
    // A group of this test's own: others may run at the same time on this machine.
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
        // What is sent to the endpoint itself comes after what was sent to the group before.
        let peer = left.resolve(right.local_addr()).unwrap();
        left.send_to(&peer, b"you").unwrap();
        assert_eq!(right.recv_timeout(TIMEOUT).unwrap().0, b"you");
    });
}

#[test]
fn groups_by_record_are_sent_to_by_address() {
    let [high, low, ..] = std::process::id().to_be_bytes()[2..] else { unreachable!() };
    let group = Ipv4Addr::new(239, 78, high, low);
    over_every_link(|a, b| {
        let (mut left, mut right) = (endpoint(a), endpoint(b));
        if !a.gids().iter().any(|entry| entry.gid == a.address().unwrap().into()) {
            // On InfiniBand the group has another GID, which administration is asked for.
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
        // The sender is a member that hears nothing, and names the group by its GID.
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
