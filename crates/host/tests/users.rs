//! Processes of users other than the host's owner: which may use the host, and what they may not do.

mod common;

use std::sync::Arc;

use common::Host;
use rdmux_host::client::admin;
use rdmux_host::{HostClient, HostError};
use rdmux_transport::attr::{AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_verbs::control::{Control, DeviceKind};
use rdmux_verbs::{Cq, Device, Pd, Qp, QpInit, VerbsError};
use rdmux_wire::Qkey;

/// Users, which need no account.
const LET_IN: u32 = 4001;
const ALSO: u32 = 4003;
const NOT: u32 = 4002;

/// Starts a host that two other users may use. None if this process cannot change its user.
fn host() -> Option<Host> {
    if !rustix::process::geteuid().is_root() {
        println!("only root can be another user: not run");
        return None;
    }
    let host = Host::start_with(|options| options.config.service.users = vec![LET_IN, ALSO]);
    // The test's folder is accessible only to this user.
    let passable = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(host.dir.path(), passable).unwrap();
    Some(host)
}

/// Acts as another user, in a thread of its own.
fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

fn connect(host: &Host, uid: u32, kind: DeviceKind) -> Result<Arc<HostClient>, HostError> {
    as_user(uid, || host.connect_options().connect(&host.options.host, kind))
}

#[test]
fn users_that_the_configuration_names_may_open_devices_and_others_may_not() {
    let Some(host) = host() else { return };
    for kind in DeviceKind::ALL {
        let own = host.client_of(kind);
        let theirs = connect(&host, LET_IN, kind).unwrap();
        assert_eq!((own.info().privileged, theirs.info().privileged), (true, false));
        let e = connect(&host, NOT, kind).unwrap_err();
        assert!(matches!(e, HostError::Refused { errno: libc::EPERM, .. }), "{e}");
        assert!(e.to_string().contains("[service]"), "{e}");
    }
    let e = as_user(LET_IN, || admin::down(&host.options.dir, &host.options.host)).unwrap_err();
    assert!(matches!(e, HostError::Refused { errno: libc::EPERM, .. }), "{e}");
    let e = as_user(LET_IN, || admin::Capture::start(&host.options.dir, &host.options.host))
        .unwrap_err();
    assert!(matches!(e, HostError::Refused { errno: libc::EPERM, .. }), "{e}");
    host.status();
}

/// Moves a datagram queue pair of a process's device to INIT with this Q_Key.
fn take_key(client: Arc<HostClient>, qkey: Qkey) -> Result<Qkey, VerbsError> {
    let device = Device::open(client).unwrap();
    let (pd, cq) = (Pd::new(&device), Cq::new(&device, 4, None, 0).unwrap());
    let caps = QpCaps { max_send_wr: 1, max_send_sge: 1, ..QpCaps::default() };
    let init = QpInit {
        qp_type: QpType::Ud,
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        caps,
        sq_sig_all: false,
        context: 0,
    };
    let qp = Qp::new(&pd, init).unwrap();
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    let attr = QpAttr { state: QpState::Init, qkey, port_num: 1, ..qp.query() };
    let taken = qp.modify(&attr, mask);
    let state = if taken.is_ok() { QpState::Init } else { QpState::Reset };
    assert_eq!(qp.state(), state);
    taken.map(|()| qp.query().qkey)
}

#[test]
fn privileged_qkey_on_infiniband_is_eperm_for_other_users() {
    let Some(host) = host() else { return };
    let theirs = |kind| connect(&host, LET_IN, kind).unwrap();
    for qkey in [Qkey::QP1, Qkey(0x8000_0000), Qkey(u32::MAX)] {
        assert_eq!(take_key(host.client_of(DeviceKind::Ib), qkey).unwrap(), qkey);
        let e = take_key(theirs(DeviceKind::Ib), qkey).unwrap_err();
        assert_eq!(e.errno(), libc::EPERM, "{e}");
        assert!(e.to_string().contains(&format!("{:#010x}", qkey.0)), "{e}");
        assert_eq!(take_key(theirs(DeviceKind::Roce), qkey).unwrap(), qkey);
    }
    let plain = Qkey(0x7fff_ffff);
    assert_eq!(take_key(theirs(DeviceKind::Ib), plain).unwrap(), plain);
}

#[test]
fn a_user_that_takes_all_the_slots_it_gets_keeps_no_other_from_one() {
    let Some(host) = host() else { return };
    let mut greedy = Vec::new();
    let refused = loop {
        match connect(&host, LET_IN, DeviceKind::Roce) {
            Ok(client) => {
                while client.new_slot().is_ok() {}
                greedy.push(client);
            }
            Err(e) => break e,
        }
    };
    assert_eq!(refused.errno(), libc::ENOMEM, "{refused}");
    assert!(refused.to_string().contains(&format!("user {LET_IN} holds")), "{refused}");
    connect(&host, ALSO, DeviceKind::Roce).unwrap().new_slot().unwrap();
    host.client().new_slot().unwrap();
    // Slots that are released can be had again.
    greedy.pop();
    connect(&host, LET_IN, DeviceKind::Roce).unwrap();
}
