//! The network namespace of this process: to RDMA it is the machine (network_namespaces(7)).
//!
//! Processes of two namespaces have different addresses and ports, so they cannot share a host. What a user keeps for hosts
//! is kept for each namespace.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// A network namespace: device and inode number of its file in `/proc/PID/ns` (namespaces(7)). The number is used again
/// when the namespace is gone, which it is not as long as a process or a socket is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkNamespace {
    dev: u64,
    ino: u64,
}

impl NetworkNamespace {
    /// The one of the calling thread; `None` where `/proc` does not tell.
    pub fn current() -> Option<Self> {
        // A thread can be in another one than its process (setns(2)).
        ["/proc/thread-self/ns/net", "/proc/self/ns/net"].iter().find_map(|path| {
            let meta = fs::metadata(path).ok()?;
            Some(Self { dev: meta.dev(), ino: meta.ino() })
        })
    }

    /// What the names of such directories begin with.
    pub(crate) const DIRECTORY: &str = "netns-";

    /// The name of its directory among a user's. There is one system of namespace files, so the inode number is enough.
    pub(crate) fn directory(self) -> String {
        format!("{}{}", Self::DIRECTORY, self.ino)
    }
}

impl fmt::Display for NetworkNamespace {
    /// As lsns(8) and the links in `/proc/PID/ns` have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net:[{}]", self.ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_the_system_has_it() {
        let link = fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert_eq!(NetworkNamespace::current().unwrap().to_string(), link.to_str().unwrap());
    }
}
