//! Files, agents, and the dispatch of requests.

use rdmux_wire::{Lid, Qpn};

use super::*;

#[test]
fn overlapping_masks_of_two_files_are_refused() {
    let mut net = Net::new();
    let (one, other) = (net.umad.open(A), net.umad.open(A));
    assert_eq!(net.umad.register(one, &sa(&[GET, GET_TABLE])), Ok(0));
    assert_eq!(net.umad.register(other, &sa(&[GET_TABLE, 0x15])), Err(Errno::Inval));
    assert_eq!(net.umad.register(one, &gsi(SA, &[GET])), Err(Errno::Inval));
    // Other methods, another version, another class, another port and no methods do not overlap.
    assert_eq!(net.umad.register(other, &sa(&[0x15])), Ok(0));
    let version = Registration { class_version: 1, ..sa(&[GET]) };
    assert_eq!(net.umad.register(other, &version), Ok(1));
    assert_eq!(net.umad.register(other, &gsi(PERF, &[GET])), Ok(2));
    assert_eq!(net.umad.register(other, &sa(&[])), Ok(3));
    let elsewhere = net.umad.open(B);
    assert_eq!(net.umad.register(elsewhere, &sa(&[GET])), Ok(0));
    // The methods are free once their owner is gone.
    net.close(one);
    assert_eq!(net.umad.register(other, &sa(&[GET, GET_TABLE])), Ok(4));
}

#[test]
fn vendor_classes_are_told_apart_by_oui() {
    let mut net = Net::new();
    let file = net.umad.open(A);
    let vendor = |oui| Registration { oui, ..gsi(0x32, &[GET]) };
    assert_eq!(net.umad.register(file, &vendor([0, 0x14, 5])), Ok(0));
    assert_eq!(net.umad.register(file, &vendor([0, 0x14, 5])), Err(Errno::Inval));
    assert_eq!(net.umad.register(file, &vendor([0, 0x14, 6])), Ok(1));
    let client = net.agent(B, Registration { methods: 0, ..vendor([0, 0x14, 6]) });
    let mut data = mad(0x32, GET, 1);
    data[37..40].copy_from_slice(&[0, 0x14, 6]);
    net.write(client, request(data, to(A))).unwrap();
    net.deliver();
    assert_eq!(net.read(file).map(|m| m.agent), Some(1));
}

#[test]
fn file_has_32_agents_at_most() {
    let mut net = Net::new();
    let file = net.umad.open(A);
    for id in 0..32 {
        assert_eq!(net.umad.register(file, &gsi(PERF, &[])), Ok(id));
    }
    assert_eq!(net.umad.register(file, &gsi(PERF, &[])), Err(Errno::NoMem));
    assert_eq!(net.umad.unregister(file, 7), Ok(()));
    assert_eq!(net.umad.unregister(file, 7), Err(Errno::Inval));
    assert_eq!(net.umad.unregister(file, 32), Err(Errno::Inval));
    assert_eq!(net.umad.register(file, &gsi(PERF, &[])), Ok(7));
    net.close(file);
    assert!(net.umad.is_idle());
    assert_eq!(net.umad.register(file, &gsi(PERF, &[])), Err(Errno::BadF));
}

#[test]
fn unknown_flags_and_queue_pairs_are_refused() {
    let mut net = Net::new();
    let file = net.umad.open(A);
    let bad = [Registration { flags: 2, ..sa(&[]) }, Registration { qpn: 2, ..sa(&[]) }];
    for bad in bad {
        assert_eq!(net.umad.register(file, &bad), Err(Errno::Inval), "{bad:?}");
    }
    let user = Registration { flags: Registration::USER_RMPP, ..sa(&[]) };
    assert_eq!(net.umad.register(file, &user), Ok(0));
}

#[test]
fn second_issm_open_of_a_port_is_eagain() {
    let mut net = Net::new();
    let one = net.umad.open_issm(A, &mut net.out).unwrap();
    assert_eq!(net.umad.open_issm(A, &mut net.out), Err(Errno::Again));
    let elsewhere = net.umad.open_issm(B, &mut net.out).unwrap();
    net.close(one);
    net.close(one);
    assert!(net.umad.open_issm(A, &mut net.out).is_ok());
    net.umad.remove_port(B, &mut net.out);
    net.close(elsewhere);
    assert_eq!(net.out.is_sm, [(A, true), (B, true), (A, false), (A, true), (B, false)]);
}

#[test]
fn get_and_set_without_an_agent_are_answered_with_0x000c() {
    let mut net = Net::new();
    let client = net.agent(A, gsi(PERF, &[]));
    net.write(client, request(mad(PERF, GET, 1), to(B))).unwrap();
    net.deliver();
    let answer = net.read(client).expect("an answer");
    assert_eq!((answer.data[3], &answer.data[4..6]), (0x81, &[0, 0x0c][..]));
    assert_eq!(answer.data[200..204], *b"body");
    // Other methods than Get and Set are dropped.
    net.write(client, request(mad(PERF, 0x05, 2), to(B))).unwrap();
    net.deliver();
    assert_eq!(net.read(client), None);
    assert_eq!((net.umad.counters().unsupported, net.umad.counters().no_owner), (1, 1));
}

#[test]
fn refused_directed_route_smp_has_the_direction_bit() {
    let mut net = Net::new();
    let smi = Registration { qpn: 0, class: 0x81, class_version: 1, ..Registration::default() };
    let client = net.agent(A, smi);
    let address = UserAddress { qpn: Qpn::QP0, lid: Lid(0xffff), ..to(B) };
    net.write(client, request(mad(0x81, GET, 1), address)).unwrap();
    let packet = net.on_the_way().remove(0);
    assert_eq!((packet.src_qpn, packet.dlid, packet.slid), (Qpn::QP0, Lid(0xffff), Lid(4)));
    net.arrive(B, &packet);
    let answer = net.on_the_way().remove(0);
    assert_eq!((answer.mad[3], &answer.mad[4..6]), (0x81, &[0x80, 0x0c][..]));
    // The answer comes from a LID other than the one that was addressed.
    net.arrive(A, &answer);
    assert_eq!(net.read(client).map(|m| tid(&m.data) & 0xffff_ffff), Some(1));
}

#[test]
fn classes_of_the_other_queue_pair_are_dropped() {
    let mut net = Net::new();
    let server = net.agent(B, gsi(PERF, &[GET]));
    let client = net.agent(A, gsi(PERF, &[]));
    net.write(client, request(mad(PERF, GET, 1), to(B))).unwrap();
    let mut packet = net.on_the_way().remove(0);
    packet.dst_qpn = Qpn::QP0;
    net.arrive(B, &packet);
    packet.dst_qpn = Qpn::new(5);
    net.arrive(B, &packet);
    packet.dst_qpn = Qpn::QP1;
    packet.mad[0] = 2;
    net.arrive(B, &packet);
    assert_eq!(net.read(server), None);
    assert_eq!((net.umad.counters().bad_qp, net.umad.counters().bad_version), (2, 1));
}

#[test]
fn removed_port_ends_its_agents_and_outstanding_requests() {
    let mut net = Net::new();
    let file = net.agent(A, gsi(PERF, &[GET]));
    net.write(file, request(mad(PERF, GET, 1), to(B))).unwrap();
    assert_eq!(net.umad.remove_port(A, &mut net.out), [file]);
    assert_eq!(net.write(file, request(mad(PERF, GET, 2), to(B))), Err(Errno::Io));
    assert_eq!(net.umad.register(file, &gsi(PERF, &[])), Err(Errno::Pipe));
    assert_eq!((net.umad.next_timeout(), net.umad.outstanding(file)), (None, 0));
    net.close(file);
    assert!(net.umad.is_idle());
}
