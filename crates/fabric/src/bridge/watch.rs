//! Notices the end of the fabric, also when no client uses the bridge: by a connection on which nothing is ever said.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::Mutex;

use super::client::Shared;
use super::pump::HANDSHAKE;

/// Watches until it is dropped.
pub(super) struct Watch {
    /// The connection that is watched now.
    now: Arc<Mutex<TcpStream>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Watches a connection in a thread: the bridge ends when it does, and the fabric cannot be reached again.
///
/// # Errors
/// When there is no thread or no descriptor.
pub(super) fn start(shared: &Arc<Shared>, tcp: &TcpStream) -> io::Result<Watch> {
    tcp.set_read_timeout(None)?;
    let now = Arc::new(Mutex::new(tcp.try_clone()?));
    let (watched, ours) = (Arc::clone(&now), Arc::clone(shared));
    let tcp = tcp.try_clone()?;
    let thread = thread::Builder::new().name("rdmux-watch".to_owned());
    let thread = thread.spawn(move || {
        if let Err(why) = watch(tcp, &watched, &ours)
            && !ours.state.is_ending()
        {
            tracing::warn!("the bridge ends: {why}");
        }
        ours.state.end();
    })?;
    Ok(Watch { now, shared: Arc::clone(shared), thread: Some(thread) })
}

/// Returns when the bridge ends, or why it must.
fn watch(mut tcp: TcpStream, now: &Mutex<TcpStream>, shared: &Shared) -> Result<(), String> {
    loop {
        let since = Instant::now();
        wait_for_end(&tcp);
        if shared.state.is_ending() {
            return Ok(());
        }
        if since.elapsed() < HANDSHAKE {
            // It lets us in and does not keep us.
            return Err("the fabric has ended the connection".to_owned());
        }
        tcp = shared.way.connect()?;
        let fail = |e: io::Error| e.to_string();
        tcp.set_read_timeout(None).map_err(fail)?;
        *now.lock() = tcp.try_clone().map_err(fail)?;
        // If the bridge ended meanwhile, it ended the connection before.
        if shared.state.is_ending() {
            return Ok(());
        }
    }
}

/// The fabric says nothing to who does not greet. Keep-alive segments tell when its machine is gone.
fn wait_for_end(mut tcp: &TcpStream) {
    loop {
        match tcp.read(&mut [0; 64]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state.end();
        // It may have ended by itself.
        let _ = self.now.lock().shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
