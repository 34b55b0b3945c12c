//! Automatic path migration: states, arming, and that nothing is lost when the path changes.

use super::*;
use rdmux_transport::ModifyError;
use rdmux_transport::attr::{AddressVector, MigState};

const OK: WcStatus = WcStatus::Success;
const WRITE: SendOp = SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) };
const CONNECTED: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::XrcSend, QpType::XrcRecv];

/// Returns the address of a queue pair's end of a path; 0 is the first path.
fn at(qpn: u32, path: u8) -> Gid {
    core::net::Ipv4Addr::new(10, path, 0, qpn as u8).into()
}

/// Returns the alternate path from one queue pair to the other.
fn alternate(to: u32, path: u8) -> AddressVector {
    AddressVector { is_global: true, dgid: at(to, path), sgid_index: path, ..Default::default() }
}

/// Requests a migration state, optionally with a path to another address of the peer.
fn ask(s: &mut Side2, state: MigState, path: Option<u8>) -> Result<(), ModifyError> {
    let to = 3 - s.qp.qpn().get();
    let mut mask = AttrMask::PATH_MIG_STATE;
    let mut attr = QpAttr { path_mig_state: state as u8, ..s.qp.attr() };
    if let Some(path) = path {
        mask |= AttrMask::ALT_PATH;
        (attr.alt_av, attr.alt_port_num) = (alternate(to, path), 1);
        attr.alt_timeout = AckTimeout::new(12);
    }
    s.qp.modify(Time::ZERO, &attr, mask, &mut s.w)
}

fn state(s: &Side2) -> MigState {
    MigState::of_code(s.qp.attr().path_mig_state).unwrap()
}

/// A wire with any number of paths.
struct Paths {
    p: Pair,
    /// The paths that drop everything.
    dead: Vec<u8>,
    /// The packets delivered: sender, path, MigReq.
    log: Vec<(u32, u8, bool)>,
}

impl Paths {
    fn new(qp_type: QpType) -> Self {
        Self { p: Pair::new(qp_type), dead: Vec::new(), log: Vec::new() }
    }

    /// Returns a pair with both ends armed to migrate from path 0 to path 1.
    fn armed() -> Self {
        let mut paths = Self::new(QpType::Rc);
        paths.arm(1);
        paths
    }

    fn arm(&mut self, path: u8) {
        for side in [&mut self.p.a, &mut self.p.b] {
            ask(side, MigState::Rearm, Some(path)).unwrap();
        }
        self.run();
        assert_eq!(self.states(), [MigState::Armed; 2]);
        self.log.clear();
    }

    fn states(&self) -> [MigState; 2] {
        [state(&self.p.a), state(&self.p.b)]
    }

    /// Delivers packets along their paths until nothing moves.
    fn run(&mut self) {
        self.run_with(|_, _| true);
    }

    fn run_with(&mut self, mut passes: impl FnMut(u32, &Packet<'_>) -> bool) {
        loop {
            let Pair { a, b, now, .. } = &mut self.p;
            a.poll(*now);
            b.poll(*now);
            let mut moved = carry((1, a, b, *now), &self.dead, &mut self.log, &mut passes);
            let Pair { a, b, now, .. } = &mut self.p;
            moved |= carry((2, b, a, *now), &self.dead, &mut self.log, &mut passes);
            if !moved {
                return;
            }
        }
    }

    /// Lets timers expire until nothing is outstanding.
    fn run_out(&mut self) {
        self.run();
        while self.p.tick() {
            self.run();
        }
    }
}

/// Delivers the packets of one side. Their path is the sender's path at the time of sending: its address vector.
fn carry(
    (from, src, dst, now): (u32, &mut Side2, &mut Side2, Time),
    dead: &[u8],
    log: &mut Vec<(u32, u8, bool)>,
    passes: &mut impl FnMut(u32, &Packet<'_>) -> bool,
) -> bool {
    let path = path_of(src);
    let mut moved = false;
    while let Some(bytes) = src.w.packets.pop_front() {
        moved = true;
        let packet = Packet::parse(&bytes).unwrap();
        log.push((from, path, packet.bth.mig_req));
        if !dead.contains(&path) && passes(from, &packet) {
            feed_by(dst, now, &bytes, from, path);
        }
    }
    moved
}

fn path_of(s: &Side2) -> u8 {
    s.qp.attr().av.sgid_index
}

/// Delivers a packet along a path.
fn feed_by(s: &mut Side2, now: Time, bytes: &[u8], from: u32, path: u8) {
    let packet = Packet::parse(bytes).unwrap();
    let to = s.qp.qpn().get();
    let source = Source { sgid: at(from, path), dgid: at(to, path), ..source(from, to) };
    s.qp.handle_packet(now, &RxPacket { packet: &packet, source: &source }, &mut s.w);
}

#[test]
fn alt_path_and_path_mig_state_are_allowed_only_in_the_specified_transitions() {
    use QpState::{Init, Reset, Rtr, Rts, Sqd};
    for qp_type in CONNECTED {
        for (from, to, path, migrates) in [
            (Reset, Init, false, false),
            (Init, Rtr, true, false),
            (Rtr, Rts, true, true),
            (Rts, Rts, true, true),
            (Rts, Sqd, false, false),
            (Sqd, Sqd, true, true),
            (Sqd, Rts, true, true),
        ] {
            for (mask, allowed) in
                [(AttrMask::ALT_PATH, path), (AttrMask::PATH_MIG_STATE, migrates)]
            {
                let mut s = Side2::new(1, qp_type, false);
                let attr = QpAttr { state: to, ..attributes(1, 2) };
                [Init, Rtr, Rts, Sqd]
                    .into_iter()
                    .take_while(|state| *state <= from)
                    .for_each(|state| s.step(&attr, state));
                let mask = required(from, to, qp_type) | mask;
                let got = s.qp.modify(Time::ZERO, &attr, mask, &mut s.w);
                assert_eq!(got.is_ok(), allowed, "{qp_type:?} {from:?} {to:?} {mask:?}: {got:?}");
            }
        }
    }
    let mut ud = Side2::new(1, QpType::Ud, false);
    ud.up(&attributes(1, 2));
    assert!(matches!(
        ask(&mut ud, MigState::Migrated, Some(1)),
        Err(ModifyError::NotAllowed { .. })
    ));
}

#[test]
fn path_migration_state_transitions_are_those_of_the_specification() {
    use MigState::{Armed, Migrated, Rearm};
    let refused = |got: Result<(), ModifyError>| {
        let Err(ModifyError::Migration { from, to, why, .. }) = got else { panic!("{got:?}") };
        (from, to, why)
    };
    let mut paths = Paths::new(QpType::Rc);
    let a = &mut paths.p.a;
    assert_eq!(state(a), Migrated);
    ask(a, Migrated, None).unwrap();
    assert_eq!(refused(ask(a, Rearm, None)).2, "load an alternate path first");
    assert_eq!(refused(ask(a, Armed, Some(1))).0, Migrated);
    ask(a, Migrated, Some(1)).unwrap();
    ask(a, Rearm, None).unwrap();
    assert_eq!(state(a), Rearm);
    ask(a, Rearm, None).unwrap();
    assert_eq!(refused(ask(a, Migrated, None)), (Rearm, Migrated, "the path is not armed yet"));
    assert_eq!(refused(ask(a, Armed, None)).1, Armed);
    ask(&mut paths.p.b, Rearm, Some(1)).unwrap();
    paths.run();
    assert_eq!(paths.states(), [Armed; 2]);
    let a = &mut paths.p.a;
    ask(a, Armed, None).unwrap();
    ask(a, Rearm, Some(2)).unwrap();
    assert_eq!(state(a), Rearm, "another path is loaded");
    paths.run();
    ask(&mut paths.p.b, Rearm, Some(2)).unwrap();
    paths.run();
    assert_eq!(paths.states(), [Armed; 2]);
    ask(&mut paths.p.a, Migrated, None).unwrap();
    assert_eq!(state(&paths.p.a), Migrated);
    let got = refused(ask(&mut paths.p.a, Rearm, None));
    assert_eq!(got.2, "load an alternate path first", "there is none any more");
    let three = QpAttr { path_mig_state: 3, ..paths.p.a.qp.attr() };
    let got = paths.p.a.qp.modify(Time::ZERO, &three, AttrMask::PATH_MIG_STATE, &mut paths.p.a.w);
    assert!(matches!(got, Err(ModifyError::OutOfRange { value: 3, .. })), "{got:?}");
}

#[test]
fn rearm_needs_rts_and_a_pkey_of_the_alternate_port() {
    let mut s = Side2::new(1, QpType::Rc, false);
    s.up(&attributes(1, 2));
    ask(&mut s, MigState::Migrated, Some(1)).unwrap();
    s.step(&attributes(1, 2), QpState::Sqd);
    let got = ask(&mut s, MigState::Rearm, None);
    assert!(matches!(got, Err(ModifyError::Migration { state: QpState::Sqd, .. })), "{got:?}");
    s.step(&attributes(1, 2), QpState::Rts);
    let bad = QpAttr { alt_pkey_index: 9, ..s.qp.attr() };
    let got = s.qp.modify(Time::ZERO, &bad, AttrMask::ALT_PATH, &mut s.w);
    assert_eq!(got, Err(ModifyError::PkeyIndex(9)));
    ask(&mut s, MigState::Rearm, None).unwrap();
    s.step(&attributes(1, 2), QpState::Reset);
    assert_eq!(state(&s), MigState::Migrated);
}

#[test]
fn mig_req_is_set_while_migrated_and_clear_while_rearm_or_armed() {
    let mut paths = Paths::new(QpType::Rc);
    paths.p.a.send(1, WRITE, 0, 3000);
    paths.run();
    assert!(paths.log.iter().all(|(_, _, mig_req)| *mig_req) && paths.log.len() > 3);
    paths.log.clear();
    ask(&mut paths.p.a, MigState::Rearm, Some(1)).unwrap();
    paths.p.a.send(2, WRITE, 0, 3000);
    paths.p.b.send(2, WRITE, 0, 3000);
    paths.run();
    assert!(paths.log.iter().all(|(from, _, mig_req)| *mig_req == (*from == 2)), "{:?}", paths.log);
    assert_eq!(paths.states(), [MigState::Rearm, MigState::Migrated]);
    ask(&mut paths.p.b, MigState::Rearm, Some(1)).unwrap();
    paths.log.clear();
    paths.run();
    assert_eq!(paths.states(), [MigState::Armed; 2], "without anything posted");
    let read = SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) };
    paths.p.a.send(3, read, 0, 5000);
    paths.run();
    assert!(paths.log.len() > 6 && paths.log.iter().all(|(_, _, mig_req)| !mig_req));
}

#[test]
fn uc_is_armed_by_messages_and_follows_migration_of_the_peer() {
    let mut paths = Paths::new(QpType::Uc);
    for side in [&mut paths.p.a, &mut paths.p.b] {
        ask(side, MigState::Rearm, Some(1)).unwrap();
    }
    paths.run();
    assert_eq!(paths.states(), [MigState::Rearm; 2], "nothing is acknowledged");
    paths.p.a.send(1, WRITE, 0, 10);
    paths.run();
    assert_eq!(paths.states(), [MigState::Rearm, MigState::Armed]);
    paths.p.b.send(1, WRITE, 0, 10);
    paths.run();
    assert_eq!(paths.states(), [MigState::Armed; 2]);
    ask(&mut paths.p.a, MigState::Migrated, None).unwrap();
    // The peer has not noticed yet, and continues.
    paths.p.b.send(2, WRITE, 0, 10);
    paths.p.a.recv(9, 0, 10);
    paths.p.b.send(3, SendOp::Send, 0, 10);
    paths.log.clear();
    paths.run();
    assert_eq!(paths.log, [(2, 0, false); 2]);
    assert_eq!(paths.p.a.w.statuses().last(), Some(&(9, OK)), "by the former path");
    paths.p.a.send(4, WRITE, 0, 10);
    paths.run();
    assert_eq!(paths.states(), [MigState::Migrated; 2]);
    assert_eq!((path_of(&paths.p.b), paths.p.b.w.events.last()), (1, Some(&QpEvent::PathMig)));
}

#[test]
fn partial_direct_copy_falls_back_to_packets_after_migration() {
    let mut p = Pair::down(QpType::Rc, false);
    for (side, from, to) in [(&mut p.a, 1, 2), (&mut p.b, 2, 1)] {
        side.w.link = direct::BY_REFERENCE;
        side.up(&attributes(from, to));
        side.w.memory.endless = true;
        side.w.memory.bytes.resize(2 << 20, 7);
    }
    p.a.w.by_reference.peer = Some(vec![0; 2 << 20]);
    let mut paths = Paths { p, dead: Vec::new(), log: Vec::new() };
    paths.arm(1);
    let Pair { a, now, .. } = &mut paths.p;
    a.send(1, WRITE, 0, 2 << 20);
    let _ = a.qp.poll_transmit(*now, 1, &mut a.w);
    a.w.link.by_reference = false;
    ask(a, MigState::Migrated, None).unwrap();
    a.step(&attributes(1, 2), QpState::Sqd);
    assert!(a.qp.attr().sq_draining);
    paths.run();
    assert_eq!(paths.p.a.w.by_reference.copies, [1 << 20]);
    assert_eq!(paths.p.a.w.statuses(), [(1, OK)]);
    assert!(!paths.p.a.qp.attr().sq_draining, "nothing of it is left");
}

#[test]
fn requested_migration_moves_both_ends_to_the_alternate_path() {
    let mut paths = Paths::armed();
    ask(&mut paths.p.a, MigState::Migrated, None).unwrap();
    let attr = paths.p.a.qp.attr();
    assert_eq!((attr.av.dgid, attr.timeout), (at(2, 1), AckTimeout::new(12)));
    assert_eq!(attr.av, AddressVector { port_num: 1, ..attr.alt_av }, "they are the same now");
    assert_eq!(paths.p.a.w.events, [QpEvent::PathMig]);
    paths.run();
    assert_eq!((paths.states(), path_of(&paths.p.b)), ([MigState::Migrated; 2], 1));
    assert_eq!(paths.p.b.w.events, [QpEvent::PathMig]);
    // The peer no longer accepts packets along the old path.
    paths.p.a.send(1, WRITE, 0, 10);
    paths.p.a.poll(paths.p.now);
    let bytes = paths.p.a.w.packets.pop_front().unwrap();
    feed_by(&mut paths.p.b, paths.p.now, &bytes, 1, 0);
    assert_eq!(paths.p.b.w.dropped.last(), Some(&Drop::Source));
    feed_by(&mut paths.p.b, paths.p.now, &bytes, 1, 1);
    paths.run();
    assert_eq!(paths.p.a.w.statuses(), [(1, OK)]);
}

#[test]
fn exhausted_retries_on_armed_path_migrate_and_execute_each_request_once() {
    for op in 0..5 {
        let mut paths = Paths::armed();
        paths.p.a.w.memory.fill(0, 9000, 3);
        paths.p.b.w.memory.fill(20_000, 9000, 7);
        paths.p.b.recv(1, 0, 9000);
        let rkey = Rkey(KEY);
        let (kind, len) = match op {
            0 => (SendOp::Send, 9000),
            1 => (WRITE, 9000),
            2 => (SendOp::Read { remote_addr: 20_000, rkey }, 9000),
            3 => (SendOp::FetchAdd { remote_addr: 20_000, rkey, add: 1 }, 8),
            _ => (SendOp::CmpSwap { remote_addr: 20_000, rkey, compare: 0, swap: 1 }, 8),
        };
        let before = paths.p.b.w.memory.bytes[20_000..29_000].to_vec();
        paths.p.a.send(1, kind, 0, len);
        // The request arrives, and the response does not.
        paths.run_with(|from, _| from == 1);
        paths.dead.push(0);
        paths.run_out();
        assert_eq!(paths.p.a.w.statuses(), [(1, OK)], "{op}");
        assert_eq!((paths.states(), path_of(&paths.p.a)), ([MigState::Migrated; 2], 1));
        for side in [&paths.p.a, &paths.p.b] {
            assert_eq!(side.w.events.iter().filter(|e| **e == QpEvent::PathMig).count(), 1);
        }
        let (a, b) = (&paths.p.a.w.memory.bytes, &paths.p.b.w.memory.bytes);
        match op {
            0 | 1 => assert_eq!(a[..9000], b[..9000]),
            2 => assert_eq!(a[..9000], before),
            3 => {
                let was = u64::from_ne_bytes(before[..8].try_into().unwrap());
                assert_eq!(a[..8], was.to_ne_bytes());
                assert_eq!(b[20_000..20_008], (was + 1).to_ne_bytes(), "once");
            }
            _ => assert_eq!(a[..8], before[..8]),
        }
    }
}

#[test]
fn migration_retransmits_unacknowledged_packets_at_once_on_alternate_path() {
    let mut paths = Paths::armed();
    paths.p.a.send(1, WRITE, 0, 5000);
    paths.run_with(|from, _| from == 2);
    assert_eq!(paths.p.a.w.statuses(), []);
    ask(&mut paths.p.a, MigState::Migrated, None).unwrap();
    // No timer expires.
    paths.run();
    assert_eq!(paths.p.a.w.statuses(), [(1, OK)]);
}

#[test]
fn migration_resets_the_retry_count_and_then_retries_are_exceeded() {
    let mut paths = Paths::armed();
    paths.dead.extend([0, 1]);
    paths.p.a.send(1, WRITE, 0, 10);
    paths.run();
    let mut sent = [0; 2];
    while paths.p.tick() {
        paths.log.clear();
        paths.run();
        paths.log.iter().for_each(|(_, path, _)| sent[usize::from(*path)] += 1);
    }
    assert_eq!(paths.p.a.w.statuses(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(paths.p.a.w.events, [QpEvent::PathMig]);
    // Seven retries, each after up to four times the timeout.
    assert!(sent.iter().all(|n| (7..=36).contains(n)), "{sent:?}");
}

#[test]
fn exhausted_retries_without_armed_path_are_retry_exceeded_error() {
    for ends in [&[][..], &[1], &[1, 2]] {
        let mut paths = Paths::new(QpType::Rc);
        for end in ends {
            let side = if *end == 1 { &mut paths.p.a } else { &mut paths.p.b };
            ask(side, MigState::Rearm, Some(1)).unwrap();
        }
        // Not even the first packet arrives: neither end is armed.
        paths.dead.push(0);
        paths.p.a.send(1, WRITE, 0, 10);
        paths.run_out();
        assert_eq!(paths.p.a.w.statuses(), [(1, WcStatus::RetryExcErr)]);
        assert!(!paths.p.a.w.events.contains(&QpEvent::PathMig));
    }
}

#[test]
fn both_ends_may_migrate_at_the_same_time() {
    let mut paths = Paths::armed();
    paths.dead.push(0);
    for side in [&mut paths.p.a, &mut paths.p.b] {
        side.send(1, WRITE, 0, 5000);
        ask(side, MigState::Migrated, None).unwrap();
    }
    paths.run_out();
    for side in [&mut paths.p.a, &mut paths.p.b] {
        assert_eq!(
            (side.w.statuses(), side.w.events.clone()),
            (vec![(1, OK)], vec![QpEvent::PathMig])
        );
    }
    paths.dead = vec![1];
    paths.arm_again();
    paths.run_out();
}

impl Paths {
    /// Arms both ends for path 0 again, over a dead path, which delivers nothing.
    fn arm_again(&mut self) {
        for side in [&mut self.p.a, &mut self.p.b] {
            ask(side, MigState::Rearm, Some(0)).unwrap();
        }
        self.run();
        assert_eq!(self.states(), [MigState::Rearm; 2]);
    }
}

#[test]
fn recovered_path_can_be_rearmed_as_the_alternate_path() {
    let mut paths = Paths::armed();
    for (dead, next) in [(0, 0), (1, 1), (0, 0)] {
        paths.dead = vec![dead];
        paths.p.a.send(1, WRITE, 0, 5000);
        paths.run_out();
        assert_eq!((paths.p.a.w.statuses(), path_of(&paths.p.b)), (vec![(1, OK)], 1 - dead));
        paths.dead.clear();
        paths.arm(next);
    }
    let migrations = paths.p.a.w.events.iter().filter(|e| **e == QpEvent::PathMig).count();
    assert_eq!(migrations, 3);
}

#[test]
fn migration_request_on_wrong_path_is_dropped_with_one_path_mig_err_event() {
    let mut paths = Paths::armed();
    // A path other than the one that the peer has loaded.
    ask(&mut paths.p.a, MigState::Rearm, Some(2)).unwrap();
    paths.run();
    ask(&mut paths.p.b, MigState::Rearm, Some(1)).unwrap();
    paths.run();
    assert_eq!(paths.states(), [MigState::Armed; 2]);
    ask(&mut paths.p.a, MigState::Migrated, None).unwrap();
    paths.p.b.w.dropped.clear();
    paths.p.a.send(1, WRITE, 0, 3000);
    paths.run();
    assert_eq!(paths.p.b.w.events, [QpEvent::PathMigErr]);
    assert!(paths.p.b.w.dropped.iter().all(|d| *d == Drop::Source));
    assert_eq!((state(&paths.p.b), path_of(&paths.p.b)), (MigState::Armed, 0));
    paths.run_out();
    assert_eq!(paths.p.a.w.statuses(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(paths.p.b.w.events, [QpEvent::PathMigErr]);
}

#[test]
fn migration_request_arriving_at_wrong_local_gid_is_path_mig_err() {
    let mut paths = Paths::armed();
    ask(&mut paths.p.a, MigState::Migrated, None).unwrap();
    paths.p.a.poll(paths.p.now);
    let bytes = paths.p.a.w.packets.pop_front().unwrap();
    // The driver reports that the packet did not arrive at this end of the path.
    paths.p.b.w.came_along = |av| av.sgid_index != 1;
    feed_by(&mut paths.p.b, paths.p.now, &bytes, 1, 1);
    assert_eq!(
        (state(&paths.p.b), paths.p.b.w.events.clone()),
        (MigState::Armed, vec![QpEvent::PathMigErr])
    );
    paths.p.b.w.came_along = |_| true;
    feed_by(&mut paths.p.b, paths.p.now, &bytes, 1, 1);
    assert_eq!(state(&paths.p.b), MigState::Migrated);
}

#[test]
fn rearm_end_follows_migration_of_an_armed_peer() {
    let mut paths = Paths::new(QpType::Rc);
    for side in [&mut paths.p.a, &mut paths.p.b] {
        ask(side, MigState::Rearm, Some(1)).unwrap();
    }
    // The packet that would arm the first end is lost.
    paths.run_with(|from, _| from == 1);
    assert_eq!(paths.states(), [MigState::Rearm, MigState::Armed]);
    paths.dead.push(0);
    paths.p.b.send(1, WRITE, 0, 3000);
    paths.run_out();
    assert_eq!((paths.p.b.w.statuses(), paths.states()), (vec![(1, OK)], [MigState::Migrated; 2]));
}

#[test]
fn mig_req_of_a_still_migrated_peer_does_not_change_rearm_state() {
    let mut paths = Paths::new(QpType::Rc);
    ask(&mut paths.p.a, MigState::Rearm, Some(1)).unwrap();
    paths.p.b.send(1, WRITE, 0, 3000);
    paths.run();
    assert_eq!((paths.p.b.w.statuses(), state(&paths.p.a)), (vec![(1, OK)], MigState::Rearm));
}

#[test]
fn rearm_before_peer_migrated_keeps_mig_req_set_until_peer_migrates() {
    let mut paths = Paths::armed();
    paths.dead.push(1);
    ask(&mut paths.p.a, MigState::Migrated, None).unwrap();
    paths.run();
    ask(&mut paths.p.a, MigState::Rearm, Some(0)).unwrap();
    assert_eq!(paths.states(), [MigState::Rearm, MigState::Armed]);
    paths.dead.clear();
    paths.p.a.send(1, WRITE, 0, 10);
    paths.run_out();
    assert_eq!((paths.p.a.w.statuses(), path_of(&paths.p.b)), (vec![(1, OK)], 1));
    assert_eq!(paths.states(), [MigState::Rearm, MigState::Migrated]);
    paths.log.clear();
    paths.p.a.send(2, WRITE, 0, 10);
    paths.run();
    assert_eq!(paths.log[0], (1, 1, false), "and then it does");
    ask(&mut paths.p.b, MigState::Rearm, Some(0)).unwrap();
    paths.run();
    assert_eq!(paths.states(), [MigState::Armed; 2]);
}

#[test]
fn rnr_timer_keeps_running_across_migration() {
    let mut paths = Paths::armed();
    paths.p.a.send(1, SendOp::Send, 0, 3000);
    paths.run();
    let wait = paths.p.a.qp.poll_timeout().unwrap();
    ask(&mut paths.p.a, MigState::Migrated, None).unwrap();
    assert_eq!(paths.p.a.qp.poll_timeout(), Some(wait), "as long as the receiver said");
    paths.run();
    paths.p.b.recv(2, 0, 3000);
    paths.log.clear();
    paths.run_out();
    assert_eq!((paths.p.a.w.statuses(), paths.p.b.w.statuses()), (vec![(1, OK)], vec![(2, OK)]));
    assert!(paths.log.iter().all(|(_, path, _)| *path == 1));
}

#[test]
fn ack_is_sent_as_packet_while_the_peer_must_see_mig_req() {
    let mut p = Pair::down(QpType::Rc, false);
    for (side, from, to) in [(&mut p.a, 1, 2), (&mut p.b, 2, 1)] {
        side.w.link = LinkCaps { piggybacks_acks: true, ..link(32 << 10, true) };
        side.w.takes_acks = true;
        side.up(&attributes(from, to));
    }
    let mut paths = Paths { p, dead: Vec::new(), log: Vec::new() };
    let acks = |paths: &mut Paths| std::mem::take(&mut paths.p.b.w.acknowledged).len();
    paths.p.a.send(1, WRITE, 0, 10);
    paths.run();
    assert_eq!(acks(&mut paths), 1);
    paths.arm(1);
    assert_eq!(acks(&mut paths), 0);
    paths.p.a.send(2, WRITE, 0, 10);
    paths.run();
    assert_eq!(acks(&mut paths), 1, "armed, all is as ever");
    ask(&mut paths.p.b, MigState::Migrated, None).unwrap();
    paths.run();
    assert_eq!((acks(&mut paths), paths.states()), (0, [MigState::Migrated; 2]));
    paths.p.a.send(3, WRITE, 0, 10);
    paths.run();
    assert_eq!(acks(&mut paths), 1, "the peer has followed");
}
