//! The holder of a UDP port, for an error message that suggests a remedy.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The process that is bound to a UDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The address that the socket is bound to; an unspecified address holds the port on all.
    pub addr: SocketAddr,
    /// The user who opened the socket.
    pub uid: u32,
    /// The user's name, if it has one.
    pub user: Option<String>,
    /// The process ID, if it is visible.
    pub pid: Option<u32>,
    /// The process's name, if it is visible.
    pub command: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(name) => write!(f, "user {name} (uid {})", self.uid)?,
            None => write!(f, "uid {}", self.uid)?,
        }
        if let Some(pid) = self.pid {
            write!(f, ", process {pid}")?;
        }
        if let Some(command) = &self.command {
            write!(f, " ({command})")?;
        }
        Ok(())
    }
}

/// Returns the holder of UDP `port` that keeps others from binding `addr`, from `/proc/net/udp` and `/proc/net/udp6` of this
/// thread's network namespace. `None` if none is visible.
pub fn holder_of(addr: IpAddr, port: u16) -> Option<Holder> {
    let tables = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
    let entry = tables.iter().filter_map(|t| fs::read_to_string(t).ok()).find_map(|table| {
        table.lines().filter_map(parse_line).find(|e| {
            e.addr.port() == port
                && (e.addr.ip() == addr
                    || (e.addr.ip().is_unspecified() && (addr.is_ipv4() || e.addr.is_ipv6())))
        })
    })?;
    let pid = (entry.inode != 0).then(|| process_of(entry.inode)).flatten();
    Some(Holder {
        addr: entry.addr,
        uid: entry.uid,
        user: user_name(entry.uid),
        pid,
        command: pid.and_then(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|s| s.trim().to_owned())
        }),
    })
}

/// Returns the name of a local user, from `/etc/passwd`.
pub fn user_name(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse::<u32>() == Ok(uid)).then(|| name.to_owned())
    })
}

/// A socket that the kernel lists.
struct Entry {
    addr: SocketAddr,
    uid: u32,
    inode: u64,
}

/// Parses a line of `/proc/net/udp`: sl, local, remote, st, queues, timer, retransmits, uid, timeout, inode.
fn parse_line(line: &str) -> Option<Entry> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let uid = fields.nth(5)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Entry { addr: SocketAddr::new(parse_ip(ip)?, port), uid, inode })
}

/// Parses an address given as words in native byte order, each of eight hexadecimal digits.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let word = |s: &str| u32::from_str_radix(s, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(hex)?).into()),
        32 => {
            let mut octets = [0u8; 16];
            for (i, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(hex.get(8 * i..8 * i + 8)?)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// Returns the process that has a socket open, if it is visible in `/proc`.
fn process_of(inode: u64) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|s| s.parse().ok()) else { continue };
        let Ok(fds) = fs::read_dir(process.path().join("fd")) else { continue };
        let mut links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        if links.any(|link| link.as_os_str() == wanted.as_str()) {
            return Some(pid);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn holder_of_a_bound_port_has_own_uid_and_pid() {
        let socket = UdpSocket::bind("127.77.200.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let holder = holder_of(at.ip(), at.port()).unwrap();
        assert_eq!(holder.uid, rustix::process::getuid().as_raw());
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.addr, at);
        drop(socket);
        assert_eq!(holder_of(at.ip(), at.port()), None);
    }

    #[test]
    fn wildcard_socket_holds_every_ipv4_address() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(holder_of("127.77.200.1".parse().unwrap(), port).is_some());
        assert!(holder_of("::1".parse().unwrap(), port).is_none());
    }

    #[test]
    fn malformed_proc_net_udp_lines_are_skipped() {
        for line in ["", "sl local_address", "1: zz:12 0 0 0 0 0 0 0", "1: 0100007F 0 0 0 0 0 0 0"]
        {
            assert!(parse_line(line).is_none(), "{line}");
        }
        let line = " 1: 0100007F:12B7 00000000:0000 07 0:0 00:0 00000000  1000 0 4711 2 0 0";
        let entry = parse_line(line).unwrap();
        assert_eq!(entry.addr, "127.0.0.1:4791".parse().unwrap());
        assert_eq!((entry.uid, entry.inode), (1000, 4711));
    }
}
