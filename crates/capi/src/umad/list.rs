//! Adapters as a linked list (`umad_get_ca_device_list(3)`).

use std::ffi::{CString, c_int};
use std::ptr;

use super::sysfs::Sysfs;
use crate::abi::umad::umad_device_node;
use crate::boundary::{Errno, code, pointer};

/// Returns the adapters, or NULL if there are none. Errno is 0 in that case unless something failed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_get_ca_device_list() -> *mut umad_device_node {
    pointer(|| {
        let names = Sysfs::default().cas();
        // Programs check errno when there is no list. A missing directory is no failure.
        Errno(0).set();
        // From last to first, because each node points to the next. A name read from a directory has no NUL in it.
        let strings = names.into_iter().rev().filter_map(|name| CString::new(name).ok());
        let node = |next, name: CString| {
            Box::into_raw(Box::new(umad_device_node { next, ca_name: name.into_raw() }))
        };
        Ok(strings.fold(ptr::null_mut(), node))
    })
}

/// Frees a list.
///
/// # Safety
/// `head` was returned by `umad_get_ca_device_list`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_free_ca_device_list(head: *mut umad_device_node) {
    let _ = code(|| {
        let mut next = head;
        while !next.is_null() {
            // SAFETY: nodes and names were leaked when the list was made.
            let node = unsafe { Box::from_raw(next) };
            // SAFETY: as above.
            drop(unsafe { CString::from_raw(node.ca_name.cast_mut()) });
            next = node.next;
        }
        Ok(())
    });
}

/// Sorts a list by name. `size` is its length, or 0 to have it counted. EINVAL, without a change, if it is wrong.
///
/// # Safety
/// `head` is NULL or points to a list from `umad_get_ca_device_list`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_sort_ca_device_list(
    head: *mut *mut umad_device_node,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let head = unsafe { head.as_mut() }.ok_or(Errno::EINVAL)?;
        let mut nodes = Vec::new();
        let mut next = *head;
        // SAFETY: each is NULL or a node of the list.
        while let Some(node) = unsafe { next.as_ref() } {
            nodes.push(next);
            next = node.next;
        }
        if size != 0 && size != nodes.len() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: nodes of the list, with strings as their names.
        nodes.sort_by_key(|node| unsafe { std::ffi::CStr::from_ptr((**node).ca_name) });
        *head = nodes.into_iter().rev().fold(ptr::null_mut(), |next, node| {
            // SAFETY: as above.
            unsafe { (*node).next = next };
            node
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn list(names: &[&str]) -> *mut umad_device_node {
        names.iter().rev().fold(ptr::null_mut(), |next, name| {
            let ca_name = CString::new(*name).unwrap().into_raw();
            Box::into_raw(Box::new(umad_device_node { next, ca_name }))
        })
    }

    fn names(mut next: *mut umad_device_node) -> Vec<String> {
        let mut names = Vec::new();
        // SAFETY: a list that was created here.
        while let Some(node) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            names.push(unsafe { CStr::from_ptr(node.ca_name) }.to_str().unwrap().to_owned());
            next = node.next;
        }
        names
    }

    #[test]
    fn a_list_is_sorted_if_its_length_is_right() {
        for (size, expected) in [(0, 0), (3, 0), (1, libc::EINVAL), (4, libc::EINVAL)] {
            let mut head = list(&["b", "a1", "a0"]);
            // SAFETY: a list that was created here.
            let result = unsafe { umad_sort_ca_device_list(&raw mut head, size) };
            assert_eq!(result, expected, "{size}");
            let sorted = if expected == 0 { ["a0", "a1", "b"] } else { ["b", "a1", "a0"] };
            assert_eq!(names(head), sorted);
            // SAFETY: as above.
            unsafe { umad_free_ca_device_list(head) };
        }
        // SAFETY: no list.
        unsafe {
            assert_eq!(umad_sort_ca_device_list(ptr::null_mut(), 0), libc::EINVAL);
            umad_free_ca_device_list(ptr::null_mut());
        }
    }
}
