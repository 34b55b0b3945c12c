//! Copies of route tables, and rows of processes: for each host of this machine that has an adapter of the fabric by this bridge.
//!
//! No descriptor passes the network. So the fabric sends what changes of its tables, by a connection of their own, and each message that it sends
//! by any other connection has a number: a client gets the message once the update with this number has been made. What processes of the
//! hosts count the bridge reads, often, and tells the fabric.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rdmux_link::routes::{RouteTable, Way};
use rdmux_link::rows::RowReader;
use rdmux_runtime::socket;

use super::pump;
use crate::proto::{AttachmentRequest, RowEntry, TableUpdate};

/// The most rows in a message.
const MOST_ROWS: usize = 1024;
/// The most ways in a message.
const MOST_WAYS: usize = 4096;

/// The copies of all hosts.
#[derive(Debug, Default)]
pub(super) struct Copies {
    all: Mutex<HashMap<u64, Arc<Copy>>>,
    made: Mutex<Made>,
    change: Condvar,
}

/// Which update was made last.
#[derive(Debug, Default)]
struct Made {
    sequence: u64,
    ended: bool,
}

/// The copy of a host's route table, and what its processes count.
#[derive(Debug)]
pub(super) struct Copy {
    table: Mutex<Table>,
    rows: Mutex<BTreeMap<u16, RowReader>>,
    /// The way to the fabric, for one message at a time.
    tcp: Mutex<TcpStream>,
}

#[derive(Debug)]
struct Table {
    table: RouteTable,
    /// Ways of a group of which more follow.
    ways: Vec<Way>,
}

impl Copies {
    /// A copy for the host of a connection, before the fabric is told of it; and its descriptor.
    ///
    /// # Errors
    /// Those of memory and descriptors.
    pub(super) fn open(
        &self,
        connection: u64,
        tcp: &TcpStream,
    ) -> io::Result<(Arc<Copy>, OwnedFd)> {
        let table = RouteTable::create()?;
        let fd = table.fd().try_clone()?;
        let table = Mutex::new(Table { table, ways: Vec::new() });
        let copy = Copy { table, rows: Mutex::default(), tcp: Mutex::new(tcp.try_clone()?) };
        let copy = Arc::new(copy);
        self.all.lock().insert(connection, copy.clone());
        self.change.notify_all();
        Ok((copy, fd))
    }

    /// The host is gone.
    pub(super) fn close(&self, connection: u64) {
        self.all.lock().remove(&connection);
    }

    /// Makes a part of an update. What it says of hosts that are gone is of no use.
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
        let Some(sequence) = sequence else { return Ok(()) };
        self.made.lock().sequence = sequence;
        self.change.notify_all();
        if let Some(copy) = copy {
            // Ways that were before are forgotten by the fabric once nobody counts by them.
            self.report(&copy, true)?;
        }
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

    /// Tells the fabric what all hosts have counted, now and then, until there is an end of it. Nothing is done while nobody counts.
    pub(super) fn report_until_end(&self) {
        /// How often.
        const OFTEN: Duration = Duration::from_millis(100);
        loop {
            {
                let mut made = self.made.lock();
                if made.ended {
                    return;
                }
                if self.all.lock().is_empty() {
                    self.change.wait(&mut made);
                } else {
                    self.change.wait_for(&mut made, OFTEN);
                }
            }
            let all: Vec<_> = self.all.lock().values().cloned().collect();
            for copy in all {
                // A connection that has ended is noticed where it is read.
                let _ = self.report(&copy, false);
            }
        }
    }

    /// Tells the fabric what a host's processes have counted, and by which ways they still do, if they have counted anything or `anyway`.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn report(&self, copy: &Copy, anyway: bool) -> io::Result<()> {
        // What was made before the rows are read is seen by those who open rows.
        let made = self.made.lock().sequence;
        copy.report(made, anyway)
    }
}

impl Copy {
    /// A process counts in these rows.
    ///
    /// # Errors
    /// What are no rows.
    pub(super) fn count_in(&self, process: u16, rows: &OwnedFd) -> io::Result<()> {
        /// As many as the fabric takes.
        const MOST: usize = 2048;
        let rows = RowReader::map(rows)?;
        let mut all = self.rows.lock();
        if all.len() >= MOST && !all.contains_key(&process) {
            return Err(io::Error::other("more processes than there can be"));
        }
        all.insert(process, rows);
        Ok(())
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
        pump::write_frame(&mut &*self.tcp.lock(), message, &mut Vec::new())
    }

    fn report(&self, made: u64, anyway: bool) -> io::Result<()> {
        let (mut rows, mut open) = (Vec::new(), BTreeSet::new());
        // Nobody reads rows in between, so that what is told later was counted later.
        let tcp = self.tcp.lock();
        for reader in self.rows.lock().values_mut() {
            reader.read(|row| {
                open.extend(row.counted.route().filter(|_| row.is_open).map(|id| id.0));
                if row.packets | row.words != 0 {
                    rows.push(RowEntry::new(row.counted, row.packets, row.words));
                }
            });
        }
        let send = |told: &AttachmentRequest| {
            let message = postcard::to_stdvec(told).map_err(io::Error::other)?;
            pump::write_frame(&mut &*tcp, &message, &mut Vec::new())
        };
        for rows in rows.chunks(MOST_ROWS) {
            send(&AttachmentRequest::Counted { rows: rows.to_vec() })?;
        }
        // Of more the fabric does not hear, and forgets none of its ways.
        if (anyway || !rows.is_empty()) && open.len() <= MOST_WAYS {
            send(&AttachmentRequest::CountBy { made, ways: open.into_iter().collect() })?;
        }
        Ok(())
    }
}
