//! Memory that is unmapped while it is registered: the operation that accesses it ends in an access error, with no other effect.
//! Over the network and over a ring.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

mod lab;

use std::ptr;

use lab::{ALL, Node, pair};
use rdmux_verbs::transport::attr::{QpState, QpType};
use rdmux_verbs::transport::wr::{RecvWr, SendData, SendOp, Sge, WcStatus};
use rdmux_verbs::wire::Rkey;
use rdmux_verbs::{Mr, MrInit};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};

const PAGE: usize = 4096;

/// The way in which memory becomes inaccessible.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Unmap,
    Protect,
    /// The file behind it is truncated: SIGBUS.
    Truncate,
}

/// Three registered pages. The second is inaccessible.
struct Holed {
    mr: Mr,
    base: *mut u8,
}

impl Holed {
    fn new(node: &Node, loss: Loss) -> Self {
        let file = memfd_create("holed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 3 * PAGE as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new pages, to which there are no references.
        unsafe {
            let base = mmap(ptr::null_mut(), 3 * PAGE, access, MapFlags::SHARED, &file, 0).unwrap();
            let base = base.cast::<u8>();
            let mr = Mr::register(&node.pd, MrInit::own(base, 3 * PAGE, ALL)).unwrap();
            let second = base.add(PAGE).cast();
            match loss {
                Loss::Unmap => munmap(second, PAGE).unwrap(),
                Loss::Protect => mprotect(second, PAGE, MprotectFlags::empty()).unwrap(),
                Loss::Truncate => ftruncate(&file, PAGE as u64).unwrap(),
            }
            Self { mr, base }
        }
    }

    /// The last accessible bytes, and the first inaccessible ones.
    fn sge(&self) -> Sge {
        Sge { addr: self.address(), length: 2000, lkey: self.mr.lkey() }
    }
    fn address(&self) -> u64 {
        self.mr.range().start + PAGE as u64 - 1000
    }
}

impl Drop for Holed {
    fn drop(&mut self) {
        // SAFETY: the mapping, whose second page is unmapped or the test's own.
        unsafe {
            munmap(self.base.cast(), PAGE).unwrap();
            munmap(self.base.add(2 * PAGE).cast(), PAGE).unwrap();
        }
    }
}

/// Calls `f` with two connected nodes, and then checks that two others of the same processes are not affected.
fn try_it(same_host: bool, f: impl FnOnce(&Node, &Node)) {
    let (a, b) = pair(QpType::Rc, same_host, 8192);
    let beside = |node: &Node| {
        let (device, control) = (node.device.clone(), node.control.clone());
        Node::on(device, control, node.pd.clone(), QpType::Rc, 4096, None)
    };
    let (c, d) = (beside(&a), beside(&b));
    c.connect(&d);
    d.connect(&c);
    f(&a, &b);
    d.recv(1, 0, 100);
    c.write(0, &[9; 100]);
    c.send(2, SendOp::Send, 0, 100);
    assert_eq!(c.wait().status, WcStatus::Success);
    assert_eq!(d.wait().status, WcStatus::Success);
    assert_eq!(d.read(0, 100), [9; 100]);
}

fn each(test: impl Fn(&Node, &Node, Loss)) {
    for same_host in [true, false] {
        for loss in [Loss::Unmap, Loss::Protect, Loss::Truncate] {
            try_it(same_host, |a, b| test(a, b, loss));
        }
    }
}

fn send_from_it() {
    each(|a, b, loss| {
        let holed = Holed::new(a, loss);
        b.recv(1, 0, 4096);
        a.post(2, SendOp::Send, SendData::Sges(&[holed.sge()]));
        let done = a.wait();
        assert_eq!((done.wr_id, done.status), (2, WcStatus::LocProtErr), "{loss:?}");
        assert_eq!(a.qp.state(), QpState::Err);
    });
}

fn receive_into_it() {
    each(|a, b, loss| {
        let holed = Holed::new(b, loss);
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[holed.sge()] }).unwrap();
        a.send(2, SendOp::Send, 0, 2000);
        let got = b.wait();
        assert_eq!((got.wr_id, got.status), (1, WcStatus::LocProtErr), "{loss:?}");
        assert_eq!(a.wait().status, WcStatus::RemOpErr);
        assert_eq!(b.qp.state(), QpState::Err);
    });
}

fn one_sided_on_it() {
    type Op = fn(u64, Rkey) -> SendOp;
    let ops: [(usize, Op); 4] = [
        (2000, |remote_addr, rkey| SendOp::Write { remote_addr, rkey }),
        (2000, |remote_addr, rkey| SendOp::Read { remote_addr, rkey }),
        (8, |to, rkey| SendOp::FetchAdd { remote_addr: to + 1000, rkey, add: 1 }),
        (8, |to, rkey| SendOp::CmpSwap { remote_addr: to + 1000, rkey, compare: 1, swap: 2 }),
    ];
    for (len, op) in ops {
        each(|a, b, loss| {
            let holed = Holed::new(b, loss);
            let op = op(holed.address(), holed.mr.rkey());
            a.send(2, op, 0, len);
            assert_eq!(a.wait().status, WcStatus::RemAccessErr, "{loss:?}, {op:?}");
            while b.qp.state() != QpState::Err {
                b.device.progress();
            }
        });
    }
}

fn read_into_it() {
    each(|a, b, loss| {
        let holed = Holed::new(a, loss);
        let op = SendOp::Read { remote_addr: b.base(), rkey: b.mr.rkey() };
        a.post(2, op, SendData::Sges(&[holed.sge()]));
        assert_eq!(a.wait().status, WcStatus::LocProtErr, "{loss:?}");
    });
}

/// A single test, since others would map memory at the addresses that it unmapped.
#[test]
fn unmapped_registered_memory_is_an_access_error() {
    send_from_it();
    receive_into_it();
    one_sided_on_it();
    read_into_it();
}
