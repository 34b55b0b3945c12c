//! A multicast group of an id.

use std::ffi::c_void;
use std::net::IpAddr;

use rdmux_wire::Gid;

/// A group that an id has joined, or is about to.
pub(super) struct Group {
    /// The service tells it in the group's events.
    pub(super) key: u64,
    pub(super) addr: IpAddr,
    /// Whether the id only sends: then its queue pair is not attached.
    pub(super) send_only: bool,
    /// The program's, for its events.
    pub(super) context: *mut c_void,
    /// Once joined.
    pub(super) mgid: Option<Gid>,
    /// Whether it is being left: no further event is delivered.
    pub(super) leaving: bool,
    /// Events that the program holds.
    pub(super) unacknowledged: usize,
}
