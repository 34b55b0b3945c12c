//! Where a user's fabrics live in the file system.
//!
//! ```text
//! <runtime dir>/fabrics/<name>/        a service's directory (ServiceDir), and in it
//!                             options  how it was brought up
//!                             topology nodes and cables, as ibnetdiscover(8) writes them, with the LIDs of ports
//!                             hosts    which host had which adapter, and which were made for hosts
//!                             secret   what machines show that attach by TCP
//! ```

use std::ops::Deref;
use std::path::PathBuf;

use rdmux_runtime::{DirectoryError, ServiceDir, UserDir};

use crate::FabricName;

/// The folder of fabrics.
const FABRICS: &str = "fabrics";

/// The directory of one fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricDir {
    name: FabricName,
    dir: ServiceDir,
}

impl FabricDir {
    /// The directory of a fabric, made if it does not exist.
    ///
    /// # Errors
    /// [`DirectoryError`] when it cannot be made or is not safe to use.
    pub fn open(user: &UserDir, name: &FabricName) -> Result<Self, DirectoryError> {
        Ok(Self { name: name.clone(), dir: user.service(FABRICS, name.as_str())? })
    }

    /// The directory of a fabric if there is one, for those who would not make it.
    ///
    /// # Errors
    /// [`DirectoryError`] when it is not safe to use.
    pub fn existing(user: &UserDir, name: &FabricName) -> Result<Option<Self>, DirectoryError> {
        let is_there = user.folder(FABRICS).join(name.as_str()).is_dir();
        is_there.then(|| Self::open(user, name)).transpose()
    }

    /// Where the socket of a fabric will be that was never up: directories, of which the later may not exist, each with the
    /// name in it of the next one, or of the socket.
    pub fn path_to_socket(user: &UserDir, name: &FabricName) -> [(PathBuf, String); 3] {
        let folder = user.folder(FABRICS);
        let dir = folder.join(name.as_str());
        [
            (user.path().to_owned(), FABRICS.to_owned()),
            (folder, name.to_string()),
            (dir, ServiceDir::SOCKET.to_owned()),
        ]
    }

    /// The names of all fabrics that ever were up here.
    ///
    /// # Errors
    /// [`DirectoryError`] when the directory cannot be read.
    pub fn names(user: &UserDir) -> Result<Vec<FabricName>, DirectoryError> {
        let names = user.names(FABRICS)?;
        Ok(names.iter().filter_map(|name| FabricName::new(name).ok()).collect())
    }

    /// Whose it is.
    pub fn name(&self) -> &FabricName {
        &self.name
    }

    /// The file that keeps how the fabric was brought up.
    pub(crate) fn options(&self) -> PathBuf {
        self.path().join("options")
    }

    /// The file that keeps nodes and cables.
    pub(crate) fn topology(&self) -> PathBuf {
        self.path().join("topology")
    }

    /// The file that keeps which host had which adapter.
    pub(crate) fn hosts(&self) -> PathBuf {
        self.path().join("hosts")
    }

    /// The file of the secret that other machines must know.
    pub fn secret(&self) -> PathBuf {
        self.path().join("secret")
    }
}

impl Deref for FabricDir {
    type Target = ServiceDir;

    fn deref(&self) -> &ServiceDir {
        &self.dir
    }
}
