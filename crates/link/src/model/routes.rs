//! A route table between its writer and a reader.

use loom::thread;
use rdmux_wire::{Guid, Lid, Mtu};

use super::check;
use crate::routes::{OwnPort, PeerId, RouteTable, RouteView, Way};

const DLID: Lid = Lid(1);
const MLID: Lid = Lid::FIRST_MULTICAST;

fn way(n: u8) -> Way {
    let (peer, bits) = (PeerId::new(1).unwrap(), n.into());
    let (mtu, rate, sls) = (Mtu::M256, n, 0);
    // The fields that models write.
    Way { peer, hops: n, mtu, rate, sls, pkeys: bits, back: 0, answered: 0 }
}

fn is_whole(it: &Way) -> bool {
    *it == way(it.hops)
}

/// Needs: the fence between clearing an entry and rewriting its row, that the entry is written with Release and read with
/// Acquire, and the reader's fence before it reads the entry again.
#[test]
fn unicast_route_is_not_read_torn() {
    check(3, || {
        let mut table = RouteTable::create().unwrap();
        table.set_way(DLID, Some(&way(1))).unwrap();
        let view = RouteView::map(table.fd()).unwrap();
        let reader = thread::spawn(move || {
            if let Some(it) = view.way(DLID) {
                assert!(is_whole(&it), "{it:?}");
            }
        });
        table.set_way(DLID, Some(&way(2))).unwrap();
        // The first row is reused.
        table.set_way(DLID, Some(&way(3))).unwrap();
        reader.join().unwrap();
    });
}

/// Needs the same, for rows of a list that are reused in another.
#[test]
fn multicast_group_is_not_read_torn() {
    check(1, || {
        let mut table = RouteTable::create().unwrap();
        table.set_group(MLID, &[way(1), way(1)]).unwrap();
        let view = RouteView::map(table.fd()).unwrap();
        let reader = thread::spawn(move || {
            let mut ways = Vec::new();
            view.group(MLID, &mut ways);
            let same = ways.iter().all(|it| is_whole(it) && it.hops == ways[0].hops);
            assert!(same && matches!(ways.len(), 0 | 2), "{ways:?}");
        });
        table.set_group(MLID, &[way(2), way(2)]).unwrap();
        table.set_group(MLID, &[way(3), way(3)]).unwrap();
        reader.join().unwrap();
    });
}

/// Needs: Release and Acquire of the epoch.
#[test]
fn visible_route_epoch_makes_earlier_changes_visible() {
    check(4, || {
        let mut table = RouteTable::create().unwrap();
        let view = RouteView::map(table.fd()).unwrap();
        let reader = thread::spawn(move || {
            if view.epoch() > 1 {
                assert_eq!(view.way(DLID), Some(way(1)));
                assert!(view.own().active);
            }
        });
        let port_guid = Guid(1);
        table.set_way(DLID, Some(&way(1))).unwrap();
        table.set_own(&OwnPort { active: true, port_guid, ..OwnPort::default() }).unwrap();
        table.publish();
        reader.join().unwrap();
    });
}
