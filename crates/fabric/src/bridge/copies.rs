//! Copies of route tables, and rows of processes, for each host of this machine that is attached through this bridge.
//!
//! Descriptors cannot pass the network. So the fabric sends changes of its tables over a connection of their own, and numbers each message
//! on other connections: a client gets the message once the update with this number was applied. The bridge reads the rows of the hosts'
//! processes frequently, and reports them to the fabric.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rdmux_link::routes::{RouteTable, Way};
use rdmux_link::rows::RowReader;
use rdmux_runtime::{Shares, socket};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::pump;
use crate::process_rows::{self, MAX_PROCESSES, ProcessRows};
use crate::proto::{AttachmentRequest, RowEntry, TableUpdate};

/// Maximum number of rows in a message.
const MOST_ROWS: usize = 1024;
/// Maximum number of routes in a message.
const MOST_WAYS: usize = 4096;

/// Flags of a write that must not block.
const AT_ONCE: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// The copies of all hosts.
#[derive(Debug)]
pub(super) struct Copies {
    all: Mutex<HashMap<u64, Arc<Copy>>>,
    /// The shares of rows that are read.
    shares: Shares,
    made: Mutex<Made>,
    change: Condvar,
}

/// The state of the updates.
#[derive(Debug, Default)]
struct Made {
    sequence: u64,
    ended: bool,
    /// The copies changed by parts of an update that is not complete.
    parts: Vec<Arc<Copy>>,
    /// Whether a copy has changed and a report to the fabric is due.
    is_due: bool,
}

/// The copy of a host's route table, and the rows of its processes.
#[derive(Debug)]
pub(super) struct Copy {
    table: Mutex<Table>,
    rows: Mutex<BTreeMap<u16, ProcessRows>>,
    /// The user of the host.
    uid: u32,
    shares: Shares,
    out: Mutex<Outgoing>,
    /// Whether the table has changed since the last report of the routes by which processes count. Set under the lock of the
    /// updates.
    has_changed: AtomicBool,
}

/// The connection to the fabric, for one message at a time.
#[derive(Debug)]
struct Outgoing {
    tcp: TcpStream,
    /// Bytes that must be written first.
    waiting: Vec<u8>,
}

#[derive(Debug)]
struct Table {
    table: RouteTable,
    /// Routes of a group that is not complete.
    ways: Vec<Way>,
}

impl Default for Copies {
    fn default() -> Self {
        Self::of(process_rows::shares())
    }
}

impl Copies {
    fn of(shares: Shares) -> Self {
        let (all, made, change) = (Mutex::default(), Mutex::default(), Condvar::new());
        Self { all, shares, made, change }
    }

    /// Makes a copy for the host of a connection of this user, before the host is reported to the fabric. Returns the
    /// copy and its descriptor.
    ///
    /// # Errors
    /// Errors of memory and descriptors.
    pub(super) fn open(
        &self,
        connection: u64,
        uid: u32,
        tcp: &TcpStream,
    ) -> io::Result<(Arc<Copy>, OwnedFd)> {
        let table = RouteTable::create()?;
        let fd = table.fd().try_clone()?;
        let table = Mutex::new(Table { table, ways: Vec::new() });
        let out = Mutex::new(Outgoing { tcp: tcp.try_clone()?, waiting: Vec::new() });
        let (rows, has_changed) = (Mutex::default(), AtomicBool::new(false));
        let shares = self.shares.clone();
        let copy = Arc::new(Copy { table, rows, uid, shares, out, has_changed });
        self.all.lock().insert(connection, copy.clone());
        self.change.notify_all();
        Ok((copy, fd))
    }

    /// Removes the copy of a host that is gone.
    pub(super) fn close(&self, connection: u64) {
        self.all.lock().remove(&connection);
    }

    /// Applies a part of an update, without waiting for any host. Entries for hosts that are gone are ignored.
    ///
    /// # Errors
    /// An error if the message is not an update.
    pub(super) fn update(&self, message: &[u8]) -> io::Result<()> {
        let TableUpdate { connection, entries, sequence } =
            socket::decode(message).map_err(io::Error::other)?;
        let copy = self.all.lock().get(&connection).cloned();
        if let Some(copy) = &copy {
            let Table { table, ways } = &mut *copy.table.lock();
            for entry in &entries {
                if let Err(why) = entry.write(table, ways) {
                    tracing::debug!("cannot write an entry of a route table: {why}");
                }
            }
        }
        let mut made = self.made.lock();
        if let Some(copy) = copy.filter(|copy| !made.parts.iter().any(|p| Arc::ptr_eq(p, copy))) {
            made.parts.push(copy);
        }
        let Some(sequence) = sequence else { return Ok(()) };
        made.sequence = sequence;
        for copy in std::mem::take(&mut made.parts) {
            // The fabric drops earlier routes once no process counts by them.
            copy.has_changed.store(true, Ordering::Relaxed);
            made.is_due = true;
        }
        drop(made);
        self.change.notify_all();
        Ok(())
    }

    /// Waits until an update was applied.
    ///
    /// # Errors
    /// When no more updates can be received.
    pub(super) fn wait_for(&self, sequence: u64) -> io::Result<()> {
        let mut made = self.made.lock();
        while made.sequence < sequence {
            if made.ended {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.change.wait(&mut made);
        }
        Ok(())
    }

    /// Marks the end of updates.
    pub(super) fn end(&self) {
        self.made.lock().ended = true;
        self.change.notify_all();
    }

    /// Reports the counts of all hosts to the fabric, periodically and after each update, until the end of updates. Sleeps while there are
    /// no hosts. A host whose connection is full is reported later, and does not delay the others.
    pub(super) fn report_until_end(&self) {
        /// The interval.
        const OFTEN: Duration = Duration::from_millis(100);
        loop {
            {
                let mut made = self.made.lock();
                if made.ended {
                    return;
                }
                if !made.is_due {
                    if self.all.lock().is_empty() {
                        self.change.wait(&mut made);
                    } else {
                        self.change.wait_for(&mut made, OFTEN);
                    }
                }
                made.is_due = false;
            }
            let all: Vec<_> = self.all.lock().values().cloned().collect();
            for copy in all {
                // The end of a connection is noticed by its reader.
                let _ = self.report_if_room(&copy);
            }
        }
    }

    /// Reports a host's counts, and the routes by which its processes still count, if they have counted anything, their table has
    /// changed, or `anyway` is set. Blocks until the connection takes it.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn report(&self, copy: &Copy, anyway: bool) -> io::Result<()> {
        let mut out = copy.out.lock();
        self.add_report(copy, &mut out, anyway)?;
        out.write_waiting()
    }

    /// Like [`report`](Self::report), without blocking. Rows are not read until the previous report was sent.
    fn report_if_room(&self, copy: &Copy) -> io::Result<()> {
        let Some(mut out) = copy.out.try_lock() else { return Ok(()) };
        if out.write_what_fits()? {
            self.add_report(copy, &mut out, false)?;
            out.write_what_fits()?;
        }
        Ok(())
    }

    /// Reads the rows into a report. `out` is locked, so reports are sent in the order in which they were read.
    fn add_report(&self, copy: &Copy, out: &mut Outgoing, anyway: bool) -> io::Result<()> {
        // Processes that open rows after this see the updates up to `made`.
        let (made, has_changed) = {
            let made = self.made.lock();
            (made.sequence, copy.has_changed.swap(false, Ordering::Relaxed))
        };
        copy.report(made, anyway || has_changed, &mut out.waiting)
    }
}

impl Outgoing {
    /// Writes the waiting bytes.
    fn write_waiting(&mut self) -> io::Result<()> {
        (&self.tcp).write_all(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    /// Writes as many of the waiting bytes as the connection takes at once. Returns whether none are left.
    fn write_what_fits(&mut self) -> io::Result<bool> {
        while !self.waiting.is_empty() {
            match rustix::net::send(&self.tcp, &self.waiting, AT_ONCE) {
                Ok(sent) => drop(self.waiting.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }
}

impl Copy {
    /// Starts to read a process's rows, unless its user's share is used up.
    ///
    /// # Errors
    /// If the descriptor is not one of rows.
    pub(super) fn count_in(&self, process: u16, rows: &OwnedFd) -> io::Result<()> {
        let rows = RowReader::map(rows)?;
        let mut all = self.rows.lock();
        all.remove(&process);
        if all.len() >= MAX_PROCESSES {
            return Err(io::Error::other("too many processes"));
        }
        match ProcessRows::new(rows, &self.shares, self.uid) {
            Ok(rows) => drop(all.insert(process, rows)),
            Err(why) => tracing::debug!(%why, "the packets of a process are not counted"),
        }
        Ok(())
    }

    /// Returns whether rows of a process are read.
    pub(super) fn counts(&self, process: u16) -> bool {
        self.rows.lock().contains_key(&process)
    }

    /// Stops reading a process's rows. Its counts must be reported before.
    pub(super) fn process_gone(&self, process: u16) {
        self.rows.lock().remove(&process);
    }

    /// Sends a message to the fabric.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        let mut out = self.out.lock();
        out.write_waiting()?;
        pump::write_frame(&mut &out.tcp, message, &mut Vec::new())
    }

    /// Reads the rows, and appends the report.
    fn report(&self, made: u64, anyway: bool, to: &mut Vec<u8>) -> io::Result<()> {
        let (mut rows, mut open) = (Vec::new(), BTreeSet::new());
        for reader in self.rows.lock().values_mut() {
            reader.read(|row| {
                open.extend(row.counted.route().filter(|_| row.is_open).map(|id| id.0));
                if row.packets | row.words != 0 {
                    rows.push(RowEntry::new(row.counted, row.packets, row.words));
                }
            });
        }
        let mut tell = |told: &AttachmentRequest| {
            let message = postcard::to_stdvec(told).map_err(io::Error::other)?;
            pump::write_frame(to, &message, &mut Vec::new())
        };
        for rows in rows.chunks(MOST_ROWS) {
            tell(&AttachmentRequest::Counted { rows: rows.to_vec() })?;
        }
        // A longer list is not sent, so the fabric drops none of the routes.
        if (anyway || !rows.is_empty()) && open.len() <= MOST_WAYS {
            tell(&AttachmentRequest::CountBy { made, ways: open.into_iter().collect() })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Shutdown, TcpListener};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Longer than anything in these tests takes.
    const LONG: Duration = Duration::from_secs(30);

    /// Returns both ends of a connection to the fabric.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        theirs.set_read_timeout(Some(LONG)).unwrap();
        (ours, theirs)
    }

    /// Applies an update that changes nothing in a host's table.
    fn update(copies: &Copies, connection: u64, sequence: u64) {
        let update = TableUpdate { connection, entries: Vec::new(), sequence: Some(sequence) };
        copies.update(&postcard::to_stdvec(&update).unwrap()).unwrap();
        copies.wait_for(sequence).unwrap();
    }

    /// Applies a part of an update that another part completes.
    fn update_in_part(copies: &Copies, connection: u64) {
        let update = TableUpdate { connection, entries: Vec::new(), sequence: None };
        copies.update(&postcard::to_stdvec(&update).unwrap()).unwrap();
    }

    /// Returns the number of the update in the next report to the fabric.
    fn told(fabric: &TcpStream) -> u64 {
        let mut buf = pump::buffer();
        let frame = pump::read_frame(&mut &*fabric, &mut buf).unwrap().unwrap();
        match socket::decode(frame).unwrap() {
            AttachmentRequest::CountBy { made, .. } => made,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn host_whose_connection_has_ended_does_not_end_the_updates_of_others() {
        let copies = Copies::default();
        let (ours, _theirs) = connection();
        copies.open(7, 0, &ours).unwrap();
        ours.shutdown(Shutdown::Both).unwrap();
        for sequence in 1..=2 {
            update(&copies, 7, sequence);
        }
    }

    #[test]
    fn update_is_acknowledged_once_for_every_host_after_it_is_applied() {
        let copies = Copies::default();
        let hosts = [1, 2, 3].map(|number| {
            let (ours, theirs) = connection();
            (copies.open(number, 0, &ours).unwrap().0, theirs)
        });
        let report = || {
            hosts.each_ref().map(|(copy, theirs)| {
                copies.report(copy, false).unwrap();
                // Sent after the report, if any.
                let end = AttachmentRequest::CountBy { made: u64::MAX, ways: Vec::new() };
                copy.send(&postcard::to_stdvec(&end).unwrap()).unwrap();
                let made = told(theirs);
                assert!(made == u64::MAX || told(theirs) == u64::MAX);
                made
            })
        };
        let none = u64::MAX;
        update_in_part(&copies, 1);
        update_in_part(&copies, 1);
        assert_eq!(report(), [none; 3], "it has not been made");
        update(&copies, 2, 1);
        assert_eq!(report(), [1, 1, none]);
        update(&copies, 3, 2);
        assert_eq!(report(), [none, none, 2]);
    }

    #[test]
    fn bridge_counter_rows_of_a_user_are_limited_to_its_share() {
        let copies = Copies::of(Shares::of(1000, 16 * 64));
        let rows = rdmux_link::rows::Rows::create().unwrap();
        let (tcp, _theirs) = connection();
        let open = |connection, uid| copies.open(connection, uid, &tcp).unwrap().0;
        let [first, again, other] = [open(1, 1), open(2, 1), open(3, 2)];
        let read = |copy: &Copy, processes: std::ops::Range<u16>| {
            let count = |process: &u16| {
                copy.count_in(*process, &rows).unwrap();
                copy.counts(*process)
            };
            processes.filter(count).count()
        };
        assert_eq!((read(&first, 0..6), read(&again, 0..6)), (6, 2));
        assert_eq!((read(&other, 0..20), read(&first, 0..6)), (4, 6));
        first.process_gone(3);
        assert_eq!(read(&again, 10..20), 1);
    }

    #[test]
    fn host_that_does_not_read_blocks_no_other_host_and_gets_its_report_later() {
        let copies = Copies::default();
        let [(stuck, mut far_from_stuck), (ours, theirs)] = [connection(), connection()];
        let (copy, _table) = copies.open(1, 0, &stuck).unwrap();
        copies.open(2, 0, &ours).unwrap();
        let mut filled = 0;
        while let Ok(sent) = rustix::net::send(&stuck, &[0; 4096], AT_ONCE) {
            filled += sent;
        }
        thread::scope(|scope| {
            let (done, is_done) = mpsc::channel();
            let copies = &copies;
            scope.spawn(move || copies.report_until_end());
            scope.spawn(move || {
                update(copies, 1, 1);
                // Perhaps one report of the first host, and in any case several of the other.
                for sequence in 2..=4 {
                    update(copies, 2, sequence);
                    while told(&theirs) < sequence {}
                }
                done.send(()).unwrap();
            });
            let result = is_done.recv_timeout(LONG);
            if result.is_err() {
                copies.end();
            }
            far_from_stuck.read_exact(&mut vec![0; filled]).unwrap();
            result.expect("the other host is held up");
            assert!(told(&far_from_stuck) >= 1);
            copy.send(&[9]).unwrap();
            let mut buf = pump::buffer();
            let next = pump::read_frame(&mut &far_from_stuck, &mut buf).unwrap();
            assert_eq!(next, Some(&[9][..]), "nothing is told twice");
            copies.end();
        });
    }
}
