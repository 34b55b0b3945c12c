//! Checks of the machine: the kernel, its limits, real adapters, the distribution's programs.

use std::fs;
use std::path::Path;

use rdmux_link::udp::Offload;
use rustix::process::{Resource, getrlimit};

use super::Check;
use rdmux_command::output;

/// One program of each package with programs for verbs, on Debian and its derivatives.
const PACKAGES: [(&str, &str); 3] =
    [("ibverbs-utils", "ibv_devinfo"), ("rdmacm-utils", "rping"), ("perftest", "ib_write_bw")];

pub(super) fn all() -> Vec<Check> {
    vec![offload(), ptrace(), memlock(), cores(), adapters(), packages()]
}

fn offload() -> Check {
    let name = "offload";
    let said = match Offload::probe() {
        Ok(said) => said,
        Err(e) => return Check::fail(name, format!("cannot create a UDP socket: {e}")),
    };
    let errors = [("segmentation (GSO)", said.gso), ("merging (GRO)", said.gro)]
        .into_iter()
        .filter_map(|(what, result)| Some(format!("{what}: {}", result.err()?)));
    let errors: Vec<_> = errors.collect();
    if errors.is_empty() {
        return Check::ok(name, "UDP segmentation and merging (GSO, GRO)");
    }
    Check::fail(name, format!("UDP sockets have no {}", errors.join(", ")))
        .advice("Linux 5.0 and later have both; some sandboxes support neither")
}

/// Checks whether processes may copy each other's memory.
fn ptrace() -> Check {
    let name = "ptrace";
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => Check::ok(name, "processes of a user may copy each other's memory"),
        "1" => Check::ok(name, "processes may copy the memory of processes that allow it (Yama ptrace_scope 1)"),
        other => Check::warn(name, format!("processes may not copy each other's memory (Yama ptrace_scope {other})")).advice(
            "data is copied through the service's shared memory instead; sysctl kernel.yama.ptrace_scope=1 \
             allows direct copies",
        ),
    }
}

fn memlock() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    let limit = limit.map_or("unlimited".to_owned(), output::bytes);
    Check::ok("memlock", format!("{limit}; any limit suffices, because memory is never pinned"))
}

fn cores() -> Check {
    let name = "processors";
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => Check::warn(name, "one")
            .advice("two processes alternate on it: each message takes a context switch"),
        n => Check::ok(name, n.to_string()),
    }
}

/// Checks for real adapters, which programs do not see when they use rdmux.
fn adapters() -> Check {
    let name = "adapters";
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let mut names: Vec<_> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with("rdmux_"))
        .collect();
    names.sort();
    if names.is_empty() {
        return Check::ok(name, "none in this machine");
    }
    let found = format!("programs under `rdmux run` do not see {}", names.join(", "));
    Check::warn(name, found).advice(
        "rdmux loads no vendor's driver: run programs for these adapters without `rdmux run`",
    )
}

fn packages() -> Check {
    let name = "programs";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).collect();
    let is_there = |program: &str| dirs.iter().any(|dir| Path::is_file(&dir.join(program)));
    let missing: Vec<_> =
        PACKAGES.iter().filter(|(_, program)| !is_there(program)).map(|(p, _)| *p).collect();
    if missing.is_empty() {
        return Check::ok(name, PACKAGES.map(|(package, _)| package).join(", "));
    }
    let missing = missing.join(" ");
    Check::warn(name, format!("not installed: {missing}"))
        .advice(format!("to try rdmux with the usual programs: apt install {missing}"))
}
