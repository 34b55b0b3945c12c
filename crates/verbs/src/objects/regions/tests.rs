//! Checks of keys, ranges and rights, for regions and for windows.

use super::*;

const QP: Asker = Asker { qpn: Qpn::new(7), pd: PdId(1) };
const OTHER_QP: Asker = Asker { qpn: Qpn::new(8), pd: PdId(1) };
const OTHER_PD: Asker = Asker { qpn: Qpn::new(9), pd: PdId(2) };
const WRITE: Access = Access::REMOTE_WRITE;
const READ: Access = Access::REMOTE_READ;

fn init(access: Access) -> MrInit {
    MrInit { addr: 0x1000, length: 64, iova: 0x10, access, space: Space::Own }
}

fn region(access: Access) -> (Regions, u32) {
    let mut regions = Regions::default();
    let key = regions.insert(Region::new(init(access), PdId(1)), 8).unwrap();
    (regions, key)
}

fn at(r: &Regions, key: u32, va: u64, len: u64, access: Access) -> Result<u64, AccessFault> {
    as_seen_by(r, QP, key, va, len, access)
}

fn as_seen_by(
    r: &Regions,
    who: Asker,
    key: u32,
    va: u64,
    len: u64,
    access: Access,
) -> Result<u64, AccessFault> {
    r.remote(who, Rkey(key), va, len, access).map(|l| l.addr)
}

#[test]
fn region_access_checks_bounds_rights_pd_and_key() {
    let (r, key) = region(Access::LOCAL_WRITE | WRITE);
    assert_eq!(at(&r, key, 0x10, 64, WRITE), Ok(0x1000));
    assert_eq!(at(&r, key, 0x50, 0, WRITE), Ok(0x1040));
    assert_eq!(at(&r, key, 0x11, 64, WRITE), Err(AccessFault::Bounds));
    assert_eq!(at(&r, key, 0xf, 1, WRITE), Err(AccessFault::Bounds));
    assert_eq!(at(&r, key, u64::MAX, 2, WRITE), Err(AccessFault::Bounds));
    assert_eq!(at(&r, key, 0x10, u64::MAX, WRITE), Err(AccessFault::Bounds));
    assert_eq!(at(&r, key, 0x10, 1, READ), Err(AccessFault::Rights));
    assert_eq!(at(&r, key ^ 1, 0x10, 1, WRITE), Err(AccessFault::Key));
    assert_eq!(at(&r, u32::MAX, 0x10, 1, WRITE), Err(AccessFault::Key));
    assert_eq!(at(&r, 0, 0x10, 1, WRITE), Err(AccessFault::Key));
    assert_eq!(as_seen_by(&r, OTHER_PD, key, 0x10, 1, WRITE), Err(AccessFault::Domain));
}

#[test]
fn key_of_a_deregistered_region_is_refused_after_slot_reuse() {
    let (mut r, key) = region(READ);
    r.remove(key);
    assert_eq!(at(&r, key, 0x10, 1, READ), Err(AccessFault::Key));
    let again = r.insert(Region::new(init(READ), PdId(1)), 8).unwrap();
    assert_ne!(again, key);
    assert_eq!(again >> 8, key >> 8);
    assert_eq!(at(&r, key, 0x10, 1, READ), Err(AccessFault::Key));
    assert_eq!(at(&r, again, 0x10, 1, READ), Ok(0x1000));
}

#[test]
fn key_stays_valid_for_the_replaced_region() {
    let (mut r, key) = region(READ);
    r.replace(key, Region::new(init(READ), PdId(2))).unwrap();
    assert_eq!(at(&r, key, 0x10, 1, READ), Err(AccessFault::Domain));
    r.replace(key, Region::new(init(READ), PdId(1))).unwrap();
    assert_eq!(at(&r, key, 0x10, 1, READ), Ok(0x1000));
}

#[test]
fn invalidation_returns_the_serial_of_the_registration() {
    let (mut r, key) = region(READ);
    let first = r.row(key).unwrap().serial;
    assert_eq!(r.invalidate(QP, Rkey(key)), Ok(Some(first)));
    r.replace(key, Region::new(init(READ), PdId(1))).unwrap();
    let second = r.row(key).unwrap().serial;
    assert!(second > first);
    assert_eq!(r.invalidate(QP, Rkey(key)), Ok(Some(second)));
    r.remove(key);
    let other = r.insert(Region::new(init(READ), PdId(1)), 8).unwrap();
    assert!(r.row(other).unwrap().serial > second);
}

#[test]
fn region_limit_counts_only_existing_regions() {
    let (mut r, key) = region(READ);
    assert_eq!(r.insert(Region::new(init(READ), PdId(1)), 1), None);
    r.remove(key);
    r.remove(key);
    assert!(r.insert(Region::new(init(READ), PdId(1)), 1).is_some());
}

#[test]
fn invalidated_key_is_refused_remotely_and_valid_locally() {
    let (mut r, key) = region(READ);
    r.invalidate(QP, Rkey(key)).unwrap();
    assert_eq!(at(&r, key, 0x10, 1, READ), Err(AccessFault::Key));
    assert!(r.local(PdId(1), Lkey(key), 0x10, 64, Access::empty()).is_ok());
}

/// A region that admits windows, and a window.
fn window(kind: MwType) -> (Regions, u32, u32) {
    let (mut r, lkey) = region(Access::LOCAL_WRITE | Access::MW_BIND);
    let key = r.insert_window(Window::new(PdId(1), kind), 8).unwrap();
    (r, lkey, key)
}

fn bind(rkey: u32, lkey: u32, length: u64, access: Access) -> MwBind {
    MwBind { rkey: Rkey(rkey), lkey: Lkey(lkey), addr: 0x20, length, access }
}

#[test]
fn bound_window_grants_its_range_with_its_own_rights() {
    for kind in [MwType::One, MwType::Two] {
        let (mut r, lkey, key) = window(kind);
        assert_eq!(at(&r, key, 0x20, 1, WRITE), Err(AccessFault::Key), "not bound yet");
        r.bind(QP, &bind(key + 1, lkey, 16, WRITE)).unwrap();
        assert_eq!(at(&r, key + 1, 0x20, 16, WRITE), Ok(0x1010));
        assert_eq!(at(&r, key, 0x20, 16, WRITE), Err(AccessFault::Key), "the old key");
        assert_eq!(at(&r, key + 1, 0x1f, 1, WRITE), Err(AccessFault::Bounds));
        assert_eq!(at(&r, key + 1, 0x2f, 2, WRITE), Err(AccessFault::Bounds));
        assert_eq!(at(&r, key + 1, 0x20, 1, READ), Err(AccessFault::Rights));
        assert_eq!(
            at(&r, lkey, 0x20, 1, WRITE),
            Err(AccessFault::Rights),
            "the region grants none"
        );
        let stranger = as_seen_by(&r, OTHER_PD, key + 1, 0x20, 1, WRITE);
        assert_eq!(stranger, Err(AccessFault::Domain));
        let beside = as_seen_by(&r, OTHER_QP, key + 1, 0x20, 1, WRITE);
        let of_qp = kind == MwType::Two;
        assert_eq!(beside, if of_qp { Err(AccessFault::Domain) } else { Ok(0x1010) });
        assert!(r.local(PdId(1), Lkey(key + 1), 0x20, 1, Access::empty()).is_err(), "no local key");
    }
}

#[test]
fn zero_based_type_2_window_is_addressed_from_its_start() {
    let (mut r, lkey, key) = window(MwType::Two);
    r.bind(QP, &bind(key, lkey, 16, READ | Access::ZERO_BASED)).unwrap();
    assert_eq!(at(&r, key, 15, 1, READ), Ok(0x101f));
    assert_eq!(at(&r, key, 16, 1, READ), Err(AccessFault::Bounds));
    let (mut r, lkey, key) = window(MwType::One);
    let zero_based = bind(key, lkey, 16, READ | Access::ZERO_BASED);
    assert_eq!(r.bind(QP, &zero_based), Err(AccessFault::Rights));
}

#[test]
fn bind_checks_pd_bounds_key_and_rights_of_the_region() {
    let (mut r, lkey, key) = window(MwType::One);
    let refused = |r: &mut Regions, who, b| r.bind(who, &b).unwrap_err();
    assert_eq!(refused(&mut r, OTHER_PD, bind(key, lkey, 1, READ)), AccessFault::Domain);
    assert_eq!(refused(&mut r, QP, bind(key, lkey, 49, READ)), AccessFault::Bounds);
    assert_eq!(refused(&mut r, QP, bind(key, lkey ^ 1, 1, READ)), AccessFault::Key);
    assert_eq!(refused(&mut r, QP, bind(lkey, lkey, 1, READ)), AccessFault::Key, "no window");
    for (access, fault) in [
        (Access::LOCAL_WRITE, AccessFault::Rights),
        (Access::MW_BIND, AccessFault::Rights),
        (Access::MW_BIND | Access::LOCAL_WRITE | Access::ZERO_BASED, AccessFault::Rights),
    ] {
        let other = r.insert(Region::new(init(access), PdId(1)), 8).unwrap();
        assert_eq!(refused(&mut r, QP, bind(key, other, 1, WRITE)), fault, "{access:?}");
    }
    let abroad = r.insert(Region::new(init(Access::MW_BIND), PdId(2)), 8).unwrap();
    assert_eq!(refused(&mut r, QP, bind(key, abroad, 1, READ)), AccessFault::Domain);
    let read_only = r.insert(Region::new(init(Access::MW_BIND), PdId(1)), 8).unwrap();
    r.bind(QP, &bind(key, read_only, 1, READ)).unwrap();
}

#[test]
fn type_1_window_can_be_rebound_and_is_unbound_by_length_zero() {
    let (mut r, lkey, key) = window(MwType::One);
    r.bind(QP, &bind(key + 1, lkey, 16, READ)).unwrap();
    r.bind(OTHER_QP, &bind(key + 2, lkey, 8, READ)).unwrap();
    assert_eq!(r.windows_of(lkey), 1);
    assert_eq!(r.invalidate(QP, Rkey(key + 2)), Err(AccessFault::Rights));
    r.bind(QP, &bind(key + 3, 0, 0, Access::empty())).unwrap();
    assert_eq!(r.windows_of(lkey), 0);
    assert_eq!(at(&r, key + 3, 0x20, 1, READ), Err(AccessFault::Key));
}

#[test]
fn type_2_window_must_be_invalidated_before_rebind() {
    let (mut r, lkey, key) = window(MwType::Two);
    assert_eq!(r.bind(QP, &bind(key, lkey, 0, READ)), Err(AccessFault::Bounds));
    r.bind(QP, &bind(key + 1, lkey, 16, READ)).unwrap();
    assert_eq!(r.bind(QP, &bind(key + 2, lkey, 16, READ)), Err(AccessFault::Rights));
    assert_eq!(r.invalidate(OTHER_QP, Rkey(key + 1)), Err(AccessFault::Domain));
    assert_eq!(r.invalidate(QP, Rkey(key)), Err(AccessFault::Key));
    r.invalidate(QP, Rkey(key + 1)).unwrap();
    assert_eq!(at(&r, key + 1, 0x20, 1, READ), Err(AccessFault::Key));
    assert_eq!(r.invalidate(QP, Rkey(key + 1)), Err(AccessFault::Key), "twice");
    r.bind(QP, &bind(key + 2, lkey, 16, READ)).unwrap();
    assert_eq!(at(&r, key + 2, 0x20, 1, READ), Ok(0x1010));
}

#[test]
fn region_with_bound_windows_cannot_be_replaced() {
    let (mut r, lkey, key) = window(MwType::Two);
    r.bind(QP, &bind(key, lkey, 16, READ)).unwrap();
    assert_eq!(r.replace(lkey, Region::new(init(READ), PdId(1))).map(drop), Err(StillBound(1)));
    r.unbind_qp(OTHER_QP.qpn);
    assert_eq!(r.windows_of(lkey), 1);
    r.unbind_qp(QP.qpn);
    assert_eq!((r.windows_of(lkey), r.of_qps), (0, 0));
    r.bind(QP, &bind(key, lkey, 16, READ)).unwrap();
    r.remove(lkey);
    assert_eq!(at(&r, key, 0x20, 1, READ), Err(AccessFault::Key), "the region is gone");
    r.remove_window(key >> 8);
    assert_eq!((r.windows, r.of_qps), (0, 0));
}

#[test]
fn window_of_a_removed_region_does_not_grant_a_later_region_with_its_key() {
    for kind in [MwType::One, MwType::Two] {
        let (mut r, lkey, key) = window(kind);
        r.bind(QP, &bind(key, lkey, 16, WRITE)).unwrap();
        r.remove(lkey);
        let mut later = r.insert(Region::new(init(READ), PdId(2)), 8).unwrap();
        while later != lkey {
            assert!(r.remove(later));
            later = r.insert(Region::new(init(READ), PdId(2)), 8).unwrap();
        }
        assert_eq!(at(&r, key, 0x20, 1, WRITE), Err(AccessFault::Key), "{kind:?}");
        r.remove_window(key >> 8);
        assert_eq!((r.windows_of(later), r.windows, r.of_qps), (0, 0, 0));
    }
}

/// Otherwise a key that a program chose for a window could match a later entry.
#[test]
fn key_chosen_for_a_window_is_not_reissued_to_the_next_region() {
    let (mut r, lkey, key) = window(MwType::Two);
    r.bind(QP, &bind(key + 1, lkey, 16, READ)).unwrap();
    r.remove_window(key >> 8);
    let next = r.insert(Region::new(init(READ), PdId(1)), 8).unwrap();
    assert_eq!(next >> 8, key >> 8);
    assert_ne!(next, key + 1);
}
