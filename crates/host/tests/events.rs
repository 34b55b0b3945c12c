//! Events between the service and a process: received without waiting, moved between channels,
//! written by the process itself.

mod common;

use common::{Host, SECOND, next_cm_event};
use rdmux_cm::{ConnParam, EventKind, EventParam, PortSpace};
use rdmux_host::EventChannel;
use rdmux_transport::attr::QpType;
use rdmux_wire::Qpn;

#[test]
fn try_get_event_does_not_wait_on_a_blocking_channel() {
    let host = Host::start();
    let client = host.client();
    let channel = EventChannel::open(&client).unwrap();
    assert_eq!(channel.try_get_event().unwrap(), None);
    let id = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 5).unwrap();
    client.write_event(id, EventKind::User, 3, 4).unwrap();
    let event = channel.try_get_event().unwrap().unwrap();
    assert_eq!((event.kind, event.status, event.context), (EventKind::User, 3, 5));
    assert_eq!(event.param, EventParam::Arg(4));
    assert_eq!(channel.try_get_event().unwrap(), None);
}

#[test]
fn unread_events_move_with_their_migrated_id_in_order() {
    let host = Host::start();
    let client = host.client();
    let (old, new) = (EventChannel::open(&client).unwrap(), EventChannel::open(&client).unwrap());
    let id = |context| client.create_id(&old, PortSpace::Tcp, QpType::Rc, context).unwrap();
    let (stays, moves) = (id(1), id(2));
    // More than the socket holds, so that some are queued in the service.
    let many = 2000;
    for n in 0..many {
        for id in [stays, moves] {
            client.write_event(id, EventKind::User, 0, n).unwrap();
        }
    }
    assert_eq!(client.migrate_id(moves, &old, &new).unwrap(), u32::try_from(many).unwrap());
    client.write_event(moves, EventKind::User, 0, many).unwrap();
    client.write_event(stays, EventKind::User, 0, many).unwrap();
    for (channel, id) in [(&old, stays), (&new, moves)] {
        for n in 0..=many {
            let event = next_cm_event(channel);
            assert_eq!((event.id, event.param), (id, EventParam::Arg(n)));
        }
        assert_eq!(channel.try_get_event().unwrap(), None);
    }
}

#[test]
fn ids_that_migrate_at_the_same_time_lose_no_event() {
    let host = Host::start();
    let client = host.client();
    let open = || EventChannel::open(&client).unwrap();
    let channels: Vec<_> = (0..4).map(|_| (open(), open())).collect();
    std::thread::scope(|scope| {
        for (a, b) in &channels {
            let client = &client;
            scope.spawn(move || {
                let id = client.create_id(a, PortSpace::Tcp, QpType::Rc, 0).unwrap();
                let (mut on, mut other) = (a, b);
                for n in 0..20 {
                    client.write_event(id, EventKind::User, 0, n).unwrap();
                    client.migrate_id(id, on, other).unwrap();
                    std::mem::swap(&mut on, &mut other);
                    assert_eq!(next_cm_event(on).param, EventParam::Arg(n));
                    assert_eq!(other.try_get_event().unwrap(), None);
                }
            });
        }
    });
}

#[test]
fn migrated_listener_takes_its_pending_connect_requests() {
    let host = Host::start();
    let client = host.client();
    let (old, new) = (EventChannel::open(&client).unwrap(), EventChannel::open(&client).unwrap());
    let listener = client.create_id(&old, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    let at = client.bind_addr(listener, host.at(0)).unwrap();
    client.listen(listener, 4).unwrap();

    let active = EventChannel::open(&client).unwrap();
    let id = client.create_id(&active, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    client.resolve_addr(id, None, at, SECOND).unwrap();
    assert_eq!(next_cm_event(&active).kind, EventKind::AddrResolved);
    client.resolve_route(id, SECOND).unwrap();
    assert_eq!(next_cm_event(&active).kind, EventKind::RouteResolved);
    let param = ConnParam { qp_num: Qpn::new(0x77), ..ConnParam::default() };
    client.connect_id(id, &param).unwrap();
    common::wait_readable(&old);

    client.migrate_id(listener, &old, &new).unwrap();
    assert_eq!(old.try_get_event().unwrap(), None);
    let request = next_cm_event(&new);
    assert_eq!((request.kind, request.listen_id), (EventKind::ConnectRequest, Some(listener)));
    // The events of a request arrive on the request's channel.
    drop(old);
    client.reject(request.id, 28, b"no").unwrap();
    assert_eq!(next_cm_event(&active).kind, EventKind::Rejected);
}

#[test]
fn events_of_one_message_are_taken_one_by_one() {
    let host = Host::start();
    let client = host.client();
    let open = || EventChannel::open(&client).unwrap();
    let (first, second, third) = (open(), open(), open());
    let id = client.create_id(&first, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    for n in 0..4 {
        client.write_event(id, EventKind::User, 0, n).unwrap();
    }
    // All events move to the other channel at once.
    client.migrate_id(id, &first, &second).unwrap();
    let arg = |channel| match next_cm_event(channel).param {
        EventParam::Arg(n) => n,
        other => panic!("{other:?}"),
    };
    assert_eq!((arg(&second), arg(&second)), (0, 1));
    // Events that were taken stay with the old channel, and the descriptor reports the others.
    client.migrate_id(id, &second, &third).unwrap();
    assert_eq!(second.try_get_event().unwrap(), None);
    client.write_event(id, EventKind::User, 0, 4).unwrap();
    assert_eq!((arg(&third), arg(&third), arg(&third)), (2, 3, 4));
    assert_eq!(third.try_get_event().unwrap(), None);
}

#[test]
fn unawaited_cm_commands_complete_or_report_errors_as_events() {
    let host = Host::start();
    let client = host.client();
    let channel = EventChannel::open(&client).unwrap();
    let next = || next_cm_event(&channel);
    let listener = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    let at = client.bind_addr(listener, host.at(0)).unwrap();
    client.listen(listener, 4).unwrap();

    let id = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 7).unwrap();
    client.resolve_addr_soon(id, at, SECOND).unwrap();
    assert_eq!(next().kind, EventKind::AddrResolved);
    client.resolve_route_soon(id, SECOND).unwrap();
    assert_eq!(next().kind, EventKind::RouteResolved);
    let param = ConnParam { qp_num: Qpn::new(0x77), ..ConnParam::default() };
    let long = ConnParam { private_data: vec![0; 57], ..param.clone() };
    client.connect_id_soon(id, long).unwrap();
    let refused = next();
    assert_eq!((refused.kind, refused.status), (EventKind::ConnectError, -libc::EINVAL));
    client.connect_id_soon(id, param.clone()).unwrap();
    let request = next();
    assert_eq!(request.kind, EventKind::ConnectRequest);
    let param = ConnParam { qp_num: Qpn::new(0x78), ..param };
    client.accept_soon(request.id, param).unwrap();
    assert_eq!(next().kind, EventKind::ConnectResponse);
    client.establish_soon(id).unwrap();
    let established = next();
    assert_eq!((established.id, established.kind), (request.id, EventKind::Established));
    // The connection has ended, and the peer reported it: late commands cause no more events.
    client.destroy_id_soon(id).unwrap();
    assert_eq!((next().kind, client.destroy_id(id).is_err()), (EventKind::Disconnected, true));
    client.resolve_route_soon(request.id, SECOND).unwrap();
    client.write_event(request.id, EventKind::User, 0, 0).unwrap();
    assert_eq!(next().kind, EventKind::User);
}
