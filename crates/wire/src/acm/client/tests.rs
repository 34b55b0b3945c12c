//! Messages byte for byte, and malformed messages.

use super::*;
use crate::acm::{Address, AddressType};
use crate::layout::Text;
use crate::sa::PathRecord;
use crate::{Gid, Guid, Lid, Pkey};

const TID: u64 = 0x0102_0304_0506_0708;
const TID_BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn name(name: &str) -> Address {
    Address::name(name).unwrap()
}

fn path() -> PathRecord {
    PathRecord { dlid: Lid(7), slid: Lid(3), dgid: Gid([2; 16]), ..PathRecord::default() }
}

/// Returns a header in wire format: opcode, status, the three bytes of data, length.
fn header(opcode: u8, status: u8, data: [u8; 3], length: u16) -> Vec<u8> {
    let length = if opcode & 0xf == 1 { length.to_ne_bytes() } else { length.to_be_bytes() };
    [&[1, opcode, status][..], &data, &length, &TID_BYTES].concat()
}

fn entry(flags: u32, kind: u16, info: &[u8]) -> Vec<u8> {
    let mut b = [&flags.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0, 0], info].concat();
    b.resize(ENTRY_LEN, 0);
    b
}

fn resolve(entries: &[Vec<u8>]) -> Vec<u8> {
    let body = entries.concat();
    let length = u16::try_from(16 + body.len()).unwrap();
    [header(1, 0, [0; 3], length), body].concat()
}

fn refused(bytes: &[u8]) -> Status {
    match Request::parse(bytes) {
        Err(Refusal::Answer(header)) => {
            assert_eq!((header.length, header.tid, header.ack), (16, TID, true));
            header.status
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn is_request(query: Query, right: &[u8]) {
    let request = Request { tid: TID, query };
    assert_eq!(request.to_bytes().as_slice(), right);
    assert_eq!(Request::parse(right), Ok(request));
}

#[track_caller]
fn is_reply(answer: Answer<'_>, right: &[u8]) {
    let reply = Reply { tid: TID, answer };
    let mut bytes = vec![0; reply.wire_len()];
    reply.emit(&mut bytes);
    assert_eq!(bytes, right);
    assert_eq!(Reply::parse(right), Ok(reply));
}

#[test]
fn one_path_shortcut_equals_the_emitted_reply() {
    let reply = Reply { tid: TID, answer: Answer::Paths(Paths::one(path(), None)) };
    let mut bytes = vec![0; reply.wire_len()];
    reply.emit(&mut bytes);
    assert_eq!(Reply::one_path(TID, &path()), bytes[..]);
}

#[test]
fn requests_have_the_bytes_of_the_protocol() {
    let dest = entry(2, 1, b"node2");
    let query = Query::Resolve { source: None, dest: name("node2"), cached_only: false };
    is_request(query, &resolve(std::slice::from_ref(&dest)));

    let source = Some(Address::Ip4([10, 0, 0, 1].into()));
    let query = Query::Resolve { source, dest: name("node2"), cached_only: true };
    let cached = entry(0x4000_0002, 1, b"node2");
    is_request(query, &resolve(&[entry(1, 2, &[10, 0, 0, 1]), cached]));

    let record = path().to_bytes();
    let query = Query::ResolvePath { path: path(), cached_only: false };
    is_request(query, &resolve(&[entry(0, 0x10, &record)]));
    let query = Query::QuerySa { path: path() };
    is_request(query, &resolve(&[entry(0x8000_0000, 0x10, &record)]));

    is_request(Query::Counters(Subject::Service), &header(2, 0, [0; 3], 16));
    is_request(Query::Counters(Subject::Index(3)), &header(2, 0, [0, 3, 0], 16));
    let query = Query::Counters(Subject::Address(name("me")));
    is_request(query, &[header(2, 0, [0; 3], 88), entry(1, 1, b"me")].concat());
    is_request(Query::Endpoint { index: 2, port: 1 }, &header(3, 0, [2, 1, 0], 16));
}

#[test]
fn replies_have_the_bytes_of_the_protocol() {
    let record = entry(0x2b, 0x10, &path().to_bytes());
    is_reply(Answer::Paths(Paths::one(path(), None)), &resolve(std::slice::from_ref(&record)));
    let paths = Paths::one(path(), Some(name("me")));
    is_reply(Answer::Paths(paths), &resolve(&[record, entry(1, 1, b"me")]));

    let counters: Counters = (1..=7).collect();
    let numbers: Vec<u8> = (1..=7_u64).flat_map(u64::to_be_bytes).collect();
    is_reply(Answer::Counters(counters), &[header(0x82, 0, [7, 0, 0], 72), numbers].concat());

    is_reply(Answer::Failed(Op::EP_QUERY, Status::INVALID), &header(0x83, 2, [0; 3], 16));
    is_reply(Answer::Failed(Op::RESOLVE, Status(0x83)), &header(0x81, 0x83, [0; 3], 16));
}

#[test]
fn flush_and_statistics_messages_round_trip() {
    is_request(Query::Flush(None), &header(8, 0, [0; 3], 16));
    let one = [header(8, 0, [0; 3], 88), entry(2, 1, b"node2")].concat();
    is_request(Query::Flush(Some(name("node2"))), &one);
    is_request(Query::Statistics, &header(9, 0, [0; 3], 16));
    let two = [header(8, 0, [0; 3], 160), vec![0; 144]].concat();
    assert_eq!(refused(&two), Status::INVALID);
    let endless = [header(8, 0, [0; 3], 88), entry(2, 1, &[b'x'; 64])].concat();
    assert_eq!(refused(&endless), Status::DEST_ADDRESS);
    assert_eq!(refused(&[header(9, 0, [0; 3], 17), vec![0]].concat()), Status::INVALID);

    let count = [header(0x88, 0, [0; 3], 24), vec![0, 0, 0, 0, 0, 0, 1, 2]].concat();
    is_reply(Answer::Flushed(0x102), &count);
    assert!(Reply::parse(&[header(0x88, 0, [0; 3], 20), vec![0; 4]].concat()).is_err());
    let statistics = [Statistic::new("claims", 5), Statistic::new("datagrams", 1)];
    let fields = statistics.map(|s| s.to_bytes());
    is_reply(
        Answer::Statistics(&fields),
        &[header(0x89, 0, [0; 3], 112), fields.concat()].concat(),
    );
    assert_eq!(Statistic::from_bytes(&fields[0]), statistics[0]);
    assert!(Reply::parse(&[header(0x89, 0, [0; 3], 17), vec![0]].concat()).is_err());
    let many = vec![fields[0]; 3000];
    let reply = Reply { tid: 1, answer: Answer::Statistics(&many) };
    let mut bytes = vec![0; reply.wire_len()];
    reply.emit(&mut bytes);
    let Ok(Reply { answer: Answer::Statistics(read), .. }) = Reply::parse(&bytes) else { panic!() };
    assert_eq!(read.len(), 1364);
}

#[test]
fn endpoints_have_the_bytes_of_the_protocol() {
    let info = EndpointInfo {
        dev_guid: Guid(0x0102_0304_0506_0708),
        port_num: 1,
        phys_port_cnt: 2,
        pkey: Pkey(0xffff),
        addr_cnt: 2,
        prov_name: Text::from("ibacmp"),
        ..EndpointInfo::default()
    };
    let fields = [Text::<64>::from("node1").0, Text::<64>::from("10.0.0.1").0];
    let endpoint = Endpoint { info, fields: &fields };
    let mut body = [&TID_BYTES[..], &[1, 2, 0, 0, 0xff, 0xff, 0, 2], b"ibacmp"].concat();
    body.resize(80, 0);
    let right = [header(0x83, 0, [0; 3], 224), body, fields.concat()].concat();
    is_reply(Answer::Endpoint(endpoint), &right);
    let mut addresses = endpoint.addresses();
    assert_eq!(addresses.next().unwrap().as_bytes(), b"node1");
    assert_eq!(addresses.len(), 1);
    // A count that differs from the number of addresses.
    let mut wrong = right.clone();
    wrong[16 + 15] = 3;
    assert!(Reply::parse(&wrong).is_err());
}

#[test]
fn endpoint_with_too_many_addresses_is_cut_to_what_fits() {
    let fields = vec![[b'x'; 64]; MAX_ENDPOINT_ADDRESSES + 5];
    let info = EndpointInfo { addr_cnt: 1022, ..EndpointInfo::default() };
    let reply = Reply { tid: 1, answer: Answer::Endpoint(Endpoint { info, fields: &fields }) };
    let mut bytes = vec![0; reply.wire_len()];
    reply.emit(&mut bytes);
    assert_eq!(bytes.len(), 65504);
    let Ok(Reply { answer: Answer::Endpoint(read), .. }) = Reply::parse(&bytes) else { panic!() };
    assert_eq!(read.fields.len(), 1022);
    assert_eq!(Frame::of_reply(&bytes), Ok(Frame::Whole(65504)));
    assert!(Frame::of_request(&bytes).is_err());
}

#[test]
fn eight_entries_with_several_destinations_are_refused() {
    let dest = entry(2, 1, b"node2");
    let all = vec![dest.clone(); 8];
    assert_eq!(resolve(&all).len(), MAX_LEN);
    assert_eq!(refused(&resolve(&all)), Status::DEST_ADDRESS);
    let mut one = vec![entry(0, 1, b"other"); 8];
    one[7] = dest;
    let query = Query::Resolve { source: None, dest: name("node2"), cached_only: false };
    assert_eq!(Request::parse(&resolve(&one)), Ok(Request { tid: TID, query }));
    // The reply has room for the chosen source, whatever the request's length was.
    let reply = Reply { tid: TID, answer: Answer::Paths(Paths::one(path(), Some(name("me")))) };
    assert_eq!(reply.wire_len(), 160);
}

#[test]
fn answer_with_eight_paths_and_a_source_fits_into_a_message() {
    let mut paths = Paths::one(path(), Some(name("me")));
    while !paths.paths.is_full() {
        paths.paths.push(paths.paths[0]);
    }
    let reply = Reply { tid: TID, answer: Answer::Paths(paths) };
    let mut bytes = [0; MAX_LEN];
    assert_eq!(reply.wire_len(), MAX_LEN);
    reply.emit(&mut bytes);
    let Ok(Reply { answer: Answer::Paths(read), .. }) = Reply::parse(&bytes) else { panic!() };
    assert_eq!((read.paths.len(), read.source), (7, Some(name("me"))));
}

#[test]
fn invalid_requests_are_answered_with_a_failure_status() {
    let (a, b) = (entry(1, 1, b"a"), entry(2, 1, b"b"));
    let both = |x: &[u8], y: &[u8]| refused(&resolve(&[x.to_vec(), y.to_vec()]));
    assert_eq!(refused(&resolve(&[])), Status::INVALID);
    assert_eq!(refused(&resolve(std::slice::from_ref(&a))), Status::DEST_ADDRESS);
    assert_eq!(both(&a, &a), Status::SOURCE_ADDRESS);
    assert_eq!(both(&b, &b), Status::DEST_ADDRESS);
    assert_eq!(both(&entry(1, 0, b"a"), &b), Status::SOURCE_TYPE);
    assert_eq!(both(&entry(1, 6, b"a"), &b), Status::SOURCE_TYPE);
    assert_eq!(both(&a, &entry(2, 0x10, b"b")), Status::DEST_TYPE);
    assert_eq!(refused(&resolve(&[entry(0, 0x10, &[0; 64])])), Status::DEST_ADDRESS);
    let query = entry(0x8000_0000, 0x10, &path().to_bytes());
    assert_eq!(both(&query, &b), Status::INVALID);
    // Half an entry.
    let half = [header(1, 0, [0; 3], 16 + 72 + 36), b.clone(), vec![0; 36]].concat();
    assert_eq!(refused(&half), Status::INVALID);
    assert_eq!(refused(&header(3, 0, [0, 1, 0], 16)), Status::INVALID);
    assert_eq!(refused(&[header(2, 0, [0; 3], 20), vec![0; 4]].concat()), Status::INVALID);
    let strange = [header(2, 0, [0; 3], 88), entry(1, 9, b"me")].concat();
    assert_eq!(refused(&strange), Status::SOURCE_TYPE);
}

#[test]
fn name_of_64_bytes_is_refused_in_every_place() {
    let endless = [b'x'; 64];
    let dest = entry(2, 1, b"b");
    assert_eq!(refused(&resolve(&[entry(2, 1, &endless)])), Status::DEST_ADDRESS);
    assert_eq!(refused(&resolve(&[entry(1, 1, &endless), dest])), Status::SOURCE_ADDRESS);
    let counters = [header(2, 0, [0; 3], 88), entry(1, 1, &endless)].concat();
    assert_eq!(refused(&counters), Status::SOURCE_ADDRESS);
    let record = entry(0x2b, 0x10, &path().to_bytes());
    assert!(Reply::parse(&resolve(&[record, entry(1, 1, &endless)])).is_err());
}

#[test]
fn messages_with_invalid_header_or_length_close_the_connection() {
    let good = resolve(&[entry(2, 1, b"b")]);
    for (at, value) in [(0, 0), (0, 2), (1, 0), (1, 4), (1, 0x8f), (6, 1), (7, 1)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert!(matches!(Request::parse(&bytes), Err(Refusal::Close(_))), "{value} at {at}");
    }
    for len in 0..good.len() {
        assert!(matches!(Request::parse(&good[..len]), Err(Refusal::Close(_))), "{len} bytes");
    }
}

#[test]
fn acm_client_stream_is_split_into_messages_by_length() {
    let mut stream = resolve(&[entry(2, 1, b"b")]);
    let len = stream.len();
    stream.extend(header(2, 0, [0; 3], 16));
    for have in 0..stream.len() {
        let needs = if have < 16 { 16 } else { len };
        let right = if have < len { Frame::Needs(needs) } else { Frame::Whole(len) };
        assert_eq!(Frame::of_request(&stream[..have]), Ok(right));
    }
    assert_eq!(Frame::of_request(&stream[len..]), Ok(Frame::Whole(16)));
    for length in [0, 15, 593, 0xffff] {
        assert!(Frame::of_request(&header(1, 0, [0; 3], length)).is_err(), "{length}");
    }
    assert!(Frame::of_reply(&header(0x82, 0, [0; 3], 593)).is_err());
}

#[test]
fn incomplete_replies_are_refused() {
    assert!(Reply::parse(&resolve(&[])).is_err(), "no path");
    assert!(Reply::parse(&resolve(&[entry(1, 1, b"me")])).is_err(), "a source only");
    let half = [header(1, 0, [0; 3], 52), vec![0; 36]].concat();
    assert!(Reply::parse(&half).is_err(), "half an entry");
    let nine = vec![entry(0x2b, 0x10, &path().to_bytes()); 9];
    assert!(Reply::parse(&resolve(&nine)).is_err(), "more entries than a message has");
    let few = [header(0x82, 0, [7, 0, 0], 24), vec![0; 8]].concat();
    assert!(Reply::parse(&few).is_err(), "one counter instead of seven");
    let many = [header(0x82, 0, [80, 0, 0], 656), vec![0; 640]].concat();
    assert!(Reply::parse(&many).is_err(), "more counters than a message has");
    assert!(Reply::parse(&header(0x83, 0, [0; 3], 16)).is_err(), "no endpoint");
}

#[test]
fn ack_bit_and_unknown_entries_of_an_answer_are_ignored() {
    let record = entry(0x2b, 0x10, &path().to_bytes());
    let strange = entry(0, 99, &[0xff; 64]);
    let mut bytes = resolve(&[record, strange]);
    let reply = Reply { tid: TID, answer: Answer::Paths(Paths::one(path(), None)) };
    assert_eq!(Reply::parse(&bytes).as_ref(), Ok(&reply));
    bytes[1] = 0x81;
    assert_eq!(Reply::parse(&bytes), Ok(reply));
}

#[test]
fn flags_and_types_are_those_of_libibverbs() {
    assert_eq!(PathFlags::BIDIRECTIONAL.bits(), 0x28);
    assert_eq!(PathFlags::RESOLVED.bits(), 0x2b);
    assert_eq!(AddressType::PATH.0, 0x10);
    assert_eq!(MAX_LEN, 592);
}
