//! Where a user's hosts live in the file system.
//!
//! A runtime directory belongs to one network namespace: the usual one has a part for each ([`UserDir`]).
//!
//! ```text
//! <runtime dir>/registry            names and addresses of virtual hosts; registry.lock is locked meanwhile
//! <runtime dir>/etc-hosts           what programs in a view find as /etc/hosts
//! <runtime dir>/views.lock          locked by the process that makes a user namespace for views
//! <runtime dir>/hosts/<name>/       a service's directory ([`ServiceDir`]), and in it
//!                            guid   the GUID of the host's node
//!                            fabric the fabric that the host was given by `rdmux host up --fabric`
//!                            mount  locked by the process that makes the namespace of the view
//!                            view/  what programs find under /sys/class and /dev, by the devices that they see
//!                            acm/   what the host's ACM service has below /run ([`Places`])
//!                            lib/   links to the C libraries, by the names that programs ask for
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdmux_acm_client::Places;
use rdmux_fabric::FabricName;
use rdmux_runtime::file::open_private;
use rdmux_runtime::{DirectoryError, ServiceDir, UserDir};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::config::config_home;
use super::{DeviceChoice, HostName};
use crate::error::HostError;

/// More than a file is long that holds a name.
const MAX_FILE: u64 = 256;
/// The folder of hosts.
const HOSTS: &str = "hosts";

/// A user's runtime directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir(UserDir);

impl RuntimeDir {
    /// The directory of this user and network namespace, as [`UserDir::of_environment`] has it.
    ///
    /// # Errors
    /// [`HostError::Directory`] when it cannot be made or is not safe to use.
    pub fn of_environment() -> Result<Self, HostError> {
        Ok(Self(UserDir::of_environment()?))
    }

    /// Whether this is where the user's hosts live unless told otherwise.
    pub(super) fn is_usual(&self) -> bool {
        self.0.is_usual()
    }

    /// A directory of the caller's choice, made if it does not exist.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, HostError> {
        Ok(Self(UserDir::at(path)?))
    }

    /// The path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The same directory, for services of all kinds.
    pub fn user_dir(&self) -> &UserDir {
        &self.0
    }

    /// The file of names and addresses.
    pub(crate) fn registry_path(&self) -> PathBuf {
        self.path().join("registry")
    }

    /// The file that programs in a view find as `/etc/hosts`.
    pub(crate) fn etc_hosts(&self) -> PathBuf {
        self.path().join("etc-hosts")
    }

    /// Where the directory of a host is, if there is one.
    pub(super) fn host_path(&self, name: &HostName) -> PathBuf {
        self.0.folder(HOSTS).join(name.as_str())
    }

    /// The directory of a host, made if it does not exist.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn host(&self, name: &HostName) -> Result<HostDir, HostError> {
        Ok(HostDir { name: name.clone(), dir: self.0.service(HOSTS, name.as_str())? })
    }

    /// Those of this user's other network namespaces, if this is the part for one.
    pub(super) fn other_namespaces(&self) -> Vec<Self> {
        self.0.other_namespaces().into_iter().map(Self).collect()
    }

    /// Waits for the lock that a process holds while it gives a host something that no other host may have.
    pub(super) fn lock_hosts(&self) -> Result<File, HostError> {
        Ok(self.0.lock_folder(HOSTS)?)
    }

    /// Tries for the lock that a process holds which makes a user namespace for views, for two seconds at most: who does
    /// without makes one more.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the lock cannot be used.
    pub fn lock_views(&self) -> Result<Option<File>, HostError> {
        const TURN: Duration = Duration::from_millis(10);
        const TURNS: u32 = 200;
        let path = self.path().join("views.lock");
        let fail = |e: io::Error| HostError::from(DirectoryError::new(&path, e));
        let lock = open_private(&path, false).map_err(fail)?;
        for _ in 0..TURNS {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(lock)),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(TURN),
                Err(e) => return Err(fail(e.into())),
            }
        }
        Ok(None)
    }

    /// The names of all hosts that ever had a service here.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the directory cannot be read.
    pub fn hosts(&self) -> Result<Vec<HostName>, HostError> {
        let names = self.0.names(HOSTS)?;
        Ok(names.iter().filter_map(|name| HostName::new(name).ok()).collect())
    }
}

/// The directory of one host: that of its service, and what else a host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDir {
    name: HostName,
    dir: ServiceDir,
}

impl HostDir {
    /// Whose it is.
    pub fn name(&self) -> &HostName {
        &self.name
    }
    /// Where the tree lies that stands for `/sys/class/infiniband` and the like, for programs that see these devices.
    pub fn view(&self, devices: DeviceChoice) -> PathBuf {
        self.path().join("view").join(devices.word())
    }
    /// Where the files of the host's ACM service are. The configuration of a user without a home is the machine's.
    pub fn acm(&self) -> Places {
        let home = config_home().unwrap_or_else(|| "/etc".into());
        Places::of_host(self.path(), &home, self.name.as_str())
    }
    /// The FIFO that the `issmN` of a port is a link to in each tree.
    pub(crate) fn issm(&self, port: u8) -> PathBuf {
        self.path().join(format!("issm{}", port.saturating_sub(1)))
    }
    /// The file that keeps the GUID of the host's node.
    pub(crate) fn guid(&self) -> PathBuf {
        self.path().join("guid")
    }

    /// The fabrics that the ports of the host's adapter were given to be on, in the order of the ports; none if they were
    /// not.
    pub fn fabrics(&self) -> Vec<FabricName> {
        let path = self.fabric_path();
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text)) {
            Ok(_) => {
                let names: Result<_, _> = text.lines().map(FabricName::new).collect();
                let names = names.inspect_err(|e| {
                    tracing::warn!("{}: {e}; it is left out", path.display());
                });
                names.unwrap_or_default()
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => {
                tracing::warn!("{}: {e}; it is left out", path.display());
                Vec::new()
            }
        }
    }

    /// Has the ports of the host's adapter be on these fabrics. A service that runs has others until it is started anew.
    ///
    /// # Errors
    /// [`HostError::Directory`] when it cannot be kept.
    pub fn set_fabrics(&self, fabrics: &[FabricName]) -> Result<(), HostError> {
        let path = self.fabric_path();
        let lines: String = fabrics.iter().map(|fabric| format!("{fabric}\n")).collect();
        let kept = rdmux_runtime::file::replace(&path, lines.as_bytes());
        kept.map_err(|e| DirectoryError::new(&path, e).into())
    }

    fn fabric_path(&self) -> PathBuf {
        self.path().join("fabric")
    }

    /// Waits for the lock that a process holds which makes the namespace of a view.
    ///
    /// # Errors
    /// [`HostError::Directory`] when the lock cannot be used.
    pub fn lock_view(&self) -> Result<Option<File>, HostError> {
        Ok(self.dir.lock("mount", FlockOperation::LockExclusive)?)
    }
}

impl Deref for HostDir {
    type Target = ServiceDir;

    fn deref(&self) -> &ServiceDir {
        &self.dir
    }
}
