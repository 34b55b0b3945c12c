//! A device enforces the limits that it reports.

mod lab;

use std::any::Any;
use std::net::Ipv4Addr;
use std::sync::Arc;

use lab::{ALL, Lab, caps};
use rdmux_verbs::control::{DeviceKind, Limits};
use rdmux_verbs::quota::Counted;
use rdmux_verbs::transport::attr::{AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_verbs::wire::{Gid, Qkey};
use rdmux_verbs::{Cq, Device, Mr, MrInit, Mw, MwType, Pd, Qp, QpInit, Srq, SrqAttr, VerbsError};

const SMALL: Limits = Limits {
    max_qp: 3,
    max_qp_wr: 16,
    max_sge: 4,
    max_cq: 4,
    max_cqe: 100,
    max_mr: 3,
    max_mw: 2,
    max_pd: 5,
    max_srq: 2,
    max_srq_wr: 20,
    max_ah: 3,
    max_rd_atomic: 1,
    max_init_rd_atomic: 1,
    max_inline_data: 64,
    max_mcast_grp: 2,
    max_mcast_qp_attach: 2,
};

/// A device with these limits, and the objects that most others need.
struct Small {
    device: Arc<Device>,
    pd: Pd,
    cq: Cq,
}

impl Small {
    fn new(ip: &str) -> Self {
        let lab = Lab::new(false);
        let (device, _) = lab.process_told(ip, DeviceKind::default(), |info| info.limits = SMALL);
        assert_eq!(device.query().limits, SMALL);
        let pd = Pd::alloc(&device).unwrap();
        let cq = Cq::new(&device, 16, None, 0).unwrap();
        Self { device, pd, cq }
    }

    fn qp(&self, caps: QpCaps) -> Result<Qp, VerbsError> {
        let init = QpInit {
            qp_type: QpType::Ud,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            caps,
            sq_sig_all: false,
            context: 0,
        };
        Qp::new(&self.pd, init)
    }
}

const LEAST: QpCaps =
    QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
const SRQ: SrqAttr = SrqAttr { max_wr: 4, max_sge: 1, limit: 0 };

type Object = Box<dyn Any>;
type Make = fn(&Small) -> Result<Object, VerbsError>;
type MakeOfSize = fn(&Small, u32) -> Result<Object, VerbsError>;

fn boxed<T: Any>(made: Result<T, VerbsError>) -> Result<Object, VerbsError> {
    made.map(|object| Box::new(object) as Object)
}

fn region(small: &Small) -> Result<Object, VerbsError> {
    let init = MrInit::own(std::ptr::null(), 0, ALL);
    // SAFETY: a region of no bytes.
    boxed(unsafe { Mr::register(&small.pd, init) })
}

#[test]
fn object_above_the_device_limit_is_enomem_until_one_is_destroyed() {
    let small = Small::new("127.77.207.1");
    // The limit's name, how many more objects can be created, and how one is created.
    let table: [(&str, u32, Make); 7] = [
        ("max_pd", SMALL.max_pd - 1, |s| boxed(Pd::alloc(&s.device))),
        ("max_cq", SMALL.max_cq - 1, |s| boxed(Cq::new(&s.device, 4, None, 0))),
        ("max_qp", SMALL.max_qp, |s| boxed(s.qp(LEAST))),
        ("max_srq", SMALL.max_srq, |s| boxed(Srq::new(&s.pd, SRQ, 0))),
        ("max_mr", SMALL.max_mr, region),
        ("max_mw", SMALL.max_mw, |s| boxed(Mw::alloc(&s.pd, MwType::One))),
        ("max_ah", SMALL.max_ah, |s| {
            boxed(s.device.permit("create an address handle", Counted::Ah))
        }),
    ];
    for (limit, most, make) in table {
        let mut objects: Vec<Object> = (0..most).map(|_| make(&small).expect(limit)).collect();
        for round in 0..3 {
            let error = make(&small).expect_err(limit);
            assert_eq!(error.errno(), libc::ENOMEM, "{limit}: {error}");
            assert!(error.to_string().contains(limit), "{error}");
            drop(objects.swap_remove(round % objects.len()));
            objects.push(make(&small).expect(limit));
        }
        drop(objects);
    }
}

#[test]
fn object_size_above_the_device_limit_is_einval() {
    let small = Small::new("127.77.207.2");
    let table: [(&str, u32, MakeOfSize); 8] = [
        ("max_qp_wr", SMALL.max_qp_wr, |s, n| boxed(s.qp(QpCaps { max_send_wr: n, ..LEAST }))),
        ("max_qp_wr", SMALL.max_qp_wr, |s, n| boxed(s.qp(QpCaps { max_recv_wr: n, ..LEAST }))),
        ("max_sge", SMALL.max_sge, |s, n| boxed(s.qp(QpCaps { max_send_sge: n, ..LEAST }))),
        ("max_sge", SMALL.max_sge, |s, n| boxed(s.qp(QpCaps { max_recv_sge: n, ..LEAST }))),
        ("inline", SMALL.max_inline_data, |s, n| {
            boxed(s.qp(QpCaps { max_inline_data: n, ..LEAST }))
        }),
        ("max_cqe", SMALL.max_cqe, |s, n| boxed(Cq::new(&s.device, n, None, 0))),
        ("max_srq_wr", SMALL.max_srq_wr, |s, n| {
            boxed(Srq::new(&s.pd, SrqAttr { max_wr: n, ..SRQ }, 0))
        }),
        ("max_srq_sge", SMALL.max_sge, |s, n| {
            boxed(Srq::new(&s.pd, SrqAttr { max_sge: n, ..SRQ }, 0))
        }),
    ];
    for (limit, most, make) in table {
        drop(make(&small, most).expect(limit));
        assert_eq!(make(&small, most + 1).expect_err(limit).errno(), libc::EINVAL, "{limit}");
    }
}

#[test]
fn rd_atomic_depth_above_the_device_limit_is_refused() {
    let small = Small::new("127.77.207.9");
    let qp = small.qp(LEAST).unwrap();
    for mask in [AttrMask::MAX_QP_RD_ATOMIC, AttrMask::MAX_DEST_RD_ATOMIC] {
        let modify = |depth| {
            let attr = QpAttr { max_rd_atomic: depth, max_dest_rd_atomic: depth, ..qp.query() };
            qp.modify(&attr, mask).expect_err("without a state nothing is changed").to_string()
        };
        let (within, above) = (modify(1), modify(2));
        assert!(!within.contains("exceed the device's limit"), "{within}");
        assert!(
            above.contains("2 outstanding READs and atomics exceed the device's limit of 1"),
            "{above}"
        );
    }
}

/// Refused objects are not counted.
#[test]
fn refused_objects_do_not_count_against_the_limit() {
    let small = Small::new("127.77.207.3");
    let too_large = QpCaps { max_send_wr: SMALL.max_qp_wr + 1, ..caps() };
    for _ in 0..2 * SMALL.max_qp {
        assert!(small.qp(too_large).is_err());
        assert!(Cq::new(&small.device, 0, None, 0).is_err());
        assert!(Srq::new(&small.pd, SrqAttr { max_wr: 0, ..SRQ }, 0).is_err());
    }
    let qps: Vec<Qp> = (0..SMALL.max_qp).map(|_| small.qp(LEAST).unwrap()).collect();
    assert!(small.qp(LEAST).is_err());
    drop(qps);
}

#[test]
fn multicast_groups_and_their_members_are_limited() {
    let small = Small::new("127.77.207.4");
    let group = |n| Gid::from(Ipv4Addr::new(239, 77, 207, n));
    let qps: Vec<Qp> = (0..3).map(|_| small.qp(LEAST).unwrap()).collect();
    for qp in &qps {
        let attr = QpAttr { state: QpState::Init, port_num: 1, qkey: Qkey(1), ..qp.query() };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        qp.modify(&attr, mask).unwrap();
    }
    let refused = |qp: &Qp, n, limit: &str| {
        let error = qp.attach_multicast(group(n)).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM);
        assert!(error.to_string().contains(limit), "{error}");
    };
    qps[0].attach_multicast(group(1)).unwrap();
    qps[1].attach_multicast(group(1)).unwrap();
    refused(&qps[2], 1, "max_mcast_qp_attach");
    qps[0].attach_multicast(group(2)).unwrap();
    refused(&qps[0], 3, "max_mcast_grp");
    qps[1].detach_multicast(group(1)).unwrap();
    qps[2].attach_multicast(group(1)).unwrap();
    qps[0].detach_multicast(group(2)).unwrap();
    qps[0].attach_multicast(group(3)).unwrap();
}

#[test]
fn limits_are_counted_per_device() {
    let (a, b) = (Small::new("127.77.207.5"), Small::new("127.77.207.6"));
    let qps: Vec<Qp> = (0..SMALL.max_qp).map(|_| a.qp(LEAST).unwrap()).collect();
    assert!(a.qp(LEAST).is_err());
    assert!(b.qp(LEAST).is_ok());
    drop(qps);
}
