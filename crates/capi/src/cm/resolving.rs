//! Lookups on behalf of an id, whose outcome events report: rdma_resolve_addrinfo(3) and rdma_query_addrinfo(3), newer than
//! rdma-core 44.
//!
//! A thread per lookup resolves names. The host's service queries subnet administration.

use std::ffi::{c_char, c_int};
use std::thread;
use std::time::Duration;

use rdmux_cm::{EventKind, IdHandle};
use rdmux_verbs::signals;

use super::addrinfo::Asked;
use super::id::Id;
use super::process::Process;
use super::take::complete;
use crate::abi::cma::*;
use crate::boundary::{Errno, Result, guarded, status};

/// The timeout of subnet administration's answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Looks up as rdma_getaddrinfo(3) does, on behalf of an id, which gets ADDRINFO_RESOLVED, or ADDRINFO_ERROR with a negative error number
/// as its status. With RAI_SA the id is bound to a port of a subnet.
///
/// # Safety
/// `id` is NULL or an id of this library that outlives the call; the rest as for rdma_getaddrinfo(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, asked) = unsafe { (Id::get(id)?, Asked::read(node, service, hints.as_ref())) };
        let asked = asked.map_err(|failure| failure.errno())?;
        if std::mem::replace(&mut id.lock().resolving.under_way, true) {
            return Err(Errno(libc::EBUSY));
        }
        let begun = match asked.at_administration() {
            Some(service) => {
                let client = id.process.client()?;
                client.resolve_service(id.handle, &service, TIMEOUT).map_err(Errno::from)
            }
            None => begin(id, asked),
        };
        if begun.is_err() {
            id.lock().resolving.end();
        }
        begun?;
        complete(id)
    })
}

/// Starts a thread that looks up a name.
fn begin(id: &Id, asked: Asked) -> Result<()> {
    let (process, handle) = (id.process, id.handle);
    let started = signals::with_blocked(|| {
        let thread = thread::Builder::new().name("rdmux-resolve".to_owned());
        thread.spawn(move || {
            // The id gets an event of any failure here, unless it is gone.
            let _: Result<()> = guarded(|| tell(process, handle, &asked));
        })
    });
    started.map(drop).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))
}

fn tell(process: &Process, handle: IdHandle, asked: &Asked) -> Result<()> {
    let (found, status) = match guarded(|| Ok(asked.look_up(process))) {
        Ok(Ok(found)) => (Some(found), 0),
        Ok(Err(failure)) => (None, -failure.errno().0),
        Err(errno) => (None, -errno.0),
    };
    let kind = match status {
        0 => EventKind::AddrinfoResolved,
        _ => EventKind::AddrinfoError,
    };
    let lives = process.find(handle, |id| {
        // SAFETY: the table has the id's address, and the id lives while this runs.
        unsafe { id.cast::<Id>().as_ref() }.lock().resolving.found = found;
    });
    if lives.is_none() {
        return Ok(());
    }
    Ok(process.client()?.write_event(handle, kind, status, 0)?)
}

/// Returns the result of [`rdma_resolve_addrinfo`], once (rdma_query_addrinfo(3)).
///
/// # Safety
/// `id` is NULL or an id of this library that outlives the call; `info` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let id = unsafe { Id::get(id)? };
        if info.is_null() {
            return Err(Errno::EINVAL);
        }
        let found = id.lock().resolving.found.take().ok_or(Errno(libc::ENOENT))?;
        id.lock().resolving.end();
        // SAFETY: the caller guarantees it.
        unsafe { *info = found.into_ptr() };
        Ok(())
    })
}
