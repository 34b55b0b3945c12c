//! ACM: every value survives a round trip, in both directions, and no bytes make a decoder panic.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use rdmux_wire::acm::client::{
    Answer, Endpoint, EndpointInfo, Frame, Header, MAX_LEN, Op, PathData, PathFlags, Paths, Query,
    Refusal, Reply, Request, STATISTIC_LEN, Status, Subject,
};
use rdmux_wire::acm::{
    ADDRESS_LEN, Address, AddressType, Datagram, Group, Groups, Name, Response, datagram,
};
use rdmux_wire::sa::{PathRecord, Rate};
use rdmux_wire::{Gid, Lid, Mtu, Pkey};

fn address() -> impl Strategy<Value = Address> {
    prop_oneof![
        vec(1..=u8::MAX, 1..=Name::MAX).prop_map(|name| Address::name(name).expect("no zero")),
        any::<[u8; 4]>().prop_map(|ip| Ipv4Addr::from(ip).into()),
        any::<[u8; 16]>().prop_map(|ip| Ipv6Addr::from(ip).into()),
        any::<[u8; 16]>().prop_map(|gid| Gid(gid).into()),
        any::<u16>().prop_map(|lid| Lid(lid).into()),
    ]
}

fn groups() -> impl Strategy<Value = Groups> {
    vec(any::<[u8; 16]>().prop_map(Gid), 0..=6).prop_map(|gids| gids.into_iter().collect())
}

fn datagrams() -> impl Strategy<Value = Datagram> {
    let request =
        (any::<u64>(), address(), address(), groups()).prop_map(|(tid, source, dest, groups)| {
            Datagram::Request(datagram::Request { tid, source, dest, groups })
        });
    let one = any::<[u8; 16]>().prop_map(|gid| Groups::from_iter([Gid(gid)]));
    let good = (any::<u64>(), one).prop_map(|(tid, groups)| Response { tid, status: 0, groups });
    let bad = (any::<u64>(), 1..=u16::MAX, groups());
    let bad = bad.prop_map(|(tid, status, groups)| Response { tid, status, groups });
    prop_oneof![request, prop_oneof![good, bad].prop_map(Datagram::Response)]
}

fn path() -> impl Strategy<Value = PathRecord> {
    any::<[u8; PathRecord::LEN]>().prop_map(|bytes| PathRecord::from_bytes(&bytes))
}

/// A path whose end is known.
fn path_to() -> impl Strategy<Value = PathRecord> {
    (path(), 1..=u16::MAX).prop_map(|(path, dlid)| PathRecord { dlid: Lid(dlid), ..path })
}

fn queries() -> impl Strategy<Value = Query> {
    prop_oneof![
        (proptest::option::of(address()), address(), any::<bool>())
            .prop_map(|(source, dest, cached_only)| Query::Resolve { source, dest, cached_only }),
        (path_to(), any::<bool>())
            .prop_map(|(path, cached_only)| Query::ResolvePath { path, cached_only }),
        path().prop_map(|path| Query::QuerySa { path }),
        Just(Query::Counters(Subject::Service)),
        (1..=u8::MAX).prop_map(|index| Query::Counters(Subject::Index(index))),
        address().prop_map(|address| Query::Counters(Subject::Address(address))),
        (1..=u8::MAX, any::<u8>()).prop_map(|(index, port)| Query::Endpoint { index, port }),
        proptest::option::of(address()).prop_map(Query::Flush),
        Just(Query::Statistics),
    ]
}

fn requests() -> impl Strategy<Value = Request> {
    (any::<u64>(), queries()).prop_map(|(tid, query)| Request { tid, query })
}

fn paths() -> impl Strategy<Value = Paths> {
    let one = (any::<u32>(), path())
        .prop_map(|(flags, path)| PathData { flags: PathFlags::from_bits_retain(flags), path });
    let source = proptest::option::of(address());
    (vec(one, 1..=7), source)
        .prop_map(|(paths, source)| Paths { paths: paths.into_iter().collect(), source })
}

/// Writes a reply, parses it again, and returns whether it is the same.
fn survives(answer: Answer<'_>) -> bool {
    let reply = Reply { tid: 0x0102, answer };
    let mut bytes = vec![0xee; reply.wire_len()];
    reply.emit(&mut bytes);
    Frame::of_reply(&bytes) == Ok(Frame::Whole(bytes.len())) && Reply::parse(&bytes) == Ok(reply)
}

proptest! {
    #[test]
    fn addresses(address in address()) {
        prop_assert_eq!(Address::from_field(address.kind(), &address.to_field()), Ok(address));
        prop_assert!(!address.to_string().contains(char::is_control));
    }

    #[test]
    fn random_acm_address_field_round_trips_or_is_refused(kind in 0..8_u16, bytes: [u8; ADDRESS_LEN]) {
        let kind = AddressType(kind);
        if let Ok(address) = Address::from_field(kind, &bytes) {
            prop_assert_eq!(address.kind(), kind);
            prop_assert_eq!(Address::from_field(kind, &address.to_field()), Ok(address));
        }
    }

    #[test]
    fn acm_datagrams_round_trip(datagram in datagrams()) {
        let bytes = datagram.to_bytes();
        prop_assert!(datagram::is_acm(&bytes));
        prop_assert!(!datagram.to_string().is_empty());
        prop_assert_eq!(Datagram::parse(&bytes), Ok(datagram));
    }

    #[test]
    fn mutated_acm_datagrams_round_trip_or_are_refused(datagram in datagrams(), changes in vec((0..256_usize, any::<u8>()), 0..8)) {
        let mut bytes = datagram.to_bytes();
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        if let Ok(read) = Datagram::parse(&bytes) {
            prop_assert_eq!(Datagram::parse(&read.to_bytes()), Ok(read));
        }
    }

    #[test]
    fn acm_group_mgids_round_trip(pkey: u16, tos: u8, rate in 0..64_u8, mtu in 1..=5_u8) {
        let mtu = Mtu::from_code(mtu).expect("a code");
        let group = Group { pkey: Pkey(pkey | 0x8000), tos, rate: Rate(rate), mtu };
        prop_assert_eq!(Group::from_gid(group.gid()), Some(group));
    }

    #[test]
    fn random_gid_is_an_acm_group_with_that_mgid_or_none(gid: [u8; 16]) {
        let gid = Gid(gid);
        prop_assert!(Group::from_gid(gid).is_none_or(|group| group.gid() == gid));
    }

    #[test]
    fn acm_requests_round_trip(request in requests()) {
        let bytes = request.to_bytes();
        prop_assert_eq!(Frame::of_request(&bytes), Ok(Frame::Whole(bytes.len())));
        prop_assert_eq!(Request::parse(&bytes), Ok(request));
    }

    #[test]
    fn acm_requests_are_split_from_a_stream_with_any_chunking(all in vec(requests(), 1..6), cuts in vec(1..90_usize, 1..99)) {
        let stream: Vec<u8> = all.iter().flat_map(Request::to_bytes).collect();
        let (mut have, mut found, mut rest) = (Vec::new(), Vec::new(), &stream[..]);
        for cut in cuts.into_iter().cycle() {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            have.extend_from_slice(now);
            rest = later;
            while let Ok(Frame::Whole(len)) = Frame::of_request(&have) {
                found.push(Request::parse(&have[..len]).expect("a request"));
                have.drain(..len);
            }
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(found, all);
        prop_assert!(have.is_empty());
    }

    #[test]
    fn mutated_acm_requests_round_trip_or_are_refused(request in requests(), changes in vec((0..160_usize, any::<u8>()), 0..6)) {
        let mut bytes = request.to_bytes();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        match Request::parse(&bytes) {
            Ok(read) => prop_assert_eq!(Request::parse(&read.to_bytes()), Ok(read)),
            Err(Refusal::Answer(header)) => {
                prop_assert_eq!(usize::from(header.length), Header::LEN);
                prop_assert!(!header.status.is_success());
            }
            Err(Refusal::Close(_)) => {}
        }
    }

    #[test]
    fn acm_path_replies_round_trip(paths in paths()) {
        prop_assert!(survives(Answer::Paths(paths)));
    }

    #[test]
    fn acm_failure_flush_and_counter_replies_round_trip(
        op in prop_oneof![1..=3_u8, 8..=9_u8], status in 1..=u8::MAX, count: u64, counters in vec(any::<u64>(), 0..=72),
    ) {
        prop_assert!(survives(Answer::Failed(Op(op), Status(status))));
        prop_assert!(survives(Answer::Flushed(count)));
        prop_assert!(survives(Answer::Counters(counters.into_iter().collect())));
    }

    #[test]
    fn acm_endpoint_and_statistics_replies_round_trip(
        info: [u8; EndpointInfo::LEN], fields in vec(any::<[u8; 64]>(), 0..20), statistics in vec(any::<[u8; STATISTIC_LEN]>(), 0..20),
    ) {
        let addr_cnt = u16::try_from(fields.len()).expect("few");
        let info = EndpointInfo { addr_cnt, ..EndpointInfo::from_bytes(&info) };
        let endpoint = Endpoint { info, fields: &fields };
        prop_assert!(survives(Answer::Endpoint(endpoint)));
        prop_assert!(survives(Answer::Statistics(&statistics)));
    }

    #[test]
    fn random_acm_replies_round_trip_or_are_refused(bytes in vec(any::<u8>(), 0..700), op in prop_oneof![1..=3_u8, 8..=9_u8]) {
        let mut bytes = bytes;
        // A valid header, so that more than the header is tested.
        if bytes.len() >= Header::LEN {
            let length = u16::try_from(bytes.len()).expect("short");
            bytes[..Header::LEN].copy_from_slice(&Header { length, ..Header::new(Op(op), 1) }.to_bytes());
        }
        if let Ok(reply) = Reply::parse(&bytes) {
            let mut again = vec![0; reply.wire_len()];
            reply.emit(&mut again);
            prop_assert_eq!(Reply::parse(&again), Ok(reply));
        }
        if let Ok(Frame::Needs(needed) | Frame::Whole(needed)) = Frame::of_request(&bytes) {
            prop_assert!(needed <= MAX_LEN);
        }
    }
}
