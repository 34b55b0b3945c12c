//! The user of a TCP port's listener, by the kernel's table of sockets: TCP itself reports no user.

use std::fs;
use std::io;
use std::net::SocketAddrV4;

/// Returns the user of the socket that listens on a port of this machine; none if no socket does.
///
/// # Errors
/// Those of reading `/proc/thread-self/net/tcp` (proc(5)).
pub(crate) fn user_of(at: SocketAddrV4) -> io::Result<Option<u32>> {
    let find = || -> io::Result<Option<u32>> {
        let found = user_in(&fs::read_to_string("/proc/thread-self/net/tcp")?, at);
        // This table does not exist without IPv6.
        let table6 = || fs::read_to_string("/proc/thread-self/net/tcp6").unwrap_or_default();
        Ok(found.or_else(|| user_in(&table6(), at)))
    };
    // A socket that is closed while its row is printed may be listed as root's.
    match find()? {
        Some(0) => find(),
        other => Ok(other),
    }
}

/// Returns the user of the row that listens on this address or, if none does, on all addresses.
fn user_in(table: &str, at: SocketAddrV4) -> Option<u32> {
    let hex = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
    let [none, ip] = [hex([0; 4]), hex(at.ip().octets())];
    let mapped = format!("{none}{none}{}{ip}", hex([0, 0, 255, 255]));
    let listeners = [ip, mapped, none.clone(), none.repeat(4)];
    let user = |address: &String| {
        let local = format!("{address}:{:04X}", at.port());
        table.lines().skip(1).find_map(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            let (is_it, state) = (words.next()? == local, words.nth(1)?);
            let user = words.nth(3)?;
            let inode = words.nth(1)?;
            (is_it && state == "0A" && inode != "0").then(|| user.parse().ok()).flatten()
        })
    };
    listeners.iter().find_map(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_that_of_the_socket_that_listens_at_the_address() {
        if cfg!(target_endian = "big") {
            return;
        }
        let user = |rows: &[(&str, &str, u32, u32)]| {
            let row = |(local, state, user, inode): &(&str, &str, u32, u32)| {
                format!("   0: {local} 00000000:0000 {state} 0:0 00:0 0 {user} 0 {inode} 1\n")
            };
            let rows: String = rows.iter().map(row).collect();
            user_in(&format!("  sl  local_address\n{rows}"), "127.0.0.1:6125".parse().unwrap())
        };
        let exact = ("0100007F:17ED", "0A", 7, 1);
        let all = ("00000000:17ED", "0A", 8, 1);
        assert_eq!((user(&[all, exact]), user(&[all])), (Some(7), Some(8)));
        let others = [
            ("0100007F:17ED", "01", 9, 1),
            ("0100007F:17EE", "0A", 9, 1),
            ("0200007F:17ED", "0A", 9, 1),
            ("0100007F:17ED", "0A", 0, 0),
        ];
        assert_eq!((user(&others), user(&[])), (None, None));
        for address in ["0000000000000000FFFF00000100007F", &"0".repeat(32)] {
            assert_eq!(user(&[(&format!("{address}:17ED"), "0A", 7, 1)]), Some(7));
        }
        assert_eq!(user_in("nonsense\n1: 2\n", "127.0.0.1:1".parse().unwrap()), None);
    }
}
