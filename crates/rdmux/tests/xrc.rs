//! Extended reliable connections, through the public API.

mod common;

use std::fs::File;
use std::time::Duration;

use common::{host, over_every_link};
use rdmux::{
    Access, AsyncEvent, Cause, Context, Cq, EMPTY, Endpoint, Mr, Pd, Qp, QpEvent, QpState, QpType,
    Qpn, SendWr, Srq, WcStatus, Xrcd, XrcdFlags,
};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));
const CREATE: XrcdFlags = XrcdFlags { create: true, exclusive: false };
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// The bytes of a receiver's memory.
const LEN: usize = 64 << 10;

/// A shared receive queue of a domain, with memory.
struct Receiver {
    srq: Srq,
    cq: Cq,
    memory: Mr,
    domain: Xrcd,
    _pd: Pd,
}

impl Receiver {
    fn new(context: &Context, domain: &Xrcd) -> Self {
        let (pd, cq) = (context.pd(), context.cq(16).unwrap());
        let srq = pd.xrc_srq(domain, &cq, 8, 2).unwrap();
        let memory = pd.alloc(LEN, ALL).unwrap();
        Self { srq, cq, memory, domain: domain.clone(), _pd: pd }
    }
    fn number(&self) -> u32 {
        self.srq.number().unwrap()
    }
    /// Checks that a message from a connected queue pair arrives.
    fn hears(&self, from: &Qp, words: &[u8]) {
        self.srq.post_recv(7, &[self.memory.slice(..)]).unwrap();
        let wr = SendWr::send(1).srq(self.number());
        from.post_send(&wr.inline(&[words]).signaled()).unwrap();
        let done = self.cq.wait_one(TIMEOUT).unwrap();
        assert_eq!((done.wr_id, done.byte_len as usize), (7, words.len()));
        assert_eq!(self.memory.to_vec(..words.len()), words);
        from.send_cq().wait_one(TIMEOUT).unwrap();
    }
}

/// Returns a queue pair that only sends, and so needs no completion queue for receives.
fn sender(context: &Context) -> Qp {
    let cq = context.cq(16).unwrap();
    context.pd().qp(QpType::XrcSend).send_cq(&cq).build().unwrap()
}

fn at(context: &Context, qpn: Qpn) -> Endpoint {
    let lid = context.query_port().unwrap().lid;
    Endpoint { lid, ..Endpoint::new(context.gid(0).unwrap(), qpn) }
}

fn file() -> File {
    File::open(std::env::current_exe().unwrap()).unwrap()
}

fn is_invalid<T: std::fmt::Debug>(result: rdmux::Result<T>) -> bool {
    matches!(result.unwrap_err().cause(), Cause::Invalid(_))
}

#[test]
fn two_processes_of_an_xrc_domain_receive_from_one_sender() {
    over_every_link(one_sender_to_two);
}

fn one_sender_to_two(a: &Context, b: &Context) {
    let domain = Xrcd::of_file(a, file(), CREATE).unwrap();
    let (first, second) = (Receiver::new(a, &domain), Receiver::new(a, &domain));
    let qp = sender(b);
    let target = domain.alloc(qp.endpoint(0).unwrap(), 0, ALL).unwrap();
    assert_eq!(domain.query(target).unwrap().state, QpState::Rtr);
    qp.connect(at(a, target), 0, Access::empty()).unwrap();
    for _ in 0..3 {
        first.hears(&qp, b"to the first");
        second.hears(&qp, b"and to the second");
    }
    // Of several packets.
    let long: Vec<u8> = (0..=255).cycle().take(LEN).collect();
    let own = qp.pd().alloc(LEN, Access::LOCAL_WRITE).unwrap();
    own.write(0, &long);
    let write = SendWr::write(2, first.memory.remote()).srq(first.number());
    qp.post_send(&write.sges(&[own.slice(..)]).signaled()).unwrap();
    qp.send_cq().wait_one(TIMEOUT).unwrap();
    assert_eq!(first.memory.to_vec(..), long);
    // The queue selects whose memory is accessed; the process that owns it executes atomics.
    second.memory.store(64, 40);
    let add = SendWr::fetch_add(2, second.memory.remote().at(64), 2).srq(second.number());
    qp.post_send(&add.sges(&[own.slice(..8)]).signaled()).unwrap();
    qp.send_cq().wait_one(TIMEOUT).unwrap();
    assert_eq!((own.load(0), second.memory.load(64)), (40, 42));
    let read = SendWr::read(3, second.memory.remote().at(64)).srq(second.number());
    qp.post_send(&read.sges(&[own.slice(8..16)]).signaled()).unwrap();
    qp.send_cq().wait_one(TIMEOUT).unwrap();
    assert_eq!(own.load(8), 42);
    first.domain.unregister(target).unwrap();
    assert!(is_invalid(domain.query(target)), "it was the last to hold it");
}

#[test]
fn xrc_target_lives_until_last_handle_and_registration() {
    let context = host();
    let domain = Xrcd::private(&context).unwrap();
    let (qp, receiver) = (sender(&context), Receiver::new(&context, &domain));
    let made = domain.create().unwrap();
    assert_eq!(made.attr().unwrap().state, QpState::Reset);
    made.accept(qp.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
    qp.connect(made.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
    let (target, opened) = (made.qpn(), domain.open_target(made.qpn()).unwrap());
    drop(made);
    receiver.hears(&qp, b"one handle is left");
    domain.register(target).unwrap();
    domain.register(target).unwrap();
    drop(opened);
    receiver.hears(&qp, b"one registration is left");
    domain.unregister(target).unwrap();
    assert!(is_invalid(domain.unregister(target)));
    assert!(is_invalid(domain.open_target(target)));
}

#[test]
fn xrcd_of_a_file_follows_create_and_exclusive_flags() {
    let context = host();
    let flags = |create, exclusive| XrcdFlags { create, exclusive };
    let open = |create, exclusive| Xrcd::of_file(&context, file(), flags(create, exclusive));
    let none = open(false, false).unwrap_err();
    assert!(matches!(none.cause(), Cause::Resources(_)), "{none}");
    let _first = open(true, true).unwrap();
    assert!(is_invalid(open(true, true)));
    let second = open(false, false).unwrap();
    assert!(is_invalid(second.register(Qpn::new(0x0080_0000))));
}

#[test]
fn srq_of_another_xrcd_fails_sender_and_holders_get_access_err_event() {
    let context = host();
    let domain = Xrcd::private(&context).unwrap();
    let (qp, other) =
        (sender(&context), Receiver::new(&context, &Xrcd::private(&context).unwrap()));
    let target = domain.create().unwrap();
    domain.register(target.qpn()).unwrap();
    target.accept(qp.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
    qp.connect(target.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
    qp.post_send(&SendWr::send(1).srq(other.number()).inline(&[b"lost"])).unwrap();
    let mut one = [EMPTY];
    assert_eq!(qp.send_cq().wait(&mut one, TIMEOUT).unwrap(), 1);
    assert_eq!(one[0].status, WcStatus::RemInvReqErr);
    let qpn = target.qpn();
    // The handle and the registration were each notified before that the first packet had arrived.
    let next = || match context.next_event(TIMEOUT).unwrap().unwrap() {
        AsyncEvent::XrcTarget { qpn, event } => ("handle", qpn, event),
        AsyncEvent::XrcRegistered { qpn, event } => ("registration", qpn, event),
        other => panic!("{other:?}"),
    };
    let mut heard = [next(), next(), next(), next()];
    heard[..2].sort_by_key(|e| e.0);
    heard[2..].sort_by_key(|e| e.0);
    let of = |event| [("handle", qpn, event), ("registration", qpn, event)];
    assert_eq!(heard[..2], of(QpEvent::CommEst));
    assert_eq!(heard[2..], of(QpEvent::AccessErr));
}
