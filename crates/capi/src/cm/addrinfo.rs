//! Names and services: the C interface of rdma_getaddrinfo(3). [`rdmux_host::resolver`] does the lookup.

use std::ffi::{CStr, c_char, c_int};

use libc::{sockaddr, socklen_t};
use rdmux_cm::PortSpace;
use rdmux_host::ServiceKey;
use rdmux_host::resolver::{Answer, Family, Hints, ResolveError, Resolver};

use super::address;
use super::found::{self, Found};
use super::process::Process;
use crate::abi::cma::*;
use crate::boundary::{Errno, Result, guarded, status};
use crate::verbs::attr;

/// The reason why a lookup failed: an error number, or one of getaddrinfo(3), which the caller gets as the result.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Errno(Errno),
    /// An error number of getaddrinfo(3), and the errno with about the same meaning.
    Lookup(c_int, Errno),
}

impl Failure {
    pub(super) fn errno(self) -> Errno {
        match self {
            Self::Errno(errno) | Self::Lookup(_, errno) => errno,
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        tracing::debug!(%error, "address or service lookup failed");
        let errno = Errno(error.errno());
        error.eai().map_or(Self::Errno(errno), |eai| Self::Lookup(eai, errno))
    }
}

/// Looks up the input of [`rdma_create_ep`](super::endpoint::rdma_create_ep): addresses, port space and queue pair type for a node
/// and a service (rdma_getaddrinfo(3)). With RDMUX_RAI_NATIVE of <rdmux/cm.h> or in RDMA_PS_IB it also returns InfiniBand's own
/// address with its path. It queries ACM first (`RDMA_CM_USE_IB_ACM`); a path that ACM knows is returned also with an IP address.
/// Fails with -1 and errno, or with an EAI code of getaddrinfo(3).
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
        // SAFETY: the caller guarantees it.
        let res = unsafe { res.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: the caller guarantees it.
        let asked = unsafe { Asked::read(node, service, hints.as_ref()) };
        match asked.and_then(|asked| asked.look_up(Process::current()?)) {
            Ok(found) => {
                *res = found.into_ptr();
                Ok(())
            }
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Lookup(eai, _)) => {
                code = eai;
                Ok(())
            }
        }
    });
    if found == 0 { code } else { found }
}

/// A query, independent of the program's memory.
pub(super) struct Asked {
    node: Option<String>,
    service: Option<String>,
    /// The program's hints; none if it gave none, so that the defaults of getaddrinfo(3) apply.
    hints: Option<Hints>,
    flags: c_int,
    family: c_int,
    /// The program's value: an unknown number is returned unchanged.
    qp_type: c_int,
    port_space: c_int,
    src: Vec<u8>,
    dst: Vec<u8>,
}

impl Asked {
    /// Reads a query from the program's memory.
    ///
    /// # Errors
    /// EINVAL for an empty query, EOPNOTSUPP for one that subnet administration cannot answer, EAI_NONAME for an invalid string.
    ///
    /// # Safety
    /// `node` and `service` are NULL or strings; the hints' addresses are as long as they say.
    pub(super) unsafe fn read(
        node: *const c_char,
        service: *const c_char,
        hints: Option<&rdma_addrinfo>,
    ) -> std::result::Result<Self, Failure> {
        if node.is_null() && service.is_null() && hints.is_none() {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: zero is NULL, or no value, in every field.
        let nothing: rdma_addrinfo = unsafe { crate::boundary::zeroed() };
        let asked = hints.unwrap_or(&nothing);
        // SAFETY: the caller guarantees it.
        let (node, service, src, dst) = unsafe {
            let src = bytes(asked.ai_src_addr, asked.ai_src_len)?;
            let dst = bytes(asked.ai_dst_addr, asked.ai_dst_len)?;
            (text(node)?, text(service)?, src, dst)
        };
        if asked.ai_flags & RAI_SA != 0 {
            if node.is_some() || asked.ai_flags & RAI_DNS != 0 {
                return Err(Errno::EOPNOTSUPP.into());
            }
            if service.is_none() {
                return Err(Errno::EINVAL.into());
            }
        }
        let wanted = Hints {
            passive: asked.ai_flags & RAI_PASSIVE != 0,
            numeric_host: asked.ai_flags & RAI_NUMERICHOST != 0,
            no_route: asked.ai_flags & RAI_NOROUTE != 0,
            native: asked.ai_flags & RDMUX_RAI_NATIVE != 0,
            family: family(asked),
            port_space: u16::try_from(asked.ai_port_space).ok().and_then(PortSpace::from_code),
            qp_type: attr::qp_type(asked.ai_qp_type.cast_unsigned()).ok(),
            src: address::of_bytes(&src),
        };
        Ok(Self {
            node,
            service,
            hints: hints.map(|_| wanted),
            flags: asked.ai_flags,
            family: asked.ai_family,
            qp_type: asked.ai_qp_type,
            port_space: asked.ai_port_space,
            src,
            dst,
        })
    }

    /// Returns the services to look up at subnet administration (`RAI_SA`), if any.
    pub(super) fn at_administration(&self) -> Option<ServiceKey> {
        let service = self.service.as_deref()?;
        (self.flags & RAI_SA != 0).then(|| ServiceKey::parse(service))
    }

    /// Looks up the answers.
    pub(super) fn look_up(&self, process: &Process) -> std::result::Result<Found, Failure> {
        let resolver = Resolver::new(process.client()?.clone(), &process.kinds());
        if let Some(service) = self.at_administration() {
            return Ok(Found::of(&self.services(process, &resolver, &service)?)?);
        }
        let wanted = self.hints.unwrap_or_default();
        let is_of_infiniband = wanted.family == Some(Family::Ib) || self.is_of_infiniband();
        let wants_native = wanted.native || is_of_infiniband;
        let answers = if self.node.is_some() || self.service.is_some() {
            let hints = self.hints.as_ref();
            let mut found =
                resolver.resolve(self.node.as_deref(), self.service.as_deref(), hints)?;
            if !wants_native {
                // The reference implementation returns one answer, too.
                found.truncate(1);
            }
            found
        } else {
            match address::of_bytes(&self.dst).and_then(|dst| dst.socket()) {
                Some(dst) if wants_native => resolver.resolve_addr(dst, &wanted),
                _ => return Ok(self.repeated(&resolver)?),
            }
        };
        let found = Found::of(&answers)?;
        found.each(|info| self.complete(info))?;
        Ok(found)
    }

    fn is_of_infiniband(&self) -> bool {
        self.port_space == RDMA_PS_IB.cast_signed()
    }

    /// Returns the services of the first subnet, in port order, whose administration knows the service.
    fn services(
        &self,
        process: &Process,
        resolver: &Resolver,
        service: &ServiceKey,
    ) -> std::result::Result<Vec<Answer>, Failure> {
        let mut last = Failure::Errno(Errno(libc::ENOENT));
        for gid in process.subnet_gids() {
            match resolver.services(gid, service) {
                Ok(found) => return Ok(found),
                Err(error) => last = error.into(),
            }
        }
        tracing::debug!(%service, errno = last.errno().0, "no subnet administration has a record of the service");
        Err(Errno(libc::ENOENT).into())
    }

    /// Returns the query's own values, with the path that ACM knows: there is no name to look up.
    fn repeated(&self, resolver: &Resolver) -> Result<Found> {
        let hints = self.hints.unwrap_or_default();
        let dst = address::of_bytes(&self.dst).filter(|_| !hints.passive && !hints.no_route);
        let path = dst.and_then(|dst| resolver.known_path(hints.src, dst, &hints));
        let paths = Vec::from_iter(path);
        let found = Found::of(&[Answer { paths, ..Answer::default() }])?;
        found.each(|info| {
            info.ai_flags = self.flags;
            info.ai_family = self.family;
            info.ai_qp_type = self.qp_type;
            info.ai_port_space = self.port_space;
            if !self.dst.is_empty() {
                (info.ai_dst_addr, info.ai_dst_len) = found::copied(&self.dst)?;
            }
            self.complete(info)
        })?;
        Ok(found)
    }

    /// Copies the fields that an answer takes from the query.
    fn complete(&self, info: &mut rdma_addrinfo) -> Result<()> {
        let known = self.hints.is_some_and(|hints| hints.port_space.is_some());
        if self.port_space != 0 && !known {
            info.ai_port_space = self.port_space;
        }
        if self.qp_type != 0 {
            info.ai_qp_type = self.qp_type;
        }
        if info.ai_src_len == 0 && !self.src.is_empty() {
            (info.ai_src_addr, info.ai_src_len) = found::copied(&self.src)?;
        }
        Ok(())
    }
}

/// Returns the family of the answers. As in librdmacm, it counts without `RAI_FAMILY`, which is needed only for a node that is a GID as
/// text.
fn family(asked: &rdma_addrinfo) -> Option<Family> {
    match asked.ai_family {
        libc::AF_UNSPEC => None,
        libc::AF_INET => Some(Family::Ipv4),
        libc::AF_INET6 => Some(Family::Ipv6),
        AF_IB if asked.ai_flags & (RAI_FAMILY | RAI_NUMERICHOST) == RAI_NUMERICHOST => None,
        AF_IB => Some(Family::Ib),
        other => Some(Family::Other(other)),
    }
}

/// Returns a string of the program. One that is not UTF-8 is no name.
///
/// # Safety
/// It is NULL or a string.
unsafe fn text(string: *const c_char) -> std::result::Result<Option<String>, Failure> {
    if string.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees it.
    let text = unsafe { CStr::from_ptr(string) }.to_str();
    let no_name = |_| Failure::Lookup(libc::EAI_NONAME, Errno(libc::ENOENT));
    text.map(|text| Some(text.to_owned())).map_err(no_name)
}

/// Returns an address of the program, as bytes.
///
/// # Errors
/// EINVAL for NULL with a length.
///
/// # Safety
/// `addr` is NULL or that long.
unsafe fn bytes(addr: *const sockaddr, len: socklen_t) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    if addr.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller guarantees it.
    let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len as usize) };
    Ok(bytes.to_vec())
}

/// Frees a list from [`rdma_getaddrinfo`], with all that follows (rdma_freeaddrinfo(3)).
///
/// # Safety
/// `res` is NULL or such a list, once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let _: Result<()> = guarded(|| {
        // SAFETY: the caller guarantees it.
        unsafe { found::free(res) };
        Ok(())
    });
}
