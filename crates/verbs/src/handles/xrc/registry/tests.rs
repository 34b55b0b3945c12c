//! Openings of domains, registrations and handles, and the lifetime of targets.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::engine::xrc::place::TargetEnds;

const A: MemberId = MemberId(1);
const B: MemberId = MemberId(2);
const FILE: Option<FileKey> = Some(FileKey { device: 8, inode: 77, created: Some((5, 6)) });

fn target(registry: &mut Registry, member: MemberId, opening: u32, hold: Hold) -> Qpn {
    let make = |qpn, domain| QpCore::target(qpn, TargetEnds::new(domain, None));
    registry.add_target(member, opening, hold, Box::new(()), make).unwrap().qpn
}

fn errno<T>(result: Result<T, VerbsError>) -> i32 {
    result.map(drop).expect_err("refused").errno()
}

/// A registry in which both processes have the domain of one file open.
fn shared() -> (Registry, u32, u32) {
    let mut registry = Registry::default();
    let a = registry.open(A, FILE, true, true).unwrap();
    let b = registry.open(B, FILE, false, false).unwrap();
    (registry, a, b)
}

#[test]
fn domains_are_opened_as_files_are() {
    let mut registry = Registry::default();
    assert_eq!(errno(registry.open(A, FILE, false, false)), libc::EAGAIN);
    let a = registry.open(A, FILE, true, true).unwrap();
    assert_eq!(errno(registry.open(B, FILE, true, true)), libc::EINVAL);
    let b = registry.open(B, FILE, true, false).unwrap();
    assert_eq!(registry.domains().count(), 1);
    assert_eq!(errno(registry.close(B, a)), libc::EINVAL, "it is not theirs");
    registry.close(A, a).unwrap();
    registry.close(B, b).unwrap();
    assert_eq!(registry.domains().count(), 0);
    // Each private opening is a domain of its own.
    registry.open(A, None, true, false).unwrap();
    registry.open(A, None, true, true).unwrap();
    assert_eq!(registry.domains().count(), 2);
}

/// The file was deleted, but its domain is open; the inode is that of a new file now.
#[test]
fn domain_of_a_deleted_file_is_not_that_of_a_later_file_with_its_inode() {
    let mut registry = Registry::default();
    let at = |created| Some(FileKey { created, ..FILE.unwrap() });
    registry.open(A, FILE, true, true).unwrap();
    assert_eq!(errno(registry.open(B, at(Some((5, 7))), false, false)), libc::EAGAIN);
    registry.open(B, at(Some((5, 7))), true, true).unwrap();
    assert_eq!(registry.domains().count(), 2);
    // Some file systems learn the time later.
    registry.open(B, at(None), false, false).unwrap();
    assert_eq!(registry.domains().count(), 2);
}

#[test]
fn xrc_target_registration_is_not_counted_and_handles_are() {
    let (mut registry, a, b) = shared();
    let qpn = target(&mut registry, A, a, Hold::Registration);
    registry.hold(A, a, qpn, Hold::Registration).unwrap();
    registry.hold(B, b, qpn, Hold::Handle).unwrap();
    registry.hold(B, b, qpn, Hold::Handle).unwrap();
    assert!(registry.let_go(A, a, qpn, Hold::Registration).unwrap().is_none());
    assert_eq!(errno(registry.let_go(A, a, qpn, Hold::Registration)), libc::EINVAL);
    assert_eq!(errno(registry.let_go(B, b, qpn, Hold::Registration)), libc::EINVAL);
    assert!(registry.let_go(B, b, qpn, Hold::Handle).unwrap().is_none());
    assert_eq!(registry.let_go(B, b, qpn, Hold::Handle).unwrap().unwrap().qpn, qpn);
    assert_eq!(errno(registry.hold(A, a, qpn, Hold::Handle)), libc::EINVAL);
}

#[test]
fn xrc_target_is_found_only_in_its_domain_and_by_its_holders() {
    let (mut registry, a, _) = shared();
    let qpn = target(&mut registry, A, a, Hold::Handle);
    let other = registry.open(B, None, true, false).unwrap();
    for (member, opening, qpn) in [
        (B, other, qpn),
        (B, a, qpn),
        (A, a, Qpn::new(qpn.get() + 1)),
        (A, a, Qpn::new(5)),
        (A, a, Qpn::MULTICAST),
    ] {
        assert_eq!(errno(registry.target(member, opening, qpn)), libc::EINVAL);
    }
    assert!(registry.target(A, a, qpn).is_ok());
}

#[test]
fn dead_process_releases_its_xrc_targets_and_domains() {
    let (mut registry, a, b) = shared();
    let shared = target(&mut registry, A, a, Hold::Registration);
    let own = target(&mut registry, A, a, Hold::Handle);
    registry.hold(A, a, own, Hold::Registration).unwrap();
    registry.hold(B, b, shared, Hold::Registration).unwrap();
    let destroyed: Vec<Qpn> = registry.leave(A).iter().map(|core| core.qpn).collect();
    assert_eq!(destroyed, [own]);
    assert_eq!(registry.holders(shared).len(), 1);
    assert_eq!(registry.leave(B)[0].qpn, shared);
    assert_eq!((registry.domains().count(), registry.targets().count()), (0, 0));
    assert!(registry.leave(B).is_empty());
}

/// A request of a process. The small numbers mostly name an existing object.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open { shared: bool },
    Close(usize),
    Create(usize, Hold),
    Hold(usize, usize, Hold),
    LetGo(usize, usize, Hold),
    Die,
}

fn step() -> impl Strategy<Value = Step> {
    let hold = || prop_oneof![Just(Hold::Handle), Just(Hold::Registration)];
    prop_oneof![
        2 => any::<bool>().prop_map(|shared| Step::Open { shared }),
        1 => (0..6_usize).prop_map(Step::Close),
        3 => (0..6_usize, hold()).prop_map(|(o, h)| Step::Create(o, h)),
        4 => (0..6_usize, 0..6_usize, hold()).prop_map(|(o, t, h)| Step::Hold(o, t, h)),
        4 => (0..6_usize, 0..6_usize, hold()).prop_map(|(o, t, h)| Step::LetGo(o, t, h)),
        1 => Just(Step::Die),
    ]
}

proptest! {
    /// Three processes make requests in any order. By a separate model, a target lives exactly as long as a process holds it; in
    /// the end none remains.
    #[test]
    fn xrc_target_lives_exactly_as_long_as_a_process_holds_it(
        steps in proptest::collection::vec((1..4_u64, step()), 0..120),
    ) {
        let mut registry = Registry::default();
        let mut openings: Vec<u32> = Vec::new();
        let mut targets: Vec<Qpn> = Vec::new();
        let mut model: BTreeMap<Qpn, BTreeMap<u64, (u32, bool)>> = BTreeMap::new();
        for (process, step) in steps {
            let member = MemberId(process);
            let opening = |i: usize| openings.get(i).copied().unwrap_or(999);
            let target_at = |i: usize| targets.get(i).copied().unwrap_or(Qpn::new(5));
            match step {
                Step::Open { shared } => {
                    openings.push(registry.open(member, FILE.filter(|_| shared), true, false).unwrap());
                }
                Step::Close(i) => _ = registry.close(member, opening(i)),
                Step::Create(i, hold) => {
                    let make = |qpn, domain| QpCore::target(qpn, TargetEnds::new(domain, None));
                    if let Ok(core) = registry.add_target(member, opening(i), hold, Box::new(()), make) {
                        targets.push(core.qpn);
                        let held = (u32::from(hold == Hold::Handle), hold == Hold::Registration);
                        model.entry(core.qpn).or_default().insert(process, held);
                    }
                }
                Step::Hold(i, t, hold) => {
                    let qpn = target_at(t);
                    if registry.hold(member, opening(i), qpn, hold).is_ok() {
                        let held = model.get_mut(&qpn).unwrap().entry(process).or_default();
                        match hold {
                            Hold::Handle => held.0 += 1,
                            Hold::Registration => held.1 = true,
                        }
                    }
                }
                Step::LetGo(i, t, hold) => {
                    let qpn = target_at(t);
                    if let Ok(gone) = registry.let_go(member, opening(i), qpn, hold) {
                        let holders = model.get_mut(&qpn).unwrap();
                        let held = holders.get_mut(&process).unwrap();
                        match hold {
                            Hold::Handle => held.0 -= 1,
                            Hold::Registration => held.1 = false,
                        }
                        holders.retain(|_, held| *held != (0, false));
                        prop_assert_eq!(gone.is_some(), holders.is_empty());
                    }
                }
                Step::Die => {
                    let destroyed: BTreeSet<Qpn> =
                        registry.leave(member).iter().map(|core| core.qpn).collect();
                    model.values_mut().for_each(|holders| _ = holders.remove(&process));
                    for qpn in destroyed {
                        prop_assert!(model[&qpn].is_empty());
                    }
                }
            }
            model.retain(|_, holders| !holders.is_empty());
            let alive: BTreeSet<Qpn> = registry.targets().map(|(qpn, _)| qpn).collect();
            prop_assert_eq!(&alive, &model.keys().copied().collect());
        }
        (1..4).for_each(|process| _ = registry.leave(MemberId(process)));
        prop_assert_eq!(registry.targets().count() + registry.domains().count(), 0);
        prop_assert!(registry.openings.is_empty());
    }
}
