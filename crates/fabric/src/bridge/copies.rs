//! Copies of route tables, and rows of processes: for each host of this machine that has an adapter of the fabric by this bridge.
//!
//! No descriptor passes the network. So the fabric sends what changes of its tables, by a connection of their own, and each message that it sends
//! by any other connection has a number: a client gets the message once the update with this number has been made. What processes of the
//! hosts count the bridge reads, often, and tells the fabric.

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

/// The most rows in a message.
const MOST_ROWS: usize = 1024;
/// The most ways in a message.
const MOST_WAYS: usize = 4096;

/// How a connection is written to that may take nothing now.
const AT_ONCE: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// The copies of all hosts.
#[derive(Debug)]
pub(super) struct Copies {
    all: Mutex<HashMap<u64, Arc<Copy>>>,
    /// Of the rows that are read.
    shares: Shares,
    made: Mutex<Made>,
    change: Condvar,
}

/// Which update was made last.
#[derive(Debug, Default)]
struct Made {
    sequence: u64,
    ended: bool,
    /// The copies that the parts of the next update have changed.
    parts: Vec<Arc<Copy>>,
    /// A copy has changed, of which the fabric is to be told.
    is_due: bool,
}

/// The copy of a host's route table, and what its processes count.
#[derive(Debug)]
pub(super) struct Copy {
    table: Mutex<Table>,
    rows: Mutex<BTreeMap<u16, ProcessRows>>,
    /// Whose host it is.
    uid: u32,
    shares: Shares,
    out: Mutex<Outgoing>,
    /// The table has changed since the fabric was told by which ways processes count. Of the last update, while that is locked.
    has_changed: AtomicBool,
}

/// The way to the fabric, for one message at a time.
#[derive(Debug)]
struct Outgoing {
    tcp: TcpStream,
    /// What is written before anything else.
    waiting: Vec<u8>,
}

#[derive(Debug)]
struct Table {
    table: RouteTable,
    /// Ways of a group of which more follow.
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

    /// A copy for the host of a connection, which is this user's, before the fabric is told of it; and its descriptor.
    ///
    /// # Errors
    /// Those of memory and descriptors.
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

    /// The host is gone.
    pub(super) fn close(&self, connection: u64) {
        self.all.lock().remove(&connection);
    }

    /// Makes a part of an update, and waits for no host. What it says of hosts that are gone is of no use.
    ///
    /// # Errors
    /// What is no update.
    pub(super) fn update(&self, message: &[u8]) -> io::Result<()> {
        let TableUpdate { connection, entries, sequence } =
            socket::decode(message).map_err(io::Error::other)?;
        let copy = self.all.lock().get(&connection).cloned();
        if let Some(copy) = &copy {
            let Table { table, ways } = &mut *copy.table.lock();
            for entry in &entries {
                if let Err(why) = entry.write(table, ways) {
                    tracing::debug!("a route table lacks an entry: {why}");
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
            // Ways that were before are forgotten by the fabric once nobody counts by them.
            copy.has_changed.store(true, Ordering::Relaxed);
            made.is_due = true;
        }
        drop(made);
        self.change.notify_all();
        Ok(())
    }

    /// Waits until an update has been made.
    ///
    /// # Errors
    /// When there are no more updates.
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

    /// There are no more updates.
    pub(super) fn end(&self) {
        self.made.lock().ended = true;
        self.change.notify_all();
    }

    /// Tells the fabric what all hosts have counted, now and then and after each update, until there is an end of it. Nothing is done while
    /// nobody counts. A host whose connection takes nothing is told of later, and holds up no other.
    pub(super) fn report_until_end(&self) {
        /// How often.
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
                // A connection that has ended is noticed where it is read.
                let _ = self.report_if_room(&copy);
            }
        }
    }

    /// Tells the fabric what a host's processes have counted, and by which ways they still do, if they have counted anything, their table
    /// has changed, or `anyway`. Waits until the connection takes it.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn report(&self, copy: &Copy, anyway: bool) -> io::Result<()> {
        let mut out = copy.out.lock();
        self.add_report(copy, &mut out, anyway)?;
        out.write_waiting()
    }

    /// The same without waiting. Nothing is read while the connection has not taken what was read before.
    fn report_if_room(&self, copy: &Copy) -> io::Result<()> {
        let Some(mut out) = copy.out.try_lock() else { return Ok(()) };
        if out.write_what_fits()? {
            self.add_report(copy, &mut out, false)?;
            out.write_what_fits()?;
        }
        Ok(())
    }

    /// Nobody else reads rows in between, so that what is told later was counted later.
    fn add_report(&self, copy: &Copy, out: &mut Outgoing, anyway: bool) -> io::Result<()> {
        // What was made before the rows are read is seen by those who open rows.
        let (made, has_changed) = {
            let made = self.made.lock();
            (made.sequence, copy.has_changed.swap(false, Ordering::Relaxed))
        };
        copy.report(made, anyway || has_changed, &mut out.waiting)
    }
}

impl Outgoing {
    /// Writes what waits.
    fn write_waiting(&mut self) -> io::Result<()> {
        (&self.tcp).write_all(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    /// Writes of that what the connection takes at once. Whether nothing is left.
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
    /// A process counts in these rows. They are not read if its user has its share.
    ///
    /// # Errors
    /// What are no rows.
    pub(super) fn count_in(&self, process: u16, rows: &OwnedFd) -> io::Result<()> {
        let rows = RowReader::map(rows)?;
        let mut all = self.rows.lock();
        all.remove(&process);
        if all.len() >= MAX_PROCESSES {
            return Err(io::Error::other("more processes than there can be"));
        }
        match ProcessRows::new(rows, &self.shares, self.uid) {
            Ok(rows) => drop(all.insert(process, rows)),
            Err(why) => tracing::debug!(%why, "what a process sends is not counted"),
        }
        Ok(())
    }

    /// Whether rows of a process are read.
    pub(super) fn counts(&self, process: u16) -> bool {
        self.rows.lock().contains_key(&process)
    }

    /// A process is gone. Report what it has counted before.
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

    /// Reads the rows, and adds what is to be told of them.
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
        // Of more the fabric does not hear, and forgets none of its ways.
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

    /// Longer than anything takes.
    const LONG: Duration = Duration::from_secs(30);

    /// Both ends of a connection to the fabric.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        theirs.set_read_timeout(Some(LONG)).unwrap();
        (ours, theirs)
    }

    /// Makes an update that changes nothing of the table of a host.
    fn update(copies: &Copies, connection: u64, sequence: u64) {
        let update = TableUpdate { connection, entries: Vec::new(), sequence: Some(sequence) };
        copies.update(&postcard::to_stdvec(&update).unwrap()).unwrap();
        copies.wait_for(sequence).unwrap();
    }

    /// Makes a part of an update that ends with another part.
    fn update_in_part(copies: &Copies, connection: u64) {
        let update = TableUpdate { connection, entries: Vec::new(), sequence: None };
        copies.update(&postcard::to_stdvec(&update).unwrap()).unwrap();
    }

    /// Reads which update the fabric is told of next.
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
    fn all_hosts_of_an_update_are_reported_once_it_has_been_made() {
        let copies = Copies::default();
        let hosts = [1, 2, 3].map(|number| {
            let (ours, theirs) = connection();
            (copies.open(number, 0, &ours).unwrap().0, theirs)
        });
        let report = || {
            hosts.each_ref().map(|(copy, theirs)| {
                copies.report(copy, false).unwrap();
                // Behind what is told, if anything is.
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
    fn rows_of_one_user_leave_room_for_the_next() {
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
    fn host_that_reads_nothing_holds_up_nobody_and_is_reported_when_it_does() {
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
                // A report of the one, perhaps, and of the other in any case, more than once.
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
