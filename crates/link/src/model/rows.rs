//! Counter rows between a sender and the owner of the subnet, which changes the route table.

use std::sync::Arc;

use loom::thread;
use rdmux_wire::Lid;

use super::check;
use crate::routes::{Route, RouteId, RouteTable, RouteView};
use crate::rows::{Counted, RowReader, Rows, Tally};

const DLID: Lid = Lid(1);

fn route(n: u64) -> Route {
    Route { id: RouteId(n), way: None }
}

/// Needs: the writer's fence between opening a row and reading the table, and the reader's before it reads rows.
#[test]
fn open_counter_row_of_a_replaced_route_is_visible_to_the_reader() {
    check(3, || {
        let mut table = RouteTable::create().unwrap();
        table.set_route(DLID, route(1)).unwrap();
        let view = RouteView::map(table.fd()).unwrap();
        let fd = Rows::create().unwrap();
        let (rows, mut reader) = (Rows::map(&fd).unwrap(), RowReader::map(&fd).unwrap());
        let sender = thread::spawn(move || {
            let mut tally = Tally::new(Arc::new(rows));
            let route = view.route_id(DLID);
            let counted = Counted::Sent { route, dlid: DLID, sl: 0, pkey: 0, payload: 0 };
            let row = tally.find(&counted, |_| view.route_id(DLID) == route).ok()?;
            tally.add(row, 1, 2);
            std::mem::forget(tally);
            Some(route)
        });
        table.set_route(DLID, route(2)).unwrap();
        let (mut is_open, mut packets) = (false, 0);
        let mut look = |is_open: &mut bool| {
            reader.read(|row| {
                *is_open |= row.counted.route() == Some(RouteId(1)) && row.is_open;
                packets += row.packets;
            });
        };
        look(&mut is_open);
        let by = sender.join().unwrap();
        look(&mut false);
        if by == Some(RouteId(1)) {
            assert!(is_open, "the way would be forgotten");
        }
        assert_eq!(packets, u64::from(by.is_some()));
    });
}

/// Needs: Release and Acquire of a row's contents, of its closing, and of the reader's acknowledgement.
#[test]
fn reused_counter_row_counts_only_for_its_new_key() {
    check(3, || {
        let fd = Rows::create().unwrap();
        let (rows, mut reader) = (Rows::map(&fd).unwrap(), RowReader::map(&fd).unwrap());
        let sender = thread::spawn(move || {
            let rows = Arc::new(rows);
            // There are two rows.
            let counted = [1, 2, 3].map(|n| {
                let mut tally = Tally::new(rows.clone());
                let row = tally.find(&Counted::Dropped(n), |_| true).ok()?;
                tally.add(row, n.into(), 0);
                Some(n)
            });
            counted.into_iter().flatten().map(u64::from).sum::<u64>()
        });
        let mut sums = [0; 4];
        let mut look = || {
            reader.read(|row| {
                let Counted::Dropped(n) = row.counted else { panic!("{row:?}") };
                sums[usize::from(n)] += row.packets;
            });
        };
        look();
        let sum = sender.join().unwrap();
        look();
        assert!((0..).zip(sums).all(|(n, sum)| sum == 0 || sum == n), "{sums:?}");
        assert_eq!(sums.iter().sum::<u64>(), sum);
    });
}
