//! Messages of several MADs, with the device on both sides.

use core::time::Duration;

use rdmux_wire::{Lid, Rmpp, RmppFlags, RmppStatus, RmppType};

use super::*;
use crate::rmpp;

/// Opens subnet administration at B, and a client at A.
fn pair(net: &mut Net) -> (FileId, FileId) {
    (net.agent(B, sa(&[GET, GET_TABLE, GET_MULTI])), net.agent(A, sa(&[])))
}

/// Lets the client request a table, and the server read the request.
fn ask(net: &mut Net, server: FileId, client: FileId) -> UserMad {
    let tid = net.umad.counters().sent;
    net.write(client, request(mad(SA, GET_TABLE, tid), to(B))).unwrap();
    net.deliver();
    net.read(server).expect("the request")
}

fn rmpp_of(packet: &MadPacket) -> Rmpp {
    Rmpp::of(&packet.mad)
}

#[test]
fn rmpp_table_of_any_length_arrives_complete() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    for records in [0, 1, 2, 3, 64, 10_000] {
        let asked = ask(&mut net, server, client);
        let table = long(GET_TABLE | RESPONSE, 0, records * 112);
        net.write(server, response(&asked, table.clone())).unwrap();
        net.deliver();
        let answer = net.read(client).expect("the table");
        assert_eq!((answer.status, answer.data.len()), (0, 56 + records * 112));
        assert_eq!(answer.data[36..], table[36..]);
        assert_eq!(answer.data[24..28], [1, 1, if records < 2 { 7 } else { 3 }, 0]);
        assert_eq!(tid(&answer.data), tid(&asked.data));
        assert_eq!((net.umad.outstanding(server), net.umad.outstanding(client)), (0, 0));
    }
    // Only the remembered transfers are left, and not for long.
    while net.pass() {
        assert!(net.on_the_way().is_empty());
    }
    assert!(net.now <= Time(1).after(rmpp::REMEMBERED));
}

#[test]
fn a_limited_member_gets_acknowledgements_with_the_key_of_a_full_one() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let asked = ask(&mut net, server, client);
    net.write(server, response(&asked, long(GET_TABLE | RESPONSE, 0, 1000))).unwrap();
    let mut segment = net.out.sent.front().expect("a segment").1.clone();
    segment.pkey = Pkey(0x7fff);
    net.out.sent.clear();
    net.arrive(A, &segment);
    let (_, ack) = net.out.sent.pop_front().expect("an acknowledgement");
    assert_eq!((rmpp_of(&ack).kind, ack.pkey), (RmppType::ACK, Pkey(0xffff)));
}

#[test]
fn lost_final_ack_does_not_give_the_program_a_second_table() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let asked = ask(&mut net, server, client);
    net.write(server, response(&asked, long(GET_TABLE | RESPONSE, 0, 1000))).unwrap();
    let mut lost = 0;
    net.deliver_if(|packet| {
        let rmpp = rmpp_of(packet);
        let last = rmpp.kind == RmppType::ACK && rmpp.segment == 5;
        lost += usize::from(last);
        usize::from(!last)
    });
    assert_eq!((lost, net.umad.outstanding(server)), (1, 1));
    assert!(net.read(client).is_some());
    // After two seconds, because the response has no timeout of its own.
    net.pass();
    assert_eq!(net.now, Time(1).after(rmpp::ACK_WAIT));
    net.deliver();
    assert_eq!((net.read(client), net.read(server), net.umad.outstanding(server)), (None, None, 0));
}

#[test]
fn unacknowledged_rmpp_response_is_returned_as_timed_out_and_aborted() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let asked = ask(&mut net, server, client);
    net.close(client);
    net.write(server, response(&asked, long(GET_TABLE | RESPONSE, 0, 1000))).unwrap();
    for _ in 0..3 {
        net.deliver();
        net.pass();
    }
    let record = net.read(server).expect("a failure");
    assert_eq!((record.status, record.data.len()), (UserMad::TIMED_OUT, 24));
    // The peer need not wait for the remaining segments.
    let abort = rmpp_of(&net.on_the_way()[0]);
    assert_eq!((abort.kind, abort.status), (RmppType::ABORT, RmppStatus::TOO_MANY_RETRIES));
}

#[test]
fn second_response_to_the_same_peer_is_refused_while_the_first_is_sent() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let asked = ask(&mut net, server, client);
    let table = response(&asked, long(GET_TABLE | RESPONSE, 0, 1000));
    net.write(server, table.clone()).unwrap();
    assert_eq!(net.write(server, table.clone()), Err(Errno::Inval));
    let address = UserAddress { lid: Lid(77), ..table.address };
    net.write(server, UserMad { address, ..table.clone() }).unwrap();
    net.deliver();
    // The table has arrived; a further one belongs to no transfer.
    net.write(server, table).unwrap();
}

#[test]
fn get_multi_turns_the_direction() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let question = long(GET_MULTI, 9, 1000);
    net.write(client, request(question.clone(), to(B))).unwrap();
    let mut turned = Vec::new();
    net.deliver_if(|packet| {
        let rmpp = rmpp_of(packet);
        if rmpp.kind == RmppType::ACK && rmpp.segment == 0 {
            turned.push((packet.mad[3], rmpp.length));
        }
        1
    });
    assert_eq!(turned, [(GET_MULTI, 1)]);
    let asked = net.read(server).expect("the request");
    assert_eq!(asked.data[36..], question[36..]);
    assert_eq!(net.umad.outstanding(client), 1);
    let table = long(GET_MULTI | RESPONSE, 0, 20_000);
    net.write(server, response(&asked, table.clone())).unwrap();
    assert_eq!(net.out.sent.len(), 1);
    net.deliver();
    assert_eq!(net.read(client).expect("the table").data[36..], table[36..]);
    assert_eq!((net.umad.outstanding(server), net.umad.outstanding(client)), (0, 0));
}

#[test]
fn get_multi_response_starts_with_the_window_of_the_direction_switch_ack() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    net.write(client, request(long(GET_MULTI, 9, 1000), to(B))).unwrap();
    let mut last = None;
    net.deliver_if(|packet| {
        let rmpp = rmpp_of(packet);
        let turn = rmpp.kind == RmppType::ACK && rmpp.segment == 0;
        if turn {
            last = Some(packet.clone());
        }
        usize::from(!turn)
    });
    let mut turn = last.expect("the turn");
    Rmpp { length: 5, ..rmpp_of(&turn) }.put(&mut turn.mad);
    net.arrive(B, &turn);
    let asked = net.read(server).expect("the request");
    net.write(server, response(&asked, long(GET_MULTI | RESPONSE, 0, 20_000))).unwrap();
    assert_eq!(net.on_the_way().len(), 5);
}

#[test]
fn rmpp_request_stopped_by_the_peer_is_returned_as_aborted() {
    let mut net = Net::new();
    let (_, client) = pair(&mut net);
    net.write(client, request(long(GET_MULTI, 9, 1000), to(B))).unwrap();
    let first = net.on_the_way().remove(0);
    net.arrive(B, &first);
    let mut ack = net.on_the_way().remove(0);
    let stop = Rmpp { kind: RmppType::STOP, status: RmppStatus::RESOURCES, ..rmpp_of(&ack) };
    stop.put(&mut ack.mad);
    net.arrive(A, &ack);
    let record = net.read(client).expect("a failure");
    assert_eq!((record.status, record.data.len()), (UserMad::ABORTED, 24));
    assert_eq!((net.umad.outstanding(client), net.umad.counters().aborted), (0, 1));
}

#[test]
fn abort_midway_of_either_side_frees_both() {
    for by_sender in [false, true] {
        let mut net = Net::new();
        let (server, client) = pair(&mut net);
        let asked = ask(&mut net, server, client);
        net.write(server, response(&asked, long(GET_TABLE | RESPONSE, 0, 20_000))).unwrap();
        let mut seen = Vec::new();
        net.deliver_if(|packet| {
            seen.push(packet.clone());
            usize::from(seen.len() < 30)
        });
        // The first packet is a segment, the second its ACK.
        let mut abort = seen[usize::from(!by_sender)].clone();
        let status = RmppStatus::UNSPECIFIED;
        let flags = RmppFlags::ACTIVE;
        Rmpp { kind: RmppType::ABORT, status, flags, ..rmpp_of(&abort) }.put(&mut abort.mad);
        net.arrive(if by_sender { A } else { B }, &abort);
        assert_eq!(net.umad.outstanding(server), usize::from(by_sender));
        assert_eq!(net.read(client), None);
        // The request is retransmitted in time, and the second response arrives.
        net.out.sent.clear();
        while net.read(server).is_none() {
            assert!(net.pass());
            net.deliver();
        }
    }
}

#[test]
fn rmpp_segments_of_an_unrequested_response_are_dropped() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let asked = ask(&mut net, server, client);
    net.write(server, response(&asked, long(GET_TABLE | RESPONSE, 0, 1000))).unwrap();
    let good = net.on_the_way().remove(0);
    let mut other_tid = good.clone();
    other_tid.mad[15] ^= 1;
    let mut other_lid = good.clone();
    other_lid.slid = Lid(9);
    net.arrive(A, &other_tid);
    net.arrive(A, &other_lid);
    assert!(net.on_the_way().is_empty());
    assert_eq!(net.umad.counters().no_transfer, 2);
    net.arrive(A, &good);
    assert_eq!(net.on_the_way().len(), 1);
}

#[test]
fn peer_that_acknowledges_nothing_leaves_room_for_others() {
    let table = long(GET_TABLE | RESPONSE, 0, 1000);
    let most = 3;
    let by_count = Config { responses_to_peer: most, ..Config::default() };
    let by_bytes = Config { bytes_to_peer: most * table.len(), ..Config::default() };
    for config in [by_count, by_bytes] {
        let mut net = Net::with(config);
        let server = net.agent(B, sa(&[GET_TABLE]));
        let answer = |net: &mut Net, tid: u64, address| {
            let mut table = table.clone();
            table[8..16].copy_from_slice(&tid.to_be_bytes());
            let response =
                UserMad { agent: 0, status: 0, timeout_ms: 0, retries: 0, address, data: table };
            net.write(server, response)
        };
        for tid in 0..3 {
            answer(&mut net, tid, to(A)).unwrap();
        }
        assert_eq!(answer(&mut net, 3, to(A)), Err(Errno::NoMem));
        answer(&mut net, 3, UserAddress { lid: Lid(77), ..to(A) }).unwrap();
        net.write(server, request(mad(SA, GET, 4), to(A))).unwrap();
        // Nothing was acknowledged, and in the end nothing is outstanding.
        while net.pass() {
            net.out.sent.clear();
        }
        assert_eq!(net.umad.outstanding(server), 0);
        for tid in 0..3 {
            answer(&mut net, tid, to(A)).unwrap();
        }
    }
}

/// Returns the first packet of a message from A to B, as sent by a port with LIDs 20 to 23 with each of 33 GIDs, eight times.
fn from_many_gids(net: &mut Net, client: FileId, message: Vec<u8>) -> Vec<MadPacket> {
    net.write(client, request(message, UserAddress { lid: to(B).lid, ..by_gid(B) })).unwrap();
    let first = net.on_the_way().remove(0);
    let copies = (0..33 * 8).map(|n: u16| {
        let (mut packet, [_, gid]) = (first.clone(), (n % 33).to_be_bytes());
        packet.slid = Lid(20 + n % 4);
        packet.grh.as_mut().expect("a global route header").sgid.0[15] = gid;
        packet.mad[12..14].copy_from_slice(&n.to_be_bytes());
        packet
    });
    copies.collect()
}

#[test]
fn port_with_many_gids_leaves_room_for_other_ports() {
    let limits = rmpp::Limits { transfers: 16, peer_transfers: 4, ..rmpp::Limits::default() };
    let config =
        Config { outstanding: 16, responses_to_peer: 4, incoming: limits, ..Config::default() };
    let mut net = Net::with(config);
    let (server, client) = pair(&mut net);
    for packet in from_many_gids(&mut net, client, long(GET_MULTI, 9, 1000)) {
        net.arrive(B, &packet);
    }
    let sent = net.on_the_way();
    let begun = sent.iter().filter(|packet| rmpp_of(packet).kind == RmppType::ACK).count();
    assert_eq!((sent.len(), begun), (33 * 8, 4), "the others were stopped");
    for packet in from_many_gids(&mut net, client, mad(SA, GET_TABLE, 10)) {
        net.arrive(B, &packet);
    }
    let table = long(GET_TABLE | RESPONSE, 0, 1000);
    let mut answered = 0;
    while let Some(asked) = net.read(server) {
        let written = net.write(server, response(&asked, table.clone()));
        assert!(matches!(written, Ok(()) | Err(Errno::NoMem)));
        answered += usize::from(written.is_ok());
    }
    assert_eq!(answered, 4);
    net.out.sent.clear();
    // Another port.
    for question in [mad(SA, GET_TABLE, 11), long(GET_MULTI, 12, 1000)] {
        net.write(client, request(question, to(B))).unwrap();
        net.deliver();
        let asked = net.read(server).expect("the request");
        net.write(server, response(&asked, long(asked.data[3] | RESPONSE, 0, 1000))).unwrap();
        net.deliver();
        assert!(net.read(client).is_some_and(|answer| answer.status == 0));
    }
}

#[test]
fn request_is_not_sent_again_while_its_response_is_coming_in() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    let asked = ask(&mut net, server, client);
    net.write(server, response(&asked, long(GET_TABLE | RESPONSE, 0, 100_000))).unwrap();
    let start = net.now;
    // Every packet takes 90 ms, and the request waits 100.
    while net.umad.outstanding(server) > 0 {
        net.now = net.now.after(Duration::from_millis(90));
        for packet in net.on_the_way() {
            net.arrive(destination(&packet).expect("a port"), &packet);
        }
        net.umad.handle_timeout(net.now, &mut net.out);
    }
    assert!(net.now.since(start) > Duration::from_millis(1000));
    assert_eq!((net.read(server), net.umad.counters().resent), (None, 0));
    assert!(net.read(client).is_some_and(|m| m.status == 0));
}

#[test]
fn agents_without_rmpp_write_and_read_segments_as_they_are() {
    let user = Registration { flags: Registration::USER_RMPP, ..sa(&[GET_TABLE]) };
    for what in [gsi(SA, &[GET_TABLE]), user] {
        let mut net = Net::new();
        let server = net.agent(B, what);
        let client = net.agent(A, Registration { methods: 0, ..what });
        let asked = ask(&mut net, server, client);
        let table = long(GET_TABLE | RESPONSE, 0, 1000);
        assert_eq!(net.write(server, response(&asked, table.clone())), Err(Errno::Inval));
        // Segments built by the program, the second of them after the end of the request.
        for segment in 1..=2 {
            let mut data = table[..256].to_vec();
            data[24..28].copy_from_slice(&[1, 1, 1, 0]);
            data[31] = segment;
            net.write(server, response(&asked, data.clone())).unwrap();
            net.deliver();
            let answer = net.read(client).expect("a segment");
            assert_eq!((answer.data.len(), answer.data[31]), (256, segment));
        }
        // Without ACTIVE a request would have to exist.
        let mut data = table[..256].to_vec();
        data[26] = 0;
        net.write(server, response(&asked, data)).unwrap();
        net.deliver();
        assert_eq!(net.read(client), None);
    }
}

#[test]
fn sa_mads_without_rmpp_active_are_passed_unchanged() {
    let mut net = Net::new();
    let (server, client) = pair(&mut net);
    net.write(client, request(mad(SA, GET, 3), to(B))).unwrap();
    net.deliver();
    let asked = net.read(server).expect("the request");
    let mut answer = mad(SA, GET | RESPONSE, 0);
    net.write(server, response(&asked, answer.clone())).unwrap();
    assert_eq!(net.umad.outstanding(server), 0);
    net.deliver();
    assert_eq!(net.read(client).expect("the answer").data[24..], answer[24..]);
    answer.push(0);
    assert_eq!(net.write(server, response(&asked, answer)), Err(Errno::Inval));
}

#[test]
fn packets_that_break_the_protocol_are_aborted_and_end_the_transfer() {
    for (change, status) in [
        (Rmpp { version: 2, ..ACK }, RmppStatus::BAD_VERSION),
        (Rmpp { kind: RmppType(9), ..ACK }, RmppStatus::BAD_TYPE),
        (Rmpp { status: RmppStatus(5), ..ACK }, RmppStatus::ILLEGAL_STATUS),
        (Rmpp { length: 0, ..ACK }, RmppStatus::WINDOW_TOO_SMALL),
        (Rmpp { segment: 2, ..ACK }, RmppStatus::SEGMENT_TOO_BIG),
    ] {
        let mut net = Net::new();
        let (server, client) = pair(&mut net);
        let asked = ask(&mut net, server, client);
        net.write(server, response(&asked, long(GET_TABLE | RESPONSE, 0, 20_000))).unwrap();
        let first = net.on_the_way().remove(0);
        net.arrive(A, &first);
        let mut ack = net.on_the_way().remove(0);
        assert_eq!(rmpp_of(&ack), ACK);
        change.put(&mut ack.mad);
        net.arrive(B, &ack);
        let abort = rmpp_of(&net.on_the_way()[0]);
        assert_eq!((abort.kind, abort.status), (RmppType::ABORT, status), "{change}");
        assert_eq!(net.umad.outstanding(server), 0, "{change}");
        // As on Linux the program gets no record: it expects no response.
        assert!(net.read(server).is_none());
    }
}

/// The ACK of the first segment.
const ACK: Rmpp = Rmpp {
    version: 1,
    kind: RmppType::ACK,
    resp_time: 0,
    flags: RmppFlags::ACTIVE,
    status: RmppStatus::NORMAL,
    segment: 1,
    length: 65,
};

#[test]
fn rmpp_transfers_by_gid_work_without_lids() {
    let mut net = Net::new();
    let server = net.agent(D, sa(&[GET_MULTI]));
    let client = net.agent(C, sa(&[]));
    net.write(client, request(long(GET_MULTI, 9, 5000), by_gid(D))).unwrap();
    net.deliver();
    let asked = net.read(server).expect("the request");
    net.write(server, response(&asked, long(GET_MULTI | RESPONSE, 0, 50_000))).unwrap();
    net.deliver();
    assert_eq!(net.read(client).map(|m| m.data.len()), Some(50_056));
    assert_eq!((net.umad.outstanding(server), net.umad.outstanding(client)), (0, 0));
}
