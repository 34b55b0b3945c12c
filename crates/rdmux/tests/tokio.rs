//! The async forms. Most tests use a runtime with one thread: a call that blocks would hang the test.

mod common;

use common::{host, on};
use rdmux::cm::{EventChannel, EventKind, GroupWish, Id, JoinFlags, PortSpace};
use rdmux::{Access, Context, EMPTY, QpType, RemoteMr, SendWr};

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

#[test]
fn client_and_server_run_on_one_async_thread() {
    let (a, b) = (host(), host());
    run(async {
        let mut listener = on(&b).bind((b.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        let server = async {
            let mut peer = listener.accept_async().await.unwrap();
            while let Some(message) = peer.recv_async().await.unwrap() {
                peer.send_async(&message).await.unwrap();
            }
        };
        let client = async {
            let mut c = on(&a).connect_async(to).await.unwrap();
            for n in 0..200_u32 {
                c.send_async(&n.to_be_bytes()).await.unwrap();
                assert_eq!(c.recv_async().await.unwrap().unwrap(), n.to_be_bytes());
            }
            c.close_async().await.unwrap();
        };
        both(server, client).await;
    });
}

#[test]
fn async_atomics_and_receives_into_a_buffer_complete() {
    let (a, b) = (host(), host());
    run(async {
        let mut listener = on(&b).bind((b.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        let server = async {
            let mut peer = listener.accept_async().await.unwrap();
            let memory = peer.pd().alloc(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC).unwrap();
            memory.write(0, &7_u64.to_ne_bytes());
            peer.send_async(&memory.remote().to_bytes()).await.unwrap();
            let mut buffer = [0; 8];
            let len = peer.recv_into_async(&mut buffer).await.unwrap();
            assert_eq!((len, &buffer[..4]), (Some(4), &b"done"[..]));
            assert_eq!(memory.to_vec(..8), 100_u64.to_ne_bytes());
        };
        let client = async {
            let mut c = on(&a).connect_async(to).await.unwrap();
            let remote = RemoteMr::from_bytes(&c.recv_async().await.unwrap().unwrap()).unwrap();
            assert_eq!(c.fetch_add_async(remote, 3).await.unwrap(), 7);
            assert_eq!(c.compare_and_swap_async(remote, 7, 50).await.unwrap(), 10);
            assert_eq!(c.compare_and_swap_async(remote, 10, 100).await.unwrap(), 10);
            c.send_async(b"done").await.unwrap();
            c.close_async().await.unwrap();
        };
        both(server, client).await;
    });
}

#[test]
fn async_resolver_returns_what_the_blocking_one_does() {
    let a = host();
    let resolver = rdmux::resolver::Resolver::new(&a);
    let (node, hints) = (a.address().unwrap().to_string(), rdmux::resolver::Hints::default());
    let wanted = resolver.resolve(Some(&node), Some("7"), &hints).unwrap();
    run(async {
        let answers = resolver.resolve_async(Some(&node), Some("7"), &hints).await.unwrap();
        assert_eq!(answers, wanted);
        let service = rdmux::resolver::ServiceKey::parse("storage");
        let refused = resolver.services_async(1, &service).await.unwrap_err();
        let blocking = resolver.services(1, &service).unwrap_err();
        assert_eq!(refused.cause().kind(), blocking.cause().kind(), "{refused}");
    });
}

#[test]
fn async_rdma_read_and_write_complete() {
    let (a, b) = (host(), host());
    run(async {
        let mut listener = on(&b).bind((b.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        let server = async {
            let mut peer = listener.accept_async().await.unwrap();
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            let memory = peer.pd().alloc(64, access).unwrap();
            memory.write(0, b"before");
            peer.send_async(&memory.remote().to_bytes()).await.unwrap();
            assert_eq!(peer.recv_async().await.unwrap().unwrap(), b"done");
            assert_eq!(memory.to_vec(..5), b"after");
        };
        let client = async {
            let mut c = on(&a).connect_async(to).await.unwrap();
            let remote = RemoteMr::from_bytes(&c.recv_async().await.unwrap().unwrap()).unwrap();
            let ours = c.pd().alloc(64, Access::LOCAL_WRITE).unwrap();
            c.read_async(ours.slice(..6), remote).await.unwrap();
            assert_eq!(ours.to_vec(..6), b"before");
            ours.write(0, b"after");
            c.write_async(ours.slice(..5), remote).await.unwrap();
            c.send_async(b"done").await.unwrap();
            assert_eq!(c.recv_async().await.unwrap(), None);
        };
        both(server, client).await;
    });
}

/// An operation whose future was dropped still completes. The next one must not mistake that completion for its own.
#[test]
fn read_after_a_cancelled_read_future_awaits_its_own_completion() {
    const LARGE: usize = 8 << 20;
    let (a, b) = (host(), host());
    run(async {
        let mut listener = on(&b).bind((b.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        let server = async {
            let mut peer = listener.accept_async().await.unwrap();
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let memory = peer.pd().alloc(LARGE, access).unwrap();
            memory.write(LARGE - 4, b"last");
            peer.send_async(&memory.remote().to_bytes()).await.unwrap();
            assert_eq!(peer.recv_async().await.unwrap().unwrap(), b"done");
        };
        let client = async {
            let mut c = on(&a).connect_async(to).await.unwrap();
            let remote = RemoteMr::from_bytes(&c.recv_async().await.unwrap().unwrap()).unwrap();
            let ours = c.pd().alloc(2 * LARGE, Access::LOCAL_WRITE).unwrap();
            tokio::select! {
                biased;
                done = c.read_async(ours.slice(..LARGE), remote) => done.unwrap(),
                () = std::future::ready(()) => {}
            }
            c.read_async(ours.slice(LARGE..), remote).await.unwrap();
            assert_eq!(ours.to_vec(2 * LARGE - 4..), b"last");
            c.send_async(b"done").await.unwrap();
        };
        both(server, client).await;
    });
}

/// Operations whose futures were dropped fill the send queue while their peer answers none of them: the next operation waits
/// for room.
#[test]
fn full_send_queue_waits_for_cancelled_operations_to_complete() {
    const ROOM: usize = 1 + 16;
    let a = host();
    let b = Context::builder().embedded().driven().open().unwrap();
    run(async {
        let mut listener = on(&b).depth(1).bind((b.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        let accepted = async { listener.accept_async().await.unwrap() };
        let connected = async { on(&a).depth(1).connect_async(to).await.unwrap() };
        let (peer, mut c) = tokio::join!(accepted, connected);
        let theirs = peer.pd().alloc(8, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        theirs.write(0, b"theirs");
        let ours = c.pd().alloc(8, Access::LOCAL_WRITE).unwrap();
        for _ in 0..ROOM {
            give_up(c.read_async(ours.slice(..6), theirs.remote())).await;
        }
        give_up(c.send_async(b"given up")).await;
        give_up(c.read_async(ours.slice(..6), theirs.remote())).await;
        let rest = async {
            c.send_async(b"sent").await.unwrap();
            c.read_async(ours.slice(..6), theirs.remote()).await.unwrap();
            assert_eq!(ours.to_vec(..6), b"theirs");
            c.close_async().await.unwrap();
        };
        let driven = async {
            loop {
                b.drive();
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = rest => {}
            () = driven => {}
        }
    });
}

/// Polls a future that has to wait, and drops it.
async fn give_up<T: std::fmt::Debug>(waits: impl Future<Output = rdmux::Result<T>>) {
    tokio::select! {
        biased;
        done = waits => panic!("{done:?}"),
        () = std::future::ready(()) => {}
    }
}

#[test]
fn waiting_future_outside_a_tokio_runtime_is_an_error() {
    fn fails<T>(waits: impl Future<Output = rdmux::Result<T>>) {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(waits).poll(&mut cx) {
            std::task::Poll::Ready(Err(error)) => {
                assert!(error.to_string().contains("runtime"), "{error}");
            }
            std::task::Poll::Ready(Ok(_)) => panic!("there was nothing to wait for"),
            std::task::Poll::Pending => panic!("nobody would wake it"),
        }
    }
    let a = host();
    fails(a.cq(1).unwrap().wait_async(&mut [EMPTY]));
    fails(EventChannel::new(&a).unwrap().next_async());
    let at = (a.address().unwrap(), 0).into();
    fails(on(&a).bind(at).unwrap().accept_async());
    // With a timeout. The listener never answers, so there is an event to wait for however slowly this thread runs.
    let channel = EventChannel::new(&a).unwrap();
    let silent = Id::new(&channel, PortSpace::Udp).unwrap();
    let there = silent.bind(at).unwrap().socket().unwrap();
    silent.listen(1).unwrap();
    fails(on(&a).datagram(at).unwrap().resolve_async(there));
    let resolver = rdmux::resolver::Resolver::new(&a);
    fails(resolver.resolve_async(Some("127.0.0.1"), None, &rdmux::resolver::Hints::default()));
}

#[test]
fn completions_and_events_are_awaited() {
    let a = host();
    run(async {
        let (x_cq, y_cq) = (a.cq(4).unwrap(), a.cq(4).unwrap());
        let x = a.pd().qp(QpType::Rc).cq(&x_cq).build().unwrap();
        let y = a.pd().qp(QpType::Rc).cq(&y_cq).build().unwrap();
        x.connect(y.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
        y.connect(x.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
        let buffer = y.pd().alloc(8, Access::LOCAL_WRITE).unwrap();
        let receive = async {
            y.post_recv(3, &[buffer.slice(..)]).unwrap();
            let mut batch = [EMPTY; 4];
            assert_eq!(y_cq.wait_async(&mut batch).await.unwrap(), 1);
            assert_eq!(rdmux::ok(batch[0]).unwrap().wr_id, 3);
        };
        let send = async {
            x.post_send(&SendWr::send(1).inline(&[b"hi"]).signaled()).unwrap();
            assert_eq!(x_cq.wait_async(&mut [EMPTY]).await.unwrap(), 1);
        };
        both(receive, send).await;

        let channel = EventChannel::new(&a).unwrap();
        let id = Id::new(&channel, PortSpace::Tcp).unwrap();
        let to = std::net::SocketAddr::from((a.address().unwrap(), 7471));
        id.resolve_addr(None, to, std::time::Duration::from_secs(10)).unwrap();
        assert_eq!(channel.next_async().await.unwrap().kind(), EventKind::AddrResolved);
    });
}

/// Awaits two futures on one task.
async fn both(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    use std::pin::pin;
    use std::task::Poll;
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_done, mut b_done) = (false, false);
    std::future::poll_fn(|cx| {
        a_done = a_done || a.as_mut().poll(cx).is_ready();
        b_done = b_done || b.as_mut().poll(cx).is_ready();
        if a_done && b_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn async_join_receives_multicast_datagrams() {
    let [high, low, ..] = std::process::id().to_be_bytes()[2..] else { unreachable!() };
    let group = std::net::Ipv4Addr::new(239, 79, high, low);
    let (a, b) = (host(), host());
    run(async {
        let endpoint = |context| on(context).datagram((context.address().unwrap(), 0).into());
        let (mut left, mut right) = (endpoint(&a).unwrap(), endpoint(&b).unwrap());
        right.join_async(group).await.unwrap();
        let wish = GroupWish::address(group, JoinFlags::SendOnlyFullMember);
        left.join_as_async(wish).await.unwrap();
        left.send_to_group(group, b"all").unwrap();
        assert_eq!(right.recv_from_async().await.unwrap().0, b"all");
    });
}

/// Runs rounds on a runtime of many threads, each with a timeout to detect tasks that are never woken.
fn run_in_parallel(mut round: impl AsyncFnMut()) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(WAITING).enable_all().build().unwrap().block_on(async {
        for _ in 0..ROUNDS {
            let limit = std::time::Duration::from_secs(60);
            let done = tokio::time::timeout(limit, round()).await;
            done.expect("every task should get what it waits for");
        }
    });
}

/// The number of tasks that wait at a time, and of rounds.
const WAITING: usize = 12;
const ROUNDS: usize = 10_000;

#[test]
fn tasks_waiting_on_one_cq_get_one_completion_each() {
    let a = host();
    let cq = a.cq(16).unwrap();
    let qp = a.pd().qp(QpType::Rc).cq(&cq).build().unwrap();
    // Work requests posted from now on complete at once.
    qp.fail().unwrap();
    let wait = || {
        let cq = cq.clone();
        tokio::spawn(async move { cq.wait_async(&mut [EMPTY]).await.unwrap() })
    };
    run_in_parallel(async || {
        let tasks = [(); WAITING].map(|()| wait());
        for _ in 0..WAITING {
            std::thread::yield_now();
            qp.post_recv(1, &[]).unwrap();
        }
        for task in tasks {
            assert_eq!(task.await.unwrap(), 1);
        }
    });
}

/// Runs a service that answers two requests at a time, the second first, with the path to the LID at the end of the
/// name.
fn acm_service(path: &std::path::Path) {
    use rdmux::acm::{Paths, Query};
    use rdmux_wire::acm::client::{Answer, Frame, Reply, Request};
    use std::io::{Read, Write};

    fn request(stream: &mut impl Read) -> Option<Request> {
        let mut bytes = Vec::new();
        while let Frame::Needs(len) = Frame::of_request(&bytes).unwrap() {
            let mut more = vec![0; len - bytes.len()];
            stream.read_exact(&mut more).ok()?;
            bytes.extend(more);
        }
        Some(Request::parse(&bytes).unwrap())
    }
    let listener = std::os::unix::net::UnixListener::bind(path.join("ibacm.sock")).unwrap();
    // Shows clients that requests may follow each other on a connection.
    std::fs::write(path.join("paths"), "").unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while let Some(first) = request(&mut stream) {
            let second = request(&mut stream).unwrap();
            for Request { tid, query } in [second, first] {
                let Query::Resolve { dest, .. } = query else { panic!("{query:?}") };
                let lid = dest.to_string().trim_start_matches("node").parse().unwrap();
                let path =
                    rdmux_wire::sa::PathRecord { dlid: rdmux::Lid(lid), ..Default::default() };
                let reply = Reply { tid, answer: Answer::Paths(Paths::one(path, None)) };
                let mut bytes = vec![0; reply.wire_len()];
                reply.emit(&mut bytes);
                stream.write_all(&bytes).unwrap();
            }
        }
    });
}

#[test]
fn paths_are_resolved_for_many_tasks_at_a_time() {
    use rdmux::acm::{Acm, Places, Target, address};

    let dir = rdmux_testing::temp_dir();
    acm_service(dir.path());
    run(async {
        let places = Places::new(dir.path(), dir.path());
        let acm = Acm::at([Target::Programs(places)]).unwrap();
        let resolve = |n: u16| {
            let acm = acm.clone();
            tokio::spawn(async move {
                let name = address(&format!("node{n}")).unwrap();
                acm.resolve_async(None, name).await.unwrap().paths[0].path.dlid.0
            })
        };
        let tasks: Vec<_> = (0..100).map(|n| (n, resolve(n))).collect();
        for (n, task) in tasks {
            assert_eq!(task.await.unwrap(), n);
        }
        // A task that is dropped does not take the answers of others.
        let gone = resolve(1);
        tokio::task::yield_now().await;
        gone.abort();
        assert_eq!(resolve(2).await.unwrap(), 2);
    });
}

#[test]
fn concurrent_async_acm_resolves_get_their_own_paths() {
    use rdmux::acm::{Acm, Places, Target, address};

    let dir = rdmux_testing::temp_dir();
    acm_service(dir.path());
    let acm = Acm::at([Target::Programs(Places::new(dir.path(), dir.path()))]).unwrap();
    let acm = acm.with_timeout(std::time::Duration::from_secs(3600));
    let resolve = |n: usize| {
        let acm = acm.clone();
        tokio::spawn(async move {
            let name = address(&format!("node{n}")).unwrap();
            usize::from(acm.resolve_async(None, name).await.unwrap().paths[0].path.dlid.0)
        })
    };
    run_in_parallel(async || {
        let tasks: Vec<_> = (0..WAITING).map(resolve).collect();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), n);
        }
    });
}
