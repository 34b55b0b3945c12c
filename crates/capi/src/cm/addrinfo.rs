//! Names and services: rdma_getaddrinfo, and its form that tells by event.
//!
//! What is found is the C library's memory, for programs change it and rdma_freeaddrinfo frees what they have put in.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};
use rdmux_cm::EventKind;
use rdmux_host::{Registry, RuntimeDir};

use super::found::{self, Found};
use super::id::Id;
use super::process::Process;
use super::take::complete;
use crate::abi::cma::*;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, guarded, status, zeroed};

/// Why a lookup failed: an error number, or one of getaddrinfo(3), which the caller gets as the result.
enum Failure {
    Errno(Errno),
    Lookup(c_int),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Finds what [`rdma_create_ep`](super::endpoint::rdma_create_ep) takes: addresses, port space and queue pair type for a
/// node and a service (rdma_getaddrinfo(3)). Fails with -1 and errno, or with an EAI code of getaddrinfo(3).
///
/// # Safety
/// `node` and `service` are NULL or strings, `hints` is NULL or may be read, `res` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    let mut code = 0;
    let found = status(|| {
        // SAFETY: as promised.
        let res = unsafe { res.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as promised.
        match unsafe { lookup(node, service, hints.as_ref()) } {
            Ok(info) => {
                *res = info;
                Ok(())
            }
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Lookup(eai)) => {
                code = eai;
                Ok(())
            }
        }
    });
    if found == 0 { code } else { found }
}

/// # Safety
/// As [`rdma_getaddrinfo`].
unsafe fn lookup(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> std::result::Result<*mut rdma_addrinfo, Failure> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(Errno::EINVAL.into());
    }
    // As in the reference implementation it is an error to ask where no device is.
    Process::current()?;
    // SAFETY: zero is NULL, or nothing, in every field.
    let nothing: rdma_addrinfo = unsafe { zeroed() };
    let asked = hints.unwrap_or(&nothing);
    if asked.ai_flags & RAI_SA != 0 {
        // A subnet administration, which RoCE does not have.
        return Err(Errno::EOPNOTSUPP.into());
    }
    if asked.ai_flags & RAI_FAMILY != 0 && asked.ai_family == AF_IB {
        return Err(Failure::Lookup(libc::EAI_FAMILY));
    }
    let found = Found::new()?;
    // SAFETY: it is not the program's yet; the rest as promised.
    unsafe {
        if node.is_null() && service.is_null() {
            found.repeat(asked)?;
        } else {
            found.resolve(node, service, asked, hints.is_some())?;
        }
        let info = &mut *found.0;
        if info.ai_src_len == 0 && asked.ai_src_len > 0 {
            (info.ai_src_addr, info.ai_src_len) = copy(asked.ai_src_addr, asked.ai_src_len)?;
        }
    }
    Ok(found.into_ptr())
}

impl Found {
    /// Without a name the answer is what was asked.
    ///
    /// # Safety
    /// The hints' addresses are as long as they say.
    unsafe fn repeat(&self, asked: &rdma_addrinfo) -> Result<()> {
        // SAFETY: it lives; the rest as promised.
        unsafe {
            let info = &mut *self.0;
            info.ai_flags = asked.ai_flags;
            info.ai_family = asked.ai_family;
            info.ai_qp_type = asked.ai_qp_type;
            info.ai_port_space = asked.ai_port_space;
            if asked.ai_dst_len > 0 {
                (info.ai_dst_addr, info.ai_dst_len) = copy(asked.ai_dst_addr, asked.ai_dst_len)?;
            }
        }
        Ok(())
    }

    /// Asks the C library, which gets the address of a virtual host for its name, and takes its first answer.
    ///
    /// # Safety
    /// As [`rdma_getaddrinfo`].
    unsafe fn resolve(
        &self,
        node: *const c_char,
        service: *const c_char,
        asked: &rdma_addrinfo,
        hinted: bool,
    ) -> std::result::Result<(), Failure> {
        let mut hints = as_addrinfo(asked);
        if node.is_null() && asked.ai_flags & RAI_PASSIVE != 0 && hints.ai_family == 0 {
            // The first answer is 0.0.0.0 in any case. Sorting it before `::` takes the C library longer than a
            // client needs to connect, and clients that shook hands with this program do.
            hints.ai_family = libc::AF_INET;
        }
        // SAFETY: as promised.
        let virtual_host = unsafe { virtual_host(node, asked) };
        let node = virtual_host.as_ref().map_or(node, |address| address.as_ptr());
        let hints = if hinted { ptr::from_ref(&hints) } else { ptr::null() };
        let mut list = ptr::null_mut();
        // SAFETY: as promised.
        match unsafe { libc::getaddrinfo(node, service, hints, &raw mut list) } {
            0 => {}
            libc::EAI_SYSTEM => return Err(Errno::last().into()),
            eai => return Err(Failure::Lookup(eai)),
        }
        // SAFETY: there is at least one answer, and it is freed afterwards.
        unsafe {
            let taken = self.take(&*list, asked);
            libc::freeaddrinfo(list);
            Ok(taken?)
        }
    }

    /// # Safety
    /// The answer is one of getaddrinfo(3).
    unsafe fn take(&self, answer: &addrinfo, asked: &rdma_addrinfo) -> Result<()> {
        // SAFETY: it lives; the rest as promised.
        unsafe {
            let info = &mut *self.0;
            info.ai_family = answer.ai_family;
            info.ai_qp_type = match (asked.ai_qp_type, answer.ai_socktype) {
                (0, libc::SOCK_STREAM) => IBV_QPT_RC.cast_signed(),
                (0, libc::SOCK_DGRAM) => IBV_QPT_UD.cast_signed(),
                (asked, _) => asked,
            };
            info.ai_port_space = match (asked.ai_port_space, answer.ai_protocol) {
                (0, libc::IPPROTO_TCP) => RDMA_PS_TCP.cast_signed(),
                (0, libc::IPPROTO_UDP) => RDMA_PS_UDP.cast_signed(),
                (asked, _) => asked,
            };
            let addr = copy(answer.ai_addr, answer.ai_addrlen)?;
            let name = if answer.ai_canonname.is_null() {
                ptr::null_mut()
            } else {
                libc::strdup(answer.ai_canonname)
            };
            if answer.ai_flags & libc::AI_PASSIVE != 0 {
                info.ai_flags = RAI_PASSIVE;
                (info.ai_src_addr, info.ai_src_len) = addr;
                info.ai_src_canonname = name;
            } else {
                (info.ai_dst_addr, info.ai_dst_len) = addr;
                info.ai_dst_canonname = name;
            }
        }
        Ok(())
    }
}

/// The address of the virtual host that a program means by a name, as text. Programs find it also where they are not in a
/// view, whose `/etc/hosts` has it.
///
/// # Safety
/// `node` is NULL or a string.
unsafe fn virtual_host(node: *const c_char, asked: &rdma_addrinfo) -> Option<CString> {
    if node.is_null() || asked.ai_flags & RAI_NUMERICHOST != 0 {
        return None;
    }
    // SAFETY: as promised.
    let name = unsafe { CStr::from_ptr(node) }.to_str().ok()?;
    let address = Registry::look_up(&RuntimeDir::of_environment().ok()?, name)?;
    CString::new(address.to_string()).ok()
}

/// The hints as getaddrinfo(3) takes them.
fn as_addrinfo(asked: &rdma_addrinfo) -> addrinfo {
    // SAFETY: zero is NULL, or nothing, in every field.
    let mut hints: addrinfo = unsafe { zeroed() };
    if asked.ai_flags & RAI_PASSIVE != 0 {
        hints.ai_flags |= libc::AI_PASSIVE;
    }
    if asked.ai_flags & RAI_NUMERICHOST != 0 {
        hints.ai_flags |= libc::AI_NUMERICHOST;
    }
    if asked.ai_flags & RAI_FAMILY != 0 {
        hints.ai_family = asked.ai_family;
    }
    hints.ai_socktype = match asked.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    hints.ai_protocol = match (asked.ai_port_space.cast_unsigned(), hints.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    hints
}

/// A copy of an address, and its length.
///
/// # Safety
/// `addr` is that long.
unsafe fn copy(addr: *const sockaddr, len: socklen_t) -> Result<(*mut sockaddr, socklen_t)> {
    if addr.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as promised, and there is as much room.
    unsafe {
        let to: *mut c_void = libc::malloc(len as usize);
        if to.is_null() {
            return Err(Errno::ENOMEM);
        }
        ptr::copy_nonoverlapping(addr.cast::<u8>(), to.cast::<u8>(), len as usize);
        Ok((to.cast(), len))
    }
}

/// Frees what [`rdma_getaddrinfo`] found, and all that follows it (rdma_freeaddrinfo(3)).
///
/// # Safety
/// `res` is NULL or such a list, once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let _: Result<()> = guarded(|| {
        // SAFETY: as promised.
        unsafe { found::free(res) };
        Ok(())
    });
}

/// As [`rdma_getaddrinfo`], on behalf of an id, which gets ADDRINFO_RESOLVED (rdma_resolve_addrinfo(3), newer than 44).
///
/// # Safety
/// `id` is NULL or an id of this library that outlives the call; the rest as for [`rdma_getaddrinfo`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    status(|| {
        // SAFETY: as promised.
        let id = unsafe { Id::get(id)? };
        if std::mem::replace(&mut id.lock().resolving.under_way, true) {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: as promised.
        let found = unsafe { lookup(node, service, hints.as_ref()) };
        let told = match found {
            Ok(info) => {
                id.lock().resolving.found = Some(Found(info));
                let client = id.process.client()?;
                client
                    .write_event(id.handle, EventKind::AddrinfoResolved, 0, 0)
                    .map_err(Errno::from)
            }
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Lookup(_)) => Err(Errno(libc::ENOENT)),
        };
        if told.is_err() {
            id.lock().resolving.end();
        }
        told?;
        complete(id)
    })
}

/// What [`rdma_resolve_addrinfo`] found, once (rdma_query_addrinfo(3), newer than 44).
///
/// # Safety
/// `id` is NULL or an id of this library that outlives the call; `info` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    status(|| {
        // SAFETY: as promised.
        let id = unsafe { Id::get(id)? };
        if info.is_null() {
            return Err(Errno::EINVAL);
        }
        let found = id.lock().resolving.found.take().ok_or(Errno(libc::ENOENT))?;
        id.lock().resolving.end();
        // SAFETY: as promised.
        unsafe { *info = found.into_ptr() };
        Ok(())
    })
}
