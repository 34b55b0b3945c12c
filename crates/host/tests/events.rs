//! Events on their way from the service to a process: asked for without waiting, moved between
//! channels, written by the process itself.

mod common;

use common::{Host, SECOND, next_cm_event};
use rdmux_cm::{ConnParam, EventKind, EventParam, PortSpace};
use rdmux_host::EventChannel;
use rdmux_transport::attr::QpType;
use rdmux_wire::Qpn;

#[test]
fn a_channel_that_blocks_is_asked_without_waiting() {
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
fn events_that_nobody_has_read_move_with_their_id() {
    let host = Host::start();
    let client = host.client();
    let (old, new) = (EventChannel::open(&client).unwrap(), EventChannel::open(&client).unwrap());
    let id = |context| client.create_id(&old, PortSpace::Tcp, QpType::Rc, context).unwrap();
    let (stays, moves) = (id(1), id(2));
    // More than the socket holds, so that some wait in the service.
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
fn a_listener_takes_its_requests_along() {
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
    // The request's own events come where the request came.
    drop(old);
    client.reject(request.id, 28, b"no").unwrap();
    assert_eq!(next_cm_event(&active).kind, EventKind::Rejected);
}
