//! Redirection of paths.

use std::ffi::{CStr, c_char, c_int};

/// The directories of a view, the same as in `rdmux_host::view`.
const DIRECTORIES: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_mad",
    b"/dev/infiniband",
];
/// The hosts file of a view.
const HOSTS: &[u8] = b"/etc/hosts";
/// The prefixes of the paths of the host's ACM service: sockets and lock, configuration, log.
const ACM: [&[u8]; 3] = [b"/run/ibacm", b"/etc/rdma", b"/var/log/ibacm.log"];
/// The prefix of an alias of `/run`.
const VAR: &[u8] = b"/var";
/// The longest path, with its NUL (`PATH_MAX`).
const MAX: usize = 4096;

/// Room for a redirected path, on the stack of the calling function.
pub(crate) struct Redirected([u8; MAX]);

impl Redirected {
    pub(crate) const fn new() -> Self {
        Self([0; MAX])
    }

    /// Returns the path to use in place of `path`: itself, or one that is stored in `self`.
    ///
    /// # Safety
    /// `path` is NULL or a string that ends with a NUL.
    pub(crate) unsafe fn path(&mut self, path: *const c_char) -> *const c_char {
        if path.is_null() {
            return path;
        }
        // SAFETY: the caller's promise.
        let wanted = unsafe { CStr::from_ptr(path) }.to_bytes();
        let acm = of_acm(wanted);
        let wanted = acm.unwrap_or(wanted);
        if acm.is_none() && !is_ours(wanted) && wanted != HOSTS {
            return path;
        }
        let Some(tree) = tree() else { return path };
        if !self.join(tree, wanted) {
            return path;
        }
        let ours = self.0.as_ptr().cast();
        // A program that has changed its user, and so cannot read the file, reads the machine's.
        // SAFETY: the path was written with a NUL.
        if wanted == HOSTS && unsafe { libc::access(ours, libc::R_OK) } != 0 {
            return path;
        }
        ours
    }

    /// Stores the path below the tree. Returns whether there was room.
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

/// Returns the tree that the environment names. An empty name counts as none: it would map a path to itself.
pub(crate) fn tree() -> Option<&'static [u8]> {
    // SAFETY: the name is a string; the result of getenv is valid until the environment is changed,
    // which must not happen while others read it.
    let tree = unsafe { libc::getenv(c"RDMUX_VIEW".as_ptr()) };
    // SAFETY: getenv returns strings.
    let tree = (!tree.is_null()).then(|| unsafe { CStr::from_ptr(tree) }.to_bytes());
    tree.filter(|tree| !tree.is_empty())
}

/// Returns the socket address to use in place of one of the host's ACM service; none for any other
/// address.
///
/// # Errors
/// ENAMETOOLONG if the path in the tree is longer than a socket's path can be. The machine's own socket would be that of
/// another host.
///
/// # Safety
/// `address` is NULL or has `len` readable bytes, as for bind(2).
pub(crate) unsafe fn socket(
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<Option<libc::sockaddr_un>, c_int> {
    // SAFETY: the caller's promise.
    let path = unsafe { socket_path(address, len) };
    match (path.and_then(of_acm), tree()) {
        (Some(path), Some(tree)) => socket_below(tree, path).map(Some),
        _ => Ok(None),
    }
}

/// Returns the path of a Unix socket's address.
///
/// # Safety
/// As for [`socket`]; the bytes stay as they are while the path is used.
unsafe fn socket_path<'a>(
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Option<&'a [u8]> {
    const AT: usize = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    let len = usize::try_from(len).ok()?;
    if address.is_null() || len <= AT || len > size_of::<libc::sockaddr_un>() {
        return None;
    }
    // SAFETY: the caller's promise; bytes have no alignment.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
    let family = libc::sa_family_t::from_ne_bytes(*bytes.first_chunk()?);
    if i32::from(family) != libc::AF_UNIX {
        return None;
    }
    bytes[AT..].split(|&byte| byte == 0).next()
}

/// Returns the address of a socket below a tree.
///
/// # Errors
/// ENAMETOOLONG if its path is too long for an address.
fn socket_below(tree: &[u8], path: &[u8]) -> Result<libc::sockaddr_un, c_int> {
    #[expect(clippy::cast_possible_truncation, reason = "1")]
    const FAMILY: libc::sa_family_t = libc::AF_UNIX as libc::sa_family_t;
    // SAFETY: all zero is a valid address.
    let mut new: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    new.sun_family = FAMILY;
    if tree.len() + path.len() >= new.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (to, from) in new.sun_path.iter_mut().zip(tree.iter().chain(path)) {
        *to = from.cast_signed();
    }
    Ok(new)
}

/// Returns the path in the tree of a path of the host's ACM service.
fn of_acm(path: &[u8]) -> Option<&[u8]> {
    let is_acm = |path: &&[u8]| {
        let [run, etc, log] = ACM;
        path.starts_with(run) || is_in(path, etc) || *path == log
    };
    let short = path.strip_prefix(VAR).filter(|path| path.starts_with(ACM[0]));
    short.into_iter().chain([path]).find(is_acm)
}

/// Returns whether a path is a directory, or is inside it.
fn is_in(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Returns whether a path is one of the view's directories, or is inside one.
fn is_ours(path: &[u8]) -> bool {
    DIRECTORIES.iter().any(|directory| is_in(path, directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_infiniband_directories_are_redirected() {
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
    fn files_of_an_acm_service_lead_elsewhere_and_their_neighbours_do_not() {
        for ours in [
            "/run/ibacm.sock",
            "/run/ibacm-unix.sock",
            "/etc/rdma",
            "/etc/rdma/ibacm_opts.cfg",
            "/var/log/ibacm.log",
        ] {
            assert_eq!(of_acm(ours.as_bytes()), Some(ours.as_bytes()));
        }
        assert_eq!(of_acm(b"/var/run/ibacm.pid"), Some(&b"/run/ibacm.pid"[..]));
        for other in
            ["/run", "/run/rdmux", "/etc/rdma2", "/var/log/ibacm.log.1", "/var/etc/rdma", ""]
        {
            assert_eq!(of_acm(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn addresses_of_other_sockets_stay_as_they_are() {
        let of = |family: libc::sa_family_t, path: &[u8]| {
            let mut bytes = family.to_ne_bytes().to_vec();
            bytes.extend(path);
            let len = libc::socklen_t::try_from(bytes.len()).unwrap();
            // SAFETY: the slice has this many bytes.
            let path = unsafe { socket_path(bytes.as_ptr().cast(), len) };
            path.and_then(of_acm).is_some()
        };
        let unix = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap();
        assert!(!of(unix, b"/run/dbus.sock\0") && !of(unix, b"\0/run/ibacm.sock"));
        assert!(!of(unix, b"") && !of(2, b"/run/ibacm.sock"));
        // SAFETY: NULL is allowed.
        assert!(unsafe { socket_path(std::ptr::null(), 110) }.is_none());
        assert!(of(unix, b"/run/ibacm.sock\0") && of(unix, b"/var/run/ibacm.sock"));
    }

    #[test]
    fn socket_in_a_tree_that_is_too_long_is_enametoolong_and_not_the_machines() {
        let path = b"/run/ibacm-unix.sock";
        let room = 107 - path.len();
        let tree = [b'x'; 100];
        let address = socket_below(&tree[..room], path).unwrap();
        assert!(address.sun_path.ends_with(&[b'k'.cast_signed(), 0]));
        for len in [room + 1, 100] {
            assert_eq!(socket_below(&tree[..len], path).map(drop), Err(libc::ENAMETOOLONG));
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
