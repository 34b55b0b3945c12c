//! Thread domains and parent domains (`ibv_alloc_td(3)`, `ibv_alloc_parent_domain(3)`).
//!
//! The program promises that objects created in a parent domain with a thread domain are used by one thread at a
//! time, so this library takes no locks for them in its calls. Allocators of the program are accepted and
//! never called, because the device needs access to no buffer here.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::verbs::*;
use crate::boundary::{Errno, code, pointer};
use crate::verbs::objects::domain::PdExt;
use crate::verbs::objects::{Context, Object, Opened, Pd, PdCore, Users};

/// `ibv_td`.
#[repr(C)]
struct Td {
    public: UnsafeCell<ibv_td>,
    opened: Arc<Opened>,
    users: Users,
}

// SAFETY: `repr(C)`, and the first field is the public structure.
unsafe impl Object for Td {
    type Public = ibv_td;
    fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (opened, attr) = unsafe { (&Context::get(context)?.opened, attr.as_ref()) };
        if attr.ok_or(Errno::EINVAL)?.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        let public = UnsafeCell::new(ibv_td { context });
        Ok(Box::new(Td { public, opened: opened.clone(), users: Users::default() }).into_ptr())
    })
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let domain = unsafe { Td::peek(td)? };
        if domain.opened.is_ours() {
            domain.users.check_none()?;
            // SAFETY: it is no longer used.
            drop(unsafe { Td::take(td) });
        }
        Ok(())
    })
}

const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;

pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (opened, attr) = unsafe { (&Context::get(context)?.opened, attr.as_ref()) };
        let attr = attr.ok_or(Errno::EINVAL)?;
        let has_allocators = attr.alloc.is_some() && attr.free.is_some();
        if attr.comp_mask & !KNOWN != 0
            || attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 && !has_allocators
        {
            return Err(Errno::EINVAL);
        }
        // SAFETY: NULL, or a domain of this library.
        let base = unsafe { Pd::get(attr.pd)? };
        let td = if attr.td.is_null() {
            None
        } else {
            // SAFETY: a thread domain of this library.
            Some(unsafe { Td::get(attr.td)? }.users.add())
        };
        // SAFETY: a field that is never written.
        let handle = unsafe { (*attr.pd).handle };
        let core = PdCore { pd: base.core.pd.clone(), users: Users::default() };
        let domain = Pd {
            public: UnsafeCell::new(ibv_pd { context, handle }),
            opened: opened.clone(),
            core: Arc::new(core),
            ext: PdExt::parent(base.core.users.add(), td),
        };
        Ok(Box::new(domain).into_ptr())
    })
}
