//! Windows and regions of special kinds, between devices, over the network and over a ring.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

mod lab;

use lab::{ALL, Node, pair};
use rdmux_verbs::transport::attr::{Access, QpState, QpType};
use rdmux_verbs::transport::wr::{
    RecvWr, SendData, SendFlags, SendOp, Sge, WcFlags, WcOpcode, WcStatus,
};
use rdmux_verbs::wire::Rkey;
use rdmux_verbs::{Advice, Mr, MrChange, MrInit, Mw, MwPart, MwType, VerbsError};

fn both(test: impl Fn(Node, Node)) {
    for same_host in [false, true] {
        let (a, b) = pair(QpType::Rc, same_host, 8192);
        test(a, b);
    }
}

/// A region of the node's memory that permits windows, and no other access of peers.
fn region(node: &Node) -> Mr {
    let init = MrInit::own(node.memory, 8192, Access::LOCAL_WRITE | Access::MW_BIND);
    // SAFETY: the node's memory outlives the test's use of the region.
    unsafe { Mr::register(&node.pd, init).unwrap() }
}

fn status(node: &Node, op: SendOp, len: usize) -> WcStatus {
    node.send(1, op, 0, len);
    node.wait().status
}

#[test]
fn type_1_window_allows_write_until_unbound() {
    both(|a, b| {
        let mut mr = region(&b);
        let mw = Mw::alloc(&b.pd, MwType::One).unwrap();
        let first = mw.rkey();
        let (addr, access) = (b.base() + 100, Access::REMOTE_WRITE);
        let part = MwPart { mr: Some(&mr), addr, length: 50, access };
        let rkey = mw.bind(&b.qp, 5, SendFlags::SIGNALED, &part).unwrap();
        let bound = b.wait();
        assert_eq!((bound.wr_id, bound.status), (5, WcStatus::Success));
        assert_eq!(bound.opcode, WcOpcode::BindMw);
        assert_eq!((mw.rkey(), rkey == first), (rkey, false));
        a.write(0, &[7; 50]);
        assert_eq!(status(&a, SendOp::Write { remote_addr: addr, rkey }, 50), WcStatus::Success);
        assert_eq!(b.read(99, 52), [vec![0], vec![7; 50], vec![0]].concat());

        let unbind = MwPart { mr: None, addr: 0, length: 0, access: Access::empty() };
        mw.bind(&b.qp, 6, SendFlags::SIGNALED, &unbind).unwrap();
        assert_eq!(b.wait().status, WcStatus::Success);
        mr.deregister().unwrap();
        let refused = status(&a, SendOp::Write { remote_addr: addr, rkey }, 50);
        assert_eq!(refused, WcStatus::RemAccessErr);
    });
}

/// Binds a window of type 2 to all of the region, from zero.
fn bind_two(node: &Node, mr: &Mr, rkey: Rkey) {
    let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::ZERO_BASED;
    let part = MwPart { mr: Some(mr), addr: node.base(), length: 8192, access };
    node.post(7, SendOp::BindMw(part.bind(rkey)), SendData::Sges(&[]));
    let bound = node.wait();
    assert_eq!((bound.status, bound.opcode), (WcStatus::Success, WcOpcode::BindMw));
}

#[test]
fn type_2_window_is_closed_by_local_invalidate_or_send_with_invalidate() {
    both(|a, b| {
        let mr = region(&b);
        let mw = Mw::alloc(&b.pd, MwType::Two).unwrap();
        let rkey = mw.with_key(0x77);
        bind_two(&b, &mr, rkey);
        let add = SendOp::FetchAdd { remote_addr: 8, rkey, add: 3 };
        assert_eq!(status(&a, add, 8), WcStatus::Success);
        assert_eq!(b.read(8, 8), 3_u64.to_ne_bytes());

        b.post(8, SendOp::LocalInv(rkey), SendData::Sges(&[]));
        assert_eq!(b.wait().status, WcStatus::Success);
        bind_two(&b, &mr, mw.with_key(0x78));

        b.recv(9, 0, 16);
        a.send(1, SendOp::SendInv(mw.with_key(0x78)), 0, 4);
        let got = b.wait();
        assert_eq!((got.flags, got.invalidated), (WcFlags::WITH_INV, mw.with_key(0x78)));
        assert_eq!(a.wait().status, WcStatus::Success);

        bind_two(&b, &mr, rkey);
        let stale = SendOp::Write { remote_addr: 0, rkey: mw.with_key(0x78) };
        assert_eq!(status(&a, stale, 8), WcStatus::RemAccessErr);
        assert_eq!(b.qp.state(), QpState::Err);
    });
}

#[test]
fn region_with_bound_type_2_window_is_busy_until_the_qp_is_destroyed() {
    let (_a, b) = pair(QpType::Rc, true, 8192);
    let mut mr = region(&b);
    let mw = Mw::alloc(&b.pd, MwType::Two).unwrap();
    bind_two(&b, &mr, mw.rkey());
    let error = mr.deregister().unwrap_err();
    assert!(matches!(error, VerbsError::Busy { .. }), "{error}");
    // SAFETY: the range stays the same.
    let changed = unsafe { mr.reregister(MrChange::default()) };
    assert!(matches!(changed, Err(VerbsError::Busy { .. })));
    drop(b.qp);
    mr.deregister().unwrap();
}

/// Keys are reused after 256 registrations.
#[test]
fn deregistered_handle_does_not_affect_a_later_region_with_its_key() {
    let (a, b) = pair(QpType::Rc, false, 8192);
    let register = || {
        let init = MrInit::own(b.memory, 8192, ALL);
        // SAFETY: the node's memory outlives the test's use of the region.
        unsafe { Mr::register(&b.pd, init).unwrap() }
    };
    let mut first = register();
    first.deregister().unwrap();
    let mut later = register();
    while later.rkey() != first.rkey() {
        drop(later);
        later = register();
    }
    // SAFETY: as above.
    let refused =
        unsafe { first.reregister(MrChange { access: Some(ALL), ..MrChange::default() }) };
    assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
    first.deregister().unwrap();
    let write = SendOp::Write { remote_addr: later.range().start, rkey: later.rkey() };
    assert_eq!(status(&a, write, 64), WcStatus::Success);
    drop(first);
    assert_eq!(status(&a, write, 64), WcStatus::Success);
}

#[test]
fn bind_without_mw_bind_access_is_mw_bind_error() {
    let (_a, b) = pair(QpType::Rc, true, 8192);
    let mw = Mw::alloc(&b.pd, MwType::One).unwrap();
    // The node's own region does not permit windows.
    let part = MwPart { mr: Some(&b.mr), addr: b.base(), length: 8, access: Access::REMOTE_READ };
    mw.bind(&b.qp, 5, SendFlags::empty(), &part).unwrap();
    let refused = b.wait();
    assert_eq!((refused.wr_id, refused.status), (5, WcStatus::MwBindErr));
    assert_eq!(b.qp.state(), QpState::Err);
    let two = Mw::alloc(&b.pd, MwType::Two).unwrap();
    assert_eq!(two.bind(&b.qp, 5, SendFlags::empty(), &part).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn null_mr_reads_as_zeros_and_discards_writes() {
    both(|a, b| {
        let null = Mr::null(&a.pd).unwrap();
        let nowhere = |length| Sge { addr: 0xdead_beef, length, lkey: null.lkey() };
        b.write(0, &[9; 200]);
        b.recv(1, 0, 200);
        a.write(0, &[5; 10]);
        a.post(2, SendOp::Send, SendData::Sges(&[a.sge(0, 10), nowhere(100), a.sge(0, 10)]));
        assert_eq!(b.wait().byte_len, 120);
        assert_eq!(b.read(0, 121), [vec![5; 10], vec![0; 100], vec![5; 10], vec![9]].concat());
        assert_eq!(a.wait().status, WcStatus::Success);
        let (remote_addr, rkey) = (b.base(), b.mr.rkey());
        let list = [nowhere(10), a.sge(100, 100), nowhere(10)];
        a.post(3, SendOp::Read { remote_addr, rkey }, SendData::Sges(&list));
        assert_eq!(a.wait().status, WcStatus::Success);
        assert_eq!(a.read(100, 100), [0; 100]);
        let by_peer = SendOp::Write { remote_addr: 0, rkey: null.rkey() };
        assert_eq!(status(&b, by_peer, 8), WcStatus::RemAccessErr);
    });
}

#[test]
fn on_demand_region_covers_the_whole_address_space() {
    both(|a, b| {
        let init = MrInit::own(std::ptr::null(), usize::MAX, ALL | Access::ON_DEMAND);
        // SAFETY: the test only accesses the node's own memory through it.
        let all = unsafe { Mr::register(&b.pd, init).unwrap() };
        a.write(0, b"anywhere");
        let (remote_addr, rkey) = (b.base() + 3, all.rkey());
        assert_eq!(status(&a, SendOp::Write { remote_addr, rkey }, 8), WcStatus::Success);
        assert_eq!(b.read(3, 8), b"anywhere");
    });
}

#[test]
fn advise_mr_checks_rights_bounds_and_key() {
    let (_a, b) = pair(QpType::Rc, true, 8192);
    let advise =
        |advice, sge| rdmux_verbs::mr::advise(&b.pd, advice, &[sge]).map_err(|e| e.errno());
    let init = MrInit::own(b.memory, 8192, Access::ON_DEMAND);
    // SAFETY: the node's memory outlives the region.
    let mr = unsafe { Mr::register(&b.pd, init).unwrap() };
    let sge = Sge { lkey: mr.lkey(), ..b.sge(0, 8192) };
    assert_eq!(advise(Advice::Prefetch, sge), Ok(()));
    assert_eq!(advise(Advice::PrefetchWrite, sge), Err(libc::EPERM));
    assert_eq!(advise(Advice::Prefetch, Sge { length: 8193, ..sge }), Err(libc::EFAULT));
    assert_eq!(advise(Advice::Prefetch, b.sge(0, 8)), Err(libc::EINVAL));
    drop(mr);
    assert_eq!(advise(Advice::PrefetchNoFault, sge), Err(libc::ENOENT));
}

#[test]
fn deregistered_or_changed_region_is_not_used_from_the_cache() {
    let piece = |node: &Node, mr: &Mr| [Sge { addr: node.base(), length: 8, lkey: mr.lkey() }];
    let (a, b) = pair(QpType::Rc, true, 8192);
    let (mut from, mut to) = (region(&a), region(&b));
    let send = |from: &Mr, to: &[Sge]| {
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: to }).unwrap();
        a.post(2, SendOp::Send, SendData::Sges(&piece(&a, from)));
        a.wait().status
    };
    for _ in 0..3 {
        assert_eq!(send(&from, &piece(&b, &to)), WcStatus::Success);
        assert_eq!(b.wait().status, WcStatus::Success);
    }
    let stale = piece(&b, &to);
    to.deregister().unwrap();
    assert_eq!(send(&from, &stale), WcStatus::RemOpErr);
    assert_eq!(b.wait().status, WcStatus::LocProtErr);

    let (a, b) = pair(QpType::Rc, true, 8192);
    (from, to) = (region(&a), region(&b));
    let send = |from: &Mr| {
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: &piece(&b, &to) }).unwrap();
        a.post(2, SendOp::Send, SendData::Sges(&piece(&a, from)));
        a.wait().status
    };
    (0..3).for_each(|_| assert_eq!(send(&from), WcStatus::Success));
    let range = Some((a.base() + 4, 8, a.base() + 4));
    // SAFETY: the new range is a part of the old one.
    unsafe { from.reregister(MrChange { range, ..MrChange::default() }) }.unwrap();
    assert_eq!(send(&from), WcStatus::LocProtErr);
}
