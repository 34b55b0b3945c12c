//! A MAD file for tests: it keeps the sent MADs, and the test delivers the received ones.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use parking_lot::Mutex;
use rdmux_subnet::umad::Registration;

use super::buffer::HEADER;
use super::file::{MadFile, Received};
use super::open::OpenPort;
use super::ports::insert;
use crate::boundary::{Errno, Result};

/// The device's end of the file, which the test controls.
#[derive(Debug)]
pub(super) struct Fake {
    state: Mutex<State>,
    /// The socket whose other end has a byte to read for each record.
    readable: UnixDatagram,
}

#[derive(Debug, Default)]
struct State {
    registered: Vec<Registration>,
    unregistered: Vec<u32>,
    refusal: Option<c_int>,
    sent: Vec<([u8; HEADER], Vec<u8>)>,
    records: VecDeque<Vec<u8>>,
    outstanding: bool,
    asked: usize,
    gone: bool,
}

/// Opens a port and returns the fake behind it.
pub(super) fn open() -> (c_int, Arc<Fake>) {
    let (ours, readable) = UnixDatagram::pair().unwrap();
    let fake = Arc::new(Fake { state: Mutex::default(), readable });
    let file = File { ours, fake: Arc::clone(&fake) };
    (insert(OpenPort::new(Box::new(file))), fake)
}

impl Fake {
    /// Returns the registrations so far.
    pub(super) fn registered(&self) -> Vec<Registration> {
        self.state.lock().registered.clone()
    }
    /// Returns the numbers of the agents that were unregistered.
    pub(super) fn unregistered(&self) -> Vec<u32> {
        self.state.lock().unregistered.clone()
    }
    /// Refuses every further agent.
    pub(super) fn refuse(&self, errno: c_int) {
        self.state.lock().refusal = Some(errno);
    }
    /// Returns the MADs sent so far, with their headers.
    pub(super) fn sent(&self) -> Vec<([u8; HEADER], Vec<u8>)> {
        self.state.lock().sent.clone()
    }
    /// Sets whether requests count as outstanding.
    pub(super) fn set_outstanding(&self, outstanding: bool) {
        self.state.lock().outstanding = outstanding;
    }
    /// Returns how often outstanding requests were queried.
    pub(super) fn asked(&self) -> usize {
        self.state.lock().asked
    }
    /// Delivers a MAD to an agent.
    pub(super) fn deliver(&self, agent: u32, status: c_int, mad: &[u8]) {
        let mut record = vec![0; HEADER];
        record[..4].copy_from_slice(&agent.to_ne_bytes());
        record[4..8].copy_from_slice(&status.to_ne_bytes());
        record.extend_from_slice(mad);
        self.state.lock().records.push_back(record);
        self.readable.send(&[1]).unwrap();
    }
    /// Removes the port.
    pub(super) fn hang_up(&self) {
        self.state.lock().gone = true;
        self.readable.send(&[1]).unwrap();
    }
}

#[derive(Debug)]
struct File {
    ours: UnixDatagram,
    fake: Arc<Fake>,
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }
}

impl MadFile for File {
    fn register(&self, registration: &Registration) -> Result<u32> {
        let mut state = self.fake.state.lock();
        if let Some(errno) = state.refusal {
            return Err(Errno(errno));
        }
        state.registered.push(*registration);
        Ok(u32::try_from(state.registered.len() - 1).unwrap())
    }

    fn unregister(&self, agent: u32) -> Result<()> {
        self.fake.state.lock().unregistered.push(agent);
        Ok(())
    }

    fn check(&self, _header: &[u8; HEADER], _mad: &[u8]) -> Result<()> {
        let mut state = self.fake.state.lock();
        state.asked += 1;
        if state.outstanding { Err(Errno::EINVAL) } else { Ok(()) }
    }

    fn send(&self, header: &[u8; HEADER], mad: &[u8]) -> Result<()> {
        let mut state = self.fake.state.lock();
        if state.gone {
            return Err(Errno::EIO);
        }
        state.sent.push((*header, mad.to_vec()));
        Ok(())
    }

    fn read(&self, buffer: &mut [u8]) -> Result<Received> {
        let mut state = self.fake.state.lock();
        if state.gone {
            return Err(Errno::EIO);
        }
        let Some(record) = state.records.front() else { return Ok(Received::Nothing) };
        let length = record.len();
        let fits = length.min(buffer.len());
        buffer[..fits].copy_from_slice(&record[..fits]);
        if fits < length {
            return Ok(Received::TooLong(length));
        }
        state.records.pop_front();
        self.ours.recv(&mut [0]).unwrap();
        Ok(Received::Whole(length))
    }
}
