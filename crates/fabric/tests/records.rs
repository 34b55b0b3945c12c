//! Datagrams of many messages between programs, as seen by the reading program.

mod common;

use std::thread;

use common::{Fabric, Manager};
use rdmux_fabric::client::{MadFile, Received};
use rdmux_fabric::proto::mad::{FIRST, HEADER};
use rdmux_fabric::proto::{NodeRef, PortRef};
use rdmux_fabric::server::FIRST_GUID;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{Attribute, PhysState, PortState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Lid, Qkey, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The registration of an agent of subnet administration with RMPP.
const SA: Registration = Registration {
    qpn: 1,
    class: 3,
    class_version: 2,
    oui: [0; 3],
    methods: 0,
    rmpp_version: 1,
    flags: 0,
};
/// The method of the messages here.
const GET_TABLE: u8 = 0x12;
/// The LID of the port.
const LID: Lid = Lid(5);
/// Length of the headers of a subnet administration message in bytes.
const HEADERS: usize = 56;

/// A program that sends long messages, and one at the same port that receives them.
struct Pair {
    manager: Manager,
    client: MadFile,
    server: MadFile,
    _fabric: Fabric,
}

fn pair() -> Pair {
    let fabric = Fabric::up("two");
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let mut manager = Manager::open(&fabric.options, &fabric.name, &port);
    let Some(Attribute::PortInfo(mut info)) = manager.get(&[], 0x15, 0).attribute() else {
        panic!("no PortInfo");
    };
    (info.port_state, info.port_physical_state) = (PortState::NO_CHANGE, PhysState::NO_CHANGE);
    info.lid = LID;
    let mut set = Smp::directed(Method::SET, 0x15, 0, &[]);
    set.set_attribute(&Attribute::PortInfo(info));
    manager.ask(&set);
    let open = |what| {
        let file = MadFile::open(&fabric.options, &fabric.name, &port).unwrap();
        assert_eq!(file.register(&what).unwrap(), 0);
        file
    };
    let server = open(Registration { methods: 1 << GET_TABLE, ..SA });
    Pair { manager, client: open(SA), server, _fabric: fabric }
}

/// Makes a message of this many bytes.
fn message(tid: u8, bytes: usize) -> UserMad {
    let mut data: Vec<u8> = (0..251).cycle().skip(tid.into()).take(bytes).collect();
    data[..36].fill(0);
    data[..4].copy_from_slice(&[1, 3, 2, GET_TABLE]);
    data[15] = tid;
    // Only the Active flag of the RMPP header matters.
    data[26] = 1;
    let address = UserAddress { lid: LID, qpn: Qpn::QP1, qkey: Qkey::QP1, ..Default::default() };
    UserMad { agent: 0, status: 0, timeout_ms: 60_000, retries: 0, address, data }
}

/// Returns whether a record is the message, whose last segment may be padded.
fn is(data: &[u8], message: &UserMad) -> bool {
    data.get(HEADERS..message.data.len()) == message.data.get(HEADERS..)
        && data[8..16].ends_with(&message.data[12..16])
}

fn is_readable(file: &MadFile) -> bool {
    poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
}

#[test]
fn datagrams_of_many_messages_go_from_program_to_program() {
    let pair = pair();
    let mad = message(7, 200_000);
    pair.client.send_mad(&mad).unwrap();
    let got = pair.server.recv_mad().unwrap();
    assert!(is(&got.data, &mad));
    assert_eq!((got.address.lid, got.data[3]), (LID, GET_TABLE));
}

#[test]
fn long_record_waits_for_room_and_its_descriptor_polls_until_it_is_read() {
    let pair = pair();
    let (client, server) = (&pair.client, &pair.server);
    let (long, next) = (message(1, 100_000), message(2, 70_000));
    client.send_mad(&long).unwrap();
    client.send_mad(&next).unwrap();
    server.wait().unwrap();
    let mut short = [0; FIRST];
    let Received::TooLong(length) = server.read(&mut short).unwrap() else { panic!("it fits") };
    assert!(length >= HEADER + long.data.len());
    assert_eq!(short[16..20], u32::try_from(length).unwrap().to_le_bytes());
    assert_eq!(short[HEADER + HEADERS..], long.data[HEADERS..FIRST - HEADER]);
    // It stays for every reader whose buffer is too small.
    for room in [FIRST, FIRST + 1, HEADER, 100, length - 1] {
        let mut buf = vec![0; room];
        assert_eq!(server.read(&mut buf).unwrap(), Received::TooLong(length), "{room}");
        let fits = room.min(FIRST);
        assert_eq!(buf[..fits], short[..fits], "{room}");
        server.wait().unwrap();
        assert!(is_readable(server));
    }
    let mut whole = vec![0; length];
    assert_eq!(server.read(&mut whole).unwrap(), Received::Whole(length));
    assert!(is(&whole[HEADER..], &long));
    // The next record is another one.
    assert!(is(&server.recv_mad().unwrap().data, &next));
    assert_eq!(server.read(&mut short).unwrap(), Received::Nothing);
    assert!(!is_readable(server));
}

#[test]
fn threads_that_read_and_send_at_the_same_time_get_whole_records() {
    const LONG: u8 = 30;
    let mut pair = pair();
    let (client, server) = (&pair.client, &pair.server);
    thread::scope(|scope| {
        scope.spawn(|| {
            for tid in 0..LONG {
                client.send_mad(&message(tid, 150_000)).unwrap();
            }
        });
        // Short ones are sent in between.
        scope.spawn(|| {
            for _ in 0..3_000 {
                let mut short = message(200, 256);
                (short.timeout_ms, short.data[3]) = (0, 0x92);
                short.data[26] = 0;
                client.send_mad(&short).unwrap();
            }
        });
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let half = 0..LONG / 2;
                half.map(|_| server.recv_mad().unwrap()).collect::<Vec<_>>()
            })
        });
        let mut got: Vec<_> = readers.into_iter().flat_map(|r| r.join().unwrap()).collect();
        got.sort_by_key(|mad| mad.data[15]);
        for (tid, mad) in (0..LONG).zip(&got) {
            assert!(is(&mad.data, &message(tid, 150_000)), "{tid}");
        }
    });
    pair.manager.get(&[1], 0x11, 0);
}

#[test]
fn mad_response_is_readable_before_a_later_check_returns() {
    let mut pair = pair();
    let manager = &mut pair.manager;
    let mut buf = [0; FIRST];
    for _ in 0..200 {
        let request = manager.request(&Smp::directed(Method::GET, 0x11, 0, &[1]));
        manager.file.send_mad(&request).unwrap();
        manager.file.check(&request).unwrap();
        assert_eq!(manager.file.read(&mut buf).unwrap(), Received::Whole(FIRST));
    }
}
