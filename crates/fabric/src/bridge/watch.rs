//! The connection by which the fabric says what changes of route tables. Its end is that of the fabric, also when no client uses the bridge.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::client::Shared;
use super::pump;

/// Reads until it is dropped.
pub(super) struct Watch {
    tcp: TcpStream,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Makes the updates that come by a connection, in a thread: the bridge ends when it does. Another thread tells the fabric what hosts count.
///
/// # Errors
/// When there is no thread or no descriptor.
pub(super) fn start(shared: &Arc<Shared>, tcp: &TcpStream) -> io::Result<Watch> {
    tcp.set_read_timeout(None)?;
    let mut watch =
        Watch { tcp: tcp.try_clone()?, shared: Arc::clone(shared), threads: Vec::new() };
    let (ours, tcp) = (Arc::clone(shared), tcp.try_clone()?);
    let updates = thread::Builder::new().name("rdmux-watch".to_owned()).spawn(move || {
        let result = update(&tcp, &ours);
        if !ours.state.is_ending() {
            match result {
                Ok(()) => tracing::info!("the bridge ends with the fabric"),
                Err(error) => tracing::warn!(%error, "the bridge ends"),
            }
        }
        ours.copies.end();
        ours.state.end();
    })?;
    watch.threads.push(updates);
    let ours = Arc::clone(shared);
    let rows = thread::Builder::new().name("rdmux-rows".to_owned());
    watch.threads.push(rows.spawn(move || ours.copies.report_until_end())?);
    Ok(watch)
}

/// Keep-alive segments tell when the fabric's machine is gone.
fn update(tcp: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buf = pump::buffer();
    while let Some(frame) = pump::read_frame(&mut &*tcp, &mut buf)? {
        let (_, message) = pump::numbered(frame)?;
        shared.copies.update(message)?;
    }
    Ok(())
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state.end();
        // It may have ended by itself.
        let _ = self.tcp.shutdown(Shutdown::Both);
        self.shared.copies.end();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}
