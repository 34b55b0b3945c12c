//! The result of a lookup: a list in the C library's memory. Programs change it, and rdma_freeaddrinfo(3) also frees what they have
//! stored in it.

use std::ffi::c_void;
use std::ptr;

use libc::{sockaddr, socklen_t};
use rdmux_cm::{Addr, IbAddr, PathData, PortSpace};
use rdmux_host::resolver::Answer;

use super::socket_address;
use crate::abi::cma::{RAI_PASSIVE, RAI_SA, rdma_addrinfo};
use crate::boundary::{Errno, Result};
use crate::verbs::attr;

/// A list under construction; freed unless it is passed on.
pub(super) struct Found(*mut rdma_addrinfo);

// SAFETY: it is plain memory of the C library, which any thread may free.
unsafe impl Send for Found {}

impl Found {
    /// Creates a list of these answers, in their order.
    ///
    /// # Errors
    /// ENOENT if there is none, ENOMEM.
    pub(super) fn of(answers: &[Answer]) -> Result<Self> {
        let mut list = Self(ptr::null_mut());
        for answer in answers.iter().rev() {
            // SAFETY: zero is NULL, or no value, in every field.
            let info = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) };
            let info = info.cast::<rdma_addrinfo>();
            // SAFETY: NULL, or just allocated.
            let to = unsafe { info.as_mut() }.ok_or(Errno::ENOMEM)?;
            to.ai_next = list.0;
            list.0 = info;
            fill(to, answer)?;
        }
        if list.0.is_null() { Err(Errno(libc::ENOENT)) } else { Ok(list) }
    }

    /// Applies `f` to each entry.
    pub(super) fn each(
        &self,
        mut change: impl FnMut(&mut rdma_addrinfo) -> Result<()>,
    ) -> Result<()> {
        let mut next = self.0;
        // SAFETY: all are this list's, and no other thread sees them yet.
        while let Some(info) = unsafe { next.as_mut() } {
            change(info)?;
            next = info.ai_next;
        }
        Ok(())
    }

    /// Passes the list to the program.
    pub(super) fn into_ptr(self) -> *mut rdma_addrinfo {
        let info = self.0;
        std::mem::forget(self);
        info
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: the list is owned here, and all in it came from the C library.
        unsafe { free(self.0) };
    }
}

fn fill(info: &mut rdma_addrinfo, answer: &Answer) -> Result<()> {
    if answer.passive {
        info.ai_flags = RAI_PASSIVE;
    }
    info.ai_port_space = answer.port_space.map_or(0, |space| space.code().into());
    info.ai_qp_type = answer.qp_type.map_or(0, |kind| attr::qp_type_to_c(kind).cast_signed());
    for (addr, (to, len)) in [
        (answer.src, (&mut info.ai_src_addr, &mut info.ai_src_len)),
        (answer.dst, (&mut info.ai_dst_addr, &mut info.ai_dst_len)),
    ] {
        if let Some(addr) = addr {
            info.ai_family = socket_address::family_of(addr);
            (*to, *len) = copied_addr(addr)?;
        }
    }
    if !answer.paths.is_empty() {
        let bytes: Vec<u8> = answer.paths.iter().flat_map(path_data).collect();
        (info.ai_route, info.ai_route_len) = (copied_bytes(&bytes)?, bytes.len());
    }
    if !answer.connect.is_empty() {
        (info.ai_connect, info.ai_connect_len) =
            (copied_bytes(&answer.connect)?, answer.connect.len());
    }
    Ok(())
}

/// Returns the bytes of `struct ibv_path_data`.
fn path_data(data: &PathData) -> impl Iterator<Item = u8> {
    let reserved = [0; 4];
    data.flags.to_ne_bytes().into_iter().chain(reserved).chain(data.record.to_bytes())
}

/// Copies a socket address to the C library's memory.
fn copied_addr(addr: Addr) -> Result<(*mut sockaddr, socklen_t)> {
    let storage = socket_address::storage(addr);
    let len = socket_address::len_of(addr);
    // SAFETY: an address is plain bytes, as many as its family has.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const storage).cast::<u8>(), len) };
    copied(bytes)
}

/// Copies an address to the C library's memory, and returns its length too.
///
/// # Errors
/// ENOMEM.
pub(super) fn copied(bytes: &[u8]) -> Result<(*mut sockaddr, socklen_t)> {
    let len = socklen_t::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
    Ok((copied_bytes(bytes)?.cast(), len))
}

fn copied_bytes(bytes: &[u8]) -> Result<*mut c_void> {
    // SAFETY: no more is written than there is room for.
    unsafe {
        let to = libc::malloc(bytes.len());
        if to.is_null() {
            return Err(Errno::ENOMEM);
        }
        ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
        Ok(to)
    }
}

/// Frees a list with all that follows.
///
/// # Safety
/// The pointer is NULL or such a list, once.
pub(super) unsafe fn free(mut next: *mut rdma_addrinfo) {
    while !next.is_null() {
        // SAFETY: the caller guarantees that each is in the C library's memory, with all in it.
        unsafe {
            let info = next;
            next = (*info).ai_next;
            libc::free((*info).ai_connect);
            libc::free((*info).ai_route);
            libc::free((*info).ai_src_canonname.cast());
            libc::free((*info).ai_dst_canonname.cast());
            libc::free((*info).ai_src_addr.cast());
            libc::free((*info).ai_dst_addr.cast());
            libc::free(info.cast());
        }
    }
}

/// Returns a list of services that subnet administration reported.
///
/// # Errors
/// ENOMEM.
pub(super) fn services(services: &[IbAddr]) -> Result<Found> {
    let answer = |to: &IbAddr| Answer {
        port_space: Some(PortSpace::Ib),
        dst: Some((*to).into()),
        ..Answer::default()
    };
    let answers: Vec<Answer> = services.iter().map(answer).collect();
    let found = Found::of(&answers)?;
    found.each(|info| {
        info.ai_flags = RAI_SA;
        Ok(())
    })?;
    Ok(found)
}

/// The state of a lookup that reports by event.
#[derive(Default)]
pub(super) struct Resolving {
    pub(super) under_way: bool,
    pub(super) found: Option<Found>,
}

impl Resolving {
    /// Ends the lookup: it failed, or its answer was taken.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}
