//! Resolution of virtual hosts' names, for functions that look names up.
//!
//! The C library opens `/etc/hosts` by an internal call, which cannot be redirected. So the functions that
//! take a name are given the address instead, as text. The rest of their result is the C library's own.

use std::ffi::{CStr, c_char};
use std::net::IpAddr;

use crate::path::tree;

/// The path of the file in the tree.
const FILE: &[u8] = b"/etc/hosts";
/// The size of a host's record, the same as in `rdmux_host::names`.
const RECORD: usize = 128;
/// The record that precedes those of hosts.
const MARKER: &[u8] = b"# Virtual hosts of rdmux";
/// The bytes of one read: a multiple of the record size.
const CHUNK: usize = 32 * RECORD;
/// The longest name and the longest address, each with its NUL.
const MAX_NAME: usize = 64;

/// Room for a host's address, on the stack of the calling function.
pub(crate) struct Named([u8; MAX_NAME]);

impl Named {
    pub(crate) const fn new() -> Self {
        Self([0; MAX_NAME])
    }

    /// Returns the name to look up in place of `name`: itself, or the address of the virtual host
    /// of that name, stored in `self`.
    ///
    /// # Safety
    /// `name` is NULL or a string that ends with a NUL.
    pub(crate) unsafe fn resolve(&mut self, name: *const c_char) -> *const c_char {
        if name.is_null() {
            return name;
        }
        // SAFETY: the caller's promise.
        let wanted = unsafe { CStr::from_ptr(name) }.to_bytes();
        // SAFETY: the C library gives each thread an errno of its own that may be read and written at any time.
        let errno = unsafe { *libc::__errno_location() };
        let found = is_label(wanted) && self.find(wanted);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        if found { self.0.as_ptr().cast() } else { name }
    }

    /// Returns whether there is such a host, whose address is then stored in `self`.
    fn find(&mut self, wanted: &[u8]) -> bool {
        let mut path = [0; libc::PATH_MAX as usize];
        let Some(tree) = tree() else { return false };
        let len = tree.len() + FILE.len();
        if len >= path.len() {
            return false;
        }
        path[..tree.len()].copy_from_slice(tree);
        path[tree.len()..len].copy_from_slice(FILE);
        // SAFETY: the path ends with a NUL: the bytes after it are still 0.
        let file = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if file < 0 {
            return false;
        }
        let mut section = Section::default();
        let mut chunk = [0; CHUNK];
        loop {
            // SAFETY: the buffer has this size.
            let n = unsafe { libc::read(file, chunk.as_mut_ptr().cast(), CHUNK) };
            let Ok(n) = usize::try_from(n) else { break };
            for record in chunk[..n].chunks_exact(RECORD) {
                if let Some(address) = section.take(record, wanted) {
                    self.put(address);
                }
            }
            if n < CHUNK {
                break;
            }
        }
        // SAFETY: the file was opened here.
        unsafe { libc::close(file) };
        section.found
    }

    fn put(&mut self, address: &[u8]) {
        self.0 = [0; MAX_NAME];
        self.0[..address.len()].copy_from_slice(address);
    }
}

/// The state of reading the file's records.
#[derive(Default)]
struct Section {
    /// Whether the marker has been read.
    begun: bool,
    found: bool,
}

impl Section {
    /// Handles a record. Returns the address in it if its name is the wanted one.
    fn take<'a>(&mut self, record: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
        let record = record.trim_ascii_end();
        if record == MARKER {
            // The last marker counts: earlier ones are part of the machine's own text.
            *self = Self { begun: true, found: false };
            return None;
        }
        let at = record.iter().position(|&b| b == b' ').filter(|_| self.begun)?;
        let (address, name) = (&record[..at], &record[at + 1..]);
        if self.found || address.len() >= MAX_NAME || !name.eq_ignore_ascii_case(wanted) {
            return None;
        }
        // Only an address is accepted, whatever the file contains.
        std::str::from_utf8(address).ok()?.parse::<IpAddr>().ok()?;
        self.found = true;
        Some(address)
    }
}

/// Returns whether a host could have this name. Other names need not be looked up.
fn is_label(name: &[u8]) -> bool {
    (1..MAX_NAME).contains(&name.len())
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: &str) -> Vec<u8> {
        let mut record = line.as_bytes().to_vec();
        record.resize(RECORD - 1, b' ');
        record.push(b'\n');
        record
    }

    fn look_up(lines: &[&str], wanted: &str) -> Option<String> {
        let (mut section, mut found) = (Section::default(), Named::new());
        for line in lines {
            if let Some(address) = section.take(&record(line), wanted.as_bytes()) {
                found.put(address);
            }
        }
        let text = CStr::from_bytes_until_nul(&found.0).unwrap().to_str().unwrap();
        section.found.then(|| text.to_owned())
    }

    const LINE: &str = "# Virtual hosts of rdmux";

    #[test]
    fn hosts_are_found_behind_the_last_marker_only() {
        let lines = ["10.0.0.1 c", LINE, "127.77.9.9 a", LINE, "127.77.0.1 a", "fd00::1 b"];
        assert_eq!(look_up(&lines, "A").unwrap(), "127.77.0.1");
        assert_eq!(look_up(&lines, "b").unwrap(), "fd00::1");
        assert_eq!(look_up(&lines, "c"), None);
        assert_eq!(look_up(&lines[..4], "a"), None);
    }

    #[test]
    fn malformed_hosts_record_is_no_answer() {
        let lines =
            [LINE, "elsewhere.example a", "127.77.0.1", " a", "127.77.0.1  a", "127.77.0.2 a b"];
        assert_eq!(look_up(&lines, "a"), None);
        let long = "1".repeat(100) + " a";
        assert_eq!(look_up(&[LINE, &long], "a"), None);
    }

    #[test]
    fn host_name_that_is_not_a_label_is_not_looked_up() {
        assert!(is_label(b"node-1") && is_label(&[b'x'; 63]));
        for other in ["", "a.example", "127.0.0.1", "::1", "a b", &"x".repeat(64)] {
            assert!(!is_label(other.as_bytes()), "{other}");
        }
    }
}
