//! The registry of virtual hosts: their loopback addresses, and the names that resolve to them.
//!
//! It is a file of lines `name address`, in order of creation. A trailing `assigned` marks an address that the user
//! chose. Each change replaces the file ([`replace`]), so the lock is on another one, `registry.lock`. An unreadable
//! line is skipped with a warning, and is gone after the next change.
//!
//! Any address of 127.77.0.0/16 may be bound without privilege. Users start at different places in it, and so do
//! runtime directories other than the usual one. If two of them collide nevertheless, the port is in use: the service then
//! takes the next address, unless the user assigned the one in use.
//!
//! A host that is down keeps its address until [`KEPT`] hosts have one that no user chose. From then on a new host takes
//! over the address of the host that has been down the longest, and that host is removed from the registry.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use rdmux_runtime::file::{open_private, replace};
use rdmux_runtime::{DirectoryError, Lock};

use super::etc_hosts;
use super::{HostName, RuntimeDir};
use crate::error::HostError;

/// Blocks of 256 addresses.
const BLOCKS: usize = 256;
/// Addresses of one block of 256: neither .0 nor .255.
const PER_BLOCK: usize = 254;
/// Addresses in all.
const CAPACITY: usize = BLOCKS * PER_BLOCK;
/// Maximum number of bytes of the file that are read: more than all addresses take with the longest names.
const MAX_BYTES: u64 = 16 << 20;
/// The number of hosts with an address that no user chose from which on a new host replaces one of them.
const KEPT: usize = PER_BLOCK;
/// The number of hosts that are down among whose addresses a new host may choose.
const FORGOTTEN: usize = 16;
/// The word after an address that the user chose.
const ASSIGNED: &str = "assigned";

/// The virtual hosts of a user, and their addresses.
#[derive(Debug)]
pub struct Registry {
    dir: RuntimeDir,
    entries: Vec<RegistryEntry>,
    /// The block of 256 addresses where the search starts.
    start: usize,
    /// The lock, held until this is dropped.
    _lock: Lock,
}

/// A host's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryEntry {
    /// The host.
    pub name: HostName,
    /// The host's address.
    pub address: IpAddr,
    /// Whether the user chose the address. Other addresses may be exchanged for the next free one.
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
        let fail = |e: io::Error| HostError::from(DirectoryError::new(&path, e));
        let lock = open_private(&path.with_extension("lock"), false).map_err(fail)?;
        let lock = Lock::wait(lock).map_err(fail)?;
        let text = open_private(&path, false).and_then(read).map_err(fail)?;
        let (entries, damaged) = parse(&text);
        for (line, why) in damaged {
            tracing::warn!("{}: line {line} is skipped: {why}", path.display());
        }
        Ok(Self { dir: dir.clone(), entries, start, _lock: lock })
    }

    /// Returns the address of the virtual host of this name, if it exists. Case is ignored. Takes no lock.
    pub fn look_up(dir: &RuntimeDir, name: &str) -> Option<IpAddr> {
        let name = HostName::new(&name.to_ascii_lowercase()).ok().filter(etc_hosts::has_name)?;
        let text = fs::File::open(dir.registry_path()).and_then(read).ok()?;
        let (entries, _) = parse(&text);
        entries.into_iter().find(|e| e.name == name).map(|e| e.address)
    }

    /// Returns the virtual host that has this address, if any. Takes no lock.
    pub fn name_of(dir: &RuntimeDir, address: IpAddr) -> Option<HostName> {
        let text = fs::File::open(dir.registry_path()).and_then(read).ok()?;
        let (entries, _) = parse(&text);
        entries.into_iter().find(|e| e.address == address).map(|e| e.name)
    }

    /// Updates the file that programs in a view find as `/etc/hosts`.
    ///
    /// # Errors
    /// [`HostError::Io`].
    pub fn show_names(&self) -> Result<(), HostError> {
        let path = self.dir.etc_hosts();
        etc_hosts::update(&path, &self.entries)
            .map_err(|e| HostError::io(format!("write {}", path.display()), e))
    }

    /// Returns all hosts, in order of creation.
    pub fn entries(&self) -> &[RegistryEntry] {
        &self.entries
    }

    /// Returns the entry of a host, if it has one.
    pub fn get(&self, name: &HostName) -> Option<&RegistryEntry> {
        self.entries.iter().find(|e| e.name == *name)
    }

    /// Returns the addresses that no host has, in the order in which they are assigned.
    pub fn free(&self) -> impl Iterator<Item = IpAddr> {
        let taken: HashSet<_> = self.entries.iter().map(|e| e.address).collect();
        (0..CAPACITY).map(|n| nth_address(self.start, n)).filter(move |a| !taken.contains(a))
    }

    /// Returns the addresses that may be recorded for a host without one, best first. If there are many hosts, the
    /// addresses of hosts that are down are first.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = IpAddr> {
        self.forgettable().take(FORGOTTEN).chain(self.free())
    }

    /// Returns the addresses of hosts that can be removed, longest down first.
    fn forgettable(&self) -> impl Iterator<Item = IpAddr> {
        let mut drawn: Vec<_> = self.entries.iter().filter(|e| !e.assigned).collect();
        if drawn.len() < KEPT {
            drawn.clear();
        }
        // A service creates and removes its socket there when it starts and ends, which sets the time.
        let changed = |name| fs::metadata(self.dir.host_path(name)).and_then(|m| m.modified()).ok();
        drawn.sort_by_cached_key(|e| changed(&e.name));
        drawn.into_iter().filter(|e| self.is_down(&e.name)).map(|e| e.address)
    }

    /// Returns whether a host has no service. A service that starts takes its lock before it reads the registry, so it
    /// detects that it was removed.
    fn is_down(&self, name: &HostName) -> bool {
        // A host that never had a service has no lock, and must not get one here, which would change its directory.
        !self.dir.host_path(name).join("lock").exists()
            || self.dir.host(name).is_ok_and(|dir| matches!(dir.lock_service(), Ok(Some(_))))
    }

    /// Assigns an address that the user chose to a host.
    ///
    /// # Errors
    /// [`HostError::AddressTaken`] when another host has it; [`HostError::Io`] when the file cannot be written. The
    /// registry then stays as it was.
    pub fn assign(&mut self, name: &HostName, address: IpAddr) -> Result<(), HostError> {
        self.set(RegistryEntry { name: name.clone(), address, assigned: true })
    }

    /// Records an address that no user chose: one of [`free`](Self::free), or that of a host that is down, which is
    /// removed.
    ///
    /// # Errors
    /// As [`assign`](Self::assign).
    pub fn record(&mut self, name: &HostName, address: IpAddr) -> Result<(), HostError> {
        self.set(RegistryEntry { name: name.clone(), address, assigned: false })
    }

    /// Restores a host's entry from before `address` was assigned to it, unless the host has another address by now. An
    /// address that another host has by now is not restored.
    ///
    /// # Errors
    /// [`HostError::Io`] when the file cannot be written. The registry then stays as it was.
    pub(crate) fn undo(
        &mut self,
        name: &HostName,
        address: IpAddr,
        before: Option<RegistryEntry>,
    ) -> Result<(), HostError> {
        let mut entries = self.entries.clone();
        let is_assigned = |e: &RegistryEntry| e.name == *name && e.address == address;
        let Some(at) = entries.iter().position(is_assigned) else { return Ok(()) };
        entries.remove(at);
        if let Some(before) = before
            && entries.iter().all(|e| e.address != before.address)
        {
            entries.insert(at, before);
        }
        self.write(entries)
    }

    fn set(&mut self, new: RegistryEntry) -> Result<(), HostError> {
        let mut entries = self.entries.clone();
        let other = |e: &RegistryEntry| e.address == new.address && e.name != new.name;
        if let Some(at) = entries.iter().position(other) {
            let owner = &entries[at];
            if new.assigned || owner.assigned || !self.is_down(&owner.name) {
                let owner = owner.name.clone();
                return Err(HostError::AddressTaken { address: new.address, owner });
            }
            // It replaces that entry, so that the other lines stay where they are.
            entries.retain(|e| e.name != new.name);
            if let Some(entry) = entries.iter_mut().find(|e| e.address == new.address) {
                *entry = new;
            }
        } else {
            match entries.iter_mut().find(|e| e.name == new.name) {
                Some(entry) => *entry = new,
                None => entries.push(new),
            }
        }
        self.write(entries)
    }

    /// Replaces the file, and updates the names that programs in a view find.
    fn write(&mut self, entries: Vec<RegistryEntry>) -> Result<(), HostError> {
        let text: String = entries.iter().map(|e| format!("{e}\n")).collect();
        let path = self.dir.registry_path();
        replace(&path, text.as_bytes()).map_err(|e| {
            HostError::io(format!("write {}, which keeps its earlier content", path.display()), e)
        })?;
        self.entries = entries;
        if let Err(e) = self.show_names() {
            tracing::warn!("names of hosts may be missing under `rdmux run`: {e}");
        }
        Ok(())
    }
}

impl fmt::Display for RegistryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.address)?;
        if self.assigned { write!(f, " {ASSIGNED}") } else { Ok(()) }
    }
}

/// Returns the `n`th address in the order of assignment. Users start at the block of their number: consecutive users
/// differ, and root, or a container's only user, starts at 127.77.0.1.
fn nth_address(start: usize, n: usize) -> IpAddr {
    let block = (start + n / PER_BLOCK) % BLOCKS;
    #[expect(clippy::cast_possible_truncation, reason = "both are less than 256")]
    Ipv4Addr::new(127, 77, block as u8, (n % PER_BLOCK + 1) as u8).into()
}

/// Returns whether this is one of the addresses that the registry assigns.
fn is_given_out(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(ip) if ip.octets()[..2] == [127, 77])
}

/// Returns the first block of a runtime directory that the user chose: the same each time (FNV-1a).
fn start_of(path: &Path) -> usize {
    let hash =
        path.as_os_str().as_encoded_bytes().iter().fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    hash as usize % BLOCKS
}

/// Reads the file.
fn read(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Parses a file: its entries, and the numbers of invalid lines with the reason.
fn parse(text: &[u8]) -> (Vec<RegistryEntry>, Vec<(usize, &'static str)>) {
    let (mut entries, mut damaged) = (Vec::<RegistryEntry>::new(), Vec::new());
    let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
    for (line, number) in text.split(|&b| b == b'\n').zip(1..) {
        if line.is_empty() {
            continue;
        }
        match std::str::from_utf8(line).ok().and_then(parse_line) {
            None => damaged.push((number, "it is not \"name address\"")),
            Some(new) if names.contains(&new.name) => {
                damaged.push((number, "an earlier line has this host"));
            }
            Some(new) if !addresses.insert(new.address) => {
                damaged.push((number, "an earlier line has this address"));
            }
            Some(new) => {
                names.insert(new.name.clone());
                entries.push(new);
            }
        }
    }
    (entries, damaged)
}

/// Parses a line. An address without `assigned` counts as the user's choice if the registry does not assign such
/// addresses, as in files of earlier versions, which lack the word.
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
    use rdmux_testing::temp_dir;

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
    fn addresses_are_assigned_in_order_and_persist() {
        let tmp = temp_dir();
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
        let tmp = temp_dir();
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
    fn loopback_address_blocks_differ_by_user_and_are_consecutive() {
        assert_eq!(nth_address(1000 % BLOCKS, 0).to_string(), "127.77.232.1");
        assert_eq!(nth_address(1001 % BLOCKS, 0).to_string(), "127.77.233.1");
        assert_eq!(nth_address(0, 253).to_string(), "127.77.0.254");
        assert_eq!(nth_address(0, 254).to_string(), "127.77.1.1");
        assert_eq!(nth_address(255, CAPACITY - 1).to_string(), "127.77.254.254");
    }

    #[test]
    fn each_runtime_directory_has_its_own_stable_first_address() {
        let tmp = temp_dir();
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

        let tmp = temp_dir();
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
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        assert_eq!(draw(&mut r, "a"), "127.77.0.1");
        // Nothing can be written there, not even by root.
        std::fs::create_dir(tmp.path().join("r/registry.new")).unwrap();
        let e = r.record(&name("b"), ip("127.77.0.2")).unwrap_err().to_string();
        assert!(e.contains("registry") && e.contains("keeps its earlier content"), "{e}");
        assert_eq!(r.entries().len(), 1);
        drop(r);
        assert_eq!(Registry::open_at(&dir, 0).unwrap().entries().len(), 1);
    }

    #[test]
    fn thousands_of_hosts_in_a_row_share_a_block_of_addresses() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        // Held as by a running service.
        let up = dir.host(&name("up")).unwrap().lock_service().unwrap();
        let its = draw_any(&mut r, "up");
        r.assign(&name("chosen"), ip("127.77.0.2")).unwrap();
        let mut used = HashSet::new();
        for n in 0..2000 {
            let address = draw_any(&mut r, &format!("host-{n}"));
            touch(&dir, &format!("host-{n}"), n);
            assert_ne!(address, its, "host-{n}");
            assert_ne!(address, "127.77.0.2", "host-{n}");
            used.insert(address);
        }
        assert_eq!(used.len(), KEPT - 1);
        assert_eq!(r.entries().len(), KEPT + 1);
        // The registry still has the last hosts, but not the first ones.
        assert!(r.get(&name("host-1999")).is_some() && r.get(&name("host-1900")).is_some());
        assert_eq!(r.get(&name("host-0")), None);
        assert_eq!(r.get(&name("up")).unwrap().address.to_string(), its);
        drop(up);
    }

    /// Records the best address for a host, which is down afterwards.
    fn draw_any(r: &mut Registry, host: &str) -> String {
        let address = r.candidates().next().unwrap();
        r.record(&name(host), address).unwrap();
        address.to_string()
    }

    /// Makes a host look down since that time.
    fn touch(dir: &RuntimeDir, host: &str, seconds: u64) {
        let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let path = dir.host(&name(host)).unwrap().path().to_owned();
        File::open(path).unwrap().set_modified(at).unwrap();
    }

    #[test]
    fn the_host_that_has_been_down_the_longest_is_forgotten_and_none_that_is_up() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        for n in 0..KEPT {
            let host = format!("host-{n}");
            dir.host(&name(&host)).unwrap();
            draw(&mut r, &host);
        }
        let lock =
            |n: usize| dir.host(&name(&format!("host-{n}"))).unwrap().lock_service().unwrap();
        let up = lock(7);
        touch(&dir, "host-7", 1);
        drop(lock(9));
        touch(&dir, "host-9", 2);
        assert_eq!(draw_any(&mut r, "new"), nth_address(0, 9).to_string());
        assert_eq!((r.get(&name("host-9")), r.entries()[9].name.as_str()), (None, "new"));
        // Whichever command assigns it, a host that is up keeps its address.
        let e = r.record(&name("newer"), nth_address(0, 7)).unwrap_err();
        assert!(e.to_string().contains("host-7"), "{e}");
        drop(up);
        r.record(&name("newer"), nth_address(0, 7)).unwrap();
        assert_eq!(r.get(&name("host-7")), None);
    }

    #[test]
    fn a_host_is_found_by_its_name_and_no_longer_when_it_is_forgotten() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        assert_eq!(Registry::look_up(&dir, "a"), None);
        let mut r = Registry::open_at(&dir, 0).unwrap();
        draw(&mut r, "a");
        r.assign(&name("six"), ip("fd00::6")).unwrap();
        draw(&mut r, "localhost");
        assert_eq!(Registry::look_up(&dir, "A"), Some(ip("127.77.0.1")));
        assert_eq!(Registry::look_up(&dir, "six"), Some(ip("fd00::6")));
        for none in ["b", "localhost", "a.example", "", "../a", "127.77.0.1"] {
            assert_eq!(Registry::look_up(&dir, none), None, "{none}");
        }
        let shown = std::fs::read_to_string(dir.etc_hosts()).unwrap();
        assert!(shown.contains("\n127.77.0.1 a ") && shown.contains("\nfd00::6 six "), "{shown}");
        r.record(&name("b"), ip("127.77.0.1")).unwrap();
        assert_eq!(Registry::look_up(&dir, "a"), None);
        assert_eq!(Registry::look_up(&dir, "b"), Some(ip("127.77.0.1")));
        let shown = std::fs::read_to_string(dir.etc_hosts()).unwrap();
        assert!(shown.contains("\n127.77.0.1 b ") && !shown.contains(" a "), "{shown}");
    }
}
