//! Unused port numbers.

use std::net::{Ipv6Addr, TcpListener, UdpSocket};

use anyhow::{Context, Result};

/// Returns a port that was free for TCP and UDP, over IPv4 and IPv6, a moment ago. The kernel assigns
/// ports at random, so that no other process gets the same one soon.
///
/// # Errors
/// When the kernel has none.
pub(crate) fn free() -> Result<u16> {
    for _ in 0..100 {
        let tcp = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind("0.0.0.0:0"))
            .context("no free port")?;
        let addr = tcp.local_addr()?;
        if UdpSocket::bind(addr).is_ok() {
            return Ok(addr.port());
        }
    }
    anyhow::bail!("no port is free for both TCP and UDP")
}
