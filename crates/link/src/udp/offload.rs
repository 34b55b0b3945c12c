//! Checks whether the kernel segments and merges datagrams (udp(7)). All kernels since 5.0 do, but not every sandbox that
//! emulates one.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use crate::sys;

/// The kernel's result for each offload.
#[derive(Debug)]
pub struct Offload {
    /// Segmentation of sent messages (`UDP_SEGMENT`).
    pub gso: io::Result<()>,
    /// Merging of received datagrams (`UDP_GRO`).
    pub gro: io::Result<()>,
}

impl Offload {
    /// Tries both on a socket.
    ///
    /// # Errors
    ///
    /// If a UDP socket cannot be created at all.
    pub fn probe() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let set = |name, value| sys::set_int(&socket, libc::SOL_UDP, name, value);
        Ok(Self { gso: set(libc::UDP_SEGMENT, 1024), gro: set(libc::UDP_GRO, 1) })
    }
}
