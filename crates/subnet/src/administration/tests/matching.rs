//! Records match by the components of the mask and by nothing else.

use proptest::prelude::*;
use rdmux_wire::layout::Layout;
use rdmux_wire::sa::{Components, NodeRecord, Pattern, PortInfoRecord, ServiceRecord};

/// Returns whether two records agree in each single component of a mask.
fn agree<R: Components>(mask: u64, a: &[u8], b: &[u8]) -> bool {
    (0..64).filter(|bit| mask >> bit & 1 == 1).all(|bit| {
        let [mut x, mut y] = [[0; 200]; 2];
        R::copy_components(1 << bit, a, &mut x);
        R::copy_components(1 << bit, b, &mut y);
        x == y
    })
}

/// Returns a record with some bytes changed.
fn changed(bytes: &[u8; 200], changes: &[(usize, u8)]) -> [u8; 200] {
    let mut other = *bytes;
    for &(at, bits) in changes {
        other[at % 200] ^= bits;
    }
    other
}

fn check<R: Components>(mask: u64, a: &[u8], b: &[u8]) {
    let [wanted, have] = [a, b].map(|bytes| R::read(bytes).expect("long enough"));
    let pattern = Pattern::new(mask, &wanted);
    assert_eq!(pattern.matches(&have), agree::<R>(mask, a, b), "{mask:#x} {wanted} {have}");
    assert!(pattern.matches(&wanted));
    let len = <R as Layout>::LEN;
    assert_eq!(pattern.matches_bytes(&b[..len]), pattern.matches(&have));
}

proptest! {
    #[test]
    fn component_mask_match_compares_all_selected_components(
        bytes in prop::array::uniform32(any::<u8>()),
        changes in prop::collection::vec((0..200usize, any::<u8>()), 0..3),
        mask in any::<u64>(),
    ) {
        let a: [u8; 200] = core::array::from_fn(|at| bytes[at % 32]);
        let b = changed(&a, &changes);
        check::<NodeRecord>(mask, &a, &b);
        check::<PortInfoRecord>(mask, &a, &b);
        check::<ServiceRecord>(mask, &a, &b);
    }
}
