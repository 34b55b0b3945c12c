//! Whether the kernel cuts and merges datagrams (udp(7)). All kernels since 5.0 do, but not every
//! sandbox that speaks for one.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use crate::sys;

/// What the kernel said to each.
#[derive(Debug)]
pub struct Offload {
    /// Segmentation of what is sent (`UDP_SEGMENT`).
    pub gso: io::Result<()>,
    /// Merging of what is received (`UDP_GRO`).
    pub gro: io::Result<()>,
}

impl Offload {
    /// Tries both on a socket.
    ///
    /// # Errors
    ///
    /// When there can be no UDP socket at all.
    pub fn probe() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let set = |name, value| sys::set_int(&socket, libc::SOL_UDP, name, value);
        Ok(Self { gso: set(libc::UDP_SEGMENT, 1024), gro: set(libc::UDP_GRO, 1) })
    }
}
