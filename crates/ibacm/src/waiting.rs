//! Blocking calls, with the names of 2009. All threads of the process use one service.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use libc::sockaddr;
use rdmux_acm_client::{Client, Endpoint};
use rdmux_wire::acm::client::{COUNTERS, Paths, Query, Subject};
use rdmux_wire::acm::{Address, AddressType};

use crate::arguments::{
    CPath, QUERY_SA, allocated, cached_only, give, give_array, ip, name, record,
};
use crate::boundary::{Errno, Result, or};
use crate::service::targets;

/// The service of the process. A child of fork(2) can unlock this lock, even if a thread of the parent waits for it.
static SERVICE: Mutex<Option<Arc<Client>>> = Mutex::new(None);
/// The timeout of a call, in milliseconds.
static TIMEOUT: AtomicU32 = AtomicU32::new(10_000);

fn timeout() -> Duration {
    Duration::from_millis(TIMEOUT.load(Ordering::Relaxed).into())
}

/// Returns the connected service.
fn service() -> Result<Arc<Client>> {
    lock().clone().ok_or(Errno(libc::ENOTCONN))
}

fn lock() -> Locked {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

type Locked = MutexGuard<'static, Option<Arc<Client>>>;

thread_local! {
    /// The lock, held while this thread forks.
    static FORKING: Cell<Option<Locked>> = const { Cell::new(None) };
}

/// Takes the lock around fork(2), so that no other thread holds it: the child could never take it then.
fn keep_from_fork() {
    extern "C" fn before() {
        // A thread that is about to exit has no thread-local storage, and can do without.
        let _ = FORKING.try_with(|forking| forking.set(Some(lock())));
    }
    extern "C" fn after() {
        let _ = FORKING.try_with(Cell::take);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the C library removes the handlers of a library that is unloaded.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    });
}

/// Connects later calls to a service. Returns 0, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ib_acm_connect(dest_svc: *const c_char) -> c_int {
    or(-1, || {
        keep_from_fork();
        // SAFETY: the caller's string.
        let client = Client::new(targets(unsafe { text(dest_svc) })?);
        client.connect(timeout())?;
        let _before = lock().replace(Arc::new(client));
        Ok(0)
    })
}

/// Returns the bytes of a string; none for a null pointer.
///
/// # Safety
/// `text` is null or a C string, which does not change as long as the bytes are used.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: as promised.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Disconnects later calls from the service.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ib_acm_disconnect() {
    or((), || {
        // Dropped after the lock is released.
        let _client = lock().take();
        Ok(())
    });
}

/// Sets the timeout of calls.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdmux_acm_set_timeout(milliseconds: c_int) -> c_int {
    or(-1, || {
        let new = u32::try_from(milliseconds).map_err(|_| Errno::EINVAL)?;
        let before = TIMEOUT.swap(new, Ordering::Relaxed);
        Ok(c_int::try_from(before).unwrap_or(c_int::MAX))
    })
}

/// Resolves the path between two names. Returns 0, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ib_acm_resolve_name(
    src: *const c_char,
    dest: *const c_char,
    paths: *mut *mut CPath,
    count: *mut c_int,
    flags: u32,
    print: c_int,
) -> c_int {
    or(-1, || {
        // SAFETY: the caller's pointers.
        unsafe { resolve((name(src)?, name(dest)?), (paths, count), flags, print) }
    })
}

/// Resolves the path between two IP addresses. Returns 0, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ib_acm_resolve_ip(
    src: *const sockaddr,
    dest: *const sockaddr,
    paths: *mut *mut CPath,
    count: *mut c_int,
    flags: u32,
    print: c_int,
) -> c_int {
    or(-1, || {
        // SAFETY: the caller's pointers.
        unsafe { resolve((ip(src)?, ip(dest)?), (paths, count), flags, print) }
    })
}

/// Resolves paths to `dest`, and stores them in memory of the C library.
///
/// # Safety
/// The pointers may be written to.
unsafe fn resolve(
    (source, dest): (Option<Address>, Option<Address>),
    (paths, count): (*mut *mut CPath, *mut c_int),
    flags: u32,
    print: c_int,
) -> Result<c_int> {
    let dest = dest.filter(|_| !paths.is_null() && !count.is_null()).ok_or(Errno::EINVAL)?;
    let service = service()?;
    if print != 0 {
        show(&dest, source.as_ref());
    }
    let found = if cached_only(flags) {
        service.resolve_cached(source, dest, timeout())?
    } else {
        service.resolve(source, dest, timeout())?
    };
    // SAFETY: as promised.
    unsafe { give(&found, paths, count) }?;
    Ok(0)
}

/// Prints addresses. A failure to print is ignored.
fn show(dest: &Address, source: Option<&Address>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "Destination: {dest}");
    if let Some(source) = source {
        let _ = writeln!(out, "Source: {source}");
    }
}

/// Replaces a record by the first path that matches it. Returns 0, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ib_acm_resolve_path(path: *mut u8, flags: u32) -> c_int {
    or(-1, || {
        // SAFETY: the caller's pointer.
        let query = unsafe { path_query(path, flags) }?;
        let rdmux_acm_client::Reply::Paths(Paths { paths, .. }) =
            service()?.ask(query, timeout())?
        else {
            return Err(Errno(libc::EPROTO));
        };
        let first = paths.first().ok_or(Errno(libc::ENODATA))?.path.to_bytes();
        // SAFETY: the caller's pointer, which was checked for null above.
        unsafe { std::ptr::write_unaligned(path.cast::<[u8; 64]>(), first) };
        Ok(0)
    })
}

/// Converts a path record to a query.
///
/// # Safety
/// `path` is null or points to 64 bytes.
pub(crate) unsafe fn path_query(path: *const u8, flags: u32) -> Result<Query> {
    // SAFETY: as promised.
    let path = unsafe { record(path) }?;
    Ok(if flags & QUERY_SA != 0 {
        Query::QuerySa { path }
    } else {
        Query::ResolvePath { path, cached_only: cached_only(flags) }
    })
}

/// Stores the counters of the service, or of the endpoint with an index, in `counters`. Returns 0, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ib_acm_query_perf(
    index: c_int,
    counters: *mut *mut u64,
    count: *mut c_int,
) -> c_int {
    or(-1, || {
        let subject = match u8::try_from(index).map_err(|_| Errno::EINVAL)? {
            0 => Subject::Service,
            index => Subject::Index(index),
        };
        // SAFETY: the caller's pointers.
        unsafe { query(subject, counters, count) }
    })
}

/// Stores the counters of the endpoint with an address in `counters`. Returns 0, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ib_acm_query_perf_ep_addr(
    src: *const u8,
    kind: u8,
    counters: *mut *mut u64,
    count: *mut c_int,
) -> c_int {
    or(-1, || {
        if src.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's pointer, to that many bytes.
        let field = unsafe { std::ptr::read_unaligned(src.cast::<[u8; 64]>()) };
        let address = Address::from_field(AddressType(kind.into()), &field);
        let subject = Subject::Address(address.map_err(|_| Errno::EINVAL)?);
        // SAFETY: the caller's pointers.
        unsafe { query(subject, counters, count) }
    })
}

/// Queries counters, and stores them in memory of the C library.
///
/// # Safety
/// Both pointers are null or may be written to.
unsafe fn query(subject: Subject, counters: *mut *mut u64, count: *mut c_int) -> Result<c_int> {
    if counters.is_null() || count.is_null() {
        return Err(Errno::EINVAL);
    }
    let all = service()?.counters(subject, timeout())?;
    // SAFETY: as promised.
    unsafe { give_array(&all, counters, count) }?;
    Ok(0)
}

/// Returns the name of a counter.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ib_acm_cntr_name(index: c_int) -> *const c_char {
    const NAMES: [&CStr; COUNTERS.len()] = [
        c"Error Count",
        c"Resolve Count",
        c"No Data",
        c"Addr Query Count",
        c"Addr Cache Count",
        c"Route Query Count",
        c"Route Cache Count",
    ];
    let name = usize::try_from(index).ok().and_then(|index| NAMES.get(index));
    name.map_or(c"Unknown", |name| name).as_ptr()
}

/// `struct acm_ep_config_data`, without its addresses.
#[repr(C)]
#[derive(Clone, Copy)]
struct CEndpoint {
    dev_guid: u64,
    port_num: u8,
    phys_port_cnt: u8,
    reserved: [u8; 2],
    pkey: u16,
    addr_cnt: u16,
    prov_name: [u8; 64],
}

/// Stores the description of an endpoint of a port in memory of the C library. Returns 0, or -1.
///
/// # Safety
/// As in the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ib_acm_enum_ep(
    index: c_int,
    data: *mut *mut u8,
    port: u8,
) -> c_int {
    or(-1, || {
        let index = u8::try_from(index).ok().filter(|index| *index > 0 && !data.is_null());
        let endpoint = service()?.endpoint(index.ok_or(Errno::EINVAL)?, port, timeout())?;
        let given = allocated(&endpoint_bytes(&endpoint))?;
        // SAFETY: the caller's pointer.
        unsafe { *data = given };
        Ok(0)
    })
}

/// Returns the structure followed by the addresses.
fn endpoint_bytes(endpoint: &Endpoint) -> Vec<u8> {
    let info = &endpoint.info;
    let count = u16::try_from(endpoint.addresses.len()).unwrap_or(u16::MAX);
    let CEndpoint { dev_guid, port_num, phys_port_cnt, reserved, pkey, addr_cnt, prov_name } =
        CEndpoint {
            dev_guid: info.dev_guid.0,
            port_num: info.port_num,
            phys_port_cnt: info.phys_port_cnt,
            reserved: [0; 2],
            pkey: info.pkey.0,
            addr_cnt: count,
            prov_name: ended(info.prov_name.0),
        };
    let mut bytes = Vec::with_capacity(size_of::<CEndpoint>() + 64 * endpoint.addresses.len());
    bytes.extend(dev_guid.to_ne_bytes());
    bytes.extend([port_num, phys_port_cnt]);
    bytes.extend(reserved);
    bytes.extend(pkey.to_ne_bytes());
    bytes.extend(addr_cnt.to_ne_bytes());
    bytes.extend(prov_name);
    for address in endpoint.addresses.iter().take(count.into()) {
        bytes.extend(ended(address.0));
    }
    bytes
}

/// Returns the text with a terminating null byte, whatever the service sent.
fn ended(mut text: [u8; 64]) -> [u8; 64] {
    text[63] = 0;
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_of_the_protocol() {
        for (i, name) in (0..).zip(COUNTERS) {
            // SAFETY: the function returns static strings.
            let text = unsafe { CStr::from_ptr(ib_acm_cntr_name(i)) };
            assert_eq!(text.to_str(), Ok(name));
        }
        for none in [-1, 7, c_int::MAX] {
            // SAFETY: as above.
            assert_eq!(unsafe { CStr::from_ptr(ib_acm_cntr_name(none)) }, c"Unknown");
        }
    }
}
