//! Sending and receiving (`umad_send(3)`, `umad_recv(3)`, `umad_poll(3)`).
//!
//! Receiving and polling wait in poll(2), where a thread can be cancelled (pthread_cancel(3)). A cancellation
//! unwinds the stack, which works only for frames without destructors. So no object with one is held during the wait.

use std::ffi::{c_int, c_short, c_void};
use std::time::{Duration, Instant};

use super::buffer::{self, HEADER};
use super::open::ReadError;
use super::ports::find;
use crate::abi::umad::ib_user_mad;
use crate::boundary::{Errno, Result, guarded, negative};

/// `umad_send(3)`: returns 0, EINVAL for a port that is not open or no buffer, or EIO with the device's reason in errno.
///
/// # Safety
/// `umad` is a buffer of `length` bytes behind the header, or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_send(
    portid: c_int,
    agentid: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let port = match guarded(|| find(portid).and_then(|port| no_null(umad).map(|()| port))) {
        Ok(port) => port,
        Err(errno) => return negative(|| Err(errno)),
    };
    let send = || {
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the caller guarantees it.
        let mut header = unsafe { buffer::header(umad)? };
        header.agent_id = agentid.cast_unsigned();
        header.timeout_ms = timeout_ms.cast_unsigned();
        header.retries = retries.cast_unsigned();
        // SAFETY: the caller's buffer, whose header is the one that the kernel's interface defines.
        let mad = unsafe {
            umad.cast::<ib_user_mad>().write_unaligned(header);
            std::slice::from_raw_parts(umad.cast::<u8>().add(HEADER), length)
        };
        // SAFETY: the header as bytes; it has no padding.
        let bytes = unsafe { std::mem::transmute::<ib_user_mad, [u8; HEADER]>(header) };
        port.send(header.agent_id, &bytes, mad, timeout_ms != 0)
    };
    match guarded(send) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            -libc::EIO
        }
    }
}

/// `umad_recv(3)`: returns the agent whose MAD was received, and in `length` the size of the MAD behind the header. Waits
/// for one, for that many milliseconds if the timeout is not negative.
///
/// ENOSPC when there is no room for a long MAD, which can still be received: `length` is the size that it needs.
/// ETIMEDOUT when none arrived, or EAGAIN if the timeout was 0.
///
/// # Safety
/// `umad` is a buffer with `length` bytes behind the header, or NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn umad_recv(
    portid: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    let end = Deadline::after(timeout_ms);
    loop {
        if timeout_ms != 0 {
            let waited = umad_poll(portid, end.left());
            if waited < 0 {
                return waited;
            }
        }
        // SAFETY: the caller guarantees it.
        let received = negative(|| unsafe { receive(portid, umad, length) });
        // Another thread may have been faster, or the rest of a long MAD may be in flight.
        if received != -libc::EAGAIN || timeout_ms == 0 {
            return received;
        }
    }
}

/// `umad_poll(3)`: returns 0 when something can be received, or the port is gone; otherwise ETIMEDOUT.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn umad_poll(portid: c_int, timeout_ms: c_int) -> c_int {
    let known = negative(|| find(portid).map(|_| 0));
    if known < 0 {
        return known;
    }
    let mut ready = PollFd { fd: portid, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    match unsafe { poll(&raw mut ready, 1, timeout_ms) } {
        0 => negative(|| Err(Errno(libc::ETIMEDOUT))),
        1 => 0,
        // Errno is set by poll.
        _ => -libc::EIO,
    }
}

/// Takes a MAD if there is one.
///
/// # Safety
/// As for `umad_recv`.
unsafe fn receive(portid: c_int, umad: *mut c_void, length: *mut c_int) -> Result<c_int> {
    let port = find(portid)?;
    no_null(umad)?;
    // SAFETY: the caller guarantees it.
    let length = unsafe { length.as_mut() }.ok_or(Errno::EINVAL)?;
    let room = usize::try_from(*length).map_err(|_| Errno::EINVAL)?;
    // SAFETY: as above.
    let buffer = unsafe { std::slice::from_raw_parts_mut(umad.cast::<u8>(), HEADER + room) };
    let behind = |bytes: usize| c_int::try_from(bytes - HEADER).unwrap_or(c_int::MAX);
    match port.read(buffer) {
        Ok(bytes) => {
            *length = behind(bytes);
            // SAFETY: as above.
            let header = unsafe { buffer::header(umad)? };
            Ok(header.agent_id.cast_signed())
        }
        Err(ReadError::TooLong(bytes)) => {
            *length = behind(bytes);
            Err(Errno(libc::ENOSPC))
        }
        Err(ReadError::Failed(errno)) => Err(errno),
    }
}

fn no_null(umad: *const c_void) -> Result<()> {
    if umad.is_null() { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The deadline of a wait. It has no destructor.
#[derive(Clone, Copy)]
struct Deadline(Option<Instant>);

impl Deadline {
    /// Returns the deadline after this time; none if it is negative.
    fn after(timeout_ms: c_int) -> Self {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Self(timeout.map(|timeout| Instant::now() + timeout))
    }

    /// Returns the remaining time for poll(2), in milliseconds, rounded up.
    fn left(self) -> c_int {
        let Self(Some(end)) = self else { return -1 };
        let left = end.saturating_duration_since(Instant::now()).as_nanos().div_ceil(1_000_000);
        c_int::try_from(left).unwrap_or(c_int::MAX)
    }
}

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: c_short,
    revents: c_short,
}

unsafe extern "C-unwind" {
    /// poll(2), which unwinds, although libc declares that it does not.
    fn poll(fds: *mut PollFd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::super::agent::umad_register;
    use super::super::buffer::umad_set_addr;
    use super::super::fake::{Fake, open};
    use super::super::ports::{umad_close_port, umad_get_fd};
    use super::*;
    use std::ptr;
    use std::sync::Arc;

    /// Returns a buffer with room for that many bytes of a MAD.
    fn room(bytes: usize) -> Vec<u8> {
        vec![0xee; HEADER + bytes]
    }

    /// Returns a MAD of class 3 with this method and ID.
    fn mad(method: u8, tid: u32, length: usize) -> Vec<u8> {
        let mut mad = vec![0; length];
        mad[..4].copy_from_slice(&[1, 3, 2, method]);
        mad[12..16].copy_from_slice(&tid.to_be_bytes());
        mad
    }

    fn send(port: c_int, agent: c_int, mad: &[u8], timeout_ms: c_int) -> (c_int, c_int) {
        let mut buffer = room(mad.len());
        buffer[HEADER..].copy_from_slice(mad);
        let umad = buffer.as_mut_ptr().cast();
        let length = c_int::try_from(mad.len()).unwrap();
        Errno(0).set();
        // SAFETY: a buffer of this length.
        let result = unsafe {
            umad_set_addr(umad, 1, 0, 0, 0);
            umad_send(port, agent, umad, length, timeout_ms, 3)
        };
        (result, Errno::last().0)
    }

    fn receive(port: c_int, buffer: &mut [u8], timeout_ms: c_int) -> (c_int, c_int) {
        let mut length = c_int::try_from(buffer.len() - HEADER).unwrap();
        let umad = buffer.as_mut_ptr().cast();
        // SAFETY: a buffer of this length.
        (unsafe { umad_recv(port, umad, &raw mut length, timeout_ms) }, length)
    }

    fn agent(port: c_int, class: c_int, rmpp: u8) -> c_int {
        // SAFETY: no mask.
        unsafe { umad_register(port, class, 2, rmpp, ptr::null_mut()) }
    }

    fn opened() -> (c_int, Arc<Fake>) {
        let (port, fake) = open();
        assert_eq!((agent(port, 3, 1), agent(port, 4, 0)), (0, 1));
        (port, fake)
    }

    #[test]
    fn a_short_mad_is_padded_and_the_header_filled_in() {
        let (port, fake) = opened();
        assert_eq!(send(port, 1, &mad(1, 7, 100), 200), (0, 0));
        let (header, sent) = fake.sent().remove(0);
        assert_eq!((sent.len(), &sent[..100]), (256, &mad(1, 7, 100)[..]));
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(8), word(12)), (1, 200, 3));
        assert_eq!(header[28..30], [0, 1]);
    }

    #[test]
    fn a_short_message_for_rmpp_keeps_its_length() {
        const ACTIVE: u8 = 1;
        let (port, fake) = opened();
        let mut one_record = mad(0x92, 7, 120);
        one_record[26] = ACTIVE;
        assert_eq!(send(port, 0, &one_record, 0), (0, 0));
        assert_eq!(fake.sent().remove(0).1, one_record);
    }

    #[test]
    fn invalid_umad_send_is_eio_with_errno() {
        let (port, fake) = opened();
        let request = mad(1, 7, 256);
        assert_eq!(send(port, 1, &request[..35], 0), (-libc::EIO, libc::EINVAL));
        assert_eq!(send(port, 1, &mad(1, 7, 257), 0), (-libc::EIO, libc::EINVAL));
        // The agent is for long MADs, but this MAD has no valid RMPP header.
        assert_eq!(send(port, 0, &mad(0x92, 7, 257), 0), (-libc::EIO, libc::EINVAL));
        assert_eq!(send(port, 2, &request, 0), (-libc::EIO, libc::EIO));
        assert_eq!(send(port, 32, &request, 0), (-libc::EIO, libc::EINVAL));
        assert_eq!(send(port, -1, &request, 0), (-libc::EIO, libc::EINVAL));
        assert_eq!(send(-1, 0, &request, 0), (-libc::EINVAL, libc::EINVAL));
        // SAFETY: no buffer; then a length that is none.
        unsafe {
            assert_eq!(umad_send(port, 0, ptr::null_mut(), 256, 0, 0), -libc::EINVAL);
            let mut buffer = room(256);
            assert_eq!(umad_send(port, 0, buffer.as_mut_ptr().cast(), -1, 0, 0), -libc::EIO);
        }
        assert!(fake.sent().is_empty());
        let mut long = mad(0x92, 7, 1000);
        long[26] = 1;
        assert_eq!(send(port, 0, &long, 0), (0, 0));
        assert_eq!(fake.sent()[0].1, long);
    }

    #[test]
    fn umad_tid_is_reused_only_after_the_answer_is_read() {
        let (port, fake) = opened();
        let request = mad(1, 7, 256);
        assert_eq!(send(port, 0, &request, 200), (0, 0));
        assert_eq!(fake.asked(), 0);
        fake.set_outstanding(true);
        assert_eq!(send(port, 0, &request, 200), (-libc::EIO, libc::EINVAL));
        // A send without a timeout expects no answer, and a response is no request.
        assert_eq!(send(port, 0, &request, 0), (0, 0));
        assert_eq!(send(port, 0, &mad(0x81, 7, 256), 200), (0, 0));
        assert_eq!(fake.asked(), 1);
        // The request is answered, but the answer was not read yet.
        fake.set_outstanding(false);
        assert_eq!(send(port, 0, &request, 200), (0, 0));
        assert_eq!(fake.asked(), 2);
        fake.deliver(0, 0, &mad(0x81, 7, 256));
        assert_eq!(receive(port, &mut room(256), -1), (0, 256));
        assert_eq!(send(port, 0, &request, 200), (0, 0));
        // The request itself is returned when it was not answered.
        fake.deliver(0, libc::ETIMEDOUT, &request[..24]);
        let mut buffer = room(256);
        assert_eq!(receive(port, &mut buffer, -1), (0, 24));
        assert_eq!(buffer[4..8], libc::ETIMEDOUT.to_ne_bytes());
        assert_eq!(send(port, 0, &request, 200), (0, 0));
        assert_eq!(fake.asked(), 2);
    }

    #[test]
    fn a_long_mad_waits_for_a_buffer_with_room() {
        let (port, fake) = opened();
        let long = mad(0x92, 7, 5000);
        fake.deliver(0, 0, &long);
        let mut buffer = room(256);
        assert_eq!(receive(port, &mut buffer, 0), (-libc::ENOSPC, 5000));
        // The buffer has its header and first segment.
        assert_eq!(buffer[HEADER..], long[..256]);
        assert_eq!(receive(port, &mut room(255), 0), (-libc::EINVAL, 255));
        let mut buffer = room(5000);
        assert_eq!(receive(port, &mut buffer, -1), (0, 5000));
        assert_eq!(buffer[HEADER..], long);
        assert_eq!(receive(port, &mut buffer, 0), (-libc::EAGAIN, 5000));
    }

    #[test]
    fn umad_recv_buffer_smaller_than_a_mad_is_einval() {
        let (port, fake) = opened();
        fake.deliver(1, 0, &mad(0x81, 7, 256));
        assert_eq!(receive(port, &mut room(255), 0), (-libc::EINVAL, 255));
        assert_eq!(receive(port, &mut room(256), 0), (1, 256));
        let mut length = -1;
        let mut buffer = room(256);
        let umad = buffer.as_mut_ptr().cast();
        // SAFETY: buffers or NULL.
        unsafe {
            assert_eq!(umad_recv(port, umad, &raw mut length, 0), -libc::EINVAL);
            assert_eq!(umad_recv(port, umad, ptr::null_mut(), 0), -libc::EINVAL);
            assert_eq!(umad_recv(port, ptr::null_mut(), &raw mut length, 0), -libc::EINVAL);
        }
    }

    #[test]
    fn umad_poll_and_recv_end_with_a_mad_or_etimedout() {
        let (port, fake) = opened();
        assert_eq!((umad_poll(port, 0), umad_poll(port, 1)), (-libc::ETIMEDOUT, -libc::ETIMEDOUT));
        assert_eq!(receive(port, &mut room(256), 1).0, -libc::ETIMEDOUT);
        fake.deliver(0, 0, &mad(0x81, 7, 256));
        assert_eq!((umad_poll(port, 0), umad_poll(port, -1)), (0, 0));
        let (other, _fake) = opened();
        assert_ne!(other, port);
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(other, &mut room(256), -1));
            _fake.deliver(1, 0, &mad(0x81, 7, 256));
            assert_eq!(receiver.join().unwrap(), (1, 256));
        });
    }

    #[test]
    fn hung_up_umad_port_polls_readable_and_is_eio() {
        let (port, fake) = opened();
        fake.hang_up();
        assert_eq!(umad_poll(port, -1), 0);
        assert_eq!(receive(port, &mut room(256), -1).0, -libc::EIO);
        assert_eq!(send(port, 0, &mad(1, 1, 256), 0), (-libc::EIO, libc::EIO));
        assert_eq!(umad_get_fd(port), port);
        assert_eq!((umad_close_port(port), umad_close_port(port)), (0, -libc::EINVAL));
        assert_eq!((umad_get_fd(port), umad_poll(port, 0)), (-libc::EINVAL, -libc::EINVAL));
        assert_eq!(receive(port, &mut room(256), -1).0, -libc::EINVAL);
    }
}
