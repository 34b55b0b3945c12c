//! The environment of this process: its network namespace, a chroot, and conflicting processes.
//!
//! Conclusions are drawn from facts that are passed in, so that tests can choose them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rdmux_host::{Config, ConnectOptions, HostName, NetworkNamespace};
use rdmux_link::udp::{Holder, holder_of};

use super::Check;

/// Checks the system files that everything needs; a plain chroot has none. Reports only missing ones.
pub(super) fn files() -> Option<Check> {
    let is_missing = |path: &&&str| !Path::new(**path).exists();
    missing_files(
        &["/proc/self", "/dev/null"].iter().filter(is_missing).copied().collect::<Vec<_>>(),
    )
}

fn missing_files(missing: &[&str]) -> Option<Check> {
    if missing.is_empty() {
        return None;
    }
    let found = format!("there is no {}, as in a plain chroot", missing.join(" and no "));
    let check = Check::fail("files", found);
    let proc = "mount /proc in the chroot (mount -t proc proc ROOT/proc)";
    let null = "make /dev/null available in the chroot (mount --rbind /dev ROOT/dev)";
    Some(check.advice(match missing {
        [one] if one.starts_with("/proc") => proc.to_owned(),
        [_] => null.to_owned(),
        _ => format!("{proc}, and {null}"),
    }))
}

/// Reports the network namespace, which acts as the machine of the hosts.
pub(super) fn network(options: &ConnectOptions) -> Check {
    let chosen = std::env::var_os("RDMUX_RUNTIME_DIR").is_some_and(|v| !v.is_empty());
    network_of(NetworkNamespace::current(), options.dir.path(), chosen)
}

fn network_of(own: Option<NetworkNamespace>, dir: &Path, chosen: bool) -> Check {
    let (name, dir) = ("network", dir.display());
    match own {
        None => Check::warn(name, "cannot determine the network namespace")
            .advice("set RDMUX_RUNTIME_DIR to a separate directory in each network namespace"),
        Some(own) if chosen => {
            Check::ok(name, format!("{own}; RDMUX_RUNTIME_DIR is {dir}, for this namespace only"))
        }
        Some(own) => Check::ok(
            name,
            format!("{own}: its hosts are in {dir}; every other namespace has its own hosts"),
        ),
    }
}

/// The facts about a service that does not start.
struct Trouble<'a> {
    host: &'a HostName,
    uid: u32,
    /// The process that has the UDP port.
    holder: Option<Holder>,
    /// Whether that process is known not to use rdmux.
    foreign: bool,
    /// Whether the kernel's RoCE driver is loaded.
    rxe: bool,
}

/// Returns advice about a service that does not start, if the cause is known.
pub(super) fn service_advice(host: &HostName, error: &str) -> Option<String> {
    if !error.contains("in use") {
        return None;
    }
    let config = Config::of_environment().unwrap_or_default();
    let holder = || holder_of(IpAddr::V4(Ipv4Addr::LOCALHOST), config.service.port);
    let named = error
        .split_whitespace()
        .find_map(|word| word.trim_end_matches([',', ':']).parse::<IpAddr>().ok());
    let holder = named.map_or_else(holder, |address| holder_of(address, config.service.port));
    let rxe = Path::new("/sys/module/rdma_rxe").exists();
    let maps =
        holder.as_ref().and_then(|h| fs::read_to_string(format!("/proc/{}/maps", h.pid?)).ok());
    let foreign = maps.is_some_and(|maps| !is_of_rdmux(&maps));
    let uid = rustix::process::geteuid().as_raw();
    Some(port_advice(&Trouble { host, uid, holder, foreign, rxe }))
}

/// Returns whether a process is `rdmux`, or has an rdmux device open, according to its mappings (proc_pid_maps(5)).
fn is_of_rdmux(maps: &str) -> bool {
    let path = |line: &str| line.split_ascii_whitespace().nth(5).map(str::to_owned);
    let name = |path: String| path.rsplit('/').next().map(str::to_owned);
    let is_ours = |name: String| {
        ["rdmux", "librdmux", "memfd:rdmux"].iter().any(|start| name.starts_with(start))
    };
    maps.lines().filter_map(path).filter_map(name).any(is_ours)
}

fn port_advice(trouble: &Trouble<'_>) -> String {
    let Trouble { host, uid, holder, foreign, rxe } = trouble;
    // A socket of the kernel belongs to root and to no process.
    if *rxe && holder.as_ref().is_none_or(|h| h.uid == 0 && h.pid.is_none()) {
        return "the kernel's rdma_rxe is loaded and holds the port on all addresses: remove it \
                (`rmmod rdma_rxe`), or set another port in the configuration file (`port = 4792` in [service] of ~/.config/rdmux/config.toml)"
            .to_owned();
    }
    if let (true, Some(Holder { pid: Some(pid), command, .. })) = (foreign, holder) {
        let program = command.as_deref().unwrap_or("a program");
        return format!(
            "{program} (process {pid}) holds the port: end it, or set `port` in [service] of the configuration \
             file (~/.config/rdmux/config.toml)"
        );
    }
    let whose = match holder {
        Some(holder) if holder.uid == *uid => {
            "another host of yours, in another runtime directory (RDMUX_RUNTIME_DIR),".to_owned()
        }
        Some(Holder { user: Some(user), .. }) => format!("a host of user {user}"),
        Some(holder) => format!("a host of the user with uid {}", holder.uid),
        None => "another program".to_owned(),
    };
    if host.is_default() {
        format!(
            "{whose} holds the port on this machine's addresses: use a virtual host, which has an address of its \
             own: `rdmux --host NAME ...`, or RDMUX_HOST=NAME for any program"
        )
    } else {
        format!(
            "{whose} holds the port on this address: choose another with `rdmux host up {host} --addr ADDRESS`"
        )
    }
}

/// Returns whether this process has another root directory than its mount namespace, as after chroot(2).
pub(super) fn is_chroot() -> bool {
    let identity = |path: &str| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    looks_like_chroot(&mounts, identity("/"), identity("/proc/1/root/."))
}

/// Returns whether the facts indicate a chroot: the mounts visible here (proc_pid_mountinfo(5)), and the root directories of this process
/// and of the first process. Only the latter's user can see its root.
fn looks_like_chroot(mounts: &str, own: Option<(u64, u64)>, first: Option<(u64, u64)>) -> bool {
    let is_root = |line: &str| line.split(' ').nth(4) == Some("/");
    let without_root = !mounts.is_empty() && !mounts.lines().any(is_root);
    without_root || first.is_some() && own != first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;
    use std::net::SocketAddr;

    #[test]
    fn chroot_without_proc_fails_with_mount_advice() {
        let check = missing_files(&["/proc/self"]).unwrap();
        assert_eq!(check.state, State::Fail);
        assert!(check.found.contains("/proc/self") && check.found.contains("chroot"));
        assert!(check.advice.unwrap().contains("mount -t proc"));
        let both = missing_files(&["/proc/self", "/dev/null"]).unwrap().advice.unwrap();
        assert!(both.contains("mount -t proc") && both.contains("/dev/null"), "{both}");
        assert!(missing_files(&[]).is_none());
    }

    #[test]
    fn a_port_of_another_user_leads_to_a_virtual_host() {
        let (default, named) = (HostName::default(), HostName::new("one").unwrap());
        let holder = |uid, user: Option<&str>, pid| Holder {
            addr: SocketAddr::from(([127, 0, 0, 1], 4791)),
            uid,
            user: user.map(str::to_owned),
            pid,
            command: None,
        };
        let advice = |host: &HostName, holder: Option<Holder>, rxe| {
            port_advice(&Trouble { host, uid: 1000, holder, foreign: false, rxe })
        };
        let other = advice(&default, Some(holder(7, Some("bob"), None)), false);
        assert!(other.contains("user bob") && other.contains("--host NAME"), "{other}");
        let nameless = advice(&default, Some(holder(7, None, None)), true);
        assert!(nameless.contains("uid 7") && nameless.contains("--host NAME"), "{nameless}");
        let own = advice(&default, Some(holder(1000, None, Some(3))), false);
        assert!(own.contains("RDMUX_RUNTIME_DIR") && own.contains("--host NAME"), "{own}");
        let virtual_host = advice(&named, Some(holder(7, None, None)), false);
        assert!(virtual_host.contains("host up one --addr"), "{virtual_host}");
        for kernel in [Some(holder(0, Some("root"), None)), None] {
            assert!(advice(&default, kernel, true).contains("rmmod rdma_rxe"));
        }
    }

    #[test]
    fn a_port_of_a_foreign_program_is_told_with_the_program() {
        let holder = Holder {
            addr: SocketAddr::from(([127, 0, 0, 1], 4791)),
            uid: 1000,
            user: None,
            pid: Some(3),
            command: Some("python3".to_owned()),
        };
        for host in [HostName::default(), HostName::new("one").unwrap()] {
            let holder = Some(holder.clone());
            let said =
                port_advice(&Trouble { host: &host, uid: 1000, holder, rxe: false, foreign: true });
            assert!(said.starts_with("python3 (process 3) holds the port: end it"), "{said}");
            assert!(said.contains("`port` in [service]"), "{said}");
        }
    }

    #[test]
    fn a_process_with_the_library_or_memory_of_rdmux_is_no_foreign_program() {
        let line = |path: &str| format!("7f00-7f01 rw-s 00000000 00:01 5   {path}\n");
        for path in ["/usr/bin/rdmux", "/opt/x/librdmux_capi.so", "/memfd:rdmux-qps (deleted)"] {
            assert!(is_of_rdmux(&line(path)), "{path}");
        }
        for path in ["/usr/bin/python3", "/home/u/rdmux/python3", "[heap]", ""] {
            assert!(!is_of_rdmux(&line(path)), "{path}");
        }
    }

    #[test]
    fn a_network_namespace_is_named_with_its_directory() {
        let dir = Path::new("/run/rdmux/netns-1");
        let own = NetworkNamespace::current();
        let usual = network_of(own, dir, false);
        assert_eq!(usual.state, State::Ok);
        assert!(
            usual.found.contains("net:[") && usual.found.contains("netns-1"),
            "{}",
            usual.found
        );
        assert!(network_of(own, dir, true).found.contains("RDMUX_RUNTIME_DIR"));
        assert_eq!(network_of(None, dir, false).state, State::Warn);
    }

    #[test]
    fn chroot_is_detected_by_its_root_inode_or_mounts() {
        let plain = "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n24 23 0:5 / /proc rw - proc proc rw\n";
        let inside = "24 23 0:5 / /proc rw - proc proc rw\n";
        assert!(!looks_like_chroot(plain, Some((1, 2)), Some((1, 2))));
        assert!(!looks_like_chroot(plain, Some((1, 2)), None));
        assert!(looks_like_chroot(plain, Some((1, 9)), Some((1, 2))));
        assert!(looks_like_chroot(inside, Some((1, 9)), None));
        assert!(!looks_like_chroot("", Some((1, 2)), None), "without /proc it is not told");
    }
}
