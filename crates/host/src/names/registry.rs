//! Which loopback address a virtual host has.
//!
//! A file of lines `name address`, in order of creation, under a lock. Every address of
//! 127.77.0.0/16 may be bound without privilege. Users start at different places in it, and so do
//! runtime directories other than the usual one, so that two of them rarely meet.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::runtime::open_private;
use super::{HostName, RuntimeDir};
use crate::error::HostError;

/// Blocks of 256 addresses.
const BLOCKS: usize = 256;
/// Addresses of one block of 256: neither .0 nor .255.
const PER_BLOCK: usize = 254;
/// Addresses in all.
const CAPACITY: usize = BLOCKS * PER_BLOCK;

/// The virtual hosts of a user, and their addresses.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    file: File,
    entries: Vec<(HostName, IpAddr)>,
    /// The block of 256 addresses to begin with.
    start: usize,
}

impl Registry {
    /// Opens the registry, and locks it until it is dropped.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the file cannot be used or is damaged.
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
        let fail = |e: std::io::Error| HostError::directory(&path, e.to_string());
        let mut file = open_private(&path, false).map_err(fail)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))
            .map_err(|e| fail(e.into()))?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(fail)?;
        let entries = parse(&text, &path)?;
        Ok(Self { path, file, entries, start })
    }

    /// All names and addresses, in order of creation.
    pub fn entries(&self) -> &[(HostName, IpAddr)] {
        &self.entries
    }

    /// The address of a host, if it has one.
    pub fn get(&self, name: &HostName) -> Option<IpAddr> {
        self.entries.iter().find(|(n, _)| n == name).map(|&(_, a)| a)
    }

    /// The address of a host; the next free one if it has none yet.
    ///
    /// # Errors
    /// [`HostError::Directory`] when all are taken, or the file cannot be written.
    pub fn address_of(&mut self, name: &HostName) -> Result<IpAddr, HostError> {
        if let Some(address) = self.get(name) {
            return Ok(address);
        }
        let address = (0..CAPACITY)
            .map(|n| nth_address(self.start, n))
            .find(|a| self.entries.iter().all(|(_, taken)| taken != a))
            .ok_or_else(|| HostError::directory(&self.path, "no address is left".to_owned()))?;
        self.entries.push((name.clone(), address));
        self.save()?;
        Ok(address)
    }

    /// Fixes the address of a host.
    ///
    /// # Errors
    /// [`HostError::AddressTaken`] when another host has it.
    pub fn assign(&mut self, name: &HostName, address: IpAddr) -> Result<(), HostError> {
        if let Some((owner, _)) = self.entries.iter().find(|(n, a)| *a == address && n != name) {
            return Err(HostError::AddressTaken { address, owner: owner.clone() });
        }
        match self.entries.iter_mut().find(|(n, _)| n == name) {
            Some(entry) => entry.1 = address,
            None => self.entries.push((name.clone(), address)),
        }
        self.save()
    }

    fn save(&mut self) -> Result<(), HostError> {
        let text: String = self.entries.iter().map(|(n, a)| format!("{n} {a}\n")).collect();
        let write = |file: &mut File| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        };
        write(&mut self.file).map_err(|e| HostError::directory(&self.path, e.to_string()))
    }
}

/// The `n`th address that is given out. Users start at the block of their number: consecutive ones
/// apart, and root, and an only user of a container, at 127.77.0.1.
fn nth_address(start: usize, n: usize) -> IpAddr {
    let block = (start + n / PER_BLOCK) % BLOCKS;
    #[expect(clippy::cast_possible_truncation, reason = "both are less than 256")]
    Ipv4Addr::new(127, 77, block as u8, (n % PER_BLOCK + 1) as u8).into()
}

/// Where a runtime directory of the user's choice starts: the same each time (FNV-1a).
fn start_of(path: &Path) -> usize {
    let hash =
        path.as_os_str().as_encoded_bytes().iter().fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    hash as usize % BLOCKS
}

fn parse(text: &str, path: &Path) -> Result<Vec<(HostName, IpAddr)>, HostError> {
    let line = |(number, line): (usize, &str)| {
        let entry = line.split_once(' ').and_then(|(name, address)| {
            Some((HostName::new(name).ok()?, address.trim().parse().ok()?))
        });
        entry.ok_or_else(|| {
            let why = format!("line {} is not \"name address\": remove the line", number + 1);
            HostError::directory(path, why)
        })
    };
    text.lines().enumerate().filter(|(_, l)| !l.is_empty()).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn name(s: &str) -> HostName {
        HostName::new(s).unwrap()
    }

    #[test]
    fn addresses_come_in_order_of_creation_and_stay() {
        let tmp = TempDir::new();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        assert_eq!(r.address_of(&name("a")).unwrap().to_string(), "127.77.0.1");
        assert_eq!(r.address_of(&name("b")).unwrap().to_string(), "127.77.0.2");
        drop(r);
        let mut r = Registry::open_at(&dir, 0).unwrap();
        assert_eq!(r.address_of(&name("a")).unwrap().to_string(), "127.77.0.1");
        assert_eq!(r.entries().len(), 2);
    }

    #[test]
    fn an_assigned_address_is_kept_and_not_given_twice() {
        let tmp = TempDir::new();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let mut r = Registry::open_at(&dir, 0).unwrap();
        r.assign(&name("b"), "127.77.0.1".parse().unwrap()).unwrap();
        assert_eq!(r.address_of(&name("a")).unwrap().to_string(), "127.77.0.2");
        let e = r.assign(&name("c"), "127.77.0.2".parse().unwrap()).unwrap_err();
        assert!(e.to_string().contains("host \"a\""), "{e}");
        r.assign(&name("b"), "127.77.9.9".parse().unwrap()).unwrap();
        assert_eq!(r.get(&name("b")).unwrap().to_string(), "127.77.9.9");
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
        let first = Registry::open(&dir).unwrap().address_of(&name("a")).unwrap();
        assert_eq!(first, nth_address(start_of(dir.path()), 0));
        assert_ne!(start_of(Path::new("/a")), start_of(Path::new("/b")));
    }

    #[test]
    fn a_damaged_file_is_an_error_that_says_where() {
        let tmp = TempDir::new();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        std::fs::write(dir.registry_path(), "a 127.77.0.1\nnonsense\n").unwrap();
        let e = Registry::open(&dir).unwrap_err().to_string();
        assert!(e.contains("line 2"), "{e}");
    }
}
