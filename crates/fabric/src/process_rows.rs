//! The rows in which a process of a host counts the packets that it sends ([`rdmux_link::rows`]), and each user's share of them: reading a
//! row costs memory and time, and each process needs a mapping.

use rdmux_link::rows::{RowRead, RowReader};
use rdmux_runtime::{Exceeded, Share, Shares};

/// Maximum number of processes of a host that count, one for each slot of queue pair numbers and the host service.
pub(crate) const MAX_PROCESSES: usize = 2048;
/// Maximum number of rows of all processes, which users share.
const ALL_ROWS: usize = 1 << 20;
/// Minimum number of rows of a process.
const FEW: usize = 64;

/// Makes the shares of rows of all users.
pub(crate) fn shares() -> Shares {
    Shares::new(ALL_ROWS)
}

/// The rows of a process that are read.
#[derive(Debug)]
pub(crate) struct ProcessRows {
    rows: RowReader,
    share: Share,
}

impl ProcessRows {
    /// Maps the rows of a process of this user.
    ///
    /// # Errors
    /// When the user's share of processes or of rows is used up.
    pub(crate) fn new(rows: RowReader, shares: &Shares, uid: u32) -> Result<Self, Exceeded> {
        Ok(Self { rows, share: shares.take(uid, FEW)? })
    }

    /// Returns whether packets were dropped, as [`RowReader::has_dropped`] does.
    pub(crate) fn has_dropped(&self) -> bool {
        self.rows.has_dropped()
    }

    /// Reads each row as [`RowReader::read`] does. Rows beyond the user's share are not read.
    pub(crate) fn read(&mut self, show: impl FnMut(&RowRead)) {
        let share = &mut self.share;
        let within = |used: usize| {
            let more = used.saturating_sub(share.count());
            if more > 0
                && let Err(why) = share.take(more)
            {
                tracing::debug!(%why, "not all packets of a process are counted");
            }
            share.count()
        };
        self.rows.read_within(within, show);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rdmux_link::routes::RouteId;
    use rdmux_link::rows::{Counted, Rows, Tally};
    use rdmux_wire::Lid;

    use super::*;

    /// Makes a process of a user that has counted in this many rows.
    fn process(shares: &Shares, uid: u32, rows: u64) -> Result<(ProcessRows, Tally), Exceeded> {
        let fd = Rows::create().unwrap();
        let mut tally = Tally::new(Arc::new(Rows::map(&fd).unwrap()));
        for route in 1..=rows {
            let route = RouteId(route);
            let counted = Counted::Sent { route, dlid: Lid(5), sl: 0, pkey: 0, payload: 0 };
            let row = tally.find(&counted, |_| true).unwrap();
            tally.add(row, 1, 1);
        }
        Ok((ProcessRows::new(RowReader::map(&fd).unwrap(), shares, uid)?, tally))
    }

    fn packets((rows, _): &mut (ProcessRows, Tally)) -> u64 {
        let mut packets = 0;
        rows.read(|row| packets += row.packets);
        packets
    }

    #[test]
    fn counter_rows_beyond_the_users_share_are_read_once_it_has_room() {
        let shares = Shares::of(1000, 512);
        let [mut large, mut other] =
            [(1, 200), (2, 100)].map(|(uid, rows)| process(&shares, uid, rows).unwrap());
        assert_eq!(packets(&mut large), 200);
        assert!(process(&shares, 1, 0).is_err(), "there are 56 left");
        // Another user has its own share, which is not used up.
        assert_eq!((packets(&mut other), packets(&mut other)), (100, 0));
        let mut owners = process(&shares, 1000, 4096).unwrap();
        assert_eq!(packets(&mut owners), 4096);
        drop(large);
        let mut few = process(&shares, 1, 200).unwrap();
        let mut others = process(&shares, 1, 100).unwrap();
        assert_eq!(packets(&mut others), 100);
        assert_eq!(packets(&mut few), 64, "the first ones");
        drop(others);
        assert_eq!((packets(&mut few), packets(&mut few)), (136, 0), "the rest");
    }
}
