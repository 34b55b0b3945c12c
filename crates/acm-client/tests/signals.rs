//! Calls of a thread that is interrupted by signals.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::thread::JoinHandleExt as _;
use std::thread;
use std::time::Duration;

use rdmux_acm_client::{Address, Client, Places, Shared, Target};
use rdmux_runtime::listen_at;
use rdmux_testing::temp_dir;
use rustix::net::SocketType;

const LONG: Duration = Duration::from_secs(60);

extern "C" fn ignore(_: i32) {}

/// Makes a call in a thread that gets a signal every 20 ms, and calls back with the number of each signal, from 0 on.
fn signalled<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
    mut each: impl FnMut(usize),
) -> T {
    let handler: extern "C" fn(i32) = ignore;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    let call = thread::spawn(call);
    let mut n = 0;
    while !call.is_finished() {
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(call.as_pthread_t(), libc::SIGUSR1) };
        each(n);
        n += 1;
        assert!(n < 1000, "the call does not end");
        thread::sleep(Duration::from_millis(20));
    }
    call.join().unwrap()
}

#[test]
fn service_that_hands_out_no_cache_costs_a_bounded_time_despite_signals() {
    let dir = temp_dir();
    let places = Places::new(dir.path(), dir.path());
    // The service accepts no connection.
    let _listener = listen_at(&places.paths(), SocketType::SEQPACKET, 0o600).unwrap();
    let client = Client::new([Target::Programs(places)]);
    let is_there = move || client.shared().is_some_and(Shared::is_there);
    assert!(!signalled(is_there, |_| {}));
}

#[test]
fn signal_does_not_end_the_wait_for_a_tcp_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The backlog holds no second connection until the first is accepted.
    rustix::net::listen(&listener, 0).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let _first = TcpStream::connect(address).unwrap();
    let client = Client::new([Target::At(Address::Tcp(address))]);
    let connected = signalled(
        move || client.connect(LONG),
        |n| {
            if n == 5 {
                listener.accept().unwrap();
            }
        },
    );
    assert_eq!(connected, Ok(()));
}
