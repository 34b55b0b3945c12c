//! Inline data: copied from the program's memory during posting. They need not be registered. If the memory is not mapped,
//! posting fails and the program continues.

use std::mem::MaybeUninit;

use rdmux_link::guarded;
use rdmux_transport::wr::Sge;

use crate::boundary::{Errno, Result};

/// The number of bytes copied to the stack: the limit of queue pairs unless the host's configuration allows more.
pub(super) const ON_STACK: usize = 1024;

/// Copies the data of a gather list, `max` bytes at most, to `stack` or, if that is too small, to `heap`.
///
/// # Errors
/// EINVAL for more bytes, EFAULT for memory that is not mapped.
pub(super) fn gather<'a>(
    list: &[Sge],
    max: u32,
    stack: &'a mut [MaybeUninit<u8>; ON_STACK],
    heap: &'a mut Vec<u8>,
) -> Result<&'a [u8]> {
    let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
    if total > max.into() {
        return Err(Errno::EINVAL);
    }
    let total = usize::try_from(total).map_err(|_| Errno::EINVAL)?;
    let room = if total <= ON_STACK {
        &mut stack[..total]
    } else {
        heap.reserve(total);
        &mut heap.spare_capacity_mut()[..total]
    };
    let mut rest = &mut *room;
    for sge in list {
        let (now, later) = rest.split_at_mut(sge.length as usize);
        fill(now, address(sge.addr))?;
        rest = later;
    }
    // SAFETY: the lengths add up to all of it.
    Ok(unsafe { room.assume_init_ref() })
}

/// Appends that many bytes of the program.
///
/// # Errors
/// EFAULT for memory that is not mapped.
pub(super) fn append(to: &mut Vec<u8>, from: *const u8, length: usize) -> Result<()> {
    to.reserve(length);
    fill(&mut to.spare_capacity_mut()[..length], from)?;
    // SAFETY: that many bytes were written behind the old ones.
    unsafe { to.set_len(to.len() + length) };
    Ok(())
}

fn fill(room: &mut [MaybeUninit<u8>], from: *const u8) -> Result<()> {
    // SAFETY: the destination is owned here; a fault in the program's memory is caught.
    unsafe { guarded::read_raw(from, room.as_mut_ptr().cast(), room.len()) }
        .map_err(|_| Errno(libc::EFAULT))
}

fn address(address: u64) -> *const u8 {
    std::ptr::with_exposed_provenance(usize::try_from(address).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(list: &[Sge], max: u32) -> Result<Vec<u8>> {
        let (mut stack, mut heap) = ([MaybeUninit::uninit(); ON_STACK], Vec::new());
        gather(list, max, &mut stack, &mut heap).map(<[u8]>::to_vec)
    }

    fn of(bytes: &[u8]) -> Sge {
        let addr = bytes.as_ptr().expose_provenance() as u64;
        Sge { addr, length: bytes.len().try_into().unwrap(), ..Sge::default() }
    }

    #[test]
    fn inline_sges_are_gathered_in_order_within_the_limit() {
        let long = vec![7; 2 * ON_STACK];
        assert_eq!(gathered(&[], 0), Ok(vec![]));
        assert_eq!(gathered(&[of(b"ab"), of(b""), of(b"c")], 3), Ok(b"abc".to_vec()));
        assert_eq!(gathered(&[of(&long), of(b"c")], 4096).unwrap(), [&long[..], b"c"].concat());
        assert_eq!(gathered(&[of(b"ab"), of(b"c")], 2), Err(Errno::EINVAL));
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let gone = Sge { addr: 8, length: 4, ..Sge::default() };
        assert_eq!(gathered(&[of(b"ab"), gone], 64), Err(Errno(libc::EFAULT)));
        let endless = Sge { length: u32::MAX, ..gone };
        assert_eq!(gathered(&[endless; 3], u32::MAX), Err(Errno::EINVAL));
        let mut buffer = b"ab".to_vec();
        assert!(append(&mut buffer, address(8), 4).is_err());
        append(&mut buffer, b"cd".as_ptr(), 2).unwrap();
        assert_eq!(buffer, b"abcd");
    }
}
