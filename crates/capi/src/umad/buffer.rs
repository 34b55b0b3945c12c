//! The buffer that a program sends from and receives into: a header followed by the MAD (`umad_get_mad(3)`,
//! `umad_set_addr(3)` and others).
//!
//! The header always has a P_Key index. (Before the first port is open the reference implementation reports another size, for
//! old kernels without one. With this library a program always gets the same size.)
//!
//! Buffers need not be aligned.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use crate::abi::umad::{ib_mad_addr, ib_user_mad};
use crate::boundary::{Errno, Result, negative};

/// The size of the header.
pub(super) const HEADER: usize = size_of::<ib_user_mad>();

/// `umad_size(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_size() -> usize {
    HEADER
}

/// `umad_get_mad(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    at(umad, HEADER)
}

/// `umad_get_mad_addr(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut ib_mad_addr {
    at(umad, offset_of!(ib_user_mad, addr)).cast()
}

/// Returns a pointer into a buffer; NULL for NULL.
fn at(umad: *mut c_void, offset: usize) -> *mut c_void {
    if umad.is_null() { umad } else { umad.wrapping_byte_add(offset) }
}

/// `umad_status(3)`: returns an error number. ETIMEDOUT means a request that was not answered.
///
/// # Safety
/// `umad` is a buffer or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_status(umad: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees it.
    negative(|| Ok(unsafe { header(umad)? }.status.cast_signed()))
}

/// `umad_get_pkey(3)`.
///
/// # Safety
/// `umad` is a buffer or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees it.
    negative(|| Ok(unsafe { header(umad)? }.addr.pkey_index.into()))
}

/// `umad_set_pkey(3)`. An index beyond 16 bits is EINVAL.
///
/// # Safety
/// `umad` is a buffer or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, pkey_index: c_int) -> c_int {
    let set = |addr: &mut ib_mad_addr| {
        addr.pkey_index = u16::try_from(pkey_index).map_err(|_| Errno::EINVAL)?;
        Ok(())
    };
    // SAFETY: the caller guarantees it.
    unsafe { change(umad, set) }
}

/// `umad_set_addr(3)`: takes an address in host order.
///
/// # Safety
/// `umad` is a buffer or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_addr(
    umad: *mut c_void,
    dlid: c_int,
    dqp: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let [dqp, qkey] = [dqp, qkey].map(|value| value.cast_unsigned().to_be());
    // SAFETY: the caller guarantees it.
    unsafe { umad_set_addr_net(umad, low(dlid).to_be(), dqp, sl, qkey) }
}

/// `umad_set_addr_net(3)`: takes an address in network order, except the service level.
///
/// # Safety
/// `umad` is a buffer or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_addr_net(
    umad: *mut c_void,
    dlid: u16,
    dqp: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    let set = |addr: &mut ib_mad_addr| {
        let [.., sl] = low(sl).to_be_bytes();
        (addr.lid, addr.qpn, addr.sl, addr.qkey) = (dlid, dqp, sl, qkey);
        Ok(())
    };
    // SAFETY: the caller guarantees it.
    unsafe { change(umad, set) }
}

/// `umad_set_grh(3)`: takes an address whose flow label is in host order, or NULL for no GRH.
///
/// # Safety
/// `umad` is a buffer or NULL; `mad_addr` is an address or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_grh(umad: *mut c_void, mad_addr: *mut c_void) -> c_int {
    let set = |addr: &mut ib_mad_addr| {
        let from = mad_addr.cast::<ib_mad_addr>();
        addr.grh_present = u8::from(!from.is_null());
        if !from.is_null() {
            // SAFETY: the caller guarantees it.
            let from = unsafe { ptr::read_unaligned(from) };
            (addr.gid, addr.hop_limit) = (from.gid, from.hop_limit);
            (addr.traffic_class, addr.flow_label) = (from.traffic_class, from.flow_label.to_be());
        }
        Ok(())
    };
    // SAFETY: the caller guarantees it.
    unsafe { change(umad, set) }
}

/// Returns the low 16 bits of an `int`.
fn low(value: c_int) -> u16 {
    let [low @ .., _, _] = value.to_le_bytes();
    u16::from_le_bytes(low)
}

/// Reads the header of a buffer.
///
/// # Safety
/// `umad` is a buffer or NULL.
pub(super) unsafe fn header(umad: *const c_void) -> Result<ib_user_mad> {
    if umad.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller guarantees it.
    Ok(unsafe { ptr::read_unaligned(umad.cast()) })
}

/// Changes the address in the header of a buffer. Returns 0 or the negative error number.
///
/// # Safety
/// `umad` is a buffer or NULL.
unsafe fn change(umad: *mut c_void, change: impl FnOnce(&mut ib_mad_addr) -> Result<()>) -> c_int {
    negative(|| {
        // SAFETY: the caller guarantees it.
        let mut header = unsafe { header(umad)? };
        change(&mut header.addr)?;
        // SAFETY: as above.
        unsafe { ptr::write_unaligned(umad.cast(), header) };
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unaligned buffer with every byte set.
    struct Buffer([u8; HEADER + 257]);

    impl Buffer {
        fn ptr(&mut self) -> *mut c_void {
            self.0[1..].as_mut_ptr().cast()
        }
        fn addr(&self) -> &[u8] {
            &self.0[1 + 20..=HEADER]
        }
    }

    #[test]
    fn addresses_are_written_where_the_kernel_reads_them() {
        let mut buffer = Buffer([0xee; HEADER + 257]);
        let umad = buffer.ptr();
        // SAFETY: a buffer.
        unsafe {
            assert_eq!(umad_set_addr(umad, 0xffff_1234_u32.cast_signed(), 1, 5, -0x7fff_0000), 0);
            assert_eq!(umad_set_pkey(umad, 7), 0);
            assert_eq!(umad_get_pkey(umad), 7);
        }
        assert_eq!(buffer.addr()[..11], [0, 0, 0, 1, 0x80, 1, 0, 0, 0x12, 0x34, 5]);
        assert_eq!(buffer.addr()[36..38], 7_u16.to_ne_bytes());
        // SAFETY: a buffer.
        unsafe {
            assert_eq!(umad_set_addr_net(umad, 0x1234, 2, 300, 3), 0);
            assert_eq!(umad_set_pkey(umad, 0x1_0000), -libc::EINVAL);
        }
        assert_eq!(buffer.addr()[8..10], 0x1234_u16.to_ne_bytes());
        // The path bits belong to the sender.
        assert_eq!(buffer.addr()[11], 0xee);
    }

    #[test]
    fn umad_set_grh_sets_and_clears_the_grh() {
        let mut buffer = Buffer([0xee; HEADER + 257]);
        let umad = buffer.ptr();
        // SAFETY: all zeros is an address.
        let mut from: ib_mad_addr = unsafe { std::mem::zeroed() };
        (from.gid, from.hop_limit, from.traffic_class, from.flow_label) =
            ([9; 16], 64, 2, 0x0a_bcde);
        from.gid_index = 3;
        // SAFETY: a buffer and an address.
        unsafe { assert_eq!(umad_set_grh(umad, (&raw mut from).cast()), 0) };
        assert_eq!(buffer.addr()[12..16], [1, 0xee, 64, 2]);
        assert_eq!(buffer.addr()[16..32], [9; 16]);
        assert_eq!(buffer.addr()[32..36], [0, 0x0a, 0xbc, 0xde]);
        // SAFETY: as above.
        unsafe { assert_eq!(umad_set_grh(umad, ptr::null_mut()), 0) };
        assert_eq!(buffer.addr()[12], 0);
    }

    #[test]
    fn umad_accessors_of_null_return_null_or_einval() {
        let none = ptr::null_mut();
        assert!(umad_get_mad(none).is_null() && umad_get_mad_addr(none).is_null());
        // SAFETY: NULL is allowed.
        unsafe {
            for result in [
                umad_status(none),
                umad_get_pkey(none),
                umad_set_pkey(none, 0),
                umad_set_addr(none, 1, 1, 0, 0),
                umad_set_addr_net(none, 1, 1, 0, 0),
                umad_set_grh(none, none),
            ] {
                assert_eq!(result, -libc::EINVAL);
            }
        }
        let mut buffer = Buffer([0; HEADER + 257]);
        let umad = buffer.ptr();
        assert_eq!(umad_get_mad(umad) as usize - umad as usize, umad_size());
        assert_eq!(umad_get_mad_addr(umad) as usize - umad as usize, 20);
    }
}
