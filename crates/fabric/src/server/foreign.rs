//! Descriptors that clients pass. A client decides what they are, and close(2) may wait for whoever serves the file (FUSE) or reads the
//! stream (`SO_LINGER`). So those that are not what was asked for are closed by threads of their own.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::SealFlags;

/// So many messages with descriptors of a user's may wait to be closed. Then it is let in no more.
const MOST: usize = 8;

/// Closes descriptors, and knows of which users many wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Closer(Arc<Mutex<BTreeMap<u32, usize>>>);

impl Closer {
    /// Whether so many descriptors of a user are still to be closed that it is let in no more.
    pub(super) fn is_full(&self, user: u32) -> bool {
        self.0.lock().get(&user).is_some_and(|waiting| *waiting >= MOST)
    }

    /// The only descriptor, if it is that of a memfd that does not shrink, which the kernel itself serves: F_GET_SEALS is answered by
    /// nothing else, and asks no process. Everything else is closed, some time.
    pub(super) fn only_memfd(&self, user: u32, fds: Vec<OwnedFd>) -> Option<OwnedFd> {
        let is_one = |fd: &OwnedFd| {
            rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        };
        match <[OwnedFd; 1]>::try_from(fds) {
            Ok([fd]) if is_one(&fd) => Some(fd),
            Ok(fds) => self.close(user, fds.into()),
            Err(fds) => self.close(user, fds),
        }
    }

    /// Closes descriptors, some time. Never blocks.
    pub(super) fn close<T>(&self, user: u32, fds: Vec<OwnedFd>) -> Option<T> {
        if fds.is_empty() {
            return None;
        }
        *self.0.lock().entry(user).or_default() += 1;
        let closer = self.clone();
        let thread = std::thread::Builder::new().name("rdmux-close".to_owned());
        let started = thread.spawn(move || {
            drop(fds);
            let mut all = closer.0.lock();
            if let Some(waiting) = all.get_mut(&user) {
                *waiting -= 1;
                if *waiting == 0 {
                    all.remove(&user);
                }
            }
        });
        if let Err(error) = started {
            // They were closed with what the thread would have done, and the user stays out.
            tracing::warn!(%error, "no thread to close descriptors");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn only_a_memfd_that_does_not_shrink_is_taken() {
        let closer = Closer::default();
        let memfd = |seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let good = || memfd(SealFlags::SHRINK);
        assert!(closer.only_memfd(1, vec![good()]).is_some());
        assert!(closer.only_memfd(1, vec![]).is_none());
        assert!(closer.only_memfd(1, vec![good(), good()]).is_none());
        assert!(closer.only_memfd(1, vec![memfd(SealFlags::GROW)]).is_none());
        let (a, _b) = rdmux_runtime::socket::pair().unwrap();
        assert!(closer.only_memfd(1, vec![a]).is_none());
    }

    #[test]
    fn user_whose_descriptors_do_not_close_is_known_and_nobody_waits() {
        let closer = Closer::default();
        let mut far_ends = Vec::new();
        for n in 0..MOST {
            assert!(!closer.is_full(7), "{n}");
            // Closing it waits until the peer has read.
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            near.set_nonblocking(true).unwrap();
            let linger = Some(std::time::Duration::from_secs(3600));
            rustix::net::sockopt::set_socket_linger(&near, linger).unwrap();
            while std::io::Write::write(&mut &near, &[0; 1 << 16]).is_ok() {}
            near.set_nonblocking(false).unwrap();
            far_ends.push(listener.accept().unwrap().0);
            assert!(closer.close::<()>(7, vec![near.into()]).is_none());
        }
        assert!(closer.is_full(7) && !closer.is_full(8));
        drop(far_ends);
        let since = Instant::now();
        while closer.is_full(7) {
            assert!(since.elapsed().as_secs() < 60);
            std::thread::yield_now();
        }
    }
}
