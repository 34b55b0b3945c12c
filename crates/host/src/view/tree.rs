//! The tree of files for the devices, in the layout of the kernel's `Documentation/ABI/stable/sysfs-class-infiniband`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rdmux_acm_client::Places;
use rdmux_verbs::counters::Counter;
use rdmux_verbs::kind::PerKind;
use rdmux_verbs::port::{Adapter, GidEntry, Port};
use rdmux_wire::Guid;
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use super::uverbs;
use crate::proto::DeviceRow;

/// Returns the path of the FIFO that a subnet manager holds open on a managed port. `umadN` and `issmN` are numbered like
/// the ports.
pub(crate) fn issm(port: u8) -> PathBuf {
    format!("dev/infiniband/issm{}", port.saturating_sub(1)).into()
}

/// The data of the files.
#[derive(Clone)]
pub(crate) struct Facts<'a> {
    /// The virtual host.
    pub(crate) host: &'a str,
    /// The devices.
    pub(crate) devices: Vec<&'a DeviceRow>,
    /// The counters of all devices of a kind, by [`Counter::name`].
    pub(crate) counters: &'a PerKind<Vec<(String, u64)>>,
    /// The file of names and addresses.
    pub(crate) etc_hosts: &'a Path,
    /// The places of the host's ACM service's files.
    pub(crate) acm: &'a Places,
    /// The FIFO to which a port's `issmN` links in every tree of a host, so that all trees share it.
    pub(crate) issm: &'a dyn Fn(u8) -> PathBuf,
}

/// A file of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Text(String),
    Link(PathBuf),
    /// The FIFO of this port, which a subnet manager holds open.
    Fifo(u8),
}

/// Updates the files below `root`: writes those that changed, removes those that no longer exist. A reader sees the old text of a
/// file or the new one; of a counter it may see the new one followed by the old one's end after its line.
pub(crate) fn write(root: &Path, facts: &Facts<'_>) -> io::Result<()> {
    let entries = entries(facts);
    for (below, entry) in &entries {
        let path = root.join(below);
        if let Some(parent) = path.parent() {
            directories(parent)?;
        }
        match entry {
            Entry::Text(text) => put(root, below, text)?,
            Entry::Link(to) => link(&path, to)?,
            Entry::Fifo(port) => fifo(&path, &(facts.issm)(*port))?,
        }
    }
    prune(root, Path::new(""), &entries)
}

/// Returns all files, by their paths.
fn entries(facts: &Facts<'_>) -> BTreeMap<PathBuf, Entry> {
    let mut tree = Tree::default();
    for &device in &facts.devices {
        let dir = format!("sys/class/infiniband/{}", device.name);
        node(&mut tree, &dir, facts, device);
        parent(&mut tree, &format!("{dir}/device"), device);
        for (number, port) in (1..).zip(&device.ports) {
            let dir = format!("{dir}/ports/{number}");
            describe(&mut tree, &dir, port);
            gids(&mut tree, &dir, port);
            match &port.managed {
                Some(managed) => tree.values(&format!("{dir}/counters"), &managed.counters),
                None => counters(&mut tree, &dir, &facts.counters[device.kind]),
            }
        }
        verbs(&mut tree, device);
    }
    tree.text("sys/class/infiniband_verbs/abi_version", "6");
    mads(&mut tree, &facts.devices);
    // A librdmacm other than rdmux's would interpret a successful write as the kernel's answer. Writing to this file fails.
    tree.link("dev/infiniband/rdma_cm", "/dev/full");
    // Updated by each process that changes the registry.
    tree.link("etc/hosts", facts.etc_hosts);
    // For programs whose paths are redirected.
    tree.link("run", facts.acm.runtime());
    tree.link("etc/rdma", facts.acm.config());
    tree.link("var/log/ibacm.log", facts.acm.log());
    tree.0
}

/// Adds the files of a device's verbs interface.
fn verbs(tree: &mut Tree, device: &DeviceRow) {
    let (name, uverbs) = (&device.name, uverbs(device.kind));
    let dir = format!("sys/class/infiniband_verbs/{uverbs}");
    tree.text(format!("{dir}/ibdev"), name);
    tree.text(format!("{dir}/abi_version"), "1");
    tree.link(format!("{dir}/device"), format!("../../infiniband/{name}/device"));
    character_device(tree, &uverbs);
}

/// Adds the files for management datagrams and subnet managers. Only ports of a managed subnet have these: on others the
/// datagrams would have no destination.
fn mads(tree: &mut Tree, devices: &[&DeviceRow]) {
    let dir = "sys/class/infiniband_mad";
    tree.text(format!("{dir}/abi_version"), "5");
    let ports = devices.iter().flat_map(|device| {
        (1_u8..).zip(&device.ports).map(|(number, port)| (&device.name, number, port))
    });
    let managed = ports.filter(|(.., port)| port.managed.is_some());
    for (name, number, _) in managed {
        let n = number - 1;
        for class in [format!("umad{n}"), format!("issm{n}")] {
            tree.text(format!("{dir}/{class}/ibdev"), name);
            tree.text(format!("{dir}/{class}/port"), number.to_string());
            tree.link(format!("{dir}/{class}/device"), format!("../../infiniband/{name}/device"));
        }
        character_device(tree, &format!("umad{n}"));
        tree.0.insert(issm(number), Entry::Fifo(number));
    }
}

/// Adds a device that all users may read and write, which is what programs check. Nothing else is needed: the libraries
/// use the service.
fn character_device(tree: &mut Tree, name: &str) {
    tree.link(format!("dev/infiniband/{name}"), "/dev/null");
}

fn node(tree: &mut Tree, dir: &str, facts: &Facts<'_>, device: &DeviceRow) {
    let guid = |guid: Guid| groups(&guid.0.to_be_bytes());
    let node_type = device.kind.row().node_type;
    tree.text(format!("{dir}/node_type"), format!("{}: {}", node_type as u8, node_type.name()));
    tree.text(format!("{dir}/node_guid"), guid(device.node_guid));
    let adapter = device.adapter.as_ref();
    let system = adapter.map_or(device.node_guid, |adapter| adapter.system_guid);
    tree.text(format!("{dir}/sys_image_guid"), guid(system));
    let own = || format!("{} {}", facts.host, device.name);
    tree.text(
        format!("{dir}/node_desc"),
        adapter.map_or_else(own, |adapter| adapter.description.clone()),
    );
    tree.text(format!("{dir}/fw_ver"), env!("CARGO_PKG_VERSION"));
    let revision = adapter.map_or(1, |adapter| adapter.revision);
    tree.text(format!("{dir}/hw_rev"), format!("{revision:#x}"));
    tree.text(format!("{dir}/hca_type"), adapter.map_or_else(|| "rdmux".to_owned(), model));
    tree.text(format!("{dir}/board_id"), "rdmux");
}

/// Returns the model of an adapter: those of Mellanox are known by their device ID in decimal, as their drivers write
/// it.
fn model(adapter: &Adapter) -> String {
    const MELLANOX: u32 = 0x02c9;
    match adapter.device_id {
        device if adapter.vendor_id == MELLANOX && device != 0 => format!("MT{device}"),
        _ => "rdmux".to_owned(),
    }
}

/// Adds the parent device: for an adapter its PCI function.
fn parent(tree: &mut Tree, dir: &str, device: &DeviceRow) {
    // For an adapter, too: the host's addresses lead to its port, although it has no network interface of its own.
    let addresses = device.ports.iter().flat_map(|port| &port.addresses);
    for GidEntry { interface, .. } in addresses.filter(|entry| !entry.gid.is_zero()) {
        tree.link(format!("{dir}/net/{interface}"), format!("/sys/class/net/{interface}"));
    }
    // Relative links, which work wherever the tree is mounted.
    let (name, uverbs) = (&device.name, uverbs(device.kind));
    tree.link(format!("{dir}/infiniband/{name}"), format!("../../../{name}"));
    tree.link(
        format!("{dir}/infiniband_verbs/{uverbs}"),
        format!("../../../../infiniband_verbs/{uverbs}"),
    );
    // No memory node is nearer than another.
    tree.text(format!("{dir}/numa_node"), "-1");
}

/// Adds a port's attributes and its P_Keys.
fn describe(tree: &mut Tree, dir: &str, port: &Port) {
    let attr = &port.attr;
    tree.text(format!("{dir}/state"), format!("{}: {}", attr.state as u8, attr.state.name()));
    let phys_state = attr.phys_state;
    tree.text(format!("{dir}/phys_state"), format!("{}: {}", phys_state as u8, phys_state.name()));
    tree.text(format!("{dir}/link_layer"), attr.link_layer.name());
    let (speed, rate) = attr.rate();
    let half = if rate % 10 == 0 { "" } else { ".5" };
    let rate = format!("{}{half} Gb/sec ({}X {speed})", rate / 10, attr.lanes());
    tree.text(format!("{dir}/rate"), rate);
    tree.text(format!("{dir}/lid"), format!("{:#x}", attr.lid.0));
    tree.text(format!("{dir}/sm_lid"), format!("{:#x}", attr.sm_lid.0));
    tree.text(format!("{dir}/sm_sl"), attr.sm_sl.to_string());
    tree.text(format!("{dir}/lid_mask_count"), attr.lmc.to_string());
    tree.text(format!("{dir}/cap_mask"), format!("{:#010x}", attr.capabilities));
    for (index, pkey) in port.pkeys.iter().enumerate() {
        tree.text(format!("{dir}/pkeys/{index}"), format!("{:#06x}", pkey.0));
    }
}

fn gids(tree: &mut Tree, dir: &str, port: &Port) {
    let mut entries = port.gids().to_vec();
    let table = entries.len().max(port.attr.kind.row().gid_table.into());
    entries.resize(table, GidEntry::empty());
    for (index, entry) in entries.iter().enumerate() {
        tree.text(format!("{dir}/gids/{index}"), groups(&entry.gid.0));
        // A row that lost its address stays, empty and without attributes.
        if !entry.gid.is_zero() {
            tree.text(format!("{dir}/gid_attrs/types/{index}"), entry.kind.sysfs());
        }
        // On InfiniBand the GIDs belong to the port, and to no network interface.
        if !entry.gid.is_zero() && !entry.interface.is_empty() {
            tree.text(format!("{dir}/gid_attrs/ndevs/{index}"), &entry.interface);
        }
    }
}

/// Adds the counters of a port, in the kernel's terms. Like an adapter's, they count what is sent on the wire; traffic
/// through rings is among rdmux's own counters in `hw_counters`.
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
    // Counters of a cable and a link layer, which do not exist here.
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
    tree.values(&format!("{dir}/hw_counters"), counters);
}

/// The files that are collected.
#[derive(Default)]
struct Tree(BTreeMap<PathBuf, Entry>);

impl Tree {
    /// Adds a file of one line.
    fn text(&mut self, path: impl Into<PathBuf>, line: impl AsRef<str>) {
        self.0.insert(path.into(), Entry::Text(format!("{}\n", line.as_ref())));
    }
    /// Adds a directory with a file for each number.
    fn values(&mut self, dir: &str, values: &[(String, u64)]) {
        for (name, value) in values {
            self.text(format!("{dir}/{name}"), value.to_string());
        }
    }
    fn link(&mut self, path: impl Into<PathBuf>, to: impl Into<PathBuf>) {
        self.0.insert(path.into(), Entry::Link(to.into()));
    }
}

/// Formats a GUID or a GID as sysfs does: groups of four hexadecimal digits.
fn groups(bytes: &[u8]) -> String {
    let pairs = bytes.chunks(2).map(|pair| pair.iter().map(|b| format!("{b:02x}")).collect());
    pairs.collect::<Vec<String>>().join(":")
}

/// Writes a file unless it has this text. Counters are written in place, because programs keep their files open and reread them;
/// the end of line delimits what a reader sees in between. Other files are replaced.
fn put(root: &Path, below: &Path, text: &str) -> io::Result<()> {
    let path = root.join(below);
    if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    if below.parent().is_some_and(|dir| COUNTERS.iter().any(|name| dir.ends_with(name))) {
        let mut file = match OpenOptions::new().write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(&path)?,
            file => file?,
        };
        file.write_all(text.as_bytes())?;
        return file.set_len(text.len() as u64);
    }
    let new = root.join(".new");
    create(&new)?.write_all(text.as_bytes())?;
    fs::rename(new, path)
}

/// Creates an empty file that all users may read, regardless of the umask.
fn create(path: &Path) -> io::Result<File> {
    let file = File::create(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    Ok(file)
}

/// Creates a directory that all users may enter, and its parents, unless they exist.
fn directories(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        directories(above)?;
    }
    fs::create_dir(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o755))
}

/// The directories of counters.
const COUNTERS: [&str; 2] = ["counters", "hw_counters"];

fn link(path: &Path, to: &Path) -> io::Result<()> {
    match fs::read_link(path) {
        Ok(old) if old == to => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    symlink(to, path)
}

/// Makes a FIFO that only its owner can open, as a link to the one at `of`, which is created if it does not exist.
fn fifo(path: &Path, of: &Path) -> io::Result<()> {
    let made = match rustix::fs::mknodat(CWD, of, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Err(Errno::EXIST) => fs::symlink_metadata(of)?,
        made => made.map_err(io::Error::from).and_then(|()| fs::symlink_metadata(of))?,
    };
    match fs::symlink_metadata(path) {
        Ok(found) if (found.dev(), found.ino()) == (made.dev(), made.ino()) => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    fs::hard_link(of, path)
}

/// Removes files that are not among the entries, and directories without any.
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
    use std::os::unix::fs::FileTypeExt as _;

    use super::*;
    use rdmux_testing::{TempDir, temp_dir};
    use rdmux_verbs::kind::{self, KindRow};
    use rdmux_verbs::port::{GidTable, Managed, PhysState, PortState};
    use rdmux_wire::{Gid, Pkey};
    use std::net::Ipv4Addr;

    fn address(address: [u8; 4], interface: &str) -> GidEntry {
        let gid = Ipv4Addr::from(address).into();
        GidEntry { gid, interface: interface.to_owned(), ..GidEntry::empty() }
    }

    /// Returns the devices of a host that has one of each kind.
    fn devices(addresses: &[GidEntry]) -> Vec<DeviceRow> {
        let device = |row: &KindRow| {
            let (kind, node_guid) = (row.kind, Guid(0x0211_2233_4455_6676 + row.kind as u64));
            let ports = vec![Port::over_ip(kind, node_guid, addresses.to_vec())];
            let name = format!("dev{}", kind as u8);
            DeviceRow { kind, name, node_guid, adapter: None, ports }
        };
        kind::rows().iter().map(device).collect()
    }

    /// Writes the tree of such a host, with these counters of the first device.
    fn show(dir: &TempDir, addresses: &[GidEntry], counters: &[(&str, u64)]) {
        show_devices(dir, &devices(addresses), counters);
    }

    fn show_devices(dir: &TempDir, devices: &[DeviceRow], counters: &[(&str, u64)]) {
        show_at(dir.path(), devices, counters);
    }

    fn show_at(root: &Path, devices: &[DeviceRow], counters: &[(&str, u64)]) {
        let mut counted = PerKind::new(|_| Vec::new());
        counted[devices[0].kind] = counters.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
        let etc_hosts = Path::new("/run/rdmux/etc-hosts");
        let devices = devices.iter().collect();
        let other = temp_dir();
        let issm = |port| other.path().join(format!("issm{port}"));
        let acm = &Places::new("/nowhere/acm", "/nowhere/config");
        let facts = Facts { host: "a", devices, counters: &counted, etc_hosts, acm, issm: &issm };
        write(root, &facts).unwrap();
    }

    #[test]
    fn files_read_as_the_kernels() {
        let dir = temp_dir();
        let gids = [address([10, 0, 0, 1], "eth0")];
        show(&dir, &gids, &[("tx_bytes", 400), ("rx_drop_icrc", 3)]);
        let read = |path: &str| {
            fs::read_to_string(dir.path().join("sys/class/infiniband/dev0").join(path)).unwrap()
        };
        assert_eq!(read("node_type"), "1: CA\n");
        assert_eq!(read("node_guid"), "0211:2233:4455:6676\n");
        assert_eq!(read("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        assert_eq!(read("ports/1/gid_attrs/types/0"), "RoCE v2\n");
        assert_eq!(read("ports/1/gid_attrs/ndevs/0"), "eth0\n");
        assert_eq!(read("ports/1/pkeys/0"), "0xffff\n");
        for (file, text) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "Ethernet"),
            ("rate", "100 Gb/sec (4X EDR)"),
            ("lid", "0x0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("lid_mask_count", "0"),
            ("cap_mask", "0x04010000"),
        ] {
            assert_eq!(read(&format!("ports/1/{file}")).trim_end(), text);
        }
        assert_eq!(read("ports/1/counters/port_xmit_data"), "100\n");
        assert_eq!(read("ports/1/counters/port_rcv_errors"), "3\n");
        assert_eq!(read("ports/1/hw_counters/rx_drop_icrc"), "3\n");
        let null = fs::metadata(dir.path().join("dev/infiniband/uverbs0")).unwrap();
        assert!(null.file_type().is_char_device());
        // The other device's files.
        assert_eq!(read("../dev1/node_type"), "4: RNIC\n");
        assert_eq!(read("../dev1/ports/1/gids/0"), "0233:4455:6677:0000:0000:0000:0000:0000\n");
        assert_eq!(read("../dev1/ports/1/gid_attrs/types/0"), "IB/RoCE v1\n");
        assert_eq!(read("../dev1/device/infiniband_verbs/uverbs1/ibdev"), "dev1\n");
        let names = fs::read_link(dir.path().join("etc/hosts")).unwrap();
        assert_eq!(names, Path::new("/run/rdmux/etc-hosts"));
    }

    /// All users can read the tree of a service of root, with any umask.
    #[test]
    fn everybody_can_read_the_files_whatever_the_umask_is() {
        const INNER: &str = "RDMUX_TEST_UMASK";
        let dir = temp_dir();
        if std::env::var_os(INNER).is_none() {
            // All threads share the umask, so another one needs a process of its own.
            let test = "view::tree::tests::everybody_can_read_the_files_whatever_the_umask_is";
            let mut inner = std::process::Command::new("sh");
            inner.args(["-c", r#"umask 077; exec "$0" --exact "$1""#]).env(INNER, "");
            let output = inner.arg(std::env::current_exe().unwrap()).arg(test).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let root = dir.path().join("view");
        for pings in [1, 2] {
            show_at(&root, &devices(&[address([10, 0, 0, 1], "eth0")]), &[("tx_bytes", pings)]);
            let mut found = vec![root.clone()];
            let mut files = 0;
            while let Some(path) = found.pop() {
                let metadata = fs::symlink_metadata(&path).unwrap();
                let mode = metadata.mode() & 0o777;
                if metadata.is_dir() {
                    assert_eq!(mode, 0o755, "{}", path.display());
                    found.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                } else if metadata.is_file() {
                    assert_eq!(mode, 0o644, "{}", path.display());
                    files += 1;
                }
            }
            assert!(files > 50, "{files}");
        }
    }

    #[test]
    fn managed_ports_have_mad_devices_and_others_none() {
        let dir = temp_dir();
        let mut devices = devices(&[]);
        show_devices(&dir, &devices, &[]);
        let classes = || fs::read_dir(dir.path().join("sys/class/infiniband_mad")).unwrap().count();
        assert_eq!(classes(), 1, "only the version");

        let port = &mut devices[1].ports[0];
        (port.attr.state, port.attr.phys_state) = (PortState::Init, PhysState::LinkUp);
        port.managed = Some(Managed {
            fabric: "default".into(),
            node: "H-1".into(),
            port: 1,
            counters: vec![("VL15_dropped".into(), 3)],
        });
        for _ in 0..2 {
            show_devices(&dir, &devices, &[]);
        }
        let read =
            |path: &str| fs::read_to_string(dir.path().join("sys/class").join(path)).unwrap();
        assert_eq!(read("infiniband_mad/abi_version"), "5\n");
        for file in ["umad0", "issm0"] {
            assert_eq!(read(&format!("infiniband_mad/{file}/ibdev")), "dev1\n");
            assert_eq!(read(&format!("infiniband_mad/{file}/port")), "1\n");
        }
        assert_eq!(read("infiniband/dev1/ports/1/state"), "2: INIT\n");
        assert_eq!(read("infiniband/dev1/ports/1/counters/VL15_dropped"), "3\n");
        let kind = |name: &str| {
            fs::metadata(dir.path().join("dev/infiniband").join(name)).unwrap().file_type()
        };
        assert!(kind("umad0").is_char_device() && kind("issm0").is_fifo());
        assert!(dir.path().join(issm(1)).exists());

        devices[1].ports[0].managed = None;
        show_devices(&dir, &devices, &[]);
        assert_eq!(classes(), 1);
        assert!(!dir.path().join("dev/infiniband/issm0").exists());
    }

    /// Collects files and links below a directory, by their paths in it.
    fn all_files(dir: &Path, below: &Path, files: &mut BTreeMap<String, String>) {
        for found in fs::read_dir(dir.join(below)).unwrap() {
            let found = found.unwrap();
            let path = below.join(found.file_name());
            let kind = found.file_type().unwrap();
            let text = if kind.is_dir() {
                all_files(dir, &path, files);
                continue;
            } else if kind.is_symlink() {
                format!("-> {}", fs::read_link(found.path()).unwrap().display())
            } else {
                fs::read_to_string(found.path()).unwrap()
            };
            files.insert(path.display().to_string(), text.trim_end().to_owned());
        }
    }

    #[test]
    fn sysfs_files_of_an_infiniband_port_have_its_fabric_attributes() {
        let dir = temp_dir();
        let mut devices = devices(&[]);
        devices.retain(|device| device.kind == kind::DeviceKind::Ib);
        let device = &mut devices[0];
        device.name = "ib0".to_owned();
        device.adapter = Some(Adapter {
            description: "node7".to_owned(),
            system_guid: Guid(0x0002_c903_0012_3459),
            vendor_id: 0x02c9,
            device_id: 4119,
            revision: 0xa0,
        });
        let port = &mut device.ports[0];
        let attr = &mut port.attr;
        (attr.state, attr.phys_state) = (PortState::Armed, PhysState::Training);
        (attr.lid.0, attr.lmc, attr.sm_lid.0, attr.sm_sl) = (0x1230, 3, 0x45, 6);
        (attr.active_width, attr.active_speed, attr.capabilities) = (1, 1, 0x0251_4868);
        let gid = |guid| GidEntry {
            gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(guid)),
            kind: kind::GidKind::Node,
            ..GidEntry::empty()
        };
        port.gids = GidTable::Own(vec![gid(0x77), GidEntry::empty(), gid(0x0203_0405_0607_0809)]);
        port.pkeys = [0xffff, 0, 0x8001].map(Pkey).into();
        port.managed = Some(Managed {
            fabric: "default".into(),
            node: "H-1".into(),
            port: 1,
            counters: vec![("VL15_dropped".into(), 3), ("symbol_error".into(), 4)],
        });
        show_devices(&dir, &devices, &[]);
        let mut found = BTreeMap::new();
        let class = dir.path().join("sys/class");
        for below in ["infiniband/ib0", "infiniband_mad"] {
            all_files(&class, Path::new(below), &mut found);
        }
        let expected = [
            ("infiniband/ib0/board_id", "rdmux"),
            ("infiniband/ib0/device/infiniband/ib0", "-> ../../../ib0"),
            (
                "infiniband/ib0/device/infiniband_verbs/uverbs2",
                "-> ../../../../infiniband_verbs/uverbs2",
            ),
            ("infiniband/ib0/device/numa_node", "-1"),
            ("infiniband/ib0/fw_ver", env!("CARGO_PKG_VERSION")),
            ("infiniband/ib0/hca_type", "MT4119"),
            ("infiniband/ib0/hw_rev", "0xa0"),
            ("infiniband/ib0/node_desc", "node7"),
            ("infiniband/ib0/node_guid", "0211:2233:4455:6678"),
            ("infiniband/ib0/node_type", "1: CA"),
            ("infiniband/ib0/ports/1/cap_mask", "0x02514868"),
            ("infiniband/ib0/ports/1/counters/VL15_dropped", "3"),
            ("infiniband/ib0/ports/1/counters/symbol_error", "4"),
            ("infiniband/ib0/ports/1/gid_attrs/types/0", "IB/RoCE v1"),
            ("infiniband/ib0/ports/1/gid_attrs/types/2", "IB/RoCE v1"),
            ("infiniband/ib0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0077"),
            ("infiniband/ib0/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("infiniband/ib0/ports/1/gids/2", "fe80:0000:0000:0000:0203:0405:0607:0809"),
            ("infiniband/ib0/ports/1/lid", "0x1230"),
            ("infiniband/ib0/ports/1/lid_mask_count", "3"),
            ("infiniband/ib0/ports/1/link_layer", "InfiniBand"),
            ("infiniband/ib0/ports/1/phys_state", "4: PortConfigurationTraining"),
            ("infiniband/ib0/ports/1/pkeys/0", "0xffff"),
            ("infiniband/ib0/ports/1/pkeys/1", "0x0000"),
            ("infiniband/ib0/ports/1/pkeys/2", "0x8001"),
            ("infiniband/ib0/ports/1/rate", "2.5 Gb/sec (1X SDR)"),
            ("infiniband/ib0/ports/1/sm_lid", "0x45"),
            ("infiniband/ib0/ports/1/sm_sl", "6"),
            ("infiniband/ib0/ports/1/state", "3: ARMED"),
            ("infiniband/ib0/sys_image_guid", "0002:c903:0012:3459"),
            ("infiniband_mad/abi_version", "5"),
            ("infiniband_mad/issm0/device", "-> ../../infiniband/ib0/device"),
            ("infiniband_mad/issm0/ibdev", "ib0"),
            ("infiniband_mad/issm0/port", "1"),
            ("infiniband_mad/umad0/device", "-> ../../infiniband/ib0/device"),
            ("infiniband_mad/umad0/ibdev", "ib0"),
            ("infiniband_mad/umad0/port", "1"),
        ];
        let expected = expected.map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn view_update_rewrites_changed_files_and_removes_stale_ones() {
        let dir = temp_dir();
        let two = [address([10, 0, 0, 1], "eth0"), address([10, 0, 0, 2], "eth1")];
        show(&dir, &two, &[("tx_packets", 1000)]);
        let port = dir.path().join("sys/class/infiniband/dev0/ports/1");
        let net = dir.path().join("sys/class/infiniband/dev0/device/net");
        let open = File::open(port.join("counters/port_xmit_packets")).unwrap();

        show(&dir, &two[..1], &[("tx_packets", 7)]);
        assert_eq!(io::read_to_string(open).unwrap(), "7\n");
        let gid = |n: u8| fs::read_to_string(port.join(format!("gids/{n}"))).unwrap();
        assert!(gid(0).ends_with("0a00:0001\n"), "{}", gid(0));
        // The table is as long as ibv_query_port(3) reports, and an entry without an address has no attributes.
        for empty in 1..16 {
            assert_eq!(gid(empty), "0000:0000:0000:0000:0000:0000:0000:0000\n");
            assert!(!port.join(format!("gid_attrs/types/{empty}")).exists());
        }
        assert!(!port.join("gids/16").exists());
        assert_eq!(fs::read_dir(net).unwrap().count(), 1);

        // The row lost its address.
        let empty = GidEntry { gid: Gid::ZERO, ..two[1].clone() };
        show(&dir, &[two[0].clone(), empty], &[]);
        assert!(port.join("gids/1").exists() && !port.join("gid_attrs/types/1").exists());
        assert!(!port.join("hw_counters").exists());
    }

    #[test]
    fn a_reader_sees_the_old_text_or_the_new_one_and_no_mixture() {
        const ROUNDS: usize = 20_000;
        let dir = temp_dir();
        let (root, below) = (dir.path(), Path::new("state"));
        let texts = ["4: ACTIVE\n", "2: INIT\n"];
        put(root, below, texts[0]).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                (0..ROUNDS).for_each(|round| put(root, below, texts[round % 2]).unwrap());
            });
            while !writer.is_finished() {
                let seen = fs::read_to_string(root.join(below)).unwrap();
                assert!(texts.contains(&&*seen), "{seen:?}");
            }
        });
    }
}
