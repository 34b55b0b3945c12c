//! Requests of one MAD: transaction IDs, addresses, timeouts.

use core::time::Duration;

use rdmux_wire::{Lid, Pkey, Qkey, Qpn};

use super::*;

/// Opens a server of performance management at B, and a client at A.
fn pair(net: &mut Net) -> (FileId, FileId) {
    (net.agent(B, gsi(PERF, &[GET])), net.agent(A, gsi(PERF, &[])))
}

#[test]
fn response_finds_the_agent_by_the_upper_half_of_its_tid() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let other = net.agent(A, gsi(PERF, &[]));
    let low = 0xdddd_dddd_0000_0007;
    for file in [client, other] {
        net.write(file, request(mad(PERF, GET, low), to(B))).unwrap();
    }
    net.deliver();
    let asked = [net.read(server).unwrap(), net.read(server).unwrap()];
    let tids = asked.each_ref().map(|m| tid(&m.data));
    assert_eq!(tids.map(|tid| tid & 0xffff_ffff), [7, 7]);
    assert_ne!(tids[0], tids[1]);
    // The answers arrive in reverse order.
    for asked in asked.iter().rev() {
        net.write(server, response(asked, mad(PERF, GET | RESPONSE, 0))).unwrap();
    }
    net.deliver();
    for (file, sent) in [(client, tids[0]), (other, tids[1])] {
        let answer = net.read(file).expect("an answer");
        assert_eq!((tid(&answer.data), answer.status, answer.data.len()), (sent, 0, 256));
        assert_eq!(answer.address, to_peer(B));
        assert_eq!((net.read(file), net.umad.outstanding(file)), (None, 0));
    }
    assert_eq!(net.umad.next_timeout(), None);
}

/// Returns the source address that a program reads for a packet from a port.
fn to_peer(port: PortId) -> UserAddress {
    UserAddress { qkey: Qkey(0), ..to(port) }
}

#[test]
fn responses_and_trap_repress_keep_their_tid() {
    let mut net = Net::new();
    let (_, client) = pair(&mut net);
    let foreign = 0x1122_3344_5566_7788;
    for method in [GET | RESPONSE, 0x07] {
        let sent = UserMad { timeout_ms: 0, ..request(mad(PERF, method, foreign), to(B)) };
        net.write(client, sent).unwrap();
        assert_eq!(tid(&net.on_the_way()[0].mad[..]), foreign);
    }
    assert_eq!(net.umad.outstanding(client), 0);
}

#[test]
fn request_without_a_response_is_sent_again_and_then_comes_back_as_24_bytes() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let asked = request(mad(PERF, GET, 5), to(B));
    net.write(client, asked.clone()).unwrap();
    for sent in 1..=3 {
        assert_eq!(net.read(client), None, "after {sent} of 3");
        assert_eq!(net.on_the_way().len(), 1);
        assert_eq!(net.umad.next_timeout(), Some(Time(1 + 100_000_000 * sent)));
        net.pass();
    }
    let record = net.read(client).expect("the request");
    assert_eq!((record.status, record.data.len()), (110, 24));
    assert_eq!((record.address, record.timeout_ms, record.retries), (asked.address, 100, 2));
    assert_eq!(tid(&record.data) & 0xffff_ffff, 5);
    assert_ne!(tid(&record.data), 5);
    assert!(net.on_the_way().is_empty() && !net.pass());
    // The TID is free again, and a late answer is dropped.
    net.write(client, asked).unwrap();
    let packet = net.on_the_way().remove(0);
    while net.pass() {}
    net.arrive(B, &packet);
    let asked = net.read(server).unwrap();
    net.write(server, response(&asked, mad(PERF, GET | RESPONSE, 0))).unwrap();
    net.read(client).expect("the request");
    net.on_the_way().iter().for_each(|late| net.arrive(A, late));
    assert_eq!(net.read(client), None);
}

#[test]
fn request_with_timeout_0_is_not_tracked_or_returned() {
    let mut net = Net::new();
    let (_, client) = pair(&mut net);
    let mut sent = request(mad(PERF, GET, 5), to(B));
    sent.timeout_ms = 0;
    net.write(client, sent).unwrap();
    assert_eq!((net.on_the_way().len(), net.umad.outstanding(client)), (1, 0));
    assert!(!net.pass());
}

#[test]
fn tid_that_is_outstanding_is_refused() {
    let mut net = Net::new();
    let client = net.agent(A, gsi(PERF, &[]));
    let other = net.agent(A, gsi(PERF, &[]));
    let asked = |class, tid| request(mad(class, GET, tid), to(B));
    net.write(client, asked(PERF, 5)).unwrap();
    assert_eq!(net.write(client, asked(PERF, 5)), Err(Errno::Inval));
    // The upper half is not available to the program.
    assert_eq!(net.write(client, asked(PERF, 5 | 7 << 32)), Err(Errno::Inval));
    net.write(client, asked(PERF, 6)).unwrap();
    net.write(client, asked(0x05, 5)).unwrap();
    net.write(other, asked(PERF, 5)).unwrap();
    // An answer that it sends with this TID is unrelated.
    let answer = UserMad { timeout_ms: 0, ..request(mad(PERF, GET | RESPONSE, 5), to(B)) };
    net.write(client, answer).unwrap();
    while net.pass() {}
    net.write(client, asked(PERF, 5)).unwrap();
}

#[test]
fn response_with_other_lid_class_tid_agent_or_port_is_dropped() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    net.write(client, request(mad(PERF, GET, 5), to(B))).unwrap();
    net.deliver();
    let asked = net.read(server).unwrap();
    net.write(server, response(&asked, mad(PERF, GET | RESPONSE, 0))).unwrap();
    let good = net.on_the_way().remove(0);
    let mut other_lid = good.clone();
    other_lid.slid = Lid(9);
    let mut other_class = good.clone();
    other_class.mad[1] = 0x05;
    let mut other_tid = good.clone();
    other_tid.mad[15] ^= 1;
    let mut other_agent = good.clone();
    other_agent.mad[11] ^= 3;
    let mut other_path = good.clone();
    other_path.dlid = Lid(5);
    for bad in [other_lid, other_class, other_tid, other_agent, other_path] {
        net.arrive(A, &bad);
        assert_eq!(net.read(client), None);
    }
    // Sending it to another port does not help.
    net.arrive(B, &good);
    assert_eq!((net.read(client), net.umad.counters().no_request), (None, 6));
    net.arrive(A, &good);
    net.arrive(A, &good);
    assert!(net.read(client).is_some() && net.read(client).is_none());
}

#[test]
fn file_closed_with_requests_outstanding_leaves_nothing() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    for tid in 0..10 {
        net.write(client, request(mad(PERF, GET, tid), to(B))).unwrap();
    }
    net.deliver();
    let asked = net.read(server).unwrap();
    net.close(client);
    assert_eq!((net.umad.next_timeout(), net.umad.outstanding(client)), (None, 0));
    net.write(server, response(&asked, mad(PERF, GET | RESPONSE, 0))).unwrap();
    net.deliver();
    assert_eq!(net.read(client), None);
    // The next agent of this port gets another number, and no answers to its predecessor.
    let next = net.agent(A, gsi(PERF, &[]));
    net.write(next, request(mad(PERF, GET, 0), to(B))).unwrap();
    net.write(server, response(&asked, mad(PERF, GET | RESPONSE, 0))).unwrap();
    net.deliver();
    assert_eq!(net.read(next), None);
}

#[test]
fn invalid_umad_writes_are_refused_with_errno_and_short_mad_is_padded() {
    let mut net = Net::new();
    let (_, client) = pair(&mut net);
    let good = request(mad(PERF, GET, 1), to(B));
    let cases = [
        (UserMad { data: good.data[..35].to_vec(), ..good.clone() }, Errno::Inval),
        (UserMad { data: vec![1; 257], ..good.clone() }, Errno::Inval),
        (UserMad { agent: 32, ..good.clone() }, Errno::Inval),
        (UserMad { agent: u32::MAX, ..good.clone() }, Errno::Inval),
        (UserMad { agent: 1, ..good.clone() }, Errno::Io),
        (UserMad { address: UserAddress { pkey_index: 2, ..to(B) }, ..good.clone() }, Errno::Inval),
    ];
    for (bad, error) in cases {
        assert_eq!(net.write(client, bad), Err(error));
    }
    let mut grh = by_gid(B);
    grh.grh.as_mut().unwrap().gid_index = 2;
    assert_eq!(net.write(client, UserMad { address: grh, ..good.clone() }), Err(Errno::Inval));
    assert_eq!(net.write(FileId(99), good.clone()), Err(Errno::BadF));
    // A port without LIDs is reachable by GID only.
    let roce = net.agent(C, gsi(PERF, &[]));
    assert_eq!(net.write(roce, UserMad { address: to(D), ..good.clone() }), Err(Errno::Inval));
    assert!(net.on_the_way().is_empty());
    // A short MAD is padded.
    net.write(client, UserMad { data: good.data[..36].to_vec(), ..good }).unwrap();
    assert_eq!(net.on_the_way()[0].mad[36..], [0; 220]);
}

#[test]
fn umad_address_is_in_the_packet_headers_and_in_the_receivers_record() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let address = UserAddress { lid: Lid(10), sl: 5, path_bits: 3, pkey_index: 1, ..by_gid(B) };
    net.write(client, request(mad(PERF, GET, 1), address)).unwrap();
    let packet = net.out.sent[0].1.clone();
    assert_eq!((packet.slid, packet.dlid, packet.sl), (Lid(7), Lid(10), 5));
    assert_eq!((packet.pkey, packet.qkey), (Pkey(0x8001), Qkey::QP1));
    assert_eq!((packet.src_qpn, packet.dst_qpn), (Qpn::QP1, Qpn::QP1));
    let grh = packet.grh.expect("a GRH");
    assert_eq!((grh.hop_limit, grh.tclass, grh.flow_label), (9, 3, 0x1_2345));
    assert_eq!((Some(grh.sgid), Some(grh.dgid)), (Tables.gid(A, 1), Tables.gid(B, 1)));
    assert_eq!((grh.pay_len, grh.next_hdr), (280, 0x1b));
    net.deliver();
    let asked = net.read(server).unwrap();
    let told = asked.address;
    assert_eq!((told.lid, told.sl, told.path_bits, told.pkey_index), (Lid(7), 5, 2, 1));
    let grh = told.grh.expect("a GRH");
    assert_eq!((Some(grh.gid), grh.gid_index), (Tables.gid(A, 1), 1));
    assert_eq!((grh.hop_limit, grh.traffic_class, grh.flow_label), (9, 3, 0x1_2345));
    // The address of the record that was read is that of the answer.
    net.write(server, response(&asked, mad(PERF, GET | RESPONSE, 0))).unwrap();
    net.deliver();
    assert!(net.read(client).is_some());
}

#[test]
fn umad_request_and_response_by_gid_work_without_lids() {
    let mut net = Net::new();
    let server = net.agent(D, gsi(PERF, &[GET]));
    let client = net.agent(C, gsi(PERF, &[]));
    net.write(client, request(mad(PERF, GET, 1), by_gid(D))).unwrap();
    net.deliver();
    let asked = net.read(server).unwrap();
    assert_eq!((asked.address.lid, asked.address.path_bits), (Lid(0), 0));
    net.write(server, response(&asked, mad(PERF, GET | RESPONSE, 0))).unwrap();
    let mut foreign = net.out.sent[0].1.clone();
    foreign.grh.as_mut().unwrap().sgid = Tables.gid(D, 0).unwrap();
    net.arrive(C, &foreign);
    assert_eq!(net.read(client), None);
    net.deliver();
    assert!(net.read(client).is_some());
}

#[test]
fn outstanding_requests_are_limited_and_timers_are_fair_between_files() {
    let config = Config { outstanding: 10_000, ..Config::default() };
    let mut net = Net::with(config);
    let (greedy, modest) = (net.agent(A, gsi(PERF, &[])), net.agent(A, gsi(PERF, &[])));
    for tid in 0..10_000 {
        net.write(greedy, request(mad(PERF, GET, tid), to(B))).unwrap();
    }
    let more = request(mad(PERF, GET, 10_000), to(B));
    assert_eq!(net.write(greedy, more.clone()), Err(Errno::NoMem));
    net.write(modest, more).unwrap();
    net.on_the_way();
    // All timers are due at once. The first call handles few, and one of them is not the greedy file's.
    net.pass();
    let sent = net.on_the_way();
    assert_eq!(sent.len(), config.timers_per_call);
    let owner = |tid: u64| tid >> 32;
    let greedy_number = owner(tid(&sent[0].mad[..]));
    assert!(sent.iter().any(|packet| owner(tid(&packet.mad[..])) != greedy_number));
    // The rest is still due.
    assert_eq!(net.umad.next_timeout(), Some(net.now));
    while net.pass() {
        net.out.sent.clear();
    }
    assert_eq!(net.out.read[&greedy].len(), 10_000);
    assert_eq!(net.out.read[&modest].len(), 1);
    assert!(net.now < Time(1).after(Duration::from_secs(1)));
}

#[test]
fn directed_route_that_does_not_leave_by_the_own_port_is_einval() {
    let mut net = Net::new();
    let smi = Registration { qpn: 0, class: 0x81, class_version: 1, ..Registration::default() };
    let file = net.agent(A, smi);
    let address = UserAddress { qpn: Qpn::QP0, lid: Lid(0xffff), ..UserAddress::default() };
    let route = |port: u8| {
        let mut mad = mad(0x81, GET, port.into());
        mad[7] = 1;
        mad[32..36].fill(0xff);
        mad[129] = port;
        request(mad, address)
    };
    assert_eq!(net.write(file, route(2)), Err(Errno::Inval));
    assert!(net.on_the_way().is_empty() && net.umad.outstanding(file) == 0);
    assert_eq!(net.write(file, route(1)), Ok(()));
    assert_eq!(net.on_the_way().len(), 1);
}
