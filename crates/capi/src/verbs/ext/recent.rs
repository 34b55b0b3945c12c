//! Functions of current releases, from the node IBVERBS_1.15 on. Their structures are not in the headers of release 44, so they
//! are defined here. Functions that need hardware (DMA handles, completion counters, dma-buf) are only in the table of exports.

use std::alloc::{self, Layout};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, guarded, pointer};
use crate::verbs::mr;
use crate::verbs::objects::{Context, Object, Pd, Use};

/// `ibv_mr_init_attr`: the parameters of `ibv_reg_mr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MrInitAttr {
    length: usize,
    access: c_int,
    /// The mask of the fields below that are valid.
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut Buf,
}

const MASK_IOVA: u64 = 1;
const MASK_ADDR: u64 = 1 << 1;
const MASK_FD: u64 = 1 << 2;
const MASK_FD_OFFSET: u64 = 1 << 3;
const MASK_DMAH: u64 = 1 << 4;
const MASK_BUF: u64 = 1 << 5;

/// `ibv_reg_mr_ex(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut MrInitAttr,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (domain, attr) = unsafe { (Pd::get(pd)?, attr.as_ref()) };
        let attr = attr.ok_or(Errno::EINVAL)?;
        let has = |bits| attr.comp_mask & bits != 0;
        if has(MASK_FD | MASK_FD_OFFSET | MASK_DMAH) && !has(MASK_BUF) {
            return Err(Errno::EOPNOTSUPP);
        }
        if has(!(MASK_IOVA | MASK_ADDR | MASK_BUF)) || !has(MASK_ADDR) {
            return Err(Errno::EINVAL);
        }
        if has(MASK_BUF) {
            // SAFETY: NULL or an object of this library.
            let buf = unsafe { attr.buf.as_ref() }.ok_or(Errno::EINVAL)?;
            buf.check(pd, attr.addr, attr.length)?;
        }
        let iova = if has(MASK_IOVA) { attr.iova } else { attr.addr as u64 };
        let access: c_uint = attr.access.cast_unsigned();
        // SAFETY: the program's promise about its memory.
        unsafe { mr::register(domain, attr.addr, attr.length, iova, access) }
    })
}

/// `ibv_buf`: memory that was allocated for a protection domain.
pub(crate) struct Buf {
    bytes: NonNull<u8>,
    layout: Layout,
    size: usize,
    pd: *mut ibv_pd,
    _user: Use,
}

impl Buf {
    /// Checks that a range is within it, and that the domain is its own.
    fn check(&self, pd: *mut ibv_pd, addr: *mut c_void, length: usize) -> Result<()> {
        let offset = (addr as usize).checked_sub(self.bytes.as_ptr() as usize);
        let end = offset.and_then(|offset| offset.checked_add(length));
        if pd == self.pd && end.is_some_and(|end| end <= self.size) {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and the program no longer uses it.
        unsafe { alloc::dealloc(self.bytes.as_ptr(), self.layout) }
    }
}

/// `ibv_alloc_buf(3)`: allocates whole pages of plain memory.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut Buf,
) -> *mut c_void {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (domain, out) = unsafe { (Pd::get(pd)?, buf.as_mut()) };
        let out = out.ok_or(Errno::EINVAL)?;
        let layout = Layout::from_size_align(size, rustix::param::page_size());
        let layout = layout.map_err(|_| Errno::ENOMEM)?.pad_to_align();
        if size == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the size is not 0.
        let bytes = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        let user = domain.core.users.add();
        *out = Box::into_raw(Box::new(Buf { bytes, layout, size, pd, _user: user }));
        Ok(bytes.as_ptr().cast())
    })
}

/// `ibv_free_buf(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut Buf) {
    let _ = guarded(|| {
        if !buf.is_null() {
            // SAFETY: `ibv_alloc_buf` created it from a box, and it is no longer used.
            drop(unsafe { Box::from_raw(buf) });
        }
        Ok(())
    });
}

/// `ibv_reg_buf_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let (comp_mask, null) = (MASK_ADDR | MASK_BUF, std::ptr::null_mut());
    let mut attr = MrInitAttr {
        length,
        access,
        comp_mask,
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: null,
        buf,
    };
    // SAFETY: the caller guarantees it.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
}

/// `ibv_export_buf_dmabuf_fd(3)`: fails, because none of these buffers has a descriptor.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut Buf) -> c_int {
    Errno(libc::ENODATA).set();
    -1
}

/// `ibv_query_port_speed(3)`: returns the speed in units of 100 Mb/s.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    port_speed: *mut u64,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (context, speed) = unsafe { (Context::get(context)?, port_speed.as_mut()) };
        let port = u8::try_from(port_num).map_err(|_| Errno::EINVAL)?;
        let attr = context.opened.device.query_port(port)?;
        let (_, rate) = attr.rate();
        *speed.ok_or(Errno::EINVAL)? = rate.into();
        Ok(())
    })
}

const _: () = assert!(size_of::<MrInitAttr>() == 72);
