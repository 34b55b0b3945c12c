//! A child of fork(2) that cannot have descriptors of its own.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rdmux_acm_client::{Error, Places, Requests, Target};
use rdmux_testing::temp_dir;
use rdmux_wire::acm::Address as Name;
use rdmux_wire::acm::client::Query;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

const LONG: Duration = Duration::from_secs(60);

fn query() -> Query {
    Query::Resolve { source: None, dest: Name::name("node1").unwrap(), cached_only: false }
}

fn is_readable(requests: &Requests) -> bool {
    poll(&mut [PollFd::new(requests, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
}

#[test]
fn requests_of_a_child_without_descriptors_fail_and_the_parent_s_are_unaffected() {
    let dir = temp_dir();
    let places = Places::new(dir.path(), dir.path());
    let listener = UnixListener::bind(places.socket_link()).unwrap();
    let mut requests = Requests::new([Target::Programs(places)]).unwrap();
    requests.as_fd();
    requests.start(&query(), LONG);
    assert_eq!(requests.next(), None);
    let _first = listener.accept().unwrap();
    assert!(!is_readable(&requests));
    match unsafe { libc::fork() } {
        0 => {
            // A panic must not run the parent's tests.
            let child = std::panic::catch_unwind(move || in_child(requests));
            unsafe { libc::_exit(i32::from(child.is_err())) };
        }
        child => {
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) }, child);
            assert!(libc::WIFSTOPPED(status), "the child failed: {status}");
            // A connection that the child has is closed, which is an event.
            listener.set_nonblocking(true).unwrap();
            drop(listener.accept());
            assert!(!is_readable(&requests), "the parent gets events of the child's connection");
            assert_eq!(unsafe { libc::kill(child, libc::SIGCONT) }, 0);
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child failed");
        }
    }
    assert_eq!((requests.len(), requests.next()), (1, None));
}

/// Starts a request while no descriptor is free, and stops. Continued, it starts one while there are some.
fn in_child(mut requests: Requests) {
    let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let all: Vec<_> = std::iter::from_fn(|| requests.as_fd().try_clone_to_owned().ok()).collect();
    requests.start(&query(), LONG);
    unsafe { libc::raise(libc::SIGSTOP) };
    for _ in 0..2 {
        let (_, reply) = requests.wait(LONG).unwrap();
        assert!(matches!(reply, Err(Error::System(_, Errno::MFILE))), "{reply:?}");
    }
    assert!(requests.is_empty());
    drop(all);
    let id = requests.start(&query(), Duration::ZERO);
    assert_eq!(requests.wait(LONG), Some((id, Err(Error::TimedOut(Duration::ZERO)))));
}
