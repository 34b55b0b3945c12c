//! Which loopback address a virtual host has.
//!
//! A file of lines `name address`, in order of creation; `assigned` behind it says that the user chose the address.
//! Each change replaces the file ([`replace`]), so the lock is on another one, `registry.lock`. A line that cannot
//! be read is skipped with a warning, and is gone after the next change.
//!
//! Every address of 127.77.0.0/16 may be bound without privilege. Users start at different places in it, and so do
//! runtime directories other than the usual one. Two that meet all the same see it when the port is in use: the
//! service then takes the next address, unless the user assigned the one that is in use.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::file::replace;
use super::runtime::open_private;
use super::{HostName, RuntimeDir};
use crate::error::HostError;

/// Blocks of 256 addresses.
const BLOCKS: usize = 256;
/// Addresses of one block of 256: neither .0 nor .255.
const PER_BLOCK: usize = 254;
/// Addresses in all.
const CAPACITY: usize = BLOCKS * PER_BLOCK;
/// The most bytes of the file that are read: more than all addresses take, with the longest names.
const MAX_BYTES: u64 = 16 << 20;
/// Behind an address that the user chose.
const ASSIGNED: &str = "assigned";

/// The virtual hosts of a user, and their addresses.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    entries: Vec<RegistryEntry>,
    /// The block of 256 addresses to begin with.
    start: usize,
    /// Locked until this is dropped.
    _lock: File,
}

/// A host's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryEntry {
    /// The host.
    pub name: HostName,
    /// Its address.
    pub address: IpAddr,
    /// Whether the user chose it. Any other may be exchanged for the next free one.
    pub assigned: bool,
}

impl Registry {
    /// Opens the registry, and locks it until it is dropped. Lines that cannot be read are skipped with a warning.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the file cannot be used.
    pub fn open(dir: &RuntimeDir) -> Result<Self, HostError> {
        let start = if dir.is_usual() {
            rustix::process::geteuid().as_raw() as usize % BLOCKS
        } else {
            start_of(dir.path())
        };
        Self::open_at(dir, start)
    }

    fn open_at(dir: &RuntimeDir, start: usize) -> Result<Self, HostError> {
        let path = dir.registry_path();
        let fail = |e: io::Error| HostError::directory(&path, e.to_string());
        let lock = open_private(&path.with_extension("lock"), false).map_err(fail)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
            .map_err(|e| fail(e.into()))?;
        let mut text = Vec::new();
        match open_private(&path, false) {
            Ok(file) => file.take(MAX_BYTES).read_to_end(&mut text).map(drop),
            Err(e) => Err(e),
        }
        .map_err(fail)?;
        let (entries, damaged) = parse(&text);
        for (line, why) in damaged {
            tracing::warn!("{}: line {line} is skipped: {why}", path.display());
        }
        Ok(Self { path, entries, start, _lock: lock })
    }

    /// All hosts, in order of creation.
    pub fn entries(&self) -> &[RegistryEntry] {
        &self.entries
    }

    /// The entry of a host, if it has one.
    pub fn get(&self, name: &HostName) -> Option<&RegistryEntry> {
        self.entries.iter().find(|e| e.name == *name)
    }

    /// The addresses that no host has, in the order in which they are given out.
    pub fn free(&self) -> impl Iterator<Item = IpAddr> {
        (0..CAPACITY)
            .map(|n| nth_address(self.start, n))
            .filter(|a| self.entries.iter().all(|e| e.address != *a))
    }

    /// Fixes the address of a host, as the user wants it.
    ///
    /// # Errors
    /// [`HostError::AddressTaken`] when another host has it; [`HostError::Io`] when the file cannot be written. The
    /// registry stays as it was then.
    pub fn assign(&mut self, name: &HostName, address: IpAddr) -> Result<(), HostError> {
        self.set(RegistryEntry { name: name.clone(), address, assigned: true })
    }

    /// Records an address that nobody chose, one of [`free`](Self::free).
    ///
    /// # Errors
    /// As [`assign`](Self::assign).
    pub fn record(&mut self, name: &HostName, address: IpAddr) -> Result<(), HostError> {
        self.set(RegistryEntry { name: name.clone(), address, assigned: false })
    }

    fn set(&mut self, new: RegistryEntry) -> Result<(), HostError> {
        let taken = |e: &&RegistryEntry| e.address == new.address && e.name != new.name;
        if let Some(RegistryEntry { address, name: owner, .. }) = self.entries.iter().find(taken) {
            return Err(HostError::AddressTaken { address: *address, owner: owner.clone() });
        }
        let mut entries = self.entries.clone();
        match entries.iter_mut().find(|e| e.name == new.name) {
            Some(entry) => *entry = new,
            None => entries.push(new),
        }
        let text: String = entries.iter().map(|e| format!("{e}\n")).collect();
        replace(&self.path, text.as_bytes()).map_err(|e| {
            let path = self.path.display();
            HostError::io(format!("write {path}, which stays as it was"), e)
        })?;
        self.entries = entries;
        Ok(())
    }
}

impl fmt::Display for RegistryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.address)?;
        if self.assigned { write!(f, " {ASSIGNED}") } else { Ok(()) }
    }
}

/// The `n`th address that is given out. Users start at the block of their number: consecutive ones
/// apart, and root, and an only user of a container, at 127.77.0.1.
fn nth_address(start: usize, n: usize) -> IpAddr {
    let block = (start + n / PER_BLOCK) % BLOCKS;
    #[expect(clippy::cast_possible_truncation, reason = "both are less than 256")]
    Ipv4Addr::new(127, 77, block as u8, (n % PER_BLOCK + 1) as u8).into()
}

/// Whether this is one of the addresses that are given out.
fn is_given_out(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(ip) if ip.octets()[..2] == [127, 77])
}

/// Where a runtime directory of the user's choice starts: the same each time (FNV-1a).
fn start_of(path: &Path) -> usize {
    let hash =
        path.as_os_str().as_encoded_bytes().iter().fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    hash as usize % BLOCKS
}

/// The entries of a file, and the numbers of the lines that are none, with the reason.
fn parse(text: &[u8]) -> (Vec<RegistryEntry>, Vec<(usize, &'static str)>) {
    let (mut entries, mut damaged) = (Vec::<RegistryEntry>::new(), Vec::new());
    for (line, number) in text.split(|&b| b == b'\n').zip(1..) {
        if line.is_empty() {
            continue;
        }
        match std::str::from_utf8(line).ok().and_then(parse_line) {
            None => damaged.push((number, "it is not \"name address\"")),
            Some(new) if entries.iter().any(|e| e.name == new.name) => {
                damaged.push((number, "its host has a line above"));
            }
            Some(new) if entries.iter().any(|e| e.address == new.address) => {
                damaged.push((number, "its address is another host's"));
            }
            Some(new) => entries.push(new),
        }
    }
    (entries, damaged)
}

/// An address without a word behind it was chosen by the user if it is none that is given out: so files of earlier
/// versions are read, which do not tell.
fn parse_line(line: &str) -> Option<RegistryEntry> {
    let mut words = line.split_ascii_whitespace();
    let name = HostName::new(words.next()?).ok()?;
    let address = words.next()?.parse().ok()?;
    let assigned = match words.next() {
        None => !is_given_out(address),
        Some(ASSIGNED) => true,
        Some(_) => return None,
    };
    words.next().is_none().then_some(RegistryEntry { name, address, assigned })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn name(s: &str) -> HostName {
        HostName::new(s).unwrap()
    }

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    /// Records the next free address for a host.
    fn draw(r: &mut Registry, host: &str) -> String {
        let address = r.free().next().unwrap();
        r.record(&name(host), address).unwrap();
        address.to_string()
    }

    #[test]
    fn addresses_come_in_order_of_creation_and_stay() {
        let tmp = TempDir::new();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        assert_eq!(draw(&mut r, "a"), "127.77.0.1");
        assert_eq!(draw(&mut r, "b"), "127.77.0.2");
        drop(r);
        let r = Registry::open_at(&dir, 0).unwrap();
        assert_eq!(r.get(&name("a")).unwrap().address, ip("127.77.0.1"));
        assert!(!r.get(&name("a")).unwrap().assigned);
        assert_eq!(r.entries().len(), 2);
    }

    #[test]
    fn an_assigned_address_is_kept_and_not_given_twice() {
        let tmp = TempDir::new();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        r.assign(&name("b"), ip("127.77.0.1")).unwrap();
        assert_eq!(draw(&mut r, "a"), "127.77.0.2");
        let e = r.assign(&name("c"), ip("127.77.0.2")).unwrap_err();
        assert!(e.to_string().contains("host \"a\""), "{e}");
        r.assign(&name("b"), ip("127.77.9.9")).unwrap();
        drop(r);
        let r = Registry::open_at(&dir, 0).unwrap();
        let b = r.get(&name("b")).unwrap();
        assert_eq!((b.address, b.assigned), (ip("127.77.9.9"), true));
    }

    #[test]
    fn users_start_apart_and_blocks_follow_each_other() {
        assert_eq!(nth_address(1000 % BLOCKS, 0).to_string(), "127.77.232.1");
        assert_eq!(nth_address(1001 % BLOCKS, 0).to_string(), "127.77.233.1");
        assert_eq!(nth_address(0, 253).to_string(), "127.77.0.254");
        assert_eq!(nth_address(0, 254).to_string(), "127.77.1.1");
        assert_eq!(nth_address(255, CAPACITY - 1).to_string(), "127.77.254.254");
    }

    #[test]
    fn another_directory_starts_elsewhere_and_always_there() {
        let tmp = TempDir::new();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let first = Registry::open(&dir).unwrap().free().next().unwrap();
        assert_eq!(first, nth_address(start_of(dir.path()), 0));
        assert_ne!(start_of(Path::new("/a")), start_of(Path::new("/b")));
    }

    #[test]
    fn damaged_lines_are_skipped_and_named_and_the_others_survive() {
        let text =
            b"a 127.77.0.1\nnonsense\n\nb 10.0.0.1\nc 127.77.0.3 assigned\n\xff\xfe 127.77.0.4\n\
            d 127.77.0.5 often\na 127.77.0.6\ne 127.77.0.1\nf 127.77.0.";
        let (entries, damaged) = parse(text);
        let kept: Vec<_> = entries.iter().map(ToString::to_string).collect();
        assert_eq!(kept, ["a 127.77.0.1", "b 10.0.0.1 assigned", "c 127.77.0.3 assigned"]);
        let lines: Vec<_> = damaged.iter().map(|d| d.0).collect();
        assert_eq!(lines, [2, 6, 7, 8, 9, 10]);

        let tmp = TempDir::new();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        std::fs::write(dir.registry_path(), text).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        assert_eq!(draw(&mut r, "g"), "127.77.0.2");
        let text = std::fs::read_to_string(dir.registry_path()).unwrap();
        let expected = "a 127.77.0.1\nb 10.0.0.1 assigned\nc 127.77.0.3 assigned\ng 127.77.0.2\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_registry_that_cannot_be_written_stays_as_it_was() {
        let tmp = TempDir::new();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        assert_eq!(draw(&mut r, "a"), "127.77.0.1");
        // Nothing can be written there, not even by root.
        std::fs::create_dir(tmp.path().join("r/registry.new")).unwrap();
        let e = r.record(&name("b"), ip("127.77.0.2")).unwrap_err().to_string();
        assert!(e.contains("registry") && e.contains("stays as it was"), "{e}");
        assert_eq!(r.entries().len(), 1);
        drop(r);
        assert_eq!(Registry::open_at(&dir, 0).unwrap().entries().len(), 1);
    }
}
