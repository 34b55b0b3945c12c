//! The tree of files that stands for the device, as the kernel's
//! `Documentation/ABI/stable/sysfs-class-infiniband` describes it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rdmux_verbs::counters::Counter;
use rdmux_wire::{Gid, Guid, Pkey};

use crate::proto::GidRow;

/// The character device of the first adapter, and the name that `ibv_device::dev_name` has.
const UVERBS: &str = "uverbs0";

/// What the files tell.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    /// The virtual host.
    pub(crate) host: &'a str,
    /// The device's name.
    pub(crate) device: &'a str,
    /// GUID of the node, and of the system.
    pub(crate) node_guid: Guid,
    /// The GID table.
    pub(crate) gids: &'a [GidRow],
    /// The P_Key table.
    pub(crate) pkeys: &'a [Pkey],
    /// What all devices of the host counted, by [`Counter::name`].
    pub(crate) counters: &'a [(String, u64)],
}

/// A file of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Text(String),
    Link(PathBuf),
}

/// Makes the files below `root` what the facts say: writes what changed, removes what is no more.
/// A reader sees the old text of a file or the new one.
pub(crate) fn write(root: &Path, facts: &Facts<'_>) -> io::Result<()> {
    let entries = entries(facts);
    for (path, entry) in &entries {
        let path = root.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match entry {
            Entry::Text(text) => put(&path, text)?,
            Entry::Link(to) => link(&path, to)?,
        }
    }
    prune(root, Path::new(""), &entries)
}

/// All files, by their paths.
fn entries(facts: &Facts<'_>) -> BTreeMap<PathBuf, Entry> {
    let mut tree = Tree::default();
    let device = format!("sys/class/infiniband/{}", facts.device);
    node(&mut tree, &device, facts);
    parent(&mut tree, &format!("{device}/device"), facts);
    port(&mut tree, &format!("{device}/ports/1"), facts);

    tree.text("sys/class/infiniband_verbs/abi_version", "6");
    let uverbs = format!("sys/class/infiniband_verbs/{UVERBS}");
    tree.text(format!("{uverbs}/ibdev"), facts.device);
    tree.text(format!("{uverbs}/abi_version"), "1");
    tree.link(format!("{uverbs}/device"), format!("../../infiniband/{}/device", facts.device));

    // A character device that anybody may read and write, which is what programs check. Nobody needs
    // more of it: the libraries speak with the service.
    for name in [UVERBS, "rdma_cm"] {
        tree.link(format!("dev/infiniband/{name}"), "/dev/null");
    }
    tree.0
}

fn node(tree: &mut Tree, dir: &str, facts: &Facts<'_>) {
    let guid = groups(&facts.node_guid.0.to_be_bytes());
    tree.text(format!("{dir}/node_type"), "1: CA");
    tree.text(format!("{dir}/node_guid"), &guid);
    tree.text(format!("{dir}/sys_image_guid"), &guid);
    tree.text(format!("{dir}/node_desc"), format!("{} {}", facts.host, facts.device));
    tree.text(format!("{dir}/fw_ver"), env!("CARGO_PKG_VERSION"));
    tree.text(format!("{dir}/hw_rev"), "0x1");
    tree.text(format!("{dir}/hca_type"), "rdmux");
    tree.text(format!("{dir}/board_id"), "rdmux");
}

/// The device below the device: for an adapter its PCI function.
fn parent(tree: &mut Tree, dir: &str, facts: &Facts<'_>) {
    for row in facts.gids.iter().filter(|row| row.gid != Gid::ZERO) {
        let interface = &row.interface;
        tree.link(format!("{dir}/net/{interface}"), format!("/sys/class/net/{interface}"));
    }
    // Relative ones, which lead to the right place wherever the tree is seen.
    tree.link(format!("{dir}/infiniband/{}", facts.device), format!("../../../{}", facts.device));
    tree.link(
        format!("{dir}/infiniband_verbs/{UVERBS}"),
        format!("../../../../infiniband_verbs/{UVERBS}"),
    );
    // No memory node is nearer than another.
    tree.text(format!("{dir}/numa_node"), "-1");
}

fn port(tree: &mut Tree, dir: &str, facts: &Facts<'_>) {
    tree.text(format!("{dir}/state"), "4: ACTIVE");
    tree.text(format!("{dir}/phys_state"), "5: LinkUp");
    tree.text(format!("{dir}/link_layer"), "Ethernet");
    // What the device's port attributes say: four lanes, EDR.
    tree.text(format!("{dir}/rate"), "100 Gb/sec (4X EDR)");
    for zero in ["lid", "sm_lid"] {
        tree.text(format!("{dir}/{zero}"), "0x0");
    }
    for zero in ["sm_sl", "lid_mask_count"] {
        tree.text(format!("{dir}/{zero}"), "0");
    }
    for (index, row) in facts.gids.iter().enumerate() {
        tree.text(format!("{dir}/gids/{index}"), groups(&row.gid.0));
        // A row that lost its address stays, empty, and has no attributes.
        if row.gid != Gid::ZERO {
            tree.text(format!("{dir}/gid_attrs/types/{index}"), "RoCE v2");
            tree.text(format!("{dir}/gid_attrs/ndevs/{index}"), &row.interface);
        }
    }
    for (index, pkey) in facts.pkeys.iter().enumerate() {
        tree.text(format!("{dir}/pkeys/{index}"), format!("{:#06x}", pkey.0));
    }
    counters(tree, dir, facts.counters);
}

/// The counters of a port, in the kernel's terms. Like an adapter's they count what crosses the wire;
/// what went through rings is among our own ones in `hw_counters`.
fn counters(tree: &mut Tree, dir: &str, counters: &[(String, u64)]) {
    let of = |counter: Counter| {
        counters.iter().find(|(name, _)| name == counter.name()).map_or(0, |&(_, n)| n)
    };
    let dropped: u64 =
        counters.iter().filter(|(name, _)| name.starts_with("rx_drop_")).map(|&(_, n)| n).sum();
    let known = [
        // In units of four bytes.
        ("port_xmit_data", of(Counter::TxBytes) / 4),
        ("port_rcv_data", of(Counter::RxBytes) / 4),
        ("port_xmit_packets", of(Counter::TxPackets)),
        ("port_rcv_packets", of(Counter::RxPackets)),
        ("port_xmit_wait", of(Counter::TxBusy)),
        ("port_xmit_discards", of(Counter::TxErrors)),
        ("port_rcv_errors", dropped),
    ];
    for (name, value) in known {
        tree.text(format!("{dir}/counters/{name}"), value.to_string());
    }
    // Of a cable and a link layer that are not there.
    for name in [
        "VL15_dropped",
        "excessive_buffer_overrun_errors",
        "link_downed",
        "link_error_recovery",
        "local_link_integrity_errors",
        "port_rcv_constraint_errors",
        "port_rcv_remote_physical_errors",
        "port_rcv_switch_relay_errors",
        "port_xmit_constraint_errors",
        "symbol_error",
    ] {
        tree.text(format!("{dir}/counters/{name}"), "0");
    }
    for (name, value) in counters {
        tree.text(format!("{dir}/hw_counters/{name}"), value.to_string());
    }
}

/// The files as they are gathered.
#[derive(Default)]
struct Tree(BTreeMap<PathBuf, Entry>);

impl Tree {
    /// A file of one line.
    fn text(&mut self, path: impl Into<PathBuf>, line: impl AsRef<str>) {
        self.0.insert(path.into(), Entry::Text(format!("{}\n", line.as_ref())));
    }
    fn link(&mut self, path: impl Into<PathBuf>, to: impl Into<PathBuf>) {
        self.0.insert(path.into(), Entry::Link(to.into()));
    }
}

/// A GUID or a GID as sysfs has them: groups of four hexadecimal digits.
fn groups(bytes: &[u8]) -> String {
    let pairs = bytes.chunks(2).map(|pair| pair.iter().map(|b| format!("{b:02x}")).collect());
    pairs.collect::<Vec<String>>().join(":")
}

/// Writes a file unless it has this text. It is written in place, in one system call, since programs
/// keep files open, and rereading an open file is how counters are watched.
fn put(path: &Path, text: &str) -> io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    let mut file: File = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

fn link(path: &Path, to: &Path) -> io::Result<()> {
    match fs::read_link(path) {
        Ok(old) if old == to => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    symlink(to, path)
}

/// Removes files that are not among the entries, and directories that have none.
fn prune(root: &Path, below: &Path, entries: &BTreeMap<PathBuf, Entry>) -> io::Result<()> {
    for found in fs::read_dir(root.join(below))? {
        let found = found?;
        let path = below.join(found.file_name());
        if !found.file_type()?.is_dir() {
            if !entries.contains_key(&path) {
                fs::remove_file(found.path())?;
            }
        } else if entries.keys().any(|e| e.starts_with(&path)) {
            prune(root, &path, entries)?;
        } else {
            fs::remove_dir_all(found.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use rdmux_wire::Mtu;
    use std::net::Ipv4Addr;

    fn row(address: [u8; 4], interface: &str) -> GidRow {
        let gid = Ipv4Addr::from(address).into();
        GidRow { gid, interface: interface.to_owned(), interface_index: 1, mtu: Mtu::M1024 }
    }

    fn facts<'a>(gids: &'a [GidRow], counters: &'a [(String, u64)]) -> Facts<'a> {
        Facts {
            host: "a",
            device: "dev0",
            node_guid: Guid(0x0211_2233_4455_6677),
            gids,
            pkeys: &[Pkey::DEFAULT],
            counters,
        }
    }

    #[test]
    fn files_read_as_the_kernels() {
        let dir = TempDir::new();
        let gids = [row([10, 0, 0, 1], "eth0")];
        let counters = [("tx_bytes".to_owned(), 400), ("rx_drop_icrc".to_owned(), 3)];
        write(dir.path(), &facts(&gids, &counters)).unwrap();
        let read = |path: &str| {
            fs::read_to_string(dir.path().join("sys/class/infiniband/dev0").join(path)).unwrap()
        };
        assert_eq!(read("node_guid"), "0211:2233:4455:6677\n");
        assert_eq!(read("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        assert_eq!(read("ports/1/gid_attrs/types/0"), "RoCE v2\n");
        assert_eq!(read("ports/1/gid_attrs/ndevs/0"), "eth0\n");
        assert_eq!(read("ports/1/pkeys/0"), "0xffff\n");
        assert_eq!(read("ports/1/counters/port_xmit_data"), "100\n");
        assert_eq!(read("ports/1/counters/port_rcv_errors"), "3\n");
        assert_eq!(read("ports/1/hw_counters/rx_drop_icrc"), "3\n");
        let null = fs::metadata(dir.path().join("dev/infiniband/uverbs0")).unwrap();
        assert!(std::os::unix::fs::FileTypeExt::is_char_device(&null.file_type()));
    }

    #[test]
    fn what_changed_is_written_and_what_is_gone_removed() {
        let dir = TempDir::new();
        let two = [row([10, 0, 0, 1], "eth0"), row([10, 0, 0, 2], "eth1")];
        write(dir.path(), &facts(&two, &[("tx_packets".to_owned(), 1000)])).unwrap();
        let port = dir.path().join("sys/class/infiniband/dev0/ports/1");
        let net = dir.path().join("sys/class/infiniband/dev0/device/net");
        let open = File::open(port.join("counters/port_xmit_packets")).unwrap();

        write(dir.path(), &facts(&two[..1], &[("tx_packets".to_owned(), 7)])).unwrap();
        assert_eq!(io::read_to_string(open).unwrap(), "7\n");
        assert!(port.join("gids/0").exists() && !port.join("gids/1").exists());
        assert_eq!(fs::read_dir(net).unwrap().count(), 1);

        // A row that lost its address.
        let empty = GidRow { gid: Gid::ZERO, ..two[1].clone() };
        write(dir.path(), &facts(&[two[0].clone(), empty], &[])).unwrap();
        assert!(port.join("gids/1").exists() && !port.join("gid_attrs/types/1").exists());
        assert!(!port.join("hw_counters").exists());
    }
}
