//! The functions that take a path, each with its path redirected, and those that take a host's
//! name, each with the virtual host's address in its place.
//!
//! The functions for files larger than 2 GiB (`open64`), those with a compiler's check (`__open_2`) and
//! those of C libraries before 2.33 (`__xstat`) have names of their own. Calls within the C library
//! (the `opendir` of its `scandir`) do not reach this library, so the outer function is replaced.
//!
//! A thread may be cancelled in the real function (pthread_cancel(3)), which then unwinds through
//! the one here. So the functions here are `C-unwind`, and have nothing to drop at the call.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::forward::{Next, absent};
use crate::issm;
use crate::names::Named;
use crate::path::{self, Redirected};

/// Defines functions of the C library: the parameters before the path, the path, and the parameters
/// after it. The real function is called with the path redirected. In tests they have no name that
/// the C library knows, so that the tests' own files are not redirected.
macro_rules! redirect {
    ($(fn $name:ident($($before:ident: $b:ty),*; path; $($after:ident: $a:ty),*) -> $result:ty;)*) => { $(
        replace! { Redirected::path; fn $name($($before: $b),*; $($after: $a),*) -> $result }
    )* };
}

/// Defines the functions whose first argument is the name of a host.
macro_rules! resolve {
    ($(fn $name:ident(name; $($after:ident: $a:ty),*) -> $result:ty;)*) => { $(
        replace! { Named::resolve; fn $name(; $($after: $a),*) -> $result }
    )* };
}

/// Defines one function, with a string replaced by the result of `$put`.
macro_rules! replace {
    ($room:ident::$put:ident; fn $name:ident($($before:ident: $b:ty),*; $($after:ident: $a:ty),*) -> $result:ty) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name($($before: $b,)* path: *const c_char, $($after: $a),*) -> $result {
            static NEXT: Next = Next::new(name(concat!(stringify!($name), "\0")));
            let next = NEXT.address();
            if next.is_null() {
                return absent();
            }
            let mut room = $room::new();
            // SAFETY: a string, as the function's manual page requires.
            let path = unsafe { room.$put(path) };
            // SAFETY: the function of this name has this type. Those with an optional mode read it
            // from a register that need not be set, as when C calls them.
            let next = unsafe {
                std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C-unwind" fn($($b,)* *const c_char, $($a),*) -> $result,
                >(next)
            };
            // SAFETY: the caller's promises hold for the same arguments, and the path is a string.
            unsafe { next($($before,)* path, $($after),*) }
        }
    };
}

/// Returns a name as a C string.
const fn name(with_nul: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name with a NUL in its middle"),
    }
}

/// An argument that is passed on unchanged: a buffer, a structure, a function.
type Opaque = *mut c_void;

/// Defines functions that open a file: only one program at a time may open `issmN`.
macro_rules! redirect_open {
    ($(fn $name:ident($($before:ident: $b:ty),*; path, flags; $($after:ident: $a:ty),*);)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(
            $($before: $b,)* path: *const c_char, flags: c_int, $($after: $a),*
        ) -> c_int {
            static NEXT: Next = Next::new(name(concat!(stringify!($name), "\0")));
            let next = NEXT.address();
            if next.is_null() {
                return absent();
            }
            let mut room = Redirected::new();
            // SAFETY: a string, as the function's manual page requires, here and below.
            let (is_issm, path) = unsafe { (issm::is_issm(path), room.path(path)) };
            // SAFETY: as for the functions of `replace`.
            let next = unsafe {
                std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C-unwind" fn($($b,)* *const c_char, c_int, $($a),*) -> c_int,
                >(next)
            };
            // SAFETY: the caller's promises hold for the same arguments, and the path is a string.
            let open = |flags: c_int| unsafe { next($($before,)* path, flags, $($after),*) };
            // SAFETY: the path is a string.
            if is_issm { unsafe { issm::open(path, flags, open) } } else { open(flags) }
        }
    )* };
}

// open(2)
redirect_open! {
    fn open(; path, flags; mode: c_uint);
    fn open64(; path, flags; mode: c_uint);
    fn __open_2(; path, flags;);
    fn __open64_2(; path, flags;);
    fn openat(dir: c_int; path, flags; mode: c_uint);
    fn openat64(dir: c_int; path, flags; mode: c_uint);
    fn __openat_2(dir: c_int; path, flags;);
    fn __openat64_2(dir: c_int; path, flags;);
}

// fopen(3)
redirect! {
    fn fopen(; path; mode: Opaque) -> Opaque;
    fn fopen64(; path; mode: Opaque) -> Opaque;
}

// opendir(3), scandir(3), chdir(2)
redirect! {
    fn opendir(; path;) -> Opaque;
    fn scandir(; path; list: Opaque, filter: Opaque, compare: Opaque) -> c_int;
    fn scandir64(; path; list: Opaque, filter: Opaque, compare: Opaque) -> c_int;
    fn chdir(; path;) -> c_int;
}

// stat(2), statx(2), access(2)
redirect! {
    fn stat(; path; buf: Opaque) -> c_int;
    fn stat64(; path; buf: Opaque) -> c_int;
    fn lstat(; path; buf: Opaque) -> c_int;
    fn lstat64(; path; buf: Opaque) -> c_int;
    fn fstatat(dir: c_int; path; buf: Opaque, flags: c_int) -> c_int;
    fn fstatat64(dir: c_int; path; buf: Opaque, flags: c_int) -> c_int;
    fn __xstat(version: c_int; path; buf: Opaque) -> c_int;
    fn __xstat64(version: c_int; path; buf: Opaque) -> c_int;
    fn __lxstat(version: c_int; path; buf: Opaque) -> c_int;
    fn __lxstat64(version: c_int; path; buf: Opaque) -> c_int;
    fn __fxstatat(version: c_int, dir: c_int; path; buf: Opaque, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, dir: c_int; path; buf: Opaque, flags: c_int) -> c_int;
    fn statx(dir: c_int; path; flags: c_int, mask: c_uint, buf: Opaque) -> c_int;
    fn access(; path; mode: c_int) -> c_int;
    fn eaccess(; path; mode: c_int) -> c_int;
    fn euidaccess(; path; mode: c_int) -> c_int;
    fn faccessat(dir: c_int; path; mode: c_int, flags: c_int) -> c_int;
}

// readlink(2), realpath(3): they return the path in the tree
redirect! {
    fn readlink(; path; buf: Opaque, size: usize) -> isize;
    fn __readlink_chk(; path; buf: Opaque, size: usize, room: usize) -> isize;
    fn readlinkat(dir: c_int; path; buf: Opaque, size: usize) -> isize;
    fn __readlinkat_chk(dir: c_int; path; buf: Opaque, size: usize, room: usize) -> isize;
    fn realpath(; path; buf: Opaque) -> Opaque;
    fn __realpath_chk(; path; buf: Opaque, room: usize) -> Opaque;
    fn canonicalize_file_name(; path;) -> Opaque;
}

// getxattr(2), listxattr(2): `ls -l` calls them for every file
redirect! {
    fn getxattr(; path; name: Opaque, value: Opaque, size: usize) -> isize;
    fn lgetxattr(; path; name: Opaque, value: Opaque, size: usize) -> isize;
    fn listxattr(; path; list: Opaque, size: usize) -> isize;
    fn llistxattr(; path; list: Opaque, size: usize) -> isize;
}

// unlink(2), symlink(2), chmod(2), mkdir(2): ibacm uses them for its socket, and its tool for its configuration
redirect! {
    fn unlink(; path;) -> c_int;
    fn unlinkat(dir: c_int; path; flags: c_int) -> c_int;
    fn symlink(target: Opaque; path;) -> c_int;
    fn chmod(; path; mode: c_uint) -> c_int;
    fn mkdir(; path; mode: c_uint) -> c_int;
}

/// Defines functions that take a socket address: that of an ACM service is replaced with that of the host's.
macro_rules! redirect_socket {
    ($(fn $name:ident;)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, address: *const libc::sockaddr, len: libc::socklen_t,
        ) -> c_int {
            static NEXT: Next = Next::new(name(concat!(stringify!($name), "\0")));
            let next = NEXT.address();
            if next.is_null() {
                return absent();
            }
            // SAFETY: the function of this name has this type.
            let next = unsafe {
                std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C-unwind" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int,
                >(next)
            };
            // SAFETY: an address, as the function's manual page requires.
            let ours = unsafe { path::socket(address, len) };
            let (address, len) = match &ours {
                Ok(Some(ours)) => (std::ptr::from_ref(ours).cast(), SOCKET_LEN),
                Ok(None) => (address, len),
                Err(why) => {
                    // SAFETY: errno is this thread's own.
                    unsafe { *libc::__errno_location() = *why };
                    return -1;
                }
            };
            // SAFETY: the caller's promises hold for the same arguments, and the address is valid.
            unsafe { next(fd, address, len) }
        }
    )* };
}

/// The length of a Unix socket's address.
#[expect(clippy::cast_possible_truncation, reason = "110")]
const SOCKET_LEN: libc::socklen_t = size_of::<libc::sockaddr_un>() as libc::socklen_t;

// bind(2), connect(2)
redirect_socket! {
    fn bind;
    fn connect;
}

// getaddrinfo(3), gethostbyname(3): given an address, they return it
resolve! {
    fn gethostbyname(name;) -> Opaque;
    fn gethostbyname2(name; family: c_int) -> Opaque;
    fn gethostbyname_r(
        name; entry: Opaque, buf: Opaque, size: usize, result: Opaque, error: Opaque
    ) -> c_int;
    fn gethostbyname2_r(
        name; family: c_int, entry: Opaque, buf: Opaque, size: usize, result: Opaque, error: Opaque
    ) -> c_int;
}

/// Looks a host's name up. With `AI_NUMERICHOST` the caller wants no lookup of names, so none is replaced.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn getaddrinfo(
    name: *const c_char,
    service: *const c_char,
    hints: *const libc::addrinfo,
    result: Opaque,
) -> c_int {
    static NEXT: Next = Next::new(c"getaddrinfo");
    let next = NEXT.address();
    if next.is_null() {
        return absent();
    }
    let mut room = Named::new();
    // SAFETY: hints, as the function's manual page requires.
    let flags = unsafe { hints.as_ref() }.map_or(0, |hints| hints.ai_flags);
    let name = if flags & libc::AI_NUMERICHOST != 0 {
        name
    } else {
        // SAFETY: a string, as the function's manual page requires.
        unsafe { room.resolve(name) }
    };
    // SAFETY: the function of this name has this type.
    let next = unsafe {
        std::mem::transmute::<
            *mut c_void,
            unsafe extern "C-unwind" fn(
                *const c_char,
                *const c_char,
                *const libc::addrinfo,
                Opaque,
            ) -> c_int,
        >(next)
    };
    // SAFETY: the caller's promises hold for the same arguments, and the name is a string.
    unsafe { next(name, service, hints, result) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::os::unix::net::UnixListener;

    use super::*;

    unsafe extern "C" {
        fn pthread_create(
            thread: *mut libc::pthread_t,
            attr: *const libc::pthread_attr_t,
            start: unsafe extern "C-unwind" fn(Opaque) -> Opaque,
            argument: Opaque,
        ) -> c_int;
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    /// The result that pthread_join(3) returns for a cancelled thread.
    const PTHREAD_CANCELED: Opaque = std::ptr::without_provenance_mut(usize::MAX);

    /// Connects a socket to an address. `argument` points to both.
    unsafe extern "C-unwind" fn connect_to(argument: Opaque) -> Opaque {
        // SAFETY: the test keeps the argument until the thread is joined.
        let (fd, address) = unsafe { *argument.cast::<(c_int, libc::sockaddr_un)>() };
        // SAFETY: an address of a Unix socket.
        unsafe { connect(fd, std::ptr::from_ref(&address).cast(), SOCKET_LEN) };
        std::ptr::null_mut()
    }

    fn socket(flags: c_int) -> OwnedFd {
        use std::os::fd::FromRawFd as _;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | flags, 0) };
        assert!(fd >= 0);
        // SAFETY: the descriptor has just been opened.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    #[test]
    fn thread_can_be_cancelled_inside_hooked_connect() {
        let dir = rdmux_testing::temp_dir();
        let path = dir.path().join("full");
        let listener = UnixListener::bind(&path).unwrap();
        // SAFETY: a descriptor of this test.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        // SAFETY: all zero is a valid value.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX.try_into().unwrap();
        let bytes = path.to_str().unwrap().bytes();
        for (to, byte) in address.sun_path.iter_mut().zip(bytes) {
            *to = byte.cast_signed();
        }
        // Connects until the next connect(2) would block.
        let mut waiting = Vec::new();
        loop {
            let client = socket(libc::SOCK_NONBLOCK);
            // SAFETY: an address of a Unix socket.
            let connected = unsafe {
                connect(client.as_raw_fd(), std::ptr::from_ref(&address).cast(), SOCKET_LEN)
            };
            if connected != 0 {
                break;
            }
            waiting.push(client);
        }
        let client = socket(0);
        let mut argument = (client.as_raw_fd(), address);
        let (mut thread, mut result) = (0, std::ptr::null_mut());
        // SAFETY: the argument lives until the thread is joined, and the thread has no values to drop where it is cancelled.
        unsafe {
            let argument = std::ptr::from_mut(&mut argument).cast();
            assert_eq!(pthread_create(&raw mut thread, std::ptr::null(), connect_to, argument), 0);
            assert_eq!(pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        }
        assert_eq!(result, PTHREAD_CANCELED);
    }
}
