//! Automatic path migration (IBTA 17.2.8), through the public API: on RoCE between addresses, on InfiniBand between ports and
//! LIDs, over a network and through shared memory.

mod common;

use std::fs;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use common::{disable, with_two_ports};
use rdmux::cm::{
    CmOption, ConnParam, EventChannel, EventKind, IbAddr, Id, IdOption, Message, PathData,
    PathRecord, PortSpace, ServiceId,
};
use rdmux::umad::Fabric;
use rdmux::{
    Access, AckTimeout, AddressVector, Ah, AsyncEvent, AttrMask, Context, Cq, Gid, Lid, MigState,
    Mr, Mtu, Pkey, Psn, Qp, QpAttr, QpEvent, QpState, QpType, RnrTimer, SendWr, WcStatus,
};

/// The bytes of memory at each end.
const SIZE: usize = 256 << 10;
/// Two retries, each after at most four times 67 ms, before a path is given up.
const TIMEOUT: AckTimeout = AckTimeout::new(14);

/// A queue pair, its completion queue, and memory.
struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(context: &Context, qp_type: QpType) -> Self {
        let (cq, pd) = (context.cq(256).unwrap(), context.pd());
        let qp = pd.qp(qp_type).cq(&cq).build().unwrap();
        let mr = pd.alloc(SIZE, Access::all()).unwrap();
        Self { context: context.clone(), cq, qp, mr }
    }

    /// Moves the queue pair from RESET to RTS.
    fn connect(&self, peer: &Self, path: &Ah) {
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let attr = QpAttr {
            access: all,
            port_num: 1,
            av: *path.vector(),
            path_mtu: Mtu::M1024,
            dest_qpn: peer.qp.qpn(),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(12),
            timeout: TIMEOUT,
            retry_cnt: 2,
            rnr_retry: 7,
            ..self.qp.attr()
        };
        let of_rc = |mask| if self.qp.qp_type() == QpType::Rc { mask } else { AttrMask::empty() };
        let rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let rts = AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
            (QpState::Rtr, rtr | of_rc(AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER)),
            (QpState::Rts, AttrMask::SQ_PSN | of_rc(rts)),
        ] {
            self.qp.modify(&QpAttr { state, ..attr }, AttrMask::STATE | mask).unwrap();
        }
    }

    fn wait(&self) -> (u64, WcStatus) {
        let done = self.cq.wait_one(None).unwrap();
        (done.wr_id, done.status)
    }
}

/// Two ends and the two paths between them, as each end sees them.
struct Pair {
    ends: [End; 2],
    paths: [[Ah; 2]; 2],
}

impl Pair {
    fn new(contexts: [&Context; 2], qp_type: QpType, paths: [[Ah; 2]; 2]) -> Self {
        let ends = contexts.map(|context| End::new(context, qp_type));
        ends[0].connect(&ends[1], &paths[0][0]);
        ends[1].connect(&ends[0], &paths[1][0]);
        Self { ends, paths }
    }

    /// Arms a path on both ends, and waits until each has seen that the other has armed it, too.
    fn arm(&self, path: usize) {
        for (end, paths) in self.ends.iter().zip(&self.paths) {
            end.qp.arm(&paths[path]).unwrap();
        }
        self.until_both_are(MigState::Armed);
    }

    fn until_both_are(&self, state: MigState) {
        while self.ends.iter().any(|end| end.qp.migration() != state) {
            assert!(self.ends.iter().all(|end| end.qp.state() == QpState::Rts));
            thread::yield_now();
        }
    }

    /// Returns whether both ends use a path.
    fn is_at(&self, path: usize) -> bool {
        let is_at = |end: &End, paths: &[Ah; 2]| {
            let AddressVector { dgid, dlid, port_num, src_path_bits, .. } = end.qp.attr().av;
            let want = paths[path].vector();
            (dgid, dlid, port_num, src_path_bits)
                == (want.dgid, want.dlid, want.port_num, want.src_path_bits)
        };
        self.ends.iter().zip(&self.paths).all(|(end, paths)| is_at(end, paths))
    }

    /// Exchanges a message each way, and runs a WRITE, a READ and an atomic operation.
    fn exchange(&self, fill: u8) {
        let [a, b] = &self.ends;
        for (from, to) in [(a, b), (b, a)] {
            from.mr.write(0, &[fill; 9000]);
            to.qp.post_recv(1, &[to.mr.slice(10_000..20_000)]).unwrap();
            from.qp.post_send(&SendWr::send(2).sges(&[from.mr.slice(..9000)]).signaled()).unwrap();
            assert_eq!((to.wait(), from.wait()), ((1, WcStatus::Success), (2, WcStatus::Success)));
            assert_eq!(to.mr.to_vec(10_000..19_000), [fill; 9000]);
        }
    }

    /// Waits until both ends report that they have migrated, and nothing else.
    fn both_have_migrated(&self) {
        let mut missing = self.ends.each_ref().map(|end| end.qp.qpn()).to_vec();
        for end in &self.ends {
            while missing.contains(&end.qp.qpn()) {
                match end.context.next_event(None).unwrap() {
                    Some(AsyncEvent::Qp { qpn, event: QpEvent::PathMig }) => {
                        assert!(missing.contains(&qpn), "once");
                        missing.retain(|other| *other != qpn);
                    }
                    Some(event @ AsyncEvent::Qp { .. }) => panic!("{event:?}"),
                    _ => {}
                }
            }
            assert_eq!(end.qp.migration(), MigState::Migrated);
        }
    }
}

/// Returns a host with two addresses that no other host has.
fn host_with_two_addresses() -> Context {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    let [high, low, ..] = std::process::id().wrapping_mul(0x9e37_79b1).to_be_bytes();
    let n = COUNT.fetch_add(2, Ordering::Relaxed);
    let address = |n: u8| format!("'127.{}.{high}.{low}'", 150 + n);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("addresses = [{}, {}]\n", address(n), address(n + 1))).unwrap();
    Context::builder().embedded().config(file.path()).open().unwrap()
}

/// Returns the paths between the first addresses of two hosts, and between their second ones.
fn between_addresses(a: &Context, b: &Context) -> [[Ah; 2]; 2] {
    let to = |context: &Context| [0, 1].map(|index| Ah::to_gid(context.gid(index).unwrap(), index));
    [to(b), to(a)]
}

/// Runs a test on paths between the addresses of two hosts, and within one.
fn over_roce(test: impl Fn(&Pair), qp_type: QpType) {
    let (a, b) = (host_with_two_addresses(), host_with_two_addresses());
    for (a, b) in [(&a, &b), (&a, &a)] {
        let pair = Pair::new([a, b], qp_type, between_addresses(a, b));
        assert_eq!(pair.ends[0].qp.is_same_host(), std::ptr::eq(a, b));
        test(&pair);
    }
}

fn migrates_by_request(pair: &Pair) {
    pair.exchange(1);
    for (path, end) in [(1, 0), (0, 1), (1, 1)] {
        pair.arm(path);
        pair.exchange(2);
        assert!(pair.is_at(1 - path));
        pair.ends[end].qp.migrate().unwrap();
        pair.both_have_migrated();
        assert!(pair.is_at(path));
        pair.exchange(3);
    }
}

#[test]
fn a_connection_migrates_by_request_from_address_to_address() {
    over_roce(migrates_by_request, QpType::Rc);
}

#[test]
fn uc_connection_migrates_by_its_messages() {
    over_roce(
        |pair| {
            let [a, b] = &pair.ends;
            for (end, paths) in pair.ends.iter().zip(&pair.paths) {
                end.qp.arm(&paths[1]).unwrap();
            }
            let message = |from: &End, to: &End, fill: u8| {
                to.qp.post_recv(1, &[to.mr.slice(..100)]).unwrap();
                from.qp.post_send(&SendWr::send(2).inline(&[&[fill; 100]]).signaled()).unwrap();
                assert_eq!(
                    (to.wait(), from.wait()),
                    ((1, WcStatus::Success), (2, WcStatus::Success))
                );
                assert_eq!(to.mr.to_vec(..100), [fill; 100]);
            };
            assert_eq!(a.qp.migration(), MigState::Rearm);
            message(a, b, 1);
            message(b, a, 2);
            pair.until_both_are(MigState::Armed);
            a.qp.migrate().unwrap();
            message(b, a, 3);
            assert_eq!(b.qp.migration(), MigState::Armed, "it does not know yet");
            message(a, b, 4);
            pair.both_have_migrated();
            message(b, a, 5);
        },
        QpType::Uc,
    );
}

/// Runs a test on two ports of one fabric or of two, at one host or at two.
fn over_infiniband(test: impl Fn(&Pair, &Fabric)) {
    let one = Fabric::managed("switch:6").unwrap();
    let two = one.beside("two", "switch:3").unwrap();
    for (n, fabrics) in [[&one, &one], [&one, &two]].into_iter().enumerate() {
        let host = |name: &str| with_two_ports(fabrics, &format!("{name}{n}"));
        let (a, b) = (host("a"), host("b"));
        for (a, b) in [(&a, &b), (&b, &b)] {
            let to = |context: &Context| {
                [1, 2]
                    .map(|port| Ah::to_lid(context.query_port_number(port).unwrap().lid).port(port))
            };
            let pair = Pair::new([a, b], QpType::Rc, [to(b), to(a)]);
            test(&pair, &one);
        }
    }
}

#[test]
fn a_connection_migrates_by_request_from_port_to_port() {
    over_infiniband(|pair, _| migrates_by_request(pair));
}

/// The number of messages sent while a link fails, and the length of each.
const MESSAGES: u64 = 400;
const LEN: usize = 6000;

/// Sends messages both ways, and calls `meanwhile` when half of them were sent. Every byte arrives, once and in
/// order.
fn stream(pair: &Pair, meanwhile: impl FnOnce()) {
    const WINDOW: u64 = 16;
    let mut meanwhile = Some(meanwhile);
    let at = |n: u64, of: usize| of * SIZE / 2 + usize::try_from(n % WINDOW).unwrap() * 8000;
    let content = |n: u64, end: usize| {
        let [low, ..] = (n * 31 + end as u64).to_le_bytes();
        vec![low; LEN]
    };
    let post_recv = |end: &End, n: u64| {
        let place = at(n, 1);
        end.qp.post_recv(n, &[end.mr.slice(place..place + LEN)]).unwrap();
    };
    let post_send = |(i, end): (usize, &End), n: u64| {
        let place = at(n, 0);
        end.mr.write(place, &content(n, i));
        let sges = [end.mr.slice(place..place + LEN)];
        end.qp.post_send(&SendWr::send(MESSAGES + n).sges(&sges).signaled()).unwrap();
    };
    for (i, end) in pair.ends.iter().enumerate() {
        (0..WINDOW).for_each(|n| post_recv(end, n));
        (0..WINDOW).for_each(|n| post_send((i, end), n));
    }
    let (mut received, mut sent) = ([0; 2], [0; 2]);
    while received != [MESSAGES; 2] || sent != [MESSAGES; 2] {
        for (i, end) in pair.ends.iter().enumerate() {
            let Some(done) = end.cq.poll_one() else { continue };
            assert_eq!(done.status, WcStatus::Success, "{done:?}");
            if done.wr_id < MESSAGES {
                let n = received[i];
                assert_eq!(done.wr_id, n);
                let place = at(n, 1);
                assert_eq!(end.mr.to_vec(place..place + LEN), content(n, 1 - i), "message {n}");
                received[i] += 1;
                if n + WINDOW < MESSAGES {
                    post_recv(end, n + WINDOW);
                }
            } else {
                assert_eq!(done.wr_id - MESSAGES, sent[i]);
                let next = sent[i] + WINDOW;
                sent[i] += 1;
                if next < MESSAGES {
                    post_send((i, end), next);
                }
            }
        }
        if sent[0] >= MESSAGES / 2
            && let Some(meanwhile) = meanwhile.take()
        {
            meanwhile();
        }
    }
}

#[test]
fn no_byte_is_lost_when_a_port_goes_down_under_traffic() {
    over_infiniband(|pair, _| {
        let a = &pair.ends[0].context;
        pair.arm(1);
        stream(pair, || disable(a, 1));
        pair.both_have_migrated();
        assert!(pair.is_at(1));
        pair.exchange(9);
    });
}

/// The service ID of these tests.
const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0a9c);

/// Two ends that the connection manager has connected.
struct Managed {
    pair: Pair,
    channels: [EventChannel; 2],
    ids: [Id; 2],
}

/// Returns a path record between two GIDs, and between their LIDs, if any.
fn record(flags: u32, [from, to]: [(Gid, Lid); 2]) -> PathData {
    let record = PathRecord {
        sgid: from.0,
        dgid: to.0,
        slid: from.1,
        dlid: to.1,
        pkey: Pkey::DEFAULT,
        mtu: Mtu::M1024.code(),
        packet_life_time: 8,
        hop_limit: if from.1 == Lid(0) { 64 } else { 0 },
        ..PathRecord::default()
    };
    PathData { flags: flags | PathData::BIDIRECTIONAL, record }
}

impl Managed {
    /// Connects along the first of these paths, with the second as alternate path if it has `alternate`. `ends` are the ends of the
    /// paths, of the two contexts.
    fn new(
        contexts: [&Context; 2],
        paths: [[Ah; 2]; 2],
        ends: [[(Gid, Lid); 2]; 2],
        alternate: bool,
    ) -> Self {
        let channels = contexts.map(|context| EventChannel::new(context).unwrap());
        let new = |channel| Id::with_type(channel, PortSpace::Ib, QpType::Rc).unwrap();
        let (listener, active) = (new(&channels[1]), new(&channels[0]));
        for id in [&listener, &active] {
            id.set_option(IdOption::AckTimeout(TIMEOUT.code())).unwrap();
            id.set_option(IdOption::Cm(CmOption::Messages(true))).unwrap();
        }
        listener.bind(IbAddr::new(Gid::ZERO, SERVICE)).unwrap();
        listener.listen(1).unwrap();
        let mut records = vec![record(PathData::PRIMARY, ends.map(|end| end[0]))];
        if alternate {
            records.push(record(PathData::ALTERNATE, ends.map(|end| end[1])));
        }
        let dst = IbAddr::new(ends[1][0].0, SERVICE);
        active.resolve_along(None, dst, &records).unwrap();
        next(&channels[0], EventKind::RouteResolved);
        let ends = contexts.map(|context| End::new(context, QpType::Rc));
        let all = |retry_count| ConnParam {
            retry_count,
            rnr_retry_count: 7,
            responder_resources: 4,
            initiator_depth: 4,
            ..ConnParam::default()
        };
        active.attach_qp(&ends[0].qp).unwrap();
        active.connect(&all(2)).unwrap();
        let mut request = next(&channels[1], EventKind::ConnectRequest);
        let passive = request.take_id().unwrap();
        assert_eq!(request.negotiated().unwrap().alternate.is_some(), alternate);
        passive.attach_qp(&ends[1].qp).unwrap();
        passive.accept(&all(0)).unwrap();
        next(&channels[0], EventKind::Established);
        next(&channels[1], EventKind::Established);
        Self { pair: Pair { ends, paths }, channels, ids: [active, passive] }
    }

    /// Loads an alternate path on both ends by LAP and APR, and arms it.
    fn load(&self, ends: [(Gid, Lid); 2]) {
        let records = [record(PathData::ALTERNATE, ends)];
        self.ids[0].load_alternate(&records, b"please").unwrap();
        let asked = next(&self.channels[1], EventKind::AlternateRequest);
        assert!(matches!(asked.message().unwrap().message, Message::Lap(_)));
        self.ids[1].ask_for_time(10, &[]).unwrap();
        next(&self.channels[0], EventKind::MoreTime);
        self.ids[1].accept_alternate(b"yes").unwrap();
        next(&self.channels[0], EventKind::AlternateResponse);
        self.pair.until_both_are(MigState::Armed);
    }

    /// Checks that both ends have migrated, and reports it to the connection manager.
    fn have_migrated(&self) {
        self.pair.both_have_migrated();
        self.ids.iter().for_each(|id| id.notify_migrated().unwrap());
    }
}

fn next(channel: &EventChannel, kind: EventKind) -> rdmux::cm::Event {
    channel.next(None).unwrap().unwrap().expect(kind, "go on").unwrap()
}

#[test]
fn a_connection_of_the_connection_manager_migrates_and_gets_further_paths_by_lap() {
    let (a, b) = (host_with_two_addresses(), host_with_two_addresses());
    for (a, b) in [(&a, &b), (&a, &a)] {
        let ends = [a, b].map(|host| [0, 1].map(|n| (host.gid(n).unwrap(), Lid(0))));
        let managed = Managed::new([a, b], between_addresses(a, b), ends, true);
        let pair = &managed.pair;
        pair.until_both_are(MigState::Armed);
        pair.exchange(1);
        assert!(pair.is_at(0));
        for (path, end) in [(1, 0), (0, 1), (1, 1), (0, 0)] {
            pair.ends[end].qp.migrate().unwrap();
            managed.have_migrated();
            assert!(pair.is_at(path));
            pair.exchange(2);
            managed.load(ends.map(|end| end[1 - path]));
            pair.exchange(3);
        }
        managed.ids[0].disconnect().unwrap();
        next(&managed.channels[1], EventKind::Disconnected);
    }
}

#[test]
fn no_byte_is_lost_when_a_port_goes_down_under_a_connection_of_the_connection_manager() {
    let fabric = Fabric::managed("switch:6").unwrap();
    let host = |name: &str| with_two_ports([&fabric; 2], name);
    let (a, b) = (host("a"), host("b"));
    let port = |context: &Context, number: u8| context.query_port_number(number).unwrap();
    // The connection manager's paths also have the GID.
    let to = |context: &Context| {
        [1, 2].map(|n| {
            let dgid = context.gid_of_port(n, 0).unwrap();
            let by_lid = Ah::to_lid(port(context, n).lid).port(n);
            Ah::from_vector(AddressVector { dgid, ..*by_lid.vector() })
        })
    };
    let end = |context: &Context, n: u8| (context.gid_of_port(n, 0).unwrap(), port(context, n).lid);
    let ends = [&a, &b].map(|context| [1, 2].map(|n| end(context, n)));
    let managed = Managed::new([&a, &b], [to(&b), to(&a)], ends, true);
    let pair = &managed.pair;
    pair.until_both_are(MigState::Armed);
    stream(pair, || disable(&a, 1));
    managed.have_migrated();
    assert!(pair.is_at(1));
    pair.exchange(9);
    // LAP, MRA, APR and DREQ use the second port, too. One end has no other link, so the next path leads from it to the other
    // end's first port.
    managed.load([ends[0][1], ends[1][0]]);
    pair.exchange(10);
    managed.ids[0].disconnect().unwrap();
    next(&managed.channels[1], EventKind::Disconnected);
    managed.ids[1].disconnect().unwrap();
    next(&managed.channels[0], EventKind::Disconnected);
}
