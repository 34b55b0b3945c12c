//! The network namespace of this process, which represents the machine to RDMA (network_namespaces(7)).
//!
//! Processes in different namespaces have different addresses and ports, so they cannot share a
//! host. A user's data about hosts is kept for each namespace.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// A network namespace: device and inode number of its file in `/proc/PID/ns` (namespaces(7)). The number
/// is reused after the namespace is destroyed, which cannot happen while a process or a socket is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkNamespace {
    dev: u64,
    ino: u64,
}

impl NetworkNamespace {
    /// Returns the namespace of the calling thread; `None` where `/proc` does not show it.
    pub fn current() -> Option<Self> {
        // A thread can be in a different namespace than its process (setns(2)).
        ["/proc/thread-self/ns/net", "/proc/self/ns/net"].iter().find_map(|path| {
            let meta = fs::metadata(path).ok()?;
            Some(Self { dev: meta.dev(), ino: meta.ino() })
        })
    }

    /// The prefix of the names of such directories.
    pub(crate) const DIRECTORY: &str = "netns-";

    /// Returns the name of its directory in a user's. All namespace files are in one file system,
    /// so the inode number suffices.
    pub(crate) fn directory(self) -> String {
        format!("{}{}", Self::DIRECTORY, self.ino)
    }
}

impl fmt::Display for NetworkNamespace {
    /// Formats it as lsns(8) and the links in `/proc/PID/ns` do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net:[{}]", self.ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_namespace_text_equals_proc_ns_net() {
        let link = fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert_eq!(NetworkNamespace::current().unwrap().to_string(), link.to_str().unwrap());
    }
}
