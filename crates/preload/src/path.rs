//! Which paths lead elsewhere.

use std::ffi::{CStr, c_char};

/// The directories of a view; `rdmux_host::view` has the same.
const DIRECTORIES: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_mad",
    b"/dev/infiniband",
];
/// The file of a view.
const HOSTS: &[u8] = b"/etc/hosts";
/// The longest path, with its NUL (`PATH_MAX`).
const MAX: usize = 4096;

/// Room for a path that was redirected, on the stack of the function that asked.
pub(crate) struct Redirected([u8; MAX]);

impl Redirected {
    pub(crate) const fn new() -> Self {
        Self([0; MAX])
    }

    /// The path to use in place of `path`: itself, or one that is written here.
    ///
    /// # Safety
    /// `path` is NULL or a string that ends with a NUL.
    pub(crate) unsafe fn path(&mut self, path: *const c_char) -> *const c_char {
        if path.is_null() {
            return path;
        }
        // SAFETY: the caller's promise.
        let wanted = unsafe { CStr::from_ptr(path) }.to_bytes();
        if !is_ours(wanted) && wanted != HOSTS {
            return path;
        }
        let Some(tree) = tree() else { return path };
        if !self.join(tree, wanted) {
            return path;
        }
        let ours = self.0.as_ptr().cast();
        // A program that has become another user reads the machine's.
        // SAFETY: the path was written with a NUL.
        if wanted == HOSTS && unsafe { libc::access(ours, libc::R_OK) } != 0 {
            return path;
        }
        ours
    }

    /// Whether there was room.
    fn join(&mut self, tree: &[u8], path: &[u8]) -> bool {
        let len = tree.len() + path.len();
        if len >= MAX {
            return false;
        }
        self.0[..tree.len()].copy_from_slice(tree);
        self.0[tree.len()..len].copy_from_slice(path);
        self.0[len] = 0;
        true
    }
}

/// The tree that the environment names.
pub(crate) fn tree() -> Option<&'static [u8]> {
    // SAFETY: the name is a string; what getenv returns stays until somebody changes the environment,
    // which nobody may do while others read it.
    let tree = unsafe { libc::getenv(c"RDMUX_VIEW".as_ptr()) };
    // SAFETY: getenv returns strings.
    (!tree.is_null()).then(|| unsafe { CStr::from_ptr(tree) }.to_bytes())
}

/// Whether a path is one of the directories, or lies in one.
fn is_ours(path: &[u8]) -> bool {
    DIRECTORIES.iter().any(|directory| {
        path.strip_prefix(*directory).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_directories_lead_elsewhere() {
        for ours in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband_verbs/uverbs0/ibdev",
            "/sys/class/infiniband_mad/abi_version",
            "/dev/infiniband/uverbs0",
        ] {
            assert!(is_ours(ours.as_bytes()), "{ours}");
        }
        for other in
            ["", "/", "/sys/class", "/sys/class/infiniband2", "/sys/class/net", "dev/infiniband"]
        {
            assert!(!is_ours(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_path_too_long_stays_as_it_is() {
        let mut room = Redirected::new();
        assert!(room.join(b"/tree", b"/dev/infiniband"));
        assert_eq!(CStr::from_bytes_until_nul(&room.0).unwrap(), c"/tree/dev/infiniband");
        assert!(!room.join(&[b'x'; MAX], b"/dev/infiniband"));
    }
}
