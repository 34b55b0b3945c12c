//! Messages that a peer has not read.

use std::io;
use std::os::fd::AsFd;

use crate::sys;

/// Returns how many bytes of memory the messages take that were sent on a Unix socket, and that its peer has neither read nor discarded by
/// closing its end. Descriptors in such messages are in flight, and count for the sender's user.
///
/// # Errors
/// Those of `SIOCOUTQ` (unix(7)).
pub fn unread_by_peer(socket: impl AsFd) -> io::Result<usize> {
    sys::unread_by_peer(socket)
}

#[cfg(test)]
mod tests {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send,
        shutdown, socketpair,
    };

    use super::unread_by_peer;

    #[test]
    fn message_is_unread_until_it_is_received_or_the_peer_is_closed() {
        let pair = || {
            let (unix, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let (near, far) = socketpair(unix, kind, SocketFlags::CLOEXEC, None).unwrap();
            assert_eq!(unread_by_peer(&near).unwrap(), 0);
            send(&near, &[1], SendFlags::empty()).unwrap();
            assert!(unread_by_peer(&near).unwrap() > 0);
            (near, far)
        };
        let (near, far) = pair();
        shutdown(&far, Shutdown::Both).unwrap();
        assert!(unread_by_peer(&near).unwrap() > 0);
        recv(&far, &mut [0; 1], RecvFlags::empty()).unwrap();
        assert_eq!(unread_by_peer(&near).unwrap(), 0);
        let (near, far) = pair();
        drop(far);
        assert_eq!(unread_by_peer(&near).unwrap(), 0);
    }
}
