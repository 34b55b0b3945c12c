//! Nonblocking calls.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::sockaddr;
use rdmux_acm_client::{Error, Reply, RequestId, Requests};
use rdmux_wire::acm::client::Query;

use crate::arguments::{CPath, cached_only, ip, name};
use crate::boundary::{Errno, Result, or};
use crate::service::targets;
use crate::waiting::{path_query, text};

/// The number of paths in an answer: `RDMUX_ACM_MAX_PATHS`.
const MAX_PATHS: usize = 8;

/// `struct rdmux_acm`.
pub(crate) struct Acm {
    fd: c_int,
    state: Mutex<State>,
}

impl Acm {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outstanding requests, each with the caller's context.
struct State {
    requests: Requests,
    contexts: HashMap<RequestId, Context>,
}

/// The caller's pointer, which is never dereferenced.
struct Context(*mut c_void);

// SAFETY: it is only returned to the caller.
unsafe impl Send for Context {}

/// `struct rdmux_acm_answer`.
#[repr(C)]
pub(crate) struct CAnswer {
    id: u64,
    context: *mut c_void,
    error: c_int,
    count: c_int,
    paths: [CPath; MAX_PATHS],
}

/// Opens a handle for nonblocking calls to a service. Returns null on failure.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_acm_open(service: *const c_char) -> *mut Acm {
    or(ptr::null_mut(), || {
        // SAFETY: the caller's string.
        let requests = Requests::new(targets(unsafe { text(service) })?)?;
        let fd = requests.as_fd().as_raw_fd();
        let state = Mutex::new(State { requests, contexts: HashMap::new() });
        Ok(Box::into_raw(Box::new(Acm { fd, state })))
    })
}

/// Closes a handle. Its outstanding requests get no answers.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_acm_close(acm: *mut Acm) {
    or((), || {
        if !acm.is_null() {
            // SAFETY: made by `rdmux_acm_open`, and not used any more.
            drop(unsafe { Box::from_raw(acm) });
        }
        Ok(())
    });
}

/// Returns the descriptor of a handle, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_acm_fd(acm: *const Acm) -> c_int {
    // SAFETY: the caller's pointer.
    or(-1, || unsafe { acm.as_ref() }.map(|acm| acm.fd).ok_or(Errno::EINVAL))
}

/// Starts to resolve the path between two names. Returns the request's ID, or 0.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_acm_resolve_name(
    acm: *const Acm,
    src: *const c_char,
    dest: *const c_char,
    flags: u32,
    timeout: c_int,
    context: *mut c_void,
) -> u64 {
    or(0, || {
        // SAFETY: the caller's strings.
        let (source, dest) = unsafe { (name(src)?, name(dest)?) };
        let dest = dest.ok_or(Errno::EINVAL)?;
        let query = Query::Resolve { source, dest, cached_only: cached_only(flags) };
        // SAFETY: the caller's pointer.
        unsafe { start(acm, &query, timeout, context) }
    })
}

/// Starts to resolve the path between two IP addresses. Returns the request's ID, or 0.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_acm_resolve_ip(
    acm: *const Acm,
    src: *const sockaddr,
    dest: *const sockaddr,
    flags: u32,
    timeout: c_int,
    context: *mut c_void,
) -> u64 {
    or(0, || {
        // SAFETY: the caller's addresses.
        let (source, dest) = unsafe { (ip(src)?, ip(dest)?) };
        let dest = dest.ok_or(Errno::EINVAL)?;
        let query = Query::Resolve { source, dest, cached_only: cached_only(flags) };
        // SAFETY: the caller's pointer.
        unsafe { start(acm, &query, timeout, context) }
    })
}

/// Starts to resolve the path that a record describes. Returns the request's ID, or 0.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_acm_resolve_path(
    acm: *const Acm,
    path: *const u8,
    flags: u32,
    timeout: c_int,
    context: *mut c_void,
) -> u64 {
    or(0, || {
        // SAFETY: the caller's record.
        let query = unsafe { path_query(path, flags) }?;
        // SAFETY: the caller's pointer.
        unsafe { start(acm, &query, timeout, context) }
    })
}

/// Starts a request with a timeout in milliseconds. Returns its ID.
///
/// # Safety
/// `acm` is null or was returned by `rdmux_acm_open`.
unsafe fn start(
    acm: *const Acm,
    query: &Query,
    timeout: c_int,
    context: *mut c_void,
) -> Result<u64> {
    // SAFETY: as promised.
    let acm = unsafe { acm.as_ref() }.ok_or(Errno::EINVAL)?;
    let timeout = u64::try_from(timeout).map_err(|_| Errno::EINVAL)?;
    let mut state = acm.lock();
    let id = state.requests.start(query, Duration::from_millis(timeout));
    state.contexts.insert(id, Context(context));
    Ok(id.0)
}

/// Stores the next answer. Returns 1, or 0 if there is none now, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_acm_next(acm: *const Acm, answer: *mut CAnswer) -> c_int {
    or(-1, || {
        // SAFETY: the caller's pointer.
        let acm = unsafe { acm.as_ref() }.filter(|_| !answer.is_null()).ok_or(Errno::EINVAL)?;
        let mut state = acm.lock();
        let Some((id, reply)) = state.requests.next() else { return Ok(0) };
        let context = state.contexts.remove(&id).map_or(ptr::null_mut(), |context| context.0);
        // SAFETY: the caller's memory.
        unsafe { ptr::write(answer, CAnswer::of(id, context, &reply)) };
        Ok(1)
    })
}

impl CAnswer {
    fn of(id: RequestId, context: *mut c_void, reply: &std::result::Result<Reply, Error>) -> Self {
        let mut paths = [CPath::EMPTY; MAX_PATHS];
        let (error, count) = match reply {
            Ok(Reply::Paths(found)) => {
                let pairs = paths.iter_mut().zip(&found.paths);
                (0, pairs.map(|(path, found)| *path = found.into()).count())
            }
            Ok(_) => (libc::EPROTO, 0),
            Err(error) => (error.errno(), 0),
        };
        Self { id: id.0, context, error, count: c_int::try_from(count).unwrap_or(0), paths }
    }
}

/// Cancels an outstanding request. Returns 0, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_acm_cancel(acm: *const Acm, id: u64) -> c_int {
    or(-1, || {
        // SAFETY: the caller's pointer.
        let acm = unsafe { acm.as_ref() }.ok_or(Errno::EINVAL)?;
        let mut state = acm.lock();
        let id = RequestId(id);
        state.contexts.remove(&id);
        if state.requests.cancel(id) { Ok(0) } else { Err(Errno(libc::ENOENT)) }
    })
}
