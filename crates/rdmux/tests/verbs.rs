//! Verbs, through the public API: what the wrappers add to the device.

mod common;

use std::ptr::NonNull;
use std::time::Duration;

use common::host;
use rdmux::{
    Access, Ah, AsyncEvent, Cause, Context, EMPTY, Qkey, Qp, QpEvent, QpState, QpType, SendWr,
    WcStatus,
};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// Returns two RC queue pairs of one process, connected to each other.
fn pair(context: &Context, depth: u32) -> (Qp, Qp) {
    let new = || {
        let cq = context.cq(depth).unwrap();
        let qp = context.pd().qp(QpType::Rc).cq(&cq).max_send_wr(depth).max_recv_wr(depth);
        qp.build().unwrap()
    };
    let (x, y) = (new(), new());
    x.connect(y.endpoint(0).unwrap(), 0, Access::REMOTE_WRITE).unwrap();
    y.connect(x.endpoint(0).unwrap(), 0, Access::REMOTE_WRITE).unwrap();
    (x, y)
}

#[test]
fn full_send_queue_error_has_its_depth() {
    let context = host();
    let (x, _y) = pair(&context, 2);
    let wr = SendWr::send(1).inline(&[b"x"]);
    let (taken, error) = x.post_sends(&[wr; 3]).unwrap_err();
    assert_eq!(taken, 2);
    assert!(matches!(error.cause(), Cause::Full(2)), "{error}");
    assert!(
        error.to_string().ends_with("poll completions first, or create a larger queue"),
        "{error}"
    );
}

#[test]
fn a_failed_queue_pair_flushes_its_work() {
    let context = host();
    let (x, _y) = pair(&context, 4);
    let buffer = x.pd().alloc(8, Access::LOCAL_WRITE).unwrap();
    x.post_recv(7, &[buffer.slice(..)]).unwrap();
    x.fail().unwrap();
    assert_eq!(x.state(), QpState::Err);
    let mut one = [EMPTY];
    assert_eq!(x.recv_cq().wait(&mut one, TIMEOUT).unwrap(), 1);
    assert_eq!((one[0].wr_id, one[0].status), (7, WcStatus::WrFlushErr));
}

#[test]
fn cq_armed_solicited_only_wakes_for_solicited_send() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let context = host();
    let (x, y) = pair(&context, 4);
    let cq = y.recv_cq();
    let at_once = Timespec::default();
    let readable = |timeout| poll(&mut [PollFd::new(cq, PollFlags::IN)], timeout) == Ok(1);
    let buffer = y.pd().alloc(8, Access::LOCAL_WRITE).unwrap();
    (1..=2).for_each(|i| y.post_recv(i, &[buffer.slice(..)]).unwrap());
    cq.arm(true).unwrap();
    x.post_send(&SendWr::send(1).inline(&[b"sleep"]).signaled()).unwrap();
    // The acknowledgement shows that the message is in the queue.
    x.send_cq().wait_one(TIMEOUT).unwrap();
    assert!(!readable(Some(&at_once)));
    x.post_send(&SendWr::send(2).inline(&[b"wake"]).solicited()).unwrap();
    assert!(readable(None));
    assert_eq!(cq.wait_one(TIMEOUT).unwrap().wr_id, 1);
    assert_eq!(cq.wait_one(TIMEOUT).unwrap().wr_id, 2);
}

#[test]
fn cq_wait_without_completions_times_out() {
    let context = host();
    let cq = context.cq(4).unwrap();
    assert_eq!(cq.wait(&mut [EMPTY], Some(Duration::from_millis(1))).unwrap(), 0);
    assert!(cq.wait_one(Some(Duration::ZERO)).unwrap_err().is_timeout());
    cq.resize(100).unwrap();
    assert_eq!(cq.capacity(), 100);
    assert!(cq.resize(0).is_err());
}

#[test]
fn srq_below_its_limit_raises_srq_limit_event() {
    let context = host();
    let (pd, cq) = (context.pd(), context.cq(8).unwrap());
    let srq = pd.srq(4, 1).unwrap();
    let x = pd.qp(QpType::Rc).cq(&cq).build().unwrap();
    let y = pd.qp(QpType::Rc).cq(&cq).srq(&srq).build().unwrap();
    x.connect(y.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
    y.connect(x.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
    let buffer = pd.alloc(8, Access::LOCAL_WRITE).unwrap();
    srq.post_recv(1, &[buffer.slice(..4)]).unwrap();
    srq.post_recv(2, &[buffer.slice(4..)]).unwrap();
    srq.set_limit(2).unwrap();
    x.post_send(&SendWr::send(9).inline(&[b"four"])).unwrap();
    assert_eq!(cq.wait_one(TIMEOUT).unwrap().wr_id, 1);
    loop {
        match context.next_event(TIMEOUT).unwrap() {
            Some(AsyncEvent::SrqLimit) => break,
            Some(AsyncEvent::Qp { event: QpEvent::CommEst, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(buffer.to_vec(..4), b"four");
}

#[test]
fn registered_vector_is_returned_by_into_vec() {
    let context = host();
    let pd = context.pd();
    let mr = pd.register(vec![1, 2, 3], Access::LOCAL_WRITE).unwrap();
    let clone = mr.clone();
    let mr = mr.into_vec().unwrap_err();
    drop(clone);
    assert_eq!(mr.into_vec().unwrap(), [1, 2, 3]);

    let bytes = Box::leak(Box::new([0_u8; 16]));
    let start = NonNull::from(&mut bytes[0]);
    // SAFETY: leaked, and accessed only through the region from here on.
    let mr = unsafe { pd.register_raw(start, 16, Access::LOCAL_WRITE) }.unwrap();
    mr.write(3, b"abc");
    assert_eq!(mr.to_vec(2..7), b"\0abc\0");
    assert_eq!(mr.addr(), start.as_ptr().expose_provenance() as u64);
}

#[test]
fn reregister_changes_access_and_keeps_the_rkey() {
    let context = host();
    let (x, y) = pair(&context, 4);
    let mut target = y.pd().alloc(8, Access::LOCAL_WRITE).unwrap();
    let before = target.remote();
    target.reregister(Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    assert_eq!(target.rkey(), before.rkey);
    x.post_send(&SendWr::write(1, before).inline(&[b"new"]).signaled()).unwrap();
    x.send_cq().wait_one(TIMEOUT).unwrap();
    assert_eq!(target.to_vec(..3), b"new");
    target.reregister(Access::LOCAL_WRITE).unwrap();
    x.post_send(&SendWr::write(2, before).inline(&[b"old"]).signaled()).unwrap();
    let error = x.send_cq().wait_one(TIMEOUT).unwrap_err();
    assert!(matches!(error.cause(), Cause::Completion(WcStatus::RemAccessErr)), "{error}");

    let _clone = target.clone();
    assert!(target.reregister(Access::LOCAL_WRITE).is_err());
}

#[test]
fn ud_send_without_ah_fails_and_wrong_qkey_is_dropped() {
    let context = host();
    let (pd, cq) = (context.pd(), context.cq(8).unwrap());
    let new = || {
        let qp = pd.qp(QpType::Ud).cq(&cq).build().unwrap();
        qp.activate(Qkey(5)).unwrap();
        qp
    };
    let (x, y) = (new(), new());
    let buffer = pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    y.post_recv(1, &[buffer.slice(..)]).unwrap();
    assert!(x.post_send(&SendWr::send(2).inline(&[b"lost"])).is_err());
    let ah = Ah::to_ip(context.address().unwrap(), 0);
    let send = |text: &[u8], key| {
        x.post_send(&SendWr::send(3).inline(&[text]).to(&ah, y.qpn(), Qkey(key))).unwrap();
    };
    send(b"wrong", 6);
    send(b"right", 5);
    let done = cq.wait_one(TIMEOUT).unwrap();
    assert_eq!((done.wr_id, done.byte_len, done.src_qp), (1, 45, x.qpn()));
    assert_eq!(buffer.to_vec(40..45), b"right");
}

#[test]
fn queue_pair_without_cq_or_beyond_limits_is_refused() {
    let context = host();
    let error = context.pd().qp(QpType::Rc).build().unwrap_err();
    assert!(error.to_string().contains("call `cq`"), "{error}");
    let cq = context.cq(1).unwrap();
    let error = context.pd().qp(QpType::Rc).cq(&cq).max_sge(1000).build().unwrap_err();
    assert!(error.to_string().contains("exceed the device's limit"), "{error}");
}

#[test]
fn memory_region_beyond_available_memory_is_an_error() {
    let pd = host().pd();
    for len in [1 << 60, isize::MAX as usize, usize::MAX] {
        let error = pd.alloc(len, Access::LOCAL_WRITE).unwrap_err();
        assert!(matches!(error.cause(), Cause::Resources(_)), "{error}");
        assert!(error.to_string().contains(&len.to_string()), "{error}");
    }
}
