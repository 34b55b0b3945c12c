//! The state that a fabric keeps in its directory: how it was brought up, nodes and cables with the LIDs of ports, and
//! which host had which adapter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use rdmux_runtime::file::replace;
use rdmux_subnet::Topology;
use rdmux_subnet::topology::{Included, Shape};
use rdmux_wire::Guid;
use serde::{Deserialize, Serialize};

use super::manager_setup::ManagerSetup;
use crate::{FabricDir, FabricError};

/// Maximum number of bytes of a file that are read. Ten thousand adapters with their switches are 5 MB.
const MAX_FILE: u64 = 64 << 20;

/// GUID of the first node of a shape. The others follow it.
pub const FIRST_GUID: Guid = Guid(0x0002_0000_0000_0000 | 0x10_0000);

/// The subnet's shape if none is given.
pub const DEFAULT_SHAPE: Shape = Shape::Switch(8);

/// The setup of a fabric, stored in the file `options`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setup {
    /// The origin of the topology: the name of a file, or a shape.
    pub source: String,
    /// Whether hosts may not attach.
    pub simulate: bool,
    /// The address where it listens for other machines.
    pub listen: Option<SocketAddr>,
    /// The machine with the fabric, if this is a bridge.
    pub join: Option<SocketAddr>,
    /// The subnet manager that is part of the fabric.
    pub manager: ManagerSetup,
}

impl Setup {
    /// Reads the file. Returns the default without one.
    ///
    /// # Errors
    /// [`FabricError::File`].
    pub fn load(dir: &FabricDir) -> Result<Self, FabricError> {
        let path = dir.options();
        let text = read(&path)?.unwrap_or_default();
        toml::from_str(&text).map_err(|e| damaged(&path, &e))
    }

    /// Stores this, and the topology for the fabric. A new topology discards which host had which adapter.
    ///
    /// # Errors
    /// [`FabricError::Io`].
    pub fn keep(&self, dir: &FabricDir, topology: Option<&Topology>) -> Result<(), FabricError> {
        let text = toml::to_string(self).unwrap_or_default();
        let path = dir.options();
        if let Some(topology) = topology {
            let old = dir.hosts();
            match std::fs::remove_file(&old) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unwritable(&old, e)),
                _ => {}
            }
            write(&dir.topology(), &topology.to_string())?;
        }
        write(&path, &text)
    }
}

/// Reads the fabric's last topology, if any.
///
/// # Errors
/// [`FabricError::File`].
pub(super) fn load_topology(dir: &FabricDir) -> Result<Option<Topology>, FabricError> {
    let path = dir.topology();
    let Some(text) = read(&path)? else { return Ok(None) };
    Topology::parse(&text).map(Some).map_err(|e| damaged(&path, &e))
}

/// Reads a topology written by a user. The names of included files are relative to the directory of the including file.
///
/// # Errors
/// [`FabricError::File`], which names the file, the line and what is wrong there.
pub fn read_topology(path: &Path) -> Result<Topology, FabricError> {
    let file = |why: String| FabricError::File { path: path.to_owned(), why };
    let text = read(path)?.ok_or_else(|| file("no such file".to_owned()))?;
    let mut paths = BTreeMap::from([(String::new(), path.to_owned())]);
    let mut open = |within: &str, name: &str| {
        let within = paths.get(within).and_then(|path| path.parent());
        let path = within.unwrap_or_else(|| Path::new("")).join(name);
        let text = read_included(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.display().to_string();
        paths.insert(name.clone(), path);
        Ok(Included { name, text })
    };
    Topology::parse_with(&text, &mut open).map_err(|e| file(e.to_string()))
}

/// Reads a regular file as text. Reads of other files might never end, or never start.
fn read_included(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    read_text(file)
}

/// The adapter that each host (by its node's GUID) had.
pub(super) type Hosts = BTreeMap<Guid, Had>;

/// The adapter that a host had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Had {
    /// The adapter's node GUID.
    pub(super) adapter: Guid,
    /// The user whose service attached it last. None if an earlier version stored it.
    pub(super) user: Option<u32>,
}

/// The adapters of hosts, stored in the file `hosts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Adapters {
    /// The adapter that each host had.
    pub(super) hosts: Hosts,
    /// Adapters that were made for hosts, and are not in the configured topology.
    pub(super) made: BTreeSet<Guid>,
    /// Ports of adapters whose cables adapters of other hosts have taken.
    pub(super) taken: BTreeSet<(Guid, u8)>,
}

/// The first word of the line of a port whose cable another host's adapter has.
const TAKEN: &str = "taken";

impl Adapters {
    /// Reads the file.
    pub(super) fn load(dir: &FabricDir) -> Result<Self, FabricError> {
        let text = read(&dir.hosts())?.unwrap_or_default();
        let mut adapters = Self::default();
        for line in text.lines() {
            let guid =
                |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).map(Guid).ok();
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [TAKEN, adapter, port] => {
                    adapters.taken.extend(guid(adapter).zip(port.parse().ok()));
                }
                [host, adapter] | [host, adapter, _] => {
                    let user = words.get(2).and_then(|user| user.parse().ok());
                    let had = guid(adapter).map(|adapter| Had { adapter, user });
                    adapters.hosts.extend(guid(host).zip(had));
                }
                [adapter] => adapters.made.extend(guid(adapter)),
                _ => {}
            }
        }
        Ok(adapters)
    }

    /// Makes the text of the file: a line for each host with its adapter and user, one for each adapter that was made for a host, and one
    /// for each port whose cable was taken.
    pub(super) fn text(&self) -> String {
        let line = |(host, had): (&Guid, &Had)| {
            let user = had.user.map_or_else(String::new, |user| format!(" {user}"));
            format!("{:#018x} {:#018x}{user}\n", host.0, had.adapter.0)
        };
        let made = self.made.iter().map(|adapter| format!("{:#018x}\n", adapter.0));
        let taken = self.taken.iter();
        let taken = taken.map(|(adapter, port)| format!("{TAKEN} {:#018x} {port}\n", adapter.0));
        self.hosts.iter().map(line).chain(made).chain(taken).collect()
    }
}

pub(super) fn read(path: &Path) -> Result<Option<String>, FabricError> {
    let fail = |e: io::Error| match e.kind() {
        io::ErrorKind::FileTooLarge => {
            FabricError::File { path: path.to_owned(), why: e.to_string() }
        }
        _ => FabricError::io(format!("read {}", path.display()), e),
    };
    let file = match std::fs::File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(fail)?,
    };
    read_text(file).map(Some).map_err(fail)
}

fn read_text(file: std::fs::File) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    let length = file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if length as u64 > MAX_FILE {
        let why = format!("longer than {} MiB", MAX_FILE >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), FabricError> {
    replace(path, text.as_bytes()).map_err(|e| unwritable(path, e))
}

fn unwritable(path: &Path, e: io::Error) -> FabricError {
    FabricError::io(format!("write {}", path.display()), e)
}

fn damaged(path: &Path, e: &impl ToString) -> FabricError {
    let why = format!(
        "{}; `rdmux fabric up --shape SHAPE` starts with a new one",
        e.to_string().trim_end()
    );
    FabricError::File { path: path.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use rdmux_testing::temp_dir;

    use super::super::manager_setup::PartitionsFile;
    use super::*;
    use crate::FabricName;
    use rdmux_runtime::UserDir;
    use rdmux_subnet::manager::RoutingEngine;
    use rdmux_wire::Mkey;

    #[test]
    fn included_files_are_looked_for_beside_the_file_that_includes_them() {
        let tmp = temp_dir();
        let path = |name: &str| tmp.path().join(name);
        std::fs::create_dir(path("racks")).unwrap();
        std::fs::write(path("top.net"), "include \"racks/one.net\"\n").unwrap();
        std::fs::write(path("racks/one.net"), "include \"leaf.net\"\n").unwrap();
        std::fs::write(path("racks/leaf.net"), "Switch 8 \"leaf\"\n").unwrap();
        assert_eq!(read_topology(&path("top.net")).unwrap().nodes[0].id, "leaf");

        std::fs::write(path("racks/leaf.net"), "\nSwich 8 \"leaf\"\n").unwrap();
        let why = |e: FabricError| match e {
            FabricError::File { path: of, why } => {
                assert_eq!(of, path("top.net"));
                why
            }
            e => panic!("{e}"),
        };
        let e = why(read_topology(&path("top.net")).unwrap_err());
        assert!(
            e.starts_with(&format!("{}, line 2, at `Swich`: ", path("racks/leaf.net").display())),
            "{e}"
        );
        std::fs::remove_file(path("racks/leaf.net")).unwrap();
        let e = why(read_topology(&path("top.net")).unwrap_err());
        let at = format!("{}, line 1, at `\"leaf.net\"`: ", path("racks/one.net").display());
        assert!(e.starts_with(&at) && e.contains("No such file"), "{e}");
        // Neither a directory nor a FIFO without a writer is read.
        rustix::fs::mkdir(path("racks/leaf.net"), rustix::fs::Mode::RWXU).unwrap();
        let e = why(read_topology(&path("top.net")).unwrap_err());
        assert!(e.contains("not a regular file"), "{e}");
    }

    #[test]
    fn setup_is_kept_and_a_new_topology_discards_the_hosts_file() {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let dir = FabricDir::open(&user, &FabricName::default()).unwrap();
        assert_eq!(Setup::load(&dir).unwrap(), Setup::default());
        let adapters = Adapters {
            hosts: Hosts::from([
                (Guid(1), Had { adapter: Guid(0x10_0001), user: Some(1000) }),
                (Guid(2), Had { adapter: Guid(0x10_0002), user: None }),
            ]),
            made: BTreeSet::from([Guid(0x10_0001)]),
            taken: BTreeSet::from([(Guid(0x10_0001), 2)]),
        };
        std::fs::write(dir.hosts(), adapters.text()).unwrap();
        let setup = Setup {
            source: "two".into(),
            simulate: true,
            listen: Some("127.0.0.1:7".parse().unwrap()),
            join: None,
            manager: ManagerSetup {
                priority: 3,
                routing: RoutingEngine::Updn,
                sweep_ms: Some(50),
                poll_ms: Some(500),
                m_key: Mkey(u64::MAX),
                m_key_protect: 2,
                m_key_lease: 60,
                sl_to_vl: Some([1; 16]),
                partitions: Some(PartitionsFile {
                    name: "a \"file\"".into(),
                    text: "Default=0x7fff:\n\tALL='full'; # \"\"\"\n".into(),
                }),
                ..ManagerSetup::default()
            },
        };
        setup.keep(&dir, None).unwrap();
        assert_eq!(Adapters::load(&dir).unwrap(), adapters);
        let topology = Shape::Two.topology(FIRST_GUID);
        setup.keep(&dir, Some(&topology)).unwrap();
        assert_eq!(Setup::load(&dir).unwrap(), setup);
        assert_eq!(Adapters::load(&dir).unwrap(), Adapters::default());
        assert_eq!(load_topology(&dir).unwrap().unwrap(), topology);
        std::fs::write(dir.topology(), "Switch what").unwrap();
        let e = load_topology(&dir).unwrap_err().to_string();
        assert!(e.contains("topology") && e.contains("starts with a new one"), "{e}");
    }

    #[test]
    fn missing_oversized_or_invalid_topology_file_is_einval_with_the_line() {
        let tmp = temp_dir();
        let path = tmp.path().join("topology");
        let fails = || {
            let e = read_topology(&path).unwrap_err();
            assert_eq!(e.errno(), libc::EINVAL);
            e.to_string()
        };
        assert!(fails().ends_with("topology: no such file"));
        std::fs::File::create(&path).unwrap().set_len(MAX_FILE + 1).unwrap();
        assert!(fails().contains("longer than 64 MiB"));
        std::fs::write(&path, "\nSwitch what").unwrap();
        assert!(fails().contains("line 2"), "{}", fails());
        let two = Shape::Two.topology(FIRST_GUID);
        std::fs::write(&path, two.to_string()).unwrap();
        assert_eq!(read_topology(&path).unwrap(), two);
    }

    #[test]
    fn unknown_option_in_the_setup_file_is_an_error() {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let dir = FabricDir::open(&user, &FabricName::default()).unwrap();
        std::fs::write(dir.options(), "simulated = true").unwrap();
        let e = Setup::load(&dir).unwrap_err().to_string();
        assert!(
            e.contains("options") && e.contains("simulated") && e.contains("starts with a new one"),
            "{e}"
        );
    }
}
