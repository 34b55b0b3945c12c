//! Adapters and their ports as the files of sysfs describe them (`Documentation/ABI/stable/sysfs-class-infiniband` of Linux).
//!
//! The files are normally those that the view shows, but could be any. So each is read up to a limit, and an invalid number
//! is an error.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::abi::umad::*;
use crate::boundary::{Errno, Result};

/// The most bytes read of a file: the most that the kernel returns.
const MAX_FILE: u64 = 4096;
/// The most entries read of a directory.
const MAX_ENTRIES: usize = 4096;

/// The two classes in sysfs.
#[derive(Clone, Debug)]
pub(crate) struct Sysfs {
    root: PathBuf,
}

/// A channel adapter, or the host's side of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ca {
    pub(crate) name: String,
    /// 1 is a channel adapter, 2 a switch, 3 a router.
    pub(crate) node_type: u32,
    pub(crate) firmware: String,
    pub(crate) model: String,
    pub(crate) revision: String,
    pub(crate) node_guid: [u8; 8],
    pub(crate) system_guid: [u8; 8],
    /// The ports, by number.
    pub(crate) ports: Vec<PortFacts>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortFacts {
    pub(crate) number: u8,
    pub(crate) lid: u32,
    pub(crate) lmc: u32,
    pub(crate) sm_lid: u32,
    pub(crate) sm_sl: u32,
    /// 4 is active.
    pub(crate) state: u32,
    /// 3 is disabled, 5 linked up.
    pub(crate) phys_state: u32,
    /// Gb/s, without the fraction.
    pub(crate) rate: u32,
    pub(crate) cap_mask: u32,
    /// Subnet prefix and GUID.
    pub(crate) gid: [u8; 16],
    pub(crate) pkeys: Vec<u16>,
    pub(crate) link_layer: String,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl Sysfs {
    /// Uses the files below a directory in place of `/`.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.join("sys/class") }
    }

    /// Returns the names of adapters, sorted. A device of another protocol than InfiniBand's, such as iWARP, is none.
    pub(crate) fn cas(&self) -> Vec<String> {
        let mut names = entries(&self.root.join("infiniband")).unwrap_or_default();
        names.retain(|name| self.node_type(name).is_ok_and(|node| (1..=3).contains(&node)));
        names.sort_unstable();
        names
    }

    fn node_type(&self, ca: &str) -> Result<u32> {
        number(&self.ca_dir(ca)?.join("node_type"))
    }

    /// Reads an adapter with its ports.
    ///
    /// # Errors
    /// ENOENT without such an adapter, EIO when a port cannot be read.
    pub(crate) fn ca(&self, name: &str) -> Result<Ca> {
        let dir = self.ca_dir(name)?;
        let text = |file: &str| line(&dir.join(file)).unwrap_or_default();
        let node_type = self.node_type(name)?;
        let ports = self.port_numbers(&dir)?;
        Ok(Ca {
            name: name.to_owned(),
            node_type,
            firmware: text("fw_ver"),
            model: text("hca_type"),
            revision: text("hw_rev"),
            node_guid: groups(&dir.join("node_guid"))?,
            system_guid: groups(&dir.join("sys_image_guid"))?,
            ports: ports.iter().map(|number| self.port(name, *number)).collect::<Result<_>>()?,
        })
    }

    fn port_numbers(&self, dir: &Path) -> Result<Vec<u8>> {
        let names = entries(&dir.join("ports"))?;
        let mut ports: Vec<u8> = names.iter().filter_map(|name| name.parse().ok()).collect();
        ports.sort_unstable();
        if ports.last().is_some_and(|last| u32::from(*last) >= UMAD_CA_MAX_PORTS) {
            return Err(Errno::EIO);
        }
        Ok(ports)
    }

    /// Reads a port of an adapter.
    ///
    /// # Errors
    /// EIO without such a port, and when one of its files is missing or unreadable.
    pub(crate) fn port(&self, ca: &str, port: u8) -> Result<PortFacts> {
        self.read_port(ca, port).map_err(|_| Errno::EIO)
    }

    fn read_port(&self, ca: &str, port: u8) -> Result<PortFacts> {
        let dir = self.ca_dir(ca)?.join("ports").join(port.to_string());
        let value = |file: &str| number(&dir.join(file));
        Ok(PortFacts {
            number: port,
            lid: value("lid")?,
            lmc: value("lid_mask_count")?,
            sm_lid: value("sm_lid")?,
            sm_sl: value("sm_sl")?,
            state: value("state")?,
            phys_state: value("phys_state")?,
            rate: value("rate")?,
            cap_mask: value("cap_mask")?,
            gid: groups(&dir.join("gids/0"))?,
            pkeys: pkeys(&dir.join("pkeys"))?,
            // Kernels before 2.6.37 supported no other.
            link_layer: line(&dir.join("link_layer")).unwrap_or_else(|_| "IB".to_owned()),
        })
    }

    /// Returns whether there are MAD devices with an interface version that this library knows.
    pub(crate) fn has_mad_devices(&self) -> bool {
        let version = number(&self.root.join("infiniband_mad/abi_version"));
        version.is_ok_and(|version| version >= IB_UMAD_ABI_VERSION)
    }

    /// Returns the number N of a port's MAD devices, `umadN` and `issmN`.
    pub(crate) fn mad_device(&self, ca: &str, port: u8) -> Option<u32> {
        let class = self.root.join("infiniband_mad");
        (0..UMAD_MAX_PORTS).find(|n| {
            let dir = class.join(format!("umad{n}"));
            line(&dir.join("ibdev")).is_ok_and(|name| name == ca)
                && number(&dir.join("port")) == Ok(port.into())
        })
    }

    fn ca_dir(&self, name: &str) -> Result<PathBuf> {
        if !is_name(name) {
            return Err(Errno(libc::ENOENT));
        }
        Ok(self.root.join("infiniband").join(name))
    }
}

impl PortFacts {
    /// Returns whether the port's link layer is InfiniBand.
    pub(crate) fn is_infiniband(&self) -> bool {
        ["InfiniBand", "IB"].contains(&self.link_layer.as_str())
    }
}

/// Returns whether a name is valid for an adapter: a directory's, and short enough for the C structures.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() < UMAD_CA_NAME_LEN as usize
        && !name.starts_with('.')
        && !name.contains('/')
}

/// Returns the names in a directory that are valid for an adapter or a number.
fn entries(dir: &Path) -> Result<Vec<String>> {
    let name = |name: &OsStr| name.to_str().filter(|name| is_name(name)).map(str::to_owned);
    let found = fs::read_dir(dir).map_err(|e| errno(&e))?.take(MAX_ENTRIES).flatten();
    Ok(found.filter_map(|entry| name(&entry.file_name())).collect())
}

/// Reads a file's text without the newline.
fn line(path: &Path) -> Result<String> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(|e| errno(&e))?;
    file.take(MAX_FILE).read_to_end(&mut text).map_err(|e| errno(&e))?;
    let text = String::from_utf8(text).map_err(|_| Errno::EIO)?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// Reads the number at the start of a file, as in `4: ACTIVE`, `0x12` or `2.5 Gb/sec (1X SDR)`.
fn number(path: &Path) -> Result<u32> {
    leading_number(&line(path)?).ok_or(Errno::EIO)
}

fn leading_number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    u32::from_str_radix(&digits[..end], radix).ok()
}

/// Reads a GUID or GID: groups of four hexadecimal digits.
fn groups<const N: usize>(path: &Path) -> Result<[u8; N]> {
    parse_groups(&line(path)?).ok_or(Errno::EIO)
}

fn parse_groups<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut groups = text.split(':');
    for pair in bytes.chunks_exact_mut(2) {
        let hexadecimal = |group: &&str| group.bytes().all(|b| b.is_ascii_hexdigit());
        let group = groups.next().filter(|group| group.len() == 4).filter(hexadecimal)?;
        pair.copy_from_slice(&u16::from_str_radix(group, 16).ok()?.to_be_bytes());
    }
    groups.next().is_none().then_some(bytes)
}

/// Reads a table of P_Keys, one file per entry. At least one must exist; missing ones are 0.
fn pkeys(dir: &Path) -> Result<Vec<u16>> {
    let names = entries(dir)?;
    let indexes: Vec<u16> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let last = indexes.iter().max().ok_or(Errno::EIO)?;
    let mut table = vec![0; usize::from(*last) + 1];
    for index in indexes {
        let value = number(&dir.join(index.to_string()))?;
        table[usize::from(index)] = u16::try_from(value).map_err(|_| Errno::EIO)?;
    }
    Ok(table)
}

fn errno(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// A tree of such files for tests.
#[cfg(test)]
pub(crate) mod tree {
    use std::fs;
    use std::path::Path;

    use rdmux_testing::{TempDir, temp_dir};

    use super::Sysfs;

    /// The files of a port that is up, which a test overrides.
    const PORT: &[(&str, &str)] = &[
        ("lid", "0x12"),
        ("lid_mask_count", "2"),
        ("sm_lid", "0x1"),
        ("sm_sl", "3"),
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("rate", "2.5 Gb/sec (1X SDR)"),
        ("cap_mask", "0x02514868"),
        ("link_layer", "InfiniBand"),
        ("gids/0", "fe80:0000:0000:0000:0002:c903:0012:3457"),
        ("pkeys/0", "0xffff"),
        ("pkeys/2", "0x8001"),
    ];
    const CA: &[(&str, &str)] = &[
        ("node_type", "1: CA"),
        ("fw_ver", "2.42.5000"),
        ("hw_rev", "0x1"),
        ("hca_type", "MT4099"),
        ("node_guid", "0002:c903:0012:3456"),
        ("sys_image_guid", "0002:c903:0012:3459"),
    ];

    /// The tree, which is removed when this is dropped.
    pub(crate) struct Tree(TempDir);

    impl Tree {
        pub(crate) fn new() -> Self {
            Self(temp_dir())
        }
        pub(crate) fn sysfs(&self) -> Sysfs {
            Sysfs::at(self.0.path())
        }
        /// Writes a file below `sys/class`.
        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join("sys/class").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        pub(crate) fn remove(&self, path: &str) {
            fs::remove_file(Path::new(&self.0.path().join("sys/class").join(path))).unwrap();
        }
        /// Adds an adapter without ports.
        pub(crate) fn ca(&self, name: &str) {
            CA.iter().for_each(|(file, text)| {
                self.write(&format!("infiniband/{name}/{file}"), text);
            });
            let ports = self.0.path().join(format!("sys/class/infiniband/{name}/ports"));
            fs::create_dir_all(ports).unwrap();
        }
        /// Adds a port that is up, with these files replaced.
        pub(crate) fn port(&self, ca: &str, number: u8, other: &[(&str, &str)]) {
            for (file, text) in PORT.iter().chain(other) {
                self.write(&format!("infiniband/{ca}/ports/{number}/{file}"), text);
            }
        }
        /// Adds the MAD devices with this number.
        pub(crate) fn mad_device(&self, number: u32, ca: &str, port: u8) {
            self.write("infiniband_mad/abi_version", "5");
            self.write(&format!("infiniband_mad/umad{number}/ibdev"), ca);
            self.write(&format!("infiniband_mad/umad{number}/port"), &port.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::tree::Tree;
    use super::*;

    #[test]
    fn an_adapter_is_read_with_its_ports() {
        let tree = Tree::new();
        tree.ca("mlx4_0");
        tree.port("mlx4_0", 1, &[]);
        tree.port("mlx4_0", 3, &[("state", "1: DOWN")]);
        let ca = tree.sysfs().ca("mlx4_0").unwrap();
        assert_eq!(
            (ca.node_type, ca.firmware.as_str(), ca.model.as_str()),
            (1, "2.42.5000", "MT4099")
        );
        assert_eq!(ca.node_guid, [0, 2, 0xc9, 3, 0, 0x12, 0x34, 0x56]);
        let [one, three] = &ca.ports[..] else { panic!("{:?}", ca.ports) };
        assert_eq!((one.number, one.lid, one.lmc, one.rate, one.state), (1, 0x12, 2, 2, 4));
        assert_eq!((one.cap_mask, &one.pkeys[..]), (0x0251_4868, &[0xffff, 0, 0x8001][..]));
        assert_eq!((three.number, three.state), (3, 1));
        assert_eq!(one.gid[..2], [0xfe, 0x80]);
    }

    #[test]
    fn only_the_link_layer_and_words_of_the_adapter_may_be_missing() {
        let dir = "infiniband/a/ports/1";
        for file in ["lid", "sm_lid", "sm_sl", "state", "phys_state", "rate", "cap_mask", "gids/0"]
        {
            let tree = Tree::new();
            tree.ca("a");
            tree.port("a", 1, &[]);
            tree.write(&format!("{dir}/{file}"), "x");
            assert_eq!(tree.sysfs().ca("a"), Err(Errno::EIO), "{file} is no number");
            tree.remove(&format!("{dir}/{file}"));
            assert_eq!(tree.sysfs().port("a", 1), Err(Errno::EIO), "{file} is missing");
        }
        let tree = Tree::new();
        tree.ca("a");
        tree.port("a", 1, &[]);
        tree.remove(&format!("{dir}/link_layer"));
        tree.remove("infiniband/a/fw_ver");
        let ca = tree.sysfs().ca("a").unwrap();
        assert!(ca.firmware.is_empty() && ca.ports[0].is_infiniband());
        tree.remove("infiniband/a/node_guid");
        assert_eq!(tree.sysfs().ca("a"), Err(Errno(libc::ENOENT)));
    }

    #[test]
    fn ca_names_with_path_or_too_long_are_enoent() {
        let tree = Tree::new();
        tree.ca("a");
        tree.write("x/node_type", "1: CA");
        for name in ["", ".", "..", "../x", "./a", "a/", "abcdefghijklmnopqrst"] {
            assert_eq!(tree.sysfs().ca(name), Err(Errno(libc::ENOENT)), "{name}");
        }
        tree.port("a", 10, &[]);
        assert_eq!(tree.sysfs().ca("a"), Err(Errno::EIO), "more ports than the structure has");
    }

    #[test]
    fn adapters_of_other_protocols_are_not_listed() {
        let tree = Tree::new();
        assert!(tree.sysfs().cas().is_empty());
        for (name, node) in [("c", "1: CA"), ("b", "2: switch"), ("iw", "4: RNIC"), ("x", "")] {
            tree.ca(name);
            tree.write(&format!("infiniband/{name}/node_type"), node);
        }
        assert_eq!(tree.sysfs().cas(), ["b", "c"]);
    }

    #[test]
    fn mad_devices_are_found_by_adapter_and_port() {
        let tree = Tree::new();
        assert!(!tree.sysfs().has_mad_devices());
        tree.mad_device(0, "a", 1);
        tree.mad_device(63, "a", 2);
        tree.mad_device(64, "a", 3);
        let sysfs = tree.sysfs();
        assert!(sysfs.has_mad_devices());
        assert_eq!([1, 2, 3].map(|port| sysfs.mad_device("a", port)), [Some(0), Some(63), None]);
        assert_eq!(sysfs.mad_device("b", 1), None);
        tree.write("infiniband_mad/abi_version", "4");
        assert!(!sysfs.has_mad_devices());
    }

    #[test]
    fn a_number_may_be_followed_by_words() {
        assert_eq!(leading_number("4: ACTIVE"), Some(4));
        assert_eq!(leading_number("0x1g"), Some(1));
        assert_eq!(leading_number("2.5 Gb/sec (1X SDR)"), Some(2));
        for none in ["", "x", "-1", "0x", "99999999999"] {
            assert_eq!(leading_number(none), None, "{none}");
        }
        assert_eq!(parse_groups::<8>("0002:c903:0012:3456:0000"), None);
        assert_eq!(parse_groups::<8>("0002:c903:0012"), None);
        assert_eq!(parse_groups::<8>("0002:c903:0012:345"), None);
        assert_eq!(parse_groups::<8>("0002:c903:0012:+345"), None);
    }
}
