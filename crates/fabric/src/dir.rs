//! The directories of a user's fabrics.
//!
//! ```text
//! <runtime dir>/fabrics/<name>/        a service's directory (ServiceDir), with these additions:
//!                             options  how it was brought up
//!                             topology nodes and cables, in the format of ibnetdiscover(8), with the LIDs of ports
//!                             hosts    which host had which adapter, and which adapters were made for hosts
//!                             secret   the secret of machines that attach by TCP
//! ```

use std::ops::Deref;
use std::path::PathBuf;

use rdmux_runtime::{DirectoryError, ServiceDir, UserDir};

use crate::FabricName;

/// The directory of fabrics.
const FABRICS: &str = "fabrics";

/// The directory of one fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricDir {
    name: FabricName,
    dir: ServiceDir,
}

impl FabricDir {
    /// Returns the directory of a fabric, which is created if it does not exist.
    ///
    /// # Errors
    /// [`DirectoryError`] when it cannot be created or is not safe to use.
    pub fn open(user: &UserDir, name: &FabricName) -> Result<Self, DirectoryError> {
        Ok(Self { name: name.clone(), dir: user.service(FABRICS, name.as_str())? })
    }

    /// Returns the directory of a fabric, if it exists.
    ///
    /// # Errors
    /// [`DirectoryError`] when it is not safe to use.
    pub fn existing(user: &UserDir, name: &FabricName) -> Result<Option<Self>, DirectoryError> {
        let is_there = user.folder(FABRICS).join(name.as_str()).is_dir();
        is_there.then(|| Self::open(user, name)).transpose()
    }

    /// Returns the path to the socket of a fabric that was never up: directories, each with the name of the next one in
    /// it, or of the socket. The later directories may not exist.
    pub fn path_to_socket(user: &UserDir, name: &FabricName) -> [(PathBuf, String); 3] {
        let folder = user.folder(FABRICS);
        let dir = folder.join(name.as_str());
        [
            (user.path().to_owned(), FABRICS.to_owned()),
            (folder, name.to_string()),
            (dir, ServiceDir::SOCKET.to_owned()),
        ]
    }

    /// Lists all fabrics that ever were up here.
    ///
    /// # Errors
    /// [`DirectoryError`] when the directory cannot be read.
    pub fn names(user: &UserDir) -> Result<Vec<FabricName>, DirectoryError> {
        let names = user.names(FABRICS)?;
        Ok(names.iter().filter_map(|name| FabricName::new(name).ok()).collect())
    }

    /// Returns the fabric's name.
    pub fn name(&self) -> &FabricName {
        &self.name
    }

    /// Returns the path of the file with the setup that the fabric was brought up with.
    pub(crate) fn options(&self) -> PathBuf {
        self.path().join("options")
    }

    /// Returns the path of the file of nodes and cables.
    pub(crate) fn topology(&self) -> PathBuf {
        self.path().join("topology")
    }

    /// Returns the path of the file that records which host had which adapter.
    pub(crate) fn hosts(&self) -> PathBuf {
        self.path().join("hosts")
    }

    /// Returns the path of the secret that other machines need.
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
