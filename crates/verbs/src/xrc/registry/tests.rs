use super::*;
use crate::xrc::place::TargetEnds;

const A: MemberId = MemberId(1);
const B: MemberId = MemberId(2);
const FILE: Option<FileKey> = Some((8, 77));

fn target(registry: &mut Registry, member: MemberId, opening: u32, hold: Hold) -> Qpn {
    let make = |qpn, domain| QpCore::target(qpn, TargetEnds::new(domain));
    registry.add_target(member, opening, hold, make).unwrap().qpn
}

fn errno<T>(result: Result<T, VerbsError>) -> i32 {
    result.map(drop).expect_err("refused").errno()
}

/// A registry in which both have the domain of one file open.
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
    // Private ones are each for themselves.
    registry.open(A, None, true, false).unwrap();
    registry.open(A, None, true, true).unwrap();
    assert_eq!(registry.domains().count(), 2);
}

#[test]
fn registration_has_no_count_and_handles_have() {
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
fn a_target_is_found_only_in_its_domain_by_who_has_it_open() {
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
fn whoever_dies_leaves_nothing() {
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
