//! Access rules: two ports may see each other if they have a partition in common (IBTA 15.4.1.1).

use rdmux_wire::Pkey;

use crate::manager::model::Port;

/// Returns whether packets between two ports can have a P_Key that both admit. A port without keys admits everything:
/// switches need not have tables for all their ports.
pub(super) fn share_partition(a: &Port, b: &Port) -> bool {
    has_no_keys(a) || has_no_keys(b) || core::ptr::eq(a, b) || common(&a.pkeys, &b.pkeys)
}

fn has_no_keys(port: &Port) -> bool {
    port.pkeys.iter().all(|key| key.0 & 0x7fff == 0)
}

fn common(a: &[Pkey], b: &[Pkey]) -> bool {
    a.iter().any(|key| is_key(*key) && b.iter().any(|other| key.admits(*other)))
}

/// Returns whether a table entry is a key.
pub(super) fn is_key(key: Pkey) -> bool {
    key.0 & 0x7fff != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn port(keys: &[u16]) -> Port {
        Port { pkeys: keys.iter().map(|&key| Pkey(key)).collect::<Vec<_>>(), ..Port::default() }
    }

    #[test]
    fn limited_members_share_no_partition_with_each_other() {
        let cases: &[(&[u16], &[u16], bool)] = &[
            (&[0xffff], &[0x7fff], true),
            (&[0x7fff], &[0x7fff], false),
            (&[0x7fff, 0x8001], &[0x7fff, 0x0001], true),
            (&[0x8002], &[0x8001], false),
            (&[0x8000], &[0x8001], true),
            (&[0, 0x8001], &[0, 0x8002], false),
            (&[], &[0x8002], true),
        ];
        for (a, b, expected) in cases {
            assert_eq!(share_partition(&port(a), &port(b)), *expected, "{a:x?} {b:x?}");
        }
    }
}
