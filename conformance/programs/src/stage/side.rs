//! One host, and how programs are run on it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Whose;
use crate::row::Device;

/// The programs of this workspace, the C library, and the one that shows the device where namespaces are forbidden.
pub(super) const FILES: [&str; 5] =
    ["rdmux", "ib_acm", "ib_acme", "librdmux_capi.so", "librdmux_view.so"];

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// A host.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// Its name.
    pub(crate) name: String,
    /// One of the host's addresses.
    pub(crate) address: String,
    /// Its first address, which is IPv4.
    pub(crate) address4: String,
    /// The index of that address in the GID table.
    pub(crate) gid_index: u64,
    work: PathBuf,
    runtime: Runtime,
    /// A process in its network namespace, and the device there that leads to the other side.
    wire: Option<(u32, &'static str)>,
    /// The words before a command line that make it run there.
    enter: Vec<String>,
}

/// The variable that gives the hosts' directory.
#[derive(Clone, Debug)]
enum Runtime {
    /// `RDMUX_RUNTIME_DIR`.
    Chosen(PathBuf),
    /// `XDG_RUNTIME_DIR`, or nothing.
    Usual(Option<PathBuf>),
}

impl Side {
    /// Starts a virtual host, with these options.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn virtual_host(
        work: &Path,
        runtime: &Path,
        name: &str,
        options: &[&str],
    ) -> Result<Self> {
        private_folder(runtime)?;
        Self::up_with(work, Runtime::Chosen(runtime.to_path_buf()), name, options, Vec::new())
    }

    /// Starts the default host in the usual directory, in the environment of `enter`.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn usual_host(work: &Path, xdg: Option<&Path>, enter: Vec<String>) -> Result<Self> {
        xdg.map_or(Ok(()), private_folder)?;
        Self::up(work, Runtime::Usual(xdg.map(Path::to_path_buf)), "default", enter)
    }

    /// Starts the default host in the environment of `enter`; if root does it for a plain user, that user's.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn default_host(
        work: &Path,
        folder: &str,
        mut enter: Vec<String>,
        plain: bool,
    ) -> Result<Self> {
        let runtime = work.join(folder);
        private_folder(&runtime)?;
        if plain && rustix::process::geteuid().is_root() {
            chown(&runtime, Some(NOBODY), Some(NOBODY))?;
            enter.extend(as_whom(Whose::PlainUsers));
        }
        Self::up(work, Runtime::Chosen(runtime), "default", enter)
    }

    fn up(work: &Path, runtime: Runtime, name: &str, enter: Vec<String>) -> Result<Self> {
        Self::up_with(work, runtime, name, &[], enter)
    }

    fn up_with(
        work: &Path,
        runtime: Runtime,
        name: &str,
        options: &[&str],
        enter: Vec<String>,
    ) -> Result<Self> {
        let (work, name) = (work.to_path_buf(), name.to_owned());
        let (address, address4) = (String::new(), String::new());
        let mut side =
            Self { name, address, address4, gid_index: 0, work, runtime, wire: None, enter };
        let up = [&["host", "up", &side.name], options].concat();
        side.rdmux(&up).with_context(|| format!("host {}", side.name))?;
        let first = side.gids()?.into_iter().next().context("the host has no address")?;
        (side.address, side.gid_index) = first;
        let v4 = side.gids()?.into_iter().find(|(a, _)| a.parse::<Ipv4Addr>().is_ok());
        side.address4 = v4.context("the host has no IPv4 address")?.0;
        Ok(side)
    }

    /// Returns the same host with one end of a wire.
    pub(super) fn with_wire(self, wire: Option<(u32, &'static str)>) -> Self {
        Self { wire, ..self }
    }

    /// Returns how many bytes it has sent and received on the wire, by the kernel's counters.
    pub(super) fn crossed(&self) -> Option<u64> {
        let (process, device) = self.wire?;
        let table = fs::read_to_string(format!("/proc/{process}/net/dev")).ok()?;
        let line =
            table.lines().find_map(|l| l.trim_start().strip_prefix(device)?.strip_prefix(':'));
        // Bytes are the first of eight columns received and of eight sent.
        let columns: Vec<u64> = line?.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        Some(columns.first()? + columns.get(8)?)
    }

    /// Returns the same host by another of its addresses.
    ///
    /// # Errors
    /// When it does not have that one.
    pub(super) fn at(&self, address: &str) -> Result<Self> {
        let gids = self.gids()?;
        let found = gids.into_iter().find(|(a, _)| a == address);
        let (address, gid_index) =
            found.with_context(|| format!("the host has no GID for {address}"))?;
        Ok(Self { address, gid_index, ..self.clone() })
    }

    /// Returns addresses and their indexes in the GID table.
    fn gids(&self) -> Result<Vec<(String, u64)>> {
        let devices: Value =
            serde_json::from_str(&self.rdmux(&["devices", "--device", "roce", "--json"])?)?;
        let table =
            devices[0]["ports"][0]["gids"].as_array().context("the device has no GID table")?;
        let entry = |g: &Value| Some((g["address"].as_str()?.to_owned(), g["index"].as_u64()?));
        Ok(table.iter().filter_map(entry).collect())
    }

    /// Returns whether all ports of its device of a kind are active.
    ///
    /// # Errors
    /// When its devices cannot be queried.
    pub(super) fn is_active(&self, kind: &str) -> Result<bool> {
        let devices: Value =
            serde_json::from_str(&self.rdmux(&["devices", "--device", kind, "--json"])?)?;
        let ports = devices[0]["ports"].as_array().context("the device has no ports")?;
        Ok(ports.iter().all(|port| port["state"] == "active"))
    }

    /// Returns the GID of this host: the address for RoCE, that of the first port for InfiniBand.
    ///
    /// # Errors
    /// When its devices cannot be queried, or have none.
    pub(super) fn gid(&self, device: Device) -> Result<String> {
        if device != Device::Ib {
            let address: IpAddr = self.address.parse()?;
            let gid = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            return Ok(gid.to_string());
        }
        let devices: Value =
            serde_json::from_str(&self.rdmux(&["devices", "--device", "ib", "--json"])?)?;
        let gid = devices[0]["ports"][0]["gids"][0]["gid"].as_str();
        Ok(gid.context("the port has no GID")?.to_owned())
    }

    /// Returns the status that its service reports.
    ///
    /// # Errors
    /// When it does not run.
    pub(crate) fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.rdmux(&["host", "status", &self.name, "--json"])?)?)
    }

    /// Runs a command of rdmux here and returns its output.
    ///
    /// # Errors
    /// When it does not succeed.
    pub(super) fn rdmux(&self, args: &[&str]) -> Result<String> {
        let out = self.bare(&self.work.join("rdmux")).args(args).output().context("rdmux")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "rdmux {}: {}", args.join(" "), said.trim());
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Returns the command of a program on this host, started by `rdmux run` with these options. Those of `device`
    /// select the device. Words like `NAME=VALUE` before it set its environment.
    pub(super) fn command(&self, device: &[&str], options: &[&str], words: &[&str]) -> Command {
        let mut command = self.bare(&self.work.join("rdmux"));
        let set = words.iter().take_while(|w| is_assignment(w)).count();
        command.envs(words[..set].iter().filter_map(|w| w.split_once('=')));
        command.arg("run").args(device).args(options).arg("--").args(&words[set..]);
        command
    }

    fn bare(&self, program: &Path) -> Command {
        let mut command = match self.enter.split_first() {
            Some((enter, words)) => {
                let mut c = Command::new(enter);
                c.args(words).arg(program);
                c
            }
            None => Command::new(program),
        };
        match &self.runtime {
            Runtime::Chosen(dir) => command.env("RDMUX_RUNTIME_DIR", dir),
            Runtime::Usual(Some(xdg)) => {
                command.env_remove("RDMUX_RUNTIME_DIR").env("XDG_RUNTIME_DIR", xdg)
            }
            Runtime::Usual(None) => {
                command.env_remove("RDMUX_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR")
            }
        };
        command.env("RDMUX_HOST", &self.name);
        command.env_remove("RUST_LOG").current_dir(&self.work);
        command
    }
}

/// Returns the words before a command line that run it as a plain user, if root runs this.
pub(super) fn as_whom(whose: Whose) -> Vec<String> {
    if whose == Whose::Ours || !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let id = NOBODY.to_string();
    ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"].map(str::to_owned).into()
}

/// Copies the program and the shared objects to a place where every user may read them.
pub(super) fn lay_out(work: &Path, rdmux: &Path) -> Result<()> {
    public_folder(work)?;
    for file in FILES {
        let from = rdmux.with_file_name(file);
        fs::copy(&from, work.join(file)).with_context(|| from.display().to_string())?;
    }
    Ok(())
}

/// Returns whether a word sets a variable for the program after it.
pub(crate) fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Creates a folder in which every user may create files.
pub(super) fn public_folder(path: &Path) -> Result<()> {
    folder(path, 0o1777)
}

/// Creates a folder of one user.
pub(super) fn private_folder(path: &Path) -> Result<()> {
    folder(path, 0o700)
}

fn folder(path: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .with_context(|| path.display().to_string())
}

/// Returns whether a program of this name is installed.
pub(super) fn is_installed(program: &str) -> bool {
    find_program(program).is_some()
}

/// Returns the path of a program: in PATH, or in the administrators' directories.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    if Path::new(program).is_absolute() {
        return Path::new(program).is_file().then(|| program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}
