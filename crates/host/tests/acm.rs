//! Paths from an ACM service that lead nowhere.

mod common;

use std::net::SocketAddr;
use std::sync::{Mutex, mpsc};

use common::{Host, loopback_address, next_cm_event};
use rdmux_cm::{Addr, CmOption, ConnParam, EventKind, IdOption, PortSpace};
use rdmux_host::EventChannel;
use rdmux_host::resolver::{Hints, Resolver};
use rdmux_testing::acm::{self, AcmService, Step};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::DeviceKind;
use rdmux_wire::acm::client::{Query, Status};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Mtu, Pkey, Qpn};

#[test]
fn path_of_a_lookup_that_leads_nowhere_is_reported_and_not_used_again() {
    let (host, nowhere) = (Host::start(), loopback_address());
    let path = PathRecord {
        sgid: Gid::from(host.ip),
        dgid: Gid::from(nowhere),
        pkey: Pkey::DEFAULT,
        mtu: Mtu::M512.code(),
        ..PathRecord::default()
    };
    let (report, reports) = mpsc::channel();
    let report = Mutex::new(report);
    // The service is another user's: it invalidates nothing.
    let places = host.host_dir().acm();
    let _service = AcmService::start(places.runtime(), move |request| match request.query {
        Query::Flush(what) => {
            report.lock().unwrap().send(what).unwrap();
            Step::Say(acm::failure(request, Status::INVALID))
        }
        _ => Step::Say(acm::path(request, path)),
    });
    // Programs may look up by one connection to the host, and connect by another.
    let resolver = Resolver::new(host.client(), &[DeviceKind::Roce]);
    let dst = Addr::from(SocketAddr::new(nowhere, 7174));
    let find = || resolver.known_path(None, dst, &Hints::default());
    let found = find().unwrap();
    assert_eq!(found.record, path);
    let client = host.client();
    let channel = EventChannel::open(&client).unwrap();
    let id = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    client.resolve_along(id, None, dst, &[found]).unwrap();
    assert_eq!(next_cm_event(&channel).kind, EventKind::RouteResolved);
    for option in [CmOption::RemoteResponseTimeout(8), CmOption::MaxRetries(0)] {
        client.set_option(id, IdOption::Cm(option)).unwrap();
    }
    let param = ConnParam { qp_num: Qpn::new(0x1234), ..ConnParam::default() };
    client.connect_id(id, &param).unwrap();
    assert_eq!(next_cm_event(&channel).kind, EventKind::Unreachable);
    assert_eq!(reports.recv(), Ok(Some(Gid::from(nowhere).into())));
    assert_eq!(find(), None);
}
