//! The directories of a user's hosts.
//!
//! A runtime directory belongs to one network namespace: the usual one has a part for each ([`UserDir`]).
//!
//! ```text
//! <runtime dir>/registry            names and addresses of virtual hosts; registry.lock is its lock
//! <runtime dir>/etc-hosts           the file that programs in a view find as /etc/hosts
//! <runtime dir>/views.lock          lock of the process that makes a user namespace for views
//! <runtime dir>/hosts/<name>/       a service's directory ([`ServiceDir`]), with these additions:
//!                            guid   the GUID of the host's node
//!                            fabric the fabric that the host was given by `rdmux host up --fabric`
//!                            mount  lock of the process that makes the namespace of the view
//!                            view/  what programs find under /sys/class and /dev, by the devices that they see
//!                            acm/   the /run files of the host's ACM service ([`Places`])
//!                            lib/   links to the C libraries, by the names that programs load
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdmux_acm_client::Places;
use rdmux_fabric::FabricName;
use rdmux_runtime::file::open_private;
use rdmux_runtime::{DirectoryError, Lock, ServiceDir, UserDir};
use rustix::fs::FlockOperation;

use super::config::config_home;
use super::{DeviceChoice, HostName};
use crate::error::HostError;

/// Longer than any file that holds a name.
const MAX_FILE: u64 = 256;
/// The directory of hosts.
const HOSTS: &str = "hosts";

/// A user's runtime directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir(UserDir);

impl RuntimeDir {
    /// Returns the directory of this user and network namespace, as [`UserDir::of_environment`] finds it.
    ///
    /// # Errors
    /// [`HostError::Directory`] when it cannot be created or is not safe to use.
    pub fn of_environment() -> Result<Self, HostError> {
        Ok(Self(UserDir::of_environment()?))
    }

    /// Returns whether this is the default location of the user's hosts.
    pub(super) fn is_usual(&self) -> bool {
        self.0.is_usual()
    }

    /// Returns a directory of the caller's choice, which is created if it does not exist.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, HostError> {
        Ok(Self(UserDir::at(path)?))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the same directory, for services of all kinds.
    pub fn user_dir(&self) -> &UserDir {
        &self.0
    }

    /// Returns the path of the registry's file.
    pub(crate) fn registry_path(&self) -> PathBuf {
        self.path().join("registry")
    }

    /// Returns the path of the file that programs in a view find as `/etc/hosts`.
    pub(crate) fn etc_hosts(&self) -> PathBuf {
        self.path().join("etc-hosts")
    }

    /// Returns the path of a host's directory, which need not exist.
    pub(super) fn host_path(&self, name: &HostName) -> PathBuf {
        self.0.folder(HOSTS).join(name.as_str())
    }

    /// Returns the directory of a host, which is created if it does not exist.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn host(&self, name: &HostName) -> Result<HostDir, HostError> {
        Ok(HostDir { name: name.clone(), dir: self.0.service(HOSTS, name.as_str())? })
    }

    /// Returns the directories of this user's other network namespaces, if this is a namespace's part.
    pub(super) fn other_namespaces(&self) -> Vec<Self> {
        self.0.other_namespaces().into_iter().map(Self).collect()
    }

    /// Waits for the lock that a process holds while it assigns a host something that must be unique.
    pub(super) fn lock_hosts(&self) -> Result<Lock, HostError> {
        Ok(self.0.lock_folder(HOSTS)?)
    }

    /// Tries for two seconds at most to get the lock of the process that makes a user namespace for views. Without it, a
    /// caller makes one namespace more.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the lock cannot be used.
    pub fn lock_views(&self) -> Result<Option<Lock>, HostError> {
        const TURN: Duration = Duration::from_millis(10);
        const TURNS: u32 = 200;
        let path = self.path().join("views.lock");
        let fail = |e: io::Error| HostError::from(DirectoryError::new(&path, e));
        for _ in 0..TURNS {
            let file = open_private(&path, false).map_err(fail)?;
            let lock = Lock::take(file, FlockOperation::NonBlockingLockExclusive).map_err(fail)?;
            if lock.is_some() {
                return Ok(lock);
            }
            std::thread::sleep(TURN);
        }
        Ok(None)
    }

    /// Lists all hosts that ever had a service here.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the directory cannot be read.
    pub fn hosts(&self) -> Result<Vec<HostName>, HostError> {
        let names = self.0.names(HOSTS)?;
        Ok(names.iter().filter_map(|name| HostName::new(name).ok()).collect())
    }
}

/// The directory of one host: its service's, with more files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDir {
    name: HostName,
    dir: ServiceDir,
}

impl HostDir {
    /// Returns the host's name.
    pub fn name(&self) -> &HostName {
        &self.name
    }
    /// Returns the directory of the tree that replaces `/sys/class/infiniband` and the like for programs that see these
    /// devices.
    pub fn view(&self, devices: DeviceChoice) -> PathBuf {
        self.path().join("view").join(devices.word())
    }
    /// Returns the places of the host's ACM service's files. A user without a home uses the machine's configuration.
    pub fn acm(&self) -> Places {
        let home = config_home().unwrap_or_else(|| "/etc".into());
        Places::of_host(self.path(), &home, self.name.as_str())
    }
    /// Returns the path of the FIFO that a port's `issmN` links to in each tree.
    pub(crate) fn issm(&self, port: u8) -> PathBuf {
        self.path().join(format!("issm{}", port.saturating_sub(1)))
    }
    /// Returns the path of the file that holds the GUID of the host's node.
    pub(crate) fn guid(&self) -> PathBuf {
        self.path().join("guid")
    }

    /// Returns the fabrics assigned to the ports of the host's adapter, in the order of the ports. Empty if none were
    /// assigned.
    pub fn fabrics(&self) -> Vec<FabricName> {
        let path = self.fabric_path();
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text)) {
            Ok(_) => {
                let names: Result<_, _> = text.lines().map(FabricName::new).collect();
                let names = names.inspect_err(|e| {
                    tracing::warn!("{}: {e}; its fabrics are ignored", path.display());
                });
                names.unwrap_or_default()
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => {
                tracing::warn!("{}: {e}; its fabrics are ignored", path.display());
                Vec::new()
            }
        }
    }

    /// Assigns these fabrics to the ports of the host's adapter. A running service keeps the old ones until it is
    /// restarted.
    ///
    /// # Errors
    /// [`HostError::Directory`] when they cannot be stored.
    pub fn set_fabrics(&self, fabrics: &[FabricName]) -> Result<(), HostError> {
        let path = self.fabric_path();
        let lines: String = fabrics.iter().map(|fabric| format!("{fabric}\n")).collect();
        let kept = rdmux_runtime::file::replace(&path, lines.as_bytes());
        kept.map_err(|e| DirectoryError::new(&path, e).into())
    }

    fn fabric_path(&self) -> PathBuf {
        self.path().join("fabric")
    }

    /// Waits for the lock of the process that makes the namespace of a view.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the lock cannot be used.
    pub fn lock_view(&self) -> Result<Option<Lock>, HostError> {
        Ok(self.dir.lock("mount", FlockOperation::LockExclusive)?)
    }
}

impl Deref for HostDir {
    type Target = ServiceDir;

    fn deref(&self) -> &ServiceDir {
        &self.dir
    }
}
